//! A setting: one knob of one object with a value. The change is data; its undo is arithmetic.
//!
//! The enum is closed, and no `_` arm is allowed on it: a new knob makes the compiler walk you through every
//! room (recipe, order, reader, writer, undo script).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::ids::{DeviceId, EpollId, IrqNumber, RingId, RxQueue, ThreadId};
use crate::units::{EmptyPolls, KernelVersion, Nanoseconds};

/// One knob of one object with a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// How many empty polls in a row are let pass before the queue's IRQ is re-armed; until then a timer of
    /// [`Setting::GroFlushTimeout`] polls instead.
    ///
    /// 0 disables deferral.
    ///
    /// Kernel: 6.13 (per NAPI, netlink `napi-set`), `net/core/dev.c` `napi_complete_done()`.
    DeferHardIrqs(RxQueue, EmptyPolls),

    /// How long the queue's timer waits before it polls, while its IRQ is deferred.
    ///
    /// Nanoseconds; 0 disables the timer, and with it deferral.
    ///
    /// Kernel: 6.13 (per NAPI, netlink `napi-set`), `net/core/dev.c` `napi_complete_done()`, `napi_watchdog()`.
    GroFlushTimeout(RxQueue, Nanoseconds),

    /// How long the queue's IRQ may stay masked while `epoll_wait` keeps finding events.
    ///
    /// Nanoseconds; 0 disables. Expected to be much larger than [`Setting::GroFlushTimeout`]: it must cover one
    /// turn of the application's loop. Takes effect only with `prefer_busy_poll` on the epoll, and only while
    /// both deferral settings are not zero. There is no sysfs file for it.
    ///
    /// Kernel: 6.13, `net/core/dev.c` `napi_suspend_irqs()`; Documentation/networking/napi.rst, "IRQ suspension".
    IrqSuspendTimeout(RxQueue, Nanoseconds),

    /// Whether the queue is polled by a kernel thread of its own instead of in softirq.
    ///
    /// Kernel: 6.17 (per NAPI, netlink `napi-set`), `net/core/dev.c` `napi_set_threaded()`.
    Threaded(RxQueue, Threading),

    /// [`Setting::DeferHardIrqs`] for every queue of a device at once, where the kernel has no per-NAPI setting.
    ///
    /// Kernel: 5.8, `/sys/class/net/DEV/napi_defer_hard_irqs`, `net/core/net-sysfs.c`.
    DeviceDeferHardIrqs(DeviceId, EmptyPolls),

    /// [`Setting::GroFlushTimeout`] for every queue of a device at once, where the kernel has no per-NAPI setting.
    ///
    /// Kernel: 3.19, `/sys/class/net/DEV/gro_flush_timeout`, `net/core/net-sysfs.c`.
    DeviceGroFlushTimeout(DeviceId, Nanoseconds),

    /// [`Setting::Threaded`] for every queue of a device at once, where the kernel has no per-NAPI setting.
    ///
    /// Kernel: 5.12, `/sys/class/net/DEV/threaded`, `net/core/net-sysfs.c`.
    DeviceThreaded(DeviceId, Threading),

    /// How `epoll_wait` on one epoll busy-polls the NAPI that its sockets receive from.
    ///
    /// Kernel: 6.9, `fs/eventpoll.c` `ep_eventpoll_bp_ioctl()` (`EPIOCSPARAMS`, `EPIOCGPARAMS`).
    Epoll(EpollId, EpollParams),

    /// How an io_uring busy-polls the NAPIs that its sockets receive from; `None` where it does not.
    ///
    /// Kernel: 6.9, `io_uring/napi.c` `io_register_napi()` (`IORING_REGISTER_NAPI`).
    IoUringNapi(RingId, Option<RingNapi>),

    /// The CPUs that an interrupt may be delivered to.
    ///
    /// Kernel: 2.6.31, `/proc/irq/N/smp_affinity_list`, `kernel/irq/proc.c`. A CPU that goes offline leaves the
    /// set, and does not come back with the CPU.
    IrqAffinity(IrqNumber, CpuSet),

    /// The CPUs that a thread may run on.
    ///
    /// Kernel: 2.5.8, `kernel/sched/syscalls.c` `sched_setaffinity()`; cut to the thread's cpuset.
    ThreadAffinity(ThreadId, CpuSet),
}

