//! Reads applications' requests for the daemon: returns all requests on each call, and delivers new requests
//! of processes as events.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use model::Pid;
use model::host::{AppRequest, Requester};
use sys::error::KernelError;

use super::store::{RequestStore, asker, iterator, pinned, pinned_if_any, sockets_in, tasks_in};
use crate::loaded::{Loaded, refused};

/// Reads a [`RequestStore`], which may be created or removed at any time.
#[derive(Debug)]
pub struct RequestReader {
    store: RequestStore,
    opened: Option<Opened>,
}

/// The open maps and programs of the store's registry.
struct Opened {
    /// The inode of the registry directory. A different inode means that the registry was recreated and has
    /// new maps.
    registry: u64,
    tasks: MapHandle,
    sockets: MapHandle,
    iterator: Loaded,
    /// The events of new requests. `None` if an older netpolicy created the registry, because its programs
    /// report no events.
    asked: Option<(RingBuffer<'static>, Receiver<Pid>)>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opened({})", self.registry)
    }
}

impl RequestReader {
    /// Creates a reader of this store. It opens nothing yet.
    pub fn of(store: RequestStore) -> Self {
        Self { store, opened: None }
    }

    /// Opens the store if it has been created, and closes it if it was removed. Returns whether it opened a
    /// different store, which has a different [`RequestReader::descriptor`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn refresh(&mut self) -> Result<bool, KernelError> {
        let directory = self.store.registry();
        let Ok(registry) = std::fs::metadata(&directory).map(|found| found.ino()) else {
            self.opened = None;
            return Ok(false);
        };
        if self.opened.as_ref().is_some_and(|opened| opened.registry == registry) {
            return Ok(false);
        }
        self.opened = None;
        let (tasks, sockets) = (pinned(&directory.join("tasks"))?, pinned(&directory.join("sockets"))?);
        let asked = pinned_if_any(&directory.join("asked"))?.as_ref().map(ring).transpose()?;
        self.opened = Some(Opened { registry, tasks, sockets, iterator: iterator()?, asked });
        Ok(true)
    }

    /// Whether the store is open.
    pub fn is_open(&self) -> bool {
        self.opened.is_some()
    }

    /// Returns a descriptor that becomes readable when a process requests a policy, or `None` if the store
    /// reports no events.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let (ring, _) = self.opened.as_ref()?.asked.as_ref()?;
        Some(sys::bpf::ring_descriptor(ring))
    }

    /// Returns the processes that have requested a policy since the last call. If a store has two readers,
    /// each gets only some of these events; [`RequestReader::requests`] returns the requests of all
    /// processes.
    ///
    /// # Errors
    /// The kernel's error, if the ring buffer cannot be read.
    pub fn asked(&mut self) -> Result<Vec<Pid>, KernelError> {
        let Some((ring, processes)) = self.opened.as_ref().and_then(|opened| opened.asked.as_ref()) else {
            return Ok(Vec::new());
        };
        match ring.poll(Duration::ZERO) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::Interrupted => {
                Err(refused("BPF map asked: poll".to_owned()))
            }
            _ => Ok(processes.try_iter().collect()),
        }
    }

    /// Returns all requests on this host, those of processes first.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn requests(&self) -> Result<Vec<AppRequest>, KernelError> {
        let Some(opened) = &self.opened else { return Ok(Vec::new()) };
        let tasks = tasks_in(&opened.tasks).into_iter();
        let tasks = tasks.map(|(pid, number)| AppRequest { of: Requester::Task(pid), number });
        let sockets = sockets_in(&opened.iterator, &opened.sockets)?.into_iter();
        let sockets =
            sockets.map(|socket| AppRequest { of: Requester::Socket(socket.inode), number: socket.number });
        let mut requests: Vec<AppRequest> = tasks.chain(sockets).collect();
        requests.sort_unstable();
        Ok(requests)
    }
}

fn ring(asked: &MapHandle) -> Result<(RingBuffer<'static>, Receiver<Pid>), KernelError> {
    let (sender, processes) = channel();
    let on_record = move |bytes: &[u8]| {
        // The buffer holds `struct asker`. Sending fails only while the receiver is being dropped.
        let _ = sender.send(asker(bytes));
        0
    };
    let mut builder = RingBufferBuilder::new();
    builder.add(asked, on_record).map_err(|_| refused("BPF map asked".to_owned()))?;
    let ring = builder.build().map_err(|_| refused("BPF map asked: map into memory".to_owned()))?;
    Ok((ring, processes))
}
