//! Holders of a device's queues: leases, memory providers and AF_XDP sockets.
//!
//! A held queue works only as long as its configuration stays as the holder set it up. The kernel rejects
//! only few of the changes that would break the queue, so netpolicy itself rejects such changes before it
//! writes anything.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::edge::Confidence;
use crate::ids::{DeviceId, ProcessId, QueueIndex};
use crate::plan::Change;
use crate::setting::{Disruption, NicKnob, Setting};
use crate::steering::{QueueSpan, SteerTo};

/// The kind of a queue's holder.
///
/// Kernel: 7.3, `Documentation/netlink/specs/netdev.yaml` `queue`, `net/core/netdev_queues.c`
/// `netdev_queue_busy()`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HolderKind {
    /// A virtual device of another namespace, such as a netkit, uses the queue as if it were its own. Kernel:
    /// 7.1, `NETDEV_A_QUEUE_LEASE`.
    Lease {
        /// The name that the queue has in the other namespace, such as `nk0 rx-1`, or `if7 rx-1 of netnsid
        /// 0`.
        to: String,
    },
    /// Packets are written into a dmabuf, for example GPU memory. Kernel: 6.12, `NETDEV_A_QUEUE_DMABUF`,
    /// `net/core/devmem.c`.
    Dmabuf {
        /// The id that the kernel gave the binding of the dmabuf.
        id: u32,
    },
    /// Packets are written into memory of an io_uring (zero-copy receive). Kernel: 6.15, `NETDEV_A_QUEUE_IO_URING`,
    /// `io_uring/zcrx.c`.
    IoUring {
        /// The size of the io_uring's buffers in bytes; `None` on kernels that do not report it.
        rx_buf_len: Option<u64>,
    },
    /// An AF_XDP socket is bound to the queue. Kernel: 4.18; `NETDEV_A_QUEUE_XSK` 6.15, `net/xdp/xsk_diag.c`.
    AfXdp {
        /// Whether the NIC accesses the socket's memory directly; `None` if the kernel does not report it.
        zero_copy: Option<bool>,
    },
}

impl HolderKind {
    /// Whether the queue cannot receive ordinary packets because its memory belongs to another program, so
    /// that RSS must avoid it.
    ///
    /// Kernel: 7.3, `net/core/netdev_rx_queue.c` `netif_rxq_has_unreadable_mp()`.
    pub const fn is_provider(&self) -> bool {
        match self {
            Self::Lease { .. } | Self::Dmabuf { .. } | Self::IoUring { .. } => true,
            Self::AfXdp { .. } => false,
        }
    }

    /// Returns the kind's name as messages show it, such as `AF_XDP`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Lease { .. } => "lease",
            Self::Dmabuf { .. } => "dmabuf",
            Self::IoUring { .. } => "io_uring zero-copy",
            Self::AfXdp { .. } => "AF_XDP",
        }
    }
}

impl fmt::Display for HolderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease { to } => write!(f, "lease to {to}"),
            Self::Dmabuf { id } => write!(f, "dmabuf binding {id}"),
            Self::IoUring { .. } => f.write_str(self.name()),
            Self::AfXdp { zero_copy: Some(true) } => f.write_str("AF_XDP, zero-copy"),
            Self::AfXdp { zero_copy: Some(false) } => f.write_str("AF_XDP, copying"),
            Self::AfXdp { zero_copy: None } => f.write_str("AF_XDP"),
        }
    }
}

/// The process that holds a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HolderProcess {
    /// The identity.
    pub id: ProcessId,
    /// How the process was found: `stated` if the kernel names the socket. The kernel names no socket for a
    /// memory provider, nor for AF_XDP without sock-diag of such sockets (`CONFIG_XDP_SOCKETS_DIAG`). In
    /// those cases, `by-order` marks a candidate: a process with a descriptor of the kind that a holder
    /// needs.
    pub confidence: Confidence,
}

/// A held queue.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueHolder {
    /// The queue's index.
    pub queue: QueueIndex,
    /// Whether the receive queue with this index is held.
    pub rx: bool,
    /// Whether the transmit queue with this index is held.
    pub tx: bool,
    /// The holder of the queue.
    pub kind: HolderKind,
    /// The processes that hold the queue; empty if none was visible.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<HolderProcess>,
}

