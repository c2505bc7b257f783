//! Reads the CPU topology from `/sys/devices/system`.
//!
//! Kernel: 6.18, `Documentation/ABI/stable/sysfs-devices-system-cpu`, `Documentation/admin-guide/cputopology.rst`.

use std::collections::BTreeMap;

use model::host::{CpuInfo, Topology, Unread};
use model::{Cpu, CpuSet, NumaNode};
use sys::error::KernelError;
use sys::sysfs::SysFs;

use super::sources::UnreadExt;
use crate::process::isolated_partitions;

/// The highest cache index that is tried for a CPU. Caches are numbered from the nearest; no CPU has more
/// than five.
const CACHE_INDEX_MAX: u32 = 8;

pub(super) fn topology(sysfs: &Result<SysFs, KernelError>, unread: &mut Vec<Unread>) -> Topology {
    let Ok(sysfs) = sysfs else { return Topology::default() }; // the reason is listed with the devices
    let online = cpus(sysfs, "devices/system/cpu/online").or_unread(unread).unwrap_or_default();
    let isolated = isolated(sysfs).or_unread(unread);
    let sched_ext = bpf_scheduler(sysfs).or_unread(unread);
    let node_of = nodes(sysfs).or_unread(unread);
    let mut siblings = Neighbours::default();
    let mut llcs = Neighbours::default();
    let cpus = online.iter().map(|cpu| CpuInfo {
        cpu,
        siblings: siblings
            .of(cpu, || cpus(sysfs, &format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")))
            .or_unread(unread),
        llc: llcs.of(cpu, || last_level_cache(sysfs, cpu)).or_unread(unread),
        node: node_of.get(&cpu).copied(),
    });
    let cpus = cpus.collect();
    Topology { online, isolated, sched_ext, cpus }
}

/// Reads the CPUs that are isolated from the scheduler.
pub(super) fn isolated(sysfs: &SysFs) -> Result<CpuSet, KernelError> {
    let isolated = cpus(sysfs, "devices/system/cpu/isolated")?.unwrap_or_default();
    Ok(isolated.iter().chain(isolated_partitions().iter()).collect())
}

/// Reads the name of the active BPF scheduler. Kernel: 6.12, `kernel/sched/ext.c` `scx_attr_state_show()`,
/// `scx_attr_ops_show()`.
fn bpf_scheduler(sysfs: &SysFs) -> Result<Option<String>, KernelError> {
    let state = sysfs.read_if_any("kernel/sched_ext/state")?;
    if state.as_deref().map(str::trim) != Some("enabled") {
        return Ok(None);
    }
    let name = sysfs.read_if_any("kernel/sched_ext/root/ops")?.unwrap_or_default();
    Ok(Some(name.trim().to_owned()))
}

/// Groups of CPUs. Each group is read only once, for its first CPU.
#[derive(Debug, Default)]
struct Neighbours {
    read: Vec<CpuSet>,
}

impl Neighbours {
    /// Returns the group of a CPU; the group is only the CPU itself if the kernel does not report one.
    fn of(
        &mut self,
        cpu: Cpu,
        read: impl FnOnce() -> Result<Option<CpuSet>, KernelError>,
    ) -> Result<CpuSet, KernelError> {
        if let Some(known) = self.read.iter().find(|group| group.contains(cpu)) {
            return Ok(known.clone());
        }
        let group =
            read()?.filter(|group| group.contains(cpu)).unwrap_or_else(|| [cpu].into_iter().collect());
        self.read.push(group.clone());
        Ok(group)
    }
}

/// Returns the CPUs that share a CPU's last-level cache, which is the cache with the highest index.
fn last_level_cache(sysfs: &SysFs, cpu: Cpu) -> Result<Option<CpuSet>, KernelError> {
    let mut last = None;
    for index in 0..=CACHE_INDEX_MAX {
        match cpus(sysfs, &format!("devices/system/cpu/cpu{cpu}/cache/index{index}/shared_cpu_list"))? {
            Some(sharing) => last = Some(sharing),
            None => break,
        }
    }
    Ok(last)
}

fn nodes(sysfs: &SysFs) -> Result<BTreeMap<Cpu, NumaNode>, KernelError> {
    let mut node_of = BTreeMap::new();
    for name in sysfs.list("devices/system/node")? {
        let Some(node) = name.strip_prefix("node").and_then(|number| number.parse().ok()).map(NumaNode)
        else {
            continue;
        };
        let members = cpus(sysfs, &format!("devices/system/node/{name}/cpulist"))?.unwrap_or_default();
        node_of.extend(members.iter().map(|cpu| (cpu, node)));
    }
    Ok(node_of)
}

/// Reads a file that contains a list of CPUs; `None` if the file does not exist.
fn cpus(sysfs: &SysFs, path: &str) -> Result<Option<CpuSet>, KernelError> {
    let Some(text) = sysfs.read_if_any(path)? else { return Ok(None) };
    text.parse().map(Some).map_err(|not: model::cpu_set::NotACpuList| {
        KernelError::malformed(format!("/sys/{path}"), not.to_string())
    })
}