/// Who polls a NAPI that is not polled in softirq.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threading {
    /// Softirq polls it.
    #[default]
    Off,
    /// A kernel thread polls it, and sleeps when there is nothing to do.
    On,
    /// A kernel thread polls it and never sleeps. Kernel: 7.0, `napi_threaded_poll()`.
    BusyPoll,
}

impl fmt::Display for Threading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Off => "off",
            Self::On => "on",
            Self::BusyPoll => "busy-poll",
        })
    }
}

/// The busy-poll parameters of an epoll: `struct epoll_params`, field by field.
///
/// Kernel: 6.9, `include/uapi/linux/eventpoll.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpollParams {
    /// How long `epoll_wait` polls the NAPI before it sleeps, in microseconds; 0 together with
    /// `prefer_busy_poll` polls exactly once (6.13). Range 0..=2147483647.
    pub busy_poll_usecs: u32,
    /// How many packets one poll takes at most; 0 means the kernel's own 8. More than 64 needs CAP_NET_ADMIN.
    pub busy_poll_budget: u16,
    /// Whether the device's IRQ stays masked between polls, as long as the deferral settings allow.
    pub prefer_busy_poll: bool,
}

impl fmt::Display for EpollParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!(
            "{}us/{}/{}",
            self.busy_poll_usecs,
            self.busy_poll_budget,
            u8::from(self.prefer_busy_poll)
        ))
    }
}

/// The busy-poll parameters of an io_uring: the part of `struct io_uring_napi` that can be set from outside.
///
/// Kernel: 6.9, `include/uapi/linux/io_uring.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingNapi {
    /// How long a wait polls before it sleeps, in microseconds.
    pub busy_poll_usecs: u32,
    /// Whether the device's IRQ stays masked between polls.
    pub prefer_busy_poll: bool,
}

impl fmt::Display for RingNapi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}us/{}", self.busy_poll_usecs, u8::from(self.prefer_busy_poll)))
    }
}

/// What a setting belongs to. Settings of one object are written in one call to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// An interrupt.
    Irq(IrqNumber),
    /// A thread of a process.
    Thread(ThreadId),
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => queue.fmt(f),
            Self::Device(device) => device.fmt(f),
            Self::Epoll(epoll) => epoll.fmt(f),
            Self::Ring(ring) => ring.fmt(f),
            Self::Irq(irq) => f.pad(&format!("irq {irq}")),
            Self::Thread(thread) => thread.fmt(f),
        }
    }
}

/// What writing a setting does to traffic while it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

impl Setting {
    /// What the setting belongs to.
    pub fn object(&self) -> Object {
        match self {
            Self::DeferHardIrqs(queue, _)
            | Self::GroFlushTimeout(queue, _)
            | Self::IrqSuspendTimeout(queue, _)
            | Self::Threaded(queue, _) => Object::Queue(*queue),
            Self::DeviceDeferHardIrqs(device, _)
            | Self::DeviceGroFlushTimeout(device, _)
            | Self::DeviceThreaded(device, _) => Object::Device(*device),
            Self::Epoll(epoll, _) => Object::Epoll(*epoll),
            Self::IoUringNapi(ring, _) => Object::Ring(*ring),
            Self::IrqAffinity(irq, _) => Object::Irq(*irq),
            Self::ThreadAffinity(thread, _) => Object::Thread(*thread),
        }
    }

