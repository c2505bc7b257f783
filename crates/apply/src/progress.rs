//! The progress of a transaction, from its records.

use std::collections::BTreeMap;

use model::{Nanoseconds, Plan};

use crate::fate::{Begun, Fate};
use crate::record::{Ending, LineError, Record, Why};

/// The progress of a transaction. Each record advances it, or is invalid at its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The number of steps that were tried, in order.
    pub(crate) tried: usize,
    /// The number of steps that are done: all that were tried, or all but the last.
    pub(crate) done: usize,
    /// The results of the steps that were undone.
    pub(crate) undone: BTreeMap<usize, Vec<Fate>>,
    pub(crate) phase: Phase,
    pub(crate) why: Option<Why>,
}

/// The current phase of a transaction, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Writing,
    Kept,
    HeldUntil(Nanoseconds),
    Confirmed,
    Undoing,
    Closed(Ending),
}

impl Progress {
    /// A transaction that has begun but not done anything yet.
    pub(crate) fn begun() -> Self {
        Self { tried: 0, done: 0, undone: BTreeMap::new(), phase: Phase::Writing, why: None }
    }

    /// Advances by one record after the first.
    pub(crate) fn follow(&mut self, plan: &Plan, record: &Record) -> Result<(), LineError> {
        let all_done = self.phase == Phase::Writing && self.done == plan.steps.len();
        let follows = match record {
            Record::Begin(_) => false,
            Record::Tried { step } => {
                self.phase == Phase::Writing
                    && *step == self.tried
                    && *step == self.done
                    && *step < plan.steps.len()
            }
            Record::Done { step } => {
                self.phase == Phase::Writing && *step == self.done && self.done + 1 == self.tried
            }
            Record::Committed | Record::HeldUntil { .. } => all_done,
            Record::Confirmed { .. } => matches!(self.phase, Phase::HeldUntil(_)),
            Record::Undoing { .. } => self.phase != Phase::Closed(Ending::RolledBack),
            Record::Undone { step, fates } => {
                self.phase == Phase::Undoing
                    && *step < self.tried
                    && fates.len() == plan.steps[*step].changes().len()
            }
            Record::Closed { .. } => self.phase == Phase::Undoing,
        };
        if !follows {
            return Err(LineError::OutOfPlace(record.name()));
        }
        match record {
            Record::Begin(_) => {}
            Record::Tried { .. } => self.tried += 1,
            Record::Done { .. } => self.done += 1,
            Record::Committed => self.phase = Phase::Kept,
            Record::HeldUntil { deadline } => self.phase = Phase::HeldUntil(*deadline),
            Record::Confirmed { .. } => self.phase = Phase::Confirmed,
            Record::Undoing { why } => {
                self.phase = Phase::Undoing;
                self.why = Some(why.clone());
            }
            Record::Undone { step, fates } => {
                self.undone.insert(*step, fates.clone());
            }
            Record::Closed { ending } => self.phase = Phase::Closed(*ending),
        }
        Ok(())
    }

    /// The steps still to be undone, the last first.
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
