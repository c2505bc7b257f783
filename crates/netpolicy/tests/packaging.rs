//! What is installed beside the program: units that systemd understands, and that hold no more than they say.
#![expect(clippy::print_stdout, reason = "a test says what it could not do here")]

use std::path::{Path, PathBuf};
use std::process::Command;

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
fn systemd_understands_the_units_and_thinks_them_hardened() {
    let scratch = std::env::temp_dir().join(format!("netpolicy-units-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).expect("made");
    let verified = |name: &str| {
        let path = scratch.join(name);
        // The program need not be installed for this.
        let text = unit(name).replace("/usr/sbin/netpolicy", env!("CARGO_BIN_EXE_netpolicy"));
        std::fs::write(&path, text).expect("written");
        path
    };
    for name in UNITS {
        verified(name);
    }
    for name in UNITS {
        let path = scratch.join(name);
        let Ok(output) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output()
        else {
            println!("no systemd-analyze here");
            break;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        // Of other units on the machine, which it looks at as well, it may say what it likes.
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("netpolicy")).collect();
        assert!(ours.is_empty(), "{ours:?}");
        let mut judge = Command::new("systemd-analyze");
        let output =
            judge.args(["security", "--offline=true", "--threshold=35"]).arg(&path).output().expect("it ran");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {}", said.lines().last().unwrap_or_default());
    }
    std::fs::remove_dir_all(&scratch).expect("removed");
}
