//! Which task runs where.
//!
//! Kernel: 6.11, `kernel/sched/fair.c` `select_task_rq_fair()`, `wake_affine()`, `select_idle_sibling()`,
//! `sched_balance_newidle()`; `kernel/sched/core.c` `try_to_wake_up()`, `available_idle_cpu()`. A CPU that runs softirqs
//! on top of the idle task counts as idle, and a task that waits there alone is not pulled away: `nr_running` is 1.
//! Left out: weights, virtual run times and deadlines (run queues are first in, first out, with a slice), the
//! periodic balancer within a group of CPUs (between groups: `balance`), preemption by wake-ups, real-time classes.

use crate::cpu::Doing;
use crate::scenario::Hardware;
use crate::watch::Watch;
use crate::world::{Step, World};

/// A thread of the application or of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// Where it runs, or ran last.
    pub(crate) cpu: usize,
    pub(crate) state: State,
    /// CPUs that it may use.
    pub(crate) allowed: u128,
    /// What it does when it runs next.
    pub(crate) step: Step,
    /// What the interrupt that woke it takes where it runs.
    pub(crate) interrupt: u64,
}

/// Whether a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It waits for something.
    Sleeping,
    /// Someone is about to put it on a run queue.
    Waking,
    /// It waits for a CPU.
    Queued,
    /// It has a CPU.
    Running,
}

/// How CPUs are related.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    places: Vec<Place>,
    llc_cpus: usize,
    pub(crate) smt: bool,
    node_distance: u64,
}

/// Where a CPU is.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The CPUs of its LLC group, one bit each.
    llc: u128,
    node: usize,
}

impl Topology {
    pub(crate) fn of(hardware: &Hardware) -> Self {
        let cpus = hardware.cpus as usize;
        let (llc, node) = (hardware.llc_cpus as usize, hardware.node_cpus as usize);
        let place = |c: usize| {
            let first = c / llc * llc;
            let group = first..(first + llc).min(cpus);
            Place { llc: group.fold(0, |mask, c| mask | 1 << c), node: c / node }
        };
        Self {
            places: (0..cpus).map(place).collect(),
            llc_cpus: llc,
            smt: hardware.smt,
            node_distance: u64::from(hardware.node_distance),
        }
    }
}

/// Sets of CPUs, one bit each, that follow what the CPUs do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    /// Those that run no task and have none to run.
    idle: u128,
    /// Those with tasks that wait.
    queued: u128,
}

/// The CPUs of a set, in the order of their numbers.
fn each(mut set: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (first < u128::BITS as usize).then_some(first)
    })
}

impl<W: Watch> World<W> {
    /// A CPU's task or its run queue changed.
    #[inline]
    pub(crate) fn stand(&mut self, c: usize) {
        let cpu = &self.cpus[c];
        let queued = u128::from(!cpu.waiting.is_empty());
        let idle = u128::from(cpu.task.is_none()) & !queued;
        let others = !(1 << c);
        self.standing.queued = self.standing.queued & others | queued << c;
        self.standing.idle = self.standing.idle & others | (idle & 1) << c;
    }

    /// A cost that arises between two CPUs: nothing on one and the same, more between caches, nodes and under contention.
    #[inline]
    pub(crate) fn remote(&self, here: usize, there: usize, cost: u64) -> u64 {
        if here == there {
            return 0;
        }
        let places = &self.topology.places;
        let near = places[here].node == places[there].node;
        let distance = if near { 10 } else { self.topology.node_distance };
        let cost = cost * distance * self.contention_permille / 10_000;
        if self.same_llc(here, there) { cost } else { cost * self.costs.remote_llc_permille / 1000 }
    }

    /// `available_idle_cpu()`.
    pub(crate) const fn is_idle(&self, c: usize) -> bool {
        self.standing.idle >> c & 1 == 1
    }

    /// The number of a CPU's group of those that share a last-level cache.
    pub(crate) const fn llc(&self, c: usize) -> usize {
        c / self.topology.llc_cpus
    }

    /// The CPUs of a group.
    pub(crate) fn members(&self, llc: usize) -> std::ops::Range<usize> {
        let first = llc * self.topology.llc_cpus;
        first..(first + self.topology.llc_cpus).min(self.cpus.len())
    }

    /// Whether two CPUs share their last-level cache.
    fn same_llc(&self, here: usize, there: usize) -> bool {
        self.topology.places[here].llc >> there & 1 == 1
    }

    /// Whether the scheduler would rather run someone else here.
    #[inline]
    pub(crate) fn need_resched(&self, c: usize) -> bool {
        let cpu = &self.cpus[c];
        !cpu.waiting.is_empty() && (cpu.task.is_none() || self.now >= cpu.slice_end)
    }

    /// `select_task_rq_fair()` for a task that this CPU wakes.
    fn place(&mut self, task: usize, waker: usize) -> usize {
        let Task { cpu: previous, allowed, .. } = self.tasks[task];
        let may = |c: usize| allowed >> c & 1 == 1;
        let same_llc = self.same_llc(waker, previous);
        let mut target = previous;
        if may(waker) && waker != previous {
            if same_llc {
                if self.is_idle(waker) && !self.is_idle(previous) {
                    target = waker;
                }
            } else if (!self.is_idle(previous) || self.is_idle(waker))
                && self.chance.unit() <= self.costs.wake_pull
                && !self.overloaded(self.llc(waker))
            {
                target = waker;
            }
        }
        if !may(target) {
            target = allowed.trailing_zeros() as usize;
        }
        self.idle_sibling(target, previous, allowed)
    }

