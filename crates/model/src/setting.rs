//! A setting: one knob of one object with a value. The change is data; its undo is arithmetic.
//!
//! The enum is closed, and no `_` arm is allowed on it: a new knob makes the compiler walk you through every
//! room (recipe, order, reader, writer, undo script).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::ids::{DeviceId, EpollId, IrqNumber, QueueIndex, RingId, RxQueue, ThreadId, TxQueue};
use crate::nic::{ChannelKind, CoalesceParam, FlagName, Offload, RingKind, Sysctl};
use crate::scheduling::{Scheduling, UtilClamp};
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

    /// The CPUs that the kernel thread which polls the queue may run on.
    ///
    /// The thread is looked up at the moment of reading and writing, by the NAPI's `pid`: it may be another one after
    /// each reset. While there is none, the value is that which it will begin with.
    ///
    /// Kernel: 5.12 (the thread), 6.8 (netlink `napi-get` names it), `net/core/dev.c` `napi_kthread_create()`;
    /// `kernel/sched/syscalls.c` `sched_setaffinity()`.
    KthreadAffinity(RxQueue, CpuSet),

    /// The scheduling class and priority of that thread.
    ///
    /// Kernel: 5.12, `net/core/dev.c` `napi_kthread_create()`; 3.14, `kernel/sched/syscalls.c` `sched_setattr()`.
    KthreadScheduling(RxQueue, Scheduling),

    /// How much of a CPU that thread counts for at least and at most.
    ///
    /// Kernel: 5.3 with `CONFIG_UCLAMP_TASK`, `kernel/sched/syscalls.c` `sched_setattr()`, `uclamp_validate()`.
    KthreadUtilClamp(RxQueue, UtilClamp),

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

    /// Whether irqbalance leaves an interrupt alone.
    ///
    /// Of the running irqbalance, which keeps its bans in memory: they end with it.
    ///
    /// Kernel: has no part in it; irqbalance 1.0.9, its socket's `setup` and `settings ban irqs`, `irqbalance.c`
    /// `sock_handle()`.
    IrqBan(IrqNumber, bool),

    /// The CPUs that a thread may run on.
    ///
    /// Kernel: 2.5.8, `kernel/sched/syscalls.c` `sched_setaffinity()`; cut to the thread's cpuset.
    ThreadAffinity(ThreadId, CpuSet),

    /// How many queues of a kind the device has.
    ///
    /// Kernel: 3.0 (ioctl), 5.6 (ethtool netlink `channels-set`), `net/ethtool/channels.c`.
    Channels(DeviceId, ChannelKind, u32),

    /// How many descriptors each ring of a kind has.
    ///
    /// Drivers round up to what their hardware can. Kernel: 5.6 (ethtool netlink `rings-set`), `net/ethtool/rings.c`.
    Ring(DeviceId, RingKind, u32),

    /// A value of the device's interrupt moderation.
    ///
    /// Switches are 0 or 1. Kernel: 5.6 (ethtool netlink `coalesce-set`), `net/ethtool/coalesce.c`.
    Coalescing(DeviceId, CoalesceParam, u32),

    /// A value of one queue's interrupt moderation, where it differs from its device's.
    ///
    /// Kernel: 4.6 (ioctl `ETHTOOL_PERQUEUE` alone), `net/ethtool/ioctl.c` `ethtool_set_per_queue_coalesce()`.
    QueueCoalescing(RxQueue, CoalesceParam, u32),

    /// Whether an offload is on.
    ///
    /// Kernel: 5.6 (ethtool netlink `features-set`), `net/ethtool/features.c`.
    Offload(DeviceId, Offload, bool),

    /// Whether a flag of the driver's own is set.
    ///
    /// Kernel: 5.6 (ethtool netlink `privflags-set`), `net/ethtool/privflags.c`.
    PrivateFlag(DeviceId, FlagName, bool),

    /// The queue for each value of the receive hash, modulo the table's length.
    ///
    /// Kernel: 3.0 (ioctl `ETHTOOL_SRSSH`), `net/ethtool/ioctl.c` `ethtool_set_rxfh()`.
    RssTable(DeviceId, Vec<u32>),

    /// The key of the receive hash.
    ///
    /// Kernel: 3.16 (ioctl `ETHTOOL_SRSSH`), `net/ethtool/ioctl.c` `ethtool_set_rxfh()`.
    RssKey(DeviceId, Vec<u8>),

    /// The CPUs that receive packet steering hands a queue's packets to; none turns it off.
    ///
    /// Kernel: 2.6.35, `/sys/class/net/DEV/queues/rx-N/rps_cpus`, `net/core/net-sysfs.c` `store_rps_map()`.
    RpsCpus(RxQueue, CpuSet),

    /// How many flows receive flow steering remembers for a queue; 0 turns it off. Rounded up to a power of two.
    ///
    /// Kernel: 2.6.35, `/sys/class/net/DEV/queues/rx-N/rps_flow_cnt`, `net/core/net-sysfs.c`
    /// `store_rps_dev_flow_table_cnt()`.
    RpsFlowCount(RxQueue, u32),

    /// The CPUs whose packets leave by a queue; none leaves it out of the choice.
    ///
    /// Kernel: 2.6.38, `/sys/class/net/DEV/queues/tx-N/xps_cpus`, `net/core/net-sysfs.c` `xps_cpus_store()`.
    XpsCpus(TxQueue, CpuSet),

    /// The receive queues whose flows leave by a queue; none leaves it out of the choice. Comes before [`Setting::XpsCpus`].
    ///
    /// Kernel: 4.19, `/sys/class/net/DEV/queues/tx-N/xps_rxqs`, `net/core/net-sysfs.c` `xps_rxqs_store()`.
    XpsRxQueues(TxQueue, Vec<QueueIndex>),

    /// A number of `/proc/sys/net/core`, for the whole host.
    ///
    /// Kernel: 2.6.12 and later for some, `net/core/sysctl_net_core.c` `net_core_table`.
    Sysctl(Sysctl, u64),
}

