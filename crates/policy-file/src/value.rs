//! The value of a key in a policy file, and its text format.

use crate::spelling::toml_string;
use model::keys;
use model::live::PartOfSecond;
use model::nic::NicRequest;
use model::{
    CpuSet, DeliveryMode, DeviceCondition, Growth, Guarded, Holdback, KthreadValue, Layout, Nanoseconds,
    OnMissed, OnReversed, Patterns, PolicyName,
};

/// The value of a key in a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each variant is a key of the table in `key.rs`, which documents its meaning"
)]
pub enum Value {
    Policy(PolicyName),
    Delivery(DeliveryMode),
    DeferHardIrqs(u32),
    GroFlushTimeout(Nanoseconds),
    IrqSuspendTimeout(Nanoseconds),
    Cpus(CpuSet),
    GoalP50(Nanoseconds),
    GoalP99(Nanoseconds),
    GoalFor(Nanoseconds),
    GoalOnMissed(OnMissed),
    Guard(Guarded, Growth),
    GuardWithin(Nanoseconds),
    Holdback(Holdback),
    OnReversed(OnReversed),
    PollingCpus(u32),
    AddedDelay(Nanoseconds),
    RtPriority(u32),
    Kthread(KthreadValue),
    MatchUnit(Patterns),
    MatchCgroup(Patterns),
    MatchExe(Patterns),
    MatchPod(Patterns),
    MatchContainer(Patterns),
    MatchPort(u32),
    MatchUid(u32),
    MatchDevice(DeviceCondition),
    MatchNotDevice(DeviceCondition),
    Layout(Layout),
    Queues(u32),
    Nic(NicRequest),
    Sample(PartOfSecond),
    Searches(u32),
}

impl Value {
    /// Returns the value's key, with its table: `goal.p99`.
    pub const fn path(&self) -> &'static str {
        match self {
            Self::Policy(_) => "policy",
            Self::Delivery(_) => "delivery",
            Self::DeferHardIrqs(_) => keys::DEFER_HARD_IRQS,
            Self::GroFlushTimeout(_) => keys::GRO_FLUSH_TIMEOUT,
            Self::IrqSuspendTimeout(_) => keys::IRQ_SUSPEND_TIMEOUT,
            Self::Cpus(_) => "cpus",
            Self::GoalP50(_) => "goal.p50",
            Self::GoalP99(_) => "goal.p99",
            Self::GoalFor(_) => "goal.for",
            Self::GoalOnMissed(_) => "goal.on_missed",
            Self::Guard(Guarded::P50, _) => "guard.p50",
            Self::Guard(Guarded::P90, _) => "guard.p90",
            Self::Guard(Guarded::P99, _) => "guard.p99",
            Self::Guard(Guarded::Cpu, _) => "guard.cpu",
            Self::GuardWithin(_) => "guard.within",
            Self::Holdback(_) => "holdback",
            Self::OnReversed(_) => "on_reversed",
            Self::PollingCpus(_) => "budget.polling_cpus",
            Self::AddedDelay(_) => "budget.added_delay",
            Self::RtPriority(_) => "budget.rt_priority",
            Self::Kthread(value) => value.path(),
            Self::MatchUnit(_) => "match.unit",
            Self::MatchCgroup(_) => "match.cgroup",
            Self::MatchExe(_) => "match.exe",
            Self::MatchPod(_) => "match.pod",
            Self::MatchContainer(_) => "match.container",
            Self::MatchPort(_) => "match.port",
            Self::MatchUid(_) => "match.uid",
            Self::MatchDevice(condition) => match condition {
                DeviceCondition::Name(_) => "match.name",
                DeviceCondition::Driver(_) => "match.driver",
                DeviceCondition::Pci(_) => "match.pci",
                DeviceCondition::Mac(_) => "match.mac",
                DeviceCondition::Carries(_) => "match.carries",
                DeviceCondition::Speed(_) => "match.speed",
            },
            Self::MatchNotDevice(condition) => match condition {
                DeviceCondition::Name(_) => "match.not.name",
                DeviceCondition::Driver(_) => "match.not.driver",
                DeviceCondition::Pci(_) => "match.not.pci",
                DeviceCondition::Mac(_) => "match.not.mac",
                DeviceCondition::Carries(_) => "match.not.carries",
                DeviceCondition::Speed(_) => "match.not.speed",
            },
            Self::Layout(_) => "layout",
            Self::Queues(_) => "queues",
            Self::Nic(request) => request.key(),
            Self::Sample(_) => "sample",
            Self::Searches(_) => "searches",
        }
    }

    /// Formats the value in the syntax of policy files.
    pub fn toml(&self) -> String {
        match self {
            Self::Policy(policy) => toml_string(&policy.to_string()),
            Self::Delivery(mode) => toml_string(&mode.to_string()),
            Self::GroFlushTimeout(span)
            | Self::IrqSuspendTimeout(span)
            | Self::GoalP50(span)
            | Self::GoalP99(span)
            | Self::GoalFor(span)
            | Self::GuardWithin(span)
            | Self::AddedDelay(span) => toml_string(&span.to_string()),
            Self::GoalOnMissed(what) => toml_string(what.as_str()),
            Self::OnReversed(what) => toml_string(what.as_str()),
            Self::Guard(_, growth) => toml_string(&growth.to_string()),
            Self::Holdback(share) => toml_string(&share.to_string()),
            Self::Cpus(cpus) => toml_string(&cpus.to_string()),
            Self::MatchUnit(patterns)
            | Self::MatchCgroup(patterns)
            | Self::MatchExe(patterns)
            | Self::MatchPod(patterns)
            | Self::MatchContainer(patterns)
            | Self::MatchDevice(
                DeviceCondition::Name(patterns)
                | DeviceCondition::Driver(patterns)
                | DeviceCondition::Pci(patterns)
                | DeviceCondition::Mac(patterns),
            )
            | Self::MatchNotDevice(
                DeviceCondition::Name(patterns)
                | DeviceCondition::Driver(patterns)
                | DeviceCondition::Pci(patterns)
                | DeviceCondition::Mac(patterns),
            ) => patterns.toml(toml_string),
            Self::MatchDevice(DeviceCondition::Carries(what))
            | Self::MatchNotDevice(DeviceCondition::Carries(what)) => toml_string(what.as_str()),
            Self::MatchDevice(DeviceCondition::Speed(bound))
            | Self::MatchNotDevice(DeviceCondition::Speed(bound)) => toml_string(&bound.to_string()),
            Self::DeferHardIrqs(n)
            | Self::PollingCpus(n)
            | Self::Queues(n)
            | Self::RtPriority(n)
            | Self::MatchPort(n)
            | Self::Searches(n)
            | Self::MatchUid(n) => n.to_string(),
            Self::Kthread(value) => toml_string(&value.to_string()),
            Self::Layout(layout) => toml_string(&layout.to_string()),
            Self::Nic(request) => crate::nic_value::toml(request),
            Self::Sample(part) => toml_string(&part.to_string()),
        }
    }
}
