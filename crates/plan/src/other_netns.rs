//! Processes of other network namespaces, as those of containers and pods: which receive by a NIC of this one, and why others
//! do not.
//!
//! A socket names the NAPI that its last packet came through, whatever namespace that NAPI's device is in, and busy polling
//! finds it by that number alone (6.18, `net/core/dev.c` `napi_by_id()`). What a packet passes on its way decides whether the
//! number survives: `bpf_redirect_peer()`, macvlan and ipvlan hand over the same buffer within one poll (`skb_do_redirect()`,
//! `RX_HANDLER_ANOTHER`). A veth sends it, and sending overwrites the number with the CPU's (`netdev_core_pick_tx()`, `sender_cpu`).

use std::collections::BTreeSet;

use model::host::{Process, SocketState};
use model::{Host, NetnsId, Pid};

use crate::index::Index;
use crate::listeners::{Listeners, Role, serves};

/// Whether a process of another namespace receives by a NAPI of this one's devices.
pub(crate) fn receives_here(process: &Process, index: &Index<'_>) -> bool {
    process.sockets.iter().filter_map(|socket| socket.napi).any(|napi| index.napis.contains_key(&napi))
}

/// Whether a process is in another network namespace than the host's devices.
pub(crate) fn is_in_other_netns(process: &Process, host: &Host) -> bool {
    process.netns.is_some_and(|netns| netns != host.netns)
}

/// Those of these processes that serve a port, and have shown by no packet yet by which NAPI they receive: of this namespace,
/// all queues are claimed for them meanwhile. Who only holds a listener for others will show none, and is none of them.
pub fn without_packets(pids: impl IntoIterator<Item = Pid>, host: &Host) -> impl Iterator<Item = &Process> {
    let listeners = Listeners::new(&host.processes);
    let processes = pids.into_iter().filter_map(|pid| host.process(pid));
    processes.filter(move |process| {
        process.sockets.iter().any(serves)
            && listeners.role(process) == Role::Receives
            && process.sockets.iter().all(|socket| socket.napi.is_none())
            && matches!(Path::of(process), Path::NotSeen)
    })
}

/// The TCP ports, each with its network namespace, on which this process listens: the first connection to one of them shows
/// by which NAPI it receives.
pub fn listened_ports(process: &Process) -> BTreeSet<(NetnsId, u16)> {
    let listeners = process.sockets.iter().filter(|socket| socket.state == SocketState::TcpListen);
    listeners.filter_map(|socket| Some((process.netns?, socket.local?.port()))).collect()
}

/// How the packets of a process come that receives by no NAPI here.
pub(crate) enum Path {
    /// By NAPIs of its own namespace's devices.
    OwnDevices(usize),
    /// By a CPU's backlog.
    Backlog(usize),
    /// None has come yet that would show it.
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

    /// Why no setting of this namespace's NAPIs reaches the process.
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

    /// What would change it.
    pub(crate) const fn way(&self) -> &'static str {
        match self {
            Self::OwnDevices(_) => "settings of these are made there",
            Self::Backlog(_) => {
                "with bpf_redirect_peer (Cilium's host routing by eBPF), a macvlan, an ipvlan or a NIC's VF in its \
                 namespace, its sockets have the id of the NIC's NAPI"
            }
            Self::NotSeen => "it is planned for as soon as its sockets have the id of a NAPI here",
        }
    }
}
