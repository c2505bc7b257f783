//! Flows that were given a queue one by one: a record with a bound.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::QueueIndex;

/// The flows of one device that were steered, at most so many. One more takes the place of the one that was used least
/// recently, and that is counted. `F` is what a flow is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steered<F: Ord> {
    room: usize,
    flows: BTreeMap<F, Used>,
    /// The same by when they were used last.
    by_use: BTreeSet<(u64, F)>,
    turn: u64,
    counts: SteeredCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Used {
    queue: QueueIndex,
    last: u64,
}

/// What became of the flows of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SteeredCounts {
    /// How many were given a queue.
    pub steered: u64,
    /// How many lost it to another one.
    pub evicted: u64,
}

impl<F: Ord + Clone> Steered<F> {
    /// No flow yet, and room for so many; at least for one.
    pub fn with_room(room: usize) -> Self {
        Self {
            room: room.max(1),
            flows: BTreeMap::new(),
            by_use: BTreeSet::new(),
            turn: 0,
            counts: SteeredCounts::default(),
        }
    }

    /// Gives a flow a queue, or marks it as used. Returns the flow that has to go for it, with its queue.
    pub fn steer(&mut self, flow: F, queue: QueueIndex) -> Option<(F, QueueIndex)> {
        self.turn += 1;
        if let Some(used) = self.flows.get_mut(&flow) {
            self.by_use.remove(&(used.last, flow.clone()));
            *used = Used { queue, last: self.turn };
            self.by_use.insert((self.turn, flow));
            return None;
        }
        let gone = if self.flows.len() >= self.room { self.by_use.pop_first() } else { None };
        let gone = gone.and_then(|(_, flow)| self.flows.remove(&flow).map(|used| (flow, used.queue)));
        self.counts.evicted += u64::from(gone.is_some());
        self.counts.steered += 1;
        self.flows.insert(flow.clone(), Used { queue, last: self.turn });
        self.by_use.insert((self.turn, flow));
        gone
    }

    /// Forgets a flow that has ended. Returns the queue that it had.
    pub fn forget(&mut self, flow: &F) -> Option<QueueIndex> {
        let used = self.flows.remove(flow)?;
        self.by_use.remove(&(used.last, flow.clone()));
        Some(used.queue)
    }

    /// The flows with their queues, by flow.
    pub fn flows(&self) -> impl Iterator<Item = (&F, QueueIndex)> {
        self.flows.iter().map(|(flow, used)| (flow, used.queue))
    }

    /// What became of all flows so far.
    pub const fn counts(&self) -> SteeredCounts {
        self.counts
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_flow_too_many_takes_the_place_of_the_one_that_was_used_least_recently() {
        let mut steered = Steered::with_room(2);
        assert_eq!(steered.steer("a", QueueIndex(0)), None);
        assert_eq!(steered.steer("b", QueueIndex(1)), None);
        assert_eq!(steered.steer("a", QueueIndex(0)), None, "used once more");
        assert_eq!(steered.steer("c", QueueIndex(2)), Some(("b", QueueIndex(1))));
        assert_eq!(steered.counts(), SteeredCounts { steered: 3, evicted: 1 });
        assert_eq!(steered.forget(&"a"), Some(QueueIndex(0)));
        assert_eq!(steered.flows().collect::<Vec<_>>(), [(&"c", QueueIndex(2))]);
    }

    proptest! {
        #[test]
        fn there_are_never_more_than_there_is_room_for_and_every_other_was_evicted(
            room in 1_usize..8,
            flows in proptest::collection::vec(0_u8..20, 0..100),
        ) {
            let mut steered = Steered::with_room(room);
            let mut there = std::collections::BTreeSet::new();
            for flow in flows {
                there.insert(flow);
                if let Some((gone, _)) = steered.steer(flow, QueueIndex(u32::from(flow))) {
                    prop_assert!(there.remove(&gone) && gone != flow);
                }
                prop_assert!(steered.flows().map(|(flow, _)| flow).eq(&there));
                prop_assert!(there.len() <= room);
            }
            let counts = steered.counts();
            prop_assert_eq!(counts.steered - counts.evicted, u64::try_from(there.len()).expect("few"));
        }
    }
}
