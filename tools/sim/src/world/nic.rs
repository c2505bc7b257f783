//! The NIC: rings, interrupt moderation, transmit completions.
//!
//! Models mlx5: the RX and the TX completion queue of a channel share one interrupt and one NAPI. After an
//! interrupt, neither queue is armed until the NAPI completes. Kernel: 6.11,
//! `drivers/net/ethernet/mellanox/mlx5/core/en_txrx.c` `mlx5e_napi_poll()`, `mlx5e_completion_event()`,
//! `mlx5e_handle_rx_dim()`, `mlx5e_handle_tx_dim()`. Omitted: DMA and PCIe latency, compressed completions,
//! the path for NAPIs away from their IRQ's CPU.
//!
//! Packets in flight are ordered by arrival and enter the ring when it is read: by a poll, or by the
//! moderation while the interrupt is armed. Nothing leaves a ring in between, so a ring overflows at the same
//! packet as if each arrival were an event. A packet that only starts or restarts the moderation timer is not
//! an event, either: when the timer expires, it is checked whether packets have restarted it.

use super::parts::Packet;
use super::state::World;
use crate::arrivals::NEVER;
use crate::dim::Sample;
use crate::ids::{CpuId, QueueId};
use crate::watch::{Fact, Watch};

/// Bytes of a small packet, for the moderation's byte rate.
const SMALL_PACKET_BYTES: u64 = 100;

impl<W: Watch> World<W> {
    /// Moves the packets that have arrived by now into the ring; packets that find it full are dropped.
    pub(crate) fn receive(&mut self, queue: QueueId) {
        let now = self.now;
        let state = &mut self.queues[queue];
        while state.next_arrival <= now {
            let at = state.next_arrival;
            let packet = if state.next_ack() <= state.requests.next() {
                state.acks.pop_front();
                Packet::ACK
            } else {
                Packet::request(state.requests.take().expect("the next arrival is a request"))
            };
            state.next_arrival = state.requests.next().min(state.next_ack());
            if state.ring.len() < state.ring_size {
                state.ring.push_back(packet);
                state.counted.rx_packets += 1;
                if state.armed {
                    state.moderate(at);
                }
                if W::ON {
                    self.watch.see(now, Fact::Arrived { queue });
                }
            } else {
                self.tally.dropped += 1;
                if W::ON {
                    self.watch.see(now, Fact::Dropped { queue });
                }
                if let Some(connection) = packet.connection() {
                    // TCP retransmits the request when its timer expires.
                    state.expect_request(at + super::client::RETRANSMISSION_TIMEOUT, connection);
                    self.tally.retransmitted += 1;
                }
            }
        }
    }

    /// Takes the next packet from the ring.
    #[inline]
    pub(crate) fn take_packet(&mut self, queue: QueueId) -> Option<Packet> {
        let packet = self.queues[queue].ring.pop_front()?;
        self.tally.packets += 1;
        if W::ON {
            self.watch.see(self.now, Fact::Taken { queue });
        }
        Some(packet)
    }

    /// Processes the pending transmit completions in a poll.
    pub(crate) fn clean_transmitted(&mut self, queue: QueueId) {
        let now = self.now;
        let state = &mut self.queues[queue];
        if state.tx_last <= now {
            state.tx_first = NEVER;
        } else if state.tx_first <= now {
            state.tx_first = state.tx_last;
        }
    }

    /// Hands a CPU's answer to its transmit queue (XPS: one queue per CPU, round robin).
    pub(crate) fn transmit(&mut self, cpu: CpuId) {
        let queue = self.cpus[cpu].transmit_queue;
        let completed = self.now + self.costs.transmit;
        let state = &mut self.queues[queue];
        state.counted.tx_packets += 1;
        state.tx_last = state.tx_last.max(completed);
        if state.tx_first == NEVER {
            state.tx_first = completed;
            if state.armed {
                self.await_nic(queue);
            }
        }
    }

    /// Arms the interrupt, as the driver does when its NAPI completes.
    pub(crate) fn arm(&mut self, queue: QueueId) {
        let now = self.now;
        self.receive(queue);
        let state = &mut self.queues[queue];
        state.armed = true;
        let counted = state.counted;
        let sample =
            |packets: u64, events| Sample { at: now, packets, bytes: packets * SMALL_PACKET_BYTES, events };
        if let Some(dim) = &mut state.rx {
            dim.sample(sample(counted.rx_packets, counted.rx_events));
        }
        if let Some(dim) = &mut state.tx {
            dim.sample(sample(counted.tx_packets, counted.tx_events));
        }
        state.unseen = u32::try_from(state.ring.len()).unwrap_or(u32::MAX);
        state.rx_deadline = if state.unseen > 0 { now + state.rx_moderation().0 } else { NEVER };
        self.await_nic(queue);
    }

