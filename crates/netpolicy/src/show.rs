//! Groups the edges between sockets and queues for display.

use std::collections::BTreeMap;

use model::host::{Confidence, IrqEdge, Process, SocketState};
use model::{EpollId, Fd, Host, NapiId, RxQueue};

/// Sockets of one epoll whose state and NAPI are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SocketGroup {
    /// The epoll that watches the sockets; `None` if no epoll does.
    pub(crate) epoll: Option<Fd>,
    /// The state of these sockets.
    pub(crate) state: SocketState,
    /// The NAPI that delivers their packets.
    pub(crate) napi: Option<NapiId>,
    /// The number of these sockets.
    pub(crate) count: usize,
}

/// Groups the sockets of a process by epoll. A socket that several epolls watch is in a group of each.
pub(crate) fn socket_groups(process: &Process) -> Vec<SocketGroup> {
    let mut watchers: BTreeMap<u64, Vec<Fd>> = BTreeMap::new();
    for epoll in &process.epolls {
        for member in &epoll.members {
            watchers.entry(member.inode).or_default().push(epoll.id.fd);
        }
    }
    let mut counts: BTreeMap<(Option<Fd>, SocketState, Option<NapiId>), usize> = BTreeMap::new();
    for socket in &process.sockets {
        let epolls = watchers.get(&socket.inode).map_or(&[][..], Vec::as_slice);
        for epoll in epolls.iter().copied().map(Some).chain(epolls.is_empty().then_some(None)) {
            *counts.entry((epoll, socket.state, socket.napi)).or_default() += 1;
        }
    }
    counts
        .into_iter()
        .map(|((epoll, state, napi), count)| SocketGroup { epoll, state, napi, count })
        .collect()
}

/// The NAPIs of an epoll's sockets, each once.
pub(crate) fn napis_of(process: &Process, epoll: EpollId) -> Vec<NapiId> {
    let groups = socket_groups(process).into_iter().filter(|group| group.epoll == Some(epoll.fd));
    let mut napis: Vec<NapiId> = groups.filter_map(|group| group.napi).collect();
    napis.sort_unstable();
    napis.dedup();
    napis
}

/// Describes a group: `12 established`.
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

/// The queues of a NAPI, each with its confidence.
pub(crate) fn queues_of(host: &Host, napi: NapiId) -> Vec<(RxQueue, Confidence)> {
    let queues = host.devices.iter().flat_map(|device| &device.rx_queues);
    let served = queues.filter_map(|queue| {
        queue.napi.filter(|edge| edge.napi == napi).map(|edge| (queue.id, edge.confidence))
    });
    served.collect()
}

/// The interrupt of a NAPI.
pub(crate) fn irq_of(host: &Host, napi: NapiId) -> Option<IrqEdge> {
    host.napi(napi)?.1.irq
}

/// The mark of an edge: `?` if it was inferred, nothing if the kernel or driver reports it.
pub(crate) const fn mark(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Stated => "",
        Confidence::ByName | Confidence::ByOrder => "?",
    }
}
