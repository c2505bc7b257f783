//! The load generator against other clients, each on the same single core, round by round in turn.
//!
//! - Throughput in closed loop against memcached, beside memcaslap of libmemcached-tools: in the same shape (one
//!   request under way on each connection), and with the generator's pipelining, which memcaslap does not have.
//! - The same against a server that answers everything it read with one write, so that the client is the limit:
//!   memcached makes a system call for every answer, which bounds every client alike.
//! - The CPU time of the client for each request, user and system, in each of these runs: what a client could do if
//!   nothing but its own CPU held it back, which on two CPUs no server allows. The generator sleeps here when it has
//!   nothing to do, as memcaslap does.
//! - The median response time at low load, beside the plainest client there is: one connection, one blocking
//!   request after the other.
//!
//! Servers run on CPU 1, clients on CPU 0, over loopback. What is missing on the machine is skipped, and said.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use measure::protocol::Keys;
use measure::record::Recorder;
use measure::statistics::{median, paired_ratio};
use measure::{Edge, Surroundings, memcached};
use model::Chance;
use model::{
    Arrivals, Evidence, KeySize, MeasuredOn, MemcachedWorkload, Nanoseconds, OfferedLoad, Origin, ValueSize,
    Waiting,
};
use rustix::event::epoll;

const ROUNDS: usize = 7;
const SECONDS: u32 = 2;
const CLIENT_CPU: usize = 0;
const SERVER_CPU: usize = 1;
const KEY_BYTES: u32 = 64;
const VALUE_BYTES: u32 = 100;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn pin(cpu: usize) -> Result<(), Failure> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Pins the one client thread, and watches its CPU time from when the window opens until shortly before it closes: a
/// thread that has all its answers may be gone at the edge itself.
#[derive(Default)]
struct OnClientCpu {
    thread: Mutex<Option<PathBuf>>,
    watch: Mutex<Option<thread::JoinHandle<Result<f64, Failure>>>>,
}

impl Surroundings for OnClientCpu {
    fn on_thread_start(&self, _thread: u32) -> Result<(), Failure> {
        let number = rustix::thread::gettid().as_raw_nonzero();
        *self.thread.lock().map_err(|_| "poisoned")? = Some(format!("/proc/self/task/{number}").into());
        pin(CLIENT_CPU)
    }

    fn at_edge(&self, edge: Edge) {
        let (Ok(thread), Ok(mut watch)) = (self.thread.lock(), self.watch.lock()) else { return };
        if let (Edge::Opens, Some(path)) = (edge, thread.clone()) {
            *watch = Some(thread::spawn(move || cpu_share(|| cpu_time(&path))));
        }
    }
}

/// How much of a CPU was used over most of a run, 0..=1 for each thread.
fn cpu_share(used: impl Fn() -> Result<Duration, Failure>) -> Result<f64, Failure> {
    const WATCHED: Duration = Duration::from_millis(1100);
    let (begun, before) = (Instant::now(), used()?);
    thread::sleep(WATCHED);
    let (watched, after) = (begun.elapsed(), used()?);
    Ok((after - before).as_secs_f64() / watched.as_secs_f64())
}

/// The CPU time of a thread, by its directory in `/proc`. Kernel: `Documentation/scheduler/sched-stats.rst`,
/// `/proc/PID/schedstat`: nanoseconds on a CPU, user and system together.
fn cpu_time(thread: &Path) -> Result<Duration, Failure> {
    let text = std::fs::read_to_string(thread.join("schedstat"))?;
    Ok(Duration::from_nanos(text.split(' ').next().ok_or("an empty schedstat")?.parse()?))
}

/// The CPU time of all threads of a process.
fn cpu_time_of_all(process: u32) -> Result<Duration, Failure> {
    let mut sum = Duration::ZERO;
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        sum += cpu_time(&thread?.path())?;
    }
    Ok(sum)
}

/// What a client did in a run.
struct Did {
    /// Answers per second.
    rate: f64,
    /// CPU time of the client for each answer, in microseconds.
    cpu_us: f64,
}

fn workload(connections: u32, depth: u32) -> MemcachedWorkload {
    MemcachedWorkload {
        threads: 1,
        connections_per_thread: connections,
        depth,
        arrivals: Arrivals::Exponential,
        set_share: 0.1,
        keys: 10_000,
        key_size: KeySize::Fixed(KEY_BYTES),
        value_size: ValueSize::Fixed(VALUE_BYTES),
        preload: true,
        warmup: Nanoseconds::from_millis(300),
        window: Nanoseconds::from_millis(1000 * u64::from(SECONDS)),
        drain: Nanoseconds::from_millis(500),
        seed: 1,
        waiting: Waiting::Spin,
    }
}

fn ours(server: SocketAddr, workload: &MemcachedWorkload, load: OfferedLoad) -> Result<Evidence, Failure> {
    ours_at(server, workload, load, &OnClientCpu::default())
}

