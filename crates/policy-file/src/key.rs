//! All keys of policy files in one table, for the parser, the merged view and the published schema.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::LazyLock;

use model::keys;
use model::live::PartOfSecond;
use model::nic::{
    ChannelKind, CoalesceParam, FlagName, NicRequest, Offload, PacketSize, QUEUES_MAX, RingKind, Sysctl,
};
use model::setting::{Facts, KnobUnit, Setting};
use model::{
    Budget, Carries, CpuSet, DeliveryMode, DeviceCondition, FlowRule, Goal, Growth, Guard, Guarded, Holdback,
    KthreadKey, KthreadValue, Layout, Nanoseconds, OnMissed, OnReversed, Patterns, PolicyName, QdiscKind,
    QueueSpan, Searches, SpeedBound,
};

use crate::value::Value;

/// The kind of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SectionKind {
    /// `[device.NAME]`: a network device, or the devices that a pattern or its `match` selects.
    Device,
    /// `[service.NAME]`: the processes that its `match` selects.
    Service,
    /// `[daemon]`, which has no name: options of the daemon. It requests nothing for traffic.
    Daemon,
}

impl SectionKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Device, Self::Service, Self::Daemon];

    /// The kinds of sections that request something for traffic. Each such section has a name.
    pub const OF_TRAFFIC: [Self; 2] = [Self::Device, Self::Service];

    /// The word for the kind in a policy file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Service => "service",
            Self::Daemon => "daemon",
        }
    }
}

/// A function that creates a [`Value`] from a parsed value.
type Make<T> = Box<dyn Fn(T) -> Value + Send + Sync>;

/// The type of a key's value, and how to create a [`Value`] from it.
pub(crate) enum KeyType {
    Policy(fn(PolicyName) -> Value),
    Delivery(fn(DeliveryMode) -> Value),
    Span(fn(Nanoseconds) -> Value),
    /// A time span that is not zero.
    PositiveSpan(fn(Nanoseconds) -> Value),
    /// How much of each second to measure, or `0` or `off` for none.
    Sample(fn(PartOfSecond) -> Value),
    Number {
        min: u32,
        max: u32,
        make: Make<u32>,
    },
    Cpus(fn(CpuSet) -> Value),
    Kthread(&'static KthreadKey),
    Layout(fn(Layout) -> Value),
    /// A pattern for names, or a list of patterns.
    Patterns(fn(Patterns) -> Value),
    Carries(fn(Carries) -> Value),
    Speed(fn(SpeedBound) -> Value),
    Growth(Guarded),
    Holdback(fn(Holdback) -> Value),
    /// A time span within a range.
    Within {
        least: Nanoseconds,
        most: Nanoseconds,
        make: fn(Nanoseconds) -> Value,
    },
    OnMissed(fn(OnMissed) -> Value),
    OnReversed(fn(OnReversed) -> Value),
    Switch(Make<bool>),
    /// CPUs, or `none`.
    CpusOrNone(fn(CpuSet) -> Value),
    PrivateFlags(fn(Vec<(FlagName, bool)>) -> Value),
    /// Ranges of queues, separated by commas.
    QueueSpans(fn(Vec<QueueSpan>) -> Value),
    /// Ntuple rules, separated by commas.
    FlowRules(fn(Vec<FlowRule>) -> Value),
    Qdisc(fn(QdiscKind) -> Value),
}

impl KeyType {
    /// Returns an example value for error messages.
    pub(crate) fn example(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Kthread(key) => return key.example().into(),
            Self::Policy(_) => "a policy, as in \"latency\"",
            Self::Delivery(_) => "a delivery mode, as in \"suspend20\"",
            Self::Span(_) | Self::PositiveSpan(_) => "a span of time in quotes, as in \"20us\"",
            Self::Sample(_) => "a part of each second in quotes, as in \"20ms\", or \"off\"",
            Self::Number { .. } => "a whole number",
            Self::Cpus(_) => "a list of CPUs in quotes, as in \"0-3,8\"",
            Self::Layout(_) => "a layout in quotes, as in \"rx-per-core\"",
            Self::Patterns(_) => "a quoted string or a list of them, as in [\"nginx\", \"haproxy*\"]",
            Self::Carries(_) => "the traffic of the device, as in \"default-route\"",
            Self::Speed(_) => "a link speed in quotes, as in \">=25G\"",
            Self::Growth(_) => "an increase in quotes, as in \"+15%\"",
            Self::Holdback(_) => "a share of the time in quotes, as in \"1%\"",
            Self::Within { .. } => "a span of time in quotes, as in \"60s\"",
            Self::OnMissed(_) => "a reaction, as in \"search\"",
            Self::OnReversed(_) => "a reaction, as in \"rollback\"",
            Self::Switch(_) => "true or false",
            Self::CpusOrNone(_) => "a list of CPUs in quotes, as in \"0-3,8\", or \"none\"",
            Self::QueueSpans(_) => "receive queues in quotes, as in \"2-3, 4-7\"",
            Self::FlowRules(_) => "rules in quotes, as in \"tcp4 dst-port 11211 queue 2\"",
            Self::Qdisc(_) => "a qdisc in quotes, as in \"fq\"",
            Self::PrivateFlags(_) => "flags in quotes, as in \"rx_striding_rq=on,tx_port_ts=off\"",
        })
    }
}

