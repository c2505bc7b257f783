//! Tests the measurement of real servers' request latency from outside, while they receive requests in a lab.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use apply::Knobs;
use bpf::live::{AnswerHook, LiveMeter, LiveTarget};
use bpf::wire::WireMeter;
use libtest_mimic::{Failed, Trial};
use linux::Netns;
use linux::lab::{Lab, LabOptions, MemcachedOptions, SERVER_ADDRESS};
use model::live::LiveWindow;
use model::{EmptyPolls, EpollParams, Nanoseconds, NapiKnob, Pid, Setting, SpanCounts, Threading};
use rustix::process::{Signal, kill_process};
use testkit::scratch::Scratch;
use testkit::subject::{Subject, eventually};
use testkit::{Need, test};

use super::delivery::programs_of;

/// How long a test's server waits for a client that may have failed.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn tests() -> Vec<Trial> {
    const ASKED: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    const BPF: &[Need] = &[Need::Root, Need::Bpf];
    vec![
        test("live/every_request_to_memcached_is_counted_once", ASKED, each_once),
        test("live/the_hook_of_older_kernels_sees_the_same_requests", ASKED, older),
        test(
            "live/every_request_to_a_server_by_io_uring_is_counted_once",
            &[Need::Root, Need::Bpf, Need::Cc, Need::IoUring],
            by_uring,
        ),
        test(
            "live/a_request_that_comes_with_the_handshake_is_found_when_it_is_read",
            &[Need::Root, Need::Bpf, Need::Cc],
            with_the_handshake,
        ),
        test("live/a_client_that_stamps_in_microseconds_is_known_by_its_stamps", ASKED, stamped),
        test(
            "live/the_wake_up_of_a_thread_that_polls_is_seen",
            &[Need::Root, Need::Bpf, Need::Memcached, Need::ThreadPerNapi],
            woken,
        ),
        test(
            "live/the_stacks_time_is_not_taken_from_polls_of_the_application",
            &[Need::Root, Need::Bpf, Need::Memcached],
            suspended,
        ),
        test("live/requests_in_one_write_weigh_as_many_as_they_are", ASKED, pipelined),
        test("live/a_server_that_hangs_is_known_by_its_oldest_request", ASKED, hangs),
        test("live/a_request_that_is_answered_while_a_window_ends_does_not_hang", BPF, answered_at_the_end),
        test("live/a_request_of_five_seconds_takes_five_seconds", BPF, five_seconds),
        test("live/an_answer_without_a_request_is_unsolicited", BPF, unsolicited),
        test(
            "live/segments_that_the_network_loses_are_as_many_as_tcp_counts",
            &[Need::Root, Need::Bpf, Need::Memcached, Need::Program("iptables")],
            loses,
        ),
        test(
            "live/what_netem_loses_delays_and_reorders_is_seen_by_tcps_own_counts",
            &[Need::Root, Need::Bpf, Need::Memcached, Need::Netem],
            netem,
        ),
        test("live/receive_windows_that_close_are_counted_on_both_sides", BPF, windows_close),
        test("live/requests_over_ipv6_that_pass_no_napi_are_reported_as_such", BPF, without_napi),
        test("live/between_windows_and_after_a_kill_nothing_is_attached", BPF, leaves_nothing),
        test(
            "live/what_programs_that_stay_attached_see_between_windows_is_not_counted",
            ASKED,
            stays_attached,
        ),
    ]
}

/// Begins a window, and waits until it is open.
fn open(meter: &mut LiveMeter) -> Result<(), Failed> {
    meter.begin()?;
    std::thread::sleep(Duration::from_nanos(LiveMeter::GUARD.0));
    Ok(())
}

/// Returns a meter for one port in a namespace.
fn meter(netns: &Netns, port: u16, hook: AnswerHook) -> Result<LiveMeter, Failed> {
    Ok(LiveMeter::load_with(&LiveTarget::of(netns.id(), vec![port]), hook)?)
}

