//! Tests that change the host, in several lanes beside each other: nearly all of their time they wait.
//!
//! A lane takes a few tests at a time and runs the test program with these, in a network namespace and a mount namespace of their own.
//! A few lanes are always open, and more while the CPUs idle. A test that must not have another one beside it is of the kind
//! `alone`, and runs after the lanes.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

#[cfg(doc)]
use crate::shell;
use crate::shell::Result;

/// Names the tests that a test program shall run, with line feeds between them; it leaves out all others.
pub(crate) const ONLY: &str = "NETPOLICY_TEST_ONLY";

/// How many lanes are open whatever the CPUs do, and how many there are at most. Most tests leave the CPUs idle; beside those that
/// do not, each lane more makes them slower.
pub(crate) const LANES: usize = 3;
pub(crate) const LANES_MAX: usize = 5;

/// Which share of all CPUs has to idle, and for how long, before a lane beyond the first [`LANES`] takes its next tests.
const IDLE_SHARE: f64 = 0.5;
const IDLE_FOR: Duration = Duration::from_secs(2);

/// The kind of a test that runs with no other beside it.
const ALONE: &str = "alone";

/// What a test is taken to need of which no earlier run says it: those that judge live traffic wait for windows of it.
const UNKNOWN: Duration = Duration::from_secs(2);
const UNKNOWN_WINDOWS: Duration = Duration::from_secs(30);
const WAIT_FOR_WINDOWS: [&str; 3] = ["searched/", "guarded/", "compared/"];

/// How long the tests are that a lane takes at a time, where one alone is not longer. To start the program takes a fraction of a second.
const BATCH: Duration = Duration::from_secs(6);

/// How many tests that failed beside others are run again alone. If more fail, it is not for lack of a CPU.
pub(crate) const AGAIN_MAX: usize = 8;

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

    /// What lanes take one after the other, and the tests that run alone; `took` is what an earlier run needed for a test.
    pub(crate) fn batches(self, took: impl Fn(&str) -> Option<Duration>) -> (Batches, Vec<String>) {
        (Batches::of(batched(self.beside, took)), self.alone)
    }
}

/// Tests that no lane has taken yet.
pub(crate) struct Batches {
    left: Mutex<VecDeque<Vec<String>>>,
    /// Who holds it looks at the CPUs: what one lane adds to their work is there before the next one looks.
    looks: Mutex<()>,
}

impl Batches {
    fn of(left: Vec<Vec<String>>) -> Self {
        Self { left: Mutex::new(left.into()), looks: Mutex::default() }
    }

    /// The next ones for a lane; `None` when all are taken. Lanes beyond the first few wait until CPUs idle.
    pub(crate) fn take(&self, lane: usize) -> Option<Vec<String>> {
        if lane < LANES {
            return self.next();
        }
        let _looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_empty() {
            let before = CpuTimes::now();
            std::thread::sleep(IDLE_FOR);
            if CpuTimes::now().idle_share_since(before) >= IDLE_SHARE {
                return self.next();
            }
        }
        None
    }

    fn next(&self) -> Option<Vec<String>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn is_empty(&self) -> bool {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// What all CPUs have done since the machine began, in ticks (`/proc/stat`, the line `cpu`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuTimes {
    all: u64,
    /// Also the time of programs that take what others leave ([`shell::IN_IDLE_TIME`]).
    idle: u64,
}

impl CpuTimes {
    fn now() -> Self {
        Self::read(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn read(stat: &str) -> Self {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        // Guests' time is in that of users already: user, nice, system, idle, iowait, irq, softirq, steal.
        let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|n| n.parse().ok()).collect();
        let of = |at: usize| ticks.get(at).copied().unwrap_or_default();
        Self { all: ticks.iter().sum(), idle: of(1) + of(3) + of(4) }
    }

    /// The share of all CPUs that idled; 0 where that cannot be read.
    fn idle_share_since(self, before: Self) -> f64 {
        let (idle, all) = (self.idle.saturating_sub(before.idle), self.all.saturating_sub(before.all));
        idle as f64 / all.max(1) as f64
    }
}

/// Divides tests into batches, the longest first, so that no lane has much left to do when the others are done.
fn batched(tests: Vec<String>, took: impl Fn(&str) -> Option<Duration>) -> Vec<Vec<String>> {
    let unknown = |name: &str| {
        if WAIT_FOR_WINDOWS.iter().any(|group| name.starts_with(group)) { UNKNOWN_WINDOWS } else { UNKNOWN }
    };
    let mut by_length: Vec<_> =
        tests.into_iter().map(|name| (took(&name).unwrap_or_else(|| unknown(&name)), name)).collect();
    by_length.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    let mut batches: Vec<(Duration, Vec<String>)> = Vec::new();
    for (length, name) in by_length {
        match batches.last_mut() {
            Some((whole, names)) if *whole + length <= BATCH => {
                *whole += length;
                names.push(name);
            }
            _ => batches.push((length, vec![name])),
        }
    }
    batches.into_iter().map(|(_, names)| names).collect()
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
        let (batches, alone) = listed.batches(|_| None);
        assert_eq!((batches.take(0), batches.take(LANES)), (Some(vec!["a/one".to_owned()]), None));
        assert_eq!(alone, ["c/three"]);
    }

    #[test]
    fn the_share_of_idle_time_is_that_of_all_cpus() {
        let before = CpuTimes::read("cpu  100 10 50 790 50 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
        let after = CpuTimes::read("cpu  150 25 60 800 65 0 0 0 7 0\n");
        assert_eq!(before, CpuTimes { all: 1000, idle: 850 });
        assert!((after.idle_share_since(before) - 0.4).abs() < 1e-9, "{after:?}");
        assert!(CpuTimes::now().all > 0);
        assert!(CpuTimes::read("").idle_share_since(before).abs() < 1e-9, "nothing was read");
    }

    #[test]
    fn the_longest_come_first_and_alone_and_the_short_ones_together() {
        let names = ["1", "9", "2", "unknown", "40", "guarded/it", "3"].map(str::to_owned).to_vec();
        let batches = batched(names, |name| name.parse().ok().map(Duration::from_secs));
        assert_eq!(
            batches,
            [vec!["40"], vec!["guarded/it"], vec!["9"], vec!["3", "2"], vec!["unknown", "1"]]
        );
    }
}
