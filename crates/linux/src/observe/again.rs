//! Observes the same host repeatedly, in parts: open files stay open, and unchanged parts are not reread.

use std::collections::BTreeMap;

use bpf::EpollScanner;
use bpf::reuseport::ListenerScanner;
use model::host::{Epoll, Process, Unread};
use model::{EpollId, Fd, Host, IfIndex, Pid};
use sys::error::{Cause, KernelError};
use sys::netns::Netns;

use super::sources::Sources;
use super::{Processes, Sysctls, device, irq, listeners, process, topology, whole};
use crate::process::{EPOLLS_MAX, PinnedProcess, inspected_epolls};

/// The maximum number of entries in [`Host::unread`], to which every repeated observation may add.
const UNREAD_MAX: usize = 256;

/// Observes one network namespace repeatedly.
#[derive(Debug)]
pub struct Observer {
    netns: Netns,
    sources: Sources,
    /// `None` if BPF is not permitted; `/proc` is then read instead, which is slower.
    scanner: Option<EpollScanner>,
    /// Loaded when listeners that share an address are first found.
    listeners: Option<ListenerScanner>,
    refused: Option<KernelError>,
}

impl Observer {
    /// Opens the kernel interfaces that are needed to observe a namespace.
    ///
    /// # Errors
    /// Those of [`super::observe`].
    pub fn open(netns: Netns) -> Result<Self, KernelError> {
        let sources = netns.run(Sources::open_here)??;
        let (scanner, refused) = match EpollScanner::load() {
            Ok(scanner) => (Some(scanner), None),
            Err(error) => (None, Some(error)),
        };
        Ok(Self { netns, sources, scanner, listeners: None, refused })
    }

    /// The namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Returns the error because of which epolls are read from `/proc` instead of by a BPF iterator.
    pub fn refused(&self) -> Option<&KernelError> {
        self.refused.as_ref()
    }

    /// Observes everything, as [`super::observe`] does.
    ///
    /// # Errors
    /// Those of [`super::observe`].
    pub fn whole(&mut self, processes: &Processes) -> Result<Host, KernelError> {
        let sysctls = self.netns.run(Sysctls::read_here)?;
        let mut host = whole(&self.netns, &mut self.sources, sysctls, processes)?;
        self.listeners(&mut host);
        Ok(host)
    }

    /// Updates one device in the host; returns whether the device exists.
    ///
    /// # Errors
    /// If links cannot be listed.
    pub fn device(&mut self, host: &mut Host, index: IfIndex) -> Result<bool, KernelError> {
        let mut unread = Vec::new();
        let mut seen = device::devices(self.netns.id(), &mut self.sources, Some(index), &mut unread)?;
        let vectors = device::vectors(&seen);
        if !vectors.is_empty() {
            let interrupts = irq::Interrupts::read(&mut unread);
            device::name_interrupts(&mut seen, &interrupts);
            host.irqs.retain(|irq| !vectors.contains(&irq.number));
            host.irqs.extend(irq::irqs(&vectors, &interrupts, &mut unread));
            host.irqs.sort_by_key(|irq| irq.number);
        }
        host.devices.retain(|device| device.id.ifindex != index);
        let there = !seen.is_empty();
        host.devices.extend(seen.into_iter().map(|seen| seen.device));
        host.devices.sort_by_key(|device| device.id.ifindex);
        note(host, unread);
        Ok(there)
    }

    /// Updates the values of all NAPIs of a device with one request. If the device now has different NAPIs,
    /// as after a reset, the whole device is observed.
    ///
    /// # Errors
    /// Those of [`Observer::device`].
    pub fn napis(&mut self, host: &mut Host, index: IfIndex) -> Result<(), KernelError> {
        let mut unread = Vec::new();
        let known = host.devices.iter_mut().find(|device| device.id.ifindex == index);
        let same = match known {
            Some(known) => device::napis_again(known, &mut self.sources, &mut unread),
            None => Ok(false),
        };
        note(host, unread);
        match same {
            Ok(true) => Ok(()),
            // Either the device no longer exists, or the kernel lacks the request; observing the device shows
            // which is the case.
            Ok(false) | Err(_) => self.device(host, index).map(|_| ()),
        }
    }

    /// Updates one process in the host; returns whether the process exists.
    pub fn process(&mut self, host: &mut Host, pid: Pid) -> bool {
        let mut unread = Vec::new();
        let seen = process::processes(&self.netns, &Processes::Only(vec![pid]), &mut unread);
        host.unread.retain(|unread| unread.process() != Some(pid));
        let there = !seen.is_empty();
        // Report nothing for a process that has exited.
        if there || PinnedProcess::open(pid).is_ok() {
            note(host, unread);
        }
        replace(host, pid, seen.into_iter().next());
        bound_users(host);
        self.listeners(host);
        there
    }