/// Opens a connection from the lab's client.
fn connect(lab: &Lab, port: u16) -> Result<TcpStream, Failed> {
    let address = SocketAddr::new(SERVER_ADDRESS.into(), port);
    let stream = lab.client().run(|| TcpStream::connect(address))??;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

/// Opens the connections for [`ask`].
fn connect_eight(lab: &Lab, port: u16) -> Result<Vec<BufReader<TcpStream>>, Failed> {
    (0..8).map(|_| Ok(BufReader::new(connect(lab, port)?))).collect()
}

/// Requests missing keys from memcached, one request at a time, on each connection in turn.
fn ask(connections: &mut [BufReader<TcpStream>], requests: usize) -> Result<(), Failed> {
    let mut answer = String::new();
    for request in 0..requests {
        let connection = &mut connections[request % 8];
        connection.get_mut().write_all(b"get nothing\r\n")?;
        answer.clear();
        connection.read_line(&mut answer)?;
        assert_eq!(answer, "END\r\n");
    }
    Ok(())
}

const REQUESTS: usize = 4_000;

/// Measures one window with [`REQUESTS`] requests; returns the window, the measurement on the wire, and the
/// server's threads.
fn window(hook: AnswerHook) -> Result<(LiveWindow, bpf::wire::WireCounts, Vec<Pid>), Failed> {
    window_of(&Lab::new(&LabOptions::with_queues(1))?, hook)
}

fn window_of(lab: &Lab, hook: AnswerHook) -> Result<(LiveWindow, bpf::wire::WireCounts, Vec<Pid>), Failed> {
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    let port = server.address().port();
    let mut connections = connect_eight(lab, port)?;
    let mut meter = meter(lab.server(), port, hook)?;
    let mut wire = WireMeter::load(port, lab.server().id(), lab.client().id())?;
    wire.begin()?;
    open(&mut meter)?;
    ask(&mut connections, REQUESTS)?;
    let window = meter.end()?;
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.process().pid))?.flatten();
    let threads = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok()).map(Pid);
    Ok((window, wire.end()?, threads.collect()))
}

fn each_once() -> Result<(), Failed> {
    let (window, wire, threads) = window(AnswerHook::of_this_kernel()?)?;
    let counts = window.counts;
    let all = u64::try_from(REQUESTS)?;
    assert_eq!((wire.requests, wire.answered), (all, all), "the capture has the requests");
    assert_eq!((counts.arrivals, counts.answered, counts.requests), (all, all, all), "{counts:?}");
    assert_eq!((counts.unsolicited, counts.overflown, counts.unmeasured), (0, 0, 0), "{counts:?}");
    assert_eq!(counts.without_napi, 0, "{counts:?}");
    assert!(counts.without_poll * 100 <= all, "{counts:?}");
    assert_eq!(window.spans.residence.total(), all);
    assert_eq!(window.waiting.requests, 0, "{:?}", window.waiting.oldest);
    assert_eq!(window.waiting.sockets, 8);
    let [(_, napi)] = &window.napis[..] else { panic!("one queue: {:?}", window.napis) };
    assert!(napi.polls.interrupt > 0 && napi.polls.application == 0, "{:?}", napi.polls);
    let by_workers: u64 = window.workers.iter().map(|(_, part)| part.requests).sum();
    assert_eq!(by_workers, all);
    let tid = window.workers[0].0.ok_or("the window names the thread")?;
    assert!(threads.contains(&tid), "thread {tid} is memcached's: {threads:?}");
    Ok(())
}

/// Tests that the first timestamps of a connection reveal their unit, and the offset of the connection's
/// clock from ours; all later timestamps show when requests arrived.
fn stamped() -> Result<(), Failed> {
    let hook = AnswerHook::of_this_kernel()?;
    let (without, ..) = window(hook)?;
    assert_eq!(without.counts.stamped, 0, "stamps in milliseconds: {:?}", without.counts);
    assert!(without.spans.stamped.is_empty());
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    assert!(lab.stamp_in_microseconds()?, "Linux 6.7 has it");
    let (window, wire, _) = window_of(&lab, hook)?;
    let counts = window.counts;
    assert_eq!(counts.answered, wire.answered, "{counts:?}");
    assert!(counts.stamped * 2 > counts.answered && counts.stamped < counts.answered, "{counts:?}");
    assert_eq!(window.spans.stamped.total(), counts.stamped, "{counts:?}");
    Ok(())
}

