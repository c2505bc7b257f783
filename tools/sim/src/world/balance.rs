//! Models load balancing between groups of CPUs that share a last-level cache.
//!
//! Kernel: 6.11, `kernel/sched/fair.c` `sched_balance_rq()`, `sched_balance_find_src_group()`,
//! `sibling_imbalance()`, `imbalanced_active_balance()`, `active_load_balance_cpu_stop()`,
//! `group_is_overloaded()`, `scale_rt_capacity()`; `kernel/sched/pelt.c`. An idle CPU takes a running thread
//! from a group that runs at least two tasks more than the idle CPU's group. Wake-ups do not bring a thread
//! back to a group whose tasks need more CPU time than interrupts leave: below the knee threads return
//! immediately, above it they do not. Omitted: when exactly an idle CPU looks, and how many failed attempts
//! precede the move of a running thread; a parameter sets the rate. At zero, no group counts as overloaded,
//! and no thread leaves a group in this way.

use super::parts::{Occasion, State, Use};
use super::state::World;
use crate::ids::{CpuId, LlcId, ThreadId};
use crate::watch::{Class, Watch};

/// The factor by which a share decays per millisecond. Kernel: `y` of PELT, `y^32 = 0.5`.
const DECAY: f64 = 0.978_572;
/// A group is overloaded if the CPU time that it uses, times this factor, exceeds its capacity. Kernel:
/// `sd->imbalance_pct`, in percent.
pub(crate) const IMBALANCE: f64 = 1.17;

impl Use {
    /// The share of a CPU's time that interrupts leave to tasks. Kernel: `scale_rt_capacity()`.
    pub(crate) const fn capacity(self) -> f64 {
        1.0 - self.interrupts
    }

    /// Updates the shares from the CPU's account.
    #[expect(clippy::cast_precision_loss, reason = "times of one millisecond")]
    fn learn(&mut self, spent: [u64; 5]) {
        let seen = std::mem::replace(&mut self.seen, spent);
        let since =
            |class: Class| (spent[class as usize] - seen[class as usize].min(spent[class as usize])) as f64;
        let tasks = since(Class::User) + since(Class::System);
        let outside = tasks + since(Class::Idle);
        let inside = since(Class::Irq) + since(Class::Softirq);
        if outside > 0.0 {
            self.tasks = self.tasks * DECAY + (1.0 - DECAY) * tasks / outside;
        }
        if outside + inside > 0.0 {
            self.interrupts = self.interrupts * DECAY + (1.0 - DECAY) * inside / (outside + inside);
        }
    }
}

impl<W: Watch> World<W> {
    /// Returns whether a group's tasks need more CPU time than interrupts leave.
    pub(crate) fn overloaded(&self, llc: LlcId) -> bool {
        if self.costs.group_moves <= 0.0 {
            return false;
        }
        let group = self.uses.range(self.members(llc));
        let capacity: f64 = group.iter().map(|cpu| 1.0 - cpu.interrupts).sum();
        capacity < IMBALANCE * group.iter().map(|cpu| cpu.tasks).sum::<f64>()
    }

    /// Timer tick: idle CPUs look at other groups and CPUs.
    pub(crate) fn balance(&mut self) {
        if !self.threads_move() {
            return;
        }
        for cpu in self.cpus.ids() {
            self.account(cpu);
            self.uses[cpu].learn(*self.cpus[cpu].spent());
        }
        if self.costs.group_moves > 0.0 {
            self.balance_groups();
        }
        self.balance_running();
    }

    fn balance_groups(&mut self) {
        for llc in self.llcs() {
            if self.chance.unit() < self.costs.group_moves {
                self.push_from(llc);
            }
        }
    }

    /// Returns the number of tasks in a group that run or wait for a CPU.
    fn runnable(&self, llc: LlcId) -> usize {
        let group = self.cpus.range(self.members(llc));
        group.iter().map(|cpu| usize::from(cpu.task.is_some()) + cpu.waiting.len()).sum()
    }

