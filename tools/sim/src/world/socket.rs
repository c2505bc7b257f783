//! Delivers a packet to its socket, and wakes the thread waiting for it.
//!
//! Kernel: 6.11, `net/ipv4/tcp_input.c` `tcp_data_ready()`, `net/core/sock.c` `sock_def_readable()`,
//! `fs/eventpoll.c` `ep_poll_callback()`. A connection has one outstanding request, so a socket buffer never
//! holds more than one and cannot overflow; only the ring can. Omitted: the backlog of a socket that is
//! locked by its owner, delayed ACKs.

use super::parts::{Doing, Packet, Ready, State};
use super::state::World;
use crate::ids::{Compact, CpuId, ThreadId};
use crate::watch::{Fact, Watch};

/// Which thread can notice, while the poll continues, that a packet has reached its socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// No thread can notice: the packet is an ACK, or its thread is the polling or interrupted one, or the
    /// thread waits for this CPU only.
    Unseen,
    /// No thread can notice before this one, which sleeps and has no other queue, has been woken.
    Sleeper(ThreadId),
    /// The packet's thread.
    Seen,
}

impl<W: Watch> World<W> {
    /// Returns which thread can notice when a packet polled by this CPU reaches its socket.
    #[inline]
    pub(crate) fn reach(&self, cpu: CpuId, packet: Packet) -> Reach {
        let Some(connection) = packet.connection() else { return Reach::Unseen };
        let thread = self.clients.homes[connection].thread();
        let task = &self.tasks[thread.task()];
        match task.state {
            State::Sleeping if self.clients.one_queue_each => Reach::Sleeper(thread),
            State::Running if task.cpu == cpu => Reach::Unseen,
            State::Queued if task.cpu == cpu && self.cpus[cpu].task.is_none() => Reach::Unseen,
            _ => Reach::Seen,
        }
    }

    /// Delivers a packet to its socket, at the end of a segment.
    pub(crate) fn delivered(&mut self, cpu: CpuId, packet: Packet) {
        match self.deliver(cpu, packet) {
            Some(sleeper) => self.wake(cpu, sleeper, 0),
            None => self.next_packet(cpu),
        }
    }

    /// Makes the packet's connection ready. Returns the connection's thread if that thread sleeps.
    #[inline]
    pub(crate) fn deliver(&mut self, cpu: CpuId, packet: Packet) -> Option<ThreadId> {
        let connection = packet.connection()?;
        let thread = self.clients.homes[connection].thread();
        let from = self.clients.connections[connection].from;
        self.threads[thread].ready.push_back(Ready { connection, handled_on: Compact::new(cpu), from });
        if self.tasks[thread.task()].state == State::Running {
            self.interrupt_event_spin(thread);
        }
        (self.tasks[thread.task()].state == State::Sleeping).then_some(thread)
    }

    /// Wakes the sleeping thread of a packet, after preceding work of duration `cost`.
    pub(crate) fn wake(&mut self, cpu: CpuId, thread: ThreadId, cost: u64) {
        self.tasks[thread.task()].state = State::Waking;
        let remote = self.remote(cpu, self.tasks[thread.task()].cpu, self.costs.ipi / 2);
        self.segment(cpu, Doing::Wake(thread), cost + self.costs.wake + remote);
    }

    /// Completes the wake-up of the thread and continues the poll.
    pub(crate) fn woken(&mut self, cpu: CpuId, thread: ThreadId) {
        self.tally.wakeups += 1;
        if W::ON {
            self.watch.see(self.now, Fact::Woken { thread, by: cpu });
        }
        self.enqueue_woken(thread.task(), cpu);
        self.next_packet(cpu);
    }
}
