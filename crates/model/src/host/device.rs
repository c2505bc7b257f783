//! Network devices, their queues, NAPIs and interrupts.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::edge::{IrqEdge, NapiEdge};
use super::holder::QueueHolder;
use crate::cpu_set::CpuSet;
use crate::ids::{Cpu, DeviceId, IfIndex, IrqNumber, NapiId, NumaNode, Pid, QueueIndex, RxQueue};
use crate::nic::{ChannelKind, CoalesceParam, FlagName, Offload, PacketSize, RingKind, Rss};
use crate::qdisc::Qdiscs;
use crate::scheduling::KthreadState;
use crate::setting::{NapiKnob, Threading};
use crate::steering::{FlowMatch, QueueSpan, SteerTo};
use crate::units::{EmptyPolls, Nanoseconds};

/// A network device.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The identity.
    pub id: DeviceId,
    /// The rtnetlink kind of a virtual device (`veth`), otherwise the driver's name; empty if neither is
    /// known.
    pub kind: String,
    /// Whether the device is administratively up and has a carrier.
    pub up: bool,
    /// How the device is identified other than by name, and how it is linked to other devices.
    #[serde(default, skip_serializing_if = "DeviceLink::is_unknown")]
    pub link: DeviceLink,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// The NUMA node of the device's bus device.
    pub node: Option<NumaNode>,
    /// Whether an XDP program is attached.
    pub xdp: bool,
    /// For a device with a peer (veth): the peer's index, and the id that this namespace has for the peer's
    /// namespace.
    pub peer: Option<String>,
    /// The device-wide default of `napi_defer_hard_irqs`, in `/sys/class/net/DEV`.
    pub defer_hard_irqs: Option<EmptyPolls>,
    /// The device-wide default of `gro_flush_timeout`.
    pub gro_flush_timeout: Option<Nanoseconds>,
    /// The device-wide default of `threaded`.
    pub threaded: Option<Threading>,
    /// The receive queues, by index.
    pub rx_queues: Vec<RxQueueState>,
    /// The transmit queues, by index.
    pub tx_queues: Vec<TxQueueState>,
    /// The NAPIs, by id.
    pub napis: Vec<Napi>,
    /// The current and the maximum number of queues; `None` if the driver does not report them.
    pub channels: Option<Channels>,
    /// Ring sizes; `None` if the driver does not report them.
    pub rings: Option<Rings>,
    /// Interrupt moderation of the whole device; `None` if the driver does not support interrupt moderation.
    pub coalesce: Option<Coalesce>,
    /// The offloads that affect packet delivery.
    pub features: Features,
    /// Every offload that netpolicy can set and the device supports, and whether it is on.
    #[serde(default)]
    pub offloads: BTreeMap<Offload, bool>,
    /// Requested values of `offloads` that are not in force because the driver or another offload does not
    /// allow them now. The kernel applies them as soon as it can.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub offloads_requested: BTreeMap<Offload, bool>,
    /// Maximum packet sizes.
    #[serde(default, skip_serializing_if = "PacketSizes::is_unknown")]
    pub packet_sizes: PacketSizes,
    /// The driver's private flags.
    #[serde(default)]
    pub private_flags: BTreeMap<FlagName, bool>,
    /// How packets are spread over the queues; `None` if the driver does not report that.
    #[serde(default)]
    pub rss: Option<Rss>,
    /// RSS contexts other than the device's default, by id; `None` if the driver does not support them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rss_contexts: Option<Vec<RssContext>>,
    /// The ntuple rules, by location; `None` if the driver does not support them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_rules: Option<Vec<PlacedRule>>,
    /// The device's qdiscs; `None` while the device is down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qdiscs: Option<Qdiscs>,
    /// The holders of the device's queues (leases, memory providers, AF_XDP sockets), by queue. Empty if
    /// there are none, or the kernel does not report them (before 6.8 and without sock-diag of AF_XDP).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<QueueHolder>,
}

impl Device {
    /// A device of which only the identity and the kind are known.
    pub fn new(id: DeviceId, kind: impl Into<String>) -> Self {
        Self {
            id,
            kind: kind.into(),
            up: false,
            link: DeviceLink::default(),
            mtu: 0,
            node: None,
            xdp: false,
            peer: None,
            defer_hard_irqs: None,
            gro_flush_timeout: None,
            threaded: None,
            rx_queues: Vec::new(),
            tx_queues: Vec::new(),
            napis: Vec::new(),
            channels: None,
            rings: None,
            coalesce: None,
            features: Features::default(),
            offloads: BTreeMap::new(),
            offloads_requested: BTreeMap::new(),
            packet_sizes: PacketSizes::default(),
            private_flags: BTreeMap::new(),
            rss: None,
            rss_contexts: None,
            flow_rules: None,
            qdiscs: None,
            holders: Vec::new(),
        }
    }
}

