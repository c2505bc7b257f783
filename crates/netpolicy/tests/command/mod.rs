//! The command as a test runs it: what it prints, and a directory for it to work in.

use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

#[expect(dead_code, reason = "root tests copy them")]
mod tools;

pub(crate) fn netpolicy(arguments: &[&str]) -> Output {
    command(arguments).output().expect("runs")
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    tools::are_built();
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpolicy"));
    command.args(arguments).env("COLUMNS", "100").env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// A directory that goes away with the test.
pub(crate) struct Scratch(pub(crate) TempDir);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        Self(TempDir::with_prefix(format!("netpolicy-cli-{name}-")).expect("scratch directory"))
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.path().join(name), text).expect("file");
        self.path(name)
    }
}
