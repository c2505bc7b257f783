//! Knobs of a NIC and its driver.

use super::family::family;
use super::{Object, on_off};
use crate::facts::{Absent, Disruption, Facts, Interface, Phase, Unit};
use crate::ids::DeviceId;
use crate::keys;
use crate::nic::{ChannelKind, CoalesceParam, FlagName, Offload, PacketSize, RingKind, Rss};
use crate::qdisc::Qdiscs;
use crate::since;
use crate::steering::{FlowMatch, QueueSpan, SteerTo};

/// What a private flag does is known to its driver alone.
const PRIVATE_FLAG: Facts = Facts {
    since: since::ETHTOOL_NETLINK_SET,
    disruption: Disruption::LinkDown,
    takes_queues: true,
    absent: Absent::Driver,
    ..Facts::at(Interface::PrivateFlags, Phase::Offloads)
};
const RSS: Facts = Facts { absent: Absent::Driver, ..Facts::at(Interface::Rss, Phase::Rss) };
const RSS_CONTEXT: Facts = Facts {
    phase_down: Phase::RssContextsGo,
    absent: Absent::DriverPart("contexts of the receive hash"),
    ..Facts::at(Interface::RssContexts, Phase::RssContexts)
};
const FLOW_RULE: Facts = Facts {
    absent: Absent::DriverPart("rules for single flows"),
    ..Facts::at(Interface::FlowRules, Phase::FlowRules)
};
/// The device is taken off its disciplines for it, and what waits in them is dropped (`dev_deactivate()`). AF_XDP and memory
/// providers pass the disciplines by: `net/xdp/xsk.c` `__xsk_generic_xmit()`.
const QDISC: Facts =
    Facts { disruption: Disruption::QueueReset, ..Facts::at(Interface::Qdiscs, Phase::Qdiscs) };

