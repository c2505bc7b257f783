//! The tests that the running kernel cannot run, in the guests that can.
//!
//! A test names its needs; the same program decides on every kernel which of its tests can run there. What is skipped on
//! the host is offered to the emulated machine with the distribution's kernel, and what cannot run there to the same machine
//! with the patched one, which runs at the same time: each guest first lists what it would skip. Each guest must run what it is there for, and what every machine skips must be known beforehand: a
//! skip that is not is a failure.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::boot::{self, Ended, Guest, LATER, Order, Stream};
use super::cache::{self, Cache};
use super::{Kind, budget, ready, selftests};
use crate::lanes::{AGAIN_MAX, ONLY};
use crate::programs::{self, Program, Verdict, name_and_reason, read_line};
use crate::shell::{self, Result};

/// How long all tests of one guest may take together.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// How long a guest may take until it has listed what it would skip; it boots in that time, too.
const LISTS_WITHIN: Duration = Duration::from_secs(6 * 60);

/// The exit code of a test program some of whose tests failed. Any other than this and 0 is a fault of the program: what ran in
/// the guest ends with the second then.
const TESTS_FAILED: i32 = 101;
const DIED: i32 = 2;

/// The guests that `cargo xtask test` makes, in the order in which tests are offered to them: the first is what users have.
pub(super) const FOR_TESTS: [Kind; 2] = [Kind::Qemu, Kind::Patched];

/// What no machine that Debian 12 runs on has, as tests and [`selftests`] say it; or has no more, once the distribution's source
/// is a newer one.
const UNAVOIDABLE: &[&str] =
    &["needs varlinkctl", "that the facts on NIC drivers name", selftests::LOST_RACE];

/// A test that was skipped, and why, by each machine that skipped it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) name: String,
    /// A machine and its reason.
    reasons: Vec<(String, String)>,
    /// How many tests that is: a program whose tests could not be listed counts as all of them.
    pub(crate) tests: u64,
}

/// How the tests went that the host had to skip.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    /// Those that passed.
    pub(crate) passed: BTreeSet<String>,
    /// Those that failed.
    pub(crate) failed: BTreeSet<String>,
    /// Those that failed beside another guest, and passed alone.
    pub(crate) unsteady: Vec<String>,
    /// Those that no guest could run.
    pub(crate) skipped: Vec<Skipped>,
    /// Why a guest could not be made, what became of one that did not do its work, and skips that must not be.
    pub(crate) broken: Vec<String>,
    /// How long tests took.
    pub(crate) took: Vec<(String, Duration)>,
    /// Which failed in which guest, of those that may be run again.
    pub(crate) failures: Vec<(Kind, String)>,
}

/// What is behind the name of a test where it is said how long it took.
const IN_A_GUEST: &str = ", in a guest";

/// What a test is taken to need of which no earlier run says it.
const UNKNOWN: Duration = Duration::from_secs(4);

/// What begins a line of a guest that lists what it would skip, and the line after the last of them.
const WOULD_SKIP: &str = "WOULD SKIP ";
const LISTED: &str = "LISTED";

/// Guests that are made while something else is done.
pub(crate) struct Making(std::thread::JoinHandle<Vec<Made>>);

/// A guest, or why there is none.
struct Made {
    kind: Kind,
    guest: Result<Box<dyn Guest + Send + Sync>>,
}

/// What a guest said, line by line, with the time at which each line came.
struct Output {
    lines: Vec<(Duration, String)>,
    ended: Result<Ended>,
}

/// `cargo xtask guest test`.
pub(super) fn run(kind: Option<Kind>, name: Option<&str>) -> Result {
    let kinds = kind.map_or(FOR_TESTS.to_vec(), |kind| vec![kind]);
    let guests = run_in(make(&kinds), name, |_| None)?;
    for skipped in &guests.skipped {
        eprintln!("SKIPPED {skipped}");
    }
    for test in &guests.unsteady {
        eprintln!("PASSED ALONE, FAILED BESIDE OTHER TESTS {test}");
    }
    for failed in &guests.failed {
        eprintln!("FAILED {failed}");
    }
    let skipped: u64 = guests.skipped.iter().map(|skipped| skipped.tests).sum();
    println!("in guests: {} passed, {} failed, {skipped} skipped", guests.passed.len(), guests.failed.len());
    match guests.broken.first() {
        Some(why) => Err(why.clone()),
        None if !guests.failed.is_empty() => Err("tests failed in a guest".to_owned()),
        None => Ok(()),
    }
}

