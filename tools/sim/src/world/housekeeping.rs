//! Models short per-CPU kernel tasks: the occasional work of workers, RCU and the scheduler's own threads.
//!
//! The tasks take hardly any time, but a thread that wakes while such a task runs on its CPU is placed on
//! another CPU. Without these tasks, threads that have found separate CPUs stay on them forever; on a real
//! host the threads move. Kernel: 6.11, `kernel/workqueue.c` `worker_thread()` of bound pools, `mm/vmstat.c`
//! `vmstat_update()`. Omitted: the work that the tasks do; tasks that are not bound to a CPU.

use super::parts::{Doing, State};
use super::state::World;
use crate::ids::CpuId;
use crate::watch::Watch;

impl<W: Watch> World<W> {
    /// Timer tick: background kernel work on some CPUs, at 1 kHz.
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

    /// Runs the task, which then sleeps.
    pub(crate) fn housekeeper_turn(&mut self, cpu: CpuId) {
        self.segment(cpu, Doing::Sleep, self.costs.housekeeping_span);
    }
}
