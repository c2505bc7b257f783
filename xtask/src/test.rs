//! Every test that this machine can run, and a count of those it cannot.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::shell::{self, Result};
use crate::{fuzz, guest, tidy};

/// What the runners counted, over all of them.
#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: Vec<String>,
}

/// Format, lints and tidy rules.
pub(crate) fn check(arguments: &[String]) -> Result {
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))?;
    shell::run(shell::cargo().args([
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ]))?;
    shell::run(
        shell::cargo()
            .args(["doc", "--quiet", "--workspace", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"),
    )?;
    tidy::run(arguments)
}

/// The checks, then the tests: pure ones first, then those of the running kernel, then the fuzz targets' corpus and
/// regressions.
pub(crate) fn run(arguments: &[String]) -> Result {
    let pure = arguments.iter().any(|a| a == "--pure");
    check(&[])?;
    let mut tally = Tally::default();
    let mut broken = Vec::new();

    let mut targets = vec![vec!["test", "--workspace", "--lib", "--bins", "--examples", "--no-fail-fast"]];
    targets.push(vec!["test", "--workspace", "--doc", "--no-fail-fast"]);
    targets.push(vec!["test", "--workspace", "--test", "*", "--no-fail-fast"]);
    for target in targets {
        let mut command = shell::cargo();
        command.args(&target).env("INSTA_UPDATE", "no");
        if pure {
            command.env("NETPOLICY_TEST_PURE", "1");
        }
        if let Err(what) = tally.add(&mut command) {
            broken.push(what);
        }
    }
    if !shell::is_root() {
        eprintln!("test: not root: the tests that need root were skipped; run `sudo -E make test` for all");
    }
    if let Err(what) = fuzz::run(&["--replay".to_owned()]) {
        broken.push(what);
    }
    if shell::is_root() && !pure && !tally.skipped.is_empty() {
        match guest::run_skipped() {
            Ok(guests) => tally.add_guests(&guests, &mut broken),
            Err(why) => broken.push(why),
        }
    }

    eprintln!();
    for skipped in &tally.skipped {
        eprintln!("SKIPPED {skipped}");
    }
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped.len());
    match broken.first() {
        None if tally.passed > 0 => Ok(()),
        None => Err("no test ran".to_owned()),
        Some(what) => Err(what.clone()),
    }
}

impl Tally {
    /// Runs a test command, passes its output through and counts its result lines.
    fn add(&mut self, command: &mut Command) -> Result {
        shell::show(command);
        let spawned = command.stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("{}: {error}", shell::name(command)))?;
        let output = child.stdout.take().expect("stdout was asked for");
        for line in BufReader::new(output).lines() {
            let line = line.map_err(|error| format!("reading the tests' output: {error}"))?;
            println!("{line}");
            self.read(&line);
        }
        let status = child.wait().map_err(|error| format!("waiting for the tests: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("{} test: {status}", shell::name(command))) }
    }

    /// Counts what guests ran of what was skipped here. A guest that cannot be made leaves its tests skipped, in the open.
    fn add_guests(&mut self, guests: &guest::Guests, broken: &mut Vec<String>) {
        let ran = |skipped: &str| {
            let name = skipped.rsplit(' ').next().unwrap_or(skipped);
            guests.passed.contains(name) || guests.failed.contains(name)
        };
        self.skipped.retain(|skipped| !ran(skipped));
        self.passed += guests.passed.len() as u64;
        self.failed += guests.failed.len() as u64;
        broken.extend(guests.failed.iter().map(|name| format!("in a guest, {name} failed")));
        broken.extend(guests.broken.iter().cloned());
        let also: Vec<_> =
            guests.skipped.iter().filter(|name| !self.skipped.contains(name)).cloned().collect();
        self.skipped.extend(also);
        self.skipped.extend(guests.unmade.iter().map(|why| format!("every test of a guest: {why}")));
    }

    /// Reads one line of libtest's or libtest-mimic's output.
    fn read(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            for part in result.split([';', '.']) {
                let mut words = part.split_whitespace();
                match (words.next().and_then(|n| n.parse::<u64>().ok()), words.next()) {
                    (Some(count), Some("passed")) => self.passed += count,
                    (Some(count), Some("failed")) => self.failed += count,
                    _ => {}
                }
            }
        } else if let Some(name) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... ignored")) {
            // libtest-mimic pads names to a column: the same test is the same line on every machine.
            self.skipped.push(name.0.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
}

#[cfg(test)]
mod tally {
    use super::*;

    #[test]
    fn result_lines_of_both_runners_are_counted() {
        let mut tally = Tally::default();
        for line in [
            "test result: ok. 18 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.11s",
            "test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test [SKIPPED, needs root]    a_lab_is_made  ... ignored",
            "test quiet::one ... ok",
        ] {
            tally.read(line);
        }
        assert_eq!((tally.passed, tally.failed), (20, 1));
        assert_eq!(tally.skipped, ["[SKIPPED, needs root] a_lab_is_made"]);
    }

    #[test]
    fn what_a_guest_ran_is_not_skipped_and_what_failed_there_fails_all() {
        let skipped = ["[SKIPPED, needs flower] a", "[SKIPPED, needs flower] b", "[SKIPPED, needs luck] c"];
        let mut tally = Tally { skipped: skipped.map(str::to_owned).to_vec(), ..Tally::default() };
        let guests = guest::Guests {
            passed: ["a".to_owned()].into(),
            failed: ["b".to_owned()].into(),
            skipped: vec![
                "[SKIPPED, needs luck] c".to_owned(),
                "[SKIPPED, needs socat] kselftest/d".to_owned(),
            ],
            unmade: vec!["no room".to_owned()],
            ..guest::Guests::default()
        };
        let mut broken = Vec::new();
        tally.add_guests(&guests, &mut broken);
        assert_eq!((tally.passed, tally.failed, broken.len()), (1, 1, 1));
        let skipped = [
            "[SKIPPED, needs luck] c",
            "[SKIPPED, needs socat] kselftest/d",
            "every test of a guest: no room",
        ];
        assert_eq!(tally.skipped, skipped);
    }
}
