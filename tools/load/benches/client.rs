//! Compares the load generator with other clients, each on the same single core, in interleaved
//! rounds.
//!
//! - Closed-loop throughput against memcached, next to memcaslap of libmemcached-tools (which
//!   supports only one outstanding request per connection) and to memtier_benchmark if it is on the
//!   path (Debian has no package), with one outstanding request and with as many as the generator.
//! - Closed-loop throughput against a server that answers everything it has read with one write, because
//!   memcached makes one system call per answer.
//! - In each of these runs, the CPU time of client and server, in total and per request: this shows
//!   which of them limits the rate. The generator runs twice: polling, as `bench` runs it, and
//!   sleeping, as the other clients do.
//! - Median response time at low load, next to the simplest possible client: one connection with
//!   blocking requests.
//!
//! Servers run on CPU 1, clients on CPU 0, over loopback. A client that is not installed is skipped
//! with a message.
//!
//! `cargo bench -p netpolicy-load --bench client [-- [p50] [memcached] [batching]]`
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use latency::measure::statistics::{median, paired_ratio};
use load::protocol::Keys;
use load::record::Recorder;
use load::{Edge, Environment, memcached};
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

/// The CPU time that the server has used so far.
type CpuTime = Arc<dyn Fn() -> Result<Duration, Failure> + Send + Sync>;

/// A server under test: its address and its CPU time.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    used: CpuTime,
}

/// Pins the client thread and measures the CPU time of client and server, from the opening of the
/// window until shortly before it closes: at the closing edge, a thread that has all its answers
/// may already have exited.
struct OnClientCpu {
    server: CpuTime,
    thread: Mutex<Option<PathBuf>>,
    watch: Mutex<Option<thread::JoinHandle<Result<Shares, Failure>>>>,
}

impl OnClientCpu {
    fn new(server: &Server) -> Self {
        Self { server: Arc::clone(&server.used), thread: Mutex::default(), watch: Mutex::default() }
    }
}

impl Environment for OnClientCpu {
    fn on_thread_start(&self, _thread: u32) -> Result<(), Failure> {
        let number = rustix::thread::gettid().as_raw_nonzero();
        *self.thread.lock().map_err(|_| "poisoned")? = Some(format!("/proc/self/task/{number}").into());
        pin(CLIENT_CPU)
    }

    fn at_edge(&self, edge: Edge) {
        let (Ok(thread), Ok(mut watch)) = (self.thread.lock(), self.watch.lock()) else { return };
        if let (Edge::Opens, Some(path)) = (edge, thread.clone()) {
            let server = Arc::clone(&self.server);
            *watch = Some(thread::spawn(move || cpu_shares(|| cpu_time(&path), &*server)));
        }
    }
}

/// The share of its CPU that each end used over most of a run, 0..=1 per thread.
#[derive(Clone, Copy)]
struct Shares {
    client: f64,
    server: f64,
}

