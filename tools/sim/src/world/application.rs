//! The application's thread: takes a batch of events, processes the requests one by one, and calls
//! `epoll_wait` again.
//!
//! Models libevent with memcached: `epoll_dispatch()` doubles `maxevents`, up to 4096, when a call returned
//! that many. Omitted: locks between threads, different kinds of requests.

use std::collections::VecDeque;

use super::cpu::Doing;
use super::{Step, World};
use crate::ids::{Compact, ConnectionId, CpuId, NapiId};
use crate::watch::Watch;

/// A thread with its epoll.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    /// The epoll's ready list.
    pub(crate) ready: VecDeque<Ready>,
    /// Unprocessed events of the last `epoll_wait`.
    pub(crate) batch: VecDeque<Ready>,
    pub(crate) last_batch: u64,
    /// Extra work per request of this batch.
    pub(crate) locality: u64,
    pub(crate) max_events: u32,
    /// The NAPI that its epoll polls: that of the last connection with events.
    pub(crate) napi: NapiId,
    pub(crate) owns_napi: bool,
    pub(crate) spin_began: u64,
    /// Whether it interrupted busy polling only to let other tasks run.
    pub(crate) polls_on: bool,
    /// Number of answered requests; wraps.
    pub(crate) answered: u32,
}

/// A connection with a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) connection: ConnectionId,
    /// The CPU that handled its packet.
    pub(crate) handled_on: Compact<CpuId>,
    /// Start of its response time. Looked up early, so that the connection is in the cache when it is
    /// answered.
    pub(crate) from: u64,
}

impl<W: Watch> World<W> {
    /// Starts the next request of the batch, or calls `epoll_wait` again.
    pub(crate) fn next_request(&mut self, cpu: CpuId) {
        let thread = self.running_thread(cpu);
        let Some(request) = self.threads[thread].batch.front() else { return self.epoll_enter(cpu) };
        let remote = self.remote(cpu, request.handled_on.get(), self.costs.request_remote);
        let work = self.costs.request.drawn(&mut self.chance);
        let cost = work + self.threads[thread].locality + self.costs.response_copy + remote;
        self.segment(cpu, Doing::Request, cost);
    }

    /// Sends an answer.
    pub(crate) fn request_done(&mut self, cpu: CpuId) {
        let thread = self.running_thread(cpu);
        if let Some(request) = self.threads[thread].batch.pop_front() {
            self.transmit(cpu);
            let state = &mut self.threads[thread];
            state.answered = state.answered.wrapping_add(1);
            self.clients.connections[request.connection].touched = state.answered;
            self.answer(request);
        }
        let next = if self.threads[thread].batch.is_empty() { Step::EpollEnter } else { Step::NextRequest };
        self.boundary(cpu, next);
    }
}
