//! CPU topology: cores, SMT siblings, cache and NUMA domains.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::ids::{Cpu, NumaNode};

/// The CPUs of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The online CPUs.
    pub online: CpuSet,
    /// The CPUs that the scheduler excludes: `isolcpus`, and isolated cpuset partitions.
    pub isolated: CpuSet,
    /// The name of the sched_ext scheduler that places threads of the classes `other` and `batch`; `None` for
    /// the kernel's own.
    ///
    /// Kernel: 6.12, `kernel/sched/ext.c`, `/sys/kernel/sched_ext`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sched_ext: Option<String>,
    /// The online CPUs, in the order of their numbers.
    pub cpus: Vec<CpuInfo>,
}

/// One CPU and its neighbours.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuInfo {
    /// The CPU.
    pub cpu: Cpu,
    /// The CPUs of the same core, including this one.
    pub siblings: CpuSet,
    /// The CPUs that share its last-level cache, including this one.
    pub llc: CpuSet,
    /// The NUMA node.
    pub node: Option<NumaNode>,
}
