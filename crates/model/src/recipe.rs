//! Recipes: what each policy comes to, mechanism by mechanism, with the reason and the source of every value.
//!
//! A recipe is data. This file says what a recipe can name; what the shipped ones say is in TOML, and which setting of
//! which object a value becomes is decided by `plan`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::delivery::DeliveryMode;
use crate::layout::Layout;
use crate::nic::{ChannelKind, CoalesceParam, Offload, PacketSize, RingKind, Sysctl};
use crate::plan::Reason;
use crate::policy::PolicyName;
use crate::units::Nanoseconds;

/// Something about a host that a recipe has a word on. Shown by the word that stands in a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// How packets are delivered: the mode, which brings its times, its busy polling and its threads.
    Delivery,
    /// Instead of [`crate::DeliveryParams::defer_hard_irqs`].
    DeferHardIrqs,
    /// Instead of [`crate::DeliveryParams::gro_flush_timeout`].
    GroFlushTimeout,
    /// Instead of [`crate::DeliveryParams::irq_suspend_timeout`].
    IrqSuspendTimeout,
    /// How queues, interrupts and CPUs are put together.
    Layout,
    /// Whether the threads of a service run on the CPUs of its queues.
    Threads,
    /// The longest that a CPU may take to wake, held through `/dev/cpu_dma_latency`.
    WakeLatency,
    /// Which of the listeners that a service has at one address gets a connection.
    Reuseport,
    /// Interrupt moderation: of single queues where the driver has that, else of the device.
    Coalescing(CoalesceParam),
    /// Numbers of queues.
    Channels(ChannelKind),
    /// Sizes of rings.
    Ring(RingKind),
    /// Offloads.
    Offload(Offload),
    /// How large packets may be.
    PacketSize(PacketSize),
    /// Receive packet steering.
    RpsCpus,
    /// Flows that receive flow steering remembers for each queue.
    RpsFlowCount,
    /// Transmit packet steering.
    Xps,
    /// Numbers of the whole host.
    Sysctl(Sysctl),
}

impl Mechanism {
    /// All of them, in the order of the documentation.
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

    /// The word for it in a recipe: the kernel's, where the kernel has one.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivery => "delivery",
            Self::DeferHardIrqs => "defer_hard_irqs",
            Self::GroFlushTimeout => "gro_flush_timeout",
            Self::IrqSuspendTimeout => "irq_suspend_timeout",
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

    /// The one with this word.
    pub fn named(word: &str) -> Option<Self> {
        Self::all().find(|mechanism| mechanism.as_str() == word)
    }

    /// Whether it is the device's, and so may differ by driver.
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

/// What a recipe wants of a mechanism.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dose {
    /// It is left as it is.
    Keep,
    /// A delivery mode.
    Delivery(DeliveryMode),
    /// A span of time.
    Span(Nanoseconds),
    /// A number, in the mechanism's own unit.
    Number(u32),
    /// On or off.
    Switch(bool),
    /// As much as the driver can.
    Max,
    /// One for each physical core near the device.
    PerCore,
    /// These CPUs; none switches it off.
    Cpus(CpuSet),
    /// The CPUs near the device, if it has fewer queues than there are cores; none otherwise.
    CpusIfShort,
    /// A layout.
    Layout(Layout),
    /// Connections go to the listener of the queue that they come by.
    ByQueue,
}

impl fmt::Display for Dose {
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

/// What a recipe wants of one mechanism, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ingredient {
    /// What is wanted.
    pub dose: Dose,
    /// Why, and where that comes from.
    pub because: Reason,
}

/// What a policy comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipe {
    /// By mechanism. What is not named is left as it is.
    pub ingredients: BTreeMap<Mechanism, Ingredient>,
}

impl Recipe {
    /// What it wants of a mechanism; `None` where it has no word on it.
    pub fn of(&self, mechanism: Mechanism) -> Option<&Ingredient> {
        self.ingredients.get(&mechanism)
    }
}

/// The recipes of all policies, and how drivers differ from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipes {
    /// What holds for every policy that has no word of its own.
    pub any: Recipe,
    /// By policy.
    pub policies: BTreeMap<PolicyName, Recipe>,
    /// By driver ([`crate::host::Device::kind`]), and within it by policy; `None` holds for every policy.
    pub drivers: BTreeMap<String, BTreeMap<Option<PolicyName>, Recipe>>,
}

impl Recipes {
    /// What a policy wants of a mechanism that no driver changes.
    pub fn of(&self, policy: PolicyName, mechanism: Mechanism) -> Option<&Ingredient> {
        let own = self.policies.get(&policy).and_then(|recipe| recipe.of(mechanism));
        own.or_else(|| self.any.of(mechanism))
    }

    /// What a policy wants of devices with this driver: the driver's word under this policy, else its word under any,
    /// else the policy's own, else what holds for every policy.
    pub fn for_driver(&self, policy: PolicyName, driver: &str) -> BTreeMap<Mechanism, &Ingredient> {
        let own = self.policies.get(&policy);
        let by_driver = self.drivers.get(driver);
        let layers = [
            Some(&self.any),
            own,
            by_driver.and_then(|by| by.get(&None)),
            by_driver.and_then(|by| by.get(&Some(policy))),
        ];
        let named = layers.into_iter().flatten().flat_map(|recipe| &recipe.ingredients);
        named.map(|(mechanism, ingredient)| (*mechanism, ingredient)).collect()
    }
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
            ingredients: [(
                Mechanism::Coalescing(CoalesceParam::RxUsecs),
                Ingredient { dose: Dose::Number(number), because: Reason::new("test", "test") },
            )]
            .into(),
        };
        let recipes = Recipes {
            any: Recipe::default(),
            policies: [(PolicyName::Bulk, wants(1)), (PolicyName::Cpu, wants(1))].into(),
            drivers: [("i40e".to_owned(), [(None, wants(2)), (Some(PolicyName::Bulk), wants(3))].into())]
                .into(),
        };
        let of = |policy, driver| {
            let found = recipes.for_driver(policy, driver);
            found.values().map(|ingredient| ingredient.dose.clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(PolicyName::Bulk, "i40e"), [Dose::Number(3)]);
        assert_eq!(of(PolicyName::Cpu, "i40e"), [Dose::Number(2)]);
        assert_eq!(of(PolicyName::Cpu, "ice"), [Dose::Number(1)]);
    }
}
