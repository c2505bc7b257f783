//! The NIC's half of the graph.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::holder::QueueHolder;
use crate::cpu_set::CpuSet;
use crate::ids::{Cpu, DeviceId, IfIndex, IrqNumber, NapiId, NumaNode, Pid, QueueIndex, RxQueue};
use crate::nic::{ChannelKind, CoalesceParam, FlagName, Offload, PacketSize, RingKind, Rss};
use crate::qdisc::Qdiscs;
use crate::scheduling::KthreadState;
use crate::setting::Threading;
use crate::steering::{FlowMatch, QueueSpan, SteerTo};
use crate::units::{EmptyPolls, Nanoseconds};

/// How sure we are of an edge of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// Our own guess by order (the n-th NAPI is the n-th queue's) where the kernel states nothing.
    ByOrder,
    /// Read from a name that drivers choose (`/proc/interrupts`).
    ByName,
    /// Stated by the kernel as an attribute.
    Stated,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its identity.
    pub id: DeviceId,
    /// The rtnetlink kind of a virtual device (`veth`), else the driver's name; empty where neither is known.
    pub kind: String,
    /// Whether it is administratively up and has a carrier.
    pub up: bool,
    /// What tells it from others beside its name, and what it is joined to.
    #[serde(default, skip_serializing_if = "DeviceLink::is_unknown")]
    pub link: DeviceLink,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// The NUMA node of its bus device.
    pub node: Option<NumaNode>,
    /// Whether an XDP program is attached.
    pub xdp: bool,
    /// For a device with a peer (veth): the peer's index and namespace as this namespace knows it.
    pub peer: Option<String>,
    /// The device-wide defaults of `/sys/class/net/DEV`.
    pub defer_hard_irqs: Option<EmptyPolls>,
    /// As [`Device::defer_hard_irqs`], for `gro_flush_timeout`.
    pub gro_flush_timeout: Option<Nanoseconds>,
    /// As [`Device::defer_hard_irqs`], for `threaded`.
    pub threaded: Option<Threading>,
    /// The receive queues, by index.
    pub rx_queues: Vec<RxQueueState>,
    /// The transmit queues, by index.
    pub tx_queues: Vec<TxQueueState>,
    /// The NAPIs, by id.
    pub napis: Vec<Napi>,
    /// How many queues there are and could be; `None` where the driver does not say.
    pub channels: Option<Channels>,
    /// Ring sizes; `None` where the driver does not say.
    pub rings: Option<Rings>,
    /// Interrupt moderation of the whole device; `None` where the driver has none.
    pub coalesce: Option<Coalesce>,
    /// The offloads that decide how packets travel.
    pub features: Features,
    /// Every offload that [`crate::NicKnob::Offload`] knows and the device has, and whether it is on.
    #[serde(default)]
    pub offloads: BTreeMap<Offload, bool>,
    /// Those of `offloads` that are not as they were requested, and what was: the driver or another offload does not
    /// allow it now. The kernel switches them as soon as it can.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub offloads_requested: BTreeMap<Offload, bool>,
    /// How large packets may be.
    #[serde(default, skip_serializing_if = "PacketSizes::is_unknown")]
    pub packet_sizes: PacketSizes,
    /// The flags of the driver's own.
    #[serde(default)]
    pub private_flags: BTreeMap<FlagName, bool>,
    /// How packets are spread over the queues; `None` where the driver does not say.
    #[serde(default)]
    pub rss: Option<Rss>,
    /// The contexts of the receive hash beside the device's own, by id; `None` where the driver has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rss_contexts: Option<Vec<RssContext>>,
    /// The rules of the NIC for single flows, by place; `None` where the driver has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_rules: Option<Vec<PlacedRule>>,
    /// What packets wait in before they leave; `None` while the device is down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qdiscs: Option<Qdiscs>,
    /// What keeps queues of it for itself: leases, memory providers, AF_XDP sockets; by queue. Empty where nothing does, or
    /// where the kernel does not say (before 6.8 and without sock-diag of AF_XDP).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<QueueHolder>,
}

