//! Tests servers in other network namespaces, such as those of pods. The daemon detects a server when it
//! listens, and sets it at its first connection.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::{Processes, observe};
use model::Pid;
use serde_json::Value;
use testkit::operator::{Operator, at_work, flushes, waited_for};
use testkit::{Need, repeated, test};

use crate::stacks::kind;

/// A port other than memcached's default, which other servers on the machine may use.
const PORT: u16 = 11_977;
const POD: &str = "192.0.2.3";

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] =
        &[Need::Root, Need::Bpf, Need::Memcached, Need::Suspension, Need::Link(kind::MACVLAN)];
    vec![
        test("pods/a_server_is_set_with_its_first_connection_and_put_back", NEEDS, repeated(by_port)),
        test("pods/a_server_that_only_a_pattern_names_is_noticed_when_it_listens", NEEDS, by_pattern),
        test("pods/a_udp_server_is_noticed_when_it_binds_and_set_after_its_first_datagram", NEEDS, by_udp),
        test(
            "pods/a_server_of_tcp_and_udp_is_set_after_its_first_datagram_and_its_connection_later",
            NEEDS,
            by_both,
        ),
        test("pods/without_bpf_a_new_server_and_its_first_connection_are_found_by_scans", NEEDS, without_bpf),
    ]
}

/// A network namespace with a macvlan on the lab's device, and memcached in it.
struct Pod(Vec<Child>);

impl Pod {
    /// Creates the namespace without a server.
    fn new(operator: &Operator) -> Result<Self, Failed> {
        let mut pod = Self(Vec::new());
        pod.0.push(Command::new("unshare").args(["--net", "sleep", "300"]).stdin(Stdio::null()).spawn()?);
        let holder = pod.0[0].id();
        let own = std::fs::read_link("/proc/self/ns/net")?;
        waited_for("the pod's namespace", || {
            let theirs = std::fs::read_link(format!("/proc/{holder}/ns/net"))?;
            Ok((theirs != own).then_some(()))
        })?;
        let device = linux::lab::SERVER_DEVICE;
        operator.inside(&format!(
            "ip link add link {device} name pod0 netns {holder} type macvlan mode bridge"
        ))?;
        for command in ["ip link set lo up", "ip link set pod0 up"] {
            pod.runs(command)?;
        }
        pod.runs(&format!("ip addr add {POD}/24 dev pod0"))?;
        Ok(pod)
    }

