//! The server of the attach service, which runs with privileges.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apply::Knobs;
use linux::peer::UnixPeer;
use linux::process::{Criteria, find_each, holders_of_each};
use linux::{Kernel, Netns, Processes, attach};
use model::{Pid, Setting};
use session::{Exit, Fault, Operator};

use super::{Answer, CRITERIA_MAX, REQUEST_BYTES_MAX, Request};
use crate::api::wire::encode;
use crate::notify::Notifier;
use crate::socket_file;

/// The maximum number of concurrent connections. The daemon has one connection; commands connect
/// occasionally.
const CLIENTS_MAX: usize = 4;

/// How long a client may take to send a complete request or to read an answer. Between requests, a connection
/// may be idle.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves clients until the process is killed.
///
/// # Errors
/// If the socket is in use, or no socket can be created at the path.
pub fn run(path: &Path, operator: &dyn Operator) -> Result<Exit, Fault> {
    let listener = socket_file::listen(path, 0o600)?;
    if let Ok(Some(notifier)) = Notifier::of_environment() {
        notifier.say("READY=1");
    }
    operator.say(&format!("netpolicy attach-service: at work on {}", path.display()));
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        let Ok(peer) = UnixPeer::of(&stream) else { continue };
        let who = format!("uid {} (pid {})", peer.uid, peer.pid);
        if peer.uid != 0 {
            operator.say(&format!("{who} was rejected: only root is served"));
            continue;
        }
        if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
            clients.fetch_sub(1, Ordering::Relaxed);
            operator.say(&format!("{who} was rejected: connection limit reached ({CLIENTS_MAX})"));
            continue;
        }
        let place = AttachSlot(Arc::clone(&clients));
        let serve = move || {
            // Ignore a broken connection: the client will reconnect.
            let _ = serve(stream, &peer);
            drop(place);
        };
        // If the thread cannot be started, dropping the closure releases the connection's place in the limit.
        let _ = std::thread::Builder::new().spawn(serve);
    }
    Ok(Exit::Done)
}

/// A connection that counts towards the limit. Dropping this value releases its place.
struct AttachSlot(Arc<AtomicUsize>);

impl Drop for AttachSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve(mut stream: UnixStream, peer: &UnixPeer) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut kernel = Kernel::new();
    let mut rest: Vec<u8> = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = rest.iter().position(|&byte| byte == 0) {
                break end;
            }
            if rest.len() > REQUEST_BYTES_MAX {
                return Ok(());
            }
            stream.set_read_timeout((!rest.is_empty()).then_some(PATIENCE))?;
            let mut part = [0; 4096];
            match stream.read(&mut part)? {
                0 => return Ok(()),
                length => rest.extend_from_slice(&part[..length]),
            }
        };
        let after = rest.split_off(end + 1);
        let message = std::mem::replace(&mut rest, after);
        let Ok(request) = serde_json::from_slice(&message[..end]) else { return Ok(()) };
        stream.write_all(&encode(&answered(request, peer, &mut kernel)))?;
    }
}

/// Handles a request. The service can do nothing else.
fn answered(request: Request, peer: &UnixPeer, kernel: &mut Kernel) -> Answer {
    let failed = |error: linux::KernelError| Answer::Failed(error.into());
    let refused = |setting: &Setting| {
        failed(linux::KernelError::absent(setting.to_string(), "a setting of an epoll or an io_uring", None))
    };
    match request {
        Request::Processes { netns, only } => match netns_of(netns, peer) {
            Err(error) => failed(error),
            Ok(netns) => {
                let which = only.map_or(Processes::Networking, Processes::Only);
                let mut unread = Vec::new();
                let found = linux::observe::processes(&netns, &which, &mut unread);
                Answer::Processes { found, unread }
            }
        },
        Request::Find { wanted, only } => {
            let all: Vec<Criteria> = wanted.into_iter().take(CRITERIA_MAX).map(Into::into).collect();
            find_each(&all, only).map_or_else(failed, Answer::Found)
        }
        Request::Holders(inodes) => match holders_of_each(&inodes) {
            Ok(pids) => Answer::Holders(pids),
            Err(error) => failed(error),
        },
        Request::Read(like) if !attach::is_inside_a_process(&like) => refused(&like),
        Request::Write(setting) if !attach::is_inside_a_process(&setting) => refused(&setting),
        Request::Read(like) => match kernel.read(&[like]).map(|mut found| found.pop()) {
            Ok(Some(value)) => Answer::Value(value),
            Ok(None) => failed(linux::KernelError::malformed("a knob", "nothing was read")),
            Err(error) => failed(error),
        },
        Request::Write(setting) => match kernel.write(&[setting]) {
            Ok(()) => Answer::Written,
            Err(error) => failed(error),
        },
    }
}

/// Returns the network namespace with this inode number, which must be the service's own or the client's.
fn netns_of(wanted: u64, peer: &UnixPeer) -> Result<Netns, linux::KernelError> {
    let own = Netns::own()?;
    if own.id().0 == wanted {
        return Ok(own);
    }
    if peer.pid == Pid(0) {
        let why =
            "the caller is in another pid namespace, and in another network namespace than this service";
        return Err(linux::KernelError::gone(format!("network namespace {wanted}"), why));
    }
    let theirs = Netns::of_process(peer.pid)?;
    if theirs.id().0 == wanted {
        return Ok(theirs);
    }
    Err(linux::KernelError::gone(
        format!("network namespace {wanted}"),
        "the namespace differs from the caller's",
    ))
}
