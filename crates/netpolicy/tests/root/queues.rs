//! Tests queues for the requests of sockets and tasks, on simulated NICs (netdevsim) that follow ntuple rules
//! and RSS contexts. The tests send packets, and each socket's NAPI shows on which queue they arrived.
#![expect(
    clippy::print_stderr,
    reason = "the figures of docs/measurements/guests.md; what a test prints on stdout divides its line"
)]

use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};
use linux::{Kernel, Processes, observe};
use model::host::{AppRequest, Device, Process, Requester, SocketState};
use model::{FlowMatch, Host, Pid, PolicyName, QueueSpan, SteerTo};
use plan::Resolved;
use testkit::operator::{Operator, at_work, waited_for};
use testkit::subject::Subject;
use testkit::wire::run;
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Wire, Need::Python, Need::SimulatedRules];
    vec![
        test("queues/sockets_get_the_queues_of_their_requests_and_the_undo_is_exact", NEEDS, sockets),
        test("queues/services_of_a_mixed_device_get_queues_also_after_kills", NEEDS, services_and_kills),
        test("queues/a_daemon_follows_the_connections_of_tasks", NEEDS, followed),
        test("queues/a_full_table_of_rules_is_undone_and_reported", NEEDS, full_table),
    ]
}

const NEAR: &str = "near0";
const QUEUES: u32 = 8;
/// The ports of the server on the near host and of the server on the far host.
const PORTS: [u16; 2] = [7_000, 9_000];
/// The number of connections to each server.
const CONNECTIONS: usize = 6;

/// A program whose sockets report the NAPI of their last packet (`SO_INCOMING_NAPI_ID`).
const CONNECTOR: &[u8] = b"import os, select, socket, sys
role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
epoll, connections, listener = select.epoll(), [], None
epoll.register(0, select.EPOLLIN)
if role == 'serve':
    listener = socket.create_server((address, port), backlog=64)
    epoll.register(listener.fileno(), select.EPOLLIN)
print('ready', flush=True)

def told(command, number=0):
    if command == 'connect':
        for _ in range(int(number)):
            connections.append(socket.create_connection((address, port), 20))
            epoll.register(connections[-1].fileno(), select.EPOLLIN)
    if command == 'close':
        connections.pop(0).close()
    if command == 'ask':
        for _ in range(int(number)):
            for connection in connections:
                connection.sendall(b'x')
                connection.recv(1)
    if command == 'napis':
        print(*[c.getsockopt(socket.SOL_SOCKET, 56) for c in connections], flush=True)
    print('done', flush=True)

while True:
    for fd, _ in epoll.poll():
        if fd == 0:
            words = os.read(0, 4096).decode().split()
            if not words:
                sys.exit()
            told(*words)
        elif listener and fd == listener.fileno():
            connections.append(listener.accept()[0])
            epoll.register(connections[-1].fileno(), select.EPOLLIN)
        elif listener:
            connection = next(c for c in connections if c.fileno() == fd)
            data = connection.recv(16)
            if data:
                connection.sendall(data)
            else:
                connections.remove(connection)
                connection.close()
";

/// The recipes of these tests. A simulated NIC has no interrupts, so `latency` would not select suspension by
/// itself.
const RECIPES: &str = "[driver.netdevsim.latency.delivery]\nvalue = \"suspend20\"\n\
                       [driver.netdevsim.bulk.delivery]\nvalue = \"defer200\"\n";

const MIX: &str = "[device.near0]\npolicy = \"mix\"\n";

/// Two linked NICs, a server and a client on each host, and an operator on the near host.
struct Nics {
    simulated: Simulated,
    operator: Operator,
    /// The near host's server, to which the far client connects.
    server: Subject,
    /// The near host's client, which connects to the far server.
    client: Subject,
    far_client: Subject,
    _far_server: Subject,
}

/// The device numbers of the two NICs. Dropping this removes them; it must be dropped before their
/// namespaces.
struct Simulated([u32; 2]);

impl Drop for Simulated {
    fn drop(&mut self) {
        for number in self.0 {
            let _ = std::fs::write("/sys/bus/netdevsim/del_device", number.to_string());
        }
    }
}

