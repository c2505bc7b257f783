//! Decides transactions of other processes: rolls them back, confirms them, or rolls them back when their
//! deadlines pass.
//!
//! Every decision first acquires the lock and then reads the journal again. So of two concurrent decisions,
//! such as a `confirm` and a guard process, one takes effect, and the other sees its result.

use model::{Change, Judgement, Nanoseconds};

use crate::held::OpenTransaction;
use crate::journal::Journal;
use crate::knobs::Knobs;
use crate::log::JournalError;
use crate::moment::Moment;
use crate::record::{JournalRecord, TransactionOrigin, Why};
use crate::roll_back_error::RollBackError;
use crate::transaction::{Standing, Transaction};
use crate::transaction_name::TransactionName;
use crate::undo::Undone;
use crate::verdicts::Verdicts;

/// Why a transaction was not confirmed.
#[derive(Debug, thiserror::Error)]
pub enum ConfirmError {
    /// The transaction does not await confirmation.
    #[error("nothing to confirm: {name} is {standing}")]
    NotHeld {
        /// The transaction.
        name: TransactionName,
        /// The standing.
        standing: Standing,
    },
    /// The deadline has passed, and the transaction is being rolled back.
    #[error("too late: the deadline of {name} passed {} ago, and it is being rolled back", coarse(*late))]
    Expired {
        /// The transaction.
        name: TransactionName,
        /// How long ago.
        late: Nanoseconds,
    },
    /// The journal could not be read or written, or another process holds its lock.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Truncates a span to whole milliseconds, for messages.
fn coarse(span: Nanoseconds) -> Nanoseconds {
    Nanoseconds(span.0 / 1_000_000 * 1_000_000)
}

/// The state of a transaction at its deadline.
#[derive(Debug)]
pub enum Expiry {
    /// The deadline has not passed yet.
    NotYet {
        /// The remaining time.
        remaining: Nanoseconds,
    },
    /// Nothing to do: the transaction was confirmed, kept or rolled back.
    Settled(Standing),
    /// The transaction was not confirmed, and has now been rolled back.
    RolledBack(Undone),
}

impl Journal {
    /// Rolls back a transaction of any program, whether or not the transaction completed. Calling this again
    /// retries the settings that could not be restored.
    ///
    /// # Errors
    /// [`RollBackError::Overlaid`] if a newer transaction changed the same knob,
    /// [`RollBackError::Incomplete`] if a setting could not be restored.
    pub fn roll_back<K: Knobs>(
        &self,
        name: TransactionName,
        kernel: &mut K,
        at: Moment,
    ) -> Result<Undone, RollBackError> {
        let _lock = self.lock()?;
        let transaction = self.undoable(name)?;
        if let Some(by) = self.owner(&transaction) {
            return Err(RollBackError::Owned { name, by });
        }
        self.undo(transaction, kernel, Why::Asked { at })
    }

    /// Rolls back all daemon transactions that are in force. Transactions that can be folded
    /// ([`Journal::fold`]) are undone as one. Each knob then gets the value that it had before the first of
    /// them, and never a foreign value that the daemon corrected in between. Returns what was undone, newest
    /// first.
    ///
    /// # Errors
    /// As for [`Self::roll_back`]. Also returns the transactions that were undone before the error; they stay
    /// undone.
    pub fn roll_back_daemons<K: Knobs>(
        &self,
        kernel: &mut K,
        asked: &TransactionOrigin,
    ) -> (Vec<(TransactionName, Undone)>, Option<RollBackError>) {
        let mut undone = Vec::new();
        let failed = self.undo_daemons(kernel, asked, &mut undone).err();
        (undone, failed)
    }

    fn undo_daemons<K: Knobs>(
        &self,
        kernel: &mut K,
        asked: &TransactionOrigin,
        undone: &mut Vec<(TransactionName, Undone)>,
    ) -> Result<(), RollBackError> {
        let lock = self.lock()?;
        // Each iteration undoes at least one transaction, or finds none.
        for _ in 0..=self.kept_by_daemon()?.len() {
            // Ignore a failure to fold: a full disk must not prevent an undo.
            let _folded = self.fold_under(&lock, asked, |_| false);
            let Some(newest) = self.kept_by_daemon()?.pop() else { break };
            let name = newest.name();
            if let Some(by) = self.owner(&newest) {
                return Err(RollBackError::Owned { name, by });
            }
            undone.push((name, self.undo(newest, kernel, Why::Asked { at: asked.at })?));
        }
        Ok(())
    }

