//! Facts about NIC drivers from the kernel's source: how changes affect traffic, and what a driver would
//! reject.

use std::collections::BTreeMap;

use model::host::Device;
use model::nic::CoalesceParam;
use model::{DeviceId, DriverFacts, Fact, Interruption, NicKnob, Setting};

use crate::in_force;
use crate::index::Index;
use crate::placement::Placement;
use crate::wanted::Collected;

/// The desired changes of a NIC with a known driver.
struct Changes<'a> {
    device: &'a Device,
    facts: &'a DriverFacts,
    /// The kernel version that the facts describe.
    kernel: &'a str,
    wanted: Vec<&'a NicKnob>,
}

impl Changes<'_> {
    /// Formats the source of a fact: `ena, Linux 7.3.4: drivers/net/…/ena_netdev.c:2248 ena_down`.
    fn source<T>(&self, fact: &Fact<T>) -> String {
        format!("{}, Linux {}: {}", self.device.kind, self.kernel, fact.source())
    }
}

/// Returns the desired changes of each NIC with a known driver.
fn changes<'a>(placement: &'a Placement, index: &Index<'a>, collected: &'a Collected) -> Vec<Changes<'a>> {
    let nics = &placement.recipes.nics;
    let mut by_device: BTreeMap<DeviceId, Changes<'a>> = BTreeMap::new();
    for wanted in &collected.desired.wanted {
        let Setting::Nic(id, knob) = &wanted.setting else { continue };
        let Some(&device) = index.devices.get(id) else { continue };
        let Some(facts) = nics.of(device) else { continue };
        if in_force::value(&wanted.setting, index).is_ok_and(|now| now == wanted.setting) {
            continue;
        }
        let changes = || Changes { device, facts, kernel: &nics.kernel, wanted: Vec::new() };
        by_device.entry(*id).or_insert_with(changes).wanted.push(knob);
    }
    by_device.into_values().collect()
}

/// Adds notes on the effects of the plan's changes, according to the driver's source.
pub(crate) fn note(placement: &Placement, index: &Index<'_>, collected: &mut Collected) {
    let mut notes = Vec::new();
    for of_device in changes(placement, index, collected) {
        let Changes { device, facts, ref wanted, .. } = of_device;
        let mut said: BTreeMap<&str, String> = BTreeMap::new();
        for knob in wanted {
            let (what, fact) = match knob {
                NicKnob::Ring(..) => ("changing the ring size", &facts.ring_change),
                NicKnob::Channels(..) => ("changing the number of queues", &facts.channel_change),
                _ => continue,
            };
            let Some(fact) = fact.as_ref() else { continue };
            let does = match fact.is {
                Interruption::CarrierOff => "briefly takes the link down",
                Interruption::QueueReset => "resets its queues and drops their packets",
                Interruption::Nothing | Interruption::Unsupported => continue,
            };
            said.insert(what, format!("{}: {what} {does} ({})", device.id, of_device.source(fact)));
        }
        notes.extend(said.into_values());
        let channels = wanted.iter().any(|knob| matches!(knob, NicKnob::Channels(..)));
        if let Some(fact) = facts.refuses.as_ref().filter(|_| channels) {
            notes.push(format!("{}: its driver refuses {} ({})", device.id, fact.is, of_device.source(fact)));
        }
        notes.extend(adapts(&of_device));
    }
    collected.desired.notes.extend(notes);
}

/// Returns a note on values that adaptive moderation overrides, for drivers that turn it on by default.
fn adapts(of_device: &Changes<'_>) -> Option<String> {
    let asked = |param: CoalesceParam| {
        of_device.wanted.iter().find_map(|knob| match knob {
            NicKnob::Coalescing(of, value) if *of == param => Some(*value),
            _ => None,
        })
    };
    asked(CoalesceParam::RxUsecs)?;
    let fact = of_device.facts.adaptive_by_default.as_ref().filter(|fact| fact.is)?;
    let now = of_device.device.coalesce.and_then(|coalesce| coalesce.adaptive_rx);
    let stays = asked(CoalesceParam::AdaptiveRx).map_or(now.unwrap_or(true), |on| on != 0);
    stays.then(|| {
        format!(
            "{}: its driver adapts rx-usecs to the traffic unless adaptive-rx is off ({})",
            of_device.device.id,
            of_device.source(fact)
        )
    })
}

/// Adds notes on values that exceed the driver's limits, according to its source. The running kernel may have
/// a newer driver, so what the driver reports takes precedence, including whether the device has RSS
/// contexts.
pub(crate) fn note_limits(placement: &Placement, index: &Index<'_>, collected: &mut Collected) {
    let mut notes = Vec::new();
    for of_device in changes(placement, index, collected) {
        let Changes { device, facts, ref wanted, .. } = of_device;
        let contexts = wanted.iter().filter(|knob| matches!(knob, NicKnob::RssContext(_, true))).count();
        // A rule that replaces one for the same flow uses the same slot, so it is not new.
        let has_one = |flow| device.flow_rules.iter().flatten().any(|placed| placed.flow == Some(flow));
        let is_new = |knob: &&&NicKnob| matches!(knob, NicKnob::FlowRule(flow, Some(_)) if !has_one(*flow));
        let rules = wanted.iter().filter(is_new).count();
        for (what, new, there, fact) in [
            ("RSS contexts", contexts, device.rss_contexts.as_ref().map_or(0, Vec::len), &facts.rss_contexts),
            ("ntuple rules", rules, device.flow_rules.as_ref().map_or(0, Vec::len), &facts.ntuple_rules),
        ] {
            let Some(fact) = fact.as_ref().filter(|fact| fact.is > 0 && new > 0) else { continue };
            if new + there > usize::try_from(fact.is).unwrap_or(usize::MAX) {
                notes.push(format!(
                    "{}: {new} more {what} in addition to {there}: its driver supports at most {} ({})",
                    device.id,
                    fact.is,
                    of_device.source(fact)
                ));
            }
        }
    }
    collected.desired.notes.extend(notes);
}
