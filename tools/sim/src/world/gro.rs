//! Moves packets from a driver's ring to the sockets: a poll delivers its packets in lists.
//!
//! Kernel: 6.11, `net/core/gro.c` `gro_normal_one()`, `gro_normal_list()`; `net/core/dev.c`
//! `netif_receive_skb_list_internal()`; `net/ipv4/ip_input.c` `ip_list_rcv()`. Since 5.4 (323ebb61e32b),
//! driver, GRO and IP process up to eight packets before the first of them reaches its socket, so a thread on
//! another CPU is woken later and finds more packets. A list is also flushed when its poll ends. Omitted:
//! merging of segments (a request is one segment with PSH, and an ACK is never held), and lists that split by
//! route.

use super::parts::{Doing, Packet, Poll, Running};
use super::socket::Reach;
use super::state::World;
use crate::ids::CpuId;
use crate::watch::Watch;

impl<W: Watch> World<W> {
    /// Moves the poll's packets from the ring to a list or from the list to their sockets. Returns `false` if
    /// there are none.
    #[inline]
    pub(crate) fn packets_move(&mut self, cpu: CpuId) -> bool {
        if self.cpus[cpu].list.goes && self.list_goes(cpu, 0) {
            return true;
        }
        let before = self.list_grows(cpu);
        if before == 0 {
            // The poll is over, so flush its list.
            return self.list_goes(cpu, 0);
        }
        if self.cpus[cpu].list.goes {
            return self.list_goes(cpu, before);
        }
        self.segment(cpu, Doing::Poll, before);
        true
    }

    /// Takes packets from the ring through the driver, GRO and IP, as many as budget and list allow. Returns
    /// the cost.
    fn list_grows(&mut self, cpu: CpuId) -> u64 {
        let Poll { napi, mut work, budget, running } = self.cpus[cpu].poll;
        let mut cost = if work == 0 { self.costs.packet_first } else { 0 };
        let mut taken = 0;
        self.receive(napi.queue());
        while work < budget
            && self.cpus[cpu].list.length < self.list_length
            && let Some(packet) = self.take_packet(napi.queue())
        {
            let list = &mut self.cpus[cpu].list;
            list.packets[list.length as usize] = packet;
            list.length += 1;
            taken += 1;
            work = (work + if packet == Packet::ACK { 1 } else { self.request_frames }).min(budget);
            cost += self.costs.before_socket(packet, running);
        }
        if taken == 0 {
            return 0;
        }
        self.unsettle(cpu, taken);
        let state = &mut self.cpus[cpu];
        state.poll.work = work;
        state.list.goes = work == budget || state.list.length == self.list_length;
        cost.max(1)
    }

    /// Delivers the list's packets to their sockets, up to the first that another thread can notice. `before`
    /// is the duration of other work that precedes the delivery.
    fn list_goes(&mut self, cpu: CpuId, before: u64) -> bool {
        let running = self.cpus[cpu].poll.running;
        let (mut cost, mut last) = (before, None);
        while let Some(packet) = self.cpus[cpu].list.next() {
            self.cpus[cpu].list.goes = true;
            cost += self.at_socket(cpu, packet, running);
            match self.reach(cpu, packet) {
                Reach::Unseen => {
                    self.deliver(cpu, packet);
                    last = Some(packet);
                }
                Reach::Sleeper(thread) => {
                    self.deliver(cpu, packet);
                    self.wake(cpu, thread, cost);
                    return true;
                }
                Reach::Seen => {
                    self.segment(cpu, Doing::Packet(packet), cost);
                    return true;
                }
            }
        }
        if last.is_some() {
            // The packets have already been delivered.
            self.segment(cpu, Doing::Poll, cost);
        }
        last.is_some()
    }

    /// Prolongs the interrupted request, because the packets evict its data from the caches.
    #[inline]
    fn unsettle(&mut self, cpu: CpuId, packets: u32) {
        if let Some((Doing::Request, left)) = &mut self.cpus[cpu].paused {
            *left += self.costs.preempted_packet * u64::from(packets);
        }
    }

    /// Returns the cost of a packet from the moment when its list is flushed.
    #[inline]
    fn at_socket(&self, cpu: CpuId, packet: Packet, running: Running) -> u64 {
        let costs = &self.costs;
        let part = costs.socket_part(packet);
        let Some(connection) = packet.connection() else { return costs.in_context(part, running) };
        let thread = self.clients.homes[connection].thread();
        let remote = self.remote(cpu, self.tasks[thread.task()].cpu, costs.packet_remote);
        let cold = if costs.connections_cool {
            let touched = self.clients.connections[connection].touched;
            costs.cold_after(self.threads[thread].answered.wrapping_sub(touched))
        } else {
            0
        };
        costs.in_context(part + cold + remote, running) + costs.request_copy
    }
}

#[cfg(test)]
mod test {
    use crate::scenario::Scenario;
    use crate::watch::{Fact, Watch};

    /// When threads were woken, and when packets were taken from rings.
    #[derive(Default)]
    struct Seen {
        taken: Vec<u64>,
        woken: Vec<u64>,
    }

    impl Watch for Seen {
        fn see(&mut self, now: u64, fact: Fact) {
            match fact {
                Fact::Taken { .. } => self.taken.push(now),
                Fact::Woken { .. } => self.woken.push(now),
                _ => {}
            }
        }
    }

    fn seen(kernel: &str) -> Seen {
        let mut scenario = Scenario::default();
        for (key, value) in [
            ("hardware.kernel", kernel),
            ("hardware.queues", "1"),
            ("application.threads", "1"),
            ("clients.connections", "64"),
            ("clients.load", "100K"),
            ("delivery.mode", "defer200"),
        ] {
            scenario.set(key, value).expect(key);
        }
        let length = crate::outcome::Length { warmup: 0, window: 20_000_000 };
        crate::outcome::run_watched(&scenario, 1, length, Seen::default()).expect("can be").1
    }

    /// Returns the mean number of packets that a poll had taken when it first woke the thread.
    fn taken_before_wakeups(kernel: &str) -> f64 {
        let Seen { taken, woken } = seen(kernel);
        let before = |at: u64| taken.iter().filter(|&&thread| thread <= at && at - thread < 50_000).count();
        let all: usize = woken.iter().map(|&at| before(at)).sum();
        all as f64 / woken.len() as f64
    }

    #[test]
    fn since_5_4_a_thread_is_woken_when_up_to_eight_packets_have_been_taken() {
        let (before, since) = (taken_before_wakeups("5.3"), taken_before_wakeups("5.4"));
        assert!(since > before + 2.0, "{before:.1} and {since:.1}");
    }
}
