//! Other tools that set what netpolicy sets: the configuration lines that make them do so.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::nic::Sysctl;

/// A kind of tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictingToolKind {
    /// A file of `sysctl.d`: at boot, and on `sysctl --system`.
    SysctlFile,
    /// A `.link` file of systemd: when udev adds the device.
    LinkFile,
    /// A connection of NetworkManager: whenever it is activated.
    NetworkManager,
    /// A stanza of ifupdown: whenever the interface goes up.
    Ifupdown,
    /// The profile that tuned keeps, while it runs; the Node Tuning Operator of OpenShift sets it.
    Tuned,
    /// Google's guest agent: its `google_set_multiqueue` sets queues, IRQ affinity and XPS at boot, and when a device comes.
    GoogleGuestAgent,
    /// cloud-init: network configuration, and commands that it runs at boot.
    CloudInit,
    /// Scylla's `perftune.py`: IRQ affinity, RPS, XPS and the number of queues, at each start of the database.
    Perftune,
    /// A script that pins interrupts: Intel's or Mellanox's `set_irq_affinity`, or `mlnx_tune`.
    IrqAffinityScript,
    /// Amazon's: udev rules and scripts for ENA devices.
    Ena,
    /// netplan: offloads and virtual functions, whenever its backend configures the device.
    Netplan,
    /// `ETHTOOL_OPTS` of a network script of Red Hat's: whenever the interface goes up.
    Ifcfg,
    /// A rule of udev that sets a NIC or runs a program that does: when udev adds the device.
    UdevRule,
    /// Azure's: the agent, and udev rules for accelerated networking.
    Azure,
}

impl fmt::Display for ConflictingToolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SysctlFile => "sysctl.d",
            Self::LinkFile => "systemd .link",
            Self::NetworkManager => "NetworkManager",
            Self::Ifupdown => "ifupdown",
            Self::Tuned => "tuned",
            Self::GoogleGuestAgent => "google-guest-agent",
            Self::CloudInit => "cloud-init",
            Self::Perftune => "perftune",
            Self::IrqAffinityScript => "set_irq_affinity",
            Self::Ena => "ENA helpers",
            Self::Netplan => "netplan",
            Self::Ifcfg => "ifcfg",
            Self::UdevRule => "udev rule",
            Self::Azure => "Azure's agent",
        })
    }
}

/// A configuration line by which another tool sets what netpolicy may set, too.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConflictingTool {
    /// The tool.
    pub kind: ConflictingToolKind,
    /// File and line: `/etc/sysctl.d/90-net.conf:3`.
    pub place: String,
    /// What it says.
    pub line: String,
    /// The device that it is about, as far as it names one: a name, or a pattern of names.
    pub device: Option<String>,
    /// The number and its value, where it sets one of the whole host's.
    pub sysctl: Option<(Sysctl, String)>,
}
