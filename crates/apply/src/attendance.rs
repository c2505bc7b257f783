//! Programs that attend to their transactions, and put them back at their end.
//!
//! What is kept stays until somebody rolls it back, and then anybody may build upon it. What is attended goes at a
//! moment that nobody else knows: a second program that changed the same knobs meanwhile would be left with half of
//! its settings, and the first one could not put back its own. So nobody else touches attended knobs.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use model::Pid;
use rustix::fs::{FlockOperation, flock};

use crate::lock::{LOCK_RETRY_AFTER, Lock};
use crate::log::{JournalError, io_error};
use crate::regular;

/// How the name of a sign begins; the number of the program follows.
const SIGN: &str = "attended-by-";

/// How often an attendance is begun again that somebody is looking at right now.
const RETRIES_MAX: u32 = 50;

/// What a program that attends to its transactions does with them at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtTheEnd {
    /// It puts them back. If it is killed, they are [abandoned](crate::Journal::abandoned).
    PutBack,
    /// It leaves them in force. Until then they are its own all the same.
    Leave,
}

/// The sign that a program attends to its transactions: a lock on a file that is named after it. The kernel takes the
/// lock back when the program ends, however it ends; then its transactions are as free as any.
#[derive(Debug)]
pub(crate) struct Attendance {
    /// What it does with its transactions at its end.
    pub(crate) at_the_end: AtTheEnd,
    path: PathBuf,
    /// Held for its lock.
    _file: File,
}

impl Attendance {
    /// Begins to attend, as this process.
    pub(crate) fn begin(_lock: &Lock, journal: &Path, at_the_end: AtTheEnd) -> Result<Self, JournalError> {
        let path = sign(journal, own_pid());
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = regular::open(&path, &mut options).map_err(io_error(&path, "open"))?;
        for _ in 0..RETRIES_MAX {
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok(Self { at_the_end, path, _file: file });
            }
            thread::sleep(LOCK_RETRY_AFTER);
        }
        Err(io_error(&path, "lock")(std::io::ErrorKind::WouldBlock.into()))
    }

    /// Removes what programs left behind that were killed. Whoever calls this has the journal's lock, and so has whoever
    /// begins to attend: a sign is not taken for one that was left behind before it is locked.
    pub(crate) fn sweep(_lock: &Lock, path: &Path) {
        let left_behind = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix(SIGN)?.parse().ok())
            .is_some_and(|program| {
                path.parent().is_some_and(|journal| !attends(journal, Pid(program)))
                    && Pid(program) != own_pid()
            });
        if left_behind {
            let _courtesy = fs::remove_file(path);
        }
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        // What is left behind is a file without a lock, which says nothing.
        let _courtesy = fs::remove_file(&self.path);
    }
}

/// Whether a program other than this one attends to its transactions.
pub(crate) fn attends(journal: &Path, program: Pid) -> bool {
    program != own_pid()
        && regular::open_to_read(&sign(journal, program))
            .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

/// This process, by its number.
pub(crate) fn own_pid() -> Pid {
    Pid(std::process::id())
}

fn sign(journal: &Path, program: Pid) -> PathBuf {
    journal.join(format!("{SIGN}{program}"))
}
