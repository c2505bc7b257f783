//! Knobs of receive and transmit queues: per-queue interrupt moderation, and software steering.

use serde::{Deserialize, Serialize};

use super::family::family;
use crate::cpu_set::CpuSet;
use crate::facts::{Facts, Interface, KnobUnit, WritePhase};
use crate::ids::{Cpu, QueueIndex};
use crate::keys;
use crate::nic::{CoalesceParam, RPS_FLOWS_MAX};
use crate::since;
use crate::units::KernelVersion;

const STEERING: Facts = Facts::at(Interface::Steering, WritePhase::Steering);

family! {
    /// A knob of a receive queue, with a value.
    RxQueueKnob {
        /// A value of one queue's interrupt moderation, if it differs from the device's.
        ///
        /// Kernel: 4.6 (ioctl `ETHTOOL_PERQUEUE` alone), `net/ethtool/ioctl.c` `ethtool_set_per_queue_coalesce()`.
        Coalescing(QueueCoalesceParam, u32) = [facts table],

        /// The CPUs that RPS hands a queue's packets to; an empty set turns it off.
        ///
        /// Kernel: 2.6.35, `/sys/class/net/DEV/queues/rx-N/rps_cpus`, `net/core/net-sysfs.c` `store_rps_map()`.
        RpsCpus(CpuSet) = STEERING { name: "rps_cpus", key: Some(keys::RPS_CPUS), unit: KnobUnit::Cpus } where {
            tools(cpus) => cpus.to_mask();
        },

        /// The number of flows that RFS remembers for a queue; 0 turns it off. Rounded up to a power of two.
        ///
        /// Kernel: 2.6.35, `/sys/class/net/DEV/queues/rx-N/rps_flow_cnt`, `net/core/net-sysfs.c`
        /// `store_rps_dev_flow_table_cnt()`.
        RpsFlowCount(u32) = STEERING {
            name: "rps_flow_cnt",
            key: Some(keys::RPS_FLOW_COUNT),
            unit: KnobUnit::Flows,
            range: Some((0, RPS_FLOWS_MAX as u64)),
        },
    }
}

family! {
    /// A knob of a transmit queue, with a value.
    TxQueueKnob {
        /// The CPUs that transmit on a queue; an empty set excludes the queue from selection.
        ///
        /// Kernel: 2.6.38, `/sys/class/net/DEV/queues/tx-N/xps_cpus`, `net/core/net-sysfs.c` `xps_cpus_store()`.
        XpsCpus(CpuSet) = STEERING {
            name: "xps_cpus",
            key: Some(keys::XPS),
            asks: Some("Whether each CPU is assigned one transmit queue, round robin; false lets the kernel choose."),
            unit: KnobUnit::Cpus,
        } where {
            tools(cpus) => cpus.to_mask();
        },

        /// The receive queues whose flows are transmitted on a queue; an empty set excludes the queue from
        /// selection. Takes precedence over xps_cpus.
        ///
        /// Kernel: 4.19, `/sys/class/net/DEV/queues/tx-N/xps_rxqs`, `net/core/net-sysfs.c` `xps_rxqs_store()`.
        XpsRxQueues(Vec<QueueIndex>) = STEERING {
            name: "xps_rxqs",
            unit: KnobUnit::Queues,
            since: KernelVersion::since(4, 19),
        } where {
            tools(queues) => queues.iter().map(|index| Cpu(index.0)).collect::<CpuSet>().to_mask();
        },
    }
}

impl RxQueueKnob {
    /// Formats the value as policy files and output show it.
    pub fn value(&self) -> String {
        match self {
            Self::Coalescing(param, value) => param.of_device().value(*value),
            Self::RpsCpus(cpus) => cpus_or_none(cpus),
            Self::RpsFlowCount(count) => count.to_string(),
        }
    }
}

impl TxQueueKnob {
    /// Formats the value as policy files and output show it.
    pub fn value(&self) -> String {
        match self {
            Self::XpsCpus(cpus) => cpus_or_none(cpus),
            Self::XpsRxQueues(queues) if queues.is_empty() => "none".to_owned(),
            Self::XpsRxQueues(queues) => {
                let queues: Vec<String> = queues.iter().map(ToString::to_string).collect();
                queues.join(",")
            }
        }
    }
}

fn cpus_or_none(cpus: &CpuSet) -> String {
    if cpus.is_empty() { "none".to_owned() } else { cpus.to_string() }
}

/// Defines the moderation values that a single queue can have, each with its facts as a knob of a queue.
macro_rules! of_queue {
    ($(#[doc = $doc:literal])+ $name:ident: $($param:ident),+ $(,)?) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(into = "CoalesceParam", try_from = "CoalesceParam")]
        pub enum $name {
            $(#[doc = concat!("See [`CoalesceParam::", stringify!($param), "`].")] $param,)+
        }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$param,)+];

            /// Returns the device-wide parameter of the same name.
            pub const fn of_device(self) -> CoalesceParam {
                match self {
                    $(Self::$param => CoalesceParam::$param,)+
                }
            }

            /// Returns the facts about the parameter as a knob of one queue.
            pub const fn facts(self) -> &'static Facts {
                match self {
                    $(Self::$param => const { &Facts {
                        key: None,
                        since: since::QUEUE_COALESCING,
                        interface: Interface::QueueCoalescing,
                        source_of_kind: Some("`net/ethtool/ioctl.c` `ethtool_set_per_queue_coalesce()`."),
                        ..*CoalesceParam::$param.facts()
                    } },)+
                }
            }
        }
    };
}

of_queue! {
    /// A per-queue value of interrupt moderation. The CQE modes exist only per device: the ioctl has no field
    /// for them.
    ///
    /// Kernel: 4.6, `include/uapi/linux/ethtool.h` `struct ethtool_coalesce`.
    QueueCoalesceParam: RxUsecs, RxMaxFrames, TxUsecs, TxMaxFrames, AdaptiveRx, AdaptiveTx
}

impl QueueCoalesceParam {
    /// Returns the per-queue parameter of the same name; `None` if the parameter exists only per device.
    pub fn of_queue(param: CoalesceParam) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.of_device() == param)
    }

    /// The kernel's word.
    pub const fn as_str(self) -> &'static str {
        self.of_device().as_str()
    }

    /// Returns the facts about all parameters.
    fn table() -> Vec<&'static Facts> {
        Self::ALL.iter().map(|param| param.facts()).collect()
    }
}

impl From<QueueCoalesceParam> for CoalesceParam {
    fn from(param: QueueCoalesceParam) -> Self {
        param.of_device()
    }
}

impl TryFrom<CoalesceParam> for QueueCoalesceParam {
    type Error = String;

    fn try_from(param: CoalesceParam) -> Result<Self, String> {
        Self::of_queue(param)
            .ok_or_else(|| format!("`{param}` exists only for whole devices, not for single queues"))
    }
}
