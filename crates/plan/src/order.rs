//! In which order settings are written, so that no state on the way is worse than both ends.
//!
//! **The device first, from the ground up.** Numbers of the whole host stand on nothing. Other counts of queues, other
//! rings and some offloads make the device anew, with new interrupts and NAPIs, so all that stands on queues comes
//! after them: moderation, the spread of packets over queues, steering. A context of the receive hash is there before the
//! rules that lead to it, and goes after them: the kernel refuses anything else.
//!
//! **Then affinity.** The IRQ's new CPU is taken at its next interrupt, and a NAPI's timer stays on the CPU that
//! armed it (`HRTIMER_MODE_REL_PINNED`). Once interrupts are deferred or suspended there may be no next one for
//! long, so they are moved while they still come.
//!
//! **The poller comes first and leaves last.** An epoll (or io_uring) with `prefer_busy_poll` polls the NAPI; the
//! queue's settings make the kernel rely on it and keep the IRQ masked. Raising, the epolls are written before
//! the queues: `prefer_busy_poll` without deferral costs one poll a wait and changes nothing else, where deferral
//! without a poller holds packets back for `gro-flush-timeout`, 5 ms in `fullbusy`. Lowering, the queues are
//! written before the epolls. The other way round is the kernel's trap: clearing `prefer_busy_poll` while IRQs
//! are suspended leaves them to `irq-suspend-timeout` (20 ms without a packet), because only an `epoll_wait` that
//! still prefers busy polling would resume them (6.18, `fs/eventpoll.c` `ep_busy_loop()`,
//! `ep_resume_napi_irqs()`). With the queue's values gone first, the application's next `epoll_wait` polls once
//! more, `busy_poll_stop()` finds nothing to defer with, and `napi_complete_done()` enables the IRQ; after that
//! the epoll's flag can go unnoticed. What remains is an application that does not come back to `epoll_wait`
//! between the two writes: it holds its IRQs for one `irq-suspend-timeout` at most, as ever.
//!
//! **Within a queue, what stands on something comes after it.** Raising: `defer-hard-irqs` (without the timer it
//! does nothing), `gro-flush-timeout` (alone it would delay GRO), `irq-suspend-timeout` (without the other two
//! the kernel enables the IRQ at every `epoll_wait`: 74 700 softirq polls a second in the study). Lowering is the
//! mirror, and what falls falls before anything rises. By netlink all of one queue is one message anyway; the
//! order counts where it is not, and in the undo script.
//!
//! **A kernel thread comes before what is set on it.** It is there once its queue is threaded; then its CPUs are set, and
//! on these its class, so that a thread before which nobody else runs never runs where it should not. Going, the class
//! falls first, then the CPUs go back, and then the thread ends.
//!
//! All rules are mirrors of themselves, so a plan's inverse, which is only its reverse, is in order too: an undo
//! goes the way that a plan back would have gone.

use std::collections::BTreeSet;

use model::{
    Change, DeviceId, EmptyPolls, EpollParams, Interface, Nanoseconds, Object, RingNapi, RxQueue, Setting,
    Step, Threading,
};

/// When a step is written: the smaller first, steps of one phase by object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Numbers of the whole host.
    Host,
    /// Counts of queues.
    Channels,
    /// Sizes of rings.
    Rings,
    /// What the device and its driver do with packets.
    Offloads,
    /// How large the packets are that it makes of others.
    PacketSizes,
    /// When the device interrupts.
    Coalescing,
    /// What packets wait in before they leave.
    Qdiscs,
    /// Which queue a packet goes to.
    Rss,
    /// Contexts of the receive hash, which rules lead to.
    RssContexts,
    /// Rules of the NIC.
    FlowRules,
    /// Contexts that no rule leads to any more.
    RssContextsGo,
    /// Which CPU a packet goes to, and from which CPU it leaves by which queue.
    Steering,
    /// Interrupts that irqbalance shall leave alone: before it sees that they were moved.
    IrqBan,
    /// Interrupts to their CPUs.
    Irq,
    /// Threads to their CPUs.
    Thread,
    /// Connections to the listeners of their queues.
    Reuseport,
    /// Epolls that begin to poll, or poll more.
    EpollRises,
    /// The same for io_urings.
    RingRises,
    /// Kernel threads that are about to end.
    KthreadLeaves,
    /// Whole devices, whose values overwrite those of their queues.
    Device,
    /// Queues.
    Queue,
    /// Kernel threads that are there now.
    Kthread,
    /// io_urings that poll less.
    RingFalls,
    /// The same for epolls.
    EpollFalls,
}

