//! NAPI in threads: the NAPI's own kernel thread, or a worker of an unbound workqueue.
//!
//! Kernel: 6.11, `net/core/dev.c` `napi_threaded_poll()`, `napi_threaded_poll_loop()`, `____napi_schedule()`.
//! Kernel with the patches of 2020 "net: add support for threaded NAPI polling": `napi_workfn()`; 5.10,
//! `kernel/workqueue.c` `first_idle_worker()`, `worker_enter_idle()`, `process_one_work()`. A NAPI's task
//! here is whichever worker runs its work. The worker that went idle last takes the work, on the CPU where it
//! last ran, so the work wanders between CPUs. `napi_workfn()` continues while polls use their whole budget,
//! unless `need_resched()`: a parameter sets how often that happens and the work is requeued. Omitted: a
//! worker that requeues its work may be the first to take it, after waking another worker in vain.

use super::napi::NAPI_WEIGHT;
use super::parts::{Doing, Poll, Running, State, Step};
use super::state::World;
use crate::ids::{CpuId, NapiId, TaskId};
use crate::scenario::Processing;
use crate::watch::Watch;

impl<W: Watch> World<W> {
    pub(crate) fn wake_kthread(&mut self, napi: NapiId, waker: CpuId) {
        let task = self.slots.kthread(napi);
        if self.tasks[task].state == State::Sleeping {
            if self.processing == Processing::Workqueue {
                self.take_worker(napi);
            }
            self.tasks[task].state = State::Waking;
            self.enqueue_woken(task, waker);
        }
    }

    /// `first_idle_worker()`: gives a NAPI's work to the worker that went idle last.
    fn take_worker(&mut self, napi: NapiId) {
        if let Some(cpu) = self.idle_workers.pop() {
            self.tasks[self.slots.kthread(napi)].cpu = cpu;
        }
    }

    /// Requeues the NAPI's work, for which another worker is woken, and lets this worker go idle.
    fn requeue_work(&mut self, cpu: CpuId, napi: NapiId) {
        let task = self.slots.kthread(napi);
        self.fresh_workers[napi] = true;
        self.tasks[task].step = Step::Kthread;
        self.take_worker(napi);
        self.idle_workers.push(cpu);
        self.tasks[task].state = State::Waking;
        self.enqueue_woken(task, cpu);
        self.cpus[cpu].task = None;
        self.dispatch(cpu);
    }

    /// Starts a poll in the thread.
    pub(crate) fn kthread_poll(&mut self, cpu: CpuId, napi: NapiId) {
        self.cpus[cpu].poll = Poll { napi, work: 0, budget: NAPI_WEIGHT, running: Running::Kthread };
        let woken = std::mem::take(&mut self.fresh_workers[napi]) && self.processing == Processing::Workqueue;
        let extra = if woken { self.costs.workqueue_wake } else { 0 };
        self.poll_begins(cpu, self.costs.poll + extra);
    }

    /// Handles the end of a poll in a NAPI thread.
    pub(crate) fn kthread_polled(&mut self, cpu: CpuId) {
        let Poll { napi, work, .. } = self.cpus[cpu].poll;
        if self.processing == Processing::BusyKthread {
            return self.busy_kthread_turn(cpu);
        }
        if work < NAPI_WEIGHT {
            self.napi_complete_done(cpu, napi, work);
        } else if !self.leaves_to_busy_poll(cpu, napi, work)
            && self.costs.workqueue_requeue > 0.0
            && self.processing == Processing::Workqueue
            && self.chance.unit() < self.costs.workqueue_requeue
        {
            return self.requeue_work(cpu, napi);
        }
        if self.napis[napi].scheduled { self.boundary(cpu, Step::Kthread) } else { self.sleep_kthread(cpu) }
    }

    /// Starts putting the kernel thread on this CPU to sleep.
    pub(crate) fn sleep_kthread(&mut self, cpu: CpuId) {
        self.segment(cpu, Doing::Sleep, self.costs.sleep);
    }

    /// Completes putting the thread to sleep, unless the NAPI was scheduled again in the meantime.
    pub(crate) fn kthread_asleep(&mut self, cpu: CpuId, task: TaskId) {
        if let Some(napi) = self.slots.napi_of(task) {
            if self.napis[napi].scheduled {
                return self.boundary(cpu, Step::Kthread);
            }
            self.fresh_workers[napi] = true;
            self.tasks[task].step = Step::Kthread;
            if self.processing == Processing::Workqueue {
                self.idle_workers.push(cpu);
            }
        }
        self.leave_cpu(cpu, task);
    }
}