/// What tells a device from others beside its name, and what it is joined to.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceLink {
    /// Its MAC address, in lower case; `None` where its addresses are of another kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The address of the PCI device behind it: `0000:3b:00.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// How fast its link is, in megabits per second; `None` while it has no carrier, or where the driver does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
    /// Whether the default route of the main table goes by it, also by way of a device above it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub default_route: bool,
    /// The device that it is a member of: a bond, a bridge, a team, a VRF (`IFLA_MASTER`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<IfIndex>,
    /// The device that it stands on, in the same namespace: a VLAN's, a macvlan's, a tunnel's (`IFLA_LINK`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lower: Option<IfIndex>,
}

impl DeviceLink {
    /// Whether nothing is known, as of a host that was recorded before there was anything to know.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// The rtnetlink kinds of devices that software alone makes, and whose packets come on the CPU of the sender or of the
/// device below. Kernel: 6.18, `struct rtnl_link_ops` of each, `.kind`.
const SOFTWARE_KINDS: [&str; 33] = [
    "amt",
    "bareudp",
    "bond",
    "bridge",
    "dummy",
    "erspan",
    "geneve",
    "gre",
    "gretap",
    "gtp",
    "ifb",
    "ip6erspan",
    "ip6gre",
    "ip6gretap",
    "ip6tnl",
    "ipip",
    "ipvlan",
    "ipvtap",
    "macsec",
    "macvlan",
    "macvtap",
    "netkit",
    "ovpn",
    "sit",
    "team",
    "tun",
    "veth",
    "vlan",
    "vrf",
    "vti",
    "vxlan",
    "wireguard",
    "xfrm",
];

impl Device {
    /// What was requested of an offload, which a write changes; `None` if the device does not have it.
    pub fn requested_offload(&self, offload: Offload) -> Option<bool> {
        let is = self.offloads.get(&offload)?;
        Some(*self.offloads_requested.get(&offload).unwrap_or(is))
    }

    /// How many of its first receive queues ordinary packets can be spread over, of so many that there are: those below the
    /// first whose memory is another program's.
    pub fn ordinary_rx_queues(&self, there: u32) -> u32 {
        let provided = self.holders.iter().filter(|holder| holder.rx && holder.kind.is_provider());
        provided.map(|holder| holder.queue.0).fold(there, u32::min)
    }

    /// Whether it interrupts a CPU by itself when packets come. `None` where its kind is not known and no NAPI names an
    /// interrupt; a driver of hardware has one even where it does not say which.
    pub fn has_own_interrupts(&self) -> Option<bool> {
        if self.napis.iter().any(|napi| napi.irq.is_some()) {
            return Some(true);
        }
        (!self.kind.is_empty()).then(|| !SOFTWARE_KINDS.contains(&self.kind.as_str()))
    }
}

/// A context of the receive hash.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RssContext {
    /// What the kernel calls it, while it lives.
    pub id: u32,
    /// The queues that it spreads packets evenly over; `None` where it does so in another way.
    pub queues: Option<QueueSpan>,
    /// The queue for each value of the hash, modulo the table's length.
    pub table: Vec<u32>,
}

/// A rule of the NIC, where it stands in the NIC's table. The first that fits decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacedRule {
    /// Its place.
    pub location: u32,
    /// Which packets it is for; `None` where that cannot be said with whole fields.
    pub flow: Option<FlowMatch>,
    /// Where they go.
    pub to: SteerTo,
}

