//! What a NIC and its driver can be told: the words of `ethtool`, and those of the steering files in sysfs.
//!
//! Kernel: `include/uapi/linux/ethtool.h`, `include/uapi/linux/ethtool_netlink.h`, `net/core/net-sysfs.c`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cpu_set::CpuSet;
use crate::qdisc::QdiscKind;
use crate::steering::{FlowRule, QueueSpan};

/// An enum whose variants are the kernel's words, with a list of all of them.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// All of them, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The kernel's word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// The key of a policy file that sets it.
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!("settings.", $word),)+
                }
            }

            /// The one with this word.
            pub fn named(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
pub(crate) use words;

words! {
    /// A kind of queues that are counted together. Kernel: `struct ethtool_channels`.
    ChannelKind {
        /// Receive queues with an interrupt of their own.
        Rx = "rx-channels",
        /// Transmit queues with an interrupt of their own.
        Tx = "tx-channels",
        /// Queue pairs that share an interrupt.
        Combined = "combined-channels",
    }
}

words! {
    /// A kind of descriptor rings. Kernel: `struct ethtool_ringparam`.
    RingKind {
        /// Receive rings.
        Rx = "rx-ring",
        /// Transmit rings.
        Tx = "tx-ring",
    }
}

words! {
    /// A value of interrupt moderation. Kernel: `struct ethtool_coalesce`, `ETHTOOL_A_COALESCE_*`.
    CoalesceParam {
        /// How long a receive interrupt waits, in microseconds.
        RxUsecs = "rx-usecs",
        /// After how many packets a receive interrupt comes at once.
        RxMaxFrames = "rx-frames",
        /// How long a transmit interrupt waits, in microseconds.
        TxUsecs = "tx-usecs",
        /// After how many packets a transmit interrupt comes at once.
        TxMaxFrames = "tx-frames",
        /// Whether the driver adapts the receive values by itself (`net_dim`): 0 or 1.
        AdaptiveRx = "adaptive-rx",
        /// Whether the driver adapts the transmit values by itself: 0 or 1.
        AdaptiveTx = "adaptive-tx",
        /// Whether the receive timer starts anew with each completion: 0 or 1. Kernel: 5.15.
        CqeModeRx = "cqe-mode-rx",
        /// Whether the transmit timer starts anew with each completion: 0 or 1. Kernel: 5.15.
        CqeModeTx = "cqe-mode-tx",
    }
}

impl CoalesceParam {
    /// Whether it is a switch, with 0 for off and 1 for on.
    pub const fn is_switch(self) -> bool {
        matches!(self, Self::AdaptiveRx | Self::AdaptiveTx | Self::CqeModeRx | Self::CqeModeTx)
    }
}

words! {
    /// An offload that decides how packets travel. Kernel: `net/ethtool/common.c` `netdev_features_strings`.
    Offload {
        /// Packets are joined in NAPI. A veth has NAPIs only with this or with XDP.
        Gro = "rx-gro",
        /// The NIC joins packets, in a way that can be taken apart again.
        GroHw = "rx-gro-hw",
        /// Packets are joined without merging their headers, for forwarding.
        GroList = "rx-gro-list",
        /// UDP packets that are to be forwarded are joined too.
        GroUdpForwarding = "rx-udp-gro-forwarding",
        /// The NIC joins packets, in a way that cannot be taken apart again.
        Lro = "rx-lro",
        /// Large packets are cut just before the driver.
        Gso = "tx-generic-segmentation",
        /// The NIC cuts large TCP packets.
        Tso = "tx-tcp-segmentation",
        /// As `tx-tcp-segmentation`, with IPv6.
        Tso6 = "tx-tcp6-segmentation",
        /// As `tx-tcp-segmentation`, with congestion marks.
        TsoEcn = "tx-tcp-ecn-segmentation",
        /// As `tx-tcp-segmentation`, where all parts may have one identification.
        TsoMangleId = "tx-tcp-mangleid-segmentation",
        /// The NIC hands packets to queues by rules.
        Ntuple = "rx-ntuple-filter",
        /// The NIC gives the hash that it chose the queue by.
        RxHash = "rx-hashing",
        /// tc rules may be carried out by the NIC.
        TcOffload = "hw-tc-offload",
    }
}

words! {
    /// A bound on how large a packet may be before it is cut, or may grow by joining, in bytes. Above
    /// [`PacketSize::LEGACY`] it is what the kernel's developers call BIG TCP.
    ///
    /// Kernel: `include/linux/netdevice.h` `struct net_device`, `net/core/dev.c` `netif_set_gso_max_size()`.
    PacketSize {
        /// Packets that are sent, with IPv6, and the bound of all others. Kernel: 4.16; above 64 KiB 5.19.
        Gso = "gso_max_size",
        /// Packets that are received, with IPv6, and the bound of all others. Kernel: 5.17; above 64 KiB 5.19.
        Gro = "gro_max_size",
        /// Packets that are sent with IPv4. Kernel: 6.3.
        GsoIpv4 = "gso_ipv4_max_size",
        /// Packets that are received with IPv4. Kernel: 6.3.
        GroIpv4 = "gro_ipv4_max_size",
    }
}

impl PacketSize {
    /// What there was before BIG TCP: the largest that the length in an IP header can say, and one.
    ///
    /// Kernel: `include/linux/netdevice.h` `GSO_LEGACY_MAX_SIZE`, `GRO_LEGACY_MAX_SIZE`.
    pub const LEGACY: u32 = 65_536;

    /// The largest that any device can have: eight times 65 535.
    ///
    /// Kernel: `include/linux/netdevice.h` `GSO_MAX_SIZE`, `GRO_MAX_SIZE`.
    pub const MAX: u32 = 8 * 65_535;

    /// The bound that is overwritten with this one, if this one is written at or below [`PacketSize::LEGACY`].
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

words! {
    /// A number that holds for the whole host. Kernel: `net/core/sysctl_net_core.c`; `/proc/sys/net/core/`.
    Sysctl {
        /// How many packets one run of the receive softirq takes at most.
        NetdevBudget = "netdev_budget",
        /// How long one run of the receive softirq lasts at most, in microseconds.
        NetdevBudgetUsecs = "netdev_budget_usecs",
        /// How many packets wait for a CPU's backlog at most, as with RPS.
        NetdevMaxBacklog = "netdev_max_backlog",
        /// How many flows RFS remembers on the whole host; 0 turns it off.
        RpsSockFlowEntries = "rps_sock_flow_entries",
    }
}

/// The name of a driver's own flag: what `ethtool --show-priv-flags` prints. At most 31 bytes are kept.
///
/// Kernel: `include/uapi/linux/ethtool.h` `ETH_GSTRING_LEN`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlagName {
    bytes: [u8; Self::BYTES_MAX],
    length: u8,
}

impl FlagName {
    /// The longest name, in bytes: `ETH_GSTRING_LEN` less the closing zero.
    pub const BYTES_MAX: usize = 31;

    /// A name; `None` if it is empty or too long for any driver to have it.
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
        Self::new(&text).ok_or_else(|| serde::de::Error::custom(format!("`{text}` is no flag's name")))
    }
}

