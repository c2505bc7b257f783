//! Congestion of the receive path: kernel counters over an interval.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Cpu, DeviceId};
use crate::units::Nanoseconds;

/// The change of the kernel's counters over an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pressure {
    /// The length of the interval.
    pub interval: Nanoseconds,
    /// The counters of each CPU.
    pub cpus: Vec<CpuPressure>,
    /// The counters of each device.
    pub devices: Vec<DevicePressure>,
}

/// Counters of a CPU. Kernel: `net/core/net-procfs.c` `softnet_seq_show()`, `kernel/sched/stats.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuPressure {
    /// The CPU.
    pub cpu: Cpu,
    /// The number of packets that softirqs took from NAPIs and the backlog.
    pub processed: u64,
    /// The number of packets that were dropped because the backlog was full (`netdev_max_backlog`).
    pub dropped: u64,
    /// How often a receive softirq ended with work left (`netdev_budget`, `netdev_budget_usecs`).
    pub time_squeeze: u64,
    /// How long `ksoftirqd` ran.
    pub ksoftirqd_ran: Nanoseconds,
    /// How long `ksoftirqd` was runnable but waited for the CPU.
    pub ksoftirqd_waited: Nanoseconds,
}

/// Counters of a device. Kernel: `include/uapi/linux/if_link.h` `struct rtnl_link_stats64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevicePressure {
    /// The device.
    pub device: DeviceId,
    /// The number of packets that were received.
    pub rx_packets: u64,
    /// The number of packets that were received and then dropped by the kernel or the driver.
    pub rx_dropped: u64,
    /// The number of packets that the device dropped because a ring had no free descriptor.
    pub rx_missed: u64,
}