/// Sends one request at a time: the NAPI's thread sleeps before each request, and the request's packet wakes
/// it.
fn woken() -> Result<(), Failed> {
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    let port = server.address().port();
    let host = linux::observe(lab.server(), &linux::Processes::None)?;
    let mut queues = host.devices.iter().flat_map(|device| &device.rx_queues);
    let queue = queues.find(|queue| queue.napi.is_some()).ok_or("a queue with a NAPI")?.id;
    linux::Kernel::new().write(&[Setting::Napi(queue, NapiKnob::Threaded(Threading::On))])?;
    let mut connections = connect_eight(&lab, port)?;
    let mut meter = meter(lab.server(), port, AnswerHook::of_this_kernel()?)?;
    open(&mut meter)?;
    ask(&mut connections, 500)?;
    let first = meter.end()?.counts;
    assert_eq!(first.woken, 0, "the first window shows that a thread polls: {first:?}");
    open(&mut meter)?;
    ask(&mut connections, REQUESTS)?;
    let counts = meter.end()?.counts;
    assert_eq!(counts.answered, u64::try_from(REQUESTS)?, "{counts:?}");
    assert!(counts.threaded * 10 >= counts.answered * 9, "{counts:?}");
    assert!(counts.woken * 10 >= counts.threaded * 8, "{counts:?}");
    Ok(())
}

/// Tests an application that polls outside softirqs, long after the last softirq began.
fn suspended() -> Result<(), Failed> {
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    let port = server.address().port();
    let mut connections = Vec::new();
    for _ in 0..8 {
        connections.push(connect(&lab, port)?);
    }
    let host = linux::observe(lab.server(), &linux::Processes::Only(vec![server.process().pid]))?;
    let mut queues = host.devices.iter().flat_map(|device| &device.rx_queues);
    let queue = queues.find(|queue| queue.napi.is_some()).ok_or("a queue with a NAPI")?.id;
    let settings = [
        Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(100))),
        Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds(20_000))),
        Setting::Napi(queue, NapiKnob::IrqSuspendTimeout(Nanoseconds::from_millis(20))),
    ];
    linux::Kernel::new().write(&settings)?;
    let busy =
        EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true, events_only: false };
    for process in &host.processes {
        for epoll in &process.epolls {
            linux::process::write_epoll(&epoll.id, busy)?;
        }
    }
    let mut meter = meter(lab.server(), port, AnswerHook::of_this_kernel()?)?;
    meter.begin_with_stack()?;
    std::thread::sleep(Duration::from_nanos(LiveMeter::GUARD.0));
    for request in 0..3 * REQUESTS {
        connections[request % 8].write_all(b"get nothing\r\n")?;
        std::thread::sleep(Duration::from_micros(50));
    }
    let window = meter.end()?;
    let [(_, napi)] = &window.napis[..] else { panic!("one queue: {:?}", window.napis) };
    assert!(napi.packets.application > 0, "{:?}", napi.packets);
    let receive = window.spans.receive.buckets();
    let (all, long) = (receive, &receive[SpanCounts::bucket_of(Nanoseconds(40_000))..]);
    let (all, long) = (all.iter().sum::<u64>(), long.iter().sum::<u64>());
    assert!(all > 0 && long * 10 <= all, "{long} of {all} requests took more than 40 us");
    Ok(())
}

fn by_uring() -> Result<(), Failed> {
    const PORT: u16 = 7_071;
    let scratch = Scratch::new("uring-server")?;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let mut command = Command::new(scratch.compile("uring_server", &[])?);
    command.args([SERVER_ADDRESS.to_string(), PORT.to_string()]);
    let _server = lab.start_program(command, PORT)?;
    let mut connection = connect(&lab, PORT)?;
    let mut meter = meter(lab.server(), PORT, AnswerHook::of_this_kernel()?)?;
    open(&mut meter)?;
    let mut answer = [0; 8];
    for _ in 0..REQUESTS {
        connection.write_all(b"request\n")?;
        connection.read_exact(&mut answer)?;
    }
    let counts = meter.end()?.counts;
    let all = u64::try_from(REQUESTS)?;
    assert_eq!((counts.arrivals, counts.answered, counts.requests), (all, all, all), "{counts:?}");
    assert_eq!((counts.unsolicited, counts.unmeasured), (0, 0), "{counts:?}");
    Ok(())
}