    fn inside(&self, command: &str) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/proc/{}/ns/net", self.0[0].id())).args(command.split(' '));
        inside.stdin(Stdio::null());
        inside
    }

    fn runs(&self, command: &str) -> Result<(), Failed> {
        let status = self.inside(command).status()?;
        status.success().then_some(()).ok_or_else(|| format!("{command}: {status}").into())
    }

    /// Starts the pod's server.
    fn serves(&mut self, program: &str) -> Result<Pid, Failed> {
        self.serves_by(program, &format!("-U 0 -p {PORT}"))
    }

    /// Starts the pod's server with these port options.
    fn serves_by(&mut self, program: &str, ports: &str) -> Result<Pid, Failed> {
        let memcached = format!("{program} -u root -t 1 -l {POD} {ports}");
        self.0.push(self.inside(&memcached).spawn()?);
        Ok(Pid(self.0[1].id()))
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        for child in self.0.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Opens a connection to the pod's server, and waits for an answer.
fn connected(operator: &Operator) -> Result<TcpStream, Failed> {
    let address: SocketAddr = format!("{POD}:{PORT}").parse()?;
    let stream = waited_for("the pod's server", || {
        Ok(operator.lab.client().run(|| TcpStream::connect(address))?.ok())
    })?;
    let mut connection = BufReader::new(stream);
    connection.get_mut().write_all(b"version\r\n")?;
    let mut answer = String::new();
    connection.read_line(&mut answer)?;
    if answer.starts_with("VERSION") { Ok(connection.into_inner()) } else { Err(answer.into()) }
}

/// Returns how many of a process's epolls prefer busy polling.
fn polling(operator: &Operator, pid: Pid) -> Result<usize, Failed> {
    let host = observe(operator.lab.server(), &Processes::Only(vec![pid]))?;
    let process = host.process(pid).ok_or("the server is not observed")?;
    Ok(process
        .epolls
        .iter()
        .filter(|epoll| epoll.params.is_some_and(|params| params.prefer_busy_poll))
        .count())
}

/// Returns the number of events of this kind that the daemon has received.
fn events(operator: &Operator, kind: &str) -> Result<u64, Failed> {
    let status: Value = serde_json::from_str(&operator.runs(&["-o", "json", "status"], 0)?.data)?;
    Ok(status["data"]["counters"]["events"][kind].as_u64().unwrap_or(0))
}

/// Tests a match by port. A scan of the new process's epolls may find its first connection before the event
/// reports it.
fn by_port() -> Result<(), Failed> {
    let operator = Operator::new("pod-port", 1)?;
    let mut pod = Pod::new(&operator)?;
    let policy = format!(
        "[service.pod]\nmatch = {{ port = {PORT} }}\npolicy = \"latency\"\ndelivery = \"suspend20\"\n"
    );
    let daemon = at_work(&operator, &policy)?;
    let pid = pod.serves("memcached")?;
    waited_for("the event of its listener", || Ok((events(&operator, "listener")? > 0).then_some(())))?;
    // The process's NAPI is not known yet. netpolicy must not mistake the NIC's queue for a queue of the pod.
    assert_eq!((polling(&operator, pid)?, flushes(&operator.devices()?)), (0, vec![0]));
    let client = connected(&operator)?;
    waited_for("its epolls", || Ok((polling(&operator, pid)? > 0).then_some(())))?;
    waited_for("the queue", || Ok((flushes(&operator.devices()?) == [20_000]).then_some(())))?;
    let awaited = events(&operator, "connection")?;
    assert!(awaited > 0, "the server's first connection was an event");
    let more = connected(&operator)?;
    assert_eq!(
        events(&operator, "connection")?,
        awaited,
        "once the first connection is set up, no other is awaited"
    );
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    assert_eq!((polling(&operator, pid)?, flushes(&operator.devices()?)), (0, vec![0]));
    drop((client, more));
    Ok(())
}

fn by_pattern() -> Result<(), Failed> {
    let operator = Operator::new("pod-pattern", 1)?;
    let mut pod = Pod::new(&operator)?;
    // If the section has a glob, BPF has neither a port nor a name to compare.
    let policy =
        "[service.pod]\nmatch = { exe = \"np-pod-cach?\" }\npolicy = \"latency\"\ndelivery = \"suspend20\"\n";
    let program = operator.state().with_file_name("np-pod-cache");
    std::fs::copy("/usr/bin/memcached", &program)?;
    let daemon = at_work(&operator, policy)?;
    let before = events(&operator, "listener")?;
    let pid = pod.serves(&program.display().to_string())?;
    waited_for("the event of its listener", || Ok((events(&operator, "listener")? > before).then_some(())))?;
    let client = connected(&operator)?;
    waited_for("its epolls", || Ok((polling(&operator, pid)? > 0).then_some(())))?;
    assert_eq!(daemon.terminated()?, Some(0));
    drop(client);
    Ok(())
}

/// Sends a memcached version request by UDP, with memcached's frame header, and receives the answer.
fn asked_by_datagram(operator: &Operator) -> Result<(), Failed> {
    const REQUEST: &[u8] = b"\0\x01\0\0\0\x01\0\0version\r\n";
    waited_for("an answer by UDP", || {
        let answered = operator.lab.client().run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_read_timeout(Some(Duration::from_millis(500)))?;
            socket.send_to(REQUEST, (POD, PORT))?;
            let mut answer = [0; 64];
            socket.recv(&mut answer).map(|length| answer[..length].ends_with(b"\r\n"))
        })?;
        Ok(answered.is_ok_and(|whole| whole).then_some(()))
    })
}

