//! Counts the packets that each device has received.

use std::collections::BTreeMap;

use model::{DeviceId, Host};
use sys::error::KernelError;
use sys::netns::Netns;
use sys::sysfs::SysFs;

/// Counts the packets that each device of an observed host has received since it was created. A device that
/// is gone is omitted.
///
/// Kernel: 6.18, Documentation/ABI/testing/sysfs-class-net-statistics, `rx_packets`.
///
/// # Errors
/// If the sysfs of the namespace cannot be reached.
pub fn received(netns: &Netns, host: &Host) -> Result<BTreeMap<DeviceId, u64>, KernelError> {
    let sysfs = SysFs::open(netns)?;
    let count = |device: &DeviceId| {
        let path = format!("class/net/{}/statistics/rx_packets", device.name);
        sysfs.read_if_any(&path).ok().flatten().and_then(|text| text.parse().ok())
    };
    let devices = host.devices.iter().map(|device| device.id);
    Ok(devices.filter_map(|device| Some((device, count(&device)?))).collect())
}
