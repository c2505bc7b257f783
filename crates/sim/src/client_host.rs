//! The clients' host, where a scenario has one: queues, and threads that take one answer after another.
//!
//! Mirrors a load generator that is the server's own program on a machine of the same kind, as neper's `tcp_rr`. An answer
//! waits for the NIC's interrupt, then for its queue's softirq, then for its thread, which waits in `epoll_wait` as the
//! application's threads do, reads it and sends the next request. Each step costs what it costs the server (`irq`, `poll`,
//! `packet`, `wake`, `epoll`, and so on); only a request has a price of its own. So a closed loop queues at both ends. Left
//! out: the client's scheduler and hyper-threads (each queue and each thread has a CPU), `net_dim` (moderation has its
//! fixed values), budgets, transmit completions, and what sending costs if it was not due yet.

use std::collections::VecDeque;

use crate::arrivals::Arrivals;
use crate::nic::NEVER;
use crate::scenario::{Scenario, Waits};
use crate::watch::Watch;
use crate::world::World;

/// The clients' machine; without threads there is none.
#[derive(Clone, Debug)]
pub(crate) struct ClientHost {
    queues: Vec<ClientQueue>,
    threads: Vec<ClientThread>,
    /// Each connection's queue.
    homes: Vec<u16>,
    moderation: Moderation,
}

/// When the clients' NIC interrupts.
#[derive(Clone, Copy, Debug)]
struct Moderation {
    span: u64,
    frames: usize,
    /// Whether the span begins anew with every packet.
    restarts: bool,
}

/// A queue of the clients' NIC, with its softirq.
#[derive(Clone, Debug)]
struct ClientQueue {
    arrivals: Arrivals,
    ring: VecDeque<u32>,
    /// The softirq runs: it is bringing this answer to its thread, or has none left.
    polling: Option<Option<u32>>,
    /// When the interrupt is due that the first answer of the ring set off.
    deadline: u64,
}

/// A thread of the clients.
#[derive(Clone, Debug)]
struct ClientThread {
    /// The epoll's ready list.
    ready: VecDeque<u32>,
    /// What the last `epoll_wait` returned.
    batch: VecDeque<u32>,
    doing: Doing,
}

/// What a thread of the clients does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It waits for answers since then, asleep or looping.
    Waiting(u64),
    /// An answer has come, and it is about to notice.
    Noticing,
    /// It calls `epoll_wait`.
    Epoll,
    /// It goes to sleep.
    FallingAsleep,
    /// It works on the first answer of its batch.
    Request,
}

impl ClientHost {
    /// The host of a scenario, with each connection's queue.
    pub(crate) fn new(scenario: &Scenario, homes: Vec<u16>) -> Self {
        let (clients, coalescing) = (&scenario.clients, &scenario.hardware.coalescing);
        let queue =
            ClientQueue { arrivals: Arrivals::new(), ring: VecDeque::new(), polling: None, deadline: NEVER };
        let thread =
            ClientThread { ready: VecDeque::new(), batch: VecDeque::new(), doing: Doing::Waiting(0) };
        let queues = if clients.threads > 0 { clients.queues } else { 0 };
        Self {
            queues: vec![queue; queues as usize],
            threads: vec![thread; clients.threads as usize],
            homes,
            moderation: Moderation {
                span: u64::from(coalescing.rx_usecs) * 1000,
                frames: coalescing.rx_frames as usize,
                restarts: coalescing.rx_cqe,
            },
        }
    }

    /// Whether there is such a host.
    pub(crate) const fn present(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Its sources of events: queues first, then threads.
    pub(crate) const fn sources(&self) -> usize {
        self.queues.len() + self.threads.len()
    }
}

impl<W: Watch> World<W> {
    /// A connection's answer reaches the clients' NIC at this time.
    pub(crate) fn expect_answer(&mut self, i: usize, at: u64) {
        let q = usize::from(self.client_host.homes[i]);
        let queue = &mut self.client_host.queues[q];
        #[expect(clippy::cast_possible_truncation, reason = "at most four million connections")]
        queue.arrivals.expect(at, i as u32);
        if queue.polling.is_none() {
            self.client_nic_waits(q);
        }
    }

    /// Something of the clients' host is due.
    pub(crate) fn client_event(&mut self, source: usize) {
        match source.checked_sub(self.client_host.queues.len()) {
            Some(k) => self.client_thread_event(k),
            None => self.client_queue_event(source),
        }
    }

    /// Until the next answer, or the interrupt.
    fn client_nic_waits(&mut self, q: usize) {
        let queue = &self.client_host.queues[q];
        let due = queue.arrivals.next().min(queue.deadline);
        if due == NEVER {
            self.calendar.clear(self.slots.client(q));
        } else {
            self.calendar.set(self.slots.client(q), due.max(self.now));
        }
    }

