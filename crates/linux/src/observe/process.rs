//! Observes the application's part of the graph: process → thread → epoll → socket → incoming NAPI id, and
//! io_urings.
//!
//! Public information comes from `/proc`; the state of a file (an epoll's parameters, a socket's NAPI) comes
//! from a short-lived copy of its descriptor. Without permission to copy descriptors, the public information
//! is still reported.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use model::host::{Epoll, IoUring, Process, Socket, SocketState, Thread, Unread};
use model::{EpollId, Fd, NapiId, NetnsId, Pid, RingId, SocketId, SocketPolling, ThreadId};
use netlink::sock_diag::{InetSockets, of_tcp};
use rustix::fs::{AtFlags, statat};
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use sys::error::{Cause, Errno, KernelError};
use sys::netns::Netns;

use super::Processes;
use crate::attach;
use crate::process::{self, Cpusets, FdKind, Names, PinnedProcess, Stat, TaskStatus};

/// Inspects processes, in ascending order of pid. `Networking` selects the processes in `netns` that have an
/// internet socket, or an io_uring with a registered socket.
///
/// Adds what could not be read to `unread`, once per process, and each requested process that no longer
/// exists.
pub fn processes(netns: &Netns, which: &Processes, unread: &mut Vec<Unread>) -> Vec<Process> {
    if let Processes::NetworkingAnd(more) = which {
        let mut found = processes(netns, &Processes::Networking, unread);
        let known: BTreeSet<Pid> = found.iter().map(|process| process.id.pid).collect();
        let more = more.iter().copied().filter(|pid| !known.contains(pid)).collect();
        found.extend(processes(netns, &Processes::Only(more), unread));
        found.sort_unstable_by_key(|process| process.id.pid);
        return found;
    }
    if let Some(inspector) = attach::inspector() {
        let (found, missed) = inspector.processes(netns, which);
        unread.extend(missed);
        return found;
    }
    match which {
        Processes::None | Processes::NetworkingAnd(_) => Vec::new(),
        Processes::Only(pids) => processes_among(netns, pids, false, unread),
        Processes::Networking => match process::pids() {
            Ok(pids) => processes_among(netns, &pids, true, unread),
            Err(error) => {
                unread.push(Unread { what: error.what, why: error.cause.to_string() });
                Vec::new()
            }
        },
    }
}

/// Inspects these processes like [`processes`], but never through a worker or the attach service. The calling
/// process may therefore have to wait for locks that the inspected processes hold for any length of time. If
/// `networking` is set, returns only processes in `netns` that use the network.
pub fn processes_among(
    netns: &Netns,
    pids: &[Pid],
    networking: bool,
    unread: &mut Vec<Unread>,
) -> Vec<Process> {
    let (sockets, cpusets, names, text) = (BTreeMap::new(), Cpusets::default(), None, Vec::new());
    let few = !networking && pids.len() <= ASKED_PROCESSES_MAX;
    let rooms = BTreeMap::new();
    let mut observer = Observer { netns, few, sockets, cpusets, names, text, rooms, unread };
    let mut found = if networking {
        observer.networking(pids)
    } else {
        pids.iter().filter_map(|pid| observer.asked_for(*pid)).collect::<Vec<_>>()
    };
    found.sort_unstable_by_key(|process| process.id.pid);
    found.dedup_by_key(|process| process.id.pid);
    found
}

/// The maximum number of managed epolls per user other than root. The epolls of the user's processes with the
/// smallest pids are managed.
const USER_EPOLLS_MAX: usize = 4096;

/// Like [`USER_EPOLLS_MAX`], for io_urings.
const USER_RINGS_MAX: usize = 4096;

