//! Runs a task for developers: `cargo xtask TASK`. This is their only tool: the Makefile's `demo` and `test`
//! call it, and so does CI, so CI runs nothing that you cannot run. It has few dependencies, so that it
//! builds quickly on a new machine and can install the rest.

mod bench;
mod demo;
mod deny;
mod files;
mod fuzz;
mod guest;
mod image;
mod leftovers;
mod linked;
mod nextest;
mod options;
mod programs;
mod release;
mod rollout;
mod setup;
mod shell;
mod steps;
mod tally;
mod test;

use std::process::ExitCode;

/// A task's name, what it does, and the function that does it.
type Task = (&'static str, &'static str, fn(&[String]) -> shell::Result);

const TASKS: &[Task] = &[
    (
        "setup",
        "install the requirements of building and testing [demo|release: only those of the demo or a release]",
        setup::run,
    ),
    ("check", "check format, lints and documentation: the fast loop", test::check),
    (
        "test",
        "run the tests for each commit [PART: a crate's directory, or part of tests' names]",
        test::fast,
    ),
    (
        "test-all",
        "run all tests, including guests, the kernel's own, packages, and the oldest Rust",
        test::all,
    ),
    ("fuzz", "run every fuzz target for a while [--seconds N per target] [TARGET...]", fuzz::run),
    ("guest", "run other kernels on this machine's files [build|boot|test, --patched|--qemu]", guest::run),
    ("bench", "produce the figures of README and docs, each with its command [NAME...]", bench::run),
    (
        "install",
        "install the program and its files below $DESTDIR$PREFIX; starts nothing",
        release::contents::install,
    ),
    (
        "release",
        "create all artefacts of a version [--out, --suffix, --program, --twice, --test, --trial]",
        release::run,
    ),
    (
        "source-packages",
        "create a Debian source package and a source rpm that build offline [--out DIRECTORY]",
        release::source::run,
    ),
    (
        "linked",
        "print the licences of linked components [--check: run cargo-deny; --sbom FILE: CycloneDX]",
        linked::run,
    ),
    ("image", "create an OCI image of the program, as one file [--program FILE, --out FILE]", image::run),
    ("sweep", "remove what a killed test run left behind; called by each run [PID]", leftovers::run),
    ("demo", "run the short form of the experiment, with a report", demo::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = arguments.first().map(String::as_str);
    let Some((_, _, task)) = TASKS.iter().find(|(name, ..)| Some(*name) == wanted) else {
        eprintln!("usage: cargo xtask TASK\n");
        for (name, does, _) in TASKS {
            eprintln!("  {name:15} {does}");
        }
        return ExitCode::from(if matches!(wanted, Some("help" | "--help" | "-h")) { 0 } else { 2 });
    };
    match task(&arguments[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("xtask: {failed}");
            ExitCode::FAILURE
        }
    }
}
