//! A priority queue of events, as a tournament tree (Knuth, volume 3, 5.4.1): the next event of each source.

use crate::ids::SourceId;

/// The next event of every source, at most one per source: ordered by due time and, if equal, by the time of
/// setting.
///
/// A tournament tree over the sources: the earlier of two events advances to the next round. Setting an event
/// plays one match per round, against an opponent known in advance and without an unpredictable branch;
/// looking up the next event costs nothing. Packets in flight are not sources: they wait in the NIC's queues.
#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    /// The key in each place. The key in place `p` plays against the one in place `p ^ 1`, and the earlier
    /// advances to place `p / 2`.
    places: Box<[u64; PLACES]>,
    /// The place of the first source, a power of two; the other sources follow.
    start: usize,
    first: u64,
    /// Increment of the sequence number: above the bits of a key that identify the source.
    step: u64,
    sequence: u64,
}

/// No event.
const NEVER: u64 = u64::MAX;
/// Bits of a key below the due time: the sequence number, then the source.
const BELOW_DUE: u32 = 22;
/// The latest time that a key can hold, 73 minutes: no run is longer than an hour.
const LAST: u64 = (1 << (u64::BITS - BELOW_DUE)) - 2;
/// Maximum number of sources: leaves at least four sequence numbers for each.
const SOURCES_MAX: usize = (1 << 10) - 1;
/// Enough places for a round of all sources; a smaller scenario never touches most of them.
const PLACES: usize = 2 << 10;
const _: () = assert!(LAST > crate::scenario::SPAN_MAX.0);

impl Calendar {
    /// Creates a calendar without events.
    ///
    /// # Panics
    /// If there are more than 1023 sources; a scenario's limits allow fewer.
    pub(crate) fn new(sources: usize) -> Self {
        assert!(sources <= SOURCES_MAX, "{sources} sources of events");
        let step = 1 << (usize::BITS - sources.leading_zeros());
        let places = Box::new([NEVER; PLACES]);
        Self { places, start: sources.next_power_of_two().max(2), first: NEVER, step, sequence: 0 }
    }

    /// The time and source of the next event; `None` if there are no more events.
    #[inline]
    pub(crate) fn next(&self) -> Option<(u64, SourceId)> {
        let source = self.first & (self.step - 1);
        #[expect(clippy::cast_possible_truncation, reason = "at most 1023 sources")]
        (self.first != NEVER).then_some((self.first >> BELOW_DUE, SourceId::new(source as usize)))
    }

    /// When this source is due; `u64::MAX` if it has no event. Times after [`LAST`] are reported as [`LAST`].
    #[inline]
    pub(crate) fn due(&self, source: SourceId) -> u64 {
        let key = self.key(source);
        if key == NEVER { NEVER } else { key >> BELOW_DUE }
    }

    /// Sets a source's next event, replacing the previous one.
    #[inline]
    pub(crate) fn set(&mut self, source: SourceId, due: u64) {
        self.sequence += self.step;
        if self.sequence >> BELOW_DUE != 0 {
            self.number_again();
        }
        self.put(source, due.min(LAST) << BELOW_DUE | self.sequence | source.index() as u64);
    }

    /// Removes a source's event.
    #[inline]
    pub(crate) fn clear(&mut self, source: SourceId) {
        self.put(source, NEVER);
    }

    #[inline]
    fn key(&self, source: SourceId) -> u64 {
        self.places[(self.start + source.index()) % PLACES]
    }

    #[inline]
    fn put(&mut self, source: SourceId, mut key: u64) {
        let mut place = self.start + source.index();
        while place > 1 {
            self.places[place % PLACES] = key;
            key = key.min(self.places[(place ^ 1) % PLACES]);
            place /= 2;
        }
        self.first = key;
    }

    /// Renumbers when the sequence numbers are used up: the pending events get the first numbers, in their
    /// present order.
    #[cold]
    fn number_again(&mut self) {
        let mut keys: Vec<u64> = (0..self.start).map(SourceId::new).map(|source| self.key(source)).collect();
        keys.retain(|&key| key != NEVER);
        keys.sort_unstable();
        self.sequence = 0;
        for key in keys {
            let due = key >> BELOW_DUE << BELOW_DUE;
            let source = key & (self.step - 1);
            self.sequence += self.step;
            #[expect(clippy::cast_possible_truncation, reason = "at most 1023 sources")]
            self.put(SourceId::new(source as usize), due | self.sequence | source);
        }
        self.sequence += self.step;
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn drained(calendar: &mut Calendar) -> Vec<(u64, usize)> {
        std::iter::from_fn(|| {
            let (due, source) = calendar.next()?;
            calendar.clear(source);
            Some((due, source.index()))
        })
        .collect()
    }

    #[test]
    fn events_come_by_due_time_and_equals_in_the_order_they_were_set() {
        let mut calendar = Calendar::new(5);
        for (source, due) in [(4, 20), (1, 10), (3, 20), (0, 20)] {
            calendar.set(SourceId::new(source), due);
        }
        calendar.set(SourceId::new(4), 20);
        assert_eq!(drained(&mut calendar), [(10, 1), (20, 3), (20, 0), (20, 4)]);
    }

    #[test]
    fn the_order_outlasts_the_sequence_numbers_whatever_the_number_of_sources() {
        for sources in [1, 8, 25, 73, 641, SOURCES_MAX] {
            let mut calendar = Calendar::new(sources);
            // Source 0 is set repeatedly until the numbers have wrapped more than once.
            let last = sources - 1;
            for step in 0..3 * (1 << BELOW_DUE) / calendar.step {
                calendar.set(SourceId::new(last), 7);
                calendar.set(SourceId::new(last / 2), 7);
                calendar.set(SourceId::new(0), 7 + step % 2);
            }
            let order: Vec<(u64, usize)> = match sources {
                1 => vec![(8, 0)],
                _ => vec![(7, last), (7, last / 2), (8, 0)],
            };
            assert_eq!(drained(&mut calendar), order, "{sources} sources");
        }
    }

    #[test]
    fn what_is_due_after_the_longest_run_waits_at_the_end() {
        let mut calendar = Calendar::new(2);
        let (first, second) = (SourceId::new(0), SourceId::new(1));
        calendar.set(first, u64::MAX - 1);
        assert_eq!((calendar.due(first), calendar.due(second)), (LAST, u64::MAX));
        calendar.set(second, LAST - 1);
        assert_eq!(drained(&mut calendar), [(LAST - 1, 1), (LAST, 0)]);
    }
}
