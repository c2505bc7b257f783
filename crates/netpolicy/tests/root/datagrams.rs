//! Tests servers that receive without an epoll, most of them by UDP, and workers that share a UDP address.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::{Child, Command};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::{CLIENT_ADDRESS, SERVER_ADDRESS, SERVER_DEVICE, ServerProgram};
use linux::process::read_socket_budget;
use linux::{Processes, observe};
use model::host::SocketState;
use model::{SocketId, SocketPolling, Spread, Transport};
use testkit::operator::{Operator, at_work, waited_for};
use testkit::wire::run;
use testkit::{Need, test};

/// The servers' UDP port. The servers also listen on it with TCP, to show that they are running.
const PORT: u16 = 11_400;

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension, Need::Bpf, Need::Python];
    const HOST: &[Need] = &[Need::Root, Need::Suspension, Need::Python, Need::OwnMachine];
    vec![
        test("datagrams/a_server_that_blocks_in_recv_polls_its_napi_until_rolled_back", NEEDS, blocking),
        test("datagrams/a_server_in_poll_polls_its_napi_where_the_policy_sets_it_for_the_host", HOST, || {
            waits("poll")
        }),
        test(
            "datagrams/a_server_in_select_polls_its_napi_where_the_policy_sets_it_for_the_host",
            HOST,
            || waits("select"),
        ),
        test("datagrams/what_the_application_has_set_itself_comes_back_with_its_budget", NEEDS, own_values),
        test(
            "datagrams/the_daemon_sets_the_sockets_of_a_server_that_comes_and_undo_puts_them_back",
            NEEDS,
            daemon,
        ),
        test("datagrams/the_daemon_sets_the_sockets_that_a_server_opens_later", NEEDS, opened_later),
        test(
            "datagrams/the_daemon_sets_a_connection_that_a_thread_blocks_on_and_undo_puts_it_back",
            NEEDS,
            connected,
        ),
        test("datagrams/each_worker_gets_the_datagrams_of_its_queue_until_rolled_back", NEEDS, by_queue),
        test("datagrams/a_server_that_steers_by_itself_is_left_alone_and_reported", NEEDS, steers),
    ]
}

/// Starts a UDP server that runs the code `more` with its socket `u`, and answers each datagram with the
/// worker and the NAPI (`SO_INCOMING_NAPI_ID`) that received it. On a datagram `more`, the server opens three
/// more sockets.
fn server(operator: &Operator, workers: u32, more: &str) -> Result<ServerProgram, Failed> {
    server_of("python3", operator, workers, more)
}

/// Starts the UDP server with a given Python interpreter.
fn server_of(python: &str, operator: &Operator, workers: u32, more: &str) -> Result<ServerProgram, Failed> {
    const SERVER: &str = "import ctypes, socket, struct, threading\n\
        def work(worker, u):\n    \
            while True:\n        \
                data, peer = u.recvfrom(2048)\n        \
                for _ in range(3 if data == b'more' else 0):\n            \
                    o = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); o.bind(('0.0.0.0', 0)); opened.append(o)\n        \
                u.sendto(b'%d %d' % (worker, u.getsockopt(1, 56)), peer)\n\
        group, opened = [], []\n\
        for _ in range(@WORKERS@):\n    \
            u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.setsockopt(1, socket.SO_REUSEPORT, 1)\n    \
            u.bind(('0.0.0.0', @PORT@)); group.append(u)\n\
        @MORE@\n\
        for worker, u in enumerate(group):\n    threading.Thread(target=work, args=(worker, u)).start()\n\
        t = socket.socket(); t.setsockopt(1, socket.SO_REUSEADDR, 1); t.bind(('0.0.0.0', @PORT@)); t.listen(8)\n\
        while True:\n    t.accept()[0].close()\n";
    let text = SERVER
        .replace("@WORKERS@", &workers.to_string())
        .replace("@PORT@", &PORT.to_string())
        .replace("@MORE@", more);
    let mut command = Command::new(python);
    command.args(["-c", &text]);
    Ok(operator.lab.start_program(command, PORT)?)
}

/// Sends datagrams from the client, `each` from each of `ports` ports; returns the worker and the NAPI that
/// received each datagram.
fn asked(operator: &Operator, ports: usize, each: usize) -> Result<Vec<(u32, u32)>, Failed> {
    asked_at((&CLIENT_ADDRESS.to_string(), &SERVER_ADDRESS.to_string()), operator, ports, each)
}

