//! Recipes: the value of each mechanism under each policy, with the reason and the source of every value.
//!
//! A recipe is data: this file defines what a recipe can contain. The shipped recipes are TOML files, and the
//! crate `plan` converts their values to settings of objects.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::delivery::DeliveryMode;
use crate::layout::Layout;

use crate::keys;
use crate::known_bad::KnownFaults;
use crate::nic::{ChannelKind, CoalesceParam, Offload, PacketSize, RingKind, Sysctl};
use crate::nic_facts::NicFacts;
use crate::plan::Reason;
use crate::policy_name::PolicyName;
use crate::units::Nanoseconds;

/// A property of a host that a recipe can set. Displayed as the word that recipe files use for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// The delivery mode, including its times, busy polling and threads.
    Delivery,
    /// Instead of [`crate::DeliveryParams::defer_hard_irqs`].
    DeferHardIrqs,
    /// Instead of [`crate::DeliveryParams::gro_flush_timeout`].
    GroFlushTimeout,
    /// Instead of [`crate::DeliveryParams::irq_suspend_timeout`].
    IrqSuspendTimeout,
    /// How queues, interrupts and CPUs are grouped.
    Layout,
    /// Whether a service's threads run on the CPUs of its queues.
    Threads,
    /// The maximum wake-up latency of CPUs, requested through `/dev/cpu_dma_latency`.
    WakeLatency,
    /// How a service's connections are assigned to its listeners at one address.
    Reuseport,
    /// Interrupt moderation: per queue if the driver supports that, otherwise per device.
    Coalescing(CoalesceParam),
    /// Queue counts.
    Channels(ChannelKind),
    /// Ring sizes.
    Ring(RingKind),
    /// Offloads.
    Offload(Offload),
    /// Maximum packet sizes.
    PacketSize(PacketSize),
    /// RPS.
    RpsCpus,
    /// The number of RFS flows per queue.
    RpsFlowCount,
    /// XPS.
    Xps,
    /// Host-wide sysctls.
    Sysctl(Sysctl),
}

impl Mechanism {
    /// All mechanisms, in the order of the documentation.
    pub fn all() -> impl Iterator<Item = Self> {
        [
            Self::Delivery,
            Self::DeferHardIrqs,
            Self::GroFlushTimeout,
            Self::IrqSuspendTimeout,
            Self::Layout,
            Self::Threads,
            Self::WakeLatency,
            Self::Reuseport,
        ]
        .into_iter()
        .chain(CoalesceParam::ALL.iter().copied().map(Self::Coalescing))
        .chain(ChannelKind::ALL.iter().copied().map(Self::Channels))
        .chain(RingKind::ALL.iter().copied().map(Self::Ring))
        .chain(Offload::ALL.iter().copied().map(Self::Offload))
        .chain(PacketSize::ALL.iter().copied().map(Self::PacketSize))
        .chain([Self::RpsCpus, Self::RpsFlowCount, Self::Xps])
        .chain(Sysctl::ALL.iter().copied().map(Self::Sysctl))
    }

