//! Measures planning time on a node with 1 000 pods: two NICs with 32 queues each under a bond, a VLAN on the
//! bond, a veth for each pod, device sections with patterns, and services matched by pod. `cargo bench -p
//! netpolicy-plan --bench node` prints the minimum and the median of several rounds, and the peak memory of
//! the process, including the node itself. `-- --once` plans once, `-- --none` not at all: the difference
//! between their instruction counts under `valgrind --tool=callgrind` is the cost of one plan.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::DeviceSelector;
use model::host::{Device, Epoll, Irq, Process, Socket, SocketState, Thread};
use model::policy::Match;
use model::{
    Cpu, CpuSet, DeliveryMode, EpollId, EpollParams, Fd, Glob, Host, Intent, IrqNumber, Label, Mechanism,
    Nanoseconds, NapiId, NetnsId, Pid, Policy, PolicyName, ProcessId, Reason, RecipeEntry, RecipeValue,
    Target, ThreadId,
};
use plan::{Resolved, desired, diff, place, select};

#[path = "../tests/plan/made.rs"]
#[expect(dead_code, reason = "only what describes a host is used here")]
mod made;

const PODS: u32 = 1_000;
const QUEUES_PER_NIC: u32 = 32;
const SERVICES: u32 = 50;
const CONNECTIONS_PER_POD: u32 = 8;
const ROUNDS: usize = 15;

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock; the crate that it measures may not"
)]
#[expect(clippy::print_stdout, reason = "a benchmark reports by printing")]
fn main() {
    let (host, policy, resolved) = (node(), policy(), resolved());
    let plan = || {
        let selection = select(&policy, &host).without_clashes().expect("one section for each device");
        let resolved = selection.noting(resolved.clone());
        let placement = place(&selection.policy, &host, &resolved).expect("placed");
        diff(&desired(&placement, &host).expect("desired"), &host).expect("planned")
    };
    let given = |option: &str| std::env::args().any(|argument| argument == option);
    if given("--none") {
        return;
    }
    let changes = black_box(plan()).changes().count();
    if given("--once") {
        return;
    }
    let before = peak_kib();
    let mut rounds: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            black_box(plan());
            begun.elapsed()
        })
        .collect();
    rounds.sort_unstable();
    println!("{PODS} pods, {} queues, {} devices: {changes} changes", 2 * QUEUES_PER_NIC, host.devices.len());
    println!(
        "select, place, desired and diff: fastest {:?}, median {:?} of {ROUNDS}",
        rounds[0],
        rounds[ROUNDS / 2]
    );
    println!(
        "peak memory of the process: {before} KiB after one plan, {} KiB after {ROUNDS} more",
        peak_kib()
    );
}

/// Returns `VmHWM` of this process in KiB; 0 if the kernel does not report it.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads /proc; the crate that it measures may not")]
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

/// Returns a node with eth0 and eth1 under bond0, with bond0.100, and with the host's end of each pod's veth.
fn node() -> Host {
    let napis = |first: u32| (first..first + QUEUES_PER_NIC).collect::<Vec<_>>();
    let mut host = made::host();
    let mut uppers = made::device(4, "bond0", &[]);
    uppers.kind = "bond".to_owned();
    for (index, name, first) in [(2, "eth0", 1_000), (3, "eth1", 2_000)] {
        let mut nic = made::device(index, name, &napis(first));
        nic.kind = "ice".to_owned();
        nic.link.master = Some(uppers.id.ifindex);
        host.devices.push(nic);
    }
    let mut vlan = made::device(5, "bond0.100", &[]);
    vlan.kind = "vlan".to_owned();
    vlan.link.lower = Some(uppers.id.ifindex);
    host.devices.extend([uppers, vlan]);
    host.devices.extend(
        (0..PODS).map(|pod| Device {
            kind: "veth".to_owned(),
            ..made::device(10 + pod, &format!("veth{pod}"), &[])
        }),
    );
    let online: CpuSet = (0..128).map(Cpu).collect();
    host.topology.online = online.clone();
    host.irqs = (0..2 * QUEUES_PER_NIC)
        .map(|at| Irq {
            number: IrqNumber(100 + at),
            name: format!("ice-eth{}-TxRx-{}", at / QUEUES_PER_NIC, at % QUEUES_PER_NIC),
            affinity: online.clone(),
            effective_affinity: CpuSet::new(),
            node: None,
            counts: Vec::new(),
        })
        .collect();
    host.processes = (0..PODS).map(|pod| server(pod, &online)).collect();
    host
}

/// Returns a pod's server in a separate network namespace. Its connections have NAPI ids of both NICs.
fn server(pod: u32, online: &CpuSet) -> Process {
    let pid = Pid(10_000 + pod);
    let id = ProcessId { pid, started: 1, comm: Label::new("server") };
    let napi = |n: u32| match n % 2 {
        0 => 1_000 + pod % QUEUES_PER_NIC,
        _ => 2_000 + pod % QUEUES_PER_NIC,
    };
    let sockets: Vec<Socket> = (0..CONNECTIONS_PER_POD)
        .map(|n| Socket {
            fd: Fd(100 + n),
            inode: u64::from(pod * CONNECTIONS_PER_POD + n),
            state: SocketState::TcpEstablished,
            local: None,
            remote: None,
            napi: Some(NapiId(napi(n))),
            polling: None,
        })
        .collect();
    let members = sockets.iter().map(|s| model::host::Membership { fd: s.fd, inode: s.inode }).collect();
    Process {
        id,
        parent: None,
        uid: 0,
        exe: "/usr/bin/server".to_owned(),
        netns: Some(NetnsId(u64::from(100 + pod))),
        container: Some(format!("shop/pod{pod} server")),
        cpuset: None,
        threads: vec![Thread {
            id: ThreadId { process: id, tid: pid, started: 1, comm: id.comm },
            affinity: online.clone(),
            waits_on: Some(Fd(4)),
        }],
        epolls: vec![Epoll {
            id: EpollId { process: id, fd: Fd(4) },
            params: Some(EpollParams::default()),
            members,
            others: 1,
        }],
        sockets,
        rings: Vec::new(),
    }
}

fn policy() -> Policy {
    let request = |target| Intent::new(target, PolicyName::Latency, "50-node.toml:1");
    let pattern = |name: &str| {
        let glob: Glob = name.parse().expect("a pattern");
        Target::Devices(name.to_owned(), DeviceSelector::by_name(glob))
    };
    let services =
        (0..SERVICES).map(|service| request(Target::Service(format!("service{service}"), Match::default())));
    let devices = [pattern("eth*"), pattern("bond*"), Target::Device("bond0.100".to_owned())].map(request);
    let mut policy = Policy { intents: devices.into_iter().chain(services).collect(), ..Policy::default() };
    let mode = DeliveryMode::Suspend { gro_flush: Nanoseconds::from_micros(20) };
    let entry = RecipeEntry::new(RecipeValue::Delivery(mode), Reason::new("bench", "bench"));
    let recipe = Arc::make_mut(&mut policy.recipes).policies.entry(PolicyName::Latency).or_default();
    recipe.entries.insert(Mechanism::Delivery, entry);
    policy
}

/// Distributes the pods' servers evenly over the services.
fn resolved() -> Resolved {
    (0..PODS).fold(Resolved::default(), |resolved, pod| {
        let intent = usize::try_from(3 + pod % SERVICES).expect("a small index");
        resolved.with(intent, [Pid(10_000 + pod)])
    })
}