/// One value that an expert wants of a device, of all its queues, or of the host that it is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NicWish {
    /// See [`crate::Setting::Channels`].
    Channels(ChannelKind, u32),
    /// See [`crate::Setting::Ring`].
    Ring(RingKind, u32),
    /// See [`crate::Setting::Coalescing`].
    Coalescing(CoalesceParam, u32),
    /// See [`crate::Setting::Offload`].
    Offload(Offload, bool),
    /// See [`crate::Setting::PacketSize`].
    PacketSize(PacketSize, u32),
    /// See [`crate::Setting::PrivateFlag`].
    PrivateFlags(Vec<(FlagName, bool)>),
    /// Packets are spread evenly over so many of the first receive queues: see [`crate::Setting::RssTable`].
    RssQueues(u32),
    /// See [`crate::Setting::RssContext`].
    RssContexts(Vec<QueueSpan>),
    /// See [`crate::Setting::FlowRule`].
    FlowRules(Vec<FlowRule>),
    /// See [`crate::Setting::Qdiscs`]: one of this kind for every transmit queue.
    Qdisc(QdiscKind),
    /// See [`crate::Setting::RpsCpus`]: the same for every receive queue.
    RpsCpus(CpuSet),
    /// See [`crate::Setting::RpsFlowCount`]: the same for every receive queue.
    RpsFlowCount(u32),
    /// See [`crate::Setting::XpsCpus`]: whether each CPU that runs sends by one queue, dealt out in turn, or by any.
    Xps(bool),
    /// See [`crate::Setting::Sysctl`].
    Sysctl(Sysctl, u64),
}