/// Sends datagrams from one address to another; returns the worker and the NAPI that received each datagram.
fn asked_at(
    (from, to): (&str, &str),
    operator: &Operator,
    ports: usize,
    each: usize,
) -> Result<Vec<(u32, u32)>, Failed> {
    let ask = || -> std::io::Result<Vec<(u32, u32)>> {
        let mut answers = Vec::new();
        for _ in 0..ports {
            let socket = UdpSocket::bind((from, 0))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.connect((to, PORT))?;
            for _ in 0..each {
                let mut bytes = [0; 64];
                socket.send(b"?")?;
                let length = socket.recv(&mut bytes)?;
                let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                let mut numbers = text.split(' ').map(|number| number.parse().unwrap_or(u32::MAX));
                answers.push((numbers.next().unwrap_or(u32::MAX), numbers.next().unwrap_or(u32::MAX)));
            }
        }
        Ok(answers)
    };
    Ok(operator.lab.client().run(ask)??)
}

/// Returns the number of packets delivered by busy polling in the server's namespace.
fn busy_polled(operator: &Operator) -> Result<u64, Failed> {
    busy_polled_in(&operator.inside("cat /proc/net/netstat")?)
}

fn busy_polled_in(text: &str) -> Result<u64, Failed> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().ok_or("TcpExt")?, lines.next().ok_or("TcpExt")?);
    let found = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "BusyPollRxPackets");
    Ok(found.ok_or("BusyPollRxPackets")?.1.parse()?)
}

/// Returns the busy polling parameters of the server's UDP sockets. BPF reads the budget.
fn polling(operator: &Operator, server: &ServerProgram) -> Result<Vec<SocketPolling>, Failed> {
    polling_of(SocketState::Udp, operator, server)
}

/// Returns the busy polling parameters of the server's sockets in this state.
fn polling_of(
    state: SocketState,
    operator: &Operator,
    server: &ServerProgram,
) -> Result<Vec<SocketPolling>, Failed> {
    let host = observe(operator.lab.server(), &Processes::Only(vec![server.process().pid]))?;
    let process = host.processes.first().ok_or("the server")?;
    let sockets = process.sockets.iter().filter(|socket| socket.state == state);
    let mut found = Vec::new();
    for socket in sockets {
        let id = SocketId { process: process.id, fd: socket.fd, inode: socket.inode };
        let seen = socket.polling.ok_or("the socket's polling parameters were not read")?;
        found.push(SocketPolling { busy_poll_budget: Some(read_socket_budget(&id)?), ..seen });
    }
    Ok(found)
}

const NAPIBUSY: SocketPolling =
    SocketPolling { busy_poll_usecs: 64, prefer_busy_poll: true, busy_poll_budget: Some(64) };
const STILL: SocketPolling =
    SocketPolling { busy_poll_usecs: 0, prefer_busy_poll: false, busy_poll_budget: Some(0) };

fn asks(operator: &Operator, delivery: &str) -> Result<(), Failed> {
    operator.asks(&format!("[service.names]\nmatch = {{ port = {PORT} }}\n{delivery}\n"))
}

#[expect(clippy::print_stderr, reason = "the figure of docs/decisions/0047-polling-by-socket.md")]
fn blocking() -> Result<(), Failed> {
    /// The number of datagrams in a round. On a busy machine, several rounds may be necessary.
    const ROUND: usize = 500;
    const ROUNDS_MAX: usize = 20;
    const ENOUGH: u64 = 50;
    let operator = Operator::new("datagrams", 1)?;
    let server = server(&operator, 1, "")?;
    let begun = busy_polled(&operator)?;
    asked(&operator, 1, ROUND)?;
    assert_eq!(busy_polled(&operator)?, begun, "nothing polls yet");
    assert_eq!(polling(&operator, &server)?, [STILL]);
    let before = operator.host()?;

    asks(&operator, "delivery = \"napibusy\"")?;
    let planned = operator.runs(&["plan"], 3)?;
    let words = format!("{}{}", planned.data, planned.words);
    assert!(words.contains("so_busy_poll usecs/budget/prefer"), "{words}");
    assert!(words.contains("busy-poll while a receive waits"), "{words}");
    operator.runs(&["apply"], 0)?;
    assert_eq!(polling(&operator, &server)?, [NAPIBUSY]);
    operator.runs(&["plan"], 0)?; // the settings already match the policy
    operator.runs(&["verify"], 0)?;
    for round in 1.. {
        asked(&operator, 1, ROUND)?;
        let polled = busy_polled(&operator)? - begun;
        if polled >= ENOUGH {
            eprintln!("{polled} packets of {} were polled by recvfrom()", round * ROUND);
            break;
        }
        assert!(round < ROUNDS_MAX, "recvfrom() polled {polled} packets of {}", round * ROUND);
    }

    operator.runs(&["rollback"], 0)?;
    assert_eq!(polling(&operator, &server)?, [STILL]);
    assert!(operator.host()? == before, "the whole host is as it was");
    let ended = busy_polled(&operator)?;
    asked(&operator, 1, ROUND)?;
    assert_eq!(busy_polled(&operator)?, ended, "no socket polls any more");
    Ok(())
}