/// A key: the sections that may contain it, its values, and its meaning.
pub(crate) struct PolicyKey {
    /// The key's full name, with its table: `goal.p99`.
    pub(crate) path: &'static str,
    pub(crate) of: &'static [SectionKind],
    pub(crate) takes: KeyType,
    pub(crate) meaning: Cow<'static, str>,
}

const DEVICE: &[SectionKind] = &[SectionKind::Device];
const BOTH: &[SectionKind] = &SectionKind::OF_TRAFFIC;
const DAEMON: &[SectionKind] = &[SectionKind::Daemon];
const SERVICE: &[SectionKind] = &[SectionKind::Service];

fn key(
    path: &'static str,
    of: &'static [SectionKind],
    takes: KeyType,
    meaning: impl Into<Cow<'static, str>>,
) -> PolicyKey {
    PolicyKey { path, of, takes, meaning: meaning.into() }
}

/// Creates the key for a knob. The range and the meaning come from the table of knobs.
fn of_knob(
    path: &'static str,
    of: &'static [SectionKind],
    takes: impl FnOnce(&Facts) -> KeyType,
) -> PolicyKey {
    let facts =
        Setting::facts_of_key(path).unwrap_or_else(|| panic!("no knob of the table has the key {path}"));
    PolicyKey { path, of, takes: takes(facts), meaning: facts.meaning_of_key().into() }
}

/// Appends the default value to a key's meaning.
fn or_default(meaning: &str, default: impl Display) -> Cow<'static, str> {
    format!("{meaning} Default: {default}.").into()
}

/// Returns the type of a number within the range of the knob.
fn number(make: fn(u32) -> Value) -> impl FnOnce(&Facts) -> KeyType {
    move |facts| {
        let (min, max) = facts.range.unwrap_or((0, u64::MAX));
        KeyType::Number { min: bound(min), max: bound(max), make: Box::new(make) }
    }
}

/// Returns the keys that override values of the request's delivery mode.
fn of_delivery() -> impl Iterator<Item = PolicyKey> {
    let keys = [
        of_knob(keys::DEFER_HARD_IRQS, BOTH, number(Value::DeferHardIrqs)),
        of_knob(keys::GRO_FLUSH_TIMEOUT, BOTH, |_| KeyType::Span(Value::GroFlushTimeout)),
        of_knob(keys::IRQ_SUSPEND_TIMEOUT, BOTH, |_| KeyType::Span(Value::IrqSuspendTimeout)),
    ];
    keys.into_iter().map(|key| PolicyKey {
        meaning: format!("{} Replaces the mode's own value.", key.meaning).into(),
        ..key
    })
}

/// Returns the keys for policies and delivery modes.
fn of_policies() -> Vec<PolicyKey> {
    vec![
        key("policy", BOTH, KeyType::Policy(Value::Policy), "Goal for the traffic."),
        key(
            "delivery",
            BOTH,
            KeyType::Delivery(Value::Delivery),
            "How packets are delivered: a delivery mode instead of the one that the policy would choose, for experts.",
        ),
    ]
}

