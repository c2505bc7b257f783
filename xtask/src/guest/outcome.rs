//! The results of tests in guests, and the combined result on all machines. Tests that every machine skips
//! must be listed in advance: any other skip is a failure.

use std::collections::BTreeSet;
use std::fmt;

use super::boot::Ended;
use super::selftests;
use crate::programs::{Verdict, name_and_reason, read_line};
use crate::shell::Result;

/// The guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Qemu,
    Patched,
}

/// The exit code of a test program if tests failed. Any code other than this and 0 means that the test
/// program itself is faulty.
pub(super) const TESTS_FAILED: i32 = 101;
pub(super) const DIED: i32 = 2;

/// Needs, in the words of tests and [`selftests`], that may stay unmet: no machine with Debian 12 meets them,
/// newer sources of the distribution do not meet them, or their programs come only from the registries of Go
/// and Python.
const UNAVOIDABLE: &[&str] = &[
    "needs varlinkctl",
    "needs helm",
    "needs ansible-core",
    "that the facts on NIC drivers name",
    selftests::LOST_RACE,
];

/// A skipped test, with the reason of each machine that skipped it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) name: String,
    /// Each machine that skipped the test, and its reason.
    reasons: Vec<(String, String)>,
}

/// The results of the tests that the host had to skip.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    /// The tests that passed.
    pub(crate) passed: BTreeSet<String>,
    /// The tests that failed.
    pub(crate) failed: BTreeSet<String>,
    /// Guests that died, and whose remaining tests another guest then ran to the end: these are bugs to fix.
    pub(crate) unsteady: Vec<String>,
    /// Tests that no guest could run.
    pub(crate) skipped: Vec<Skipped>,
    /// Errors of guests: why a guest could not be created or did not finish, and skips that are not listed.
    pub(crate) broken: Vec<String>,
}

/// The start of a test program's first line.
const BEGINS: &str = "running ";

/// A guest's output, and how it ended.
pub(super) struct Output {
    pub(super) lines: Vec<String>,
    pub(super) ended: Result<Ended>,
}

impl Guests {
    /// Parses a guest's output: tests that passed or failed in the guest no longer count as skipped. Returns
    /// `Err` with the reason if the guest did not finish.
    pub(super) fn read(&mut self, described: &str, output: &Output) -> Result {
        let (mut passed, mut failed) = (0, 0);
        for line in &output.lines {
            let Some((verdict, test)) = read_line(line) else { continue };
            let (name, reason) = name_and_reason(test);
            match verdict {
                Verdict::Passed => {
                    passed += 1;
                    self.passed.insert(name.to_owned());
                }
                Verdict::Skipped => {
                    self.skip(described, name, reason);
                    continue;
                }
                Verdict::Failed => {
                    failed += 1;
                    self.failed.insert(name.to_owned());
                }
            }
            self.skipped.retain(|skipped| skipped.name != name);
        }
        println!("in {described}: {passed} passed, {failed} failed");
        match &output.ended {
            Err(why) => return Err(why.clone()),
            Ok(ended) if ended.code == DIED => {
                self.broken.push(format!("{described}: a test program died"));
            }
            Ok(ended) if ended.code != 0 && failed == 0 => self.broken.push(format!(
                "{described}: the test programs ended with {}, although no test failed",
                ended.code
            )),
            Ok(_) => {}
        }
        Ok(())
    }

    /// Records why a machine skips a test, unless another machine has run the test.
    fn skip(&mut self, machine: &str, name: &str, reason: &str) {
        if self.passed.contains(name) || self.failed.contains(name) {
            return;
        }
        let why = (machine.to_owned(), reason.to_owned());
        match self.skipped.iter_mut().find(|skipped| skipped.name == name) {
            Some(skipped) => skipped.reasons.push(why),
            None => self.skipped.push(Skipped { name: name.to_owned(), reasons: vec![why] }),
        }
    }

    /// Records that a guest could not be created, which makes the run fail.
    pub(super) fn cannot_be_made(&mut self, kind: Kind, why: &str) {
        for skipped in &mut self.skipped {
            skipped.reasons.push((format!("{kind:?}"), "could not be built".to_owned()));
        }
        self.broken.push(format!("guest {kind:?} could not be built: {why}"));
    }
}

impl Output {
    /// Returns those of these tests for which the output has no verdict.
    pub(super) fn left(&self, names: &[String]) -> Vec<String> {
        let verdicts = self.lines.iter().filter_map(|line| read_line(line));
        let ran: BTreeSet<&str> = verdicts.map(|(_, test)| name_and_reason(test).0).collect();
        names.iter().filter(|name| !ran.contains(name.as_str())).cloned().collect()
    }

