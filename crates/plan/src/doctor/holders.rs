//! Findings about held queues: who holds them, and whether ordinary packets still arrive on them.

use std::collections::BTreeSet;

use model::Severity;
use model::host::{Device, HolderKind};

use super::case::Case;
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "queue-held",
        doc: "A lease, a memory provider or an AF_XDP socket holds a queue.",
        find: queue_held,
    },
    DoctorRule {
        id: "provider-in-rss",
        doc: "The receive hash sends packets to a queue whose memory belongs to another program, where they are lost.",
        find: provider_in_rss,
    },
];

fn queue_held(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let held = |device: &Device| -> Vec<Found> {
        let found = device.holders.iter().map(|holder| {
            let object = format!("{} {}", device.id, holder.queues());
            let summary = format!("held by {}", holder.sentence());
            let source = match holder.kind {
                HolderKind::AfXdp { .. } => "netdev queue-get (xsk) and sock-diag of AF_XDP",
                HolderKind::Lease { .. } => "netdev queue-get: lease",
                HolderKind::Dmabuf { .. } => "netdev queue-get: dmabuf",
                HolderKind::IoUring { .. } => "netdev queue-get: io-uring",
            };
            Found::new(Severity::Note, object, summary)
                .evidence(format!("read by {source}"))
                .evidence(format!(
                    "while the queue is held, netpolicy refuses to change the rings, channels or private flags of {}, and any receive hash or rules that change what the queue receives",
                    device.id
                ))
        });
        found.collect()
    };
    case.host.devices.iter().flat_map(held).collect()
}

fn provider_in_rss(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let found = |device: &Device| {
        let spread: BTreeSet<u32> = device.rss.as_ref()?.table.iter().copied().collect();
        let provided = device.holders.iter().filter(|holder| holder.rx && holder.kind.is_provider());
        let lost: BTreeSet<u32> =
            provided.map(|holder| holder.queue.0).filter(|queue| spread.contains(queue)).collect();
        let names: Vec<String> = lost.iter().map(|queue| format!("rx-{queue}")).collect();
        (!lost.is_empty()).then(|| {
            Found::new(
                Severity::Warning,
                device.id,
                format!(
                    "the receive hash also sends ordinary packets to {}, whose memory belongs to another program",
                    names.join(", ")
                ),
            )
            .evidence(format!("the hash covers {} queue(s), {} of which are held", spread.len(), lost.len()))
            .evidence(
                "the program that holds the queue must change this: outside the hash, the queue receives only packets that the NIC's rules direct to it",
            )
        })
    };
    case.host.devices.iter().filter_map(found).collect()
}
