//! Knobs of receive and transmit queues: moderation of one queue, and steering in software.

use super::family::family;
use crate::cpu_set::CpuSet;
use crate::facts::{Facts, Interface, Phase, Unit};
use crate::ids::{Cpu, QueueIndex};
use crate::keys;
use crate::nic::{CoalesceParam, RPS_FLOWS_MAX};
use crate::since;
use crate::units::KernelVersion;

const STEERING: Facts = Facts::at(Interface::Steering, Phase::Steering);

family! {
    /// A knob of a receive queue, with a value.
    RxQueueKnob {
        /// A value of one queue's interrupt moderation, where it differs from its device's.
        ///
        /// Kernel: 4.6 (ioctl `ETHTOOL_PERQUEUE` alone), `net/ethtool/ioctl.c` `ethtool_set_per_queue_coalesce()`.
        Coalescing(CoalesceParam, u32) = [facts_of_queue table_of_queue],

        /// The CPUs that receive packet steering hands a queue's packets to; none turns it off.
        ///
        /// Kernel: 2.6.35, `/sys/class/net/DEV/queues/rx-N/rps_cpus`, `net/core/net-sysfs.c` `store_rps_map()`.
        RpsCpus(CpuSet) = STEERING { name: "rps_cpus", key: Some(keys::RPS_CPUS), unit: Unit::Cpus } where {
            tools(cpus) => cpus.to_mask();
        },

        /// How many flows receive flow steering remembers for a queue; 0 turns it off. Rounded up to a power of two.
        ///
        /// Kernel: 2.6.35, `/sys/class/net/DEV/queues/rx-N/rps_flow_cnt`, `net/core/net-sysfs.c`
        /// `store_rps_dev_flow_table_cnt()`.
        RpsFlowCount(u32) = STEERING {
            name: "rps_flow_cnt",
            key: Some(keys::RPS_FLOW_COUNT),
            unit: Unit::Flows,
            range: Some((0, RPS_FLOWS_MAX as u64)),
        },
    }
}

family! {
    /// A knob of a transmit queue, with a value.
    TxQueueKnob {
        /// The CPUs whose packets leave by a queue; none leaves it out of the choice.
        ///
        /// Kernel: 2.6.38, `/sys/class/net/DEV/queues/tx-N/xps_cpus`, `net/core/net-sysfs.c` `xps_cpus_store()`.
        XpsCpus(CpuSet) = STEERING {
            name: "xps_cpus",
            key: Some(keys::XPS),
            asks: Some("Whether each CPU sends by one transmit queue of its own, dealt out in turn; false lets the kernel choose."),
            unit: Unit::Cpus,
        } where {
            tools(cpus) => cpus.to_mask();
        },

        /// The receive queues whose flows leave by a queue; none leaves it out of the choice. Comes before
        /// [`TxQueueKnob::XpsCpus`].
        ///
        /// Kernel: 4.19, `/sys/class/net/DEV/queues/tx-N/xps_rxqs`, `net/core/net-sysfs.c` `xps_rxqs_store()`.
        XpsRxQueues(Vec<QueueIndex>) = STEERING {
            name: "xps_rxqs",
            unit: Unit::Queues,
            since: KernelVersion::since(4, 19),
        } where {
            tools(queues) => queues.iter().map(|index| Cpu(index.0)).collect::<CpuSet>().to_mask();
        },
    }
}

impl RxQueueKnob {
    /// The value, as people write it.
    pub fn value(&self) -> String {
        match self {
            Self::Coalescing(param, value) => param.value(*value),
            Self::RpsCpus(cpus) => cpus_or_none(cpus),
            Self::RpsFlowCount(count) => count.to_string(),
        }
    }
}

impl TxQueueKnob {
    /// The value, as people write it.
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

/// The facts of a device's moderation, as they are of one of its queues.
macro_rules! of_queue {
    ($self:ident: $($param:ident),+ $(,)?) => {
        match $self {
            $(CoalesceParam::$param => const { &Facts {
                key: None,
                since: since::QUEUE_COALESCING,
                interface: Interface::QueueCoalescing,
                source_of_kind: Some("`net/ethtool/ioctl.c` `ethtool_set_per_queue_coalesce()`."),
                ..*CoalesceParam::$param.facts()
            } },)+
        }
    };
}

impl CoalesceParam {
    /// What is known about the knob of one queue.
    const fn facts_of_queue(self) -> &'static Facts {
        of_queue!(self: RxUsecs, RxMaxFrames, TxUsecs, TxMaxFrames, AdaptiveRx, AdaptiveTx, CqeModeRx, CqeModeTx)
    }

    /// The facts of all of them, of one queue.
    fn table_of_queue() -> Vec<&'static Facts> {
        Self::ALL.iter().map(|param| param.facts_of_queue()).collect()
    }
}
