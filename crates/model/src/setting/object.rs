//! What settings belong to, the doors of the kernel that they go through, and what that does to traffic.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{DeviceId, EpollId, IrqNumber, ProcessId, RingId, RxQueue, SocketId, ThreadId, TxQueue};
use crate::nic::FlagName;
use crate::reuseport::ListenerGroup;
use crate::steering::{FlowMatch, QueueSpan};

/// What a setting belongs to. Settings of one object that share an [`Interface`] are written in one call to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Object {
    /// A receive queue and its NAPI.
    Queue(RxQueue),
    /// A whole device.
    Device(DeviceId),
    /// An epoll of a process.
    Epoll(EpollId),
    /// An io_uring of a process.
    Ring(RingId),
    /// A socket of a process.
    Socket(SocketId),
    /// An interrupt.
    Irq(IrqNumber),
    /// A thread of a process.
    Thread(ThreadId),
    /// A transmit queue.
    TxQueue(TxQueue),
    /// A context of a device's receive hash.
    RssContext(DeviceId, QueueSpan),
    /// A rule of a device for a flow.
    FlowRule(DeviceId, FlowMatch),
    /// A flag of a device's driver.
    PrivateFlag(DeviceId, FlagName),
    /// Listeners that share an address.
    Listeners(ListenerGroup),
    /// The whole host.
    Host,
}

impl Object {
    /// The device that it is, or is a part of.
    pub const fn device(&self) -> Option<DeviceId> {
        match self {
            Self::Queue(queue) => Some(queue.device),
            Self::TxQueue(queue) => Some(queue.device),
            Self::Device(device)
            | Self::PrivateFlag(device, _)
            | Self::RssContext(device, _)
            | Self::FlowRule(device, _) => Some(*device),
            Self::Epoll(_)
            | Self::Ring(_)
            | Self::Socket(_)
            | Self::Irq(_)
            | Self::Thread(_)
            | Self::Listeners(_)
            | Self::Host => None,
        }
    }

    /// The process that it is a part of.
    pub const fn process(&self) -> Option<ProcessId> {
        match self {
            Self::Epoll(epoll) => Some(epoll.process),
            Self::Ring(ring) => Some(ring.process),
            Self::Socket(socket) => Some(socket.process),
            Self::Thread(thread) => Some(thread.process),
            Self::Queue(_)
            | Self::TxQueue(_)
            | Self::Device(_)
            | Self::PrivateFlag(..)
            | Self::RssContext(..)
            | Self::FlowRule(..)
            | Self::Irq(_)
            | Self::Listeners(_)
            | Self::Host => None,
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => queue.fmt(f),
            Self::Device(device) => device.fmt(f),
            Self::Epoll(epoll) => epoll.fmt(f),
            Self::Ring(ring) => ring.fmt(f),
            Self::Socket(socket) => socket.fmt(f),
            Self::Irq(irq) => f.pad(&format!("irq {irq}")),
            Self::Thread(thread) => thread.fmt(f),
            Self::TxQueue(queue) => queue.fmt(f),
            Self::PrivateFlag(device, flag) => f.pad(&format!("{device} private flag {flag}")),
            Self::RssContext(device, queues) => f.pad(&format!("{device} rss-context {queues}")),
            Self::FlowRule(device, flow) => f.pad(&format!("{device} ntuple {flow}")),
            Self::Listeners(group) => group.fmt(f),
            Self::Host => f.pad("host"),
        }
    }
}

/// What writing a setting does to traffic while it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disruption {
    /// No packet is delayed or lost.
    None,
    /// A queue stops for the time of a reset.
    QueueReset,
    /// The link goes down.
    LinkDown,
}

impl fmt::Display for Disruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "delays no packet",
            Self::QueueReset => "stops the queue for a reset",
            Self::LinkDown => "takes the link down",
        })
    }
}

/// Through which kernel interface a setting is written: the settings of one object that share one are written in
/// one call, where the interface allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interface {
    /// netdev netlink `napi-set`.
    Napi,
    /// Files of `/sys/class/net/DEV` that set all NAPIs of a device.
    DeviceNapis,
    /// ethtool netlink `channels-set`.
    Channels,
    /// ethtool netlink `rings-set`.
    Rings,
    /// ethtool netlink `coalesce-set`.
    Coalescing,
    /// ethtool netlink `features-set`.
    Offloads,
    /// rt-link `RTM_NEWLINK`, for how large packets may be.
    PacketSizes,
    /// ethtool netlink `privflags-set`.
    PrivateFlags,
    /// The ioctl for the receive hash.
    Rss,
    /// The ioctl for contexts of the receive hash.
    RssContexts,
    /// The ioctl for rules of the NIC.
    FlowRules,
    /// rtnetlink for queueing disciplines.
    Qdiscs,
    /// The ioctl for the interrupt moderation of one queue.
    QueueCoalescing,
    /// Files of `/sys/class/net/DEV/queues`.
    Steering,
    /// Files of `/proc/sys/net/core`.
    Sysctl,
    /// `EPIOCSPARAMS` on an epoll.
    Epoll,
    /// `IORING_REGISTER_NAPI` on an io_uring.
    IoUring,
    /// `SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET` on a socket.
    Socket,
    /// `SO_ATTACH_REUSEPORT_EBPF` on a listener.
    Reuseport,
    /// `/proc/irq/N/smp_affinity_list`.
    IrqAffinity,
    /// The socket of irqbalance.
    Irqbalance,
    /// `sched_setaffinity`.
    ThreadAffinity,
    /// `sched_setaffinity` and `sched_setattr` on the kernel thread of a NAPI.
    Kthread,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Napi => "netdev netlink, napi-set",
            Self::DeviceNapis => "files of /sys/class/net/DEV, for all NAPIs of a device",
            Self::Channels => "ethtool netlink, channels-set",
            Self::Rings => "ethtool netlink, rings-set",
            Self::Coalescing => "ethtool netlink, coalesce-set",
            Self::Offloads => "ethtool netlink, features-set",
            Self::PacketSizes => "rtnetlink, RTM_NEWLINK",
            Self::PrivateFlags => "ethtool netlink, privflags-set",
            Self::Rss => "ethtool ioctl, for the receive hash",
            Self::RssContexts => "ethtool ioctl, for contexts of the receive hash",
            Self::FlowRules => "ethtool ioctl, for rules of the NIC",
            Self::Qdiscs => "rtnetlink, for queueing disciplines",
            Self::QueueCoalescing => "ethtool ioctl, for one queue",
            Self::Steering => "files of /sys/class/net/DEV/queues",
            Self::Sysctl => "files of /proc/sys/net/core",
            Self::Epoll => "ioctl EPIOCSPARAMS on an epoll",
            Self::IoUring => "IORING_REGISTER_NAPI on an io_uring",
            Self::Socket => {
                "setsockopt SO_BUSY_POLL, SO_PREFER_BUSY_POLL and SO_BUSY_POLL_BUDGET on a socket"
            }
            Self::Reuseport => "SO_ATTACH_REUSEPORT_EBPF on a listener",
            Self::IrqAffinity => "/proc/irq/N/smp_affinity_list",
            Self::Irqbalance => "the socket of irqbalance",
            Self::ThreadAffinity => "sched_setaffinity",
            Self::Kthread => "sched_setaffinity and sched_setattr on the kernel thread of a NAPI",
        })
    }
}
