//! The load generator against netpolicy's own server, over loopback.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use load::server::{ServeError, ServerOptions, Service, listen_on, serve};
use load::{Run, RunError, offer};
use model::{
    Arrivals, Evidence, ExchangeWorkload, MeasuredOn, Nanoseconds, OfferedLoad, Origin, Pace, Requests,
    StorageWorkload, Waiting, Workload,
};

fn pace() -> Pace {
    Pace {
        threads: 2,
        flows: 5,
        depth: 1,
        arrivals: Arrivals::Exponential,
        warmup: Nanoseconds::from_millis(20),
        window: Nanoseconds::from_millis(200),
        drain: Nanoseconds::from_millis(2_000),
        seed: 3,
        waiting: Waiting::Sleep,
    }
}

fn exchange(request_bytes: u32, answer_bytes: u32) -> Service {
    Service::Exchange { request_bytes, answer_bytes, service_time: Nanoseconds::ZERO }
}

fn options(service: Service) -> ServerOptions {
    ServerOptions { threads: 2, wait_at_most: None, in_a_row: 1, service }
}

fn with_server<T>(options: &ServerOptions, body: impl FnOnce(SocketAddr) -> T) -> T {
    let listener = listen_on((Ipv4Addr::LOCALHOST, 0).into(), options).expect("a free port");
    let address = listener.address().expect("bound");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(listener, options, &stop));
        // Stop the server even if the body panics: the scope waits for it.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(address)));
        stop.store(true, Ordering::Relaxed);
        let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        server.join().expect("does not panic").expect("serves to its end");
        result
    })
}

fn evidence(run: Run) -> Evidence {
    let on = MeasuredOn {
        host: String::new(),
        kernel: String::new(),
        machine: String::new(),
        server: String::new(),
        started: 0,
    };
    run.into_evidence("test", Origin::Measured(on))
}

fn exchanged(request_bytes: u32, answer_bytes: u32, pace: Pace, load: OfferedLoad) -> Evidence {
    let server = options(exchange(request_bytes, answer_bytes));
    let workload = Workload::TcpRr(ExchangeWorkload { pace, request_bytes, answer_bytes });
    evidence(with_server(&server, |address| offer(address, &workload, load, &()).expect("runs")))
}

#[test]
fn every_request_of_every_size_is_answered() {
    for bytes in [1, 5_000, 1 << 20] {
        let run = exchanged(bytes, bytes, pace(), OfferedLoad::PerSecond(100.0));
        assert!(run.requests.due > 0, "{bytes}");
        assert_eq!(run.requests.answered, run.requests.due, "{bytes}");
        assert_eq!((run.requests.errors, run.requests.connections_lost), (0, 0), "{bytes}");
    }
}

fn datagrams(pace: Pace, request_bytes: u32, answer_bytes: u32) -> Workload {
    Workload::UdpRr(ExchangeWorkload { pace, request_bytes, answer_bytes })
}

#[test]
fn every_datagram_of_every_size_is_answered() {
    for (request_bytes, answer_bytes) in [(8, 8), (1_400, 64), (64, 1_400), (60_000, 60_000)] {
        let service_time = Nanoseconds::ZERO;
        let server = options(Service::Datagrams { request_bytes, answer_bytes, service_time });
        // Send large datagrams one by one, so that they fit into the default socket buffer.
        let depth = if request_bytes > 10_000 { 1 } else { 4 };
        let several = Pace { depth, threads: 1, flows: 2, ..pace() };
        for load in [OfferedLoad::PerSecond(500.0), OfferedLoad::Max] {
            let workload = datagrams(several.clone(), request_bytes, answer_bytes);
            let run = with_server(&server, |address| offer(address, &workload, load, &()).expect("runs"));
            let requests = evidence(run).requests;
            assert!(requests.due > 0, "{request_bytes}/{answer_bytes}");
            assert_eq!(requests.answered, requests.due, "{request_bytes}/{answer_bytes} {load}");
            assert_eq!((requests.errors, requests.connections_lost), (0, 0));
        }
    }
}

/// The answers to a datagram, by its number and content.
type Answers = fn(u64, &[u8]) -> Vec<Vec<u8>>;

/// Answers datagrams until the test ends.
fn with_datagrams<T>(answers: Answers, body: impl FnOnce(SocketAddr) -> T) -> T {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    let address = socket.local_addr().expect("bound");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2048];
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                let Ok((length, client)) = socket.recv_from(&mut buffer) else { continue };
                count += 1;
                for answer in answers(count, &buffer[..length]) {
                    socket.send_to(&answer, client).expect("room on loopback");
                }
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(address)));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn lost_datagrams_count_as_unanswered_and_the_run_goes_on() {
    // Every tenth request has no answer; every answer comes twice.
    let lossy = |count: u64, request: &[u8]| match count % 10 {
        0 => Vec::new(),
        _ => vec![request.to_vec(), request.to_vec()],
    };
    for (depth, load) in [(1, OfferedLoad::PerSecond(400.0)), (8, OfferedLoad::Max)] {
        let pace = Pace { depth, threads: 1, flows: 2, ..pace() };
        let run = with_datagrams(lossy, |address| {
            offer(address, &datagrams(pace.clone(), 16, 16), load, &()).expect("runs")
        });
        let requests = evidence(run).requests;
        assert_eq!(requests.answered + requests.unanswered, requests.sent, "{load}: {requests:?}");
        assert!(requests.unanswered > 0, "{load}: {requests:?}");
        assert!(requests.answered > requests.unanswered, "{load}: {requests:?}");
        assert_eq!(requests.connections_lost, 0);
    }
}

