//! Orders the usable CPUs by their distance from a device.

use std::collections::BTreeMap;

use model::host::{CpuInfo, Device};
use model::{Cpu, CpuSet, Host, Intent, NumaNode};

/// A physical core and its usable hardware threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Core {
    /// The core's usable hardware threads, in ascending order; at least one.
    pub(crate) threads: Vec<Cpu>,
    /// The CPUs that share the core's last-level cache.
    llc: CpuSet,
    node: Option<NumaNode>,
}

/// The cores that a device's request may use, in order of their distance from the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NearCores {
    /// The cores; those of the device's NUMA node come first.
    cores: Vec<Core>,
    core_of: BTreeMap<Cpu, usize>,
    /// How many cores are on the device's node; all cores if the node is unknown or has no usable CPU.
    local: usize,
    /// Whether the device's node has no usable CPU.
    pub(crate) local_is_closed: bool,
}

/// Returns the online CPUs that a request may use: those that the request names, or else those that are not
/// isolated.
pub(crate) fn allowed(intent: &Intent, host: &Host) -> CpuSet {
    let online = &host.topology.online;
    intent
        .cpus
        .as_ref()
        .map_or_else(|| online.difference(&host.topology.isolated), |cpus| cpus.intersection(online))
}

impl NearCores {
    /// Orders the cores of these CPUs by their distance from a device.
    pub(crate) fn new(device: &Device, allowed: &CpuSet, host: &Host) -> Self {
        let mut cores: Vec<Core> = Vec::new();
        let mut dealt = CpuSet::new();
        let info = |cpu: Cpu| host.topology.cpus.iter().find(|info| info.cpu == cpu);
        for cpu in allowed.iter() {
            if dealt.contains(cpu) {
                continue;
            }
            let alone: CpuSet = [cpu].into_iter().collect();
            let (siblings, llc, node) = match info(cpu) {
                Some(CpuInfo { siblings, llc, node, .. }) => {
                    (siblings.intersection(allowed), llc.clone(), *node)
                }
                None => (alone.clone(), alone.clone(), None),
            };
            let threads: Vec<Cpu> = if siblings.contains(cpu) { siblings } else { alone }
                .iter()
                .filter(|thread| !dealt.contains(*thread))
                .collect();
            threads.iter().for_each(|thread| dealt.insert(*thread));
            cores.push(Core { threads, llc, node });
        }
        let is_local = |core: &Core| device.node.is_some() && core.node == device.node;
        let local = cores.iter().filter(|core| is_local(core)).count();
        cores.sort_by_key(|core| (!is_local(core), core.threads[0]));
        let local_is_closed = device.node.is_some() && local == 0;
        let core_of =
            |(at, core): (usize, &Core)| core.threads.iter().map(move |cpu| (*cpu, at)).collect::<Vec<_>>();
        Self {
            core_of: cores.iter().enumerate().flat_map(core_of).collect(),
            local: if local == 0 { cores.len() } else { local },
            cores,
            local_is_closed,
        }
    }

    /// Reduces this to the cores of the device's node.
    #[must_use]
    pub(crate) fn local(mut self) -> Self {
        self.cores.truncate(self.local);
        self
    }

    /// The number of cores near the device.
    pub(crate) const fn local_cores(&self) -> usize {
        self.local
    }

    /// The number of cores.
    pub(crate) fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Returns all CPUs: first the first thread of every core, then the second thread of every core that has
    /// one, and so on.
    pub(crate) fn in_turn(&self) -> Vec<Cpu> {
        let deepest = self.cores.iter().map(|core| core.threads.len()).max().unwrap_or(0);
        (0..deepest)
            .flat_map(|n| self.cores.iter().filter_map(move |core| core.threads.get(n).copied()))
            .collect()
    }

    /// Returns the distance between two CPUs: 0 in the same core, 1 with the same cache, 2 in the same node,
    /// 3 otherwise.
    pub(crate) fn distance(&self, one: Cpu, other: Cpu) -> u8 {
        let of = |cpu: Cpu| self.core_of.get(&cpu).map(|at| &self.cores[*at]);
        match (of(one), of(other)) {
            (Some(core), _) if core.threads.contains(&other) => 0,
            (Some(core), _) if core.llc.contains(other) => 1,
            (Some(a), Some(b)) if a.node == b.node => 2,
            _ => 3,
        }
    }

    /// The CPUs near the device.
    pub(crate) fn local_cpus(&self) -> CpuSet {
        self.cores.iter().take(self.local).flat_map(|core| core.threads.iter().copied()).collect()
    }
}
