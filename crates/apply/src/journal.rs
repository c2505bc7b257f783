//! The journal: a directory that contains all transactions of a host.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::{Pid, Plan};

use crate::daemon_lock::DaemonLock;
use crate::held::OpenTransaction;
use crate::knobs::ObjectCookies;
use crate::lock::{LOCK_RETRIES_MAX, LOCK_RETRY_AFTER, Lock};
use crate::log::{JournalError, JournalFiles, UNBORN, create_directory, io_error};
use crate::record::{Begin, FORMAT, TransactionOrigin};
use crate::recorded::RecordedJournal;
use crate::session_lock::{AtExit, SessionLock, is_held, own_pid};
use crate::transaction::{Standing, Transaction};
use crate::transaction_name::TransactionName;
use crate::undo_script::undo_script;
use crate::unreadable::{Unreadable, whole_script};

/// The journal: a directory of transactions, by default `/var/lib/netpolicy/journal`.
///
/// Each transaction is a directory with a journal and an undo script. The directory appears, with the whole
/// plan in it, when its transaction begins. Afterwards, only lines are added to its journal.
#[derive(Clone, Debug)]
pub struct Journal {
    directory: PathBuf,
    boot_id: String,
    lock_retries_max: u32,
    session: Option<Arc<SessionLock>>,
    /// What this program does on exit with the transactions that it owns.
    at_exit: AtExit,
    daemon: Option<Arc<DaemonLock>>,
    recorded: Option<Arc<RecordedJournal>>,
}

/// All transactions.
#[derive(Debug, Default)]
pub struct History {
    /// The readable transactions, oldest first.
    pub transactions: Vec<Transaction>,
    /// The unreadable ones.
    pub unreadable: Vec<Unreadable>,
}

impl Journal {
    /// Creates a journal for this directory and this boot (`/proc/sys/kernel/random/boot_id`). Does not open
    /// any file yet.
    pub fn new(directory: impl Into<PathBuf>, boot_id: impl Into<String>) -> Self {
        let boot_id = boot_id.into().trim().to_owned();
        Self {
            directory: directory.into(),
            boot_id,
            lock_retries_max: LOCK_RETRIES_MAX,
            session: None,
            at_exit: AtExit::RollBack,
            daemon: None,
            recorded: None,
        }
    }

    /// Creates a journal from a recording. It can only be read. `boot_id` is the boot id of the recorded
    /// host.
    pub fn recorded(journal: Arc<RecordedJournal>, boot_id: impl Into<String>) -> Self {
        Self { recorded: Some(Arc::clone(&journal)), ..Self::new(journal.directory.clone(), boot_id) }
    }

    /// Sets how long to wait for another writer; the default is five seconds.
    #[must_use]
    pub fn waiting(mut self, for_at_most: Duration) -> Self {
        let retries = for_at_most.as_nanos() / LOCK_RETRY_AFTER.as_nanos();
        self.lock_retries_max = u32::try_from(retries).unwrap_or(u32::MAX);
        self
    }

    /// Makes this the journal of a command that owns its transactions until it exits. While this journal or a
    /// clone of it exists, other programs can neither change the knobs of these transactions nor roll the
    /// transactions back.
    ///
    /// # Errors
    /// If the lock file cannot be created in the directory, or another process is writing.
    pub fn owned_by_session(self, at_exit: AtExit) -> Result<Self, JournalError> {
        let lock = self.lock()?;
        let session = Some(Arc::new(SessionLock::take(&lock, &self.directory)?));
        Ok(Self { session, at_exit, ..self })
    }

    /// Returns a journal for transactions that stay in force when this program exits. If the program is
    /// killed while it commits such a transaction, the transaction is [abandoned](Self::abandoned).
    #[must_use]
    pub fn left_in_force(&self) -> Self {
        Self { at_exit: AtExit::Leave, ..self.clone() }
    }

