//! The order in which settings are written, so that no intermediate state is worse than both ends.
//!
//! **The device first, from the ground up.** Host-wide numbers depend on nothing. Changing the number of queues,
//! the rings and some offloads reset the device, with new interrupts and NAPIs, so everything that depends on
//! queues comes afterwards: moderation, RSS, steering. An RSS context is created before the rules that refer to
//! it, and removed after them: the kernel refuses anything else.
//!
//! **Then affinity.** An IRQ's new CPU takes effect at its next interrupt, and a NAPI's timer stays on the CPU
//! that armed it (`HRTIMER_MODE_REL_PINNED`). Once interrupts are deferred or suspended, the next one may be far
//! away, so they are moved before that.
//!
//! **The poller comes first and leaves last.** An epoll (or io_uring) with `prefer_busy_poll` polls the NAPI; the
//! queue's settings make the kernel rely on it and keep the IRQ masked. When values are raised, epolls are written
//! before queues: `prefer_busy_poll` without deferral costs one poll per wait and changes nothing else, whereas
//! deferral without a poller delays packets by `gro-flush-timeout`, 5 ms in `fullbusy`. When values are lowered,
//! queues are written before epolls. The reverse order would be a trap: clearing `prefer_busy_poll` while IRQs are
//! suspended leaves them to `irq-suspend-timeout` (20 ms without a packet), because only an `epoll_wait` that
//! still prefers busy polling would resume them (6.18, `fs/eventpoll.c` `ep_busy_loop()`,
//! `ep_resume_napi_irqs()`). If the queue's values are cleared first, the application's next `epoll_wait` polls
//! once more, `busy_poll_stop()` has nothing to defer with, and `napi_complete_done()` enables the IRQ; after
//! that, clearing the epoll's flag has no effect. The remaining case is an application that does not call
//! `epoll_wait` between the two writes: it suspends its IRQs for at most one `irq-suspend-timeout`.
//!
//! **Within a queue, dependent settings come later.** When values are raised: `defer-hard-irqs` (has no effect
//! without the timer), `gro-flush-timeout` (by itself it would delay GRO), `irq-suspend-timeout` (without the
//! other two, the kernel enables the IRQ at every `epoll_wait`: 74 700 softirq polls per second in the study).
//! Lowering is the mirror image, and everything is lowered before anything is raised. With netlink, all settings
//! of a queue are one message; the order matters for other interfaces, and in the undo script.
//!
//! **A kernel thread comes before its settings.** It exists once its queue is threaded; then its CPUs are set,
//! and then its class, so that a thread with the highest priority never runs on the wrong CPU. For removal, the
//! class is lowered first, then the CPUs are restored, and then the thread ends.
//!
//! All rules are symmetric, so the inverse of a plan, which is its reverse, is in order as well.

use std::collections::BTreeSet;

use model::setting::WritePhase;
use model::{
    Change, DeviceId, DeviceNapiKnob, Interface, NapiKnob, Object, RxQueue, Setting, Step, Threading,
};

/// The queues and devices whose kernel threads end because of a plan.
#[derive(Debug, Default)]
pub(crate) struct EndingThreads {
    queues: BTreeSet<RxQueue>,
    devices: BTreeSet<DeviceId>,
}

impl EndingThreads {
    /// Collects them from these changes.
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

/// Whether a change reduces something: it lowers deferral or polling, or removes an object or a thread.
fn goes_down(change: &Change, ending: &EndingThreads) -> bool {
    ending.has(change) || change.to().weight() < change.from().weight() || change.to().removes()
}
