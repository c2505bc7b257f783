//! Tests that kill programs and run scripts: they check what other processes can do with a transaction.
//!
//! Each test states what it needs from the machine. If the machine lacks it, the test is listed as ignored,
//! with the reason.

mod file_host;
mod kill_nine;
mod session_lock;
mod undo_script;

use libtest_mimic::{Failed, Trial};

/// Creates a test, which is ignored if the machine lacks something.
fn test(
    name: &'static str,
    lacks: Option<&str>,
    body: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let trial = Trial::test(name, body);
    match lacks {
        Some(what) => trial.with_kind(format!("SKIPPED, needs {what}")).with_ignored_flag(true),
        None => trial,
    }
}

fn main() {
    if let Some(directory) = std::env::var_os(kill_nine::VICTIM) {
        kill_nine::commit_until_killed(directory.as_ref());
    }
    if let Some(directory) = std::env::var_os(session_lock::OWNER) {
        session_lock::own_until_killed(directory.as_ref());
    }
    if let Some(directory) = std::env::var_os(session_lock::SUCCESSOR) {
        session_lock::take_over_until_killed(directory.as_ref());
    }
    testkit::run([session_lock::tests(), kill_nine::tests(), undo_script::tests()]);
}
