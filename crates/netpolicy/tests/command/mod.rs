//! The command as a test runs it: what it prints, and a directory for it to work in.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

pub(crate) fn netpolicy(arguments: &[&str]) -> Output {
    command(arguments).output().expect("runs")
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpolicy"));
    command.args(arguments).env("COLUMNS", "100").env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// A directory that goes away with the test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("netpolicy-cli-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("scratch directory");
        Self(dir)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).expect("file");
        self.path(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
