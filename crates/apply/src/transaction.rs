//! A transaction as its journal records it: its name, progress and standing.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{Change, Judgement, Nanoseconds, Plan};
use schemars::JsonSchema;
use serde::Serialize;

use crate::fate::Fate;
use crate::log::{JournalError, JournalFiles, Transcript};
use crate::moment::Moment;
use crate::progress::{TransactionPhase, TransactionProgress};
use crate::record::{Begin, Ending, Why};
use crate::recorded::RecordedTransaction;
use crate::transaction_name::TransactionName;
use crate::undo::{Undone, UndoneChange};
use crate::verdicts::Verdicts;

/// The standing of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// The transaction's program is still writing, or was killed. [`crate::Journal::writer`] distinguishes
    /// the two.
    Unfinished,
    /// The changes are in force permanently.
    Kept,
    /// The changes are in force; they are undone at this time since boot unless they are confirmed.
    HeldUntil(Nanoseconds),
    /// The changes were held and then confirmed.
    Confirmed,
    /// The changes were undone.
    RolledBack,
    /// The changes were undone, but some settings could not be restored.
    RollbackIncomplete,
    /// The host has rebooted since the transaction, so its changes are gone and there is nothing to undo.
    Rebooted,
}

impl Standing {
    /// Whether changes of the transaction may be in force.
    pub fn is_live(self) -> bool {
        match self {
            Self::Unfinished
            | Self::Kept
            | Self::HeldUntil(_)
            | Self::Confirmed
            | Self::RollbackIncomplete => true,
            Self::RolledBack | Self::Rebooted => false,
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unfinished => "unfinished",
            Self::Kept => "kept",
            Self::HeldUntil(_) => "held",
            Self::Confirmed => "confirmed",
            Self::RolledBack => "rolled back",
            Self::RollbackIncomplete => "rollback incomplete",
            Self::Rebooted => "rebooted since",
        })
    }
}

/// A transaction, as read from its journal.
#[derive(Clone, Debug)]
pub struct Transaction {
    name: TransactionName,
    directory: PathBuf,
    begin: Arc<Begin>,
    progress: TransactionProgress,
    lines: u64,
    whole_bytes: u64,
    torn_bytes: u64,
    rebooted: bool,
    verdicts: Verdicts,
}

impl Transaction {
    /// Reads a transaction from its directory.
    pub(crate) fn read(name: TransactionName, directory: &Path, boot_id: &str) -> Result<Self, JournalError> {
        let transcript = Transcript::read(directory)?;
        Ok(Self::from_transcript(name, transcript, directory, boot_id, Verdicts::read(directory)))
    }

    /// Parses a transaction from the bytes of its journal, without its verdicts. Returns `None` if the bytes
    /// are not a journal.
    pub fn from_journal(name: TransactionName, bytes: &[u8], boot_id: &str) -> Option<Self> {
        let transcript = Transcript::from_bytes(bytes).ok()??;
        Some(Self::from_transcript(name, transcript, Path::new(""), boot_id, Verdicts::default()))
    }

    /// Parses a transaction of a recorded journal. Returns `None` if its records are not a journal.
    pub(crate) fn from_recorded(
        recorded: &RecordedTransaction,
        journal: &Path,
        boot_id: &str,
    ) -> Option<Self> {
        let transcript = Transcript::from_bytes(&recorded.journal()).ok()??;
        let verdicts = Verdicts::recorded(recorded);
        let directory = journal.join(recorded.name.to_string());
        Some(Self::from_transcript(recorded.name, transcript, &directory, boot_id, verdicts))
    }

    fn from_transcript(
        name: TransactionName,
        transcript: Transcript,
        directory: &Path,
        boot_id: &str,
        verdicts: Verdicts,
    ) -> Self {
        let Transcript { begin, progress, lines, whole_bytes, torn_bytes } = transcript;
        let rebooted = begin.boot_id != boot_id;
        let (directory, begin) = (directory.to_owned(), Arc::new(begin));
        Self { name, directory, begin, progress, lines, whole_bytes, torn_bytes, rebooted, verdicts }
    }

    /// The transaction's name.
    pub fn name(&self) -> TransactionName {
        self.name
    }

    /// Returns the transaction's first record: the request and the whole plan.
    pub fn begin(&self) -> &Begin {
        &self.begin
    }

