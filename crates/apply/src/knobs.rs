//! The interface between this room and a host.

use std::collections::BTreeMap;

use model::host::QueueConflict;
use model::{Change, DeviceId, IfIndex, NetnsId, Plan, Setting};

/// Identities of objects, which later objects of the same name do not have: what identifies each, and its value. The host
/// chooses both texts.
pub type ObjectCookies = BTreeMap<String, String>;

/// The name of a device's cookie, the inode number of its directory in sysfs. The number is unique within a boot and
/// survives renaming. The undo script checks it, too.
pub fn device_cookie_name(device: DeviceId) -> String {
    format!("{DEVICE}{}{IN_NETNS}{}", device.ifindex, device.netns)
}

/// The device that a cookie's name belongs to.
pub fn device_of_cookie_name(name: &str) -> Option<(NetnsId, IfIndex)> {
    let (index, netns) = name.strip_prefix(DEVICE)?.split_once(IN_NETNS)?;
    Some((NetnsId(netns.parse().ok()?), IfIndex(index.parse().ok()?)))
}

/// The name under which a device's address on its link is noted, by which the kernel shows it in another namespace.
pub fn device_address_name(device: DeviceId) -> String {
    format!("{ADDRESS}{}{IN_NETNS}{}", device.ifindex, device.netns)
}

/// The device that the name of an address belongs to.
pub fn device_of_address_name(name: &str) -> Option<(NetnsId, IfIndex)> {
    let (index, netns) = name.strip_prefix(ADDRESS)?.split_once(IN_NETNS)?;
    Some((NetnsId(netns.parse().ok()?), IfIndex(index.parse().ok()?)))
}

const ADDRESS: &str = "address of device ";
const DEVICE: &str = "number in sysfs of device ";
const IN_NETNS: &str = " in network namespace ";

/// A host whose settings can be read and written: the running kernel, or a test's fake.
pub trait Knobs {
    /// What goes wrong at the host. Its words name the object and the setting, and end with the kernel's own.
    type Error: std::error::Error + Send + Sync + 'static;

    /// What these knobs are set to now: the same knobs of the same object, in the same order. The values in
    /// `like` do not matter. All of `like` belongs to one object ([`model::Setting::object`]).
    ///
    /// # Errors
    /// If the object is gone or a knob cannot be read.
    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, Self::Error>;

    /// Writes the settings, all of one object, in one call to the kernel where its interface allows. Does not
    /// read back: `commit` does.
    ///
    /// # Errors
    /// If the kernel refuses. Some of the settings may have been written then.
    fn write(&mut self, settings: &[Setting]) -> Result<(), Self::Error>;

    /// Identities of the plan's objects beyond those in the plan itself. The journal stores them verbatim. None by
    /// default.
    fn object_cookies(&mut self, plan: &Plan) -> ObjectCookies {
        let _ = plan;
        ObjectCookies::new()
    }

    /// From here on, an object that has another cookie than this counts as gone. Objects without a cookie here (as in
    /// journals of versions that recorded none) are not checked.
    fn recall(&mut self, object_cookies: &ObjectCookies) {
        let _ = object_cookies;
    }

    /// What holds a queue that one of these changes would take from it: asked for again before anything is written, and
    /// before anything is put back. None by default.
    ///
    /// # Errors
    /// If that cannot be read.
    fn queue_conflict(&mut self, changes: &[&Change]) -> Result<Option<QueueConflict>, Self::Error> {
        let _ = changes;
        Ok(None)
    }

    /// Whether an error says that the object is no longer there: its process or thread ended, its device was
    /// removed, its descriptor was closed or used again for something else. Its settings went with it, so
    /// there is nothing left to undo. Must be false where the object may still exist (permission, memory, a
    /// malformed answer): then the undo counts as incomplete.
    fn is_gone(error: &Self::Error) -> bool;
}
