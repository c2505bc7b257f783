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
    /// The CPUs that are isolated from the scheduler: `isolcpus`, and isolated cpuset partitions.
    pub isolated: CpuSet,
    /// The name of the sched_ext scheduler that schedules threads of the classes `other` and `batch`; `None`
    /// if the kernel's own scheduler does.
    ///
    /// Kernel: 6.12, `kernel/sched/ext.c`, `/sys/kernel/sched_ext`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sched_ext: Option<String>,
    /// The online CPUs, in the order of their numbers.
    pub cpus: Vec<CpuInfo>,
}

/// A CPU and the CPUs with which it shares a core, a cache or a NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuInfo {
    /// The CPU.
    pub cpu: Cpu,
    /// The CPUs of the same core, including this CPU.
    pub siblings: CpuSet,
    /// The CPUs that share this CPU's last-level cache, including this CPU.
    pub llc: CpuSet,
    /// The NUMA node.
    pub node: Option<NumaNode>,
}