    /// Marks a running thread of this group for migration if another group has an idle CPU and at least two
    /// runnable tasks fewer.
    fn push_from(&mut self, llc: LlcId) {
        let even = |cpu: CpuId| self.runnable(llc) < self.runnable(self.llc(cpu)) + 2;
        let idle = self.cpus.ids().find(|&cpu| self.llc(cpu) != llc && self.is_idle(cpu));
        if idle.is_none_or(even) {
            return;
        }
        let runs_here = |thread: &ThreadId| {
            let task = &self.tasks[thread.task()];
            task.state == State::Running && self.llc(task.cpu) == llc
        };
        let here: Vec<ThreadId> = self.threads.ids().filter(runs_here).collect();
        let Ok(count) = u32::try_from(here.len()) else { return };
        if count > 0 {
            self.leaving[here[self.chance.below(count) as usize]] = Some(Occasion::Uneven);
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::index_vec::IndexVec;
    use crate::scenario::Scenario;
    use crate::watch::NoWatch;
    use crate::world::Step;

    /// Creates a world in which `first` threads run in the first group and `second` threads in the second,
    /// one per CPU.
    fn running(first: usize, second: usize) -> World<NoWatch> {
        let mut scenario = Scenario::default();
        scenario.costs.group_moves = 1000.0;
        let mut world = World::new(&scenario, 1, NoWatch);
        for cpu in world.cpus.ids() {
            let state = &mut world.cpus[cpu];
            state.task = None;
            state.waiting.clear();
        }
        let mut cpus = (0..first).chain(4..4 + second).map(CpuId::new);
        for task in world.threads.ids().map(ThreadId::task) {
            world.tasks[task].state = State::Sleeping;
            if let Some(cpu) = cpus.next() {
                world.tasks[task].state = State::Running;
                world.tasks[task].cpu = cpu;
                world.cpus[cpu].task = Some(task);
            }
        }
        for cpu in world.cpus.ids() {
            world.stand(cpu);
        }
        world
    }

    fn leaving(world: &World<NoWatch>) -> Vec<ThreadId> {
        world.threads.ids().filter(|&thread| world.leaving[thread].is_some()).collect()
    }

    fn overloaded(tasks: f64, interrupts: f64) -> bool {
        let mut world = running(0, 0);
        world.uses = IndexVec::filled(Use { tasks, interrupts, ..Use::default() }, 8);
        world.overloaded(LlcId::new(0))
    }

    #[test]
    fn a_group_is_overloaded_when_its_tasks_want_more_than_interrupts_leave() {
        assert!(!overloaded(0.5, 0.4), "117 % of 0.5 is less than 0.6");
        assert!(overloaded(0.5, 0.45), "and more than 0.55");
    }

    #[test]
    fn an_idle_cpu_takes_a_thread_from_a_group_that_runs_two_more() {
        let mut world = running(4, 2);
        world.push_from(LlcId::new(0));
        let [thread] = leaving(&world)[..] else { panic!("one thread is to leave") };
        let task = thread.task();
        let from = world.tasks[task].cpu;
        world.boundary(from, Step::EpollEnter);
        assert_eq!(world.tasks[task].state, State::Queued);
        assert!(world.llc(world.tasks[task].cpu) == LlcId::new(1) && world.cpus[from].task.is_none());
    }

    #[test]
    fn no_thread_leaves_a_group_that_runs_one_more_or_when_no_cpu_elsewhere_is_idle() {
        for (first, second) in [(3, 2), (4, 4), (2, 3)] {
            let mut world = running(first, second);
            world.push_from(LlcId::new(0));
            assert!(leaving(&world).is_empty(), "{first} and {second}");
        }
    }

    #[test]
    fn without_moves_no_group_counts_as_overloaded() {
        let mut world = running(0, 0);
        let tired = Use { tasks: 0.9, interrupts: 0.4, ..Use::default() };
        world.uses = IndexVec::filled(tired, 8);
        assert!(world.overloaded(LlcId::new(0)));
        world.costs.group_moves = 0.0;
        assert!(!world.overloaded(LlcId::new(0)));
    }
}
