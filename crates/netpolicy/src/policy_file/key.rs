//! The language of policy files as one table. The parser, the merged view and the published schema read it.

use model::{CpuSet, DeliveryMode, Nanoseconds, PolicyName};

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

/// What one key was given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is a key of `KEYS`, which says what it means")]
pub enum Value {
    Policy(PolicyName),
    Delivery(DeliveryMode),
    DeferHardIrqs(u32),
    GroFlushTimeout(Nanoseconds),
    IrqSuspendTimeout(Nanoseconds),
    Cpus(CpuSet),
    GoalP50(Nanoseconds),
    GoalP99(Nanoseconds),
    PollingCpus(u32),
    AddedDelay(Nanoseconds),
    MatchUnit(String),
    MatchCgroup(String),
    MatchExe(String),
    MatchPort(u32),
    MatchUid(u32),
}

impl Value {
    /// The key it belongs to, with its table: `goal.p99`.
    pub const fn path(&self) -> &'static str {
        match self {
            Self::Policy(_) => "policy",
            Self::Delivery(_) => "delivery",
            Self::DeferHardIrqs(_) => "defer_hard_irqs",
            Self::GroFlushTimeout(_) => "gro_flush_timeout",
            Self::IrqSuspendTimeout(_) => "irq_suspend_timeout",
            Self::Cpus(_) => "cpus",
            Self::GoalP50(_) => "goal.p50",
            Self::GoalP99(_) => "goal.p99",
            Self::PollingCpus(_) => "budget.polling_cpus",
            Self::AddedDelay(_) => "budget.added_delay",
            Self::MatchUnit(_) => "match.unit",
            Self::MatchCgroup(_) => "match.cgroup",
            Self::MatchExe(_) => "match.exe",
            Self::MatchPort(_) => "match.port",
            Self::MatchUid(_) => "match.uid",
        }
    }

    /// The value as a policy file writes it.
    pub fn toml(&self) -> String {
        match self {
            Self::Policy(policy) => quoted(&policy.to_string()),
            Self::Delivery(mode) => quoted(&mode.to_string()),
            Self::GroFlushTimeout(span)
            | Self::IrqSuspendTimeout(span)
            | Self::GoalP50(span)
            | Self::GoalP99(span)
            | Self::AddedDelay(span) => quoted(&span.to_string()),
            Self::Cpus(cpus) => quoted(&cpus.to_string()),
            Self::MatchUnit(text) | Self::MatchCgroup(text) | Self::MatchExe(text) => quoted(text),
            Self::DeferHardIrqs(n) | Self::PollingCpus(n) | Self::MatchPort(n) | Self::MatchUid(n) => {
                n.to_string()
            }
        }
    }
}

/// A TOML basic string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
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
    Text(fn(String) -> Value),
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
            Self::Text(_) => "text in quotes",
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
];
