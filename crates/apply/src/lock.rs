//! The journal's write lock.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use model::Pid;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::log::JournalError;
use crate::regular;

/// The interval between attempts to acquire the lock.
pub const LOCK_RETRY_AFTER: Duration = Duration::from_millis(20);
/// The maximum number of retries, which limits the wait to 5 seconds.
pub const LOCK_RETRIES_MAX: u32 = 250;

/// The maximum number of bytes to read from the lock file. A pid has at most 10 digits.
const HOLDER_BYTES_MAX: u64 = 32;

/// The journal's write lock. It is held from the checks of a plan until the transaction is decided, and while
/// a transaction is rolled back or confirmed. The kernel releases it when the process exits for any reason.
///
/// A `flock(2)` on a file that contains the holder's pid. The file is never removed, because two processes
/// could then hold the lock, one on the removed file and one on a new one.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    /// Acquires the lock. If another process holds it, retries at most `retries_max` times.
    pub(crate) fn take(path: &Path, retries_max: u32) -> Result<Self, JournalError> {
        let failed = |doing| move |source| JournalError::Io { file: path.to_owned(), doing, source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = match regular::open(path, &mut options) {
            // A file on a read-only file system can still be locked.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => regular::open_to_read(path),
            file => file,
        }
        .map_err(failed("open"))?;
        let mut retries = 0;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) if retries < retries_max => {
                    retries += 1;
                    thread::sleep(LOCK_RETRY_AFTER);
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    let waited = LOCK_RETRY_AFTER * retries_max;
                    return Err(JournalError::Busy { holder: holder(&mut file), waited });
                }
                Err(errno) => return Err(failed("lock")(errno.into())),
            }
        }
        // The pid is only for messages: failing to write it, as on a full disk, must not prevent an undo.
        let _best_effort =
            file.set_len(0).and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
        Ok(Self { file })
    }

    /// Returns the process that holds the lock, or `None` if the lock is free or its file cannot be read.
    pub(crate) fn holder(path: &Path) -> Option<Pid> {
        let mut file = regular::open_to_read(path).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => holder(&mut file),
            Ok(()) | Err(_) => None,
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Clears the pid. The kernel releases the lock itself when the descriptor is closed.
        let _best_effort = self.file.set_len(0);
    }
}

fn holder(file: &mut File) -> Option<Pid> {
    let mut text = String::new();
    file.take(HOLDER_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok().map(Pid)
}
