//! An object that a request was given: a queue with its NAPI, and a process with what it polls.

use model::{CpuSet, EpollId, IrqNumber, NapiId, ProcessId, RingId, RxQueue, SocketId, ThreadId};

/// Whether a request's service runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Running {
    /// It does, or the request is for something else.
    #[default]
    Yes,
    /// No process of it does.
    No,
    /// None of those that could be inspected is of it.
    NotKnown,
}

/// A NAPI by the receive queue that stands for it, and its path to a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedQueue {
    /// The queue: the first one that the NAPI serves.
    pub queue: RxQueue,
    /// The other queues that the NAPI serves.
    pub also: Vec<RxQueue>,
    /// The NAPI as it was observed; `None` where the kernel lists none.
    pub napi: Option<NapiId>,
    /// Its interrupt.
    pub irq: Option<IrqNumber>,
    /// The CPUs that the interrupt may be delivered to; empty where that is not known.
    pub cpus: CpuSet,
}

/// A process and what of it is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedProcess {
    /// The process.
    pub id: ProcessId,
    /// Its epolls.
    pub epolls: Vec<EpollId>,
    /// Its io_urings whose busy polling can be set from outside.
    pub rings: Vec<RingId>,
    /// Its sockets that no epoll watches and packets come to, so many at most as one request may set.
    pub sockets: Vec<SocketId>,
    /// Its threads, where the request gives CPUs.
    pub threads: Vec<ThreadId>,
}
