//! The source of everything that a command learns about a host: the running kernel or a recording.
//!
//! `show`, `doctor`, `plan`, `explain` and `verify` depend only on what this trait returns.

use std::collections::BTreeSet;
use std::fmt;

use linux::bpf::app_requests::RequestStore;
use linux::process::{Criteria, FoundProcesses, find_each};
use linux::{Kernel, KernelError, Netns, Processes};
use model::host::{AppRequest, Requester, Unread};
use model::policy::Match;
use model::{DeviceId, Host, NetnsId, Pid};

use crate::fault::Fault;

/// A host, seen from one network namespace.
pub trait HostSource: fmt::Debug {
    /// The network namespace.
    fn id(&self) -> NetnsId;

    /// Observes the host, with these processes.
    ///
    /// # Errors
    /// If the namespace cannot be entered or its devices cannot be listed.
    fn observe(&self, processes: &Processes) -> Result<Host, Fault>;

    /// Finds the processes of each service, and the processes for which this could not be decided.
    ///
    /// # Errors
    /// If processes cannot be listed.
    fn find(&self, services: &[&Match]) -> Result<Vec<FoundProcesses>, Fault>;

    /// Returns which of these processes have exited.
    fn ended(&self, pids: BTreeSet<Pid>) -> BTreeSet<Pid>;

    /// Adds these processes, which may be in other network namespaces, to an observed host.
    fn add_processes(&self, host: &mut Host, pids: Vec<Pid>);

    /// Reads the requests of applications from this store.
    ///
    /// # Errors
    /// If the store cannot be read; the error names the part and the reason.
    fn app_requests(&self, store: &RequestStore) -> Result<Vec<AppRequest>, Unread>;

    /// Returns the processes that hold these sockets, by inode.
    ///
    /// # Errors
    /// If processes cannot be listed.
    fn holders_of_sockets(&self, inodes: &BTreeSet<u64>) -> Result<BTreeSet<Pid>, Fault>;

    /// Returns an object that finds the present names of devices.
    fn device_names(&self) -> Box<dyn DeviceNames + '_>;
}

/// Finds the present names of devices.
pub trait DeviceNames {
    /// Returns the present name of this device; `None` if the device does not exist or cannot be found.
    fn present_name(&mut self, device: DeviceId) -> Option<String>;
}

impl HostSource for Netns {
    fn id(&self) -> NetnsId {
        Self::id(self)
    }

    fn observe(&self, processes: &Processes) -> Result<Host, Fault> {
        Ok(linux::observe(self, processes)?)
    }

    fn find(&self, services: &[&Match]) -> Result<Vec<FoundProcesses>, Fault> {
        let criteria: Vec<Criteria> = services.iter().map(|service| criteria(service)).collect();
        let mut found = find_each(&criteria, None)?;
        // A match by user or cgroup may find this process itself, so exclude it.
        let own = std::process::id();
        found.iter_mut().for_each(|(processes, _)| processes.retain(|process| process.pid.0 != own));
        Ok(found)
    }

    fn ended(&self, pids: BTreeSet<Pid>) -> BTreeSet<Pid> {
        let has_ended = |pid: &Pid| {
            Self::of_process(*pid).is_err_and(|error| matches!(error.cause, linux::Cause::Gone(_)))
        };
        pids.into_iter().filter(has_ended).collect()
    }

    fn add_processes(&self, host: &mut Host, pids: Vec<Pid>) {
        host.processes.extend(linux::observe::processes(self, &Processes::Only(pids), &mut host.unread));
    }

    fn app_requests(&self, store: &RequestStore) -> Result<Vec<AppRequest>, Unread> {
        stored(store).map_err(|error| Unread { what: error.what, why: error.cause.to_string() })
    }

    fn holders_of_sockets(&self, inodes: &BTreeSet<u64>) -> Result<BTreeSet<Pid>, Fault> {
        Ok(linux::process::holders_of_sockets(inodes)?.into_iter().collect())
    }

    fn device_names(&self) -> Box<dyn DeviceNames + '_> {
        Box::new(Kernel::new())
    }
}

impl DeviceNames for Kernel {
    fn present_name(&mut self, device: DeviceId) -> Option<String> {
        Self::present_name(self, device)
    }
}

/// Returns the requests of all processes and sockets of this host.
fn stored(store: &RequestStore) -> Result<Vec<AppRequest>, KernelError> {
    let tasks =
        store.tasks()?.into_iter().map(|(pid, number)| AppRequest { of: Requester::Task(pid), number });
    let sockets = store.sockets()?.into_iter();
    let sockets =
        sockets.map(|socket| AppRequest { of: Requester::Socket(socket.inode), number: socket.number });
    Ok(tasks.chain(sockets).collect())
}

/// Returns the criteria for a service's processes in any network namespace. Which of these processes receive
/// through a device of this namespace is only observed later.
fn criteria(matching: &Match) -> Criteria {
    let Match { unit, cgroup, exe, pod, container, port, uid } = matching.clone();
    Criteria { exe, cgroup, unit, pod, container, port, uid, netns: None }
}