impl Making {
    /// Begins to fetch and build what is not there yet: downloads wait for the network, and builds use what CPUs are left.
    pub(crate) fn begin() -> Self {
        budget::begin();
        Self(std::thread::spawn(|| make(&FOR_TESTS)))
    }

    /// Waits until that is done.
    pub(crate) fn wait(self) -> Prepared {
        Prepared(self.0.join().unwrap_or_default())
    }
}

/// Guests that were made, as far as they could be.
pub(crate) struct Prepared(Vec<Made>);

impl Prepared {
    /// Every test that the running kernel skips, in these guests; `took` is what an earlier run needed for one there.
    pub(crate) fn run_skipped(self, took: impl Fn(&str) -> Option<Duration>) -> Result<Guests> {
        let mut guests = run_in(self.0, None, took)?;
        let bad: Vec<_> = guests.skipped.iter().filter(|skipped| !skipped.is_unavoidable()).collect();
        guests.broken.extend(bad.into_iter().map(|skipped| format!("skipped by every machine: {skipped}")));
        Ok(guests)
    }
}

/// Makes guests side by side: one is fetched while another one is built.
fn make(kinds: &[Kind]) -> Vec<Made> {
    let make_one = |kind| {
        let guest = Cache::open().and_then(|cache| ready(&cache, kind, &[]));
        if let Err(why) = &guest {
            eprintln!("guest: {kind:?} cannot be made: {why}");
        }
        Made { kind, guest }
    };
    let gone = |kind| Made { kind, guest: Err("its maker panicked".to_owned()) };
    std::thread::scope(|scope| {
        let makers: Vec<_> = kinds.iter().map(|kind| (*kind, scope.spawn(move || make_one(*kind)))).collect();
        makers.into_iter().map(|(kind, maker)| maker.join().unwrap_or_else(|_| gone(kind))).collect()
    })
}

/// In how many machines the first guest's tests run: it has most of them. A part more needs its memory, and QEMU's own.
fn parts_of_most() -> usize {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes: Option<u64> = available.and_then(|text| text.split_whitespace().next()?.parse().ok());
    let guests = FOR_TESTS.len() as u64 + 1;
    if kibibytes.is_some_and(|kibibytes| kibibytes / 1024 >= guests * u64::from(boot::MEBIBYTES) * 3 / 2) {
        2
    } else {
        1
    }
}

/// Divides tests into parts that take about as long as each other.
fn divided(names: Vec<String>, parts: usize, took: impl Fn(&str) -> Option<Duration>) -> Vec<Vec<String>> {
    let mut by_length: Vec<_> = names
        .into_iter()
        .map(|name| (took(&format!("{name}{IN_A_GUEST}")).unwrap_or(UNKNOWN), name))
        .collect();
    by_length.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    let mut shares = vec![(Duration::ZERO, Vec::new()); parts];
    for (length, name) in by_length {
        if let Some((whole, names)) = shares.iter_mut().min_by_key(|(whole, _)| *whole) {
            *whole += length;
            names.push(name);
        }
    }
    shares.into_iter().map(|(_, names)| names).collect()
}

