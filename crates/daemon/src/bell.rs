//! An eventfd that wakes another thread's event loop, and a function that locks a mutex regardless of
//! poisoning.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// An eventfd that wakes the event loop in which it is watched.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    /// Creates a bell that has not been rung.
    ///
    /// # Errors
    /// The kernel's error if no descriptors are left.
    pub(crate) fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Wakes the event loop, now or when it next waits.
    pub(crate) fn ring(&self) {
        // The write fails only if the counter is full; the loop is then woken anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Resets the bell, so that only the next ring wakes the loop.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Locks a mutex even if a thread panicked while it held the mutex: no panic in this crate leaves the data
/// inconsistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