    /// Returns the mechanism's word in a recipe: the kernel's name if it has one.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivery => "delivery",
            Self::DeferHardIrqs => keys::DEFER_HARD_IRQS,
            Self::GroFlushTimeout => keys::GRO_FLUSH_TIMEOUT,
            Self::IrqSuspendTimeout => keys::IRQ_SUSPEND_TIMEOUT,
            Self::Layout => "layout",
            Self::Threads => "threads",
            Self::WakeLatency => "cpu_dma_latency",
            Self::Reuseport => "reuseport",
            Self::Coalescing(param) => param.as_str(),
            Self::Channels(kind) => kind.as_str(),
            Self::Ring(kind) => kind.as_str(),
            Self::Offload(offload) => offload.as_str(),
            Self::PacketSize(size) => size.as_str(),
            Self::RpsCpus => "rps_cpus",
            Self::RpsFlowCount => "rps_flow_cnt",
            Self::Xps => "xps",
            Self::Sysctl(sysctl) => sysctl.as_str(),
        }
    }

    /// Returns the mechanism with this word.
    pub fn named(word: &str) -> Option<Self> {
        Self::all().find(|mechanism| mechanism.as_str() == word)
    }

    /// Whether the mechanism is a property of the device, so that its value may differ by driver.
    pub const fn is_of_device(self) -> bool {
        match self {
            Self::Delivery
            | Self::DeferHardIrqs
            | Self::GroFlushTimeout
            | Self::IrqSuspendTimeout
            | Self::Threads
            | Self::WakeLatency
            | Self::Reuseport
            | Self::Sysctl(_) => false,
            Self::Layout
            | Self::Coalescing(_)
            | Self::Channels(_)
            | Self::Ring(_)
            | Self::Offload(_)
            | Self::PacketSize(_)
            | Self::RpsCpus
            | Self::RpsFlowCount
            | Self::Xps => true,
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A recipe's value for a mechanism.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecipeValue {
    /// Keep the current value.
    Keep,
    /// A delivery mode.
    Delivery(DeliveryMode),
    /// A span of time.
    Span(Nanoseconds),
    /// A number, in the unit of the mechanism.
    Number(u32),
    /// On or off.
    Switch(bool),
    /// The driver's maximum.
    Max,
    /// One queue per physical core near the device.
    PerCore,
    /// A set of CPUs; an empty set turns the mechanism off.
    Cpus(CpuSet),
    /// The CPUs near the device if the device has fewer queues than there are cores near it; otherwise none.
    CpusIfShort,
    /// A layout.
    Layout(Layout),
    /// By queue: a connection goes to the listener of the queue on which the connection arrives.
    ByQueue,
}

impl fmt::Display for RecipeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self {
            Self::Keep => "keep".to_owned(),
            Self::Delivery(mode) => mode.to_string(),
            Self::Span(span) => span.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Switch(on) => if *on { "on" } else { "off" }.to_owned(),
            Self::Max => "max".to_owned(),
            Self::PerCore => "per-core".to_owned(),
            Self::Cpus(cpus) if cpus.is_empty() => "none".to_owned(),
            Self::Cpus(cpus) => cpus.to_string(),
            Self::CpusIfShort => "if-short".to_owned(),
            Self::Layout(layout) => layout.to_string(),
            Self::ByQueue => "by-queue".to_owned(),
        })
    }
}

/// A recipe's value for one mechanism, with its reason.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeEntry {
    /// The value.
    #[serde(alias = "dose")]
    pub value: RecipeValue,
    /// The reason for the value, and the reason's source.
    pub because: Reason,
    /// The drivers with which a measurement showed that the value helps. Empty if the entry claims no
    /// measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured_on: Vec<String>,
    /// The minimum traffic for which a measurement showed that the value helps; `None` if the entry claims no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pays_from: Option<PaysFrom>,
}

/// The minimum traffic for which a measurement showed that a delivery mode helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PaysFrom {
    /// The number of packets that a queue receives within `gro-flush-timeout`.
    pub packets_per_flush: u32,
    /// The number of connections of the service.
    pub connections: u32,
}

impl PaysFrom {
    /// The maximum of both limits.
    pub const MAX: u32 = 1_000_000;
}

impl RecipeEntry {
    /// Creates an entry that claims no measurement.
    pub const fn new(value: RecipeValue, because: Reason) -> Self {
        Self { value, because, measured_on: Vec::new(), pays_from: None }
    }

    /// Whether the entry claims measurements, but none with this driver.
    pub fn is_unmeasured_on(&self, driver: &str) -> bool {
        !self.measured_on.is_empty() && !self.measured_on.iter().any(|measured| measured == driver)
    }
}

