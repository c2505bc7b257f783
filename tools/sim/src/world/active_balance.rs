//! Active balancing: idle CPUs take over running threads, within and across groups of CPUs.
//!
//! Kernel: 5.10, `kernel/sched/fair.c` `nohz_balancer_kick()`, `check_cpu_capacity()`,
//! `need_active_balance()`, `active_load_balance_cpu_stop()`. There are three cases:
//!
//! - Another group runs fewer tasks (`balance`).
//! - A thread's CPU briefly has a second task, one of the kernel's own, and a CPU that looks idle takes the
//!   thread. A CPU that is busy only with softirqs looks idle, and the thread gets stuck there.
//! - Interrupts take so much of a thread's CPU that another CPU has over 17 % more capacity.
//!
//! Omitted: when the balancer acts (its interval, `sd->nr_balance_failed`, its conditions on whole groups);
//! parameters set the rate. A thread moves at the end of its step; one that loops for events stays. With
//! rates of zero, no running thread moves.

use super::parts::{Occasion, State, Use};
use super::state::World;
use crate::ids::{CpuId, TaskId};
use crate::watch::Watch;

impl<W: Watch> World<W> {
    /// Whether running threads can move.
    pub(crate) fn threads_move(&self) -> bool {
        self.costs.thread_moves > 0.0 || self.costs.active_balance > 0.0 || self.costs.group_moves > 0.0
    }

    /// Timer tick: decides which threads should move.
    pub(crate) fn balance_running(&mut self) {
        for thread in self.threads.ids() {
            if self.tasks[thread.task()].state != State::Running {
                continue;
            }
            if self.costs.thread_moves > 0.0 && self.chance.unit() < self.costs.thread_moves {
                self.leaving[thread] = Some(Occasion::Crowded);
            } else if self.costs.active_balance > 0.0
                && self.uses[self.tasks[thread.task()].cpu].interrupted()
                && self.chance.unit() < self.costs.active_balance
            {
                self.leaving[thread] = Some(Occasion::Interrupted);
            }
        }
    }

    /// Moves the running task off a CPU at the end of its step, if it should move and an idle CPU can take
    /// it.
    #[cold]
    pub(crate) fn leaves_running(&mut self, cpu: CpuId, task: TaskId) -> bool {
        let Some(thread) = self.slots.thread_of(task) else { return false };
        let Some(occasion) = self.leaving[thread].take() else { return false };
        let allowed = self.tasks[task].allowed;
        let here = self.uses[cpu];
        let takes = |&other: &CpuId| {
            allowed.has(other)
                && self.is_idle(other)
                && match occasion {
                    Occasion::Crowded => true,
                    Occasion::Interrupted => here.leaves_less_than(self.uses[other]),
                    Occasion::Uneven => self.llc(other) != self.llc(cpu),
                }
        };
        let takers: Vec<CpuId> = self.cpus.ids().filter(takes).collect();
        let Ok(count) = u32::try_from(takers.len()) else { return false };
        if count == 0 {
            return false;
        }
        let taker = takers[self.chance.below(count) as usize];
        self.enqueue(task, taker);
        self.cpus[cpu].task = None;
        self.dispatch(cpu);
        true
    }
}

impl Use {
    /// Returns whether interrupts reduce the CPU's capacity by more than the balancer tolerates, the
    /// condition of `check_cpu_capacity()`.
    fn interrupted(self) -> bool {
        self.capacity() * super::balance::IMBALANCE < 1.0
    }

    /// Whether another CPU has clearly more capacity left, the condition of `need_active_balance()`.
    fn leaves_less_than(self, other: Self) -> bool {
        self.capacity() * super::balance::IMBALANCE < other.capacity()
    }
}