/// Returns the keys for CPUs and queues.
fn of_resources() -> Vec<PolicyKey> {
    vec![
        key("cpus", BOTH, KeyType::Cpus(Value::Cpus), "The CPUs for interrupts and threads."),
        key(
            "layout",
            DEVICE,
            KeyType::Layout(Value::Layout),
            "How queues, interrupts and CPUs are combined, instead of the policy's layout.",
        ),
        key(
            "queues",
            SERVICE,
            KeyType::Number { min: 1, max: QUEUES_MAX, make: Box::new(Value::Queues) },
            "How many dedicated receive queues the service has on a divided device.",
        ),
    ]
}

/// Keys for goals.
fn of_goals() -> Vec<PolicyKey> {
    vec![
        key("goal.p50", BOTH, KeyType::PositiveSpan(Value::GoalP50), "The maximum median response time."),
        key(
            "goal.p99",
            BOTH,
            KeyType::PositiveSpan(Value::GoalP99),
            "The maximum 99th percentile of response times.",
        ),
        key(
            "goal.for",
            SERVICE,
            KeyType::Within { least: Goal::FOR_LEAST, most: Goal::FOR_MOST, make: Value::GoalFor },
            or_default("How long the goal must be missed before netpolicy reacts.", Goal::FOR),
        ),
        key(
            "goal.on_missed",
            SERVICE,
            KeyType::OnMissed(Value::GoalOnMissed),
            or_default(
                "The reaction: a finding (`report`), or the daemon tries the modes of the policy's ladder under guard (`search`).",
                OnMissed::default().as_str(),
            ),
        ),
    ]
}

/// Returns the keys for guards and holdbacks.
fn of_guards() -> Vec<PolicyKey> {
    vec![
        key(
            "guard.p50",
            SERVICE,
            KeyType::Growth(Guarded::P50),
            "How much a change may increase the median response time before it is reverted.",
        ),
        key(
            "guard.p90",
            SERVICE,
            KeyType::Growth(Guarded::P90),
            "How much a change may increase the 90th percentile of response times before it is reverted.",
        ),
        key(
            "guard.p99",
            SERVICE,
            KeyType::Growth(Guarded::P99),
            "How much a change may increase the 99th percentile of response times before it is reverted.",
        ),
        key(
            "guard.cpu",
            SERVICE,
            KeyType::Growth(Guarded::Cpu),
            "How much a change may increase the CPU time per request before it is reverted.",
        ),
        key(
            "guard.within",
            SERVICE,
            KeyType::Within {
                least: Guard::WITHIN_LEAST,
                most: Guard::WITHIN_MOST,
                make: Value::GuardWithin,
            },
            or_default("How long a change is judged on the service's traffic.", Guard::WITHIN),
        ),
        key(
            "holdback",
            SERVICE,
            KeyType::Holdback(Value::Holdback),
            "The share of the time in which the daemon withdraws the policy in short windows, to measure the policy's effect.",
        ),
        key(
            "on_reversed",
            SERVICE,
            KeyType::OnReversed(Value::OnReversed),
            or_default(
                "The reaction to a `holdback` that shows that the policy harms: a finding (`report`), or the daemon withdraws the policy (`rollback`).",
                OnReversed::default().as_str(),
            ),
        ),
    ]
}

/// Keys for budgets.
fn of_budgets() -> Vec<PolicyKey> {
    vec![
        key(
            "budget.polling_cpus",
            BOTH,
            KeyType::Number { min: 0, max: CpuSet::CPUS_MAX, make: Box::new(Value::PollingCpus) },
            "The maximum number of CPUs that may poll without traffic.",
        ),
        key(
            "budget.added_delay",
            BOTH,
            KeyType::Span(Value::AddedDelay),
            "The maximum delay that deferral may add to a packet of an idle application.",
        ),
        key(
            "budget.rt_priority",
            BOTH,
            KeyType::Number { min: 1, max: 99, make: Box::new(Value::RtPriority) },
            or_default("The maximum real-time priority of a kernel thread.", Budget::RT_PRIORITY_UNASKED),
        ),
    ]
}

