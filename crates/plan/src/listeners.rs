//! Distinguishes processes that accept connections from those that only hold a listener open: systemd for a
//! socket unit, or a master whose children accept. A process that only holds a listener receives no packets:
//! its epolls wait for other events, and it uses no receive queue.

use std::collections::{BTreeMap, BTreeSet};

use model::Pid;
use model::host::{Process, Socket, SocketState};

/// The maximum number of a process's ancestors to follow.
const ANCESTORS_MAX: usize = 64;

/// The role of a process with listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The process receives, or may receive: it has connections, or there is no sign that another process accepts them.
    Receives,
    /// The process accepts connections, and its children serve them.
    HandsOn,
    /// The process is the service manager, which holds the listener of a socket unit.
    HoldsForUnit,
    /// The process neither has nor waits for connections; its descendant with this pid has the same listener.
    HoldsFor(Pid),
}

/// The listeners of a host, by holder.
#[derive(Debug)]
pub(crate) struct Listeners<'h> {
    processes: BTreeMap<Pid, &'h Process>,
    /// The processes that hold each listener, by the listener's inode.
    holders: BTreeMap<u64, Vec<Pid>>,
    /// Processes with connections, by local port.
    connected: BTreeMap<u16, BTreeSet<Pid>>,
}

/// Returns whether peers can contact this socket: it listens, or it is an unconnected UDP socket with a port.
pub fn serves(socket: &Socket) -> bool {
    match socket.state {
        SocketState::TcpListen => true,
        SocketState::Udp => socket.remote.is_none() && socket.local.is_some_and(|local| local.port() != 0),
        _ => false,
    }
}

fn is_listener(socket: &&Socket) -> bool {
    socket.state == SocketState::TcpListen
}

impl<'h> Listeners<'h> {
    /// Builds the index from these processes.
    pub(crate) fn new(all: &'h [Process]) -> Self {
        let mut holders = BTreeMap::<u64, Vec<Pid>>::new();
        let mut connected = BTreeMap::<u16, BTreeSet<Pid>>::new();
        for process in all {
            for socket in &process.sockets {
                match socket.state {
                    SocketState::TcpListen => {
                        holders.entry(socket.inode).or_default().push(process.id.pid);
                    }
                    SocketState::TcpEstablished => {
                        let port = socket.local.map_or(0, |local| local.port());
                        connected.entry(port).or_default().insert(process.id.pid);
                    }
                    SocketState::TcpOther | SocketState::Udp | SocketState::Other => {}
                }
            }
        }
        let processes = all.iter().map(|process| (process.id.pid, process)).collect();
        Self { processes, holders, connected }
    }

    /// Returns the role of a process with listeners.
    pub(crate) fn role(&self, process: &Process) -> Role {
        let own = || process.sockets.iter().filter(is_listener);
        let ports: BTreeSet<u16> = own().filter_map(|socket| Some(socket.local?.port())).collect();
        let is_connected = |socket: &Socket| match socket.state {
            SocketState::TcpEstablished | SocketState::TcpOther => {
                socket.local.is_some_and(|local| ports.contains(&local.port()))
            }
            SocketState::Udp => serves(socket),
            SocketState::TcpListen | SocketState::Other => false,
        };
        let by_ring = process.rings.iter().any(|ring| ring.registered_sockets > 0);
        if own().next().is_none() || by_ring || process.sockets.iter().any(is_connected) {
            return Role::Receives;
        }
        if is_service_manager(process) {
            return Role::HoldsForUnit;
        }
        let descends = |pid: &Pid| self.descends(*pid, process.id.pid);
        let watched: BTreeSet<u64> =
            process.epolls.iter().flat_map(|epoll| &epoll.members).map(|member| member.inode).collect();
        if !own().any(|socket| watched.contains(&socket.inode)) {
            let mut holders = own().filter_map(|socket| self.holders.get(&socket.inode)).flatten();
            if let Some(&child) = holders.find(|pid| descends(pid)) {
                return Role::HoldsFor(child);
            }
        }
        let mut connected = ports.iter().filter_map(|port| self.connected.get(port)).flatten();
        if connected.any(descends) { Role::HandsOn } else { Role::Receives }
    }

    /// Returns whether a process is a descendant of another.
    fn descends(&self, pid: Pid, from: Pid) -> bool {
        let parent = |pid: &Pid| self.processes.get(pid)?.parent;
        std::iter::successors(parent(&pid), parent).take(ANCESTORS_MAX).any(|ancestor| ancestor == from)
    }
}

/// Returns whether the process is systemd, as the manager of the system or of a user. systemd listens for
/// socket units, and starts a unit's service on the first connection.
fn is_service_manager(process: &Process) -> bool {
    let exe = process.exe.strip_suffix(" (deleted)").unwrap_or(&process.exe);
    exe.rsplit('/').next() == Some("systemd")
}

