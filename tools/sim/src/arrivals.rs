//! Requests on their way to a queue, ordered by arrival.
//!
//! In a heap, each request would touch a number of cache lines logarithmic in the number of requests. Here,
//! requests wait in slots of time that are coarser the later they are due, as in the kernel's timer wheel
//! (`kernel/time/timer.c`), but exact: requests due soon are sorted. A request moves at most once per level,
//! together with its neighbours, so its cost hardly depends on the number of others.

use crate::ids::ConnectionId;

/// A time that is never reached.
pub(crate) const NEVER: u64 = u64::MAX;

/// Requests in flight.
#[derive(Clone, Debug)]
pub(crate) struct Arrivals {
    /// The requests of the slots up to `cursor`; the next request is at the end.
    near: Vec<u128>,
    /// The last slot of the finest level that was emptied.
    cursor: u64,
    levels: Vec<Level>,
    next: u64,
    sequence: u32,
}

/// The slots of one width, which hold requests that are due later than those of narrower slots.
#[derive(Clone, Debug)]
struct Level {
    /// A bit for each slot that holds requests.
    occupied: u64,
    slots: Vec<Slot>,
}

#[derive(Clone, Debug)]
struct Slot {
    /// The time at which the slot's first request is due.
    first: u64,
    requests: Vec<u128>,
}

/// Width of the finest slots, 33 us: a few requests on a busy queue.
const SLOT_BITS: u32 = 15;
/// Slots per level, 64, so that a single word shows which are occupied.
const LEVEL_BITS: u32 = 6;
/// The coarsest level covers ten hours; no run is longer than one hour.
const LEVELS: u32 = 5;
const SLOT_LAST: u64 = (1 << (LEVELS * LEVEL_BITS)) - 1;
/// Bits of a request's key below the due time: the sequence number, in the order of sending, then the
/// connection.
const DUE_SHIFT: u32 = 64;
const SEQUENCE_SHIFT: u32 = 32;

const fn due(key: u128) -> u64 {
    (key >> DUE_SHIFT) as u64
}

fn slot_of(key: u128) -> u64 {
    (due(key) >> SLOT_BITS).min(SLOT_LAST)
}

impl Arrivals {
    /// Creates an empty wheel.
    pub(crate) fn new() -> Self {
        let slot = Slot { first: NEVER, requests: Vec::new() };
        let level = Level { occupied: 0, slots: vec![slot; 1 << LEVEL_BITS] };
        Self { near: Vec::new(), cursor: 0, levels: vec![level; LEVELS as usize], next: NEVER, sequence: 0 }
    }

    /// When the next request arrives; [`NEVER`] if there is none.
    #[inline]
    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    /// Returns an upper bound on the number of requests that arrive until this time.
    #[inline]
    pub(crate) fn at_most_by(&mut self, by: u64) -> usize {
        while by != NEVER && self.next_far() <= by {
            self.advance();
        }
        self.near.len()
    }

    /// Adds a connection's request that arrives at this time.
    #[inline]
    pub(crate) fn expect(&mut self, at: u64, connection: ConnectionId) {
        self.sequence = self.sequence.wrapping_add(1);
        let order = u128::from(self.sequence) << SEQUENCE_SHIFT;
        let key = u128::from(at) << DUE_SHIFT | order | connection.index() as u128;
        self.next = self.next.min(at);
        if slot_of(key) > self.cursor {
            self.file(key);
        } else {
            let place = self.near.partition_point(|&other| other > key);
            self.near.insert(place, key);
        }
    }