/// Returns the keys that find the processes of a service.
fn of_processes() -> Vec<PolicyKey> {
    vec![
        key(
            "match.unit",
            SERVICE,
            KeyType::Patterns(Value::MatchUnit),
            "The systemd unit of the service's processes.",
        ),
        key(
            "match.cgroup",
            SERVICE,
            KeyType::Patterns(Value::MatchCgroup),
            "The cgroup of the service's processes, relative to the cgroup root; descendants match, too.",
        ),
        key(
            "match.exe",
            SERVICE,
            KeyType::Patterns(Value::MatchExe),
            "The executable of the service's processes: a path, or a bare file name.",
        ),
        key(
            "match.pod",
            SERVICE,
            KeyType::Patterns(Value::MatchPod),
            "The pod of the service's processes: its name, its namespace and name as in `shop/cart-*`, or its uid.",
        ),
        key(
            "match.container",
            SERVICE,
            KeyType::Patterns(Value::MatchContainer),
            "The container of the service's processes: its name, or at least 12 characters of its id.",
        ),
        key(
            "match.port",
            SERVICE,
            KeyType::Number { min: 1, max: 65_535, make: Box::new(Value::MatchPort) },
            "A port that the service's processes listen on.",
        ),
        key(
            "match.uid",
            SERVICE,
            KeyType::Number { min: 0, max: u32::MAX - 1, make: Box::new(Value::MatchUid) },
            "The uid of the service's processes.",
        ),
    ]
}

/// Returns the keys of the daemon.
fn of_daemon() -> Vec<PolicyKey> {
    vec![
        key(
            "sample",
            DAEMON,
            KeyType::Sample(Value::Sample),
            or_default(
                "The part of each second in which the daemon measures each service that has a `goal`.",
                PartOfSecond::OF_DAEMON,
            ),
        ),
        key(
            "searches",
            DAEMON,
            KeyType::Number { min: 0, max: Searches::A_DAY_MOST, make: Box::new(Value::Searches) },
            or_default(
                "How many modes per day the daemon may try for each service with `on_missed = \"search\"`; 0 for none.",
                Searches::A_DAY,
            ),
        ),
    ]
}

/// Returns the keys that select devices if the section's name does not. Each condition also exists under
/// `not`.
fn of_selectors() -> Vec<PolicyKey> {
    let key = |path, takes, meaning: &'static str| key(path, DEVICE, takes, meaning);
    vec![
        key(
            "match.name",
            KeyType::Patterns(|names| Value::MatchDevice(DeviceCondition::Name(names))),
            "The devices with these names.",
        ),
        key(
            "match.driver",
            KeyType::Patterns(|drivers| Value::MatchDevice(DeviceCondition::Driver(drivers))),
            "The devices with these drivers; for virtual devices their kind, as in `veth`.",
        ),
        key(
            "match.pci",
            KeyType::Patterns(|addresses| Value::MatchDevice(DeviceCondition::Pci(addresses))),
            "The devices at these PCI addresses.",
        ),
        key(
            "match.mac",
            KeyType::Patterns(|addresses| Value::MatchDevice(DeviceCondition::Mac(lowercase(&addresses)))),
            "The devices with these MAC addresses, in upper or lower case.",
        ),
        key(
            "match.carries",
            KeyType::Carries(|what| Value::MatchDevice(DeviceCondition::Carries(what))),
            "The devices of the default route in the main table, and their lower devices.",
        ),
        key(
            "match.speed",
            KeyType::Speed(|bound| Value::MatchDevice(DeviceCondition::Speed(bound))),
            "The devices with this link speed; a link without a carrier has none.",
        ),
        key(
            "match.not.name",
            KeyType::Patterns(|names| Value::MatchNotDevice(DeviceCondition::Name(names))),
            "Excludes the devices with these names.",
        ),
        key(
            "match.not.driver",
            KeyType::Patterns(|drivers| Value::MatchNotDevice(DeviceCondition::Driver(drivers))),
            "Excludes the devices with these drivers.",
        ),
        key(
            "match.not.pci",
            KeyType::Patterns(|addresses| Value::MatchNotDevice(DeviceCondition::Pci(addresses))),
            "Excludes the devices at these PCI addresses.",
        ),
        key(
            "match.not.mac",
            KeyType::Patterns(|addresses| Value::MatchNotDevice(DeviceCondition::Mac(lowercase(&addresses)))),
            "Excludes the devices with these MAC addresses.",
        ),
        key(
            "match.not.carries",
            KeyType::Carries(|what| Value::MatchNotDevice(DeviceCondition::Carries(what))),
            "Excludes the devices of the default route.",
        ),
        key(
            "match.not.speed",
            KeyType::Speed(|bound| Value::MatchNotDevice(DeviceCondition::Speed(bound))),
            "Excludes the devices with this link speed.",
        ),
    ]
}

