//! The NIC: rings, interrupt moderation, transmit completions.
//!
//! Mirrors mlx5: one interrupt and one NAPI for the RX and the TX completion queue of a channel, an event arms
//! neither until the NAPI completes. Kernel: 6.11, `drivers/net/ethernet/mellanox/mlx5/core/en_txrx.c`
//! `mlx5e_napi_poll()`, `mlx5e_completion_event()`, `mlx5e_handle_rx_dim()`, `mlx5e_handle_tx_dim()`.
//! Left out: DMA and PCIe latency, compressed completions, the path for NAPIs away from their IRQ's CPU.
//!
//! Packets under way wait by arrival and enter the ring when somebody looks: a poll, or the moderation while the
//! interrupt is armed. Nothing leaves a ring in between, so a ring overflows at the same packet as if each had been
//! an event. Nor is a packet an event that only starts or restarts the moderation's timer: when it runs out, it is seen
//! whether packets have restarted it meanwhile.

use std::collections::VecDeque;

use crate::arrivals::Arrivals;
use crate::dim::{Dim, RX_CQE, RX_EQE, Sample, TX_EQE};
use crate::scenario::{Coalescing, Hardware};
use crate::watch::{Fact, Watch};
use crate::world::World;

/// A pure ACK, where otherwise a connection's number stands.
pub(crate) const ACK: u32 = u32::MAX;
/// No moment at all.
pub(crate) const NEVER: u64 = u64::MAX;

/// One channel of the NIC.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// Requests on their way here.
    requests: Arrivals,
    /// ACKs on their way here, by arrival.
    acks: VecDeque<u64>,
    next_arrival: u64,
    /// What arrived and was not polled yet: connections, or `ACK`.
    ring: VecDeque<u32>,
    ring_size: usize,
    pub(crate) irq_cpu: usize,
    pub(crate) armed: bool,
    coalescing: Coalescing,
    rx: Option<Dim>,
    tx: Option<Dim>,
    /// Packets since the interrupt was armed, and when it comes unless more do.
    unseen: u32,
    rx_deadline: u64,
    /// The first transmit completion that no poll has seen, and the last one.
    tx_first: u64,
    tx_last: u64,
    tx_event: u64,
    counted: Counted,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    rx_packets: u64,
    rx_events: u64,
    tx_packets: u64,
    tx_events: u64,
}

/// Bytes of a small packet, for the moderation's byte rate.
const SMALL_PACKET_BYTES: u64 = 100;

impl Queue {
    pub(crate) fn new(hardware: &Hardware, irq_cpu: usize) -> Self {
        let coalescing = hardware.coalescing;
        let dim = |profiles| coalescing.adaptive.then(|| Dim::new(profiles));
        Self {
            requests: Arrivals::new(),
            acks: VecDeque::new(),
            next_arrival: NEVER,
            ring: VecDeque::new(),
            ring_size: hardware.ring as usize,
            irq_cpu,
            armed: true,
            coalescing,
            rx: dim(if coalescing.rx_cqe { RX_CQE } else { RX_EQE }),
            tx: dim(TX_EQE),
            unseen: 0,
            rx_deadline: NEVER,
            tx_first: NEVER,
            tx_last: 0,
            tx_event: 0,
            counted: Counted::default(),
        }
    }

    /// A request will be here at this time.
    pub(crate) fn expect_request(&mut self, at: u64, connection: u32) {
        self.requests.expect(at, connection);
        self.next_arrival = self.next_arrival.min(at);
    }

    /// An ACK will be here at this time. Each takes as long as the others, so that none overtakes another.
    #[inline]
    pub(crate) fn expect_ack(&mut self, at: u64) {
        debug_assert!(self.acks.back().is_none_or(|&last| last <= at), "ACKs come in order");
        self.acks.push_back(at);
        self.next_arrival = self.next_arrival.min(at);
    }

    #[inline]
    fn next_ack(&self) -> u64 {
        self.acks.front().copied().unwrap_or(NEVER)
    }