    /// The transaction's standing.
    pub fn standing(&self) -> Standing {
        if self.rebooted {
            return Standing::Rebooted;
        }
        match self.progress.phase {
            TransactionPhase::Writing | TransactionPhase::Undoing => Standing::Unfinished,
            TransactionPhase::Kept => Standing::Kept,
            TransactionPhase::HeldUntil(deadline) => Standing::HeldUntil(deadline),
            TransactionPhase::Confirmed => Standing::Confirmed,
            TransactionPhase::Closed(Ending::RolledBack) => Standing::RolledBack,
            TransactionPhase::Closed(Ending::Incomplete) => Standing::RollbackIncomplete,
        }
    }

    /// The measured verdicts on the transaction, oldest first; at most [`VERDICTS_MAX`](crate::VERDICTS_MAX).
    pub fn judgements(&self) -> &[Judgement] {
        &self.verdicts.known
    }

    /// Returns why the transaction's verdicts could not be read, or `None` if they were.
    pub fn unread_judgements(&self) -> Option<&str> {
        self.verdicts.unread.as_deref()
    }

    /// The time since boot by which the transaction must be confirmed or finished; `None` if it has no
    /// deadline or is decided.
    pub fn deadline(&self) -> Option<Nanoseconds> {
        match self.standing() {
            Standing::HeldUntil(deadline) => Some(deadline),
            Standing::Unfinished => self.begin.asked.deadline,
            Standing::Kept
            | Standing::Confirmed
            | Standing::RolledBack
            | Standing::RollbackIncomplete
            | Standing::Rebooted => None,
        }
    }

    /// Whether the transaction's deadline has passed without a decision.
    pub fn expired(&self, now: Moment) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now.since_boot)
    }

    /// Why the transaction was undone; `None` if it was not.
    pub fn why_undone(&self) -> Option<&Why> {
        self.progress.why.as_ref()
    }

    /// Returns the result of the transaction's undo so far.
    pub fn undone(&self) -> Undone {
        let changes = self
            .progress
            .undone
            .iter()
            .rev()
            .flat_map(|(&step, fates)| self.begin.plan.steps[step].changes().iter().zip(fates))
            .map(|(change, fate)| UndoneChange { change: change.clone(), fate: fate.clone() })
            .collect();
        Undone { changes, unrecorded: None }
    }

    /// Returns the changes that may be in force: those of steps that were begun, except changes that were
    /// undone.
    pub fn live_changes(&self) -> impl Iterator<Item = &Change> {
        let live = self.standing().is_live();
        self.begin.plan.steps.iter().take(self.progress.tried).enumerate().filter(move |_| live).flat_map(
            |(step, changes)| {
                let fates = self.progress.undone.get(&step);
                changes.changes().iter().enumerate().filter_map(move |(i, change)| {
                    match fates.map(|f| &f[i]) {
                        None | Some(Fate::Stuck { .. }) => Some(change),
                        Some(Fate::AlreadyBack | Fate::Restored | Fate::Gone | Fate::LeftAlone { .. }) => {
                            None
                        }
                    }
                })
            },
        )
    }

    /// Returns the length of the transaction's journal in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.whole_bytes + self.torn_bytes
    }

    /// Whether the transaction's verdicts are unchanged since they were read.
    pub(crate) fn has_the_same_verdicts(&self) -> bool {
        self.verdicts.is_as_it_was(&self.directory)
    }

    /// Returns the changes of the steps that the journal does not record as begun.
    pub(crate) fn unrecorded_changes(&self) -> impl Iterator<Item = &Change> {
        self.begin.plan.steps.iter().skip(self.progress.tried).flat_map(model::Step::changes)
    }

    /// Returns the length of a torn last line, which is left by a kill or a power loss, or 0. The event that
    /// the line would have recorded did not happen.
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    /// The transaction's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of the script that undoes the transaction without netpolicy.
    pub fn undo_script(&self) -> PathBuf {
        self.directory.join(crate::log::UNDO_SCRIPT)
    }

    /// Opens the transaction's journal for writing, in order to continue the transaction, and returns it with
    /// the plan and the progress.
    pub(crate) fn reopen(self) -> Result<(JournalFiles, Plan, TransactionProgress), JournalError> {
        let log = JournalFiles::reopen(&self.directory, self.lines, self.whole_bytes, self.torn_bytes)?;
        Ok((log, self.begin.plan.clone(), self.progress))
    }
}
