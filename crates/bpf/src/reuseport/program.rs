//! The BPF program of a reuseport group, and its lists of listeners.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Program};
use model::host::SpreadCounts;
use model::{IfIndex, QueueIndex, Spread};
use rustix::io::Errno;
use sys::error::KernelError;

use super::{ITERATOR, OBJECT, PROGRAM};
use crate::loaded::{Loaded, refused};
use crate::mirrored::{Field, Mirrored as _, mirrored};

/// The listeners of each queue, by their sockets' inode numbers.
pub type Lists = BTreeMap<(IfIndex, QueueIndex), Vec<u64>>;

/// The names of the program's maps, in the order of [`ReuseportProgram::maps`].
const MAPS: [&str; 6] = ["np_queues", "np_places", "np_listeners", "np_inodes", "np_facts", "np_counts"];
const QUEUES: usize = 0;
const PLACES: usize = 1;
const LISTENERS: usize = 2;
const INODES: usize = 3;
const FACTS: usize = 4;
const COUNTS: usize = 5;

/// The id that stands for a program without an id, as attached by `SO_ATTACH_REUSEPORT_CBPF`.
/// `REUSEPORT_CLASSIC` in `reuseport.h`.
pub const CLASSIC: u32 = u32::MAX;

/// The maximum number of attempts to add a socket to the map, with the pause below between attempts. A socket
/// can be in only one map, and it leaves the map of a recently detached program only when the kernel has
/// freed that map.
const OFFERS_MAX: u32 = 50;
const OFFER_PAUSE: Duration = Duration::from_millis(10);

/// A program that assigns each connection to a listener of the queue on which it arrived. The program may be
/// attached or not.
#[derive(Debug)]
pub struct ReuseportProgram {
    descriptor: OwnedFd,
    maps: Vec<MapHandle>,
}