/// A UDP server that waits in `poll` or `select`. It runs in the test's own namespace, where host-wide
/// settings can be written. Dropping it kills the server.
struct Waiting(Child);

impl Waiting {
    fn new(waits: &str) -> Result<Self, Failed> {
        const SERVER: &str = "import select, socket\n\
            u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('@ADDRESS@', @PORT@))\n\
            p = select.poll(); p.register(u, select.POLLIN)\n\
            while True:\n    \
                p.poll() if '@WAITS@' == 'poll' else select.select([u], [], [])\n    \
                data, peer = u.recvfrom(2048); u.sendto(b'0 0', peer)\n";
        let text =
            SERVER.replace("@ADDRESS@", HERE).replace("@PORT@", &PORT.to_string()).replace("@WAITS@", waits);
        Ok(Self(Command::new("python3").args(["-c", &text]).spawn()?))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The near address of a veth between the test's own namespace and the client's. The far address and the near
/// device follow.
const HERE: &str = "198.51.100.1";
const THERE: &str = "198.51.100.2";
const OWN: &str = "own0";

/// Reads the host-wide sysctl in the initial network namespace, which has it.
fn busy_poll() -> Result<u64, Failed> {
    Ok(std::fs::read_to_string("/proc/sys/net/core/busy_poll")?.trim().parse()?)
}

/// Sends datagrams, and returns how many of them were delivered by busy polling in the test's own namespace.
fn polled_of(operator: &Operator, datagrams: usize) -> Result<u64, Failed> {
    let count = || busy_polled_in(&std::fs::read_to_string("/proc/net/netstat")?);
    let begun = count()?;
    asked_at((THERE, HERE), operator, 1, datagrams)?;
    Ok(count()? - begun)
}

/// Dropping this resets `net.core.busy_poll`, which affects the whole guest, to its default.
struct AsBooted;

impl Drop for AsBooted {
    fn drop(&mut self) {
        // If restoring fails, the next test that needs the default reports it.
        let _ = std::fs::write("/proc/sys/net/core/busy_poll", "0");
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the figure of docs/decisions/0047-polling-by-socket.md; what a test prints on stdout divides its line"
)]
fn waits(by: &str) -> Result<(), Failed> {
    /// How long sockets poll: longer than the pause between two requests on a slow guest.
    const USECS: u64 = 20_000;
    const ROUND: usize = 100;
    const ROUNDS_MAX: usize = 20;
    const ENOUGH: u64 = 20;
    let operator = Operator::new(&format!("datagrams-{by}"), 1)?;
    let client = operator.lab.client_path();
    run(&format!("ip link add {OWN} type veth peer name own1 netns {}", client.display()))?;
    let there = format!("nsenter --net={}", client.display());
    for command in [
        &format!("ethtool -K {OWN} gro on"),
        &format!("{there} ethtool -K own1 tso off"),
        &format!("ip addr add {HERE}/24 dev {OWN}"),
        &format!("{there} ip addr add {THERE}/24 dev own1"),
        &format!("ip link set {OWN} up"),
        &format!("{there} ip link set own1 up"),
    ] {
        run(command)?;
    }
    let _server = Waiting::new(by)?;
    let bound = format!(":{PORT:04X} ");
    waited_for("the server", || {
        Ok(std::fs::read_to_string("/proc/net/udp")?.contains(&bound).then_some(()))
    })?;
    let before = busy_poll()?;
    assert_eq!(before, 0, "the test requires a guest whose settings are those of the boot");
    let _as_before = AsBooted;
    let service = format!("[service.names]\nmatch = {{ port = {PORT} }}\ndelivery = \"napibusy\"\n");

    operator.asks(&service)?;
    let planned = operator.runs_here(&["plan"], 3)?;
    let words = format!("{}{}", planned.data, planned.words);
    assert!(
        words.contains("poll and select are not busy-polled, because net.core.busy_poll is 0"),
        "{words}"
    );
    operator.runs_here(&["apply"], 0)?;
    assert_eq!(polled_of(&operator, ROUND)?, 0, "the options of the server's socket are not sufficient");

    operator.asks(&format!(
        "[device.{OWN}]\npolicy = \"none\"\nsettings = {{ busy_poll = {USECS} }}\n{service}"
    ))?;
    let applied = operator.runs_here(&["apply"], 0)?;
    assert!(applied.words.contains("every epoll without busy_poll_usecs"), "{}", applied.words);
    assert_eq!(busy_poll()?, USECS);
    operator.runs_here(&["verify"], 0)?;
    let mut polled = 0;
    for round in 1.. {
        polled += polled_of(&operator, ROUND)?;
        if polled >= ENOUGH {
            eprintln!("{polled} packets of {} were polled by {by}()", round * ROUND);
            break;
        }
        assert!(round < ROUNDS_MAX, "{by}() polled {polled} packets of {}", round * ROUND);
    }

    let script = operator.runs_here(&["rollback", "--script"], 0)?.data;
    let script = operator.file("undo.sh", script.as_bytes())?;
    run(&format!("sh {script} --by-hand"))?;
    assert_eq!(busy_poll()?, before);
    assert_eq!(polled_of(&operator, ROUND)?, 0, "no socket polls any more");
    run(&format!("ip link del {OWN}")).map(drop)
}

fn own_values() -> Result<(), Failed> {
    const OWN: SocketPolling =
        SocketPolling { busy_poll_usecs: 20, prefer_busy_poll: false, busy_poll_budget: Some(16) };
    let operator = Operator::new("datagrams-own", 1)?;
    let server = server(&operator, 1, "u.setsockopt(1, 46, 20); u.setsockopt(1, 70, 16)")?;
    asked(&operator, 1, 1)?;
    assert_eq!(polling(&operator, &server)?, [OWN]);
    asks(&operator, "delivery = \"napibusy\"")?;
    operator.runs(&["apply"], 0)?;
    assert_eq!(polling(&operator, &server)?, [NAPIBUSY]);
    operator.runs(&["rollback"], 0)?;
    assert_eq!(polling(&operator, &server)?, [OWN]);
    // A mode in which only softirqs poll turns the sockets' busy polling off, and rollback restores it.
    asks(&operator, "delivery = \"interrupt\"")?;
    operator.runs(&["apply"], 0)?;
    assert_eq!(polling(&operator, &server)?, [STILL]);
    let script = operator.runs(&["rollback", "--script"], 0)?.data;
    let script = operator.file("undo.sh", script.as_bytes())?;
    let output = Command::new("sh").args([&script, "--by-hand"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("restored to 20/0"), "{said}");
    assert_eq!(polling(&operator, &server)?, [OWN]);
    operator.runs(&["rollback"], 0)?;
    assert_eq!(polling(&operator, &server)?, [OWN]);
    Ok(())
}

fn daemon() -> Result<(), Failed> {
    let operator = Operator::new("datagrams-daemon", 1)?;
    asks(&operator, "delivery = \"napibusy\"")?;
    let daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear("at work")?;
    let server = server(&operator, 2, "")?;
    asked(&operator, 8, 4)?;
    waited_for("sockets that poll", || Ok((polling(&operator, &server)? == [NAPIBUSY; 2]).then_some(())))?;
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    assert_eq!(polling(&operator, &server)?, [STILL; 2]);
    Ok(())
}

/// The policy matches the server by executable, not by port. The daemon finds the server when it calls
/// `bind(2)`, which BPF reports.
fn opened_later() -> Result<(), Failed> {
    let operator = Operator::new("datagrams-later", 1)?;
    let python = operator.state().with_file_name("np-names");
    std::fs::copy("/usr/bin/python3", &python)?;
    let policy = "[service.names]\nmatch = { exe = \"np-names\" }\ndelivery = \"napibusy\"\n";
    let daemon = at_work(&operator, policy)?;
    let server = server_of(&python.display().to_string(), &operator, 1, "")?;
    waited_for("the first socket", || Ok((polling(&operator, &server)? == [NAPIBUSY]).then_some(())))?;
    let listened = || -> Result<u64, Failed> {
        let status: serde_json::Value =
            serde_json::from_str(&operator.runs(&["-o", "json", "status"], 0)?.data)?;
        Ok(status["data"]["counters"]["events"]["listener"].as_u64().unwrap_or(0))
    };
    let before = listened()?;
    operator.lab.client().run(|| {
        let socket = UdpSocket::bind((CLIENT_ADDRESS, 0))?;
        socket.send_to(b"more", (SERVER_ADDRESS, PORT))
    })??;
    waited_for("all of them", || Ok((polling(&operator, &server)? == [NAPIBUSY; 4]).then_some(())))?;
    // The daemon publishes its counters one iteration later.
    waited_for("BPF's report", || Ok((listened()? > before).then_some(())))?;
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    assert_eq!(polling(&operator, &server)?, [STILL; 4]);
    Ok(())
}

/// Tests a server with a thread per connection, like database servers. Only a scan finds its connections.
fn connected() -> Result<(), Failed> {
    const SERVER: &str = "import socket, threading\n\
        def work(c):\n    \
            while data := c.recv(2048):\n        \
                c.sendall(data)\n\
        t = socket.socket(); t.setsockopt(1, socket.SO_REUSEADDR, 1); t.bind(('0.0.0.0', @PORT@)); t.listen(8)\n\
        while True:\n    threading.Thread(target=work, args=(t.accept()[0],)).start()\n";
    const ROUND: usize = 500;
    const ROUNDS_MAX: usize = 20;
    const ENOUGH: u64 = 50;
    let operator = Operator::new("datagrams-connected", 1)?;
    let policy = format!("[service.names]\nmatch = {{ port = {PORT} }}\ndelivery = \"napibusy\"\n");
    let daemon = at_work(&operator, &policy)?;
    let mut python = Command::new("python3");
    python.args(["-c", &SERVER.replace("@PORT@", &PORT.to_string())]);
    let server = operator.lab.start_program(python, PORT)?;
    let mut stream = operator.lab.client().run(|| TcpStream::connect((SERVER_ADDRESS, PORT)))??;
    stream.set_nodelay(true)?;
    let mut asks = |requests: usize| -> Result<u64, Failed> {
        let begun = busy_polled(&operator)?;
        for _ in 0..requests {
            stream.write_all(b"?")?;
            stream.read_exact(&mut [0])?;
        }
        Ok(busy_polled(&operator)? - begun)
    };
    asks(1)?;
    let of_connections = || polling_of(SocketState::TcpEstablished, &operator, &server);
    waited_for("the connection", || Ok((of_connections()? == [NAPIBUSY]).then_some(())))?;
    let mut polled = 0;
    for round in 1.. {
        polled += asks(ROUND)?;
        if polled >= ENOUGH {
            break;
        }
        assert!(round < ROUNDS_MAX, "recv() polled {polled} packets of {}", round * ROUND);
    }
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    assert_eq!(of_connections()?, [STILL]);
    assert_eq!(asks(ROUND)?, 0, "no socket polls any more");
    Ok(())
}

/// Returns the number of packets that each queue of the server's device has received, from the device's
/// counters.
fn received(operator: &Operator) -> Result<[u64; 2], Failed> {
    let text = operator.inside(&format!("ethtool -S {SERVER_DEVICE}"))?;
    let of = |queue: usize| {
        let name = format!("rx_queue_{queue}_xdp_packets:");
        let value = text.lines().find_map(|line| line.trim().strip_prefix(&name));
        value.and_then(|value| value.trim().parse().ok()).ok_or_else(|| format!("{name} in {text}"))
    };
    Ok([of(0)?, of(1)?])
}

/// Finds the workers that receive the datagrams of each queue. Ignores datagrams whose queue is ambiguous
/// because other packets arrived, too.
fn workers_by_queue(operator: &Operator) -> Result<BTreeMap<usize, BTreeSet<u32>>, Failed> {
    /// So many ports that the probability is only 2^-29 that the hash assigns all ports of one queue to the
    /// same of two workers.
    const PORTS: usize = 60;
    let mut found: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
    for _ in 0..PORTS {
        let before = received(operator)?;
        let (worker, _) = *asked(operator, 1, 1)?.first().ok_or("an answer")?;
        let after = received(operator)?;
        let came: Vec<usize> = (0..2).filter(|queue| after[*queue] > before[*queue]).collect();
        if let [queue] = came[..] {
            found.entry(queue).or_default().insert(worker);
        }
    }
    Ok(found)
}

fn group(operator: &Operator) -> Result<model::host::SharedListeners, Failed> {
    let host = operator.host()?;
    let group = host.listeners.into_iter().find(|group| group.id.transport == Transport::Udp);
    Ok(group.ok_or("no group of UDP sockets was found")?)
}

fn asks_for_queues(operator: &Operator) -> Result<(), Failed> {
    operator.means_what_it_does_on_a_nic()?;
    operator.asks(&format!(
        "[device.{SERVER_DEVICE}]\npolicy = \"latency\"\n\
         [service.names]\nmatch = {{ port = {PORT} }}\npolicy = \"latency\"\n"
    ))
}

fn by_queue() -> Result<(), Failed> {
    let operator = Operator::new("datagrams-spread", 2)?;
    let _server = server(&operator, 2, "")?;
    assert_eq!(group(&operator)?.spread, Spread::Hash);
    let by_queue = workers_by_queue(&operator)?;
    assert_eq!(by_queue.len(), 2, "both queues have datagrams: {by_queue:?}");
    assert!(by_queue.values().any(|workers| workers.len() == 2), "the kernel's hash: {by_queue:?}");
    // For an unconnected socket, `SO_INCOMING_NAPI_ID` keeps the NAPI of the first packet.
    let napis: BTreeSet<(u32, u32)> = asked(&operator, 60, 1)?.into_iter().collect();
    assert_eq!(napis.len(), 2, "each worker names one NAPI: {napis:?}");

    asks_for_queues(&operator)?;
    let said = operator.runs(&["apply"], 0)?;
    assert!(said.words.contains("each datagram goes to a socket of its queue"), "{}", said.words);
    operator.runs(&["plan"], 0)?; // the settings already match the policy
    let by_queue = workers_by_queue(&operator)?;
    let owners: Vec<u32> = by_queue.values().flatten().copied().collect();
    assert_eq!(
        (by_queue.len(), owners.len()),
        (2, 2),
        "the datagrams of each queue are delivered to one worker: {by_queue:?}"
    );
    assert_ne!(owners[0], owners[1], "{by_queue:?}");
    let counts = group(&operator)?.counts.ok_or("it counts")?;
    assert_eq!((counts.by_queue, counts.changed, counts.gone), (60, 0, 0), "{counts:?}");
    let shown = operator.runs(&["show"], 0)?.data;
    assert!(shown.contains(&format!("udp 0.0.0.0:{PORT}")), "{shown}");

    operator.runs(&["rollback"], 0)?;
    assert_eq!(group(&operator)?.spread, Spread::Hash);
    let by_queue = workers_by_queue(&operator)?;
    assert!(by_queue.values().any(|workers| workers.len() == 2), "the hash again: {by_queue:?}");
    Ok(())
}

fn steers() -> Result<(), Failed> {
    // A classic BPF program that always selects the first socket (BPF_RET | BPF_K, 0), as a QUIC server might
    // install.
    const PROGRAM: &str = "code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0)); \
        group[0].setsockopt(1, 51, struct.pack('HxxxxxxP', 1, ctypes.addressof(code)))";
    let operator = Operator::new("datagrams-steers", 2)?;
    let _server = server(&operator, 2, PROGRAM)?;
    assert_eq!(group(&operator)?.spread, Spread::Foreign);
    asks_for_queues(&operator)?;
    let said = operator.runs(&["apply"], 0)?;
    let words = format!("{}{}", said.data, said.words);
    assert!(words.contains("already chooses (as QUIC servers steer by connection id)"), "{words}");
    assert_eq!(group(&operator)?.spread, Spread::Foreign);
    let workers: BTreeSet<u32> = asked(&operator, 60, 1)?.into_iter().map(|(worker, _)| worker).collect();
    assert_eq!(workers, [0].into(), "the application's own program chooses");
    operator.runs(&["rollback"], 0)?;
    assert_eq!(group(&operator)?.spread, Spread::Foreign, "the group has its former program");
    Ok(())
}
