//! Models the application's thread, which takes a batch of events, processes the requests one by one, and
//! calls `epoll_wait` again.
//!
//! The model follows libevent with memcached: `epoll_dispatch()` doubles `maxevents`, up to 4096, when a call
//! returned `maxevents` events. Omitted: locks between threads, different kinds of requests.

use super::parts::{Doing, Step};
use super::state::World;
use crate::ids::CpuId;
use crate::watch::Watch;

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
