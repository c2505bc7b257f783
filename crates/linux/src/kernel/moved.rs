//! Devices that have moved to another network namespace since they were recorded, for example by a CNI
//! plugin.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use apply::{ObjectCookies, device_of_address_name, device_of_cookie_name};
use model::{DeviceId, IfIndex, Label, NetnsId};
use sys::error::KernelError;
use sys::netns::Netns;
use sys::sysfs::SysFs;

/// How long a list of all devices of all namespaces is reused: a rollback restores its settings within a
/// short time.
const LISTED_FOR: Duration = Duration::from_secs(1);

/// The namespace and index of a device when it was recorded.
type DeviceKey = (NetnsId, IfIndex);

/// The recorded devices, with the attributes that they keep when they move.
#[derive(Debug, Default)]
pub(super) struct MovedDevices {
    /// The number of each device's directory in sysfs, which the device keeps.
    numbers: BTreeMap<DeviceKey, u64>,
    /// The link-layer address of each device.
    addresses: BTreeMap<DeviceKey, String>,
    /// Where each device was last found.
    found: BTreeMap<DeviceKey, DeviceId>,
    /// All devices by their sysfs numbers, with the time at which they were listed.
    listed: Option<(Instant, BTreeMap<u64, DeviceId>)>,
}

impl MovedDevices {
    pub(super) const fn new() -> Self {
        Self { numbers: BTreeMap::new(), addresses: BTreeMap::new(), found: BTreeMap::new(), listed: None }
    }

    /// Records the attributes that identify devices.
    pub(super) fn note(&mut self, cookies: &ObjectCookies) {
        for (what, text) in cookies {
            self.numbers.extend(device_of_cookie_name(what).zip(text.parse().ok()));
            self.addresses.extend(device_of_address_name(what).map(|place| (place, text.clone())));
        }
    }

    /// Returns where a moved device was last found, and the sysfs number that it must have there.
    pub(super) fn known(&self, device: DeviceId) -> Option<(DeviceId, u64)> {
        let place = (device.netns, device.ifindex);
        Some((*self.found.get(&place)?, *self.numbers.get(&place)?))
    }

    /// Returns the recorded attributes of a device that the kernel also reports for devices in a namespace
    /// that cannot be entered.
    pub(super) fn address(&self, device: DeviceId) -> Option<String> {
        self.addresses.get(&(device.netns, device.ifindex)).cloned()
    }

    /// Searches for a device that is no longer where it was recorded, in every namespace that a name, a
    /// mount, a process or an open file refers to; `None` if the device is in none of them, or if no number
    /// was recorded for it.
    pub(super) fn find(&mut self, device: DeviceId) -> Option<DeviceId> {
        let place = (device.netns, device.ifindex);
        self.found.remove(&place);
        let number = self.numbers.get(&place)?;
        let (listed, devices) = match self.listed.take() {
            Some(listed) if listed.0.elapsed() < LISTED_FOR => listed,
            _ => (Instant::now(), all_devices()),
        };
        let there = devices.get(number).copied();
        self.listed = Some((listed, devices));
        self.found.extend(there.map(|there| (place, there)));
        there
    }
}

/// Returns the error for a device in a namespace to which no name, mount, process or open file leads.
pub(super) fn out_of_reach(device: DeviceId, id: i32, name: &str) -> KernelError {
    let why = format!(
        "it is `{name}` in a network namespace that no name, mount, process or open file leads to (nsid {id}); run `netpolicy \
         rollback` again when the device is back or its namespace can be reached"
    );
    KernelError::away(format!("device {device}"), why)
}

/// Lists all devices of all reachable namespaces, by the numbers of their directories in sysfs.
fn all_devices() -> BTreeMap<u64, DeviceId> {
    let mut devices = BTreeMap::new();
    for netns in Netns::all() {
        let Ok(sysfs) = SysFs::open(&netns) else { continue };
        for name in sysfs.list("class/net").unwrap_or_default() {
            let index =
                sysfs.read(&format!("class/net/{name}/ifindex")).ok().and_then(|text| text.parse().ok());
            let Some(ifindex) = index.map(IfIndex) else { continue };
            let number = sysfs.device(&name, ifindex).and_then(|directory| directory.number());
            let device = DeviceId { netns: netns.id(), ifindex, name: Label::new(&name) };
            devices.extend(number.ok().map(|number| (number, device)));
        }
    }
    devices
}
