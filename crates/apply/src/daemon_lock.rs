//! A daemon's lock on its journal, and its cache of the transactions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use model::Pid;

use crate::lock::Lock;
use crate::log::{JOURNAL, JournalError};
use crate::transaction::Transaction;
use crate::transaction_name::TransactionName;

/// The file that a running daemon keeps locked.
const LOCK_FILE: &str = "daemon";

/// A daemon's lock on its journal, and its cache of the transactions.
#[derive(Debug)]
pub(crate) struct DaemonLock {
    /// The lock, which is released on drop, or by the kernel if the process is killed.
    _lock: Lock,
    known: Mutex<JournalReadings>,
}

#[derive(Debug, Default)]
struct JournalReadings {
    /// Transactions whose journals will not change any more.
    settled: BTreeSet<TransactionName>,
    /// Transactions that may still change; each has the journal length at which it was read.
    live: BTreeMap<TransactionName, Transaction>,
    /// Transactions that the daemon's plans assume to be in force.
    relied_on: BTreeSet<TransactionName>,
}

impl DaemonLock {
    pub(crate) fn take(directory: &Path) -> Result<Self, JournalError> {
        let lock = Lock::take(&directory.join(LOCK_FILE), 0).map_err(|error| match error {
            JournalError::Busy { holder, .. } => {
                JournalError::Kept { by: holder, directory: directory.to_owned() }
            }
            other => other,
        })?;
        Ok(Self { _lock: lock, known: Mutex::default() })
    }

    /// Returns the pid of the daemon that uses this journal, if any.
    pub(crate) fn holder(directory: &Path) -> Option<Pid> {
        Lock::holder(&directory.join(LOCK_FILE))
    }

    /// Returns those transactions among `names` that may be in force, oldest first, and the unreadable ones.
    /// Calls `read` only for transactions that are not in the cache or have changed.
    pub(crate) fn live(
        &self,
        names: Vec<TransactionName>,
        read: impl Fn(TransactionName) -> Result<Transaction, JournalError>,
    ) -> (Vec<Transaction>, Vec<(TransactionName, JournalError)>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut *known;
        known.settled.retain(|name| names.binary_search(name).is_ok());
        known.live.retain(|name, _| names.binary_search(name).is_ok());
        let (mut live, mut unread) = (Vec::new(), Vec::new());
        for name in names {
            if known.settled.contains(&name) {
                continue;
            }
            let fresh = known.live.get(&name).filter(|known| is_as_it_was(known));
            let transaction = match fresh {
                Some(known) => known.clone(),
                None => match read(name) {
                    Ok(transaction) => transaction,
                    Err(error) => {
                        unread.push((name, error));
                        continue;
                    }
                },
            };
            if transaction.standing().is_live() {
                known.live.insert(name, transaction.clone());
                live.push(transaction);
            } else {
                known.live.remove(&name);
                known.settled.insert(name);
            }
        }
        (live, unread)
    }

    /// Records that the daemon's plans rely on these transactions from now on.
    pub(crate) fn rely_on(&self, names: impl IntoIterator<Item = TransactionName>) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).relied_on = names.into_iter().collect();
    }

    /// Returns a transaction on which the daemon relies but which is not in force, if there is one.
    pub(crate) fn missing_among(&self, live: &[Transaction]) -> Option<TransactionName> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let there: BTreeSet<TransactionName> = live.iter().map(Transaction::name).collect();
        known.relied_on.difference(&there).next().copied()
    }
}

/// Whether a transaction is unchanged, judged by the length of its journal. A journal only grows, with one
/// exception: a torn last line may be replaced by a line of the same length.
fn is_as_it_was(known: &Transaction) -> bool {
    let bytes = std::fs::metadata(known.directory().join(JOURNAL)).map(|metadata| metadata.len());
    known.torn_bytes() == 0
        && bytes.is_ok_and(|bytes| bytes == known.bytes())
        && known.has_the_same_verdicts()
}
