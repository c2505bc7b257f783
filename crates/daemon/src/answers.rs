//! The request that is being done by asking: what is gone back to if it is refused, and what is answered.

use model::{Change, Target};
use session::Fault;

use crate::reconciler::Suppressed;
use crate::rejections::Rejections;
use crate::requests::Asked;
use crate::status::{Answer, Phase};

/// The most changes that an answer lists.
const CHANGES_LISTED_MAX: usize = 4096;

/// How many settings an answer names that another program has changed since.
const NOTES_MAX: usize = 64;

/// What was so before a request was asked.
#[derive(Debug)]
pub(crate) struct Before {
    /// All that was asked.
    pub(crate) asked: Vec<Asked>,
    /// What was left alone.
    pub(crate) suppressed: Suppressed,
    /// What the kernel refused.
    pub(crate) rejections: Rejections,
}

/// A request that is being done.
#[derive(Debug)]
struct Asking {
    target: Target,
    /// What is gone back to if it is refused; `None` once it was.
    before: Option<Before>,
    phase: Phase,
    /// Whether what was left alone of it was taken up.
    taken_up: bool,
    refused: Option<Fault>,
}

/// The request that is being done, and what changed since.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    asking: Option<Asking>,
    /// What was set since the request came.
    changes: Vec<String>,
    /// What the client should know beside that.
    notes: Vec<String>,
}

impl Answers {
    /// A request for this target is being done from now on.
    pub(crate) fn begin(&mut self, target: Target, before: Before, phase: Phase) {
        self.asking = Some(Asking { target, before: Some(before), phase, taken_up: false, refused: None });
    }

    /// The request is done: why it is refused, if it is, and the phase that is gone back to then.
    pub(crate) fn end(&mut self) -> Option<(Fault, Phase)> {
        let asking = self.asking.take()?;
        let phase = asking.phase;
        asking.refused.map(|fault| (fault, phase))
    }

    /// Whose request is being done, the first time that it is asked: what was left alone of it is taken up then.
    pub(crate) fn take_up(&mut self) -> Option<Target> {
        let asking = self.asking.as_mut()?;
        let first = !std::mem::replace(&mut asking.taken_up, true);
        first.then(|| asking.target.clone())
    }

    /// Whose request is being done and not refused yet.
    pub(crate) fn pending(&self) -> Option<Target> {
        self.asking.as_ref().filter(|asking| asking.refused.is_none()).map(|asking| asking.target.clone())
    }

    /// What to go back to, once.
    pub(crate) fn go_back(&mut self) -> Option<Before> {
        self.asking.as_mut()?.before.take()
    }

    /// The request is refused.
    pub(crate) fn refuse(&mut self, fault: Fault) {
        if let Some(asking) = &mut self.asking {
            asking.refused = Some(fault);
        }
    }

    /// Whether nothing was managed before the request that is being done.
    pub(crate) fn was_released(&self) -> bool {
        self.asking.as_ref().is_some_and(|asking| asking.phase == Phase::Released)
    }

    /// Forgets the changes and notes so far.
    pub(crate) fn clear(&mut self) {
        self.changes.clear();
        self.notes.clear();
    }

    /// These were set.
    pub(crate) fn set(&mut self, changes: &[Change]) {
        if self.changes.len() < CHANGES_LISTED_MAX {
            self.changes.extend(changes.iter().map(ToString::to_string));
        }
    }

    /// Adds a note for the client.
    pub(crate) fn note(&mut self, sentence: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(sentence);
        }
    }

    /// An answer with all changes and notes since [`Answers::clear`].
    pub(crate) fn done(&mut self, summary: &str, transactions: Vec<String>) -> Answer {
        let (changes, notes) = (std::mem::take(&mut self.changes), std::mem::take(&mut self.notes));
        Answer::Done { summary: summary.to_owned(), changes, transactions, notes, pending: false }
    }
}
