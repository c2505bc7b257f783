//! The application's half of the graph.

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
    /// Its identity.
    pub id: ProcessId,
    /// Its parent; `None` for the first process of a pid namespace, and where that is of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Pid>,
    /// Its effective user.
    pub uid: u32,
    /// Its executable, as `/proc/PID/exe` names it; empty where that could not be read.
    pub exe: String,
    /// Its network namespace.
    pub netns: Option<NetnsId>,
    /// Its container as its runtime calls it (`web`, `shop/cart-7d9f server`), or the beginning of the container's id where no
    /// file says a name; `None` for a process of no container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The CPUs that its cgroup lets it run on; `None` where that could not be read, or nothing says so.
    ///
    /// Kernel: Documentation/admin-guide/cgroup-v2.rst, `cpuset.cpus.effective`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<CpuSet>,
    /// Its threads, by number.
    pub threads: Vec<Thread>,
    /// Its epolls, by descriptor.
    pub epolls: Vec<Epoll>,
    /// Its internet sockets, by descriptor.
    pub sockets: Vec<Socket>,
    /// Its io_urings, by descriptor.
    pub rings: Vec<IoUring>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thread {
    /// Its identity.
    pub id: ThreadId,
    /// The CPUs it may run on.
    pub affinity: CpuSet,
    /// The epoll it was waiting on when it was looked at; `None` while it ran or waited for something else.
    pub waits_on: Option<Fd>,
}

/// An epoll.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Epoll {
    /// Its identity.
    pub id: EpollId,
    /// How it busy-polls; `None` where the kernel has no such parameters.
    pub params: Option<EpollParams>,
    /// What it watches: internet sockets and nested epolls only.
    pub members: Vec<Membership>,
    /// How many other files it watches (pipes, timers, event descriptors).
    pub others: usize,
}

/// A descriptor that an epoll watches. The number is the one it had when it was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// The descriptor.
    pub fd: Fd,
    /// The inode of the file behind it, which stays right when the number is used again.
    pub inode: u64,
}

/// An internet socket.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Socket {
    /// Its descriptor.
    pub fd: Fd,
    /// Its inode.
    pub inode: u64,
    /// What kind of socket it is, and in which state.
    pub state: SocketState,
    /// Its own address; `None` where sock-diag did not know it.
    pub local: Option<SocketAddr>,
    /// The other end's address.
    pub remote: Option<SocketAddr>,
    /// The NAPI that its last packet came through. `None` for none, which is how a socket looks whose packets
    /// travel by the per-CPU backlog (loopback, RPS, a veth without NAPI). Kernel: `SO_INCOMING_NAPI_ID`.
    pub napi: Option<NapiId>,
    /// How a receive from it busy-polls; `None` where an epoll of the process watches it, whose own parameters count, and
    /// where it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<SocketPolling>,
}

impl Socket {
    /// Whether packets could come to it. One of TCP or UDP that was neither bound nor connected has no address yet: programs
    /// have such sockets for an `ioctl`, and never receive anything by them.
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
    /// Whether the other end is on this host, so that packets come by the device `lo`, which has no NAPI: its address is one of
    /// 127.0.0.0/8, also as a socket of IPv6 writes it, or the host's own, which is that of both ends then.
    ///
    /// Kernel: 7.3, `net/ipv4/route.c` `ip_route_output_key_hash_rcu()`: what goes to a local address leaves by the
    /// namespace's `loopback_dev`.
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
    /// Its identity.
    pub id: RingId,
    /// How it busy-polls; `None` where it does not.
    pub napi: Option<RingNapi>,
    /// How many of its registered files are sockets.
    pub registered_sockets: usize,
    /// Why its busy polling cannot be set from outside, if so.
    pub closed: Option<String>,
}