/// Through which door of the kernel a setting is written: the settings of one object that share one are written in
/// one call, where the interface allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// ethtool netlink `privflags-set`.
    PrivateFlags,
    /// The ioctl for the receive hash.
    Rss,
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
    /// `/proc/irq/N/smp_affinity_list`.
    IrqAffinity,
    /// The socket of irqbalance.
    Irqbalance,
    /// `sched_setaffinity`.
    ThreadAffinity,
    /// `sched_setaffinity` and `sched_setattr` on the kernel thread of a NAPI.
    Kthread,
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
    /// Whether `epoll_wait` waits busily for events alone: it polls no NAPI, and looks for `busy_poll_usecs`
    /// whether an event has come. Then `busy_poll_usecs` is not 0, and the other two are.
    ///
    /// Kernel: in no release; the patches in `kernel/epoll-event-busy-loop/`, `EPOLL_PARAMS_F_EVENTS_ONLY`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub events_only: bool,
}

impl EpollParams {
    /// Whether the application has a half in the mode that has these: a NAPI that it promises to poll, or events
    /// that it waits for busily.
    pub const fn waits_busily(self) -> bool {
        self.prefer_busy_poll || self.events_only
    }
}

impl fmt::Display for EpollParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!(
            "{}us/{}/{}{}",
            self.busy_poll_usecs,
            self.busy_poll_budget,
            u8::from(self.prefer_busy_poll),
            if self.events_only { "/events-only" } else { "" }
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

/// What a setting belongs to. Settings of one object that share an [`Interface`] are written in one call to the kernel.
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
    /// A transmit queue.
    TxQueue(TxQueue),
    /// A flag of a device's driver.
    PrivateFlag(DeviceId, FlagName),
    /// The whole host.
    Host,
}

