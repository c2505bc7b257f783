//! Constructs hosts, policies and counts for tests, and applies settings as a kernel would.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::host::{
    Capabilities, Channels, Coalesce, Confidence, CpuInfo, Device, Epoll, Features, HolderKind,
    HolderProcess, Irq, IrqEdge, Membership, Napi, NapiEdge, Pair, PlacedRule, PortRange, Process,
    QueueHolder, RssContext, RxQueueState, Socket, SocketState, Thread, Topology, TxQueueState,
};
use model::policy::Match;
use model::{
    ChannelKind, CoalesceParam, Cpu, CpuSet, Delivered, DeliveryMode, DeviceId, DeviceNapiKnob, EmptyPolls,
    EpollId, EpollParams, Fd, Host, HostKnob, IfIndex, Intent, IrqKnob, IrqNumber, KernelVersion,
    KthreadKnob, KthreadState, Label, Mechanism, Nanoseconds, NapiDelivered, NapiId, NapiKnob, NetnsId,
    NicKnob, PacketSize, Pid, Policy, PolicyName, PollCounts, ProcessId, ProcessKnob, QueueIndex, Reason,
    RecipeEntry, RecipeValue, Recipes, RingKind, RtThrottling, RxQueue, RxQueueKnob, Scheduling, Setting,
    Slice, Target, ThreadId, Threading, TxQueue, TxQueueKnob, UtilClamp,
};

pub(crate) const NETNS: NetnsId = NetnsId(4_026_531_840);

/// A host with Linux 6.18 and four CPUs, otherwise empty.
pub(crate) fn host() -> Host {
    let online: CpuSet = (0..4).map(Cpu).collect();
    let cpus = online.iter().map(|cpu| CpuInfo {
        cpu,
        siblings: [cpu].into_iter().collect(),
        llc: online.clone(),
        node: None,
    });
    Host {
        release: "6.18.44".to_owned(),
        kernel: KernelVersion { major: 6, minor: 18, patch: 44 },
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
        topology: Topology { isolated: CpuSet::new(), sched_ext: None, cpus: cpus.collect(), online },
        netns: NETNS,
        devices: Vec::new(),
        sysctls: BTreeMap::new(),
        rps_default_mask: CpuSet::new(),
        local_ports: PortRange::default(),
        reserved_ports: Vec::new(),
        kthread_begins: Some(KthreadState {
            pid: None,
            cpus: (0..4).map(Cpu).collect(),
            scheduling: Some(Scheduling::Other(0)),
            util_clamp: Some(UtilClamp::NONE),
            slice: Some(Slice::Default),
        }),
        rt_throttling: Some(RtThrottling { runtime_us: 950_000, period_us: 1_000_000 }),
        irqbalance: None,
        pressure: None,
        irqs: Vec::new(),
        processes: Vec::new(),
        app_requests: Vec::new(),
        listeners: Vec::new(),
        unread: Vec::new(),
    }
}

/// Gives a host another kernel version.
pub(crate) fn with_kernel(mut host: Host, release: &str) -> Host {
    let kernel = KernelVersion::parse(release).expect("a release");
    host.release = release.to_owned();
    host.kernel = kernel;
    host.capabilities.napi_set = kernel >= KernelVersion::since(6, 13);
    host.capabilities.irq_suspend = kernel >= KernelVersion::since(6, 13);
    host.capabilities.napi_threaded = kernel >= KernelVersion::since(6, 17);
    host.capabilities.epoll_params = kernel >= KernelVersion::since(6, 9);
    host
}

pub(crate) fn device_id(ifindex: u32, name: &str) -> DeviceId {
    DeviceId { netns: NETNS, ifindex: IfIndex(ifindex), name: Label::new(name) }
}