    fn client_queue_event(&mut self, q: usize) {
        let now = self.now;
        let Moderation { span, frames, restarts } = self.client_host.moderation;
        let queue = &mut self.client_host.queues[q];
        while queue.arrivals.next() <= now
            && let Some(connection) = queue.arrivals.take()
        {
            queue.ring.push_back(connection);
            if restarts || queue.deadline == NEVER {
                queue.deadline = now + span;
            }
        }
        match queue.polling {
            None if queue.deadline <= now || queue.ring.len() >= frames => {
                queue.polling = Some(None);
                queue.deadline = NEVER;
                let entry = self.costs.idle_exit + self.costs.irq + self.costs.poll;
                self.calendar.set(self.slots.client(q), now + entry);
            }
            None => self.client_nic_waits(q),
            Some(None) => self.client_polls(q, 0),
            Some(Some(connection)) => {
                let wake = self.client_delivers(connection);
                self.client_polls(q, wake);
            }
        }
    }

    /// The softirq takes its next answer, after what waking a thread took, or ends.
    fn client_polls(&mut self, q: usize, wake: u64) {
        let cost = self.costs.packet + self.costs.response_in;
        let queue = &mut self.client_host.queues[q];
        match queue.ring.pop_front() {
            Some(connection) => {
                queue.polling = Some(Some(connection));
                self.calendar.set(self.slots.client(q), self.now + wake + cost);
            }
            None if wake > 0 => {
                queue.polling = Some(None);
                self.calendar.set(self.slots.client(q), self.now + wake);
            }
            None => {
                queue.polling = None;
                queue.deadline = NEVER;
                self.client_nic_waits(q);
            }
        }
    }

    /// An answer reaches its thread's epoll: what waking the thread costs the softirq.
    fn client_delivers(&mut self, connection: u32) -> u64 {
        let k = connection as usize % self.client_host.threads.len();
        let thread = &mut self.client_host.threads[k];
        thread.ready.push_back(connection);
        let Doing::Waiting(since) = thread.doing else { return 0 };
        let costs = &self.costs;
        let waited = self.now - since;
        let spins = match self.waits {
            Waits::Sleep => false,
            Waits::EventSpin(usecs) => waited <= u64::from(usecs) * 1000,
            Waits::UserSpin => true,
        };
        let (noticing, wake) = if spins {
            // As in the application: the turn that finds them is the next that begins.
            let step = self.spin_step();
            (2 * step - waited % step, 0)
        } else {
            let woken = costs.wake + costs.ipi + costs.idle_exit + costs.switch_in;
            (woken, costs.wake + costs.ipi / 2)
        };
        self.client_does(k, Doing::Noticing, noticing);
        wake
    }

    fn client_does(&mut self, k: usize, doing: Doing, span: u64) {
        self.client_host.threads[k].doing = doing;
        let source = self.slots.client(self.client_host.queues.len() + k);
        self.calendar.set(source, self.now + span);
    }

    /// A thread of the clients has done what it did.
    fn client_thread_event(&mut self, k: usize) {
        let thread = &mut self.client_host.threads[k];
        match thread.doing {
            Doing::Request => self.client_answered(k),
            Doing::Noticing | Doing::Epoll | Doing::FallingAsleep if !thread.ready.is_empty() => {
                std::mem::swap(&mut thread.ready, &mut thread.batch);
                self.client_goes_on(k);
            }
            Doing::Epoll if self.waits == Waits::Sleep => {
                self.client_does(k, Doing::FallingAsleep, self.costs.sleep);
            }
            Doing::Waiting(_) | Doing::Noticing | Doing::Epoll | Doing::FallingAsleep => {
                thread.doing = Doing::Waiting(self.now);
                self.calendar.clear(self.slots.client(self.client_host.queues.len() + k));
            }
        }
    }

    /// The next answer of the batch, or `epoll_wait` again.
    fn client_goes_on(&mut self, k: usize) {
        if self.client_host.threads[k].batch.is_empty() {
            return self.client_does(k, Doing::Epoll, self.costs.epoll);
        }
        let work = self.costs.client_request.drawn(&mut self.chance) + self.costs.request_out;
        self.client_does(k, Doing::Request, work);
    }

    /// An answer is read, and the next request sent.
    fn client_answered(&mut self, k: usize) {
        if let Some(connection) = self.client_host.threads[k].batch.pop_front() {
            let i = connection as usize;
            self.answered(i, self.now - self.clients.connections[i].from);
            self.next_turn(i, self.now);
        }
        self.client_goes_on(k);
    }
}
