//! Tests that each connection is assigned to a listener of its queue: on a lab host with a server that has
//! several workers, with requests from the other end and from the host itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::{SERVER_ADDRESS, SERVER_DEVICE, ServerProgram};
use linux::{Netns, Processes, observe};
use model::host::SocketState;
use model::{NapiId, Spread};
use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketType, sockopt};
use testkit::operator::{Operator, waited_for};
use testkit::{Need, test};

/// The environment variable that makes this test program a server with this many workers.
const ROLE: &str = "NETPOLICY_TEST_WORKERS";
/// The port.
const PORT: u16 = 11_300;
/// The number of connections in a check. It is large enough that the hash assigns all connections of one
/// queue to the same of two workers only with a probability of 2^-29.
const CONNECTIONS: usize = 60;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension, Need::Bpf];
    const PYTHON: &[Need] = &[Need::Root, Need::Suspension, Need::Bpf, Need::Python];
    vec![
        test("spread/each_worker_gets_the_connections_of_its_queue_until_rolled_back", NEEDS, by_queue),
        test(
            "spread/no_worker_starves_be_there_more_of_them_than_queues_or_one_that_came_later",
            NEEDS,
            starving,
        ),
        test("spread/a_program_of_the_applications_own_is_left_alone_and_reported", PYTHON, foreign),
        test("spread/a_daemon_gives_a_new_worker_its_share", NEEDS, daemon),
    ]
}

/// Acts as a server whose workers each have a listener and an epoll. A worker sends its number on each
/// connection that it accepts, and keeps the connection open.
pub(crate) fn play_role() -> Option<()> {
    let count = std::env::var(ROLE).ok()?.parse().ok()?;
    std::thread::scope(|scope| {
        for worker in 0..count {
            scope.spawn(move || {
                if work(worker).is_err() {
                    std::process::exit(1);
                }
            });
        }
    });
    Some(())
}

#[expect(clippy::disallowed_methods, reason = "the client waits without a limit")]
fn work(worker: u8) -> std::io::Result<()> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)))?;
    rustix::net::listen(&socket, 128)?;
    let listener = TcpListener::from(socket);
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    let mut kept: Vec<TcpStream> = Vec::new();
    loop {
        let mut events = Vec::with_capacity(1);
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
            _ => {}
        }
        if events.iter().any(|event| event.data.u64() == 0) {
            let (mut connection, _) = listener.accept()?;
            connection.write_all(&[worker])?;
            kept.push(connection);
        }
    }
}

/// Starts a server and waits until all its workers listen; until then, an earlier server or the first worker
/// would accept all connections.
fn server(operator: &Operator, workers: u8) -> Result<ServerProgram, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ROLE, workers.to_string());
    let server = operator.lab.start_program(command, PORT)?;
    let pid = server.process().pid;
    waited_for("every worker to listen", || {
        let host = observe(operator.lab.server(), &Processes::Only(vec![pid]))?;
        let sockets = host.processes.iter().flat_map(|process| &process.sockets);
        let listening = sockets.filter(|socket| socket.state == SocketState::TcpListen).count();
        Ok((listening == usize::from(workers)).then_some(()))
    })?;
    Ok(server)
}

fn asks(operator: &Operator) -> Result<(), Failed> {
    operator.means_what_it_does_on_a_nic()?;
    operator.asks(&format!(
        "[device.{SERVER_DEVICE}]\npolicy = \"latency\"\n\
         [service.workers]\nmatch = {{ port = {PORT} }}\npolicy = \"latency\"\n"
    ))
}

/// Connects from a namespace to an address of the server; returns each connection with the worker that
/// accepted it.
fn connected(from: &Netns, to: Ipv4Addr) -> Result<Vec<(TcpStream, u8)>, Failed> {
    let connect = || -> std::io::Result<(TcpStream, u8)> {
        let mut stream = TcpStream::connect((to, PORT))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut worker = [0];
        stream.read_exact(&mut worker)?;
        Ok((stream, worker[0]))
    };
    Ok(from.run(|| (0..CONNECTIONS).map(|_| connect()).collect::<std::io::Result<_>>())??)
}

/// Returns, for each NAPI, the workers that accepted its connections.
fn workers_by_napi(
    operator: &Operator,
    servers: &[&ServerProgram],
    connections: &[(TcpStream, u8)],
) -> Result<BTreeMap<Option<NapiId>, BTreeSet<u8>>, Failed> {
    let pids = servers.iter().map(|server| server.process().pid).collect();
    let host = observe(operator.lab.server(), &Processes::Only(pids))?;
    let mut napis = BTreeMap::new();
    for socket in host.processes.iter().flat_map(|process| &process.sockets) {
        napis.extend(socket.remote.map(|remote| (remote, socket.napi)));
    }
    let mut found: BTreeMap<_, BTreeSet<u8>> = BTreeMap::new();
    for (stream, worker) in connections {
        let napi = napis.get(&stream.local_addr()?).ok_or("the server has no such connection")?;
        found.entry(*napi).or_default().insert(*worker);
    }
    Ok(found)
}

fn spread(operator: &Operator) -> Result<Spread, Failed> {
    let host = operator.host()?;
    Ok(host.listeners.first().ok_or("no group of listeners was found")?.spread.clone())
}

