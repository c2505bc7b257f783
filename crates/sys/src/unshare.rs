//! Starts the init process of a pid namespace, which only waits until the pipe that keeps it alive is closed.
#![expect(unsafe_code, reason = "unshare(2) and fork(2) have no safe wrappers")]

use std::os::fd::{AsFd, AsRawFd};

use model::Pid;
use rustix::io::Errno;

/// Moves the calling thread to a new network namespace. Other threads are not affected.
pub fn unshare_network() -> Result<(), Errno> {
    // SAFETY: takes no pointers, and changes nothing that other threads share with this one.
    super::answer::done(unsafe { libc::unshare(libc::CLONE_NEWNET) }.into())
}

/// Starts the init process of a new pid namespace. The process stays in the calling thread's other
/// namespaces, and closes all inherited descriptors except `lifeline`, the read end of a pipe. When the write
/// end is closed, the process exits, and the kernel kills all other processes in the pid namespace, even
/// those of other users.
///
/// Afterwards, the calling thread cannot start threads, and its child processes start in the new namespace.
pub fn fork_first_of_pid_namespace(lifeline: impl AsFd) -> Result<Pid, Errno> {
    // SAFETY: takes no pointers. It only affects where this thread's later children start.
    super::answer::done(unsafe { libc::unshare(libc::CLONE_NEWPID) }.into())?;
    let lifeline = lifeline.as_fd().as_raw_fd();
    // SAFETY: the child never returns, and calls only async-signal-safe functions, as it must: locks of other
    // threads may be held.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => keep(lifeline),
        _ => {
            super::answer::done(pid.into())?;
            u32::try_from(pid).map(Pid).map_err(|_| Errno::SRCH)
        }
    }
}

/// Runs in the init process until its lifeline closes.
fn keep(lifeline: libc::c_int) -> ! {
    // SAFETY: every pointer is to a live local or to a NUL-terminated string; `sigfillset` initialises the
    // set before it is used. All calls are async-signal-safe.
    unsafe {
        // Block all signals, so that only the end of the lifeline ends this process.
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
        // Orphans in the namespace become children of this process. Their exit status is not needed, so let
        // the kernel reap them.
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::prctl(libc::PR_SET_NAME, c"netpolicy-lab".as_ptr());
        if lifeline != 0 && libc::dup2(lifeline, 0) < 0 {
            libc::_exit(1);
        }
        if libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0) < 0 {
            libc::_exit(1);
        }
        let mut byte = 0_u8;
        // Nothing is ever written to the pipe, so the read ends only at end-of-file. Signals cannot interrupt
        // it, because they are blocked.
        while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
        libc::_exit(0)
    }
}
