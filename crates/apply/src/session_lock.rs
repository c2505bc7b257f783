//! Locks for programs that own their transactions while they run.
//!
//! A kept transaction stays in force until a user rolls it back, so other programs may build on it. A
//! transaction that a running command owns ends when the command exits, which no other program can predict.
//! If a second program changed the same knobs, it would later lose part of its settings, or the owner could
//! not restore its old values. Therefore other programs may not change these knobs until the owner exits.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use model::Pid;
use rustix::fs::{FlockOperation, flock};

use crate::lock::{LOCK_RETRY_AFTER, Lock};
use crate::log::{JournalError, io_error};
use crate::regular;

/// The prefix of a lock file's name; the owner's pid follows.
const PREFIX: &str = "attended-by-";

/// The maximum number of attempts to acquire the lock. An attempt fails while another process tests whether
/// the lock is held.
const RETRIES_MAX: u32 = 50;

/// What a program does on exit with the transactions that it owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtExit {
    /// The program rolls its transactions back. If it is killed, they are
    /// [abandoned](crate::Journal::abandoned).
    RollBack,
    /// The program leaves its transactions in force, and owns them until it exits.
    Leave,
}

/// A lock on a file named after this process, held while the process owns transactions. The kernel releases
/// the lock when the process exits, for any reason; its transactions then have no owner.
#[derive(Debug)]
pub(crate) struct SessionLock {
    path: PathBuf,
    /// The locked file, which is open only to hold the lock.
    _file: File,
}

impl SessionLock {
    /// Acquires the lock for this process.
    pub(crate) fn take(_lock: &Lock, journal: &Path) -> Result<Self, JournalError> {
        let path = lock_file(journal, own_pid());
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = regular::open(&path, &mut options).map_err(io_error(&path, "open"))?;
        for _ in 0..RETRIES_MAX {
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok(Self { path, _file: file });
            }
            thread::sleep(LOCK_RETRY_AFTER);
        }
        Err(io_error(&path, "lock")(std::io::ErrorKind::WouldBlock.into()))
    }

    /// Removes `path` if it is the lock file of a program that was killed. The caller holds the journal's
    /// lock, and so does any process in [`take`](Self::take). Therefore a new lock file that is not locked
    /// yet cannot be mistaken for a stale one.
    pub(crate) fn sweep(_lock: &Lock, path: &Path) {
        let is_stale = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix(PREFIX)?.parse().ok())
            .is_some_and(|program| {
                path.parent().is_some_and(|journal| !is_held(journal, Pid(program)))
                    && Pid(program) != own_pid()
            });
        if is_stale {
            let _best_effort = fs::remove_file(path);
        }
    }
}

impl Drop for SessionLock {
    fn drop(&mut self) {
        // An unlocked file means nothing, so it is harmless if the removal fails.
        let _best_effort = fs::remove_file(&self.path);
    }
}

/// Whether this program is another process that is running and holds its lock.
pub(crate) fn is_held(journal: &Path, program: Pid) -> bool {
    program != own_pid()
        && regular::open_to_read(&lock_file(journal, program))
            .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

/// The pid of this process.
pub(crate) fn own_pid() -> Pid {
    Pid(std::process::id())
}

fn lock_file(journal: &Path, program: Pid) -> PathBuf {
    journal.join(format!("{PREFIX}{program}"))
}
