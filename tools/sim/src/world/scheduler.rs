//! Models the scheduler, which decides which task runs on which CPU.
//!
//! Kernel: 6.11, `kernel/sched/fair.c` `select_task_rq_fair()`, `wake_affine()`, `select_idle_sibling()`,
//! `sched_balance_newidle()`; `kernel/sched/core.c` `try_to_wake_up()`, `available_idle_cpu()`. A CPU that
//! runs softirqs on top of the idle task counts as idle, and the only task that waits on such a CPU is not
//! pulled away: `nr_running` is 1. Omitted: weights, virtual run times and deadlines (run queues are first
//! in, first out, with a slice), the periodic balancer within a group of CPUs (between groups: `balance`),
//! preemption by wake-ups, real-time classes.

use std::ops::Range;

use super::parts::{Doing, State, Step, Task};
use super::state::World;
use crate::cpu_mask::CpuMask;
use crate::ids::{CpuId, LlcId, TaskId, ThreadId};
use crate::watch::Watch;

impl<W: Watch> World<W> {
    /// Updates the sets of CPUs by state after a CPU's task or its run queue has changed.
    #[inline]
    pub(crate) fn stand(&mut self, cpu: CpuId) {
        let state = &self.cpus[cpu];
        let queued = !state.waiting.is_empty();
        let idle = state.task.is_none() & !queued;
        self.standing.queued.put(cpu, queued);
        self.standing.idle.put(cpu, idle);
    }

