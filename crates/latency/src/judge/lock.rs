//! Ensures that only one comparison runs at a time in a network namespace.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;

use linux::Netns;
use linux::peer::UnixPeer;
use model::NetnsId;
use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use session::{Exit, Fault, Session};

/// The name of the socket that locks a namespace. The name does not depend on the state directory: a
/// comparison with another state directory would record this comparison's candidate as the original state.
const NAME: &[u8] = b"netpolicy/comparison";

/// The user whose lock counts. Any other user can bind the name, too.
const ROOT: u32 = 0;

/// A lock that permits this process to alternate the settings of a network namespace. Two comparisons would
/// disturb each other's windows, even without shared queues. All clones hold the same lock. The kernel
/// releases the lock when the process exits.
#[derive(Clone, Debug)]
pub struct ComparisonLock {
    netns: NetnsId,
    /// The locked file, and the socket that holds the name; `None` if an unprivileged user has bound the
    /// name.
    #[expect(dead_code, reason = "kept open to hold the lock")]
    held: Arc<(File, Option<UnixListener>)>,
}

impl ComparisonLock {
    /// Acquires the lock.
    ///
    /// # Errors
    /// Exit 7, with the holder's pid, if another process holds the lock.
    pub fn take(session: &Session, netns: &Netns) -> Result<Self, Fault> {
        // Open the journal first: this checks who may write to the state directory.
        session.journal()?;
        std::fs::create_dir_all(&session.state_dir)
            .map_err(|error| Fault::file(&session.state_dir, error))?;
        let path = session.state_dir.join(format!("comparing-{}", netns.id().0));
        let failed = |error| Fault::file(&path, error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0));
        let mut file = options.open(&path).map_err(failed)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            file.read_to_string(&mut holder).map_err(failed)?;
            return Err(held_by(holder.trim()));
        }
        let listener = netns.run(listen)??;
        file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Self { netns: netns.id(), held: Arc::new((file, listener)) })
    }

    /// Whether this lock is the lock of the namespace.
    pub(crate) fn is_of(&self, netns: &Netns) -> bool {
        self.netns == netns.id()
    }
}

fn held_by(process: &str) -> Fault {
    let words =
        format!("process {process} is already comparing or guarding settings of this network namespace");
    Fault::new(Exit::Refused, words).hint(format!("wait until it exits, or stop it: kill {process}"))
}

/// Binds the name in the network namespace of this thread.
fn listen() -> Result<Option<UnixListener>, Fault> {
    let failed =
        |error: io::Error| Fault::failed(format!("cannot bind the socket that locks comparisons: {error}"));
    match UnixListener::bind_addr(&SocketAddr::from_abstract_name(NAME).map_err(failed)?) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => match holder() {
            Some(peer) if peer.uid != ROOT => Ok(None),
            Some(peer) => Err(held_by(&peer.pid.to_string())),
            // The holder has exited since, or the backlog of its socket is full.
            None => Err(Fault::new(
                Exit::Refused,
                "another process is already comparing or guarding settings of this network namespace",
            )
            .hint("wait until it exits; ss -xlp | grep netpolicy/comparison names it")),
        },
        Err(error) => Err(failed(error)),
    }
}

/// Returns the process that has bound the name in this thread's network namespace. Does not wait for the
/// process.
fn holder() -> Option<UnixPeer> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(NAME).ok()?).ok()?;
    UnixPeer::of(&socket).ok()
}
