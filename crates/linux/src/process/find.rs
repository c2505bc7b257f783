//! Finds processes by an operator's criteria.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use std::path::Path;
use std::slice::from_ref;

use model::host::Unread;
use model::{Fd, NetnsId, Pid, ProcessId};
use netlink::sock_diag::{InetSocket, InetSockets};
use rustix::fs::{AtFlags, statat};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use sys::error::{Cause, KernelError};
use sys::sockopt;

use super::cgroup;
use super::container::{Container, Names, belongs_to_root};
use super::descriptors::{FdKind, descriptors};
use super::executable::{Executable, Executables};
use super::pinned::{PinnedProcess, pids, unreadable};
use super::stat::TaskStatus;
use crate::attach;
use crate::selection::{Criteria, FoundProcesses};

/// Finds the processes that meet the criteria, ordered by pid. Kernel threads never match. A process for
/// which the criteria could not be checked is listed in `unread` instead; a process that exited in the
/// meantime is not listed.
///
/// # Errors
/// If `/proc` cannot be listed, or no criterion is given.
pub fn find(criteria: &Criteria, unread: &mut Vec<Unread>) -> Result<Vec<ProcessId>, KernelError> {
    let (found, unjudged) = find_each(from_ref(criteria), None)?.pop().unwrap_or_default();
    unread.extend(unjudged);
    Ok(found)
}

/// Like [`find`], for each of several criteria, among all processes or only for the process `only`. Each
/// process is read once for all criteria.
///
/// # Errors
/// Those of [`find`].
pub fn find_each(all: &[Criteria], only: Option<Pid>) -> Result<Vec<FoundProcesses>, KernelError> {
    if all.contains(&Criteria::default()) {
        return Err(KernelError::malformed("find processes", "no criterion is given"));
    }
    if all.is_empty() {
        return Ok(Vec::new());
    }
    // Use the attach service: the kernel shows a process's executable, files and namespaces only to
    // privileged processes.
    if let Some(service) = attach::service() {
        return service.find_each(all, only);
    }
    let mut found: Vec<FoundProcesses> = vec![Default::default(); all.len()];
    let mut search = Search::default();
    for pid in only.map_or_else(pids, |only| Ok(vec![only]))? {
        let unread = |cause: &Cause| Unread { what: format!("process {pid}"), why: cause.to_string() };
        let process = match PinnedProcess::open(pid) {
            Ok(process) => process,
            Err(Cause::Gone(_)) => continue,
            Err(cause) => {
                found.iter_mut().for_each(|(_, unjudged)| unjudged.push(unread(&cause)));
                continue;
            }
        };
        let mut facts = Facts::default();
        for (criteria, (meeting, unjudged)) in all.iter().zip(&mut found) {
            match search.judge(criteria, &process, &mut facts) {
                Ok(true) => meeting.push(process.id),
                Ok(false) | Err(Cause::Gone(_)) => {}
                Err(cause) => unjudged.push(unread(&cause)),
            }
        }
    }
    found.iter_mut().for_each(|(meeting, _)| meeting.sort_unstable_by_key(|process| process.pid));
    Ok(found)
}

/// Whether the process with this pid meets the criteria; `None` if that could not be determined. A process
/// that has exited does not meet the criteria.
pub fn meets(criteria: &Criteria, pid: Pid) -> Option<bool> {
    let (found, unjudged) = find_each(from_ref(criteria), Some(pid)).ok()?.pop()?;
    unjudged.is_empty().then_some(!found.is_empty())
}

/// Finds the processes that hold any of these sockets, which are given by their inodes. Processes that cannot
/// be read, and processes that exit in the meantime, are omitted.
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn holders_of_sockets(inodes: &BTreeSet<u64>) -> Result<BTreeSet<Pid>, KernelError> {
    Ok(holders_of_each(inodes)?.into_values().flatten().collect())
}

/// Like [`holders_of_sockets`], separately for each socket.
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn holders_of_each(inodes: &BTreeSet<u64>) -> Result<BTreeMap<u64, Vec<Pid>>, KernelError> {
    let mut found: BTreeMap<u64, Vec<Pid>> = BTreeMap::new();
    if inodes.is_empty() {
        return Ok(found);
    }
    if let Some(service) = attach::service() {
        return service.holders_of_each(inodes);
    }
    for pid in pids()? {
        let links = PinnedProcess::open(pid).and_then(|process| descriptors(&process)).unwrap_or_default();
        for (_, link) in links {
            if let FdKind::Socket(inode) = link
                && inodes.contains(&inode)
            {
                let holders = found.entry(inode).or_default();
                if holders.last() != Some(&pid) {
                    holders.push(pid);
                }
            }
        }
    }
    Ok(found)
}