/// Tests a match by UDP port. The daemon also scans a new process's epolls, and the scan may find the first
/// datagram before the event reports it.
fn by_udp() -> Result<(), Failed> {
    const ATTEMPTS_MAX: usize = 5;
    for attempt in 1..=ATTEMPTS_MAX {
        if is_found_by_a_scan(attempt)? {
            return Ok(());
        }
    }
    Err(format!("no scan found the first datagram of any of {ATTEMPTS_MAX} servers").into())
}

/// Starts a server in a new pod, and returns whether a scan found it.
fn is_found_by_a_scan(attempt: usize) -> Result<bool, Failed> {
    let operator = Operator::new(&format!("pod-udp-{attempt}"), 1)?;
    let mut pod = Pod::new(&operator)?;
    let policy = format!(
        "[service.pod]\nmatch = {{ port = {PORT} }}\npolicy = \"latency\"\ndelivery = \"suspend20\"\n"
    );
    let daemon = at_work(&operator, &policy)?;
    let pid = pod.serves_by("memcached", &format!("-p 0 -U {PORT}"))?;
    waited_for("the event of its port", || Ok((events(&operator, "listener")? > 0).then_some(())))?;
    assert_eq!((polling(&operator, pid)?, flushes(&operator.devices()?)), (0, vec![0]));
    asked_by_datagram(&operator)?;
    waited_for("its epolls", || Ok((polling(&operator, pid)? > 0).then_some(())))?;
    let by_scan = events(&operator, "connection")? > 0;
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(by_scan)
}

fn by_both() -> Result<(), Failed> {
    let operator = Operator::new("pod-both", 1)?;
    let mut pod = Pod::new(&operator)?;
    let policy = format!(
        "[service.pod]\nmatch = {{ port = {PORT} }}\npolicy = \"latency\"\ndelivery = \"suspend20\"\n"
    );
    let daemon = at_work(&operator, &policy)?;
    let pid = pod.serves_by("memcached", &format!("-p {PORT} -U {PORT}"))?;
    waited_for("the event of its ports", || Ok((events(&operator, "listener")? > 0).then_some(())))?;
    assert_eq!((polling(&operator, pid)?, flushes(&operator.devices()?)), (0, vec![0]));
    asked_by_datagram(&operator)?;
    waited_for("the epolls of the server, found by the datagram", || {
        Ok((polling(&operator, pid)? > 0).then_some(()))
    })?;
    waited_for("the queue", || Ok((flushes(&operator.devices()?) == [20_000]).then_some(())))?;
    let client = connected(&operator)?;
    assert!(polling(&operator, pid)? > 0, "the connection changes no setting");
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    assert_eq!((polling(&operator, pid)?, flushes(&operator.devices()?)), (0, vec![0]));
    drop(client);
    Ok(())
}

fn without_bpf() -> Result<(), Failed> {
    let operator = Operator::new("pod-scans", 1)?;
    let mut pod = Pod::new(&operator)?;
    operator.asks(&format!(
        "[service.pod]\nmatch = {{ port = {PORT} }}\npolicy = \"latency\"\ndelivery = \"suspend20\"\n"
    ))?;
    let whole = operator.netpolicy(&["daemon"]);
    let mut hidden = Command::new("unshare");
    hidden.args(["--mount", "sh", "-c", "mount -t tmpfs tmpfs /sys/kernel/btf && exec \"$@\"", "sh"]);
    hidden.arg(whole.get_program()).args(whole.get_args()).stdin(Stdio::null());
    let daemon = operator.starts_command(hidden)?;
    operator.waits_to_hear("at work")?;
    let pid = pod.serves("memcached")?;
    waited_for("the server, by a scan", || Ok((events(&operator, "exec")? > 0).then_some(())))?;
    assert_eq!((polling(&operator, pid)?, events(&operator, "listener")?), (0, 0), "BPF reports nothing");
    let client = connected(&operator)?;
    waited_for("its epolls", || Ok((polling(&operator, pid)? > 0).then_some(())))?;
    assert_eq!(daemon.terminated()?, Some(0));
    drop(client);
    Ok(())
}
