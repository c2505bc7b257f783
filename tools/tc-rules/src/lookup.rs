//! Resolves the names in rules that only the host can resolve.

use std::collections::BTreeMap;

use model::IfIndex;

/// Resolves the names in rules.
pub trait Lookup {
    /// The device with this name.
    fn device(&mut self, name: &str) -> Option<IfIndex>;

    /// The BPF program pinned at this path, opened as a descriptor of the process that will send the rule.
    fn pinned(&mut self, path: &str) -> Option<Pinned>;

    /// The name of a device.
    fn name_of(&mut self, device: IfIndex) -> Option<String>;
}

/// An opened pinned BPF program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The descriptor.
    pub fd: u32,
    /// The program's id, by which the kernel identifies a rule's program.
    pub id: u32,
}

/// Number of cached devices: the one that rules are attached to, and one or two that they send packets to.
const RECENT: usize = 3;

/// A table of names, for use without a host.
#[derive(Clone, Debug)]
pub struct Table {
    /// Devices by name, including alternative names.
    pub devices: BTreeMap<String, IfIndex>,
    /// Pinned programs by path.
    pub pins: BTreeMap<String, Pinned>,
    /// The last devices found: most rules of a file refer to the same few.
    recent: [(String, IfIndex); RECENT],
    /// The cache entry to replace next.
    oldest: usize,
}

impl Default for Table {
    fn default() -> Self {
        let recent = std::array::from_fn(|_| (String::new(), IfIndex(0)));
        Self { devices: BTreeMap::new(), pins: BTreeMap::new(), recent, oldest: 0 }
    }
}

impl Table {
    /// A table of these devices.
    pub fn of(devices: impl IntoIterator<Item = (String, IfIndex)>) -> Self {
        Self { devices: devices.into_iter().collect(), ..Self::default() }
    }
}

impl Lookup for Table {
    fn device(&mut self, name: &str) -> Option<IfIndex> {
        // No device has an empty name, so it marks an unused entry.
        if let Some((_, device)) = self.recent.iter().find(|(known, _)| !known.is_empty() && known == name) {
            return Some(*device);
        }
        let device = *self.devices.get(name)?;
        let (known, index) = &mut self.recent[self.oldest];
        known.clear();
        known.push_str(name);
        *index = device;
        self.oldest = (self.oldest + 1) % RECENT;
        Some(device)
    }

    fn pinned(&mut self, path: &str) -> Option<Pinned> {
        self.pins.get(path).cloned()
    }

    fn name_of(&mut self, device: IfIndex) -> Option<String> {
        self.devices.iter().find(|(_, index)| **index == device).map(|(name, _)| name.clone())
    }
}