fn by_queue() -> Result<(), Failed> {
    let operator = Operator::new("spread", 2)?;
    let server = server(&operator, 2)?;
    asks(&operator)?;
    let explained = operator.runs(&["plan"], 3)?.data;
    assert!(explained.contains("share one NAPI; the hash deals them out"), "{explained}");
    operator.runs(&["apply"], 0)?;
    operator.runs(&["plan"], 0)?; // The settings already match the policy.

    let connections = connected(operator.lab.client(), SERVER_ADDRESS)?;
    let by_napi = workers_by_napi(&operator, &[&server], &connections)?;
    assert_eq!(by_napi.len(), 2, "both queues have connections: {by_napi:?}");
    let owners: Vec<u8> = by_napi.values().flatten().copied().collect();
    assert_eq!(owners.len(), 2, "the connections of each queue are accepted by one worker: {by_napi:?}");
    assert_ne!(owners[0], owners[1], "{by_napi:?}");

    let local: BTreeSet<u8> =
        connected(operator.lab.server(), Ipv4Addr::LOCALHOST)?.iter().map(|(_, worker)| *worker).collect();
    assert_eq!(local.len(), 2, "connections over the loopback device are distributed by the hash");
    let shown = operator.runs(&["show"], 0)?.data;
    assert!(shown.contains(&format!("queue: 2 of {SERVER_DEVICE}")), "{shown}");

    operator.runs(&["rollback"], 0)?;
    assert_eq!(spread(&operator)?, Spread::Hash);
    let connections = connected(operator.lab.client(), SERVER_ADDRESS)?;
    let by_napi = workers_by_napi(&operator, &[&server], &connections)?;
    assert!(by_napi.values().any(|workers| workers.len() == 2), "the hash again: {by_napi:?}");
    // Another program can listen on the address immediately.
    operator.runs(&["apply"], 0)?;
    assert!(matches!(spread(&operator)?, Spread::Queues(_)));
    Ok(())
}

fn starving() -> Result<(), Failed> {
    let operator = Operator::new("spread-starving", 2)?;
    let first = server(&operator, 3)?;
    asks(&operator)?;
    operator.runs(&["apply"], 0)?;
    let connections = connected(operator.lab.client(), SERVER_ADDRESS)?;
    let by_napi = workers_by_napi(&operator, &[&first], &connections)?;
    let workers: BTreeSet<u8> = by_napi.values().flatten().copied().collect();
    assert_eq!(workers.len(), 3, "{by_napi:?}");
    let shared: usize = by_napi.values().map(BTreeSet::len).sum();
    assert_eq!(shared, 3, "no worker has connections of two queues: {by_napi:?}");

    // With the new socket, the kernel's hash assigns all connections, and the new socket accepts a share of
    // them.
    let second = server(&operator, 1)?;
    drop(connections);
    let connections = connected(operator.lab.client(), SERVER_ADDRESS)?;
    let host = observe(operator.lab.server(), &Processes::Only(vec![second.process().pid]))?;
    let established = |socket: &&model::host::Socket| socket.state == SocketState::TcpEstablished;
    assert!(
        host.processes[0].sockets.iter().any(|socket| established(&socket)),
        "the new worker gets connections"
    );
    drop(connections);

    operator.runs(&["apply"], 0)?;
    let Spread::Queues(lists) = spread(&operator)? else {
        return Err("connections are not distributed by queues".into());
    };
    let listeners: Vec<u64> = lists.iter().flat_map(|list| list.listeners.clone()).collect();
    assert_eq!((lists.len(), listeners.len()), (2, 4), "each of four workers is in one list: {lists:?}");
    drop(second);
    // The slot of the closed socket is empty. The other workers keep their slots, and the first three accept
    // only the connections of their queues again.
    operator.runs(&["apply"], 0)?;
    // The transaction before the last names a closed socket, which does not prevent its rollback.
    for _ in 0..3 {
        operator.runs(&["rollback"], 0)?;
    }
    assert_eq!(spread(&operator)?, Spread::Hash);
    Ok(())
}

fn foreign() -> Result<(), Failed> {
    // A server with two listeners and a classic BPF program that always selects the first (BPF_RET | BPF_K,
    // 0).
    const SERVER: &str = "import ctypes, socket, struct, time\n\
        group = []\n\
        for _ in range(2):\n    s = socket.socket(); s.setsockopt(1, socket.SO_REUSEPORT, 1)\n    \
        s.bind(('0.0.0.0', 11300)); s.listen(16); group.append(s)\n\
        code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0))\n\
        group[0].setsockopt(1, 51, struct.pack('HxxxxxxP', 1, ctypes.addressof(code)))\n\
        time.sleep(600)\n";
    let operator = Operator::new("spread-foreign", 2)?;
    let mut command = Command::new("python3");
    command.args(["-c", SERVER]);
    let _server = operator.lab.start_program(command, PORT)?;
    // The server may accept connections before it has attached its program.
    waited_for("the program", || Ok((spread(&operator)? == Spread::Foreign).then_some(())))?;
    asks(&operator)?;
    let said = operator.runs(&["apply"], 0)?;
    let words = format!("{}{}", said.data, said.words);
    assert!(words.contains("another program's BPF program already chooses"), "{words}");
    operator.runs(&["rollback"], 0)?;
    assert_eq!(spread(&operator)?, Spread::Foreign, "the application's own program is still attached");
    Ok(())
}

fn daemon() -> Result<(), Failed> {
    let operator = Operator::new("spread-daemon", 2)?;
    asks(&operator)?;
    let daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear("at work")?;
    let _first = server(&operator, 2)?;
    let listed = |count: usize| {
        waited_for(&format!("{count} listeners in lists"), || {
            let Ok(Spread::Queues(lists)) = spread(&operator) else { return Ok(None) };
            let listeners: BTreeSet<u64> = lists.into_iter().flat_map(|list| list.listeners).collect();
            Ok((listeners.len() == count).then_some(()))
        })
    };
    listed(2)?;
    let second = server(&operator, 1)?;
    listed(3)?;
    drop(second);
    listed(2)?;
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    assert_eq!(spread(&operator)?, Spread::Hash);
    Ok(())
}