/// Finds the processes in a namespace that hold a descriptor of this kind. Processes that cannot be read are
/// omitted.
///
/// # Errors
/// If `/proc` cannot be listed.
pub(crate) fn holders_of_kind(kind: FdKind, netns: NetnsId) -> Result<Vec<ProcessId>, KernelError> {
    let holds = |pid: Pid| {
        let process = PinnedProcess::open(pid).ok()?;
        let there = statat(process.directory(), "ns/net", AtFlags::empty()).ok()?.st_ino == netns.0;
        let links = if there { descriptors(&process).ok()? } else { Vec::new() };
        links.iter().any(|(_, link)| *link == kind).then_some(process.id)
    };
    Ok(pids()?.into_iter().filter_map(holds).collect())
}

/// Finds the processes that hold an AF_XDP socket of the namespace with this cookie. The processes may be in
/// other namespaces, for example if a pod got the socket from its host. Processes that cannot be read are
/// omitted.
///
/// # Errors
/// If `/proc` cannot be listed.
pub(crate) fn holders_of_af_xdp(netns_cookie: Option<u64>) -> Result<Vec<ProcessId>, KernelError> {
    match attach::inspector() {
        Some(inspector) => inspector.holders_of_af_xdp(netns_cookie),
        None => Ok(holders_of_af_xdp_among(netns_cookie, &pids()?)),
    }
}

/// Returns those of the processes `among` that hold an AF_XDP socket of a namespace, after duplicating each
/// of their sockets.
pub fn holders_of_af_xdp_among(netns_cookie: Option<u64>, among: &[Pid]) -> Vec<ProcessId> {
    /// Kernel: `include/linux/socket.h` `AF_XDP`.
    const AF_XDP: AddressFamily = AddressFamily::from_raw(44);
    let is_one = |process: &PinnedProcess, fd: Fd| {
        let Ok(copy) = process.duplicate(fd) else { return false };
        let cookie = sockopt::netns_cookie(&copy).ok();
        socket_domain(&copy) == Ok(AF_XDP) && (netns_cookie.is_none() || cookie == netns_cookie)
    };
    let holds = |pid: Pid| {
        let process = PinnedProcess::open(pid).ok()?;
        let links = descriptors(&process).ok()?;
        let mut sockets = links.iter().filter(|(_, link)| matches!(link, FdKind::Socket(_)));
        sockets.any(|(fd, _)| is_one(&process, *fd)).then_some(process.id)
    };
    among.iter().copied().filter_map(holds).collect()
}

/// Data that a search caches and uses for all processes.
#[derive(Default)]
struct Search {
    /// The sockets of the namespaces seen so far, and all ports on which these sockets serve.
    sockets: BTreeMap<NetnsId, (InetSockets, BTreeSet<u16>)>,
    executables: Executables,
    /// The names of containers and pods, read when a criterion first needs them.
    names: Option<Names>,
    text: Vec<u8>,
}

/// Data that is read once from a process and used for all criteria.
#[derive(Default)]
struct Facts {
    uid: Option<u32>,
    /// The cgroup, once it was read; the inner `None` means that the process has none.
    cgroup: Option<Option<String>>,
    executable: Option<Executable>,
    netns: Option<NetnsId>,
    /// The namespace of the process's sockets, and the ports that it serves if they were read.
    ports: Option<(NetnsId, Option<BTreeSet<u16>>)>,
}

impl Search {
    /// Checks whether a process meets the criteria, the cheap ones first.
    fn judge(
        &mut self,
        criteria: &Criteria,
        process: &PinnedProcess,
        facts: &mut Facts,
    ) -> Result<bool, Cause> {
        Ok(!process.kernel_thread
            && self.is_of_user(criteria, process, facts)?
            && self.is_in_cgroup(criteria, process, facts)?
            && self.runs_executable(criteria, process, facts)?
            && lives_in_netns(criteria, process, facts)?
            && self.serves_port(criteria, process, facts)?)
    }

    fn is_of_user(
        &mut self,
        criteria: &Criteria,
        process: &PinnedProcess,
        facts: &mut Facts,
    ) -> Result<bool, Cause> {
        let Some(asked) = criteria.uid else { return Ok(true) };
        if facts.uid.is_none() {
            process.read("status", &mut self.text)?;
            let status =
                TaskStatus::parse(&self.text).ok_or_else(|| Cause::Malformed("status".to_owned()))?;
            facts.uid = Some(status.uid);
        }
        Ok(facts.uid == Some(asked))
    }

