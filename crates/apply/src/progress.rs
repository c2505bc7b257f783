//! The progress of a transaction, derived from its records.

use std::collections::BTreeMap;

use model::{Nanoseconds, Plan};

use crate::fate::{Begun, Fate};
use crate::record::{Ending, JournalRecord, LineError, Why};

/// The progress of a transaction. Each record either advances the progress or is invalid at its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransactionProgress {
    /// The number of steps that were begun; steps are executed in order.
    pub(crate) tried: usize,
    /// The number of steps that are done: either all steps that were begun, or all but the last of them.
    pub(crate) done: usize,
    /// The results of each step that was undone, by the step's index.
    pub(crate) undone: BTreeMap<usize, Vec<Fate>>,
    pub(crate) phase: TransactionPhase,
    pub(crate) why: Option<Why>,
}

/// The current phase of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransactionPhase {
    Writing,
    Kept,
    HeldUntil(Nanoseconds),
    Confirmed,
    Undoing,
    Closed(Ending),
}

impl TransactionProgress {
    /// Creates the progress of a transaction that has begun but has not executed any step.
    pub(crate) fn begun() -> Self {
        Self { tried: 0, done: 0, undone: BTreeMap::new(), phase: TransactionPhase::Writing, why: None }
    }

    /// Advances by one record, which is not the first.
    pub(crate) fn follow(&mut self, plan: &Plan, record: &JournalRecord) -> Result<(), LineError> {
        let all_done = self.phase == TransactionPhase::Writing && self.done == plan.steps.len();
        let follows = match record {
            JournalRecord::Begin(_) => false,
            JournalRecord::Tried { step } => {
                self.phase == TransactionPhase::Writing
                    && *step == self.tried
                    && *step == self.done
                    && *step < plan.steps.len()
            }
            JournalRecord::Done { step } => {
                self.phase == TransactionPhase::Writing && *step == self.done && self.done + 1 == self.tried
            }
            JournalRecord::Committed | JournalRecord::HeldUntil { .. } => all_done,
            JournalRecord::Confirmed { .. } => matches!(self.phase, TransactionPhase::HeldUntil(_)),
            JournalRecord::Undoing { .. } => self.phase != TransactionPhase::Closed(Ending::RolledBack),
            JournalRecord::Undone { step, fates } => {
                self.phase == TransactionPhase::Undoing
                    && *step < self.tried
                    && fates.len() == plan.steps[*step].changes().len()
            }
            JournalRecord::Closed { .. } => self.phase == TransactionPhase::Undoing,
        };
        if !follows {
            return Err(LineError::OutOfPlace(record.name()));
        }
        match record {
            JournalRecord::Begin(_) => {}
            JournalRecord::Tried { .. } => self.tried += 1,
            JournalRecord::Done { .. } => self.done += 1,
            JournalRecord::Committed => self.phase = TransactionPhase::Kept,
            JournalRecord::HeldUntil { deadline } => self.phase = TransactionPhase::HeldUntil(*deadline),
            JournalRecord::Confirmed { .. } => self.phase = TransactionPhase::Confirmed,
            JournalRecord::Undoing { why } => {
                self.phase = TransactionPhase::Undoing;
                self.why = Some(why.clone());
            }
            JournalRecord::Undone { step, fates } => {
                self.undone.insert(*step, fates.clone());
            }
            JournalRecord::Closed { ending } => self.phase = TransactionPhase::Closed(*ending),
        }
        Ok(())
    }

    /// Returns the steps that are still to be undone, the last one first.
    pub(crate) fn to_undo(&self) -> Vec<Begun> {
        let is_stuck = |fate: &Fate| matches!(fate, Fate::Stuck { .. });
        let begun = |step| {
            let earlier = self.undone.get(&step).cloned().unwrap_or_default();
            Begun { step, under_way: step >= self.done, earlier }
        };
        let unsettled = |begun: &Begun| begun.earlier.is_empty() || begun.earlier.iter().any(is_stuck);
        (0..self.tried).rev().map(begun).filter(unsettled).collect()
    }
}
