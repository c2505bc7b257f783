//! Compares the counts of `watch` with the requests that independent clients sent: bodies, pipelining,
//! HTTP/2, partial and slow requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use latency::measure::live::{Series, Unit, caveats};
use libtest_mimic::{Failed, Trial};
use linux::bpf::live::{LiveMeter, LiveTarget};
use linux::lab::{Lab, LabOptions, SERVER_ADDRESS};
use model::live::{LiveCounts, LiveWindow};
use model::{Nanoseconds, Severity, SpanCounts};
use testkit::scratch::Scratch;
use testkit::{Need, test};

use crate::requests::connect;
use crate::watched::{counted, nginx};

pub(crate) fn tests() -> Vec<Trial> {
    const BPF: &[Need] = &[Need::Root, Need::Bpf];
    vec![
        test("counted/a_request_with_a_body_is_one_however_it_is_cut_into_segments", BPF, bodies),
        test("counted/a_message_of_an_unknown_protocol_is_one_exchange_however_it_is_cut", BPF, unknown),
        test("counted/what_comes_after_an_early_answer_is_no_request", BPF, early),
        test("counted/queries_of_postgresql_are_counted_and_its_goodbye_is_not", BPF, queries),
        test("counted/a_message_without_an_answer_before_the_end_raises_no_alarm", BPF, goodbyes),
        test("counted/requests_longer_than_a_window_are_carried_to_the_one_that_answers_them", BPF, long),
        test("counted/halves_of_requests_are_their_clients_time", BPF, halves),
        test(
            "counted/an_upload_that_waits_for_its_100_continue_is_one_request",
            &[Need::Root, Need::Bpf, Need::Program("curl")],
            continues,
        ),
        test(
            "counted/commands_of_redis_benchmark_are_counted_whatever_its_pipeline",
            &[Need::Root, Need::Bpf, Need::Program("redis-server"), Need::Program("redis-benchmark")],
            redis_benchmark,
        ),
        test(
            "counted/requests_that_wrk_pipelines_are_counted",
            &[Need::Root, Need::Bpf, Need::Program("nginx"), Need::Program("wrk")],
            wrk,
        ),
        test(
            "counted/streams_of_http2_are_counted_as_h2load_counts_them",
            &[Need::Root, Need::Bpf, Need::Program("nghttpd"), Need::Program("h2load")],
            h2load,
        ),
        test(
            "counted/over_tls_exchanges_are_counted_and_handshakes_are_none",
            &[Need::Root, Need::Bpf, Need::Program("nginx"), Need::Program("openssl"), Need::Program("curl")],
            tls,
        ),
    ]
}

/// Starts a server in the lab that accepts `connections` connections and runs `each` for each of them on a
/// separate thread.
fn serve(
    lab: &Lab,
    port: u16,
    connections: usize,
    each: impl Fn(TcpStream) -> std::io::Result<()> + Copy + Send + 'static,
) -> Result<(), Failed> {
    let listener = lab.server().run(|| TcpListener::bind((SERVER_ADDRESS, port)))??;
    std::thread::spawn(move || {
        for connection in listener.incoming().take(connections).flatten() {
            let _ = connection.set_read_timeout(Some(Duration::from_secs(30)));
            let _ = connection.set_nodelay(true);
            std::thread::spawn(move || each(connection));
        }
    });
    Ok(())
}

/// Reads the head of a request; returns the length of its body, and whether the client waits for 100
/// Continue.
fn head(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<(usize, bool)>> {
    let (mut length, mut waits) = (0, false);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let words = line.trim_end().to_ascii_lowercase();
        if words.is_empty() {
            return Ok(Some((length, waits)));
        }
        if let Some(value) = words.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        waits |= words.starts_with("expect:");
    }
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Answers each request once all of it has arrived.
fn http(connection: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection);
    while let Some((length, waits)) = head(&mut reader)? {
        if waits {
            reader.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        std::io::copy(&mut reader.by_ref().take(length as u64), &mut std::io::sink())?;
        reader.get_mut().write_all(ANSWER)?;
    }
    Ok(())
}

/// Answers each request once its head has arrived.
fn http_early(connection: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection);
    while let Some((length, _)) = head(&mut reader)? {
        reader.get_mut().write_all(ANSWER)?;
        std::io::copy(&mut reader.by_ref().take(length as u64), &mut std::io::sink())?;
    }
    Ok(())
}

fn answer(connection: &mut TcpStream) -> Result<(), Failed> {
    let mut bytes = vec![0; ANSWER.len()];
    connection.read_exact(&mut bytes)?;
    assert_eq!(bytes, ANSWER);
    Ok(())
}