fn cpu_shares(
    client: impl Fn() -> Result<Duration, Failure>,
    server: impl Fn() -> Result<Duration, Failure>,
) -> Result<Shares, Failure> {
    const WATCHED: Duration = Duration::from_millis(1100);
    let (begun, before) = (Instant::now(), (client()?, server()?));
    thread::sleep(WATCHED);
    let (watched, after) = (begun.elapsed(), (client()?, server()?));
    let share = |before: Duration, after: Duration| (after - before).as_secs_f64() / watched.as_secs_f64();
    Ok(Shares { client: share(before.0, after.0), server: share(before.1, after.1) })
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

/// The result of a client's run.
struct Did {
    /// Answers per second.
    rate: f64,
    shares: Shares,
}

impl Did {
    /// CPU time per answer, in microseconds.
    fn client_us(&self) -> f64 {
        self.shares.client * 1e6 / self.rate
    }

    fn server_us(&self) -> f64 {
        self.shares.server * 1e6 / self.rate
    }
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

fn ours(
    server: &Server,
    workload: &MemcachedWorkload,
    load: OfferedLoad,
    place: &OnClientCpu,
) -> Result<Evidence, Failure> {
    let run = memcached(server.address, workload, load, place)?;
    let text = String::new;
    let server = server.address.to_string();
    let on = MeasuredOn { host: text(), kernel: text(), machine: text(), server, started: 0 };
    Ok(run.into_evidence("ours", Origin::Measured(on)))
}

/// Runs the generator at the highest rate that the server sustains.
fn ours_max(server: &Server, shape: Shape, waiting: Waiting) -> Result<Did, Failure> {
    let place = OnClientCpu::new(server);
    let workload = MemcachedWorkload { waiting, ..workload(shape.connections, shape.depth) };
    let rate = ours(server, &workload, OfferedLoad::Max, &place)?.throughput;
    let watch = place.watch.lock().map_err(|_| "poisoned")?.take().ok_or("the window never opened")?;
    Ok(Did { rate, shares: watch.join().map_err(|_| "the watch panicked")?? })
}

/// Runs memcaslap with one thread.
fn memcaslap(server: &Server, shape: Shape) -> Result<Did, Failure> {
    let mut client = Command::new("taskset");
    client
        .args(["-c", &CLIENT_CPU.to_string(), "memcaslap", "-T", "1", "-s", &server.address.to_string()])
        .args(["-c", &shape.connections.to_string(), "-t", &format!("{SECONDS}s")])
        .args(["-X", &VALUE_BYTES.to_string()]);
    theirs(server, &mut client, "TPS:")
}

/// Runs `memtier_benchmark` with one thread and keys as long as the generator's.
fn memtier(server: &Server, shape: Shape) -> Result<Did, Failure> {
    theirs(server, memtier_command(server, shape).args(["--ratio", "1:9"]), "Totals")
}

fn memtier_command(server: &Server, shape: Shape) -> Command {
    let mut client = Command::new("taskset");
    let (host, port) = (server.address.ip().to_string(), server.address.port().to_string());
    client
        .args(["-c", &CLIENT_CPU.to_string(), "memtier_benchmark", "-s", &host, "-p", &port])
        .args(["-P", "memcache_text", "-t", "1", "-c", &shape.connections.to_string()])
        .args(["--pipeline", &shape.depth.to_string(), "--test-time", &SECONDS.to_string()])
        .args(["-d", &VALUE_BYTES.to_string(), "--key-minimum", "10000", "--key-maximum", "19999"])
        .args(["--key-prefix", &"k".repeat(KEY_BYTES as usize - 5), "--hide-histogram"]);
    client
}

/// Sets all keys of `memtier_benchmark`, so that none of its requests misses.
fn fill_for_memtier(server: &Server) -> Result<(), Failure> {
    let mut filler = memtier_command(server, Shape { connections: 1, depth: 1 });
    let filled = filler.args(["--ratio", "1:0", "--key-pattern", "P:P"]).output()?.status;
    if filled.success() { Ok(()) } else { Err("memtier_benchmark does not fill the server".into()) }
}

/// Runs another client. Returns the rate that the client reports, and the CPU time of both ends
/// from the end of its fill phase until shortly before it exits.
fn theirs(server: &Server, client: &mut Command, rate_after: &str) -> Result<Did, Failure> {
    const FILLED: Duration = Duration::from_millis(700);
    let client = client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    thread::sleep(FILLED);
    let shares = cpu_shares(|| cpu_time_of_all(client.id()), &*server.used)?;
    let output = client.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rate = text.split(rate_after).nth(1).and_then(|rest| rest.split_whitespace().next());
    let rate: f64 = rate.ok_or_else(|| format!("the client printed no rate: {text}"))?.parse()?;
    Ok(Did { rate, shares })
}

/// A memcached process; killed on drop.
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

    fn server(&self) -> Server {
        let process = self.0.id();
        Server { address: self.1, used: Arc::new(move || cpu_time_of_all(process)) }
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server, as a thread on the servers' CPU, that drops every value and finds every key. It
/// answers all requests of one read with one write.
fn batching_server() -> Result<Server, Failure> {
    /// Maximum number of connections over the server's life; a benchmark has few rounds.
    const CONNECTIONS_MAX: usize = 4096;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&ready, &listener, epoll::EventData::new_u64(u64::MAX), epoll::EventFlags::IN)?;
    let (sender, receiver) = mpsc::channel();
    let serve = move || -> Result<(), Failure> {
        pin(SERVER_CPU)?;
        sender.send(rustix::thread::gettid().as_raw_nonzero())?;
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
    let task = PathBuf::from(format!("/proc/self/task/{}", receiver.recv()?));
    Ok(Server { address, used: Arc::new(move || cpu_time(&task)) })
}

/// Answers every complete request and returns how many bytes of `requests` it consumed.
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

/// Returns the median response time of a single connection with blocking requests.
fn plain_client(server: SocketAddr, window: Duration) -> Result<f64, Failure> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let keys = Keys::new(&workload(1, 1));
    let mut chance = Chance::stream(1, &[]);
    let (mut buffer, mut recorder) = (vec![0; 4096], Recorder::new());
    let end = Instant::now() + window;
    while Instant::now() < end {
        let begin = Instant::now();
        stream.write_all(keys.get(chance.below(keys.count())))?;
        let mut length = 0;
        while !buffer[..length].ends_with(b"END\r\n") {
            match stream.read(&mut buffer[length..]) {
                Ok(0) => return Err("the server closed the connection".into()),
                Ok(more) => length += more,
                Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(cause) => return Err(cause.into()),
            }
        }
        recorder.record(Nanoseconds(u64::try_from(begin.elapsed().as_nanos())?));
    }
    Ok(recorder.quantile(0.5).as_secs_f64() * 1e6)
}

/// Runs the plain client, pinned to the clients' CPU.
fn plain(server: SocketAddr, window: Duration) -> Result<f64, Failure> {
    let client = move || {
        pin(CLIENT_CPU)?;
        plain_client(server, window)
    };
    thread::spawn(client).join().map_err(|_| "the plain client panicked")?
}

/// Formats the ratio of `ours` to `theirs`.
fn ratio(theirs: &[f64], ours: &[f64]) -> String {
    paired_ratio(theirs, ours).map_or_else(
        || "no ratio".to_owned(),
        |r| format!("{:.2} ({:.2} to {:.2})", r.estimate, r.low, r.high),
    )
}

/// Measures the median response time at low load, next to the plain client's.
fn median_at_low_load(server: &Server) -> Result<(), Failure> {
    /// Many short rounds: a disturbance of the machine lasts longer than one of them.
    const ROUNDS: u64 = 30;
    const WINDOW: Duration = Duration::from_millis(400);
    let (mut theirs, mut our) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for turn in [round % 2, (round + 1) % 2] {
            if turn == 0 {
                theirs.push(plain(server.address, WINDOW)?);
                continue;
            }
            let window = Nanoseconds(u64::try_from(WINDOW.as_nanos())?);
            let warmup = Nanoseconds::from_millis(20);
            let workload = MemcachedWorkload { set_share: 0.0, window, warmup, ..workload(1, 1) };
            let run = ours(server, &workload, OfferedLoad::Max, &OnClientCpu::new(server))?;
            our.push(run.latency.p50.as_secs_f64() * 1e6);
        }
    }
    println!(
        "p50 of one connection: generator {:.2} us, plain client {:.2} us, ratio {} over {ROUNDS} rounds",
        median(&our).ok_or("no round")?,
        median(&theirs).ok_or("no round")?,
        ratio(&theirs, &our)
    );
    Ok(())
}

/// Connections, and outstanding requests per connection.
#[derive(Clone, Copy)]
struct Shape {
    connections: u32,
    depth: u32,
}

type Run = Box<dyn Fn(&Server) -> Result<Did, Failure>>;

/// A client and the name that the output uses for it.
struct Client {
    name: String,
    run: Run,
}

impl Client {
    fn new(name: &str, shape: Shape, run: impl Fn(&Server, Shape) -> Result<Did, Failure> + 'static) -> Self {
        let name = format!("{name}, {} x {}", shape.connections, shape.depth);
        Self { name, run: Box::new(move |server| run(server, shape)) }
    }
}

/// Whether a program can be started.
fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Measures throughput in several shapes, next to the other clients.
fn throughput(name: &str, server: &Server) -> Result<(), Failure> {
    let (memcaslap_is_there, memtier_is_there) = (is_there("memcaslap"), is_there("memtier_benchmark"));
    if !memcaslap_is_there {
        println!("SKIPPED: memcaslap (libmemcached-tools) is not installed");
    }
    if memtier_is_there {
        fill_for_memtier(server)?;
    } else {
        println!("SKIPPED: memtier_benchmark is not on the path");
    }
    for (connections, depth) in [(16, 1), (16, 16), (64, 64)] {
        let shape = Shape { connections, depth };
        let single = Shape { connections, depth: 1 };
        let mut clients = vec![
            Client::new("generator", shape, |s, shape| ours_max(s, shape, Waiting::Spin)),
            Client::new("generator asleep", shape, |s, shape| ours_max(s, shape, Waiting::Sleep)),
        ];
        if memcaslap_is_there {
            clients.push(Client::new("memcaslap", single, memcaslap));
        }
        if memtier_is_there {
            clients.push(Client::new("memtier", single, memtier));
            if depth > 1 {
                clients.push(Client::new("memtier", shape, memtier));
            }
        }
        let mut did: Vec<Vec<Did>> = clients.iter().map(|_| Vec::new()).collect();
        for round in 0..ROUNDS {
            // Rotate which client runs first.
            for turn in 0..clients.len() {
                let which = (round + turn) % clients.len();
                did[which].push((clients[which].run)(server)?);
            }
        }
        println!("\n{name}: medians of {ROUNDS} rounds, each compared with the generator");
        print_results(&clients, &did);
    }
    Ok(())
}

/// Prints a line per client; the first two are the generator.
fn print_results(clients: &[Client], did: &[Vec<Did>]) {
    let of = |which: usize, what: fn(&Did) -> f64| did[which].iter().map(what).collect::<Vec<_>>();
    for (which, client) in clients.iter().enumerate() {
        let middle = |what| median(&of(which, what)).unwrap_or(f64::NAN);
        println!(
            "  {:27} {:>7.0} requests/s; client {:>3.0} % of its CPU, {:>5.2} us per request; server {:>3.0} %, {:>5.2} us",
            client.name,
            middle(|d| d.rate),
            middle(|d| 100.0 * d.shares.client),
            middle(Did::client_us),
            middle(|d| 100.0 * d.shares.server),
            middle(Did::server_us),
        );
        if which > 1 {
            println!(
                "  {:27} requests/s {}, sleeping {}; client's CPU per request, sleeping {}",
                "",
                ratio(&of(which, |d| d.rate), &of(0, |d| d.rate)),
                ratio(&of(which, |d| d.rate), &of(1, |d| d.rate)),
                ratio(&of(which, Did::client_us), &of(1, Did::client_us)),
            );
        }
    }
}

/// Runs the parts named on the command line, or all: `p50`, `memcached`, `batching`.
fn main() -> Result<(), Failure> {
    if std::env::args().all(|argument| argument != "--bench") {
        println!("SKIPPED: a benchmark is not a test; cargo bench runs it");
        return Ok(());
    }
    let named: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wanted = |part: &str| named.is_empty() || named.iter().any(|n| n == part);
    if rustix::thread::sched_getaffinity(None)?.count() < 2 {
        println!("SKIPPED: needs two CPUs, one each for client and server");
        return Ok(());
    }
    let memcached = match Memcached::start() {
        Ok(memcached) => memcached,
        Err(cause) => {
            println!("SKIPPED: memcached cannot be started: {cause}");
            return Ok(());
        }
    };
    if wanted("p50") {
        median_at_low_load(&memcached.server())?;
    }
    if wanted("memcached") {
        throughput("memcached", &memcached.server())?;
    }
    if wanted("batching") {
        throughput("a batching server", &batching_server()?)?;
    }
    Ok(())
}
