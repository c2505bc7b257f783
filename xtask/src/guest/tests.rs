//! The tests that the running kernel cannot run, in the guests that can.
//!
//! A test names its needs; the same program decides on every kernel which of its tests can run there. What is skipped on
//! the host is offered to the emulated machine with the distribution's kernel, and what cannot run there to the same machine
//! with the patched one, which need not wait for the first one's end: each guest first lists what it would skip. Each guest must run what it is there for, and what every machine skips must be known beforehand: a
//! skip that is not is a failure.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::boot::{self, Ended, Guest, LATER, Order, Stream};
use super::cache::{self, Cache};
use super::{Kind, budget, ready, selftests};
use crate::lanes::{AGAIN_MAX, ONLY};
use crate::programs::{self, Program, Verdict, name_and_reason, read_line};
use crate::shell::{self, Result};

/// How long all tests of one guest may take together, beside others and on a busy machine.
const LIMIT: Duration = Duration::from_secs(35 * 60);

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
    /// Those of them that a guest skipped which is there for them, and in which words.
    pub(crate) lacking: Vec<(String, String)>,
}

/// What is behind the name of a test where it is said how long it took.
const IN_A_GUEST: &str = ", in a guest";

/// What begins the line with which a test program begins.
const BEGINS: &str = "running ";

/// What begins a line of a guest that lists what it would skip, and the line after the last of them.
const WOULD_SKIP: &str = "WOULD SKIP ";
const LISTED: &str = "LISTED";

/// Guests that are made while something else is done.
pub(crate) struct Making(Vec<(Kind, JoinHandle<Result<Ready>>)>);

/// A guest that can be booted.
type Ready = Box<dyn Guest + Send + Sync>;

/// Guests that run what others skip while this machine runs its own tests: the first one does at once, and the
/// others when this machine is free.
pub(crate) struct Offered {
    thread: JoinHandle<Result<Guests>>,
    machine_is_free: Arc<OnceLock<()>>,
    /// Ends when all guests are made.
    made: Receiver<()>,
}

/// How a guest's part of the tests went.
struct Ran {
    kind: Kind,
    guest: Result<Ready>,
    /// What it said, if anything was left for it.
    output: Option<Output>,
}

/// What a guest said, line by line, with the time at which each line came.
struct Output {
    /// The tests that it was to run, beside its own.
    names: Vec<String>,
    lines: Vec<(Duration, String)>,
    ended: Result<Ended>,
}

/// `cargo xtask guest test`.
pub(super) fn run(kind: Option<Kind>, name: Option<&str>) -> Result {
    let kinds = kind.map_or(FOR_TESTS.to_vec(), |kind| vec![kind]);
    let making = Making::of(&kinds);
    let programs = programs::build(&["--test", "root", "--test", "host"])?;
    let guests = run_in(making, &programs, None, channel().0, name)?;
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
        Self::of(&FOR_TESTS)
    }

    /// Makes guests side by side: one is fetched while another one is built.
    fn of(kinds: &[Kind]) -> Self {
        let make = |kind| {
            let guest = Cache::open().and_then(|cache| ready(&cache, kind, &[]));
            if let Err(why) = &guest {
                eprintln!("guest: {kind:?} cannot be made: {why}");
            }
            guest
        };
        Self(kinds.iter().map(|&kind| (kind, std::thread::spawn(move || make(kind)))).collect())
    }

    /// Begins to run every test that the running kernel skips, of these programs.
    pub(crate) fn offer(self, programs: Vec<Program>) -> Offered {
        let machine_is_free = Arc::new(OnceLock::new());
        let (tell, made) = channel();
        let free = Arc::clone(&machine_is_free);
        let thread = std::thread::spawn(move || run_in(self, &programs, Some(&free), tell, None));
        Offered { thread, machine_is_free, made }
    }
}

impl Offered {
    /// Lets the other guests begin, and waits until they are made.
    pub(crate) fn begin_others(&self) {
        let _ = self.machine_is_free.set(());
        // Nothing is ever sent.
        let _ = self.made.recv();
    }

    /// Waits for the end of all of them.
    pub(crate) fn end(self) -> Result<Guests> {
        let _ = self.machine_is_free.set(());
        let gone = |_| Err("the thread of the guests panicked".to_owned());
        let mut guests = self.thread.join().unwrap_or_else(gone)?;
        let bad: Vec<_> = guests.skipped.iter().filter(|skipped| !skipped.is_unavoidable()).collect();
        guests.broken.extend(bad.into_iter().map(|skipped| format!("skipped by every machine: {skipped}")));
        Ok(guests)
    }
}

