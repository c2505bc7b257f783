//! Tests services that answer datagrams: DNS servers under dnsperf, and servers that leave some datagrams
//! unanswered.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use latency::measure::live::{Series, Summary, caveats};
use libtest_mimic::{Failed, Trial};
use linux::bpf::live::{LiveMeter, LiveTarget};
use linux::lab::{
    CLIENT_ADDRESS, CLIENT_DEVICE, Lab, LabOptions, SERVER_ADDRESS, SERVER_DEVICE, ServerProgram,
};
use model::live::{LiveWindow, ServicePorts};
use serde_json::Value;
use testkit::dns::{Captures, PORT, dnsperf, unbound};
use testkit::operator::{Operator, Started, caught, flushes, waited_for};
use testkit::scratch::Scratch;
use testkit::{Need, repeated, test};

use crate::guarded::judged;
use crate::tuned::badly_set;

pub(crate) fn tests() -> Vec<Trial> {
    const UNBOUND: &[Need] = &[Need::Root, Need::Bpf, Need::Program("unbound"), Need::Program("dnsperf")];
    const KNOT: &[Need] = &[Need::Root, Need::Bpf, Need::Program("knotd"), Need::Program("dnsperf")];
    const WIRE: &[Need] = &[
        Need::Root,
        Need::Bpf,
        Need::Program("unbound"),
        Need::Program("dnsperf"),
        Need::Program("tcpdump"),
    ];
    const PYTHON: &[Need] = &[Need::Root, Need::Bpf, Need::Python];
    vec![
        test("dns/each_query_of_dnsperf_is_paired_with_its_answer", UNBOUND, || {
            all_queries(|lab, _| unbound(lab))
        }),
        test("dns/also_where_workers_share_a_port_and_receive_many_at_once", KNOT, || all_queries(knot)),
        test("dns/the_wire_says_the_same", WIRE, repeated(on_the_wire)),
        test("dns/queries_over_ipv6_are_paired", UNBOUND, over_ipv6),
        test("dns/answers_in_another_order_are_paired_by_id", PYTHON, in_another_order),
        test("dns/a_question_without_an_answer_is_counted", PYTHON, unanswered),
        test("dns/datagrams_without_ids_are_paired_in_order", PYTHON, in_order),
        test("dns/more_outstanding_datagrams_than_are_paired_are_reported", PYTHON, too_many),
        test("dns/a_full_socket_buffer_is_reported", PYTHON, full),
        test("dns/a_dropped_datagram_does_not_shift_the_answers_of_its_peer", PYTHON, after_a_drop),
        test("dns/each_answer_of_a_service_that_sends_by_two_devices_is_seen", PYTHON, by_two_devices),
        test("dns/quic_is_named_with_what_is_known", PYTHON, quic),
        test("dns/single_datagrams_of_other_protocols_change_nothing_for_long", PYTHON, others),
        test("dns/a_service_that_answers_some_datagrams_is_named", PYTHON, some),
        test("dns/a_service_that_answers_each_datagram_again_is_measured_again", PYTHON, each_again),
        test("dns/datagrams_that_are_forwarded_are_not_the_services", PYTHON, forwarded),
        test("dns/a_guard_reverts_what_delays_answers_and_keeps_what_does_not", UNBOUND, guarded),
        test("dns/a_server_that_stalls_under_guard_gets_its_settings_back", UNBOUND, stalled),
        test("dns/compare_and_tune_find_the_better_setting", UNBOUND, repeated(tuned)),
        test("dns/compare_guard_and_tune_name_quic", PYTHON, quic_is_refused),
        test("dns/compare_judges_tcp_requests_beside_more_quic_datagrams", PYTHON, quic_beside_tcp),
    ]
}

/// Starts knot with two workers that share the port and use recvmmsg() and sendmmsg().
fn knot(lab: &Lab, at: &Path) -> Result<ServerProgram, Failed> {
    std::fs::write(
        at.join("example.zone"),
        "@ 60 SOA a.example. b.example. 1 1 1 1 1\n@ 60 NS a.example.\na 60 A 192.0.2.1\n",
    )?;
    let at = at.display();
    let text = format!(
        "server:\n  rundir: {at}\n  listen: {SERVER_ADDRESS}@{PORT}\n  udp-workers: 2\n  tcp-workers: 1\n  background-workers: 1\n\
         database:\n  storage: {at}\n\
         zone:\n  - domain: example\n    storage: {at}\n    file: example.zone\n"
    );
    let file = format!("{at}/knot.conf");
    std::fs::write(&file, text)?;
    let mut command = Command::new("knotd");
    command.arg("-c").arg(file);
    Ok(lab.start_program(command, PORT)?)
}

