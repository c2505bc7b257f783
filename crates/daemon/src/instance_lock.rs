//! Ensures that only one daemon runs per network namespace, even if each has a separate journal: two daemons
//! would revert each other's settings as drift.
//!
//! The lock is a unix socket with an abstract name. The name belongs to the network namespace and disappears
//! with the process, however the process ends. The lock is not on the namespace's file because `tc load
//! --atomic` locks that file.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use linux::Netns;
use linux::peer::UnixPeer;
use model::{Finding, Pid, Severity};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use session::{Exit, Fault};

use crate::event_loop::{Interest, Ready, Registrar, Source, Stay};

/// The abstract name of the lock's socket.
const NAME: &[u8] = b"netpolicy/daemon";

/// The maximum number of connections to accept and close in one turn. The next turn handles the rest.
const ASKERS_MAX: usize = 64;

/// The lock that makes this process the only daemon of a network namespace.
#[derive(Debug)]
pub(crate) struct InstanceLock {
    listener: UnixListener,
}

/// The result of an attempt to acquire the lock.
pub(crate) enum LockClaim {
    /// This daemon has the lock.
    Locked(InstanceLock),
    /// It is unknown whether another daemon is running: a process that is not root's holds the name.
    Unknown(Finding),
}

impl InstanceLock {
    /// Acquires the lock in this thread's network namespace.
    ///
    /// # Errors
    /// [`Exit::Refused`], with the pid, if another daemon is running in the namespace.
    pub(crate) fn claim() -> Result<LockClaim, Fault> {
        let failed =
            |error: std::io::Error| Fault::failed(format!("cannot take the daemon's instance lock: {error}"));
        let address = SocketAddr::from_abstract_name(NAME).map_err(failed)?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => {
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(LockClaim::Locked(Self { listener }))
            }
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => taken().map(LockClaim::Unknown),
            Err(error) => Err(failed(error)),
        }
    }
}

/// A daemon running in a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningDaemon {
    /// The daemon's pid.
    pub pid: Pid,
    /// The daemon's systemd service; `None` if it was started manually.
    pub service: Option<String>,
}

impl RunningDaemon {
    /// Finds the daemon of a network namespace, whatever its state directory is: the process of root that
    /// holds the instance lock in the namespace. Returns `None` if there is no daemon, or if the namespace
    /// cannot be entered.
    pub fn of(netns: &Netns) -> Option<Self> {
        let peer = netns.run(holder).ok()??;
        (peer.uid == ROOT).then(|| Self { pid: peer.pid, service: linux::process::service_of(peer.pid) })
    }

    /// Returns the command that stops the daemon, or the place where it must be stopped if no command can
    /// stop it from here.
    pub fn stop(&self) -> String {
        match &self.service {
            Some(service) => format!("systemctl stop {service}"),
            // The pid of a process in another pid namespace reads as 0, and `kill 0` would kill the caller's
            // process group.
            None if self.pid == OUTSIDE => {
                "where the daemon runs: in a container, or outside this one".to_owned()
            }
            None => format!("kill {}", self.pid),
        }
    }

    /// Returns how messages refer to the daemon's process.
    pub fn process(&self) -> String {
        match self.pid {
            OUTSIDE => "a process of another pid namespace".to_owned(),
            pid => format!("process {pid}"),
        }
    }
}

/// The uid of daemons: only a process of this user counts as one.
const ROOT: u32 = 0;

/// The pid that the kernel reports for a peer outside our pid namespace. Kernel: `net/core/sock.c`
/// `cred_to_ucred()`, `pid_vnr()`.
const OUTSIDE: Pid = Pid(0);

/// Returns the process that holds the lock in this thread's network namespace, or `None` if there is none.
/// Does not block: it also returns `None` if the backlog of the process is full, as it is while the daemon is
/// stopped (SIGSTOP).
fn holder() -> Option<UnixPeer> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(NAME).ok()?).ok()?;
    UnixPeer::of(&socket).ok()
}

/// Returns the error that another daemon holds the lock. Any user can bind the name, so a holder other than
/// root does not stop this daemon and only causes a finding.
fn taken() -> Result<Finding, Fault> {
    let peer = holder();
    let words = "a daemon with another state directory is already running in this network namespace";
    match peer {
        Some(peer) if peer.uid != ROOT => Ok(Finding {
            rule: "not-alone".to_owned(),
            severity: Severity::Warning,
            object: "daemon".to_owned(),
            summary: "cannot determine whether another daemon is running in this network namespace"
                .to_owned(),
            evidence: vec![format!(
                "the lock name @{} is held by process {} of uid {}",
                String::from_utf8_lossy(NAME),
                peer.pid,
                peer.uid
            )],
            remedy: None,
        }),
        Some(peer) => {
            let daemon = RunningDaemon { pid: peer.pid, service: linux::process::service_of(peer.pid) };
            Err(Fault::new(Exit::Refused, format!("{words}: {}", daemon.process()))
                .hint(format!("use that daemon, or stop it first: {}", daemon.stop())))
        }
        None => Err(Fault::new(Exit::Refused, words).hint("ss -xlp | grep netpolicy/daemon shows it")),
    }
}

impl Source for InstanceLock {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn interest(&mut self) -> Interest {
        Interest { read: true, ..Interest::default() }
    }

    /// Accepts and closes connections. Clients connect only to read `SO_PEERCRED`, which is possible as soon
    /// as they are connected.
    fn ready(&mut self, _ready: Ready, _registrar: &mut Registrar) -> Stay {
        let _askers = (0..ASKERS_MAX).take_while(|_| self.listener.accept().is_ok()).count();
        Stay::Stay
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_daemon_is_ended_by_its_unit_or_by_its_number() {
        let daemon =
            |service: Option<&str>| RunningDaemon { pid: Pid(812), service: service.map(str::to_owned) };
        assert_eq!(daemon(None).stop(), "kill 812");
        assert_eq!(daemon(Some("netpolicy@blue.service")).stop(), "systemctl stop netpolicy@blue.service");
        assert_eq!(daemon(None).process(), "process 812");
    }

    #[test]
    fn no_hint_about_a_daemon_in_another_pid_namespace_ends_the_callers_shell() {
        let outside = RunningDaemon { pid: Pid(0), service: None };
        assert!(!outside.stop().contains("kill"), "{}", outside.stop());
        assert_eq!(outside.process(), "a process of another pid namespace");
    }
}
