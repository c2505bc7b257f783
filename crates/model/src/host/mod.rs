//! The host as a graph: `linux` observes it, `plan` reads it, `show` prints it.
//!
//! One side of the graph is device → rx/tx queue → NAPI → IRQ → CPU, the other is process → thread → epoll →
//! socket. The sides meet where a socket's incoming NAPI id is the id of a queue's NAPI. Edges that the
//! kernel does not always report carry a [`Confidence`].

mod app_request;
mod conflicting_tool;
mod device;
mod edge;
mod holder;
mod idle;
mod listeners;
mod pressure;
mod process;
mod topology;

pub use app_request::{AppRequest, Requester};
pub use conflicting_tool::{ConflictingTool, ConflictingToolKind};
pub use device::{
    Channels, Coalesce, Device, DeviceLink, Features, Irq, Napi, PacketSizes, Pair, PlacedRule, Rings,
    RssContext, RxQueueState, TxQueueState,
};
pub use edge::{Confidence, IrqEdge, NapiEdge};
pub use holder::{HolderKind, HolderProcess, QueueConflict, QueueHolder};
pub use idle::{CpuIdle, IdleDepth, IdleState};
pub use listeners::{Listener, SharedListeners, SpreadCounts};
pub use pressure::{CpuPressure, DevicePressure, Pressure};
pub use process::{Epoll, IoUring, Membership, Process, Socket, SocketState, Thread};
pub use topology::{CpuInfo, Topology};

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::ids::{DeviceId, EpollId, IrqNumber, NapiId, NetnsId, Pid, RxQueue};
use crate::nic::Sysctl;
use crate::scheduling::{KthreadState, RtThrottling};
use crate::units::KernelVersion;

/// The maximum depth of stacked devices. Kernel: 6.18, `include/linux/netdevice.h` `MAX_NEST_DEV`.
pub const STACK_DEPTH_MAX: usize = 8;

/// The observed state of a host, in one network namespace.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// The kernel's version, parsed from the release so that versions can be compared.
    pub kernel: KernelVersion,
    /// The capabilities of the kernel and of the caller.
    pub capabilities: Capabilities,
    /// The CPUs.
    pub topology: Topology,
    /// The network namespace that contains `devices`.
    pub netns: NetnsId,
    /// The devices, by index.
    pub devices: Vec<Device>,
    /// Host-wide sysctls. Empty outside the initial namespace, where they are not visible.
    #[serde(default)]
    pub sysctls: BTreeMap<Sysctl, u64>,
    /// The `rps_cpus` with which new receive queues in the namespace start (`net.core.rps_default_mask`).
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub rps_default_mask: CpuSet,
    /// The ports that the kernel gives to sockets of the namespace `netns` that do not bind one
    /// (`net.ipv4.ip_local_port_range`). Processes of other namespaces have other ranges, which are unknown.
    #[serde(default, skip_serializing_if = "PortRange::is_default")]
    pub local_ports: PortRange,
    /// The ports that the kernel gives only to sockets that bind one of them, even if the ports are in
    /// `local_ports` (`net.ipv4.ip_local_reserved_ports`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved_ports: Vec<PortRange>,
    /// The interrupts of the devices and those that the operator named, by number.
    pub irqs: Vec<Irq>,
    /// The observed processes, by pid.
    pub processes: Vec<Process>,
    /// The policies that processes and sockets of this host requested for themselves. Empty if applications
    /// may not request policies, or requests were not read.
    #[serde(default, alias = "wishes", skip_serializing_if = "Vec::is_empty")]
    pub app_requests: Vec<AppRequest>,
    /// TCP listeners that share an address, by address. Empty if no observed process has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<SharedListeners>,
    /// The scheduling with which a NAPI's kernel thread starts; `None` if it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kthread_begins: Option<KthreadState>,
    /// The limit on the run time of real-time threads; `None` if it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rt_throttling: Option<RtThrottling>,
    /// The running irqbalance; `None` if it does not run, or no device here has an interrupt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub irqbalance: Option<RunningIrqbalance>,
    /// Congestion of the receive path; `None` if it was not measured.
    #[serde(default)]
    pub pressure: Option<Pressure>,
    /// The parts that could not be read, with reasons; empty if everything was read.
    pub unread: Vec<Unread>,
}

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRange {
    /// The lowest port.
    pub first: u16,
    /// The highest port.
    pub last: u16,
}

impl PortRange {
    /// Whether a port is in the range.
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for PortRange {
    /// Returns the range with which a network namespace starts. Kernel: 6.18, `net/ipv4/af_inet.c`
    /// `inet_init_net()`.
    fn default() -> Self {
        Self { first: 32_768, last: 60_999 }
    }
}

/// A running irqbalance, which moves every interrupt that is not banned.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunningIrqbalance {
    /// The process.
    pub pid: Pid,
    /// The interrupts that are banned on irqbalance's command line or over its socket; `None` if irqbalance
    /// did not answer.
    pub banned: Option<BTreeSet<IrqNumber>>,
}

/// What the kernel and the caller's privileges allow.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    /// netdev netlink has `napi-set`, which changes settings of a single NAPI (6.13).
    pub napi_set: bool,
    /// NAPIs have an `irq-suspend-timeout` (6.13).
    pub irq_suspend: bool,
    /// `napi-set` accepts `threaded` (6.17).
    pub napi_threaded: bool,
    /// `napi-set` accepts `threaded: busy-poll` (6.19).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub napi_threaded_busy: bool,
    /// Epolls have busy-poll parameters (6.9).
    pub epoll_params: bool,
    /// Epolls can busy-wait for events without polling NAPIs: [`crate::EpollParams::events_only`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub epoll_events_only: bool,
    /// The caller may duplicate descriptors of other users' processes (CAP_SYS_PTRACE).
    pub ptrace: bool,
    /// The caller may administer this namespace's network (CAP_NET_ADMIN).
    pub net_admin: bool,
    /// BPF programs can be loaded and attached to tracepoints (BTF present, CAP_BPF and CAP_PERFMON).
    pub bpf: bool,
    /// The security policy that restricts the caller in spite of its capabilities, such as `the AppArmor
    /// profile docker-default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confined_by: Option<String>,
}

