//! A setting: one knob of one object with a value. The change is data; its undo is arithmetic.
//!
//! The enum is closed, and no `_` arm is allowed on it: a new knob makes the compiler walk you through every
//! room (recipe, order, reader, writer, undo script).

mod nature;
mod object;
mod params;
mod text;

pub use object::{Disruption, Interface, Object};
pub use params::{EpollParams, RingNapi, Threading};

use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::ids::{DeviceId, EpollId, IrqNumber, QueueIndex, RingId, RxQueue, ThreadId, TxQueue};
use crate::nic::{ChannelKind, CoalesceParam, FlagName, Offload, PacketSize, RingKind, Sysctl};
use crate::qdisc::Qdiscs;
use crate::reuseport::{ListenerGroup, Spread};
use crate::scheduling::{Scheduling, UtilClamp};
use crate::steering::{FlowMatch, QueueSpan, SteerTo};
use crate::units::{EmptyPolls, Nanoseconds};

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

    /// How large packets may be before they are cut, or may grow by joining, in bytes.
    ///
    /// What is sent is bounded by [`crate::host::PacketSizes::tso_max_size`]. The kernel overwrites the bound of IPv4 with
    /// one at or below [`PacketSize::LEGACY`] ([`PacketSize::overwrites`]): a writer sends along what that was.
    ///
    /// Kernel: 4.16 and later (rt-link `RTM_NEWLINK`), `net/core/rtnetlink.c` `do_setlink()`.
    PacketSize(DeviceId, PacketSize, u32),

    /// Whether a flag of the driver's own is set.
    ///
    /// Kernel: 5.6 (ethtool netlink `privflags-set`), `net/ethtool/privflags.c`.
    PrivateFlag(DeviceId, FlagName, bool),

    /// The queue for each value of the receive hash, modulo the table's length.
    ///
    /// A table that is what the kernel itself would make (entry i leads to queue i modulo their number) is written by
    /// asking for that, so that the driver goes on adapting it to the number of queues.
    ///
    /// Kernel: 3.0 (ioctl `ETHTOOL_SRSSH`), `net/ethtool/ioctl.c` `ethtool_set_rxfh()`.
    RssTable(DeviceId, Vec<u32>),

    /// The key of the receive hash.
    ///
    /// Kernel: 3.16 (ioctl `ETHTOOL_SRSSH`), `net/ethtool/ioctl.c` `ethtool_set_rxfh()`.
    RssKey(DeviceId, Vec<u8>),

    /// Whether there is a context of the receive hash, beside the device's own, that spreads packets evenly over these
    /// queues. Packets come into it by a [`Setting::FlowRule`].
    ///
    /// The kernel gives a context its id when it is made, so a context is known by its queues, and its id is looked up at
    /// each reading and writing. Of two with the same queues, none is removed. One that was there before is not removed
    /// either: made anew, it would have another id and key.
    ///
    /// Kernel: 4.16 (ioctl `ETHTOOL_SRSSH` with `ETH_RXFH_CONTEXT_ALLOC`), `net/ethtool/ioctl.c` `ethtool_set_rxfh()`.
    RssContext(DeviceId, QueueSpan, bool),

    /// Where a rule of the NIC hands the packets of a flow; `None` where there is no such rule.
    ///
    /// A rule is known by its flow. A new one gets the place in the NIC's table that its driver chooses, or the last that
    /// is free where the driver does not choose; one that is changed keeps its place.
    ///
    /// Kernel: 2.6.39 (ioctl `ETHTOOL_SRXCLSRLINS`), `net/ethtool/ioctl.c` `ethtool_set_rxnfc()`.
    FlowRule(DeviceId, FlowMatch, Option<SteerTo>),

    /// What packets wait in before they leave: one queueing discipline for the device, or one for each transmit queue.
    ///
    /// What the kernel gave the device by itself is brought back by removing what was put in its place. Packets that wait
    /// when a discipline is replaced are dropped.
    ///
    /// Kernel: 2.6.30 (`mq`), `net/sched/sch_api.c` `tc_modify_qdisc()`.
    Qdiscs(DeviceId, Qdiscs),

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

    /// Which of the listeners at one address gets a new connection.
    ///
    /// Our program is attached to the group by one of its sockets and goes with the last of them. One that somebody else
    /// has attached is never replaced: it could not be put back.
    ///
    /// Kernel: 4.19 (`SO_ATTACH_REUSEPORT_EBPF` with `BPF_PROG_TYPE_SK_REUSEPORT`), 5.3 (`SO_DETACH_REUSEPORT_BPF`),
    /// 6.2 (`bpf_cast_to_kern_ctx()`); `net/core/sock_reuseport.c` `reuseport_select_sock()`.
    Reuseport(ListenerGroup, Spread),

    /// A number of `/proc/sys/net/core`, for the whole host.
    ///
    /// Kernel: 2.6.12 and later for some, `net/core/sysctl_net_core.c` `net_core_table`.
    Sysctl(Sysctl, u64),
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
            | Self::PacketSize(device, ..)
            | Self::RssTable(device, _)
            | Self::RssKey(device, _)
            | Self::Qdiscs(device, _) => Object::Device(*device),
            Self::RssContext(device, queues, _) => Object::RssContext(*device, *queues),
            Self::FlowRule(device, flow, _) => Object::FlowRule(*device, *flow),
            Self::PrivateFlag(device, flag, _) => Object::PrivateFlag(*device, *flag),
            Self::XpsCpus(queue, _) | Self::XpsRxQueues(queue, _) => Object::TxQueue(*queue),
            Self::Reuseport(group, _) => Object::Listeners(*group),
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
            Self::PacketSize(..) => Interface::PacketSizes,
            Self::PrivateFlag(..) => Interface::PrivateFlags,
            Self::RssTable(..) | Self::RssKey(..) => Interface::Rss,
            Self::RssContext(..) => Interface::RssContexts,
            Self::FlowRule(..) => Interface::FlowRules,
            Self::Qdiscs(..) => Interface::Qdiscs,
            Self::RpsCpus(..) | Self::RpsFlowCount(..) | Self::XpsCpus(..) | Self::XpsRxQueues(..) => {
                Interface::Steering
            }
            Self::Reuseport(..) => Interface::Reuseport,
            Self::Sysctl(..) => Interface::Sysctl,
        }
    }

    /// Whether both are about the same knob of the same object.
    pub fn same_knob(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && self.knob() == other.knob()
            && self.object() == other.object()
    }
}
