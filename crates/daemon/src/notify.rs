//! Notifies systemd of the daemon's state: ready, reloading, alive.
//!
//! Sends messages to the socket that `NOTIFY_SOCKET` names, as described in sd_notify(3). Does nothing if the
//! variable is not set.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use crate::status::DaemonPhase;
use crate::{Interest, Ready, Registrar, Shared, Source, Stay};

/// systemd's notification socket.
#[derive(Debug)]
pub(crate) struct Notifier {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Notifier {
    /// Opens the notification socket if systemd started this process and expects notifications.
    ///
    /// # Errors
    /// If `NOTIFY_SOCKET` does not name a socket.
    pub(crate) fn of_environment() -> io::Result<Option<Self>> {
        match std::env::var_os("NOTIFY_SOCKET") {
            Some(name) if !name.is_empty() => Self::at(&name.to_string_lossy()).map(Some),
            _ => Ok(None),
        }
    }

    /// Opens the socket with this name, which is a path, or `@` followed by an abstract name.
    ///
    /// # Errors
    /// If the name is invalid.
    pub(crate) fn at(name: &str) -> io::Result<Self> {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address })
    }

    /// Sends a notification. Ignores errors: the daemon must not stop because no one receives it.
    pub(crate) fn say(&self, words: &str) {
        let _ = self.socket.send_to_addr(words.as_bytes(), &self.address);
    }
}

/// Sends notifications as a source of the daemon's event loop, so that a loop that hangs sends no watchdog
/// notification.
pub(crate) struct Herald {
    notifier: Notifier,
    shared: Shared,
    /// The interval between watchdog notifications; `None` if systemd expects none.
    every: Option<Duration>,
    next: Option<Instant>,
    reported: Option<DaemonPhase>,
    reads: u64,
}

impl fmt::Debug for Herald {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Herald").field("every", &self.every).finish_non_exhaustive()
    }
}

impl Herald {
    /// Creates the source that notifies systemd of the daemon's state.
    pub(crate) fn new(notifier: Notifier, shared: Shared) -> Self {
        let micros = std::env::var("WATCHDOG_USEC").ok().and_then(|micros| micros.parse::<u64>().ok());
        let ours = std::env::var("WATCHDOG_PID").is_ok_and(|pid| pid == std::process::id().to_string());
        // Notify twice as often as systemd requires.
        let every = micros.filter(|_| ours).map(|micros| Duration::from_micros(micros / 2));
        Self { notifier, shared, every, next: every.map(|_| Instant::now()), reported: None, reads: 0 }
    }

    /// Notifies systemd of the changes since the last report.
    fn report(&mut self) {
        let (phase, reads, requests, settings) = {
            let status = self.shared.status();
            (status.phase, status.policy.reads, status.requests.len(), status.settings)
        };
        if phase == DaemonPhase::Starting || (self.reported == Some(phase) && self.reads == reads) {
            return;
        }
        (self.reported, self.reads) = (Some(phase), reads);
        self.notifier.say(&match phase {
            DaemonPhase::Ending => "STOPPING=1".to_owned(),
            DaemonPhase::Released => {
                "READY=1\nSTATUS=Everything was rolled back; reload to start over.".to_owned()
            }
            _ => format!("READY=1\nSTATUS={requests} requests, {settings} settings held."),
        });
    }
}

impl Source for Herald {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.notifier.socket.as_fd()
    }

    fn interest(&mut self) -> Interest {
        self.report();
        Interest { until: self.next, ..Interest::default() }
    }

    fn ready(&mut self, _ready: Ready, _registrar: &mut Registrar) -> Stay {
        if let Some(every) = self.every {
            self.notifier.say("WATCHDOG=1");
            self.next = Some(Instant::now() + every);
        }
        Stay::Stay
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn systemd_is_notified_of_readiness_once_it_manages_and_again_after_a_reload() {
        let directory = tempfile::TempDir::with_prefix("netpolicy-notify-").expect("a directory");
        let path = directory.path().join("socket");
        let systemd = UnixDatagram::bind(&path).expect("a socket");
        systemd.set_nonblocking(true).expect("no waiting");
        let received = || {
            let mut bytes = [0; 256];
            systemd.recv(&mut bytes).ok().map(|length| String::from_utf8_lossy(&bytes[..length]).into_owned())
        };
        let notifier = Notifier::at(&path.to_string_lossy()).expect("an address");
        let shared = Shared::new().expect("descriptors");
        let mut herald = Herald::new(notifier, shared.clone());
        herald.interest();
        assert_eq!(received(), None, "the daemon has not converged");
        shared.update(|status| status.phase = DaemonPhase::Managing);
        herald.interest();
        assert!(received().is_some_and(|words| words.starts_with("READY=1\n")));
        herald.interest();
        assert_eq!(received(), None, "once");
        shared.update(|status| status.policy.reads += 1);
        herald.interest();
        assert!(received().is_some());
        shared.update(|status| status.phase = DaemonPhase::Ending);
        herald.interest();
        assert_eq!(received().as_deref(), Some("STOPPING=1"));
    }
}
