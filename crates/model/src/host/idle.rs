//! How deep CPUs may sleep.

use std::collections::BTreeMap;

use crate::ids::Cpu;

/// The idle states that CPUs may enter, and what keeps them from the deeper ones.
///
/// Kernel: Documentation/admin-guide/pm/cpuidle.rst; `drivers/cpuidle/governor.c` `cpuidle_governor_latency_req()`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdleDepth {
    /// The longest that any CPU may take to wake, in microseconds: the least of all requests on `/dev/cpu_dma_latency`.
    pub bound: u32,
    /// Each CPU that has idle states.
    pub cpus: BTreeMap<Cpu, CpuIdle>,
}

/// The idle states of a CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuIdle {
    /// The longest that this CPU may take to wake, in microseconds (`power/pm_qos_resume_latency_us`); `None` for no bound
    /// of its own.
    pub bound: Option<u32>,
    /// Those that are not disabled.
    pub states: Vec<IdleState>,
}

/// An idle state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleState {
    /// What the driver calls it, as in `C6`.
    pub name: String,
    /// How long it takes to leave, in microseconds.
    pub exit: u32,
}

impl IdleDepth {
    /// The state that takes a CPU longest to leave, of those that it may enter.
    pub fn deepest(&self, cpu: Cpu) -> Option<&IdleState> {
        let idle = self.cpus.get(&cpu)?;
        let bound = idle.bound.map_or(self.bound, |own| own.min(self.bound));
        idle.states.iter().filter(|state| state.exit <= bound).max_by_key(|state| state.exit)
    }
}