impl Object {
    /// The device that it is, or is a part of.
    pub const fn device(&self) -> Option<DeviceId> {
        match self {
            Self::Queue(queue) => Some(queue.device),
            Self::TxQueue(queue) => Some(queue.device),
            Self::Device(device) | Self::PrivateFlag(device, _) => Some(*device),
            Self::Epoll(_) | Self::Ring(_) | Self::Irq(_) | Self::Thread(_) | Self::Host => None,
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
            Self::Irq(irq) => f.pad(&format!("irq {irq}")),
            Self::Thread(thread) => thread.fmt(f),
            Self::TxQueue(queue) => queue.fmt(f),
            Self::PrivateFlag(device, flag) => f.pad(&format!("{device} private flag {flag}")),
            Self::Host => f.pad("host"),
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
            | Self::Threaded(queue, _)
            | Self::KthreadAffinity(queue, _)
            | Self::KthreadScheduling(queue, _)
            | Self::KthreadUtilClamp(queue, _)
            | Self::QueueCoalescing(queue, ..)
            | Self::RpsCpus(queue, _)
            | Self::RpsFlowCount(queue, _) => Object::Queue(*queue),
            Self::DeviceDeferHardIrqs(device, _)
            | Self::DeviceGroFlushTimeout(device, _)
            | Self::DeviceThreaded(device, _)
            | Self::Channels(device, ..)
            | Self::Ring(device, ..)
            | Self::Coalescing(device, ..)
            | Self::Offload(device, ..)
            | Self::RssTable(device, _)
            | Self::RssKey(device, _) => Object::Device(*device),
            Self::PrivateFlag(device, flag, _) => Object::PrivateFlag(*device, *flag),
            Self::XpsCpus(queue, _) | Self::XpsRxQueues(queue, _) => Object::TxQueue(*queue),
            Self::Sysctl(..) => Object::Host,
            Self::Epoll(epoll, _) => Object::Epoll(*epoll),
            Self::IoUringNapi(ring, _) => Object::Ring(*ring),
            Self::IrqAffinity(irq, _) | Self::IrqBan(irq, _) => Object::Irq(*irq),
            Self::ThreadAffinity(thread, _) => Object::Thread(*thread),
        }
    }