/// A device with as many queues as NAPI ids, without settings.
pub(crate) fn device(ifindex: u32, name: &str, napis: &[u32]) -> Device {
    let id = device_id(ifindex, name);
    let queue = |(index, &napi): (u32, &u32)| RxQueueState {
        id: RxQueue { device: id, index: QueueIndex(index) },
        napi: Some(NapiEdge { napi: NapiId(napi), confidence: Confidence::Stated }),
        rps_cpus: CpuSet::new(),
        rps_flow_cnt: None,
        coalesce: None,
        kthread: None,
    };
    let queues = u32::try_from(napis.len()).expect("few queues");
    Device {
        up: true,
        mtu: 1500,
        defer_hard_irqs: Some(EmptyPolls(0)),
        gro_flush_timeout: Some(Nanoseconds::ZERO),
        threaded: Some(Threading::Off),
        rx_queues: (0..).zip(napis).map(queue).collect(),
        napis: napis.iter().map(|&id| napi(id)).collect(),
        channels: Some(Channels {
            combined: Pair { current: queues, max: queues.max(8) },
            ..Channels::default()
        }),
        ..Device::new(id, "ice")
    }
}

/// Returns a holder of a receive queue. An AF_XDP holder also holds the transmit queue with the same number.
pub(crate) fn held(queue: u32, kind: HolderKind) -> QueueHolder {
    let id = ProcessId { pid: Pid(700), started: 7, comm: Label::new("xdpd") };
    QueueHolder {
        queue: QueueIndex(queue),
        rx: true,
        tx: !kind.is_provider(),
        kind,
        processes: vec![HolderProcess { id, confidence: Confidence::Stated }],
    }
}

/// Returns this many transmit queues, on each of which any CPU may send.
pub(crate) fn tx_queues(count: u32) -> Vec<TxQueueState> {
    let queue = |index| TxQueueState {
        index: QueueIndex(index),
        napi: None,
        xps_cpus: CpuSet::new(),
        xps_rxqs: Vec::new(),
    };
    (0..count).map(queue).collect()
}

/// One end of a veth whose other end is in another namespace.
pub(crate) fn veth(ifindex: u32, name: &str, napis: &[u32]) -> Device {
    let queues = u32::try_from(napis.len()).expect("few queues");
    Device {
        kind: "veth".to_owned(),
        peer: Some("if7 of netnsid 0".to_owned()),
        channels: Some(Channels { rx: Pair { current: queues, max: 4 }, ..Channels::default() }),
        features: Features { gro: Some(!napis.is_empty()), tso: Some(true), ..Features::default() },
        ..device(ifindex, name, napis)
    }
}

/// Gives each queue of the last device an interrupt, numbered from `first`.
pub(crate) fn with_irqs(mut host: Host, first: u32) -> Host {
    let online = host.topology.online.clone();
    let device = host.devices.last_mut().expect("a device");
    for (napi, number) in device.napis.iter_mut().zip(first..) {
        napi.irq = Some(IrqEdge { irq: IrqNumber(number), confidence: Confidence::Stated });
        host.irqs.push(Irq {
            number: IrqNumber(number),
            name: format!("{}-TxRx-{}", device.id, number - first),
            affinity: online.clone(),
            effective_affinity: online.clone(),
            node: None,
            counts: Vec::new(),
        });
    }
    host
}

fn napi(id: u32) -> Napi {
    Napi {
        defer_hard_irqs: Some(EmptyPolls(0)),
        gro_flush_timeout: Some(Nanoseconds::ZERO),
        irq_suspend_timeout: Some(Nanoseconds::ZERO),
        threaded: Some(Threading::Off),
        ..Napi::new(NapiId(id))
    }
}

/// Sets every NAPI of a device to these values: empty polls, microseconds and milliseconds.
pub(crate) fn set_napis(device: &mut Device, defer: u32, flush_us: u64, suspend_ms: u64) {
    for napi in &mut device.napis {
        napi.defer_hard_irqs = Some(EmptyPolls(defer));
        napi.gro_flush_timeout = Some(Nanoseconds::from_micros(flush_us));
        napi.irq_suspend_timeout = Some(Nanoseconds::from_millis(suspend_ms));
    }
}

pub(crate) fn process_id(pid: u32, comm: &str) -> ProcessId {
    ProcessId { pid: Pid(pid), started: 1000, comm: Label::new(comm) }
}