/// Omits epolls and io_urings of users who have more than the maximum, and records the omission in `unread`.
/// `processes` must be in ascending order of pid.
pub(super) fn bound_users(processes: &mut [Process], unread: &mut Vec<Unread>) {
    let mut rooms: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for process in processes.iter_mut().filter(|process| process.uid != 0) {
        let (room, rings) = rooms.entry(process.uid).or_insert((USER_EPOLLS_MAX, USER_RINGS_MAX));
        let mut note = |what: &str, found: usize, room: usize, max: usize| {
            let why = format!("{} more than the {max} of uid {} that are managed", found - room, process.uid);
            unread.push(Unread { what: format!("{}: its {what}", process.id), why });
        };
        if process.rings.len() > *rings {
            note("io_urings", process.rings.len(), *rings, USER_RINGS_MAX);
            process.rings.truncate(*rings);
        }
        *rings -= process.rings.len();
        if process.epolls.len() > *room {
            note("epolls", process.epolls.len(), *room, USER_EPOLLS_MAX);
            process.epolls.truncate(*room);
            let epolls = &process.epolls;
            let is_left = |fd: &Fd| epolls.binary_search_by_key(fd, |epoll| epoll.id.fd).is_ok();
            for thread in &mut process.threads {
                thread.waits_on = thread.waits_on.filter(is_left);
            }
        }
        *room -= process.epolls.len();
    }
}

/// The maximum number of sockets of a process, and of processes, for which each socket is queried separately.
/// Above these limits, the kernel is asked for a list of all sockets of the namespace. That takes a
/// millisecond per family, however few sockets there are, because the kernel walks through the host's whole
/// connection table.
///
/// Kernel: 6.18, `net/ipv4/inet_diag.c` `inet_diag_dump_icsk()`.
const ASKED_SOCKETS_MAX: usize = 128;
const ASKED_PROCESSES_MAX: usize = 4;

/// The maximum number of managed io_urings of one process.
const RINGS_MAX: usize = 512;

/// How many more objects of a process or user one observation inspects. Any user can create very many
/// objects: for example, 200 epolls that each watch 15 000 sockets make three million watches. Servers stay
/// below the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    sockets: usize,
    /// The total number of sockets and epolls in the watch lists of all epolls: several epolls may watch the
    /// same socket.
    watches: usize,
}

impl Room {
    /// The limit for one process.
    const PROCESS: Self = Self { sockets: 65_536, watches: 262_144 };

    /// The limit for all processes of a user other than root.
    const USER: Self = Self { sockets: 262_144, watches: 1_048_576 };

    /// Returns the limit for one process of a user who has this much left.
    fn for_process(self) -> Self {
        let Self { sockets, watches } = Self::PROCESS;
        Self { sockets: sockets.min(self.sockets), watches: watches.min(self.watches) }
    }

    /// Whether to inspect another epoll with this many watches. After the first refusal, every further epoll
    /// that has watches is refused.
    fn admits(&mut self, watches: usize) -> bool {
        let admitted = watches <= self.watches;
        self.watches = if admitted { self.watches - watches } else { 0 };
        admitted
    }
}

struct Observer<'a> {
    /// The observed namespace.
    netns: &'a Netns,
    /// Whether only a few processes are inspected.
    few: bool,
    /// The TCP and UDP sockets of the namespaces seen so far; each namespace is listed when its sockets are
    /// first needed.
    sockets: BTreeMap<NetnsId, InetSockets>,
    /// The CPUs that cgroups allow; each cgroup is read when it is first needed.
    cpusets: Cpusets,
    /// The names that runtimes gave to containers, read at the first process that runs in a container.
    names: Option<Names>,
    /// A buffer for the file in `/proc` that is being read.
    text: Vec<u8>,
    /// The remaining limits of each user other than root.
    rooms: BTreeMap<u32, Room>,
    unread: &'a mut Vec<Unread>,
}

/// The files of a process that matter for networking.
#[derive(Default)]
struct Files {
    epolls: Vec<Epoll>,
    sockets: Vec<Socket>,
    rings: Vec<IoUring>,
}

impl Files {
    fn are_networking(&self) -> bool {
        !self.sockets.is_empty() || self.rings.iter().any(|ring| ring.registered_sockets > 0)
    }
}

