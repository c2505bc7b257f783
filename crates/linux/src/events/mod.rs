//! What the kernel tells without being asked: devices, queues, drivers and CPUs that come, go or change.
//!
//! Each socket is of one network namespace, and becomes readable when something is told. What is told is only *that*
//! something happened, and to what: how it is now is observed afterwards. So a notice that comes twice costs a look, and
//! what was lost is made good by looking at everything ([`Notice::Lost`]).
//!
//! What no event tells: `napi-set`, writes to sysfs (`threaded`, `napi_defer_hard_irqs`, `rps_cpus`, `xps_cpus`) and to
//! `/proc/irq`, and the parameters of epolls. Whoever cares for these has to look now and then.

mod multicast;
mod uevent;

pub use multicast::Notices;

use model::IfIndex;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// A device came, went, was renamed or changed its state. Kernel: `RTM_NEWLINK`, `RTM_DELLINK`, `NETDEV_CMD_DEV_*_NTF`.
    Link(IfIndex),
    /// A driver was told something: channels, rings, moderation, features, RSS. Kernel: `ETHTOOL_MSG_*_NTF`.
    Ethtool(IfIndex),
    /// Queues of the device with this name came or went: a reset of its driver, or other channels. Kernel: `struct
    /// netdev_rx_queue`'s and `struct netdev_queue`'s kobject uevents.
    Queues(String),
    /// A CPU went on or off line. Kernel: `drivers/base/cpu.c` `cpu_device_up()`, uevents `online`, `offline`.
    Cpu,
    /// More was told than there was room for: anything may have happened.
    Lost,
}
