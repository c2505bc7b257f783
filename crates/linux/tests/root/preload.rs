//! Tests the libraries that cap and that count `epoll_wait`, in real programs.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use linux::process::preload::{EpollCounts, Library, environment, install, refusal};
use model::{Nanoseconds, Pid};
use testkit::scratch::Scratch;
use testkit::subject::{Subject, eventually, memcached};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const SERVER: &[Need] = &[Need::Root, Need::Memcached, Need::Unshare];
    vec![
        test("preload/an_unmodified_memcached_never_sleeps_longer_than_the_cap", SERVER, capped_memcached),
        test(
            "preload/every_way_to_wait_is_capped_and_short_waits_stay",
            &[Need::Root, Need::Cc],
            every_way_to_wait,
        ),
        test("preload/events_of_an_unmodified_memcached_are_counted", SERVER, counted_memcached),
        test("preload/every_way_to_wait_is_counted", &[Need::Root, Need::Cc], every_way_is_counted),
        test(
            "preload/a_program_that_becomes_another_user_is_refused",
            &[Need::Root, Need::Cc],
            setuid_program,
        ),
    ]
}

/// Returns the `epoll_wait` timeouts of a process's sleeping threads, in milliseconds. Kernel:
/// `/proc/PID/task/TID/syscall` contains the number and the arguments of the call; the fourth argument is the
/// timeout, an int.
fn timeouts(pid: Pid) -> Result<Vec<i32>, Failed> {
    const EPOLL_WAITS: [&str; 3] = ["232", "281", "22"]; // The numbers of x86_64 epoll_wait and epoll_pwait, and of aarch64 epoll_pwait.
    let mut timeouts = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("syscall"))?;
        let fields: Vec<&str> = text.split_whitespace().collect();
        if fields.first().is_some_and(|number| EPOLL_WAITS.contains(number)) {
            let register = u64::from_str_radix(fields[4].trim_start_matches("0x"), 16)?;
            let low: [u8; 4] = register.to_le_bytes()[..4].try_into()?;
            timeouts.push(i32::from_le_bytes(low));
        }
    }
    Ok(timeouts)
}

fn capped_memcached() -> Result<(), Failed> {
    const WORKERS: usize = 4;
    const CAP: Nanoseconds = Nanoseconds::from_millis(1);
    let asleep = |pid| {
        eventually("the workers sleep in epoll_wait", || timeouts(pid).ok().filter(|t| t.len() >= WORKERS))
    };
    let plain = memcached(&[])?;
    assert!(asleep(plain.pid())?.contains(&-1), "without the library, the workers sleep indefinitely");
    drop(plain);

    let scratch = Scratch::new("capped-memcached")?;
    assert_eq!(refusal("/usr/bin/memcached".as_ref())?, None);
    let library = install(Library::Cap, &scratch.path("lib"))?;
    let capped = memcached(&environment(&library, CAP, None))?;
    for _ in 0..100 {
        let timeouts = asleep(capped.pid())?;
        assert!(timeouts.iter().all(|timeout| *timeout == 1), "{timeouts:?}");
    }
    Ok(())
}

fn every_way_to_wait() -> Result<(), Failed> {
    const CAP_US: u64 = 20_500;
    const SHORT_US: u64 = 2_000;
    let scratch = Scratch::new("waits")?;
    let program = scratch.compile("waits", &[])?;
    let library = install(Library::Cap, &scratch.path("lib"))?;
    let waits = waits_with_cap(&program, &library, Nanoseconds::from_micros(CAP_US))?;
    let waited = |name: &str, least_us| {
        let (found, elapsed_us) = waits[name];
        assert!(found == 0 && elapsed_us >= least_us, "{name}: {waits:?}");
    };
    waited("wait-for-ever", 21_000); // The kernel rounds up to whole milliseconds.
    waited("wait-a-minute", 21_000);
    waited("pwait-for-ever", 21_000);
    waited("pwait2-for-ever", CAP_US);
    waited("pwait2-a-minute", CAP_US);
    waited("wait-2ms", SHORT_US);
    waited("pwait2-2ms", SHORT_US);
    waited("wait-not", 0);
    for (name, not_us) in [("wait-2ms", 21_000), ("pwait2-2ms", CAP_US), ("wait-not", SHORT_US)] {
        let (_, elapsed_us) = waits[name];
        assert!(elapsed_us < not_us, "a short wait was made longer: {name}: {waits:?}");
    }
    let never = waits_with_cap(&program, &library, Nanoseconds::ZERO)?;
    for (name, (found, elapsed_us)) in &never {
        assert!(*found <= 0 && *elapsed_us < 21_000, "with a cap of 0 no call sleeps: {name}: {never:?}");
    }
    for name in ["pwait2-nonsense", "wait-on-nothing"] {
        assert_eq!((waits[name].0, never[name].0), (-1, -1), "the kernel's error is passed through: {name}");
    }
    Ok(())
}