/// Returns a process with one worker thread and one epoll for each list of connections. A connection is given
/// by the id of the NAPI on which it receives; 0 means none.
pub(crate) fn server(pid: u32, comm: &str, workers: &[&[u32]]) -> Process {
    let id = process_id(pid, comm);
    let (mut threads, mut epolls, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
    let mut inode = u64::from(pid) * 1000;
    for (worker, connections) in (0_u32..).zip(workers) {
        let mut members = Vec::new();
        for &napi in *connections {
            let fd = Fd(100 + u32::try_from(sockets.len()).expect("few sockets"));
            inode += 1;
            members.push(Membership { fd, inode });
            sockets.push(Socket {
                fd,
                inode,
                state: SocketState::TcpEstablished,
                local: Some("10.0.0.1:11211".parse().expect("address")),
                remote: Some("10.0.0.2:40000".parse().expect("address")),
                napi: (napi != 0).then_some(NapiId(napi)),
                polling: None,
            });
        }
        let fd = Fd(7 + worker);
        epolls.push(Epoll {
            id: EpollId { process: id, fd },
            params: Some(EpollParams::default()),
            members,
            others: 1,
        });
        let tid = Pid(pid + worker);
        threads.push(Thread {
            id: ThreadId { process: id, tid, started: 1000, comm: Label::new("worker") },
            affinity: (0..4).map(Cpu).collect(),
            waits_on: Some(fd),
        });
    }
    let (uid, exe, rings, cpuset) = (0, format!("/usr/bin/{comm}"), Vec::new(), None);
    let container = None;
    Process {
        id,
        parent: None,
        uid,
        exe,
        netns: Some(NETNS),
        container,
        cpuset,
        threads,
        epolls,
        sockets,
        rings,
    }
}

/// Makes an epoll of a process watch a listening socket as well.
pub(crate) fn listen(process: &mut Process, epoll: usize) {
    let inode = u64::from(process.id.pid.0) * 1000 + 900;
    let fd = Fd(90);
    process.epolls[epoll].members.push(Membership { fd, inode });
    let state = SocketState::TcpListen;
    let local = Some("0.0.0.0:11211".parse().expect("address"));
    process.sockets.push(Socket { fd, inode, state, local, remote: None, napi: None, polling: None });
}

/// Sets every epoll of a process to the parameters of a mode.
pub(crate) fn set_epolls(process: &mut Process, mode: DeliveryMode) {
    for epoll in &mut process.epolls {
        epoll.params = Some(mode.params().epoll);
    }
}

pub(crate) fn suspend(micros: u64) -> DeliveryMode {
    DeliveryMode::Suspend { gro_flush: Nanoseconds::from_micros(micros) }
}

pub(crate) fn defer(micros: u64) -> DeliveryMode {
    DeliveryMode::Defer { gro_flush: Nanoseconds::from_micros(micros) }
}

/// Returns a request that comes from line `line` of a policy file.
pub(crate) fn intent(line: u32, target: Target, policy: PolicyName) -> Intent {
    Intent::new(target, policy, format!("10-cache.toml:{line}"))
}

pub(crate) fn on_device(line: u32, name: &str, policy: PolicyName) -> Intent {
    intent(line, Target::Device(name.to_owned()), policy)
}

pub(crate) fn on_task(line: u32, pid: u32, policy: PolicyName) -> Intent {
    intent(line, Target::Task(Pid(pid)), policy)
}

pub(crate) fn on_service(line: u32, name: &str, policy: PolicyName) -> Intent {
    intent(line, Target::Service(name.to_owned(), Match::default()), policy)
}

/// Gives a request an explicit delivery mode.
pub(crate) fn named(mode: DeliveryMode, intent: Intent) -> Intent {
    Intent { delivery: Some(mode), ..intent }
}

pub(crate) fn policy(intents: impl IntoIterator<Item = Intent>) -> Policy {
    Policy {
        intents: intents.into_iter().collect(),
        recipes: Arc::new(recipes()),
        disruptive: false,
        inferred: false,
    }
}

/// Returns recipes that only name a delivery mode.
pub(crate) fn recipes() -> Recipes {
    let modes = [
        (PolicyName::Latency, suspend(20)),
        (PolicyName::Cpu, suspend(200)),
        (PolicyName::Bulk, defer(200)),
        (PolicyName::Mix, DeliveryMode::Interrupt),
        (PolicyName::Power, defer(500)),
    ];
    let mut recipes = Recipes::default();
    for (policy, mode) in modes {
        let because = Reason::new(format!("{mode} suits {policy}"), "recipe of a test");
        let entry = RecipeEntry::new(RecipeValue::Delivery(mode), because);
        let recipe = recipes.policies.entry(policy).or_default();
        recipe.entries.insert(Mechanism::Delivery, entry);
    }
    recipes
}

/// The counts of one NAPI over a second, as the feasibility study reports them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counted {
    pub(crate) packets: u64,
    /// The percentage of these packets that the application delivered.
    pub(crate) share: u64,
    pub(crate) interrupt_polls: u64,
    pub(crate) timer_polls: u64,
    pub(crate) timer_empty: u64,
    pub(crate) application_polls: u64,
    pub(crate) armed: u64,
    pub(crate) suspended: u64,
}

