//! Processes with their threads, epolls, sockets and io_urings.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::ids::{EpollId, Fd, NapiId, NetnsId, Pid, ProcessId, RingId, ThreadId};
use crate::setting::{EpollParams, RingNapi, SocketPolling};

/// A process that was inspected.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// The identity.
    pub id: ProcessId,
    /// The parent's pid; `None` for the first process of a pid namespace, and if the parent is in another pid
    /// namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Pid>,
    /// The effective user.
    pub uid: u32,
    /// The executable, as in `/proc/PID/exe`; empty if it could not be read.
    pub exe: String,
    /// The network namespace.
    pub netns: Option<NetnsId>,
    /// The name that the runtime gave the process's container (`web`, `shop/cart-7d9f server`), or the start
    /// of the container's id if no file gives a name; `None` outside containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The CPUs that the process's cgroup allows; `None` if they could not be read or are not restricted.
    ///
    /// Kernel: Documentation/admin-guide/cgroup-v2.rst, `cpuset.cpus.effective`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<CpuSet>,
    /// The threads, by tid.
    pub threads: Vec<Thread>,
    /// The epolls, by descriptor.
    pub epolls: Vec<Epoll>,
    /// The internet sockets, by descriptor.
    pub sockets: Vec<Socket>,
    /// The io_urings, by descriptor.
    pub rings: Vec<IoUring>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thread {
    /// The identity.
    pub id: ThreadId,
    /// The CPUs that the thread may run on.
    pub affinity: CpuSet,
    /// The epoll that the thread was waiting on when it was observed; `None` if the thread was running or
    /// waiting for something else.
    pub waits_on: Option<Fd>,
}

/// An epoll.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Epoll {
    /// The identity.
    pub id: EpollId,
    /// The epoll's busy-poll parameters; `None` if the kernel does not support them.
    pub params: Option<EpollParams>,
    /// The internet sockets and nested epolls that the epoll watches.
    pub members: Vec<Membership>,
    /// The number of other files that the epoll watches (pipes, timers, eventfds).
    pub others: usize,
}

/// A descriptor that an epoll watches: the number under which the file was added to the epoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// The descriptor.
    pub fd: Fd,
    /// The inode of the file, which still identifies the file if the descriptor is reused.
    pub inode: u64,
}

/// An internet socket.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Socket {
    /// The descriptor.
    pub fd: Fd,
    /// The inode.
    pub inode: u64,
    /// The socket's kind and state.
    pub state: SocketState,
    /// The local address; `None` if sock-diag did not report it.
    pub local: Option<SocketAddr>,
    /// The remote address.
    pub remote: Option<SocketAddr>,
    /// The NAPI that delivered the socket's last packet. `None` if no NAPI did, as for packets that use the
    /// per-CPU backlog (loopback, RPS, a veth without NAPI). Kernel: `SO_INCOMING_NAPI_ID`.
    pub napi: Option<NapiId>,
    /// The parameters with which a receive call busy-polls. `None` if they could not be read, or if an epoll
    /// of the process watches the socket: the epoll's parameters then apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<SocketPolling>,
}

impl Socket {
    /// Whether packets can reach the socket. A TCP or UDP socket that was neither bound nor connected has no
    /// address: programs open such sockets for ioctls, and receive nothing through them.
    pub const fn can_receive(&self) -> bool {
        match self.state {
            SocketState::TcpListen | SocketState::TcpEstablished | SocketState::Other => true,
            SocketState::TcpOther | SocketState::Udp => {
                self.local.is_some() || self.remote.is_some() || self.napi.is_some()
            }
        }
    }
}

impl Socket {
    /// Whether the peer is on this host, so that packets arrive on `lo`, which has no NAPI. True if the
    /// peer's address is in 127.0.0.0/8, also as an IPv4-mapped IPv6 address, or equals the local address.
    ///
    /// Kernel: 7.3, `net/ipv4/route.c` `ip_route_output_key_hash_rcu()`: packets to a local address leave by
    /// the namespace's `loopback_dev`.
    pub fn is_loopback(&self) -> bool {
        let Some(remote) = self.remote else { return false };
        let remote = remote.ip().to_canonical();
        remote.is_loopback() || self.local.is_some_and(|local| local.ip().to_canonical() == remote)
    }
}

/// A socket's kind and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketState {
    /// A TCP socket that accepts connections.
    TcpListen,
    /// A TCP connection.
    TcpEstablished,
    /// A TCP socket in another state.
    TcpOther,
    /// A UDP socket.
    Udp,
    /// An internet socket of another kind.
    Other,
}

/// An io_uring.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoUring {
    /// The identity.
    pub id: RingId,
    /// The ring's busy-poll parameters; `None` if the ring does not busy-poll.
    pub napi: Option<RingNapi>,
    /// The number of the ring's registered files that are sockets.
    pub registered_sockets: usize,
    /// Why the ring's busy polling cannot be set from outside; `None` if it can.
    pub closed: Option<String>,
}
