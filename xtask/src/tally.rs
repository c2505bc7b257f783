//! Collects the results of all test runners.

use std::collections::BTreeSet;

use crate::guest::{Guests, Skipped};
use crate::shell::{self, Result};

/// The results of all runners.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) skipped: Vec<Skipped>,
    /// Tests that failed, and then passed when they were repeated one at a time: these are bugs to fix.
    pub(crate) unsteady: Vec<String>,
    pub(crate) failed: Vec<String>,
}

impl Tally {
    pub(crate) fn of_passed(passed: u64) -> Self {
        Self { passed, ..Self::default() }
    }

    /// Creates a tally of one test that this machine skips, given as `[SKIPPED, needs X] NAME`.
    pub(crate) fn of_skipped(test: &str) -> Self {
        Self { skipped: vec![Skipped::here(test)], ..Self::default() }
    }

    /// Adds the results of guests for the tests that this machine skips. Tests that no machine ran count as
    /// skipped, with every machine's reasons.
    pub(crate) fn add_guests(&mut self, guests: Result<Guests>) {
        let guests = match guests {
            Ok(guests) => guests,
            Err(why) => return self.failed.push(why),
        };
        let known: BTreeSet<&String> = guests
            .passed
            .iter()
            .chain(&guests.failed)
            .chain(guests.skipped.iter().map(|skipped| &skipped.name))
            .collect();
        self.skipped.retain(|skipped| !known.contains(&skipped.name));
        self.passed += guests.passed.len() as u64;
        self.unsteady.extend(guests.unsteady);
        self.failed.extend(guests.failed.iter().map(|name| format!("{name}, in a guest")));
        self.failed.extend(guests.broken);
        self.skipped.extend(guests.skipped);
    }

    /// Prints skipped and failed tests, and the counts.
    pub(crate) fn end(self) -> Result {
        eprintln!();
        if !shell::is_root() {
            eprintln!("Not root: tests that need root were skipped. `sudo -E make test` runs them.");
        }
        for skipped in &self.skipped {
            eprintln!("SKIPPED {skipped}");
        }
        for test in &self.unsteady {
            eprintln!("FLAKY, to be fixed: failed, but passed when run alone: {test}");
        }
        for what in &self.failed {
            eprintln!("FAILED {what}");
        }
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed.len(), self.skipped.len());
        match self.failed.first() {
            None if self.passed > 0 => Ok(()),
            None => Err("no test ran".to_owned()),
            Some(what) => Err(format!("failed: {what}")),
        }
    }
}

#[cfg(test)]
mod tallies {
    use super::*;

    #[test]
    fn what_a_guest_ran_is_not_skipped_and_what_failed_there_fails_all() {
        let tests =
            ["[SKIPPED, needs flower] a", "[SKIPPED, needs flower] b", "[SKIPPED, needs luck] c", "d"];
        let mut tally = Tally { skipped: tests.map(Skipped::here).to_vec(), ..Tally::default() };
        let there = Skipped::by("a guest", "[SKIPPED, needs patience] c");
        tally.add_guests(Ok(Guests {
            passed: ["a".to_owned()].into(),
            failed: ["b".to_owned()].into(),
            skipped: vec![there.clone()],
            broken: vec!["a guest could not be built: no space".to_owned()],
            ..Guests::default()
        }));
        assert_eq!((tally.passed, tally.failed.len()), (1, 2));
        assert_eq!(
            tally.skipped,
            [Skipped::here("d"), there],
            "for the reasons given by the machines that skipped it"
        );
        assert!(tally.end().is_err());
    }
}
