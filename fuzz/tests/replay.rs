//! Replays the corpus and past failures of every target. It does not search for new inputs, because a test
//! must not fail by chance.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use fuzz::{TARGETS, Target};

fn folder(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(of)
}

/// Returns the paths in a directory; none if the directory does not exist.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

/// Runs a target on every file of a directory; returns their number.
fn tried(target: Target, folder: &Path) -> usize {
    let inputs = entries(folder);
    for input in &inputs {
        let bytes = std::fs::read(input).expect("an input");
        let held = std::panic::catch_unwind(|| target(&bytes));
        assert!(held.is_ok(), "{} fails", input.display());
    }
    inputs.len()
}

#[test]
fn every_target_holds_for_what_it_begins_with() {
    for (name, target) in TARGETS {
        assert!(tried(*target, &folder("corpus").join(name)) > 0, "{name} begins with nothing");
    }
}

#[test]
fn what_once_failed_fails_no_more() {
    let tried: usize =
        TARGETS.iter().map(|(name, target)| tried(*target, &folder("regressions").join(name))).sum();
    assert!(tried > 0);
}

#[test]
fn every_input_is_of_a_target() {
    let targets: BTreeSet<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    for of in ["corpus", "regressions"] {
        for input in entries(&folder(of)) {
            let name = input.file_name().and_then(|name| name.to_str());
            assert!(name.is_some_and(|name| targets.contains(name)), "no target has {}", input.display());
        }
    }
}
