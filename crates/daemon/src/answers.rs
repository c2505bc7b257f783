//! The API request in progress: its answer, and the state that is restored if the request is refused.

use model::{Change, Target};
use session::Fault;

use crate::reconciler::Suppressed;
use crate::rejections::Rejections;
use crate::requests::StoredRequest;
use crate::status::{Answer, DaemonPhase};

/// The maximum number of changes listed in an answer.
const CHANGES_LISTED_MAX: usize = 4096;

/// The maximum number of notes in an answer.
const NOTES_MAX: usize = 64;

/// The state before a request, which is restored if the request is refused.
#[derive(Debug)]
pub(crate) struct Before {
    /// The requests that clients had made.
    pub(crate) asked: Vec<StoredRequest>,
    /// The settings that the daemon did not write, because another program had changed them or an operator
    /// had rolled them back.
    pub(crate) suppressed: Suppressed,
    /// The values that the kernel had refused before the request.
    pub(crate) rejections: Rejections,
}

/// A request in progress.
#[derive(Debug)]
struct Asking {
    target: Target,
    /// The state to restore if the request is refused; `None` once it has been restored.
    before: Option<Before>,
    phase: DaemonPhase,
    /// Whether [`Answers::take_up`] has already returned the target.
    taken_up: bool,
    refused: Option<Fault>,
}

/// The API request in progress, and the changes and notes for its answer.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    asking: Option<Asking>,
    /// The changes for the answer.
    changes: Vec<String>,
    /// The notes for the answer.
    notes: Vec<String>,
}

impl Answers {
    /// Begins a request for this target.
    pub(crate) fn begin(&mut self, target: Target, before: Before, phase: DaemonPhase) {
        self.asking = Some(Asking { target, before: Some(before), phase, taken_up: false, refused: None });
    }

    /// Ends the request. If it was refused, returns the reason and the phase to restore.
    pub(crate) fn end(&mut self) -> Option<(Fault, DaemonPhase)> {
        let asking = self.asking.take()?;
        let phase = asking.phase;
        asking.refused.map(|fault| (fault, phase))
    }

    /// Returns the target of the request in progress, but only on the first call. The caller then makes the
    /// daemon manage all settings of the target's objects again.
    pub(crate) fn take_up(&mut self) -> Option<Target> {
        let asking = self.asking.as_mut()?;
        let first = !std::mem::replace(&mut asking.taken_up, true);
        first.then(|| asking.target.clone())
    }

    /// Returns the target of the request in progress, unless the request is already refused.
    pub(crate) fn pending(&self) -> Option<Target> {
        self.asking.as_ref().filter(|asking| asking.refused.is_none()).map(|asking| asking.target.clone())
    }

    /// Returns the state before the request in progress, but only on the first call.
    pub(crate) fn go_back(&mut self) -> Option<Before> {
        self.asking.as_mut()?.before.take()
    }

    /// Refuses the request in progress.
    pub(crate) fn refuse(&mut self, fault: Fault) {
        if let Some(asking) = &mut self.asking {
            asking.refused = Some(fault);
        }
    }

    /// Whether the daemon managed no settings when the request in progress arrived.
    pub(crate) fn was_released(&self) -> bool {
        self.asking.as_ref().is_some_and(|asking| asking.phase == DaemonPhase::Released)
    }

    /// Removes all changes and notes.
    pub(crate) fn clear(&mut self) {
        self.changes.clear();
        self.notes.clear();
    }

    /// Adds changes to the answer.
    pub(crate) fn set(&mut self, changes: &[Change]) {
        if self.changes.len() < CHANGES_LISTED_MAX {
            self.changes.extend(changes.iter().map(ToString::to_string));
        }
    }

    /// Adds a note to the answer.
    pub(crate) fn note(&mut self, sentence: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(sentence);
        }
    }

    /// Takes the changes and notes since [`Answers::clear`], and returns them as an answer.
    pub(crate) fn done(&mut self, summary: &str, transactions: Vec<String>) -> Answer {
        let (changes, notes) = (std::mem::take(&mut self.changes), std::mem::take(&mut self.notes));
        Answer::Done { summary: summary.to_owned(), changes, transactions, notes, pending: false }
    }
}
