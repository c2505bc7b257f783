//! The names of a namespace's devices, and pinned BPF programs.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::Program;
use model::IfIndex;
use rules::{Lookup, Pinned, Table};

use crate::error::KernelError;
use crate::netlink::Links;
use crate::netns::Netns;

/// Answers what a file names, from one look at the namespace.
#[derive(Debug)]
pub struct Devices {
    table: Table,
    /// The programs that were asked for, held open for as long as rules are sent that name their descriptors.
    programs: BTreeMap<String, (OwnedFd, u32)>,
}

impl Devices {
    /// Looks at the devices of a namespace.
    ///
    /// # Errors
    /// If the kernel does not list them.
    pub fn of(netns: &Netns) -> Result<Self, KernelError> {
        let named = netns.run(|| {
            Links::open_here()?.all(|link| (String::from_utf8_lossy(link.name).into_owned(), link.ifindex))
        })??;
        let named = named.into_iter().map(|(name, index)| (name, IfIndex(index)));
        Ok(Self { table: Table::of(named), programs: BTreeMap::new() })
    }
}

impl Lookup for Devices {
    fn device(&mut self, name: &str) -> Option<IfIndex> {
        // `if7` is the device with this number, if none has that name.
        let numbered = || name.strip_prefix("if")?.parse().ok().map(IfIndex);
        self.table.device(name).or_else(numbered)
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
        self.table.name_of(device)
    }
}
