//! Starts a child in another network namespace, and kills it when the thread that started it exits.
#![expect(unsafe_code, reason = "code between fork and exec has no safe wrapper")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;

/// Makes the command start in this network namespace, if one is given, and makes the kernel kill the command
/// when the thread that started it exits. The kernel no longer kills a command that has changed its user or
/// executed a setuid program.
pub fn bind(command: &mut Command, netns: Option<OwnedFd>) {
    let parent = std::process::id();
    // SAFETY: the closure only makes system calls, which are async-signal-safe, and allocates nothing: an
    // error from an errno needs no memory.
    unsafe {
        command.pre_exec(move || {
            if let Some(netns) = &netns {
                done(libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET))?;
            }
            done(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0))?;
            // If the parent exited before the line above, the kernel never sends the signal, so fail.
            if u32::try_from(libc::getppid()) == Ok(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
        });
    }
}

/// Closes all descriptors except standard input, output and error. A program that may have inherited unwanted
/// descriptors calls this when it starts. No object in this process may own a descriptor that is closed.
///
/// Kernel: 5.9; older kernels close nothing.
pub fn close_inherited() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: takes numbers and no pointers. Nothing in this process owns a descriptor yet, as the caller
    // guarantees.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0);
    }
}

fn done(answer: libc::c_int) -> std::io::Result<()> {
    super::answer::done(answer.into()).map_err(std::io::Error::from)
}
