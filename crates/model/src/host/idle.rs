//! The idle states that CPUs may enter.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::Cpu;

/// The idle states that CPUs may enter, and the limits that exclude the deeper states.
///
/// Kernel: Documentation/admin-guide/pm/cpuidle.rst; `drivers/cpuidle/governor.c`
/// `cpuidle_governor_latency_req()`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdleDepth {
    /// The wake-up latency limit of all CPUs in microseconds: the minimum of all requests on
    /// `/dev/cpu_dma_latency`.
    pub bound: u32,
    /// The idle states of every CPU that has any.
    pub cpus: BTreeMap<Cpu, CpuIdle>,
}

/// The idle states of a CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuIdle {
    /// The CPU's own limit on the wake-up latency in microseconds (`power/pm_qos_resume_latency_us`); `None`
    /// for no limit.
    pub bound: Option<u32>,
    /// The idle states that are not disabled.
    pub states: Vec<IdleState>,
}

/// An idle state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdleState {
    /// The driver's name for the idle state, such as `C6`.
    pub name: String,
    /// The exit latency in microseconds.
    pub exit: u32,
}

impl IdleDepth {
    /// Returns the state with the longest exit latency among those that a CPU may enter.
    pub fn deepest(&self, cpu: Cpu) -> Option<&IdleState> {
        let idle = self.cpus.get(&cpu)?;
        let bound = idle.bound.map_or(self.bound, |own| own.min(self.bound));
        idle.states.iter().filter(|state| state.exit <= bound).max_by_key(|state| state.exit)
    }
}
