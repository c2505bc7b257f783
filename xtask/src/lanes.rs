//! Tests that change the host, in several lanes beside each other: nearly all of their time they wait.
//!
//! A lane is one run of the test program with a part of its tests, in a network namespace and a mount namespace of its own.
//! A test that must not have another one beside it is of the kind `alone`, and runs after the lanes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::shell::Result;

/// Names the tests that a test program shall run, with line feeds between them; it leaves out all others.
pub(crate) const ONLY: &str = "NETPOLICY_TEST_ONLY";

/// How many lanes there are. On two CPUs a lane keeps a third of one busy; each more makes those tests slower that count.
const LANES: usize = 3;

/// The kind of a test that runs with no other beside it.
const ALONE: &str = "alone";

/// What a test is taken to need of which no earlier run says it.
const UNKNOWN: Duration = Duration::from_secs(2);

/// The tests of a program, as it lists them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Those that can run here, beside others.
    beside: Vec<String>,
    /// Those that can run here, alone.
    alone: Vec<String>,
    /// Those that cannot, with the reason before the name.
    pub(crate) skipped: Vec<String>,
}

impl Listed {
    /// Asks a test program for its tests; that runs none.
    pub(crate) fn ask(mut program: Command) -> Result<Self> {
        let output = program.arg("--list").output();
        let output = output.map_err(|error| format!("{}: {error}", program.get_program().display()))?;
        if !output.status.success() {
            return Err(format!("{} --list: {}", program.get_program().display(), output.status));
        }
        Ok(Self::read(&String::from_utf8_lossy(&output.stdout)))
    }

    fn read(text: &str) -> Self {
        let mut listed = Self::default();
        for test in text.lines().filter_map(|line| line.strip_suffix(": test")) {
            match test.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
                Some((ALONE, name)) => listed.alone.push(name.to_owned()),
                Some(_) => listed.skipped.push(test.to_owned()),
                None => listed.beside.push(test.to_owned()),
            }
        }
        listed
    }

    /// The names for each lane, and those for the run after them; `took` is what an earlier run needed for a test.
    pub(crate) fn lanes(self, took: impl Fn(&str) -> Option<Duration>) -> (Vec<Vec<String>>, Vec<String>) {
        (divide(self.beside, took), self.alone)
    }
}

/// Divides tests among lanes, the longest first, each to the lane that has least to do. In a lane they keep their order.
fn divide(tests: Vec<String>, took: impl Fn(&str) -> Option<Duration>) -> Vec<Vec<String>> {
    let mut by_length: Vec<_> =
        tests.into_iter().enumerate().map(|(at, name)| (took(&name).unwrap_or(UNKNOWN), at, name)).collect();
    by_length.sort_by_key(|(length, at, _)| (std::cmp::Reverse(*length), *at));
    let mut lanes = [const { (Duration::ZERO, Vec::new()) }; LANES];
    for (length, at, name) in by_length {
        let (whole, tests) = lanes.iter_mut().min_by_key(|(whole, _)| *whole).expect("there are lanes");
        *whole += length;
        tests.push((at, name));
    }
    let in_order = |(_, mut tests): (Duration, Vec<(usize, String)>)| {
        tests.sort_unstable();
        tests.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
    };
    lanes.into_iter().map(in_order).filter(|names| !names.is_empty()).collect()
}

/// The command of a lane: the test program, in namespaces of its own. Packets, ports and mounts of one lane are not another's.
pub(crate) fn lane(executable: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--", "sh", "-c", "ip link set lo up && exec \"$0\" --test-threads=1"]);
    command.arg(executable);
    command
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_cannot_run_and_what_runs_alone_is_in_no_lane() {
        let text = "a/one: test\n[SKIPPED, needs flower] b/two: test\n[alone] c/three: test\nd: bench\n";
        let listed = Listed::read(text);
        assert_eq!(listed.skipped, ["[SKIPPED, needs flower] b/two"]);
        let (lanes, alone) = listed.lanes(|_| None);
        assert_eq!((lanes, alone), (vec![vec!["a/one".to_owned()]], vec!["c/three".to_owned()]));
    }

    #[test]
    fn lanes_are_of_equal_length_and_hold_each_test_once_in_its_order() {
        let names: Vec<String> = (0..20).map(|n| format!("{n:02}")).collect();
        let lanes = divide(names.clone(), |name| name.parse().ok().map(Duration::from_secs));
        assert_eq!(lanes.len(), LANES);
        let seconds =
            |lane: &Vec<String>| lane.iter().map(|n| n.parse::<u64>().expect("a number")).sum::<u64>();
        let lengths: Vec<_> = lanes.iter().map(seconds).collect();
        assert!(
            lengths.iter().max().zip(lengths.iter().min()).is_some_and(|(most, least)| most - least <= 4)
        );
        assert!(lanes.iter().all(|lane| lane.is_sorted()), "{lanes:?}");
        let mut all = lanes.concat();
        all.sort_unstable();
        assert_eq!(all, names);
    }

    #[test]
    fn tests_of_which_nothing_is_known_are_dealt_out() {
        let names: Vec<String> = (0..7).map(|n| format!("{n}")).collect();
        let lanes = divide(names, |_| None);
        assert_eq!(lanes, [vec!["0", "3", "6"], vec!["1", "4"], vec!["2", "5"]]);
    }
}
