//! The walls of ARCHITECTURE.md's table of rooms. Each says what would fall with it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use walls::{Dependencies, NamedPath, literals, paths, reaches};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn dependencies() -> Dependencies {
    Dependencies::of(&workspace()).expect("Cargo resolves the workspace")
}

/// The rooms that know the kernel.
const KERNEL_ROOMS: [&str; 4] = ["sys", "netlink", "bpf", "linux"];

/// The Rust sources of a room.
fn sources(room: &str) -> Vec<PathBuf> {
    files(room, &["rs"])
}

/// The files of a room whose names end with one of these.
fn files(room: &str, ends: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![workspace().join("crates").join(room).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| ends.iter().any(|wanted| end == *wanted)) {
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
    let allowed: [(&str, &[&str]); 7] = [
        ("netpolicy-model", &["schemars", "serde"]),
        ("netpolicy-plan", &["netpolicy-model", "thiserror"]),
        ("netpolicy-kinds", &["netpolicy-model", "thiserror"]),
        ("netpolicy-rules", &["netpolicy-kinds", "netpolicy-model", "thiserror"]),
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

/// What a room that only decides has no business with: files, sockets, processes, clocks.
const OUTSIDE: &[&[&str]] = &[
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

#[test]
fn the_rooms_that_decide_open_nothing() {
    for room in ["model", "plan", "kinds", "rules", "sim", "page", "policy-file"] {
        none(reached(room, OUTSIDE));
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
        "netpolicy-load",
        "netpolicy-runs",
    ];
    for room in ["netpolicy-session", "netpolicy-daemon", "netpolicyd"] {
        let all = dependencies.all(room);
        assert!(all.contains("netpolicy-linux"), "{room} is resolved");
        let wrong: Vec<_> = outside.iter().filter(|name| all.contains(*name)).collect();
        assert!(wrong.is_empty(), "{room} is built with {wrong:?}");
    }
    assert!(!dependencies.all("netpolicy-session").contains("netpolicy-daemon"));
    assert!(!dependencies.all("netpolicy-session").contains("netpolicy-measure"));
    // Estimates are made for it, by `live` and `judge`.
    assert!(!dependencies.direct("netpolicy-daemon").contains("netpolicy-measure"));
    let all = dependencies.all("netpolicy-primer");
    let wrong: Vec<_> = outside
        .iter()
        .chain(&["netpolicy-daemon", "netpolicy-measure"])
        .filter(|name| all.contains(*name))
        .collect();
    assert!(wrong.is_empty(), "primer is built with {wrong:?}");
    // It looks, and leaves writing to who asked it to look.
    none(reached(
        "primer",
        &[&["std", "fs"], &["linux", "Kernel"], &["session", "cycle"], &["session", "staged"]],
    ));
    for room in ["netpolicy-live", "netpolicy-judge"] {
        let all = dependencies.all(room);
        assert!(all.contains("netpolicy-measure"), "{room} is resolved");
        let wrong: Vec<_> =
            outside.iter().chain(&["netpolicy-daemon"]).filter(|name| all.contains(*name)).collect();
        assert!(wrong.is_empty(), "{room} is built with {wrong:?}");
    }
}

#[test]
fn estimates_are_built_without_what_makes_load_and_open_nothing() {
    let dependencies = dependencies();
    let rooms = |of: &str| -> Vec<&str> {
        dependencies.all(of).into_iter().filter(|name| name.starts_with("netpolicy")).collect()
    };
    assert_eq!(rooms("netpolicy-measure"), ["netpolicy-model"]);
    assert_eq!(rooms("netpolicy-load"), ["netpolicy-measure", "netpolicy-model"]);
    assert_eq!(rooms("netpolicy-runs"), ["netpolicy-measure", "netpolicy-model"]);
    assert!(!dependencies.all("netpolicy-measure").contains("rustix"), "it asks the kernel for nothing");
    none(reached("measure", OUTSIDE));
}

#[test]
fn only_the_command_depends_on_the_experiments_and_no_room_on_the_command() {
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
fn only_programs_print_or_end_the_process() {
    let silent = [
        "model",
        "plan",
        "kinds",
        "rules",
        "sim",
        "apply",
        "netlink",
        "bpf",
        "page",
        "policy-file",
        "session",
        "daemon",
        "live",
        "experiments",
        "judge",
        "primer",
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
    for room in ["netpolicy", "session", "primer"] {
        none(named(room, |path| path.words.iter().any(|word| word == "Errno")));
    }
}

#[test]
fn the_rooms_above_reach_the_kernel_through_one_room() {
    let dependencies = dependencies();
    let below = ["netpolicy-bpf", "netpolicy-netlink", "netpolicy-sys"];
    for room in dependencies.rooms().filter(|room| *room != "netpolicy-linux" && !below.contains(room)) {
        let direct = dependencies.direct(room);
        let wrong: Vec<_> = below.iter().filter(|name| direct.contains(*name)).collect();
        assert!(wrong.is_empty(), "{room} depends on {wrong:?}: name them through `linux`");
    }
    let rooms = |of: &str| -> Vec<&str> {
        dependencies.all(of).into_iter().filter(|name| name.starts_with("netpolicy")).collect()
    };
    assert_eq!(rooms("netpolicy-sys"), ["netpolicy-model"]);
    assert_eq!(rooms("netpolicy-bpf"), ["netpolicy-model", "netpolicy-sys"]);
    assert_eq!(
        rooms("netpolicy-netlink"),
        ["netpolicy-kinds", "netpolicy-model", "netpolicy-rules", "netpolicy-sys"]
    );
}

/// Rooms that say in words, or in a script, which file of the kernel is meant, and open none.
const NAME_FILES: [&str; 3] = ["model", "plan", "apply"];

/// What a finding says to read and write, in a room that opens no file of the kernel.
const IN_FINDINGS: [&str; 1] = ["/sys/class/net/{}/queues/rx-{}/rps_cpus"];

/// Where a file of a process is its own: what it runs, and what it has open.
const OUR_OWN: &str = "/proc/self/";

#[test]
fn files_of_the_kernel_are_read_and_written_in_the_rooms_of_the_kernel() {
    // A session enters the namespace of a process by its file.
    let may = KERNEL_ROOMS.iter().chain(&NAME_FILES).chain(&["session", "walls"]);
    let may: BTreeSet<&str> = may.copied().collect();
    for room in std::fs::read_dir(workspace().join("crates")).expect("the rooms") {
        let room = room.expect("an entry").file_name().into_string().expect("a name in ASCII");
        for path in sources(&room).into_iter().filter(|_| !may.contains(room.as_str())) {
            let text = std::fs::read_to_string(&path).expect("a source");
            let all = literals(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let of_kernel = |text: &&String| {
                let is_file = text.starts_with("/proc/") || text.starts_with("/sys/");
                is_file && !text.starts_with(OUR_OWN) && !IN_FINDINGS.contains(&text.as_str())
            };
            let wrong: Vec<_> = all.iter().filter(of_kernel).collect();
            assert!(wrong.is_empty(), "{}: {wrong:?}: reach it through `linux`", path.display());
        }
    }
}

/// The most lines of Rust and C that a room has.
const ROOM_LINES_MAX: usize = 12_000;

#[test]
fn a_room_is_small_enough_to_be_known() {
    for room in std::fs::read_dir(workspace().join("crates")).expect("the rooms") {
        let room = room.expect("an entry").file_name().into_string().expect("a name in ASCII");
        let files = files(&room, &["rs", "c", "h"]);
        let lines: usize =
            files.iter().map(|path| std::fs::read_to_string(path).expect("a source").lines().count()).sum();
        assert!(
            lines <= ROOM_LINES_MAX,
            "{room} has {lines} lines: which of its questions is another room's?"
        );
    }
}

#[test]
fn the_kernel_rooms_know_no_policy() {
    let nouns: &[&[&str]] = &[
        &["model", "policy"],
        &["model", "Policy"],
        &["model", "PolicyName"],
        &["model", "Intent"],
        &["model", "Goal"],
        &["model", "Budget"],
    ];
    for room in KERNEL_ROOMS {
        none(reached(room, nouns));
    }
}

#[test]
fn who_measures_does_not_know_what_is_judged() {
    let nouns: &[&[&str]] =
        &[&["model", "Setting"], &["model", "setting"], &["model", "Plan"], &["model", "Change"]];
    for room in ["measure", "load", "runs"] {
        none(reached(room, nouns));
    }
}

#[test]
fn who_commits_does_not_know_the_kernel() {
    assert!(!dependencies().all("netpolicy-apply").contains("netpolicy-linux"));
    none(reached("apply", &[&["linux"]]));
}
