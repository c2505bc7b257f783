//! The language of policy files as one table. The parser, the merged view and the published schema read it.

use model::nic::{ChannelKind, CoalesceParam, FlagName, NicWish, Offload, PacketSize, RingKind, Sysctl};
use model::{
    CpuSet, DeliveryMode, FlowRule, KthreadCpus, Layout, Nanoseconds, PolicyName, QdiscKind, QueueSpan,
    Scheduling, UtilClamp,
};

use super::value::Value;

/// What a section is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `[device.NAME]`: a network device.
    Device,
    /// `[service.NAME]`: the processes that its `match` finds.
    Service,
}

impl Kind {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Device, Self::Service];

    /// The word in the file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Service => "service",
        }
    }
}

/// What a key takes, and the [`Value`] it makes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Takes {
    Policy(fn(PolicyName) -> Value),
    Delivery(fn(DeliveryMode) -> Value),
    Span(fn(Nanoseconds) -> Value),
    /// A span that must not be zero.
    PositiveSpan(fn(Nanoseconds) -> Value),
    Number {
        min: u32,
        max: u32,
        make: fn(u32) -> Value,
    },
    Cpus(fn(CpuSet) -> Value),
    KthreadCpus(fn(KthreadCpus) -> Value),
    KthreadClass(fn(Scheduling) -> Value),
    UtilClamp(fn(UtilClamp) -> Value),
    Layout(fn(Layout) -> Value),
    Text(fn(String) -> Value),
    Switch(fn(bool) -> Value),
    /// CPUs, or `none`.
    CpusOrNone(fn(CpuSet) -> Value),
    PrivateFlags(fn(Vec<(FlagName, bool)>) -> Value),
    /// Spans of queues, with commas between them.
    QueueSpans(fn(Vec<QueueSpan>) -> Value),
    /// Rules of the NIC, with commas between them.
    FlowRules(fn(Vec<FlowRule>) -> Value),
    Qdisc(fn(QdiscKind) -> Value),
}

impl Takes {
    /// What to write, by example.
    pub(super) const fn example(self) -> &'static str {
        match self {
            Self::Policy(_) => "a policy, as in \"latency\"",
            Self::Delivery(_) => "a delivery mode, as in \"suspend20\"",
            Self::Span(_) | Self::PositiveSpan(_) => "a span of time in quotes, as in \"20us\"",
            Self::Number { .. } => "a whole number",
            Self::Cpus(_) => "a list of CPUs in quotes, as in \"0-3,8\"",
            Self::KthreadCpus(_) => "any, irq, sibling or a list of CPUs in quotes, as in \"irq\"",
            Self::KthreadClass(_) => "a scheduling class in quotes, as in \"fifo:50\" or \"other:-5\"",
            Self::UtilClamp(_) => "two numbers up to 1024 in quotes, as in \"512-1024\"",
            Self::Layout(_) => "a layout in quotes, as in \"rx-per-core\"",
            Self::Text(_) => "text in quotes",
            Self::Switch(_) => "true or false",
            Self::CpusOrNone(_) => "a list of CPUs in quotes, as in \"0-3,8\", or \"none\"",
            Self::QueueSpans(_) => "receive queues in quotes, as in \"2-3, 4-7\"",
            Self::FlowRules(_) => "rules in quotes, as in \"tcp4 dst-port 11211 queue 2\"",
            Self::Qdisc(_) => "a queueing discipline in quotes, as in \"fq\"",
            Self::PrivateFlags(_) => "flags in quotes, as in \"rx_striding_rq=on,tx_port_ts=off\"",
        }
    }
}

/// A key: where it may stand, what it takes, what it means.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    /// Its name, with the table it stands in: `goal.p99`.
    pub(super) path: &'static str,
    pub(super) of: &'static [Kind],
    pub(super) takes: Takes,
    pub(super) meaning: &'static str,
}

/// The largest value that `napi-set` takes for defer-hard-irqs.
/// Kernel: 6.18, `Documentation/netlink/specs/netdev.yaml`, check `max: s32-max`.
const DEFER_HARD_IRQS_MAX: u32 = i32::MAX.cast_unsigned();

