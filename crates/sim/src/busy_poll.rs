//! Busy polling from `epoll_wait`.
//!
//! Kernel: 6.11, `net/core/dev.c` `__napi_busy_loop()`, `busy_poll_stop()`, `napi_suspend_irqs()`, `napi_resume_irqs()`.
//! A loop that others interrupt goes on when they are done, until its time is over. Up to 6.x `busy_poll_stop()` polls
//! once more and completes; from 7.0, with `prefer_busy_poll` and deferral set, it only starts the timer. Left out:
//! `SO_BUSY_POLL` of single sockets.

use crate::cpu::Doing;
use crate::napi::{Poll, Running};
use crate::nic::NEVER;
use crate::watch::{Fact, Poller, Watch};
use crate::world::{Step, World};

impl<W: Watch> World<W> {
    /// `napi_busy_loop()` begins.
    pub(crate) fn busy_poll_begin(&mut self, c: usize, t: usize) {
        self.threads[t].spin_began = self.now;
        self.busy_poll(c, t);
    }

    fn busy_poll(&mut self, c: usize, t: usize) {
        let n = self.threads[t].napi;
        if !self.threads[t].owns_napi {
            self.napis[n].preferred |= self.prefer_busy_poll;
            if self.napis[n].scheduled {
                return self.segment(c, Doing::Contend, self.costs.busy_poll);
            }
            self.napis[n].scheduled = true;
            self.threads[t].owns_napi = true;
        }
        if self.queues[n].has_packet(self.now) {
            self.cpus[c].poll =
                Poll { napi: n, work: 0, budget: self.busy_poll_budget, running: Running::BusyLoop };
            return self.poll_begins(c, self.costs.busy_poll);
        }
        // Iterations that find nothing are taken in one step, up to the first that may find something.
        let deadline = self.threads[t].spin_began + self.busy_poll_span;
        let until = self.queues[n].next_arrival().min(deadline).max(self.now);
        let turns = match self.cpus[c].waiting.is_empty() {
            true => (until - self.now).div_ceil(self.costs.busy_poll).max(1),
            false => 1,
        };
        self.tally.polls += turns;
        if W::ON && turns == 1 {
            // Of longer spins nobody is told each turn.
            let (budget, by) = (self.busy_poll_budget, Poller::Application);
            self.watch.see(self.now, Fact::Polled { napi: n, cpu: c, work: 0, budget, by });
        }
        self.napis[n].spinner = Some(c);
        self.segment(c, Doing::Spin, turns * self.costs.busy_poll);
    }

    /// A packet will arrive sooner than a spinning poller thought.
    pub(crate) fn hurry_spinner(&mut self, n: usize, arrival: u64) {
        let Some(c) = self.napis[n].spinner else { return };
        if self.cpus[c].doing == Doing::Spin && arrival < self.calendar.due(c) {
            let turns = (arrival - self.now).div_ceil(self.costs.busy_poll).max(1);
            let due = self.calendar.due(c).min(self.now + turns * self.costs.busy_poll);
            self.calendar.set(c, due);
        }
    }

    /// One turn of the loop is over: events, time, or another turn.
    pub(crate) fn busy_poll_turn(&mut self, c: usize) {
        let t = self.running_thread(c);
        if t >= self.threads.len() {
            return self.busy_kthread_turn(c);
        }
        let thread = &self.threads[t];
        let n = thread.napi;
        self.napis[n].spinner = None;
        let over = self.now - thread.spin_began >= self.busy_poll_span;
        let ended = !thread.ready.is_empty() || over;
        if ended || self.need_resched(c) {
            self.threads[t].polls_on = !ended;
            self.busy_poll_stop(c, t);
        } else {
            self.busy_poll(c, t);
        }
    }

    /// `busy_poll_stop()`.
    fn busy_poll_stop(&mut self, c: usize, t: usize) {
        if !std::mem::take(&mut self.threads[t].owns_napi) {
            return self.busy_poll_done(c);
        }
        let n = self.threads[t].napi;
        if self.prefer_busy_poll {
            self.napis[n].deferrals = self.defer_hard_irqs;
            if self.defer_hard_irqs > 0 && self.gro_flush > 0 {
                self.set_timer(c, n, self.gro_flush);
                if self.kernel.major >= 7 {
                    self.napis[n].scheduled = false;
                    return self.busy_poll_done(c);
                }
            }
        }
        self.cpus[c].poll =
            Poll { napi: n, work: 0, budget: self.busy_poll_budget, running: Running::BusyStop };
        self.poll_begins(c, self.costs.poll);
    }

    /// The poll of `busy_poll_stop()` is over.
    pub(crate) fn busy_stop_polled(&mut self, c: usize) {
        let Poll { napi: n, work, budget, .. } = self.cpus[c].poll;
        if work < budget {
            self.napi_complete_done(c, n, work);
        } else {
            self.napis[n].scheduled = false;
            if !(self.prefer_busy_poll && self.defer_hard_irqs > 0 && self.gro_flush > 0) {
                self.napi_schedule(c, n);
            }
        }
        self.boundary(c, Step::BusyPollDone);
    }

    /// `ep_busy_loop()` is over.
    pub(crate) fn busy_poll_done(&mut self, c: usize) {
        let t = self.running_thread(c);
        let polls_on = std::mem::take(&mut self.threads[t].polls_on);
        if !self.threads[t].ready.is_empty() {
            return self.epoll_take(c);
        }
        if polls_on {
            return self.busy_poll(c, t);
        }
        let n = self.threads[t].napi;
        if self.irq_suspend > 0 {
            self.tally.resumed += 1;
            if W::ON {
                self.watch.see(self.now, Fact::Resumed { napi: n });
            }
            self.tasks[t].step = Step::Sleep;
            self.napi_schedule(c, n);
            self.pause_before_onward(c);
            return self.handle_irq(c, self.now, self.costs.resume);
        }
        if self.epoll_returns_empty { self.boundary(c, Step::EpollEnter) } else { self.epoll_sleep(c) }
    }

    /// `napi_suspend_irqs()`, after `epoll_wait` found events.
    pub(crate) fn suspend_irqs(&mut self, c: usize, n: usize) {
        if self.irq_suspend > 0 {
            self.tally.suspended += 1;
            if W::ON {
                self.watch.see(self.now, Fact::Suspended { napi: n });
            }
            self.set_timer(c, n, self.irq_suspend);
        }
    }

    /// A kernel thread that polls without end (`netif_threaded_enable(NETDEV_NAPI_THREADED_BUSY_POLL)`, 6.18) takes its
    /// next turn.
    pub(crate) fn busy_kthread_turn(&mut self, c: usize) {
        let n = self.cpus[c].poll.napi;
        self.napis[n].spinner = None;
        if self.queues[n].has_packet(self.now) || self.need_resched(c) {
            return self.boundary(c, Step::Kthread);
        }
        let until = match self.queues[n].next_arrival() {
            NEVER => self.now + self.costs.slice,
            arrival => arrival.min(self.now + self.costs.slice),
        };
        let turns = (until - self.now).div_ceil(self.costs.busy_poll).max(1);
        self.tally.polls += turns;
        self.napis[n].spinner = Some(c);
        self.segment(c, Doing::Spin, turns * self.costs.busy_poll);
    }
}
