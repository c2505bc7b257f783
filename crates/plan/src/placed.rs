//! Objects that are assigned to a request: a queue with its NAPI, or a process and the objects that it polls.

use model::{CpuSet, EpollId, IrqNumber, NapiId, ProcessId, RingId, RxQueue, SocketId, ThreadId};

/// Whether the service of a request is running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceState {
    /// A process of the service is running, or the request is not for a service.
    #[default]
    Yes,
    /// No process of the service is running.
    No,
    /// No inspected process belongs to the service, but some could not be inspected.
    NotKnown,
}

/// A NAPI, identified by its first receive queue, and the path from it to a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedQueue {
    /// The first queue that the NAPI serves.
    pub queue: RxQueue,
    /// The other queues that the NAPI serves.
    pub also: Vec<RxQueue>,
    /// The NAPI as observed; `None` if the kernel lists none.
    pub napi: Option<NapiId>,
    /// The interrupt.
    pub irq: Option<IrqNumber>,
    /// The CPUs of the interrupt; empty if unknown.
    pub cpus: CpuSet,
}

/// A process, with those of its objects that the request sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedProcess {
    /// The process.
    pub id: ProcessId,
    /// The epolls.
    pub epolls: Vec<EpollId>,
    /// The io_urings whose busy polling can be set from outside.
    pub rings: Vec<RingId>,
    /// The sockets that receive packets and that no epoll watches, up to the limit per request.
    pub sockets: Vec<SocketId>,
    /// The threads, if the request specifies CPUs.
    pub threads: Vec<ThreadId>,
}