    /// Whether the guest has started the tests that other machines skip. They run last.
    pub(super) fn began(&self) -> bool {
        self.lines.iter().any(|line| line.starts_with(BEGINS))
    }
}

impl Skipped {
    /// Creates the record of a test that this machine skips.
    pub(crate) fn here(test: &str) -> Self {
        Self::by("this machine", test)
    }

    /// Creates the record of a test that a machine skips.
    pub(crate) fn by(machine: &str, test: &str) -> Self {
        let (name, reason) = name_and_reason(test);
        Self { name: name.to_owned(), reasons: vec![(machine.to_owned(), reason.to_owned())] }
    }

    pub(crate) fn is_unavoidable(&self) -> bool {
        self.reasons.iter().any(|(_, reason)| UNAVOIDABLE.iter().any(|known| reason.contains(known)))
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        for (at, (machine, reason)) in self.reasons.iter().enumerate() {
            write!(f, "{} {machine}: {reason}", if at == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod offers {
    use super::*;

    fn skipped(lines: &[&str]) -> Guests {
        Guests { skipped: lines.iter().map(|line| Skipped::here(line)).collect(), ..Guests::default() }
    }

    fn output(lines: &[&str], code: i32) -> Output {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        Output { lines, ended: Ok(Ended { code, booted_in: std::time::Duration::ZERO }) }
    }

    #[test]
    fn what_a_machine_that_died_has_left_is_what_has_no_verdict() {
        let lines = ["running 3 tests", "test a ... ok", "test [SKIPPED, needs luck] b ... ignored"];
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let died = Output { ended: Err("Kernel panic".to_owned()), ..output(&lines, 0) };
        assert_eq!((died.left(&names), died.began()), (vec!["c".to_owned()], true));
        assert!(!output(&["test kselftest/a ... ok"], 0).began());
        let mut guests = skipped(&["[SKIPPED, needs luck] b", "[SKIPPED, needs luck] c"]);
        assert_eq!(guests.read("it", &died), Err("Kernel panic".to_owned()));
        assert_eq!((guests.broken.len(), guests.passed.len(), guests.skipped.len()), (0, 1, 2));
    }

    #[test]
    fn each_machine_gives_its_own_reason() {
        let mut guests = skipped(&["[SKIPPED, needs flower] a", "[SKIPPED, needs luck] b"]);
        let waits = "the guest's own tests have ended";
        let lines =
            [waits, "running 2 tests", "test a ... ok", "test [SKIPPED, needs patience] b ... ignored"];
        guests.read("the guest", &output(&lines, 0)).expect("it ended");
        assert_eq!((guests.passed.len(), guests.failed.len(), guests.broken.len()), (1, 0, 0));
        let said: Vec<_> = guests.skipped.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["b: this machine: needs luck; the guest: needs patience"]);
        assert!(!guests.skipped[0].is_unavoidable());
        assert!(Skipped::here("[SKIPPED, needs varlinkctl] c").is_unavoidable());
    }

    #[test]
    fn what_one_machine_ran_is_not_skipped_because_another_one_lacks_something() {
        let mut guests = skipped(&["[SKIPPED, needs patience] a", "[SKIPPED, needs patience] b"]);
        let ran = output(&["test a ... ok", "test b ... FAILED"], 1);
        guests.read("patched", &ran).expect("it ended");
        let lines =
            ["test [SKIPPED, needs patience] a ... ignored", "test [SKIPPED, needs patience] b ... ignored"];
        guests.read("stock", &output(&lines, 0)).expect("it ended");
        assert!(guests.skipped.is_empty(), "{:?}", guests.skipped);
        assert_eq!((guests.passed.len(), guests.failed.len()), (1, 1));
    }

    #[test]
    fn a_program_that_died_is_not_hidden_by_a_test_that_failed() {
        let mut guests = skipped(&[]);
        guests.read("patched", &output(&["test a ... FAILED"], DIED)).expect("it ended");
        assert_eq!(guests.broken, ["patched: a test program died"]);
        guests.read("patched", &output(&["test b ... FAILED"], 1)).expect("it ended");
        assert_eq!((guests.broken.len(), guests.failed.len()), (1, 2));
    }

    #[test]
    fn a_guest_whose_programs_fail_without_a_failed_test_is_broken() {
        let mut guests = skipped(&[]);
        guests.read("patched", &output(&["test a ... ok"], 1)).expect("it ended");
        assert!(guests.broken[0].contains("no test failed"), "{:?}", guests.broken);
    }
}
