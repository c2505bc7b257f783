//! Runs, in guests, the tests that the running kernel cannot run. A test names its needs, and the same
//! program decides on every kernel which of its tests can run. First, the emulated machine with the
//! distribution's kernel runs those tests skipped here that it can. Then, the one with the patched kernel
//! runs the rest, and the kernel's selftests.

use std::thread::JoinHandle;
use std::time::Duration;

use super::boot::{self, Guest, Order, Stream};
use super::cache::Cache;
use super::outcome::{DIED, Guests, Kind, Output, Skipped, TESTS_FAILED};
use super::qemu::{Qemu, guest};
use super::selftests;
use crate::programs::{self, Program, read_line};
use crate::shell::{self, Result};
use crate::tally::Tally;

/// The time limit for all tests of one guest, on a busy machine.
const LIMIT: Duration = Duration::from_secs(35 * 60);

/// The time limit of the test that [`smoke`] runs.
const SMOKE_LIMIT: Duration = Duration::from_secs(120);

/// The guests for tests, in order of preference. The first one is preferred, because users run kernels like
/// it.
pub(super) const FOR_TESTS: [Kind; 2] = [Kind::Qemu, Kind::Patched];

/// The test that `make test` runs in a guest: a policy is applied to a NIC with interrupts, and undone.
const SMOKE: &str = "applied/a_policy_for_a_nic_with_interrupts_is_applied_and_undone_exactly";

/// The variable that names the tests to run, separated by line feeds; the program skips all others.
const ONLY: &str = "NETPOLICY_TEST_ONLY";

/// Guests that are built in the background.
pub(crate) struct Making(Vec<(Kind, JoinHandle<Result<Qemu>>)>);

/// Runs `cargo xtask guest test`.
pub(super) fn run(kind: Option<Kind>, name: Option<&str>) -> Result {
    let kinds = kind.map_or(FOR_TESTS.to_vec(), |kind| vec![kind]);
    let making = Making::of(&kinds);
    let selection = [&["--test", "root", "--test", "host"], &programs::OF_TOOLS[..]].concat();
    let mut programs = programs::build(&selection)?;
    programs.retain(Program::names_what_it_skips);
    let guests = making.run_named(&programs, name)?;
    if let Some(name) = name
        && guests.passed.is_empty()
        && guests.failed.is_empty()
        && guests.broken.is_empty()
    {
        return Err(format!(
            "no test ran: this machine skips no test with {name} in its name that a guest can run"
        ));
    }
    let mut tally = Tally::default();
    tally.add_guests(Ok(guests));
    tally.end()
}

/// Runs one test in the guest with the distribution's kernel: the guest boots, and a policy is applied and
/// undone in it.
pub(crate) fn smoke(programs: &[Program]) -> Result<Tally> {
    if !shell::is_root() {
        return Ok(Tally::of_skipped(&format!("[SKIPPED, needs root] {SMOKE}")));
    }
    let cache = Cache::open()?;
    let guest = guest(&cache, Kind::Qemu, &[], false)?;
    let program: Vec<_> =
        programs.iter().filter(|program| program.name == "netpolicy test root").cloned().collect();
    let output = run_guest(&cache, &guest, &program, &[SMOKE.to_owned()], false, SMOKE_LIMIT);
    let mut guests = Guests::default();
    guests.read(&guest.described(), &output)?;
    match guests.passed.contains(SMOKE) {
        true => Ok(Tally::of_passed(1)),
        false => Err(format!("{SMOKE} failed in {}", guest.described())),
    }
}

impl Making {
    /// Starts to fetch and build the guests that are missing: downloads wait for the network, and builds use
    /// idle CPU time.
    pub(crate) fn begin() -> Self {
        Self::of(&FOR_TESTS)
    }

    /// Prepares guests concurrently: one is fetched while another one is built.
    fn of(kinds: &[Kind]) -> Self {
        let make = |kind| {
            let guest = Cache::open().and_then(|cache| guest(&cache, kind, &[], false));
            if let Err(why) = &guest {
                eprintln!("guest: {kind:?} cannot be built: {why}");
            }
            guest
        };
        Self(kinds.iter().map(|&kind| (kind, std::thread::spawn(move || make(kind)))).collect())
    }

    /// Runs every test of these programs that the running kernel skips. If every machine skips a test, that
    /// is a failure unless the skip is listed.
    pub(crate) fn run(self, programs: &[Program]) -> Result<Guests> {
        let mut guests = self.run_named(programs, None)?;
        let bad: Vec<_> = guests.skipped.iter().filter(|skipped| !skipped.is_unavoidable()).collect();
        guests.broken.extend(bad.into_iter().map(|skipped| format!("skipped by every machine: {skipped}")));
        Ok(guests)
    }