/// What is known about the device and the connections for which a recipe is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Circumstances {
    /// The device's driver ([`crate::host::Device::kind`]); empty if no device is known.
    pub driver: String,
    /// Whether the device raises interrupts; `None` if no device is known.
    pub own_interrupts: Option<bool>,
    /// The number of NAPIs that deliver the connections of one epoll; `None` if no connection is known.
    pub epoll_napis: Option<EpollNapis>,
}

/// The number of NAPIs that deliver the connections of one epoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EpollNapis {
    /// Every observed epoll has connections of only one NAPI.
    One,
    /// At least one epoll has connections of several NAPIs.
    Several,
}

impl EpollNapis {
    /// All values.
    pub const ALL: [Self; 2] = [Self::One, Self::Several];

    /// Returns the word that recipes use for this number.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Several => "several",
        }
    }
}

/// The conditions of a case. A case applies only if all of them are known to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// The device's driver.
    pub driver: Option<String>,
    /// See [`Circumstances::own_interrupts`].
    pub own_interrupts: Option<bool>,
    /// See [`Circumstances::epoll_napis`].
    pub epoll_napis: Option<EpollNapis>,
}

impl When {
    /// Whether all conditions are met. Unknown circumstances meet no condition.
    pub fn holds(&self, circumstances: &Circumstances) -> bool {
        let Self { driver, own_interrupts, epoll_napis } = self;
        driver.as_ref().is_none_or(|driver| *driver == circumstances.driver)
            && own_interrupts.is_none_or(|own| circumstances.own_interrupts == Some(own))
            && epoll_napis.is_none_or(|napis| circumstances.epoll_napis == Some(napis))
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { driver, own_interrupts, epoll_napis } = self;
        let own = |own: &bool| if *own { "with its own interrupts" } else { "without its own interrupts" };
        let words = [
            driver.as_ref().map(|driver| format!("driver {driver}")),
            own_interrupts.as_ref().map(|interrupts| format!("a device {}", own(interrupts))),
            epoll_napis.map(|napis| format!("connections of one epoll on {} NAPI(s)", napis.as_str())),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        f.write_str(if words.is_empty() { "always".to_owned() } else { words.join(", ") }.as_str())
    }
}

/// Recipes that apply under some conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Case {
    /// The conditions.
    pub when: When,
    /// The recipes of the case by policy; `None` applies to every policy.
    pub policies: BTreeMap<Option<PolicyName>, Recipe>,
}

/// The values that a policy resolves to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipe {
    /// The entries by mechanism. A mechanism without an entry keeps its value.
    pub entries: BTreeMap<Mechanism, RecipeEntry>,
}

impl Recipe {
    /// Returns the entry for a mechanism, if there is one.
    pub fn of(&self, mechanism: Mechanism) -> Option<&RecipeEntry> {
        self.entries.get(&mechanism)
    }
}

/// A rung of a ladder: a delivery mode to try for a service that misses its goal, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rung {
    /// The mode.
    pub mode: DeliveryMode,
    /// Why the mode may be better for such a service, with the source.
    pub because: Reason,
    /// The drivers with which a measurement showed that the mode is better. Empty if the rung claims no
    /// measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured_on: Vec<String>,
    /// The conditions under which the mode is worth trying.
    pub when: When,
}

impl Rung {
    /// The maximum number of rungs in a ladder.
    pub const COUNT_MAX: usize = 16;

    /// Whether the rung is worth trying in any of these circumstances. A rung without conditions is always
    /// worth trying.
    pub fn is_for(&self, places: &[Circumstances]) -> bool {
        self.when == When::default() || places.iter().any(|place| self.when.holds(place))
    }
}

/// The recipes of all policies, and the exceptions for cases and drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipes {
    /// The entries for policies that have no separate entry for the mechanism.
    pub any: Recipe,
    /// Recipes by policy.
    pub policies: BTreeMap<PolicyName, Recipe>,
    /// The cases by name. If several cases apply, the last one in the order of names decides.
    pub cases: BTreeMap<String, Case>,
    /// Recipes by driver ([`crate::host::Device::kind`]), then by policy; `None` applies to every policy.
    pub drivers: BTreeMap<String, BTreeMap<Option<PolicyName>, Recipe>>,
    /// The delivery modes to try, in order, for a service with this policy that misses its goal.
    pub ladders: BTreeMap<PolicyName, Vec<Rung>>,
    /// Facts about NIC drivers.
    pub nics: Arc<NicFacts>,
    /// Known faults of kernels and drivers.
    pub known_faults: Arc<KnownFaults>,
}