impl QueueHolder {
    /// Returns why a change would take the queue from its holder, as a phrase that follows "it"; `None` if
    /// the change does not affect the queue.
    ///
    /// A change that stops queues or takes the link down always takes the queue: drivers free the rings and
    /// allocate new ones, and do not undo that if the holder's memory no longer fits (`bnxt_close_nic()`,
    /// `ice_vsi_rebuild()`). A change of steering takes the queue if it adds the queue to, or removes it
    /// from, the RSS table or the target of a rule.
    pub fn taken_by(&self, change: &Change) -> Option<&'static str> {
        let Setting::Nic(_, to) = change.to() else { return None };
        let Setting::Nic(_, from) = change.from() else { return None };
        if !to.facts().takes_queues {
            return None;
        }
        if change.to().disruption() != Disruption::None {
            return Some("recreates the rings of the device");
        }
        match (self.rx && self.is_led_to_by(from), self.rx && self.is_led_to_by(to)) {
            (false, true) => Some("hands packets to the queue that are not meant for its holder"),
            (true, false) => Some("takes away the packets that its holder waits for"),
            (true, true) | (false, false) => None,
        }
    }

    /// Whether a knob with this value steers packets to the held receive queue.
    fn is_led_to_by(&self, knob: &NicKnob) -> bool {
        let index = self.queue.0;
        match knob {
            NicKnob::RssTable(table) => table.contains(&index),
            NicKnob::RssContext(queues, there) => *there && spans(*queues, index),
            NicKnob::FlowRule(_, to) => match to {
                Some(SteerTo::Queue(queue)) => *queue == self.queue,
                Some(SteerTo::Context(queues)) => spans(*queues, index),
                Some(SteerTo::Drop | SteerTo::Other) | None => false,
            },
            NicKnob::Channels(..)
            | NicKnob::Ring(..)
            | NicKnob::Coalescing(..)
            | NicKnob::Offload(..)
            | NicKnob::PacketSize(..)
            | NicKnob::PrivateFlag(..)
            | NicKnob::RssKey(_)
            | NicKnob::Qdiscs(_) => false,
        }
    }

    /// Describes the holder for display, such as `xdpsock[812] (AF_XDP, copying)`.
    pub fn sentence(&self) -> String {
        let names: Vec<String> = self
            .processes
            .iter()
            .map(|process| match process.confidence {
                Confidence::Stated => process.id.to_string(),
                Confidence::ByName | Confidence::ByOrder => format!("{}?", process.id),
            })
            .collect();
        match (names.is_empty(), &self.kind) {
            (true, HolderKind::Lease { .. }) => self.kind.to_string(),
            (true, kind) => format!("a process that is not visible here ({kind})"),
            (false, kind) => format!("{} ({kind})", names.join(", ")),
        }
    }

    /// Names the held queues by direction, such as `rx-1 and tx-1`.
    pub fn queues(&self) -> String {
        match (self.rx, self.tx) {
            (true, true) => format!("rx-{0} and tx-{0}", self.queue),
            (false, true) => format!("tx-{}", self.queue),
            (true, false) | (false, false) => format!("rx-{}", self.queue),
        }
    }
}

const fn spans(queues: QueueSpan, index: u32) -> bool {
    queues.first <= index && index <= queues.last()
}

/// A change that would take a queue from its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueConflict {
    /// The device.
    pub device: DeviceId,
    /// The change.
    pub change: Change,
    /// The held queue and its holder.
    pub holder: QueueHolder,
    /// What the change does, as a phrase that follows "it".
    pub how: &'static str,
}

impl QueueConflict {
    /// Returns the first of the device's holders from which a change would take a queue.
    pub fn by(change: &Change, holders: &[QueueHolder]) -> Option<Self> {
        let device = change.to().object().device()?;
        let taken = |holder: &QueueHolder| Some((holder.clone(), holder.taken_by(change)?));
        let (holder, how) = holders.iter().find_map(taken)?;
        Some(Self { device, change: change.clone(), holder, how })
    }

    /// Whether a setting can take a queue from a holder at all; for other settings, holders need not be read.
    pub fn could_be_by(setting: &Setting) -> bool {
        setting.facts().takes_queues
    }
}

impl fmt::Display for QueueConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, holder, .. } = self;
        write!(f, "{device} {}: held by {}", holder.queues(), holder.sentence())
    }
}
