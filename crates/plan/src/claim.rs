//! Who a shared object belongs to.
//!
//! A process belongs to its most specific request (task, then service). A queue belongs to the processes that
//! receive on it, and a device's request has the queues that are left. Two requests that want the same of an
//! object may share it; two that want different values are a conflict, where the device cannot be [divided](crate::divide).

use model::{
    CpuSet, DeliveryMode, DeliveryParams, EmptyPolls, EpollParams, Intent, KthreadRequest, Nanoseconds,
    ProcessId, Threading,
};

use crate::placed::PlacedQueue;
use crate::refusal::{Refusal, RefusalKind};

/// A request with the values that it wants of the objects it owns.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedRequest<'p> {
    /// The request.
    pub(crate) intent: &'p Intent,
    /// Its delivery mode.
    pub(crate) delivery: DeliveryMode,
    /// Who polls its NAPIs.
    pub(crate) threading: Threading,
    /// Its values.
    pub(crate) params: DeliveryParams,
}

impl ResolvedRequest<'_> {
    /// The values of a queue.
    pub(crate) fn of_queue(&self) -> (EmptyPolls, Nanoseconds, Nanoseconds) {
        (self.params.defer_hard_irqs, self.params.gro_flush_timeout, self.params.irq_suspend_timeout)
    }

    /// Who polls a queue, and how that thread is scheduled.
    pub(crate) fn of_kthread(&self) -> (Threading, &KthreadRequest) {
        (self.threading, &self.intent.kthread)
    }

    /// The values of an epoll.
    pub(crate) fn of_epoll(&self) -> EpollParams {
        self.params.epoll
    }

    /// The CPUs for interrupts and threads.
    pub(crate) fn cpus(&self) -> Option<&CpuSet> {
        self.intent.cpus.as_ref()
    }

    /// Whether both may have the same queues: they want the same of them.
    pub(crate) fn shares_queues_with(&self, other: &Self) -> bool {
        self.of_queue() == other.of_queue()
            && self.of_kthread() == other.of_kthread()
            && self.cpus() == other.cpus()
    }

    /// The request in a line: where it was made, and what it wants.
    pub(crate) fn sentence(&self) -> String {
        let (defer, flush, suspend) = self.of_queue();
        let cpus = self.cpus().map(|cpus| format!(", CPUs {cpus}")).unwrap_or_default();
        format!(
            "{}: {} wants {} (defer-hard-irqs {defer}, gro-flush-timeout {flush}, irq-suspend-timeout {suspend}, \
             epoll {}{cpus})",
            self.intent.origin,
            self.intent.target,
            self.delivery,
            self.of_epoll()
        )
    }
}

/// The owner of a queue.
#[derive(Clone, Copy, Debug)]
struct Owner {
    part: usize,
    process: Option<ProcessId>,
    /// Whether it has the queue by a division of the device.
    by_division: bool,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// The queue is the claimant's.
    Own,
    /// It is another part's, which wants the same.
    Shared(usize),
    /// It is the part's whose processes receive on it.
    Yielded,
}

/// The owners of all queues.
#[derive(Debug)]
pub(crate) struct Claims {
    owners: Vec<Option<Owner>>,
}

impl Claims {
    /// No queue is owned.
    pub(crate) fn new(queues: usize) -> Self {
        Self { owners: vec![None; queues] }
    }

    /// The part that owns a queue.
    pub(crate) fn owner(&self, slot: usize) -> Option<usize> {
        self.owners[slot].map(|owner| owner.part)
    }

    /// Gives a queue to a part, whichever process receives on it at this moment.
    pub(crate) fn give(&mut self, slot: usize, part: usize) {
        self.owners[slot] = Some(Owner { part, process: None, by_division: true });
    }

    /// Claims a queue for a part: for one of its processes, or as what is left of a device.
    ///
    /// # Errors
    /// [`RefusalKind::Conflict`] if another part owns it with equal right and wants other values.
    pub(crate) fn claim(
        &mut self,
        slot: usize,
        part: usize,
        process: Option<ProcessId>,
        requests: &[ResolvedRequest<'_>],
        queue: &PlacedQueue,
    ) -> Result<Claimed, Refusal> {
        let Some(owner) = self.owners[slot] else {
            self.owners[slot] = Some(Owner { part, process, by_division: false });
            return Ok(Claimed::Own);
        };
        if owner.part == part {
            return Ok(Claimed::Own);
        }
        let (theirs, ours) = (&requests[owner.part], &requests[part]);
        let same_cpus = queue.irq.is_none() || theirs.cpus() == ours.cpus();
        let same = theirs.of_queue() == ours.of_queue() && theirs.of_kthread() == ours.of_kthread();
        if same && same_cpus {
            return Ok(Claimed::Shared(owner.part));
        }
        if process.is_none() && (owner.process.is_some() || owner.by_division) {
            return Ok(Claimed::Yielded);
        }
        let mut refusal =
            conflict(queue.queue, theirs, ours).nearest("the same policy for both, or separate devices");
        refusal.message += ": its driver has no ntuple rules to give each of them separate queues";
        for receives in [owner.process, process].into_iter().flatten() {
            refusal = refusal.because(format!("{receives} receives on {}", queue.queue));
        }
        Err(refusal)
    }
}

/// Two requests want different values of one object.
pub(crate) fn conflict(
    object: impl std::fmt::Display,
    first: &ResolvedRequest<'_>,
    second: &ResolvedRequest<'_>,
) -> Refusal {
    Refusal::new(
        RefusalKind::Conflict,
        object,
        format!("{} and {} want different values", first.intent.origin, second.intent.origin),
    )
    .because(first.sentence())
    .because(second.sentence())
}
