//! The order in which settings are written. No intermediate state may be worse than both ends.
//!
//! **The device first, from the ground up.** Host-wide settings depend on nothing. Changing the number of
//! queues, the rings and some offloads resets the device, with new interrupts and NAPIs. So everything that
//! depends on queues comes afterwards: moderation, RSS, steering. An RSS context is created before the rules
//! that refer to it, and removed after them, because the kernel refuses any other order.
//!
//! **Then affinity.** An IRQ's new CPU takes effect at its next interrupt, and a NAPI's timer stays on the
//! CPU that armed it (`HRTIMER_MODE_REL_PINNED`). Once interrupts are deferred or suspended, the next one may
//! be far away, so they are moved first.
//!
//! **The poller comes first and leaves last.** An epoll (or io_uring) with `prefer_busy_poll` polls the NAPI;
//! the queue's settings make the kernel rely on that and keep the IRQ masked.
//!
//! When values are raised, epolls are written before queues. `prefer_busy_poll` without deferral only costs
//! one poll per wait, whereas deferral without a poller delays packets by `gro-flush-timeout`, which is 5 ms
//! in `fullbusy`.
//!
//! When values are lowered, queues are written before epolls. In the reverse order, clearing
//! `prefer_busy_poll` while IRQs are suspended would leave packets to `irq-suspend-timeout` (20 ms), because
//! only an `epoll_wait` that still prefers busy polling resumes the IRQs (6.18, `fs/eventpoll.c`
//! `ep_busy_loop()`, `ep_resume_napi_irqs()`). If the queue's values are cleared first, the application's
//! next `epoll_wait` polls once more, `busy_poll_stop()` has nothing to defer with, and
//! `napi_complete_done()` enables the IRQ; after that, clearing the epoll's flag has no effect. One case
//! remains: an application that does not call `epoll_wait` between the two writes keeps its IRQs suspended
//! for at most one `irq-suspend-timeout`.
//!
//! **Within a queue, dependent settings come later.** When values are raised, the order is `defer-hard-irqs`
//! (no effect without the timer), `gro-flush-timeout` (by itself it would delay GRO), `irq-suspend-timeout`
//! (without the other two, the kernel enables the IRQ at every `epoll_wait`: 74 700 softirq polls per second
//! were measured). Values are lowered in the reverse order, and everything is lowered before anything is
//! raised. With netlink, all settings of a queue are one message; the order matters for other interfaces and
//! in the undo script.
//!
//! **A kernel thread comes before its settings.** It exists once its queue is threaded. Then its CPUs are
//! set, and then its class, so that a thread with the highest priority never runs on the wrong CPU. For
//! removal, the class is lowered first, then the CPUs are restored, and then the thread ends.
//!
//! All rules are symmetric, so the inverse of a plan, which is its reverse, is also in order.

use std::collections::BTreeSet;

use model::setting::WritePhase;
use model::{
    Change, DeviceId, DeviceNapiKnob, Interface, NapiKnob, Object, RxQueue, Setting, Step, Threading,
};

/// The queues and devices whose kernel threads end during a plan.
#[derive(Debug, Default)]
pub(crate) struct EndingThreads {
    queues: BTreeSet<RxQueue>,
    devices: BTreeSet<DeviceId>,
}

impl EndingThreads {
    /// Collects the threads that these changes end.
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

    /// Returns whether a change is to a kernel thread that is about to end.
    fn has(&self, change: &Change) -> bool {
        change.to().interface() == Interface::Kthread
            && matches!(change.to().object(), Object::Queue(queue)
                if self.queues.contains(&queue) || self.devices.contains(&queue.device))
    }
}

/// Returns the phase of a step. Steps with a smaller phase are written first; within a phase, the object
/// decides.
pub(crate) fn phase(step: &Step, ending: &EndingThreads) -> WritePhase {
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

/// Returns whether a change reduces something: deferral, polling, or the number of objects or threads.
fn goes_down(change: &Change, ending: &EndingThreads) -> bool {
    ending.has(change) || change.to().weight() < change.from().weight() || change.to().removes()
}
