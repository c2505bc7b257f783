//! What happens next.

/// The next event of every source: at most one per source, the earliest first, and among equals the one that was
/// set first.
///
/// A tree over the sources in which each node is the smallest of eight children, side by side in one line of the
/// cache. Setting an event takes the smallest of eight on each level, without a branch that could be guessed wrong;
/// looking up the next event costs nothing. Packets under way are no sources, but wait in the NIC's queues.
#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    /// Level by level from the sources up, the last is the root's children.
    nodes: Vec<[u64; FAN_OUT]>,
    /// Where each level begins.
    levels: Vec<usize>,
    first: u64,
    /// Bits of a key for the source, and the sequence number's place above them.
    source_bits: u32,
    sequence: u64,
}

/// No event.
const NEVER: u64 = u64::MAX;
/// Children of a node.
const FAN_OUT: usize = 8;
/// Bits of a key below the due time: the sequence number, then the source.
const BELOW_DUE: u32 = 22;
/// The last moment that a key can hold, 73 minutes: no run is longer than an hour.
const LAST: u64 = (1 << (u64::BITS - BELOW_DUE)) - 2;
/// At most so many sources, so that there are four sequence numbers for each.
const SOURCES_MAX: usize = (1 << 10) - 1;
const _: () = assert!(LAST > crate::scenario::SPAN_MAX.0);

impl Calendar {
    /// A calendar without events.
    ///
    /// # Panics
    /// If there are more than 1023 sources; a scenario's limits allow fewer.
    pub(crate) fn new(sources: usize) -> Self {
        assert!(sources <= SOURCES_MAX, "{sources} sources of events");
        let mut levels = Vec::new();
        let (mut begin, mut count) = (0, sources);
        loop {
            count = count.div_ceil(FAN_OUT);
            levels.push(begin);
            begin += count;
            if count <= 1 {
                break;
            }
        }
        let source_bits = usize::BITS - sources.leading_zeros();
        Self { nodes: vec![[NEVER; FAN_OUT]; begin], levels, first: NEVER, source_bits, sequence: 0 }
    }

    /// The next event: when, and of which source. `None` if nothing will happen any more.
    #[inline]
    pub(crate) fn next(&self) -> Option<(u64, usize)> {
        let source = self.first & ((1 << self.source_bits) - 1);
        #[expect(clippy::cast_possible_truncation, reason = "at most 1023 sources")]
        (self.first != NEVER).then_some((self.first >> BELOW_DUE, source as usize))
    }

    /// When this source is due, `u64::MAX` if it is not. After [`LAST`], it is due at [`LAST`].
    #[inline]
    pub(crate) fn due(&self, source: usize) -> u64 {
        let key = self.nodes[source / FAN_OUT][source % FAN_OUT];
        if key == NEVER { NEVER } else { key >> BELOW_DUE }
    }

    /// Gives a source its next event, in place of the one it had.
    #[inline]
    pub(crate) fn set(&mut self, source: usize, due: u64) {
        self.sequence += 1;
        if self.sequence >> (BELOW_DUE - self.source_bits) != 0 {
            self.number_again();
        }
        let below = self.sequence << self.source_bits | source as u64;
        self.put(source, due.min(LAST) << BELOW_DUE | below);
    }

    /// Takes a source's event away.
    #[inline]
    pub(crate) fn clear(&mut self, source: usize) {
        self.put(source, NEVER);
    }

    fn put(&mut self, source: usize, mut key: u64) {
        let mut place = source;
        for &level in &self.levels {
            let node = &mut self.nodes[level + place / FAN_OUT];
            node[place % FAN_OUT] = key;
            let [a, b, c, d, e, f, g, h] = *node;
            key = a.min(b).min(c.min(d)).min(e.min(f).min(g.min(h)));
            place /= FAN_OUT;
        }
        self.first = key;
    }

    /// The sequence numbers are used up: the events under way get the first ones, in the order they have.
    #[cold]
    fn number_again(&mut self) {
        let sources = self.levels.get(1).copied().unwrap_or(self.nodes.len()) * FAN_OUT;
        let mask = (1 << self.source_bits) - 1;
        let mut keys: Vec<u64> =
            (0..sources).map(|source| self.nodes[source / FAN_OUT][source % FAN_OUT]).collect();
        keys.retain(|&key| key != NEVER);
        keys.sort_unstable();
        self.sequence = 0;
        for key in keys {
            let due = key >> BELOW_DUE << BELOW_DUE;
            let source = key & mask;
            self.sequence += 1;
            #[expect(clippy::cast_possible_truncation, reason = "at most 1023 sources")]
            self.put(source as usize, due | self.sequence << self.source_bits | source);
        }
        self.sequence += 1;
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn drained(calendar: &mut Calendar) -> Vec<(u64, usize)> {
        std::iter::from_fn(|| {
            let (due, source) = calendar.next()?;
            calendar.clear(source);
            Some((due, source))
        })
        .collect()
    }

    #[test]
    fn events_come_by_due_time_and_equals_in_the_order_they_were_set() {
        let mut calendar = Calendar::new(5);
        for (source, due) in [(4, 20), (1, 10), (3, 20), (0, 20)] {
            calendar.set(source, due);
        }
        calendar.set(4, 20);
        assert_eq!(drained(&mut calendar), [(10, 1), (20, 3), (20, 0), (20, 4)]);
    }

    #[test]
    fn the_order_outlasts_the_sequence_numbers_whatever_the_number_of_sources() {
        for sources in [1, 8, 25, 73, 641, SOURCES_MAX] {
            let mut calendar = Calendar::new(sources);
            // Source 0 is set again until the numbers have been used up more than once.
            let last = sources - 1;
            for step in 0..3_u64 << BELOW_DUE >> calendar.source_bits {
                calendar.set(last, 7);
                calendar.set(last / 2, 7);
                calendar.set(0, 7 + step % 2);
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
        calendar.set(0, u64::MAX - 1);
        assert_eq!((calendar.due(0), calendar.due(1)), (LAST, u64::MAX));
        calendar.set(1, LAST - 1);
        assert_eq!(drained(&mut calendar), [(LAST - 1, 1), (LAST, 0)]);
    }
}