impl Observer<'_> {
    fn asked_for(&mut self, pid: Pid) -> Option<Process> {
        let looked = PinnedProcess::open(pid).and_then(|process| {
            let files = self.files(&process)?;
            self.whole(&process, files)
        });
        looked.map_err(|cause| self.note(format!("process {pid}"), &cause)).ok()
    }

    fn networking(&mut self, pids: &[Pid]) -> Vec<Process> {
        let mut found = Vec::new();
        for &pid in pids {
            match self.if_networking(pid) {
                Ok(process) => found.extend(process),
                Err(Cause::Gone(_)) => {} // exited during the inspection: nothing is reported
                Err(cause) => self.note(format!("process {pid}"), &cause),
            }
        }
        found
    }

    fn if_networking(&mut self, pid: Pid) -> Result<Option<Process>, Cause> {
        let process = PinnedProcess::open(pid)?;
        let elsewhere = || netns_of(&process).is_some_and(|netns| netns != self.netns.id());
        if process.kernel_thread || elsewhere() {
            return Ok(None);
        }
        let files = self.files(&process)?;
        if files.are_networking() { self.whole(&process, files).map(Some) } else { Ok(None) }
    }

    /// Reads all other information about a process whose files were inspected.
    fn whole(&mut self, process: &PinnedProcess, files: Files) -> Result<Process, Cause> {
        let TaskStatus { parent, uid, .. } = self.status(process)?;
        process.read("cgroup", &mut self.text)?;
        let cgroup = String::from_utf8_lossy(&self.text);
        let cpuset = self.cpusets.of(&cgroup);
        let container = process::container_of(&cgroup, &mut self.names);
        let threads = self.threads(process, &files.epolls)?;
        let exe = process.executable().unwrap_or_default();
        let Files { epolls, sockets, rings } = files;
        let whole = Process {
            id: process.id,
            parent,
            uid,
            exe,
            netns: netns_of(process),
            container,
            cpuset,
            threads,
            epolls,
            sockets,
            rings,
        };
        process.confirm_running()?;
        Ok(whole)
    }

    fn status(&mut self, process: &PinnedProcess) -> Result<TaskStatus, Cause> {
        process.read("status", &mut self.text)?;
        TaskStatus::parse(&self.text).ok_or_else(|| Cause::Malformed("status".to_owned()))
    }

    fn threads(&mut self, process: &PinnedProcess, epolls: &[Epoll]) -> Result<Vec<Thread>, Cause> {
        let mut tids = Vec::new();
        process.numbers("task", |tid| {
            tids.push(Pid(tid));
            true // no limit except the kernel's (kernel.threads-max)
        })?;
        tids.sort_unstable();
        let threads = tids.into_iter().map(|tid| self.thread(process, tid, epolls));
        // A thread that has exited in the meantime is not an error.
        threads.filter(|thread| !matches!(thread, Err(Cause::Gone(_)))).collect()
    }

    fn thread(&mut self, process: &PinnedProcess, tid: Pid, epolls: &[Epoll]) -> Result<Thread, Cause> {
        process.read(&format!("task/{tid}/stat"), &mut self.text)?;
        let stat = Stat::parse(&self.text).ok_or_else(|| Cause::Malformed("stat".to_owned()))?;
        process.read(&format!("task/{tid}/status"), &mut self.text)?;
        let status = TaskStatus::parse(&self.text).ok_or_else(|| Cause::Malformed("status".to_owned()))?;
        let waits_on = match process.read(&format!("task/{tid}/syscall"), &mut self.text) {
            Ok(()) => process::epoll_waited_on(&self.text),
            Err(_) => None, // not permitted, or a kernel without CONFIG_HAVE_ARCH_TRACEHOOK
        };
        // The epolls are sorted by their descriptors.
        let is_epoll = |fd: &Fd| epolls.binary_search_by_key(fd, |epoll| epoll.id.fd).is_ok();
        Ok(Thread {
            id: ThreadId { process: process.id, tid, started: stat.started, comm: stat.comm },
            affinity: status.affinity,
            waits_on: waits_on.filter(is_epoll),
        })
    }

    /// Inspects the files of a process. The first failure is recorded, and everything else that can be read
    /// is reported.
    fn files(&mut self, process: &PinnedProcess) -> Result<Files, Cause> {
        let mut refused = None;
        let links = match process::descriptors(process) {
            Ok(links) => links,
            Err(gone @ Cause::Gone(_)) => return Err(gone),
            Err(cause) => {
                refused = Some(cause);
                Vec::new()
            }
        };
        let of_kind = |kind| links.iter().filter(move |(_, link)| *link == kind).map(|(fd, _)| *fd);
        let epoll_fds: Vec<Fd> = of_kind(FdKind::Epoll).take(process::EPOLLS_MAX).collect();
        let sockets: Vec<(Fd, u64)> = links
            .iter()
            .filter_map(
                |(fd, link)| if let FdKind::Socket(inode) = link { Some((*fd, *inode)) } else { None },
            )
            .collect();
        let user = if sockets.is_empty() { 0 } else { self.status(process)?.uid };
        let of_user = if user == 0 { Room::USER } else { *self.rooms.entry(user).or_insert(Room::USER) };
        let mut room = of_user.for_process();
        let more = |kind, max: usize| of_kind(kind).count().saturating_sub(max);
        for (count, what, max) in [
            (more(FdKind::Epoll, process::EPOLLS_MAX), "epolls", process::EPOLLS_MAX),
            (more(FdKind::IoUring, RINGS_MAX), "io_urings", RINGS_MAX),
            (sockets.len().saturating_sub(room.sockets), "sockets", room.sockets),
        ] {
            if count > 0 {
                let why = format!("{count} more than the {max} of one process that are managed");
                self.unread.push(Unread { what: format!("{}: its {what}", process.id), why });
            }
        }

        let sockets = &sockets[..sockets.len().min(room.sockets)];
        let looked_at = sockets.len();
        let sockets = self.sockets_among(process, sockets, &mut refused);
        let mut inodes: Vec<u64> = sockets.iter().map(|socket| socket.inode).collect();
        inodes.sort_unstable();

        let mut files = Files { sockets, ..Files::default() };
        let most = room.watches;
        let mut left_out = 0;
        for fd in epoll_fds.iter().copied() {
            if left_out > 0 {
                left_out += 1;
                continue;
            }
            match self.epoll(process, fd, &epoll_fds, &inodes, &mut refused) {
                Ok(epoll) if room.admits(epoll.members.len()) => files.epolls.push(epoll),
                Ok(_) => left_out += 1,
                Err(cause) => remember(&mut refused, cause),
            }
        }
        if left_out > 0 {
            let why =
                format!("{left_out} are not managed: together, the epolls watch more than {most} sockets");
            self.unread.push(Unread { what: format!("{}: its epolls", process.id), why });
        }
        if let Some(left) = self.rooms.get_mut(&user) {
            left.sockets -= looked_at;
            left.watches -= most - room.watches;
        }
        for fd in of_kind(FdKind::IoUring).take(RINGS_MAX) {
            match ring(process, fd) {
                Ok(ring) => files.rings.push(ring),
                Err(cause) => remember(&mut refused, cause),
            }
        }
        polling(process, &mut files, &mut refused);
        if let Some(cause) = refused {
            self.note(format!("{}: its epolls, sockets and io_urings", process.id), &cause);
        }
        Ok(files)
    }

    fn epoll(
        &mut self,
        process: &PinnedProcess,
        fd: Fd,
        epolls: &[Fd],
        sockets: &[u64],
        refused: &mut Option<Cause>,
    ) -> Result<Epoll, Cause> {
        process.read(&format!("fdinfo/{fd}"), &mut self.text)?;
        let watched = process::WatchedFiles::parse(&self.text);
        let watches = watched.members.len() + watched.unreadable;
        let is_socket = |inode| sockets.binary_search(&inode).is_ok();
        // All epolls share one inode, so a nested epoll is identified by its descriptor.
        let is_epoll = |fd, inode| watched.inode == Some(inode) && epolls.binary_search(&fd).is_ok();
        let mut members = watched.members;
        members.retain(|member| is_socket(member.inode) || is_epoll(member.fd, member.inode));
        let others = watches - members.len();
        let params = process::params_if_any(process, fd).unwrap_or_else(|cause| {
            remember(refused, cause);
            None
        });
        Ok(Epoll { id: EpollId { process: process.id, fd }, params, members, others })
    }

    /// Finds the internet sockets among the sockets of a process; each socket is given with its inode.
    fn sockets_among(
        &mut self,
        process: &PinnedProcess,
        descriptors: &[(Fd, u64)],
        refused: &mut Option<Cause>,
    ) -> Vec<Socket> {
        let mut found = Vec::new();
        let ask = self.few && descriptors.len() <= ASKED_SOCKETS_MAX;
        for (fd, inode) in descriptors {
            let inode = *inode;
            let copy = match process.duplicate(*fd) {
                Ok(copy) => Some(copy),
                Err(Cause::Gone(_)) => continue,
                Err(cause) => {
                    remember(refused, cause);
                    None
                }
            };
            let napi = copy.as_ref().and_then(incoming_napi);
            let listed =
                if ask && copy.is_some() { None } else { self.sockets_of(process).with_inode(inode) };
            match (listed, copy) {
                (Some(diag), _) => found.push(Socket {
                    fd: *fd,
                    inode,
                    state: diag.state,
                    local: diag.local,
                    remote: diag.remote,
                    napi,
                    polling: None,
                }),
                // Query the socket itself: either no list was requested, or the list lacks the socket, which
                // may belong to another namespace, be unbound, or have another protocol.
                (None, Some(copy)) => found.extend(asked(&copy).map(|(state, local, remote)| Socket {
                    fd: *fd,
                    inode,
                    state,
                    local,
                    remote,
                    napi,
                    polling: None,
                })),
                (None, None) => {}
            }
        }
        found
    }

    /// Returns the TCP and UDP sockets of a process's namespace. If the sockets cannot be listed, returns
    /// none and records the error.
    fn sockets_of(&mut self, process: &PinnedProcess) -> &InetSockets {
        let id = netns_of(process).unwrap_or_else(|| self.netns.id());
        if !self.sockets.contains_key(&id) {
            let listed = if id == self.netns.id() {
                InetSockets::of(self.netns)
            } else {
                process
                    .netns()
                    .map_err(|cause| KernelError { what: process.id.to_string(), cause })
                    .and_then(|netns| InetSockets::of(&netns))
            };
            let listed = listed.unwrap_or_else(|error| {
                self.note(format!("network namespace {id}: {}", error.what), &error.cause);
                InetSockets::default()
            });
            self.sockets.insert(id, listed);
        }
        &self.sockets[&id]
    }

    fn note(&mut self, what: String, cause: &Cause) {
        self.unread.push(Unread { what, why: cause.to_string() });
    }
}

