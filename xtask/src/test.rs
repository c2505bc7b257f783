//! Every test that this machine can run, here and in guests, and a count of those it cannot.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::guest::{Making, Skipped};
use crate::lanes::{self, Listed};
use crate::pace::Pace;
use crate::programs::{self, Program, Verdict, name_and_reason, read_line};
use crate::shell::{self, Result};
use crate::{deny, guest, linked, setup, tidy};

/// The steps of a run, and about how many seconds each takes from nothing on two CPUs with nothing else to do.
const STEPS: &[(&str, u64)] = &[
    (FORMAT, 5),
    (LINTS, 120),
    (DOCUMENTATION, 60),
    (TIDY, 5),
    (LINKED, 10),
    (OLDEST_RUST, 75),
    (BUILD, 180),
    (EXAMPLES, 30),
    (PURE, 60),
    (KERNELS, 240),
    (RUNNING_KERNEL, 300),
    (ELSEWHERE, 300),
];

const FORMAT: &str = "format";
const LINTS: &str = "lints";
const DOCUMENTATION: &str = "documentation";
const TIDY: &str = "tidy rules";
const LINKED: &str = "what is linked, and its licences";
const OLDEST_RUST: &str = "a build with the oldest Rust that is promised";
const BUILD: &str = "building the tests";
const EXAMPLES: &str = "examples in documentation";
const PURE: &str = "tests of rooms that read no clock";
const KERNELS: &str = "waiting for the guests' kernels";
const RUNNING_KERNEL: &str = "tests of this machine";
const ELSEWHERE: &str = "tests in guests, and packages: installed, upgraded, removed";

/// Packages whose tests read no clock: a kernel may be built beside them.
const READ_NO_CLOCK: &[&str] = &["fuzz", "measure", "model", "plan", "rules", "sim"];

/// The fuzzer's program, which only lints look at: a test replays what it found.
const FUZZER: &str = "netpolicy-fuzz/program";

/// When the lines of a test program are printed.
#[derive(Clone, Copy)]
enum Print {
    /// All as they come.
    Lines,
    /// The tests' as they come, and the others at the end if one failed: lines of other programs come between.
    Tests,
}

/// How a test program ends some of whose tests failed.
const TESTS_FAILED: &str = "exit status: 101";

/// What the runners counted, over all of them.
#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: Vec<Skipped>,
    /// Those that failed, by name.
    failures: Vec<String>,
    /// Those that failed beside other tests, and passed alone.
    unsteady: Vec<String>,
}

/// Format, lints and tidy rules.
pub(crate) fn check(arguments: &[String]) -> Result {
    format()?;
    lints()?;
    documentation()?;
    tidy::run(arguments)
}

fn format() -> Result {
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))
}

fn lints() -> Result {
    let mut clippy = shell::cargo();
    clippy.args(["clippy", "--quiet", "--workspace", "--all-targets", "--features", FUZZER]);
    clippy.args(["--", "--deny", "warnings"]);
    shell::run(&mut clippy)
}