    /// Makes this the daemon's journal. While this value or a clone of it exists, no other daemon can use the
    /// journal.
    ///
    /// The daemon's transactions are marked as such, so that the next daemon finds them. Reads are cached,
    /// because a daemon commits often: a settled transaction is read once, and a live one is read again only
    /// when its file has grown.
    ///
    /// # Errors
    /// [`JournalError::Kept`] if another daemon uses the journal.
    pub fn kept_by_this_daemon(self) -> Result<Self, JournalError> {
        create_directory(&self.directory)?;
        let daemon = Some(Arc::new(DaemonLock::take(&self.directory)?));
        self.remove_replaced(&self.lock()?)?;
        Ok(Self { daemon, ..self })
    }

    /// Returns the pid of the daemon that uses this journal, if any.
    pub fn daemon(&self) -> Option<Pid> {
        match &self.recorded {
            Some(recorded) => recorded.daemon,
            None => DaemonLock::holder(&self.directory),
        }
    }

    /// Returns the pid of another, running program that owns this transaction, if there is one.
    pub fn owner(&self, transaction: &Transaction) -> Option<Pid> {
        transaction.begin().owned_by.filter(|program| self.is_running(*program))
    }

    /// Whether this transaction's owner exited before it completed the transaction or rolled it back. Also
    /// true for live transactions of this process.
    pub fn is_abandoned(&self, transaction: &Transaction) -> bool {
        let Begin { owned_by: Some(program), left_in_force, .. } = transaction.begin() else {
            return false;
        };
        let standing = transaction.standing();
        standing.is_live()
            && (!left_in_force || standing == Standing::Unfinished)
            && !self.is_running(*program)
    }

    /// Whether a program that owns transactions is running.
    fn is_running(&self, program: Pid) -> bool {
        match &self.recorded {
            Some(recorded) => recorded.running.contains(&program),
            None => is_held(&self.directory, program),
        }
    }

    /// Returns the transactions that are [abandoned](Self::is_abandoned), newest first.
    ///
    /// # Errors
    /// As for [`Journal::history`].
    pub fn abandoned(&self) -> Result<Vec<Transaction>, JournalError> {
        let mut live = self.live()?;
        live.retain(|transaction| self.is_abandoned(transaction));
        Ok(live)
    }

    /// The journal's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the pid of the process that is writing a transaction, if any.
    pub fn writer(&self) -> Option<Pid> {
        Lock::holder(&self.lock_file())
    }

    /// Reads a transaction.
    ///
    /// # Errors
    /// If there is no transaction with this name, or its journal is damaged.
    pub fn transaction(&self, name: TransactionName) -> Result<Transaction, JournalError> {
        let directory = self.directory.join(name.to_string());
        if !directory.is_dir() {
            return Err(JournalError::NoSuchTransaction { name, directory: self.directory.clone() });
        }
        let read = Transaction::read(name, &directory, &self.boot_id);
        read.map_err(|error| JournalError::Unread {
            error: Box::new(error),
            script: whole_script(&directory),
        })
    }

    /// Reads all transactions of the journal.
    ///
    /// # Errors
    /// If the directory cannot be read. A missing directory is an empty journal.
    pub fn history(&self) -> Result<History, JournalError> {
        if let Some(recorded) = &self.recorded {
            return Ok(recorded.history(&self.boot_id));
        }
        let mut history = History::default();
        for name in self.names()? {
            match self.transaction(name) {
                Ok(transaction) => history.transactions.push(transaction),
                Err(error) => history.unreadable.push(self.unreadable(name, error)),
            }
        }
        remove_replaced_from(&mut history.transactions);
        Ok(history)
    }

