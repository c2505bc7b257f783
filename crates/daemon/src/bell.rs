//! What threads share: a bell that wakes another thread's loop, and locks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Wakes the loop that watches it. It says that there is something, and not how often.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    /// A bell that has not rung.
    ///
    /// # Errors
    /// The kernel's, when there are no descriptors left.
    pub(crate) fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Wakes the loop, now or when it waits again.
    pub(crate) fn ring(&self) {
        // A counter that is full says the same.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Takes note: the loop is not woken again until it rings again.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Locks a mutex, also one whose holder panicked: no state here is left half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
