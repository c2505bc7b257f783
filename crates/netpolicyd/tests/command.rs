//! The program, as it is started.

use std::process::Command;

#[test]
fn what_is_wrong_with_the_state_directory_is_said_once() {
    // A file is no directory.
    let file = std::env::temp_dir().join(format!("netpolicyd-state-{}", std::process::id()));
    std::fs::write(&file, "").expect("written");
    let ended = Command::new(env!("CARGO_BIN_EXE_netpolicyd")).arg("--state-dir").arg(&file).output();
    std::fs::remove_file(&file).expect("removed");
    let ended = ended.expect("started");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("Not a directory").count(), 1, "{said}");
}