fn ours_at(
    server: SocketAddr,
    workload: &MemcachedWorkload,
    load: OfferedLoad,
    place: &OnClientCpu,
) -> Result<Evidence, Failure> {
    let run = memcached(server, workload, load, place)?;
    let text = String::new;
    let on =
        MeasuredOn { host: text(), kernel: text(), machine: text(), server: server.to_string(), started: 0 };
    Ok(run.into_evidence("ours", Origin::Measured(on)))
}

/// The generator as much as the server bears.
fn ours_max(server: SocketAddr, connections: u32, depth: u32) -> Result<Did, Failure> {
    let place = OnClientCpu::default();
    let workload = MemcachedWorkload { waiting: Waiting::Sleep, ..workload(connections, depth) };
    let rate = ours_at(server, &workload, OfferedLoad::Max, &place)?.throughput;
    let watch = place.watch.lock().map_err(|_| "poisoned")?.take().ok_or("the window never opened")?;
    let share = watch.join().map_err(|_| "the watch panicked")??;
    Ok(Did { rate, cpu_us: share * 1e6 / rate })
}

/// memcaslap on one thread: operations per second by its own words, and its CPU time from when it has filled the
/// server until shortly before its end.
fn memcaslap(server: SocketAddr, connections: u32) -> Result<Did, Failure> {
    const FILLED: Duration = Duration::from_millis(700);
    let client = Command::new("taskset")
        .args(["-c", &CLIENT_CPU.to_string(), "memcaslap", "-T", "1", "-s", &server.to_string()])
        .args(["-c", &connections.to_string(), "-t", &format!("{SECONDS}s"), "-X", &VALUE_BYTES.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    thread::sleep(FILLED);
    let share = cpu_share(|| cpu_time_of_all(client.id()))?;
    let told = client.wait_with_output()?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let rate = told.split("TPS:").nth(1).and_then(|rest| rest.split_whitespace().next());
    let rate: f64 = rate.ok_or_else(|| format!("memcaslap told no TPS: {told}"))?.parse()?;
    Ok(Did { rate, cpu_us: share * 1e6 / rate })
}

/// A memcached of our own; killed when dropped.
struct Memcached(Child, SocketAddr);

impl Memcached {
    fn start() -> Result<Self, Failure> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let process = Command::new("taskset")
            .args([
                "-c",
                &SERVER_CPU.to_string(),
                "memcached",
                "-l",
                "127.0.0.1",
                "-U",
                "0",
                "-t",
                "1",
                "-m",
                "256",
            ])
            .args(["-u", "nobody", "-p", &address.port().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let server = Self(process, address);
        for _ in 0..100 {
            if TcpStream::connect(address).is_ok() {
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err("memcached does not listen".into())
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that forgets every value and finds every key, in a thread on the servers' CPU. What one read brings is
/// answered with one write.
fn batching_server() -> Result<SocketAddr, Failure> {
    /// Connections that have ever been made; a benchmark's rounds are few.
    const CONNECTIONS_MAX: usize = 4096;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&ready, &listener, epoll::EventData::new_u64(u64::MAX), epoll::EventFlags::IN)?;
    let serve = move || -> Result<(), Failure> {
        pin(SERVER_CPU)?;
        let mut connections: Vec<Option<(TcpStream, Vec<u8>)>> = Vec::with_capacity(CONNECTIONS_MAX);
        let (mut events, mut buffer, mut out) = (Vec::with_capacity(256), vec![0; 65536], Vec::new());
        loop {
            events.clear();
            epoll::wait(&ready, rustix::buffer::spare_capacity(&mut events), None)?;
            for event in &events {
                let number = event.data;
                if number.u64() == u64::MAX {
                    let (stream, _) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    let data = epoll::EventData::new_u64(connections.len() as u64);
                    epoll::add(&ready, stream.as_fd(), data, epoll::EventFlags::IN)?;
                    connections.push(Some((stream, Vec::new())));
                    continue;
                }
                let place = &mut connections[usize::try_from(number.u64())?];
                let Some((stream, rest)) = place else { continue };
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => *place = None,
                    Ok(length) => {
                        rest.extend_from_slice(&buffer[..length]);
                        let used = answer(rest, &mut out);
                        rest.drain(..used);
                        if stream.write_all(&out).is_err() {
                            *place = None;
                        }
                        out.clear();
                    }
                }
            }
        }
    };
    thread::spawn(move || {
        if let Err(cause) = serve() {
            println!("the batching server ended: {cause}");
        }
    });
    Ok(address)
}

/// Answers every whole request; how many bytes those were.
fn answer(requests: &[u8], out: &mut Vec<u8>) -> usize {
    static VALUE: [u8; VALUE_BYTES as usize] = [b'v'; VALUE_BYTES as usize];
    let mut used = 0;
    while let Some(end) = memchr::memchr(b'\n', &requests[used..]) {
        let line = &requests[used..used + end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(key) = line.strip_prefix(b"get ") {
            used += end + 1;
            out.extend_from_slice(b"VALUE ");
            out.extend_from_slice(key);
            let _ = write!(out, " 0 {VALUE_BYTES}\r\n");
            out.extend_from_slice(&VALUE);
            out.extend_from_slice(b"\r\nEND\r\n");
        } else {
            let bytes =
                std::str::from_utf8(line).ok().and_then(|l| l.rsplit(' ').next()?.parse::<usize>().ok());
            let whole = end + 1 + bytes.unwrap_or(0) + 2;
            if used + whole > requests.len() {
                break;
            }
            used += whole;
            out.extend_from_slice(b"STORED\r\n");
        }
    }
    used
}

/// The median of one blocking request after the other, waiting for nothing else.
fn plain_client(server: SocketAddr) -> Result<f64, Failure> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let keys = Keys::new(&workload(1, 1));
    let mut chance = Chance::stream(1, &[]);
    let (mut buffer, mut recorder) = (vec![0; 4096], Recorder::new());
    let end = Instant::now() + Duration::from_secs(u64::from(SECONDS));
    while Instant::now() < end {
        let begin = Instant::now();
        stream.write_all(keys.get(chance.below(keys.count())))?;
        let mut length = 0;
        while !buffer[..length].ends_with(b"END\r\n") {
            match stream.read(&mut buffer[length..]) {
                Ok(0) => return Err("the server is gone".into()),
                Ok(more) => length += more,
                Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(cause) => return Err(cause.into()),
            }
        }
        recorder.record(Nanoseconds(u64::try_from(begin.elapsed().as_nanos())?));
    }
    Ok(recorder.quantile(0.5).as_secs_f64() * 1e6)
}

/// The plain client on the client's CPU.
fn plain(server: SocketAddr) -> Result<f64, Failure> {
    let client = move || {
        pin(CLIENT_CPU)?;
        plain_client(server)
    };
    thread::spawn(client).join().map_err(|_| "the plain client panicked")?
}

fn print(question: &str, unit: &str, theirs: &[f64], ours: &[f64]) {
    let (Some(their), Some(our)) = (median(theirs), median(ours)) else { return };
    let Some(ratio) = paired_ratio(theirs, ours) else { return };
    println!(
        "{question}: {our:.2} against {their:.2} {unit}, ratio {:.2} ({:.2} to {:.2}) over {} rounds",
        ratio.estimate,
        ratio.low,
        ratio.high,
        ours.len()
    );
}

/// The median at low load, beside the plain client's.
fn median_at_low_load(server: SocketAddr) -> Result<(), Failure> {
    let (mut theirs, mut our) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let run = ours(server, &MemcachedWorkload { set_share: 0.0, ..workload(1, 1) }, OfferedLoad::Max)?;
        our.push(run.latency.p50.as_secs_f64() * 1e6);
        theirs.push(plain(server)?);
    }
    print("p50 of one connection, generator against the plain client", "us", &theirs, &our);
    Ok(())
}

/// Throughput in several shapes, beside memcaslap's in its own.
fn throughput(name: &str, server: SocketAddr) -> Result<(), Failure> {
    for (connections, depth) in [(16, 1), (16, 16), (64, 64)] {
        let (mut theirs, mut our) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            // Neither is always the first.
            for turn in [round % 2, (round + 1) % 2] {
                match turn {
                    0 => theirs.push(memcaslap(server, connections)?),
                    _ => our.push(ours_max(server, connections, depth)?),
                }
            }
        }
        println!(
            "{name}, {connections} connections, generator with {depth} under way on each against memcaslap with 1"
        );
        let of = |runs: &[Did], what: fn(&Did) -> f64| runs.iter().map(what).collect::<Vec<_>>();
        print("  throughput", "requests/s", &of(&theirs, |d| d.rate), &of(&our, |d| d.rate));
        print("  client's CPU", "us a request", &of(&theirs, |d| d.cpu_us), &of(&our, |d| d.cpu_us));
    }
    Ok(())
}

/// The parts named on the command line, or all: `p50`, `memcached`, `batching`.
fn main() -> Result<(), Failure> {
    if std::env::args().all(|argument| argument != "--bench") {
        println!("SKIPPED: a benchmark is no test; cargo bench runs it");
        return Ok(());
    }
    let named: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wanted = |part: &str| named.is_empty() || named.iter().any(|n| n == part);
    if rustix::thread::sched_getaffinity(None)?.count() < 2 {
        println!("SKIPPED: client and server need a CPU each");
        return Ok(());
    }
    let server = match Memcached::start() {
        Ok(server) => server,
        Err(cause) => {
            println!("SKIPPED: memcached cannot be started: {cause}");
            return Ok(());
        }
    };
    if wanted("p50") {
        median_at_low_load(server.1)?;
    }
    if Command::new("memcaslap")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_err()
    {
        println!("SKIPPED: memcaslap (libmemcached-tools) is not installed");
        return Ok(());
    }
    if wanted("memcached") {
        throughput("memcached", server.1)?;
    }
    if wanted("batching") {
        throughput("a batching server", batching_server()?)?;
    }
    Ok(())
}
