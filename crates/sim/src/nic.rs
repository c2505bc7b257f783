//! The NIC: rings, interrupt moderation, transmit completions.
//!
//! Mirrors mlx5: one interrupt and one NAPI for the RX and the TX completion queue of a channel, an event arms
//! neither until the NAPI completes. Kernel: 6.11, `drivers/net/ethernet/mellanox/mlx5/core/en_txrx.c`
//! `mlx5e_napi_poll()`, `mlx5e_completion_event()`, `mlx5e_handle_rx_dim()`, `mlx5e_handle_tx_dim()`.
//! Left out: DMA and PCIe latency, compressed completions, the path for NAPIs away from their IRQ's CPU.
//!
//! Packets under way wait by arrival and enter the ring when somebody looks: a poll, or the moderation while the
//! interrupt is armed. Nothing leaves a ring in between, so a ring overflows at the same packet as if each had been
//! an event.

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
    /// Packets since the interrupt was armed.
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
    pub(crate) fn receive(&mut self, q: usize) -> u32 {
        let now = self.now;
        let queue = &mut self.queues[q];
        let mut arrived = 0;
        while queue.next_arrival <= now {
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
                arrived += 1;
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
                    queue.expect_request(now + crate::client::RETRANSMISSION_TIMEOUT, packet);
                    self.tally.retransmitted += 1;
                }
            }
        }
        arrived
    }

    /// Takes the next packet off the ring.
    #[inline]
    pub(crate) fn take_packet(&mut self, q: usize) -> Option<u32> {
        self.receive(q);
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

    /// Sets the queue's next event: an arrival that counts, or an interrupt.
    pub(crate) fn await_nic(&mut self, q: usize) {
        let queue = &self.queues[q];
        let due = queue.next_arrival().min(queue.rx_deadline).min(queue.tx_due());
        if queue.armed && due != NEVER {
            self.calendar.set(self.slots.nic(q), due.max(self.now));
        } else {
            self.calendar.clear(self.slots.nic(q));
        }
    }

    /// An armed queue's event is due.
    pub(crate) fn nic_event(&mut self, q: usize) {
        let now = self.now;
        let arrived = self.receive(q);
        let queue = &mut self.queues[q];
        let (span, frames) = queue.rx_moderation();
        if arrived > 0 {
            queue.unseen += arrived;
            if queue.coalescing.rx_cqe || queue.rx_deadline == NEVER {
                queue.rx_deadline = now + span;
            }
        }
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