impl Recipes {
    /// Returns a policy's entry for a mechanism when the circumstances are unknown.
    pub fn of(&self, policy: PolicyName, mechanism: Mechanism) -> Option<&RecipeEntry> {
        let own = self.policies.get(&policy).and_then(|recipe| recipe.of(mechanism));
        own.or_else(|| self.any.of(mechanism))
    }

    /// Returns a policy's ladder; empty if no recipe defines one.
    pub fn ladder(&self, policy: PolicyName) -> &[Rung] {
        self.ladders.get(&policy).map_or(&[], Vec::as_slice)
    }

    /// Returns a policy's entry in these circumstances. In order of precedence: the driver's entry for this
    /// policy, the driver's entry for any policy, the entry of the last case that applies, the policy's own
    /// entry, the entry for every policy.
    pub fn under(
        &self,
        policy: PolicyName,
        circumstances: &Circumstances,
    ) -> BTreeMap<Mechanism, &RecipeEntry> {
        let layers = [Some(&self.any), self.policies.get(&policy)];
        let cases = self.cases.values().filter(|case| case.when.holds(circumstances));
        let by_driver = self.drivers.get(&circumstances.driver);
        let special = cases.map(|case| &case.policies).chain(by_driver);
        let special = special.flat_map(|by| [by.get(&None), by.get(&Some(policy))]);
        let named = layers.into_iter().chain(special).flatten().flat_map(|recipe| &recipe.entries);
        named.map(|(mechanism, entry)| (*mechanism, entry)).collect()
    }

    /// Returns a policy's entry for a mechanism if it is the same in all of these circumstances. If the
    /// entries differ, or there are no circumstances, returns the entry for unknown circumstances.
    pub fn agreed(
        &self,
        policy: PolicyName,
        mechanism: Mechanism,
        circumstances: &[Circumstances],
    ) -> Agreed<'_> {
        let each = |known: &Circumstances| self.under(policy, known).get(&mechanism).copied();
        let mut all = circumstances.iter().map(each);
        let first = all.next();
        let general = || self.of(policy, mechanism);
        match first {
            None => Agreed { entry: general(), differ: false },
            Some(first) if all.all(|other| other.map(|i| &i.value) == first.map(|i| &i.value)) => {
                Agreed { entry: first, differ: false }
            }
            Some(_) => Agreed { entry: general(), differ: true },
        }
    }
}

