//! Transactions whose journal cannot be read, and what is still known of them.

use std::io::Read;
use std::path::{Path, PathBuf};

use model::{Change, Plan};

use crate::log::{JournalError, Transcript, UNDO_SCRIPT};
use crate::record::Begin;
use crate::regular;
use crate::transaction_name::TransactionName;
use crate::undo_script::boot_of;

/// The mark that a script leaves beside itself when it has put everything back.
pub(crate) const UNDONE: &str = "undone";

/// How much of a script is looked through for the boot that it belongs to: it stands near its beginning.
const SCRIPT_HEAD_BYTES_MAX: u64 = 16 << 10;

/// A transaction whose journal cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unreadable {
    /// The transaction.
    pub name: TransactionName,
    /// What is wrong with its journal.
    pub error: JournalError,
    /// What it was to do, where the first line is whole.
    plan: Option<Plan>,
    /// Whether it is known to be of an earlier boot, or put back by its script.
    settled: bool,
}

impl Unreadable {
    /// What is known of the transaction in this directory.
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

    /// Whether it may be in force: it is not known to be of an earlier boot, or put back by its script.
    pub const fn may_be_in_force(&self) -> bool {
        !self.settled
    }

    /// The script that undoes it without netpolicy, where there is one.
    pub fn undo_script(&self) -> Option<&Path> {
        match &self.error {
            JournalError::Unread { script, .. } => script.as_deref(),
            _ => None,
        }
    }

    /// What it was to do, as far as that is known.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.plan.iter().flat_map(Plan::changes)
    }

    /// What it may have done to a knob of this plan: `Some(Some(change))` where it is known, `Some(None)` where it may be
    /// any change, and `None` if it shares no knob with the plan.
    pub(crate) fn touches(&self, plan: &Plan) -> Option<Option<Change>> {
        let Some(theirs) = &self.plan else { return Some(None) };
        let ours = |theirs: &&Change| plan.changes().any(|change| change.to().same_knob(theirs.to()));
        theirs.changes().find(ours).cloned().map(Some)
    }
}

/// The script of the transaction in this directory, if it is a file.
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
