//! `bench serve --listen --token`: waits for clients; a separate process serves each client.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command};

use linux::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use session::{Exit, Fault};

use super::token::Token;
use crate::Context;

/// The maximum number of simultaneous connections. Only one client measures; the others are refused, or not
/// authenticated yet.
const CONNECTIONS_MAX: usize = 8;

/// How often exited processes are reaped.
const REAP_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The option with which this program is started for each connection.
pub(crate) const ACCEPTED: &str = "--accepted";

/// Waits for clients until a signal arrives, and then ends the processes that serve them.
pub(crate) fn listen(context: &Context<'_>, address: SocketAddr, token: &Path) -> Result<Exit, Fault> {
    // Check the token early. Each child process reads it again.
    Token::read(token)?;
    (context.refuse_beside_daemon)(context.session)?;
    let mut signals = Signals::catch()?;
    let failed = |error| Fault::file(address.to_string(), error);
    let listener = context.session.netns()?.run(|| TcpListener::bind(address))?.map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let own = listener.local_addr().map_err(failed)?;
    context.console.say(&format!("Waiting for clients with the token on {own}; press Ctrl-C to stop."));
    let mut children: Vec<Child> = Vec::new();
    while signals.take().is_none() {
        let mut polled =
            [PollFd::new(&listener, PollFlags::IN), PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        match poll(&mut polled, Some(&REAP_EVERY)) {
            Err(errno) if errno.kind() != std::io::ErrorKind::Interrupted => {
                return Err(failed(errno.into()));
            }
            Ok(_) | Err(_) => {}
        }
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        // The client may disconnect before it is accepted.
        let Ok((stream, client)) = listener.accept() else { continue };
        if children.len() >= CONNECTIONS_MAX {
            context.console.say(&format!("{client} was refused: there are {CONNECTIONS_MAX} connections."));
            continue;
        }
        match start(stream) {
            Ok(child) => children.push(child),
            Err(error) => context.console.say(&format!("{client} was refused: {error}")),
        }
    }
    for child in &children {
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    // Wait for the child processes, each of which restores the host before it exits.
    for mut child in children {
        let _ = child.wait();
    }
    Ok(Exit::Done)
}

/// Starts this program again for a connection, with the same options.
fn start(stream: TcpStream) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).arg(ACCEPTED);
    let stream = OwnedFd::from(stream);
    command.stdin(stream.try_clone()?).stdout(stream).spawn()
}
