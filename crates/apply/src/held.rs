//! A committed plan that awaits a decision.

use std::path::PathBuf;

use model::{Change, Nanoseconds, Plan, Step};

use crate::knobs::Knobs;
use crate::lock::Lock;
use crate::log::{JournalError, JournalFiles};
use crate::progress::TransactionProgress;
use crate::record::{Ending, JournalRecord, Why};
use crate::roll_back_error::RollBackError;
use crate::transaction::Transaction;
use crate::transaction_name::TransactionName;
use crate::undo::{UndoState, Undone, UndoneChange, in_force_unrecorded, undo_step};

/// A plan that is in force and waits for a decision: [`keep`](Self::keep), [`hold_until`](Self::hold_until)
/// or [`roll_back`](Self::roll_back). Dropping it rolls back, so that neither `?` nor a panic leaves it in
/// force undecided. While it exists, no other transaction can be written on this host.
#[must_use = "a plan that was not kept is rolled back"]
pub struct HeldPlan<'k, K: Knobs> {
    pub(crate) kernel: &'k mut K,
    /// The open transaction; `None` for an empty plan, and after the decision.
    pub(crate) pending: Option<OpenTransaction>,
    /// The journal's lock, held until this value is dropped. Other writers may proceed once the plan is
    /// decided.
    _lock: Option<Lock>,
}

/// The decision to keep a plan could not be recorded, so the plan was rolled back.
#[derive(Debug, thiserror::Error)]
#[error("{cause}; a plan cannot be kept without that record. {undone}")]
pub struct KeepError {
    /// Why the decision could not be recorded.
    pub cause: JournalError,
    /// The result of the rollback.
    pub undone: Undone,
    /// The state of the host after the rollback.
    pub host: UndoState,
}

impl<'k, K: Knobs> HeldPlan<'k, K> {
    /// Creates the value for an empty plan, which leaves nothing to keep and nothing to undo.
    pub(crate) fn nothing(kernel: &'k mut K) -> Self {
        Self { kernel, pending: None, _lock: None }
    }

    /// Holds a transaction that has begun. Its steps are executed while this value exists, so that a failure
    /// undoes them.
    pub(crate) fn begun(kernel: &'k mut K, lock: Lock, pending: OpenTransaction) -> Self {
        Self { kernel, pending: Some(pending), _lock: Some(lock) }
    }

    /// Returns the transaction's name, or `None` for an empty plan, which needs no transaction.
    pub fn transaction(&self) -> Option<TransactionName> {
        self.pending.as_ref().map(OpenTransaction::name)
    }

    /// Returns the path of the script that undoes the transaction without netpolicy, or `None` for an empty
    /// plan.
    pub fn undo_script(&self) -> Option<PathBuf> {
        self.pending.as_ref().map(OpenTransaction::undo_script)
    }

    /// Returns the host, for measurements and observation only. A write outside the transaction would look
    /// like another program's write.
    pub fn kernel(&mut self) -> &mut K {
        self.kernel
    }

    /// Keeps the plan permanently.
    ///
    /// # Errors
    /// If the decision cannot be recorded; the plan is then rolled back.
    pub fn keep(self) -> Result<(), KeepError> {
        self.decide(JournalRecord::Committed)
    }

    /// Keeps the plan until a deadline, given as time since boot; [`crate::Journal::confirm`] keeps it
    /// permanently. A guard process must watch the deadline and call
    /// [`crate::Journal::roll_back_if_unconfirmed`].
    ///
    /// # Errors
    /// If the decision cannot be recorded; the plan is then rolled back.
    pub fn hold_until(self, deadline: Nanoseconds) -> Result<(), KeepError> {
        self.decide(JournalRecord::HeldUntil { deadline })
    }

    fn decide(mut self, decision: JournalRecord) -> Result<(), KeepError> {
        let Some(mut pending) = self.pending.take() else { return Ok(()) };
        pending.note_durably(decision).map_err(|cause| {
            let undone = pending.undo(self.kernel, Why::Failed { cause: cause.to_string() });
            pending.discard_if_unrecorded(&undone);
            KeepError { cause, host: undone.host(), undone }
        })
    }

    /// Rolls the plan back: restores all settings that it changed.
    ///
    /// # Errors
    /// [`RollBackError::Incomplete`] if a setting could not be restored; all others have been.
    pub fn roll_back(mut self) -> Result<Undone, RollBackError> {
        let Some(mut pending) = self.pending.take() else { return Ok(Undone::default()) };
        let undone = pending.undo(self.kernel, Why::NotKept);
        pending.answer(undone)
    }
}

impl<K: Knobs> Drop for HeldPlan<'_, K> {
    fn drop(&mut self) {
        if let Some(mut pending) = self.pending.take() {
            // `drop` cannot return the result of the undo, but the journal records it.
            let _recorded = pending.undo(self.kernel, Why::Dropped);
        }
    }
}

