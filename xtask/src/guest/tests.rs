//! The tests that the running kernel cannot run, in the guests that can.
//!
//! A test names its needs; the same program decides on every kernel which of its tests can run there. What is skipped on
//! the host is offered to the emulated machine with the distribution's kernel, and what cannot run there to the same machine
//! with the patched one, which need not wait for the first one's end: each guest first lists what it would skip.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::boot::{self, Guest, LATER, Order, Stream};
use super::cache::{self, Cache};
use super::outcome::{DIED, Guests, Output, Skipped, TESTS_FAILED};
use super::{Kind, budget, ready, selftests};
use crate::lanes::{AGAIN_MAX, ONLY};
use crate::programs::{self, Program, name_and_reason, read_line};
use crate::shell::{self, Result};

/// How long all tests of one guest may take together, beside others and on a busy machine.
const LIMIT: Duration = Duration::from_secs(35 * 60);

/// How long a guest may take until it has listed what it would skip; it boots in that time, too.
const LISTS_WITHIN: Duration = Duration::from_secs(6 * 60);

/// The guests that `cargo xtask test` makes, in the order in which tests are offered to them: the first is what users have.
pub(super) const FOR_TESTS: [Kind; 2] = [Kind::Qemu, Kind::Patched];

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
    for why in &guests.broken {
        eprintln!("FAILED {why}");
    }
    let skipped: u64 = guests.skipped.iter().map(|skipped| skipped.tests).sum();
    println!("in guests: {} passed, {} failed, {skipped} skipped", guests.passed.len(), guests.failed.len());
    match (guests.broken.first(), name) {
        (Some(why), _) => Err(why.clone()),
        (None, _) if !guests.failed.is_empty() => Err("tests failed in a guest".to_owned()),
        (None, Some(name)) if guests.passed.is_empty() => Err(format!(
            "no test ran: of those that this machine skips, a guest runs none with {name} in its name"
        )),
        (None, _) => Ok(()),
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
                    Ok(guest) => run_offered(cache, guest, programs, &offered, &left, name),
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

/// Runs in a guest what it is offered and would not skip, and leaves the rest; what it said, if anything was left for it. The
/// patched kernel has tests of its own, which run if none or one of them was asked for by name.
fn run_offered(
    cache: &Cache,
    guest: &Ready,
    programs: &[Program],
    offered: &Receiver<Vec<String>>,
    left: &Sender<Vec<String>>,
    name: Option<&str>,
) -> Option<Output> {
    let described = guest.described();
    let (would_skip, listed) = channel::<BTreeSet<String>>();
    let (send, later) = channel();
    std::thread::scope(|scope| {
        // It boots while the one before it lists.
        let has_own = guest.selftests().is_some() && name.is_none_or(|name| name.contains(selftests::PREFIX));
        let does = Does { lists: true, own: if has_own { Own::All } else { Own::None } };
        let running = scope.spawn(move || run_guest(cache, guest, programs, later, Some(would_skip), does));
        let names = offered.recv().unwrap_or_default();
        if names.is_empty() && !has_own {
            let _ = left.send(names);
            drop(send);
            return None;
        }
        println!("\nin {described}: {} tests that no machine before it runs", names.len());
        // Of one that does not say what it would skip, the next one is offered everything.
        let skipped = match listed.recv_timeout(LISTS_WITHIN) {
            Ok(listed) => names.iter().filter(|name| listed.contains(*name)).cloned().collect(),
            Err(why) => {
                eprintln!("{described} has not said what it would skip: {why}");
                names.clone()
            }
        };
        let _ = left.send(skipped);
        // What it would skip it skips with its reasons. Should the guest be gone, its thread says so.
        let _ = send.send(names.join("\n"));
        let panicked = |_| {
            let ended = Err(format!("{described}: its thread panicked"));
            Output { names: Vec::new(), lines: Vec::new(), ended }
        };
        Some(Output { names, ..running.join().unwrap_or_else(panicked) })
    })
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
        script += &format!("sh '{0}/run' '{0}'{names} || status={DIED}\n", selftests.display());
    }
    script += &format!("until [ -f {LATER} ]; do sleep 0.2; done\n{ONLY}=$(cat {LATER})\nexport {ONLY}\n");
    for program in programs {
        let (directory, executable) = (program.directory.display(), program.executable.display());
        script += &format!(
            "cd '{directory}' && '{executable}' --test-threads=1; case $? in\n\
             0) ;;\n{TESTS_FAILED}) [ $status = 0 ] && status=1 ;;\n*) status={DIED} ;;\nesac\n"
        );
    }
    let mut environment = vec![("INSTA_UPDATE".into(), "no".into()), ("RUST_BACKTRACE".into(), "1".into())];
    // Programs that tests start may be kept there.
    let of_ours = |name: &'static str| Some((name.to_owned(), std::env::var(name).ok()?));
    environment.extend(["HOME", "XDG_CACHE_HOME"].into_iter().filter_map(of_ours));
    let order = Order {
        command: vec!["sh".into(), "-c".into(), script + "exit $status\n"],
        environment,
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
}
