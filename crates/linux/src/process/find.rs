//! Finds processes by an operator's criteria.

use std::collections::{BTreeMap, BTreeSet};

use std::os::fd::OwnedFd;
use std::path::Path;

use model::host::Unread;
use model::{Fd, Glob, NetnsId, Pid, ProcessId};
use netlink::sock_diag::InetSockets;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, fstat, openat2, statat};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use sys::error::{Cause, KernelError};
use sys::netns::Netns;
use sys::sockopt;

use super::cgroup;
use super::container::{Container, Names};
use super::descriptors::{Link, descriptors};
use super::pinned::{Pinned, pids, unreadable};
use super::stat::Status;
use crate::attach;
use crate::selection::Criteria;

/// The processes that meet the criteria, by pid. Kernel threads never do. A process that could not be judged is no
/// match and is named in `unread`; one that ended meanwhile is not.
///
/// # Errors
/// If `/proc` cannot be listed, or no criterion is given.
pub fn find(criteria: &Criteria, unread: &mut Vec<Unread>) -> Result<Vec<ProcessId>, KernelError> {
    if *criteria == Criteria::default() {
        return Err(KernelError::malformed("find processes", "no criterion is given"));
    }
    // The kernel shows a process's executable, files and namespaces only to privileged processes.
    if let Some(service) = attach::service() {
        let (found, unjudged) = service.find(criteria)?;
        unread.extend(unjudged);
        return Ok(found);
    }
    let mut search = Search::for_those(criteria);
    let mut found = Vec::new();
    for pid in pids()? {
        match search.judge(pid) {
            Ok(Some(process)) => found.push(process),
            Ok(None) | Err(Cause::Gone(_)) => {}
            Err(cause) => unread.push(Unread { what: format!("process {pid}"), why: cause.to_string() }),
        }
    }
    found.sort_unstable_by_key(|process| process.pid);
    Ok(found)
}

/// The process with this pid, if it meets the criteria; `None` also if it has ended.
///
/// # Errors
/// If it could not be judged, or no criterion is given.
pub fn meets(criteria: &Criteria, pid: Pid) -> Result<Option<ProcessId>, KernelError> {
    let what = || format!("process {pid}");
    if *criteria == Criteria::default() {
        return Err(KernelError::malformed(what(), "no criterion is given"));
    }
    if let Some(service) = attach::service() {
        return service.meets(criteria, pid);
    }
    let mut search = Search::for_those(criteria);
    match search.judge(pid) {
        Err(Cause::Gone(_)) => Ok(None),
        judged => judged.map_err(|cause| KernelError { what: what(), cause }),
    }
}

/// The processes that hold any of these sockets, which are given by their inodes. Processes that cannot be read, and those
/// that end meanwhile, are omitted.
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn holders_of_sockets(inodes: &BTreeSet<u64>) -> Result<Vec<Pid>, KernelError> {
    if let Some(service) = attach::service() {
        return service.holders_of_sockets(inodes);
    }
    let holds = |pid: &Pid| {
        let links = Pinned::open(*pid).and_then(|process| descriptors(&process)).unwrap_or_default();
        links.iter().any(|(_, link)| matches!(link, Link::Socket(inode) if inodes.contains(inode)))
    };
    Ok(pids()?.into_iter().filter(holds).collect())
}