    /// Through which door of the kernel it is written.
    pub fn interface(&self) -> Interface {
        match self {
            Self::DeferHardIrqs(..)
            | Self::GroFlushTimeout(..)
            | Self::IrqSuspendTimeout(..)
            | Self::Threaded(..) => Interface::Napi,
            Self::DeviceDeferHardIrqs(..) | Self::DeviceGroFlushTimeout(..) | Self::DeviceThreaded(..) => {
                Interface::DeviceNapis
            }
            Self::Epoll(..) => Interface::Epoll,
            Self::IoUringNapi(..) => Interface::IoUring,
            Self::IrqAffinity(..) => Interface::IrqAffinity,
            Self::IrqBan(..) => Interface::Irqbalance,
            Self::ThreadAffinity(..) => Interface::ThreadAffinity,
            Self::KthreadAffinity(..) | Self::KthreadScheduling(..) | Self::KthreadUtilClamp(..) => {
                Interface::Kthread
            }
            Self::Channels(..) => Interface::Channels,
            Self::Ring(..) => Interface::Rings,
            Self::Coalescing(..) => Interface::Coalescing,
            Self::QueueCoalescing(..) => Interface::QueueCoalescing,
            Self::Offload(..) => Interface::Offloads,
            Self::PrivateFlag(..) => Interface::PrivateFlags,
            Self::RssTable(..) | Self::RssKey(..) => Interface::Rss,
            Self::RpsCpus(..) | Self::RpsFlowCount(..) | Self::XpsCpus(..) | Self::XpsRxQueues(..) => {
                Interface::Steering
            }
            Self::Sysctl(..) => Interface::Sysctl,
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
            Self::IrqBan(..) => "irqbalance-ban",
            Self::ThreadAffinity(..) => "cpus_allowed",
            Self::KthreadAffinity(..) => "kthread cpus_allowed",
            Self::KthreadScheduling(..) => "kthread policy",
            Self::KthreadUtilClamp(..) => "kthread util-clamp",
            Self::Channels(_, kind, _) => kind.as_str(),
            Self::Ring(_, kind, _) => kind.as_str(),
            Self::Coalescing(_, param, _) | Self::QueueCoalescing(_, param, _) => param.as_str(),
            Self::Offload(_, offload, _) => offload.as_str(),
            Self::PrivateFlag(..) => "set",
            Self::RssTable(..) => "rss-table",
            Self::RssKey(..) => "rss-key",
            Self::RpsCpus(..) => "rps_cpus",
            Self::RpsFlowCount(..) => "rps_flow_cnt",
            Self::XpsCpus(..) => "xps_cpus",
            Self::XpsRxQueues(..) => "xps_rxqs",
            Self::Sysctl(sysctl, _) => sysctl.as_str(),
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
            Self::IrqAffinity(_, cpus) | Self::ThreadAffinity(_, cpus) | Self::KthreadAffinity(_, cpus) => {
                cpus.to_string()
            }
            Self::KthreadScheduling(_, scheduling) => scheduling.to_string(),
            Self::KthreadUtilClamp(_, clamp) => clamp.to_string(),
            Self::RpsCpus(_, cpus) | Self::XpsCpus(_, cpus) if cpus.is_empty() => "none".to_owned(),
            Self::RpsCpus(_, cpus) | Self::XpsCpus(_, cpus) => cpus.to_string(),
            Self::Coalescing(_, param, value) | Self::QueueCoalescing(_, param, value) => {
                if param.is_switch() { on_off(*value != 0) } else { value.to_string() }
            }
            Self::Channels(_, _, count) | Self::Ring(_, _, count) | Self::RpsFlowCount(_, count) => {
                count.to_string()
            }
            Self::Offload(_, _, on) | Self::PrivateFlag(_, _, on) | Self::IrqBan(_, on) => on_off(*on),
            Self::RssTable(_, table) => runs(table),
            Self::RssKey(_, key) => {
                let bytes: Vec<String> = key.iter().map(|byte| format!("{byte:02x}")).collect();
                bytes.join(":")
            }
            Self::XpsRxQueues(_, queues) if queues.is_empty() => "none".to_owned(),
            Self::XpsRxQueues(_, queues) => {
                let queues: Vec<String> = queues.iter().map(ToString::to_string).collect();
                queues.join(",")
            }
            Self::Sysctl(_, value) => value.to_string(),
        }
    }

    /// Whether both are about the same knob of the same object.
    pub fn same_knob(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && self.knob() == other.knob()
            && self.object() == other.object()
    }

    /// Whether the kernel takes this value when it is written: false for values that can be read but not
    /// written, such as an empty set of CPUs. A change away from such a value cannot be undone.
    ///
    /// Kernel: 6.18, `kernel/irq/proc.c` `write_irq_affinity()`, `kernel/sched/syscalls.c` `sched_setaffinity()`:
    /// EINVAL without a CPU that is online.
    pub fn restorable(&self) -> bool {
        match self {
            Self::IrqAffinity(_, cpus) | Self::ThreadAffinity(_, cpus) | Self::KthreadAffinity(_, cpus) => {
                !cpus.is_empty()
            }
            // An empty table would mean "the driver's own" (`ETHTOOL_SRSSH`), which is not what was read.
            Self::RssTable(_, table) => !table.is_empty(),
            Self::RssKey(_, key) => !key.is_empty(),
            Self::DeferHardIrqs(..)
            | Self::GroFlushTimeout(..)
            | Self::IrqSuspendTimeout(..)
            | Self::Threaded(..)
            | Self::KthreadScheduling(..)
            | Self::KthreadUtilClamp(..)
            | Self::DeviceDeferHardIrqs(..)
            | Self::DeviceGroFlushTimeout(..)
            | Self::DeviceThreaded(..)
            | Self::Epoll(..)
            | Self::IoUringNapi(..)
            | Self::IrqBan(..)
            | Self::Channels(..)
            | Self::Ring(..)
            | Self::Coalescing(..)
            | Self::QueueCoalescing(..)
            | Self::Offload(..)
            | Self::PrivateFlag(..)
            | Self::RpsCpus(..)
            | Self::RpsFlowCount(..)
            | Self::XpsCpus(..)
            | Self::XpsRxQueues(..)
            | Self::Sysctl(..) => true,
        }
    }

