//! Runs the program as netpolicy execs it: command lines, and the hidden commands. No test in this file needs
//! root.

use std::process::{Command, Output};

use tempfile::TempDir;

fn lab(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpolicy-lab"));
    command.args(line.split_whitespace()).env("NO_COLOR", "1").output().expect("started")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_is_no_number_is_answered_with_the_numbers_that_are_taken() {
    for (line, range) in [
        ("bench policies --at-once 4,x", "expected a whole number from 1 to 100000"),
        ("sim run --seed x", "expected a whole number from 0 to 9223372036854775807"),
        ("lab --queues x", "expected a whole number from 1 to 64"),
    ] {
        let output = lab(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        let said = said(&output);
        assert!(said.contains(range) && !said.contains("invalid digit"), "{line}: {said}");
    }
}

#[test]
fn commands_of_other_programs_are_no_commands_here() {
    for line in ["tc load x", "show", "schema tc", "help tc"] {
        let output = lab(line);
        assert_eq!(output.status.code(), Some(2), "{line}: {}", said(&output));
    }
}

#[test]
fn its_pages_and_schemas_are_those_of_its_commands() {
    let folder = TempDir::with_prefix("netpolicy-lab-pages-").expect("a directory");
    let path = folder.path().display();
    for line in [format!("man --dir {path}"), format!("schema --dir {path}/schema")] {
        let output = lab(&line);
        assert_eq!((output.status.code(), said(&output).as_str()), (Some(0), ""), "{line}");
    }
    let names = |below: &str| {
        let entries = std::fs::read_dir(folder.path().join(below)).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().display().to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(names("schema"), ["bench.json", "lab.json", "sim.json"]);
    let pages = names("man8");
    assert!(pages.contains(&"netpolicy-sim-run.8".to_owned()), "{pages:?}");
    for page in pages {
        let of = ["netpolicy-bench", "netpolicy-sim", "netpolicy-lab"];
        assert!(of.iter().any(|name| page.starts_with(name)), "{page}");
    }
}
