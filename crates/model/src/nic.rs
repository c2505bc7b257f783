//! Settings of a NIC and its driver, in the terms of `ethtool` and of the steering files in sysfs.
//!
//! Kernel: `include/uapi/linux/ethtool.h`, `include/uapi/linux/ethtool_netlink.h`, `net/core/net-sysfs.c`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cpu_set::CpuSet;
use crate::facts::{Absent, Disruption, Facts, Interface, KnobUnit, WritePhase};
use crate::keys;
use crate::qdisc::QdiscKind;
use crate::since;
use crate::steering::{FlowRule, QueueSpan};
use crate::units::KernelVersion;
use crate::words::knob_words;

/// The maximum number of queues of a device. Kernel: 6.18, `include/uapi/linux/ethtool.h` `MAX_NUM_QUEUE`.
pub const QUEUES_MAX: u32 = 4096;

/// The maximum number of RFS flows per queue; the kernel allocates 16 bytes for each when the value is set.
/// Kernel: Documentation/networking/scaling.rst suggests 32768 for the whole host.
pub const RPS_FLOWS_MAX: u32 = 1 << 20;

/// The largest receive softirq budget that netpolicy writes. The kernel accepts any `int`, but no more
/// packets than this can arrive within `netdev_budget_usecs`. Kernel: `net/core/sysctl_net_core.c`
/// `net_core_table`, `proc_dointvec()`.
const NETDEV_BUDGET_MAX: u64 = 1 << 20;

/// The smallest packet size limit, in bytes: the payload of an Ethernet frame.
const PACKET_SIZE_MIN: u64 = 1_500;

/// The largest value of the kernel's `int`.
const INT_MAX: u64 = i32::MAX as u64;

/// Many drivers restart the device when its number of queues changes (`igb_reinit_queues()`).
const CHANNELS: Facts = Facts {
    unit: KnobUnit::Queues,
    range: Some((0, QUEUES_MAX as u64)),
    since: since::ETHTOOL_NETLINK_SET,
    disruption: Disruption::LinkDown,
    takes_queues: true,
    source_of_kind: Some("`net/ethtool/channels.c` `ethnl_set_channels()`."),
    absent: Absent::Driver,
    ..Facts::at(Interface::Channels, WritePhase::Channels)
};

/// Many drivers restart the device when its ring sizes change (`ixgbe_set_ringparam()`).
const RINGS: Facts = Facts {
    unit: KnobUnit::Descriptors,
    range: Some((1, INT_MAX)),
    since: since::ETHTOOL_NETLINK_SET,
    disruption: Disruption::LinkDown,
    takes_queues: true,
    source_of_kind: Some("`net/ethtool/rings.c` `ethnl_set_rings()`."),
    absent: Absent::Driver,
    ..Facts::at(Interface::Rings, WritePhase::Rings)
};

const COALESCING: Facts = Facts {
    unit: KnobUnit::Microseconds,
    range: Some((0, INT_MAX)),
    since: since::ETHTOOL_NETLINK_SET,
    source_of_kind: Some("`net/ethtool/coalesce.c` `ethnl_set_coalesce()`."),
    absent: Absent::Driver,
    ..Facts::at(Interface::Coalescing, WritePhase::Coalescing)
};

const OFFLOADS: Facts = Facts {
    unit: KnobUnit::Switch,
    since: since::ETHTOOL_NETLINK_SET,
    source_of_kind: Some("`net/ethtool/features.c` `ethnl_set_features()`."),
    absent: Absent::Driver,
    ..Facts::at(Interface::Offloads, WritePhase::Offloads)
};

const PACKET_SIZES: Facts = Facts {
    unit: KnobUnit::Bytes,
    range: Some((PACKET_SIZE_MIN, PacketSize::MAX as u64)),
    absent: Absent::Kernel,
    ..Facts::at(Interface::PacketSizes, WritePhase::PacketSizes)
};

const SYSCTLS: Facts = Facts {
    range: Some((0, INT_MAX)),
    absent: Absent::InitialNetns,
    ..Facts::at(Interface::Sysctl, WritePhase::Host)
};

knob_words! {
    /// A kind of queues, counted together. Kernel: `struct ethtool_channels`.
    ChannelKind of CHANNELS {
        /// Receive queues with separate interrupts. Changing it recreates the queues.
        Rx = "rx-channels",
        /// Transmit queues with separate interrupts. Changing it recreates the queues.
        Tx = "tx-channels",
        /// Queue pairs that share an interrupt. Changing it recreates the queues.
        Combined = "combined-channels",
    }
}

