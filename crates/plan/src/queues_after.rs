//! How many queues devices have once a plan has recreated them. All code that counts queues uses these.

use std::collections::BTreeMap;

use model::host::{Channels, Device};
use model::nic::NicRequest;
use model::{ChannelKind, DeviceId, Offload, Recipes, Target};

use crate::index::Index;
use crate::place::Part;
use crate::recipe::of_device;

/// The devices whose queues a policy recreates, with how many of each kind they have then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueuesAfter(BTreeMap<DeviceId, After>);

/// The queues of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct After {
    rx: u32,
    tx: u32,
    /// Whether its NAPIs are there only then.
    napis: bool,
}

impl QueuesAfter {
    /// As the requests for devices have it: experts by name, and recipes where they may stop a queue.
    pub(crate) fn of(parts: &[Part], recipes: &Recipes, disruptive: bool, index: &Index<'_>) -> Self {
        let mut found = BTreeMap::new();
        for part in parts {
            let Target::Device(name) = &part.intent.target else { continue };
            let own = index.host.device_named(name).filter(|device| !index.host.is_upper(device));
            let Some(device) = own else { continue };
            let by_recipe = |kind| {
                let count = || of_device::channels_wanted(kind, part, device, recipes, index);
                disruptive.then(count).flatten()
            };
            let (rx, tx) = device.channels.map_or((0, 0), |channels| {
                let more = |kind: ChannelKind| {
                    let now = channels.of(kind).current;
                    let then = by_name(kind, part).or_else(|| by_recipe(kind)).unwrap_or(now);
                    i64::from(then) - i64::from(now)
                };
                let combined = more(ChannelKind::Combined);
                (combined + more(ChannelKind::Rx), combined + more(ChannelKind::Tx))
            });
            let napis = gives_napis(part, device);
            if rx != 0 || tx != 0 || napis {
                let count = |there: usize, more: i64| {
                    let there = i64::try_from(there).unwrap_or(i64::MAX);
                    u32::try_from(there.saturating_add(more).max(0)).unwrap_or(u32::MAX)
                };
                let (rx, tx) = (count(device.rx_queues.len(), rx), count(device.tx_queues.len(), tx));
                found.insert(device.id, After { rx, tx, napis });
            }
        }
        Self(found)
    }

    /// Whether the policy recreates the device's queues.
    pub(crate) fn remakes(&self, device: DeviceId) -> bool {
        self.0.contains_key(&device)
    }

    /// Whether a device without NAPIs has some then.
    pub(crate) fn gives_napis(&self, device: DeviceId) -> bool {
        self.0.get(&device).is_some_and(|after| after.napis)
    }

    /// Whether any device without NAPIs has some then.
    pub(crate) fn gives_any_napis(&self) -> bool {
        self.0.values().any(|after| after.napis)
    }

    /// How many receive queues a device has then.
    pub(crate) fn rx(&self, device: &Device) -> u32 {
        let now = u32::try_from(device.rx_queues.len()).unwrap_or(u32::MAX);
        self.0.get(&device.id).map_or(now, |after| after.rx)
    }

    /// How many transmit queues a device has then.
    pub(crate) fn tx(&self, device: &Device) -> u32 {
        let now = u32::try_from(device.tx_queues.len()).unwrap_or(u32::MAX);
        self.0.get(&device.id).map_or(now, |after| after.tx)
    }

    /// The words for how many receive queues a device has.
    pub(crate) fn sentence(&self, device: &Device) -> String {
        format!("it {} {}", self.has(device), self.rx(device))
    }

    /// The word for that it has its queues.
    pub(crate) fn has(&self, device: &Device) -> &'static str {
        if self.remakes(device.id) { "will have" } else { "has" }
    }
}

/// How many queues of a kind there will be: as many as the request wants by name, else as many as there are.
pub(crate) fn channels_after(kind: ChannelKind, part: &Part, channels: Channels) -> u32 {
    by_name(kind, part).unwrap_or(channels.of(kind).current)
}

fn by_name(kind: ChannelKind, part: &Part) -> Option<u32> {
    part.intent.nic.iter().find_map(|request| match request {
        NicRequest::Channels(of, count) if *of == kind => Some(*count),
        _ => None,
    })
}

/// Whether the request switches on the GRO that a veth without NAPIs lacks.
fn gives_napis(part: &Part, device: &Device) -> bool {
    let requested =
        || part.intent.nic.iter().any(|request| matches!(request, NicRequest::Offload(Offload::Gro, true)));
    device.kind == "veth" && device.offloads.get(&Offload::Gro) == Some(&false) && !device.xdp && requested()
}