impl Counted {
    pub(crate) fn on(self, napi: u32) -> NapiDelivered {
        let by_application = self.packets * self.share / 100;
        let rest = self.packets - by_application;
        // All softirq packets count for the kind of softirq poll that occurred more often.
        let timer = if self.timer_polls >= self.interrupt_polls { rest } else { 0 };
        let application = PollCounts { polls: self.application_polls, packets: by_application, empty: 0 };
        NapiDelivered {
            napi: NapiId(napi),
            device: "veth0".to_owned(),
            interrupt: PollCounts { polls: self.interrupt_polls, packets: rest - timer, empty: 0 },
            timer: PollCounts { polls: self.timer_polls, packets: timer, empty: self.timer_empty },
            application,
            kthread: PollCounts::default(),
            by_process: vec![(Pid(812), application)],
            timer_armed: self.armed,
            timer_expired: self.timer_polls,
            timer_armed_max: Nanoseconds::from_millis(20),
            suspended: self.suspended,
        }
    }
}

/// The counts of these NAPIs over a second.
pub(crate) fn delivered(napis: impl IntoIterator<Item = NapiDelivered>) -> Delivered {
    Delivered {
        interval: Nanoseconds(1_000_000_000),
        napis: napis.into_iter().collect(),
        ..Delivered::default()
    }
}