/// How a device is identified other than by name, and how it is linked to other devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceLink {
    /// The MAC address in lower case; `None` if the device has another kind of address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The address of the PCI device to which this device belongs, such as `0000:3b:00.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The link speed in megabits per second; `None` without a carrier, or if the driver does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
    /// Whether the default route of the main table uses this device, directly or through a device on top of
    /// it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub default_route: bool,
    /// The device to which this device is enslaved: a bond, a bridge, a team, a VRF (`IFLA_MASTER`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<IfIndex>,
    /// The device below this one in the same namespace, as for a VLAN, a macvlan or a tunnel (`IFLA_LINK`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lower: Option<IfIndex>,
}

impl DeviceLink {
    /// Whether no attribute is known: true for hosts that were recorded before these fields existed.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// The rtnetlink kinds of pure software devices, whose packets are processed on the CPU of the sender or of
/// the device below. Kernel: 6.18, `struct rtnl_link_ops` of each, `.kind`.
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
    /// Returns the requested state of an offload, which a write changes; `None` if the device does not
    /// support the offload.
    pub fn requested_offload(&self, offload: Offload) -> Option<bool> {
        let is = self.offloads.get(&offload)?;
        Some(*self.offloads_requested.get(&offload).unwrap_or(is))
    }

    /// Returns how many of the first `there` receive queues can receive ordinary packets: the queues before
    /// the first one whose memory belongs to another program.
    pub fn ordinary_rx_queues(&self, there: u32) -> u32 {
        let provided = self.holders.iter().filter(|holder| holder.rx && holder.kind.is_provider());
        provided.map(|holder| holder.queue.0).fold(there, u32::min)
    }

    /// Whether the device raises interrupts when packets arrive. `None` if its kind is unknown and no NAPI
    /// names an interrupt; the device of a hardware driver raises interrupts even if the driver does not
    /// report them.
    pub fn has_own_interrupts(&self) -> Option<bool> {
        if self.napis.iter().any(|napi| napi.irq.is_some()) {
            return Some(true);
        }
        (!self.kind.is_empty()).then(|| !SOFTWARE_KINDS.contains(&self.kind.as_str()))
    }
}

/// An RSS context.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RssContext {
    /// The context's id, valid while the context exists.
    pub id: u32,
    /// The queues over which the context spreads packets evenly; `None` if its table is different.
    pub queues: Option<QueueSpan>,
    /// The queue for each hash value, modulo the table's length.
    pub table: Vec<u32>,
}

/// An ntuple rule at its location in the NIC's table. The first rule that matches a packet applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacedRule {
    /// The rule's location.
    pub location: u32,
    /// The packets that the rule matches; `None` if netpolicy cannot describe them.
    pub flow: Option<FlowMatch>,
    /// The target to which the rule steers the packets.
    pub to: SteerTo,
}

/// A receive queue.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RxQueueState {
    /// The identity.
    pub id: RxQueue,
    /// The NAPI that serves the queue.
    pub napi: Option<NapiEdge>,
    /// The CPUs to which RPS hands the queue's packets; empty if RPS is off.
    pub rps_cpus: CpuSet,
    /// The number of flows that RFS remembers for the queue; `None` on kernels without RFS.
    #[serde(default)]
    pub rps_flow_cnt: Option<u32>,
    /// Interrupt moderation of this queue; `None` if the driver does not support moderation per queue.
    #[serde(default)]
    pub coalesce: Option<Coalesce>,
    /// The kernel thread that polls the queue; `None` if there is none, or none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kthread: Option<KthreadState>,
}

/// A transmit queue.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TxQueueState {
    /// The index.
    pub index: QueueIndex,
    /// The NAPI that completes the queue's transmissions.
    pub napi: Option<NapiEdge>,
    /// The CPUs that transmit on the queue (XPS); empty if XPS is off.
    pub xps_cpus: CpuSet,
    /// The receive queues whose flows are transmitted on this queue; empty if this is not configured.
    #[serde(default)]
    pub xps_rxqs: Vec<QueueIndex>,
}

/// A NAPI instance and its settings.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Napi {
    /// The NAPI's id, valid until the next reset.
    pub id: NapiId,
    /// See [`crate::NapiKnob::DeferHardIrqs`].
    pub defer_hard_irqs: Option<EmptyPolls>,
    /// See [`crate::NapiKnob::GroFlushTimeout`].
    pub gro_flush_timeout: Option<Nanoseconds>,
    /// See [`crate::NapiKnob::IrqSuspendTimeout`].
    pub irq_suspend_timeout: Option<Nanoseconds>,
    /// See [`crate::NapiKnob::Threaded`].
    pub threaded: Option<Threading>,
    /// The kernel thread that polls the NAPI.
    pub kthread: Option<Pid>,
    /// The interrupt.
    pub irq: Option<IrqEdge>,
}

impl Napi {
    /// Creates a NAPI whose settings are unknown.
    pub const fn new(id: NapiId) -> Self {
        Self {
            id,
            defer_hard_irqs: None,
            gro_flush_timeout: None,
            irq_suspend_timeout: None,
            threaded: None,
            kthread: None,
            irq: None,
        }
    }

