//! Resolves the names of a namespace's devices, and opens pinned BPF programs.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::{Lookup, Pinned, Table};
use libbpf_rs::Program;
use model::IfIndex;
use sys::netns::Netns;

use netlink::Links;

/// Maximum number of unknown device names that are cached, so that a file with many wrong lines needs few
/// requests.
const ABSENT_MAX: usize = 1024;

/// Resolves the names in a file. Each is looked up only once, on first use: most files use only a few of many
/// devices.
#[derive(Debug)]
pub struct Devices<'n> {
    netns: &'n Netns,
    links: Option<Links>,
    table: Table,
    absent: BTreeSet<String>,
    /// The opened programs, kept open while rules are sent that refer to their descriptors.
    programs: BTreeMap<String, (OwnedFd, u32)>,
}

impl<'n> Devices<'n> {
    /// The devices of a namespace.
    pub fn of(netns: &'n Netns) -> Self {
        let (table, absent, programs) = (Table::default(), BTreeSet::new(), BTreeMap::new());
        Self { netns, links: None, table, absent, programs }
    }

    /// Returns the socket for lookups. If it cannot be opened, no name resolves.
    fn links(&mut self) -> Option<&mut Links> {
        if self.links.is_none() {
            self.links = self.netns.run(Links::open_here).ok()?.ok();
        }
        self.links.as_mut()
    }
}

impl Lookup for Devices<'_> {
    fn device(&mut self, name: &str) -> Option<IfIndex> {
        if let Some(device) = self.table.device(name) {
            return Some(device);
        }
        // `if7` is the device with this index, unless a device has that name.
        let numbered = || name.strip_prefix("if")?.parse().ok().filter(|number| *number != 0).map(IfIndex);
        if self.absent.contains(name) {
            return numbered();
        }
        match self.links()?.index(name) {
            Ok(device) => {
                self.table.devices.insert(name.to_owned(), device);
                Some(device)
            }
            Err(_) => {
                if self.absent.len() < ABSENT_MAX {
                    self.absent.insert(name.to_owned());
                }
                numbered()
            }
        }
    }

    fn pinned(&mut self, path: &str) -> Option<Pinned> {
        if !self.programs.contains_key(path) {
            let program = Program::fd_from_pinned_path(path).ok()?;
            let id = Program::id_from_fd(program.as_fd()).ok()?;
            self.programs.insert(path.to_owned(), (program, id));
        }
        let (program, id) = self.programs.get(path)?;
        Some(Pinned { fd: u32::try_from(program.as_raw_fd()).ok()?, id: *id })
    }

    fn name_of(&mut self, device: IfIndex) -> Option<String> {
        if let Some(name) = self.table.name_of(device) {
            return Some(name);
        }
        let name = self.links()?.name(device).ok()?;
        self.table.devices.insert(name.clone(), device);
        Some(name)
    }
}
