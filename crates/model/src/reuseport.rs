//! Describes how new connections are assigned to one of several listeners at the same address.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{DeviceId, NetnsId, RxQueue};
use crate::steering::Transport;

/// TCP sockets that listen at the same address, or UDP sockets bound to it, with `SO_REUSEPORT`.
///
/// A group is identified by its address, because its sockets change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerGroup {
    /// The network namespace of the sockets.
    pub netns: NetnsId,
    /// The protocol: a TCP socket gets new connections, a UDP socket gets datagrams.
    #[serde(default, skip_serializing_if = "Transport::is_tcp")]
    pub transport: Transport,
    /// The address.
    pub address: SocketAddr,
}

impl fmt::Display for ListenerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = if self.transport.is_tcp() { "listeners" } else { "UDP sockets" };
        f.pad(&format!("{of} {}", self.address))
    }
}

/// How new connections, or datagrams, are assigned to the sockets of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// By the kernel's hash of addresses and ports, over all sockets.
    #[default]
    Hash,
    /// By the queue on which the first packet arrived. If the queue has no list, or the packet has no queue,
    /// the kernel's hash decides. The lists are in ascending order of queue, without duplicates.
    Queues(Vec<QueueListeners>),
    /// By another program's BPF program, which netpolicy can neither read back nor attach again.
    Foreign,
}

/// The listeners of a queue, by the inodes of their sockets.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueListeners {
    /// The queue.
    pub queue: RxQueue,
    /// The listeners, at least one; if there are several, the kernel's hash chooses among them.
    pub listeners: Vec<u64>,
}

impl Spread {
    /// The maximum number of queues in a group's lists.
    pub const QUEUES_MAX: usize = 4096;
    /// The maximum number of listeners in a group that is spread by queue.
    pub const LISTENERS_MAX: usize = 1024;
    /// The maximum number of entries in the lists of all queues.
    pub const PLACES_MAX: usize = 8192;

    /// Assigns each device's queues to listeners, round robin. Every queue gets a listener and, on each
    /// device, every listener gets a queue, so that no listener is starved. The queues of one device must be
    /// adjacent.
    pub fn dealt(queues: &[RxQueue], listeners: &[u64]) -> Self {
        let mut queues = queues.to_vec();
        queues.sort_unstable();
        queues.dedup();
        let of_device = queues.chunk_by(|a, b| a.device == b.device);
        let lists = of_device.flat_map(|queues| {
            queues
                .iter()
                .enumerate()
                .map(|(at, &queue)| QueueListeners { queue, listeners: own(at, queues.len(), listeners) })
        });
        match lists.filter(|list| !list.listeners.is_empty()).collect::<Vec<_>>() {
            none if none.is_empty() => Self::Hash,
            lists => Self::Queues(lists),
        }
    }

    /// Returns the devices whose packets are spread by queue.
    pub fn devices(&self) -> BTreeSet<DeviceId> {
        match self {
            Self::Queues(lists) => lists.iter().map(|list| list.queue.device).collect(),
            Self::Hash | Self::Foreign => BTreeSet::new(),
        }
    }
}

/// Returns the listeners of the queue at this position, out of `queues` queues.
fn own(at: usize, queues: usize, listeners: &[u64]) -> Vec<u64> {
    if listeners.is_empty() {
        return Vec::new();
    }
    if listeners.len() <= queues {
        return vec![listeners[at % listeners.len()]];
    }
    listeners.iter().copied().skip(at).step_by(queues).collect()
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The maximum number of queues that are displayed.
        const SHOWN_MAX: usize = 16;
        match self {
            Self::Hash => f.pad("hash"),
            Self::Foreign => f.pad("a foreign BPF program"),
            Self::Queues(lists) => {
                let mut words: Vec<String> = lists.iter().take(SHOWN_MAX).map(ToString::to_string).collect();
                if lists.len() > SHOWN_MAX {
                    words.push(format!("… ({} queues)", lists.len()));
                }
                f.pad(&words.join(", "))
            }
        }
    }
}

impl fmt::Display for QueueListeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sockets: Vec<String> = self.listeners.iter().map(ToString::to_string).collect();
        write!(f, "{} → socket {}", self.queue, sockets.join("|"))
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::ids::{IfIndex, Label, QueueIndex};

    fn queues(ifindex: u32, count: u32) -> Vec<RxQueue> {
        let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(ifindex), name: Label::new("eth0") };
        (0..count).map(|index| RxQueue { device, index: QueueIndex(index) }).collect()
    }

    fn lists(spread: &Spread) -> Vec<Vec<u64>> {
        let Spread::Queues(lists) = spread else { panic!("{spread}") };
        lists.iter().map(|list| list.listeners.clone()).collect()
    }

    #[test]
    fn each_worker_has_a_queue_and_each_queue_a_worker_whichever_there_are_more_of() {
        assert_eq!(lists(&Spread::dealt(&queues(2, 2), &[7, 8])), [vec![7], vec![8]]);
        assert_eq!(lists(&Spread::dealt(&queues(2, 2), &[7, 8, 9])), [vec![7, 9], vec![8]]);
        assert_eq!(lists(&Spread::dealt(&queues(2, 3), &[7, 8])), [vec![7], vec![8], vec![7]]);
        assert_eq!(Spread::dealt(&queues(2, 3), &[]), Spread::Hash);
        assert_eq!(Spread::dealt(&[], &[7]), Spread::Hash);
    }

    #[test]
    fn on_two_devices_each_worker_has_a_queue_of_both() {
        let both = [queues(3, 1), queues(2, 3)].concat();
        let dealt = Spread::dealt(&both, &[7, 8]);
        assert_eq!(lists(&dealt), [vec![7], vec![8], vec![7], vec![7, 8]]);
        assert_eq!(dealt.devices().len(), 2);
    }

    #[test]
    fn no_worker_starves_for_any_numbers_of_queues_and_workers() {
        for count in 1..=9 {
            for workers in 1..=9_u64 {
                let workers: Vec<u64> = (100..100 + workers).collect();
                let dealt = lists(&Spread::dealt(&queues(2, count), &workers));
                let served: BTreeSet<u64> = dealt.iter().flatten().copied().collect();
                assert_eq!(served, workers.iter().copied().collect(), "{count} queues");
                assert!(dealt.iter().all(|list| !list.is_empty()), "{count} queues: {dealt:?}");
            }
        }
    }

    #[test]
    fn a_spread_reads_as_queues_with_their_sockets() {
        let dealt = Spread::dealt(&queues(2, 2), &[7, 8, 9]);
        assert_eq!(dealt.to_string(), "eth0 rx-0 → socket 7|9, eth0 rx-1 → socket 8");
        assert!(Spread::dealt(&queues(2, 40), &[7]).to_string().ends_with("… (40 queues)"));
    }
}