fn post(length: usize) -> Vec<u8> {
    format!("POST /upload HTTP/1.1\r\nHost: lab\r\nContent-Length: {length}\r\n\r\n").into_bytes()
}

fn gro(lab: &Lab, how: &str) -> Result<(), Failed> {
    let set =
        lab.server().run(|| Command::new("ethtool").args(["-K", "veth-server", "gro", how]).output())??;
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    Ok(())
}

const SIZES: [usize; 6] = [0, 100, 1_000, 10_000, 100_000, 1_000_000];

fn bodies() -> Result<(), Failed> {
    const PORT: u16 = 8_101;
    const EACH: usize = 40;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    serve(&lab, PORT, 2, http)?;
    for how in ["on", "off"] {
        gro(&lab, how)?;
        let mut connection = connect(&lab, PORT)?;
        for size in SIZES {
            let (head, body) = (post(size), vec![b'x'; size]);
            let counts = counted(&lab, PORT, || {
                for turn in 0..EACH {
                    if turn % 2 == 0 {
                        connection.write_all(&head)?;
                        // With a pause, the server often receives the head before the body is sent.
                        std::thread::sleep(Duration::from_micros(300 * (turn as u64 % 3)));
                        connection.write_all(&body)?;
                    } else {
                        connection.write_all(&[&head[..], &body].concat())?;
                    }
                    answer(&mut connection)?;
                }
                Ok(())
            })?;
            let all = EACH as u64;
            assert_eq!((counts.requests, counts.answered), (all, all), "{size} bytes, GRO {how}: {counts:?}");
            assert_eq!(counts.protocols.http1, all, "{size} bytes, GRO {how}: {counts:?}");
            assert_eq!(counts.unsolicited, 0, "{size} bytes, GRO {how}: {counts:?}");
        }
    }
    Ok(())
}

fn unknown() -> Result<(), Failed> {
    const PORT: u16 = 8_102;
    const EACH: u64 = 200;
    const MESSAGE: usize = 3_000;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    serve(&lab, PORT, 1, |mut connection| {
        let mut message = vec![0; MESSAGE];
        loop {
            connection.read_exact(&mut message)?;
            connection.write_all(b"done")?;
        }
    })?;
    let mut connection = connect(&lab, PORT)?;
    let mut done = [0; 4];
    let counts = counted(&lab, PORT, || {
        for _ in 0..EACH {
            for part in [1, 999, 2_000] {
                connection.write_all(&vec![0xee; part])?;
            }
            connection.read_exact(&mut done)?;
        }
        Ok(())
    })?;
    assert_eq!((counts.answered, counts.requests, counts.protocols.other), (EACH, EACH, EACH), "{counts:?}");
    assert_eq!(Unit::of(&counts), Unit::Exchanges);
    Ok(())
}

fn early() -> Result<(), Failed> {
    const PORT: u16 = 8_103;
    const EACH: u64 = 60;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    serve(&lab, PORT, usize::try_from(EACH)?, http_early)?;
    let counts = counted(&lab, PORT, || {
        for turn in 0..EACH {
            let size = SIZES[usize::try_from(turn)? % SIZES.len()];
            // netpolicy does not detect a request in the same segment after such a body, so send one request
            // per connection.
            let mut connection = connect(&lab, PORT)?;
            connection.write_all(&post(size))?;
            answer(&mut connection)?;
            connection.write_all(&vec![b'x'; size])?;
            connection.shutdown(std::net::Shutdown::Write)?;
            assert_eq!(connection.read(&mut [0; 4])?, 0, "the server has read the whole body");
        }
        Ok(())
    })?;
    assert_eq!((counts.requests, counts.answered), (EACH, EACH), "{counts:?}");
    Ok(())
}