    /// Schedules the queue's next event.
    pub(crate) fn await_nic(&mut self, queue: QueueId) {
        let state = &mut self.queues[queue];
        let due = if state.armed { state.rx_due().min(state.tx_due()) } else { NEVER };
        match due {
            NEVER => self.calendar.clear(self.slots.nic(queue)),
            _ => self.calendar.set(self.slots.nic(queue), due.max(self.now)),
        }
    }

    /// Handles the event of an armed queue.
    pub(crate) fn nic_event(&mut self, queue: QueueId) {
        let now = self.now;
        self.receive(queue);
        let state = &mut self.queues[queue];
        let (_, frames) = state.rx_moderation();
        if state.unseen > 0 && (state.unseen >= frames || state.rx_deadline <= now) {
            state.counted.rx_events += 1;
            self.interrupt_by_nic(queue);
        } else if state.tx_due() <= now {
            state.counted.tx_events += 1;
            state.tx_event = now;
            self.interrupt_by_nic(queue);
        } else {
            self.await_nic(queue);
        }
    }

    fn interrupt_by_nic(&mut self, queue: QueueId) {
        let cpu = self.queues[queue].irq_cpu;
        if W::ON {
            self.watch.see(self.now, Fact::Irq { queue, cpu, armed: self.queues[queue].armed });
        }
        self.queues[queue].armed = false;
        self.calendar.clear(self.slots.nic(queue));
        self.tally.irqs += 1;
        self.hard_irq(cpu, self.costs.irq, queue.napi());
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::chance::Chance;
    use crate::ids::ConnectionId;
    use crate::scenario::{Coalescing, Scenario};

    /// Records when the first interrupt is raised.
    struct FirstIrq(Option<u64>);

    impl Watch for FirstIrq {
        fn see(&mut self, now: u64, fact: Fact) {
            if let Fact::Irq { .. } = fact {
                self.0.get_or_insert(now);
            }
        }
    }

    /// Returns when the first interrupt is raised if each packet is processed on arrival.
    fn packet_by_packet(coalescing: Coalescing, arrivals: &[u64]) -> Option<u64> {
        let mut due = NEVER;
        for (&at, unseen) in arrivals.iter().zip(1..) {
            if at > due {
                break;
            }
            if unseen >= coalescing.rx_frames {
                return Some(at);
            }
            if coalescing.rx_cqe || due == NEVER {
                due = at + u64::from(coalescing.rx_usecs) * 1000;
            }
        }
        (due != NEVER).then_some(due)
    }

    #[test]
    fn the_interrupt_comes_when_it_would_if_each_packet_were_looked_at() {
        let mut chance = Chance::new(5);
        for _ in 0..500 {
            let mut scenario = Scenario::default();
            // The client's own request arrives after everything else in this test.
            scenario.clients.connections = 1;
            scenario.clients.load = model::OfferedLoad::PerSecond(0.001);
            let coalescing = &mut scenario.hardware.coalescing;
            coalescing.adaptive = false;
            coalescing.rx_cqe = chance.below(2) == 0;
            coalescing.rx_usecs = chance.below(70);
            coalescing.rx_frames = 1 + chance.below(20);
            let coalescing = *coalescing;
            let mut world = World::new(&scenario, 1, FirstIrq(None));
            let queue = QueueId::new(0);
            let gap = 1 + chance.below(60_000);
            let mut arrivals: Vec<u64> = Vec::new();
            for _ in 0..=chance.below(30) {
                let at = arrivals.last().copied().unwrap_or(1000) + u64::from(chance.below(gap));
                arrivals.push(at);
                match chance.below(2) {
                    0 => world.queues[queue].expect_request(at, ConnectionId::new(0)),
                    _ => world.queues[queue].expect_ack(at),
                }
                world.await_nic(queue);
            }
            for us in 0..3000 {
                if world.watch.0.is_none() {
                    world.run_until(us * 1000);
                }
            }
            assert_eq!(world.watch.0, packet_by_packet(coalescing, &arrivals), "{coalescing:?} {arrivals:?}");
        }
    }
}