/// Tests data in the segment that completes a handshake: the tracepoint reports no arrival for it, but TCP's
/// clock has the time.
fn with_the_handshake() -> Result<(), Failed> {
    const PORT: u16 = 7_072;
    const CONNECTIONS: u64 = 200;
    let scratch = Scratch::new("deferred-server")?;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let mut command = Command::new(scratch.compile("deferred_server", &[])?);
    command.args([SERVER_ADDRESS.to_string(), PORT.to_string()]);
    let _server = lab.start_program(command, PORT)?;
    let mut meter = meter(lab.server(), PORT, AnswerHook::of_this_kernel()?)?;
    open(&mut meter)?;
    let mut answer = [0; 8];
    for _ in 0..CONNECTIONS {
        let mut connection = connect(&lab, PORT)?;
        for _ in 0..3 {
            connection.write_all(b"request\n")?;
            connection.read_exact(&mut answer)?;
        }
    }
    let LiveWindow { counts, spans, .. } = meter.end()?;
    let all = 3 * CONNECTIONS;
    assert_eq!((counts.arrivals, counts.answered, counts.requests), (all, all, all), "{counts:?}");
    assert_eq!((counts.unseen, counts.unsolicited), (CONNECTIONS, 0), "{counts:?}");
    assert_eq!((spans.residence.total(), spans.uniform.total()), (all, all), "{counts:?}");
    assert_eq!(spans.wakeup.total(), all, "each was read");
    Ok(())
}

fn older() -> Result<(), Failed> {
    let (window, ..) = window(AnswerHook::AfterSend)?;
    let all = u64::try_from(REQUESTS)?;
    assert_eq!((window.counts.arrivals, window.counts.answered), (all, all), "{:?}", window.counts);
    Ok(())
}

/// Tests that eight requests in one segment count as eight requests but one exchange.
fn pipelined() -> Result<(), Failed> {
    const WRITES: usize = 500;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    let mut connection = connect(&lab, server.address().port())?;
    let mut meter = meter(lab.server(), server.address().port(), AnswerHook::of_this_kernel()?)?;
    open(&mut meter)?;
    let mut answers = [0; 5 * 9];
    for _ in 0..WRITES {
        // The separate first request makes the connection have several outstanding requests.
        connection.write_all(b"get nothing\r\n")?;
        connection.write_all(&b"get nothing\r\n".repeat(8))?;
        connection.read_exact(&mut answers)?;
    }
    let counts = meter.end()?.counts;
    let all = u64::try_from(9 * WRITES)?;
    // A sender that lacks CPU time may send one write in two segments.
    assert!(counts.arrivals <= u64::try_from(2 * WRITES + WRITES / 10)?, "{counts:?}");
    assert!(counts.requests.abs_diff(all) * 50 <= all, "{all} requests: {counts:?}");
    Ok(())
}

fn signal(pid: Pid, signal: Signal) -> Result<(), Failed> {
    let pid = i32::try_from(pid.0).ok().and_then(rustix::process::Pid::from_raw).ok_or("a pid")?;
    Ok(kill_process(pid, signal)?)
}

fn hangs() -> Result<(), Failed> {
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    let mut connection = BufReader::new(connect(&lab, server.address().port())?);
    let mut meter = meter(lab.server(), server.address().port(), AnswerHook::of_this_kernel()?)?;
    ask_one(&mut connection)?;
    signal(server.process().pid, Signal::STOP)?;
    eventually("each thread of the process has stopped", || all_stopped(server.process().pid).then_some(()))?;
    open(&mut meter)?;
    connection.get_mut().write_all(b"get nothing\r\n")?;
    std::thread::sleep(Duration::from_millis(60));
    let first = meter.end()?;
    assert_eq!((first.counts.arrivals, first.counts.answered, first.waiting.requests), (1, 0, 1));
    let age = first.waiting.oldest.ok_or("it waits")?;
    assert!(age >= Nanoseconds::from_millis(50), "{age}");
    assert_eq!(first.waiting.ages.total(), 1);

    std::thread::sleep(Duration::from_millis(60));
    meter.begin()?;
    let second = meter.end()?;
    let older = second.waiting.oldest.ok_or("the thread keeps waiting, without a new packet")?;
    assert!(older.0 >= age.0 + 50_000_000, "{age} and then {older}");

    signal(server.process().pid, Signal::CONT)?;
    let mut answer = String::new();
    connection.read_line(&mut answer)?;
    meter.begin()?;
    let third = meter.end()?;
    assert_eq!(third.waiting.requests, 0, "answered between two windows: {:?}", third.waiting);
    Ok(())
}

