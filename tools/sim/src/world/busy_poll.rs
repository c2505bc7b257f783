//! Models busy polling from `epoll_wait`.
//!
//! Kernel: 6.11, `net/core/dev.c` `__napi_busy_loop()`, `busy_poll_stop()`, `napi_suspend_irqs()`,
//! `napi_resume_irqs()`. A loop that is interrupted by other work continues afterwards, until its time is
//! over. In 6.x, `busy_poll_stop()` polls once more and completes; from 7.0 on, with `prefer_busy_poll` and
//! deferral set, it only starts the timer. Omitted: `SO_BUSY_POLL` of single sockets.

use super::parts::{Doing, Poll, Running, Step};
use super::state::World;
use crate::arrivals::NEVER;
use crate::ids::{CpuId, NapiId, ThreadId};
use crate::watch::{Fact, Poller, Watch};

impl<W: Watch> World<W> {
    /// Starts `napi_busy_loop()`.
    pub(crate) fn busy_poll_begin(&mut self, cpu: CpuId, thread: ThreadId) {
        self.threads[thread].spin_began = self.now;
        self.busy_poll(cpu, thread);
    }

    fn busy_poll(&mut self, cpu: CpuId, thread: ThreadId) {
        let napi = self.threads[thread].napi;
        if !self.threads[thread].owns_napi {
            self.napis[napi].preferred |= self.prefer_busy_poll;
            if self.napis[napi].scheduled {
                return self.segment(cpu, Doing::Contend, self.costs.busy_poll);
            }
            self.napis[napi].scheduled = true;
            self.threads[thread].owns_napi = true;
        }
        if self.queues[napi.queue()].has_packet(self.now) {
            self.cpus[cpu].poll =
                Poll { napi, work: 0, budget: self.busy_poll_budget, running: Running::BusyLoop };
            return self.poll_begins(cpu, self.costs.busy_poll);
        }
        // Combine iterations that find nothing into one step, up to the first that may find something.
        let deadline = self.threads[thread].spin_began + self.busy_poll_span;
        let until = self.queues[napi.queue()].next_arrival().min(deadline).max(self.now);
        let turns = match self.cpus[cpu].waiting.is_empty() {
            true => (until - self.now).div_ceil(self.costs.busy_poll).max(1),
            false => 1,
        };
        self.tally.polls += turns;
        if W::ON && turns == 1 {
            // The iterations of longer spins are not reported individually.
            let (budget, by) = (self.busy_poll_budget, Poller::Application);
            self.watch.see(self.now, Fact::Polled { napi, cpu, work: 0, budget, by });
        }
        self.napis[napi].spinner = Some(cpu);
        self.segment(cpu, Doing::Spin, turns * self.costs.busy_poll);
    }

    /// Wakes a spinning poller earlier, because a packet will arrive sooner than expected.
    pub(crate) fn hurry_spinner(&mut self, napi: NapiId, arrival: u64) {
        let Some(cpu) = self.napis[napi].spinner else { return };
        if self.cpus[cpu].doing == Doing::Spin && arrival < self.calendar.due(cpu.source()) {
            let turns = (arrival - self.now).div_ceil(self.costs.busy_poll).max(1);
            let due = self.calendar.due(cpu.source()).min(self.now + turns * self.costs.busy_poll);
            self.calendar.set(cpu.source(), due);
        }
    }

    /// Starts a busy poll.
    pub(crate) fn busy_poll_turn(&mut self, cpu: CpuId) {
        let task = self.running_task(cpu);
        let Some(thread) = self.slots.thread_of(task) else { return self.busy_kthread_turn(cpu) };
        let state = &self.threads[thread];
        let napi = state.napi;
        self.napis[napi].spinner = None;
        let over = self.now - state.spin_began >= self.busy_poll_span;
        let ended = !state.ready.is_empty() || over;
        if ended || self.need_resched(cpu) {
            self.threads[thread].polls_on = !ended;
            self.busy_poll_stop(cpu, thread);
        } else {
            self.busy_poll(cpu, thread);
        }
    }