    /// Updates the listeners that share an address, for the processes that are known.
    pub fn listeners(&mut self, host: &mut Host) {
        let mut unread = Vec::new();
        listeners::observe(host, &mut self.listeners, &mut unread);
        note(host, unread);
    }

    /// Updates the epolls of a known process, but not the lists of files that they watch: new epolls have
    /// empty lists until the process is observed again. Returns whether the process exists.
    pub fn epolls(&mut self, host: &mut Host, pid: Pid) -> bool {
        let Some(place) = host.processes.iter().position(|process| process.id.pid == pid) else {
            return false;
        };
        let process = &mut host.processes[place];
        match epolls_of(self.scanner.as_ref(), process) {
            Ok(epolls) => {
                process.epolls = epolls;
                bound_users(host);
                true
            }
            Err(Cause::Gone(_)) => {
                host.processes.remove(place);
                false
            }
            Err(cause) => {
                let what = format!("{}: its epolls", process.id);
                note(host, vec![Unread { what, why: cause.to_string() }]);
                true
            }
        }
    }

    /// Whether the CPUs that are isolated now differ from those recorded in the host, because a cpuset
    /// partition was created, changed or removed. The kernel notifies only the file of that partition.
    ///
    /// Kernel: 6.18, `kernel/cgroup/cpuset.c` `notify_partition_change()`.
    pub fn isolation_changed(&self, host: &Host) -> bool {
        let now = self.sources.sysfs.as_ref().map(topology::isolated);
        matches!(now, Ok(Ok(isolated)) if isolated != host.topology.isolated)
    }

    /// Updates which devices have the default route, and which devices are below a tunnel. Returns whether
    /// any of these devices has changed. Parts that cannot be read stay unchanged.
    pub fn routes(&mut self, host: &mut Host) -> bool {
        let mut unread = Vec::new();
        let Ok(linked) = device::linked(self.netns.id(), &mut self.sources, &mut unread) else {
            return false;
        };
        let mut changed = false;
        for now in linked.into_iter().filter(|_| unread.is_empty()) {
            let known = host.devices.iter_mut().find(|device| device.id.ifindex == now.id.ifindex);
            let Some(known) = known.map(|device| &mut device.link) else { continue };
            let (lower, default_route) = (now.link.lower, now.link.default_route);
            changed |= (known.lower, known.default_route) != (lower, default_route);
            (known.lower, known.default_route) = (lower, default_route);
        }
        changed
    }

    /// Updates the CPUs.
    pub fn cpus(&mut self, host: &mut Host) {
        let mut unread = Vec::new();
        host.topology = topology::topology(&self.sources.sysfs, &mut unread);
        note(host, unread);
    }
}

fn epolls_of(scanner: Option<&EpollScanner>, known: &Process) -> Result<Vec<Epoll>, Cause> {
    let process = PinnedProcess::reopen(&known.id)?;
    let found: Vec<_> = match scanner {
        Some(scanner) => {
            let scanned = scanner.epolls(known.id.pid).map_err(|error| error.cause)?;
            scanned.into_iter().take(EPOLLS_MAX).map(|epoll| (epoll.fd, epoll.params)).collect()
        }
        None => inspected_epolls(&known.id)?,
    };
    process.confirm_running()?;
    let mut known: BTreeMap<Fd, Epoll> =
        known.epolls.iter().map(|epoll| (epoll.id.fd, epoll.clone())).collect();
    let epolls = found.into_iter().map(|(fd, params)| {
        let id = EpollId { process: process.id, fd };
        match known.remove(&fd) {
            Some(before) => Epoll { id, params, ..before },
            None => Epoll { id, params, members: Vec::new(), others: 0 },
        }
    });
    Ok(epolls.collect())
}

/// Applies [`process::bound_users`] to all known processes.
fn bound_users(host: &mut Host) {
    let mut unread = Vec::new();
    process::bound_users(&mut host.processes, &mut unread);
    note(host, unread);
}

fn replace(host: &mut Host, pid: Pid, process: Option<Process>) {
    let place = host.processes.binary_search_by_key(&pid, |process| process.id.pid);
    match (place, process) {
        (Ok(place), Some(process)) => host.processes[place] = process,
        (Ok(place), None) => drop(host.processes.remove(place)),
        (Err(place), Some(process)) => host.processes.insert(place, process),
        (Err(_), None) => {}
    }
}

fn note(host: &mut Host, unread: Vec<Unread>) {
    for unread in unread {
        if host.unread.len() < UNREAD_MAX && !host.unread.contains(&unread) {
            host.unread.push(unread);
        }
    }
}