    /// Runs the skipped tests whose names contain `name`, or all skipped tests.
    fn run_named(self, programs: &[Program], name: Option<&str>) -> Result<Guests> {
        let mut guests = Guests::default();
        for program in programs {
            let skipped = program.skipped()?.into_iter();
            let wanted = skipped.filter(|test| name.is_none_or(|name| test.contains(name)));
            guests.skipped.extend(wanted.map(|test| Skipped::here(&test)));
        }
        let cache = Cache::open()?;
        for (kind, maker) in self.0 {
            let guest = match maker.join().unwrap_or_else(|_| Err("its maker panicked".to_owned())) {
                Ok(guest) => guest,
                Err(why) => {
                    guests.cannot_be_made(kind, &why);
                    continue;
                }
            };
            // The kernel's own tests run if no tests were requested by name, or if the name is that of a
            // kernel selftest.
            let has_own =
                guest.selftests().is_some() && name.is_none_or(|name| name.contains(selftests::PREFIX));
            let names: Vec<String> = guests.skipped.iter().map(|skipped| skipped.name.clone()).collect();
            if !names.is_empty() || has_own {
                guests.run_in(&cache, &guest, programs, &names, has_own);
            }
        }
        Ok(guests)
    }
}

impl Guests {
    /// Runs these tests in a guest. Tests whose needs the guest does not meet stay skipped. On a busy host,
    /// an emulated kernel sometimes traps in code that it patches at run time: if a guest dies, another one
    /// runs the remaining tests, once, and the death is reported as a bug.
    fn run_in(&mut self, cache: &Cache, guest: &Qemu, programs: &[Program], names: &[String], own: bool) {
        let described = guest.described();
        println!("\nin {described}: {} tests that no previous machine runs", names.len());
        let output = run_guest(cache, guest, programs, names, own, LIMIT);
        let Err(why) = self.read(&described, &output) else { return };
        let left = output.left(names);
        eprintln!("{why}\n{described}: running the remaining {} tests once more", left.len());
        let again = run_guest(cache, guest, programs, &left, own && !output.began(), LIMIT);
        match self.read(&described, &again) {
            Ok(()) => self.unsteady.push(format!("{described} died with {} tests left: {why}", left.len())),
            Err(again) => self.broken.push(again),
        }
    }
}

/// Boots a guest and runs these tests of the programs there, after the kernel's selftests if `own` is set.
fn run_guest(
    cache: &Cache,
    guest: &Qemu,
    programs: &[Program],
    names: &[String],
    own: bool,
    limit: Duration,
) -> Output {
    let mut script = String::from("status=0\n");
    if let (Some(selftests), true) = (guest.selftests(), own) {
        script += &format!("sh '{0}/run' '{0}' || status={DIED}\n", selftests.display());
    }
    for program in programs {
        let (directory, executable) = (program.directory.display(), program.executable.display());
        script += &format!(
            "cd '{directory}' && '{executable}' --test-threads=1; case $? in\n\
             0) ;;\n{TESTS_FAILED}) [ $status = 0 ] && status=1 ;;\n*) status={DIED} ;;\nesac\n"
        );
    }
    let mut environment = vec![
        ("INSTA_UPDATE".into(), "no".into()),
        ("RUST_BACKTRACE".into(), "1".into()),
        (ONLY.to_owned(), names.join("\n")),
    ];
    // The first two variables name directories that hold the caches of programs that tests start.
    let inherited = |name: &'static str| Some((name.to_owned(), std::env::var(name).ok()?));
    environment.extend(["HOME", "XDG_CACHE_HOME", "NETPOLICY_TEST_KILLS"].into_iter().filter_map(inherited));
    let order = Order {
        command: vec!["sh".into(), "-c".into(), script + "exit $status\n"],
        environment,
        directory: shell::root(),
        boot_limit: boot::BOOT_LIMIT,
        limit,
    };
    let (mut lines, mut unfinished, mut at_the_end) = (Vec::new(), Vec::new(), String::new());
    let ended = boot::execute(cache, guest, &order, &mut |stream, bytes| {
        if stream == Stream::Error {
            return boot::print(stream, bytes);
        }
        unfinished.extend_from_slice(bytes);
        while let Some(end) = unfinished.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unfinished.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            // A failed test's output is printed after the verdicts.
            match read_line(&line) {
                Some(_) => println!("{line}"),
                None => at_the_end.extend([line.as_str(), "\n"]),
            }
            lines.push(line);
        }
    });
    print!("{at_the_end}");
    Output { lines, ended }
}