/// A receive queue.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RxQueueState {
    /// Its identity.
    pub id: RxQueue,
    /// The NAPI that serves it.
    pub napi: Option<NapiEdge>,
    /// The CPUs that receive packet steering hands its packets to; empty where RPS is off.
    pub rps_cpus: CpuSet,
    /// How many flows receive flow steering remembers for the queue; `None` on kernels without it.
    #[serde(default)]
    pub rps_flow_cnt: Option<u32>,
    /// Interrupt moderation of this queue; `None` where the driver has none for single queues.
    #[serde(default)]
    pub coalesce: Option<Coalesce>,
    /// The kernel thread that polls it; `None` where there is none, or none that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kthread: Option<KthreadState>,
}

/// A transmit queue.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TxQueueState {
    /// Its index.
    pub index: QueueIndex,
    /// The NAPI that completes it.
    pub napi: Option<NapiEdge>,
    /// The CPUs whose packets leave by it; empty where XPS is off.
    pub xps_cpus: CpuSet,
    /// The receive queues whose flows leave by it; empty where that is not asked for.
    #[serde(default)]
    pub xps_rxqs: Vec<QueueIndex>,
}

/// A queue's way to its NAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NapiEdge {
    /// The NAPI.
    pub napi: NapiId,
    /// How sure we are.
    pub confidence: Confidence,
}

/// A NAPI's way to its interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IrqEdge {
    /// The interrupt.
    pub irq: IrqNumber,
    /// How sure we are.
    pub confidence: Confidence,
}

/// A NAPI instance and its settings.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Napi {
    /// Its id, until the next reset.
    pub id: NapiId,
    /// See [`crate::NapiKnob::DeferHardIrqs`].
    pub defer_hard_irqs: Option<EmptyPolls>,
    /// See [`crate::NapiKnob::GroFlushTimeout`].
    pub gro_flush_timeout: Option<Nanoseconds>,
    /// See [`crate::NapiKnob::IrqSuspendTimeout`].
    pub irq_suspend_timeout: Option<Nanoseconds>,
    /// See [`crate::NapiKnob::Threaded`].
    pub threaded: Option<Threading>,
    /// The kernel thread that polls it.
    pub kthread: Option<Pid>,
    /// Its interrupt.
    pub irq: Option<IrqEdge>,
}

/// An interrupt.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Irq {
    /// Its number.
    pub number: IrqNumber,
    /// The name that the driver gave it, as in `/proc/interrupts`.
    pub name: String,
    /// The CPUs it may be delivered to.
    pub affinity: CpuSet,
    /// The CPUs it is delivered to; changes at the interrupt after a change of affinity.
    pub effective_affinity: CpuSet,
    /// Its NUMA node.
    pub node: Option<NumaNode>,
    /// How often it fired, by CPU; CPUs where it never did are left out.
    pub counts: Vec<(Cpu, u64)>,
}

impl Irq {
    /// How often it fired on all CPUs together.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }
}

/// What is, and what the device allows at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// The value in force.
    pub current: u32,
    /// The largest value; 0 where the driver does not say.
    pub max: u32,
}

/// Queue counts. Kernel: `include/uapi/linux/ethtool.h` `struct ethtool_channels`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channels {
    /// Receive queues with an interrupt of their own.
    pub rx: Pair,
    /// Transmit queues with an interrupt of their own.
    pub tx: Pair,
    /// Queue pairs that share an interrupt.
    pub combined: Pair,
}

impl Channels {
    /// How many there are of a kind, and could be.
    pub const fn of(&self, kind: ChannelKind) -> Pair {
        match kind {
            ChannelKind::Rx => self.rx,
            ChannelKind::Tx => self.tx,
            ChannelKind::Combined => self.combined,
        }
    }
}

/// Ring sizes in descriptors. Kernel: `include/uapi/linux/ethtool.h` `struct ethtool_ringparam`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rings {
    /// Receive.
    pub rx: Pair,
    /// Transmit.
    pub tx: Pair,
}

impl Rings {
    /// How many descriptors a ring of a kind has, and could have.
    pub const fn of(&self, kind: RingKind) -> Pair {
        match kind {
            RingKind::Rx => self.rx,
            RingKind::Tx => self.tx,
        }
    }
}

