//! A machine that took part in a measurement whose server and client are on different machines.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::host::{Device, Irq, Topology, Unread};

/// Whether a machine runs the server or the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The machine of the server.
    Server,
    /// The machine of the load generator.
    Client,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Server => "server",
            Self::Client => "client",
        })
    }
}

/// The attributes of a machine that a reader must know to judge the measurements made on it.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineDescription {
    /// The side.
    pub side: Side,
    /// The host name.
    pub host: String,
    /// `uname -r`.
    pub kernel: String,
    /// The version of netpolicy.
    pub netpolicy: String,
    /// The model of the machine's CPUs; empty if the kernel does not report it.
    pub cpu_model: String,
    /// Whether the machine is a virtual machine (the CPU flag `hypervisor`).
    pub guest: bool,
    /// The CPUs that server or client may use.
    pub cpus: CpuSet,
    /// All CPUs.
    pub topology: Topology,
    /// The CPU's vulnerabilities with their mitigations, as in `/sys/devices/system/cpu/vulnerabilities`.
    pub mitigations: BTreeMap<String, String>,
    /// The deepest idle state that the CPUs may enter; `None` if the kernel does not choose idle states.
    pub deepest_idle: Option<DeepestIdle>,
    /// The frequency governors of the CPUs; empty if the kernel does not scale frequencies.
    pub governors: Vec<String>,
    /// Whether irqbalance runs and may move interrupts of the device.
    pub irqbalance: bool,
    /// The device that leads to the other machine, with queues, rings, interrupt moderation and offloads.
    pub device: Option<Device>,
    /// The driver of that device.
    pub driver: Option<DriverInfo>,
    /// The interrupts of that device.
    pub irqs: Vec<Irq>,
    /// The parts of the description that could not be read.
    pub unread: Vec<Unread>,
}

/// An idle state of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeepestIdle {
    /// The name that the driver gives the idle state.
    pub name: String,
    /// The exit latency in microseconds.
    pub exit_us: u32,
}

/// What a driver reports about itself and its device. Kernel: `struct ethtool_drvinfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverInfo {
    /// The driver's name.
    pub driver: String,
    /// The version.
    pub version: String,
    /// The firmware's version; empty if it has none.
    pub firmware: String,
    /// The device's address on its bus; empty if it has none.
    pub bus: String,
}

/// The exit latency at which an idle state begins to lengthen response times noticeably, in microseconds.
const SLOW_EXIT_US: u32 = 20;

impl MachineDescription {
    /// Describes the machine in one line.
    pub fn in_words(&self) -> String {
        let mut words = format!("{} {}: Linux {}, {}", self.side, self.host, self.kernel, self.cpu_model);
        if self.guest {
            words.push_str(" (virtual machine)");
        }
        words.push_str(&format!(", CPUs {} of {}", self.cpus, self.topology.online));
        if let Some(device) = &self.device {
            words.push_str(&format!("; {}", device.id.name));
            let driver = self.driver.clone().unwrap_or_default();
            for part in [driver.driver, driver.version, driver.firmware] {
                if !part.is_empty() && part != "N/A" {
                    words.push_str(&format!(" {part}"));
                }
            }
            words.push_str(&format!(", {} queue(s), MTU {}", device.rx_queues.len(), device.mtu));
            if let Some(speed) = device.link.speed_mbps {
                words.push_str(&format!(", {speed} Mbit/s"));
            }
        }
        if let Some(idle) = &self.deepest_idle {
            words.push_str(&format!("; deepest idle state {} ({} us)", idle.name, idle.exit_us));
        }
        words
    }

    /// Lists the conditions on this machine that can distort the measurement.
    fn cautions(&self) -> Vec<String> {
        let mut cautions = Vec::new();
        let side = self.side;
        if self.irqbalance {
            cautions.push(format!("{side}: irqbalance runs and may move interrupts between runs"));
        }
        if let Some(idle) = self.deepest_idle.as_ref().filter(|idle| idle.exit_us >= SLOW_EXIT_US) {
            let DeepestIdle { name, exit_us } = idle;
            cautions
                .push(format!("{side}: CPUs may enter idle state {name}, and take {exit_us} us to wake up"));
        }
        if let Some(governor) = self.governors.iter().find(|governor| *governor != "performance") {
            cautions.push(format!("{side}: the frequency governor is {governor}"));
        }
        let Some(device) = &self.device else { return cautions };
        if let Some(node) = device.node {
            let cpus = self.topology.cpus.iter().filter(|cpu| self.cpus.contains(cpu.cpu));
            let elsewhere: CpuSet =
                cpus.filter(|cpu| cpu.node.is_some_and(|of| of != node)).map(|cpu| cpu.cpu).collect();
            if !elsewhere.is_empty() {
                let name = &device.id.name;
                cautions.push(format!("{side}: {name} is on NUMA node {node}, and CPUs {elsewhere} are not"));
            }
        }
        cautions
    }
}

/// Lists the conditions on these machines that can distort a measurement.
pub fn cautions(machines: &[MachineDescription]) -> Vec<String> {
    let mut cautions: Vec<String> = machines.iter().flat_map(MachineDescription::cautions).collect();
    let [one, other] = machines else { return cautions };
    if let (Some(one), Some(other)) = (&one.device, &other.device) {
        if one.mtu != other.mtu {
            cautions.push(format!("the MTUs differ: {} and {}", one.mtu, other.mtu));
        }
        if let (Some(speed), Some(of_other)) = (one.link.speed_mbps, other.link.speed_mbps)
            && speed != of_other
        {
            cautions.push(format!("the link speeds differ: {speed} and {of_other} Mbit/s"));
        }
    }
    if one.kernel != other.kernel {
        cautions.push(format!("the kernels differ: {} and {}", one.kernel, other.kernel));
    }
    cautions
}

/// Describes the machines, one per line, followed by the conditions that can distort the measurement.
pub fn in_lines(machines: &[MachineDescription]) -> Vec<String> {
    let words = machines.iter().map(MachineDescription::in_words);
    words.chain(cautions(machines).into_iter().map(|caution| format!("Check: {caution}."))).collect()
}
