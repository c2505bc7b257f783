//! Other tools that write the same settings as netpolicy, with the configuration lines by which they do so.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::nic::Sysctl;
use crate::setting::Setting;

/// A kind of tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictingToolKind {
    /// A file in `sysctl.d`, which is applied at boot and by `sysctl --system`.
    SysctlFile,
    /// A `.link` file of systemd, which is applied when udev adds the device.
    LinkFile,
    /// A NetworkManager connection, which is applied on each activation.
    NetworkManager,
    /// An ifupdown stanza, which is applied whenever the interface goes up.
    Ifupdown,
    /// The active tuned profile, which is enforced while tuned runs.
    Tuned,
    /// A tuned profile by the Node Tuning Operator of OpenShift, which runs tuned in a container.
    NodeTuningOperator,
    /// Katalyst's agent, which assigns dedicated CPUs to interrupts, and moves the interrupts when the load
    /// changes.
    Katalyst,
    /// A plugin of the container runtime (Node Resource Interface) that sets the affinity of interrupts.
    NriPlugin,
    /// CRI-O, for pods that turn the balancing of interrupts off: it writes `default_smp_affinity`, and the
    /// CPUs that irqbalance avoids.
    Crio,
    /// Google's guest agent, whose `google_set_multiqueue` sets queues, IRQ affinity and XPS at boot, and
    /// when a device appears.
    GoogleGuestAgent,
    /// cloud-init: its network configuration, and the commands that it runs at boot.
    CloudInit,
    /// Scylla's `perftune.py`, which sets IRQ affinity, RPS, XPS and queue counts at each start of the
    /// database.
    Perftune,
    /// A script that pins interrupts: `set_irq_affinity` by Intel or Mellanox, or `mlnx_tune`.
    IrqAffinityScript,
    /// Amazon's udev rules and scripts for ENA devices.
    Ena,
    /// netplan, which sets offloads and virtual functions whenever its backend configures the device.
    Netplan,
    /// `ETHTOOL_OPTS` in a Red Hat network script, which is applied whenever the interface goes up.
    Ifcfg,
    /// A udev rule that sets a NIC, or runs a program that does; it is applied when udev adds the device.
    UdevRule,
    /// Azure's agent and its udev rules for accelerated networking.
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
            Self::NodeTuningOperator => "Node Tuning Operator",
            Self::Katalyst => "katalyst",
            Self::NriPlugin => "NRI plugin",
            Self::Crio => "CRI-O",
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

/// A configuration line by which another tool writes a setting that netpolicy may also write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConflictingTool {
    /// The tool.
    pub kind: ConflictingToolKind,
    /// The file and the line number, such as `/etc/sysctl.d/90-net.conf:3`.
    pub place: String,
    /// The line's text.
    pub line: String,
    /// The device that the line names, if any: a name, or a pattern for names.
    pub device: Option<String>,
    /// The sysctl and its value, if the line sets one.
    pub sysctl: Option<(Sysctl, String)>,
    /// The settings that the tool makes on `device` because of the line, with the values that it computes;
    /// empty if netpolicy cannot compute them.
    pub sets: Vec<Setting>,
    /// The condition, such as `Path=pci-*`, that decides whether the line applies to the device, if netpolicy
    /// cannot evaluate it.
    pub condition: Option<String>,
}

impl ConflictingTool {
    /// A line whose settings are unknown, and that names no device.
    pub fn new(kind: ConflictingToolKind, place: impl Into<String>, line: impl Into<String>) -> Self {
        let (place, line) = (place.into(), line.into());
        Self { kind, place, line, device: None, sysctl: None, sets: Vec::new(), condition: None }
    }
}
