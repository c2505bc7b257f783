//! Tests `watch` on real servers, measured from outside under load in a lab.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use apply::Knobs;
use latency::live::Sampler;
use libtest_mimic::{Failed, Trial};
use linux::bpf::live::{LiveMeter, LiveTarget};
use linux::lab::{Lab, LabOptions, MemcachedOptions, SERVER_ADDRESS, ServerProgram};
use model::live::LiveCounts;
use model::{Nanoseconds, NapiKnob, Pid, ProcessId, Setting, Threading};
use serde_json::Value;
use session::Fault;
use testkit::operator::{Operator, Started, caught, waited_for};
use testkit::scratch::Scratch;
use testkit::subject::eventually;
use testkit::{Need, test};

use crate::requests::{connect, while_asked, while_asked_in_turn};

pub(crate) fn tests() -> Vec<Trial> {
    const MEMCACHED: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    vec![
        test(
            "watched/every_request_to_redis_is_counted_once",
            &[Need::Root, Need::Bpf, Need::Program("redis-server")],
            redis,
        ),
        test(
            "watched/every_request_to_a_go_server_is_counted_once",
            &[Need::Root, Need::Bpf, Need::Program("go")],
            go,
        ),
        test(
            "watched/every_request_to_nginx_with_sendfile_is_counted_once",
            &[Need::Root, Need::Bpf, Need::Program("nginx")],
            || nginx_asked(true),
        ),
        test(
            "watched/requests_to_nginx_with_a_connection_each_are_counted_once",
            &[Need::Root, Need::Bpf, Need::Program("nginx")],
            || nginx_asked(false),
        ),
        test(
            "watched/every_request_to_haproxy_is_counted_once",
            &[Need::Root, Need::Bpf, Need::Program("nginx"), Need::Program("haproxy")],
            haproxy,
        ),
        test(
            "watched/every_request_to_a_server_that_splices_is_counted_once",
            &[Need::Root, Need::Bpf, Need::Python],
            splices,
        ),
        test(
            "watched/every_request_over_tls_in_the_kernel_is_counted_once",
            &[Need::Root, Need::Bpf, Need::KernelTls],
            kernel_tls,
        ),
        test(
            "watched/mptcp_is_reported_as_what_cannot_be_measured",
            &[Need::Root, Need::Bpf, Need::Python, Need::Mptcp],
            mptcp,
        ),
        test(
            "watched/requests_with_a_connection_each_are_counted_once",
            &[Need::Root, Need::Bpf, Need::Python],
            connection_each,
        ),
        test(
            "watched/the_cpu_time_of_a_service_has_that_of_processes_it_forked_and_of_those_that_ended",
            &[Need::Root, Need::Bpf, Need::Cc],
            forked,
        ),
        test(
            "watched/the_cpu_time_of_threads_that_begin_to_poll_after_the_first_window_is_counted",
            &[Need::Root, Need::Bpf, Need::Memcached, Need::ThreadPerNapi],
            begin_to_poll,
        ),
        test("watched/what_is_printed_for_programs_is_as_the_schema_says", MEMCACHED, as_the_schema_says),
        test("watched/a_goal_of_the_policy_files_is_judged_on_the_service_itself", MEMCACHED, goal),
        test("watched/two_watch_the_same_service_at_once", MEMCACHED, two_at_once),
        test("watched/it_ends_when_its_output_is_no_longer_read", MEMCACHED, unread),
        test("watched/a_record_that_finds_no_space_costs_no_report", MEMCACHED, without_space),
        test("watched/more_connections_than_can_be_measured_are_reported", MEMCACHED, too_many),
        test("watched/one_request_gives_no_percentile", MEMCACHED, one_request),
        test("watched/a_namesake_in_another_namespace_is_left_out", MEMCACHED, namesake),
        test(
            "watched/a_namespace_that_goes_is_reported_and_nothing_stays_attached",
            MEMCACHED,
            namespace_goes,
        ),
        test("watched/a_service_that_ends_is_reported_with_its_measurements", MEMCACHED, ends),
        test("watched/one_that_is_killed_leaves_nothing_attached", MEMCACHED, killed),
        test(
            "watched/what_cannot_be_watched_is_said_with_the_reason",
            &[Need::Root, Need::Bpf, Need::Memcached, Need::Python],
            refused,
        ),
        test("watched/a_kernel_that_does_not_describe_its_types_is_refused_with_6", MEMCACHED, without_btf),
        test("watched/a_user_without_privileges_sees_the_required_capabilities", MEMCACHED, unprivileged),
    ]
}

/// Returns the counts that a meter of a port of the lab's server measures while `body` runs.
pub(crate) fn counted(
    lab: &Lab,
    port: u16,
    body: impl FnOnce() -> Result<(), Failed>,
) -> Result<LiveCounts, Failed> {
    let mut meter = LiveMeter::load(&LiveTarget::of(lab.server().id(), vec![port]))?;
    meter.begin()?;
    std::thread::sleep(Duration::from_nanos(LiveMeter::GUARD.0));
    body()?;
    let window = meter.end()?;
    assert_eq!(window.waiting.requests, 0, "{:?}", window.waiting.oldest);
    Ok(window.counts)
}

