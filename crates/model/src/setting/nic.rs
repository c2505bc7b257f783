//! Knobs of a NIC and its driver.

use super::family::family;
use super::{Object, on_off};
use crate::facts::{Absent, Disruption, Facts, Interface, KnobUnit, WritePhase};
use crate::ids::DeviceId;
use crate::keys;
use crate::nic::{ChannelKind, CoalesceParam, FlagName, Offload, PacketSize, RingKind, Rss};
use crate::qdisc::Qdiscs;
use crate::since;
use crate::steering::{FlowMatch, QueueSpan, SteerTo};

/// Only the driver knows what a private flag does, so the worst is assumed.
const PRIVATE_FLAG: Facts = Facts {
    since: since::ETHTOOL_NETLINK_SET,
    disruption: Disruption::LinkDown,
    takes_queues: true,
    absent: Absent::Driver,
    ..Facts::at(Interface::PrivateFlags, WritePhase::Offloads)
};
const RSS: Facts = Facts { absent: Absent::Driver, ..Facts::at(Interface::Rss, WritePhase::Rss) };
const RSS_CONTEXT: Facts = Facts {
    phase_down: WritePhase::RssContextsGo,
    absent: Absent::DriverPart("RSS contexts"),
    ..Facts::at(Interface::RssContexts, WritePhase::RssContexts)
};
const FLOW_RULE: Facts = Facts {
    absent: Absent::DriverPart("ntuple rules"),
    ..Facts::at(Interface::FlowRules, WritePhase::FlowRules)
};
/// The kernel detaches the device from its qdiscs for the change and drops what is queued
/// (`dev_deactivate()`). AF_XDP and memory providers bypass qdiscs: `net/xdp/xsk.c` `__xsk_generic_xmit()`.
const QDISC: Facts =
    Facts { disruption: Disruption::QueueReset, ..Facts::at(Interface::Qdiscs, WritePhase::Qdiscs) };

family! {
    /// A knob of a NIC and its driver, with a value.
    NicKnob {
        /// How many queues of a kind the device has.
        ///
        /// Kernel: 5.7 (ethtool netlink `channels-set`), `net/ethtool/channels.c`.
        Channels(ChannelKind, u32) = [facts table],

        /// How many descriptors each ring of a kind has.
        ///
        /// Drivers round up to what their hardware supports. Kernel: 5.7 (ethtool netlink `rings-set`),
        /// `net/ethtool/rings.c`.
        Ring(RingKind, u32) = [facts table],

        /// A value of the device's interrupt moderation.
        ///
        /// Switches are 0 or 1. Kernel: 5.7 (ethtool netlink `coalesce-set`), `net/ethtool/coalesce.c`.
        Coalescing(CoalesceParam, u32) = [facts table],

        /// Whether an offload is on.
        ///
        /// Kernel: 5.7 (ethtool netlink `features-set`), `net/ethtool/features.c`.
        Offload(Offload, bool) = [facts table],

        /// The maximum size of packets for segmentation (GSO) and coalescing (GRO), in bytes.
        ///
        /// [`crate::host::PacketSizes::tso_max_size`] limits the GSO sizes. The kernel also overwrites the
        /// IPv4 limit when the other one is set to [`PacketSize::LEGACY`] or less
        /// ([`PacketSize::overwrites`]), so a writer sends the previous IPv4 limit along.
        ///
        /// Kernel: 4.16 and later (rt-link `RTM_NEWLINK`), `net/core/rtnetlink.c` `do_setlink()`.
        PacketSize(PacketSize, u32) = [facts table],

        /// Whether a driver private flag is set.
        ///
        /// Kernel: 5.7 (ethtool netlink `privflags-set`), `net/ethtool/privflags.c`.
        PrivateFlag(FlagName, bool) = PRIVATE_FLAG {
            name: "state",
            key: Some(keys::PRIVATE_FLAGS),
            asks: Some("Driver private flags. Only the driver knows what they do, so setting one counts as disruptive."),
            unit: KnobUnit::Switch,
        },

        /// The queue for each value of the receive hash, modulo the table's length.
        ///
        /// A table that equals the kernel's default (entry i selects queue i modulo the number of queues) is
        /// written as a reset to the default, so that the driver keeps adapting it to the number of queues.
        ///
        /// Kernel: 3.16 (ioctl `ETHTOOL_SRSSH`), `net/ethtool/ioctl.c` `ethtool_set_rxfh()`.
        RssTable(Vec<u32>) = RSS {
            name: "rss-table",
            key: Some(keys::RSS_QUEUES),
            asks: Some("The number of receive queues, from the first, over which RSS spreads packets evenly."),
            unit: KnobUnit::Queues,
            since: since::RSS,
            takes_queues: true,
        } where {
            // An empty table would mean the kernel's default (`ETHTOOL_SRSSH`), which differs from the value
            // that was read. A driver's default table that is written back counts as user-configured; the
            // kernel does not report whether it already counts as such. Kernel: 6.18, `net/ethtool/common.c`
            // `ethtool_check_max_channel()`, `netif_is_rxfh_configured()`.
            irreversible(table) if table.is_empty() || Rss::is_in_blocks(table) =>
                "a table that looks like the driver's default (even blocks, as with igb, or empty): if it is written back, it counts \
                 as set by a user, and reducing the queues is refused. `ethtool -X DEVICE default` first makes it the kernel's";
            tools(table) => table.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        },

        /// The RSS hash key.
        ///
        /// Kernel: 3.16 (ioctl `ETHTOOL_SRSSH`), `net/ethtool/ioctl.c` `ethtool_set_rxfh()`.
        RssKey(Vec<u8>) = RSS {
            name: "rss-key",
            since: since::RSS,
        } where {
            irreversible(key) if key.is_empty() => "an empty key";
        },

        /// Whether there is an RSS context, in addition to the default one, that spreads packets evenly over
        /// these queues. Ntuple rules direct packets to it.
        ///
        /// The kernel assigns a context's id when it is created. So a context is identified by its queues,
        /// and its id is looked up whenever it is read or written. Of two contexts with the same queues,
        /// neither is removed. A context that existed before is not removed either: a new one would have
        /// another id and key.
        ///
        /// Kernel: 4.17 (ioctl `ETHTOOL_SRSSH` with `ETH_RXFH_CONTEXT_ALLOC`), `net/ethtool/ioctl.c`
        /// `ethtool_set_rxfh()`.
        RssContext(QueueSpan, bool) = RSS_CONTEXT {
            name: "present",
            key: Some(keys::RSS_CONTEXTS),
            asks: Some(
                "Groups of receive queues, each with an RSS context that spreads packets over it. Ntuple rules can direct packets there.",
            ),
            since: since::RSS_CONTEXTS,
            takes_queues: true,
        } where {
            irreversible(_, there) if *there => "a context that existed before, because a new one would have another id and key";
            removes(_, false);
        },

        /// Where an ntuple rule directs the packets of a flow; none if there is no such rule.
        ///
        /// A rule is identified by its flow. A new rule gets the location that its driver chooses, or the
        /// last free one if the driver does not choose. A changed rule keeps its location.
        ///
        /// Kernel: 2.6.39 (ioctl `ETHTOOL_SRXCLSRLINS`), `net/ethtool/ioctl.c` `ethtool_set_rxnfc()`.
        FlowRule(FlowMatch, Option<SteerTo>) = FLOW_RULE {
            name: "action",
            key: Some(keys::FLOW_RULES),
            asks: Some("Ntuple rules that direct flows to a receive queue or an RSS context, in the syntax of ethtool -N."),
            takes_queues: true,
        } where {
            irreversible(_, to) if *to == Some(SteerTo::Other) => "a rule with a target that netpolicy does not support";
        },

        /// The qdiscs: one for the device, or one for each transmit queue.
        ///
        /// The kernel's default is restored by deleting the configured qdisc. Replacing a qdisc drops the
        /// packets in it.
        ///
        /// Kernel: 2.6.32 (`mq`), `net/sched/sch_api.c` `tc_modify_qdisc()`.
        Qdiscs(Qdiscs) = QDISC {
            name: "qdisc",
            key: Some(keys::QDISC),
            asks: Some(
                "The kind of qdisc for every transmit queue. Replacing a qdisc drops the packets in it.",
            ),
        } where {
            irreversible(qdiscs) if matches!(qdiscs, Qdiscs::Other(_)) => "qdiscs with options that netpolicy does not support";
            tools(qdiscs) => qdiscs.kinds();
        },
    }
}

