//! In which order settings are written, so that no intermediate state is worse than both ends.
//!
//! **The device first, from the ground up.** Numbers of the whole host stand on nothing. Other counts of queues, other
//! rings and some offloads reset the device, with new interrupts and NAPIs, so all that stands on queues comes
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
//! written before the epolls. The reverse order is the kernel's trap: clearing `prefer_busy_poll` while IRQs
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
//! on these its class, so that a thread of the highest priority never runs where it should not. Going, the class
//! falls first, then the CPUs go back, and then the thread ends.
//!
//! All rules are mirrors of themselves, so a plan's inverse, which is only its reverse, is in order too: an undo
//! follows the order that a plan back would have.

use std::collections::BTreeSet;

use model::setting::Phase;
use model::{
    Change, DeviceId, DeviceNapiKnob, Interface, NapiKnob, Object, RxQueue, Setting, Step, Threading,
};

/// The queues and devices whose kernel threads a plan ends.
#[derive(Debug, Default)]
pub(crate) struct EndingThreads {
    queues: BTreeSet<RxQueue>,
    devices: BTreeSet<DeviceId>,
}

impl EndingThreads {
    /// From these changes.
    pub(crate) fn of<'c>(changes: impl Iterator<Item = &'c Change>) -> Self {
        let mut ending = Self::default();
        for change in changes {
            if let Setting::Napi(queue, NapiKnob::Threaded(Threading::Off)) = change.to() {
                ending.queues.insert(*queue);
            } else if let Setting::DeviceNapis(device, DeviceNapiKnob::Threaded(Threading::Off)) = change.to()
            {
                ending.devices.insert(*device);
            }
        }
        ending
    }

    /// Whether a change is of a kernel thread that is about to end.
    fn has(&self, change: &Change) -> bool {
        change.to().interface() == Interface::Kthread
            && matches!(change.to().object(), Object::Queue(queue)
                if self.queues.contains(&queue) || self.devices.contains(&queue.device))
    }
}

/// The phase of a step: smaller ones first, then by object.
pub(crate) fn phase(step: &Step, ending: &EndingThreads) -> Phase {
    let change = &step.changes()[0];
    let facts = change.to().facts();
    if goes_down(change, ending) { facts.phase_down } else { facts.phase }
}

/// Orders the changes of one object.
pub(crate) fn within_step(mut changes: Vec<Change>, ending: &EndingThreads) -> Vec<Change> {
    changes.sort_by_key(|change| {
        let rank = change.to().facts().rank;
        if goes_down(change, ending) { -rank } else { rank }
    });
    changes
}

/// Whether a change reduces something: less deferral, less polling, an object or a thread that is removed.
fn goes_down(change: &Change, ending: &EndingThreads) -> bool {
    ending.has(change) || change.to().weight() < change.from().weight() || change.to().removes()
}