/// Converts MAC addresses to lower case, as the kernel prints them.
fn lowercase(addresses: &Patterns) -> Patterns {
    let lower = addresses.iter().map(|glob| glob.as_str().to_lowercase());
    Patterns::of(lower).unwrap_or_else(|_| addresses.clone())
}

/// Returns the keys that schedule the kernel threads of NAPIs.
fn of_kthreads() -> impl Iterator<Item = PolicyKey> {
    let key = |key: &'static KthreadKey| of_knob(key.path(), BOTH, |_| KeyType::Kthread(key));
    KthreadValue::KEYS.iter().map(key)
}

/// Returns the keys for a device's settings that are not a single number or switch.
fn of_device() -> impl Iterator<Item = PolicyKey> {
    let key = |path, takes| of_knob(path, DEVICE, |_| takes);
    [
        key(keys::PRIVATE_FLAGS, KeyType::PrivateFlags(|flags| Value::Nic(NicRequest::PrivateFlags(flags)))),
        key(
            keys::RSS_QUEUES,
            KeyType::Number {
                min: 1,
                max: QUEUES_MAX,
                make: Box::new(|count| Value::Nic(NicRequest::RssQueues(count))),
            },
        ),
        key(keys::RSS_CONTEXTS, KeyType::QueueSpans(|spans| Value::Nic(NicRequest::RssContexts(spans)))),
        key(keys::FLOW_RULES, KeyType::FlowRules(|rules| Value::Nic(NicRequest::FlowRules(rules)))),
        key(keys::QDISC, KeyType::Qdisc(|kind| Value::Nic(NicRequest::Qdisc(kind)))),
        key(keys::RPS_CPUS, KeyType::CpusOrNone(|cpus| Value::Nic(NicRequest::RpsCpus(cpus)))),
        of_knob(keys::RPS_FLOW_COUNT, DEVICE, number(|count| Value::Nic(NicRequest::RpsFlowCount(count)))),
        key(keys::XPS, KeyType::Switch(Box::new(|on| Value::Nic(NicRequest::Xps(on))))),
    ]
    .into_iter()
}

/// Creates the keys for knobs that are numbers or switches. Their ranges and meanings are in the table of
/// knobs.
macro_rules! of_knobs {
    ($kind:ident as $variant:ident($number:ty)) => {
        $kind::ALL.iter().map(|&knob| {
            let facts = knob.facts();
            let takes = match (facts.unit, facts.range) {
                (KnobUnit::Switch, _) | (_, None) => KeyType::Switch(Box::new(move |on| {
                    Value::Nic(NicRequest::$variant(knob, <$number>::from(on)))
                })),
                (_, Some((min, max))) => {
                    let make = move |n: u32| Value::Nic(NicRequest::$variant(knob, <$number>::of_number(n)));
                    KeyType::Number { min: bound(min), max: bound(max), make: Box::new(make) }
                }
            };
            PolicyKey { path: knob.key(), of: DEVICE, takes, meaning: facts.meaning().into() }
        })
    };
}

/// Creates a knob's value from a number.
trait OfNumber {
    fn of_number(number: u32) -> Self;
}

impl OfNumber for u32 {
    fn of_number(number: u32) -> Self {
        number
    }
}

impl OfNumber for u64 {
    fn of_number(number: u32) -> Self {
        number.into()
    }
}

impl OfNumber for bool {
    fn of_number(number: u32) -> Self {
        number != 0
    }
}