    /// What writing it does to traffic.
    pub fn disruption(&self) -> Disruption {
        match self {
            Self::DeferHardIrqs(..)
            | Self::GroFlushTimeout(..)
            | Self::IrqSuspendTimeout(..)
            | Self::Threaded(..)
            | Self::KthreadAffinity(..)
            | Self::KthreadScheduling(..)
            | Self::KthreadUtilClamp(..)
            | Self::DeviceDeferHardIrqs(..)
            | Self::DeviceGroFlushTimeout(..)
            | Self::DeviceThreaded(..)
            | Self::Epoll(..)
            | Self::IoUringNapi(..)
            | Self::IrqAffinity(..)
            | Self::IrqBan(..)
            | Self::ThreadAffinity(..)
            | Self::Coalescing(..)
            | Self::QueueCoalescing(..)
            | Self::RssTable(..)
            | Self::RssKey(..)
            | Self::RpsCpus(..)
            | Self::RpsFlowCount(..)
            | Self::XpsCpus(..)
            | Self::XpsRxQueues(..)
            | Self::Sysctl(..) => Disruption::None,
            Self::Offload(_, offload, _) => match offload {
                // Drivers make their receive rings anew for these (`ndo_set_features`).
                Offload::Lro | Offload::GroHw => Disruption::QueueReset,
                Offload::Gro
                | Offload::GroList
                | Offload::GroUdpForwarding
                | Offload::Gso
                | Offload::Tso
                | Offload::Tso6
                | Offload::TsoEcn
                | Offload::TsoMangleId
                | Offload::Ntuple
                | Offload::RxHash
                | Offload::TcOffload => Disruption::None,
            },
            // Many drivers close and open the device for these (igb_reinit_queues(), ixgbe_set_ringparam()); what a
            // private flag does is known to its driver alone.
            Self::Channels(..) | Self::Ring(..) | Self::PrivateFlag(..) => Disruption::LinkDown,
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
            Self::IrqAffinity(..)
            | Self::IrqBan(..)
            | Self::ThreadAffinity(..)
            | Self::RpsCpus(..)
            | Self::RpsFlowCount(..)
            | Self::XpsCpus(..)
            | Self::Sysctl(..) => KernelVersion::since(2, 6),
            Self::KthreadAffinity(..) | Self::KthreadScheduling(..) | Self::KthreadUtilClamp(..) => {
                KernelVersion::since(5, 12)
            }
            Self::XpsRxQueues(..) => KernelVersion::since(4, 19),
            Self::RssTable(..) => KernelVersion::since(3, 0),
            Self::RssKey(..) => KernelVersion::since(3, 16),
            Self::QueueCoalescing(..) => KernelVersion::since(4, 6),
            Self::Channels(..)
            | Self::Ring(..)
            | Self::Coalescing(..)
            | Self::Offload(..)
            | Self::PrivateFlag(..) => KernelVersion::since(5, 6),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.object(), self.knob(), self.value())
    }
}

fn on_off(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

/// A table of queues as people can read it: `0x64 1x64` for 64 entries of queue 0 and then 64 of queue 1; tables that
/// change their queue often are cut.
fn runs(table: &[u32]) -> String {
    /// How many runs are written out.
    const RUNS_MAX: usize = 16;
    let mut runs: Vec<(u32, usize)> = Vec::new();
    for &queue in table {
        match runs.last_mut() {
            Some((last, length)) if *last == queue => *length += 1,
            _ => runs.push((queue, 1)),
        }
    }
    let mut text: Vec<String> =
        runs.iter().take(RUNS_MAX).map(|(queue, length)| format!("{queue}x{length}")).collect();
    if runs.len() > RUNS_MAX {
        text.push(format!("… ({} entries)", table.len()));
    }
    text.join(" ")
}
