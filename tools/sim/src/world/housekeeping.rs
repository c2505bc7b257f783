//! Compact tasks of the kernel, one bound to each CPU: what workers, RCU and the scheduler's own threads take now and then.
//!
//! They hardly cost time, but a thread that wakes while one runs on its CPU goes elsewhere. Without them threads
//! that have found a CPU each stay there for good; on a real host they move. Kernel: 6.11, `kernel/workqueue.c`
//! `worker_thread()` of bound pools, `mm/vmstat.c` `vmstat_update()`. Left out: what they work on; tasks that belong
//! to no CPU.

use super::World;
use super::cpu::Doing;
use super::scheduler::State;
use crate::ids::CpuId;
use crate::watch::Watch;

impl<W: Watch> World<W> {
    /// Once a millisecond: some CPUs have something to do for the kernel.
    pub(crate) fn keep_house(&mut self) {
        if self.costs.housekeeping <= 0.0 {
            return;
        }
        for cpu in self.cpus.ids() {
            let task = self.slots.housekeeper(cpu);
            if self.chance.unit() < self.costs.housekeeping && self.tasks[task].state == State::Sleeping {
                self.enqueue(task, cpu);
            }
        }
    }

    /// The task works, and sleeps.
    pub(crate) fn housekeeper_turn(&mut self, cpu: CpuId) {
        self.segment(cpu, Doing::Sleep, self.costs.housekeeping_span);
    }
}
