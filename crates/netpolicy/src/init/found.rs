//! Finds the services and devices of a host, for a first policy file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use linux::netlink::sock_diag::InetSockets;
use linux::{KernelError, Netns, Processes};
use model::host::SocketState;
use model::{DeviceId, Host, Pid};

/// A socket that accepts traffic from any peer, at a certain address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListeningSocket {
    /// The socket's inode.
    pub inode: u64,
    /// Whether this is a TCP socket; otherwise it is a UDP socket.
    pub tcp: bool,
    /// The local address.
    pub at: SocketAddr,
}

impl ListeningSocket {
    /// Returns the listening socket; `None` if this socket does not listen.
    pub fn of(inode: u64, state: SocketState, local: Option<SocketAddr>, connected: bool) -> Option<Self> {
        let tcp = match state {
            SocketState::TcpListen => true,
            SocketState::Udp if !connected => false,
            SocketState::Udp | SocketState::TcpEstablished | SocketState::TcpOther | SocketState::Other => {
                return None;
            }
        };
        Some(Self { inode, tcp, at: local? })
    }

    /// Whether packets of a NIC can reach the socket.
    pub fn is_reachable(&self) -> bool {
        !self.at.ip().to_canonical().is_loopback()
    }

    /// Formats the protocol and the port, such as `tcp 11211`.
    pub fn port(&self) -> String {
        format!("{} {}", if self.tcp { "tcp" } else { "udp" }, self.at.port())
    }
}

/// The services and devices of a network namespace.
#[derive(Clone, Debug)]
pub struct HostServices {
    /// The host with its devices, and the processes with internet sockets.
    pub host: Host,
    /// The cgroup of each process whose cgroup could be read.
    pub cgroups: BTreeMap<Pid, String>,
    /// The path by which a process was started, if that is a symbolic link to an executable with another
    /// name.
    pub started_as: BTreeMap<Pid, String>,
    /// The number of packets that each device has received since it was created.
    pub received: BTreeMap<DeviceId, u64>,
    /// Every listening socket, even if its process is not visible.
    pub listening: Vec<ListeningSocket>,
    /// Facts about services that the caller adds to their sections. The key is the first process of the
    /// service.
    pub notes: BTreeMap<Pid, Vec<String>>,
}

impl HostServices {
    /// Inspects a namespace. `own` is the calling process, which does not count as a service.
    ///
    /// # Errors
    /// If the namespace cannot be entered, its devices cannot be listed, or the kernel does not list its
    /// sockets.
    pub fn here(netns: &Netns, own: Pid) -> Result<Self, KernelError> {
        let mut host = linux::observe(netns, &Processes::Networking)?;
        host.processes.retain(|process| process.id.pid != own);
        let cgroup = |process: &model::host::Process| {
            // A process that has exited in the meantime belongs to no service.
            linux::process::cgroup_of(&process.id).ok().flatten().map(|path| (process.id.pid, path))
        };
        let cgroups = host.processes.iter().filter_map(cgroup).collect();
        let started_as = host
            .processes
            .iter()
            .filter_map(|process| Some((process.id.pid, linux::process::started_as(process.id.pid)?)))
            .collect();
        let received = linux::observe::received(netns, &host)?;
        let sockets = InetSockets::of(netns)?;
        let listening = sockets.iter().filter_map(|socket| {
            ListeningSocket::of(socket.inode, socket.state, socket.local, socket.remote.is_some())
        });
        let (listening, notes) = (listening.collect(), BTreeMap::new());
        Ok(Self { cgroups, started_as, received, listening, notes, host })
    }

    /// Returns the listening sockets that no observed process holds.
    pub(crate) fn unheld(&self) -> Vec<ListeningSocket> {
        let sockets = self.host.processes.iter().flat_map(|process| &process.sockets);
        let held: BTreeSet<u64> = sockets.map(|socket| socket.inode).collect();
        self.listening.iter().filter(|socket| !held.contains(&socket.inode)).copied().collect()
    }
}