/// The queues and devices whose kernel threads a plan ends.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    queues: BTreeSet<RxQueue>,
    devices: BTreeSet<DeviceId>,
}

impl Leaving {
    /// As these changes have it.
    pub(crate) fn of<'c>(changes: impl Iterator<Item = &'c Change>) -> Self {
        let mut leaving = Self::default();
        for change in changes {
            if let Setting::Threaded(queue, Threading::Off) = change.to() {
                leaving.queues.insert(*queue);
            } else if let Setting::DeviceThreaded(device, Threading::Off) = change.to() {
                leaving.devices.insert(*device);
            }
        }
        leaving
    }

    fn has(&self, queue: &RxQueue) -> bool {
        self.queues.contains(queue) || self.devices.contains(&queue.device)
    }
}

/// When a step is written.
pub(crate) fn phase(step: &Step, leaving: &Leaving) -> Phase {
    let change = &step.changes()[0];
    let falls = falls(change);
    match change.to() {
        Setting::IrqAffinity(..) => Phase::Irq,
        Setting::IrqBan(..) => Phase::IrqBan,
        Setting::ThreadAffinity(..) => Phase::Thread,
        Setting::KthreadAffinity(queue, _)
        | Setting::KthreadScheduling(queue, _)
        | Setting::KthreadUtilClamp(queue, _) => {
            if leaving.has(queue) {
                Phase::KthreadLeaves
            } else {
                Phase::Kthread
            }
        }
        Setting::Reuseport(..) => Phase::Reuseport,
        Setting::Epoll(..) if falls => Phase::EpollFalls,
        Setting::Epoll(..) => Phase::EpollRises,
        Setting::IoUringNapi(..) if falls => Phase::RingFalls,
        Setting::IoUringNapi(..) => Phase::RingRises,
        Setting::DeviceDeferHardIrqs(..)
        | Setting::DeviceGroFlushTimeout(..)
        | Setting::DeviceThreaded(..) => Phase::Device,
        Setting::DeferHardIrqs(..)
        | Setting::GroFlushTimeout(..)
        | Setting::IrqSuspendTimeout(..)
        | Setting::Threaded(..) => Phase::Queue,
        Setting::Sysctl(..) => Phase::Host,
        Setting::Channels(..) => Phase::Channels,
        Setting::Ring(..) => Phase::Rings,
        Setting::Offload(..) | Setting::PrivateFlag(..) => Phase::Offloads,
        Setting::PacketSize(..) => Phase::PacketSizes,
        Setting::Coalescing(..) | Setting::QueueCoalescing(..) => Phase::Coalescing,
        Setting::Qdiscs(..) => Phase::Qdiscs,
        Setting::RssTable(..) | Setting::RssKey(..) => Phase::Rss,
        Setting::RssContext(_, _, true) => Phase::RssContexts,
        Setting::FlowRule(..) => Phase::FlowRules,
        Setting::RssContext(_, _, false) => Phase::RssContextsGo,
        Setting::RpsCpus(..)
        | Setting::RpsFlowCount(..)
        | Setting::XpsCpus(..)
        | Setting::XpsRxQueues(..) => Phase::Steering,
    }
}

/// The changes of one object in the order of writing.
pub(crate) fn within_step(mut changes: Vec<Change>, leaving: &Leaving) -> Vec<Change> {
    changes.sort_by_key(|change| {
        let floor = floor(change.to());
        let kthread = change.to().interface() == Interface::Kthread;
        let leaves = kthread && matches!(change.to().object(), Object::Queue(queue) if leaving.has(&queue));
        if leaves || falls(change) { -floor } else { floor }
    });
    changes
}

