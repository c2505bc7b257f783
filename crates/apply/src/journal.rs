//! All transactions of a host, in one directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::{Pid, Plan};

use crate::attendance::{Attendance, attends, own_pid};
use crate::held::Pending;
use crate::knobs::Landmarks;
use crate::lock::{LOCK_RETRIES_MAX, LOCK_RETRY_AFTER, Lock};
use crate::log::{JournalError, Log, UNBORN, create_directory, io_error};
use crate::record::{Asked, Begin, FORMAT};
use crate::transaction::{Standing, Transaction, TransactionName};
use crate::undo_script::undo_script;

/// The directory that has the transactions: `/var/lib/netpolicy/journal`, unless told otherwise.
///
/// Each is a directory with a journal and an undo script. A directory appears when its transaction has begun,
/// and with the whole plan in it; it is never changed but by lines added to its journal.
#[derive(Clone, Debug)]
pub struct Journal {
    directory: PathBuf,
    boot_id: String,
    lock_retries_max: u32,
    attendance: Option<Arc<Attendance>>,
}

/// All transactions that there are.
#[derive(Debug, Default)]
pub struct History {
    /// Those that can be read, the oldest first.
    pub transactions: Vec<Transaction>,
    /// Those that cannot.
    pub unreadable: Vec<Unreadable>,
}

/// A transaction whose journal cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unreadable {
    /// The transaction.
    pub name: TransactionName,
    /// What is wrong with its journal.
    pub error: JournalError,
}

impl Journal {
    /// The journal in this directory, as seen from this boot (`/proc/sys/kernel/random/boot_id`). Opens nothing.
    pub fn new(directory: impl Into<PathBuf>, boot_id: impl Into<String>) -> Self {
        let boot_id = boot_id.into().trim().to_owned();
        Self { directory: directory.into(), boot_id, lock_retries_max: LOCK_RETRIES_MAX, attendance: None }
    }

    /// The same journal, waiting for another writer for this long instead of five seconds.
    #[must_use]
    pub fn waiting(mut self, for_at_most: Duration) -> Self {
        let retries = for_at_most.as_nanos() / LOCK_RETRY_AFTER.as_nanos();
        self.lock_retries_max = u32::try_from(retries).unwrap_or(u32::MAX);
        self
    }

    /// The same journal, for a program that puts its transactions back at its end: as long as this journal, or a clone
    /// of it, lives, no other program changes what they have changed, or rolls them back.
    ///
    /// # Errors
    /// If the sign of it cannot be made in the directory, or another process is writing.
    pub fn attending(self) -> Result<Self, JournalError> {
        let lock = self.lock()?;
        let attendance = Some(Arc::new(Attendance::begin(&lock, &self.directory)?));
        Ok(Self { attendance, ..self })
    }

