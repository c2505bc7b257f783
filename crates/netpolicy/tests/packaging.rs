//! Checks the installed files that are not programs, such as the systemd units. In `root/tools.rs`, systemd
//! itself checks the units.

use std::path::{Path, PathBuf};

const UNITS: [&str; 2] = ["netpolicy.service", "netpolicy-attach.service"];

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

fn unit(name: &str) -> String {
    std::fs::read_to_string(packaging().join("systemd").join(name)).expect("a unit")
}

#[test]
fn the_right_to_look_into_processes_is_one_units_alone() {
    let bounds = |name: &str| {
        let text = unit(name);
        let line = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("a set");
        line.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(bounds(UNITS[1]), ["CAP_SYS_PTRACE", "CAP_NET_ADMIN"]);
    let daemon = bounds(UNITS[0]);
    for all_powerful in ["CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SETUID"] {
        assert!(!daemon.iter().any(|held| held == all_powerful), "{all_powerful}");
    }
}

#[test]
fn the_example_policies_are_policy_files_without_a_mistake() {
    let mut read = 0;
    for entry in std::fs::read_dir(packaging().join("examples")).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path).expect("a text");
            let parsed = policy_file::parse(&path.display().to_string(), &text);
            assert!(parsed.is_ok(), "{}", parsed.expect_err("a mistake"));
            read += 1;
        }
    }
    assert!(read >= 3, "{read} examples");
}