/// Whether all threads of a process have stopped.
fn all_stopped(pid: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .map(|thread| thread.path().join("stat"))
        .all(|stat| std::fs::read_to_string(stat).is_ok_and(|stat| stat.contains(") T ")))
}

fn ask_one(connection: &mut BufReader<TcpStream>) -> Result<(), Failed> {
    connection.get_mut().write_all(b"get nothing\r\n")?;
    let mut answer = String::new();
    connection.read_line(&mut answer)?;
    assert_eq!(answer, "END\r\n");
    Ok(())
}

/// Creates a namespace with only a loopback device.
fn loopback() -> Result<Netns, Failed> {
    let netns = Netns::create()?;
    let up = netns.run(|| Command::new("ip").args(["link", "set", "lo", "up"]).status())??;
    assert!(up.success(), "{up}");
    Ok(netns)
}

/// Creates a listener, and a client that is connected to it.
fn connected(netns: &Netns) -> Result<(TcpListener, TcpStream), Failed> {
    Ok(netns.run(|| {
        let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0))?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        Ok::<_, std::io::Error>((listener, client))
    })??)
}

/// Tests a server that takes longer with every answer: some answers come before a window ends, some after it,
/// and some during its end.
fn answered_at_the_end() -> Result<(), Failed> {
    const ROUNDS: u64 = 60;
    const STEP: Duration = Duration::from_micros(250);
    let netns = loopback()?;
    let (listener, mut client) = connected(&netns)?;
    let mut meter = meter(&netns, listener.local_addr()?.port(), AnswerHook::of_this_kernel()?)?;
    std::thread::scope(|scope| -> Result<(), Failed> {
        scope.spawn(move || -> std::io::Result<()> {
            let (mut server, _) = listener.accept()?;
            server.set_read_timeout(Some(PATIENCE))?;
            let mut line = [0; 4];
            for round in 0..ROUNDS {
                server.read_exact(&mut line)?;
                std::thread::sleep(STEP * u32::try_from(round).unwrap_or(0));
                server.write_all(&line)?;
            }
            Ok(())
        });
        let (mut answer, mut waited) = ([0; 4], 0);
        for round in 0..ROUNDS {
            open(&mut meter)?;
            client.write_all(b"ask\n")?;
            waited += meter.end()?.waiting.requests;
            client.read_exact(&mut answer)?;
            meter.begin()?;
            let later = meter.end()?.waiting;
            assert_eq!((later.requests, later.oldest), (0, None), "round {round}");
        }
        assert!(waited > 0, "the test requires that windows end before some answers");
        Ok(())
    })
}

/// Tests an answer that takes more nanoseconds than fit into 32 bits.
fn five_seconds() -> Result<(), Failed> {
    const TAKES: Duration = Duration::from_secs(5);
    let netns = loopback()?;
    let (listener, mut client) = connected(&netns)?;
    let mut meter = meter(&netns, listener.local_addr()?.port(), AnswerHook::of_this_kernel()?)?;
    open(&mut meter)?;
    let (mut server, _) = listener.accept()?;
    let mut line = [0; 4];
    client.write_all(b"ask\n")?;
    server.read_exact(&mut line)?;
    std::thread::sleep(TAKES);
    server.write_all(&line)?;
    let spans = meter.end()?.spans;
    let took = spans.residence.buckets().iter().position(|count| *count > 0).ok_or("nothing was timed")?;
    let (from, to) = (SpanCounts::lower_edge(took), SpanCounts::lower_edge(took + 1));
    let takes = u64::try_from(TAKES.as_nanos())?;
    assert!(to.0 > takes && from.0 < takes + 2_000_000_000, "{from} to {to}");
    Ok(())
}

