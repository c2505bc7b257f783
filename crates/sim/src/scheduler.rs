//! Which task runs where.
//!
//! Kernel: 6.11, `kernel/sched/fair.c` `select_task_rq_fair()`, `wake_affine()`, `select_idle_sibling()`,
//! `sched_balance_newidle()`; `kernel/sched/core.c` `try_to_wake_up()`, `available_idle_cpu()`. A CPU that runs softirqs
//! on top of the idle task counts as idle, and a task that waits there alone is not pulled away: `nr_running` is 1.
//! Left out: weights, virtual run times and deadlines (run queues are first in, first out, with a slice), the
//! periodic balancer, preemption by wake-ups, real-time classes.

use crate::cpu::Doing;
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Topology {
    pub(crate) llc_cpus: usize,
    pub(crate) smt: bool,
    pub(crate) node_cpus: usize,
    pub(crate) node_distance: u64,
}

impl<W: Watch> World<W> {
    const fn llc(&self, c: usize) -> usize {
        c / self.topology.llc_cpus
    }

    /// A cost that arises between two CPUs: nothing on one and the same, more between nodes and under contention.
    #[inline]
    pub(crate) fn remote(&self, here: usize, there: usize, cost: u64) -> u64 {
        if here == there {
            return 0;
        }
        let nodes = self.topology.node_cpus;
        let distance = if here / nodes == there / nodes { 10 } else { self.topology.node_distance };
        cost * distance * self.contention_permille / 10_000
    }

    /// `available_idle_cpu()`.
    fn is_idle(&self, c: usize) -> bool {
        self.cpus[c].task.is_none() && self.cpus[c].waiting.is_empty()
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
        let same_llc = self.llc(waker) == self.llc(previous);
        let mut target = previous;
        if may(waker) && waker != previous {
            if same_llc {
                if self.is_idle(waker) && !self.is_idle(previous) {
                    target = waker;
                }
            } else if (!self.is_idle(previous) || self.is_idle(waker))
                && self.chance.unit() <= self.costs.wake_pull
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
        let may = |c: usize| allowed >> c & 1 == 1;
        if self.is_idle(target) {
            return target;
        }
        if may(previous) && self.llc(previous) == self.llc(target) && self.is_idle(previous) {
            return previous;
        }
        let first = self.llc(target) * self.topology.llc_cpus;
        let count = self.topology.llc_cpus.min(self.cpus.len() - first);
        let ring = || (1..count).map(|step| first + (target - first + step) % count).filter(|&c| may(c));
        if self.topology.smt {
            let core_idle = |c: &usize| self.is_idle(*c) && self.sibling(*c).is_none_or(|s| self.is_idle(s));
            if let Some(c) = ring().find(core_idle) {
                return c;
            }
        }
        ring().find(|&c| self.is_idle(c)).unwrap_or(target)
    }

    /// `try_to_wake_up()`: puts a waking task on a run queue.
    pub(crate) fn enqueue_woken(&mut self, task: usize, waker: usize) {
        let c = self.place(task, waker);
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
        let Some(task) = next else { return self.go_idle(c) };
        self.tasks[task].state = State::Running;
        self.tasks[task].cpu = c;
        self.cpus[c].task = Some(task);
        self.cpus[c].slice_end = self.now + self.costs.slice;
        self.tally.switches += 1;
        self.segment(c, Doing::SwitchIn, self.costs.switch_in);
    }

    /// `sched_balance_newidle()`: pulls a waiting task from a CPU with two or more, its own LLC group first.
    fn newidle_balance(&mut self, c: usize) -> Option<usize> {
        let near = (0..self.cpus.len()).filter(|&other| self.llc(other) == self.llc(c));
        let far = (0..self.cpus.len()).filter(|&other| self.llc(other) != self.llc(c));
        for other in near.chain(far) {
            let busy = &self.cpus[other];
            if busy.waiting.is_empty() || usize::from(busy.task.is_some()) + busy.waiting.len() < 2 {
                continue;
            }
            let found = busy.waiting.iter().position(|&task| self.tasks[task].allowed >> c & 1 == 1);
            if let Some(place) = found {
                self.tally.migrations += 1;
                return self.cpus[other].waiting.remove(place);
            }
        }
        None
    }

    /// A task's step is over. Someone else runs, if it is their turn; otherwise softirqs that were raised meanwhile, then
    /// the task's next step.
    pub(crate) fn boundary(&mut self, c: usize, step: Step) {
        let task = self.running_thread(c);
        self.tasks[task].step = step;
        if self.need_resched(c) {
            self.tasks[task].state = State::Queued;
            self.cpus[c].waiting.push_back(task);
            self.cpus[c].task = None;
            return self.dispatch(c);
        }
        if !self.cpus[c].poll_list.is_empty() && step != Step::Ksoftirqd {
            self.pause_before_onward(c);
            return self.softirq_begin(c);
        }
        self.perform(c);
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
        match self.tasks[task].step {
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
        }
    }
}
