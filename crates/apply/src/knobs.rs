//! The only way from this room to a host.

use std::collections::BTreeMap;

use model::{DeviceId, IfIndex, NetnsId, Plan, Setting};

/// What tells objects from later ones of the same name, in a host's own words: by what, and which.
pub type Landmarks = BTreeMap<String, String>;

/// What the landmark of a device is called that is the inode number of its directory in sysfs: given once in a boot, and
/// kept through renaming. The undo script asks for it, too.
pub fn device_landmark(device: DeviceId) -> String {
    format!("{DEVICE}{}{IN_NETNS}{}", device.ifindex, device.netns)
}

/// The device whose landmark is called so.
pub fn device_of_landmark(name: &str) -> Option<(NetnsId, IfIndex)> {
    let (index, netns) = name.strip_prefix(DEVICE)?.split_once(IN_NETNS)?;
    Some((NetnsId(netns.parse().ok()?), IfIndex(index.parse().ok()?)))
}

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

    /// What tells the objects of a plan from later ones of the same name, beyond what the plan itself says. The journal
    /// keeps it as it is. By default there is no need of any.
    fn landmarks(&mut self, plan: &Plan) -> Landmarks {
        let _ = plan;
        Landmarks::new()
    }

    /// From here on, objects are those that had these landmarks: what has others now is not them, and they are gone. What
    /// is not named (as in journals of versions that knew no landmarks) is taken as it is.
    fn recall(&mut self, landmarks: &Landmarks) {
        let _ = landmarks;
    }

    /// Whether an error says that the object is no longer there: its process or thread ended, its device was
    /// removed, its descriptor was closed or used again for something else. Its settings went with it, so
    /// there is nothing left to undo. Must be false where the object may still exist (permission, memory, a
    /// malformed answer): then the undo counts as incomplete.
    fn is_gone(error: &Self::Error) -> bool;
}
