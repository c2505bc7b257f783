//! Runs the tests: `make test` before each commit, `make test-all` for everything.

use std::process::Command;

use crate::files;
use crate::guest::{Making, Skipped};
use crate::leftovers::Run;
use crate::programs::{self, Program};
use crate::shell::{self, Result};
use crate::steps::Steps;
use crate::tally::Tally;
use crate::{deny, guest, nextest, release, setup};

/// The steps of a run, and their default durations in seconds on two CPUs.
const STEPS: &[(&str, u64)] =
    &[(FORMAT, 5), (LINTS, 120), (DOCUMENTATION, 60), (BUILD, 180), (TESTS, 360), (EXAMPLES, 30)];

/// The step of `make test` after [`STEPS`].
const STEPS_OF_FAST: &[(&str, u64)] = &[(SMOKE, 60)];

/// The steps of `make test-all` after [`STEPS`].
const STEPS_OF_ALL: &[(&str, u64)] =
    &[(LINKED, 10), (OLDEST_RUST, 75), (PACKAGES, 240), (SECOND_MACHINE, 45), (GUESTS, 900), (AGAIN, 10)];

const FORMAT: &str = "format";
const LINTS: &str = "lints";
const DOCUMENTATION: &str = "documentation";
const BUILD: &str = "building the tests";
const TESTS: &str = "tests on this machine";
const EXAMPLES: &str = "examples in documentation";
const SMOKE: &str = "one test in a guest";
const LINKED: &str = "licences of linked components";
const OLDEST_RUST: &str = "a build with the oldest Rust";
const PACKAGES: &str = "trials of the packages";
const GUESTS: &str = "tests in guests";
const SECOND_MACHINE: &str = "a guest as a second machine";
const AGAIN: &str = "failed tests again, one at a time";

/// The cargo feature that includes the fuzzer's program. The program is only linted here, because a test
/// replays its findings.
const FUZZER: &str = "netpolicy-fuzz/program";

/// The maximum number of failed tests to repeat, one at a time. If more fail, the cause is not a lack of CPU.
const AGAIN_MAX: usize = 8;

/// The nextest filter for tests that change the host: they need root, and run in separate namespaces.
const CHANGES_HOST: &str = "binary(root)";