/// A part of the host that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unread {
    /// The unreadable file, netlink request or descriptor.
    pub what: String,
    /// The kernel's error.
    pub why: String,
}

impl Unread {
    /// Returns the pid of the process that this entry concerns (`memcached[812]: its epolls`, `process 812`),
    /// if any.
    pub fn process(&self) -> Option<Pid> {
        let after = |text: &str| text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok().map(Pid);
        let subject = self.what.split(": ").next().unwrap_or_default();
        // A process name may contain brackets, so the pid is in the last pair of brackets.
        match (subject.strip_suffix(']').and_then(|s| s.rsplit_once('[')), subject.strip_prefix("process ")) {
            (Some((_, pid)), _) | (None, Some(pid)) => after(pid),
            (None, None) => None,
        }
    }
}

impl Host {
    /// Whether a UDP port of a process is probably a client's: the kernel may have chosen the port, and the
    /// port is not lower than those that the kernel chooses by default. Hosts whose range begins lower run
    /// servers on the lower ports.
    pub fn is_client_port(&self, process: &Process, port: u16) -> bool {
        let default = PortRange::default();
        if process.netns.is_some_and(|netns| netns != self.netns) {
            return default.contains(port);
        }
        port >= default.first
            && self.local_ports.contains(port)
            && !self.reserved_ports.iter().any(|reserved| reserved.contains(port))
    }

    /// Returns the device with this name.
    pub fn device_named(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|d| d.id.name.as_str() == name)
    }

    /// Returns the device with this id.
    pub fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.iter().find(|d| d.id == id)
    }

    /// Returns all devices below a device, each with its number of levels below it: a bond's members, a
    /// VLAN's device, the members of a VLAN's bond. Empty if there are none.
    pub fn below(&self, device: &Device) -> Vec<(usize, &Device)> {
        let mut found: Vec<(usize, &Device)> = Vec::new();
        let mut layer = vec![device];
        for depth in 1..=STACK_DEPTH_MAX {
            let mut next: Vec<&Device> = Vec::new();
            for upper in layer {
                for lower in self.devices.iter().filter(|lower| self.is_directly_below(lower, upper)) {
                    let known = found.iter().any(|(_, known)| known.id == lower.id);
                    if !known && lower.id != device.id {
                        found.push((depth, lower));
                        next.push(lower);
                    }
                }
            }
            if next.is_empty() {
                break;
            }
            layer = next;
        }
        found
    }

    /// Whether a device only passes on packets that devices below it receive: it has no NAPI and is stacked
    /// on another device.
    pub fn is_upper(&self, device: &Device) -> bool {
        device.napis.is_empty() && self.devices.iter().any(|lower| self.is_directly_below(lower, device))
    }

    /// Whether `lower` is directly below `upper`.
    pub fn is_directly_below(&self, lower: &Device, upper: &Device) -> bool {
        lower.id != upper.id
            && (lower.link.master == Some(upper.id.ifindex) || upper.link.lower == Some(lower.id.ifindex))
    }

    /// Returns the interrupt with this number.
    pub fn irq(&self, number: IrqNumber) -> Option<&Irq> {
        self.irqs.iter().find(|i| i.number == number)
    }

    /// Returns the process with this pid.
    pub fn process(&self, pid: Pid) -> Option<&Process> {
        self.processes.iter().find(|p| p.id.pid == pid)
    }

    /// Returns the NAPI with this id, and its device.
    pub fn napi(&self, id: NapiId) -> Option<(&Device, &Napi)> {
        self.devices.iter().find_map(|d| d.napis.iter().find(|n| n.id == id).map(|n| (d, n)))
    }

    /// Returns the NAPI of a receive queue, if known.
    pub fn napi_of(&self, queue: RxQueue) -> Option<&Napi> {
        let device = self.device(queue.device)?;
        let edge = device.rx_queues.iter().find(|q| q.id.index == queue.index)?.napi?;
        device.napis.iter().find(|n| n.id == edge.napi)
    }

    /// Returns the receive queues that a NAPI serves.
    pub fn queues_of(&self, napi: NapiId) -> impl Iterator<Item = RxQueue> {
        let queues = self.devices.iter().flat_map(|d| &d.rx_queues);
        queues.filter(move |q| q.napi.is_some_and(|edge| edge.napi == napi)).map(|q| q.id)
    }

    /// Returns the epoll with this id.
    pub fn epoll(&self, id: EpollId) -> Option<&Epoll> {
        self.process(id.process.pid)?.epolls.iter().find(|e| e.id == id)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_could_not_be_read_of_a_process_is_known_to_be_its() {
        for (what, pid) in [
            ("memcached[812]: its epolls, sockets and io_urings", Some(812)),
            ("a[1]b[812]: its epolls", Some(812)),
            ("process 812", Some(812)),
            ("/sys/class/net/eth0/threaded", None),
            ("rings[]: x", None),
            ("netdev dump", None),
        ] {
            let unread = Unread { what: what.to_owned(), why: String::new() };
            assert_eq!(unread.process(), pid.map(Pid), "{what}");
        }
    }
}
