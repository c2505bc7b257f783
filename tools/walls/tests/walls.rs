//! Checks the dependencies between the crates of the workspace against a table. Tests may have other
//! dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use walls::Dependencies;

/// Each crate of the workspace, without the prefix `netpolicy-`, and those workspace crates on which it may
/// depend.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    // Crates that decide and do no I/O.
    ("model", &[]),
    ("plan", &["model"]),
    ("policy-file", &["model"]),
    // `apply` is generic over the trait `Knobs`, so it does not depend on a kernel interface.
    ("apply", &["model"]),
    // The kernel interfaces. The crates below use only `linux`.
    ("sys", &["model"]),
    ("netlink", &["model", "sys"]),
    ("bpf", &["model", "sys"]),
    ("linux", &["apply", "bpf", "model", "netlink", "sys"]),
    // A session on one host, and the daemon that keeps a policy in force.
    ("session", &["apply", "linux", "model", "plan", "policy-file"]),
    ("latency", &["apply", "linux", "model", "plan", "policy-file", "session"]),
    // Shared by the command-line programs.
    ("cli", &["linux", "model", "plan", "policy-file", "session"]),
    ("daemon", &["apply", "latency", "linux", "model", "plan", "policy-file", "session"]),
    ("netpolicy", &["apply", "cli", "daemon", "latency", "linux", "model", "plan", "policy-file", "session"]),
    // The tools.
    ("testkit", &["apply", "bpf", "linux", "model", "netlink"]),
    ("tc-rules", &["model", "netlink", "sys"]),
    ("tc", &["cli", "linux", "model", "policy-file", "session", "tc-rules"]),
    ("sim", &["model"]),
    ("load", &["model"]),
    ("runs", &["latency", "load", "model", "session"]),
    (
        "experiments",
        &[
            "apply",
            "cli",
            "latency",
            "linux",
            "load",
            "model",
            "plan",
            "policy-file",
            "runs",
            "session",
            "sim",
        ],
    ),
    ("lab", &["cli", "daemon", "experiments", "latency", "linux", "model", "session"]),
    // The fuzz targets may depend on every crate that has a parser.
    (
        "fuzz",
        &[
            "netpolicy",
            "apply",
            "daemon",
            "experiments",
            "linux",
            "load",
            "model",
            "netlink",
            "policy-file",
            "session",
            "tc-rules",
        ],
    ),
    ("walls", &[]),
    // xtask must build before anything else.
    ("xtask", &[]),
];

/// The external crates on which the crates that decide may depend. With these, each can be tested and fuzzed
/// without a host.
const OTHERS: &[(&str, &[&str])] = &[
    ("netpolicy-model", &["schemars", "serde"]),
    ("netpolicy-plan", &["thiserror"]),
    ("netpolicy-policy-file", &["serde_json", "strsim", "toml"]),
    ("netpolicy-sim", &["hdrhistogram", "thiserror"]),
];

/// Crates for the command line and the terminal, which no program that runs unattended as root may contain.
const FOR_PEOPLE: &[&str] = &["clap", "clap_complete", "clap_mangen", "crossterm", "ratatui"];

static DEPENDENCIES: LazyLock<Dependencies> = LazyLock::new(|| {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Dependencies::of(&workspace).expect("Cargo resolves the workspace")
});

/// A crate's name without the common prefix.
fn short(package: &str) -> &str {
    package.strip_prefix("netpolicy-").unwrap_or(package)
}

#[test]
fn each_crate_depends_on_those_of_ours_that_the_table_names() {
    let table: BTreeMap<&str, &[&str]> = MAY_DEPEND_ON.iter().copied().collect();
    let ours: BTreeSet<&str> = DEPENDENCIES.rooms().collect();
    let names: BTreeSet<&str> = ours.iter().map(|package| short(package)).collect();
    assert_eq!(names, table.keys().copied().collect(), "the table has each crate of the workspace");
    for package in &ours {
        let allowed = table[short(package)];
        let direct = DEPENDENCIES.direct(package);
        let found: Vec<&str> = direct.intersection(&ours).map(|package| short(package)).collect();
        assert_eq!(found, allowed, "the direct dependencies of {package}, in order");
    }
}

#[test]
fn what_decides_is_built_with_nothing_that_could_look_around() {
    let ours: BTreeSet<&str> = DEPENDENCIES.rooms().collect();
    for (package, allowed) in OTHERS {
        let direct = DEPENDENCIES.direct(package);
        let found: Vec<&str> = direct.difference(&ours).copied().collect();
        assert_eq!(found, *allowed, "the other dependencies of {package}");
    }
}

#[test]
fn nothing_of_the_product_depends_on_the_tools_and_its_tests_only_on_the_shared_harness() {
    for room in DEPENDENCIES.rooms().filter(|room| !DEPENDENCIES.is_tool(room) && *room != "netpolicy-fuzz") {
        let tools = |mut all: BTreeSet<&'static str>| {
            all.retain(|other| DEPENDENCIES.is_tool(other));
            all
        };
        assert_eq!(tools(DEPENDENCIES.all(room)), BTreeSet::new(), "the dependencies of {room}");
        let mut of_tests = tools(DEPENDENCIES.of_tests(room));
        of_tests.remove("netpolicy-testkit");
        assert_eq!(of_tests, BTreeSet::new(), "the dependencies of the tests of {room}");
    }
}

#[test]
fn a_daemon_is_built_without_a_command_line_and_a_terminal() {
    for package in ["netpolicy-session", "netpolicy-daemon"] {
        let all = DEPENDENCIES.all(package);
        assert!(all.contains("netpolicy-linux"), "{package} is resolved");
        let wrong: Vec<_> = FOR_PEOPLE.iter().filter(|name| all.contains(*name)).collect();
        assert!(wrong.is_empty(), "{package} is built with {wrong:?}");
    }
}

/// Modules that only compute: what they return must depend only on their arguments, and be in the same order
/// each time.
const PURE: [&str; 3] =
    ["crates/session/src/page", "crates/netpolicy/src/fleet", "crates/latency/src/measure"];

/// Names that these modules must not use.
const LOOKS_AROUND: [&str; 9] = [
    "Instant::now",
    "SystemTime::now",
    "std::fs",
    "std::env",
    "std::net",
    "HashMap",
    "HashSet",
    "thread::spawn",
    "io::stdin",
];

#[test]
fn modules_that_only_compute_name_no_clock_and_no_file() {
    fn files(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).expect("the directory is there").flatten() {
            let path = entry.path();
            if path.is_dir() {
                files(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = Vec::new();
    for directory in PURE {
        let mut found = Vec::new();
        files(&workspace.join(directory), &mut found);
        assert!(found.len() > 2, "{directory}: {found:?}");
        for file in found.iter().filter(|file| !file.ends_with("test.rs")) {
            let text = std::fs::read_to_string(file).expect("a file of Rust");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let names = LOOKS_AROUND.iter().filter(|name| lines.clone().any(|line| line.contains(**name)));
            wrong.extend(names.map(|name| format!("{}: {name}", file.display())));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
