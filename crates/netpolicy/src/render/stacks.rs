//! Draws stacked devices, upper devices first.

use model::Host;
use model::host::{Device, STACK_DEPTH_MAX};
use session::page::{Page, Style};

/// Draws each stacked device with its lower devices; empty on a host without stacked devices.
pub(super) fn stacks(host: &Host, page: &mut Page) {
    let is_below_another =
        |device: &Device| host.devices.iter().any(|upper| host.is_directly_below(device, upper));
    let tops = host.devices.iter().filter(|device| {
        !is_below_another(device) && host.devices.iter().any(|lower| host.is_directly_below(lower, device))
    });
    let mut is_first = true;
    for top in tops {
        if is_first {
            page.gap();
            page.styled(Style::Strong, "STACKS");
            is_first = false;
        }
        page.line(named(top));
        below(top, host, "", STACK_DEPTH_MAX, page);
    }
}

fn below(upper: &Device, host: &Host, indent: &str, depth: usize, page: &mut Page) {
    if depth == 0 {
        return;
    }
    let lowers: Vec<&Device> =
        host.devices.iter().filter(|lower| host.is_directly_below(lower, upper)).collect();
    for (at, lower) in lowers.iter().enumerate() {
        let is_last = at + 1 == lowers.len();
        let (branch, rest) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        page.line(format!("{indent}{branch}{}", named(lower)));
        below(lower, host, &format!("{indent}{rest}"), depth - 1, page);
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
