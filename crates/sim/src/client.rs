//! The clients: connections that send on schedule, or as soon as they are answered.
//!
//! Each connection has one request under way. With a load it has a schedule; behind schedule it sends at once and keeps
//! its backlog, so that an overloaded server meets a closed loop with memory. Response times are the client's: a share of
//! answers, growing with the client's own load, is taken late. Clients may have a host of their own, whose queues and
//! threads take time for each answer: `client_host`. Left out without one: the client's CPUs and its receive path.

use crate::application::Ready;
use crate::chance::Draws;
use crate::nic::NEVER;
use crate::watch::{Fact, Watch};
use crate::wire::Link;
use crate::world::World;

/// The least time after which TCP sends again. Kernel: `TCP_RTO_MIN`.
pub(crate) const RETRANSMISSION_TIMEOUT: u64 = 200_000_000;
/// From an answer to the next request of a connection that is behind.
const TURNAROUND: u64 = 500;
/// Over this span the first requests of a closed loop are spread.
const CLOSED_LOOP_START: u64 = 1_000_000;

/// A client is late with the same answer at most this many times.
const LATE_TIMES_MAX: u32 = 8;

/// All clients.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    pub(crate) connections: Vec<Connection>,
    pub(crate) homes: Vec<Home>,
    /// Whether no thread has connections of more than one queue.
    pub(crate) one_queue_each: bool,
    /// Mean gap between a connection's requests; `NEVER` in a closed loop.
    pub(crate) gap: u64,
    pub(crate) arrivals: model::Arrivals,
    pub(crate) from_due: bool,
    pub(crate) acks: bool,
    /// What a request takes on the link.
    pub(crate) request_span: u64,
    pub(crate) answers: Link,
}

/// What of a connection changes with each request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Connection {
    /// When its next request is due.
    pub(crate) next: u64,
    /// From when its response time counts.
    pub(crate) from: u64,
    /// Requests that its thread had answered when it answered this connection's last.
    pub(crate) touched: u32,
}

/// Where a connection belongs: small, since a packet looks for nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    pub(crate) queue: u16,
    pub(crate) thread: u16,
}

impl<W: Watch> World<W> {
    #[expect(clippy::cast_precision_loss, reason = "a gap of nanoseconds, far below 2^53")]
    fn draw_gap(&mut self) -> u64 {
        let gap = self.clients.gap as f64 / 1000.0;
        let factor = match self.clients.arrivals {
            model::Arrivals::Fixed => return self.clients.gap,
            model::Arrivals::Exponential => self.chance.exponential(),
            model::Arrivals::FbIa => self.chance.pareto(FB_IA_SHAPE),
        };
        crate::scenario::nanos(gap * factor)
    }

    /// Every connection's first request. Queues look for their next event when all are under way: the first of them may come
    /// after most others, and what is brought near for it would have to be sorted in one by one.
    #[expect(clippy::cast_precision_loss, reason = "a gap of nanoseconds, far below 2^53")]
    pub(crate) fn start_clients(&mut self) {
        for i in 0..self.clients.connections.len() {
            let spread = if self.clients.gap == NEVER { CLOSED_LOOP_START } else { self.clients.gap };
            let first = crate::scenario::nanos(self.chance.unit() * spread as f64 / 1000.0);
            self.clients.connections[i].next = first;
            self.send(i, first);
        }
    }

    /// A connection sends its request at this time: by which queue and when it arrives.
    fn send(&mut self, i: usize, at: u64) -> (usize, u64) {
        let q = usize::from(self.clients.homes[i].queue);
        let closed_loop = self.clients.gap == NEVER;
        let gap = if closed_loop { 0 } else { self.draw_gap() };
        let connection = &mut self.clients.connections[i];
        // In a closed loop a request is due when the answer before it has come.
        connection.from = if self.clients.from_due && !closed_loop { connection.next.min(at) } else { at };
        connection.next += gap;
        self.tally.sent += 1;
        if W::ON {
            self.watch.see(self.now, Fact::Sent { connection: i });
        }
        let arrival = (at + self.costs.client_rtt / 2 + self.clients.request_span).max(self.now + 1);
        #[expect(clippy::cast_possible_truncation, reason = "at most four million connections")]
        self.queues[q].expect_request(arrival, i as u32);
        (q, arrival)
    }

    /// The server has sent its answer: when it arrives, what it measures, and what the client does next.
    pub(crate) fn answer(&mut self, request: Ready) {
        let i = request.connection as usize;
        let now = self.now;
        let sent = self.clients.answers.pass(now);
        let mut at = sent + self.costs.client_rtt / 2 + self.costs.client_jitter.drawn(&mut self.chance);
        at += self.lateness();
        let hosted = self.client_host.present();
        if !hosted {
            self.answered(i, at - request.from);
        }
        if self.clients.acks {
            let q = usize::from(self.clients.homes[i].queue);
            let ack = now + self.costs.ack_delay;
            self.queues[q].expect_ack(ack);
            if self.queues[q].armed {
                if ack < self.calendar.due(self.slots.nic(q)) {
                    self.await_nic(q);
                }
            } else {
                self.hurry_spinner(q, ack);
            }
        }
        if hosted { self.expect_answer(i, at) } else { self.next_turn(i, at + TURNAROUND) }
    }

    /// An answer counts.
    pub(crate) fn answered(&mut self, i: usize, latency: u64) {
        self.tally.answered += 1;
        if self.recording {
            self.tally.latency.record(latency);
        }
        if W::ON {
            self.watch.see(self.now, Fact::Answered { connection: i, latency });
        }
    }

    /// A connection whose client has its answer since this time sends again, then or when it is due.
    pub(crate) fn next_turn(&mut self, i: usize, ready: u64) {
        let due = self.clients.connections[i].next;
        let (q, arrival) = self.send(i, if self.clients.gap == NEVER { ready } else { due.max(ready) });
        if self.queues[q].armed {
            if arrival < self.calendar.due(self.slots.nic(q)) {
                self.await_nic(q);
            }
        } else {
            self.hurry_spinner(q, arrival);
        }
    }

    /// How late a client takes an answer. A thread that is late with one may be late with it again.
    fn lateness(&mut self) -> u64 {
        let mut late = 0;
        let mut probability = self.slow_share;
        for _ in 0..LATE_TIMES_MAX {
            if self.chance.unit() > probability {
                break;
            }
            let varied = 1.0 + self.costs.client_slow_spread * self.chance.normal();
            late += crate::scenario::nanos((self.costs.client_slow * varied).max(0.0));
            probability = self.slow_share * self.costs.client_slow_again;
            if probability <= 0.0 {
                break;
            }
        }
        late
    }

    /// Requests that were due by now and wait at their connections for the answer to an earlier one.
    pub(crate) fn backlog(&self) -> u64 {
        if self.clients.gap == NEVER {
            return 0;
        }
        let behind = |next: u64| self.now.saturating_sub(next).div_ceil(self.clients.gap);
        self.clients.connections.iter().map(|connection| behind(connection.next)).sum()
    }
}

/// Source: Atikoglu et al., SIGMETRICS 2012, as `model::Arrivals::FbIa`.
const FB_IA_SHAPE: f64 = 0.154_971;