fn documentation() -> Result {
    let mut doc = shell::cargo();
    doc.args(["doc", "--quiet", "--workspace", "--no-deps"]);
    shell::run(doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"))
}

/// Checks that the workspace compiles with the oldest Rust that it promises (`rust-version`), beside the build of the newest;
/// why not, as the line of a skipped test, where that Rust is not here.
fn oldest_rust() -> Result<Option<String>> {
    let version = setup::oldest_rust()?;
    let toolchain = format!("+{version}");
    if !setup::has_rust(&version) {
        return Ok(Some(format!("[SKIPPED, needs rustup and Rust {version}] the_oldest_rust_builds_it")));
    }
    let mut check = Command::new("cargo");
    // A toolchain that is asked for by name is not the one that runs this.
    check.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
    check.current_dir(shell::root());
    check.args([&toolchain, "check", "--quiet", "--workspace", "--target-dir"]);
    check.arg(shell::root().join("target/oldest-rust"));
    shell::run(check.env("RUSTFLAGS", "--cap-lints allow")).map(|()| None)
}

/// The checks, then the tests. What compiles and what reads no clock goes first, and the guests' kernels are fetched and built
/// beside it; then come the tests of the running kernel, then those in guests and of packages.
pub(crate) fn run(arguments: &[String]) -> Result {
    let given = |option: &str| arguments.iter().any(|argument| argument == option);
    let pure = given("--pure");
    if let Some(unknown) = arguments.iter().find(|a| !["--pure", "--no-guests"].contains(&a.as_str())) {
        return Err(format!("no option {unknown}: there are --pure and --no-guests"));
    }
    let target = shell::root().join("target");
    std::fs::create_dir_all(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    let mut pace = Pace::begin(&target.join("test-pace"), STEPS);
    let making = (shell::is_root() && !pure && !given("--no-guests")).then(Making::begin);

    pace.step(FORMAT, |_| format())?;
    pace.step(LINTS, |_| lints())?;
    pace.step(DOCUMENTATION, |_| documentation())?;
    pace.step(TIDY, |_| tidy::run(&[]))?;
    let denied = pace.step(LINKED, |_| linked::check().and_then(|()| deny::check()))?;
    let oldest = pace.step(OLDEST_RUST, |_| oldest_rust())?;
    let programs =
        pace.step(BUILD, |_| programs::build(&["--lib", "--bins", "--examples", "--test", "*"]))?;
    let (no_clock, clock): (Vec<_>, Vec<_>) = programs
        .into_iter()
        .partition(|program| READ_NO_CLOCK.iter().any(|name| program.directory.ends_with(name)));

    let mut tally = Tally::default();
    tally.passed += denied.passed;
    tally.skipped.extend(denied.skipped.iter().map(|why| Skipped::by("this machine", why)));
    match oldest {
        None => tally.passed += 1,
        Some(why) => tally.skipped.push(Skipped::by("this machine", &why)),
    }
    let mut broken = Vec::new();
    pace.step(EXAMPLES, |pace| {
        let mut examples = shell::cargo();
        examples.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
        broken.extend(tally.add(&mut examples, "examples", Print::Lines, pace).err());
    });
    pace.step(PURE, |pace| tally.add_all(&no_clock, pure, pace, &mut broken));
    let prepared = match making {
        Some(making) => Some(pace.step(KERNELS, |_| making.wait())),
        None => {
            pace.leave_out(KERNELS);
            None
        }
    };
    pace.step(RUNNING_KERNEL, |pace| {
        let (waiting, counting): (Vec<_>, Vec<_>) =
            clock.into_iter().partition(|program| program.waits_in_labs() && !pure);
        tally.add_all(&counting, pure, pace, &mut broken);
        for program in &waiting {
            broken.extend(tally.add_in_lanes(program, pace));
        }
    });
    if pure {
        pace.leave_out(ELSEWHERE);
    } else {
        pace.step(ELSEWHERE, |pace| tally.add_elsewhere(prepared, pace, &mut broken));
    }
    pace.end(STEPS);

    eprintln!();
    if !shell::is_root() {
        eprintln!("test: not root: the tests that need root were skipped; run `sudo -E make test` for all");
    }
    for skipped in &tally.skipped {
        eprintln!("SKIPPED {skipped}");
    }
    for test in &tally.unsteady {
        eprintln!("PASSED ALONE, FAILED BESIDE OTHER TESTS {test}");
    }
    for what in &broken {
        eprintln!("FAILED {what}");
    }
    let skipped: u64 = tally.skipped.iter().map(|skipped| skipped.tests).sum();
    println!("{} passed, {} failed, {skipped} skipped", tally.passed, tally.failed);
    match broken.first() {
        None if tally.passed > 0 => Ok(()),
        None => Err("no test ran".to_owned()),
        Some(what) => Err(what.clone()),
    }
}

impl Tally {
    /// Runs test programs one after the other.
    fn add_all(&mut self, programs: &[Program], pure: bool, pace: &Pace, broken: &mut Vec<String>) {
        for program in programs {
            let mut command = as_cargo_would(program, Command::new(&program.executable));
            if pure {
                command.env("NETPOLICY_TEST_PURE", "1");
            }
            broken.extend(self.add(&mut command, &program.name, Print::Lines, pace).err());
        }
    }

    /// Runs the tests of a program in lanes, and then those that run alone; what failed.
    fn add_in_lanes(&mut self, program: &Program, pace: &Pace) -> Vec<String> {
        let listed = match Listed::ask(as_cargo_would(program, Command::new(&program.executable))) {
            Ok(listed) => listed,
            Err(why) => return vec![why],
        };
        for test in &listed.skipped {
            println!("test {test} ... ignored");
            self.skipped.push(Skipped::by("this machine", test));
        }
        let (batches, alone) = listed.batches(|test| pace.expected_of(test));
        let name = program.name.as_str();
        eprintln!("+ {name} in {} to {} lanes", lanes::LANES, lanes::LANES_MAX);
        let run = |mut command: Command, names: &[String]| {
            let mut tally = Self::default();
            command.env(lanes::ONLY, names.join("\n"));
            let ended = tally.add(&mut command, name, Print::Tests, pace);
            (tally, ended)
        };
        let one_lane = |lane| {
            let mut ran = Vec::new();
            while let Some(names) = batches.take(lane) {
                ran.push(run(as_cargo_would(program, lanes::lane(&program.executable)), &names));
            }
            ran
        };
        let mut ended: Vec<(Self, Result)> = std::thread::scope(|scope| {
            let one_lane = &one_lane;
            let lanes: Vec<_> =
                (0..lanes::LANES_MAX).map(|lane| scope.spawn(move || one_lane(lane))).collect();
            let gone = |_| vec![(Self::default(), Err(format!("{name}: the thread of a lane panicked")))];
            lanes.into_iter().flat_map(|lane| lane.join().unwrap_or_else(gone)).collect()
        });
        let failures = ended.iter().map(|(tally, _)| tally.failures.len()).sum::<usize>();
        if (1..=lanes::AGAIN_MAX).contains(&failures) {
            for (tally, ended) in &mut ended {
                tally.run_again(ended, |names| {
                    run(as_cargo_would(program, lanes::lane(&program.executable)), names)
                });
            }
        }
        // These had no other beside them: their first verdict counts.
        if !alone.is_empty() {
            let mut command = Command::new(&program.executable);
            command.arg("--test-threads=1");
            ended.push(run(as_cargo_would(program, command), &alone));
        }
        let mut broken = Vec::new();
        for (tally, ended) in ended {
            self.passed += tally.passed;
            self.failed += tally.failed;
            self.unsteady.extend(tally.unsteady);
            broken.extend(ended.err());
        }
        broken
    }

    /// Runs once more, alone, what failed beside other tests: what counts is the second verdict, and the first is reported.
    fn run_again(&mut self, ended: &mut Result, run: impl FnOnce(&[String]) -> (Self, Result)) {
        // A program that died has a fault that no test's second verdict takes back.
        let failed = ended.as_ref().is_err_and(|why| why.ends_with(TESTS_FAILED));
        if !failed || self.failures.is_empty() || self.failures.len() as u64 != self.failed {
            return;
        }
        eprintln!("+ again, alone: {}", self.failures.join(", "));
        let (again, result) = run(&self.failures);
        if again.passed + again.failed != self.failed {
            return; // not all of them ran
        }
        self.passed += again.passed;
        self.failed = again.failed;
        self.unsteady = std::mem::take(&mut self.failures);
        self.unsteady.retain(|name| !again.failures.contains(name));
        self.failures = again.failures;
        *ended = result;
    }

    /// Runs a test command, passes its output through, counts its result lines and notes how long its tests took.
    fn add(&mut self, command: &mut Command, name: &str, print: Print, pace: &Pace) -> Result {
        if matches!(print, Print::Lines) {
            shell::show(command);
        }
        let spawned = command.stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("{}: {error}", shell::name(command)))?;
        let output = child.stdout.take().expect("stdout was asked for");
        let begun = Instant::now();
        let (mut times, mut at_the_end) = (Vec::new(), String::new());
        for line in BufReader::new(output).lines() {
            let line = line.map_err(|error| format!("reading the tests' output: {error}"))?;
            self.read(&line);
            let verdict = read_line(&line);
            match print {
                Print::Tests if verdict.is_none() => at_the_end.extend([line.as_str(), "\n"]),
                Print::Tests | Print::Lines => println!("{line}"),
            }
            if let Some((verdict @ (Verdict::Passed | Verdict::Failed), test)) = verdict {
                let name = name_and_reason(test).0.to_owned();
                if verdict == Verdict::Failed {
                    self.failures.push(name.clone());
                }
                times.push((name, begun.elapsed()));
            }
        }
        let status = child.wait().map_err(|error| format!("waiting for the tests: {error}"))?;
        if !status.success() {
            print!("{at_the_end}");
        }
        // A program that runs one test at a time says when each ended; of the others the whole is known.
        if name.ends_with(" root") || name.ends_with(" host") {
            for (test, took) in since_the_one_before(times) {
                pace.part(test, took);
            }
        } else {
            pace.part(name, begun.elapsed());
        }
        if status.success() { Ok(()) } else { Err(format!("{name}: {status}")) }
    }

    /// Runs what needs other systems: in guests what was skipped here, and beside them the trials of packages.
    fn add_elsewhere(&mut self, guests: Option<guest::Prepared>, pace: &Pace, broken: &mut Vec<String>) {
        let (mut packages, mut unpacked) = (Self::default(), Ok(()));
        let ran = std::thread::scope(|scope| {
            scope.spawn(|| unpacked = packages.add_packages(pace));
            guests.map(|guests| guests.run_skipped(|part| pace.expected_of(part)))
        });
        self.passed += packages.passed;
        self.failed += packages.failed;
        self.skipped.extend(packages.skipped);
        broken.extend(unpacked.err());
        match ran {
            None => {}
            Some(Ok(guests)) => self.add_guests(guests, pace, broken),
            Some(Err(why)) => broken.push(why),
        }
    }

    /// Runs the trials of packages, which are this program's own.
    fn add_packages(&mut self, pace: &Pace) -> Result {
        let here = std::env::current_exe().map_err(|error| format!("xtask's own place: {error}"))?;
        let mut trials = Command::new(here);
        trials
            .args(["release", "--trial"])
            .current_dir(shell::root())
            .env("CARGO", shell::cargo().get_program());
        self.add(&mut trials, "packages", Print::Lines, pace)
    }

    /// Counts what guests ran of what was skipped here. What they could not run is skipped for every machine's reasons.
    fn add_guests(&mut self, guests: guest::Guests, pace: &Pace, broken: &mut Vec<String>) {
        let known = |name: &String| {
            guests.passed.contains(name)
                || guests.failed.contains(name)
                || guests.skipped.iter().any(|skipped| skipped.name == *name)
        };
        self.skipped.retain(|skipped| !known(&skipped.name));
        self.passed += guests.passed.len() as u64;
        self.failed += guests.failed.len() as u64;
        self.unsteady.extend(guests.unsteady.iter().map(|name| format!("{name}, in a guest")));
        broken.extend(guests.failed.iter().map(|name| format!("in a guest, {name} failed")));
        broken.extend(guests.broken);
        self.skipped.extend(guests.skipped);
        for (test, took) in guests.took {
            pace.part(test, took);
        }
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
        } else if let Some((Verdict::Skipped, test)) = read_line(line) {
            self.skipped.push(Skipped::by("this machine", test));
        }
    }
}

