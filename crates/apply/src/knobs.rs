//! The interface between this crate and a host.

use std::collections::BTreeMap;

use model::host::QueueConflict;
use model::{Change, DeviceId, IfIndex, NetnsId, Plan, Setting};

/// Cookies, by name: each identifies an object, and a later object with the same name has a different cookie.
/// The host chooses the text of both the name and the value.
pub type ObjectCookies = BTreeMap<String, String>;

/// Returns the name under which a device's cookie is recorded. The cookie is the inode number of the device's
/// sysfs directory, which is unique within a boot and survives renaming. The undo script also checks it.
pub fn device_cookie_name(device: DeviceId) -> String {
    format!("{DEVICE}{}{IN_NETNS}{}", device.ifindex, device.netns)
}

/// Returns the device to which the name of a cookie refers.
pub fn device_of_cookie_name(name: &str) -> Option<(NetnsId, IfIndex)> {
    let (index, netns) = name.strip_prefix(DEVICE)?.split_once(IN_NETNS)?;
    Some((NetnsId(netns.parse().ok()?), IfIndex(index.parse().ok()?)))
}

/// Returns the name under which a device's link-layer address is recorded. The address identifies the device
/// in another namespace.
pub fn device_address_name(device: DeviceId) -> String {
    format!("{ADDRESS}{}{IN_NETNS}{}", device.ifindex, device.netns)
}

/// Returns the device to which the name of a recorded address refers.
pub fn device_of_address_name(name: &str) -> Option<(NetnsId, IfIndex)> {
    let (index, netns) = name.strip_prefix(ADDRESS)?.split_once(IN_NETNS)?;
    Some((NetnsId(netns.parse().ok()?), IfIndex(index.parse().ok()?)))
}

const ADDRESS: &str = "address of device ";
const DEVICE: &str = "sysfs file of device ";
const IN_NETNS: &str = " in network namespace ";

/// A host whose settings can be read and written: the running kernel, or a test's fake.
pub trait Knobs {
    /// An error of the host. Its text names the object and the setting, and ends with the kernel's error.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Returns the current values of these knobs, in the same order. The values in `like` are ignored. All
    /// settings in `like` belong to one object ([`model::Setting::object`]).
    ///
    /// # Errors
    /// If the object no longer exists or a knob cannot be read.
    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, Self::Error>;

    /// Writes the settings, which all belong to one object, in one kernel call if the interface allows it.
    /// Does not read the settings back: `commit` does.
    ///
    /// # Errors
    /// If the kernel returns an error. Some of the settings may have been written.
    fn write(&mut self, settings: &[Setting]) -> Result<(), Self::Error>;

    /// Returns cookies that identify the plan's objects and are not part of the plan itself. The journal
    /// stores them verbatim. Empty by default.
    fn object_cookies(&mut self, plan: &Plan) -> ObjectCookies {
        let _ = plan;
        ObjectCookies::new()
    }

    /// Sets the expected cookies: from now on, an object with a different cookie counts as gone. Objects
    /// without a cookie in this map are not checked, as in journals of older versions.
    fn recall(&mut self, object_cookies: &ObjectCookies) {
        let _ = object_cookies;
    }

    /// Returns a conflict if one of these changes would take a queue from its holder. The caller checks this
    /// immediately before it writes or restores anything. `None` by default.
    ///
    /// # Errors
    /// If the holders cannot be read.
    fn queue_conflict(&mut self, changes: &[&Change]) -> Result<Option<QueueConflict>, Self::Error> {
        let _ = changes;
        Ok(None)
    }

    /// Whether an error means that the object no longer exists: its process or thread exited, its device was
    /// removed, its descriptor was closed or reused. The settings disappeared with the object, so there is
    /// nothing left to undo. Must return false if the object may still exist (permission, memory, a malformed
    /// reply); the undo then counts as incomplete.
    fn is_gone(error: &Self::Error) -> bool;
}
