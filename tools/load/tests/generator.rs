//! The load generator against servers that behave, stall, refuse requests, drop connections and exit.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use load::{Edge, Environment, RunError, memcached};
use model::{
    Arrivals, Evidence, KeySize, MeasuredOn, MemcachedWorkload, Nanoseconds, OfferedLoad, Origin, ValueSize,
    Waiting,
};

const STALL: Duration = Duration::from_millis(100);

fn workload() -> MemcachedWorkload {
    MemcachedWorkload {
        threads: 1,
        connections_per_thread: 4,
        depth: 4,
        arrivals: Arrivals::Exponential,
        set_share: 0.1,
        keys: 200,
        key_size: KeySize::FbKey,
        value_size: ValueSize::FbValue,
        preload: true,
        warmup: Nanoseconds::from_millis(20),
        window: Nanoseconds::from_millis(300),
        drain: Nanoseconds::from_millis(500),
        seed: 42,
        waiting: Waiting::Sleep,
    }
}

fn origin() -> Origin {
    Origin::Measured(MeasuredOn {
        host: String::new(),
        kernel: String::new(),
        machine: String::new(),
        server: String::new(),
        started: 0,
    })
}

/// What a fake server does with a request; the first argument counts the requests on all its
/// connections.
type Behaviour = fn(u32, &str, &mut TcpStream) -> std::io::Result<()>;