impl ReuseportProgram {
    /// Loads a new program with empty lists; the kernel's hash then chooses the listener.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] without kernel BTF; otherwise the kernel's error with the verifier's message.
    pub fn load() -> Result<Self, KernelError> {
        let loaded = Loaded::load("reuseport", OBJECT, |open| {
            for mut program in open.progs_mut() {
                let wanted = program.name() != ITERATOR;
                program.set_autoload(wanted);
            }
            Ok(())
        })?;
        let copied = |name: &'static str| {
            let map = loaded.map(name)?;
            MapHandle::try_from(map.map()).map_err(|_| refused(format!("BPF map {name}")))
        };
        let maps = MAPS.into_iter().map(copied).collect::<Result<Vec<_>, _>>()?;
        let descriptor = loaded.program(PROGRAM)?.as_fd().try_clone_to_owned();
        let descriptor =
            descriptor.map_err(|error| KernelError::io(format!("BPF program {PROGRAM}"), &error))?;
        sys::bpf::bind_map(descriptor.as_fd(), maps[INODES].as_fd())
            .map_err(|errno| KernelError::errno(format!("BPF map {}", MAPS[INODES]), errno))?;
        Ok(Self { descriptor, maps })
    }

    /// Returns the program with this id, or `None` if netpolicy did not load it.
    ///
    /// # Errors
    /// The kernel's error: finding a program by id needs CAP_SYS_ADMIN.
    pub fn attached(number: u32) -> Result<Option<Self>, KernelError> {
        if number == CLASSIC {
            return Ok(None);
        }
        let what = || format!("BPF program {number}");
        let descriptor = Program::fd_from_id(number).map_err(|_| refused(what()).needing("CAP_SYS_ADMIN"))?;
        let (name, ids) =
            sys::bpf::name_and_maps(descriptor.as_fd()).map_err(|errno| KernelError::errno(what(), errno))?;
        if name != PROGRAM {
            return Ok(None);
        }
        let mut maps = Vec::new();
        for id in ids {
            maps.push(MapHandle::from_map_id(id).map_err(|_| refused(what()))?);
        }
        let place = |map: &MapHandle| MAPS.iter().position(|name| map.name() == *name);
        maps.retain(|map| place(map).is_some());
        maps.sort_by_key(place);
        maps.dedup_by_key(|map| place(map));
        Ok((maps.len() == MAPS.len()).then_some(Self { descriptor, maps }))
    }

    /// Returns the program's descriptor, which is needed to attach the program.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Reads the lists of listeners from the program's maps.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn lists(&self) -> Result<Lists, KernelError> {
        let inodes = self.inodes()?;
        let mut lists = Lists::new();
        for key in self.maps[QUEUES].keys().take(Spread::QUEUES_MAX) {
            let Some(list) = self.get(QUEUES, &key)? else { continue };
            let (key, List { first, count }) = (Queue::of(&key), List::of(&list));
            let queue = (IfIndex(key.ifindex), QueueIndex(key.index));
            let mut listeners = Vec::new();
            for place in first..first.saturating_add(count.min(LISTENERS_MAX)) {
                let listener = self.get(PLACES, &place.to_ne_bytes())?.map(|bytes| u32::take(&bytes));
                let inode = listener.and_then(|at| inodes.get(usize::try_from(at).ok()?));
                listeners.extend(inode);
            }
            lists.insert(queue, listeners);
        }
        Ok(lists)
    }

    /// Replaces the lists. While they are written, the kernel's hash chooses. `copy` returns a descriptor of
    /// a socket, or `None` if the socket has left the group; the socket's entries then stay empty, as they do
    /// if a socket is closed later.
    ///
    /// # Errors
    /// The error of the kernel or of `copy`; the hash then continues to choose.
    pub fn write(
        &self,
        lists: &Lists,
        copy: impl Fn(u64) -> Result<Option<OwnedFd>, KernelError>,
    ) -> Result<(), KernelError> {
        self.set_members(0)?;
        let (listeners, members) = self.place(lists, copy)?;
        let mut place = 0_u32;
        for key in self.maps[QUEUES].keys().take(Spread::QUEUES_MAX).collect::<Vec<_>>() {
            let Queue { ifindex, index } = Queue::of(&key);
            if !lists.contains_key(&(IfIndex(ifindex), QueueIndex(index))) {
                self.maps[QUEUES].delete(&key).map_err(|_| failed(QUEUES))?;
            }
        }
        for ((device, queue), inodes) in lists {
            let first = place;
            for inode in inodes {
                let listener = listeners.get(inode).copied().unwrap_or(u32::MAX);
                self.set(PLACES, &place.to_ne_bytes(), &listener.to_ne_bytes())?;
                place += 1;
            }
            let key = Queue { ifindex: device.0, index: queue.0 };
            self.set(QUEUES, &key.to_bytes(), &List { first, count: place - first }.to_bytes())?;
        }
        self.set_members(members)
    }

    /// Returns how connections were assigned since the program was attached.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn counts(&self) -> Result<SpreadCounts, KernelError> {
        let count = |which: u32| {
            let values = self.maps[COUNTS].lookup_percpu(&which.to_ne_bytes(), MapFlags::ANY);
            let values = values.map_err(|_| failed(COUNTS))?.unwrap_or_default();
            Ok::<u64, KernelError>(values.iter().map(|value| u64::take(value)).sum())
        };
        // `enum reuseport_count`.
        Ok(SpreadCounts { by_queue: count(0)?, no_list: count(1)?, changed: count(2)?, gone: count(3)? })
    }

    /// Adds every socket in the lists to the program's map. Returns each socket's slot, and the number of
    /// sockets. Sockets that are already in the map keep their slots.
    fn place(
        &self,
        lists: &Lists,
        copy: impl Fn(u64) -> Result<Option<OwnedFd>, KernelError>,
    ) -> Result<(BTreeMap<u64, u32>, u32), KernelError> {
        let mut wanted: Vec<u64> = lists.values().flatten().copied().collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut slots: BTreeMap<u64, u32> = BTreeMap::new();
        let mut free = Vec::new();
        let mut members = 0;
        for (at, inode) in (0_u32..).zip(self.inodes()?) {
            if wanted.binary_search(&inode).is_ok() {
                slots.insert(inode, at);
            } else {
                free.push((at, inode));
            }
        }
        let mut free = free.into_iter();
        for inode in wanted {
            let socket = copy(inode)?;
            members += u32::from(socket.is_some());
            if slots.contains_key(&inode) {
                continue;
            }
            let Some((at, before)) = free.next() else {
                return Err(KernelError::malformed(
                    MAPS[LISTENERS],
                    "more listeners than the map's capacity",
                ));
            };
            if before != 0 {
                // The deletion fails if the socket was closed and so has already left the map.
                let _ = self.maps[LISTENERS].delete(&at.to_ne_bytes());
            }
            if let Some(socket) = socket {
                self.offer(at, &socket)?;
            }
            self.set(INODES, &at.to_ne_bytes(), &inode.to_ne_bytes())?;
            slots.insert(inode, at);
        }
        for (at, _) in free.filter(|(_, inode)| *inode != 0) {
            let _ = self.maps[LISTENERS].delete(&at.to_ne_bytes());
            self.set(INODES, &at.to_ne_bytes(), &[0; 8])?;
        }
        Ok((slots, members))
    }

    fn offer(&self, at: u32, socket: &OwnedFd) -> Result<(), KernelError> {
        use std::os::fd::AsRawFd;
        let number = u64::try_from(socket.as_raw_fd())
            .map_err(|_| KernelError::errno(MAPS[LISTENERS], Errno::BADF))?;
        for _ in 1..OFFERS_MAX {
            match self.set(LISTENERS, &at.to_ne_bytes(), &number.to_ne_bytes()) {
                Err(error) if error.number() == Some(Errno::BUSY) => sleep(OFFER_PAUSE),
                done => return done,
            }
        }
        self.set(LISTENERS, &at.to_ne_bytes(), &number.to_ne_bytes())
    }

    /// Returns the inode in each slot of the map, or 0 for an empty slot.
    fn inodes(&self) -> Result<Vec<u64>, KernelError> {
        let inode = |at: u32| {
            let value = self.get(INODES, &at.to_ne_bytes())?;
            Ok(value.map_or(0, |value| u64::take(&value)))
        };
        (0..LISTENERS_MAX).map(inode).collect()
    }

    fn set_members(&self, members: u32) -> Result<(), KernelError> {
        let facts = Facts { members, napi_id_min: crate::epolls::napi_id_min() }.to_bytes();
        self.set(FACTS, &[0; 4], &facts)
    }

    fn get(&self, map: usize, key: &[u8]) -> Result<Option<Vec<u8>>, KernelError> {
        self.maps[map].lookup(key, MapFlags::ANY).map_err(|_| failed(map))
    }

    fn set(&self, map: usize, key: &[u8], value: &[u8]) -> Result<(), KernelError> {
        self.maps[map].update(key, value, MapFlags::ANY).map_err(|_| failed(map))
    }
}

/// `reuseport.h` `REUSEPORT_LISTENERS_MAX`.
#[expect(clippy::cast_possible_truncation, reason = "it is 1024")]
const LISTENERS_MAX: u32 = Spread::LISTENERS_MAX as u32;

fn failed(map: usize) -> KernelError {
    refused(format!("BPF map {}", MAPS[map]))
}

mirrored! {
    /// `struct reuseport_queue`.
    struct Queue = "reuseport_queue" {
        ifindex: u32,
        index: u32,
    }

    /// `struct reuseport_list`.
    struct List = "reuseport_list" {
        first: u32,
        count: u32,
    }

    /// `struct reuseport_facts`.
    struct Facts = "reuseport_facts" {
        members: u32,
        napi_id_min: u32,
    }
}

#[cfg(test)]
mod layout {
    use super::*;
    use crate::mirrored::same_as_compiled;

    same_as_compiled!(OBJECT, Queue, List, Facts);
}
