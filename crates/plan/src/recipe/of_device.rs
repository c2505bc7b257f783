//! Selects the settings of a recipe for a device: only those that the device supports and, unless disruption
//! is allowed, only those that stop no queue.

use std::collections::BTreeSet;

use model::host::{Device, RxQueueState};
use model::nic::NicRequest;
use model::recipe::{Mechanism, RecipeEntry, RecipeValue};
use model::{
    ChannelKind, CpuSet, DeviceId, HostKnob, NicKnob, PacketSize, QueueCoalesceParam, Reason, Recipes,
    RingKind, RxQueueKnob, Setting, Sysctl, Target, TxQueue, TxQueueKnob,
};

use crate::cpu_locality::{self, NearCores};
use crate::in_force;
use crate::index::Index;
use crate::nic::{self, remakes};
use crate::placement::{PlacedRequest, Placement};
use crate::recipe::circumstances;
use crate::wanted::DesiredSetting;

/// The settings of a recipe for a part on a device.
#[derive(Debug, Default)]
pub(crate) struct OfDevice {
    pub(crate) wanted: Vec<DesiredSetting>,
    /// Settings that are only proposed, because they would stop queues.
    pub(crate) proposed: Vec<DesiredSetting>,
    /// The mechanisms that the device lacks, by their displayed names.
    pub(crate) lacks: BTreeSet<&'static str>,
}

/// Returns the settings of a part's recipe on one device: all settings if the part is the device's own
/// request, otherwise only those of the part's own queues.
pub(crate) fn wanted(
    part: &PlacedRequest,
    device: &Device,
    placement: &Placement,
    index: &Index<'_>,
) -> OfDevice {
    let mut found = OfDevice::default();
    let of_device = matches!(&part.intent.target, Target::Device(name) if name == device.id.name.as_str());
    let scope =
        Scope { part, device, index, of_device, whole: of_device && placement.is_undivided(device.id) };
    let there = circumstances::of_device(device);
    for (mechanism, entry) in placement.recipes.under(part.intent.policy, &there) {
        let RecipeEntry { value, because, .. } = entry;
        if !mechanism.is_of_device() && !matches!(mechanism, Mechanism::Sysctl(_))
            || *value == RecipeValue::Keep
            || part.intent.nic.iter().any(|request| names(request, mechanism))
        {
            continue;
        }
        let Some(settings) = scope.settings(mechanism, value) else {
            if of_device {
                found.lacks.insert(mechanism.as_str());
            }
            continue;
        };
        let source = format!("{}: policy {}, {}", part.intent.origin, part.intent.policy, because.source);
        let because = Reason::new(because.why.clone(), source);
        for setting in settings {
            let Ok(now) = in_force::value(&setting, index) else {
                found.lacks.insert(mechanism.as_str());
                continue;
            };
            let proposed = now != setting && remakes(&setting, device) && !placement.disruptive;
            let list = if proposed { &mut found.proposed } else { &mut found.wanted };
            list.push(DesiredSetting { setting, because: because.clone() });
        }
    }
    // A recipe does not replace a table that could not be restored.
    let can_be_put_back =
        |table: &Setting| in_force::value(table, index).is_ok_and(|now| now == *table || now.restorable());
    if let Some(table) = scope.spread().filter(can_be_put_back) {
        let why = "the hash sends no packets to receive queues beyond the usable cores";
        let because = Reason::new(why, format!("{}: layout", part.intent.origin));
        found.wanted.push(DesiredSetting { setting: table, because });
    }
    found
}

/// Returns the number of queues of a kind that the recipe of a device's request wants.
pub(crate) fn channels_wanted(
    kind: ChannelKind,
    part: &PlacedRequest,
    device: &Device,
    recipes: &Recipes,
    index: &Index<'_>,
) -> Option<u32> {
    let there = circumstances::of_device(device);
    let recipe = recipes.under(part.intent.policy, &there);
    let entry = recipe.get(&Mechanism::Channels(kind))?;
    Scope { part, device, index, of_device: true, whole: true }.channels(kind, &entry.value)
}

/// Returns whether a request sets this mechanism explicitly, which takes precedence over the recipe.
fn names(request: &NicRequest, mechanism: Mechanism) -> bool {
    request.key().trim_start_matches("settings.") == mechanism.as_str()
}

struct Scope<'a> {
    part: &'a PlacedRequest,
    device: &'a Device,
    index: &'a Index<'a>,
    /// Whether the part is the device's own request.
    of_device: bool,
    /// Whether the part owns all queues of the device.
    whole: bool,
}