knob_words! {
    /// A kind of descriptor rings. Kernel: `struct ethtool_ringparam`.
    RingKind of RINGS {
        /// Descriptors of each receive ring; drivers round up. Changing it recreates the rings.
        Rx = "rx-ring",
        /// Descriptors of each transmit ring; drivers round up. Changing it recreates the rings.
        Tx = "tx-ring",
    }
}

knob_words! {
    /// A value of interrupt moderation. Kernel: `struct ethtool_coalesce`, `ETHTOOL_A_COALESCE_*`.
    CoalesceParam of COALESCING {
        /// How long a receive interrupt is delayed, in microseconds.
        RxUsecs = "rx-usecs",
        /// After how many packets a receive interrupt is raised immediately.
        RxMaxFrames = "rx-frames" { unit: KnobUnit::Packets },
        /// How long a transmit interrupt is delayed, in microseconds.
        TxUsecs = "tx-usecs",
        /// After how many packets a transmit interrupt is raised immediately.
        TxMaxFrames = "tx-frames" { unit: KnobUnit::Packets },
        /// Whether the driver adapts the receive values to the traffic (`net_dim`).
        AdaptiveRx = "adaptive-rx" { unit: KnobUnit::Switch, range: None },
        /// Whether the driver adapts the transmit values to the traffic.
        AdaptiveTx = "adaptive-tx" { unit: KnobUnit::Switch, range: None },
        /// Whether each completion restarts the receive timer.
        ///
        /// Kernel: 5.15, `net/ethtool/coalesce.c`.
        CqeModeRx = "cqe-mode-rx" { unit: KnobUnit::Switch, range: None, since: KernelVersion::since(5, 15) },
        /// Whether each completion restarts the transmit timer.
        ///
        /// Kernel: 5.15, `net/ethtool/coalesce.c`.
        CqeModeTx = "cqe-mode-tx" { unit: KnobUnit::Switch, range: None, since: KernelVersion::since(5, 15) },
    }
}

impl CoalesceParam {
    /// Whether the parameter is a switch: 0 for off, 1 for on.
    pub const fn is_switch(self) -> bool {
        matches!(self.facts().unit, KnobUnit::Switch)
    }
}

knob_words! {
    /// An offload that affects packet delivery. Kernel: `net/ethtool/common.c` `netdev_features_strings`.
    Offload of OFFLOADS {
        /// GRO: packets are merged in NAPI. A veth has NAPIs only with this or with XDP.
        Gro = "rx-gro",
        /// Hardware GRO: the NIC merges packets so that they can be segmented again. May reset the queues
        /// (`ndo_set_features`).
        GroHw = "rx-gro-hw" { disruption: Disruption::QueueReset, takes_queues: true },
        /// GRO by fragment list: packets are merged without merging their headers, for forwarding.
        GroList = "rx-gro-list",
        /// GRO also merges UDP packets that are forwarded.
        ///
        /// Kernel: 5.12, `net/ipv4/udp_offload.c` `udp_gro_receive()`.
        GroUdpForwarding = "rx-udp-gro-forwarding" { since: KernelVersion::since(5, 12) },
        /// LRO: the NIC merges packets in a way that cannot be undone. May reset the queues
        /// (`ndo_set_features`).
        Lro = "rx-lro" { disruption: Disruption::QueueReset, takes_queues: true },
        /// GSO: large packets are segmented just before they are passed to the driver.
        Gso = "tx-generic-segmentation",
        /// TSO: the NIC segments large TCP packets.
        Tso = "tx-tcp-segmentation",
        /// Like `tx-tcp-segmentation`, for IPv6.
        Tso6 = "tx-tcp6-segmentation",
        /// Like `tx-tcp-segmentation`, for packets with ECN.
        TsoEcn = "tx-tcp-ecn-segmentation",
        /// Like `tx-tcp-segmentation`, if all segments may share one IP identification.
        TsoMangleId = "tx-tcp-mangleid-segmentation",
        /// Ntuple filters: rules in the NIC direct packets to queues.
        Ntuple = "rx-ntuple-filter",
        /// The NIC reports the hash by which it chose the queue.
        RxHash = "rx-hashing",
        /// The NIC may execute tc rules.
        TcOffload = "hw-tc-offload",
    }
}