/// Runs in guests what the running kernel would skip, or what of it has `name` in its name. `took` is what an earlier run
/// needed for a part of it.
fn run_in(made: Vec<Made>, name: Option<&str>, took: impl Fn(&str) -> Option<Duration>) -> Result<Guests> {
    let programs = programs::build(&["--test", "root", "--test", "host"])?;
    let mut guests = Guests::default();
    for program in &programs {
        // Listing runs nothing: it says which tests would be skipped here, and why.
        let mut list = std::process::Command::new(&program.executable);
        list.current_dir(&program.directory).args(["--list", "--ignored"]);
        for line in cache::output(&mut list)?.lines() {
            if let Some(test) = line.strip_suffix(": test")
                && name.is_none_or(|wanted| test.contains(wanted))
            {
                guests.skipped.push(Skipped::by("this machine", test));
            }
        }
    }
    let cache = Cache::open()?;
    // All of them boot at the same time, list what they would skip, and begin their own tests.
    std::thread::scope(|scope| {
        let mut booted = Vec::new();
        for Made { kind, guest } in &made {
            let guest = match guest {
                Ok(guest) => guest.as_ref(),
                Err(why) => {
                    guests.cannot_be_made(*kind, why);
                    continue;
                }
            };
            let (would_skip, listed) = channel();
            let mut would_skip = Some(would_skip);
            let parts = if name.is_none() && *kind == FOR_TESTS[0] { parts_of_most() } else { 1 };
            let running = (0..parts).map(|part| {
                let (names, later) = channel();
                let own = if part == 0 { Own::All } else { Own::None };
                let does = Does { lists: part == 0, own };
                // The one that lists has it alone: when that is gone, nothing is waited for.
                let (cache, programs, would_skip) = (&cache, &programs, would_skip.take());
                (names, scope.spawn(move || run_guest(cache, guest, programs, later, would_skip, does)))
            });
            booted.push((*kind, guest, running.collect::<Vec<_>>(), listed));
        }
        // One after the other is given what those before it would skip; then they run beside each other.
        let mut left: Vec<_> = guests.skipped.iter().map(|skipped| skipped.name.clone()).collect();
        let mut running = Vec::new();
        for (kind, guest, parts, listed) in booted {
            let described = guest.described();
            // The patched kernel has tests of its own.
            if left.is_empty() && guest.selftests().is_none() {
                continue;
            }
            println!("\nin {described}: {} tests that no machine before it runs", left.len());
            let would_skip: BTreeSet<String> = listed.recv_timeout(LISTS_WITHIN).unwrap_or_default();
            let (mut skips, runs): (Vec<_>, Vec<_>) =
                std::mem::take(&mut left).into_iter().partition(|name| would_skip.contains(name));
            left.clone_from(&skips);
            let shares = divided(runs, parts.len(), &took);
            for ((names, thread), mut part) in parts.into_iter().zip(shares) {
                // What it would skip it skips with its reasons, in one of its parts.
                part.append(&mut skips);
                // Should the guest be gone, its thread says so.
                let _ = names.send(part.join("\n"));
                running.push((kind, described.clone(), names, thread));
            }
        }
        for (kind, described, _names, thread) in running {
            let output = thread.join().unwrap_or_else(|_| Output {
                lines: Vec::new(),
                ended: Err(format!("{described}: its thread panicked")),
            });
            guests.read(kind, &described, &output);
        }
    });
    if guests.failed.len() <= AGAIN_MAX {
        for Made { kind, guest } in &made {
            let names: Vec<_> = guests
                .failures
                .iter()
                .filter(|(in_kind, _)| in_kind == kind)
                .map(|(_, name)| name.clone())
                .collect();
            let Ok(guest) = guest else { continue };
            if !names.is_empty() {
                guests.run_again(*kind, &cache, guest.as_ref(), &programs, &names);
            }
        }
    }
    Ok(guests)
}

/// What a guest does before it waits for the names of tests.
struct Does {
    /// It lists what it would skip.
    lists: bool,
    own: Own,
}

/// Which of the kernel's own tests a guest runs that has them.
enum Own {
    None,
    All,
    /// These, of programs that run one test alone.
    These(Vec<String>),
}