/// Applies a setting to the host, as the kernel would.
pub(crate) fn write(host: &mut Host, setting: &Setting) {
    let napi_of = |host: &Host, queue: RxQueue| host.napi_of(queue).expect("a NAPI").id;
    let set_napi = |host: &mut Host, queue: RxQueue, set: &dyn Fn(&mut Napi)| {
        let id = napi_of(host, queue);
        set(host.devices.iter_mut().flat_map(|d| &mut d.napis).find(|n| n.id == id).expect("a NAPI"));
    };
    let device_of =
        |host: &mut Host, id: DeviceId| host.devices.iter().position(|d| d.id == id).expect("a device");
    match setting {
        Setting::Napi(queue, NapiKnob::DeferHardIrqs(polls)) => {
            set_napi(host, *queue, &|napi| napi.defer_hard_irqs = Some(*polls));
        }
        Setting::Napi(queue, NapiKnob::GroFlushTimeout(span)) => {
            set_napi(host, *queue, &|napi| napi.gro_flush_timeout = Some(*span));
        }
        Setting::Napi(queue, NapiKnob::IrqSuspendTimeout(span)) => {
            set_napi(host, *queue, &|napi| napi.irq_suspend_timeout = Some(*span));
        }
        Setting::Napi(queue, NapiKnob::Threaded(threading)) => {
            set_napi(host, *queue, &|napi| napi.threaded = Some(*threading));
            let begun = begun(host, *threading);
            *kthread_of(host, *queue) = begun;
        }
        Setting::DeviceNapis(id, DeviceNapiKnob::DeferHardIrqs(polls)) => {
            let device = device_of(host, *id);
            host.devices[device].defer_hard_irqs = Some(*polls);
        }
        Setting::DeviceNapis(id, DeviceNapiKnob::GroFlushTimeout(span)) => {
            let device = device_of(host, *id);
            host.devices[device].gro_flush_timeout = Some(*span);
        }
        Setting::DeviceNapis(id, DeviceNapiKnob::Threaded(threading)) => {
            let device = device_of(host, *id);
            let device = &mut host.devices[device];
            device.threaded = Some(*threading);
            for napi in &mut device.napis {
                napi.threaded = Some(*threading);
            }
            let begun = begun(host, *threading);
            for queue in &mut host.devices.iter_mut().find(|d| d.id == *id).expect("a device").rx_queues {
                queue.kthread.clone_from(&begun);
            }
        }
        Setting::Process(ProcessKnob::Epoll(id, params)) => {
            let mut epolls = host.processes.iter_mut().flat_map(|p| &mut p.epolls);
            epolls.find(|e| e.id == *id).expect("an epoll").params = Some(*params);
        }
        Setting::Process(ProcessKnob::IoUring(id, napi)) => {
            let mut rings = host.processes.iter_mut().flat_map(|p| &mut p.rings);
            rings.find(|r| r.id == *id).expect("a ring").napi = *napi;
        }
        Setting::Process(ProcessKnob::Socket(id, polling)) => {
            let process = host.processes.iter_mut().find(|p| p.id == id.process).expect("a process");
            let socket = process.sockets.iter_mut().find(|s| s.inode == id.inode).expect("a socket");
            socket.polling = Some(*polling);
        }
        Setting::Process(ProcessKnob::Reuseport(id, spread)) => {
            host.listeners.iter_mut().find(|group| group.id == *id).expect("a group").spread = spread.clone();
        }
        Setting::Irq(number, IrqKnob::Affinity(cpus)) => {
            host.irqs.iter_mut().find(|i| i.number == *number).expect("an IRQ").affinity = cpus.clone();
        }
        Setting::Irq(number, IrqKnob::Ban(banned)) => {
            let bans =
                host.irqbalance.as_mut().and_then(|running| running.banned.as_mut()).expect("irqbalance");
            if *banned {
                bans.insert(*number)
            } else {
                bans.remove(number)
            };
        }
        Setting::Process(ProcessKnob::ThreadAffinity(id, cpus)) => {
            let mut threads = host.processes.iter_mut().flat_map(|p| &mut p.threads);
            threads.find(|t| t.id == *id).expect("a thread").affinity = cpus.clone();
        }
        Setting::Kthread(queue, KthreadKnob::Affinity(cpus)) => {
            kthread_of(host, *queue).as_mut().expect("a thread").cpus = cpus.clone();
        }
        Setting::Kthread(queue, KthreadKnob::Scheduling(class)) => {
            kthread_of(host, *queue).as_mut().expect("a thread").scheduling = Some(*class);
        }
        Setting::Kthread(queue, KthreadKnob::UtilClamp(clamp)) => {
            kthread_of(host, *queue).as_mut().expect("a thread").util_clamp = Some(*clamp);
        }
        Setting::Kthread(queue, KthreadKnob::Slice(slice)) => {
            kthread_of(host, *queue).as_mut().expect("a thread").slice = Some(*slice);
        }
        Setting::Host(HostKnob::Sysctl(number, value)) => {
            host.sysctls.insert(*number, *value);
        }
        Setting::Nic(_, NicKnob::Channels(..))
        | Setting::Nic(_, NicKnob::Ring(..))
        | Setting::Nic(_, NicKnob::Coalescing(..))
        | Setting::RxQueue(_, RxQueueKnob::Coalescing(..))
        | Setting::Nic(_, NicKnob::Offload(..))
        | Setting::Nic(_, NicKnob::PacketSize(..))
        | Setting::Nic(_, NicKnob::PrivateFlag(..))
        | Setting::Nic(_, NicKnob::RssTable(..))
        | Setting::Nic(_, NicKnob::RssKey(..))
        | Setting::Nic(_, NicKnob::RssContext(..))
        | Setting::Nic(_, NicKnob::FlowRule(..))
        | Setting::Nic(_, NicKnob::Qdiscs(..))
        | Setting::RxQueue(_, RxQueueKnob::RpsCpus(..))
        | Setting::RxQueue(_, RxQueueKnob::RpsFlowCount(..))
        | Setting::TxQueue(_, TxQueueKnob::XpsCpus(..))
        | Setting::TxQueue(_, TxQueueKnob::XpsRxQueues(..)) => {
            let id = setting.object().device().expect("a device");
            let device = device_of(host, id);
            let before = host.devices[device].channels;
            write_nic(&mut host.devices[device], setting);
            if let (Some(before), Setting::Nic(_, NicKnob::Channels(..))) = (before, setting) {
                make_queues(host, device, before);
            }
        }
    }
}

