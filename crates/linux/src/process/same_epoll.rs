//! Determines whether two processes share an epoll: a child inherits its parent's epolls.

use model::EpollId;

/// Whether two ids refer to the same epoll. False if the kernel does not report that (`CONFIG_KCMP`), or if
/// one of the epolls is gone.
pub fn same_epoll(a: EpollId, b: EpollId) -> bool {
    match crate::attach::inspector() {
        Some(inspector) => inspector.same_epoll(a, b),
        None => is_same_epoll(a, b),
    }
}

/// Like [`same_epoll`], but always compares in this process. The call blocks while one of the two processes
/// executes another program.
///
/// Kernel: 6.18, `kernel/kcmp.c` `kcmp_lock()`.
pub fn is_same_epoll(a: EpollId, b: EpollId) -> bool {
    crate::attach::begin_with(a.process.pid);
    let name = |id: EpollId| (id.process.pid.0, id.fd.0);
    a == b || sys::kcmp::same_file(name(a), name(b)).unwrap_or(false)
}