/// A policy's entry for a mechanism across several circumstances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed<'a> {
    /// The entry; `None` if no recipe has one.
    pub entry: Option<&'a RecipeEntry>,
    /// Whether the entries of the circumstances differ, so that `entry` is the one for unknown circumstances.
    pub differ: bool,
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_word_of_a_recipe_leads_back_to_its_mechanism() {
        for mechanism in Mechanism::all() {
            assert_eq!(Mechanism::named(mechanism.as_str()), Some(mechanism));
        }
        assert_eq!(Mechanism::named("rx-usec"), None);
    }

    #[test]
    fn a_driver_goes_before_the_recipe_and_its_word_under_one_policy_before_that_under_any() {
        let wants = |number| Recipe {
            entries: [(
                Mechanism::Coalescing(CoalesceParam::RxUsecs),
                RecipeEntry::new(RecipeValue::Number(number), Reason::new("test", "test")),
            )]
            .into(),
        };
        let recipes = Recipes {
            any: Recipe::default(),
            cases: BTreeMap::new(),
            policies: [(PolicyName::Bulk, wants(1)), (PolicyName::Cpu, wants(1))].into(),
            drivers: [("i40e".to_owned(), [(None, wants(2)), (Some(PolicyName::Bulk), wants(3))].into())]
                .into(),
            ladders: BTreeMap::new(),
            nics: Arc::default(),
            known_faults: Arc::default(),
        };
        let of = |policy, driver| {
            let there = Circumstances { driver: String::from(driver), ..Circumstances::default() };
            let found = recipes.under(policy, &there);
            found.values().map(|entry| entry.value.clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(PolicyName::Bulk, "i40e"), [RecipeValue::Number(3)]);
        assert_eq!(of(PolicyName::Cpu, "i40e"), [RecipeValue::Number(2)]);
        assert_eq!(of(PolicyName::Cpu, "ice"), [RecipeValue::Number(1)]);
    }

    #[test]
    fn a_case_goes_before_the_policy_and_after_the_driver_and_only_where_its_conditions_are_known_to_hold() {
        let mechanism = Mechanism::Coalescing(CoalesceParam::RxUsecs);
        let wants = |number| Recipe {
            entries: [(
                mechanism,
                RecipeEntry::new(RecipeValue::Number(number), Reason::new("test", "test")),
            )]
            .into(),
        };
        let case = |when, number| Case { when, policies: [(Some(PolicyName::Cpu), wants(number))].into() };
        let without = When { own_interrupts: Some(false), ..When::default() };
        let several = When { epoll_napis: Some(EpollNapis::Several), ..When::default() };
        let recipes = Recipes {
            policies: [(PolicyName::Cpu, wants(1)), (PolicyName::Bulk, wants(1))].into(),
            cases: [("a".to_owned(), case(without, 2)), ("b".to_owned(), case(several, 3))].into(),
            drivers: [("veth".to_owned(), [(Some(PolicyName::Cpu), wants(4))].into())].into(),
            ..Recipes::default()
        };
        let there = |driver: &str, own_interrupts, epoll_napis| Circumstances {
            driver: driver.to_owned(),
            own_interrupts,
            epoll_napis,
        };
        let of = |policy, there: &Circumstances| recipes.under(policy, there)[&mechanism].value.clone();
        let cpu = |there| of(PolicyName::Cpu, &there);
        assert_eq!(cpu(Circumstances::default()), RecipeValue::Number(1), "nothing is known");
        assert_eq!(cpu(there("tun", Some(true), Some(EpollNapis::One))), RecipeValue::Number(1));
        assert_eq!(cpu(there("tun", Some(false), None)), RecipeValue::Number(2));
        assert_eq!(
            cpu(there("tun", Some(false), Some(EpollNapis::Several))),
            RecipeValue::Number(3),
            "the last decides"
        );
        assert_eq!(cpu(there("veth", Some(false), Some(EpollNapis::Several))), RecipeValue::Number(4));
        assert_eq!(of(PolicyName::Bulk, &there("tun", Some(false), None)), RecipeValue::Number(1));
        let agreed = |places: &[Circumstances]| {
            let found = recipes.agreed(PolicyName::Cpu, mechanism, places);
            (found.entry.map(|entry| entry.value.clone()), found.differ)
        };
        let (veth, tun) = (there("veth", Some(false), None), there("tun", Some(false), None));
        assert_eq!(agreed(&[]), (Some(RecipeValue::Number(1)), false));
        assert_eq!(agreed(std::slice::from_ref(&veth)), (Some(RecipeValue::Number(4)), false));
        assert_eq!(agreed(&[veth, tun]), (Some(RecipeValue::Number(1)), true));
    }

    #[test]
    fn only_a_value_that_claims_a_measurement_can_lack_one() {
        let mut entry = RecipeEntry::new(RecipeValue::Keep, Reason::new("test", "test"));
        assert!(!entry.is_unmeasured_on("ice"));
        entry.measured_on = vec!["mlx5_core".to_owned()];
        assert!(entry.is_unmeasured_on("ice") && !entry.is_unmeasured_on("mlx5_core"));
    }
}
