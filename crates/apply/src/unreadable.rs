//! Transactions whose journal cannot be read, and the facts about them that are still known.

use std::io::Read;
use std::path::{Path, PathBuf};

use model::{Change, Plan};

use crate::log::{JournalError, Transcript, UNDO_SCRIPT};
use crate::record::Begin;
use crate::recorded::RecordedUnreadable;
use crate::regular;
use crate::transaction_name::TransactionName;
use crate::undo_script::boot_of;

/// The marker file that an undo script creates in its own directory when it has restored everything.
pub(crate) const UNDONE: &str = "undone";

/// The maximum number of bytes of a script that are searched for the boot id, which is near the beginning.
const SCRIPT_HEAD_BYTES_MAX: u64 = 16 << 10;

/// A transaction whose journal cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unreadable {
    /// The transaction.
    pub name: TransactionName,
    /// The fault in the transaction's journal.
    pub error: JournalError,
    /// The plan, if the journal's first line is intact.
    plan: Option<Plan>,
    /// Whether the transaction is known to be from an earlier boot, or undone by its script.
    settled: bool,
}

impl Unreadable {
    /// Collects what can still be learned about the transaction in this directory.
    pub(crate) fn of(name: TransactionName, directory: &Path, error: JournalError, boot_id: &str) -> Self {
        let begin = Transcript::head(directory);
        let boot = match &begin {
            Some(Begin { boot_id, .. }) => Some(boot_id.clone()),
            None => boot_of_script(directory),
        };
        let undone = directory.join(UNDONE).symlink_metadata().is_ok_and(|mark| mark.is_file());
        let settled = undone || boot.is_some_and(|boot| boot != boot_id);
        Self { name, error, plan: begin.map(|begin| begin.plan), settled }
    }

    /// Creates the value for a transaction that a recording lists as unreadable.
    pub(crate) fn recorded(recorded: &RecordedUnreadable) -> Self {
        let RecordedUnreadable { name, error, script, may_be_in_force } = recorded.clone();
        let error = JournalError::Recorded { words: error, script };
        Self { name, error, plan: None, settled: !may_be_in_force }
    }

    /// Whether the transaction may be in force: it is neither known to be from an earlier boot nor known to
    /// be undone by its script.
    pub const fn may_be_in_force(&self) -> bool {
        !self.settled
    }

    /// Returns the script that undoes the transaction without netpolicy, if it exists.
    pub fn undo_script(&self) -> Option<&Path> {
        match &self.error {
            JournalError::Unread { script, .. } | JournalError::Recorded { script, .. } => script.as_deref(),
            _ => None,
        }
    }

    /// Returns the planned changes; empty if the plan is unknown.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.plan.iter().flat_map(Plan::changes)
    }

    /// Returns how the transaction may have changed a knob of this plan: `Some(Some(change))` if the change
    /// is known, `Some(None)` if any change is possible, and `None` if the transaction shares no knob with
    /// the plan.
    pub(crate) fn touches(&self, plan: &Plan) -> Option<Option<Change>> {
        let Some(theirs) = &self.plan else { return Some(None) };
        let ours = |theirs: &&Change| plan.changes().any(|change| change.to().same_knob(theirs.to()));
        theirs.changes().find(ours).cloned().map(Some)
    }
}

/// Returns the undo script in this transaction's directory, if it is a regular file and not empty.
pub(crate) fn whole_script(directory: &Path) -> Option<PathBuf> {
    let script = directory.join(UNDO_SCRIPT);
    let is_whole = script.symlink_metadata().is_ok_and(|script| script.is_file() && script.len() > 0);
    is_whole.then_some(script)
}

fn boot_of_script(directory: &Path) -> Option<String> {
    let file = regular::open_to_read(&directory.join(UNDO_SCRIPT)).ok()?;
    let mut head = Vec::new();
    file.take(SCRIPT_HEAD_BYTES_MAX).read_to_end(&mut head).ok()?;
    boot_of(&String::from_utf8_lossy(&head)).map(str::to_owned)
}