/// Boots a guest, lets it do what it does beforehand, waits for the names of tests, and runs those.
fn run_guest(
    cache: &Cache,
    guest: &(dyn Guest + Send + Sync),
    programs: &[Program],
    later: Receiver<String>,
    mut would_skip: Option<Sender<BTreeSet<String>>>,
    does: Does,
) -> Output {
    let mut script = String::from("status=0\n");
    for program in programs.iter().filter(|_| does.lists) {
        let (directory, executable) = (program.directory.display(), program.executable.display());
        script += &format!("cd '{directory}' && '{executable}' --list --ignored | sed 's/^/{WOULD_SKIP}/'\n");
    }
    if does.lists {
        script += &format!("echo {LISTED}\n");
    }
    // Its own tests need no names and count system calls, wake-ups and polls: they run beside another guest's.
    let own = match &does.own {
        Own::None => None,
        Own::All => Some(String::new()),
        Own::These(names) if names.is_empty() => None,
        Own::These(names) => Some(names.iter().map(|name| format!(" '{name}'")).collect()),
    };
    if let (Some(selftests), Some(names)) = (guest.selftests(), own) {
        script += &format!("sh '{0}/run' '{0}'{names} || status=1\n", selftests.display());
    }
    script += &format!("until [ -f {LATER} ]; do sleep 0.2; done\n{ONLY}=$(cat {LATER})\nexport {ONLY}\n");
    for program in programs {
        let (directory, executable) = (program.directory.display(), program.executable.display());
        script += &format!(
            "cd '{directory}' && '{executable}' --test-threads=1; case $? in\n\
             0) ;;\n{TESTS_FAILED}) [ $status = 0 ] && status=1 ;;\n*) status={DIED} ;;\nesac\n"
        );
    }
    let order = Order {
        command: vec!["sh".into(), "-c".into(), script + "exit $status\n"],
        environment: vec![("INSTA_UPDATE".into(), "no".into()), ("RUST_BACKTRACE".into(), "1".into())],
        directory: shell::root(),
        boot_limit: boot::BOOT_LIMIT,
        limit: LIMIT,
        later: Some(later),
    };
    let begun = Instant::now();
    let (mut lines, mut unfinished) = (Vec::new(), Vec::new());
    let (mut listed, mut at_the_end) = (BTreeSet::new(), String::new());
    let ended = boot::execute(cache, guest, &order, &mut |stream, bytes| {
        if stream == Stream::Out {
            unfinished.extend_from_slice(bytes);
            while let Some(end) = unfinished.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unfinished.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if let Some(test) = line.strip_prefix(WOULD_SKIP) {
                    listed.extend(test.strip_suffix(": test").map(|test| name_and_reason(test).0.to_owned()));
                } else if line == LISTED {
                    // The one who waits for it may be gone: the run has ended then.
                    if let Some(would_skip) = would_skip.take() {
                        let _ = would_skip.send(std::mem::take(&mut listed));
                    }
                } else {
                    // Lines of another guest come between.
                    match read_line(&line) {
                        Some(_) => println!("{line}"),
                        None => at_the_end.extend([line.as_str(), "\n"]),
                    }
                    lines.push((begun.elapsed(), line));
                }
            }
        } else {
            boot::print(stream, bytes);
        }
    });
    print!("{at_the_end}");
    Output { lines, ended }
}

impl Guests {
    /// Runs once more what failed beside another guest, with none beside it: what counts is the second verdict, and the first
    /// is reported.
    fn run_again(
        &mut self,
        kind: Kind,
        cache: &Cache,
        guest: &(dyn Guest + Send + Sync),
        programs: &[Program],
        names: &[String],
    ) {
        let described = guest.described();
        println!("\nin {described}, again, alone: {}", names.join(", "));
        let (send, later) = channel();
        let (own, others): (Vec<_>, Vec<_>) =
            names.iter().cloned().partition(|name| name.starts_with(selftests::PREFIX));
        let _ = send.send(others.join("\n"));
        let does = Does { lists: false, own: Own::These(own) };
        let output = run_guest(cache, guest, programs, later, None, does);
        self.failed.retain(|name| !names.contains(name));
        self.read(kind, &described, &output);
        // A guest that died before it came to a test has not shown that the test passes.
        let (passed, failed): (Vec<_>, Vec<_>) =
            names.iter().cloned().partition(|name| self.passed.contains(name) && !self.failed.contains(name));
        self.unsteady.extend(passed);
        self.failed.extend(failed);
    }

    /// Reads what a guest said: what passed and failed there is skipped no more.
    fn read(&mut self, kind: Kind, described: &str, output: &Output) {
        let (mut passed, mut failed) = (0, 0);
        let mut before = output.lines.first().map_or(Duration::ZERO, |(at, _)| *at);
        for (at, line) in &output.lines {
            // What comes before a program is the wait for another guest, or another program's end.
            if line.starts_with("running ") {
                before = *at;
            }
            let Some((verdict, test)) = read_line(line) else { continue };
            let (name, reason) = name_and_reason(test);
            self.took.push((format!("{name}{IN_A_GUEST}"), at.saturating_sub(before)));
            before = *at;
            match verdict {
                Verdict::Passed => {
                    passed += 1;
                    self.passed.insert(name.to_owned());
                }
                Verdict::Skipped if !kind.is_for(reason) => {
                    self.skip(described, name, reason);
                    continue;
                }
                Verdict::Skipped => {
                    failed += 1;
                    self.failed.insert(name.to_owned());
                    self.broken.push(format!("{described} is there for what it lacks: {name} {reason}"));
                }
                Verdict::Failed => {
                    failed += 1;
                    self.failed.insert(name.to_owned());
                    if selftests::can_run_alone(name) {
                        self.failures.push((kind, name.to_owned()));
                    }
                }
            }
            self.skipped.retain(|skipped| skipped.name != name);
        }
        println!("in {described}: {passed} passed, {failed} failed");
        match &output.ended {
            Err(why) => self.broken.push(why.clone()),
            Ok(ended) if ended.code == DIED => {
                self.broken.push(format!("{described}: a test program died"));
            }
            Ok(ended) if ended.code != 0 && failed == 0 => self
                .broken
                .push(format!("{described}: the test programs ended with {} and no test failed", ended.code)),
            Ok(_) => {}
        }
    }

