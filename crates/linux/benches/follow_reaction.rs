//! Measures how soon a follower reports a new epoll, and what its scans cost, for each method that this
//! kernel allows.
//!
//! `cargo bench -p netpolicy-linux --bench follow_reaction [-- EPOLLS]`, as root. The followed process is
//! another instance of this program: it creates epolls at random moments and prints when.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bpf::EpollScanner;
use linux::follow::{FollowEvent, FollowMethod, Follower};
use linux::process::identify;
use model::{EpollId, Fd, Pid};
use rustix::event::epoll;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

type Done<T> = Result<T, Box<dyn Error>>;

/// Set in the environment of the process that creates epolls: their number, and the longest pause between two
/// creations in microseconds. The process waits for a line before it creates the first.
const MAKE: &str = "NETPOLICY_BENCH_MAKE";
const EPOLLS: u32 = 200;
const SOCKETS: u32 = 10_000;
const SCANS: u32 = 50;
/// How long the cost of following is measured.
const IDLE: Duration = Duration::from_secs(10);

fn main() -> Done<()> {
    raise_descriptor_limit()?;
    if let Ok(make) = std::env::var(MAKE) {
        return make_epolls(&make);
    }
    let epolls = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(EPOLLS);
    println!("Linux {}, {epolls} epolls each", rustix::system::uname().release().to_string_lossy());
    let every = |millis| Some(Duration::from_millis(millis));
    // A pause is up to twice the scan interval, so that creations are spread over the whole interval.
    for (how, pause) in [
        (FollowMethod::Fentry, Duration::from_millis(20)),
        (FollowMethod::Rescan { interval: every(100) }, Duration::from_millis(200)),
        (FollowMethod::Rescan { interval: every(1000) }, Duration::from_millis(300)),
        (FollowMethod::Proc { interval: every(100) }, Duration::from_millis(200)),
    ] {
        match reaction(how, epolls, pause) {
            Ok(line) => println!("{how}: {line}"),
            Err(error) => println!("{how}: not here: {error}"),
        }
    }
    scan_cost()?;
    idle_cost()
}

/// Follows a process that creates epolls, and compares the printed time of each creation with that of its
/// report.
fn reaction(how: FollowMethod, epolls: u32, pause: Duration) -> Done<String> {
    let mut follower = Follower::new(&[], how)?;
    let mut maker = Maker::start(epolls, pause)?;
    let id = identify(Pid(maker.0.id()))?;
    follower.follow(id)?;
    let lines = maker.0.stdout.take().ok_or("no pipe")?;
    let (sender, said) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(lines).lines().map_while(Result::ok) {
            // The receiver waits for all lines, so sending cannot fail.
            let _ = sender.send(line);
        }
    });
    drop(maker.0.stdin.take()); // starts the process's work
    let (cpu, begun) = (thread_cpu(), Instant::now());
    let mut reported: Vec<(Fd, Duration)> = Vec::new();
    let patience = pause * epolls + Duration::from_secs(30);
    while reported.len() < usize::try_from(epolls)? && begun.elapsed() < patience {
        if let Some(FollowEvent::NewEpoll(EpollId { fd, .. })) = follower.next(Duration::from_millis(500))? {
            reported.push((fd, now()));
        }
    }
    let load = (thread_cpu() - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    drop(maker);
    reader.join().map_err(|_| "the reader panicked")?;
    let mut delays = Vec::new();
    for line in said.try_iter() {
        let (fd, made) = line.split_once(' ').ok_or("not a line of the process")?;
        let (fd, made) = (Fd(fd.parse()?), Duration::from_nanos(made.parse()?));
        let at = reported.iter().find(|reported| reported.0 == fd).ok_or("an epoll was not reported")?;
        delays.push(at.1.saturating_sub(made));
    }
    delays.sort();
    if delays.len() != usize::try_from(epolls)? {
        return Err(format!("{} of {epolls} were made", delays.len()).into());
    }
    let at = |hundredths: usize| delays[(delays.len() * hundredths / 100).min(delays.len() - 1)];
    Ok(format!(
        "median {:?}, p99 {:?}, longest {:?}; {:.3} % of a CPU to follow",
        at(50),
        at(99),
        at(100),
        100.0 * load
    ))
}