#[test]
fn a_datagram_that_answers_nothing_ends_the_run() {
    let invented: [Answers; 3] = [
        |_, request| vec![request[..request.len() - 1].to_vec()],
        |_, _| vec![u64::MAX.to_le_bytes().repeat(2)],
        |_, _| vec![vec![1]],
    ];
    for answers in invented {
        let error = with_datagrams(answers, |address| {
            offer(address, &datagrams(pace(), 16, 16), OfferedLoad::Max, &()).expect_err("no such request")
        });
        assert!(matches!(error, RunError::WrongReply { .. }), "{error}");
    }
}

#[test]
fn an_idle_run_sends_nothing_and_counts() {
    let run = exchanged(1, 1, pace(), OfferedLoad::IDLE);
    assert_eq!((run.requests, run.latency.count, run.void), (Requests::default(), 0, None));
}

#[test]
fn closed_loop_offers_as_much_as_is_answered_and_many_blocks_under_way_are_a_stream() {
    let single = exchanged(1, 1, pace(), OfferedLoad::Max);
    assert!(single.requests.answered > 100, "{:?}", single.requests);
    let stream = exchanged(1 << 18, 1, Pace { depth: 8, flows: 2, ..pace() }, OfferedLoad::Max);
    assert!(stream.requests.answered > 0);
    assert_eq!(stream.requests.unanswered, 0);
}

#[test]
fn a_server_that_asks_again_and_again_answers_as_well() {
    let spins =
        ServerOptions { wait_at_most: Some(Nanoseconds::ZERO), threads: 1, ..options(exchange(10, 20)) };
    let workload = ExchangeWorkload { pace: pace(), request_bytes: 10, answer_bytes: 20 };
    let run = with_server(&spins, |address| {
        offer(address, &Workload::TcpRr(workload), OfferedLoad::PerSecond(500.0), &()).expect("runs")
    });
    let run = evidence(run);
    assert_eq!(run.requests.answered, run.requests.due);
}

#[test]
fn a_server_of_other_sizes_is_noticed() {
    let server = options(exchange(1, 1));
    let workload = ExchangeWorkload { pace: pace(), request_bytes: 2, answer_bytes: 1 };
    let error = with_server(&server, |address| {
        offer(address, &Workload::TcpRr(workload), OfferedLoad::Max, &()).expect_err("two answers for one")
    });
    assert!(matches!(error, RunError::WrongReply { .. }), "{error}");
}

#[test]
fn operations_on_storage_are_done_and_failed_ones_counted() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("storage-{}", std::process::id()));
    std::fs::write(&path, vec![7_u8; 1 << 20]).expect("room for a megabyte");
    let workload = |span_bytes| {
        let pace = Pace { flows: 4, ..pace() };
        Workload::Storage(StorageWorkload { pace, op_bytes: 65_536, write_share: 0.5, span_bytes })
    };
    let run = |span| {
        let server = options(Service::Storage { path: path.clone(), writable: true });
        let load = OfferedLoad::PerSecond(100.0);
        with_server(&server, |address| offer(address, &workload(span), load, &()).expect("runs"))
    };
    let good = evidence(run(1 << 20));
    let text = std::fs::read(&path).expect("is there");
    let beyond = run(1 << 30);
    std::fs::remove_file(&path).expect("was there");
    assert!(good.requests.due > 0);
    assert_eq!((good.requests.answered, good.requests.errors), (good.requests.due, 0));
    assert!(text.iter().any(|&byte| byte != 7), "nothing was written");
    let said = beyond.refusal().expect("most of a gigabyte has not arrived").to_owned();
    assert!(said.contains("Input/output error"), "{said}");
    assert!(evidence(beyond).void.expect("does not count").contains("refused"));
}

#[test]
fn what_cannot_be_served_is_refused_in_words() {
    let stop = AtomicBool::new(false);
    let listening =
        |options: &ServerOptions| listen_on((Ipv4Addr::LOCALHOST, 0).into(), options).expect("a free port");
    let none = ServerOptions { threads: 0, ..options(exchange(1, 1)) };
    let error = serve(listening(&none), &none, &stop).expect_err("no thread would answer");
    assert_eq!(error.to_string(), "threads = 0 is out of range: 1..=256");
    let missing = options(Service::Storage { path: "/nowhere/at/all".into(), writable: false });
    let error = serve(listening(&missing), &missing, &stop).expect_err("there is no file");
    assert!(error.to_string().starts_with("opening /nowhere/at/all with O_DIRECT: "), "{error}");
    for service in [
        exchange(8, 8),
        Service::Datagrams { request_bytes: 8, answer_bytes: 8, service_time: Nanoseconds::ZERO },
    ] {
        let options = options(service);
        let taken = listening(&options);
        let again = listen_on(taken.address().expect("bound"), &options);
        assert!(matches!(again, Err(ServeError::Listen { .. })));
    }
}

#[test]
fn a_server_with_a_service_time_answers_no_request_in_less() {
    let service_time = Nanoseconds::from_micros(300);
    let server = options(Service::Exchange { request_bytes: 10, answer_bytes: 20, service_time });
    let workload = ExchangeWorkload { pace: pace(), request_bytes: 10, answer_bytes: 20 };
    let found = evidence(with_server(&server, |address| {
        offer(address, &Workload::TcpRr(workload), OfferedLoad::PerSecond(500.0), &()).expect("runs")
    }));
    let from_send = found.latency_from_send.expect("a measured run");
    assert!(from_send.min >= service_time, "{}", from_send.min);
    assert_eq!(from_send.count, found.requests.answered);
}