    /// `select_idle_sibling()`.
    fn idle_sibling(&self, target: usize, previous: usize, allowed: u128) -> usize {
        if self.is_idle(target) {
            return target;
        }
        if allowed >> previous & 1 == 1 && self.same_llc(previous, target) && self.is_idle(previous) {
            return previous;
        }
        let free = self.topology.places[target].llc & self.standing.idle & allowed;
        // The CPUs after this one first, then those before it.
        let after = free & !((1 << target) | ((1 << target) - 1));
        let ring = || each(after).chain(each(free & !after));
        if self.topology.smt {
            let core_idle = |c: &usize| self.sibling(*c).is_none_or(|s| self.is_idle(s));
            if let Some(c) = ring().find(core_idle) {
                return c;
            }
        }
        ring().next().unwrap_or(target)
    }

    /// `try_to_wake_up()`: puts a waking task on a run queue.
    pub(crate) fn enqueue_woken(&mut self, task: usize, waker: usize) {
        let c = self.place(task, waker);
        self.tasks[task].interrupt = self.remote(waker, c, self.costs.ipi / 2);
        self.enqueue(task, c);
    }

    /// Puts a task on the run queue of a CPU.
    pub(crate) fn enqueue(&mut self, task: usize, c: usize) {
        if self.tasks[task].cpu != c {
            self.tally.migrations += 1;
        }
        self.tasks[task].cpu = c;
        self.tasks[task].state = State::Queued;
        self.cpus[c].waiting.push_back(task);
        self.stand(c);
        match self.cpus[c].doing {
            Doing::Idle => {
                self.account(c);
                self.segment(c, Doing::IdleExit, self.costs.idle_exit);
            }
            Doing::Spin | Doing::EventSpin => {
                let due = self.calendar.due(c).min(self.cpus[c].slice_end.max(self.now));
                self.calendar.set(c, due);
            }
            _ => {}
        }
    }

    /// The CPU has no task: the next of its run queue, one of another's, or none.
    pub(crate) fn dispatch(&mut self, c: usize) {
        let next = self.cpus[c].waiting.pop_front().or_else(|| self.newidle_balance(c));
        self.cpus[c].task = next;
        self.stand(c);
        let Some(task) = next else { return self.go_idle(c) };
        self.tasks[task].state = State::Running;
        self.tasks[task].cpu = c;
        self.cpus[c].slice_end = self.now + self.costs.slice;
        self.tally.switches += 1;
        let interrupt = std::mem::take(&mut self.tasks[task].interrupt);
        self.segment(c, Doing::SwitchIn, self.costs.switch_in + interrupt);
    }

    /// `sched_balance_newidle()`: pulls a waiting task from a CPU with two or more, its own LLC group first.
    fn newidle_balance(&mut self, c: usize) -> Option<usize> {
        let group = self.topology.places[c].llc;
        let queued = self.standing.queued;
        if queued == 0 {
            return None;
        }
        for other in each(queued & group).chain(each(queued & !group)) {
            let busy = &self.cpus[other];
            if usize::from(busy.task.is_some()) + busy.waiting.len() < 2 {
                continue;
            }
            let found = busy.waiting.iter().position(|&task| self.tasks[task].allowed >> c & 1 == 1);
            if let Some(place) = found {
                self.tally.migrations += 1;
                let pulled = self.cpus[other].waiting.remove(place);
                self.stand(other);
                return pulled;
            }
        }
        None
    }

    /// A task's step is over. Someone else runs, if it is their turn; otherwise softirqs that were raised meanwhile, then
    /// the task's next step.
    #[inline]
    pub(crate) fn boundary(&mut self, c: usize, step: Step) {
        let task = self.running_thread(c);
        self.tasks[task].step = step;
        if self.need_resched(c) {
            self.tasks[task].state = State::Queued;
            self.cpus[c].waiting.push_back(task);
            self.cpus[c].task = None;
            return self.dispatch(c);
        }
        if self.threads_move() && self.leaves_running(c, task) {
            return;
        }
        if !self.cpus[c].poll_list.is_empty() && step != Step::Ksoftirqd {
            self.pause_before_onward(c);
            return self.softirq_begin(c);
        }
        self.take_step(c, task, step);
    }

    /// The task that runs on a CPU.
    ///
    /// # Panics
    /// If there is none: a segment of a task's work always has one.
    #[inline]
    pub(crate) fn running_thread(&self, c: usize) -> usize {
        self.cpus[c].task.expect("a task's segment runs with a task")
    }

    /// A task sleeps from now on.
    pub(crate) fn leave_cpu(&mut self, c: usize, task: usize) {
        self.tasks[task].state = State::Sleeping;
        self.cpus[c].task = None;
        self.dispatch(c);
    }

    /// The running task does its next step.
    pub(crate) fn perform(&mut self, c: usize) {
        let task = self.running_thread(c);
        self.take_step(c, task, self.tasks[task].step);
    }

    #[inline]
    fn take_step(&mut self, c: usize, task: usize, step: Step) {
        match step {
            Step::EpollEnter => self.epoll_enter(c),
            Step::EpollTake => self.epoll_take(c),
            Step::NextRequest => self.next_request(c),
            Step::BusyPollDone => self.busy_poll_done(c),
            Step::Sleep => self.epoll_sleep(c),
            Step::Kthread => {
                let n = self.slots.napi_of_kthread(task).unwrap_or(0);
                self.kthread_poll(c, n);
            }
            Step::Ksoftirqd => self.ksoftirqd_turn(c),
            Step::Housekeeping => self.housekeeper_turn(c),
        }
    }
}