/// Checks that at most a thousandth of the requests is not counted, and that hardly any answers are counted
/// as unsolicited sends.
fn are_all(counts: &LiveCounts, requests: u64) {
    assert!(counts.requests.abs_diff(requests) * 1_000 <= requests, "{requests} were answered: {counts:?}");
    assert_eq!(counts.arrivals, counts.answered, "{counts:?}");
    assert!(counts.unsolicited * 20 <= counts.sends, "{counts:?}");
}

fn redis() -> Result<(), Failed> {
    const PORT: u16 = 6379;
    const REQUESTS: u64 = 6_000;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let mut command = Command::new("redis-server");
    command.args(["--port", "6379", "--bind", &SERVER_ADDRESS.to_string(), "--protected-mode", "no"]);
    command.args(["--save", "", "--appendonly", "no"]);
    let _server = lab.start_program(command, PORT)?;
    let mut connections = Vec::new();
    for _ in 0..8 {
        connections.push(BufReader::new(connect(&lab, PORT)?));
    }
    let counts = counted(&lab, PORT, || {
        let mut answer = String::new();
        for request in 0..REQUESTS {
            let connection = &mut connections[usize::try_from(request % 8)?];
            connection.get_mut().write_all(b"*1\r\n$4\r\nPING\r\n")?;
            answer.clear();
            connection.read_line(&mut answer)?;
            assert_eq!(answer, "+PONG\r\n");
        }
        Ok(())
    })?;
    are_all(&counts, REQUESTS);
    Ok(())
}

/// A server whose runtime reads on several threads and that writes each answer in several parts.
const GO: &str = r#"package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "first ")
		w.(http.Flusher).Flush()
		fmt.Fprint(w, "second")
	})
	fmt.Println(http.ListenAndServe(os.Args[1], nil))
}
"#;

fn go() -> Result<(), Failed> {
    const PORT: u16 = 8080;
    const REQUESTS: u64 = 3_000;
    let scratch = Scratch::new("watched")?;
    let (source, binary) = (scratch.path("server.go"), scratch.path("server"));
    std::fs::write(&source, GO)?;
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&binary).arg(&source).env("GO111MODULE", "off").env("CGO_ENABLED", "0");
    build.env("HOME", scratch.directory()).env("GOCACHE", scratch.path("cache"));
    let built = build.output()?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let mut command = Command::new(&binary);
    command.arg(format!("{SERVER_ADDRESS}:{PORT}"));
    let _server = lab.start_program(command, PORT)?;
    let mut connection = connect(&lab, PORT)?;
    let counts = counted(&lab, PORT, || {
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        for _ in 0..REQUESTS {
            connection.write_all(b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n")?;
            answer.clear();
            // An empty chunk ends the answer.
            while !answer.ends_with(b"0\r\n\r\n") {
                let read = connection.read(&mut part)?;
                assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
                answer.extend_from_slice(&part[..read]);
            }
        }
        Ok(())
    })?;
    are_all(&counts, REQUESTS);
    // A goroutine may move to another thread between two parts; the second part then looks like a separate
    // message.
    assert!(
        counts.continued + counts.unsolicited >= REQUESTS,
        "an answer consists of several parts: {counts:?}"
    );
    Ok(())
}

/// Starts nginx on a port with one file of 64 KiB. nginx sends the head of an answer with `writev` and the
/// body with `sendfile`.
pub(crate) fn nginx(lab: &Lab, port: u16) -> Result<(Scratch, ServerProgram), Failed> {
    let scratch = Scratch::new("nginx")?;
    std::fs::write(scratch.path("file"), vec![b'x'; BODY])?;
    let at = scratch.directory().display();
    let config = format!(
        "daemon off; master_process off; error_log stderr; pid {at}/pid;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; sendfile on; keepalive_requests 1000000; client_body_temp_path {at}/body;\n\
         proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;\n\
         server {{ listen {SERVER_ADDRESS}:{port}; root {at}; }} }}\n"
    );
    let file = scratch.path("nginx.conf");
    std::fs::write(&file, config)?;
    let mut command = Command::new("nginx");
    command.arg("-c").arg(&file).arg("-p").arg(scratch.directory());
    let server = lab.start_program(command, port)?;
    Ok((scratch, server))
}

/// The size of nginx's file in bytes.
const BODY: usize = 64 << 10;

