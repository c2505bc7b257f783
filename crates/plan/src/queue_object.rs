//! Queues, interrupts and CPUs that belong together.

use model::{Cpu, CpuSet, QueueIndex, RxQueue};

/// A set of queues with their interrupts, and the CPUs that they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueObject {
    /// Its receive queues, each standing for its NAPI.
    pub rx: Vec<RxQueue>,
    /// Its transmit queues.
    pub tx: Vec<QueueIndex>,
    /// The CPUs that its interrupts are delivered to.
    pub irq_cpus: CpuSet,
    /// All CPUs that belong to it: those of the interrupts, and those that only send by it.
    pub cpus: CpuSet,
    /// The same in the order of sending: the n-th sends by the n-th transmit queue.
    pub(crate) senders: Vec<Cpu>,
}

/// A device's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// In the order of their first receive queue.
    pub objects: Vec<QueueObject>,
    /// Over how many of the first receive queues packets shall be spread, where the layout leaves some out.
    pub spread: Option<u32>,
    /// What the operator should know.
    pub notes: Vec<String>,
}

impl Objects {
    /// The CPUs that send by each transmit queue. Empty for layouts in which not every CPU has an object.
    pub fn senders(&self) -> impl Iterator<Item = (QueueIndex, CpuSet)> {
        self.objects.iter().flat_map(|object| {
            object.tx.iter().enumerate().map(|(at, tx)| {
                let own = object.senders.iter().skip(at).step_by(object.tx.len());
                (*tx, own.copied().collect::<CpuSet>())
            })
        })
    }
}
