//! Models `epoll_wait`.
//!
//! Kernel: 6.11, `fs/eventpoll.c` `ep_poll()`, `ep_send_events()`, `ep_busy_loop()`,
//! `ep_suspend_napi_irqs()`. A call that finds ready events returns without busy polling. Level-triggered
//! entries are checked again by the next call. Omitted: nested epolls, edge-triggered and one-shot entries,
//! wake-ups of several waiters.

use super::parts::{Doing, State, Step};
use super::state::World;
use crate::ids::{CpuId, ThreadId};
use crate::scenario::Waits;
use crate::watch::{Fact, Watch};

/// One iteration of a loop that only checks for ready events, in nanoseconds.
const EVENT_CHECK: u64 = 100;

impl<W: Watch> World<W> {
    /// Starts a thread's call of `epoll_wait`.
    pub(crate) fn epoll_enter(&mut self, cpu: CpuId) {
        let thread = self.running_thread(cpu);
        let rescan = self.costs.epoll_rescan * std::mem::take(&mut self.threads[thread].last_batch);
        self.segment(cpu, Doing::Epoll, self.costs.epoll + rescan);
    }

    /// Continues after the check for ready events.
    pub(crate) fn epoll_looked(&mut self, cpu: CpuId) {
        let thread = self.running_thread(cpu);
        if !self.threads[thread].ready.is_empty() {
            return self.epoll_take(cpu);
        }
        match self.waits {
            Waits::Sleep if self.busy_polls => self.busy_poll_begin(cpu, thread),
            Waits::Sleep => self.epoll_sleep(cpu),
            Waits::UserSpin | Waits::EventSpin(_) => {
                self.threads[thread].spin_began = self.now;
                self.spin_for_events(cpu);
            }
        }
    }

    fn spin_for_events(&mut self, cpu: CpuId) {
        let span = match self.waits {
            Waits::EventSpin(usecs) => u64::from(usecs) * 1000,
            Waits::UserSpin | Waits::Sleep => self.costs.slice,
        };
        let patience = if self.cpus[cpu].waiting.is_empty() { span } else { self.spin_step() };
        self.segment(cpu, Doing::EventSpin, patience.max(1));
    }

    /// Returns the duration of one iteration of the loop that checks for events.
    pub(crate) const fn spin_step(&self) -> u64 {
        match self.waits {
            Waits::UserSpin => self.costs.epoll,
            Waits::EventSpin(_) | Waits::Sleep => EVENT_CHECK,
        }
    }

    /// Ends a loop for events, because events became ready.
    #[inline]
    pub(crate) fn interrupt_event_spin(&mut self, thread: ThreadId) {
        let cpu = self.tasks[thread.task()].cpu;
        if self.cpus[cpu].doing == Doing::EventSpin {
            let step = self.spin_step();
            // The next iteration that starts finds these events.
            let into_turn = (self.now - self.threads[thread].spin_began) % step;
            let due = self.now + (step - into_turn) + step;
            self.calendar.set(cpu.source(), due.min(self.calendar.due(cpu.source()).max(self.now)));
        }
    }

    /// Whether the thread on a CPU has ready events.
    pub(crate) fn cpu_has_events(&self, cpu: CpuId) -> bool {
        let thread = self.cpus[cpu].task.and_then(|task| self.slots.thread_of(task));
        thread.is_some_and(|thread| !self.threads[thread].ready.is_empty())
    }

    /// Handles the end of a loop for events.
    pub(crate) fn event_spun(&mut self, cpu: CpuId) {
        let thread = self.running_thread(cpu);
        if !self.threads[thread].ready.is_empty() {
            return self.epoll_take(cpu);
        }
        match self.waits {
            Waits::EventSpin(usecs)
                if self.now - self.threads[thread].spin_began >= u64::from(usecs) * 1000 =>
            {
                self.epoll_sleep(cpu);
            }
            Waits::EventSpin(_) | Waits::UserSpin if self.need_resched(cpu) => {
                self.boundary(cpu, Step::EpollEnter)
            }
            Waits::EventSpin(_) | Waits::UserSpin => self.spin_for_events(cpu),
            Waits::Sleep => self.epoll_sleep(cpu),
        }
    }

    /// Models `ep_send_events()` and the return to the application.
    pub(crate) fn epoll_take(&mut self, cpu: CpuId) {
        let thread = self.running_thread(cpu);
        if self.threads[thread].ready.is_empty() {
            return self.epoll_sleep(cpu);
        }
        let state = &mut self.threads[thread];
        let events = state.ready.len().min(state.max_events as usize);
        if events == state.ready.len() && state.batch.is_empty() {
            std::mem::swap(&mut state.ready, &mut state.batch);
        } else {
            state.batch.extend(state.ready.drain(..events));
        }
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        if events == state.max_events {
            state.max_events = (state.max_events * 2).min(self.max_events_limit).max(state.max_events);
        }
        state.last_batch = u64::from(events);
        state.locality = self.costs.locality_of(events);
        if let Some(first) = state.batch.front() {
            state.napi = self.clients.homes[first.connection].queue().napi();
        }
        let napi = state.napi;
        self.tally.epoll_waits += 1;
        self.tally.epoll_events += u64::from(events);
        self.tally.epoll_batch_max = self.tally.epoll_batch_max.max(events);
        if W::ON {
            self.watch.see(self.now, Fact::EpollReturned { thread, events });
        }
        self.suspend_irqs(cpu, napi);
        self.next_request(cpu);
    }

    /// Starts going to sleep.
    pub(crate) fn epoll_sleep(&mut self, cpu: CpuId) {
        self.segment(cpu, Doing::Sleep, self.costs.sleep);
    }

    /// Completes going to sleep, unless events have arrived in the meantime.
    pub(crate) fn fall_asleep(&mut self, cpu: CpuId) {
        let task = self.running_task(cpu);
        let Some(thread) = self.slots.thread_of(task) else { return self.kthread_asleep(cpu, task) };
        if !self.threads[thread].ready.is_empty() {
            return self.epoll_take(cpu);
        }
        debug_assert_eq!(self.tasks[task].state, State::Running, "only a running thread falls asleep");
        self.tasks[task].step = Step::EpollTake;
        self.tally.epoll_sleeps += 1;
        if W::ON {
            self.watch.see(self.now, Fact::Slept { thread });
        }
        self.leave_cpu(cpu, task);
    }
}