/// Reads the busy-poll parameters of sockets that no epoll watches. The budget is read only from sockets that
/// busy-poll: reading it requires BPF, and without busy polling it has no effect.
fn polling(process: &PinnedProcess, files: &mut Files, refused: &mut Option<Cause>) {
    let watched: BTreeSet<u64> =
        files.epolls.iter().flat_map(|epoll| &epoll.members).map(|member| member.inode).collect();
    let receives = |socket: &&mut Socket| {
        matches!(socket.state, SocketState::TcpEstablished | SocketState::Udp)
            && !watched.contains(&socket.inode)
    };
    for socket in files.sockets.iter_mut().filter(receives) {
        let read = process.duplicate(socket.fd).and_then(|copy| process::socket_polling(&copy));
        match read {
            Ok(polling) => {
                let id = SocketId { process: process.id, fd: socket.fd, inode: socket.inode };
                let busy_poll_budget = match polling.polls() {
                    true => process::read_socket_budget(&id).ok(),
                    false => None,
                };
                socket.polling = Some(SocketPolling { busy_poll_budget, ..polling });
            }
            // Report nothing on a kernel without these options.
            Err(Cause::Absent { .. }) => return,
            Err(cause) => remember(refused, cause),
        }
    }
}

/// Keeps the first error, but ignores errors because a file was closed in the meantime.
fn remember(refused: &mut Option<Cause>, cause: Cause) {
    if !matches!(cause, Cause::Gone(_)) {
        refused.get_or_insert(cause);
    }
}

