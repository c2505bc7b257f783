//! The first process of a pid namespace, which does nothing but live as long as its lifeline is held open.
#![expect(unsafe_code, reason = "unshare(2) and fork(2) have no safe wrappers")]

use std::os::fd::{AsFd, AsRawFd};

use model::Pid;
use rustix::io::Errno;

/// Gives the calling thread a network namespace of its own. Other threads stay where they are.
pub fn unshare_network() -> Result<(), Errno> {
    // SAFETY: takes no pointers, and changes nothing that other threads share with this one.
    super::answer::done(unsafe { libc::unshare(libc::CLONE_NEWNET) }.into())
}

/// Starts the first process of a new pid namespace. It keeps the calling thread's other namespaces and nothing else
/// of this process but `lifeline`, the reading end of a pipe: when the writing end is closed, it ends,
/// and the kernel kills everything else in the pid namespace, under any user.
///
/// The calling thread can start no threads from then on, and its child processes begin in the new namespace.
pub fn fork_first_of_pid_namespace(lifeline: impl AsFd) -> Result<Pid, Errno> {
    // SAFETY: takes no pointers. It changes where this thread's next children begin, and nothing else.
    super::answer::done(unsafe { libc::unshare(libc::CLONE_NEWPID) }.into())?;
    let lifeline = lifeline.as_fd().as_raw_fd();
    // SAFETY: the child calls only functions that are async-signal-safe, as it must with locks of other threads
    // frozen in whatever state they were, and it never returns.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => keep(lifeline),
        _ => {
            super::answer::done(pid.into())?;
            u32::try_from(pid).map(Pid).map_err(|_| Errno::SRCH)
        }
    }
}

/// What that process does until its lifeline closes.
fn keep(lifeline: libc::c_int) -> ! {
    // SAFETY: every pointer is to a live local or to a string with its closing zero; `sigfillset` initialises the set
    // before it is used. All of these calls are async-signal-safe.
    unsafe {
        // Signals that end the process that started us are not for us: its end is what we wait for.
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
        // Orphans of the namespace become our children; their exit status is not needed.
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::prctl(libc::PR_SET_NAME, c"netpolicy-lab".as_ptr());
        if lifeline != 0 && libc::dup2(lifeline, 0) < 0 {
            libc::_exit(1);
        }
        if libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0) < 0 {
            libc::_exit(1);
        }
        let mut byte = 0_u8;
        // Nothing is ever written: the pipe is read to its end. Signals are blocked, so nothing else ends the wait.
        while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
        libc::_exit(0)
    }
}