/// Tests the counts of memcached, whose workers wake up once per request: 200 requests are 200 events, in
/// addition to the workers' own notifications.
fn counted_memcached() -> Result<(), Failed> {
    const REQUESTS: u64 = 200;
    let scratch = Scratch::new("counted-memcached")?;
    let library = install(Library::Count, &scratch.path("lib"))?;
    let counts = EpollCounts::new()?;
    assert!(counts.read()?.batch_since(&counts.read()?).is_none(), "nothing counts yet");
    let server = memcached(&counts.environment(&library, None))?;
    let ask = || -> Result<(), std::io::Error> {
        let mut connection = std::net::TcpStream::connect("127.0.0.1:11211")?;
        let mut answer = [0; 5];
        for _ in 0..REQUESTS {
            connection.write_all(b"get nothing\r\n")?;
            connection.read_exact(&mut answer)?;
        }
        Ok(())
    };
    let netns = linux::Netns::of_process(server.pid())?;
    counts.forget_most()?;
    let before = counts.read()?;
    netns.run(ask)??;
    let found = counts.read()?.batch_since(&before).ok_or("memcached was not counted")?;
    let events = found.avg * f64::from(u32::try_from(found.waits)?);
    let (least, most) = (f64::from(u32::try_from(REQUESTS)?), f64::from(u32::try_from(2 * REQUESTS)?));
    assert!(events >= least && events < most, "{events} events: {found:?}");
    let sizes = found.sizes.ok_or("without sizes")?;
    assert_eq!(sizes[0], found.empty, "{found:?}");
    assert_eq!(sizes[1..].iter().sum::<u64>(), found.waits, "{found:?}");
    assert!(sizes[1] >= REQUESTS && (1..=8).contains(&found.max), "{found:?}");
    Ok(())
}

/// Tests that eight waits find no event and two are refused, and that the two libraries work together as each
/// does alone.
fn every_way_is_counted() -> Result<(), Failed> {
    const CAP: Nanoseconds = Nanoseconds::from_millis(20);
    let scratch = Scratch::new("counted-waits")?;
    let program = scratch.compile("waits", &[])?;
    let [cap, count] = [Library::Cap, Library::Count].map(|library| install(library, &scratch.path("lib")));
    let counts = EpollCounts::new()?;
    let [(_, capping), cap] = environment(&cap?, CAP, None);
    let both = counts.environment(&count?, Some(&capping));
    // If the cap does not work, the wait never ends, so `timeout` limits it.
    let mut bounded = Command::new("timeout");
    bounded.arg("20").arg(&program).envs([cap]).envs(both);
    let before = counts.read()?;
    assert_eq!(Subject::start(&mut bounded)?.lines()?.len(), 10);
    let after = counts.read()?;
    assert_eq!(after.failed_since(&before), 2, "{after:?}");
    let found = after.batch_since(&before).ok_or("the program was not counted")?;
    assert_eq!((found.waits, found.empty, found.max), (0, 8, 0), "{found:?}");
    Ok(())
}

/// Returns the result of each kind of wait, and its duration in microseconds.
fn waits_with_cap(
    program: &Path,
    library: &Path,
    cap: Nanoseconds,
) -> Result<BTreeMap<String, (i32, u64)>, Failed> {
    let mut command = Command::new(program);
    command.envs(environment(library, cap, None));
    // If the cap does not work, the wait never ends, so `timeout` limits it.
    let mut bounded = Command::new("timeout");
    bounded.arg("20").arg(program).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut waits = BTreeMap::new();
    for line in Subject::start(&mut bounded)?.lines()? {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, found, elapsed] = words[..] else { return Err(format!("it said {line:?}").into()) };
        waits.insert(name.to_owned(), (found.parse::<i32>()?, elapsed.parse::<u64>()?));
    }
    assert_eq!(waits.len(), 10, "{waits:?}");
    Ok(waits)
}

fn setuid_program() -> Result<(), Failed> {
    const NOBODY: u32 = 65_534;
    let scratch = Scratch::new("setuid")?;
    let program = scratch.compile("waits", &[])?;
    assert_eq!(refusal(&program)?, None);
    std::os::unix::fs::chown(&program, Some(NOBODY), None)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755))?;
    let why = refusal(&program)?.ok_or("the refusal names AT_SECURE")?;
    assert!(why.contains("AT_SECURE"), "{why}");
    let script = scratch.path("script");
    std::fs::write(&script, format!("#!{}\n", program.display()))?;
    assert_eq!(refusal(&script)?, Some(why), "the program of a script is its interpreter");
    Ok(())
}
