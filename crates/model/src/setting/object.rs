//! The objects to which settings belong.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{DeviceId, EpollId, IrqNumber, ProcessId, RingId, RxQueue, SocketId, ThreadId, TxQueue};
use crate::nic::FlagName;
use crate::reuseport::ListenerGroup;
use crate::steering::{FlowMatch, QueueSpan};

/// The object to which a setting belongs. Settings of one object that share an
/// [`Interface`](super::Interface) are written in one call to the kernel.
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
    /// An RSS context of a device.
    RssContext(DeviceId, QueueSpan),
    /// An ntuple rule of a device.
    FlowRule(DeviceId, FlowMatch),
    /// A private flag of a device's driver.
    PrivateFlag(DeviceId, FlagName),
    /// Listeners that share an address.
    Listeners(ListenerGroup),
    /// The whole host.
    Host,
}

impl Object {
    /// Returns the device that the object is, or to which it belongs.
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

    /// Returns the process to which the object belongs.
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