    /// Removes the oldest of the transactions that are rolled back or from an earlier boot, so that at most
    /// `keep` of them remain. Does not remove transactions that may be in force, or unreadable ones. Returns
    /// the number of removed transactions.
    ///
    /// # Errors
    /// If another process is writing, or a directory cannot be removed.
    pub fn forget_all_but(&self, keep: usize) -> Result<usize, JournalError> {
        let lock = self.lock()?;
        self.remove_replaced(&lock)?;
        let settled: Vec<Transaction> =
            self.history()?.transactions.into_iter().filter(|t| !t.standing().is_live()).collect();
        let surplus = settled.len().saturating_sub(keep);
        for transaction in &settled[..surplus] {
            self.remove(&lock, transaction.name())?;
        }
        Ok(surplus)
    }

    /// Returns the name of the newest transaction, without reading its journal.
    ///
    /// # Errors
    /// As for [`Journal::history`].
    pub fn newest(&self) -> Result<Option<TransactionName>, JournalError> {
        Ok(self.names()?.last().copied())
    }

    /// Removes a transaction if it was rolled back. Returns whether it was removed.
    ///
    /// # Errors
    /// If another process is writing, or the directory cannot be read or removed.
    pub fn forget(&self, name: TransactionName) -> Result<bool, JournalError> {
        let lock = self.lock()?;
        let settled = self.transaction(name)?.standing() == Standing::RolledBack;
        if settled {
            self.remove(&lock, name)?;
        }
        Ok(settled)
    }

    /// The transactions that may be in force, the newest first.
    pub(crate) fn live(&self) -> Result<Vec<Transaction>, JournalError> {
        self.live_and_unreadable().map(|(live, _)| live)
    }

    /// Returns the live transactions, newest first, and the unreadable ones that may be in force.
    pub(crate) fn live_and_unreadable(&self) -> Result<(Vec<Transaction>, Vec<Unreadable>), JournalError> {
        let (mut live, mut unreadable) = match &self.daemon {
            Some(daemon) => {
                let (live, unread) = daemon.live(self.names()?, |name| self.transaction(name));
                (live, unread.into_iter().map(|(name, error)| self.unreadable(name, error)).collect())
            }
            None => {
                let History { mut transactions, unreadable } = self.history()?;
                transactions.retain(|transaction| transaction.standing().is_live());
                (transactions, unreadable)
            }
        };
        unreadable.retain(Unreadable::may_be_in_force);
        remove_replaced_from(&mut live);
        live.reverse();
        Ok((live, unreadable))
    }

    fn unreadable(&self, name: TransactionName, error: JournalError) -> Unreadable {
        Unreadable::of(name, &self.directory.join(name.to_string()), error, &self.boot_id)
    }

    /// Returns the transactions of any daemon that may be in force, oldest first.
    ///
    /// # Errors
    /// As for [`Journal::history`].
    pub fn kept_by_daemon(&self) -> Result<Vec<Transaction>, JournalError> {
        let mut live = self.live()?;
        live.retain(|transaction| transaction.begin().kept_by_daemon);
        live.reverse();
        Ok(live)
    }

    /// Acquires the write lock.
    pub(crate) fn lock(&self) -> Result<Lock, JournalError> {
        if self.recorded.is_some() {
            let read_only = std::io::ErrorKind::ReadOnlyFilesystem.into();
            return Err(io_error(&self.directory, "write a recording of")(read_only));
        }
        create_directory(&self.directory)?;
        Lock::take(&self.lock_file(), self.lock_retries_max)
    }

    /// Begins a transaction, with the lock held. On return, everything that an undo needs is on disk.
    pub(crate) fn begin(
        &self,
        lock: &Lock,
        asked: &TransactionOrigin,
        plan: Plan,
        object_cookies: ObjectCookies,
    ) -> Result<OpenTransaction, JournalError> {
        self.sweep(lock)?;
        let newest = self.names()?.last().copied();
        // The tag distinguishes programs that begin a transaction in the same microsecond.
        let tag = u16::try_from(std::process::id() & 0xffff).unwrap_or(0);
        let name = TransactionName::after(newest, asked.at, tag);
        let begin = Begin {
            format: FORMAT,
            boot_id: self.boot_id.clone(),
            asked: asked.clone(),
            owned_by: self.session.as_ref().map(|_| own_pid()),
            left_in_force: self.session.is_some() && self.at_exit == AtExit::Leave,
            kept_by_daemon: self.daemon.is_some(),
            replaces: Vec::new(),
            object_cookies,
            plan,
        };
        let script = undo_script(name, &begin);
        let plan = begin.plan.clone();
        let log = JournalFiles::create(&self.directory, name, Box::new(begin), &script)?;
        Ok(OpenTransaction::begun(name, log, plan))
    }

