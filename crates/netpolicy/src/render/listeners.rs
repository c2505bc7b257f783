//! Formats sockets that share an address (SO_REUSEPORT), and how connections and datagrams are assigned to
//! them.

use model::host::{SharedListeners, SpreadCounts};
use model::{Host, Spread, Transport};
use session::page::{Cell, Table};

/// Lists the groups, one line for each. If the assignment depends on the queue, the line lists the group's
/// queues.
pub(super) fn listeners(host: &Host) -> Table {
    let mut table = Table::new(&["LISTENERS", "SOCKETS", "CHOSEN BY", "BY QUEUE", "BY HASH"]);
    for group in &host.listeners {
        table.row([
            Cell::new(match group.id.transport {
                Transport::Tcp => group.id.address.to_string(),
                Transport::Udp => format!("udp {}", group.id.address),
            }),
            Cell::number(group.sockets),
            Cell::new(chosen_by(group)),
            Cell::optional(group.counts.map(|counts| counts.by_queue)),
            Cell::optional(group.counts.map(by_hash)),
        ]);
    }
    table
}

fn by_hash(counts: SpreadCounts) -> u64 {
    let SpreadCounts { by_queue: _, no_list, changed, gone } = counts;
    no_list.saturating_add(changed).saturating_add(gone)
}

fn chosen_by(group: &SharedListeners) -> String {
    match &group.spread {
        Spread::Hash => "the kernel's hash".to_owned(),
        Spread::Foreign => "another application's program".to_owned(),
        Spread::Queues(lists) => {
            let queues = lists.len();
            let devices: Vec<String> =
                group.spread.devices().into_iter().map(|device| device.to_string()).collect();
            format!("queue: {queues} of {}", devices.join(", "))
        }
    }
}
