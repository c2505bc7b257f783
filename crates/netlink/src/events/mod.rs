//! Notices of the kernel: devices, queues, drivers and CPUs that come, go or change.
//!
//! Each socket is of one network namespace, and becomes readable when there is a notice. A notice says only *that*
//! something happened, and to which object: its state is observed afterwards. So a duplicate costs an observation, and a
//! loss is repaired by observing everything ([`Notice::Lost`]).
//!
//! There are no notices of `napi-set`, of writes to sysfs (`threaded`, `napi_defer_hard_irqs`, `rps_cpus`, `xps_cpus`) and
//! to `/proc/irq`, and of the parameters of epolls. These have to be polled.

mod multicast;
mod uevent;

pub use multicast::Notices;

use model::IfIndex;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// A device came, went, was renamed or changed its state. Kernel: `RTM_NEWLINK`, `RTM_DELLINK`, `NETDEV_CMD_DEV_*_NTF`.
    Link(IfIndex),
    /// A driver's settings were changed: channels, rings, moderation, features, RSS. Kernel: `ETHTOOL_MSG_*_NTF`.
    Ethtool(IfIndex),
    /// Queues of the device with this name came or went: a reset of its driver, or other channels. Kernel: `struct
    /// netdev_rx_queue`'s and `struct netdev_queue`'s kobject uevents.
    Queues(String),
    /// A CPU went on or off line. Kernel: `drivers/base/cpu.c` `cpu_device_up()`, uevents `online`, `offline`.
    Cpu,
    /// Notices were lost for lack of room: anything may have happened.
    Lost,
}
