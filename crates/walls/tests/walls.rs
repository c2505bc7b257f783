//! The walls of ARCHITECTURE.md's table of rooms. Each says what would fall with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use walls::{Dependencies, Form, Modules, NamedPath, literals, module_of, modules_for_tests, paths, reaches};

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
    let mut found = Vec::new();
    let mut folders = vec![workspace().join("crates").join(room).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "there is no room {room}");
    found
}

/// A file of a room, the module that it is, and what it names.
struct Source {
    path: PathBuf,
    module: Vec<String>,
    names: Vec<NamedPath>,
}

/// What each room's files name, read once for all tests. A file that is there for tests alone is marked so throughout.
static NAMES: LazyLock<BTreeMap<String, Vec<Source>>> = LazyLock::new(|| {
    rooms()
        .into_iter()
        .map(|room| {
            let below = workspace().join("crates").join(&room).join("src");
            let mut for_tests: BTreeSet<Vec<String>> = BTreeSet::new();
            let mut read: Vec<Source> = sources(&room)
                .into_iter()
                .map(|path| {
                    let fail = |error| -> ! { panic!("{}: {error}", path.display()) };
                    let text = std::fs::read_to_string(&path).expect("a source");
                    let module = module_of(path.strip_prefix(&below).expect("below the room's sources"));
                    for name in modules_for_tests(&text).unwrap_or_else(|error| fail(error)) {
                        for_tests.insert(module.iter().cloned().chain([name]).collect());
                    }
                    let names = paths(&text).unwrap_or_else(|error| fail(error));
                    Source { path, module, names }
                })
                .collect();
            for source in &mut read {
                let is_for_tests = |depth| for_tests.contains(&source.module[..depth]);
                if (1..=source.module.len()).any(is_for_tests) {
                    source.names.iter_mut().for_each(|name| name.in_tests = true);
                }
            }
            (room, read)
        })
        .collect()
});

/// The names of all rooms.
fn rooms() -> Vec<String> {
    let all = std::fs::read_dir(workspace().join("crates")).expect("the rooms");
    all.map(|room| room.expect("an entry").file_name().into_string().expect("a name in ASCII")).collect()
}

/// Where a room names what this says that it must not.
fn named(room: &str, wrong: impl Fn(&NamedPath) -> bool) -> Vec<String> {
    let sources = NAMES.get(room).unwrap_or_else(|| panic!("there is no room {room}"));
    let all = sources.iter().flat_map(|source| source.names.iter().map(|name| (&source.path, name)));
    all.filter(|(_, name)| wrong(name))
        .map(|(path, name)| format!("{}:{}: {}", path.display(), name.line, name.words.join("::")))
        .collect()
}

/// Where a room reaches any of these.
fn reached(room: &str, forbidden: &[&[&str]]) -> Vec<String> {
    named(room, |path| forbidden.iter().any(|forbidden| reaches(path, forbidden)))
}

/// Which lines of a text a wall refuses.
fn refused(text: &str, wrong: impl Fn(&NamedPath) -> bool) -> Vec<usize> {
    let found = paths(text).expect("Rust");
    let lines: BTreeSet<usize> = found.iter().filter(|name| wrong(name)).map(|name| name.line).collect();
    lines.into_iter().collect()
}