knob_words! {
    /// The maximum size of a packet before segmentation, or after coalescing, in bytes. Sizes above
    /// [`PacketSize::LEGACY`] are BIG TCP.
    ///
    /// Kernel: `include/linux/netdevice.h` `struct net_device`, `net/core/dev.c` `netif_set_gso_max_size()`.
    PacketSize of PACKET_SIZES {
        /// The maximum size of a packet that is passed to the NIC for segmentation, in bytes; for IPv4 see
        /// gso_ipv4_max_size.
        ///
        /// Kernel: 4.16; above 64 KiB 5.19, `net/core/rtnetlink.c` `do_setlink()`.
        Gso = "gso_max_size" { since: KernelVersion::since(4, 16) },
        /// The maximum size to which received packets are coalesced, in bytes; for IPv4 see
        /// gro_ipv4_max_size.
        ///
        /// Kernel: 5.17; above 64 KiB 5.19, `net/core/rtnetlink.c` `do_setlink()`.
        Gro = "gro_max_size" { since: KernelVersion::since(5, 17) },
        /// Like gso_max_size, for IPv4. Above 65536 the IP header has the length 0, which programs that read
        /// raw packets must handle.
        ///
        /// Kernel: 6.3, `net/core/rtnetlink.c` `do_setlink()`.
        GsoIpv4 = "gso_ipv4_max_size" { since: KernelVersion::since(6, 3) },
        /// Like gro_max_size, for IPv4. Above 65536 the IP header has the length 0, which programs that read
        /// raw packets must handle.
        ///
        /// Kernel: 6.3, `net/core/rtnetlink.c` `do_setlink()`.
        GroIpv4 = "gro_ipv4_max_size" { since: KernelVersion::since(6, 3) },
    }
}

impl PacketSize {
    /// The largest size before BIG TCP: one more than the largest length in an IP header.
    ///
    /// Kernel: `include/linux/netdevice.h` `GSO_LEGACY_MAX_SIZE`, `GRO_LEGACY_MAX_SIZE`.
    pub const LEGACY: u32 = 65_536;

    /// The largest size of any device: eight times 65 535.
    ///
    /// Kernel: `include/linux/netdevice.h` `GSO_MAX_SIZE`, `GRO_MAX_SIZE`.
    pub const MAX: u32 = 8 * 65_535;

    /// The limit that the kernel also overwrites when this one is set to [`PacketSize::LEGACY`] or less.
    ///
    /// Kernel: 6.3, `net/core/dev.c` `netif_set_gso_max_size()`, `netif_set_gro_max_size()`.
    pub const fn overwrites(self) -> Option<Self> {
        match self {
            Self::Gso => Some(Self::GsoIpv4),
            Self::Gro => Some(Self::GroIpv4),
            Self::GsoIpv4 | Self::GroIpv4 => None,
        }
    }
}

knob_words! {
    /// A host-wide sysctl. Kernel: `net/core/sysctl_net_core.c`; `/proc/sys/net/core/`.
    Sysctl of SYSCTLS {
        /// For how many microseconds `poll` and `select` busy-poll before they sleep, on sockets with busy
        /// polling enabled; 0 disables it. Also applies to each epoll that watches a connection with a NAPI
        /// and sets no time itself. Applies to the whole host.
        ///
        /// Kernel: 3.11, `fs/select.c` `do_poll()`; `fs/eventpoll.c` `ep_busy_loop_on()`, `busy_loop_ep_timeout()`.
        BusyPoll = "busy_poll" { unit: KnobUnit::Microseconds, since: KernelVersion::since(3, 11) },
        /// The maximum number of packets per run of the receive softirq. Applies to the whole host.
        ///
        /// Kernel: `net/core/dev.c` `net_rx_action()`.
        NetdevBudget = "netdev_budget" { unit: KnobUnit::Packets, range: Some((0, NETDEV_BUDGET_MAX)) },
        /// The maximum duration of a run of the receive softirq, in microseconds. Applies to the whole host.
        ///
        /// Kernel: 4.12, `net/core/dev.c` `net_rx_action()`.
        NetdevBudgetUsecs = "netdev_budget_usecs" { unit: KnobUnit::Microseconds, since: KernelVersion::since(4, 12) },
        /// The maximum number of packets in a CPU's backlog, as with RPS. Applies to the whole host.
        ///
        /// Kernel: `net/core/dev.c` `enqueue_to_backlog()`.
        NetdevMaxBacklog = "netdev_max_backlog" { unit: KnobUnit::Packets },
        /// How many flows RFS remembers on the whole host; 0 turns it off.
        ///
        /// Kernel: `net/core/sysctl_net_core.c` `rps_sock_flow_sysctl()`.
        RpsSockFlowEntries = "rps_sock_flow_entries" { unit: KnobUnit::Flows },
    }
}