/// Starts a server in Python. For each datagram, it runs `answer` with `data`, the sender `peer`, the socket
/// `u` and the datagram's number `n`.
fn python(lab: &Lab, answer: &str) -> Result<ServerProgram, Failed> {
    const SERVER: &str = "import socket, threading, time\n\
        u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('0.0.0.0', @PORT@))\n\
        t = socket.socket(); t.setsockopt(1, socket.SO_REUSEADDR, 1); t.bind(('0.0.0.0', @PORT@)); t.listen(8)\n\
        def answers(c):\n    while data := c.recv(2048): c.send(data)\n\
        def listens():\n    while True: threading.Thread(target=answers, args=t.accept()[:1], daemon=True).start()\n\
        threading.Thread(target=listens, daemon=True).start()\n\
        n, kept = 0, []\n\
        while True:\n    data, peer = u.recvfrom(2048); n += 1\n    @ANSWER@\n";
    let text = SERVER.replace("@PORT@", &PORT.to_string()).replace("@ANSWER@", answer);
    let mut command = Command::new("python3");
    command.args(["-c", &text]);
    Ok(lab.start_program(command, PORT)?)
}

fn runs_on_client(lab: &Lab, mut command: Command) -> Result<String, Failed> {
    let output = lab.client().run(|| command.output())??;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn udp() -> ServicePorts {
    ServicePorts { tcp: vec![PORT], udp: vec![PORT] }
}

/// Loads a meter and calls `ask` in a first window, so that the meter learns the service's address.
fn meter(lab: &Lab, ask: impl FnOnce() -> Result<(), Failed>) -> Result<LiveMeter, Failed> {
    let mut meter = LiveMeter::load(&LiveTarget::of(lab.server().id(), udp()))?;
    window(&mut meter, ask)?;
    Ok(meter)
}

fn window(meter: &mut LiveMeter, body: impl FnOnce() -> Result<(), Failed>) -> Result<LiveWindow, Failed> {
    meter.begin()?;
    std::thread::sleep(Duration::from_nanos(LiveMeter::GUARD.0));
    body()?;
    Ok(meter.end()?)
}

fn rules(window: &LiveWindow) -> Vec<String> {
    let mut series = Series::new();
    series.add(window);
    caveats("service", &series, false).into_iter().map(|finding| finding.rule).collect()
}

fn client(lab: &Lab) -> Result<UdpSocket, Failed> {
    let socket = lab.client().run(|| UdpSocket::bind((CLIENT_ADDRESS, 0)))??;
    socket.connect((SERVER_ADDRESS, PORT))?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(socket)
}

fn ask(socket: &UdpSocket, datagram: &[u8]) -> Result<Vec<u8>, Failed> {
    let mut bytes = vec![0; 512];
    socket.send(datagram)?;
    let length = socket.recv(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Returns a query for the root's name servers.
fn query(id: u16) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    vec![high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1]
}

fn all_queries(server: fn(&Lab, &Path) -> Result<ServerProgram, Failed>) -> Result<(), Failed> {
    /// How often dnsperf repeats the file of two questions.
    const ROUNDS: &str = "2000";
    let lab = Lab::new(&LabOptions::with_queues(2))?;
    // knot drops its capabilities and can then no longer enter the lab's scratch directory, so use a separate
    // one.
    let scratch = Scratch::new("dns")?;
    let _server = server(&lab, scratch.directory())?;
    let asks = |rounds: &str| {
        let command = dnsperf(&lab, &SERVER_ADDRESS.to_string(), &["-n", rounds])?;
        let said = runs_on_client(&lab, command)?;
        assert!(said.contains("Queries lost:         0"), "{said}");
        Ok(())
    };
    let mut meter = meter(&lab, || asks("1"))?;
    let window = window(&mut meter, || asks(ROUNDS))?;
    let counts = window.counts;
    assert_eq!((counts.protocols.dns, counts.requests, counts.answered), (4_000, 4_000, 4_000), "{counts:?}");
    assert_eq!((counts.identified, counts.datagrams, counts.arrivals), (4_000, 4_000, 4_000), "{counts:?}");
    assert_eq!((counts.carried, counts.strays, counts.unpaired, counts.dropped), (0, 0, 0, 0), "{counts:?}");
    assert_eq!(
        counts.masked + counts.unmasked + counts.at_opening + counts.without_poll,
        4_000,
        "{counts:?}"
    );
    assert_eq!((window.waiting.requests, window.spans.residence.total()), (0, 4_000));
    let read = window.spans.service.total();
    assert!(read > 3_800, "{read} requests have a read time: {counts:?}");
    Ok(())
}

fn on_the_wire() -> Result<(), Failed> {
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let _server = unbound(&lab)?;
    let asks =
        |more: &[&str]| runs_on_client(&lab, dnsperf(&lab, &SERVER_ADDRESS.to_string(), more)?).map(drop);
    let mut meter = meter(&lab, || asks(&["-n", "1"]))?;
    let captures = Captures::start(&lab)?;
    let window = window(&mut meter, || asks(&["-n", "3000", "-Q", "3000"]))?;
    assert_eq!(window.counts.requests, 6_000, "{:?}", window.counts);
    let wire = captures.response_times(6_000)?;
    let mut series = Series::new();
    series.add(&window);
    let summary = Summary::of(&series, Vec::new());
    let (p50, p90) = (summary.uniform.p50.ok_or("p50")?, summary.uniform.p90.ok_or("p90")?);
    for (here, there) in [(p50, wire[wire.len() / 2]), (p90, wire[wire.len() * 9 / 10])] {
        #[expect(clippy::cast_precision_loss, reason = "spans of milliseconds")]
        let (here, there) = (here.interval.estimate, there as f64);
        // The time on the wire includes some microseconds in parts of the network stack that the hooks do not
        // cover.
        assert!(
            (here - there).abs() <= there * 0.25 + 10_000.0,
            "{here} ns measured by netpolicy, {there} ns on the wire"
        );
    }
    Ok(())
}

fn over_ipv6() -> Result<(), Failed> {
    let operator = Operator::new("dns-ipv6", 1)?;
    operator.inside(&format!("ip addr add fd00:53::1/64 dev {SERVER_DEVICE} nodad"))?;
    let mut add = Command::new("ip");
    add.args(["addr", "add", "fd00:53::2/64", "dev", CLIENT_DEVICE, "nodad"]);
    runs_on_client(&operator.lab, add)?;
    let _server = unbound(&operator.lab)?;
    let asks = |rounds: &str| {
        runs_on_client(&operator.lab, dnsperf(&operator.lab, "fd00:53::1", &["-n", rounds])?).map(drop)
    };
    let mut meter = meter(&operator.lab, || asks("1"))?;
    let counts = window(&mut meter, || asks("500"))?.counts;
    assert_eq!((counts.protocols.dns, counts.answered, counts.carried), (1_000, 1_000, 0), "{counts:?}");
    Ok(())
}

fn in_another_order() -> Result<(), Failed> {
    const EARLY: u64 = 20;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    // The server answers the first of every two questions after the second, and late.
    let answers = "kept.append((data, peer))\n    if len(kept) == 2:\n        \
        for late, (data, peer) in enumerate(reversed(kept)):\n            \
            time.sleep(0.02 * late); u.sendto(data[:2] + b'\\x81' + data[3:], peer)\n        \
        kept.clear()";
    let _server = python(&lab, answers)?;
    let socket = client(&lab)?;
    let ask_two = |id: u16| -> Result<(), Failed> {
        socket.send(&query(id))?;
        ask(&socket, &query(id + 1))?;
        socket.recv(&mut [0; 512])?;
        Ok(())
    };
    let mut meter = meter(&lab, || ask_two(1))?;
    let window = window(&mut meter, || (0..EARLY).try_for_each(|at| ask_two(u16::try_from(100 + 2 * at)?)))?;
    let counts = window.counts;
    assert_eq!((counts.protocols.dns, counts.untimed), (2 * EARLY, 0), "{counts:?}");
    let late: u64 = window.spans.residence.buckets()
        [model::SpanCounts::bucket_of(model::Nanoseconds::from_millis(19))..]
        .iter()
        .sum();
    assert!((EARLY..EARLY + 5).contains(&late), "{late} of {} took 20 ms", 2 * EARLY);
    Ok(())
}

fn unanswered() -> Result<(), Failed> {
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let _server = python(&lab, "if n % 10: u.sendto(data[:2] + b'\\x81' + data[3:], peer)")?;
    let socket = client(&lab)?;
    let mut meter = meter(&lab, || ask(&socket, &query(1)).map(drop))?;
    let window = window(&mut meter, || {
        // The server does not answer ten of these datagrams.
        for id in 2..=100_u16 {
            socket.send(&query(id))?;
            if id % 10 > 0 {
                socket.recv(&mut [0; 512])?;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    })?;
    let counts = window.counts;
    assert_eq!((counts.identified, counts.answered, counts.unanswered), (99, 89, 10), "{counts:?}");
    assert_eq!((window.waiting.requests, window.waiting.ages.total()), (10, 10));
    assert!(window.waiting.oldest.is_some_and(|oldest| oldest >= LiveMeter::UNANSWERED));
    assert!(rules(&window).contains(&"live-unanswered".to_owned()), "{:?}", rules(&window));
    Ok(())
}

fn in_order() -> Result<(), Failed> {
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let _server = python(&lab, "u.sendto(data, peer)")?;
    let sockets = [client(&lab)?, client(&lab)?];
    let mut meter = meter(&lab, || ask(&sockets[0], b"?").map(drop))?;
    let window = window(&mut meter, || {
        for _ in 0..100 {
            ask(&sockets[0], b"?")?;
            // At most eight requests of one peer may be outstanding.
            for _ in 0..4 {
                sockets[1].send(b"a longer datagram without an id")?;
            }
            for _ in 0..4 {
                sockets[1].recv(&mut [0; 512])?;
            }
        }
        Ok(())
    })?;
    let counts = window.counts;
    assert_eq!((counts.protocols.udp, counts.answered, counts.datagrams), (500, 500, 500), "{counts:?}");
    assert_eq!(
        (counts.untimed, counts.strays, counts.overflown, counts.unpaired),
        (0, 0, 0, 0),
        "{counts:?}"
    );
    assert_eq!((window.spans.residence.total(), window.spans.wakeup.total()), (500, 500));
    Ok(())
}

fn too_many() -> Result<(), Failed> {
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let _server = python(&lab, "time.sleep(0.0002); u.sendto(data, peer)")?;
    let socket = client(&lab)?;
    let mut meter = meter(&lab, || ask(&socket, b"?").map(drop))?;
    let window = window(&mut meter, || {
        for _ in 0..40 {
            socket.send(b"?")?;
        }
        (0..40).try_for_each(|_| socket.recv(&mut [0; 512]).map(drop))?;
        Ok(())
    })?;
    assert!(window.counts.overflown > 0, "{:?}", window.counts);
    assert!(rules(&window).contains(&"live-pipelined".to_owned()), "{:?}", rules(&window));
    Ok(())
}

fn full() -> Result<(), Failed> {
    const SENT: u64 = 2_000;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let _server =
        python(&lab, "time.sleep(0.2 if n == 2 else 0); u.sendto(data[:2] + b'\\x81' + data[3:], peer)")?;
    let socket = client(&lab)?;
    let mut meter = meter(&lab, || ask(&socket, &query(1)).map(drop))?;
    let window = window(&mut meter, || {
        (2..SENT + 2)
            .try_for_each(|id| socket.send(&query(u16::try_from(id)?)).map(drop).map_err(Failed::from))?;
        std::thread::sleep(Duration::from_millis(600));
        Ok(())
    })?;
    let counts = window.counts;
    assert!(counts.dropped > 0, "{counts:?}");
    assert_eq!(counts.identified, counts.datagrams + counts.dropped, "{counts:?}");
    assert_eq!(counts.answered + window.waiting.requests, counts.identified, "{counts:?}");
    assert!(rules(&window).contains(&"live-datagrams-dropped".to_owned()), "{:?}", rules(&window));
    Ok(())
}

fn after_a_drop() -> Result<(), Failed> {
    const LATER: u64 = 40;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    // Set SO_RCVBUF so that only a few of the long datagrams fit while the server sleeps.
    let answers =
        "u.setsockopt(1, 8, 3000); time.sleep(0.1 if data == b'sleep' else 0); u.sendto(data, peer)";
    let _server = python(&lab, answers)?;
    let sockets = [client(&lab)?, client(&lab)?];
    let mut meter = meter(&lab, || ask(&sockets[0], b"?").map(drop))?;
    let mut answered = 0;
    let window = window(&mut meter, || {
        sockets[0].send(b"sleep")?;
        std::thread::sleep(Duration::from_millis(20));
        (0..7).try_for_each(|_| sockets[1].send(&[7; 1_000]).map(drop))?;
        sockets[0].recv(&mut [0; 512])?;
        sockets[1].set_read_timeout(Some(Duration::from_millis(200)))?;
        while sockets[1].recv(&mut [0; 2_000]).is_ok() {
            answered += 1;
        }
        (0..LATER).try_for_each(|_| {
            std::thread::sleep(Duration::from_millis(5));
            ask(&sockets[1], b"a short one").map(drop)
        })
    })?;
    let counts = window.counts;
    assert!(counts.dropped > 0 && counts.discarded == counts.dropped, "{counts:?}");
    assert_eq!(
        counts.arrivals,
        8 + LATER,
        "also those whose packet has the address of a dropped one: {counts:?}"
    );
    assert_eq!((counts.protocols.udp, counts.strays), (1 + answered + LATER, 0), "{counts:?}");
    assert_eq!(window.waiting.requests, 0, "{counts:?}");
    let late: u64 = window.spans.residence.buckets()
        [model::SpanCounts::bucket_of(model::Nanoseconds::from_millis(4))..]
        .iter()
        .sum();
    assert!(late <= 1 + answered + LATER / 4, "{late} took as long as the client's pauses: {counts:?}");
    Ok(())
}

fn by_two_devices() -> Result<(), Failed> {
    // Too few requests to tell whether the service answers each datagram.
    const REQUESTS: u64 = 20;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    // The loopback device frees a packet to a full socket immediately, so the answer reuses the memory
    // address of that packet.
    let fills = "kept or kept.extend([socket.socket(2, 2)]) or kept[0].setsockopt(1, 8, 1) or kept[0].bind(('127.0.0.2', 9))";
    let answers = format!("{fills}; u.sendto(bytes(900), ('127.0.0.2', 9)); u.sendto(data, peer)");
    let _server = python(&lab, &answers)?;
    let socket = client(&lab)?;
    let mut meter = meter(&lab, || ask(&socket, b"?").map(drop))?;
    let asks = || (0..REQUESTS).try_for_each(|_| ask(&socket, b"?").map(drop));
    let counts = window(&mut meter, asks)?.counts;
    // The first datagrams to the other port count as answers to requests from before the window; subtract
    // them.
    let answered = counts.answered - counts.carried;
    assert_eq!((answered, counts.sends), (REQUESTS, 2 * REQUESTS), "{counts:?}");
    Ok(())
}

/// Runs `watch` while the client repeats `ask`, and returns the report.
fn watched(operator: &Operator, mut ask: impl FnMut() -> Result<(), Failed>) -> Result<Value, Failed> {
    let mut command = operator.netpolicy(&[
        "-o",
        "json",
        "watch",
        "--port",
        &PORT.to_string(),
        "--seconds",
        "3",
        "--sample",
        "1s",
    ]);
    let mut child: Child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    while child.try_wait()?.is_none() {
        ask()?;
    }
    let output = child.wait_with_output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn finding<'a>(report: &'a Value, rule: &str) -> Option<&'a Value> {
    report["data"]["findings"].as_array()?.iter().find(|finding| finding["rule"] == rule)
}

fn quic() -> Result<(), Failed> {
    let operator = Operator::new("dns-quic", 1)?;
    // Answer each request with three datagrams, as a server does for a web page.
    let _server = python(&operator.lab, "for _ in range(3): u.sendto(b'\\x40' + bytes(40), peer)")?;
    let socket = client(&operator.lab)?;
    let report = watched(&operator, || {
        // The packets after the Initial packet have a short header.
        for datagram in [initial(), vec![0x41; 40], vec![0x41; 40]] {
            socket.send(&datagram)?;
            (0..3).try_for_each(|_| socket.recv(&mut [0; 512]).map(drop))?;
        }
        Ok(())
    })?;
    let data = &report["data"];
    let found = finding(&report, "live-datagrams-unpaired").ok_or_else(|| format!("{report}"))?;
    assert!(found["summary"].as_str().is_some_and(|words| words.contains("QUIC")), "{found}");
    assert!(data["counts"]["quic"].as_u64() > Some(100), "{data}");
    assert_eq!(data["response"]["p50"], Value::Null, "{data}");
    assert!(data["wakeup"]["p50"]["estimate"].as_f64() > Some(0.0), "{data}");
    assert!(data["cost"]["datagrams_per_switch"].as_f64() > Some(0.0), "{data}");
    Ok(())
}

/// Returns an Initial packet of QUIC version 1.
fn initial() -> Vec<u8> {
    [&[0xc3, 0, 0, 0, 1, 8][..], &[7; 60]].concat()
}

fn others() -> Result<(), Failed> {
    const LINE: &[u8] = b"a longer datagram without an id";
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let _server = python(&lab, "u.sendto(data, peer)")?;
    let socket = client(&lab)?;
    let asks = |rounds| (0..rounds).try_for_each(|_| ask(&socket, LINE).map(drop));
    let mut meter = meter(&lab, || asks(1))?;
    let counts = window(&mut meter, || {
        ask(&socket, b"\0\x05\0\0\0\x01\0\0get key\r\n")?;
        ask(&socket, &query(7))?;
        asks(100)
    })?;
    let counts = counts.counts;
    assert_eq!((counts.protocols.udp, counts.protocols.dns, counts.answered), (100, 1, 102), "{counts:?}");
    assert_eq!((counts.continued, counts.strays), (0, 0), "{counts:?}");
    let counts = window(&mut meter, || ask(&socket, &initial()).and_then(|_| asks(500)))?.counts;
    assert!(counts.quic > 0 && counts.protocols.udp > 300, "{counts:?}");
    let counts = window(&mut meter, || asks(100))?.counts;
    assert_eq!((counts.quic, counts.unpaired, counts.protocols.udp), (0, 0, 100), "{counts:?}");
    Ok(())
}

fn each_again() -> Result<(), Failed> {
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let _server = python(&lab, "if data == b'each' or n % 3 == 0: u.sendto(data, peer)")?;
    let socket = client(&lab)?;
    let asks = || (0..60).try_for_each(|_| ask(&socket, b"each").map(drop));
    let mut meter = meter(&lab, || ask(&socket, b"each").map(drop))?;
    let some = window(&mut meter, || {
        (0..90).try_for_each(|_| socket.send(b"line").map(drop))?;
        (0..30).try_for_each(|_| socket.recv(&mut [0; 512]).map(drop))?;
        Ok(())
    })?;
    assert_eq!((some.counts.unpaired, some.counts.requests), (90, 0), "{:?}", some.counts);
    let counts = window(&mut meter, asks)?.counts;
    assert_eq!((counts.unpaired, counts.requests), (60, 0), "it is not known yet: {counts:?}");
    let counts = window(&mut meter, asks)?.counts;
    assert_eq!((counts.unpaired, counts.protocols.udp, counts.untimed), (0, 60, 0), "{counts:?}");
    Ok(())
}

fn some() -> Result<(), Failed> {
    let operator = Operator::new("dns-some", 1)?;
    let _server = python(&operator.lab, "if n % 3 == 0: u.sendto(b'received', peer)")?;
    let socket = client(&operator.lab)?;
    let report = watched(&operator, || {
        (0..3).try_for_each(|_| socket.send(b"a line of a log").map(drop))?;
        socket.recv(&mut [0; 512])?;
        Ok(())
    })?;
    let data = &report["data"];
    let found = finding(&report, "live-datagrams-unpaired").ok_or_else(|| format!("{report}"))?;
    assert!(
        found["summary"].as_str().is_some_and(|words| words.contains("does not answer every")),
        "{found}"
    );
    assert_eq!((&data["response"]["p50"], &data["requests"]), (&Value::Null, &0.into()), "{data}");
    assert!(data["wakeup"]["p50"]["estimate"].as_f64() > Some(0.0), "{data}");
    Ok(())
}

/// The server's host forwards queries to another address.
fn forwarded() -> Result<(), Failed> {
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let _server = python(&lab, "u.sendto(data, peer)")?;
    let socket = client(&lab)?;
    let other = lab.client().run(|| UdpSocket::bind((CLIENT_ADDRESS, 0)))??;
    let mut route = Command::new("ip");
    route.args(["route", "add", "203.0.113.0/24", "via", &SERVER_ADDRESS.to_string()]);
    runs_on_client(&lab, route)?;
    let mut meter = meter(&lab, || ask(&socket, &query(1)).map(drop))?;
    let window = window(&mut meter, || {
        for id in 2..100_u16 {
            other.send_to(&query(id), ("203.0.113.53", PORT))?;
            ask(&socket, &query(id))?;
        }
        Ok(())
    })?;
    let counts = window.counts;
    assert_eq!((counts.identified, counts.answered, window.waiting.requests), (98, 98, 0), "{counts:?}");
    Ok(())
}

/// Returns the result of `body`, which runs while dnsperf sends a thousand queries per second.
fn while_queried<T>(operator: &Operator, body: impl FnOnce() -> Result<T, Failed>) -> Result<T, Failed> {
    let mut command = dnsperf(&operator.lab, &SERVER_ADDRESS.to_string(), &["-l", "600", "-Q", "1000"])?;
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let _client = Started { child: operator.lab.client().run(|| command.spawn())?? };
    body()
}

/// Returns a policy that makes packets wait for a timer of this length.
fn deferred(timer: &str) -> String {
    format!(
        "[service.names]\nmatch = {{ port = {PORT} }}\npolicy = \"none\"\ndelivery = \"defer50\"\n\
         defer_hard_irqs = 1\ngro_flush_timeout = \"{timer}\"\n"
    )
}

fn guarded() -> Result<(), Failed> {
    let operator = Operator::new("dns-guarded", 1)?;
    let _server = unbound(&operator.lab)?;
    let before = operator.devices()?.devices;
    let tried = |timer: &str, limits: &str| {
        operator.asks(&deferred(timer))?;
        judged(&operator, &["-o", "json", "try", "--guard", limits, "--seconds", "60"])
    };
    let (worse, harmless) = while_queried(&operator, || {
        Ok((
            tried("2ms", "p50=+20%,p90=+1000%,cpu=+1000%")?,
            tried("10us", "p50=+1000%,p90=+1000%,cpu=+1000%")?,
        ))
    })?;
    if let Some(report) = worse {
        assert_eq!((&report["kept"], &report["ruling"]), (&false.into(), &"beyond-limit".into()), "{report}");
        let p50 = &report["verdicts"][0]["changes"][0];
        assert!(p50["metric"] == "p50" && p50["change"].as_f64() > Some(0.2), "{report}");
    }
    if let Some(report) = harmless {
        assert_eq!((&report["kept"], &report["ruling"]), (&true.into(), &"kept".into()), "{report}");
        operator.runs(&["rollback"], 0)?;
    }
    assert_eq!(operator.devices()?.devices, before);
    Ok(())
}

fn stalled() -> Result<(), Failed> {
    let operator = Operator::new("dns-stalled", 1)?;
    let server = unbound(&operator.lab)?;
    operator.asks(&deferred("10us"))?;
    let before = operator.devices()?.devices;
    let pid =
        i32::try_from(server.process().pid.0).ok().and_then(rustix::process::Pid::from_raw).ok_or("pid")?;
    let code = while_queried(&operator, || {
        let limits = "p50=+1000%,p90=+1000%,cpu=+1000%";
        let mut trial = operator.starts(&["-o", "json", "try", "--guard", limits, "--seconds", "120"])?;
        caught("the change in force", || Ok((flushes(&operator.devices()?) == [10_000]).then_some(())))?;
        rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
        let ended = waited_for("the end of the trial", || Ok(trial.child.try_wait()?));
        rustix::process::kill_process(pid, rustix::process::Signal::CONT)?;
        Ok(ended?.code())
    })?;
    let said = operator.said()?;
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("\"ruling\": \"stalled\"") || said.contains("\"ruling\":\"stalled\""), "{said}");
    assert_eq!(operator.devices()?.devices, before);
    Ok(())
}

fn tuned() -> Result<(), Failed> {
    let port = PORT.to_string();
    let operator = Operator::new("dns-tuned", 1)?;
    let _server = unbound(&operator.lab)?;
    let before = operator.devices()?.devices;
    while_queried(&operator, || {
        let compare = ["-o", "json", "compare", "--port", &port, "--b", "defer:2ms", "--seconds", "120"];
        let report: Value = serde_json::from_str(&operator.runs(&compare, 0)?.data)?;
        assert_eq!(report["data"]["comparisons"][0]["verdict"], "worse", "{report}");
        assert_eq!(operator.devices()?.devices, before);
        let tune = ["-o", "json", "tune", "--port", &port, "--goal", "p50", "--only", "--seconds", "150"];
        let candidates = ["--candidate", "defer:2ms", "--candidate", "defer:4ms"];
        let report: Value =
            serde_json::from_str(&operator.runs(&[&tune[..], &candidates].concat(), 0)?.data)?;
        assert_eq!(report["data"]["winner"], Value::Null, "nothing helps: {report}");
        assert_eq!(operator.devices()?.devices, before);
        badly_set(&operator)?;
        let badly = operator.devices()?.devices;
        let candidates = ["--candidate", "defer20", "--candidate", "defer:4ms", "--guard", "p99=+50%"];
        let report: Value =
            serde_json::from_str(&operator.runs(&[&tune[..], &candidates].concat(), 0)?.data)?;
        assert_eq!(report["data"]["winner"]["candidate"], "defer20", "{report}");
        assert_eq!(operator.devices()?.devices, badly);
        Ok(())
    })
}

fn quic_is_refused() -> Result<(), Failed> {
    let port = PORT.to_string();
    let operator = Operator::new("dns-quic-refused", 1)?;
    let _server = python(&operator.lab, "u.sendto(b'\\x40' + bytes(40), peer)")?;
    operator.asks(&deferred("10us"))?;
    let before = operator.devices()?.devices;
    let socket = client(&operator.lab)?;
    let compare = ["compare", "--port", &port, "--b", "defer50"];
    let guard = ["try", "--guard", "p50=+20%", "--seconds", "20"];
    let tune = ["tune", "--port", &port, "--goal", "p50", "--only", "--candidate", "defer50"];
    let preview = [&compare[..], &["--dry-run"]].concat();
    let without_preview = [&preview[..], &["--seconds", "10"]].concat(); // too short for eleven windows
    for arguments in [&compare[..], &preview, &without_preview, &guard, &tune] {
        let mut command = operator.netpolicy(arguments);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        while child.try_wait()?.is_none() {
            ask(&socket, &initial())?;
            std::thread::sleep(Duration::from_millis(2));
        }
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{said}");
        assert!(said.contains("speaks QUIC") && said.contains("watch shows what is known"), "{said}");
        assert_eq!(operator.devices()?.devices, before);
    }
    Ok(())
}

/// The full windows have enough requests over TCP. The shorter windows of the preview have too few.
fn quic_beside_tcp() -> Result<(), Failed> {
    let port = PORT.to_string();
    let operator = Operator::new("dns-quic-beside-tcp", 1)?;
    let _server = python(&operator.lab, "u.sendto(b'\\x40' + bytes(40), peer)")?;
    let socket = client(&operator.lab)?;
    let mut stream = operator.lab.client().run(|| TcpStream::connect((SERVER_ADDRESS, PORT)))??;
    let scratch = Scratch::new("dns-quic-beside-tcp")?;
    let record = scratch.path("rounds.jsonl");
    let compare = ["compare", "--port", &port, "--b", "defer50", "--seconds", "60", "--record"];
    let mut command = operator.netpolicy(&compare);
    let mut child = command.arg(&record).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let rounds = || std::fs::read_to_string(&record).map_or(0, |lines| lines.lines().skip(1).count());
    let mut datagrams = 0;
    while child.try_wait()?.is_none() && rounds() == 0 {
        ask(&socket, &initial())?;
        datagrams += 1;
        if datagrams % 3 == 0 {
            stream.write_all(b"a request")?;
            stream.read_exact(&mut [0; 9])?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Some(pid) = rustix::process::Pid::from_raw(i32::try_from(child.id())?)
        && child.try_wait()?.is_none()
    {
        rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
    }
    let said = String::from_utf8_lossy(&child.wait_with_output()?.stderr).into_owned();
    assert!(rounds() > 0 && !said.contains("QUIC"), "{said}");
    Ok(())
}
