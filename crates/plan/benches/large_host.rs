//! Measures planning time on a large host: 1 024 queues, 256 CPUs, 500 services. `cargo bench -p
//! netpolicy-plan` prints one line per stage, with the minimum and the median of several rounds. In the first
//! rounds, the recipes only name a delivery mode. Then they set everything, with a layout and a service with
//! another policy, so that the device is divided.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::host::{
    Capabilities, Coalesce, Confidence, CpuInfo, Device, Epoll, Irq, IrqEdge, Membership, Napi, NapiEdge,
    Pair, PortRange, Process, Rings, RxQueueState, Socket, SocketState, Thread, Topology, TxQueueState,
};
use model::nic::Rss;
use model::policy::Match;
use model::{
    CoalesceParam, Cpu, CpuSet, Delivered, DeliveryMode, DeviceId, EmptyPolls, EpollId, EpollParams, Fd,
    Host, IfIndex, Intent, IrqNumber, KernelVersion, Label, Layout, Mechanism, Nanoseconds, NapiDelivered,
    NapiId, NetnsId, NumaNode, Pid, Policy, PolicyName, PollCounts, ProcessId, QueueIndex, Reason,
    RecipeEntry, RecipeValue, RingKind, RxQueue, Target, ThreadId, Threading,
};
use plan::{Resolved, desired, diff, doctor, place};

const QUEUES: u32 = 1024;
const CPUS: u32 = 256;
const SERVICES: u32 = 500;
const CONNECTIONS_PER_SERVICE: u32 = 16;
const ROUNDS: usize = 15;
const NETNS: NetnsId = NetnsId(1);

fn main() {
    stages("delivery modes alone", &host(), &policy());
    stages("complete recipes, a layout and a division", &rich(host()), &whole(policy()));
}

#[expect(clippy::print_stdout, reason = "a benchmark reports by printing")]
fn stages(what: &str, host: &Host, policy: &Policy) {
    let resolved = resolved();
    let placement = place(policy, host, &resolved).expect("placed");
    let wanted = desired(&placement, host).expect("desired");
    let plan = diff(&wanted, host).expect("planned");
    let counts = counts();
    let asked = placement.asked();
    println!("{QUEUES} queues, {CPUS} CPUs, {SERVICES} services, {what}: {} changes", plan.changes().count());
    timed("place", || place(policy, host, &resolved));
    timed("desired", || desired(&placement, host));
    timed("diff", || diff(&wanted, host));
    timed("place, desired and diff", || {
        let placement = place(policy, host, &resolved)?;
        diff(&desired(&placement, host)?, host)
    });
    timed("doctor", || doctor(host, Some(&counts), &asked));
}

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock; the crate that it measures may not"
)]
#[expect(clippy::print_stdout, reason = "a benchmark reports by printing")]
fn timed<T>(what: &str, mut run: impl FnMut() -> T) {
    let mut rounds: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            black_box(run());
            begun.elapsed()
        })
        .collect();
    rounds.sort_unstable();
    println!("{what:>24}: fastest {:?}, median {:?} of {ROUNDS}", rounds[0], rounds[ROUNDS / 2]);
}

/// Adds everything that a recipe can set: moderation of single queues, transmit queues, rings, RSS contexts,
/// rules, and cores on two nodes.
fn rich(mut host: Host) -> Host {
    let cores = CPUS / 2;
    let info = |cpu: u32| CpuInfo {
        cpu: Cpu(cpu),
        siblings: [Cpu(cpu % cores), Cpu(cpu % cores + cores)].into_iter().collect(),
        llc: (0..8).map(|n| Cpu(cpu % cores / 8 * 8 + n)).collect(),
        node: Some(NumaNode(cpu % cores * 2 / cores)),
    };
    host.topology.cpus = (0..CPUS).map(info).collect();
    let nic = &mut host.devices[0];
    nic.node = Some(NumaNode(0));
    let coalesce = Coalesce { rx_usecs: Some(50), adaptive_rx: Some(true), ..Coalesce::default() };
    nic.coalesce = Some(coalesce);
    for queue in &mut nic.rx_queues {
        queue.coalesce = Some(coalesce);
    }
    nic.tx_queues = (0..QUEUES)
        .map(|index| TxQueueState {
            index: QueueIndex(index),
            napi: None,
            xps_cpus: CpuSet::new(),
            xps_rxqs: Vec::new(),
        })
        .collect();
    nic.rings = Some(Rings { rx: Pair { current: 512, max: 4096 }, ..Rings::default() });
    nic.rss = Some(Rss { table: (0..QUEUES).cycle().take(2048).collect(), key: vec![1; 40] });
    nic.rss_contexts = Some(Vec::new());
    nic.flow_rules = Some(Vec::new());
    host.processes[0].sockets.push(Socket {
        fd: Fd(90),
        inode: u64::MAX,
        state: SocketState::TcpListen,
        local: Some("[::]:80".parse().expect("an address")),
        remote: None,
        napi: None,
        polling: None,
    });
    host
}

