//! Every test that this machine can run, here and in guests, and a count of those it cannot.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::guest::{Making, Skipped};
use crate::lanes::{self, Batches, Listed};
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
    (COUNTING, 30),
    (RUNNING_KERNEL, 540),
    (KERNELS, 120),
    (GUESTS, 240),
    (AGAIN, 30),
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
const COUNTING: &str = "tests that have none beside them";
const RUNNING_KERNEL: &str = "tests in labs, and beside them packages, and the first guest";
const KERNELS: &str = "waiting for the guests' kernels";
const GUESTS: &str = "tests in guests";
const AGAIN: &str = "once more, alone, what failed beside other tests";

/// Packages whose tests read no clock: they come first.
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

/// How long a test program may take, or a lane for the tests of a turn: one that hangs ends the run with its name.
const PROGRAM_LIMIT: Duration = Duration::from_secs(25 * 60);

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

/// The checks, then the tests. What compiles and what reads no clock goes first, then what counts on this machine; then come the
/// tests that wait in labs, with packages and the first guest beside them, and then the other guests. Their kernels are fetched
/// at once, and built in what time the CPUs have left.
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
    let of_guests = clock.iter().filter(|program| program.runs_in_guests()).cloned().collect();
    let (counting, clock): (Vec<_>, Vec<_>) = clock.into_iter().partition(Program::counts);
    let (in_labs, others): (Vec<_>, Vec<_>) =
        clock.into_iter().partition(|program| !pure && program.waits_in_labs());
    let in_labs = pace.step(COUNTING, |pace| {
        tally.add_all(&counting, pure, pace, &mut broken);
        let alone = |program| tally.add_alone(program, pace, &mut broken);
        in_labs.into_iter().filter_map(alone).collect::<Vec<_>>()
    });
    let offered = making.map(|making| making.offer(of_guests));
    let beside = pace.step(RUNNING_KERNEL, |pace| {
        if pure {
            tally.add_all(&others, pure, pace, &mut broken);
            return Vec::new();
        }
        tally.add_beside(&in_labs, &others, pace, &mut broken)
    });
    if let Some(offered) = offered {
        pace.step(KERNELS, |_| offered.begin_others());
        pace.step(GUESTS, |pace| match offered.end() {
            Ok(guests) => tally.add_guests(guests, pace, &mut broken),
            Err(why) => broken.push(why),
        });
    } else {
        pace.leave_out(KERNELS);
        pace.leave_out(GUESTS);
    }
    pace.step(AGAIN, |pace| tally.add_again(beside, pace, &mut broken));
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

    /// Runs the tests of a program of labs that must have none beside them, and counts what it skips; what is left for lanes.
    fn add_alone(&mut self, program: Program, pace: &Pace, broken: &mut Vec<String>) -> Option<InLabs> {
        let listed = match Listed::ask(as_cargo_would(&program, Command::new(&program.executable))) {
            Ok(listed) => listed,
            Err(why) => {
                broken.push(why);
                return None;
            }
        };
        for test in &listed.skipped {
            println!("test {test} ... ignored");
            self.skipped.push(Skipped::by("this machine", test));
        }
        let (batches, alone) = listed.batches(|test| pace.expected_of(test));
        if !alone.is_empty() {
            let mut command = Command::new(&program.executable);
            command.arg("--test-threads=1");
            let mut command = as_cargo_would(&program, command);
            command.env(lanes::ONLY, alone.join("\n"));
            let mut tally = Self::default();
            let ended = tally.add(&mut command, &program.name, Print::Tests, pace);
            broken.extend(ended.and_then(|()| tally.ran_all(&alone)).err());
            self.join(tally);
        }
        Some(InLabs { program, batches })
    }

    /// Runs tests that wait in labs, in lanes, and beside these all other programs and the trials of packages. Returned is what failed,
    /// and may pass alone.
    fn add_beside<'a>(
        &mut self,
        in_labs: &'a [InLabs],
        others: &'a [Program],
        pace: &Pace,
        broken: &mut Vec<String>,
    ) -> Vec<Beside<'a>> {
        let (mut all, mut packages, mut unpacked) = (Vec::new(), Self::default(), Ok(()));
        std::thread::scope(|scope| {
            scope.spawn(|| unpacked = packages.add_packages(pace));
            let others = scope.spawn(|| run_others(others, pace));
            for InLabs { program, batches } in in_labs {
                all.extend(run_in_lanes(program, batches, pace));
            }
            match others.join() {
                Ok(others) => all.extend(others),
                Err(_) => broken.push("the thread of the programs beside the lanes panicked".to_owned()),
            }
        });
        self.join(packages);
        broken.extend(unpacked.err());
        let (failed, passed): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|beside| !beside.tally.failures.is_empty());
        for beside in passed {
            self.join(beside.tally);
            broken.extend(beside.ended.err());
        }
        failed
    }

    /// Runs once more what failed beside others, if it is little.
    fn add_again(&mut self, failed: Vec<Beside>, pace: &Pace, broken: &mut Vec<String>) {
        let failures = failed.iter().map(|beside| beside.tally.failures.len()).sum::<usize>();
        for mut beside in failed {
            if failures <= lanes::AGAIN_MAX {
                beside.run_again(pace);
            }
            self.join(beside.tally);
            broken.extend(beside.ended.err());
        }
    }

    /// Adds what another one counted.
    fn join(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.failures.extend(other.failures);
        self.unsteady.extend(other.unsteady);
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
        let mut limited = shell::limited(command, PROGRAM_LIMIT);
        let spawned = limited.stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("{}: {error}", shell::name(command)))?;
        let output = child.stdout.take().expect("stdout was asked for");
        let begun = Instant::now();
        let (mut times, mut at_the_end) = (Vec::new(), String::new());
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map_err(|error| format!("reading the tests' output: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            let line = line.as_ref();
            self.read(line);
            let verdict = read_line(line);
            match print {
                Print::Tests if verdict.is_none() => at_the_end.extend([line, "\n"]),
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
        match status.code() {
            Some(0) => Ok(()),
            Some(shell::TIMED_OUT) => {
                Err(format!("{name}: not at its end after {} s", PROGRAM_LIMIT.as_secs()))
            }
            _ => Err(format!("{name}: {status}")),
        }
    }

    /// A program that was asked for tests which it had listed as those that it can run has run them all.
    fn ran_all(&self, names: &[String]) -> Result {
        let ran = self.passed + self.failed;
        if ran == names.len() as u64 {
            return Ok(());
        }
        Err(format!("{ran} of {} tests ran that could run here: {}", names.len(), names.join(", ")))
    }

    /// Runs the trials of packages, which are this program's own.
    fn add_packages(&mut self, pace: &Pace) -> Result {
        let here = std::env::current_exe().map_err(|error| format!("xtask's own place: {error}"))?;
        let [first, others @ ..] = shell::BESIDE_OTHERS;
        let mut trials = Command::new(first);
        trials
            .args(others)
            .arg(here)
            .args(["release", "--trial", "--program", "target/debug/netpolicy"])
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

/// A program of labs, and its tests that may have others beside them.
struct InLabs {
    program: Program,
    batches: Batches,
}

/// How tests of a program went that had others beside them.
struct Beside<'a> {
    program: &'a Program,
    tally: Tally,
    ended: Result,
}

impl<'a> Beside<'a> {
    fn run(program: &'a Program, mut command: Command, print: Print, pace: &Pace) -> Self {
        let mut tally = Tally::default();
        let ended = tally.add(&mut command, &program.name, print, pace);
        Self { program, tally, ended }
    }

    /// In a lane, or as in one: these tests of a program of labs.
    fn in_lane(program: &'a Program, names: &[String], pace: &Pace) -> Self {
        let mut command = as_cargo_would(program, lanes::lane(&program.executable));
        command.env(lanes::ONLY, names.join("\n"));
        let mut beside = Self::run(program, command, Print::Tests, pace);
        beside.ended = beside.ended.and_then(|()| beside.tally.ran_all(names));
        beside
    }

    fn run_again(&mut self, pace: &Pace) {
        let program = self.program;
        self.tally.run_again(&mut self.ended, |names| {
            let again = if program.waits_in_labs() {
                Self::in_lane(program, names, pace)
            } else {
                let mut command = as_cargo_would(program, Command::new(&program.executable));
                command.arg("--exact").args(names);
                Self::run(program, command, Print::Lines, pace)
            };
            (again.tally, again.ended)
        });
    }
}

/// Runs the tests of a program in lanes.
fn run_in_lanes<'a>(program: &'a Program, batches: &Batches, pace: &Pace) -> Vec<Beside<'a>> {
    eprintln!("+ {} in {} to {} lanes", program.name, lanes::LANES, lanes::LANES_MAX);
    let one_lane = |lane| {
        let mut ran = Vec::new();
        while let Some(names) = batches.take(lane) {
            ran.push(Beside::in_lane(program, &names, pace));
        }
        ran
    };
    std::thread::scope(|scope| {
        let one_lane = &one_lane;
        let lanes: Vec<_> = (0..lanes::LANES_MAX).map(|lane| scope.spawn(move || one_lane(lane))).collect();
        let gone = |_| {
            let ended = Err(format!("{}: the thread of a lane panicked", program.name));
            vec![Beside { program, tally: Tally::default(), ended }]
        };
        lanes.into_iter().flat_map(|lane| lane.join().unwrap_or_else(gone)).collect()
    })
}

/// Runs test programs one after the other while other tests run, and counts each for itself.
fn run_others<'a>(programs: &'a [Program], pace: &Pace) -> Vec<Beside<'a>> {
    let run = |program| {
        let command = as_cargo_would(program, Command::new(&program.executable));
        Beside::run(program, command, Print::Tests, pace)
    };
    programs.iter().map(run).collect()
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
    fn a_test_that_was_listed_and_did_not_run_is_no_success() {
        let names = ["a", "b"].map(str::to_owned);
        assert_eq!(Tally { passed: 1, failed: 1, ..Tally::default() }.ran_all(&names), Ok(()));
        let why = Tally { passed: 1, ..Tally::default() }.ran_all(&names).expect_err("one was skipped");
        assert_eq!(why, "1 of 2 tests ran that could run here: a, b");
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
