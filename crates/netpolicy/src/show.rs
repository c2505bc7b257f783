//! Groups the edges between sockets and queues for display.

use std::collections::{BTreeMap, BTreeSet};

use model::host::{Confidence, IrqEdge, Process, SocketState};
use model::{Fd, Host, NapiId, RxQueue};

/// Sockets that have the same epoll, the same state and the same NAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SocketGroup {
    /// The epoll that watches the sockets; `None` if no epoll does.
    pub(crate) epoll: Option<Fd>,
    /// The state of these sockets.
    pub(crate) state: SocketState,
    /// The NAPI that delivers the sockets' packets.
    pub(crate) napi: Option<NapiId>,
    /// The number of these sockets.
    pub(crate) count: usize,
}

/// Returns the epolls that watch each socket of a process, by the socket's inode.
pub(crate) fn watchers(process: &Process) -> BTreeMap<u64, BTreeSet<Fd>> {
    let mut watchers: BTreeMap<u64, BTreeSet<Fd>> = BTreeMap::new();
    for epoll in &process.epolls {
        for member in &epoll.members {
            watchers.entry(member.inode).or_default().insert(epoll.id.fd);
        }
    }
    watchers
}

/// Returns the sockets of a process in groups, by epoll. A socket that several epolls watch is in a group of
/// each of them.
pub(crate) fn socket_groups(process: &Process) -> Vec<SocketGroup> {
    let watchers = watchers(process);
    let mut counts: BTreeMap<(Option<Fd>, SocketState, Option<NapiId>), usize> = BTreeMap::new();
    for socket in &process.sockets {
        let epolls = watchers.get(&socket.inode);
        let watching = epolls.into_iter().flatten().copied().map(Some);
        for epoll in watching.chain(epolls.is_none().then_some(None)) {
            *counts.entry((epoll, socket.state, socket.napi)).or_default() += 1;
        }
    }
    counts
        .into_iter()
        .map(|((epoll, state, napi), count)| SocketGroup { epoll, state, napi, count })
        .collect()
}

/// Whether the groups of one epoll receive from several NAPIs.
pub(crate) fn is_mixed<'g>(groups: impl IntoIterator<Item = &'g SocketGroup>) -> bool {
    let napis: BTreeSet<NapiId> = groups.into_iter().filter_map(|group| group.napi).collect();
    napis.len() > 1
}

/// Describes a group, such as `12 established`.
pub(crate) fn described(group: &SocketGroup) -> String {
    let state = match group.state {
        SocketState::TcpListen => "listening",
        SocketState::TcpEstablished => "established",
        SocketState::TcpOther => "tcp",
        SocketState::Udp => "udp",
        SocketState::Other => "other",
    };
    format!("{} {state}", group.count)
}

/// The queues and the interrupt of each NAPI.
#[derive(Debug, Default)]
pub(crate) struct NapiEdges {
    queues: BTreeMap<NapiId, Vec<(RxQueue, Confidence)>>,
    irqs: BTreeMap<NapiId, Option<IrqEdge>>,
}

impl NapiEdges {
    pub(crate) fn of(host: &Host) -> Self {
        let mut edges = Self::default();
        for device in &host.devices {
            for queue in &device.rx_queues {
                if let Some(edge) = queue.napi {
                    edges.queues.entry(edge.napi).or_default().push((queue.id, edge.confidence));
                }
            }
            for napi in &device.napis {
                edges.irqs.entry(napi.id).or_insert(napi.irq);
            }
        }
        edges
    }

    /// Returns the queues of a NAPI, and how certain each of these edges is.
    pub(crate) fn queues_of(&self, napi: NapiId) -> &[(RxQueue, Confidence)] {
        self.queues.get(&napi).map_or(&[], Vec::as_slice)
    }

    /// Returns the interrupt of a NAPI.
    pub(crate) fn irq_of(&self, napi: NapiId) -> Option<IrqEdge> {
        self.irqs.get(&napi).copied().flatten()
    }
}

/// Returns the mark of an edge: `?` if the edge was inferred, nothing if the kernel or driver reports it.
pub(crate) const fn mark(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Stated => "",
        Confidence::ByName | Confidence::ByOrder => "?",
    }
}
