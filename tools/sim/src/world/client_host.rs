//! Models the clients' host, if a scenario has one: queues, and threads that process one answer after
//! another.
//!
//! The host runs a load generator that is the same program as the server on the same kind of machine, such as
//! neper's `tcp_rr`. An answer waits for the NIC's interrupt, then for its queue's softirq, then for its
//! thread. The thread waits in `epoll_wait` like the application's threads, reads the answer and sends the
//! next request. Each step has the server's cost (`irq`, `poll`, `packet`, `wake`, `epoll`, and so on); only
//! a request has a separate cost. A closed loop therefore queues at both ends. Omitted: the client's
//! scheduler and hyper-threads (each queue and each thread has its own CPU), `net_dim` (moderation uses its
//! fixed values), budgets, transmit completions, and the cost of sending a request that was not due yet.

use super::clients::{Doing, Moderation};
use super::state::World;
use crate::arrivals::NEVER;
use crate::ids::{ClientQueueId, ClientThreadId, ConnectionId};
use crate::scenario::Waits;
use crate::watch::Watch;

impl<W: Watch> World<W> {
    /// Schedules the arrival of a connection's answer at the clients' NIC.
    pub(crate) fn expect_answer(&mut self, connection: ConnectionId, at: u64) {
        let queue = self.client_host.homes[connection].get();
        let state = &mut self.client_host.queues[queue];
        state.arrivals.expect(at, connection);
        if state.polling.is_none() {
            self.client_nic_waits(queue);
        }
    }

    /// Schedules the queue's next event: the next answer, or the interrupt.
    fn client_nic_waits(&mut self, queue: ClientQueueId) {
        let state = &self.client_host.queues[queue];
        let due = state.arrivals.next().min(state.deadline);
        if due == NEVER {
            self.calendar.clear(self.slots.client_queue(queue));
        } else {
            self.calendar.set(self.slots.client_queue(queue), due.max(self.now));
        }
    }

    /// Handles an event of a queue of the clients' NIC: an answer, an interrupt or the end of a poll.
    pub(crate) fn client_queue_event(&mut self, queue: ClientQueueId) {
        let now = self.now;
        let Moderation { span, frames, restarts } = self.client_host.moderation;
        let state = &mut self.client_host.queues[queue];
        while state.arrivals.next() <= now
            && let Some(connection) = state.arrivals.take()
        {
            state.ring.push_back(connection);
            if restarts || state.deadline == NEVER {
                state.deadline = now + span;
            }
        }
        match state.polling {
            None if state.deadline <= now || state.ring.len() >= frames => {
                state.polling = Some(None);
                state.deadline = NEVER;
                let entry = self.costs.idle_exit + self.costs.irq + self.costs.poll;
                self.calendar.set(self.slots.client_queue(queue), now + entry);
            }
            None => self.client_nic_waits(queue),
            Some(None) => self.client_polls(queue, 0),
            Some(Some(connection)) => {
                let wake = self.client_delivers(connection);
                self.client_polls(queue, wake);
            }
        }
    }

    /// Starts the softirq's next answer, after the cost of waking a thread, or ends the softirq.
    fn client_polls(&mut self, queue: ClientQueueId, wake: u64) {
        let cost = self.costs.packet + self.costs.response_in;
        let state = &mut self.client_host.queues[queue];
        match state.ring.pop_front() {
            Some(connection) => {
                state.polling = Some(Some(connection));
                self.calendar.set(self.slots.client_queue(queue), self.now + wake + cost);
            }
            None if wake > 0 => {
                state.polling = Some(None);
                self.calendar.set(self.slots.client_queue(queue), self.now + wake);
            }
            None => {
                state.polling = None;
                state.deadline = NEVER;
                self.client_nic_waits(queue);
            }
        }
    }

    /// Delivers an answer to its thread's epoll. Returns the softirq's cost of waking the thread.
    fn client_delivers(&mut self, connection: ConnectionId) -> u64 {
        let thread = ClientThreadId::new(connection.index() % self.client_host.threads.len());
        let state = &mut self.client_host.threads[thread];
        state.ready.push_back(connection);
        let Doing::Waiting(since) = state.doing else { return 0 };
        let costs = &self.costs;
        let waited = self.now - since;
        let spins = match self.waits {
            Waits::Sleep => false,
            Waits::EventSpin(usecs) => waited <= u64::from(usecs) * 1000,
            Waits::UserSpin => true,
        };
        let (noticing, wake) = if spins {
            // As in the application, the next iteration that starts finds these answers.
            let step = self.spin_step();
            (2 * step - waited % step, 0)
        } else {
            let woken = costs.wake + costs.ipi + costs.idle_exit + costs.switch_in;
            (woken, costs.wake + costs.ipi / 2)
        };
        self.client_does(thread, Doing::Noticing, noticing);
        wake
    }

    fn client_does(&mut self, thread: ClientThreadId, doing: Doing, span: u64) {
        self.client_host.threads[thread].doing = doing;
        self.calendar.set(self.slots.client_thread(thread), self.now + span);
    }

    /// Handles the end of a client thread's current activity.
    pub(crate) fn client_thread_event(&mut self, thread: ClientThreadId) {
        let state = &mut self.client_host.threads[thread];
        match state.doing {
            Doing::Request => self.client_answered(thread),
            Doing::Noticing | Doing::Epoll | Doing::FallingAsleep if !state.ready.is_empty() => {
                std::mem::swap(&mut state.ready, &mut state.batch);
                self.client_goes_on(thread);
            }
            Doing::Epoll if self.waits == Waits::Sleep => {
                self.client_does(thread, Doing::FallingAsleep, self.costs.sleep);
            }
            Doing::Waiting(_) | Doing::Noticing | Doing::Epoll | Doing::FallingAsleep => {
                state.doing = Doing::Waiting(self.now);
                self.calendar.clear(self.slots.client_thread(thread));
            }
        }
    }

    /// Starts the next answer of the batch, or calls `epoll_wait` again.
    fn client_goes_on(&mut self, thread: ClientThreadId) {
        if self.client_host.threads[thread].batch.is_empty() {
            return self.client_does(thread, Doing::Epoll, self.costs.epoll);
        }
        let work = self.costs.client_request.drawn(&mut self.chance) + self.costs.request_out;
        self.client_does(thread, Doing::Request, work);
    }

    /// Reads an answer and sends the next request.
    fn client_answered(&mut self, thread: ClientThreadId) {
        if let Some(connection) = self.client_host.threads[thread].batch.pop_front() {
            self.answered(connection, self.now - self.clients.connections[connection].from);
            self.next_turn(connection, self.now);
        }
        self.client_goes_on(thread);
    }
}
