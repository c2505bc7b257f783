//! One epoll under two names: a process that forks leaves its epolls to its children.

use model::EpollId;

/// Whether two names are of one epoll. False where the kernel does not say (`CONFIG_KCMP`), and where one of them is gone.
pub fn same_epoll(a: EpollId, b: EpollId) -> bool {
    let name = |id: EpollId| (id.process.pid.0, id.fd.0);
    a == b || sys::kcmp::same_file(name(a), name(b)).unwrap_or(false)
}
