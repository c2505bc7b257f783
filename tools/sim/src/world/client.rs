//! Models the clients: connections that send on schedule, or as soon as they are answered.
//!
//! Each connection has one outstanding request. With a load, it has a schedule; if it falls behind, it sends
//! immediately and keeps its backlog, so an overloaded server sees a closed loop until the backlog is gone.
//! Response times are measured by the client: it reads a share of the answers late, and that share grows with
//! the client's own load. Clients may have their own host, whose queues and threads take time for each
//! answer: `client_host`. Without such a host, the client's CPUs and its receive path are omitted.

use super::parts::Ready;
use super::state::World;
use crate::arrivals::NEVER;
use crate::chance::Draws;
use crate::ids::{ConnectionId, QueueId};
use crate::watch::{Fact, Watch};

/// TCP's minimum retransmission timeout. Kernel: `TCP_RTO_MIN`.
pub(crate) const RETRANSMISSION_TIMEOUT: u64 = 200_000_000;
/// Time from an answer to the next request of a connection that is behind schedule.
const TURNAROUND: u64 = 500;
/// The span over which the first requests of a closed loop are spread.
const CLOSED_LOOP_START: u64 = 1_000_000;

/// Maximum number of times that a client is late with the same answer.
const LATE_TIMES_MAX: u32 = 8;

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

    /// Sends every connection's first request. The queues schedule their next event only afterwards: the
    /// first request may arrive after most others, and requests moved to `near` for it would have to be
    /// inserted one by one.
    #[expect(clippy::cast_precision_loss, reason = "a gap of nanoseconds, far below 2^53")]
    pub(crate) fn start_clients(&mut self) {
        for connection in self.clients.connections.ids() {
            let spread = if self.clients.gap == NEVER { CLOSED_LOOP_START } else { self.clients.gap };
            let first = crate::scenario::nanos(self.chance.unit() * spread as f64 / 1000.0);
            self.clients.connections[connection].next = first;
            self.send(connection, first);
        }
    }

    /// Sends a connection's request at this time. Returns its queue and arrival time.
    fn send(&mut self, connection: ConnectionId, at: u64) -> (QueueId, u64) {
        let queue = self.clients.homes[connection].queue();
        let closed_loop = self.clients.gap == NEVER;
        let gap = if closed_loop { 0 } else { self.draw_gap() };
        let state = &mut self.clients.connections[connection];
        // In a closed loop, a request is due when the previous answer has arrived.
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

    /// Sends the server's answer: determines its arrival, its response time, and the client's next action.
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

    /// Adds an answer to the results.
    pub(crate) fn answered(&mut self, connection: ConnectionId, latency: u64) {
        self.tally.answered += 1;
        if self.recording {
            self.tally.latency.record(latency);
        }
        if W::ON {
            self.watch.see(self.now, Fact::Answered { connection, latency });
        }
    }

    /// Sends the next request of a connection whose client received its answer at `ready`: at that time, or
    /// when the request is due.
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

    /// Draws how late a client reads an answer. A late answer may be delayed repeatedly.
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

    /// Returns the number of requests that are due but wait for the answer to an earlier request on their
    /// connection.
    pub(crate) fn backlog(&self) -> u64 {
        if self.clients.gap == NEVER {
            return 0;
        }
        let behind = |next: u64| self.now.saturating_sub(next).div_ceil(self.clients.gap);
        self.clients.connections.iter().map(|connection| behind(connection.next)).sum()
    }
}

/// Source: Atikoglu et al., SIGMETRICS 2012, like `model::Arrivals::FbIa`.
const FB_IA_SHAPE: f64 = 0.154_971;