fn queries() -> Result<(), Failed> {
    const PORT: u16 = 8_104;
    const EACH: u64 = 50;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    // The server answers every message except Terminate and the messages of an extended query that is not
    // complete.
    serve(&lab, PORT, 1, |mut connection| {
        let mut startup = [0; 8];
        connection.read_exact(&mut startup)?;
        connection.write_all(b"R\0\0\0\x08\0\0\0\0")?;
        loop {
            let mut head = [0; 5];
            connection.read_exact(&mut head)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            connection.read_exact(&mut vec![0; length - 4])?;
            if matches!(head[0], b'Q' | b'S') {
                connection.write_all(b"Z\0\0\0\x05I")?;
            }
        }
    })?;
    let counts = counted(&lab, PORT, || {
        let mut connection = connect(&lab, PORT)?;
        connection.write_all(&[0, 0, 0, 8, 0, 3, 0, 0])?;
        connection.read_exact(&mut [0; 9])?;
        let mut ready = [0; 6];
        for _ in 0..EACH {
            connection.write_all(b"Q\0\0\0\x0dselect 1\0")?;
            connection.read_exact(&mut ready)?;
            // Send three extended queries in one segment, and one in two segments.
            connection.write_all(&b"P\0\0\0\x08abc\0B\0\0\0\x04E\0\0\0\x04S\0\0\0\x04".repeat(3))?;
            for _ in 0..3 {
                connection.read_exact(&mut ready)?;
            }
            connection.write_all(b"P\0\0\0\x08a")?;
            std::thread::sleep(Duration::from_micros(200));
            connection.write_all(b"bc\0S\0\0\0\x04")?;
            connection.read_exact(&mut ready)?;
        }
        connection.write_all(b"X\0\0\0\x04")?;
        Ok(())
    })?;
    assert_eq!((counts.requests, counts.protocols.postgresql), (5 * EACH, 5 * EACH), "{counts:?}");
    assert_eq!(counts.arrivals, counts.answered, "{counts:?}");
    Ok(())
}

/// Measures one window of a port while `body` runs; returns the window and its findings.
fn found(
    lab: &Lab,
    port: u16,
    body: impl FnOnce() -> Result<(), Failed>,
) -> Result<(LiveWindow, Vec<(String, Severity)>), Failed> {
    let mut meter = LiveMeter::load(&LiveTarget::of(lab.server().id(), vec![port]))?;
    meter.begin()?;
    std::thread::sleep(Duration::from_nanos(LiveMeter::GUARD.0));
    body()?;
    let window = meter.end()?;
    let mut series = Series::new();
    series.add(&window);
    let findings = caveats("service", &series, false);
    Ok((window, findings.into_iter().map(|found| (found.rule, found.severity)).collect()))
}

/// Answers all lines but the last, as in a protocol that netpolicy does not know.
fn lines(connection: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line == "~bye\n" {
            return Ok(());
        }
        reader.get_mut().write_all(b"~ok\n")?;
    }
}

fn goodbyes() -> Result<(), Failed> {
    const PORT: u16 = 8_105;
    const CONNECTIONS: u64 = 100;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    serve(&lab, PORT, 200, lines)?;
    let (window, findings) = found(&lab, PORT, || {
        for _ in 0..CONNECTIONS {
            let mut connection = connect(&lab, PORT)?;
            connection.write_all(b"~ask\n")?;
            connection.read_exact(&mut [0; 4])?;
            connection.write_all(b"~bye\n")?;
            // The server closes the connection.
            assert_eq!(connection.read(&mut [0; 4])?, 0);
        }
        Ok(())
    })?;
    assert_eq!(window.counts.answered, CONNECTIONS, "{:?}", window.counts);
    assert_eq!(
        window.counts.connections, CONNECTIONS,
        "the server worked on the request during the window: {:?}",
        window.counts
    );
    assert_eq!((window.waiting.requests, window.waiting.stalled), (0, 0));
    let alarms: Vec<_> = findings.iter().filter(|(rule, _)| !rule.starts_with("live-few")).collect();
    assert!(alarms.is_empty(), "{alarms:?}");
    Ok(())
}

/// Each window is a tenth of a request's duration, so each request begins before the window that contains its
/// answer.
fn long() -> Result<(), Failed> {
    const PORT: u16 = 8_106;
    const TAKES: Duration = Duration::from_millis(400);
    const WINDOW: Duration = Duration::from_millis(40);
    const CLIENTS: usize = 4;
    const EACH: u64 = 5;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    serve(&lab, PORT, CLIENTS, |connection| {
        let mut reader = BufReader::new(connection);
        let mut line = String::new();
        while reader.read_line(&mut line)? > 0 {
            std::thread::sleep(TAKES);
            reader.get_mut().write_all(b"~ok\n")?;
        }
        Ok(())
    })?;
    let mut meter = LiveMeter::load(&LiveTarget::of(lab.server().id(), vec![PORT]))?;
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        connections.push(connect(&lab, PORT)?);
    }
    let mut series = Series::new();
    let clients: Vec<_> = connections
        .into_iter()
        .map(|mut connection| {
            std::thread::spawn(move || -> std::io::Result<()> {
                for _ in 0..EACH {
                    connection.write_all(b"~ask\n")?;
                    connection.read_exact(&mut [0; 4])?;
                }
                Ok(())
            })
        })
        .collect();
    while clients.iter().any(|client| !client.is_finished()) {
        meter.begin()?;
        std::thread::sleep(WINDOW);
        series.add(&meter.end()?);
    }
    for client in clients {
        client.join().map_err(|_| "a client panicked")??;
    }
    let counts = *series.counts();
    let all = EACH * u64::try_from(CLIENTS)?;
    // No window counts requests that are answered while programs are being attached or detached.
    assert!(counts.carried > all / 4 && counts.answered <= all, "of {all}: {counts:?}");
    let shorter = SpanCounts::bucket_of(Nanoseconds::from_millis(350));
    let few: u64 = series.spans().residence.buckets()[..shorter].iter().sum();
    assert_eq!(few, 0, "no response time is shorter than the real one: {counts:?}");
    assert!(!series.spans().entered.is_empty());
    Ok(())
}