/// Adds complete recipes, and another policy for one service.
fn whole(mut policy: Policy) -> Policy {
    let values = [
        (Mechanism::Coalescing(CoalesceParam::RxUsecs), RecipeValue::Number(0)),
        (Mechanism::Coalescing(CoalesceParam::AdaptiveRx), RecipeValue::Switch(false)),
        (Mechanism::Ring(RingKind::Rx), RecipeValue::Max),
        (Mechanism::RpsCpus, RecipeValue::Cpus(CpuSet::new())),
        (Mechanism::Xps, RecipeValue::Switch(true)),
        (Mechanism::Layout, RecipeValue::Layout(Layout::OneToOne)),
    ];
    policy.intents[1].policy = PolicyName::Bulk;
    for recipe in Arc::make_mut(&mut policy.recipes).policies.values_mut() {
        for (mechanism, value) in values.clone() {
            recipe.entries.insert(mechanism, RecipeEntry::new(value, Reason::new("bench", "bench")));
        }
    }
    policy
}

/// Returns a host with one device. Half of the services have connections, each on two separate queues. The
/// other half have received no packet yet, so each of these services claims all queues.
fn host() -> Host {
    let device = DeviceId { netns: NETNS, ifindex: IfIndex(2), name: Label::new("eth0") };
    let online: CpuSet = (0..CPUS).map(Cpu).collect();
    let queue = |index| RxQueueState {
        id: RxQueue { device, index: QueueIndex(index) },
        napi: Some(NapiEdge { napi: NapiId(1000 + index), confidence: Confidence::Stated }),
        rps_cpus: CpuSet::new(),
        rps_flow_cnt: None,
        coalesce: None,
        kthread: None,
    };
    let napi = |index| Napi {
        defer_hard_irqs: Some(EmptyPolls(0)),
        gro_flush_timeout: Some(Nanoseconds::ZERO),
        irq_suspend_timeout: Some(Nanoseconds::ZERO),
        threaded: Some(Threading::Off),
        irq: Some(IrqEdge { irq: IrqNumber(100 + index), confidence: Confidence::Stated }),
        ..Napi::new(NapiId(1000 + index))
    };
    let irq = |index| Irq {
        number: IrqNumber(100 + index),
        name: format!("eth0-TxRx-{index}"),
        affinity: online.clone(),
        effective_affinity: CpuSet::new(),
        node: None,
        counts: Vec::new(),
    };
    Host {
        release: "6.18.0".to_owned(),
        kernel: KernelVersion::since(6, 18),
        capabilities: Capabilities {
            napi_set: true,
            irq_suspend: true,
            napi_threaded: true,
            napi_threaded_busy: false,
            epoll_params: true,
            epoll_events_only: false,
            ptrace: true,
            net_admin: true,
            bpf: true,
            confined_by: None,
        },
        topology: Topology { online: online.clone(), ..Topology::default() },
        netns: NETNS,
        devices: vec![Device {
            up: true,
            mtu: 1500,
            defer_hard_irqs: Some(EmptyPolls(0)),
            gro_flush_timeout: Some(Nanoseconds::ZERO),
            threaded: Some(Threading::Off),
            rx_queues: (0..QUEUES).map(queue).collect(),
            napis: (0..QUEUES).map(napi).collect(),
            ..Device::new(device, "ice")
        }],
        sysctls: BTreeMap::new(),
        rps_default_mask: CpuSet::new(),
        local_ports: PortRange::default(),
        reserved_ports: Vec::new(),
        kthread_begins: None,
        rt_throttling: None,
        irqbalance: None,
        app_requests: Vec::new(),
        listeners: Vec::new(),
        pressure: None,
        irqs: (0..QUEUES).map(irq).collect(),
        processes: (0..SERVICES).map(|service| process(service, &online)).collect(),
        unread: Vec::new(),
    }
}

