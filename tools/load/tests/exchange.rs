//! The load generator against netpolicy's own server, over loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

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
    let listener: TcpListener = listen_on((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, options, &stop));
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
    let said = beyond.refusal().expect("most of a gigabyte is not there").to_owned();
    assert!(said.contains("Input/output error"), "{said}");
    assert!(evidence(beyond).void.expect("does not count").contains("refused"));
}

#[test]
fn what_cannot_be_served_is_refused_in_words() {
    let stop = AtomicBool::new(false);
    let listener = listen_on((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
    let none = ServerOptions { threads: 0, ..options(exchange(1, 1)) };
    let error = serve(&listener, &none, &stop).expect_err("no thread would answer");
    assert_eq!(error.to_string(), "threads = 0 is out of range: 1..=256");
    let missing = options(Service::Storage { path: "/nowhere/at/all".into(), writable: false });
    let error = serve(&listener, &missing, &stop).expect_err("there is no file");
    assert!(error.to_string().starts_with("opening /nowhere/at/all with O_DIRECT: "), "{error}");
    let address = listener.local_addr().expect("bound");
    assert!(matches!(listen_on(address), Err(ServeError::Listen { .. })));
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
