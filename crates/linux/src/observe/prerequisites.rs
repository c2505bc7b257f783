//! Checks the prerequisites of our BPF programs on a host, and those privileges of the caller that no netlink
//! request reveals.

use std::path::Path;

use model::support::Prerequisites;
use rustix::fs::{StatFs, statfs};
use rustix::thread::{CapabilitySet, capabilities};

/// The type information (BTF) of the running kernel.
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// This file exists only in kernels with PREEMPT_RT. Kernel: 6.18, `kernel/ksysfs.c` `realtime_show()`.
const REALTIME: &str = "/sys/kernel/realtime";

/// Where the BPF file system is mounted, and its magic number in `statfs`. Kernel:
/// `include/uapi/linux/magic.h` `BPF_FS_MAGIC`.
const BPF_FS: &str = "/sys/fs/bpf";
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// The mounted file systems; the type is the third word of each line.
const MOUNTS: &str = "/proc/self/mounts";

/// Whether the caller may change this namespace's network and inspect other users' processes.
pub fn may_administer() -> bool {
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    held.contains(CapabilitySet::NET_ADMIN | CapabilitySet::SYS_PTRACE)
}

/// Checks all prerequisites. A prerequisite that cannot be checked counts as absent.
pub fn prerequisites() -> Prerequisites {
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let holds = |wanted| held.contains(wanted) || held.contains(CapabilitySet::SYS_ADMIN);
    Prerequisites {
        btf: Path::new(BTF).exists(),
        cap_bpf: holds(CapabilitySet::BPF),
        cap_perfmon: holds(CapabilitySet::PERFMON),
        cap_sys_admin: held.contains(CapabilitySet::SYS_ADMIN),
        cap_sys_nice: held.contains(CapabilitySet::SYS_NICE),
        preempt_rt: Path::new(REALTIME).exists(),
        bpf_fs: statfs(BPF_FS)
            .is_ok_and(|found: StatFs| i128::from(found.f_type) == i128::from(BPF_FS_MAGIC)),
        cgroup2: std::fs::read_to_string(MOUNTS)
            .is_ok_and(|mounts| mounts.lines().any(|line| line.split(' ').nth(2) == Some("cgroup2"))),
    }
}
