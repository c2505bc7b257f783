//! Determines the owner of each shared object.
//!
//! A process belongs to its most specific request (first a task's, then a service's). A queue belongs to the
//! processes that receive on it, and the device's request gets the remaining queues. Two requests may share
//! an object if they have the same values for it. Different values are a conflict, unless the device can be
//! [divided](crate::divide).

use model::{
    CpuSet, DeliveryMode, DeliveryParams, EmptyPolls, EpollParams, Intent, KthreadRequest, Nanoseconds,
    ProcessId, Threading,
};

use crate::placed::PlacedQueue;
use crate::refusal::{Refusal, RefusalKind};

/// A request with its values for the objects that it owns.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedRequest<'p> {
    /// The request.
    pub(crate) intent: &'p Intent,
    pub(crate) delivery: DeliveryMode,
    /// The context that polls the NAPIs of the request.
    pub(crate) threading: Threading,
    /// The parameters of the delivery mode.
    pub(crate) params: DeliveryParams,
}

impl ResolvedRequest<'_> {
    /// Returns the request's values for a queue.
    pub(crate) fn of_queue(&self) -> (EmptyPolls, Nanoseconds, Nanoseconds) {
        (self.params.defer_hard_irqs, self.params.gro_flush_timeout, self.params.irq_suspend_timeout)
    }

    /// Returns the context that polls a queue, and how the queue's kernel thread is scheduled.
    pub(crate) fn of_kthread(&self) -> (Threading, &KthreadRequest) {
        (self.threading, &self.intent.kthread)
    }

    /// Returns the request's values for an epoll.
    pub(crate) fn of_epoll(&self) -> EpollParams {
        self.params.epoll
    }

    /// Returns the CPUs for interrupts and threads.
    pub(crate) fn cpus(&self) -> Option<&CpuSet> {
        self.intent.cpus.as_ref()
    }

    /// Returns whether two requests may share queues because they have the same values for them.
    pub(crate) fn shares_queues_with(&self, other: &Self) -> bool {
        self.of_queue() == other.of_queue()
            && self.of_kthread() == other.of_kthread()
            && self.cpus() == other.cpus()
    }

    /// Describes the request in one line: its origin and its values.
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
    /// Whether the request owns the queue because of a division.
    by_division: bool,
}

/// The result of claiming a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueClaim {
    /// The claimant owns the queue now.
    Own,
    /// This part owns the queue, and has the same values.
    Shared(usize),
    /// The processes of another part receive on the queue, so that part keeps it.
    Yielded,
}

/// The owner of each queue.
#[derive(Debug)]
pub(crate) struct Claims {
    owners: Vec<Option<Owner>>,
}

impl Claims {
    /// Creates a table in which no queue has an owner.
    pub(crate) fn new(queues: usize) -> Self {
        Self { owners: vec![None; queues] }
    }

    /// Returns the part that owns a queue.
    pub(crate) fn owner(&self, slot: usize) -> Option<usize> {
        self.owners[slot].map(|owner| owner.part)
    }

    /// Assigns a queue to a part, even if other processes currently receive on it.
    pub(crate) fn give(&mut self, slot: usize, part: usize) {
        self.owners[slot] = Some(Owner { part, process: None, by_division: true });
    }

    /// Claims a queue for a part: for one of its processes, or as a queue of its device that no process uses.
    ///
    /// # Errors
    /// [`RefusalKind::Conflict`] if another part has an equal claim and different values.
    pub(crate) fn claim(
        &mut self,
        slot: usize,
        part: usize,
        process: Option<ProcessId>,
        requests: &[ResolvedRequest<'_>],
        queue: &PlacedQueue,
    ) -> Result<QueueClaim, Refusal> {
        let Some(owner) = self.owners[slot] else {
            self.owners[slot] = Some(Owner { part, process, by_division: false });
            return Ok(QueueClaim::Own);
        };
        if owner.part == part {
            return Ok(QueueClaim::Own);
        }
        let (theirs, ours) = (&requests[owner.part], &requests[part]);
        let same_cpus = queue.irq.is_none() || theirs.cpus() == ours.cpus();
        let same = theirs.of_queue() == ours.of_queue() && theirs.of_kthread() == ours.of_kthread();
        if same && same_cpus {
            return Ok(QueueClaim::Shared(owner.part));
        }
        if process.is_none() && (owner.process.is_some() || owner.by_division) {
            return Ok(QueueClaim::Yielded);
        }
        let mut refusal =
            conflict(queue.queue, theirs, ours).nearest("the same policy for both, or separate devices");
        refusal.message += ": its driver has no ntuple rules to direct each request to its own queues";
        for receives in [owner.process, process].into_iter().flatten() {
            refusal = refusal.because(format!("{receives} receives on {}", queue.queue));
        }
        Err(refusal)
    }
}

/// Creates the refusal for an object for which two requests have different values.
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