/// Runs in guests what the running kernel would skip, or what of it has `name` in its name. Until this machine is free, the first
/// guest has it alone.
fn run_in(
    making: Making,
    programs: &[Program],
    machine_is_free: Option<&OnceLock<()>>,
    made: Sender<()>,
    name: Option<&str>,
) -> Result<Guests> {
    let mut guests = Guests::default();
    for program in programs {
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
    // One after the other is offered what those before it would skip.
    let (send, mut offered) = channel();
    let _ = send.send(guests.skipped.iter().map(|skipped| skipped.name.clone()).collect());
    let ran: Vec<Ran> = std::thread::scope(|scope| {
        let mut kinds = Vec::new();
        for (at, (kind, maker)) in making.0.into_iter().enumerate() {
            let (left, next) = channel();
            let offered = std::mem::replace(&mut offered, next);
            let (cache, made) = (&cache, made.clone());
            let run = move || {
                let guest = maker.join().unwrap_or_else(|_| Err("its maker panicked".to_owned()));
                drop(made);
                if let (1.., Some(free)) = (at, machine_is_free) {
                    free.wait();
                }
                let output = match &guest {
                    Ok(guest) => run_offered(cache, guest, programs, &offered, &left),
                    Err(_) => {
                        let _ = left.send(offered.recv().unwrap_or_default());
                        None
                    }
                };
                Ran { kind, guest, output }
            };
            kinds.push((kind, scope.spawn(run)));
        }
        drop(made);
        let gone = |kind| Ran { kind, guest: Err("its thread panicked".to_owned()), output: None };
        kinds.into_iter().map(|(kind, thread)| thread.join().unwrap_or_else(|_| gone(kind))).collect()
    });
    for Ran { kind, guest, output } in &ran {
        match (guest, output) {
            (Ok(guest), Some(output)) => {
                if let Err(why) = guests.read(*kind, &guest.described(), output) {
                    guests.go_on(&cache, *kind, guest, programs, output, &why);
                }
            }
            (Ok(_), None) => {}
            (Err(why), _) => guests.cannot_be_made(*kind, why),
        }
    }
    if guests.failed.len() <= AGAIN_MAX {
        for Ran { kind, guest, .. } in &ran {
            let names: Vec<_> = guests
                .failures
                .iter()
                .filter(|(in_kind, _)| in_kind == kind)
                .map(|(_, name)| name.clone())
                .collect();
            let Ok(guest) = guest else { continue };
            if !names.is_empty() {
                guests.run_again(*kind, &cache, guest, programs, &names);
            }
        }
    }
    let lacking = std::mem::take(&mut guests.lacking).into_iter();
    let lacking = lacking.filter(|(name, _)| guests.failed.contains(name)).map(|(_, why)| why);
    guests.broken.extend(lacking);
    Ok(guests)
}

/// Runs in a guest what it is offered and would not skip, and leaves the rest; what it said, if anything was left for it.
fn run_offered(
    cache: &Cache,
    guest: &Ready,
    programs: &[Program],
    offered: &Receiver<Vec<String>>,
    left: &Sender<Vec<String>>,
) -> Option<Output> {
    let described = guest.described();
    let (would_skip, listed) = channel();
    let (send, later) = channel();
    std::thread::scope(|scope| {
        // It boots while the one before it lists.
        let does = Does { lists: true, own: Own::All };
        let running = scope.spawn(move || run_guest(cache, guest, programs, later, Some(would_skip), does));
        let names = offered.recv().unwrap_or_default();
        // The patched kernel has tests of its own.
        if names.is_empty() && guest.selftests().is_none() {
            let _ = left.send(names);
            drop(send);
            return None;
        }
        println!("\nin {described}: {} tests that no machine before it runs", names.len());
        let would_skip: BTreeSet<String> = listed.recv_timeout(LISTS_WITHIN).unwrap_or_default();
        let _ = left.send(names.iter().filter(|name| would_skip.contains(*name)).cloned().collect());
        // What it would skip it skips with its reasons. Should the guest be gone, its thread says so.
        let _ = send.send(names.join("\n"));
        let panicked = |_| {
            let ended = Err(format!("{described}: its thread panicked"));
            Output { names: Vec::new(), lines: Vec::new(), ended }
        };
        Some(Output { names, ..running.join().unwrap_or_else(panicked) })
    })
}

impl Output {
    /// Of the tests that it was to run, those without a verdict.
    fn left(&self) -> Vec<String> {
        let verdicts = self.lines.iter().filter_map(|(_, line)| read_line(line));
        let ran: BTreeSet<&str> = verdicts.map(|(_, test)| name_and_reason(test).0).collect();
        self.names.iter().filter(|name| !ran.contains(name.as_str())).cloned().collect()
    }

    /// Whether it came to the tests that others skip: its own come before.
    fn began(&self) -> bool {
        self.lines.iter().any(|(_, line)| line.starts_with(BEGINS))
    }
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
    guest: &Ready,
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
    let ended = boot::execute(cache, guest.as_ref(), &order, &mut |stream, bytes| {
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
    Output { names: Vec::new(), lines, ended }
}

impl Guests {
    /// Runs what a machine had left when it died, in another one: on a busy host, an emulated kernel has been seen to trap in code
    /// that it changes at run time. It must not happen twice.
    fn go_on(
        &mut self,
        cache: &Cache,
        kind: Kind,
        guest: &Ready,
        programs: &[Program],
        before: &Output,
        why: &str,
    ) {
        let (described, left) = (guest.described(), before.left());
        eprintln!("{why}\n{described}: once more, for {} tests", left.len());
        let own = if before.began() { Own::None } else { Own::All };
        let (send, later) = channel();
        let _ = send.send(left.join("\n"));
        let output = run_guest(cache, guest, programs, later, None, Does { lists: false, own });
        match self.read(kind, &described, &output) {
            Ok(()) => self.unsteady.push(format!("{described}, which died with {} tests left", left.len())),
            Err(again) => self.broken.push(again),
        }
    }

    /// Runs once more what failed beside another guest, with none beside it: what counts is the second verdict, and the first
    /// is reported.
    fn run_again(
        &mut self,
        kind: Kind,
        cache: &Cache,
        guest: &Ready,
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
        let died = self.read(kind, &described, &output).err();
        self.broken.extend(died);
        // A guest that died before it came to a test has not shown that the test passes.
        let (passed, failed): (Vec<_>, Vec<_>) =
            names.iter().cloned().partition(|name| self.passed.contains(name) && !self.failed.contains(name));
        self.unsteady.extend(passed);
        self.failed.extend(failed);
    }

    /// Reads what a guest said: what passed and failed there is skipped no more. `Err` is why it did not come to its end.
    fn read(&mut self, kind: Kind, described: &str, output: &Output) -> Result {
        let (mut passed, mut failed) = (0, 0);
        let mut before = output.lines.first().map_or(Duration::ZERO, |(at, _)| *at);
        for (at, line) in &output.lines {
            // What comes before a program is the wait for another guest, or another program's end.
            if line.starts_with(BEGINS) {
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
                    self.failures.push((kind, name.to_owned()));
                    let why = format!("{described} is there for what it lacks: {name} {reason}");
                    self.lacking.push((name.to_owned(), why));
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
            Err(why) => return Err(why.clone()),
            Ok(ended) if ended.code == DIED => {
                self.broken.push(format!("{described}: a test program died"));
            }
            Ok(ended) if ended.code != 0 && failed == 0 => self
                .broken
                .push(format!("{described}: the test programs ended with {} and no test failed", ended.code)),
            Ok(_) => {}
        }
        Ok(())
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
            names: Vec::new(),
            lines: (10..).zip(lines).map(at).collect(),
            ended: Ok(Ended { code, booted_in: Duration::ZERO }),
        }
    }

    #[test]
    fn what_a_machine_that_died_has_left_is_what_has_no_verdict() {
        let lines = ["running 3 tests", "test a ... ok", "test [SKIPPED, needs luck] b ... ignored"];
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let died = Output { names, ended: Err("Kernel panic".to_owned()), ..output(&lines, 0) };
        assert_eq!((died.left(), died.began()), (vec!["c".to_owned()], true));
        assert!(!output(&["test kselftest/a ... ok"], 0).began());
        let mut guests = skipped(&["[SKIPPED, needs luck] b", "[SKIPPED, needs luck] c"]);
        assert_eq!(guests.read(Kind::Qemu, "it", &died), Err("Kernel panic".to_owned()));
        assert_eq!((guests.broken.len(), guests.passed.len(), guests.skipped.len()), (0, 1, 2));
    }

    #[test]
    fn each_machine_gives_its_own_reason() {
        let mut guests = skipped(&["[SKIPPED, needs flower] a", "[SKIPPED, needs luck] b"]);
        let waits = "its own tests are done";
        let lines =
            [waits, "running 2 tests", "test a ... ok", "test [SKIPPED, needs patience] b ... ignored"];
        guests.read(Kind::Qemu, "the guest", &output(&lines, 0)).expect("it ended");
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
        guests
            .read(Kind::Qemu, "stock", &output(&[&format!("test {NEED} ... ignored")], 0))
            .expect("it ended");
        assert_eq!((guests.failed.len(), guests.broken.len()), (0, 0), "another kernel's");
        guests
            .read(Kind::Patched, "patched", &output(&[&format!("test {NEED} ... ignored")], 0))
            .expect("it ended");
        assert!(guests.failed.contains("eventbusy"), "{guests:?}");
        assert!(guests.lacking[0].1.contains("patched is there for what it lacks"), "{:?}", guests.lacking);
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
        guests.read(Kind::Patched, "patched", &output(&["test a ... FAILED"], DIED)).expect("it ended");
        assert_eq!(guests.broken, ["patched: a test program died"]);
        guests.read(Kind::Patched, "patched", &output(&["test b ... FAILED"], 1)).expect("it ended");
        assert_eq!((guests.broken.len(), guests.failed.len()), (1, 2));
    }

    #[test]
    fn a_guest_whose_programs_fail_without_a_failed_test_is_broken() {
        let mut guests = skipped(&[]);
        guests.read(Kind::Patched, "patched", &output(&["test a ... ok"], 1)).expect("it ended");
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