/// Tests a server that answers each line, and sends an unrequested line after every fourth answer.
fn unsolicited() -> Result<(), Failed> {
    const LINES: u64 = 400;
    let netns = loopback()?;
    let (listener, mut client) = connected(&netns)?;
    let port = listener.local_addr()?.port();
    let mut meter = meter(&netns, port, AnswerHook::of_this_kernel()?)?;
    open(&mut meter)?;
    std::thread::scope(|scope| -> Result<(), Failed> {
        let serving = scope.spawn(move || -> std::io::Result<()> {
            let (mut server, _) = listener.accept()?;
            server.set_read_timeout(Some(PATIENCE))?;
            server.set_nodelay(true)?;
            let mut line = [0; 4];
            for turn in 0..LINES {
                server.read_exact(&mut line)?;
                server.write_all(&line)?;
                if turn % 4 == 3 {
                    std::thread::sleep(Duration::from_micros(200));
                    server.write_all(&line)?;
                }
            }
            Ok(())
        });
        let mut answer = [0; 4];
        for turn in 0..LINES {
            client.write_all(b"ask\n")?;
            client.read_exact(&mut answer)?;
            if turn % 4 == 3 {
                client.read_exact(&mut answer)?;
            }
        }
        serving.join().map_err(|_| "the server panicked")??;
        Ok(())
    })?;
    let counts = meter.end()?.counts;
    assert_eq!((counts.answered, counts.sends), (LINES, LINES + LINES / 4), "{counts:?}");
    assert_eq!((counts.unsolicited, counts.continued), (LINES / 4, 0), "{counts:?}");
    Ok(())
}

/// Reads a counter of a namespace from the file that `nstat` reads.
fn counter(netns: &Netns, file: &str, prefix: &str, name: &str) -> Result<u64, Failed> {
    let path = format!("/proc/thread-self/net/{file}");
    let text = netns.run(|| std::fs::read_to_string(path))??;
    let mut lines = text.lines().filter(|line| line.starts_with(prefix));
    let (names, values) = lines.next().zip(lines.next()).ok_or("two lines")?;
    let mut both = names.split(' ').zip(values.split(' '));
    let (_, value) = both.find(|(known, _)| *known == name).ok_or_else(|| format!("no {name}"))?;
    Ok(value.parse()?)
}

/// Returns how many segments were retransmitted and how many were queued out of order, in a namespace.
fn nstat(netns: &Netns) -> Result<(u64, u64), Failed> {
    let again = counter(netns, "snmp", "Tcp:", "RetransSegs")?;
    Ok((again, counter(netns, "netstat", "TcpExt:", "TCPOFOQueue")?))
}

/// Runs a command in a namespace.
fn in_netns(netns: &Netns, line: &str) -> Result<(), Failed> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    let output = netns.run(|| command.args(words).output())??;
    if !output.status.success() {
        return Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(())
}

/// Sends requests without waiting for answers, each in a separate segment, then reads all answers.
fn ask_ahead(connection: &mut BufReader<TcpStream>, requests: usize) -> Result<(), Failed> {
    for _ in 0..requests {
        connection.get_mut().write_all(b"get nothing\r\n")?;
        // GRO does not merge packets of separate polls.
        std::thread::sleep(Duration::from_micros(200));
    }
    let mut answers = vec![0; 5 * requests];
    connection.read_exact(&mut answers)?;
    Ok(())
}

/// Tests lost packets: drops every 40th packet with data at the input of one side, then of the other.
fn loses() -> Result<(), Failed> {
    const ASKED: usize = 400;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    let port = server.address().port();
    let mut connections = connect_eight(&lab, port)?;
    let drop = |from: &str| {
        let what = format!("-p tcp -m length --length 54:65535 --{from} {port} -m statistic");
        format!("iptables -A INPUT {what} --mode nth --every 40 --packet 0 -j DROP")
    };
    let mut meter = meter(lab.server(), port, AnswerHook::of_this_kernel()?)?;
    open(&mut meter)?;
    ask(&mut connections, ASKED)?;
    let calm = meter.end()?;
    assert_eq!((calm.counts.retransmitted, calm.counts.out_of_order), (0, 0), "{:?}", calm.counts);
    assert_eq!(calm.counts.opened, 8, "{:?}", calm.counts);
    assert!(calm.counts.segments_in >= u64::try_from(ASKED)?, "{:?}", calm.counts);
    assert_eq!(calm.spans.rtt.total(), 8, "each connection has a round-trip time");

    // Answers are lost, so the server retransmits them.
    in_netns(lab.client(), &drop("sport"))?;
    let before = nstat(lab.server())?;
    open(&mut meter)?;
    ask(&mut connections, ASKED)?;
    let lossy = meter.end()?.counts;
    let after = nstat(lab.server())?;
    in_netns(lab.client(), "iptables -F INPUT")?;
    assert!(after.0 > before.0 + 5, "the premise: {before:?} {after:?}");
    assert_eq!(lossy.retransmitted, after.0 - before.0, "{lossy:?}");
    assert_eq!((lossy.opened, lossy.connections), (0, 8), "{lossy:?}");

    // Requests are lost, so the requests after them arrive out of order.
    in_netns(lab.server(), &drop("dport"))?;
    let before = nstat(lab.server())?;
    open(&mut meter)?;
    for connection in &mut connections {
        ask_ahead(connection, ASKED / 8)?;
    }
    let gaps = meter.end()?.counts;
    let after = nstat(lab.server())?;
    let queued = after.1 - before.1;
    assert!(queued > 5, "the premise: {before:?} {after:?}");
    // The socket's counter counts segments; the namespace's counter counts packets after GRO has merged
    // segments.
    assert!((queued..=queued + queued / 4).contains(&gaps.out_of_order), "{queued} queued: {gaps:?}");
    assert_eq!(gaps.retransmitted, after.0 - before.0, "{gaps:?}");
    Ok(())
}

