//! Sockets that share an address.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Fd, Pid};
use crate::reuseport::{ListenerGroup, Spread};

/// A group of listeners, and how connections are given to them.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedListeners {
    /// Which group.
    pub id: ListenerGroup,
    /// Who gets a new connection, or a datagram.
    pub spread: Spread,
    /// How many sockets the group has, as the kernel counts them.
    pub sockets: u32,
    /// Those that were found in processes, by the first process and descriptor that have them.
    pub listeners: Vec<Listener>,
    /// What our program counted; `None` where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<SpreadCounts>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// The socket's inode.
    pub inode: u64,
    /// Where it is open, in ascending order: workers that were forked share their parent's.
    pub held: Vec<(Pid, Fd)>,
}

/// How connections were given to the listeners of a group since it is spread by queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpreadCounts {
    /// By the list of their queue.
    pub by_queue: u64,
    /// By the hash: their packet came by no queue that has a list, as on the loopback device.
    pub no_list: u64,
    /// By the hash: the group has another number of sockets than when the lists were written.
    pub changed: u64,
    /// By the hash: the listener was being closed.
    pub gone: u64,
}