    /// Removes the next request and returns its connection.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<ConnectionId> {
        if self.near.is_empty() {
            self.advance();
        }
        let key = self.near.pop()?;
        self.next = self.near.last().map_or_else(|| self.next_far(), |&key| due(key));
        #[expect(clippy::cast_possible_truncation, reason = "the lowest 32 bits of the key")]
        Some(ConnectionId::new(key as u32 as usize))
    }

    /// Files a request in the finest possible slot: on the level of the first digit in which the request's
    /// slot differs from the cursor.
    #[inline]
    fn file(&mut self, key: u128) {
        let slot = slot_of(key);
        let level = (slot ^ self.cursor).ilog2() / LEVEL_BITS;
        let digit = slot >> (level * LEVEL_BITS) & ((1 << LEVEL_BITS) - 1);
        let level = &mut self.levels[level as usize];
        level.occupied |= 1 << digit;
        let slot = &mut level.slots[digit as usize];
        slot.first = slot.first.min(due(key));
        slot.requests.push(key);
    }

    /// When the first request outside `near` is due.
    fn next_far(&self) -> u64 {
        let level = self.levels.iter().find(|level| level.occupied != 0);
        level.map_or(NEVER, |level| level.slots[level.occupied.trailing_zeros() as usize].first)
    }

    /// Moves the first occupied slot's requests to `near`. A slot of a coarse level is spread over finer ones
    /// until one of the finest level is reached.
    #[inline(never)]
    fn advance(&mut self) {
        let before = self.near.len();
        while self.near.len() == before {
            let Some(at) = self.levels.iter().position(|level| level.occupied != 0) else { return };
            let level = &mut self.levels[at];
            let digit = level.occupied.trailing_zeros() as usize;
            level.occupied &= level.occupied - 1;
            let slot = &mut level.slots[digit];
            slot.first = NEVER;
            let mut requests = std::mem::take(&mut slot.requests);
            #[expect(clippy::cast_possible_truncation, reason = "one of five levels")]
            let shift = at as u32 * LEVEL_BITS;
            // Finer digits are zero: all slots at the finer levels are in the future.
            let coarser = self.cursor >> (shift + LEVEL_BITS) << LEVEL_BITS;
            self.cursor = (coarser | digit as u64) << shift;
            for &key in &requests {
                if slot_of(key) > self.cursor { self.file(key) } else { self.near.push(key) }
            }
            requests.clear();
            self.levels[at].slots[digit].requests = requests;
        }
        self.near.sort_unstable_by(|a, b| b.cmp(a));
    }
}

#[cfg(test)]
mod test {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use model::Chance;

    use super::*;

    #[test]
    fn requests_arrive_in_the_order_of_a_heap_whatever_the_gaps() {
        // The gaps range from one nanosecond to hours; some requests are due before others that were sent
        // long ago, and some are due at the same time.
        for mean_bits in [0, 4, 13, 17, 22, 28, 34, 40, 44, 60] {
            let mut chance = Chance::new(mean_bits);
            let (mut arrivals, mut heap) = (Arrivals::new(), BinaryHeap::new());
            let (mut now, mut sent) = (0_u64, 0_u64);
            for step in 0..4000_u32 {
                for _ in 0..chance.below(3) {
                    let bits = chance.below(u32::try_from(mean_bits).expect("small") + 1);
                    let at = now.saturating_add(chance.bits() & ((1 << bits) - 1)).min(NEVER - 1);
                    sent += 1;
                    arrivals.expect(at, ConnectionId::new(step as usize));
                    heap.push(Reverse((at, sent, step)));
                }
                assert_eq!(arrivals.next(), heap.peek().map_or(NEVER, |Reverse((at, ..))| *at));
                let later = match chance.below(3) {
                    0 => now.saturating_add(chance.bits() & ((1 << mean_bits) - 1)),
                    1 => arrivals.next().max(now),
                    _ => now,
                };
                now = later.min(NEVER - 1);
                while arrivals.next() <= now {
                    let Reverse((at, _, expected)) = heap.pop().expect("as many");
                    let found = (arrivals.take().map(ConnectionId::index), at <= now);
                    assert_eq!(found, (Some(expected as usize), true), "gaps of 2^{mean_bits} ns");
                }
                assert!(heap.peek().is_none_or(|Reverse((at, ..))| *at > now));
            }
        }
    }
}
