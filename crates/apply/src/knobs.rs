//! The interface between this crate and a host.

use std::collections::BTreeMap;

use model::host::QueueConflict;
use model::{Change, DeviceId, IfIndex, NetnsId, Plan, Setting};

/// Cookies: identities of objects that later objects with the same name do not share. Each has a name and a
/// value. The host chooses both texts.
pub type ObjectCookies = BTreeMap<String, String>;

/// The name of a device's cookie, the inode number of its sysfs directory. The number is unique within a boot
/// and survives renaming. The undo script also checks it.
pub fn device_cookie_name(device: DeviceId) -> String {
    format!("{DEVICE}{}{IN_NETNS}{}", device.ifindex, device.netns)
}

/// The device that a cookie's name refers to.
pub fn device_of_cookie_name(name: &str) -> Option<(NetnsId, IfIndex)> {
    let (index, netns) = name.strip_prefix(DEVICE)?.split_once(IN_NETNS)?;
    Some((NetnsId(netns.parse().ok()?), IfIndex(index.parse().ok()?)))
}

/// The name under which a device's link-layer address is recorded. The address identifies the device in
/// another namespace.
pub fn device_address_name(device: DeviceId) -> String {
    format!("{ADDRESS}{}{IN_NETNS}{}", device.ifindex, device.netns)
}

/// The device that an address's name refers to.
pub fn device_of_address_name(name: &str) -> Option<(NetnsId, IfIndex)> {
    let (index, netns) = name.strip_prefix(ADDRESS)?.split_once(IN_NETNS)?;
    Some((NetnsId(netns.parse().ok()?), IfIndex(index.parse().ok()?)))
}

const ADDRESS: &str = "address of device ";
const DEVICE: &str = "sysfs file of device ";
const IN_NETNS: &str = " in network namespace ";

/// A host whose settings can be read and written: the running kernel, or a test's fake.
pub trait Knobs {
    /// A host error. Its text names the object and the setting, and ends with the kernel's error.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Returns the current values of these knobs, in the same order. The values in `like` do not matter. All
    /// of `like` belongs to one object ([`model::Setting::object`]).
    ///
    /// # Errors
    /// If the object no longer exists or a knob cannot be read.
    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, Self::Error>;

    /// Writes the settings, all of one object, in one kernel call if the interface allows. Does not read
    /// back: `commit` does.
    ///
    /// # Errors
    /// If the kernel returns an error. Some of the settings may have been written.
    fn write(&mut self, settings: &[Setting]) -> Result<(), Self::Error>;

    /// Returns identities of the plan's objects that the plan itself does not contain. The journal stores
    /// them verbatim. Empty by default.
    fn object_cookies(&mut self, plan: &Plan) -> ObjectCookies {
        let _ = plan;
        ObjectCookies::new()
    }

    /// Sets the expected cookies: from now on, an object with a different cookie counts as gone. Objects
    /// without a cookie in this map, as from journals of older versions, are not checked.
    fn recall(&mut self, object_cookies: &ObjectCookies) {
        let _ = object_cookies;
    }

    /// Returns a conflict if one of these changes would take a queue from its holder. Called immediately
    /// before anything is written or restored. `None` by default.
    ///
    /// # Errors
    /// If the holders cannot be read.
    fn queue_conflict(&mut self, changes: &[&Change]) -> Result<Option<QueueConflict>, Self::Error> {
        let _ = changes;
        Ok(None)
    }

    /// Whether an error means that the object no longer exists: its process or thread exited, its device was
    /// removed, its descriptor was closed or reused. The settings disappeared with the object, so there is
    /// nothing left to undo. Must be false if the object may still exist (permission, memory, a malformed
    /// reply): the undo then counts as incomplete.
    fn is_gone(error: &Self::Error) -> bool;
}
