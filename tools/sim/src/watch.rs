//! The observer of a run: it receives each event and cannot interfere.

use crate::ids::{ConnectionId, CpuId, NapiId, QueueId, ThreadId};

/// The kinds of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// In the application.
    User,
    /// Time in system calls and kernel threads.
    System,
    /// In softirqs.
    Softirq,
    /// In hard interrupts.
    Irq,
    /// Idle.
    Idle,
}

impl Class {
    /// All classes, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::User, Self::System, Self::Softirq, Self::Irq, Self::Idle];
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A packet came from the wire into the ring of this queue.
    Arrived {
        /// The queue.
        queue: QueueId,
    },
    /// A packet found the ring of this queue full.
    Dropped {
        /// The queue.
        queue: QueueId,
    },
    /// A poll took a packet off the ring of this queue.
    Taken {
        /// The queue.
        queue: QueueId,
    },
    /// The NIC raised an interrupt.
    Irq {
        /// The queue.
        queue: QueueId,
        /// The CPU.
        cpu: CpuId,
        /// Whether the queue's interrupt was armed.
        armed: bool,
    },
    /// A NAPI's timer expired.
    Timer {
        /// The NAPI.
        napi: NapiId,
        /// The CPU.
        cpu: CpuId,
    },
    /// A poll ended.
    Polled {
        /// The NAPI.
        napi: NapiId,
        /// The CPU.
        cpu: CpuId,
        /// Packets that the poll processed.
        work: u32,
        /// The budget.
        budget: u32,
        /// The context that ran the poll.
        by: Poller,
    },
    /// A round of `net_rx_action` ended.
    Round {
        /// The CPU.
        cpu: CpuId,
        /// Packets that the round processed.
        packets: u32,
    },
    /// `epoll_wait` returned.
    EpollReturned {
        /// The thread.
        thread: ThreadId,
        /// The number of events that the call returned.
        events: u32,
    },
    /// A thread went to sleep in `epoll_wait`.
    Slept {
        /// The thread.
        thread: ThreadId,
    },
    /// A thread was woken.
    Woken {
        /// The thread.
        thread: ThreadId,
        /// The CPU that woke the thread.
        by: CpuId,
    },
    /// `ep_suspend_napi_irqs`: the NAPI's timer was set to `irq-suspend-timeout`.
    Suspended {
        /// The NAPI.
        napi: NapiId,
    },
    /// `napi_resume_irqs`: the NAPI returns to deferral.
    Resumed {
        /// The NAPI.
        napi: NapiId,
    },
    /// A CPU spent time.
    Spent {
        /// The CPU.
        cpu: CpuId,
        /// The kind of work.
        class: Class,
        /// Nanoseconds.
        span: u64,
    },
    /// A request was sent.
    Sent {
        /// The connection.
        connection: ConnectionId,
    },
    /// An answer reached its client.
    Answered {
        /// The connection.
        connection: ConnectionId,
        /// Nanoseconds since the request was sent, or due.
        latency: u64,
    },
}

/// The context that ran a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poller {
    /// The softirq.
    Softirq,
    /// A kernel thread: the NAPI's own, a workqueue worker, or ksoftirqd.
    Kthread,
    /// The application, in `epoll_wait`.
    Application,
}

/// An observer of a run.
pub trait Watch {
    /// Whether the observer uses the events; if not, they cost nothing.
    const ON: bool = true;

    /// Receives an event.
    fn see(&mut self, now: u64, fact: Fact);
}

/// No observer.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWatch;

impl Watch for NoWatch {
    const ON: bool = false;

    fn see(&mut self, _: u64, _: Fact) {}
}