/// How much a knob stands on others of the same object: from 1, on nothing.
fn floor(setting: &Setting) -> i8 {
    match setting {
        Setting::Threaded(..) | Setting::DeviceThreaded(..) => 1,
        Setting::KthreadAffinity(..) => 1,
        Setting::KthreadScheduling(..) => 2,
        Setting::KthreadUtilClamp(..) => 3,
        Setting::DeferHardIrqs(..) | Setting::DeviceDeferHardIrqs(..) => 2,
        Setting::GroFlushTimeout(..) | Setting::DeviceGroFlushTimeout(..) => 3,
        Setting::IrqSuspendTimeout(..) => 4,
        Setting::Epoll(..)
        | Setting::IoUringNapi(..)
        | Setting::IrqAffinity(..)
        | Setting::IrqBan(..)
        | Setting::ThreadAffinity(..)
        | Setting::Channels(..)
        | Setting::Ring(..)
        | Setting::Coalescing(..)
        | Setting::QueueCoalescing(..)
        | Setting::Offload(..)
        | Setting::PacketSize(..)
        | Setting::PrivateFlag(..)
        | Setting::RssTable(..)
        | Setting::RssKey(..)
        | Setting::RssContext(..)
        | Setting::FlowRule(..)
        | Setting::Qdiscs(..)
        | Setting::RpsCpus(..)
        | Setting::RpsFlowCount(..)
        | Setting::XpsCpus(..)
        | Setting::XpsRxQueues(..)
        | Setting::Reuseport(..)
        | Setting::Sysctl(..) => 1,
    }
}

/// Whether a change takes away: less deferral, less polling.
fn falls(change: &Change) -> bool {
    amount(change.to()) < amount(change.from())
}

/// A knob's value as something that rises and falls.
fn amount(setting: &Setting) -> Amount {
    match setting {
        Setting::DeferHardIrqs(_, EmptyPolls(polls)) | Setting::DeviceDeferHardIrqs(_, EmptyPolls(polls)) => {
            Amount(u8::from(*polls > 0), u64::from(*polls), 0)
        }
        Setting::GroFlushTimeout(_, Nanoseconds(ns))
        | Setting::IrqSuspendTimeout(_, Nanoseconds(ns))
        | Setting::DeviceGroFlushTimeout(_, Nanoseconds(ns)) => Amount(u8::from(*ns > 0), *ns, 0),
        Setting::Threaded(_, threading) | Setting::DeviceThreaded(_, threading) => match threading {
            Threading::Off => Amount(0, 0, 0),
            Threading::On => Amount(1, 0, 0),
            Threading::BusyPoll => Amount(2, 0, 0),
        },
        // Waiting for events only polls nothing, however long: it is less than preferring to poll.
        Setting::Epoll(
            _,
            EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll, events_only: _ },
        ) => Amount(u8::from(*prefer_busy_poll), u64::from(*busy_poll_usecs), u64::from(*busy_poll_budget)),
        Setting::IoUringNapi(_, None) => Amount(0, 0, 0),
        Setting::IoUringNapi(_, Some(RingNapi { busy_poll_usecs, prefer_busy_poll })) => {
            Amount(1 + u8::from(*prefer_busy_poll), u64::from(*busy_poll_usecs), 0)
        }
        Setting::IrqAffinity(..)
        | Setting::IrqBan(..)
        | Setting::ThreadAffinity(..)
        | Setting::KthreadAffinity(..)
        | Setting::KthreadScheduling(..)
        | Setting::KthreadUtilClamp(..)
        | Setting::Channels(..)
        | Setting::Ring(..)
        | Setting::Coalescing(..)
        | Setting::QueueCoalescing(..)
        | Setting::Offload(..)
        | Setting::PacketSize(..)
        | Setting::PrivateFlag(..)
        | Setting::RssTable(..)
        | Setting::RssKey(..)
        | Setting::RssContext(..)
        | Setting::FlowRule(..)
        | Setting::Qdiscs(..)
        | Setting::RpsCpus(..)
        | Setting::RpsFlowCount(..)
        | Setting::XpsCpus(..)
        | Setting::XpsRxQueues(..)
        | Setting::Reuseport(..)
        | Setting::Sysctl(..) => Amount(0, 0, 0),
    }
}

/// Compared from left to right: whether at all, how long, how much.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Amount(u8, u64, u64);
