//! The process that runs a session.

use std::ffi::OsString;
use std::fs::File;
use std::io::{PipeReader, Seek, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use session::{Fault, Session};

use super::params::SessionCall;

/// The maximum duration of a session, in seconds.
pub const SESSION_SECONDS_MAX: u64 = 3600;

/// The key of the JSON object in the last line that a session's process writes.
const END_KEY: &str = "netpolicy_session_end";

/// The result of a session, which its process writes as its last line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionEnd {
    /// The exit code of the session's command.
    pub exit: u8,
    /// Why the command failed; `None` if it did not.
    pub why: Option<String>,
    /// A hint for the client.
    pub hint: Option<String>,
    /// The transactions that the command left in force.
    pub transactions: Vec<String>,
}

/// Formats the last line of a session's process.
///
/// # Panics
/// Never: the fields are text and numbers.
pub fn end_line(end: &SessionEnd) -> String {
    let value = serde_json::to_value(end).expect("text and numbers");
    format!("{}\n", serde_json::json!({ END_KEY: value }))
}

/// Returns the session's result if this line is the last one of a session's process, otherwise `None`.
pub(super) fn end_of(line: &serde_json::Value) -> Option<SessionEnd> {
    serde_json::from_value(line.get(END_KEY)?.clone()).ok()
}

/// The program that runs sessions.
#[derive(Clone, Debug)]
pub struct SessionProgram {
    /// The path of the program.
    pub program: PathBuf,
    /// The words at the beginning of the program's command line.
    pub words: Vec<OsString>,
    /// The words that select the policy files. They are omitted if the call contains a policy.
    pub policy_words: Vec<OsString>,
    /// The words that give the session the daemon's permissions for disruptive, irreversible and inferred
    /// changes.
    pub allow_words: Vec<OsString>,
}

impl SessionProgram {
    /// Returns netpolicy itself as the program, with the daemon's global options and permissions.
    pub fn of_daemon(session: &Session, options: &crate::DaemonOptions) -> Self {
        let option = |name: &str, value: &std::path::Path| {
            let mut word = OsString::from(format!("--{name}="));
            word.push(value);
            word
        };
        let mut words = vec![
            "--output=jsonl".into(),
            "--color=never".into(),
            option("state-dir", &session.state_dir),
            option("app-request-dir", &session.app_request_dir),
        ];
        words.extend(session.recipe_dirs.iter().map(|dir| option("recipe-dir", dir)));
        if let Some(socket) = linux::attach::socket() {
            words.push(option("api-attach", socket));
        }
        let mut policy_words: Vec<OsString> =
            session.policy_files.iter().map(|file| option("policy-file", file)).collect();
        policy_words.extend(session.policy_dirs.iter().map(|dir| option("policy-dir", dir)));
        let allowed = [
            (options.allow.disruptive, "--disruptive"),
            (options.allow.irreversible, "--allow-irreversible"),
            (options.inferred, "--allow-inferred"),
        ];
        let allow_words = allowed.into_iter().filter(|(allowed, _)| *allowed);
        let allow_words = allow_words.map(|(_, word)| word.into()).collect();
        Self { program: "/proc/self/exe".into(), words, policy_words, allow_words }
    }

    /// Starts the process for a call. Returns the process and the pipe for its output.
    ///
    /// # Errors
    /// If a pipe, a file or a process cannot be created.
    pub(super) fn start(&self, call: &SessionCall, caller: &str) -> Result<(Child, PipeReader), Fault> {
        let failed = |error| Fault::file("the process of a session", error);
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        let mut command = Command::new(&self.program);
        command.args(&self.words);
        command.arg(format!("--api-session={}", std::process::id()));
        command.arg(format!("--api-caller={caller}"));
        match &call.policy {
            Some(text) => {
                command.arg("--policy-file=/dev/stdin").stdin(policy(text).map_err(failed)?);
            }
            None => {
                command.args(&self.policy_words).stdin(Stdio::null());
            }
        }
        command.args(&call.words);
        if call.kind == super::SessionKind::Try {
            command.args(&self.allow_words);
        }
        command.stderr(writer.try_clone().map_err(failed)?).stdout(writer);
        let child = command.spawn().map_err(failed)?;
        Ok((child, reader))
    }
}

/// Creates a file in memory with this text. The command opens the file each time it reads the policy.
fn policy(text: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("policy", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}
