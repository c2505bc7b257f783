//! Runs a command as a child process: forwards signals to the command, and returns its exit code.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use linux::Arrived;

/// Forwards a signal to the command, unless a terminal has already sent the signal to the whole process
/// group.
pub fn forward(child: &Child, arrived: Arrived) {
    if arrived.to_group {
        return;
    }
    let signal = match arrived.signal {
        linux::Signal::Interrupt => rustix::process::Signal::INT,
        linux::Signal::Terminate => rustix::process::Signal::TERM,
        linux::Signal::HangUp => rustix::process::Signal::HUP,
    };
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // This cannot hit another process: if the command exits now, its pid is reserved until `try_wait`
        // reaps it.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Returns the command's exit code, or 128 plus the number of the signal that killed it, as a shell does.
#[must_use]
pub fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}