fn none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_rooms_that_decide_depend_on_nothing_that_could_look_around() {
    let dependencies = dependencies();
    let allowed: [(&str, &[&str]); 5] = [
        ("netpolicy-model", &["schemars", "serde"]),
        ("netpolicy-plan", &["netpolicy-model", "thiserror"]),
        ("netpolicy-sim", &["netpolicy-model", "thiserror"]),
        ("netpolicy-page", &["schemars", "serde", "serde_json"]),
        ("netpolicy-policy-file", &["netpolicy-model", "serde_json", "toml"]),
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

/// Methods of the standard library that look at files or names of hosts, whatever they are called on. `canonicalize`, which rules
/// have too, is clippy's to find.
const LOOKING: [&str; 11] = [
    "exists",
    "is_dir",
    "is_file",
    "is_symlink",
    "metadata",
    "read_dir",
    "read_link",
    "symlink_metadata",
    "to_socket_addrs",
    "try_exists",
    "elapsed",
];

/// Whether a name opens something, reads a clock or looks at a file.
fn looks_outside(name: &NamedPath) -> bool {
    let is_looking = LOOKING.contains(&name.last());
    match name.form {
        Form::Method => is_looking,
        Form::Path if name.words.len() > 1 && is_looking => true,
        Form::Attribute => false,
        Form::Use | Form::Renamed | Form::Path | Form::Macro => {
            OUTSIDE.iter().any(|place| reaches(name, place)) || matches!(name.last(), "stdin")
        }
    }
}

#[test]
fn the_rooms_that_decide_open_nothing() {
    for room in ["model", "plan", "sim", "page", "policy-file", "measure"] {
        none(named(room, looks_outside));
    }
    none(reached("policy-file", &[&["std", "net"]]));
}

#[test]
fn a_file_that_is_looked_at_without_its_module_being_named_does_not_pass() {
    for text in [
        "extern crate std as s; fn f() { s::fs::read(\"x\"); }",
        "fn f(p: &Path) -> bool { p.exists() }",
        "fn f(p: &Path) -> bool { Path::is_file(p) }",
        "fn f(p: &Path) { g!(p.read_dir()) }",
        "fn f() { std::io::stdin(); }",
        "use std::io::{self, stdin};",
        "fn f(a: &str) { a.to_socket_addrs(); }",
    ] {
        assert_eq!(refused(text, looks_outside), [1], "{text}");
    }
    let harmless = "fn f(x: &Host) { x.exists; rule.canonicalize(); metadata(x); }";
    assert!(refused(harmless, looks_outside).is_empty());
}

/// Whether a name brings in a source that the walls do not read: of another folder, or as the text of a macro.
fn brings_in_source(name: &NamedPath) -> bool {
    match name.form {
        Form::Attribute => name.words == ["path"],
        Form::Macro => name.last() == "include",
        Form::Use | Form::Renamed | Form::Path | Form::Method => false,
    }
}

#[test]
fn the_sources_of_a_room_are_those_below_it() {
    for room in rooms() {
        none(named(&room, brings_in_source));
    }
    assert_eq!(refused("#[path = \"../../plan/src/place.rs\"]\nmod place;", brings_in_source), [1]);
    assert_eq!(refused("std::include!(\"place.rs\");", brings_in_source), [1]);
    assert!(refused("const A: &str = include_str!(\"a.toml\");", brings_in_source).is_empty());
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
}

/// Whether a name is the wait of rustix, whose resolution a feature decides for the whole program. The feature is on where the load
/// generator is built: elsewhere the wait is `sys::epoll::wait_millis`, which works on any kernel and says what it rounds.
fn is_the_wait_of_rustix(name: &NamedPath) -> bool {
    !name.in_tests && name.words.ends_with(&["epoll".to_owned(), "wait".to_owned()])
}

#[test]
fn only_the_load_generator_waits_by_a_call_whose_resolution_a_feature_decides() {
    for room in rooms().iter().filter(|room| *room != "load") {
        none(named(room, is_the_wait_of_rustix));
    }
    assert_eq!(refused("fn f() { epoll::wait(e, b, None) }", is_the_wait_of_rustix), [1]);
    assert_eq!(refused("use rustix::event::epoll::wait;", is_the_wait_of_rustix), [1]);
    assert!(refused("use linux::epoll_wait_millis;", is_the_wait_of_rustix).is_empty());
    let features = std::fs::read_to_string(workspace().join("crates/load/Cargo.toml")).expect("a manifest");
    assert!(features.contains("\"linux_5_11\""), "without it, rustix rounds to milliseconds");
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

/// What a first policy file is made from: what is there, and no writer. Everything else of these rooms is another's.
const OF_PRIMER: &[&[&str]] = &[
    &["linux", "KernelError"],
    &["linux", "Netns"],
    &["linux", "Processes"],
    &["linux", "netlink", "sock_diag"],
    &["linux", "observe"],
    &["linux", "process", "cgroup_of"],
    &["linux", "process", "started_as"],
    &["session", "count"],
];

/// Whether a name is of `linux` or `session`, and not what the primer may use of them.
fn is_not_of_primer(name: &NamedPath) -> bool {
    let words: Vec<&str> = name.words.iter().map(String::as_str).collect();
    matches!(words.as_slice(), ["linux" | "session", ..])
        && matches!(name.form, Form::Use | Form::Renamed | Form::Path | Form::Macro)
        && !OF_PRIMER.iter().any(|allowed| words.starts_with(allowed))
}

#[test]
fn a_first_policy_file_is_made_without_a_writer() {
    // It looks, and leaves writing to who asked it to look.
    none(reached("primer", &[&["std", "fs"]]));
    none(named("primer", is_not_of_primer));
    for text in [
        "use session::expire::roll_back_expired;",
        "fn f() { session::wake(); }",
        "use session::{count, guard_process};",
        "use linux::*;",
        "use linux as l;",
        "use linux::Kernel;",
    ] {
        assert_eq!(refused(text, is_not_of_primer), [1], "{text}");
    }
    assert!(refused("use linux::{Netns, observe::received};", is_not_of_primer).is_empty());
}

/// The programs, which alone print and end the process.
const PROGRAMS: [&str; 2] = ["netpolicy", "netpolicyd"];

/// Whether a name prints, or ends the process.
fn prints_or_ends(name: &NamedPath) -> bool {
    let words: Vec<&str> = name.words.iter().map(String::as_str).collect();
    match name.form {
        Form::Macro => matches!(name.last(), "print" | "println" | "eprint" | "eprintln" | "dbg"),
        Form::Method | Form::Attribute => false,
        Form::Use | Form::Renamed | Form::Path => {
            // By another name, or with everything beside it, the end of the process has no name of its own.
            let hidden = name.form == Form::Renamed
                && matches!(words.as_slice(), ["std"] | ["std", "process"])
                || matches!(words.as_slice(), ["std", "*"] | ["std", "process", "*"] | ["libc", "*"]);
            hidden
                || matches!(
                    words.as_slice(),
                    [_, .., "stdout" | "stderr"]
                        | [.., "process", "exit" | "abort"]
                        | ["libc", "exit" | "_exit" | "abort"]
                )
        }
    }
}

#[test]
fn only_programs_print_or_end_the_process() {
    for room in rooms().iter().filter(|room| !PROGRAMS.contains(&room.as_str())) {
        // A process that was forked in `sys` and runs nothing else ends there.
        let is_forked = |name: &NamedPath| room == "sys" && name.words == ["libc", "_exit"];
        none(named(room, |name| prints_or_ends(name) && !is_forked(name)));
    }
    for text in [
        "fn f() { std::println!(\"a\"); }",
        "fn f() { g!({ println!(\"a\") }); }",
        "use std::process::*; fn f() { exit(1) }",
        "use std::process as p;",
        "fn f() { std::process::abort() }",
        "use std::process::{Command, exit};",
        "extern crate std as s;",
        "fn f() { std::io::stdout(); }",
    ] {
        assert_eq!(refused(text, prints_or_ends), [1], "{text}");
    }
    let harmless =
        "use std::process::{self, Command}; fn f() { c.stdout(x); writeln!(out, \"a\"); print(a); }";
    assert!(refused(harmless, prints_or_ends).is_empty());
}

/// Whether a name is an error number, or makes one of a number or a number of one.
fn is_error_number(name: &NamedPath) -> bool {
    let numbers = ["Errno", "raw_os_error", "from_raw_os_error"];
    !name.in_tests && name.words.iter().any(|word| numbers.contains(&word.as_str()))
}

#[test]
fn who_speaks_to_operators_knows_no_error_number() {
    for room in ["netpolicy", "session", "primer"] {
        none(named(room, is_error_number));
    }
    assert_eq!(refused("fn f() -> i32 { refusal.errno.raw_os_error() }", is_error_number), [1]);
    assert_eq!(refused("fn f(n: i32) { g(std::io::Error::from_raw_os_error(n)); }", is_error_number), [1]);
    assert_eq!(refused("fn f() { assert!(e.raw_os_error() == Some(1)); }", is_error_number), [1]);
}

#[test]
fn the_rooms_above_reach_the_kernel_through_one_room() {
    let dependencies = dependencies();
    let below = ["netpolicy-bpf", "netpolicy-netlink", "netpolicy-sys"];
    // Parsers are fuzzed wherever they are. Rules are messages, and have sockets of their own.
    let others = ["netpolicy-linux", "netpolicy-fuzz", "netpolicy-tc-rules"];
    for room in dependencies.rooms().filter(|room| !others.contains(room) && !below.contains(room)) {
        let direct = dependencies.direct(room);
        let wrong: Vec<_> = below.iter().filter(|name| direct.contains(*name)).collect();
        assert!(wrong.is_empty(), "{room} depends on {wrong:?}: name them through `linux`");
    }
    let rooms = |of: &str| -> Vec<&str> {
        dependencies.all(of).into_iter().filter(|name| name.starts_with("netpolicy")).collect()
    };
    assert_eq!(rooms("netpolicy-sys"), ["netpolicy-model"]);
    assert_eq!(rooms("netpolicy-bpf"), ["netpolicy-model", "netpolicy-sys"]);
    assert_eq!(rooms("netpolicy-netlink"), ["netpolicy-model", "netpolicy-sys"]);
}

/// Whether a name offers another room whole, so that who names this one reaches all of that.
fn offers_a_whole_room(name: &NamedPath) -> bool {
    let words: Vec<&str> = name.words.iter().map(String::as_str).collect();
    let is_room = |room: &str| ["bpf", "netlink", "sys"].contains(&room);
    name.is_public_use && matches!(words.as_slice(), [room] | [room, "*"] if is_room(room))
}

#[test]
fn the_kernel_rooms_are_reached_by_what_the_one_above_them_names() {
    none(named("linux", offers_a_whole_room));
    assert_eq!(refused("pub use ::netlink;", offers_a_whole_room), [1]);
    assert_eq!(refused("pub mod bpf { pub use ::bpf::*; }", offers_a_whole_room), [1]);
    assert_eq!(refused("pub use sys as s;\npub extern crate netlink;", offers_a_whole_room), [1, 2]);
    assert!(refused("pub use netlink::{events, link};\nuse netlink;", offers_a_whole_room).is_empty());
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
    for room in rooms() {
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

/// The modules of `model` that say what someone asks for and what came of it, rather than what is on a host.
const OF_POLICY: [&str; 9] =
    ["delivery", "finding", "guard", "judgement", "policy", "policy_name", "recipe", "search", "selector"];

/// The names that `model` offers at its root and has from those modules.
fn policy_nouns() -> BTreeSet<String> {
    let root = NAMES["model"].iter().find(|source| source.module.is_empty()).expect("the root of model");
    let nouns = root.names.iter().filter_map(|name| match name.words.as_slice() {
        [module, noun] if name.form == Form::Use && OF_POLICY.contains(&module.as_str()) => {
            Some(noun.clone())
        }
        _ => None,
    });
    nouns.collect()
}

/// Whether a name is one of a policy, of these at the root of `model`.
fn is_of_policy(name: &NamedPath, nouns: &BTreeSet<String>) -> bool {
    let at_root = nouns.iter().any(|noun| reaches(name, &["model", noun]));
    at_root || OF_POLICY.iter().any(|module| reaches(name, &["model", module]))
}

#[test]
fn the_kernel_rooms_know_no_policy() {
    let nouns = policy_nouns();
    for room in KERNEL_ROOMS {
        none(named(room, |name| is_of_policy(name, &nouns)));
    }
    for noun in ["Recipe", "Guard", "Search", "DeliveryMode", "DeviceSelector", "PolicyName", "Finding"] {
        assert_eq!(refused(&format!("use model::{{Host, {noun}}};"), |name| is_of_policy(name, &nouns)), [1]);
    }
    assert_eq!(refused("use model::search::Tried;", |name| is_of_policy(name, &nouns)), [1]);
    assert!(refused("use model::{Host, Setting, Plan};", |name| is_of_policy(name, &nouns)).is_empty());
}

#[test]
fn who_measures_does_not_know_what_is_judged() {
    let nouns: &[&[&str]] =
        &[&["model", "Setting"], &["model", "setting"], &["model", "Plan"], &["model", "Change"]];
    for room in ["measure", "load", "runs"] {
        none(reached(room, nouns));
    }
}

/// Whether a name is a step of the spine: what `session::cycle` puts together.
fn is_of_the_spine(name: &NamedPath) -> bool {
    let steps: [&[&str]; 3] = [&["plan", "place"], &["plan", "desired"], &["plan", "diff"]];
    !name.in_tests && steps.iter().any(|step| reaches(name, step))
}

#[test]
fn the_spine_stands_once() {
    for room in ["netpolicy", "netpolicyd", "daemon", "judge", "live", "primer", "experiments"] {
        none(named(room, is_of_the_spine));
    }
    assert_eq!(refused("fn f() { plan::diff(&plan::desired(p, h)?, h); }", is_of_the_spine), [1]);
    assert_eq!(refused("use plan::{Placement, place};", is_of_the_spine), [1]);
    assert_eq!(refused("use plan::*;\nuse plan as p;", is_of_the_spine), [1, 2]);
    assert!(refused("use plan::{Placement, doctor};", is_of_the_spine).is_empty());
}

#[test]
fn who_commits_does_not_know_the_kernel() {
    assert!(!dependencies().all("netpolicy-apply").contains("netpolicy-linux"));
    none(reached("apply", &[&["linux"]]));
}

#[test]
fn the_modules_of_a_room_go_in_no_circle() {
    let mut wrong = Vec::new();
    for (room, sources) in NAMES.iter() {
        let files = sources.iter().map(|source| (source.module.clone(), source.names.as_slice()));
        let modules = Modules::of(files);
        for circle in modules.circles() {
            let named = |module: &&str| -> String {
                let others: Vec<&str> =
                    modules.named_by(module).filter(|other| circle.contains(other)).collect();
                format!("  {module} names {}", others.join(", "))
            };
            let lines: Vec<String> = circle.iter().map(named).collect();
            wrong.push(format!("{room}: modules in a circle\n{}", lines.join("\n")));
        }
    }
    none(wrong);
}
