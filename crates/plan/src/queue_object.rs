//! Queues, interrupts and CPUs that belong together.

use model::{Cpu, CpuSet, QueueIndex, RxQueue};

/// A set of queues with their interrupts and CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueObject {
    /// The receive queues, each representing its NAPI.
    pub rx: Vec<RxQueue>,
    /// The transmit queues.
    pub tx: Vec<QueueIndex>,
    /// The CPUs of its interrupts.
    pub irq_cpus: CpuSet,
    /// All CPUs that belong to it: those of its interrupts, and those that only transmit on it.
    pub cpus: CpuSet,
    /// The CPUs in order of transmission: the n-th CPU sends on the n-th transmit queue.
    pub(crate) senders: Vec<Cpu>,
}

/// A device's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// The objects, ordered by their first receive queue.
    pub objects: Vec<QueueObject>,
    /// The number of receive queues, from the first, over which packets are spread, if the layout excludes
    /// some.
    pub spread: Option<u32>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

impl Objects {
    /// The sending CPUs of each transmit queue. Empty for layouts in which some CPUs have no object.
    pub fn senders(&self) -> impl Iterator<Item = (QueueIndex, CpuSet)> {
        self.objects.iter().flat_map(|object| {
            object.tx.iter().enumerate().map(|(at, tx)| {
                let own = object.senders.iter().skip(at).step_by(object.tx.len());
                (*tx, own.copied().collect::<CpuSet>())
            })
        })
    }
}