    /// The other program that will put this transaction back at its end, if there is one.
    pub fn attendant(&self, transaction: &Transaction) -> Option<Pid> {
        transaction.begin().attended_by.filter(|program| attends(&self.directory, *program))
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The process that is writing a transaction right now, if one is.
    pub fn writer(&self) -> Option<Pid> {
        Lock::holder(&self.lock_file())
    }

    /// Reads a transaction.
    ///
    /// # Errors
    /// If there is none of this name, or its journal is not what was written.
    pub fn transaction(&self, name: TransactionName) -> Result<Transaction, JournalError> {
        let directory = self.directory.join(name.to_string());
        if !directory.is_dir() {
            return Err(JournalError::NoSuchTransaction { name, directory: self.directory.clone() });
        }
        Transaction::read(name, &directory, &self.boot_id)
    }

    /// Reads all transactions.
    ///
    /// # Errors
    /// If the directory cannot be read. A journal without a directory is one without transactions.
    pub fn history(&self) -> Result<History, JournalError> {
        let mut history = History::default();
        for name in self.names()? {
            match self.transaction(name) {
                Ok(transaction) => history.transactions.push(transaction),
                Err(error) => history.unreadable.push(Unreadable { name, error }),
            }
        }
        Ok(history)
    }

    /// Removes the oldest transactions that are rolled back or of an earlier boot, until this many of them are
    /// left. Those that may still be in force stay, and so does what cannot be read. Gives how many went.
    ///
    /// # Errors
    /// If another process is writing, or a directory cannot be removed.
    pub fn forget_all_but(&self, keep: usize) -> Result<usize, JournalError> {
        let _lock = self.lock()?;
        let settled: Vec<Transaction> =
            self.history()?.transactions.into_iter().filter(|t| !t.standing().is_live()).collect();
        let surplus = settled.len().saturating_sub(keep);
        for transaction in &settled[..surplus] {
            // Renamed first, so that a kill half way leaves no transaction without its journal.
            let unborn = self.directory.join(format!("{UNBORN}{}", transaction.name()));
            fs::rename(transaction.directory(), &unborn)
                .map_err(io_error(transaction.directory(), "remove"))?;
            fs::remove_dir_all(&unborn).map_err(io_error(&unborn, "remove"))?;
        }
        Ok(surplus)
    }

    /// The transactions that may be in force, the newest first.
    pub(crate) fn live(&self) -> Result<Vec<Transaction>, JournalError> {
        let all = self.history()?.transactions;
        Ok(all.into_iter().rev().filter(|t| t.standing().is_live()).collect())
    }

    /// Takes the right to write.
    pub(crate) fn lock(&self) -> Result<Lock, JournalError> {
        create_directory(&self.directory)?;
        Lock::take(&self.lock_file(), self.lock_retries_max)
    }

    /// Begins a transaction, under the lock: when this returns, all it takes to undo it is on disk.
    pub(crate) fn begin(
        &self,
        lock: &Lock,
        asked: &Asked,
        plan: Plan,
        landmarks: Landmarks,
    ) -> Result<Pending, JournalError> {
        self.sweep(lock)?;
        let newest = self.names()?.last().copied();
        // Enough to tell programs apart that begin in the same microsecond; the lock does the rest.
        let tag = u16::try_from(std::process::id() & 0xffff).unwrap_or(0);
        let name = TransactionName::after(newest, asked.at, tag);
        let begin = Begin {
            format: FORMAT,
            boot_id: self.boot_id.clone(),
            asked: asked.clone(),
            attended_by: self.attendance.as_ref().map(|_| own_pid()),
            landmarks,
            plan,
        };
        let script = undo_script(name, &begin);
        let plan = begin.plan.clone();
        let log = Log::create(&self.directory, name, Box::new(begin), &script)?;
        Ok(Pending::begun(name, log, plan))
    }

    /// Removes what a writer left behind that was killed before its transaction had begun.
    fn sweep(&self, lock: &Lock) -> Result<(), JournalError> {
        for entry in fs::read_dir(&self.directory).map_err(io_error(&self.directory, "read"))? {
            let entry = entry.map_err(io_error(&self.directory, "read"))?;
            if entry.file_name().to_string_lossy().starts_with(UNBORN) {
                fs::remove_dir_all(entry.path()).map_err(io_error(&entry.path(), "remove"))?;
            }
            Attendance::sweep(lock, &entry.path());
        }
        Ok(())
    }

    /// The names of all transactions, the oldest first.
    fn names(&self) -> Result<Vec<TransactionName>, JournalError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error(&self.directory, "read")(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(io_error(&self.directory, "read"))?;
            names.extend(entry.file_name().to_str().and_then(|n| n.parse::<TransactionName>().ok()));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn lock_file(&self) -> PathBuf {
        self.directory.join("lock")
    }
}

impl History {
    /// The newest transaction whose changes may be in force: what `rollback` without a name takes back.
    pub fn newest_live(&self) -> Option<&Transaction> {
        self.transactions.iter().rev().find(|t| t.standing().is_live())
    }

    /// A transaction that cannot be read and is newer than this one, or any if there is none: it may be in force, and
    /// may have changed what this one did.
    pub fn unreadable_after(&self, name: Option<TransactionName>) -> Option<&Unreadable> {
        self.unreadable.iter().rev().find(|unreadable| name.is_none_or(|name| unreadable.name > name))
    }

    /// Those that stopped half way: killed, unless a writer is still at it.
    pub fn unfinished(&self) -> impl Iterator<Item = &Transaction> {
        self.transactions.iter().filter(|t| t.standing() == Standing::Unfinished)
    }
}
