//! Names the released programs, builds the test programs, and parses the lines that they print.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::files::About as _;
use crate::shell::{self, Result};

/// The programs by cargo's names. The first belongs to the package `netpolicy`; the others to
/// `netpolicy-tools`.
pub(crate) const PROGRAMS: [&str; 3] = ["netpolicy", "netpolicy-tc", "netpolicy-lab"];

/// A test program and the directory where cargo would start it.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) executable: PathBuf,
    /// The directory of the program's package.
    pub(crate) directory: PathBuf,
    /// The name of the test program, such as `plan lib` or `linux test root`.
    pub(crate) name: String,
}

impl Program {
    /// Whether the program's tests name their needs, so that some of them may run only in guests.
    pub(crate) fn names_what_it_skips(&self) -> bool {
        self.name.ends_with(" test root") || self.name.ends_with(" test host")
    }

    /// Returns the tests whose needs this machine does not meet, as `[SKIPPED, needs X] NAME`. Runs no test.
    pub(crate) fn skipped(&self) -> Result<Vec<String>> {
        let mut list = Command::new(&self.executable);
        list.current_dir(&self.directory).args(["--list", "--ignored"]);
        let output = list.output().about(&self.executable)?;
        if !output.status.success() {
            return Err(format!("{} --list: {}", self.executable.display(), output.status));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }
}

/// The verdict on a test in a line of a test program's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// Cargo options that select a test of each program that netpolicy execs, because cargo builds a program
/// together with its tests.
pub(crate) const OF_TOOLS: [&str; 2] = ["--test", "program"];

/// Builds the test programs that cargo's `selection` selects. They are sorted by name.
pub(crate) fn build(selection: &[&str]) -> Result<Vec<Program>> {
    let mut cargo = shell::cargo();
    cargo
        .args(["test", "--quiet", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        .args(selection);
    shell::show(&cargo);
    let said = cargo.stderr(std::process::Stdio::inherit()).output();
    let said = said.map_err(|error| format!("cargo: {error}"))?;
    let text = String::from_utf8_lossy(&said.stdout);
    if !said.status.success() {
        return Err(format!("the tests could not be built: cargo {}", said.status));
    }
    let mut programs: Vec<_> = text.lines().filter_map(read_artifact).collect();
    // Cargo prints them in the order in which their builds end, which varies.
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    if programs.is_empty() { Err("cargo named no test program".to_owned()) } else { Ok(programs) }
}

/// Parses a message of cargo: returns the test program that was built, if the message is about one.
fn read_artifact(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
    let (package, kind) = (directory.file_name()?.display(), message["target"]["kind"][0].as_str()?);
    let name = match kind {
        "lib" => format!("{package} {kind}"),
        _ => format!("{package} {kind} {}", message["target"]["name"].as_str()?),
    };
    let executable = message["executable"].as_str()?.into();
    Some(Program { executable, directory: directory.to_path_buf(), name })
}

/// Parses a line of libtest's or libtest-mimic's output.
pub(crate) fn read_line(line: &str) -> Option<(Verdict, &str)> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let verdict = match verdict.trim().split([',', ' ']).next()? {
        "ok" => Verdict::Passed,
        "FAILED" => Verdict::Failed,
        "ignored" => Verdict::Skipped,
        _ => return None,
    };
    Some((verdict, name.trim()))
}

/// Splits a test's name from the prefix of libtest-mimic. Returns the name, and the reason for skipping the
/// test, which is in the prefix.
pub(crate) fn name_and_reason(test: &str) -> (&str, &str) {
    match test.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((kind, name)) => (name.trim(), kind.strip_prefix("SKIPPED, ").unwrap_or(kind)),
        None => (test, "ignored"),
    }
}

#[cfg(test)]
mod reading {
    use super::*;

    #[test]
    fn a_test_is_recognised_by_its_name_wherever_it_ran() {
        assert_eq!(read_line("test knobs/x_is_set     ... ok"), Some((Verdict::Passed, "knobs/x_is_set")));
        assert_eq!(read_line("test a ... FAILED"), Some((Verdict::Failed, "a")));
        assert_eq!(read_line("test b ... ignored, it is slow"), Some((Verdict::Skipped, "b")));
        let skipped =
            read_line("test [SKIPPED, needs flower] rules/flower ... ignored").expect("it is a test's line");
        assert_eq!(skipped.0, Verdict::Skipped);
        assert_eq!(name_and_reason(skipped.1), ("rules/flower", "needs flower"));
        assert_eq!(read_line("test result: ok. 1 passed; 0 failed"), None);
    }

    #[test]
    fn cargo_names_the_program_and_its_directory() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/p/crates/linux/Cargo.toml","target":{"kind":["test"],"name":"root","test":true},"profile":{"opt_level":"0","test":true},"executable":"/p/target/debug/deps/root-1"}"#;
        let program = read_artifact(message).expect("it is a test program");
        assert_eq!(program.executable, Path::new("/p/target/debug/deps/root-1"));
        assert_eq!(program.directory, Path::new("/p/crates/linux"));
        assert_eq!(program.name, "linux test root");
        let program =
            message.replace("\"opt_level\":\"0\",\"test\":true", "\"opt_level\":\"0\",\"test\":false");
        assert!(read_artifact(&program).is_none(), "a program that tests only start");
    }
}
