//! Runs the netpolicy command in a test: a working directory for it, and its output.

use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

pub fn netpolicy(arguments: &[&str]) -> Output {
    command(arguments).output().expect("runs")
}

pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(crate::programs::netpolicy());
    command.args(arguments).env("COLUMNS", "100").env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// A directory that is removed when the test ends.
pub struct Scratch(pub TempDir);

impl Scratch {
    pub fn new(name: &str) -> Self {
        Self(TempDir::with_prefix(format!("netpolicy-cli-{name}-")).expect("scratch directory"))
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    pub fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.path().join(name), text).expect("file");
        self.path(name)
    }
}
