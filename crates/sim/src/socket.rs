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

impl<W: Watch> World<W> {
    /// A packet reaches its socket: its connection becomes ready, and its thread is woken if it sleeps.
    #[inline]
    pub(crate) fn deliver(&mut self, c: usize, packet: u32) {
        if packet == ACK {
            return self.next_packet(c);
        }
        let i = packet as usize;
        let t = usize::from(self.clients.homes[i].thread);
        let from = self.clients.connections[i].from;
        #[expect(clippy::cast_possible_truncation, reason = "at most 128 CPUs")]
        self.threads[t].ready.push_back(Ready { connection: packet, handled_on: c as u32, from });
        match self.tasks[t].state {
            State::Sleeping => {
                self.tasks[t].state = State::Waking;
                self.tally.wakeups += 1;
                if W::ON {
                    self.watch.see(self.now, Fact::Woken { thread: t, by: c });
                }
                let remote = if self.tasks[t].cpu == c { 0 } else { self.costs.ipi / 2 };
                self.segment(c, Doing::Wake(t), self.costs.wake + remote);
            }
            State::Running => {
                self.interrupt_event_spin(t);
                self.next_packet(c);
            }
            State::Waking | State::Queued => self.next_packet(c),
        }
    }
}