/// The name of a driver private flag, as `ethtool --show-priv-flags` prints it. At most 31 bytes.
///
/// Kernel: `include/uapi/linux/ethtool.h` `ETH_GSTRING_LEN`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlagName {
    bytes: [u8; Self::BYTES_MAX],
    length: u8,
}

impl FlagName {
    /// The maximum length of a name, in bytes: `ETH_GSTRING_LEN` without the terminating NUL.
    pub const BYTES_MAX: usize = 31;

    /// Creates a name; `None` if the text is empty or too long.
    pub fn new(text: &str) -> Option<Self> {
        let length = u8::try_from(text.len()).ok()?;
        if text.is_empty() || text.len() > Self::BYTES_MAX {
            return None;
        }
        let mut bytes = [0; Self::BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Some(Self { bytes, length })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or("")
    }
}

impl fmt::Debug for FlagName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for FlagName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for FlagName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for FlagName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&text).ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not a flag name")))
    }
}
crate::text_schema! { FlagName: "the name of a private flag of a driver" }

/// A value that is requested for a device, for all its queues, or for its host.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NicRequest {
    /// See [`crate::NicKnob::Channels`].
    Channels(ChannelKind, u32),
    /// See [`crate::NicKnob::Ring`].
    Ring(RingKind, u32),
    /// See [`crate::NicKnob::Coalescing`].
    Coalescing(CoalesceParam, u32),
    /// See [`crate::NicKnob::Offload`].
    Offload(Offload, bool),
    /// See [`crate::NicKnob::PacketSize`].
    PacketSize(PacketSize, u32),
    /// See [`crate::NicKnob::PrivateFlag`].
    PrivateFlags(Vec<(FlagName, bool)>),
    /// The number of queues, from the first, that packets are spread over evenly: see
    /// [`crate::NicKnob::RssTable`].
    RssQueues(u32),
    /// See [`crate::NicKnob::RssContext`].
    RssContexts(Vec<QueueSpan>),
    /// See [`crate::NicKnob::FlowRule`].
    FlowRules(Vec<FlowRule>),
    /// See [`crate::NicKnob::Qdiscs`]: a qdisc of this kind for every transmit queue.
    Qdisc(QdiscKind),
    /// See [`crate::RxQueueKnob::RpsCpus`]: the same for every receive queue.
    RpsCpus(CpuSet),
    /// See [`crate::RxQueueKnob::RpsFlowCount`]: the same for every receive queue.
    RpsFlowCount(u32),
    /// See [`crate::TxQueueKnob::XpsCpus`]: whether each online CPU is assigned one queue, round robin, or
    /// may use any.
    Xps(bool),
    /// See [`crate::HostKnob::Sysctl`].
    Sysctl(Sysctl, u64),
}

impl NicRequest {
    /// Returns the request's key in a policy file.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Channels(kind, _) => kind.key(),
            Self::Ring(kind, _) => kind.key(),
            Self::Coalescing(param, _) => param.key(),
            Self::Offload(offload, _) => offload.key(),
            Self::PacketSize(size, _) => size.key(),
            Self::PrivateFlags(_) => keys::PRIVATE_FLAGS,
            Self::RssQueues(_) => keys::RSS_QUEUES,
            Self::RssContexts(_) => keys::RSS_CONTEXTS,
            Self::FlowRules(_) => keys::FLOW_RULES,
            Self::Qdisc(_) => keys::QDISC,
            Self::RpsCpus(_) => keys::RPS_CPUS,
            Self::RpsFlowCount(_) => keys::RPS_FLOW_COUNT,
            Self::Xps(_) => keys::XPS,
            Self::Sysctl(sysctl, _) => sysctl.key(),
        }
    }

    /// Merges two lists of requests. A later request replaces an earlier one with the same key; private flags
    /// are merged by name, and ntuple rules are added. The result equals that of two consecutive
    /// transactions.
    #[must_use]
    pub fn after(later: Vec<Self>, earlier: Vec<Self>) -> Vec<Self> {
        let mut all = earlier;
        for request in later {
            let known = all.iter_mut().find(|known| known.key() == request.key());
            match (known, request) {
                (Some(Self::PrivateFlags(flags)), Self::PrivateFlags(more)) => {
                    flags.retain(|(name, _)| more.iter().all(|(new, _)| new != name));
                    flags.extend(more);
                }
                (Some(Self::FlowRules(rules)), Self::FlowRules(more)) => {
                    for rule in more {
                        if !rules.contains(&rule) {
                            rules.push(rule);
                        }
                    }
                }
                (Some(known), request) => *known = request,
                (None, request) => all.push(request),
            }
        }
        all
    }
}

