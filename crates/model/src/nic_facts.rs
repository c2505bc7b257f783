//! Facts about NIC drivers, read from the kernel's source, that the running kernel does not report.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::glob::Glob;
use crate::host::{Confidence, Device, Irq, IrqEdge};
use crate::ids::RxQueue;

/// Facts about drivers, by the driver's name ([`Device::kind`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicFacts {
    /// The kernel release whose source was read.
    pub kernel: String,
    /// The drivers.
    #[serde(rename = "driver")]
    pub drivers: BTreeMap<String, DriverFacts>,
}

/// Facts about a driver; a fact is `None` if the kernel's source does not show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct DriverFacts {
    /// Whether a NAPI's settings survive when the driver recreates its queues: `netif_napi_add_config()`.
    /// Since 6.13.
    pub napi_config_persists: Option<Fact<bool>>,
    /// Whether the driver tells the kernel which interrupt serves a NAPI: `netif_napi_set_irq()`. Since 6.8.
    pub irq_stated: Option<Fact<bool>>,
    /// The driver's name for a receive queue's interrupt, with `{device}` and `{queue}` as placeholders.
    /// `None` if the name does not identify the queue.
    pub irq_names: Option<Fact<String>>,
    /// Whether the kernel preserves an interrupt's affinity when the driver requests the interrupt again:
    /// `netif_set_affinity_auto()`. Since 6.15.
    pub irq_affinity_kept: Option<Fact<bool>>,
    /// How a change of ring sizes interrupts traffic.
    pub ring_change: Option<Fact<Interruption>>,
    /// How a change of queue counts interrupts traffic.
    pub channel_change: Option<Fact<Interruption>>,
    /// Whether the driver supports per-queue interrupt moderation.
    pub per_queue_coalesce: Option<Fact<bool>>,
    /// Whether adaptive interrupt moderation is on by default.
    pub adaptive_by_default: Option<Fact<bool>>,
    /// Whether the driver supports ntuple rules.
    pub ntuple: Option<Fact<bool>>,
    /// The maximum number of ntuple rules; `None` if the driver queries the NIC for it.
    pub ntuple_rules: Option<Fact<u32>>,
    /// The maximum number of RSS contexts in addition to the default one.
    pub rss_contexts: Option<Fact<u32>>,
    /// The configurations that the driver rejects, for display.
    pub refuses: Option<Fact<String>>,
}

/// A fact, with its place in the kernel's source.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact<T> {
    /// The fact.
    pub is: T,
    /// The source file and line that show the fact.
    pub at: String,
    /// The function, table or macro that contains the line.
    #[serde(rename = "in")]
    pub within: String,
    /// The text that the line contains.
    pub word: String,
}

impl<T> Fact<T> {
    /// `drivers/net/…/ice_base.c:158 ice_vsi_alloc_q_vector()`
    pub fn source(&self) -> String {
        format!("{} {}", self.at, self.within)
    }
}

/// How a change of rings or queues interrupts traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interruption {
    /// The carrier is off for a moment: devices on top of this device see a link down.
    CarrierOff,
    /// Each queue is reset and loses its packets; the carrier stays on.
    QueueReset,
    /// The change does not interrupt traffic.
    Nothing,
    /// The driver does not support such a change.
    Unsupported,
}

/// How certain it is that an interrupt belongs to a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IrqCertainty {
    /// The interrupt was matched only by its order: the driver does not report which NAPI serves the queue.
    ByOrder,
    /// The interrupt was matched by its name, which looks like a queue's.
    ByName,
    /// The interrupt was matched by its name, in the format that this driver's source uses.
    NamedByDriver,
    /// The driver reports the interrupt as an attribute of the NAPI.
    Stated,
}

impl IrqCertainty {
    /// Describes the certainty, for display.
    pub const fn words(self) -> &'static str {
        match self {
            Self::ByOrder => "guessed by the order of NAPIs",
            Self::ByName => "inferred from its name",
            Self::NamedByDriver => "named by the driver",
            Self::Stated => "stated by the driver",
        }
    }

    /// Whether the driver itself identifies the interrupt.
    pub const fn is_of_driver(self) -> bool {
        matches!(self, Self::NamedByDriver | Self::Stated)
    }
}

impl NicFacts {
    /// Returns the facts about a device's driver.
    pub fn of(&self, device: &Device) -> Option<&DriverFacts> {
        self.drivers.get(&device.kind)
    }

    /// Returns how certain it is that the interrupt of `edge` belongs to a queue.
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