/// Checks format, lints and documentation.
pub(crate) fn check(_: &[String]) -> Result {
    format()?;
    lints()?;
    documentation()
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

/// Checks that the workspace compiles with its minimum Rust version (`rust-version`), if that is installed.
fn oldest_rust() -> Result<Tally> {
    let version = setup::oldest_rust()?;
    let toolchain = format!("+{version}");
    if !setup::has_rust(&version) {
        let skipped = format!("[SKIPPED, needs rustup and Rust {version}] the_oldest_rust_builds_it");
        return Ok(Tally::of_skipped(&skipped));
    }
    let mut check = Command::new("cargo");
    // Remove these variables: cargo sets them to the toolchain that runs xtask.
    check.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
    check.current_dir(shell::root());
    check.args([&toolchain, "check", "--quiet", "--workspace", "--target-dir"]);
    check.arg(shell::root().join("target/oldest-rust"));
    shell::run(check.env("RUSTFLAGS", "--cap-lints allow")).map(|()| Tally::of_passed(1))
}

/// Runs `cargo xtask test [PART]`: the tests that an ordinary change can break, or the tests of one part.
pub(crate) fn fast(arguments: &[String]) -> Result {
    match arguments {
        [] => {}
        [part] if !part.starts_with('-') => return one_part(part),
        _ => {
            return Err(
                "usage: cargo xtask test [PART]: a crate's directory, or part of tests' names".to_owned()
            );
        }
    }
    let run = Run::begin()?;
    let mut steps = begin("test-steps", STEPS_OF_FAST)?;
    let mut tally = Tally::default();
    let programs = tally.run_on_this_machine(&mut steps, &run)?;
    tally.add(&mut steps, SMOKE, || guest::smoke(&programs));
    steps.end();
    tally.end()
}

/// Runs `cargo xtask test-all`: all tests, including those in guests.
pub(crate) fn all(arguments: &[String]) -> Result {
    if !arguments.is_empty() {
        return Err("usage: cargo xtask test-all".to_owned());
    }
    let run = Run::begin()?;
    let mut steps = begin("test-all-steps", STEPS_OF_ALL)?;
    let mut tally = Tally::default();
    // Start to fetch and build the guests now. The builds use CPU time that is otherwise idle.
    let making = shell::is_root().then(Making::begin);
    let programs = tally.run_on_this_machine(&mut steps, &run)?;
    tally.add(&mut steps, LINKED, deny::check);
    tally.add(&mut steps, OLDEST_RUST, oldest_rust);
    let built = shell::root().join("target/debug/netpolicy");
    tally.add(&mut steps, PACKAGES, || release::trial::run(None, Some(&built)));
    tally.add(&mut steps, SECOND_MACHINE, guest::second_machine);
    steps.run(GUESTS, |_| {
        if let Some(making) = making {
            tally.add_guests(making.run(&programs));
        }
    });
    steps.run(AGAIN, |_| tally.run_again(&run));
    steps.end();
    tally.end()
}

fn begin(record: &str, further: &[(&'static str, u64)]) -> Result<Steps> {
    let target = shell::root().join("target");
    files::make_directory(&target)?;
    Ok(Steps::begin(&target.join(record), &[STEPS, further].concat()))
}

/// Runs the tests of one crate, given by its directory, or the tests with a word in their names. Tests of the
/// whole program that change the host take minutes, so they are selected only by name.
fn one_part(part: &str) -> Result {
    let run = Run::begin()?;
    let package = ["crates", "tools", "."].iter().find_map(|below| {
        let directory = shell::root().join(below).join(part);
        directory.join("Cargo.toml").is_file().then(|| directory.display().to_string())
    });
    let ran = match package {
        // Build all three programs: the tests of both packages start them, and building one package's tests
        // does not build another package's programs.
        Some(_) if ["netpolicy", "lab"].contains(&part) => {
            let programs =
                ["netpolicy", "netpolicy-tc", "netpolicy-lab"].map(|name| ["--package", name]).concat();
            let own = if part == "lab" { "netpolicy-lab" } else { part };
            let own = format!("package(={own}) - binary(root)");
            nextest::run(&[&programs[..], &["-E", &own]].concat(), &run, None)?
        }
        Some(directory) => {
            let manifest = format!("{directory}/Cargo.toml");
            nextest::run(
                &["--manifest-path", &manifest, "-E", "all() - (binary(root) - package(netpolicy-linux))"],
                &run,
                None,
            )?
        }
        None => nextest::run(&["--workspace", part], &run, None)?,
    };
    println!("{} passed, {} failed", ran.passed, ran.failed.len());
    if ran.failed.is_empty() { Ok(()) } else { Err("tests failed".to_owned()) }
}

impl Tally {
    /// Runs the checks, and every test that this machine can run. Returns the test programs with tests for
    /// guests.
    fn run_on_this_machine(&mut self, steps: &mut Steps, run: &Run) -> Result<Vec<Program>> {
        steps.run(FORMAT, |_| format())?;
        steps.run(LINTS, |_| lints())?;
        steps.run(DOCUMENTATION, |_| documentation())?;
        let mut programs =
            steps.run(BUILD, |_| programs::build(&["--lib", "--bins", "--examples", "--test", "*"]))?;
        programs.retain(Program::names_what_it_skips);
        for program in &programs {
            let skipped = program.skipped()?;
            self.skipped.extend(skipped.iter().map(|test| Skipped::here(test)));
        }
        let ran = steps.run(TESTS, |left| nextest::run(&["--workspace"], run, Some(left)))?;
        self.passed += ran.passed;
        self.failed.extend(ran.failed);
        self.add(steps, EXAMPLES, || {
            let mut cargo = shell::cargo();
            cargo.args(["test", "--quiet", "--workspace", "--doc", "--no-fail-fast"]);
            run.mark(&mut cargo);
            shell::run(&mut cargo).map(|()| Self::default())
        });
        Ok(programs)
    }

    /// Runs a step, and adds its results.
    fn add(&mut self, steps: &mut Steps, step: &'static str, work: impl FnOnce() -> Result<Self>) {
        match steps.run(step, |_| work()) {
            Ok(ran) => {
                self.passed += ran.passed;
                self.skipped.extend(ran.skipped);
                self.unsteady.extend(ran.unsteady);
                self.failed.extend(ran.failed);
            }
            Err(why) => self.failed.push(format!("{step}: {why}")),
        }
    }

    /// Repeats failed tests that change the host, one at a time. On a shared machine, the second verdict
    /// counts; the failure in the first attempt is a bug to fix.
    fn run_again(&mut self, run: &Run) {
        let failed: Vec<String> =
            self.failed.iter().filter(|test| test.contains("::root ")).cloned().collect();
        if failed.is_empty() || failed.len() > AGAIN_MAX {
            return;
        }
        let filter = format!("({}) & ({CHANGES_HOST})", nextest::filter(&failed));
        match nextest::run(&["--workspace", "--test-threads", "1", "-E", &filter], run, None) {
            Ok(again) => {
                // A test that did not run in the second attempt has not passed.
                if again.passed + again.failed.len() as u64 != failed.len() as u64 {
                    return;
                }
                let passed = |test: &String| failed.contains(test) && !again.failed.contains(test);
                self.unsteady.extend(self.failed.iter().filter(|test| passed(test)).cloned());
                self.failed.retain(|test| !passed(test));
                self.passed += again.passed;
            }
            Err(why) => self.failed.push(why),
        }
    }
}
