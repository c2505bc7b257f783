//! What a rule names and only the host knows.

use std::collections::BTreeMap;

use model::IfIndex;

/// Answers what a rule names.
pub trait Lookup {
    /// The device with this name.
    fn device(&mut self, name: &str) -> Option<IfIndex>;

    /// The BPF program pinned at this path, as a descriptor of the process that will send the rule.
    fn pinned(&mut self, path: &str) -> Option<Pinned>;

    /// The name of a device.
    fn name_of(&mut self, device: IfIndex) -> Option<String>;
}

/// A pinned BPF program that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The descriptor.
    pub fd: u32,
    /// The program's id, by which the kernel identifies the program of a rule.
    pub id: u32,
}

/// How many devices are remembered: one that rules hang on, and one or two that they send packets to.
const RECENT: usize = 3;

/// A table of names.
#[derive(Clone, Debug)]
pub struct Table {
    /// Devices by name, all names that lead to one.
    pub devices: BTreeMap<String, IfIndex>,
    /// Pinned programs by path.
    pub pins: BTreeMap<String, Pinned>,
    /// The devices that were found last: most rules of a file are about the same few.
    recent: [(String, IfIndex); RECENT],
    /// Which of them is forgotten next.
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
        // An empty name is that of no device, and so may stand for none.
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
