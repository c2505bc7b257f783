//! Draws stacked devices, upper devices first.

use std::collections::{BTreeMap, BTreeSet};

use model::host::{Device, STACK_DEPTH_MAX};
use model::{Host, IfIndex};
use session::page::{Page, Style};

/// Draws each stacked device with its lower devices; empty on a host without stacked devices.
pub(super) fn stacks(host: &Host, page: &mut Page) {
    let lowers = directly_below(host);
    let all_lowers: BTreeSet<usize> = lowers.values().flatten().copied().collect();
    let mut is_first = true;
    for &top in lowers.keys().filter(|upper| !all_lowers.contains(upper)) {
        if is_first {
            page.gap();
            page.styled(Style::Strong, "STACKS");
            is_first = false;
        }
        page.line(named(&host.devices[top]));
        below(top, host, &lowers, "", STACK_DEPTH_MAX, page);
    }
}

/// Maps each device that is stacked on others to the devices directly below it, by position in the list of
/// devices: [`Host::is_directly_below`] for all devices at once.
fn directly_below(host: &Host) -> BTreeMap<usize, BTreeSet<usize>> {
    let mut at: BTreeMap<IfIndex, Vec<usize>> = BTreeMap::new();
    for (position, device) in host.devices.iter().enumerate() {
        at.entry(device.id.ifindex).or_default().push(position);
    }
    let with = |index: Option<IfIndex>| index.and_then(|index| at.get(&index)).into_iter().flatten().copied();
    let mut found: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (position, device) in host.devices.iter().enumerate() {
        let is_other = |other: &usize| host.devices[*other].id != device.id;
        for upper in with(device.link.master).filter(is_other) {
            found.entry(upper).or_default().insert(position);
        }
        for lower in with(device.link.lower).filter(is_other) {
            found.entry(position).or_default().insert(lower);
        }
    }
    found
}

fn below(
    upper: usize,
    host: &Host,
    all: &BTreeMap<usize, BTreeSet<usize>>,
    indent: &str,
    depth: usize,
    page: &mut Page,
) {
    let Some(lowers) = all.get(&upper).filter(|_| depth > 0) else { return };
    for (nth, &lower) in lowers.iter().enumerate() {
        let is_last = nth + 1 == lowers.len();
        let (branch, rest) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        page.line(format!("{indent}{branch}{}", named(&host.devices[lower])));
        below(lower, host, all, &format!("{indent}{rest}"), depth - 1, page);
    }
}

/// Formats a device, such as `eth0 (ice, 4 queues)` or `bond0 (bond)`.
fn named(device: &Device) -> String {
    let kind = if device.kind.is_empty() { "kind not known" } else { &device.kind };
    let down = if device.up { "" } else { ", down" };
    match (device.napis.len(), device.rx_queues.len()) {
        (0, _) => format!("{} ({kind}{down})", device.id),
        (_, 1) => format!("{} ({kind}, 1 queue{down})", device.id),
        (_, queues) => format!("{} ({kind}, {queues} queues{down})", device.id),
    }
}