/// Requests the file and reads all of it.
fn get(connection: &mut BufReader<TcpStream>, stays: bool) -> Result<(), Failed> {
    let word = if stays { "keep-alive" } else { "close" };
    let request = format!("GET /file HTTP/1.1\r\nHost: lab\r\nConnection: {word}\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes())?;
    let mut line = String::new();
    connection.read_line(&mut line)?;
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    while line != "\r\n" {
        line.clear();
        connection.read_line(&mut line)?;
    }
    let mut body = vec![0; BODY];
    connection.read_exact(&mut body)?;
    Ok(())
}

/// Requests the file this many times from a port of the lab, and returns the counts.
fn files_from(lab: &Lab, port: u16, requests: u64, stays: bool) -> Result<LiveCounts, Failed> {
    counted(lab, port, || {
        let mut connection = BufReader::new(connect(lab, port)?);
        for request in 0..requests {
            if !stays && request > 0 {
                connection = BufReader::new(connect(lab, port)?);
            }
            get(&mut connection, stays)?;
        }
        Ok(())
    })
}

fn nginx_asked(stays: bool) -> Result<(), Failed> {
    const PORT: u16 = 8_081;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let (_scratch, _server) = nginx(&lab, PORT)?;
    let requests = if stays { 3_000 } else { 1_000 };
    let counts = files_from(&lab, PORT, requests, stays)?;
    are_all(&counts, requests);
    assert!(counts.continued >= requests, "head and body are sent separately: {counts:?}");
    Ok(())
}

/// Tests haproxy in front of nginx, in the same namespace. haproxy's requests to nginx must not count as
/// answers.
fn haproxy() -> Result<(), Failed> {
    const PORT: u16 = 8_082;
    const BEHIND: u16 = 8_083;
    const REQUESTS: u64 = 2_000;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let (scratch, _behind) = nginx(&lab, BEHIND)?;
    let config = scratch.path("haproxy.cfg");
    std::fs::write(
        &config,
        format!(
            "global\n  maxconn 256\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
             frontend front\n  bind {SERVER_ADDRESS}:{PORT}\n  default_backend behind\n\
             backend behind\n  server one {SERVER_ADDRESS}:{BEHIND}\n"
        ),
    )?;
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(&config);
    let _server = lab.start_program(command, PORT)?;
    let counts = files_from(&lab, PORT, REQUESTS, true)?;
    are_all(&counts, REQUESTS);
    Ok(())
}

/// A server that sends its input back by splicing it through a pipe, so that the data never enters the
/// process.
const SPLICES: &str = r"
import os, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    connection, _ = listener.accept()
    reading, writing = os.pipe()
    while True:
        length = os.splice(connection.fileno(), writing, 4096)
        if length == 0: break
        os.splice(reading, connection.fileno(), length)
    for end in (reading, writing): os.close(end)
    connection.close()
";

fn splices() -> Result<(), Failed> {
    const PORT: u16 = 8_084;
    const REQUESTS: u64 = 3_000;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let mut command = Command::new("python3");
    command.args(["-c", SPLICES, &SERVER_ADDRESS.to_string(), &PORT.to_string()]);
    let _server = lab.start_program(command, PORT)?;
    let mut connection = connect(&lab, PORT)?;
    let counts = counted(&lab, PORT, || {
        let mut answer = [0; 8];
        for _ in 0..REQUESTS {
            connection.write_all(b"request\n")?;
            connection.read_exact(&mut answer)?;
        }
        Ok(())
    })?;
    are_all(&counts, REQUESTS);
    Ok(())
}

/// A server, or a client if a number of requests is given, with kernel TLS in both directions. Both have the
/// key in advance, so there is no handshake. `struct tls12_crypto_info_aes_gcm_128`; Kernel: 5.1,
/// `include/uapi/linux/tls.h`.
const TLS: &str = r"
import socket, struct, sys
address, requests = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
def encrypts(connection):
    connection.setsockopt(socket.IPPROTO_TCP, 31, b'tls')
    for direction in (1, 2):
        keys = struct.pack('=HH8s16s4s8s', 0x0303, 51, b'i' * 8, b'k' * 16, b's' * 4, bytes(8))
        connection.setsockopt(282, direction, keys)
    return connection
if requests:
    connection = encrypts(socket.create_connection(address))
    for _ in range(requests):
        connection.sendall(b'request\n')
        assert connection.recv(4096) == b'request\n'
else:
    listener = socket.create_server(address)
    while True:
        connection = listener.accept()[0]
        try:
            encrypts(connection)
        except OSError:
            continue # one that only looked whether a server listens
        while line := connection.recv(4096):
            connection.sendall(line)
";

fn kernel_tls() -> Result<(), Failed> {
    const PORT: u16 = 8_086;
    const REQUESTS: u64 = 1_000;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let (address, port) = (SERVER_ADDRESS.to_string(), PORT.to_string());
    let mut command = Command::new("python3");
    command.args(["-c", TLS, &address, &port, "0"]);
    let _server = lab.start_program(command, PORT)?;
    let counts = counted(&lab, PORT, || {
        let client = lab.client().run(|| {
            Command::new("python3").args(["-c", TLS, &address, &port, &REQUESTS.to_string()]).output()
        })??;
        assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
        Ok(())
    })?;
    are_all(&counts, REQUESTS);
    Ok(())
}

/// A server and a client that use `IPPROTO_MPTCP`.
const MPTCP: [&str; 2] = [
    r"
import socket, sys
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen()
while True:
    connection, _ = listener.accept()
    while True:
        line = connection.recv(4096)
        if not line: break
        connection.sendall(line)
",
    r"
import socket, sys
connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
connection.connect((sys.argv[1], int(sys.argv[2])))
for _ in range(int(sys.argv[3])):
    connection.sendall(b'request\n')
    assert connection.recv(4096) == b'request\n'
",
];

fn mptcp() -> Result<(), Failed> {
    const PORT: u16 = 8_085;
    const REQUESTS: u64 = 500;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let (address, port) = (SERVER_ADDRESS.to_string(), PORT.to_string());
    let mut command = Command::new("python3");
    command.args(["-c", MPTCP[0], &address, &port]);
    let _server = lab.start_program(command, PORT)?;
    let mut meter = LiveMeter::load(&LiveTarget::of(lab.server().id(), vec![PORT]))?;
    meter.begin()?;
    std::thread::sleep(Duration::from_nanos(LiveMeter::GUARD.0));
    let client = lab.client().run(|| {
        Command::new("python3").args(["-c", MPTCP[1], &address, &port, &REQUESTS.to_string()]).output()
    })??;
    let window = meter.end()?;
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    assert_eq!(
        window.counts.answered, 0,
        "the answer is now counted: document that in watch.md: {:?}",
        window.counts
    );
    assert!(window.counts.mptcp >= REQUESTS, "{:?}", window.counts);
    assert_eq!(
        (window.waiting.requests, window.waiting.oldest),
        (0, None),
        "no healthy server is reported as hanging"
    );
    let mut series = latency::measure::live::Series::new();
    series.add(&window);
    let found = latency::measure::live::caveats("service", &series, false);
    assert!(found.iter().any(|finding| finding.rule == "live-mptcp"), "{found:#?}");
    Ok(())
}

/// Tests HTTP/1.0, in which the end of the connection ends the answer. The server sends the head before the
/// body.
fn connection_each() -> Result<(), Failed> {
    const PORT: u16 = 8000;
    const REQUESTS: u64 = 1_000;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let mut command = Command::new("python3");
    command.args([
        "-m",
        "http.server",
        "8000",
        "--bind",
        &SERVER_ADDRESS.to_string(),
        "--directory",
        "/sys/kernel/mm",
    ]);
    let _server = lab.start_program(command, PORT)?;
    let counts = counted(&lab, PORT, || {
        for _ in 0..REQUESTS {
            let mut connection = connect(&lab, PORT)?;
            connection.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            let mut answer = Vec::new();
            connection.read_to_end(&mut answer)?;
            assert!(answer.starts_with(b"HTTP/1.0 200"), "{}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    })?;
    are_all(&counts, REQUESTS);
    Ok(())
}

fn as_the_schema_says() -> Result<(), Failed> {
    let operator = Operator::new("watched-schema", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let scratch = Scratch::new("watched-record")?;
    let record = scratch.path("record.jsonl");
    let said = while_asked_in_turn(&operator, || {
        let record = record.display().to_string();
        operator.runs(&["-o", "jsonl", "watch", "--port", "11211", "--seconds", "3", "--record", &record], 0)
    })?;
    let recorded = std::fs::read_to_string(&record)?;
    let page = record.with_extension("html");
    let (record_name, page_name) = (record.display().to_string(), page.display().to_string());
    let again = operator.runs(&["-o", "json", "bench", "report", &record_name, "--report", &page_name], 0)?;
    let drawn = std::fs::read_to_string(&page)?;
    let again: Value = serde_json::from_str(&again.data)?;
    assert!(drawn.contains("Response times") && drawn.contains("veth-server"), "{drawn}");
    let documents: Vec<Value> = said.data.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let kinds: Vec<&str> = documents.iter().filter_map(|document| document["kind"].as_str()).collect();
    // On a busy machine, `watch` may skip some windows.
    let (last, others) = kinds.split_last().ok_or("nothing was printed")?;
    assert!(*last == "watch" && !others.is_empty() && others.len() <= 3, "{kinds:?}");
    assert!(others.iter().all(|kind| *kind == "watch-window"), "{kinds:?}");
    let all = &documents[others.len()]["data"];
    assert_eq!(again["data"]["requests"], all["requests"], "the record contains all windows");
    let windows: u64 =
        documents[..others.len()].iter().filter_map(|one| one["data"]["requests"].as_u64()).sum();
    assert_eq!(all["requests"].as_u64(), Some(windows), "{all}");
    assert!(windows > 100, "{all}");
    assert_eq!(all["by_queue"][0]["name"], "veth-server rx-0", "{all}");
    assert!(all["by_worker"][0]["name"].as_str().is_some_and(|name| name.contains('[')), "{all}");
    let service = all["cost"]["service"].as_f64().ok_or("a cost")?;
    assert!(service > 500.0, "{all}");
    // The first window measures the cost of the meter itself, and the bounds of the figures include that
    // cost.
    assert!(documents[0]["data"]["weight"].as_f64().is_some_and(|weight| weight > 0.0), "{all}");
    let cost = service + all["cost"]["delivery"].as_f64().unwrap_or(0.0);
    let (least, weight) = (&all["without_measuring"]["cpu_at_least"], &all["weight"]);
    let together = least.as_f64().zip(weight.as_f64()).map(|(least, weight)| least + weight);
    assert!(together.is_some_and(|together| (together / cost - 1.0).abs() < 1e-6), "{all}");
    let most = all["without_measuring"]["rate_at_most"].as_f64();
    assert!(most > all["rate"].as_f64(), "{all}");
    assert_eq!(recorded.lines().count(), 1 + others.len(), "a head and the windows");
    let again = operator.runs(&["-o", "json", "watch", "--port", "11211", "--seconds", "1"], 0)?;
    let nothing: Value = serde_json::from_str(&again.data)?;
    assert_eq!(nothing["data"]["findings"][0]["rule"], "live-nothing-arrived", "{nothing}");
    Ok(())
}

fn goal() -> Result<(), Failed> {
    let operator = Operator::new("watched-goal", 1)?;
    operator.asks(
        "[service.cache]\nmatch = { port = 11211 }\npolicy = \"latency\"\ngoal = { p99 = \"1us\" }\n",
    )?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let watch = ["-o", "json", "watch", "cache", "--seconds", "3", "--sample", "900ms"];
    let found = while_asked_in_turn(&operator, || operator.runs(&watch, 0))?;
    let found: Value = serde_json::from_str(&found.data)?;
    let rules = found["data"]["findings"].as_array().into_iter().flatten();
    let rules: Vec<&str> = rules.filter_map(|finding| finding["rule"].as_str()).collect();
    assert!(rules.contains(&"live-goal-missed"), "{rules:?}: {found}");
    Ok(())
}

fn two_at_once() -> Result<(), Failed> {
    let operator = Operator::new("watched-two", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    while_asked_in_turn(&operator, || {
        let watch = ["-o", "json", "watch", "memcached", "--seconds", "2", "--sample", "500ms"];
        let mut other = operator.netpolicy(&watch);
        let other = other.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mine: Value = serde_json::from_str(&operator.runs(&watch, 0)?.data)?;
        let theirs = other.wait_with_output()?;
        let theirs: Value = serde_json::from_slice(&theirs.stdout)?;
        for found in [mine, theirs] {
            assert!(found["data"]["requests"].as_u64().is_some_and(|requests| requests > 100), "{found}");
        }
        Ok(())
    })
}

fn ends() -> Result<(), Failed> {
    let operator = Operator::new("watched-ends", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let pid = server.process().pid.to_string();
    let watch = operator
        .netpolicy(&["-o", "json", "watch", "--pid", &pid, "--seconds", "60"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let output = while_asked_in_turn(&operator, || {
        std::thread::sleep(Duration::from_millis(2_500));
        drop(server);
        Ok(watch.wait_with_output()?)
    })?;
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("exited while it was watched"), "{words}");
    let found: Value = serde_json::from_slice(&output.stdout)?;
    assert!(found["data"]["requests"].as_u64().is_some_and(|requests| requests > 100), "{found}");
    Ok(())
}

/// Tests `watch` with an output that is closed, as with `| head`.
fn unread() -> Result<(), Failed> {
    let operator = Operator::new("watched-unread", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let watch = operator.netpolicy(&["watch", "--port", "11211"]).stdout(Stdio::piped()).spawn()?;
    let mut watch = Started { child: watch };
    let mut first = String::new();
    let output = watch.child.stdout.take().ok_or("its output")?;
    BufReader::new(output).read_line(&mut first)?;
    assert!(!first.is_empty());
    let ended = waited_for("its end", || Ok(watch.child.try_wait()?))?;
    assert_eq!(ended.code(), Some(0));
    Ok(())
}

fn without_space() -> Result<(), Failed> {
    let operator = Operator::new("watched-without-space", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let earlier = operator.file("earlier.jsonl", b"evidence\n")?;
    let said = operator.runs(&["watch", "--port", "11211", "--seconds", "1", "--record", &earlier], 1)?;
    assert!(said.words.contains("records are not overwritten"), "{}", said.words);
    assert_eq!(std::fs::read(&earlier)?, b"evidence\n");
    let small = operator.state().with_file_name("small");
    std::fs::create_dir_all(&small)?;
    // The file system has room for one page of 4 KiB: the record's first line fits, but not all windows.
    let record = small.join("day.jsonl").display().to_string();
    let arguments = ["-o", "json", "watch", "--port", "11211", "--seconds", "4", "--record", &record];
    let output = while_asked_in_turn(&operator, || {
        Ok(operator.netpolicy_with_little_space(&small, 4, &arguments).output()?)
    })?;
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("Recording stopped here: ") && words.contains("No space left"), "{words}");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert!(report["data"]["requests"].as_u64().is_some_and(|requests| requests > 0), "{report}");
    let shown = operator.runs(&["show", "--processes", "none"], 0)?.words;
    assert!(shown.contains("port 11211: p50 ") && shown.contains(" ago by watch"), "{shown}");
    Ok(())
}

/// The meter only counts connections beyond a limit, so its state is bounded.
fn too_many() -> Result<(), Failed> {
    const MEASURED: u32 = 100;
    const CONNECTIONS: u64 = 300;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let _server = lab.start_memcached(&MemcachedOptions::default())?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(BufReader::new(connect(&lab, 11_211)?));
    }
    let target = LiveTarget { sockets_max: MEASURED, ..LiveTarget::of(lab.server().id(), vec![11_211]) };
    let mut meter = LiveMeter::load(&target)?;
    meter.begin()?;
    std::thread::sleep(Duration::from_nanos(LiveMeter::GUARD.0));
    let mut answer = String::new();
    for connection in &mut connections {
        connection.get_mut().write_all(b"get nothing\r\n")?;
        answer.clear();
        connection.read_line(&mut answer)?;
        assert_eq!(answer, "END\r\n");
    }
    let window = meter.end()?;
    assert!(window.counts.answered <= u64::from(MEASURED), "{:?}", window.counts);
    assert!(window.counts.unmeasured >= CONNECTIONS - u64::from(MEASURED), "{:?}", window.counts);
    let mut series = latency::measure::live::Series::new();
    series.add(&window);
    let found = latency::measure::live::caveats("service", &series, false);
    assert!(found.iter().any(|finding| finding.rule == "live-connections"), "{found:#?}");
    Ok(())
}

/// Tests a service with one request per minute.
fn one_request() -> Result<(), Failed> {
    let operator = Operator::new("watched-seldom", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let mut connection = BufReader::new(connect(&operator.lab, 11_211)?);
    let watch = operator
        .netpolicy(&["-o", "json", "watch", "--port", "11211", "--seconds", "3", "--sample", "900ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = watch.id();
    caught("an open window", || Ok((links(pid, &programs(pid)?)?.len() >= 4).then_some(())))?;
    std::thread::sleep(Duration::from_millis(100));
    let mut answer = String::new();
    connection.get_mut().write_all(b"get nothing\r\n")?;
    connection.read_line(&mut answer)?;
    let found: Value = serde_json::from_slice(&watch.wait_with_output()?.stdout)?;
    let rules = found["data"]["findings"].as_array().into_iter().flatten();
    let rules: Vec<&str> = rules.filter_map(|finding| finding["rule"].as_str()).collect();
    assert!(found["data"]["requests"].as_u64().is_some_and(|requests| requests <= 1), "{found}");
    assert!(rules.iter().any(|rule| ["live-few-requests", "live-nothing-arrived"].contains(rule)), "{found}");
    let p99 = found["data"]["response"].as_object().and_then(|response| response.get("p99"));
    assert_eq!(p99, Some(&Value::Null), "one request is too few for a p99: {found}");
    Ok(())
}

/// Tests a program with the same name in another namespace.
fn namesake() -> Result<(), Failed> {
    let operator = Operator::new("watched-namesake", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let other = Lab::new(&LabOptions::with_queues(1))?;
    let namesake = other.start_memcached(&MemcachedOptions::default())?;
    let before = operator.host()?;
    // Run the command without --netns, as in a shell on the server's host.
    let said = while_asked(&operator, || {
        let compare =
            operator.netpolicy_here(&["compare", "memcached", "--b", "defer50", "--max-seconds", "8"]);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", operator.lab.server_pid()));
        let output = command.arg(compare.get_program()).args(compare.get_args()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{said}");
        Ok(said)
    })?;
    assert!(said.contains("memcached also has processes in other network namespaces"), "{said}");
    assert!(!said.contains(&format!("memcached[{}]", namesake.process().pid)), "{said}");
    assert_eq!(operator.host()?, before);
    Ok(())
}

/// Tests a namespace that disappears when its last process exits.
fn namespace_goes() -> Result<(), Failed> {
    let operator = Operator::new("watched-namespace", 1)?;
    let other = Lab::new(&LabOptions::with_queues(1))?;
    let server = other.start_memcached(&MemcachedOptions::default())?;
    let there = format!("--netns=pid:{}", other.server_pid());
    let watch = operator
        .netpolicy_here(&[&there, "-o", "json", "watch", "--port", "11211", "--seconds", "60"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let pid = watch.id();
    let held = caught("an open window", || {
        let held = programs(pid)?;
        Ok((links(pid, &held)?.len() >= 4).then_some(held))
    })?;
    drop(server);
    drop(other);
    let output = watch.wait_with_output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("exited while it was watched"), "{words}");
    waited_for("the end of its programs: an attached program would add cost to every packet", || {
        Ok((!is_loaded(&held)).then_some(()))
    })?;
    Ok(())
}

/// Returns the ids of the BPF programs that a process holds.
pub(crate) fn programs(pid: u32) -> Result<BTreeSet<u32>, Failed> {
    Ok(held(pid, "prog_id:")?.into_iter().map(|(_, program)| program).collect())
}

/// Returns the ids of the BPF links by which a process has attached these programs, from the process's own
/// descriptors. Iterating over all links of the kernel would end early if another process closed one.
pub(crate) fn links(pid: u32, programs: &BTreeSet<u32>) -> Result<BTreeSet<u32>, Failed> {
    let links = held(pid, "link_id:")?.into_iter();
    Ok(links.filter_map(|(link, program)| programs.contains(&program).then_some(link)).collect())
}

/// Returns the values of a field in a process's descriptors of BPF objects, each with the id of its program.
fn held(pid: u32, field: &str) -> Result<Vec<(u32, u32)>, Failed> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let Ok(text) = std::fs::read_to_string(entry?.path()) else { continue };
        let read = |field: &str| text.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok());
        found.extend(read(field).zip(read("prog_id:")));
    }
    Ok(found)
}

/// Returns whether the kernel still has one of these programs.
pub(crate) fn is_loaded(programs: &BTreeSet<u32>) -> bool {
    programs.iter().any(|program| libbpf_rs::Program::fd_from_id(*program).is_ok())
}

fn killed() -> Result<(), Failed> {
    let operator = Operator::new("watched-killed", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let mut command = operator.netpolicy(&["watch", "memcached", "--sample", "1s"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut watch = Started { child };
    let pid = watch.child.id();
    let found = waited_for("the measurement's programs to be attached", || {
        let programs = programs(pid)?;
        Ok((links(pid, &programs)?.len() >= 4).then_some(programs))
    })?;
    watch.child.kill()?; // SIGKILL
    watch.child.wait()?;
    waited_for("the end of its programs", || Ok((!is_loaded(&found)).then_some(())))
}

fn refused() -> Result<(), Failed> {
    let operator = Operator::new("watched-refused", 1)?;
    let said = operator.runs(&["watch", "--port", "9", "--seconds", "1"], 1)?;
    assert!(said.words.contains("no process listens on port 9"), "{}", said.words);
    let said = operator.runs(&["watch", "no-such-service", "--seconds", "1"], 1)?;
    assert!(said.words.contains("no process called `no-such-service` is running"), "{}", said.words);
    let said = operator.runs(&["watch", "--unit", "no-such-unit", "--seconds", "1"], 1)?;
    assert!(said.words.contains("has no running process"), "{}", said.words);
    let own = std::process::id().to_string();
    let said = operator.runs(&["watch", "--pid", &own, "--seconds", "1"], 1)?;
    assert!(said.words.contains("listens on no TCP or UDP port"), "{}", said.words);
    operator.runs(&["watch"], 2)?;
    operator.runs(&["watch", "--port", "0"], 2)?;
    operator.runs(&["watch", "--port", "80", "--pid", "1"], 2)?;
    let said = operator.runs(&["watch", "--port", "80", "--sample", "2s"], 2)?;
    assert!(said.words.contains("of each second"), "{}", said.words);
    Ok(())
}

fn unprivileged() -> Result<(), Failed> {
    let operator = Operator::new("watched-nobody", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let said = operator.runs_as_nobody(&["watch", "--port", "11211", "--seconds", "1"], 1)?;
    assert!(said.words.contains("run netpolicy as root"), "{}", said.words);
    Ok(())
}

/// Simulates a kernel without BTF: mounts an empty directory over `/sys/kernel/btf`, only for the command.
fn without_btf() -> Result<(), Failed> {
    let operator = Operator::new("watched-btf", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let arguments = ["watch", "--port", "11211", "--seconds", "1"];
    let btf = std::path::Path::new("/sys/kernel/btf");
    let output = operator.netpolicy_with_little_space(btf, 4, &arguments).output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{words}");
    assert!(words.contains("CONFIG_DEBUG_INFO_BTF"), "{words}");
    Ok(())
}

fn failed(fault: Fault) -> Failed {
    fault.cause.to_string().into()
}

/// Creates a sampler for a service that listens on a port of the lab's server. The test ends each window.
fn sampler(lab: &Lab, port: u16, process: ProcessId) -> Result<Sampler, Failed> {
    let ports = LiveTarget::of(lab.server().id(), vec![port]);
    Sampler::of_ports(&ports, vec![process], Duration::ZERO).map_err(failed)
}

/// Tests kernel threads that start and stop between windows of the same measurement because the setting
/// changes, as in a comparison.
fn begin_to_poll() -> Result<(), Failed> {
    const REQUESTS: usize = 4_000;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    let port = server.address().port();
    let host = linux::observe(lab.server(), &linux::Processes::None)?;
    let mut queues = host.devices.iter().flat_map(|device| &device.rx_queues);
    let queue = queues.find(|queue| queue.napi.is_some()).ok_or("a queue with a NAPI")?.id;
    let mut connections = Vec::new();
    for _ in 0..8 {
        connections.push(BufReader::new(connect(&lab, port)?));
    }
    let process = linux::process::identify(server.process().pid)?;
    let mut sampler = sampler(&lab, port, process)?;
    let mut window = |threaded: Threading| -> Result<_, Failed> {
        linux::Kernel::new().write(&[Setting::Napi(queue, NapiKnob::Threaded(threaded))])?;
        sampler.begin().map_err(failed)?;
        std::thread::sleep(Duration::from_nanos(LiveMeter::GUARD.0));
        for request in 0..REQUESTS {
            let connection = &mut connections[request % 8];
            connection.get_mut().write_all(b"get nothing\r\n")?;
            let mut answer = String::new();
            connection.read_line(&mut answer)?;
            assert_eq!(answer, "END\r\n");
        }
        let sample = sampler.end().map_err(failed)?;
        Ok((sample.window.counts.threaded, sample.usage.ok_or("the server runs")?))
    };
    window(Threading::Off)?;
    for _ in 0..2 {
        let (polled, interrupted) = window(Threading::Off)?;
        assert_eq!((polled, interrupted.kthreads), (0, Nanoseconds::ZERO));
        let softirq = interrupted.softirq.ok_or("softirqs are counted")?;
        let (polled, threaded) = window(Threading::On)?;
        assert!(polled > 0, "{threaded:?}");
        // The thread does the work of the softirq, so the CPU time moves from the softirq figure to the
        // thread figure.
        assert!(threaded.kthreads.0 * 2 > softirq.0, "{threaded:?} instead of {interrupted:?}");
        assert!(threaded.softirq.is_some_and(|left| left.0 * 4 < softirq.0), "{threaded:?}, {interrupted:?}");
    }
    Ok(())
}

/// Tests a server with a process per connection, one that passes its connection to another process, and one
/// that is killed.
fn forked() -> Result<(), Failed> {
    const PORT: u16 = 7_073;
    const CONNECTIONS: usize = 60;
    /// The number of ticks per second in the CPU times of processes.
    const TICKS_A_SECOND: f64 = 100.0;
    let scratch = Scratch::new("forking-server")?;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let mut command = Command::new(scratch.compile("forking_server", &[])?);
    command.args([SERVER_ADDRESS.to_string(), PORT.to_string()]);
    let server = lab.start_program(command, PORT)?;
    let pid = server.process().pid;
    let ask = |connection: &mut BufReader<TcpStream>, line: &[u8]| -> Result<(), Failed> {
        connection.get_mut().write_all(line)?;
        let mut answer = String::new();
        connection.read_line(&mut answer)?;
        assert_eq!(answer, "done\n");
        Ok(())
    };
    // The meter must also follow a child that existed before the measurement.
    let mut old = BufReader::new(connect(&lab, PORT)?);
    ask(&mut old, b"work\n")?;
    let mut sampler = sampler(&lab, PORT, linux::process::identify(pid)?)?;
    let began = ticks_of(pid)?;
    sampler.begin().map_err(failed)?;
    for number in 0..CONNECTIONS {
        let mut connection = BufReader::new(connect(&lab, PORT)?);
        let lines: &[&[u8]] = match number % 3 {
            0 => &[b"work\n", b"work\n"],
            1 => &[b"work\n", b"reload\n", b"work\n"],
            _ => &[b"work\n", b"die\n"],
        };
        for line in lines {
            ask(&mut connection, line)?;
        }
    }
    ask(&mut old, b"work\n")?;
    drop(old);
    eventually("the parent has waited for all its children", || {
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.is_empty().then_some(())
    })?;
    // The kernel frees an exited process only after an RCU grace period.
    std::thread::sleep(Duration::from_millis(300));
    let usage = sampler.end().map_err(failed)?.usage.ok_or("the server runs")?;
    let spent = ticks_of(pid)?.abs_diff(began);
    #[expect(clippy::cast_precision_loss, reason = "the number of ticks, and nanoseconds of seconds")]
    let (counted, spent) = (usage.service.0 as f64 / 1e9, spent as f64 / TICKS_A_SECOND);
    assert!(spent > 1.3, "141 lines take ten milliseconds each: {spent} s");
    // The kernel rounds each of the four sums down, and the first child wrote its first line before the
    // measurement.
    assert!((counted - spent).abs() < 0.03 * spent + 0.03, "{counted} s of {spent} s: {usage:?}");
    assert!(usage.switches >= 141, "the parent waits for the result of each line: {usage:?}");
    Ok(())
}

/// Returns the user and system time, in ticks, of a process and of the children that it has waited for.
fn ticks_of(pid: Pid) -> Result<u64, Failed> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("a name in brackets")?;
    // Kernel: 6.18, `fs/proc/array.c` `do_task_stat()`: utime is field 14, the state is field 3.
    fields.split_whitespace().skip(11).take(4).map(|ticks| Ok(ticks.parse::<u64>()?)).sum()
}