fn ring(process: &PinnedProcess, fd: Fd) -> Result<IoUring, Cause> {
    let ring = process::observed_ring(process, fd)?;
    Ok(IoUring {
        id: RingId { process: process.id, fd },
        napi: ring.napi,
        registered_sockets: ring.registered_sockets,
        closed: ring.closed,
    })
}

/// Returns the namespace of a process, if we may read it.
fn netns_of(process: &PinnedProcess) -> Option<NetnsId> {
    statat(process.directory(), "ns/net", AtFlags::empty()).ok().map(|stat| NetnsId(stat.st_ino))
}

/// Returns the NAPI through which a socket's last packet arrived.
fn incoming_napi(socket: &OwnedFd) -> Option<NapiId> {
    sys::sockopt::incoming_napi_id(socket).ok().filter(|id| *id != 0).map(NapiId)
}

/// Queries a socket for its state and for the local and the peer's address; `None` if it is not an internet
/// socket.
fn asked(socket: &OwnedFd) -> Option<(SocketState, Option<SocketAddr>, Option<SocketAddr>)> {
    let domain = sockopt::socket_domain(socket).ok()?;
    if domain != AddressFamily::INET && domain != AddressFamily::INET6 {
        return None;
    }
    let bound = |address: &SocketAddr| address.port() != 0;
    let address = |any: Result<rustix::net::SocketAddrAny, Errno>| {
        any.ok().and_then(|any| SocketAddr::try_from(any).ok()).filter(bound).map(canonical)
    };
    let local = address(rustix::net::getsockname(socket));
    let remote = address(rustix::net::getpeername(socket).and_then(|peer| peer.ok_or(Errno::NOTCONN)));
    let state = match (sockopt::socket_type(socket).ok()?, sockopt::socket_protocol(socket).ok()?) {
        (SocketType::STREAM, Some(ipproto::TCP)) => of_tcp(sys::sockopt::tcp_state(socket).ok()?),
        (SocketType::DGRAM, Some(ipproto::UDP)) => SocketState::Udp,
        _ => SocketState::Other,
    };
    Some((state, local, remote))
}

