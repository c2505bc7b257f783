//! Listening sockets that share an address.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Fd, Pid};
use crate::reuseport::{ListenerGroup, Spread};

/// A group of listeners, and how connections are assigned to them.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedListeners {
    /// The group.
    pub id: ListenerGroup,
    /// How a new connection, or a datagram, is assigned to a socket of the group.
    pub spread: Spread,
    /// The number of sockets in the group, as the kernel counts them.
    pub sockets: u32,
    /// The sockets that were found in processes, ordered by the first process and descriptor that hold them.
    pub listeners: Vec<Listener>,
    /// The counts of netpolicy's BPF program; `None` if the program is not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<SpreadCounts>,
}

/// A listener of a group.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// The socket's inode.
    pub inode: u64,
    /// The processes and descriptors that hold the socket, in ascending order: forked workers share their
    /// parent's sockets.
    pub held: Vec<(Pid, Fd)>,
}

/// How connections were assigned to the listeners of a group since spreading by queue began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpreadCounts {
    /// The number of connections that were assigned by the listener list of their queue.
    pub by_queue: u64,
    /// The number of connections that were assigned by hash because the packet arrived on a queue without a
    /// list or on no queue, for example on the loopback device.
    pub no_list: u64,
    /// The number of connections that were assigned by hash because the group's number of sockets has changed
    /// since the lists were written.
    pub changed: u64,
    /// The number of connections that were assigned by hash because the listener was being closed.
    pub gone: u64,
}
