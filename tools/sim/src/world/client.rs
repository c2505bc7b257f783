//! The clients: connections that send on schedule, or as soon as they are answered.
//!
//! Each connection has one request under way. With a load it has a schedule; behind schedule it sends immediately and keeps
//! its backlog, so that an overloaded server meets a closed loop with memory. Response times are the client's: a share of
//! answers, growing with the client's own load, is taken late. Clients may have a host of their own, whose queues and
//! threads take time for each answer: `client_host`. Left out without one: the client's CPUs and its receive path.

use super::World;
use super::application::Ready;
use crate::arrivals::NEVER;
use crate::chance::Draws;
use crate::ids::{Compact, ConnectionId, QueueId, ThreadId};
use crate::index_vec::IndexVec;
use crate::watch::{Fact, Watch};
use crate::wire::Link;

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
    pub(crate) connections: IndexVec<ConnectionId, Connection>,
    pub(crate) homes: IndexVec<ConnectionId, Home>,
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
    queue: Compact<QueueId>,
    thread: Compact<ThreadId>,
}

impl Home {
    pub(crate) fn new(queue: QueueId, thread: ThreadId) -> Self {
        Self { queue: Compact::new(queue), thread: Compact::new(thread) }
    }

    /// The queue that its packets come by.
    #[inline]
    pub(crate) fn queue(self) -> QueueId {
        self.queue.get()
    }

    /// The thread that answers it.
    #[inline]
    pub(crate) fn thread(self) -> ThreadId {
        self.thread.get()
    }
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
        for connection in self.clients.connections.ids() {
            let spread = if self.clients.gap == NEVER { CLOSED_LOOP_START } else { self.clients.gap };
            let first = crate::scenario::nanos(self.chance.unit() * spread as f64 / 1000.0);
            self.clients.connections[connection].next = first;
            self.send(connection, first);
        }
    }

    /// A connection sends its request at this time: by which queue and when it arrives.
    fn send(&mut self, connection: ConnectionId, at: u64) -> (QueueId, u64) {
        let queue = self.clients.homes[connection].queue();
        let closed_loop = self.clients.gap == NEVER;
        let gap = if closed_loop { 0 } else { self.draw_gap() };
        let state = &mut self.clients.connections[connection];
        // In a closed loop a request is due when the answer before it has come.
        state.from = if self.clients.from_due && !closed_loop { state.next.min(at) } else { at };
        state.next += gap;
        self.tally.sent += 1;
        if W::ON {
            self.watch.see(self.now, Fact::Sent { connection });
        }
        let arrival = (at + self.costs.client_rtt / 2 + self.clients.request_span).max(self.now + 1);
        self.queues[queue].expect_request(arrival, connection);
        (queue, arrival)
    }

    /// The server has sent its answer: when it arrives, what it measures, and what the client does next.
    pub(crate) fn answer(&mut self, request: Ready) {
        let connection = request.connection;
        let now = self.now;
        let sent = self.clients.answers.pass(now);
        let mut at = sent + self.costs.client_rtt / 2 + self.costs.client_jitter.drawn(&mut self.chance);
        at += self.lateness();
        let hosted = self.client_host.present();
        if !hosted {
            self.answered(connection, at - request.from);
        }
        if self.clients.acks {
            let queue = self.clients.homes[connection].queue();
            let ack = now + self.costs.ack_delay;
            self.queues[queue].expect_ack(ack);
            if self.queues[queue].armed {
                if ack < self.calendar.due(self.slots.nic(queue)) {
                    self.await_nic(queue);
                }
            } else {
                self.hurry_spinner(queue.napi(), ack);
            }
        }
        if hosted { self.expect_answer(connection, at) } else { self.next_turn(connection, at + TURNAROUND) }
    }

    /// An answer counts.
    pub(crate) fn answered(&mut self, connection: ConnectionId, latency: u64) {
        self.tally.answered += 1;
        if self.recording {
            self.tally.latency.record(latency);
        }
        if W::ON {
            self.watch.see(self.now, Fact::Answered { connection, latency });
        }
    }

    /// A connection whose client has its answer since this time sends again, then or when it is due.
    pub(crate) fn next_turn(&mut self, connection: ConnectionId, ready: u64) {
        let due = self.clients.connections[connection].next;
        let (queue, arrival) =
            self.send(connection, if self.clients.gap == NEVER { ready } else { due.max(ready) });
        if self.queues[queue].armed {
            if arrival < self.calendar.due(self.slots.nic(queue)) {
                self.await_nic(queue);
            }
        } else {
            self.hurry_spinner(queue.napi(), arrival);
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