/// As [`holders_of_sockets`], for each socket on its own. Of more than [`SOCKETS_APART_MAX`], none.
///
/// # Errors
/// If `/proc` cannot be listed.
pub(crate) fn holders_of_each(inodes: &BTreeSet<u64>) -> Result<BTreeMap<u64, Vec<Pid>>, KernelError> {
    if inodes.is_empty() || inodes.len() > SOCKETS_APART_MAX {
        return Ok(BTreeMap::new());
    }
    let mut found: BTreeMap<u64, Vec<Pid>> = BTreeMap::new();
    if attach::service().is_some() {
        for &inode in inodes {
            found.insert(inode, holders_of_sockets(&BTreeSet::from([inode]))?);
        }
        return Ok(found);
    }
    for pid in pids()? {
        let links = Pinned::open(pid).and_then(|process| descriptors(&process)).unwrap_or_default();
        for (_, link) in links {
            if let Link::Socket(inode) = link
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

/// The processes of a namespace that hold a descriptor of this kind. Processes that cannot be read are omitted.
///
/// # Errors
/// If `/proc` cannot be listed.
pub(crate) fn holders_of_kind(kind: Link, netns: NetnsId) -> Result<Vec<ProcessId>, KernelError> {
    let holds = |pid: Pid| {
        let process = Pinned::open(pid).ok()?;
        let there = statat(process.directory(), "ns/net", AtFlags::empty()).ok()?.st_ino == netns.0;
        let links = if there { descriptors(&process).ok()? } else { Vec::new() };
        links.iter().any(|(_, link)| *link == kind).then_some(process.id)
    };
    Ok(pids()?.into_iter().filter_map(holds).collect())
}

/// The processes that hold an AF_XDP socket of a namespace, which is given by its cookie: the processes may be in others, as
/// where a pod got the socket from its host. Processes that cannot be read are omitted.
///
/// # Errors
/// If `/proc` cannot be listed.
pub(crate) fn holders_of_af_xdp(netns_cookie: Option<u64>) -> Result<Vec<ProcessId>, KernelError> {
    match attach::inspector() {
        Some(inspector) => inspector.holders_of_af_xdp(netns_cookie),
        None => Ok(holders_of_af_xdp_among(netns_cookie, &pids()?)),
    }
}

/// Those of these processes that hold an AF_XDP socket of a namespace. It duplicates each of their sockets.
pub fn holders_of_af_xdp_among(netns_cookie: Option<u64>, among: &[Pid]) -> Vec<ProcessId> {
    /// Kernel: `include/linux/socket.h` `AF_XDP`.
    const AF_XDP: AddressFamily = AddressFamily::from_raw(44);
    let is_one = |process: &Pinned, fd: Fd| {
        let Ok(copy) = process.duplicate(fd) else { return false };
        let cookie = sockopt::netns_cookie(&copy).ok();
        socket_domain(&copy) == Ok(AF_XDP) && (netns_cookie.is_none() || cookie == netns_cookie)
    };
    let holds = |pid: Pid| {
        let process = Pinned::open(pid).ok()?;
        let links = descriptors(&process).ok()?;
        let mut sockets = links.iter().filter(|(_, link)| matches!(link, Link::Socket(_)));
        sockets.any(|(fd, _)| is_one(&process, *fd)).then_some(process.id)
    };
    among.iter().copied().filter_map(holds).collect()
}

/// How many sockets are looked for apart: of AF_XDP there is one for a queue, or a few.
const SOCKETS_APART_MAX: usize = 1024;

/// Where a bare name is looked for, beside the directory of the executable.
const PROGRAMS: [&str; 6] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin"];

/// The most paths that are remembered: a search is for one executable, in some file systems.
const LINKS_MAX: usize = 4096;

/// A file, however it is reached: its device and inode.
type FileId = (u64, u64);

/// Where symbolic links lead, in the file systems that processes see: Debian's `redis-server` is one to `redis-check-rdb`.
#[derive(Debug, Default)]
struct Links {
    /// By the process's mount namespace and root directory, and the path.
    found: BTreeMap<(FileId, FileId, String), Option<FileId>>,
}

impl Links {
    /// Whether this path, in the process's own file system, is the executable that the process runs.
    fn lead_to(&mut self, path: &str, process: &Pinned) -> Result<bool, Cause> {
        let root = process.file("root")?;
        let key = (file_id(&process.file("ns/mnt")?)?, file_id(&root)?, path.to_owned());
        let led = match self.found.get(&key) {
            Some(known) => *known,
            None => {
                let opened = openat2(
                    &root,
                    path,
                    OFlags::PATH | OFlags::CLOEXEC,
                    Mode::empty(),
                    ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
                );
                // What is not there, is not what runs.
                let led = opened.ok().and_then(|file| file_id(&file).ok());
                if self.found.len() < LINKS_MAX {
                    self.found.insert(key, led);
                }
                led
            }
        };
        let Some(led) = led else { return Ok(false) };
        Ok(led == file_id(&process.file("exe")?)?)
    }
}

fn file_id(file: &OwnedFd) -> Result<FileId, Cause> {
    let stat = fstat(file).map_err(unreadable)?;
    Ok((stat.st_dev, stat.st_ino))
}

struct Search<'a> {
    criteria: &'a Criteria,
    /// The sockets of the namespaces seen so far.
    sockets: BTreeMap<NetnsId, InetSockets>,
    links: Links,
    /// What containers and pods are called; read once, if it is asked.
    names: Option<Names>,
    text: Vec<u8>,
}

impl<'a> Search<'a> {
    fn for_those(criteria: &'a Criteria) -> Self {
        let (sockets, links, names, text) = (BTreeMap::new(), Links::default(), None, Vec::new());
        Self { criteria, sockets, links, names, text }
    }

    /// The process, if it meets the criteria; the cheap ones are looked at first.
    fn judge(&mut self, pid: Pid) -> Result<Option<ProcessId>, Cause> {
        let process = Pinned::open(pid)?;
        let judged = !process.kernel_thread
            && self.is_of_user(&process)?
            && self.is_in_cgroup(&process)?
            && self.runs_executable(&process)?
            && self.lives_in_netns(&process)?
            && self.serves_port(&process)?;
        Ok(judged.then_some(process.id))
    }

    fn is_of_user(&mut self, process: &Pinned) -> Result<bool, Cause> {
        let Some(uid) = self.criteria.uid else { return Ok(true) };
        process.read("status", &mut self.text)?;
        let status = Status::parse(&self.text).ok_or_else(|| Cause::Malformed("status".to_owned()))?;
        Ok(status.uid == uid)
    }

    fn is_in_cgroup(&mut self, process: &Pinned) -> Result<bool, Cause> {
        let Criteria { cgroup, unit, pod, container, .. } = self.criteria;
        if cgroup.is_none() && unit.is_none() && pod.is_none() && container.is_none() {
            return Ok(true);
        }
        process.read("cgroup", &mut self.text)?;
        let text = String::from_utf8_lossy(&self.text);
        let Some(path) = cgroup::path(&text) else { return Ok(false) };
        let in_cgroup = cgroup.as_ref().is_none_or(|asked| cgroup::is_within_any(path, asked));
        let of_unit = unit.as_ref().is_none_or(|units| cgroup::is_of_any_unit(path, units));
        if !in_cgroup || !of_unit || pod.is_none() && container.is_none() {
            return Ok(in_cgroup && of_unit);
        }
        let Some(found) = Container::of_cgroup(path) else { return Ok(false) };
        let names = self.names.get_or_insert_with(|| Names::read(Path::new("/")));
        Ok(pod.as_ref().is_none_or(|asked| names.is_pod(&found, asked))
            && container.as_ref().is_none_or(|asked| names.is_container(&found, asked)))
    }

    fn lives_in_netns(&self, process: &Pinned) -> Result<bool, Cause> {
        let Some(asked) = self.criteria.netns else { return Ok(true) };
        let netns = Netns::of_process(process.id.pid).map_err(|error| error.cause)?;
        Ok(netns.id() == asked)
    }

    fn runs_executable(&mut self, process: &Pinned) -> Result<bool, Cause> {
        let Some(asked) = &self.criteria.exe else { return Ok(true) };
        let exe = process.executable()?;
        for glob in asked.iter() {
            if self.is_executable(&exe, glob, process)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an executable is the one that is asked for. Symbolic links are followed where a name is given in full.
    fn is_executable(&mut self, exe: &str, asked: &Glob, process: &Pinned) -> Result<bool, Cause> {
        let (directory, name) = exe.rsplit_once('/').unwrap_or(("", exe));
        let of_path = asked.as_str().contains('/');
        if asked.meets(if of_path { exe } else { name }) {
            return Ok(true);
        }
        if !asked.is_literal() {
            return Ok(false);
        }
        if of_path {
            return self.links.lead_to(asked.as_str(), process);
        }
        for directory in PROGRAMS.into_iter().chain([directory]) {
            if self.links.lead_to(&format!("{directory}/{asked}"), process)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn serves_port(&mut self, process: &Pinned) -> Result<bool, Cause> {
        let Some(port) = self.criteria.port else { return Ok(true) };
        let netns = Netns::of_process(process.id.pid).map_err(|error| error.cause)?;
        let sockets = match self.sockets.entry(netns.id()) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                new.insert(InetSockets::of(&netns).map_err(|error| error.cause)?)
            }
        };
        let serves = |inode| sockets.with_inode(inode).is_some_and(|socket| socket.serves(port));
        let anyone_serves = sockets.iter().any(|socket| socket.serves(port));
        let own = if anyone_serves { descriptors(process)? } else { Vec::new() };
        Ok(own.iter().any(|(_, link)| matches!(link, Link::Socket(inode) if serves(*inode))))
    }
}