family! {
    /// A knob of a NIC and its driver, with a value.
    NicKnob {
        /// How many queues of a kind the device has.
        ///
        /// Kernel: 5.7 (ethtool netlink `channels-set`), `net/ethtool/channels.c`.
        Channels(ChannelKind, u32) = [facts table],

        /// How many descriptors each ring of a kind has.
        ///
        /// Drivers round up to what their hardware can. Kernel: 5.7 (ethtool netlink `rings-set`), `net/ethtool/rings.c`.
        Ring(RingKind, u32) = [facts table],

        /// A value of the device's interrupt moderation.
        ///
        /// Switches are 0 or 1. Kernel: 5.7 (ethtool netlink `coalesce-set`), `net/ethtool/coalesce.c`.
        Coalescing(CoalesceParam, u32) = [facts table],

        /// Whether an offload is on.
        ///
        /// Kernel: 5.7 (ethtool netlink `features-set`), `net/ethtool/features.c`.
        Offload(Offload, bool) = [facts table],

        /// How large packets may be before they are cut, or may grow by joining, in bytes.
        ///
        /// What is sent is bounded by [`crate::host::PacketSizes::tso_max_size`]. The kernel overwrites the bound of IPv4 with
        /// one at or below [`PacketSize::LEGACY`] ([`PacketSize::overwrites`]): a writer sends along what that was.
        ///
        /// Kernel: 4.16 and later (rt-link `RTM_NEWLINK`), `net/core/rtnetlink.c` `do_setlink()`.
        PacketSize(PacketSize, u32) = [facts table],

        /// Whether a flag of the driver's own is set.
        ///
        /// Kernel: 5.7 (ethtool netlink `privflags-set`), `net/ethtool/privflags.c`.
        PrivateFlag(FlagName, bool) = PRIVATE_FLAG {
            name: "state",
            key: Some(keys::PRIVATE_FLAGS),
            asks: Some("Flags of the driver's own. What they do is known to the driver alone, so this counts as disruptive."),
            unit: Unit::Switch,
        },

        /// The queue for each value of the receive hash, modulo the table's length.
        ///
        /// A table that is what the kernel itself would make (entry i leads to queue i modulo their number) is written by
        /// asking for that, so that the driver goes on adapting it to the number of queues.
        ///
        /// Kernel: 3.16 (ioctl `ETHTOOL_SRSSH`), `net/ethtool/ioctl.c` `ethtool_set_rxfh()`.
        RssTable(Vec<u32>) = RSS {
            name: "rss-table",
            key: Some(keys::RSS_QUEUES),
            asks: Some("Over how many of the first receive queues packets are spread evenly by their hash."),
            unit: Unit::Queues,
            since: since::RSS,
            takes_queues: true,
        } where {
            // An empty table would mean the kernel's own (`ETHTOOL_SRSSH`), which is not what was read. A driver's own,
            // written out, counts as a user's; whether it does already the kernel does not say.
            // Kernel: 6.18, `net/ethtool/common.c` `ethtool_check_max_channel()`, `netif_is_rxfh_configured()`.
            irreversible(table) if table.is_empty() || Rss::is_in_blocks(table) =>
                "a table that looks like its driver's own (even blocks, as of igb, or empty): written back it counts as a \
                 user's, and fewer queues are refused. `ethtool -X DEVICE default` first makes it the kernel's";
            tools(table) => table.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        },

        /// The key of the receive hash.
        ///
        /// Kernel: 3.16 (ioctl `ETHTOOL_SRSSH`), `net/ethtool/ioctl.c` `ethtool_set_rxfh()`.
        RssKey(Vec<u8>) = RSS {
            name: "rss-key",
            since: since::RSS,
        } where {
            irreversible(key) if key.is_empty() => "an empty key";
        },

        /// Whether there is a context of the receive hash, beside the device's own, that spreads packets evenly over these
        /// queues. Flow rules lead packets into it.
        ///
        /// The kernel gives a context its id when it is made, so a context is known by its queues, and its id is looked up at
        /// each reading and writing. Of two with the same queues, none is removed. One that was there before is not removed
        /// either: made again, it would have another id and key.
        ///
        /// Kernel: 4.17 (ioctl `ETHTOOL_SRSSH` with `ETH_RXFH_CONTEXT_ALLOC`), `net/ethtool/ioctl.c` `ethtool_set_rxfh()`.
        RssContext(QueueSpan, bool) = RSS_CONTEXT {
            name: "present",
            key: Some(keys::RSS_CONTEXTS),
            asks: Some(
                "Groups of receive queues, each with a context of the receive hash that spreads packets over it. Rules lead there.",
            ),
            since: since::RSS_CONTEXTS,
            takes_queues: true,
        } where {
            irreversible(_, there) if *there => "a context that was there: made again, it has another id and key";
            removes(_, false);
        },

        /// Where a rule of the NIC hands the packets of a flow; none if there is no such rule.
        ///
        /// A rule is known by its flow. A new one gets the place in the NIC's table that its driver chooses, or the last that
        /// is free where the driver does not choose; one that is changed keeps its place.
        ///
        /// Kernel: 2.6.39 (ioctl `ETHTOOL_SRXCLSRLINS`), `net/ethtool/ioctl.c` `ethtool_set_rxnfc()`.
        FlowRule(FlowMatch, Option<SteerTo>) = FLOW_RULE {
            name: "action",
            key: Some(keys::FLOW_RULES),
            asks: Some("Rules by which the NIC hands flows to a receive queue or a context, in the words of ethtool -N."),
            takes_queues: true,
        } where {
            irreversible(_, to) if *to == Some(SteerTo::Other) => "a rule that leads where netpolicy cannot say";
        },

        /// What packets wait in before they leave: one queueing discipline for the device, or one for each transmit queue.
        ///
        /// What the kernel gave the device by itself is brought back by removing what was put in its place. Packets that wait
        /// when a discipline is replaced are dropped.
        ///
        /// Kernel: 2.6.32 (`mq`), `net/sched/sch_api.c` `tc_modify_qdisc()`.
        Qdiscs(Qdiscs) = QDISC {
            name: "qdisc",
            key: Some(keys::QDISC),
            asks: Some(
                "What packets wait in before they leave, for every transmit queue. What waits when it is replaced is dropped.",
            ),
        } where {
            irreversible(qdiscs) if matches!(qdiscs, Qdiscs::Other(_)) => "disciplines whose options netpolicy does not know";
            tools(qdiscs) => qdiscs.kinds();
        },
    }
}

impl NicKnob {
    /// What the knob of this device belongs to.
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

    /// The value, as people write it.
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
    /// A value, as people write it.
    pub(super) fn value(self, value: u32) -> String {
        if self.is_switch() { on_off(value != 0) } else { value.to_string() }
    }
}

/// A table of queues as people can read it: `0x64 1x64` for 64 entries of queue 0 and then 64 of queue 1; tables that
/// change their queue often are cut.
fn runs(table: &[u32]) -> String {
    /// How many runs are written out.
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
