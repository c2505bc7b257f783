//! Reads and sets the busy-poll parameters of single sockets of running processes.

use std::cell::OnceCell;
use std::os::fd::OwnedFd;

use bpf::EpollScanner;
use model::{ProcessKnob, Setting, SocketId, SocketPolling, since};
use rustix::io::Errno;
use sys::error::{Cause, KernelError};
use sys::sockopt;

use super::descriptors::{FdKind, duplicate_if};
use super::pinned::PinnedProcess;

thread_local! {
    /// Loaded when a socket's budget is first read, because loading takes longer than many reads.
    static SCANNER: OnceCell<Result<EpollScanner, KernelError>> = const { OnceCell::new() };
}

/// Reads the busy-poll parameters of a socket of a running process, without its budget.
///
/// # Errors
/// [`Cause::Gone`] if the process has exited or the descriptor is no longer that socket, [`Cause::Absent`] on
/// a kernel before 5.11, [`Cause::Denied`] without permission to inspect the process.
pub fn read_socket(id: &SocketId) -> Result<SocketPolling, KernelError> {
    copy(id).and_then(|socket| polling(&socket)).map_err(|cause| KernelError { what: what(id), cause })
}

/// Reads the budget of a socket's polls by BPF, because `getsockopt` does not report it. Requires no
/// permission to inspect the process.
///
/// # Errors
/// [`Cause::Gone`] if the process no longer has such a socket, [`Cause::Absent`] without kernel BTF;
/// otherwise the kernel's error.
pub fn read_socket_budget(id: &SocketId) -> Result<u16, KernelError> {
    SCANNER.with(|scanner| match scanner.get_or_init(EpollScanner::load) {
        Err(error) => Err(KernelError { what: format!("{}: its budget", what(id)), ..error.clone() }),
        Ok(scanner) => {
            let found = scanner.sockets(id.process.pid)?;
            let found = found.into_iter().find(|socket| socket.fd == id.fd && socket.inode == id.inode);
            found
                .map(|socket| socket.busy_poll_budget)
                .ok_or_else(|| KernelError::gone(what(id), "it was closed"))
        }
    })
}

/// Sets the busy-poll parameters of a socket of a running process. They take effect at the socket's next
/// receive.
///
/// # Errors
/// Those of [`read_socket`]; also [`Cause::Denied`] without CAP_NET_ADMIN.
pub fn write_socket(id: &SocketId, wanted: SocketPolling) -> Result<(), KernelError> {
    copy(id).and_then(|socket| set(&socket, wanted)).map_err(|cause| KernelError {
        what: Setting::Process(ProcessKnob::Socket(*id, wanted)).to_string(),
        cause,
    })
}

/// Reads the busy-poll parameters of a socket, without its budget, for observers who hold a copy of the
/// socket's descriptor.
pub(crate) fn polling(socket: &OwnedFd) -> Result<SocketPolling, Cause> {
    Ok(SocketPolling {
        busy_poll_usecs: sockopt::busy_poll(socket).map_err(absent_or)?,
        prefer_busy_poll: sockopt::prefer_busy_poll(socket).map_err(absent_or)?,
        busy_poll_budget: None,
    })
}

fn what(id: &SocketId) -> String {
    format!("{id}: so_busy_poll usecs/budget/prefer")
}

fn copy(id: &SocketId) -> Result<OwnedFd, Cause> {
    let process = PinnedProcess::reopen(&id.process)?;
    duplicate_if(&process, id.fd, FdKind::Socket(id.inode))
}

/// Sets the parameters in the order that `plan::order` explains: `SO_PREFER_BUSY_POLL` keeps interrupts
/// masked.
fn set(socket: &OwnedFd, wanted: SocketPolling) -> Result<(), Cause> {
    if let Some(budget) = wanted.busy_poll_budget {
        sockopt::set_busy_poll_budget(socket, budget).map_err(denied_or)?;
    }
    sockopt::set_prefer_busy_poll(socket, wanted.prefer_busy_poll).map_err(denied_or)?;
    sockopt::set_busy_poll(socket, wanted.busy_poll_usecs).map_err(denied_or)
}

fn denied_or(errno: Errno) -> Cause {
    match errno {
        Errno::PERM => {
            Cause::Denied { errno, needs: "CAP_NET_ADMIN in the initial user namespace".to_owned() }
        }
        other => absent_or(other),
    }
}

/// Converts the error of reading or setting a socket option. Kernel: 5.11, `net/core/sock.c`
/// `sk_getsockopt()`.
fn absent_or(errno: Errno) -> Cause {
    match errno {
        Errno::NOPROTOOPT => Cause::Absent {
            needs: "SO_PREFER_BUSY_POLL (CONFIG_NET_RX_BUSY_POLL)".to_owned(),
            since: Some(since::SOCKET_PREFER_BUSY_POLL),
        },
        other => Cause::Errno(other),
    }
}