/// Converts a limit in the table of knobs to a number in a policy file, which has 32 bits.
fn bound(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// All keys.
pub(crate) static KEYS: LazyLock<Vec<PolicyKey>> = LazyLock::new(|| {
    let mut keys = of_policies();
    keys.extend(of_delivery());
    keys.extend(of_resources());
    keys.extend(of_goals());
    keys.extend(of_guards());
    keys.extend(of_budgets());
    keys.extend(of_processes());
    keys.extend(of_daemon());
    keys.extend(of_selectors());
    keys.extend(of_kthreads());
    keys.extend(of_knobs!(ChannelKind as Channels(u32)));
    keys.extend(of_knobs!(RingKind as Ring(u32)));
    keys.extend(of_knobs!(CoalesceParam as Coalescing(u32)));
    keys.extend(of_knobs!(Offload as Offload(bool)));
    keys.extend(of_knobs!(PacketSize as PacketSize(u32)));
    keys.extend(of_device());
    keys.extend(of_knobs!(Sysctl as Sysctl(u64)));
    keys
});

/// A key, as its reference page lists it.
#[derive(Clone, Debug)]
pub struct KeyRow {
    /// The key's full name, with its table: `goal.p99`.
    pub path: &'static str,
    /// The kinds of sections that may contain the key.
    pub of: &'static [SectionKind],
    /// The values that the key accepts, as Markdown.
    pub takes: String,
    /// The meaning, in one sentence.
    pub meaning: &'static str,
}

/// Returns all keys, in the order of the reference page.
pub fn key_table() -> Vec<KeyRow> {
    let row = |key: &'static PolicyKey| KeyRow {
        path: key.path,
        of: key.of,
        takes: key.takes.listed(),
        meaning: &key.meaning,
    };
    KEYS.iter().map(row).collect()
}

impl KeyType {
    /// Returns the syntax of the value as Markdown, complete but as short as possible.
    fn listed(&self) -> String {
        let words =
            |words: &[&str]| words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ");
        match self {
            Self::Policy(_) => words(&PolicyName::ALL.map(PolicyName::as_str)),
            Self::Delivery(_) => "a [delivery mode](delivery-modes.md): `\"suspend20\"`".to_owned(),
            Self::Span(_) => "a span: `\"20us\"`, `\"0\"`".to_owned(),
            Self::PositiveSpan(_) => "a span above 0: `\"300us\"`".to_owned(),
            Self::Sample(_) => {
                format!("`\"{}\"` to `\"{}\"`, `\"off\"`", PartOfSecond::LEAST, PartOfSecond::MOST)
            }
            Self::Number { min, max, .. } => format!("{min} to {max}"),
            Self::Cpus(_) => "CPUs: `\"0-3,8\"`".to_owned(),
            Self::Kthread(key) => key.example().replace(" in quotes", ""),
            Self::Layout(_) => "a [layout](recipes.md#layouts): `\"rx-per-core\"`".to_owned(),
            Self::Patterns(_) => {
                "a [pattern](#patterns) or a list: `\"haproxy*\"`, `[\"nginx\", \"haproxy*\"]`".to_owned()
            }
            Self::Carries(_) => words(&Carries::ALL.map(Carries::as_str)),
            Self::Speed(_) => "a speed: `\"25G\"`, `\">=25G\"`, `\"<1000M\"`".to_owned(),
            Self::Growth(_) => format!("a growth: `\"{}\"` to `\"{}\"`", Growth::LEAST, Growth::MOST),
            Self::Holdback(_) => format!("a share: `\"{}\"` to `\"{}\"`", Holdback::LEAST, Holdback::MOST),
            Self::Within { least, most, .. } => format!("a span: `\"{least}\"` to `\"{most}\"`"),
            Self::OnMissed(_) => words(&OnMissed::ALL.map(OnMissed::as_str)),
            Self::OnReversed(_) => words(&OnReversed::ALL.map(OnReversed::as_str)),
            Self::Switch(_) => "`true`, `false`".to_owned(),
            Self::CpusOrNone(_) => "CPUs: `\"0-3\"`, or `\"none\"`".to_owned(),
            Self::PrivateFlags(_) => "flags: `\"rx_striding_rq=on,tx_port_ts=off\"`".to_owned(),
            Self::QueueSpans(_) => "queues: `\"2-3, 4-7\"`".to_owned(),
            Self::FlowRules(_) => "rules: `\"tcp4 dst-port 11211 queue 2\"`".to_owned(),
            Self::Qdisc(_) => words(&QdiscKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>()),
        }
    }
}