    /// Returns a cost between two CPUs: zero on the same CPU, higher between caches, between nodes and under
    /// contention.
    #[inline]
    pub(crate) fn remote(&self, here: CpuId, there: CpuId, cost: u64) -> u64 {
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
    pub(crate) const fn is_idle(&self, cpu: CpuId) -> bool {
        self.standing.idle.has(cpu)
    }

    /// A CPU's LLC group.
    pub(crate) const fn llc(&self, cpu: CpuId) -> LlcId {
        LlcId::new(cpu.index() / self.topology.llc_cpus)
    }

    /// The CPUs of a group.
    pub(crate) fn members(&self, llc: LlcId) -> Range<CpuId> {
        let first = llc.index() * self.topology.llc_cpus;
        let end = (first + self.topology.llc_cpus).min(self.cpus.len());
        CpuId::new(first)..CpuId::new(end)
    }

    /// All groups.
    pub(crate) fn llcs(&self) -> impl Iterator<Item = LlcId> + use<W> {
        (0..self.cpus.len().div_ceil(self.topology.llc_cpus)).map(LlcId::new)
    }

    /// Whether two CPUs share their last-level cache.
    fn same_llc(&self, here: CpuId, there: CpuId) -> bool {
        self.topology.places[here].llc.has(there)
    }

    /// Whether the scheduler wants to run another task on this CPU.
    #[inline]
    pub(crate) fn need_resched(&self, cpu: CpuId) -> bool {
        let state = &self.cpus[cpu];
        !state.waiting.is_empty() && (state.task.is_none() || self.now >= state.slice_end)
    }

    /// Models `select_task_rq_fair()` for a task woken by this CPU.
    fn place(&mut self, task: TaskId, waker: CpuId) -> CpuId {
        let Task { cpu: previous, allowed, .. } = self.tasks[task];
        let same_llc = self.same_llc(waker, previous);
        let mut target = previous;
        if allowed.has(waker) && waker != previous {
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
        if !allowed.has(target)
            && let Some(first) = allowed.first()
        {
            target = first;
        }
        self.idle_sibling(target, previous, allowed)
    }

    /// `select_idle_sibling()`.
    fn idle_sibling(&self, target: CpuId, previous: CpuId, allowed: CpuMask) -> CpuId {
        if self.is_idle(target) {
            return target;
        }
        if allowed.has(previous) && self.same_llc(previous, target) && self.is_idle(previous) {
            return previous;
        }
        let free = self.topology.places[target].llc & self.standing.idle & allowed;
        // Search the CPUs after `target` first, then those before it.
        let after = free.after(target);
        let ring = || after.into_iter().chain(free & !after);
        if self.topology.smt {
            let core_idle = |&cpu: &CpuId| self.sibling(cpu).is_none_or(|sibling| self.is_idle(sibling));
            if let Some(cpu) = ring().find(core_idle) {
                return cpu;
            }
        }
        ring().next().unwrap_or(target)
    }

    /// `try_to_wake_up()`: puts a waking task on a run queue.
    pub(crate) fn enqueue_woken(&mut self, task: TaskId, waker: CpuId) {
        let cpu = self.place(task, waker);
        self.tasks[task].interrupt = self.remote(waker, cpu, self.costs.ipi / 2);
        self.enqueue(task, cpu);
    }

    /// Puts a task on the run queue of a CPU.
    pub(crate) fn enqueue(&mut self, task: TaskId, cpu: CpuId) {
        if self.tasks[task].cpu != cpu {
            self.tally.migrations += 1;
        }
        self.tasks[task].cpu = cpu;
        self.tasks[task].state = State::Queued;
        self.cpus[cpu].waiting.push_back(task);
        self.stand(cpu);
        match self.cpus[cpu].doing {
            Doing::Idle => {
                self.account(cpu);
                self.segment(cpu, Doing::IdleExit, self.costs.idle_exit);
            }
            Doing::Spin | Doing::EventSpin => {
                let due = self.calendar.due(cpu.source()).min(self.cpus[cpu].slice_end.max(self.now));
                self.calendar.set(cpu.source(), due);
            }
            _ => {}
        }
    }

    /// Picks the CPU's next task: from its run queue, from another CPU's, or none.
    pub(crate) fn dispatch(&mut self, cpu: CpuId) {
        let next = self.cpus[cpu].waiting.pop_front().or_else(|| self.newidle_balance(cpu));
        self.cpus[cpu].task = next;
        self.stand(cpu);
        let Some(task) = next else { return self.go_idle(cpu) };
        self.tasks[task].state = State::Running;
        self.tasks[task].cpu = cpu;
        self.cpus[cpu].slice_end = self.now + self.costs.slice;
        self.tally.switches += 1;
        let interrupt = std::mem::take(&mut self.tasks[task].interrupt);
        self.segment(cpu, Doing::SwitchIn, self.costs.switch_in + interrupt);
    }

    /// Models `sched_balance_newidle()`: pulls a waiting task from a CPU with at least two. CPUs in the LLC
    /// group of `cpu` come first.
    fn newidle_balance(&mut self, cpu: CpuId) -> Option<TaskId> {
        let group = self.topology.places[cpu].llc;
        let queued = self.standing.queued;
        if queued.is_empty() {
            return None;
        }
        for other in (queued & group).into_iter().chain(queued & !group) {
            let busy = &self.cpus[other];
            if usize::from(busy.task.is_some()) + busy.waiting.len() < 2 {
                continue;
            }
            let found = busy.waiting.iter().position(|&task| self.tasks[task].allowed.has(cpu));
            if let Some(place) = found {
                self.tally.migrations += 1;
                let pulled = self.cpus[other].waiting.remove(place);
                self.stand(other);
                return pulled;
            }
        }
        None
    }

    /// Ends a task's step. If it is another task's turn, that task runs; otherwise pending softirqs run, and
    /// then the first task's next step.
    #[inline]
    pub(crate) fn boundary(&mut self, cpu: CpuId, step: Step) {
        let task = self.running_task(cpu);
        self.tasks[task].step = step;
        if self.need_resched(cpu) {
            self.tasks[task].state = State::Queued;
            self.cpus[cpu].waiting.push_back(task);
            self.cpus[cpu].task = None;
            return self.dispatch(cpu);
        }
        if self.threads_move() && self.leaves_running(cpu, task) {
            return;
        }
        if !self.cpus[cpu].poll_list.is_empty() && step != Step::Ksoftirqd {
            self.pause_before_onward(cpu);
            return self.softirq_begin(cpu);
        }
        self.take_step(cpu, task, step);
    }

    /// Returns the running task of a CPU.
    ///
    /// # Panics
    /// If no task is running: a segment of a task's work always has one.
    #[inline]
    pub(crate) fn running_task(&self, cpu: CpuId) -> TaskId {
        self.cpus[cpu].task.expect("a task's segment runs with a task")
    }

    /// Returns the application thread that runs on a CPU.
    ///
    /// # Panics
    /// If no task runs on the CPU; with debug assertions, also if the task is not an application thread.
    #[inline]
    pub(crate) fn running_thread(&self, cpu: CpuId) -> ThreadId {
        let task = self.running_task(cpu);
        debug_assert!(self.slots.thread_of(task).is_some(), "a thread's step runs with a thread");
        ThreadId::new(task.index())
    }

    /// Puts a task to sleep.
    pub(crate) fn leave_cpu(&mut self, cpu: CpuId, task: TaskId) {
        self.tasks[task].state = State::Sleeping;
        self.cpus[cpu].task = None;
        self.dispatch(cpu);
    }

    /// Executes the running task's next step.
    pub(crate) fn perform(&mut self, cpu: CpuId) {
        let task = self.running_task(cpu);
        self.take_step(cpu, task, self.tasks[task].step);
    }

    #[inline]
    fn take_step(&mut self, cpu: CpuId, task: TaskId, step: Step) {
        match step {
            Step::EpollEnter => self.epoll_enter(cpu),
            Step::EpollTake => self.epoll_take(cpu),
            Step::NextRequest => self.next_request(cpu),
            Step::BusyPollDone => self.busy_poll_done(cpu),
            Step::Sleep => self.epoll_sleep(cpu),
            Step::Kthread => {
                let napi = self.slots.napi_of(task).expect("only a NAPI's thread takes this step");
                self.kthread_poll(cpu, napi);
            }
            Step::Ksoftirqd => self.ksoftirqd_turn(cpu),
            Step::Housekeeping => self.housekeeper_turn(cpu),
        }
    }
}
