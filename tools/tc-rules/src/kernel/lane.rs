//! Assigns rules to workers.
//!
//! Rules of one priority stay in order, and therefore with one worker. Rules whose classifier holds rtnl
//! would only wait for each other on several workers, so they all go to the first worker.

use std::collections::BTreeMap;

use crate::{Command, Group};

/// Assigns every priority to a worker.
#[derive(Debug)]
pub(super) struct Lanes {
    workers: usize,
    known: BTreeMap<Group, usize>,
    last: Option<(Group, usize)>,
    next: usize,
    /// Whether any rule's classifier holds rtnl.
    holds_rtnl: bool,
}

/// The worker of a command, and whether other workers may run concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// This worker, after its earlier commands.
    Worker(usize),
    /// Any worker, exclusively: after all earlier commands, and before all later ones.
    Alone,
}

impl Lanes {
    pub(super) const fn among(workers: usize) -> Self {
        Self { workers, known: BTreeMap::new(), last: None, next: 0, holds_rtnl: false }
    }

    /// Chooses the route of a command.
    pub(super) fn route(&mut self, command: &Command) -> Route {
        if self.workers == 1 {
            return Route::Worker(0);
        }
        let Some(rule) = command.rule() else { return Route::Alone };
        if rule.classifier.kind().is_none() {
            return Route::Alone; // removes a whole priority, or a whole chain
        }
        if rule.classifier.holds_rtnl() {
            self.holds_rtnl = true;
            return Route::Worker(0);
        }
        let group = rule.group();
        if let Some((last, worker)) = self.last
            && last == group
        {
            return Route::Worker(worker);
        }
        let worker = *self.known.entry(group).or_insert_with(|| {
            self.next += 1;
            (self.next - 1) % self.workers
        });
        self.last = Some((group, worker));
        Route::Worker(worker)
    }

    /// Joins the lanes of a later part of the file. Returns the worker for each of its lanes if every
    /// priority in both parts can stay with one worker. Otherwise the later part keeps its lanes, and its
    /// rules must wait for all earlier ones.
    pub(super) fn join(&mut self, later: Self) -> Option<Vec<usize>> {
        let mut places: Vec<Option<usize>> = vec![None; self.workers];
        places[0] = later.holds_rtnl.then_some(0);
        for (group, lane) in &later.known {
            let here = self.known.get(group).copied();
            match (here, places[*lane]) {
                (Some(here), None) => places[*lane] = Some(here),
                (Some(here), Some(place)) if here != place => {
                    *self = later;
                    return None;
                }
                _ => {}
            }
        }
        let places: Vec<usize> = places
            .into_iter()
            .map(|place| {
                place.unwrap_or_else(|| {
                    self.next += 1;
                    (self.next - 1) % self.workers
                })
            })
            .collect();
        self.known.extend(later.known.into_iter().map(|(group, lane)| (group, places[lane])));
        self.holds_rtnl |= later.holds_rtnl;
        self.last = None;
        Some(places)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::{Batch, Table};

    fn routes(workers: usize, text: &str) -> Vec<Route> {
        let mut table = Table::of([("a".to_owned(), model::IfIndex(1)), ("b".to_owned(), model::IfIndex(2))]);
        let (mut lanes, mut batch) = (Lanes::among(workers), Batch::new(text.as_bytes()));
        let mut routes = Vec::new();
        while let Some((_, command)) = batch.next_command(&mut table).expect("read") {
            routes.push(lanes.route(command));
        }
        routes
    }

    #[test]
    fn rules_of_one_priority_stay_together_and_others_are_spread() {
        let text = "filter add dev a ingress prio 1 flower\nfilter add dev a ingress prio 2 flower\n\
                    filter add dev a ingress prio 1 chain 1 flower\nfilter add dev a ingress prio 1 flower\n";
        assert_eq!(routes(2, text), [Route::Worker(0), Route::Worker(1), Route::Worker(0), Route::Worker(0)]);
    }

    /// The lanes of a file's rules.
    fn lanes(workers: usize, text: &str) -> Lanes {
        let mut table = Table::of([("a".to_owned(), model::IfIndex(1)), ("b".to_owned(), model::IfIndex(2))]);
        let (mut lanes, mut batch) = (Lanes::among(workers), Batch::new(text.as_bytes()));
        while let Some((_, command)) = batch.next_command(&mut table).expect("read") {
            lanes.route(command);
        }
        lanes
    }

    #[test]
    fn a_priority_of_both_halves_stays_with_its_worker() {
        let rule = |device, priority| format!("filter add dev {device} ingress prio {priority} flower\n");
        let ab = [rule("a", 1), rule("b", 1)].concat();
        let ba = [rule("b", 1), rule("a", 1)].concat();
        assert_eq!(lanes(2, &ab).join(lanes(2, &ba)), Some(vec![1, 0]));
        // In a file sorted by device, each half has only one of the devices.
        assert_eq!(lanes(2, &rule("a", 1)).join(lanes(2, &rule("b", 1))), Some(vec![1, 0]));
        // Both halves have three priorities, but in each half, different priorities share a worker.
        let abc = [rule("a", 1), rule("a", 2), rule("a", 3)].concat();
        let acb = [rule("a", 1), rule("a", 3), rule("a", 2)].concat();
        assert_eq!(lanes(2, &abc).join(lanes(2, &acb)), None);
        // Rules that hold rtnl stay with the first worker.
        let table = "filter add dev a ingress prio 7 u32 divisor 2\n".to_owned();
        assert_eq!(lanes(2, &[table.clone(), ab].concat()).join(lanes(2, &[table, ba].concat())), None);
    }

    #[test]
    fn rules_under_rtnl_have_one_worker_and_what_others_stand_on_goes_alone() {
        let text = "qdisc add dev a clsact\nfilter add dev a ingress prio 1 u32 divisor 2\n\
                    filter add dev b ingress prio 2 matchall\nchain add dev a ingress chain 3\nfilter del dev a ingress prio 1\n";
        assert_eq!(
            routes(4, text),
            [Route::Alone, Route::Worker(0), Route::Worker(0), Route::Alone, Route::Alone]
        );
    }
}
