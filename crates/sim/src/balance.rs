//! Which group of CPUs, of those that share a last-level cache, threads live in.
//!
//! Kernel: 6.11, `kernel/sched/fair.c` `group_is_overloaded()`, `scale_rt_capacity()`, `sched_balance_rq()`; `kernel/sched/pelt.c`.
//! A group whose tasks want more than interrupts leave them is overloaded; idle CPUs of other groups then take threads
//! from it, and wake-ups do not bring threads to it. Left out: that the kernel also wants more runnable tasks than CPUs
//! (`sum_nr_running > group_weight`; the tasks that make it so besides the application's are not modelled); when exactly an
//! idle CPU looks, and which thread it takes; a parameter says how often. At zero nothing is counted, and no thread leaves
//! a group that way.

use crate::scheduler::State;
use crate::watch::{Class, Watch};
use crate::world::World;

/// What is left of a share after a millisecond. Kernel: `y` of PELT, `y^32 = 0.5`.
const DECAY: f64 = 0.978_572;
/// A group is overloaded if this times its use exceeds its capacity. Kernel: `sd->imbalance_pct`, in percent.
pub(crate) const IMBALANCE: f64 = 1.17;

/// How a CPU was used lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Use {
    /// The share of the time outside interrupts that tasks took.
    tasks: f64,
    /// The share that interrupts took.
    interrupts: f64,
    /// Where the CPU's account stood.
    seen: [u64; 5],
}

impl Use {
    /// What interrupts leave of the CPU. Kernel: `scale_rt_capacity()`.
    pub(crate) const fn capacity(self) -> f64 {
        1.0 - self.interrupts
    }

    /// A CPU's time went to this so far.
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
    /// Whether a group's tasks want more than interrupts leave them.
    pub(crate) fn overloaded(&self, llc: usize) -> bool {
        if self.costs.group_moves <= 0.0 {
            return false;
        }
        let group = &self.uses[self.members(llc)];
        let capacity: f64 = group.iter().map(|cpu| 1.0 - cpu.interrupts).sum();
        capacity < IMBALANCE * group.iter().map(|cpu| cpu.tasks).sum::<f64>()
    }

    /// Once a millisecond: idle CPUs take threads from overloaded groups, and running ones.
    pub(crate) fn balance(&mut self) {
        let groups = self.costs.group_moves > 0.0;
        if groups || self.threads_move() {
            self.learn_uses();
        }
        if groups {
            self.balance_groups();
        }
        if self.threads_move() {
            self.balance_running();
        }
    }

    fn learn_uses(&mut self) {
        for c in 0..self.cpus.len() {
            self.account(c);
            self.uses[c].learn(*self.cpus[c].spent());
        }
    }

    fn balance_groups(&mut self) {
        for llc in 0..=self.llc(self.cpus.len() - 1) {
            if self.overloaded(llc) && self.chance.unit() < self.costs.group_moves {
                self.leave_group(llc);
            }
        }
    }

    /// A thread of this group that sleeps will wake on an idle CPU of another, if there is one.
    fn leave_group(&mut self, llc: usize) {
        let Some(idle) = (0..self.cpus.len()).find(|&c| self.llc(c) != llc && self.is_idle(c)) else {
            return;
        };
        let here: Vec<usize> = (0..self.threads.len())
            .filter(|&t| self.tasks[t].state == State::Sleeping && self.llc(self.tasks[t].cpu) == llc)
            .filter(|&t| self.tasks[t].allowed >> idle & 1 == 1)
            .collect();
        let Ok(count) = u32::try_from(here.len()) else { return };
        if count > 0 {
            let thread = here[self.chance.below(count) as usize];
            self.tasks[thread].cpu = idle;
            self.tally.migrations += 1;
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::scenario::Scenario;
    use crate::watch::Nobody;

    /// Eight threads asleep on the CPUs of the first group, with the CPUs of both used like this.
    fn crowded(tasks: f64, interrupts: f64) -> World<Nobody> {
        let mut scenario = Scenario::default();
        scenario.costs.group_moves = 1000.0;
        let mut world = World::new(&scenario, 1, Nobody);
        for cpu in &mut world.cpus {
            cpu.task = None;
            cpu.waiting.clear();
        }
        for c in 0..world.cpus.len() {
            world.stand(c);
        }
        for t in 0..world.threads.len() {
            world.tasks[t].state = State::Sleeping;
            world.tasks[t].cpu = t % 4;
        }
        world.uses = vec![Use { tasks, interrupts, ..Use::default() }; 8];
        world
    }

    /// Threads whose CPU is in the second group.
    fn moved(world: &World<Nobody>) -> usize {
        (0..world.threads.len()).filter(|&t| world.tasks[t].cpu >= 4).count()
    }

    #[test]
    fn a_group_is_overloaded_when_its_tasks_want_more_than_interrupts_leave() {
        assert!(!crowded(0.5, 0.4).overloaded(0), "117 % of 0.5 is less than 0.6");
        assert!(crowded(0.5, 0.45).overloaded(0), "and more than 0.55");
    }

    #[test]
    fn an_idle_cpu_of_another_group_takes_one_thread_from_an_overloaded_one() {
        let mut world = crowded(0.9, 0.4);
        world.leave_group(0);
        assert_eq!(moved(&world), 1);
    }

    #[test]
    fn no_thread_leaves_when_no_cpu_elsewhere_is_idle() {
        let mut world = crowded(0.9, 0.4);
        for c in 4..8 {
            world.cpus[c].task = Some(0);
            world.stand(c);
        }
        world.leave_group(0);
        assert_eq!(moved(&world), 0);
    }

    #[test]
    fn without_moves_no_group_counts_as_overloaded() {
        let mut world = crowded(0.9, 0.4);
        world.costs.group_moves = 0.0;
        assert!(!world.overloaded(0));
    }
}
