//! Which CPU each interrupt and each thread of a request gets.

use model::{Cpu, CpuSet, Host};

/// The request's CPUs that run, dealt out one by one and from the start again when they are used up.
///
/// The n-th interrupt and the n-th thread get the same CPU, so that with one worker for each queue the packet and
/// its reader meet in one cache. Dealing goes by identity, not by what ran at the moment of looking, so that the
/// same host gives the same answer every time.
#[derive(Clone, Debug)]
pub(crate) struct Deal {
    cpus: Vec<Cpu>,
    next: usize,
}

impl Deal {
    /// Deals out the CPUs that are both asked for and online. `None` if there are none.
    pub(crate) fn new(asked: &CpuSet, host: &Host) -> Option<Self> {
        let cpus: Vec<Cpu> = asked.intersection(&host.topology.online).iter().collect();
        (!cpus.is_empty()).then_some(Self { cpus, next: 0 })
    }

    /// The next CPU, as a set of its own.
    pub(crate) fn next(&mut self) -> CpuSet {
        let cpu = self.cpus[self.next % self.cpus.len()];
        self.next += 1;
        [cpu].into_iter().collect()
    }
}