impl<K: Knobs> std::fmt::Debug for HeldPlan<'_, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("pending", &self.pending).finish_non_exhaustive()
    }
}

/// A transaction that this process is writing: its open journal, and its progress. The progress on disk and
/// the progress in memory change together. The owner of this value holds the journal's lock.
#[derive(Debug)]
pub(crate) struct OpenTransaction {
    name: TransactionName,
    log: JournalFiles,
    plan: Plan,
    progress: TransactionProgress,
    /// Changes that may have been written although the journal does not record their steps.
    unrecorded: Vec<Change>,
}

impl OpenTransaction {
    pub(crate) fn begun(name: TransactionName, log: JournalFiles, plan: Plan) -> Self {
        Self { name, log, plan, progress: TransactionProgress::begun(), unrecorded: Vec::new() }
    }

    /// Reopens another process's transaction in order to continue it. The transaction must have been read
    /// under the lock.
    pub(crate) fn reopen(transaction: Transaction) -> Result<Self, JournalError> {
        let name = transaction.name();
        let (log, plan, progress) = transaction.reopen()?;
        Ok(Self { name, log, plan, progress, unrecorded: Vec::new() })
    }

    /// Adds changes that the journal does not record. An undo also checks and reports these changes.
    pub(crate) fn with_unrecorded(self, unrecorded: Vec<Change>) -> Self {
        Self { unrecorded, ..self }
    }

    pub(crate) fn step(&self, index: usize) -> &Step {
        &self.plan.steps[index]
    }

    pub(crate) fn steps(&self) -> usize {
        self.plan.steps.len()
    }

    pub(crate) fn name(&self) -> TransactionName {
        self.name
    }

    pub(crate) fn undo_script(&self) -> PathBuf {
        self.log.directory().join(crate::log::UNDO_SCRIPT)
    }

    /// Removes the transaction from the journal if it was undone completely but the journal could not record
    /// the undo. Otherwise, after an undo on a full disk, no program could change these knobs. Returns
    /// whether the transaction was removed.
    pub(crate) fn discard_if_unrecorded(&self, undone: &Undone) -> bool {
        undone.unrecorded.is_some() && undone.is_complete() && self.log.discard()
    }

    /// Appends a record that survives if this process is killed.
    pub(crate) fn note(&mut self, record: JournalRecord) -> Result<(), JournalError> {
        self.log.append(&record)?;
        let follows = self.progress.follow(&self.plan, &record);
        assert_eq!(follows, Ok(()), "a transaction must follow its own state machine");
        Ok(())
    }

    /// Appends a record that survives a power loss.
    pub(crate) fn note_durably(&mut self, record: JournalRecord) -> Result<(), JournalError> {
        self.note(record)?;
        self.log.sync()
    }

    /// Undoes all steps that were begun, last first. It continues after a failure, even if the journal can no
    /// longer be written: restoring the host takes precedence.
    pub(crate) fn undo<K: Knobs>(&mut self, kernel: &mut K, why: Why) -> Undone {
        let steps = self.progress.to_undo();
        let mut undone = Undone {
            changes: Vec::new(),
            unrecorded: self.note(JournalRecord::Undoing { why }).err().map(Box::new),
        };
        undone
            .changes
            .extend(self.unrecorded.iter().filter_map(|change| in_force_unrecorded(kernel, change)));
        for begun in steps {
            let step = &self.plan.steps[begun.step];
            let fates = undo_step(kernel, step, &begun);
            for (change, fate) in step.changes().iter().zip(&fates) {
                undone.changes.push(UndoneChange { change: change.clone(), fate: fate.clone() });
            }
            self.note_if_recording(JournalRecord::Undone { step: begun.step, fates }, &mut undone);
        }
        let ending = if undone.is_complete() { Ending::RolledBack } else { Ending::Incomplete };
        self.note_if_recording(JournalRecord::Closed { ending }, &mut undone);
        if undone.unrecorded.is_none() {
            undone.unrecorded = self.log.sync().err().map(Box::new);
        }
        undone
    }

    /// Appends a record, unless an earlier one could not be written: a gap would make the journal unreadable.
    fn note_if_recording(&mut self, record: JournalRecord, undone: &mut Undone) {
        if undone.unrecorded.is_none() {
            undone.unrecorded = self.note(record).err().map(Box::new);
        }
    }

    /// Converts an undo to a result: success, or an error that lists the settings that were not restored.
    pub(crate) fn answer(&self, undone: Undone) -> Result<Undone, RollBackError> {
        if undone.is_complete() {
            Ok(undone)
        } else {
            Err(RollBackError::Incomplete { name: self.name, undone, undo_script: self.undo_script() })
        }
    }
}