fn netem() -> Result<(), Failed> {
    const ASKED: usize = 2_000;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    let port = server.address().port();
    let mut connections = connect_eight(&lab, port)?;
    let mut meter = meter(lab.server(), port, AnswerHook::of_this_kernel()?)?;
    let shaped = |netns: &Netns, device: &str, words: &str| {
        in_netns(netns, &format!("tc qdisc replace dev {device} root netem {words}"))
    };
    let mut window = |connections: &mut Vec<BufReader<TcpStream>>, ahead: bool| -> Result<_, Failed> {
        let before = nstat(lab.server())?;
        open(&mut meter)?;
        match ahead {
            true => connections.iter_mut().try_for_each(|one| ask_ahead(one, ASKED / 8))?,
            false => ask(connections, ASKED / 10)?,
        }
        let window = meter.end()?;
        let after = nstat(lab.server())?;
        Ok((window, after.0 - before.0, after.1 - before.1))
    };
    let (client, server) = (linux::lab::CLIENT_DEVICE, linux::lab::SERVER_DEVICE);
    shaped(lab.server(), server, "loss 5%")?;
    let (lossy, again, _) = window(&mut connections, true)?;
    assert!(again > 0, "the premise");
    assert_eq!(lossy.counts.retransmitted, again, "{:?}", lossy.counts);

    shaped(lab.server(), server, "delay 20ms")?;
    let (delayed, ..) = window(&mut connections, false)?;
    // The round-trip time is smoothed over the last eight samples.
    let from = SpanCounts::bucket_of(Nanoseconds::from_millis(10));
    let long: u64 = delayed.spans.rtt.buckets()[from..].iter().sum();
    assert_eq!((long, delayed.spans.rtt.total()), (8, 8), "{:?}", delayed.spans.rtt);

    shaped(lab.server(), server, "delay 0")?;
    shaped(lab.client(), client, "delay 3ms reorder 90% 0%")?;
    let (reordered, again, queued) = window(&mut connections, true)?;
    let counts = reordered.counts;
    assert!(queued > 0, "the premise");
    assert!((queued..=2 * queued).contains(&counts.out_of_order), "{queued} queued: {counts:?}");
    assert_eq!(counts.retransmitted, again, "{counts:?}");
    Ok(())
}