/// Starts a server that answers requests one by one, with a thread per connection. The server runs until this
/// process exits.
fn fake_server(behaviour: Behaviour) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
    let address = listener.local_addr().expect("bound");
    let requests = std::sync::Arc::new(AtomicU32::new(0));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut out), requests) = (stream, std::sync::Arc::clone(&requests)) else { return };
            thread::spawn(move || {
                let _ = out.set_nodelay(true);
                let Ok(stream) = out.try_clone() else { return };
                let mut lines = BufReader::new(stream).lines();
                while let Some(Ok(line)) = lines.next() {
                    if line.starts_with("set ") && lines.next().is_none() {
                        return;
                    }
                    if behaviour(requests.fetch_add(1, Ordering::Relaxed), &line, &mut out).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn answer(line: &str, out: &mut TcpStream) -> std::io::Result<()> {
    out.write_all(if line.starts_with("set ") { b"STORED\r\n" } else { b"VALUE k 0 2\r\nab\r\nEND\r\n" })
}

fn run(server: SocketAddr, workload: &MemcachedWorkload, load: OfferedLoad) -> Result<Evidence, RunError> {
    memcached(server, workload, load, &()).map(|run| run.into_evidence("test", origin()))
}

const PER_SECOND: OfferedLoad = OfferedLoad::PerSecond(2_000.0);

#[test]
fn a_stalled_server_shows_in_the_response_times_of_all_that_were_due_meanwhile() {
    // With one connection and depth 1, a generator that counted from the write would see only one
    // slow answer.
    let workload = MemcachedWorkload { connections_per_thread: 1, depth: 1, preload: false, ..workload() };
    let server = fake_server(|count, line, out| {
        if count == 300 {
            thread::sleep(STALL);
        }
        answer(line, out)
    });
    let found = run(server, &workload, PER_SECOND).expect("a run");
    // A third of the window's requests were due during the stall and waited for half of it on
    // average.
    let stalled = Nanoseconds::from_millis(50);
    assert!(found.latency.p90 >= stalled, "p90 {} of {:?}", found.latency.p90, found.requests);
    assert!(found.lateness.p90 >= stalled, "sent long after it was due: {}", found.lateness.p90);
    assert!(
        found.generator_lateness.p90 < stalled,
        "but not because of the generator: {}",
        found.generator_lateness.p90
    );
    assert_eq!(
        found.requests.answered, found.requests.due,
        "the backlog was sent when the connection had room"
    );
}

#[test]
fn requests_that_were_never_answered_count_with_the_time_they_waited() {
    let workload = MemcachedWorkload { preload: false, drain: Nanoseconds::from_millis(50), ..workload() };
    let server = fake_server(|count, line, out| if count < 200 { answer(line, out) } else { Ok(()) });
    let found = run(server, &workload, PER_SECOND).expect("a run");
    assert!(found.requests.unanswered > 0, "{:?}", found.requests);
    assert!(found.saturated(), "{:?}", found.requests);
    assert_eq!(found.latency.count, found.requests.due, "every due request is in the distribution");
    assert!(found.latency.max >= Nanoseconds::from_millis(100), "{}", found.latency.max);
}

#[test]
fn a_generator_that_is_kept_from_its_cpu_makes_its_run_void() {
    /// Delays the generator by a long timer slack of its own thread.
    struct Delayed;
    impl Environment for Delayed {
        fn on_thread_start(&self, _thread: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            // A timer slack of 20 ms lets the kernel wake the thread up to 20 ms after each due
            // time. Kernel: prctl(2), PR_SET_TIMERSLACK.
            rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(20_000_000))?;
            Ok(())
        }
    }
    let server = fake_server(|_, line, out| answer(line, out));
    for waiting in [Waiting::Sleep, Waiting::Block] {
        let workload = MemcachedWorkload { waiting, ..workload() };
        let load = OfferedLoad::PerSecond(500.0);
        let delayed =
            memcached(server, &workload, load, &Delayed).expect("a run").into_evidence("test", origin());
        let reason = delayed.void.expect("a run with a generator 20 ms late does not count");
        assert!(reason.starts_with("the generator was late"), "{waiting:?}: {reason}");
        let (late, sent) = (delayed.generator_lateness, delayed.latency_from_send.expect("a measured run"));
        assert!(late.p50 > Nanoseconds::from_micros(500), "{waiting:?}: {}", late.p50);
        assert_eq!(sent.count, delayed.requests.answered, "{waiting:?}");
        assert!(sent.avg < delayed.latency.avg, "{waiting:?}: the response time excludes the client's delay");
    }
}

#[test]
fn a_refused_request_is_counted_and_its_words_are_kept() {
    let server = fake_server(|count, line, out| {
        if count % 10 == 9 { out.write_all(b"SERVER_ERROR out of memory\r\n") } else { answer(line, out) }
    });
    let workload = MemcachedWorkload { preload: false, ..workload() };
    let run = memcached(server, &workload, PER_SECOND, &()).expect("a run");
    assert_eq!(run.refusal(), Some("SERVER_ERROR out of memory"));
    let found = run.into_evidence("test", origin());
    assert!(found.requests.errors > 0);
    assert!(found.void.is_some_and(|reason| reason.contains("refused")));
}

#[test]
fn a_key_refused_in_the_load_phase_ends_the_run_with_the_servers_words() {
    let server = fake_server(|_, _, out| out.write_all(b"SERVER_ERROR out of memory storing object\r\n"));
    let error = run(server, &workload(), PER_SECOND).expect_err("refused").to_string();
    assert!(
        error.contains("refused to set key") && error.contains("out of memory storing object"),
        "{error}"
    );
}

#[test]
fn a_lost_connection_is_made_again_and_counted() {
    let workload = MemcachedWorkload { preload: false, ..workload() };
    let server = fake_server(|count, line, out| {
        if count == 250 { Err(std::io::ErrorKind::ConnectionReset.into()) } else { answer(line, out) }
    });
    for load in [PER_SECOND, OfferedLoad::Max] {
        let found = run(server, &workload, load).expect("a run");
        assert!(found.requests.connections_lost <= 1, "{:?}", found.requests);
        if load == PER_SECOND {
            assert_eq!(found.requests.connections_lost, 1, "{:?}", found.requests);
        }
    }
}

#[test]
fn a_server_that_is_not_there_is_an_error_with_its_address() {
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let error = run(gone, &workload(), OfferedLoad::Max).expect_err("no server listens");
    assert!(matches!(&error, RunError::Connect { server, .. } if *server == gone), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_server_that_dies_ends_the_run_immediately() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
    let server = listener.local_addr().expect("bound");
    // The server accepts the connections, sends nothing wrong, and exits.
    let dies = thread::spawn(move || {
        let held: Vec<_> = (0..4).filter_map(|_| listener.accept().ok()).collect();
        thread::sleep(Duration::from_millis(50));
        drop((listener, held));
    });
    let workload =
        MemcachedWorkload { preload: false, window: Nanoseconds::from_millis(20_000), ..workload() };
    let begin = Instant::now();
    let error = run(server, &workload, PER_SECOND).expect_err("dead");
    assert!(matches!(error, RunError::ServerLost { .. }), "{error}");
    dies.join().expect("the server's thread ends");
    assert!(begin.elapsed() < Duration::from_secs(15), "not at the end of the window: {:?}", begin.elapsed());
}

#[test]
fn a_server_of_another_protocol_is_named_as_such() {
    let workload = MemcachedWorkload { preload: false, ..workload() };
    let server = fake_server(|_, _, out| out.write_all(b"-ERR unknown command\r\n"));
    let error = run(server, &workload, OfferedLoad::Max).expect_err("no memcached").to_string();
    assert!(error.contains("`-ERR unknown command` is not a valid answer here"), "{error}");
}

#[test]
fn a_thread_that_cannot_be_prepared_or_panics_ends_the_run() {
    struct Fails;
    impl Environment for Fails {
        fn on_thread_start(&self, thread: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            if thread == 1 { Err("no such namespace".into()) } else { Ok(()) }
        }
    }
    struct Panics;
    impl Environment for Panics {
        fn on_thread_start(&self, thread: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            assert_ne!(thread, 1, "the caller's own fault");
            Ok(())
        }
    }
    let server = fake_server(|_, line, out| answer(line, out));
    let workload = MemcachedWorkload { threads: 2, preload: false, ..workload() };
    let error = memcached(server, &workload, PER_SECOND, &Fails).expect_err("unprepared").to_string();
    assert_eq!(error, "client thread 1 could not be prepared: no such namespace");
    let error = memcached(server, &workload, PER_SECOND, &Panics).expect_err("panicked").to_string();
    assert_eq!(error, "client thread 1 panicked");
}

/// A memcached process on a free loopback port; killed on drop.
struct Memcached {
    process: Child,
    address: SocketAddr,
}

impl Memcached {
    /// Returns `None`, with a line on standard error, if memcached is not installed.
    fn start() -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
        let port = address.port().to_string();
        let started = Command::new("memcached")
            .args(["-l", "127.0.0.1", "-p", &port, "-U", "0", "-t", "1", "-m", "64", "-u", "nobody"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = match started {
            Ok(process) => process,
            Err(cause) => {
                let _ = writeln!(std::io::stderr(), "SKIPPED: memcached cannot be started: {cause}");
                return None;
            }
        };
        let memcached = Self { process, address };
        for _ in 0..100 {
            if TcpStream::connect(address).is_ok() {
                return Some(memcached);
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("memcached does not listen on {address}");
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn every_request_to_a_real_memcached_is_answered_and_counted_once() {
    struct Edges(AtomicU32);
    impl Environment for Edges {
        fn at_edge(&self, edge: Edge) {
            let order = self.0.fetch_add(1, Ordering::Relaxed);
            assert_eq!(edge, if order == 0 { Edge::Opens } else { Edge::Closes });
        }
    }
    let Some(server) = Memcached::start() else { return };
    for (load, waiting) in
        [(PER_SECOND, Waiting::Sleep), (PER_SECOND, Waiting::Spin), (OfferedLoad::Max, Waiting::Sleep)]
    {
        let workload = MemcachedWorkload { threads: 2, waiting, set_share: 0.3, ..workload() };
        let edges = Edges(AtomicU32::new(0));
        let found = memcached(server.address, &workload, load, &edges)
            .expect("a run")
            .into_evidence("test", origin());
        let requests = found.requests;
        assert_eq!(edges.0.into_inner(), 2);
        assert_eq!((requests.errors, requests.misses, requests.connections_lost), (0, 0, 0), "{requests:?}");
        assert_eq!((requests.sent, requests.answered), (requests.due, requests.due), "{requests:?}");
        assert_eq!(found.latency.count, requests.due);
        assert!(requests.hits > 0 && requests.hits < requests.answered, "gets and sets: {requests:?}");
        if load == PER_SECOND {
            // 600 requests are expected in 0.3 s; allow five standard deviations of a Poisson count.
            assert!((478..=722).contains(&requests.due), "{requests:?}");
        }
        let text = serde_json::to_string(&found).expect("serialises");
        assert_eq!(serde_json::from_str::<Evidence>(&text).expect("parses"), found);
    }
}

#[test]
fn the_same_seed_asks_the_same_of_the_server() {
    let Some(server) = Memcached::start() else { return };
    let due = |seed| {
        let workload = MemcachedWorkload { seed, ..workload() };
        let found = run(server.address, &workload, PER_SECOND).expect("a run");
        (found.requests.due, found.requests.hits)
    };
    assert_eq!(due(1), due(1));
    assert_ne!(due(1), due(2));
}