impl Scope<'_> {
    /// Returns the settings for a mechanism's value; `None` if the device has nothing to set.
    fn settings(&self, mechanism: Mechanism, value: &RecipeValue) -> Option<Vec<Setting>> {
        let id = self.device.id;
        match mechanism {
            Mechanism::Coalescing(param) => {
                let value = number(value)?;
                if self.whole {
                    self.device.coalesce?.of(param)?;
                    return Some(vec![Setting::Nic(id, NicKnob::Coalescing(param, value))]);
                }
                let (of_device, param) = (param, QueueCoalesceParam::of_queue(param)?);
                let queues = self.own_queues();
                let each =
                    queues.iter().all(|queue| queue.coalesce.is_some_and(|c| c.of(of_device).is_some()));
                (each && !queues.is_empty()).then(|| {
                    queues
                        .iter()
                        .map(|q| Setting::RxQueue(q.id, RxQueueKnob::Coalescing(param, value)))
                        .collect()
                })
            }
            Mechanism::RpsCpus => {
                let cpus = match value {
                    RecipeValue::Cpus(cpus) => cpus.intersection(&self.index.host.topology.online),
                    RecipeValue::CpusIfShort => self.cpus_if_short(),
                    _ => return None,
                };
                Some(
                    self.own_queues()
                        .iter()
                        .map(|queue| Setting::RxQueue(queue.id, RxQueueKnob::RpsCpus(cpus.clone())))
                        .collect(),
                )
            }
            Mechanism::RpsFlowCount => {
                let flows = nic::flows_as_rounded(number(value)?);
                Some(
                    self.own_queues()
                        .iter()
                        .map(|queue| Setting::RxQueue(queue.id, RxQueueKnob::RpsFlowCount(flows)))
                        .collect(),
                )
            }
            _ if !self.of_device => Some(Vec::new()),
            Mechanism::Channels(kind) => {
                self.channels(kind, value).map(|n| vec![Setting::Nic(id, NicKnob::Channels(kind, n))])
            }
            Mechanism::Ring(kind) => {
                self.ring(kind, value).map(|n| vec![Setting::Nic(id, NicKnob::Ring(kind, n))])
            }
            Mechanism::Offload(offload) => {
                let RecipeValue::Switch(on) = value else { return None };
                self.device.offloads.get(&offload)?;
                Some(vec![Setting::Nic(id, NicKnob::Offload(offload, *on))])
            }
            Mechanism::PacketSize(size) => self.packet_size(size, value),
            Mechanism::Xps => {
                let RecipeValue::Switch(spread) = value else { return None };
                // With a single queue, there is nothing to choose, and the kernel rejects the setting.
                (self.device.tx_queues.len() > 1).then(|| self.xps(*spread))
            }
            Mechanism::Sysctl(sysctl) => self.sysctl(sysctl, value),
            Mechanism::Delivery
            | Mechanism::DeferHardIrqs
            | Mechanism::GroFlushTimeout
            | Mechanism::IrqSuspendTimeout
            | Mechanism::Layout
            | Mechanism::Threads
            | Mechanism::WakeLatency
            | Mechanism::Reuseport => Some(Vec::new()),
        }
    }

    /// Returns the receive queues of this part; all queues if the device is not divided.
    fn own_queues(&self) -> Vec<&RxQueueState> {
        if self.whole {
            return self.device.rx_queues.iter().collect();
        }
        let own = self.part.queues.iter().filter(|placed| placed.queue.device == self.device.id);
        let own = own.flat_map(|placed| std::iter::once(&placed.queue).chain(&placed.also));
        own.filter_map(|queue| self.index.rx.get(queue).copied()).collect()
    }

    fn near(&self) -> NearCores {
        let allowed = cpu_locality::allowed(&self.part.intent, self.index.host);
        NearCores::new(self.device, &allowed, self.index.host)
    }

    /// Returns the CPUs near the device if it has fewer receive queues than there are cores near it;
    /// otherwise none. Kernel: Documentation/networking/scaling.rst, "Suggested Configuration" of RPS.
    fn cpus_if_short(&self) -> CpuSet {
        let near = self.near();
        if self.device.rx_queues.len() < near.local_cores() { near.local_cpus() } else { CpuSet::new() }
    }

    fn channels(&self, kind: ChannelKind, value: &RecipeValue) -> Option<u32> {
        let max = self.device.channels?.of(kind).max;
        let wanted = match value {
            RecipeValue::Number(count) => *count,
            RecipeValue::Max => max,
            RecipeValue::PerCore => u32::try_from(self.near().local_cores()).ok()?,
            _ => return None,
        };
        let wanted = wanted.min(max);
        // Do not remove queues whose values would be lost and could not be restored.
        let fewer = wanted < self.device.channels?.of(kind).current;
        (max > 0 && wanted > 0 && !(fewer && nic::loses_values(kind, wanted, self.device, self.index)))
            .then_some(wanted)
    }

    fn ring(&self, kind: RingKind, value: &RecipeValue) -> Option<u32> {
        let max = self.device.rings?.of(kind).max;
        let wanted = match value {
            RecipeValue::Number(size) => (*size).min(max),
            RecipeValue::Max => max,
            _ => return None,
        };
        (max > 0).then_some(wanted)
    }

    /// Returns the packet size limits: at most 64 KiB in both directions if the driver accepts no larger
    /// packets.
    fn packet_size(&self, size: PacketSize, value: &RecipeValue) -> Option<Vec<Setting>> {
        let sizes = &self.device.packet_sizes;
        let driver = sizes.of(size).and(sizes.tso_max_size)?;
        let most = match size {
            PacketSize::Gso | PacketSize::GsoIpv4 => driver,
            PacketSize::Gro | PacketSize::GroIpv4 => PacketSize::MAX,
        };
        let asked = match value {
            RecipeValue::Number(bytes) => *bytes,
            RecipeValue::Max => most,
            _ => return None,
        };
        let beyond = asked > PacketSize::LEGACY && driver <= PacketSize::LEGACY;
        let wanted = Setting::Nic(self.device.id, NicKnob::PacketSize(size, asked.min(most)));
        Some(if beyond { Vec::new() } else { vec![wanted] })
    }

    /// Returns the XPS settings. If `spread`, each usable CPU sends on one queue: its object's queue, or
    /// round robin. Otherwise, any CPU sends on any queue.
    fn xps(&self, spread: bool) -> Vec<Setting> {
        let allowed = cpu_locality::allowed(&self.part.intent, self.index.host);
        let tx = |index| TxQueue { device: self.device.id, index };
        let senders: Vec<_> = self.part.objects.iter().flat_map(|objects| objects.senders()).collect();
        if !spread || senders.is_empty() {
            return nic::xps(spread, self.device, &allowed);
        }
        senders
            .into_iter()
            .map(|(index, cpus)| Setting::TxQueue(tx(index), TxQueueKnob::XpsCpus(cpus)))
            .collect()
    }

    /// Returns the RSS table that excludes queues, if the layout does.
    fn spread(&self) -> Option<Setting> {
        let count = self.part.objects.as_ref()?.spread.filter(|_| self.whole)?;
        let own = |request: &NicRequest| matches!(request, NicRequest::RssQueues(_));
        let rss = self.device.rss.as_ref().filter(|_| !self.part.intent.nic.iter().any(own))?;
        let table = (0..self.device.ordinary_rx_queues(count).max(1)).cycle().take(rss.table.len()).collect();
        Some(Setting::Nic(self.device.id, NicKnob::RssTable(table)))
    }

    fn sysctl(&self, sysctl: Sysctl, value: &RecipeValue) -> Option<Vec<Setting>> {
        let value = number(value)?;
        self.index.host.sysctls.get(&sysctl)?;
        Some(vec![Setting::Host(HostKnob::Sysctl(sysctl, u64::from(value)))])
    }
}

fn number(value: &RecipeValue) -> Option<u32> {
    match value {
        RecipeValue::Number(number) => Some(*number),
        RecipeValue::Switch(on) => Some(u32::from(*on)),
        RecipeValue::Keep
        | RecipeValue::Delivery(_)
        | RecipeValue::Span(_)
        | RecipeValue::Max
        | RecipeValue::PerCore
        | RecipeValue::Cpus(_)
        | RecipeValue::CpusIfShort
        | RecipeValue::ByQueue
        | RecipeValue::Layout(_) => None,
    }
}

/// Returns a note that lists everything that the device lacks.
pub(crate) fn note_of_lacks(
    device: DeviceId,
    part: &PlacedRequest,
    lacks: &BTreeSet<&'static str>,
) -> Option<String> {
    let words: Vec<&str> = lacks.iter().copied().collect();
    (!words.is_empty())
        .then(|| format!("{device} has no {}: left out of policy {}", words.join(", "), part.intent.policy))
}