/// Measures how long a scan of this process with many sockets takes.
fn scan_cost() -> Done<()> {
    let scanner = EpollScanner::load()?;
    let me = Pid(std::process::id());
    let made: Result<Vec<_>, _> = (0..4).map(|_| new_epoll()).collect();
    let _epolls = made?;
    for sockets in [0, SOCKETS] {
        let made: Result<Vec<_>, _> =
            (0..sockets).map(|_| std::net::UdpSocket::bind("127.0.0.1:0")).collect();
        let _sockets = made?;
        let mut spans = Vec::new();
        let mut found = (0, 0);
        for _ in 0..SCANS {
            let begun = Instant::now();
            let epolls = scanner.epolls(me)?.len();
            let epolls_took = begun.elapsed();
            let begun = Instant::now();
            found = (epolls, scanner.sockets(me)?.len());
            spans.push((epolls_took, begun.elapsed()));
        }
        spans.sort();
        let (epolls_took, sockets_took) = spans[spans.len() / 2];
        println!(
            "scan by BPF iterator, {sockets} sockets: {} epolls in {epolls_took:?}, {} sockets in {sockets_took:?} (medians of {SCANS})",
            found.0, found.1
        );
    }
    Ok(())
}

/// Measures the cost of following a process with many sockets in which nothing happens.
fn idle_cost() -> Done<()> {
    let me = identify(Pid(std::process::id()))?;
    let made: Result<Vec<_>, _> = (0..SOCKETS).map(|_| std::net::UdpSocket::bind("127.0.0.1:0")).collect();
    let _sockets = made?;
    let every = |millis| Some(Duration::from_millis(millis));
    let scans = [100, 1000].into_iter().flat_map(|ms| {
        [FollowMethod::Rescan { interval: every(ms) }, FollowMethod::Proc { interval: every(ms) }]
    });
    for how in std::iter::once(FollowMethod::Fentry).chain(scans) {
        let mut follower = match Follower::new(&[me], how) {
            Ok(follower) => follower,
            Err(error) => {
                println!("{how}: not here: {error}");
                continue;
            }
        };
        while follower.next(Duration::from_millis(500))?.is_some() {}
        let (cpu, begun) = (thread_cpu(), Instant::now());
        while begun.elapsed() < IDLE {
            follower.next(IDLE.saturating_sub(begun.elapsed()))?;
        }
        let load = (thread_cpu() - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
        println!("{how}: {:.3} % of a CPU to follow a process with {SOCKETS} sockets", 100.0 * load);
    }
    Ok(())
}

/// The process that creates epolls; dropping this kills it.
struct Maker(Child);

impl Maker {
    fn start(epolls: u32, pause: Duration) -> Done<Self> {
        let make = format!("{epolls} {}", pause.as_micros());
        let mut command = Command::new(std::env::current_exe()?);
        command.env(MAKE, make).stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self(command.spawn()?))
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn make_epolls(make: &str) -> Done<()> {
    let (epolls, pause) = make.split_once(' ').ok_or("two numbers")?;
    let (epolls, pause): (u32, u64) = (epolls.parse()?, pause.parse()?);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    // Prints the times of creation. The pauses between creations are drawn from a fixed seed.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut held: Vec<OwnedFd> = Vec::new();
    for _ in 0..epolls {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::thread::sleep(Duration::from_micros(state % pause));
        let made = now();
        let epoll = new_epoll()?;
        println!("{} {}", epoll.as_raw_fd(), made.as_nanos());
        held.push(epoll);
    }
    std::thread::sleep(Duration::from_secs(60)); // Waits until killed: the epolls must exist when a scan looks for them.
    Ok(())
}

fn new_epoll() -> rustix::io::Result<OwnedFd> {
    epoll::create(epoll::CreateFlags::CLOEXEC)
}

fn raise_descriptor_limit() -> Done<()> {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?;
    Ok(())
}

/// A time that can be compared between processes.
fn now() -> Duration {
    since(ClockId::Monotonic)
}

fn thread_cpu() -> Duration {
    since(ClockId::ThreadCPUTime)
}

fn since(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