/// Twenty connections send complete requests; the others send only parts of requests. netpolicy recognises
/// partial requests in HTTP/1; in the other protocol, they come from a small share of all connections.
fn halves() -> Result<(), Failed> {
    const HTTP: u16 = 8_107;
    const OTHER: u16 = 8_108;
    const WORK: usize = 20;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    serve(&lab, HTTP, 2 * WORK, http)?;
    serve(&lab, OTHER, 2 * WORK, lines)?;
    let work = |port: u16, half: &[u8], whole: &[u8], answer: usize, halves: usize| {
        let mut working = Vec::new();
        for _ in 0..WORK {
            working.push(connect(&lab, port)?);
        }
        let mut waiting = Vec::new();
        found(&lab, port, || {
            for _ in 0..halves {
                let mut connection = connect(&lab, port)?;
                connection.write_all(half)?;
                waiting.push(connection);
            }
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(1_200) {
                for connection in &mut working {
                    connection.write_all(whole)?;
                    connection.read_exact(&mut vec![0; answer])?;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        })
    };
    let get = b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n";
    let (window, findings) = work(HTTP, b"GET / HTTP/1.1\r\nHost:", get, ANSWER.len(), WORK)?;
    let waiting = &window.waiting;
    assert_eq!((waiting.incomplete, waiting.requests, waiting.stalled), (20, 0, 0), "{:?}", window.counts);
    assert!(findings.iter().all(|(rule, _)| rule != "live-hangs"), "{findings:?}");
    let (window, findings) = work(OTHER, b"~as", b"~ask\n", 4, 1)?;
    assert_eq!((window.waiting.stalled, window.waiting.throughout), (1, 0), "{:?}", window.counts);
    let hangs = findings.iter().find(|(rule, _)| rule == "live-hangs").ok_or("one waits")?;
    assert_eq!(hangs.1, Severity::Warning, "one stuck connection of 21 is no problem of the service");
    Ok(())
}

/// Runs a program on the lab's client, and returns its output.
fn client(lab: &Lab, program: &str, arguments: &[&str]) -> Result<String, Failed> {
    let output = lab.client().run(|| Command::new(program).args(arguments).output())??;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program}: {said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

fn continues() -> Result<(), Failed> {
    const PORT: u16 = 8_109;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    serve(&lab, PORT, 8, http)?;
    let scratch = Scratch::new("counted-body")?;
    let body = scratch.path("body");
    std::fs::write(&body, vec![b'x'; 50_000])?;
    let (data, url) = (format!("@{}", body.display()), format!("http://{SERVER_ADDRESS}:{PORT}/[1-30]"));
    let counts = counted(&lab, PORT, || {
        client(&lab, "curl", &["-sS", "-H", "Expect: 100-continue", "--data-binary", &data, &url])?;
        Ok(())
    })?;
    assert_eq!((counts.requests, counts.protocols.http1), (30, 30), "{counts:?}");
    assert_eq!(counts.unsolicited, 0, "the answer continues after the interim one: {counts:?}");
    Ok(())
}

fn near(counts: &LiveCounts, found: u64, requests: u64) {
    assert!(found.abs_diff(requests) * 200 <= requests, "{requests} by the client: {counts:?}");
}

fn redis_benchmark() -> Result<(), Failed> {
    const PORT: u16 = 6_380;
    const REQUESTS: u64 = 8_000;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let mut command = Command::new("redis-server");
    command.args(["--port", "6380", "--bind", &SERVER_ADDRESS.to_string(), "--protected-mode", "no"]);
    command.args(["--save", "", "--appendonly", "no"]);
    let _server = lab.start_program(command, PORT)?;
    let address = SERVER_ADDRESS.to_string();
    for pipeline in ["1", "4", "16", "64"] {
        let counts = counted(&lab, PORT, || {
            let arguments =
                ["-h", &address, "-p", "6380", "-t", "set", "-n", "8000", "-c", "5", "-P", pipeline, "-q"];
            client(&lab, "redis-benchmark", &arguments)?;
            Ok(())
        })?;
        // redis-benchmark also queries the configuration once or twice at the start.
        near(&counts, counts.protocols.resp, REQUESTS);
    }
    Ok(())
}

fn wrk() -> Result<(), Failed> {
    const PORT: u16 = 8_110;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let (_files, _server) = nginx(&lab, PORT)?;
    let scratch = Scratch::new("counted-wrk")?;
    let (script, url) = (scratch.path("pipeline.lua"), format!("http://{SERVER_ADDRESS}:{PORT}/none"));
    for depth in [1, 4, 16] {
        std::fs::write(
            &script,
            format!(
                "init = function(args)\n  local all = {{}}\n  for i = 1, {depth} do all[i] = wrk.format() end\n  \
                 pipeline = table.concat(all)\nend\nrequest = function() return pipeline end\n"
            ),
        )?;
        let mut said = String::new();
        let counts = counted_to_the_end(&lab, PORT, || {
            let script = script.display().to_string();
            said = client(&lab, "wrk", &["-t1", "-c4", "-d1s", "-s", &script, &url])?;
            Ok(())
        })?;
        let requests = said.lines().find_map(|line| line.trim().split_once(" requests in")).map(|(n, _)| n);
        let requests: u64 = requests.ok_or("wrk prints the number of requests")?.parse()?;
        // wrk does not count requests that are outstanding when it exits.
        let more = counts.requests.abs_diff(requests);
        assert!(more * 200 <= requests + 200 * 4 * depth, "{requests} by wrk, {depth} deep: {counts:?}");
    }
    Ok(())
}

/// Like `counted`, but for a client that disconnects while it waits for an answer.
fn counted_to_the_end(
    lab: &Lab,
    port: u16,
    body: impl FnOnce() -> Result<(), Failed>,
) -> Result<LiveCounts, Failed> {
    Ok(found(lab, port, body)?.0.counts)
}

fn h2load() -> Result<(), Failed> {
    const PORT: u16 = 8_111;
    const REQUESTS: u64 = 4_000;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let scratch = Scratch::new("counted-h2")?;
    std::fs::write(scratch.path("file"), "answer\n")?;
    let mut command = Command::new("nghttpd");
    command.args(["--no-tls", "-d"]).arg(scratch.directory());
    command.args(["-a", &SERVER_ADDRESS.to_string(), &PORT.to_string()]);
    let _server = lab.start_program(command, PORT)?;
    let url = format!("http://{SERVER_ADDRESS}:{PORT}/file");
    for streams in ["1", "10", "32"] {
        let counts = counted_to_the_end(&lab, PORT, || {
            client(&lab, "h2load", &["-n", "4000", "-c", "4", "-m", streams, &url])?;
            Ok(())
        })?;
        near(&counts, counts.protocols.http2, REQUESTS);
        near(&counts, counts.requests, REQUESTS);
    }
    Ok(())
}

fn tls() -> Result<(), Failed> {
    const PORT: u16 = 8_112;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let scratch = Scratch::new("counted-tls")?;
    let at = scratch.directory().display();
    let (key, certificate) = (scratch.path("key"), scratch.path("certificate"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=lab", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()?;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::write(scratch.path("file"), "answer\n")?;
    let config = scratch.path("nginx.conf");
    std::fs::write(
        &config,
        format!(
            "daemon off; master_process off; error_log stderr; pid {at}/pid; events {{ worker_connections 256; }}\n\
             http {{ access_log off; client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;\n\
             fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;\n\
             server {{ listen {SERVER_ADDRESS}:{PORT} ssl; ssl_certificate {at}/certificate;\n\
             ssl_certificate_key {at}/key; root {at}; }} }}\n"
        ),
    )?;
    let mut command = Command::new("nginx");
    command.arg("-c").arg(&config).arg("-p").arg(scratch.directory());
    let _server = lab.start_program(command, PORT)?;
    let url = format!("https://{SERVER_ADDRESS}:{PORT}/file?[1-50]");
    for version in ["1.2", "1.3"] {
        let counts = counted_to_the_end(&lab, PORT, || {
            for _ in 0..4 {
                client(&lab, "curl", &["-ksS", "--http1.1", "--tls-max", version, &url])?;
            }
            Ok(())
        })?;
        // The four handshakes and four close notifications do not count as requests.
        assert_eq!((counts.requests, counts.protocols.tls), (200, 200), "TLS {version}: {counts:?}");
        assert_eq!(Unit::of(&counts), Unit::Exchanges);
    }
    Ok(())
}