/// Converts an IPv4-mapped IPv6 address to the IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(mapped) => SocketAddr::new(mapped.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod test {
    use model::{CpuSet, Label, ProcessId};

    use super::*;

    fn process(pid: u32, uid: u32, epolls: u32) -> Process {
        let id = ProcessId { pid: Pid(pid), started: 1, comm: Label::new("server") };
        let epoll = |fd| Epoll {
            id: EpollId { process: id, fd: Fd(fd) },
            params: None,
            members: Vec::new(),
            others: 0,
        };
        let thread = ThreadId { process: id, tid: id.pid, started: 1, comm: id.comm };
        let waits_on = epolls.checked_sub(1).map(Fd);
        Process {
            id,
            parent: None,
            uid,
            exe: String::new(),
            netns: None,
            container: None,
            cpuset: None,
            threads: vec![Thread { id: thread, affinity: CpuSet::default(), waits_on }],
            epolls: (0..epolls).map(epoll).collect(),
            sockets: Vec::new(),
            rings: Vec::new(),
        }
    }

    #[test]
    fn a_user_has_so_many_epolls_and_takes_none_from_others() {
        let mut processes: Vec<Process> = (0..20).map(|pid| process(100 + pid, 65_534, 512)).collect();
        processes.extend([process(200, 1000, 512), process(201, 0, 5000)]);
        let mut unread = Vec::new();
        bound_users(&mut processes, &mut unread);
        let of = |uid| processes.iter().filter(move |process| process.uid == uid);
        assert_eq!(of(65_534).map(|process| process.epolls.len()).sum::<usize>(), USER_EPOLLS_MAX);
        assert_eq!((unread.len(), &*unread[0].what), (12, "server[108]: its epolls"));
        assert!(of(65_534).skip(8).all(|process| process.threads[0].waits_on.is_none()));
        assert_eq!(of(1000).map(|process| process.epolls.len()).sum::<usize>(), 512);
        assert_eq!(
            of(0).map(|process| process.epolls.len()).sum::<usize>(),
            5000,
            "root has a separate limit"
        );
        let before = processes.clone();
        bound_users(&mut processes, &mut unread);
        assert_eq!(processes, before);
    }

    #[test]
    fn what_a_process_and_a_user_can_have_without_limit_is_looked_at_up_to_a_bound() {
        let mut room = Room::USER.for_process();
        assert_eq!(room, Room::PROCESS);
        // Each of 200 epolls watches 15 000 sockets.
        let admitted = (0..200).filter(|_| room.admits(15_000)).count();
        assert_eq!(admitted, 17);
        assert!(!room.admits(1), "after the first omitted one, all are omitted");
        let nearly_full = Room { sockets: 7, watches: 3 };
        assert_eq!(nearly_full.for_process(), nearly_full);
    }
}