    fn is_in_cgroup(
        &mut self,
        criteria: &Criteria,
        process: &PinnedProcess,
        facts: &mut Facts,
    ) -> Result<bool, Cause> {
        let Criteria { cgroup, unit, pod, container, .. } = criteria;
        if cgroup.is_none() && unit.is_none() && pod.is_none() && container.is_none() {
            return Ok(true);
        }
        let path = match &mut facts.cgroup {
            Some(known) => known,
            unknown => {
                process.read("cgroup", &mut self.text)?;
                let text = String::from_utf8_lossy(&self.text);
                unknown.insert(cgroup::path(&text).map(str::to_owned))
            }
        };
        let Some(path) = path else { return Ok(false) };
        let in_cgroup = cgroup.as_ref().is_none_or(|asked| cgroup::is_within_any(path, asked));
        let of_unit = unit.as_ref().is_none_or(|units| cgroup::is_of_any_unit(path, units));
        if !in_cgroup || !of_unit || pod.is_none() && container.is_none() {
            return Ok(in_cgroup && of_unit);
        }
        let Some(found) = Container::of_cgroup(path, belongs_to_root) else { return Ok(false) };
        let names = self.names.get_or_insert_with(|| Names::read(Path::new("/")));
        Ok(pod.as_ref().is_none_or(|asked| names.is_pod(&found, asked))
            && container.as_ref().is_none_or(|asked| names.is_container(&found, asked)))
    }

    fn runs_executable(
        &mut self,
        criteria: &Criteria,
        process: &PinnedProcess,
        facts: &mut Facts,
    ) -> Result<bool, Cause> {
        let Criteria { exe, container, pod, .. } = criteria;
        let Some(asked) = exe else { return Ok(true) };
        let executable = match &mut facts.executable {
            Some(known) => known,
            unknown => unknown.insert(Executable::of(process)?),
        };
        // If the section names a container, that container's file system is trusted.
        let in_container = container.is_some() || pod.is_some();
        for glob in asked.iter() {
            if self.executables.is_run_by(process, executable, glob, in_container)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn serves_port(
        &mut self,
        criteria: &Criteria,
        process: &PinnedProcess,
        facts: &mut Facts,
    ) -> Result<bool, Cause> {
        let Some(port) = criteria.port else { return Ok(true) };
        let (netns, ports) = match &mut facts.ports {
            Some(known) => known,
            unknown => {
                let netns = process.netns()?;
                if let Entry::Vacant(new) = self.sockets.entry(netns.id()) {
                    let sockets = InetSockets::of(&netns).map_err(|error| error.cause)?;
                    let served = sockets.iter().filter_map(InetSocket::served_port).collect();
                    new.insert((sockets, served));
                }
                unknown.insert((netns.id(), None))
            }
        };
        let Some((sockets, served)) = self.sockets.get(netns) else { return Ok(false) };
        // A process's sockets are read only if some socket of the namespace serves the port.
        if !served.contains(&port) {
            return Ok(false);
        }
        let ports = match ports {
            Some(known) => known,
            unknown => {
                let own = descriptors(process)?.into_iter().filter_map(|(_, link)| match link {
                    FdKind::Socket(inode) => sockets.with_inode(inode)?.served_port(),
                    _ => None,
                });
                unknown.insert(own.collect())
            }
        };
        Ok(ports.contains(&port))
    }
}

fn lives_in_netns(criteria: &Criteria, process: &PinnedProcess, facts: &mut Facts) -> Result<bool, Cause> {
    let Some(asked) = criteria.netns else { return Ok(true) };
    if facts.netns.is_none() {
        let netns = statat(process.directory(), "ns/net", AtFlags::empty()).map_err(unreadable)?;
        facts.netns = Some(NetnsId(netns.st_ino));
    }
    Ok(facts.netns == Some(asked))
}

#[cfg(test)]
mod test {
    use std::net::{Ipv4Addr, TcpListener};

    use model::Patterns;

    use super::*;

    #[test]
    fn many_services_are_found_as_each_would_be() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let port = listener.local_addr().expect("bound").port();
        let own = PinnedProcess::open(Pid(std::process::id())).expect("it runs").id;
        let exe = Some(Patterns::exactly("no-such-program"));
        let all = [
            Criteria { port: Some(port), ..Criteria::default() },
            Criteria { exe, port: Some(port), ..Criteria::default() },
            Criteria { port: Some(1), ..Criteria::default() },
        ];
        let found = find_each(&all, None).expect("found");
        for (criteria, (found, _)) in all.iter().zip(&found) {
            let same = find(criteria, &mut Vec::new()).expect("found");
            assert_eq!(found.contains(&own), same.contains(&own), "{criteria:?}");
            assert_eq!(meets(criteria, own.pid), Some(same.contains(&own)), "{criteria:?}");
        }
        assert_eq!(
            found.iter().map(|(found, _)| found.contains(&own)).collect::<Vec<_>>(),
            [true, false, false]
        );
        assert!(find_each(&[Criteria::default(), all[0].clone()], None).is_err(), "no criterion is given");
        assert!(find_each(&[], None).expect("nothing").is_empty());
    }
}