    /// The knob's name, in the kernel's spelling.
    pub fn knob(&self) -> &'static str {
        match self {
            Self::DeferHardIrqs(..) => "defer-hard-irqs",
            Self::GroFlushTimeout(..) => "gro-flush-timeout",
            Self::IrqSuspendTimeout(..) => "irq-suspend-timeout",
            Self::Threaded(..) | Self::DeviceThreaded(..) => "threaded",
            Self::DeviceDeferHardIrqs(..) => "napi_defer_hard_irqs",
            Self::DeviceGroFlushTimeout(..) => "gro_flush_timeout",
            Self::Epoll(..) => "busy_poll usecs/budget/prefer",
            Self::IoUringNapi(..) => "napi busy_poll usecs/prefer",
            Self::IrqAffinity(..) => "smp_affinity",
            Self::ThreadAffinity(..) => "cpus_allowed",
        }
    }

    /// The value, as people write it.
    pub fn value(&self) -> String {
        match self {
            Self::DeferHardIrqs(_, polls) | Self::DeviceDeferHardIrqs(_, polls) => polls.to_string(),
            Self::GroFlushTimeout(_, span)
            | Self::IrqSuspendTimeout(_, span)
            | Self::DeviceGroFlushTimeout(_, span) => span.to_string(),
            Self::Threaded(_, threading) | Self::DeviceThreaded(_, threading) => threading.to_string(),
            Self::Epoll(_, params) => params.to_string(),
            Self::IoUringNapi(_, Some(napi)) => napi.to_string(),
            Self::IoUringNapi(_, None) => "off".to_owned(),
            Self::IrqAffinity(_, cpus) | Self::ThreadAffinity(_, cpus) => cpus.to_string(),
        }
    }

    /// Whether both are about the same knob of the same object.
    pub fn same_knob(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.object() == other.object()
    }

    /// Whether the kernel takes this value when it is written: false for values that can be read but not
    /// written, such as an empty set of CPUs. A change away from such a value cannot be undone.
    ///
    /// Kernel: 6.18, `kernel/irq/proc.c` `write_irq_affinity()`, `kernel/sched/syscalls.c` `sched_setaffinity()`:
    /// EINVAL without a CPU that is online.
    pub fn restorable(&self) -> bool {
        match self {
            Self::IrqAffinity(_, cpus) | Self::ThreadAffinity(_, cpus) => !cpus.is_empty(),
            Self::DeferHardIrqs(..)
            | Self::GroFlushTimeout(..)
            | Self::IrqSuspendTimeout(..)
            | Self::Threaded(..)
            | Self::DeviceDeferHardIrqs(..)
            | Self::DeviceGroFlushTimeout(..)
            | Self::DeviceThreaded(..)
            | Self::Epoll(..)
            | Self::IoUringNapi(..) => true,
        }
    }

    /// What writing it does to traffic.
    pub fn disruption(&self) -> Disruption {
        match self {
            Self::DeferHardIrqs(..)
            | Self::GroFlushTimeout(..)
            | Self::IrqSuspendTimeout(..)
            | Self::Threaded(..)
            | Self::DeviceDeferHardIrqs(..)
            | Self::DeviceGroFlushTimeout(..)
            | Self::DeviceThreaded(..)
            | Self::Epoll(..)
            | Self::IoUringNapi(..)
            | Self::IrqAffinity(..)
            | Self::ThreadAffinity(..) => Disruption::None,
        }
    }

    /// The first kernel that has the knob.
    pub fn since(&self) -> KernelVersion {
        match self {
            Self::DeferHardIrqs(..) | Self::GroFlushTimeout(..) | Self::IrqSuspendTimeout(..) => {
                KernelVersion::since(6, 13)
            }
            Self::Threaded(..) => KernelVersion::since(6, 17),
            Self::DeviceDeferHardIrqs(..) => KernelVersion::since(5, 8),
            Self::DeviceGroFlushTimeout(..) => KernelVersion::since(3, 19),
            Self::DeviceThreaded(..) => KernelVersion::since(5, 12),
            Self::Epoll(..) | Self::IoUringNapi(..) => KernelVersion::since(6, 9),
            Self::IrqAffinity(..) | Self::ThreadAffinity(..) => KernelVersion::since(2, 6),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.object(), self.knob(), self.value())
    }
}