/// Changes the receive queues of a device after its channels changed. New queues are copies of the first one.
fn make_queues(host: &mut Host, device: usize, before: Channels) {
    let device = &mut host.devices[device];
    let now = device.channels.expect("channels");
    let count = |there: usize, of: fn(&Channels) -> u32| {
        let there = u32::try_from(there).expect("few queues");
        usize::try_from(there + of(&now) - of(&before)).expect("few queues")
    };
    let rx = count(device.rx_queues.len(), |channels| channels.rx.current + channels.combined.current);
    let first = (device.rx_queues[0].clone(), device.napis.first().cloned());
    for gone in device.napis.drain(rx.min(device.napis.len())..) {
        host.irqs.retain(|irq| gone.irq.is_none_or(|edge| edge.irq != irq.number));
    }
    device.rx_queues.truncate(rx);
    for at in device.rx_queues.len()..rx {
        let index = u32::try_from(at).expect("few queues");
        let id = RxQueue { index: QueueIndex(index), ..first.0.id };
        let Some(like) = &first.1 else { continue };
        let napi = NapiId(like.id.0 + index);
        let edge = first.0.napi.map(|edge| NapiEdge { napi, ..edge });
        device.rx_queues.push(RxQueueState { id, napi: edge, ..first.0.clone() });
        let irq = like.irq.map(|edge| IrqEdge { irq: IrqNumber(edge.irq.0 + index), ..edge });
        device.napis.push(Napi { id: napi, irq, ..like.clone() });
        let of_first = like.irq.and_then(|edge| host.irqs.iter().find(|irq| irq.number == edge.irq).cloned());
        host.irqs.extend(of_first.zip(irq).map(|(like, edge)| Irq {
            number: edge.irq,
            name: format!("{}-TxRx-{index}", device.id),
            ..like
        }));
    }
}

/// Returns the initial state of a NAPI's kernel thread; `None` without threading.
fn begun(host: &Host, threading: Threading) -> Option<KthreadState> {
    let begins = host.kthread_begins.clone().filter(|_| threading != Threading::Off);
    begins.map(|begins| KthreadState { pid: Some(Pid(400)), ..begins })
}

fn kthread_of(host: &mut Host, queue: RxQueue) -> &mut Option<KthreadState> {
    let mut queues = host.devices.iter_mut().flat_map(|device| &mut device.rx_queues);
    &mut queues.find(|state| state.id == queue).expect("a queue").kthread
}