/// Tests a server that does not read, and then a client that does not read.
fn windows_close() -> Result<(), Failed> {
    const PART: usize = 64 << 10;
    const PARTS_MAX: usize = 1_000;
    let netns = loopback()?;
    let (listener, mut client) = connected(&netns)?;
    let (mut server, _) = listener.accept()?;
    let mut meter = meter(&netns, listener.local_addr()?.port(), AnswerHook::of_this_kernel()?)?;
    /// Writes until the other side's window is full; returns the number of bytes.
    fn fill(stream: &mut TcpStream) -> Result<usize, Failed> {
        stream.set_nonblocking(true)?;
        let mut written = 0;
        for _ in 0..PARTS_MAX {
            match stream.write(&[0; PART]) {
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        stream.set_nonblocking(false)?;
        Ok(written)
    }
    open(&mut meter)?;
    let mut bytes = vec![0; fill(&mut client)?];
    server.read_exact(&mut bytes)?;
    let counts = meter.end()?.counts;
    assert!(counts.zero_windows > 0, "{counts:?}");
    assert_eq!((counts.clients_full, counts.opened), (0, 1), "{counts:?}");

    open(&mut meter)?;
    let filled = fill(&mut server)?;
    let counts = meter.end()?.counts;
    assert_eq!((counts.clients_full, counts.zero_windows, counts.opened), (1, 0, 0), "{counts:?}");
    client.read_exact(&mut vec![0; filled])?;
    Ok(())
}

fn without_napi() -> Result<(), Failed> {
    let netns = loopback()?;
    let (listener, mut client) = connected(&netns)?;
    let mut meter = meter(&netns, listener.local_addr()?.port(), AnswerHook::of_this_kernel()?)?;
    let (mut server, _) = listener.accept()?;
    open(&mut meter)?;
    let mut bytes = [0; 4];
    for _ in 0..100 {
        client.write_all(b"ask\n")?;
        server.read_exact(&mut bytes)?;
        server.write_all(&bytes)?;
        client.read_exact(&mut bytes)?;
    }
    let window = meter.end()?;
    assert_eq!((window.counts.answered, window.counts.without_napi), (100, 100), "{:?}", window.counts);
    assert_eq!((window.spans.residence.total(), window.spans.uniform.total()), (100, 0));
    assert!(window.napis.is_empty(), "{:?}", window.napis);
    Ok(())
}

/// Measures until the process is killed.
pub(crate) fn play() -> Result<(), Box<dyn std::error::Error>> {
    let target = LiveTarget::of(Netns::own()?.id(), vec![9]);
    let mut meter = LiveMeter::load(&target)?;
    meter.begin()?;
    super::role::say("ready");
    super::role::until_stdin_closes();
    Ok(())
}

fn leaves_nothing() -> Result<(), Failed> {
    let netns = Netns::own()?;
    let mut meter = meter(&netns, 9, AnswerHook::of_this_kernel()?)?;
    // Iterating over all links of the kernel would end early if other processes close their links.
    let attached = |pid: u32| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fdinfo"))?.flatten();
        let texts = descriptors.filter_map(|descriptor| std::fs::read_to_string(descriptor.path()).ok());
        Ok::<_, Failed>(texts.filter(|text| text.contains("link_type:")).count())
    };
    let own = std::process::id();
    assert_eq!(attached(own)?, 0, "no values from before the first window");
    meter.begin()?;
    assert_eq!(attached(own)?, 4, "arrival, read, answer, poll");
    meter.end()?;
    eventually("no program is attached between windows", || (attached(own).ok()? == 0).then_some(()))?;
    meter.stay_attached(true);
    meter.begin()?;
    meter.detach();
    eventually("an abandoned window leaves no program", || (attached(own).ok()? == 0).then_some(()))?;
    drop(meter);

    let (mut other, _) = Subject::in_role("meter")?;
    assert_eq!(attached(other.pid().0)?, 4, "another process measures");
    let theirs = programs_of(other.pid().0)?;
    other.kill();
    eventually("the meter's programs no longer exist", || {
        let loaded = |id: &u32| libbpf_rs::Program::fd_from_id(*id).is_ok();
        (!theirs.iter().any(loaded)).then_some(())
    })
}

fn stays_attached() -> Result<(), Failed> {
    const OF_WINDOW: usize = 100;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    let port = server.address().port();
    let mut connections = connect_eight(&lab, port)?;
    let mut meter = meter(lab.server(), port, AnswerHook::of_this_kernel()?)?;
    // Every change of this setting attaches other programs.
    for (stays, by_threads) in [(true, false), (true, false), (true, true), (true, false), (false, true)] {
        assert_eq!(meter.stay_attached(stays), stays);
        meter.set_polled_by_threads(by_threads);
        open(&mut meter)?;
        ask(&mut connections, OF_WINDOW)?;
        let window = meter.end()?;
        assert_eq!(window.counts.answered, OF_WINDOW as u64, "{stays} {by_threads}: {window:?}");
        let polls: u64 = window.napis.iter().map(|(_, part)| part.polls.total()).sum();
        assert!(polls <= 4 * OF_WINDOW as u64, "{stays} {by_threads}: {polls} polls");
        ask(&mut connections, 20 * OF_WINDOW)?;
    }
    open(&mut meter)?;
    ask(&mut connections, 2 * OF_WINDOW)?;
    meter.detach();
    open(&mut meter)?;
    ask(&mut connections, OF_WINDOW)?;
    let window = meter.end()?;
    assert_eq!(window.counts.answered, OF_WINDOW as u64, "after an abandoned window: {window:?}");
    Ok(())
}