/// The most queues that a device can have. Kernel: 6.18, `include/uapi/linux/ethtool.h` `MAX_NUM_QUEUE`.
const QUEUES_MAX: u32 = 4096;

/// The most flows of one queue that may be asked for: the kernel makes a table of 16 bytes for each at once.
/// Kernel: Documentation/networking/scaling.rst suggests 32768 for the whole host.
const RPS_FLOWS_MAX: u32 = 1 << 20;
/// The smallest bound of a packet, in bytes: what an Ethernet packet carries without any joining.
const PACKET_SIZE_MIN: u32 = 1_500;

/// The largest number that the kernel's `int` sysctls take.
const INT_MAX: u32 = i32::MAX.cast_unsigned();

const DEVICE: &[Kind] = &[Kind::Device];
const BOTH: &[Kind] = &Kind::ALL;
const SERVICE: &[Kind] = &[Kind::Service];

/// Every key there is.
pub(super) const KEYS: &[Key] = &[
    Key {
        path: "policy",
        of: BOTH,
        takes: Takes::Policy(Value::Policy),
        meaning: "What the traffic shall be good at.",
    },
    Key {
        path: "delivery",
        of: BOTH,
        takes: Takes::Delivery(Value::Delivery),
        meaning: "How packets are delivered: the mode that the policy would choose, named by an expert instead.",
    },
    Key {
        path: "defer_hard_irqs",
        of: BOTH,
        takes: Takes::Number { min: 0, max: DEFER_HARD_IRQS_MAX, make: Value::DeferHardIrqs },
        meaning: "Empty polls in a row before the IRQ is re-armed, instead of the mode's own value.",
    },
    Key {
        path: "gro_flush_timeout",
        of: BOTH,
        takes: Takes::Span(Value::GroFlushTimeout),
        meaning: "The span of the timer that polls while the IRQ is deferred, instead of the mode's own value.",
    },
    Key {
        path: "irq_suspend_timeout",
        of: BOTH,
        takes: Takes::Span(Value::IrqSuspendTimeout),
        meaning: "How long the IRQ stays masked while the application finds events, instead of the mode's own value.",
    },
    Key {
        path: "cpus",
        of: BOTH,
        takes: Takes::Cpus(Value::Cpus),
        meaning: "The CPUs that interrupts and threads shall run on.",
    },
    Key {
        path: "layout",
        of: DEVICE,
        takes: Takes::Layout(Value::Layout),
        meaning: "How queues, interrupts and CPUs are put together, instead of the policy's own layout.",
    },
    Key {
        path: "queues",
        of: SERVICE,
        takes: Takes::Number { min: 1, max: QUEUES_MAX, make: Value::Queues },
        meaning: "How many receive queues the service has for itself where a device is divided.",
    },
    Key {
        path: "goal.p50",
        of: BOTH,
        takes: Takes::PositiveSpan(Value::GoalP50),
        meaning: "The median response time, at most.",
    },
    Key {
        path: "goal.p99",
        of: BOTH,
        takes: Takes::PositiveSpan(Value::GoalP99),
        meaning: "The 99th percentile of response times, at most.",
    },
    Key {
        path: "budget.polling_cpus",
        of: BOTH,
        takes: Takes::Number { min: 0, max: CpuSet::CPUS_MAX, make: Value::PollingCpus },
        meaning: "How many CPUs may poll without traffic, at most.",
    },
    Key {
        path: "budget.added_delay",
        of: BOTH,
        takes: Takes::Span(Value::AddedDelay),
        meaning: "By how much deferral may delay a packet of an idle application, at most.",
    },
    Key {
        path: "budget.rt_priority",
        of: BOTH,
        takes: Takes::Number { min: 1, max: 99, make: Value::RtPriority },
        meaning: "The real-time priority of a kernel thread, at most.",
    },
    Key {
        path: "kthread.cpus",
        of: BOTH,
        takes: Takes::KthreadCpus(Value::KthreadCpus),
        meaning: "Where the kernel threads that poll run: with their interrupts, beside them, on CPUs of their own, or anywhere.",
    },
    Key {
        path: "kthread.class",
        of: BOTH,
        takes: Takes::KthreadClass(Value::KthreadClass),
        meaning: "The scheduling class of the kernel threads that poll, with its nice value or priority.",
    },
    Key {
        path: "kthread.util-clamp",
        of: BOTH,
        takes: Takes::UtilClamp(Value::KthreadUtilClamp),
        meaning: "How much of a CPU the kernel threads that poll count for at least and at most, in 1024ths.",
    },
    Key {
        path: "match.unit",
        of: SERVICE,
        takes: Takes::Text(Value::MatchUnit),
        meaning: "The systemd unit of the service's processes.",
    },
    Key {
        path: "match.cgroup",
        of: SERVICE,
        takes: Takes::Text(Value::MatchCgroup),
        meaning: "The cgroup of the service's processes, below the cgroup root.",
    },
    Key {
        path: "match.exe",
        of: SERVICE,
        takes: Takes::Text(Value::MatchExe),
        meaning: "The executable of the service's processes: a path, or a bare file name.",
    },
    Key {
        path: "match.port",
        of: SERVICE,
        takes: Takes::Number { min: 1, max: 65_535, make: Value::MatchPort },
        meaning: "A port that the service's processes listen on.",
    },
    Key {
        path: "match.uid",
        of: SERVICE,
        takes: Takes::Number { min: 0, max: u32::MAX - 1, make: Value::MatchUid },
        meaning: "The user of the service's processes, by number.",
    },
    Key {
        path: ChannelKind::Rx.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: 0,
            max: QUEUES_MAX,
            make: |n| Value::Nic(NicWish::Channels(ChannelKind::Rx, n)),
        },
        meaning: "Receive queues with an interrupt of their own. Makes the queues anew.",
    },
    Key {
        path: ChannelKind::Tx.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: 0,
            max: QUEUES_MAX,
            make: |n| Value::Nic(NicWish::Channels(ChannelKind::Tx, n)),
        },
        meaning: "Transmit queues with an interrupt of their own. Makes the queues anew.",
    },
    Key {
        path: ChannelKind::Combined.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: 0,
            max: QUEUES_MAX,
            make: |n| Value::Nic(NicWish::Channels(ChannelKind::Combined, n)),
        },
        meaning: "Queue pairs that share an interrupt. Makes the queues anew.",
    },
    Key {
        path: RingKind::Rx.key(),
        of: DEVICE,
        takes: Takes::Number { min: 1, max: INT_MAX, make: |n| Value::Nic(NicWish::Ring(RingKind::Rx, n)) },
        meaning: "Descriptors of each receive ring. Makes the rings anew.",
    },
    Key {
        path: RingKind::Tx.key(),
        of: DEVICE,
        takes: Takes::Number { min: 1, max: INT_MAX, make: |n| Value::Nic(NicWish::Ring(RingKind::Tx, n)) },
        meaning: "Descriptors of each transmit ring. Makes the rings anew.",
    },
    Key {
        path: CoalesceParam::RxUsecs.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: 0,
            max: INT_MAX,
            make: |n| Value::Nic(NicWish::Coalescing(CoalesceParam::RxUsecs, n)),
        },
        meaning: "How long a receive interrupt waits, in microseconds.",
    },
    Key {
        path: CoalesceParam::RxMaxFrames.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: 0,
            max: INT_MAX,
            make: |n| Value::Nic(NicWish::Coalescing(CoalesceParam::RxMaxFrames, n)),
        },
        meaning: "After how many packets a receive interrupt comes at once.",
    },
    Key {
        path: CoalesceParam::TxUsecs.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: 0,
            max: INT_MAX,
            make: |n| Value::Nic(NicWish::Coalescing(CoalesceParam::TxUsecs, n)),
        },
        meaning: "How long a transmit interrupt waits, in microseconds.",
    },
    Key {
        path: CoalesceParam::TxMaxFrames.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: 0,
            max: INT_MAX,
            make: |n| Value::Nic(NicWish::Coalescing(CoalesceParam::TxMaxFrames, n)),
        },
        meaning: "After how many packets a transmit interrupt comes at once.",
    },
    Key {
        path: CoalesceParam::AdaptiveRx.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Coalescing(CoalesceParam::AdaptiveRx, on as u32))),
        meaning: "Whether the driver adapts the receive values by itself.",
    },
    Key {
        path: CoalesceParam::AdaptiveTx.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Coalescing(CoalesceParam::AdaptiveTx, on as u32))),
        meaning: "Whether the driver adapts the transmit values by itself.",
    },
    Key {
        path: CoalesceParam::CqeModeRx.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Coalescing(CoalesceParam::CqeModeRx, on as u32))),
        meaning: "Whether the receive timer starts anew with each completion.",
    },
    Key {
        path: CoalesceParam::CqeModeTx.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Coalescing(CoalesceParam::CqeModeTx, on as u32))),
        meaning: "Whether the transmit timer starts anew with each completion.",
    },
    Key {
        path: Offload::Gro.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::Gro, on))),
        meaning: "Packets are joined in NAPI.",
    },
    Key {
        path: Offload::GroHw.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::GroHw, on))),
        meaning: "The NIC joins packets. May make the queues anew.",
    },
    Key {
        path: Offload::GroList.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::GroList, on))),
        meaning: "Packets are joined without merging their headers, for forwarding.",
    },
    Key {
        path: Offload::GroUdpForwarding.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::GroUdpForwarding, on))),
        meaning: "UDP packets that are to be forwarded are joined too.",
    },
    Key {
        path: Offload::Lro.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::Lro, on))),
        meaning: "The NIC joins packets for good. May make the queues anew.",
    },
    Key {
        path: Offload::Gso.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::Gso, on))),
        meaning: "Large packets are cut just before the driver.",
    },
    Key {
        path: Offload::Tso.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::Tso, on))),
        meaning: "The NIC cuts large TCP packets.",
    },
    Key {
        path: Offload::Tso6.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::Tso6, on))),
        meaning: "The NIC cuts large TCP packets with IPv6.",
    },
    Key {
        path: Offload::TsoEcn.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::TsoEcn, on))),
        meaning: "The NIC cuts large TCP packets with congestion marks.",
    },
    Key {
        path: Offload::TsoMangleId.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::TsoMangleId, on))),
        meaning: "The NIC cuts large TCP packets where all parts may have one identification.",
    },
    Key {
        path: Offload::Ntuple.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::Ntuple, on))),
        meaning: "The NIC hands packets to queues by rules.",
    },
    Key {
        path: Offload::RxHash.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::RxHash, on))),
        meaning: "The NIC gives the hash that it chose the queue by.",
    },
    Key {
        path: Offload::TcOffload.key(),
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Offload(Offload::TcOffload, on))),
        meaning: "tc rules may be carried out by the NIC.",
    },
    Key {
        path: PacketSize::Gso.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: PACKET_SIZE_MIN,
            max: PacketSize::MAX,
            make: |n| Value::Nic(NicWish::PacketSize(PacketSize::Gso, n)),
        },
        meaning: "The largest packet that is cut only by the NIC, in bytes; with IPv4 see gso_ipv4_max_size.",
    },
    Key {
        path: PacketSize::Gro.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: PACKET_SIZE_MIN,
            max: PacketSize::MAX,
            make: |n| Value::Nic(NicWish::PacketSize(PacketSize::Gro, n)),
        },
        meaning: "The largest packet that received ones are joined to, in bytes; with IPv4 see gro_ipv4_max_size.",
    },
    Key {
        path: PacketSize::GsoIpv4.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: PACKET_SIZE_MIN,
            max: PacketSize::MAX,
            make: |n| Value::Nic(NicWish::PacketSize(PacketSize::GsoIpv4, n)),
        },
        meaning: "The same as gso_max_size with IPv4. Above 65536 the header says 0, which programs that read raw packets must know.",
    },
    Key {
        path: PacketSize::GroIpv4.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: PACKET_SIZE_MIN,
            max: PacketSize::MAX,
            make: |n| Value::Nic(NicWish::PacketSize(PacketSize::GroIpv4, n)),
        },
        meaning: "The same as gro_max_size with IPv4. Above 65536 the header says 0, which programs that read raw packets must know.",
    },
    Key {
        path: "settings.private-flags",
        of: DEVICE,
        takes: Takes::PrivateFlags(|flags| Value::Nic(NicWish::PrivateFlags(flags))),
        meaning: "Flags of the driver's own. What they do is known to the driver alone, so this counts as disruptive.",
    },
    Key {
        path: "settings.rss-queues",
        of: DEVICE,
        takes: Takes::Number { min: 1, max: QUEUES_MAX, make: |n| Value::Nic(NicWish::RssQueues(n)) },
        meaning: "Over how many of the first receive queues packets are spread evenly by their hash.",
    },
    Key {
        path: "settings.rss-contexts",
        of: DEVICE,
        takes: Takes::QueueSpans(|spans| Value::Nic(NicWish::RssContexts(spans))),
        meaning: "Groups of receive queues, each with a context of the receive hash that spreads packets over it. Rules lead there.",
    },
    Key {
        path: "settings.ntuple",
        of: DEVICE,
        takes: Takes::FlowRules(|rules| Value::Nic(NicWish::FlowRules(rules))),
        meaning: "Rules by which the NIC hands flows to a receive queue or a context, in the words of ethtool -N.",
    },
    Key {
        path: "settings.qdisc",
        of: DEVICE,
        takes: Takes::Qdisc(|kind| Value::Nic(NicWish::Qdisc(kind))),
        meaning: "What packets wait in before they leave, for every transmit queue. What waits when it is replaced is dropped.",
    },
    Key {
        path: "settings.rps_cpus",
        of: DEVICE,
        takes: Takes::CpusOrNone(|cpus| Value::Nic(NicWish::RpsCpus(cpus))),
        meaning: "The CPUs that receive packet steering hands packets to, of every receive queue.",
    },
    Key {
        path: "settings.rps_flow_cnt",
        of: DEVICE,
        takes: Takes::Number { min: 0, max: RPS_FLOWS_MAX, make: |n| Value::Nic(NicWish::RpsFlowCount(n)) },
        meaning: "How many flows receive flow steering remembers for each receive queue; rounded up to a power of two.",
    },
    Key {
        path: "settings.xps",
        of: DEVICE,
        takes: Takes::Switch(|on| Value::Nic(NicWish::Xps(on))),
        meaning: "Whether each CPU sends by one transmit queue of its own, dealt out in turn; false lets the kernel choose.",
    },
    Key {
        path: Sysctl::NetdevBudget.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: 0,
            max: RPS_FLOWS_MAX,
            make: |n| Value::Nic(NicWish::Sysctl(Sysctl::NetdevBudget, n as u64)),
        },
        meaning: "How many packets one run of the receive softirq takes at most. Of the whole host.",
    },
    Key {
        path: Sysctl::NetdevBudgetUsecs.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: 0,
            max: INT_MAX,
            make: |n| Value::Nic(NicWish::Sysctl(Sysctl::NetdevBudgetUsecs, n as u64)),
        },
        meaning: "How long one run of the receive softirq lasts at most, in microseconds. Of the whole host.",
    },
    Key {
        path: Sysctl::NetdevMaxBacklog.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: 0,
            max: INT_MAX,
            make: |n| Value::Nic(NicWish::Sysctl(Sysctl::NetdevMaxBacklog, n as u64)),
        },
        meaning: "How many packets wait for a CPU's backlog at most. Of the whole host.",
    },
    Key {
        path: Sysctl::RpsSockFlowEntries.key(),
        of: DEVICE,
        takes: Takes::Number {
            min: 0,
            max: INT_MAX,
            make: |n| Value::Nic(NicWish::Sysctl(Sysctl::RpsSockFlowEntries, n as u64)),
        },
        meaning: "How many flows receive flow steering remembers on the whole host.",
    },
];
