//! The state of the clients and of their host.

use std::collections::VecDeque;

use crate::arrivals::{Arrivals, NEVER};
use crate::ids::{ClientQueueId, ClientThreadId, Compact, ConnectionId, QueueId, ThreadId};
use crate::index_vec::IndexVec;
use crate::scenario::Scenario;
use crate::wire::Link;

#[derive(Clone, Debug)]
pub(crate) struct Clients {
    pub(crate) connections: IndexVec<ConnectionId, Connection>,
    pub(crate) homes: IndexVec<ConnectionId, Home>,
    /// Whether each thread's connections all belong to one queue.
    pub(crate) one_queue_each: bool,
    /// Mean gap between a connection's requests; `NEVER` in a closed loop.
    pub(crate) gap: u64,
    pub(crate) arrivals: model::Arrivals,
    pub(crate) from_due: bool,
    pub(crate) acks: bool,
    /// Transmission time of a request on the link.
    pub(crate) request_span: u64,
    pub(crate) answers: Link,
}

/// The part of a connection's state that changes with each request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Connection {
    /// When the connection's next request is due.
    pub(crate) next: u64,
    /// When the response time of the connection's last request starts.
    pub(crate) from: u64,
    /// How many requests the connection's thread had answered when it last answered this connection.
    pub(crate) touched: u32,
}

/// A connection's queue and thread. Kept small, because a packet reads nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    pub(super) queue: Compact<QueueId>,
    pub(super) thread: Compact<ThreadId>,
}

impl Home {
    pub(crate) fn new(queue: QueueId, thread: ThreadId) -> Self {
        Self { queue: Compact::new(queue), thread: Compact::new(thread) }
    }

    /// Returns the queue that receives the connection's packets.
    #[inline]
    pub(crate) fn queue(self) -> QueueId {
        self.queue.get()
    }

    /// Returns the thread that answers the connection.
    #[inline]
    pub(crate) fn thread(self) -> ThreadId {
        self.thread.get()
    }
}

/// The clients' machine, which exists only with threads.
#[derive(Clone, Debug)]
pub(crate) struct ClientHost {
    pub(super) queues: IndexVec<ClientQueueId, ClientQueue>,
    pub(super) threads: IndexVec<ClientThreadId, ClientThread>,
    pub(super) homes: IndexVec<ConnectionId, Compact<ClientQueueId>>,
    pub(super) moderation: Moderation,
}

/// The interrupt moderation of the clients' NIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moderation {
    pub(super) span: u64,
    pub(super) frames: usize,
    /// Whether every packet restarts the moderation timer.
    pub(super) restarts: bool,
}

/// A queue of the clients' NIC, with its softirq.
#[derive(Clone, Debug)]
pub(super) struct ClientQueue {
    pub(super) arrivals: Arrivals,
    pub(super) ring: VecDeque<ConnectionId>,
    /// The running softirq: `Some(Some(_))` while it delivers this answer, `Some(None)` when none are left.
    pub(super) polling: Option<Option<ConnectionId>>,
    /// When the interrupt caused by the first answer in the ring is due.
    pub(super) deadline: u64,
}

#[derive(Clone, Debug)]
pub(super) struct ClientThread {
    /// The epoll's ready list.
    pub(super) ready: VecDeque<ConnectionId>,
    /// The events of the last `epoll_wait`.
    pub(super) batch: VecDeque<ConnectionId>,
    pub(super) doing: Doing,
}

/// The activity of a client thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// The client thread waits for answers, asleep or polling; the field is the time when it began.
    Waiting(u64),
    /// An answer has arrived and is about to be noticed.
    Noticing,
    /// The client thread calls `epoll_wait`.
    Epoll,
    /// The client thread goes to sleep.
    FallingAsleep,
    /// The client thread processes the first answer of its batch.
    Request,
}

impl ClientHost {
    /// Creates the clients' host of a scenario, with each connection's queue.
    pub(crate) fn new(scenario: &Scenario, homes: IndexVec<ConnectionId, Compact<ClientQueueId>>) -> Self {
        let (clients, coalescing) = (&scenario.clients, &scenario.hardware.coalescing);
        let queue =
            ClientQueue { arrivals: Arrivals::new(), ring: VecDeque::new(), polling: None, deadline: NEVER };
        let thread =
            ClientThread { ready: VecDeque::new(), batch: VecDeque::new(), doing: Doing::Waiting(0) };
        let queues = if clients.threads > 0 { clients.queues } else { 0 };
        Self {
            queues: IndexVec::filled(queue, queues as usize),
            threads: IndexVec::filled(thread, clients.threads as usize),
            homes,
            moderation: Moderation {
                span: u64::from(coalescing.rx_usecs) * 1000,
                frames: coalescing.rx_frames as usize,
                restarts: coalescing.rx_cqe,
            },
        }
    }

    /// Returns whether the scenario has a clients' host.
    pub(crate) const fn present(&self) -> bool {
        self.threads.len() > 0
    }
}
