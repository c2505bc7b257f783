//! The program, as it is started.

use std::process::Command;

use tempfile::NamedTempFile;

#[test]
fn what_is_wrong_with_the_state_directory_is_said_once() {
    // A file is not a directory.
    let file = NamedTempFile::with_prefix("netpolicyd-state-").expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpolicyd"));
    let ended = command.arg("--state-dir").arg(file.path()).output().expect("started");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("Not a directory").count(), 1, "{said}");
}