    /// When the next packet will be here.
    #[inline]
    pub(crate) const fn next_arrival(&self) -> u64 {
        self.next_arrival
    }

    /// Whether a poll would find a packet.
    #[inline]
    pub(crate) fn has_packet(&self, now: u64) -> bool {
        !self.ring.is_empty() || self.next_arrival() <= now
    }

    fn rx_moderation(&self) -> (u64, u32) {
        let (usecs, frames) = match &self.rx {
            Some(dim) => dim.moderation(),
            None => (self.coalescing.rx_usecs, self.coalescing.rx_frames),
        };
        (u64::from(usecs) * 1000, frames)
    }

    /// A packet came while the interrupt was armed.
    #[inline]
    fn moderate(&mut self, at: u64) {
        self.unseen = self.unseen.saturating_add(1);
        if self.coalescing.rx_cqe || self.rx_deadline == NEVER {
            self.rx_deadline = at + self.rx_moderation().0;
        }
    }

    /// A moment that is not after the next RX interrupt. It is the next arrival only if packets may be so many by then that
    /// their number counts.
    fn rx_due(&mut self) -> u64 {
        let (span, frames) = self.rx_moderation();
        let due = if self.unseen > 0 { self.rx_deadline } else { self.next_arrival.saturating_add(span) };
        let by_then = self.requests.at_most_by(due) + self.acks.len();
        if self.unseen as usize + by_then < frames as usize { due } else { due.min(self.next_arrival) }
    }

    fn tx_due(&self) -> u64 {
        if self.tx_first == NEVER || !self.coalescing.tx_irq {
            return NEVER;
        }
        let usecs = self.tx.as_ref().map_or(self.coalescing.tx_usecs, |dim| dim.moderation().0);
        self.tx_first.max(self.tx_event + u64::from(usecs) * 1000)
    }
}

impl<W: Watch> World<W> {
    /// Brings what has arrived by now into the ring; packets that find it full are lost.
    pub(crate) fn receive(&mut self, q: usize) {
        let now = self.now;
        let queue = &mut self.queues[q];
        while queue.next_arrival <= now {
            let at = queue.next_arrival;
            let packet = if queue.next_ack() <= queue.requests.next() {
                queue.acks.pop_front();
                ACK
            } else {
                queue.requests.take().expect("the next arrival is a request")
            };
            queue.next_arrival = queue.requests.next().min(queue.next_ack());
            if queue.ring.len() < queue.ring_size {
                queue.ring.push_back(packet);
                queue.counted.rx_packets += 1;
                if queue.armed {
                    queue.moderate(at);
                }
                if W::ON {
                    self.watch.see(now, Fact::Arrived { queue: q });
                }
            } else {
                self.tally.dropped += 1;
                if W::ON {
                    self.watch.see(now, Fact::Dropped { queue: q });
                }
                if packet != ACK {
                    // TCP sends it again when its timer runs out.
                    queue.expect_request(at + crate::client::RETRANSMISSION_TIMEOUT, packet);
                    self.tally.retransmitted += 1;
                }
            }
        }
    }

    /// Takes the next packet off the ring.
    #[inline]
    pub(crate) fn take_packet(&mut self, q: usize) -> Option<u32> {
        let packet = self.queues[q].ring.pop_front()?;
        self.tally.packets += 1;
        if W::ON {
            self.watch.see(self.now, Fact::Taken { queue: q });
        }
        Some(packet)
    }

    /// A poll cleans the transmit completions that have come.
    pub(crate) fn clean_transmitted(&mut self, q: usize) {
        let now = self.now;
        let queue = &mut self.queues[q];
        if queue.tx_last <= now {
            queue.tx_first = NEVER;
        } else if queue.tx_first <= now {
            queue.tx_first = queue.tx_last;
        }
    }

    /// A CPU hands an answer to its transmit queue (XPS: one queue for each CPU, as far as they go round).
    pub(crate) fn transmit(&mut self, c: usize) {
        let q = self.cpus[c].transmit_queue;
        let completed = self.now + self.costs.transmit;
        let queue = &mut self.queues[q];
        queue.counted.tx_packets += 1;
        queue.tx_last = queue.tx_last.max(completed);
        if queue.tx_first == NEVER {
            queue.tx_first = completed;
            if queue.armed {
                self.await_nic(q);
            }
        }
    }

