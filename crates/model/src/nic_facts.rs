//! What is known of the drivers of NICs from the kernel's source, which the running kernel does not say of a device.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::glob::Glob;
use crate::host::{Confidence, Device, Irq, IrqEdge};
use crate::ids::RxQueue;

/// What is known of each driver, by its name ([`Device::kind`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicFacts {
    /// The release of the kernel whose source was read.
    pub kernel: String,
    /// The drivers.
    #[serde(rename = "driver")]
    pub drivers: BTreeMap<String, DriverFacts>,
}

/// What is known of a driver; `None` for what was not found in its source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct DriverFacts {
    /// Whether a NAPI's settings survive that the driver makes its queues again: `netif_napi_add_config()`. Since 6.13.
    pub napi_config_persists: Option<Fact<bool>>,
    /// Whether a NAPI states its interrupt: `netif_napi_set_irq()`. Since 6.8.
    pub irq_stated: Option<Fact<bool>>,
    /// What the driver calls the interrupt of a receive queue; `{device}` and `{queue}` stand for these. None where the name
    /// does not say the queue.
    pub irq_names: Option<Fact<String>>,
    /// Whether the kernel keeps an interrupt's affinity when the driver requests it again: `netif_set_affinity_auto()`.
    /// Since 6.15.
    pub irq_affinity_kept: Option<Fact<bool>>,
    /// What another size of the rings does meanwhile.
    pub ring_change: Option<Fact<Interruption>>,
    /// What another number of queues does meanwhile.
    pub channel_change: Option<Fact<Interruption>>,
    /// Whether single queues have interrupt moderation.
    pub per_queue_coalesce: Option<Fact<bool>>,
    /// Whether the driver adapts interrupt moderation unless it is given other values.
    pub adaptive_by_default: Option<Fact<bool>>,
    /// Whether there are rules for single flows.
    pub ntuple: Option<Fact<bool>>,
    /// The most rules for single flows; none where the driver's source has no number, but asks the NIC.
    pub ntuple_rules: Option<Fact<u32>>,
    /// The most contexts of the receive hash beside the device's own.
    pub rss_contexts: Option<Fact<u32>>,
    /// What it refuses, in words.
    pub refuses: Option<Fact<String>>,
}

/// A fact, and where it stands in the kernel's source.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact<T> {
    /// The fact.
    pub is: T,
    /// File and line.
    pub at: String,
    /// The function, table or macro there.
    #[serde(rename = "in")]
    pub within: String,
    /// What stands on that line.
    pub word: String,
}

impl<T> Fact<T> {
    /// `drivers/net/…/ice_base.c:158 ice_vsi_alloc_q_vector()`
    pub fn source(&self) -> String {
        format!("{} {}", self.at, self.within)
    }
}

/// What a change of rings or queues does to traffic while it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interruption {
    /// The carrier is off for a moment: what stands on the device sees its link go down.
    CarrierOff,
    /// Each queue is reset, with its packets; the carrier stays.
    QueueReset,
    /// Nothing that others see.
    Nothing,
    /// The driver has no such change.
    Unsupported,
}

/// How sure it is that an interrupt is a receive queue's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IrqCertainty {
    /// By order: the driver does not say which NAPI serves the queue.
    ByOrder,
    /// By a name that looks like that of a queue.
    ByName,
    /// By a name of the form that this driver's source writes.
    NamedByDriver,
    /// The driver states it as an attribute of the NAPI.
    Stated,
}

impl IrqCertainty {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::ByOrder => "guessed by the order of NAPIs",
            Self::ByName => "inferred from its name",
            Self::NamedByDriver => "named by the driver",
            Self::Stated => "stated by the driver",
        }
    }

    /// Whether the driver says it, one way or the other.
    pub const fn is_of_driver(self) -> bool {
        matches!(self, Self::NamedByDriver | Self::Stated)
    }
}

impl NicFacts {
    /// What is known of a device's driver.
    pub fn of(&self, device: &Device) -> Option<&DriverFacts> {
        self.drivers.get(&device.kind)
    }

    /// How sure it is that this interrupt, which `edge` leads to, is a queue's.
    pub fn irq_certainty(
        &self,
        device: &Device,
        queue: RxQueue,
        edge: IrqEdge,
        irq: Option<&Irq>,
    ) -> IrqCertainty {
        if edge.confidence == Confidence::Stated {
            let state = device.rx_queues.iter().find(|state| state.id == queue);
            let stated =
                state.and_then(|state| state.napi).is_some_and(|napi| napi.confidence == Confidence::Stated);
            return if stated { IrqCertainty::Stated } else { IrqCertainty::ByOrder };
        }
        let form = self.of(device).and_then(|facts| facts.irq_names.as_ref());
        let is_its_name = |form: &Fact<String>| {
            let name = form.is.replace("{device}", device.id.name.as_str());
            let glob = name.replace("{queue}", &queue.index.to_string()).parse::<Glob>();
            glob.is_ok_and(|glob| irq.is_some_and(|irq| glob.meets(&irq.name)))
        };
        match (edge.confidence, form) {
            (Confidence::ByOrder, _) => IrqCertainty::ByOrder,
            (_, Some(form)) if is_its_name(form) => IrqCertainty::NamedByDriver,
            _ => IrqCertainty::ByName,
        }
    }
}
