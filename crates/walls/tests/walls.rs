//! The walls of ARCHITECTURE.md's table of rooms. Each says what would fall with it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use walls::{Dependencies, NamedPath, paths, reaches};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn dependencies() -> Dependencies {
    Dependencies::of(&workspace()).expect("Cargo resolves the workspace")
}

/// The sources of a room.
fn sources(room: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![workspace().join("crates").join(room).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "there is no room {room}");
    found
}

/// Where a room names a path of which this says that it must not.
fn named(room: &str, wrong: impl Fn(&NamedPath) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for path in sources(room) {
        let text = std::fs::read_to_string(&path).expect("a source");
        let all = paths(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let wrong = all.into_iter().filter(|path| wrong(path));
        found.extend(wrong.map(|at| format!("{}:{}: {}", path.display(), at.line, at.words.join("::"))));
    }
    found
}

/// Where a room reaches any of these.
fn reached(room: &str, forbidden: &[&[&str]]) -> Vec<String> {
    named(room, |path| forbidden.iter().any(|forbidden| reaches(path, forbidden)))
}

fn none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_rooms_that_decide_depend_on_nothing_that_could_look_around() {
    let dependencies = dependencies();
    let allowed: [(&str, &[&str]); 6] = [
        ("netpolicy-model", &["schemars", "serde"]),
        ("netpolicy-plan", &["netpolicy-model", "thiserror"]),
        ("netpolicy-rules", &["netpolicy-model", "thiserror"]),
        ("netpolicy-sim", &["netpolicy-model", "thiserror"]),
        ("netpolicy-page", &["schemars", "serde", "serde_json"]),
        ("netpolicy-policy-file", &["netpolicy-model", "netpolicy-rules", "serde_json", "toml"]),
    ];
    for (room, allowed) in allowed {
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        let more: Vec<_> = dependencies.direct(room).difference(&allowed).copied().collect();
        assert!(more.is_empty(), "{room} depends on {more:?}");
    }
}

#[test]
fn the_rooms_that_decide_open_nothing() {
    let places: &[&[&str]] = &[
        &["std", "fs"],
        // Addresses are data.
        &["std", "net", "TcpStream"],
        &["std", "net", "TcpListener"],
        &["std", "net", "UdpSocket"],
        &["std", "net", "ToSocketAddrs"],
        &["std", "os"],
        &["std", "env"],
        &["std", "process"],
        &["std", "thread"],
        &["std", "time", "Instant"],
        &["std", "time", "SystemTime"],
    ];
    for room in ["model", "plan", "rules", "sim", "page", "policy-file"] {
        none(reached(room, places));
    }
    none(reached("policy-file", &[&["std", "net"]]));
}

#[test]
fn a_session_and_a_daemon_know_no_command_line_no_terminal_no_simulator_and_no_experiment() {
    let dependencies = dependencies();
    let outside = [
        "clap",
        "clap_builder",
        "clap_complete",
        "clap_mangen",
        "ratatui",
        "crossterm",
        "netpolicy",
        "netpolicy-sim",
        "netpolicy-experiments",
    ];
    for room in ["netpolicy-session", "netpolicy-daemon"] {
        let all = dependencies.all(room);
        assert!(all.contains("netpolicy-linux"), "{room} is resolved");
        let wrong: Vec<_> = outside.iter().filter(|name| all.contains(*name)).collect();
        assert!(wrong.is_empty(), "{room} is built with {wrong:?}");
    }
    assert!(!dependencies.all("netpolicy-session").contains("netpolicy-daemon"));
    assert!(!dependencies.all("netpolicy-session").contains("netpolicy-measure"));
    // What it knows of response times, `live` says.
    assert!(!dependencies.direct("netpolicy-daemon").contains("netpolicy-measure"));
}

#[test]
fn nobody_but_the_command_depends_on_the_experiments_and_nobody_on_the_command() {
    let dependencies = dependencies();
    for room in dependencies.rooms() {
        let direct = dependencies.direct(room);
        assert!(!direct.contains("netpolicy-walls"), "{room}");
        assert!(room == "netpolicy" || !direct.contains("netpolicy-experiments"), "{room}");
        assert!(room == "xtask" || !direct.contains("netpolicy"), "{room}");
    }
    assert!(dependencies.direct("netpolicy").contains("netpolicy-experiments"));
    assert!(!dependencies.all("netpolicy-experiments").contains("netpolicy-daemon"));
    assert!(dependencies.direct("xtask").is_empty(), "it is built where nothing is yet");
}

#[test]
fn nobody_but_the_command_prints_or_ends_the_process() {
    let silent = [
        "model",
        "plan",
        "rules",
        "sim",
        "apply",
        "page",
        "policy-file",
        "session",
        "daemon",
        "live",
        "experiments",
    ];
    let words = ["print", "println", "eprint", "eprintln", "dbg"];
    for room in silent {
        none(named(room, |path| matches!(path.words.as_slice(), [word] if words.contains(&word.as_str()))));
        none(named(room, |path| {
            let words: Vec<&str> = path.words.iter().map(String::as_str).collect();
            matches!(words.as_slice(), [.., "stdout" | "stderr"] | [.., "process", "exit"])
        }));
    }
}

#[test]
fn who_speaks_to_operators_knows_no_error_number() {
    for room in ["netpolicy", "session"] {
        none(named(room, |path| path.words.iter().any(|word| word == "Errno")));
    }
}

#[test]
fn the_kernel_room_knows_no_policy() {
    let nouns: &[&[&str]] = &[
        &["model", "policy"],
        &["model", "Policy"],
        &["model", "PolicyName"],
        &["model", "Intent"],
        &["model", "Goal"],
        &["model", "Budget"],
    ];
    none(reached("linux", nouns));
}

#[test]
fn who_measures_does_not_know_what_is_judged() {
    let nouns: &[&[&str]] =
        &[&["model", "Setting"], &["model", "setting"], &["model", "Plan"], &["model", "Change"]];
    none(reached("measure", nouns));
}

#[test]
fn who_commits_does_not_know_the_kernel() {
    assert!(!dependencies().all("netpolicy-apply").contains("netpolicy-linux"));
    none(reached("apply", &[&["linux"]]));
}