impl NicKnob {
    /// Returns the object to which the knob belongs on this device.
    pub const fn object(&self, device: DeviceId) -> Object {
        match self {
            Self::RssContext(queues, _) => Object::RssContext(device, *queues),
            Self::FlowRule(flow, _) => Object::FlowRule(device, *flow),
            Self::PrivateFlag(flag, _) => Object::PrivateFlag(device, *flag),
            Self::Channels(..)
            | Self::Ring(..)
            | Self::Coalescing(..)
            | Self::Offload(..)
            | Self::PacketSize(..)
            | Self::RssTable(_)
            | Self::RssKey(_)
            | Self::Qdiscs(_) => Object::Device(device),
        }
    }

    /// Formats the value as policy files and output show it.
    pub fn value(&self) -> String {
        match self {
            Self::Channels(_, count) | Self::Ring(_, count) | Self::PacketSize(_, count) => count.to_string(),
            Self::Coalescing(param, value) => param.value(*value),
            Self::Offload(_, on) | Self::PrivateFlag(_, on) => on_off(*on),
            Self::RssTable(table) => runs(table),
            Self::RssKey(key) => {
                let bytes: Vec<String> = key.iter().map(|byte| format!("{byte:02x}")).collect();
                bytes.join(":")
            }
            Self::RssContext(_, there) => if *there { "yes" } else { "no" }.to_owned(),
            Self::FlowRule(_, Some(to)) => to.to_string(),
            Self::FlowRule(_, None) => "none".to_owned(),
            Self::Qdiscs(qdiscs) => qdiscs.to_string(),
        }
    }
}

impl CoalesceParam {
    /// Formats a value as policy files and output show it.
    pub(super) fn value(self, value: u32) -> String {
        if self.is_switch() { on_off(value != 0) } else { value.to_string() }
    }
}

/// Formats a table of queues in run-length form: `0x64 1x64` for 64 entries of queue 0 followed by 64 of
/// queue 1. Tables with many runs are cut.
fn runs(table: &[u32]) -> String {
    /// The maximum number of runs that are displayed.
    const RUNS_MAX: usize = 16;
    let mut runs: Vec<(u32, usize)> = Vec::new();
    for &queue in table {
        match runs.last_mut() {
            Some((last, length)) if *last == queue => *length += 1,
            _ => runs.push((queue, 1)),
        }
    }
    let mut text: Vec<String> =
        runs.iter().take(RUNS_MAX).map(|(queue, length)| format!("{queue}x{length}")).collect();
    if runs.len() > RUNS_MAX {
        text.push(format!("… ({} entries)", table.len()));
    }
    text.join(" ")
}