    /// Returns the knob of the same kind as `like`, with the value in force; `None` if the kernel does not
    /// report it.
    pub fn knob(&self, like: &NapiKnob) -> Option<NapiKnob> {
        match like {
            NapiKnob::DeferHardIrqs(_) => self.defer_hard_irqs.map(NapiKnob::DeferHardIrqs),
            NapiKnob::GroFlushTimeout(_) => self.gro_flush_timeout.map(NapiKnob::GroFlushTimeout),
            NapiKnob::IrqSuspendTimeout(_) => self.irq_suspend_timeout.map(NapiKnob::IrqSuspendTimeout),
            NapiKnob::Threaded(_) => self.threaded.map(NapiKnob::Threaded),
        }
    }
}

/// An interrupt.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Irq {
    /// The number.
    pub number: IrqNumber,
    /// The name that the driver gave the interrupt, as in `/proc/interrupts`.
    pub name: String,
    /// The CPUs to which the interrupt may be delivered.
    pub affinity: CpuSet,
    /// The CPUs to which the interrupt is delivered. They reflect a change of affinity only after the next
    /// interrupt.
    pub effective_affinity: CpuSet,
    /// The NUMA node.
    pub node: Option<NumaNode>,
    /// How often the interrupt fired, by CPU; CPUs with no interrupt are omitted.
    pub counts: Vec<(Cpu, u64)>,
}

impl Irq {
    /// Returns how often the interrupt fired, on all CPUs together.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }
}

/// A current value and its maximum on this device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// The value in force.
    pub current: u32,
    /// The maximum value; 0 if the driver does not report it.
    pub max: u32,
}

/// Queue counts. Kernel: `include/uapi/linux/ethtool.h` `struct ethtool_channels`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channels {
    /// Receive queues with a dedicated interrupt.
    pub rx: Pair,
    /// Transmit queues with a dedicated interrupt.
    pub tx: Pair,
    /// Queue pairs that share an interrupt.
    pub combined: Pair,
}

impl Channels {
    /// Returns the current and the maximum number of queues of a kind.
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
    /// Returns the current and the maximum number of descriptors of a kind of ring.
    pub const fn of(&self, kind: RingKind) -> Pair {
        match kind {
            RingKind::Rx => self.rx,
            RingKind::Tx => self.tx,
        }
    }
}

/// Interrupt moderation; a value is `None` if the driver does not support it. Kernel:
/// `include/uapi/linux/ethtool.h` `struct ethtool_coalesce`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coalesce {
    /// How long a receive interrupt may be delayed, in microseconds.
    pub rx_usecs: Option<u32>,
    /// The number of packets that triggers a receive interrupt immediately.
    pub rx_max_frames: Option<u32>,
    /// How long a transmit interrupt may be delayed, in microseconds.
    pub tx_usecs: Option<u32>,
    /// The number of packets that triggers a transmit interrupt immediately.
    pub tx_max_frames: Option<u32>,
    /// Whether the driver adapts the receive values to the traffic.
    pub adaptive_rx: Option<bool>,
    /// Whether the driver adapts the transmit values to the traffic.
    pub adaptive_tx: Option<bool>,
    /// Whether each completion restarts the receive timer.
    #[serde(default)]
    pub cqe_mode_rx: Option<bool>,
    /// Whether each completion restarts the transmit timer.
    #[serde(default)]
    pub cqe_mode_tx: Option<bool>,
}

impl Coalesce {
    /// Returns the value of a parameter, with switches as 0 and 1; `None` if the driver does not support the
    /// parameter.
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

/// Maximum packet sizes for segmentation (GSO) and coalescing (GRO), in bytes; a value is `None` on kernels
/// that do not have it. Kernel: `include/uapi/linux/if_link.h`, `IFLA_GSO_MAX_SIZE` and others.
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
    /// The largest size that the driver accepts, an upper bound of the GSO sizes. Kernel: 5.19.
    pub tso_max_size: Option<u32>,
}

impl PacketSizes {
    /// Returns a maximum packet size by its kind; `None` on kernels that do not have it.
    pub const fn of(&self, size: PacketSize) -> Option<u32> {
        match size {
            PacketSize::Gso => self.gso_max_size,
            PacketSize::Gro => self.gro_max_size,
            PacketSize::GsoIpv4 => self.gso_ipv4_max_size,
            PacketSize::GroIpv4 => self.gro_ipv4_max_size,
        }
    }

    /// Whether no attribute is known: true for hosts that were recorded before these fields existed.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// Offloads that affect packet delivery; `None` if they could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Features {
    /// `rx-gro`: GRO in NAPI. A veth has NAPIs only with this feature or with an XDP program.
    pub gro: Option<bool>,
    /// Whether any of the `tx-tcp-*segmentation` features is on. A veth whose *peer* has one of them on
    /// bypasses its own NAPI.
    pub tso: Option<bool>,
    /// `rx-gro-hw`.
    pub gro_hw: Option<bool>,
    /// `rx-ntuple-filter`.
    pub ntuple: Option<bool>,
    /// `hw-tc-offload`.
    pub tc_offload: Option<bool>,
}