#[cfg(test)]
mod test {
    use model::host::{Epoll, Membership};
    use model::{EpollId, Fd, Label, NapiId, ProcessId};

    use super::*;

    const LISTENER: u64 = 700;

    fn socket(inode: u64, state: SocketState) -> Socket {
        Socket {
            fd: Fd(6),
            inode,
            state,
            local: "192.0.2.1:80".parse().ok(),
            remote: (state == SocketState::TcpEstablished)
                .then(|| "192.0.2.9:4000".parse().expect("address")),
            napi: (state == SocketState::TcpEstablished).then_some(NapiId(513)),
            polling: None,
        }
    }

    fn process(pid: u32, parent: u32, exe: &str, sockets: Vec<Socket>) -> Process {
        let id = ProcessId { pid: Pid(pid), started: u64::from(pid), comm: Label::new("server") };
        Process {
            id,
            parent: Some(Pid(parent)),
            uid: 0,
            exe: exe.to_owned(),
            netns: None,
            container: None,
            cpuset: None,
            threads: Vec::new(),
            epolls: Vec::new(),
            sockets,
            rings: Vec::new(),
        }
    }

    fn watching(mut process: Process, inode: u64) -> Process {
        let id = EpollId { process: process.id, fd: Fd(4) };
        let members = vec![Membership { fd: Fd(6), inode }];
        process.epolls.push(Epoll { id, params: None, members, others: 1 });
        process
    }

    #[expect(clippy::needless_pass_by_value, reason = "each case creates its own processes")]
    fn roles(processes: Vec<Process>) -> Vec<Role> {
        let listeners = Listeners::new(&processes);
        processes.iter().map(|process| listeners.role(process)).collect()
    }

    fn listening(pid: u32, parent: u32, exe: &str) -> Process {
        process(pid, parent, exe, vec![socket(LISTENER, SocketState::TcpListen)])
    }

    #[test]
    fn a_master_whose_workers_have_its_listener_receives_nothing_and_the_workers_do() {
        let master = listening(10, 1, "/usr/sbin/nginx");
        let worker = watching(listening(11, 10, "/usr/sbin/nginx"), LISTENER);
        assert_eq!(roles(vec![master.clone(), worker]), [Role::HoldsFor(Pid(11)), Role::Receives]);
        // In php-fpm, the master's epoll watches only pipes, and idle workers wait in accept(2).
        let master = watching(master, 99);
        let worker = listening(11, 10, "/usr/sbin/php-fpm");
        assert_eq!(roles(vec![master.clone(), worker]), [Role::HoldsFor(Pid(11)), Role::Receives]);
        assert_eq!(roles(vec![master]), [Role::Receives], "no other process is known to accept");
    }

    #[test]
    fn systemd_holds_the_listener_of_a_socket_unit_before_and_after_its_service_runs() {
        let systemd = watching(listening(1, 0, "/usr/lib/systemd/systemd"), LISTENER);
        assert_eq!(roles(vec![systemd]), [Role::HoldsForUnit]);
        let systemd = listening(1, 0, "/usr/lib/systemd/systemd (deleted)");
        let service = watching(listening(40, 1, "/usr/sbin/nginx"), LISTENER);
        assert_eq!(roles(vec![systemd, service]), [Role::HoldsForUnit, Role::Receives]);
        // The parent may be any other program that passes its listener to another process.
        let parent = watching(listening(30, 1, "/usr/bin/super"), 99);
        let service = watching(listening(40, 30, "/usr/sbin/nginx"), LISTENER);
        assert_eq!(roles(vec![parent, service]), [Role::HoldsFor(Pid(40)), Role::Receives]);
    }

    #[test]
    fn who_accepts_for_its_children_receives_only_while_they_have_no_connection() {
        let postmaster = watching(listening(20, 1, "/usr/lib/postgresql/postgres"), LISTENER);
        let connection = vec![socket(701, SocketState::TcpEstablished)];
        let backend = process(21, 20, "/usr/lib/postgresql/postgres", connection.clone());
        assert_eq!(roles(vec![postmaster.clone()]), [Role::Receives]);
        assert_eq!(roles(vec![postmaster.clone(), backend]), [Role::HandsOn, Role::Receives]);
        let stranger = process(21, 1, "/usr/bin/other", connection.clone());
        assert_eq!(roles(vec![postmaster.clone(), stranger]), [Role::Receives, Role::Receives]);
        let mut parent = postmaster;
        parent.sockets.extend(connection);
        let child = watching(listening(21, 20, "/usr/bin/server"), LISTENER);
        assert_eq!(roles(vec![parent, child]), [Role::Receives; 2], "a parent with connections of its own");
    }
}