    /// Arms the interrupt, as the driver does when its NAPI has completed.
    pub(crate) fn arm(&mut self, q: usize) {
        let now = self.now;
        self.receive(q);
        let queue = &mut self.queues[q];
        queue.armed = true;
        let counted = queue.counted;
        let sample =
            |packets: u64, events| Sample { at: now, packets, bytes: packets * SMALL_PACKET_BYTES, events };
        if let Some(dim) = &mut queue.rx {
            dim.sample(sample(counted.rx_packets, counted.rx_events));
        }
        if let Some(dim) = &mut queue.tx {
            dim.sample(sample(counted.tx_packets, counted.tx_events));
        }
        queue.unseen = u32::try_from(queue.ring.len()).unwrap_or(u32::MAX);
        queue.rx_deadline = if queue.unseen > 0 { now + queue.rx_moderation().0 } else { NEVER };
        self.await_nic(q);
    }

    /// Sets the queue's next event.
    pub(crate) fn await_nic(&mut self, q: usize) {
        let queue = &mut self.queues[q];
        let due = if queue.armed { queue.rx_due().min(queue.tx_due()) } else { NEVER };
        match due {
            NEVER => self.calendar.clear(self.slots.nic(q)),
            _ => self.calendar.set(self.slots.nic(q), due.max(self.now)),
        }
    }

    /// An armed queue's event is due.
    pub(crate) fn nic_event(&mut self, q: usize) {
        let now = self.now;
        self.receive(q);
        let queue = &mut self.queues[q];
        let (_, frames) = queue.rx_moderation();
        if queue.unseen > 0 && (queue.unseen >= frames || queue.rx_deadline <= now) {
            queue.counted.rx_events += 1;
            self.interrupt_by_nic(q);
        } else if queue.tx_due() <= now {
            queue.counted.tx_events += 1;
            queue.tx_event = now;
            self.interrupt_by_nic(q);
        } else {
            self.await_nic(q);
        }
    }

    fn interrupt_by_nic(&mut self, q: usize) {
        let cpu = self.queues[q].irq_cpu;
        if W::ON {
            self.watch.see(self.now, Fact::Irq { queue: q, cpu, armed: self.queues[q].armed });
        }
        self.queues[q].armed = false;
        self.calendar.clear(self.slots.nic(q));
        self.tally.irqs += 1;
        self.hard_irq(cpu, self.costs.irq, q);
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::chance::Chance;
    use crate::scenario::Scenario;

    /// Notes when the first interrupt came.
    struct FirstIrq(Option<u64>);

    impl Watch for FirstIrq {
        fn see(&mut self, now: u64, fact: Fact) {
            if let Fact::Irq { .. } = fact {
                self.0.get_or_insert(now);
            }
        }
    }

    /// When the first interrupt comes if each packet is looked at when it arrives.
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
            // The client's own request comes after everything here.
            scenario.clients.connections = 1;
            scenario.clients.load = model::OfferedLoad::PerSecond(0.001);
            let coalescing = &mut scenario.hardware.coalescing;
            coalescing.adaptive = false;
            coalescing.rx_cqe = chance.below(2) == 0;
            coalescing.rx_usecs = chance.below(70);
            coalescing.rx_frames = 1 + chance.below(20);
            let coalescing = *coalescing;
            let mut world = World::new(&scenario, 1, FirstIrq(None));
            let gap = 1 + chance.below(60_000);
            let mut arrivals: Vec<u64> = Vec::new();
            for _ in 0..=chance.below(30) {
                let at = arrivals.last().copied().unwrap_or(1000) + u64::from(chance.below(gap));
                arrivals.push(at);
                match chance.below(2) {
                    0 => world.queues[0].expect_request(at, 0),
                    _ => world.queues[0].expect_ack(at),
                }
                world.await_nic(0);
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