fn process(service: u32, online: &CpuSet) -> Process {
    let id = ProcessId { pid: Pid(10_000 + service), started: 1, comm: Label::new("service") };
    let quiet = service >= SERVICES / 2;
    let sockets: Vec<Socket> = (0..CONNECTIONS_PER_SERVICE)
        .map(|n| Socket {
            fd: Fd(100 + n),
            inode: u64::from(service * CONNECTIONS_PER_SERVICE + n),
            state: SocketState::TcpEstablished,
            local: None,
            remote: None,
            napi: (!quiet).then_some(NapiId(1000 + service * 2 + n % 2)),
            polling: None,
        })
        .collect();
    let epolls = (0..4).map(|worker| Epoll {
        id: EpollId { process: id, fd: Fd(4 + worker) },
        params: Some(EpollParams::default()),
        members: sockets
            .iter()
            .filter(|s| s.fd.0 % 4 == worker)
            .map(|s| Membership { fd: s.fd, inode: s.inode })
            .collect(),
        others: 1,
    });
    let threads = (0..4).map(|worker| Thread {
        id: ThreadId {
            process: id,
            tid: Pid(10_000 + service * 8 + worker),
            started: 1,
            comm: Label::new("worker"),
        },
        affinity: online.clone(),
        waits_on: None,
    });
    Process {
        id,
        parent: None,
        uid: 0,
        exe: String::new(),
        netns: Some(NETNS),
        container: None,
        cpuset: None,
        threads: threads.collect(),
        epolls: epolls.collect(),
        sockets,
        rings: Vec::new(),
    }
}

fn policy() -> Policy {
    let request = |target| Intent::new(target, PolicyName::Latency, "50-large.toml:1");
    let device = request(Target::Device("eth0".to_owned()));
    let services =
        (0..SERVICES).map(|service| request(Target::Service(format!("service{service}"), Match::default())));
    let intents = std::iter::once(device).chain(services).collect();
    let mut policy = Policy { intents, ..Policy::default() };
    let modes = [
        (PolicyName::Latency, DeliveryMode::Suspend { gro_flush: Nanoseconds::from_micros(20) }),
        (PolicyName::Bulk, DeliveryMode::Defer { gro_flush: Nanoseconds::from_micros(200) }),
    ];
    for (name, mode) in modes {
        let entry = RecipeEntry::new(RecipeValue::Delivery(mode), Reason::new("bench", "bench"));
        let recipe = Arc::make_mut(&mut policy.recipes).policies.entry(name).or_default();
        recipe.entries.insert(Mechanism::Delivery, entry);
    }
    policy
}

fn resolved() -> Resolved {
    (0..SERVICES).fold(Resolved::default(), |resolved, service| {
        let intent = usize::try_from(service + 1).expect("a small index");
        resolved.with(intent, [Pid(10_000 + service)])
    })
}

fn counts() -> Delivered {
    let some = PollCounts { polls: 1_000, packets: 10_000, empty: 100 };
    let napi = |index| NapiDelivered {
        napi: NapiId(1000 + index),
        device: "eth0".to_owned(),
        interrupt: some,
        timer: some,
        application: some,
        kthread: PollCounts::default(),
        by_process: vec![(Pid(10_000), some)],
        timer_armed: 1_000,
        timer_expired: 1_000,
        timer_armed_max: Nanoseconds::from_millis(20),
        suspended: 500,
    };
    Delivered {
        interval: Nanoseconds(1_000_000_000),
        napis: (0..QUEUES).map(napi).collect(),
        ..Delivered::default()
    }
}
