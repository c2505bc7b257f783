//! Kernel notifications about devices, queues, drivers and CPUs that appear, disappear or change.
//!
//! Each socket belongs to one network namespace, and becomes readable when there is a notification. A
//! notification says only *that* an object changed; the caller must then observe the object's state. So a
//! duplicate costs only an unneeded observation, and after a lost notification the caller must observe
//! everything ([`Notice::Lost`]).
//!
//! The kernel sends no notifications for `napi-set`, for writes to sysfs (`threaded`, `napi_defer_hard_irqs`,
//! `rps_cpus`, `xps_cpus`) and `/proc/irq`, or for epoll parameters. The caller must poll these settings.

mod multicast;
mod uevent;

pub use multicast::Notices;

use model::IfIndex;

/// A notification.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// A device was added, removed or renamed, or its state changed. Kernel: `RTM_NEWLINK`, `RTM_DELLINK`,
    /// `NETDEV_CMD_DEV_*_NTF`.
    Link(IfIndex),
    /// A driver's settings were changed: channels, rings, moderation, features, RSS. Kernel: `ETHTOOL_MSG_*_NTF`.
    Ethtool(IfIndex),
    /// Queues of the device with this name were added or removed, by a driver reset or a change of channels.
    /// Kernel: kobject uevents of `struct netdev_rx_queue` and `struct netdev_queue`.
    Queues(String),
    /// A CPU went online or offline. Kernel: `drivers/base/cpu.c` `cpu_device_up()`, uevents `online`,
    /// `offline`.
    Cpu,
    /// Notifications were lost because a buffer was full, so any object may have changed.
    Lost,
}