    /// `busy_poll_stop()`: ends a busy poll.
    fn busy_poll_stop(&mut self, cpu: CpuId, thread: ThreadId) {
        if !std::mem::take(&mut self.threads[thread].owns_napi) {
            return self.busy_poll_done(cpu);
        }
        let napi = self.threads[thread].napi;
        if self.prefer_busy_poll {
            self.napis[napi].deferrals = self.defer_hard_irqs;
            if self.defer_hard_irqs > 0 && self.gro_flush > 0 {
                self.set_timer(cpu, napi, self.gro_flush);
                if self.kernel.major >= 7 {
                    self.napis[napi].scheduled = false;
                    return self.busy_poll_done(cpu);
                }
            }
        }
        self.cpus[cpu].poll =
            Poll { napi, work: 0, budget: self.busy_poll_budget, running: Running::BusyStop };
        self.poll_begins(cpu, self.costs.poll);
    }

    /// Handles the end of the poll in `busy_poll_stop()`.
    pub(crate) fn busy_stop_polled(&mut self, cpu: CpuId) {
        let Poll { napi, work, budget, .. } = self.cpus[cpu].poll;
        if work < budget {
            self.napi_complete_done(cpu, napi, work);
        } else {
            self.napis[napi].scheduled = false;
            if !(self.prefer_busy_poll && self.defer_hard_irqs > 0 && self.gro_flush > 0) {
                self.napi_schedule(cpu, napi);
            }
        }
        self.boundary(cpu, Step::BusyPollDone);
    }

    /// Handles the end of `ep_busy_loop()`.
    pub(crate) fn busy_poll_done(&mut self, cpu: CpuId) {
        let thread = self.running_thread(cpu);
        let polls_on = std::mem::take(&mut self.threads[thread].polls_on);
        if !self.threads[thread].ready.is_empty() {
            return self.epoll_take(cpu);
        }
        if polls_on {
            return self.busy_poll(cpu, thread);
        }
        let napi = self.threads[thread].napi;
        if self.irq_suspend > 0 {
            self.tally.resumed += 1;
            if W::ON {
                self.watch.see(self.now, Fact::Resumed { napi });
            }
            self.tasks[thread.task()].step = Step::Sleep;
            self.napi_schedule(cpu, napi);
            self.pause_before_onward(cpu);
            return self.handle_irq(cpu, self.now, self.costs.resume);
        }
        if self.epoll_returns_empty { self.boundary(cpu, Step::EpollEnter) } else { self.epoll_sleep(cpu) }
    }

    /// Models `napi_suspend_irqs()`, after `epoll_wait` found events.
    pub(crate) fn suspend_irqs(&mut self, cpu: CpuId, napi: NapiId) {
        if self.irq_suspend > 0 {
            self.tally.suspended += 1;
            if W::ON {
                self.watch.see(self.now, Fact::Suspended { napi });
            }
            self.set_timer(cpu, napi, self.irq_suspend);
        }
    }

    /// Starts the next iteration of a busy-polling kernel thread
    /// (`netif_threaded_enable(NETDEV_NAPI_THREADED_BUSY_POLL)`, 6.18).
    pub(crate) fn busy_kthread_turn(&mut self, cpu: CpuId) {
        let napi = self.cpus[cpu].poll.napi;
        self.napis[napi].spinner = None;
        if self.queues[napi.queue()].has_packet(self.now) || self.need_resched(cpu) {
            return self.boundary(cpu, Step::Kthread);
        }
        let until = match self.queues[napi.queue()].next_arrival() {
            NEVER => self.now + self.costs.slice,
            arrival => arrival.min(self.now + self.costs.slice),
        };
        let turns = (until - self.now).div_ceil(self.costs.busy_poll).max(1);
        self.tally.polls += turns;
        self.napis[napi].spinner = Some(cpu);
        self.segment(cpu, Doing::Spin, turns * self.costs.busy_poll);
    }
}