impl NicWish {
    /// The key of a policy file that makes it.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Channels(kind, _) => kind.key(),
            Self::Ring(kind, _) => kind.key(),
            Self::Coalescing(param, _) => param.key(),
            Self::Offload(offload, _) => offload.key(),
            Self::PacketSize(size, _) => size.key(),
            Self::PrivateFlags(_) => "settings.private-flags",
            Self::RssQueues(_) => "settings.rss-queues",
            Self::RssContexts(_) => "settings.rss-contexts",
            Self::FlowRules(_) => "settings.ntuple",
            Self::Qdisc(_) => "settings.qdisc",
            Self::RpsCpus(_) => "settings.rps_cpus",
            Self::RpsFlowCount(_) => "settings.rps_flow_cnt",
            Self::Xps(_) => "settings.xps",
            Self::Sysctl(sysctl, _) => sysctl.key(),
        }
    }

    /// What is wanted when these come after those: of one key the later counts, of flags each by its name, and rules of
    /// single flows add up. Two transactions in a row come to the same.
    #[must_use]
    pub fn after(later: Vec<Self>, earlier: Vec<Self>) -> Vec<Self> {
        let mut all = earlier;
        for wish in later {
            let known = all.iter_mut().find(|known| known.key() == wish.key());
            match (known, wish) {
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
                (Some(known), wish) => *known = wish,
                (None, wish) => all.push(wish),
            }
        }
        all
    }
}

/// How a NIC spreads packets over its receive queues by their hash.
///
/// Kernel: `include/uapi/linux/ethtool.h` `struct ethtool_rxfh`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rss {
    /// The indirection table: the queue for each value of the hash, modulo the table's length.
    pub table: Vec<u32>,
    /// The key of the hash function.
    pub key: Vec<u8>,
}

#[cfg(test)]
mod test {
    use super::*;

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
    fn what_is_asked_later_adds_up_with_what_was_asked_before_and_wins_where_both_speak() {
        let usecs = |usecs| NicWish::Coalescing(CoalesceParam::RxUsecs, usecs);
        let flag = |name: &str, on| (FlagName::new(name).expect("fits"), on);
        let flags = |flags: &[(FlagName, bool)]| NicWish::PrivateFlags(flags.to_vec());
        let earlier = vec![usecs(8), flags(&[flag("a", true), flag("b", true)])];
        let later = vec![NicWish::Offload(Offload::Gro, false), usecs(20), flags(&[flag("b", false)])];
        assert_eq!(NicWish::after(later.clone(), Vec::new()), later);
        assert_eq!(NicWish::after(Vec::new(), earlier.clone()), earlier);
        assert_eq!(
            NicWish::after(later, earlier),
            [usecs(20), flags(&[flag("a", true), flag("b", false)]), NicWish::Offload(Offload::Gro, false)]
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