/// The command of a test program with the environment that cargo would start it in.
fn as_cargo_would(program: &Program, mut command: Command) -> Command {
    command.current_dir(&program.directory).env("CARGO_MANIFEST_DIR", &program.directory);
    command.env("CARGO", shell::cargo().get_program());
    command.env("INSTA_UPDATE", "no").env("INSTA_WORKSPACE_ROOT", shell::root());
    command
}

/// How long each test took, of the times at which they ended.
fn since_the_one_before(ended: Vec<(String, Duration)>) -> Vec<(String, Duration)> {
    let mut before = Duration::ZERO;
    let since = |(test, at): (String, Duration)| {
        let took = at.saturating_sub(before);
        before = at;
        (test, took)
    };
    ended.into_iter().map(since).collect()
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
        assert_eq!(tally.skipped, [Skipped::by("this machine", "[SKIPPED, needs root] a_lab_is_made")]);
    }

    #[test]
    fn what_failed_beside_others_counts_as_it_ends_alone_and_is_named() {
        let failed = |names: &[&str], passed| Tally {
            passed,
            failed: names.len() as u64,
            failures: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Tally::default()
        };
        let mut tally = failed(&["a", "b"], 3);
        let mut ended = Err("exit status: 101".to_owned());
        tally.run_again(&mut ended, |names| {
            assert_eq!(names, ["a", "b"]);
            (failed(&["b"], 1), Err("exit status: 101".to_owned()))
        });
        assert_eq!((tally.passed, tally.failed, ended.is_err()), (4, 1, true));
        assert_eq!((tally.unsteady, tally.failures), (vec!["a".to_owned()], vec!["b".to_owned()]));

        // A program that died, or did not name each test that failed, is not run again.
        for (failures, why) in [(1, "signal: 11"), (2, TESTS_FAILED)] {
            let mut tally = Tally { failed: failures, ..failed(&["a"], 0) };
            let mut ended = Err(why.to_owned());
            tally.run_again(&mut ended, |_| panic!("it is not run"));
            assert!(ended.is_err() && tally.unsteady.is_empty());
        }
        // What did not run the second time has not passed.
        let mut tally = failed(&["a"], 0);
        let mut ended = Err(TESTS_FAILED.to_owned());
        tally.run_again(&mut ended, |_| (Tally::default(), Ok(())));
        assert!(ended.is_err() && tally.failed == 1 && tally.unsteady.is_empty());
    }

    #[test]
    fn what_a_guest_ran_is_not_skipped_and_what_failed_there_fails_all() {
        let here = |test| Skipped::by("this machine", test);
        let tests =
            ["[SKIPPED, needs flower] a", "[SKIPPED, needs flower] b", "[SKIPPED, needs luck] c", "d"];
        let mut tally = Tally { skipped: tests.map(here).to_vec(), ..Tally::default() };
        let there = Skipped::by("a guest", "[SKIPPED, needs patience] c");
        let guests = guest::Guests {
            passed: ["a".to_owned()].into(),
            failed: ["b".to_owned()].into(),
            skipped: vec![there.clone()],
            broken: vec!["a guest could not be made: no room".to_owned()],
            ..guest::Guests::default()
        };
        let pace = Pace::begin(std::path::Path::new("/dev/null"), &[]);
        let mut broken = Vec::new();
        tally.add_guests(guests, &pace, &mut broken);
        assert_eq!((tally.passed, tally.failed, broken.len()), (1, 1, 2));
        assert_eq!(
            tally.skipped,
            [here("d"), there],
            "the reasons are those of the machines that skipped it"
        );
    }

    #[test]
    fn tests_that_run_one_after_the_other_took_the_time_between_their_ends() {
        let at = |seconds| Duration::from_secs(seconds);
        let ended = [("a", 2), ("b", 2), ("c", 7)].map(|(test, second)| (test.to_owned(), at(second)));
        let took: Vec<_> = since_the_one_before(ended.to_vec()).into_iter().map(|(_, took)| took).collect();
        assert_eq!(took, [at(2), at(0), at(5)]);
    }
}
