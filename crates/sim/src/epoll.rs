//! `epoll_wait`.
//!
//! Kernel: 6.11, `fs/eventpoll.c` `ep_poll()`, `ep_send_events()`, `ep_busy_loop()`, `ep_suspend_napi_irqs()`. A call that
//! finds ready events returns without busy polling. Level-triggered entries are looked at once more by the next call.
//! Left out: nested epolls, edge-triggered and one-shot entries, wake-ups of several waiters.

use crate::cpu::Doing;
use crate::scenario::Waits;
use crate::scheduler::State;
use crate::watch::{Fact, Watch};
use crate::world::{Step, World};

/// One turn of a loop that only looks whether events are ready, in nanoseconds.
const EVENT_CHECK: u64 = 100;

impl<W: Watch> World<W> {
    /// A thread calls `epoll_wait`.
    pub(crate) fn epoll_enter(&mut self, c: usize) {
        let t = self.running_thread(c);
        let rescan = self.costs.epoll_rescan * std::mem::take(&mut self.threads[t].last_batch);
        self.segment(c, Doing::Epoll, self.costs.epoll + rescan);
    }

    /// It has looked for ready events.
    pub(crate) fn epoll_looked(&mut self, c: usize) {
        let t = self.running_thread(c);
        if !self.threads[t].ready.is_empty() {
            return self.epoll_take(c);
        }
        match self.waits {
            Waits::Sleep if self.busy_polls => self.busy_poll_begin(c, t),
            Waits::Sleep => self.epoll_sleep(c),
            Waits::UserSpin | Waits::EventSpin(_) => {
                self.threads[t].spin_began = self.now;
                self.spin_for_events(c);
            }
        }
    }

    fn spin_for_events(&mut self, c: usize) {
        let span = match self.waits {
            Waits::EventSpin(usecs) => u64::from(usecs) * 1000,
            Waits::UserSpin | Waits::Sleep => self.costs.slice,
        };
        let patience = if self.cpus[c].waiting.is_empty() { span } else { self.spin_step() };
        self.segment(c, Doing::EventSpin, patience.max(1));
    }

    /// What one turn of the loop for events takes.
    pub(crate) const fn spin_step(&self) -> u64 {
        match self.waits {
            Waits::UserSpin => self.costs.epoll,
            Waits::EventSpin(_) | Waits::Sleep => EVENT_CHECK,
        }
    }

    /// Events became ready while a thread may be looping for them.
    #[inline]
    pub(crate) fn interrupt_event_spin(&mut self, t: usize) {
        let c = self.tasks[t].cpu;
        if self.cpus[c].doing == Doing::EventSpin {
            let step = self.spin_step();
            // The turn that finds them is the next that begins.
            let into_turn = (self.now - self.threads[t].spin_began) % step;
            let due = self.now + (step - into_turn) + step;
            self.calendar.set(c, due.min(self.calendar.due(c).max(self.now)));
        }
    }

    /// Whether the thread on a CPU has ready events.
    pub(crate) fn cpu_has_events(&self, c: usize) -> bool {
        let task = self.cpus[c].task.filter(|&task| task < self.threads.len());
        task.is_some_and(|t| !self.threads[t].ready.is_empty())
    }

    /// The loop for events ended.
    pub(crate) fn event_spun(&mut self, c: usize) {
        let t = self.running_thread(c);
        if !self.threads[t].ready.is_empty() {
            return self.epoll_take(c);
        }
        match self.waits {
            Waits::EventSpin(usecs) if self.now - self.threads[t].spin_began >= u64::from(usecs) * 1000 => {
                self.epoll_sleep(c);
            }
            Waits::EventSpin(_) | Waits::UserSpin if self.need_resched(c) => {
                self.boundary(c, Step::EpollEnter)
            }
            Waits::EventSpin(_) | Waits::UserSpin => self.spin_for_events(c),
            Waits::Sleep => self.epoll_sleep(c),
        }
    }

    /// `ep_send_events()`, and out to the application.
    pub(crate) fn epoll_take(&mut self, c: usize) {
        let t = self.running_thread(c);
        if self.threads[t].ready.is_empty() {
            return self.epoll_sleep(c);
        }
        let thread = &mut self.threads[t];
        let events = thread.ready.len().min(thread.max_events as usize);
        if events == thread.ready.len() && thread.batch.is_empty() {
            std::mem::swap(&mut thread.ready, &mut thread.batch);
        } else {
            thread.batch.extend(thread.ready.drain(..events));
        }
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        if events == thread.max_events {
            thread.max_events = (thread.max_events * 2).min(self.max_events_limit).max(thread.max_events);
        }
        thread.last_batch = u64::from(events);
        thread.locality = self.costs.locality_of(events);
        if let Some(first) = thread.batch.front() {
            thread.napi = usize::from(self.clients.homes[first.connection as usize].queue);
        }
        let n = thread.napi;
        self.tally.epoll_waits += 1;
        self.tally.epoll_events += u64::from(events);
        self.tally.epoll_batch_max = self.tally.epoll_batch_max.max(events);
        if W::ON {
            self.watch.see(self.now, Fact::EpollReturned { thread: t, events });
        }
        self.suspend_irqs(c, n);
        self.next_request(c);
    }

    /// It goes to sleep.
    pub(crate) fn epoll_sleep(&mut self, c: usize) {
        self.segment(c, Doing::Sleep, self.costs.sleep);
    }

    /// It is asleep, unless events came meanwhile.
    pub(crate) fn fall_asleep(&mut self, c: usize) {
        let t = self.running_thread(c);
        if t >= self.threads.len() {
            return self.kthread_asleep(c, t);
        }
        if !self.threads[t].ready.is_empty() {
            return self.epoll_take(c);
        }
        debug_assert_eq!(self.tasks[t].state, State::Running, "only a running thread falls asleep");
        self.tasks[t].step = Step::EpollTake;
        self.tally.epoll_sleeps += 1;
        if W::ON {
            self.watch.see(self.now, Fact::Slept { thread: t });
        }
        self.leave_cpu(c, t);
    }
}