    /// The current boot's id.
    pub(crate) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// The daemon's lock, if this is the daemon's journal.
    pub(crate) fn daemon_lock(&self) -> Option<&DaemonLock> {
        self.daemon.as_deref()
    }

    /// Removes replaced transactions that a killed daemon did not remove. Starts with the newest, as
    /// [`Journal::fold`] does.
    fn remove_replaced(&self, lock: &Lock) -> Result<(), JournalError> {
        let names = self.names()?;
        let all = names.iter().filter_map(|name| self.transaction(*name).ok());
        let replaced: BTreeSet<TransactionName> =
            all.flat_map(|transaction| transaction.begin().replaces.clone()).collect();
        let left = names.iter().rev().filter(|name| replaced.contains(name));
        left.copied().try_for_each(|name| self.remove(lock, name))
    }

    /// Removes the directory of a transaction that is settled or replaced.
    pub(crate) fn remove(&self, _lock: &Lock, name: TransactionName) -> Result<(), JournalError> {
        let directory = self.directory.join(name.to_string());
        // Rename the directory first, so that an interruption leaves no transaction without its journal.
        let unborn = self.directory.join(format!("{UNBORN}{name}"));
        fs::rename(&directory, &unborn).map_err(io_error(&directory, "remove"))?;
        fs::remove_dir_all(&unborn).map_err(io_error(&unborn, "remove"))
    }

    /// Removes files of programs that were killed before their transaction had begun, and stale lock files.
    fn sweep(&self, lock: &Lock) -> Result<(), JournalError> {
        for entry in fs::read_dir(&self.directory).map_err(io_error(&self.directory, "read"))? {
            let entry = entry.map_err(io_error(&self.directory, "read"))?;
            if entry.file_name().to_string_lossy().starts_with(UNBORN) {
                fs::remove_dir_all(entry.path()).map_err(io_error(&entry.path(), "remove"))?;
            }
            SessionLock::sweep(lock, &entry.path());
        }
        Ok(())
    }

    /// The names of all transactions, oldest first.
    pub(crate) fn names(&self) -> Result<Vec<TransactionName>, JournalError> {
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

/// Drops replaced transactions from the list. Such transactions still exist if a daemon was killed while it
/// removed them.
pub(crate) fn remove_replaced_from(transactions: &mut Vec<Transaction>) {
    let replaced: BTreeSet<TransactionName> =
        transactions.iter().flat_map(|transaction| transaction.begin().replaces.iter().copied()).collect();
    transactions.retain(|transaction| !replaced.contains(&transaction.name()));
}

impl History {
    /// Returns the newest transaction that may be in force, which `rollback` without a name undoes.
    pub fn newest_live(&self) -> Option<&Transaction> {
        self.transactions.iter().rev().find(|t| t.standing().is_live())
    }

    /// Returns an unreadable transaction that may be in force and is newer than `name`, or the newest such
    /// transaction if `name` is `None`. It may have changed the same knobs.
    pub fn unreadable_after(&self, name: Option<TransactionName>) -> Option<&Unreadable> {
        self.unreadable
            .iter()
            .rev()
            .find(|unreadable| unreadable.may_be_in_force() && name.is_none_or(|name| unreadable.name > name))
    }

    /// Returns the transactions that are incomplete, because their program was killed or is still writing.
    pub fn unfinished(&self) -> impl Iterator<Item = &Transaction> {
        self.transactions.iter().filter(|t| t.standing() == Standing::Unfinished)
    }
}
