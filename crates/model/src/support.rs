//! Lists the prerequisites that mechanisms have on a host.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The requirements of mechanisms in addition to a kernel version: optional parts of the kernel, and
/// capabilities of the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prerequisites {
    /// Whether the kernel has type information (`CONFIG_DEBUG_INFO_BTF`).
    pub btf: bool,
    /// CAP_BPF, or CAP_SYS_ADMIN.
    pub cap_bpf: bool,
    /// CAP_PERFMON, or CAP_SYS_ADMIN.
    pub cap_perfmon: bool,
    /// CAP_SYS_ADMIN.
    pub cap_sys_admin: bool,
    /// CAP_SYS_NICE.
    pub cap_sys_nice: bool,
    /// Whether the kernel is built with PREEMPT_RT.
    pub preempt_rt: bool,
    /// Whether a BPF file system is mounted on `/sys/fs/bpf`.
    pub bpf_fs: bool,
    /// Whether the unified cgroup hierarchy is mounted.
    pub cgroup2: bool,
}
