//! The CPUs and how they are near to each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::ids::{Cpu, NumaNode};

/// The CPUs of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The CPUs that run.
    pub online: CpuSet,
    /// The CPUs that the scheduler leaves alone: `isolcpus`, and isolated partitions of cpusets.
    pub isolated: CpuSet,
    /// The BPF scheduler that places threads of the classes `other` and `batch`, by its name; `None` where the kernel's own does.
    ///
    /// Kernel: 6.12, `kernel/sched/ext.c`, `/sys/kernel/sched_ext`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sched_ext: Option<String>,
    /// Each online CPU, by number.
    pub cpus: Vec<CpuInfo>,
}

/// One CPU and its neighbours.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuInfo {
    /// The CPU.
    pub cpu: Cpu,
    /// The CPUs of the same core, itself among them.
    pub siblings: CpuSet,
    /// The CPUs that share its last-level cache, itself among them.
    pub llc: CpuSet,
    /// Its NUMA node.
    pub node: Option<NumaNode>,
}