/// Interrupt moderation; each value `None` where the driver lacks it.
/// Kernel: `include/uapi/linux/ethtool.h` `struct ethtool_coalesce`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coalesce {
    /// How long a receive interrupt waits, in microseconds.
    pub rx_usecs: Option<u32>,
    /// After how many packets a receive interrupt comes immediately.
    pub rx_max_frames: Option<u32>,
    /// How long a transmit interrupt waits, in microseconds.
    pub tx_usecs: Option<u32>,
    /// After how many packets a transmit interrupt comes immediately.
    pub tx_max_frames: Option<u32>,
    /// Whether the driver adapts the receive values by itself.
    pub adaptive_rx: Option<bool>,
    /// Whether the driver adapts the transmit values by itself.
    pub adaptive_tx: Option<bool>,
    /// Whether each completion restarts the receive timer.
    #[serde(default)]
    pub cqe_mode_rx: Option<bool>,
    /// Whether each completion restarts the transmit timer.
    #[serde(default)]
    pub cqe_mode_tx: Option<bool>,
}

impl Coalesce {
    /// One of the values, switches as 0 and 1; `None` where the driver lacks it.
    pub fn of(&self, param: CoalesceParam) -> Option<u32> {
        match param {
            CoalesceParam::RxUsecs => self.rx_usecs,
            CoalesceParam::RxMaxFrames => self.rx_max_frames,
            CoalesceParam::TxUsecs => self.tx_usecs,
            CoalesceParam::TxMaxFrames => self.tx_max_frames,
            CoalesceParam::AdaptiveRx => self.adaptive_rx.map(u32::from),
            CoalesceParam::AdaptiveTx => self.adaptive_tx.map(u32::from),
            CoalesceParam::CqeModeRx => self.cqe_mode_rx.map(u32::from),
            CoalesceParam::CqeModeTx => self.cqe_mode_tx.map(u32::from),
        }
    }
}

/// How large packets may be before they are cut, and may grow by joining, in bytes; each `None` on kernels without it.
/// Kernel: `include/uapi/linux/if_link.h`, `IFLA_GSO_MAX_SIZE` and others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketSizes {
    /// See [`PacketSize::Gso`].
    pub gso_max_size: Option<u32>,
    /// See [`PacketSize::Gro`].
    pub gro_max_size: Option<u32>,
    /// See [`PacketSize::GsoIpv4`].
    pub gso_ipv4_max_size: Option<u32>,
    /// See [`PacketSize::GroIpv4`].
    pub gro_ipv4_max_size: Option<u32>,
    /// The largest that the driver takes: what is sent cannot be allowed to be larger. Kernel: 5.19.
    pub tso_max_size: Option<u32>,
}

impl PacketSizes {
    /// One of the bounds; `None` on kernels without it.
    pub const fn of(&self, size: PacketSize) -> Option<u32> {
        match size {
            PacketSize::Gso => self.gso_max_size,
            PacketSize::Gro => self.gro_max_size,
            PacketSize::GsoIpv4 => self.gso_ipv4_max_size,
            PacketSize::GroIpv4 => self.gro_ipv4_max_size,
        }
    }

    /// Whether nothing is known, as of a host that was recorded before there was anything to know.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// Offloads that decide how packets travel; `None` where they could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Features {
    /// `rx-gro`: packets are joined in NAPI. A veth has NAPIs only with this or with XDP.
    pub gro: Option<bool>,
    /// Any of the `tx-tcp-*segmentation` features. A veth whose *peer* has them on bypasses its own NAPI.
    pub tso: Option<bool>,
    /// `rx-gro-hw`.
    pub gro_hw: Option<bool>,
    /// `rx-ntuple-filter`.
    pub ntuple: Option<bool>,
    /// `hw-tc-offload`.
    pub tc_offload: Option<bool>,
}
