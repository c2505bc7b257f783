//! Processes in other network namespaces, such as those of containers and pods: which of them receive on a
//! NIC of this namespace, and why the others do not.
//!
//! A socket stores the id of the NAPI of its last packet, whatever namespace that NAPI's device is in. Busy
//! polling finds the NAPI only by that id (6.18, `net/core/dev.c` `napi_by_id()`). Whether the id survives
//! depends on the path of the packet. `bpf_redirect_peer()`, macvlan and ipvlan pass on the same buffer
//! within one poll (`skb_do_redirect()`, `RX_HANDLER_ANOTHER`). A veth transmits the buffer, which overwrites
//! the id with the CPU's (`netdev_core_pick_tx()`, `sender_cpu`).

use std::collections::{BTreeMap, BTreeSet};

use model::host::{Process, SocketState};
use model::{Host, NetnsId, Pid};

use crate::index::Index;
use crate::listeners::{Listeners, Role, serves};

/// Returns whether a process, in any namespace, receives on a NAPI of this namespace's devices.
pub(crate) fn receives_here(process: &Process, index: &Index<'_>) -> bool {
    process.sockets.iter().filter_map(|socket| socket.napi).any(|napi| index.napis.contains_key(&napi))
}

/// Returns whether a process is in another network namespace than the host's devices.
pub(crate) fn is_in_other_netns(process: &Process, host: &Host) -> bool {
    process.netns.is_some_and(|netns| netns != host.netns)
}

/// Returns the processes in this namespace that serve a port but have received no packet that shows their
/// NAPI. Until a packet arrives, they claim all queues. Processes that only hold a listener for others, and
/// never receive a packet, are excluded.
pub fn without_packets(pids: impl IntoIterator<Item = Pid>, host: &Host) -> impl Iterator<Item = &Process> {
    let listeners = Listeners::new(&host.processes);
    let known: BTreeMap<Pid, &Process> =
        host.processes.iter().map(|process| (process.id.pid, process)).collect();
    let processes = pids.into_iter().filter_map(move |pid| known.get(&pid).copied());
    processes.filter(move |process| {
        process.sockets.iter().any(serves)
            && listeners.role(process) == Role::Receives
            && process.sockets.iter().all(|socket| socket.napi.is_none())
            && matches!(Path::of(process), Path::NotSeen)
    })
}

/// Returns the TCP ports on which this process listens, with their network namespaces. The first connection
/// to one of the ports shows the NAPI.
pub fn listened_ports(process: &Process) -> BTreeSet<(NetnsId, u16)> {
    let listeners = process.sockets.iter().filter(|socket| socket.state == SocketState::TcpListen);
    listeners.filter_map(|socket| Some((process.netns?, socket.local?.port()))).collect()
}

/// How packets reach a process that receives on no NAPI of this namespace.
pub(crate) enum Path {
    /// Through NAPIs of devices in the process's own namespace; the number of connections that receive there.
    OwnDevices(usize),
    /// Through a CPU's backlog; the number of connections that receive there.
    Backlog(usize),
    /// Unknown: no packet has arrived yet.
    NotSeen,
}

impl Path {
    pub(crate) fn of(process: &Process) -> Self {
        let remote = |state| matches!(state, SocketState::TcpEstablished | SocketState::Udp);
        let connections = || process.sockets.iter().filter(|s| remote(s.state) && !s.is_loopback());
        let own = connections().filter(|socket| socket.napi.is_some()).count();
        let none = connections().filter(|socket| socket.remote.is_some() && socket.napi.is_none()).count();
        match (own, none) {
            (0, 0) => Self::NotSeen,
            (0, none) => Self::Backlog(none),
            (own, _) => Self::OwnDevices(own),
        }
    }

    /// Explains why no setting of this namespace's NAPIs affects the process.
    pub(crate) fn why(&self) -> String {
        match self {
            Self::OwnDevices(connections) => {
                format!("{connections} of its connections receive on NAPIs of its own namespace's devices")
            }
            Self::Backlog(connections) => format!(
                "{connections} of its connections receive through a CPU's backlog, as behind a veth that the host routes or bridges to: the id of the NIC's NAPI is lost there, so no epoll can suspend its interrupt"
            ),
            Self::NotSeen => "no packet has shown its NAPI yet".to_owned(),
        }
    }

    /// The remedy.
    pub(crate) const fn way(&self) -> &'static str {
        match self {
            Self::OwnDevices(_) => "only commands in its own namespace can change their settings",
            Self::Backlog(_) => {
                "with bpf_redirect_peer (Cilium's host routing by eBPF), a macvlan, an ipvlan or a NIC's VF in its \
                 namespace, its sockets have the id of the NIC's NAPI"
            }
            Self::NotSeen => "it is planned for as soon as its sockets have the id of a NAPI here",
        }
    }
}
