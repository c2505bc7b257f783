//! Queues, interrupts and CPUs that belong together.

use model::{Cpu, CpuSet, QueueIndex, RxQueue};

/// Queues with their interrupts and CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueObject {
    /// The receive queues of the object's NAPIs, one for each NAPI.
    pub rx: Vec<RxQueue>,
    /// The transmit queues.
    pub tx: Vec<QueueIndex>,
    /// The CPUs of the queues' interrupts.
    pub irq_cpus: CpuSet,
    /// All CPUs of the object: those of its interrupts, and those that only transmit on its queues.
    pub cpus: CpuSet,
    /// The CPUs that transmit. The n-th of them sends on the n-th transmit queue.
    pub(crate) senders: Vec<Cpu>,
}

/// The objects of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// The objects, ordered by their first receive queue.
    pub objects: Vec<QueueObject>,
    /// The number of receive queues, counted from the first, over which packets are spread; `None` unless the
    /// layout excludes receive queues.
    pub spread: Option<u32>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

impl Objects {
    /// Returns the CPUs that send on each transmit queue. Empty for layouts in which some CPUs have no
    /// object.
    pub fn senders(&self) -> impl Iterator<Item = (QueueIndex, CpuSet)> {
        self.objects.iter().flat_map(|object| {
            object.tx.iter().enumerate().map(|(at, tx)| {
                let own = object.senders.iter().skip(at).step_by(object.tx.len());
                (*tx, own.copied().collect::<CpuSet>())
            })
        })
    }
}