    /// Records a measured verdict on a transaction in any state.
    ///
    /// # Errors
    /// If there is no such transaction, or the verdict cannot be written. The transaction is then unchanged.
    pub fn note_judgement(&self, name: TransactionName, judgement: &Judgement) -> Result<(), JournalError> {
        let _lock = self.lock()?;
        let transaction = self.transaction(name)?;
        let mut verdicts = transaction.judgements().to_vec();
        verdicts.push(judgement.clone());
        Verdicts::write(transaction.directory(), &verdicts)
    }

    /// Confirms a held transaction, which then stays in force. Confirming it twice is not an error.
    ///
    /// # Errors
    /// If the transaction is not held, or its deadline has passed and the guard process will roll it back.
    pub fn confirm(&self, name: TransactionName, at: Moment) -> Result<(), ConfirmError> {
        let _lock = self.lock()?;
        let transaction = self.transaction(name)?;
        match transaction.standing() {
            Standing::Confirmed => Ok(()),
            Standing::HeldUntil(deadline) if deadline > at.since_boot => {
                Ok(OpenTransaction::reopen(transaction)?.note_durably(JournalRecord::Confirmed { at })?)
            }
            Standing::HeldUntil(deadline) => {
                let late = Nanoseconds(at.since_boot.0 - deadline.0);
                Err(ConfirmError::Expired { name, late })
            }
            standing @ (Standing::Unfinished
            | Standing::Kept
            | Standing::RolledBack
            | Standing::RollbackIncomplete
            | Standing::Rebooted) => Err(ConfirmError::NotHeld { name, standing }),
        }
    }

    /// Rolls a transaction back if its deadline has passed without a confirmation. A transaction whose
    /// program was killed before its deadline counts as unconfirmed.
    ///
    /// # Errors
    /// As for [`Self::roll_back`].
    pub fn roll_back_if_unconfirmed<K: Knobs>(
        &self,
        name: TransactionName,
        kernel: &mut K,
        at: Moment,
    ) -> Result<Expiry, RollBackError> {
        let _lock = self.lock()?;
        let transaction = self.transaction(name)?;
        let Some(deadline) = transaction.deadline() else {
            return Ok(Expiry::Settled(transaction.standing()));
        };
        if !transaction.expired(at) {
            return Ok(Expiry::NotYet { remaining: Nanoseconds(deadline.0 - at.since_boot.0) });
        }
        self.undo(transaction, kernel, Why::Expired { at }).map(Expiry::RolledBack)
    }

    /// Undoes whatever is still in force of a transaction that was read under the lock.
    fn undo<K: Knobs>(
        &self,
        transaction: Transaction,
        kernel: &mut K,
        why: Why,
    ) -> Result<Undone, RollBackError> {
        if let Some((newer, knob)) = self.overlay(&transaction)? {
            return Err(RollBackError::Overlaid { name: transaction.name(), newer, knob: Box::new(knob) });
        }
        kernel.recall(&transaction.begin().object_cookies);
        let unrecorded = self.unrecorded(&transaction)?;
        let mut pending = OpenTransaction::reopen(transaction)?.with_unrecorded(unrecorded);
        let undone = pending.undo(kernel, why);
        pending.answer(undone)
    }

    /// Returns the planned changes that the transaction's journal does not record as begun, except changes of
    /// knobs that a newer live transaction has changed.
    fn unrecorded(&self, transaction: &Transaction) -> Result<Vec<Change>, JournalError> {
        let mut unrecorded: Vec<Change> = transaction.unrecorded_changes().cloned().collect();
        if !unrecorded.is_empty() {
            for newer in self.live()?.into_iter().take_while(|t| t.name() > transaction.name()) {
                unrecorded
                    .retain(|ours| newer.live_changes().all(|theirs| !theirs.to().same_knob(ours.to())));
            }
        }
        Ok(unrecorded)
    }

    /// Returns the transaction with this name, or an error if nothing of it is left to undo.
    fn undoable(&self, name: TransactionName) -> Result<Transaction, RollBackError> {
        let transaction = self.transaction(name)?;
        let standing = transaction.standing();
        if standing.is_live() {
            Ok(transaction)
        } else {
            Err(RollBackError::NothingToUndo { name, standing })
        }
    }

    /// Returns the newest live transaction that has since changed a knob of this one, and its change of that
    /// knob.
    fn overlay(&self, older: &Transaction) -> Result<Option<(TransactionName, Change)>, JournalError> {
        for newer in self.live()?.into_iter().take_while(|t| t.name() > older.name()) {
            let knob = newer
                .live_changes()
                .find(|theirs| older.live_changes().any(|ours| ours.to().same_knob(theirs.to())))
                .cloned();
            if let Some(knob) = knob {
                return Ok(Some((newer.name(), knob)));
            }
        }
        Ok(None)
    }
}