/// Applies a setting of a NIC and its driver.
fn write_nic(device: &mut Device, setting: &Setting) {
    let rx = |device: &mut Device, queue: &RxQueue| {
        device.rx_queues.iter().position(|q| q.id == *queue).expect("a receive queue")
    };
    let tx = |device: &mut Device, queue: &TxQueue| {
        device.tx_queues.iter().position(|q| q.index == queue.index).expect("a transmit queue")
    };
    match setting {
        Setting::Nic(_, NicKnob::Channels(kind, count)) => {
            let channels = device.channels.as_mut().expect("channels");
            match kind {
                ChannelKind::Rx => channels.rx.current = *count,
                ChannelKind::Tx => channels.tx.current = *count,
                ChannelKind::Combined => channels.combined.current = *count,
            }
        }
        Setting::Nic(_, NicKnob::Ring(kind, size)) => {
            let rings = device.rings.as_mut().expect("rings");
            match kind {
                RingKind::Rx => rings.rx.current = *size,
                RingKind::Tx => rings.tx.current = *size,
            }
        }
        Setting::Nic(_, NicKnob::Coalescing(param, value)) => {
            set_coalesce(device.coalesce.as_mut().expect("coalescing"), *param, *value);
        }
        Setting::RxQueue(queue, RxQueueKnob::Coalescing(param, value)) => {
            let queue = rx(device, queue);
            let of_queue = device.rx_queues[queue].coalesce.as_mut().expect("coalescing");
            set_coalesce(of_queue, param.of_device(), *value);
        }
        Setting::Nic(_, NicKnob::Offload(offload, on)) => {
            device.offloads.insert(*offload, *on);
        }
        Setting::Nic(_, NicKnob::PacketSize(size, bytes)) => {
            let sizes = &mut device.packet_sizes;
            *match size {
                PacketSize::Gso => &mut sizes.gso_max_size,
                PacketSize::Gro => &mut sizes.gro_max_size,
                PacketSize::GsoIpv4 => &mut sizes.gso_ipv4_max_size,
                PacketSize::GroIpv4 => &mut sizes.gro_ipv4_max_size,
            } = Some(*bytes);
        }
        Setting::Nic(_, NicKnob::PrivateFlag(flag, on)) => {
            device.private_flags.insert(*flag, *on);
        }
        Setting::Nic(_, NicKnob::RssTable(table)) => {
            device.rss.as_mut().expect("a hash").table.clone_from(table)
        }
        Setting::Nic(_, NicKnob::RssKey(key)) => device.rss.as_mut().expect("a hash").key.clone_from(key),
        Setting::Nic(_, NicKnob::RssContext(queues, there)) => {
            let contexts = device.rss_contexts.as_mut().expect("contexts");
            contexts.retain(|context| context.queues != Some(*queues));
            if *there {
                let id = contexts.iter().map(|context| context.id).max().unwrap_or(0) + 1;
                contexts.push(RssContext { id, queues: Some(*queues), table: queues.table(8) });
            }
        }
        Setting::Nic(_, NicKnob::FlowRule(flow, to)) => {
            let rules = device.flow_rules.as_mut().expect("rules");
            rules.retain(|rule| rule.flow != Some(*flow));
            let location = u32::try_from(rules.len()).expect("few");
            rules.extend(to.map(|to| PlacedRule { location, flow: Some(*flow), to }));
        }
        Setting::Nic(_, NicKnob::Qdiscs(qdiscs)) => device.qdiscs = Some(qdiscs.clone()),
        Setting::RxQueue(queue, RxQueueKnob::RpsCpus(cpus)) => {
            let queue = rx(device, queue);
            device.rx_queues[queue].rps_cpus = cpus.clone();
        }
        Setting::RxQueue(queue, RxQueueKnob::RpsFlowCount(count)) => {
            let queue = rx(device, queue);
            device.rx_queues[queue].rps_flow_cnt = Some(*count);
        }
        Setting::TxQueue(queue, TxQueueKnob::XpsCpus(cpus)) => {
            let queue = tx(device, queue);
            device.tx_queues[queue].xps_cpus = cpus.clone();
        }
        Setting::TxQueue(queue, TxQueueKnob::XpsRxQueues(queues)) => {
            let queue = tx(device, queue);
            device.tx_queues[queue].xps_rxqs.clone_from(queues);
        }
        other => panic!("{other} is not a setting of a NIC"),
    }
}

fn set_coalesce(coalesce: &mut Coalesce, param: CoalesceParam, value: u32) {
    match param {
        CoalesceParam::RxUsecs => coalesce.rx_usecs = Some(value),
        CoalesceParam::RxMaxFrames => coalesce.rx_max_frames = Some(value),
        CoalesceParam::TxUsecs => coalesce.tx_usecs = Some(value),
        CoalesceParam::TxMaxFrames => coalesce.tx_max_frames = Some(value),
        CoalesceParam::AdaptiveRx => coalesce.adaptive_rx = Some(value != 0),
        CoalesceParam::AdaptiveTx => coalesce.adaptive_tx = Some(value != 0),
        CoalesceParam::CqeModeRx => coalesce.cqe_mode_rx = Some(value != 0),
        CoalesceParam::CqeModeTx => coalesce.cqe_mode_tx = Some(value != 0),
    }
}