impl Nics {
    fn new(name: &str) -> Result<Self, Failed> {
        let operator = Operator::new(name, 1)?;
        operator.has_recipes(RECIPES)?;
        let own = std::process::id() % 10_000 * 100;
        let simulated = Simulated([own + 80, own + 81]);
        let mut ends = Vec::new();
        let netns = [operator.lab.server(), operator.lab.client()];
        for ((netns, number), (name, address)) in
            netns.into_iter().zip(simulated.0).zip([(NEAR, "198.51.100.1"), ("far0", "198.51.100.2")])
        {
            let order = format!("{number} 1 {QUEUES}");
            netns.run(|| std::fs::write("/sys/bus/netdevsim/new_device", order))??;
            let there =
                format!("nsenter --net=/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd());
            let inside = |command: &str| run(&format!("{there} {command}"));
            // Read /proc/net, because sysfs shows the devices of the namespace in which it was mounted.
            let listed = inside("cat /proc/net/dev")?;
            let mut names = listed.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
            let made = names.rfind(|name| name.starts_with("eth")).ok_or("no device was created")?;
            inside(&format!("ip link set {made} name {name}"))?;
            inside(&format!("ip addr add {address}/24 dev {name}"))?;
            let shown = inside(&format!("ip -o link show {name}"))?;
            let index = shown.split(':').next().unwrap_or_default();
            ends.push(format!("{}:{index}", netns.as_fd().as_raw_fd()));
        }
        std::fs::write("/sys/bus/netdevsim/link_device", ends.join(" "))?;
        run(&format!("nsenter --net=/proc/{}/ns/net ip link set {NEAR} up", operator.lab.server_pid()))?;
        run(&format!("nsenter --net={} ip link set far0 up", operator.lab.client_path().display()))?;
        let script = operator.file("connector.py", CONNECTOR)?;
        let start = |near: bool, role: &str, address: &str, port: u16| -> Result<Subject, Failed> {
            let there = if near {
                format!("/proc/{}/ns/net", operator.lab.server_pid())
            } else {
                operator.lab.client_path().display().to_string()
            };
            let mut command = Command::new("nsenter");
            command.arg(format!("--net={there}")).args([
                "python3",
                &script,
                role,
                address,
                &port.to_string(),
            ]);
            Ok(Subject::ready(&mut command)?.0)
        };
        let [near_port, far_port] = PORTS;
        let server = start(true, "serve", "198.51.100.1", near_port)?;
        let far_server = start(false, "serve", "198.51.100.2", far_port)?;
        let client = start(true, "connect", "198.51.100.2", far_port)?;
        let far_client = start(false, "connect", "198.51.100.1", near_port)?;
        let mut nics = Self { simulated, operator, server, client, far_client, _far_server: far_server };
        for subject in [&mut nics.client, &mut nics.far_client] {
            subject.tell(&format!("connect {CONNECTIONS}"))?;
        }
        nics.exchange()?;
        Ok(nics)
    }

    /// Sends some packets on every connection, in both directions.
    fn exchange(&mut self) -> Result<(), Failed> {
        self.client.tell("ask 8")?;
        self.far_client.tell("ask 8")
    }

    fn host(&self) -> Result<Host, Failed> {
        let pids = vec![self.server.pid(), self.client.pid()];
        Ok(observe(self.operator.lab.server(), &Processes::Only(pids))?)
    }

    fn near(&self) -> Result<Device, Failed> {
        self.operator.devices()?.device_named(NEAR).cloned().ok_or_else(|| "no near0".into())
    }

    /// Returns the queues on which the last packets of the server's and of the client's connections arrived.
    fn queues(&mut self) -> Result<[Vec<u32>; 2], Failed> {
        self.exchange()?;
        let near = self.near()?;
        let queue_of = |napi: &str| -> Result<u32, Failed> {
            let napi: u32 = napi.parse()?;
            let queue =
                near.rx_queues.iter().find(|queue| queue.napi.is_some_and(|edge| edge.napi.0 == napi));
            Ok(queue.ok_or_else(|| format!("NAPI {napi} serves no queue"))?.id.index.0)
        };
        let mut queues = [&mut self.server, &mut self.client].into_iter().map(|subject| {
            subject.say("napis")?;
            let line = subject.line()?;
            subject.done()?;
            line.split_whitespace().map(queue_of).collect::<Result<Vec<u32>, Failed>>()
        });
        let (server, client) = (queues.next().ok_or("a server")??, queues.next().ok_or("a client")??);
        Ok([server, client])
    }

    /// Returns the number of packets that each queue has received, from `ethtool -S`.
    fn packets(&self) -> Result<Vec<u64>, Failed> {
        let listed = self.operator.inside(&format!("ethtool -S {NEAR}"))?;
        let counts =
            listed.lines().filter(|line| line.contains("rx")).filter_map(|line| line.split(": ").nth(1));
        Ok(counts.map(str::parse).collect::<Result<_, _>>()?)
    }

    /// Returns the queues of the rules for the server's port and for the client's connections, and the number
    /// of connections with a rule.
    fn steered(&self) -> Result<(Option<QueueSpan>, Option<QueueSpan>, usize), Failed> {
        let near = self.near()?;
        let span = |to: SteerTo| match to {
            SteerTo::Queue(queue) => Some(QueueSpan { first: queue.0, count: 1 }),
            SteerTo::Context(span) => Some(span),
            SteerTo::Drop | SteerTo::Other => None,
        };
        let (mut server, mut client, mut connections) = (None, None, 0);
        for rule in near.flow_rules.ok_or("no rules")? {
            let Some(FlowMatch::Ip4(flow)) = rule.flow else { continue };
            if flow.source_port == Some(PORTS[1]) {
                connections += 1;
                client = span(rule.to);
            } else if flow.destination_port == Some(PORTS[0]) {
                server = span(rule.to);
            }
        }
        Ok((server, client, connections))
    }

    /// Checks that all packets of the server's and of the client's connections arrive on their own queues,
    /// according to the sockets' NAPIs and the queues' counts.
    fn all_arrive(&mut self) -> Result<(), Failed> {
        let (server, client, _) = self.steered()?;
        let (server, client) =
            (server.ok_or("no rule for the server")?, client.ok_or("no rule for the client")?);
        let within = |span: QueueSpan, queue: u32| (span.first..=span.last()).contains(&queue);
        let [of_server, of_client] = self.queues()?;
        let met =
            |span: QueueSpan, queues: &[u32]| queues.iter().filter(|queue| within(span, **queue)).count();
        eprintln!(
            "sockets whose request got its queue: servers {} of {}, clients {} of {}",
            met(server, &of_server),
            of_server.len(),
            met(client, &of_client),
            of_client.len()
        );
        assert_eq!(met(server, &of_server), of_server.len(), "{server}: {of_server:?}");
        assert_eq!(met(client, &of_client), of_client.len(), "{client}: {of_client:?}");
        assert!(of_server.len() >= CONNECTIONS && of_client.len() >= CONNECTIONS);
        let before = self.packets()?;
        self.exchange()?;
        let after = self.packets()?;
        let elsewhere: u64 = (0..)
            .zip(before.iter().zip(&after))
            .filter(|(queue, _)| !within(server, *queue) && !within(client, *queue))
            .map(|(_, (before, after))| after - before)
            .sum();
        let all: u64 = before.iter().zip(&after).map(|(before, after)| after - before).sum();
        assert!(all >= 16 * CONNECTIONS as u64, "{before:?} {after:?}");
        // A few unrelated packets arrive, such as those of neighbour discovery.
        assert!(elsewhere <= 8, "{elsewhere} of {all} packets elsewhere: {before:?} {after:?}");
        Ok(())
    }
}

/// Returns the requests of a process's TCP sockets, as the kernel would list them.
fn requests(process: &Process, policy: PolicyName) -> impl Iterator<Item = AppRequest> {
    let tcp = process
        .sockets
        .iter()
        .filter(|socket| matches!(socket.state, SocketState::TcpListen | SocketState::TcpEstablished));
    tcp.map(move |socket| AppRequest { of: Requester::Socket(socket.inode), number: policy.number() })
}

/// Applies `mix` for the device, `latency` for the server's sockets and `bulk` for the client's. Gives the
/// planner these requests as a kernel with BTF would list them. Returns the number of changes.
fn apply_requests(nics: &Nics) -> Result<usize, Failed> {
    let failed = |fault: session::Fault| fault.cause.to_string();
    let state = nics.operator.state();
    let beside = |name: &str| state.with_file_name(name);
    let session = session::Session {
        netns: Some(format!("pid:{}", nics.operator.lab.server_pid())),
        policy_dirs: vec![beside("policy.d")],
        recipe_dirs: vec![beside("recipe.d")],
        state_dir: state.clone(),
        ..session::Session::default()
    };
    let host = nics.host()?;
    let process = |pid: Pid| host.process(pid).ok_or("the process was not observed");
    let requested: Vec<AppRequest> = requests(process(nics.server.pid())?, PolicyName::Latency)
        .chain(requests(process(nics.client.pid())?, PolicyName::Bulk))
        .collect();
    assert!(requested.len() > 2 * CONNECTIONS, "{}", requested.len());
    let (policy, _) = session.requested(&session::Silent).map_err(failed)?;
    let joined = plan::app_requests::join(&policy, &requested, &host, &Resolved::default());
    assert_eq!(joined.notes, [""; 0]);
    let (_, _, plan) = session::cycle::plan_on(&joined.policy, &host, &Resolved::default())
        .map_err(|refusal| format!("{refusal}: {:?}", refusal.evidence))?;
    let changes = plan.changes().count();
    let (journal, asked) = (session.journal().map_err(failed)?, session.asked(None));
    session::cycle::commit(plan, &mut Kernel::new(), &journal, &asked, apply::Allow::default(), None)
        .map_err(|error| failed(error.into()))?;
    Ok(changes)
}

fn sockets() -> Result<(), Failed> {
    let mut nics = Nics::new("queues-sockets")?;
    nics.operator.asks(MIX)?;
    let before = nics.near()?;
    assert!(apply_requests(&nics)? > 0);
    nics.all_arrive()?;
    assert_eq!(nics.steered()?.2, CONNECTIONS);
    assert_eq!(apply_requests(&nics)?, 0, "nothing changes any more");
    nics.operator.runs(&["rollback"], 0)?;
    assert_eq!(nics.near()?, before);
    Ok(())
}

/// Tests a table that has room for only some of the rules: netpolicy removes the rules that it added, and the
/// error gives the reason.
fn full_table() -> Result<(), Failed> {
    const ROOM: &str = "3";
    let nics = Nics::new("queues-full")?;
    nics.operator.asks(MIX)?;
    let before = nics.near()?;
    let debugfs = "/sys/kernel/debug";
    let room = format!("{debugfs}/netdevsim/netdevsim{}/ports/0/ethtool/rules_max", nics.simulated.0[0]);
    if !std::path::Path::new(&room).exists() {
        run(&format!("mount -t debugfs none {debugfs}"))?;
    }
    std::fs::write(&room, ROOM)?;
    let error = apply_requests(&nics).map(drop).expect_err("the table has no room for all rules");
    let error = format!("{error:?}");
    assert!(error.contains("ENOSPC") && error.contains("tcp4 src-ip 198.51.100.2"), "{error}");
    assert_eq!(nics.near()?, before);
    Ok(())
}

/// Tests kills of `netpolicy apply` at moments spread over its work.
fn services_and_kills() -> Result<(), Failed> {
    const KILLS: u64 = 12;
    let mut nics = Nics::new("queues-kills")?;
    let [port, _] = PORTS;
    nics.operator
        .asks(&format!("{MIX}[service.cache]\nmatch = {{ port = {port} }}\npolicy = \"latency\"\n"))?;
    let before = nics.near()?;
    let begun = std::time::Instant::now();
    nics.operator.runs(&["apply"], 0)?;
    let takes = begun.elapsed();
    let (server, client, _) = nics.steered()?;
    let server = server.ok_or("no rule for the service")?;
    assert_eq!(client, None, "a service is known by its port");
    let [queues, _] = nics.queues()?;
    assert!(
        queues.len() == CONNECTIONS
            && queues.iter().all(|queue| (server.first..=server.last()).contains(queue))
    );
    nics.operator.runs(&["rollback"], 0)?;
    assert_eq!(nics.near()?, before);
    let mut unfinished = 0;
    for kill in 0..KILLS {
        let mut apply = nics.operator.netpolicy(&["apply"]);
        let mut apply = apply.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let (kill, kills) = (u32::try_from(kill)?, u32::try_from(KILLS)?);
        std::thread::sleep(takes * (kill + 1) / (kills + 1));
        apply.kill()?;
        apply.wait()?;
        unfinished += usize::from(nics.near()? != before);
        // Ignore the rollback's exit code, which only tells whether there was a transaction.
        nics.operator.netpolicy(&["rollback"]).output()?;
        assert_eq!(nics.near()?, before, "kill {kill}");
    }
    eprintln!(
        "killed {KILLS} times, {unfinished} of them with changes in force: the NIC is as before each time"
    );
    Ok(())
}

fn followed() -> Result<(), Failed> {
    let mut nics = Nics::new("queues-daemon")?;
    let before = nics.near()?;
    let mut daemon = at_work(&nics.operator, MIX)?;
    for (subject, policy) in [(&nics.server, "latency"), (&nics.client, "bulk")] {
        nics.operator.runs(&["set", "task", &subject.pid().to_string(), policy], 0)?;
    }
    let has = |nics: &Nics, connections: usize| {
        waited_for(&format!("rules for {connections} connections"), || {
            let (server, client, found) = nics.steered()?;
            Ok((server.is_some() && client.is_some() && found == connections).then_some(()))
        })
    };
    has(&nics, CONNECTIONS)?;
    nics.all_arrive()?;
    nics.client.tell("connect 2")?;
    nics.exchange()?;
    has(&nics, CONNECTIONS + 2)?;
    nics.all_arrive()?;
    nics.client.tell("close")?;
    has(&nics, CONNECTIONS + 1)?;

    let in_force = nics.near()?;
    daemon.child.kill()?; // SIGKILL
    daemon.child.wait()?;
    assert_eq!(nics.near()?, in_force, "a killed daemon changes nothing");
    let daemon = at_work(&nics.operator, MIX)?;
    nics.client.tell("close")?;
    has(&nics, CONNECTIONS)?;
    nics.all_arrive()?;
    assert_eq!(daemon.terminated()?, Some(0));
    nics.operator.runs(&["rollback"], 0)?;
    assert_eq!(nics.near()?, before);
    Ok(())
}