    /// Notes why a machine skips a test.
    fn skip(&mut self, machine: &str, name: &str, reason: &str) {
        let why = (machine.to_owned(), reason.to_owned());
        match self.skipped.iter_mut().find(|skipped| skipped.name == name) {
            Some(skipped) => skipped.reasons.push(why),
            None => self.skipped.push(Skipped { name: name.to_owned(), reasons: vec![why], tests: 1 }),
        }
    }

    /// A guest that could not be made has skipped every test that was offered, and those of its own.
    fn cannot_be_made(&mut self, kind: Kind, why: &str) {
        let machine = format!("{kind:?}");
        for skipped in &mut self.skipped {
            skipped.reasons.push((machine.clone(), "could not be made".to_owned()));
        }
        if kind == Kind::Patched {
            self.skipped.extend(selftests::TESTS.iter().map(|(program, tests)| Skipped {
                name: format!("{}{program}", selftests::PREFIX),
                reasons: vec![(machine.clone(), "could not be made".to_owned())],
                tests: *tests,
            }));
        }
        self.broken.push(format!("guest {machine} could not be made: {why}"));
    }
}

impl Kind {
    /// Whether a guest is there for what a test's reason says that it lacks.
    fn is_for(self, reason: &str) -> bool {
        self.own_needs().iter().copied().flatten().any(|need| reason.ends_with(need))
    }

    /// What a guest is there for, in the words that tests end their reasons with.
    fn own_needs(self) -> &'static [&'static [&'static str]] {
        const MACHINE: &[&str] =
            &["a guest's virtio NICs", "a guest's igb NICs", "a kernel with CONFIG_UCLAMP_TASK"];
        match self {
            Self::Uml => &[],
            Self::Qemu => &[
                MACHINE,
                &["fentry", "BTF", "igb NICs without rules for flows", "fq and fq_codel"],
                &["flower", "matchall", "gact", "tunnel_key"],
                &["bonds", "teams", "VLANs", "VRFs", "ipvlans", "Geneve tunnels"],
                &["needs Linux 7.0", "threaded busy-poll (Linux 7.0)"],
            ],
            Self::Patched => &[
                MACHINE,
                &["the kernel of kernel/epoll-event-busy-loop", "igb NICs with rules for flows", "netdevsim"],
                &["bonds", "teams", "VLANs", "VRFs", "ipvlans", "Geneve tunnels"],
            ],
        }
    }
}

impl Skipped {
    /// What a machine's line says of a test.
    pub(crate) fn by(machine: &str, test: &str) -> Self {
        let (name, reason) = name_and_reason(test);
        Self { name: name.to_owned(), reasons: vec![(machine.to_owned(), reason.to_owned())], tests: 1 }
    }

