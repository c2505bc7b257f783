//! The data model of netpolicy.
//!
//! This crate defines names, units and ranges: the host as a graph (device, queue, NAPI, IRQ, CPU, process,
//! epoll, socket), settings and changes to them, policies, counts and measurements. It uses no files, sockets
//! or clocks, and contains no recipe values. Its dependencies (only serde and schemars), `clippy.toml` next
//! to `src/`, and `forbid(unsafe_code)` enforce this.
//!
//! Read in this order: [`units`] and [`cpu_set`] (basic types), [`host`] (the current state), [`setting`] and
//! [`plan`] (changes), [`policy`] and [`selector`] (what was requested, and for which devices), [`recipe`]
//! and [`layout`] (what a policy resolves to), [`workload`], [`delivered`], [`live`], [`judgement`] and
//! [`evidence`] (measurements), [`machine`] (the machines of a measurement), [`chance`] (random numbers).
#![forbid(unsafe_code)]

pub mod chance;
pub mod cpu_set;
pub mod delivered;
pub mod delivery;
pub mod evidence;
pub mod exchange;
pub mod facts;
pub mod finding;
pub mod glob;
pub mod guard;
mod holdback;
pub mod host;
pub mod ids;
pub mod judgement;
pub mod keys;
pub mod known_bad;
pub mod kthread_key;
pub mod layout;
pub mod legible;
pub mod live;
pub mod machine;
pub mod nic;
pub mod nic_facts;
pub mod pace;
pub mod plan;
pub mod policy;
pub mod policy_name;
pub mod proof;
pub mod qdisc;
pub mod recipe;
pub mod reuseport;
pub mod scheduling;
pub mod search;
pub mod selector;
pub mod setting;
mod shell;
pub mod since;
pub mod steering;
pub mod support;
pub mod units;
mod words;
pub mod workload;

pub use chance::Chance;
pub use cpu_set::CpuSet;
pub use delivered::{BatchesOf, CpuWait, Delivered, EventBatches, NapiDelivered, PollCounts};
pub use delivery::{DeliveryMode, DeliveryParams};
pub use evidence::{
    ClientSide, CounterRates, Counters, CpuCounters, CpuPerAnswer, CpuTicks, CpuUse, Distribution,
    EpollBatch, Evidence, FormatName, MeasuredOn, Origin, Requests, SimulatedFrom,
};
pub use exchange::{Asks, ExchangeWorkload, ForeignWorkload, StorageWorkload};
pub use finding::{Finding, Severity};
pub use glob::{Glob, Patterns};
pub use guard::{Growth, Guard, Guarded, Limits};
pub use holdback::Holdback;
pub use host::Host;
pub use ids::{
    Cpu, DeviceId, EpollId, Fd, IfIndex, IrqNumber, Label, NapiId, NetnsId, NumaNode, Pid, ProcessId,
    QueueIndex, RingId, RxQueue, SocketId, ThreadId, TxQueue,
};
pub use judgement::{JudgedBy, JudgedChange, JudgedUnit, Judgement, Ruling};
pub use kthread_key::{KthreadKey, KthreadValue};
pub use layout::{Layout, ObjectSpec};
pub use legible::is_misleading;
pub use live::{
    LiveCounts, LivePart, LivePolls, LiveProtocols, LiveSpans, LiveWaiting, LiveWindow, ServicePorts,
    SpanCounts,
};
pub use machine::{DeepestIdle, DriverInfo, MachineDescription, Side};
pub use nic::{ChannelKind, CoalesceParam, FlagName, NicRequest, Offload, PacketSize, RingKind, Rss, Sysctl};
pub use nic_facts::{DriverFacts, Fact, Interruption, IrqCertainty, NicFacts};
pub use pace::{Arrivals, Pace, Waiting};
pub use plan::{Change, Plan, Reason, Step};
pub use policy::{Budget, Goal, Intent, OnMissed, OnReversed, Policy, Target};
pub use policy_name::PolicyName;
pub use proof::{Effect, Episode, Proof, ProofInterval, Proofs};
pub use qdisc::{Qdisc, QdiscKind, QdiscOption, Qdiscs};
pub use recipe::{
    Case, Circumstances, EpollNapis, Mechanism, Recipe, RecipeEntry, RecipeValue, Recipes, Rung, When,
};
pub use reuseport::{ListenerGroup, QueueListeners, Spread};
pub use scheduling::{KthreadCpus, KthreadRequest, KthreadState, RtThrottling, Scheduling, Slice, UtilClamp};
pub use search::{Search, Searches, Tried};
pub use selector::{Carries, DeviceCondition, DeviceSelector, Precedence, SpeedBound};
pub use setting::{
    DeviceNapiKnob, EpollParams, HostKnob, Interface, IrqKnob, KthreadKnob, NapiKnob, NicKnob, Object,
    ProcessKnob, QueueCoalesceParam, RingNapi, RxQueueKnob, Setting, SocketPolling, Threading, TxQueueKnob,
};
pub use shell::quoted;
pub use steering::{EtherFlow, FlowMatch, FlowRule, IpFlow, QueueSpan, SteerTo, Transport};
pub use support::Prerequisites;
pub use units::{EmptyPolls, KernelVersion, Nanoseconds};
pub use workload::{KeySize, MemcachedWorkload, OfferedLoad, ValueSize, Workload};