/// How a NIC spreads packets over its receive queues by their hash.
///
/// Kernel: `include/uapi/linux/ethtool.h` `struct ethtool_rxfh`.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rss {
    /// The indirection table: the queue for each hash value, modulo the table's length.
    pub table: Vec<u32>,
    /// The key of the hash function.
    pub key: Vec<u8>,
}

impl Rss {
    /// Whether a table consists of contiguous blocks: entry i leads to queue i · n / length. The igb driver
    /// builds such a table for each number of queues; the kernel and all other drivers assign queues round
    /// robin, see [`QueueSpan::table`](crate::QueueSpan::table). A user's table of equal weights looks the
    /// same.
    ///
    /// Kernel: 6.18, `drivers/net/ethernet/intel/igb/igb_main.c` `igb_setup_mrqc()`.
    pub fn is_in_blocks(table: &[u32]) -> bool {
        let Some(last) = table.iter().max().copied() else { return false };
        let (queues, entries) = (u64::from(last) + 1, table.len() as u64);
        let block = |at: u64| at.checked_mul(queues).map(|of_all| of_all / entries);
        // With one queue, or as many entries as queues, blocks and round robin are the same.
        queues > 1
            && queues < entries
            && (0..).zip(table).all(|(at, queue)| block(at) == Some(u64::from(*queue)))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_table_in_blocks_is_distinguished_from_one_in_turns() {
        let blocks = |queues: u32| (0..128).map(|at| at * queues / 128).collect::<Vec<u32>>();
        let turns = |queues: u32| (0..128).map(|at| at % queues).collect::<Vec<u32>>();
        for queues in 2..8 {
            assert!(Rss::is_in_blocks(&blocks(queues)), "{queues}");
            assert!(!Rss::is_in_blocks(&turns(queues)), "{queues}");
        }
        let mut moved = blocks(4);
        moved[0] = 1;
        for table in [blocks(1), turns(128), moved, Vec::new(), vec![0], vec![u32::MAX, 0]] {
            assert!(!Rss::is_in_blocks(&table), "{table:?}");
        }
    }

    #[test]
    fn every_word_leads_back_to_its_name() {
        for &offload in Offload::ALL {
            assert_eq!(Offload::named(offload.as_str()), Some(offload));
        }
        assert_eq!(Offload::named("rx-gr"), None);
        let text = serde_json::to_string(&CoalesceParam::RxUsecs).expect("serialises");
        assert_eq!(text, "\"rx-usecs\"");
    }

    #[test]
    fn later_requests_are_added_to_earlier_ones_and_replace_those_of_the_same_key() {
        let usecs = |usecs| NicRequest::Coalescing(CoalesceParam::RxUsecs, usecs);
        let flag = |name: &str, on| (FlagName::new(name).expect("fits"), on);
        let flags = |flags: &[(FlagName, bool)]| NicRequest::PrivateFlags(flags.to_vec());
        let earlier = vec![usecs(8), flags(&[flag("a", true), flag("b", true)])];
        let later = vec![NicRequest::Offload(Offload::Gro, false), usecs(20), flags(&[flag("b", false)])];
        assert_eq!(NicRequest::after(later.clone(), Vec::new()), later);
        assert_eq!(NicRequest::after(Vec::new(), earlier.clone()), earlier);
        assert_eq!(
            NicRequest::after(later, earlier),
            [
                usecs(20),
                flags(&[flag("a", true), flag("b", false)]),
                NicRequest::Offload(Offload::Gro, false)
            ]
        );
    }

    #[test]
    fn a_flags_name_fits_in_the_kernels_string_or_is_none() {
        let longest = "x".repeat(FlagName::BYTES_MAX);
        assert_eq!(FlagName::new(&longest).expect("fits").as_str(), longest);
        assert_eq!(FlagName::new(&format!("{longest}x")), None);
        assert_eq!(FlagName::new(""), None);
        assert!(serde_json::from_str::<FlagName>("\"\"").is_err());
    }
}
