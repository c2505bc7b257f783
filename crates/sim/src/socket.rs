//! From a packet to its socket, and to the thread that waits for it.
//!
//! Kernel: 6.11, `net/ipv4/tcp_input.c` `tcp_data_ready()`, `net/core/sock.c` `sock_def_readable()`, `fs/eventpoll.c`
//! `ep_poll_callback()`. A connection has one request under way, so a socket buffer never holds more than one and cannot
//! overflow; what overflows is the ring. Left out: the backlog of a socket that its owner holds, delayed ACKs.

use crate::application::Ready;
use crate::cpu::Doing;
use crate::nic::ACK;
use crate::scheduler::State;
use crate::watch::{Fact, Watch};
use crate::world::World;

/// Who can tell when a packet reaches its socket, as long as the poll goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// Nobody: it is an ACK, or its thread is the one that polls or was interrupted, or waits for this CPU alone.
    Unseen,
    /// Nobody before this thread has been woken, which sleeps and has no other queue.
    Sleeper(usize),
    /// Its thread.
    Seen,
}

impl<W: Watch> World<W> {
    /// Who can tell when a packet that this CPU polls reaches its socket.
    #[inline]
    pub(crate) fn reach(&self, c: usize, packet: u32) -> Reach {
        if packet == ACK {
            return Reach::Unseen;
        }
        let t = usize::from(self.clients.homes[packet as usize].thread);
        let task = &self.tasks[t];
        match task.state {
            State::Sleeping if self.clients.one_queue_each => Reach::Sleeper(t),
            State::Running if task.cpu == c => Reach::Unseen,
            State::Queued if task.cpu == c && self.cpus[c].task.is_none() => Reach::Unseen,
            _ => Reach::Seen,
        }
    }

    /// A packet has reached its socket, after a segment.
    pub(crate) fn delivered(&mut self, c: usize, packet: u32) {
        match self.deliver(c, packet) {
            Some(sleeper) => self.wake(c, sleeper, 0),
            None => self.next_packet(c),
        }
    }

    /// A packet reaches its socket: its connection becomes ready. Returns its thread if that sleeps.
    #[inline]
    pub(crate) fn deliver(&mut self, c: usize, packet: u32) -> Option<usize> {
        if packet == ACK {
            return None;
        }
        let i = packet as usize;
        let t = usize::from(self.clients.homes[i].thread);
        let from = self.clients.connections[i].from;
        #[expect(clippy::cast_possible_truncation, reason = "at most 128 CPUs")]
        self.threads[t].ready.push_back(Ready { connection: packet, handled_on: c as u32, from });
        if self.tasks[t].state == State::Running {
            self.interrupt_event_spin(t);
        }
        (self.tasks[t].state == State::Sleeping).then_some(t)
    }

    /// After what led to it, wakes the thread of a packet, which sleeps.
    pub(crate) fn wake(&mut self, c: usize, t: usize, cost: u64) {
        self.tasks[t].state = State::Waking;
        let remote = self.remote(c, self.tasks[t].cpu, self.costs.ipi / 2);
        self.segment(c, Doing::Wake(t), cost + self.costs.wake + remote);
    }

    /// The thread is awake, and the poll goes on.
    pub(crate) fn woken(&mut self, c: usize, t: usize) {
        self.tally.wakeups += 1;
        if W::ON {
            self.watch.see(self.now, Fact::Woken { thread: t, by: c });
        }
        self.enqueue_woken(t, c);
        self.next_packet(c);
    }
}