    fn is_unavoidable(&self) -> bool {
        self.reasons.iter().any(|(_, reason)| UNAVOIDABLE.iter().any(|known| reason.contains(known)))
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if self.tests != 1 {
            write!(f, " ({} tests)", self.tests)?;
        }
        for (at, (machine, reason)) in self.reasons.iter().enumerate() {
            write!(f, "{} {machine}: {reason}", if at == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod offers {
    use super::*;

    fn skipped(lines: &[&str]) -> Guests {
        Guests {
            skipped: lines.iter().map(|line| Skipped::by("this machine", line)).collect(),
            ..Guests::default()
        }
    }

    fn output(lines: &[&str], code: i32) -> Output {
        let at = |(second, line): (u64, &&str)| (Duration::from_secs(second), (*line).to_owned());
        Output {
            lines: (10..).zip(lines).map(at).collect(),
            ended: Ok(Ended { code, booted_in: Duration::ZERO }),
        }
    }

    #[test]
    fn tests_are_divided_by_how_long_they_took() {
        let names = ["a", "b", "c", "unknown"].map(str::to_owned).to_vec();
        let took = |name: &str| match name.strip_suffix(IN_A_GUEST)? {
            "a" => Some(Duration::from_secs(9)),
            "unknown" => None,
            _ => Some(Duration::from_secs(5)),
        };
        assert_eq!(divided(names.clone(), 2, took), [vec!["a", "unknown"], vec!["b", "c"]]);
        assert_eq!(divided(names, 1, |_| None), [["a", "b", "c", "unknown"]]);
        assert_eq!(divided(Vec::new(), 2, took), [[""; 0], [""; 0]]);
    }

    #[test]
    fn each_machine_gives_its_own_reason() {
        let mut guests = skipped(&["[SKIPPED, needs flower] a", "[SKIPPED, needs luck] b"]);
        let waits = "its own tests are done";
        let lines =
            [waits, "running 2 tests", "test a ... ok", "test [SKIPPED, needs patience] b ... ignored"];
        guests.read(Kind::Qemu, "the guest", &output(&lines, 0));
        assert_eq!((guests.passed.len(), guests.failed.len(), guests.broken.len()), (1, 0, 0));
        let said: Vec<_> = guests.skipped.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["b: this machine: needs luck; the guest: needs patience"]);
        assert_eq!(guests.took[0], ("a, in a guest".to_owned(), Duration::from_secs(1)));
        assert!(!guests.skipped[0].is_unavoidable());
        assert!(Skipped::by("this machine", "[SKIPPED, needs varlinkctl] c").is_unavoidable());
    }

    #[test]
    fn what_a_guest_is_there_for_is_not_skipped_there() {
        const NEED: &str = "[SKIPPED, needs the kernel of kernel/epoll-event-busy-loop] eventbusy";
        let mut guests = skipped(&[NEED]);
        guests.read(Kind::Qemu, "stock", &output(&[&format!("test {NEED} ... ignored")], 0));
        assert_eq!((guests.failed.len(), guests.broken.len()), (0, 0), "another kernel's");
        guests.read(Kind::Patched, "patched", &output(&[&format!("test {NEED} ... ignored")], 0));
        assert!(guests.failed.contains("eventbusy"), "{guests:?}");
        assert!(guests.broken[0].contains("patched is there for what it lacks"), "{:?}", guests.broken);
        assert!(guests.skipped.is_empty());
        assert!(!Kind::Patched.is_for("needs a kernel without CONFIG_UCLAMP_TASK"));
        assert!(!Kind::Patched.is_for("needs a guest's igb NICs without rules for flows"));
    }

    #[test]
    fn a_guest_that_cannot_be_made_is_a_failure_and_counts_as_its_tests() {
        let mut guests = skipped(&["[SKIPPED, needs flower] a"]);
        guests.cannot_be_made(Kind::Patched, "no room");
        let tests: u64 = guests.skipped.iter().map(|skipped| skipped.tests).sum();
        let own: u64 = selftests::TESTS.iter().map(|(_, tests)| tests).sum();
        assert_eq!(tests, 1 + own);
        assert!(own > 80, "{own}");
        assert_eq!(
            guests.skipped[0].to_string(),
            "a: this machine: needs flower; Patched: could not be made"
        );
        assert_eq!(guests.broken, ["guest Patched could not be made: no room"]);
    }

    #[test]
    fn a_program_that_died_is_not_hidden_by_a_test_that_failed() {
        let mut guests = skipped(&[]);
        guests.read(Kind::Patched, "patched", &output(&["test a ... FAILED"], DIED));
        assert_eq!(guests.broken, ["patched: a test program died"]);
        guests.read(Kind::Patched, "patched", &output(&["test b ... FAILED"], 1));
        assert_eq!((guests.broken.len(), guests.failed.len()), (1, 2));
    }

    #[test]
    fn a_guest_whose_programs_fail_without_a_failed_test_is_broken() {
        let mut guests = skipped(&[]);
        guests.read(Kind::Patched, "patched", &output(&["test a ... ok"], 1));
        assert!(guests.broken[0].contains("no test failed"), "{:?}", guests.broken);
    }

    /// The reasons stand in the test programs: a need that is called otherwise there would be a skip again.
    #[test]
    fn the_needs_of_guests_are_those_that_tests_name() {
        let rooms = ["crates/linux/tests/root/main.rs", "crates/netpolicy/tests/root/main.rs"];
        let text: String = rooms
            .map(|room| std::fs::read_to_string(shell::root().join(room)).expect("it is part of the tree"))
            .concat();
        let named: Vec<_> = text.split('"').filter(|part| part.starts_with("needs ")).collect();
        for need in FOR_TESTS.iter().flat_map(|kind| kind.own_needs()).copied().flatten() {
            assert!(named.iter().any(|reason| reason.ends_with(need)), "no test needs {need}: {named:?}");
        }
    }
}
