//! What happens next.

/// The next event of every source: at most one per source, the earliest first, and among equals the one that was
/// set first.
///
/// A tournament tree over the sources. Setting one costs the logarithm of their number, looking up the next event
/// costs nothing; packets under way are no sources, but wait in the NIC's queues.
#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    /// The tree, root at 1; each node holds the smaller of its children's keys.
    nodes: Vec<u128>,
    leaves: usize,
    sequence: u64,
}

/// No event.
const NEVER: u128 = u128::MAX;
/// Bits of a key below the due time: first the sequence number, then the source.
const DUE_SHIFT: u32 = 64;
const SEQUENCE_SHIFT: u32 = 16;

impl Calendar {
    /// A calendar without events. At most 65536 sources.
    pub(crate) fn new(sources: usize) -> Self {
        let leaves = sources.next_power_of_two().max(2);
        Self { nodes: vec![NEVER; 2 * leaves], leaves, sequence: 0 }
    }

    /// The next event: when, and of which source. `None` if nothing will happen any more.
    #[inline]
    pub(crate) fn next(&self) -> Option<(u64, usize)> {
        let key = self.nodes[1];
        (key != NEVER).then(|| (due(key), source(key)))
    }

    /// When this source is due, `u64::MAX` if it is not.
    #[inline]
    pub(crate) fn due(&self, source: usize) -> u64 {
        due(self.nodes[self.leaves + source])
    }

    /// Gives a source its next event, in place of the one it had.
    #[inline]
    pub(crate) fn set(&mut self, source: usize, due: u64) {
        self.sequence += 1;
        self.put(
            source,
            u128::from(due) << DUE_SHIFT | u128::from(self.sequence << SEQUENCE_SHIFT | source as u64),
        );
    }

    /// Takes a source's event away.
    #[inline]
    pub(crate) fn clear(&mut self, source: usize) {
        self.put(source, NEVER);
    }

    #[inline]
    fn put(&mut self, source: usize, key: u128) {
        let mut node = self.leaves + source;
        self.nodes[node] = key;
        while node > 1 {
            let smaller = self.nodes[node].min(self.nodes[node ^ 1]);
            node >>= 1;
            if self.nodes[node] == smaller {
                break;
            }
            self.nodes[node] = smaller;
        }
    }
}

fn due(key: u128) -> u64 {
    (key >> DUE_SHIFT) as u64
}

fn source(key: u128) -> usize {
    (key & 0xffff) as usize
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn events_come_by_due_time_and_equals_in_the_order_they_were_set() {
        let mut calendar = Calendar::new(5);
        for (source, due) in [(4, 20), (1, 10), (3, 20), (0, 20)] {
            calendar.set(source, due);
        }
        calendar.set(4, 20);
        let mut order = Vec::new();
        while let Some((due, source)) = calendar.next() {
            order.push((due, source));
            calendar.clear(source);
        }
        assert_eq!(order, [(10, 1), (20, 3), (20, 0), (20, 4)]);
    }
}
