//! A transaction as its journal records it: its name, its progress, and its standing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use model::{Change, Judgement, Nanoseconds, Plan};
use schemars::JsonSchema;
use serde::Serialize;

use crate::log::{JournalError, Log, Transcript};
use crate::moment::{Moment, UNIX_MICROS_MAX, Utc};
use crate::record::{Begin, Ending, LineError, Record, Why};
use crate::undo::{Begun, Fate, Undone, UndoneChange};
use crate::verdicts::Verdicts;

/// The name of a transaction and of its directory: `20261121T040500.123456Z-1a2b`.
///
/// Names sort in the order of the transactions. The first part is the time of the transaction (UTC), or one microsecond
/// after the previous one if the clock was set back. The second part identifies the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionName {
    unix_micros: u64,
    tag: u16,
}

impl TransactionName {
    /// The part that identifies the program.
    pub(crate) const fn tag(self) -> u16 {
        self.tag
    }

    /// The name of a transaction that begins at this moment, after all others.
    pub(crate) fn after(newest: Option<Self>, at: Moment, tag: u16) -> Self {
        let earliest = newest.map_or(0, |n| n.unix_micros + 1);
        Self { unix_micros: at.unix_micros.max(earliest).min(UNIX_MICROS_MAX), tag }
    }
}

impl fmt::Display for TransactionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Utc { year, month, day, hour, minute, second, micro } = Utc::from_unix_micros(self.unix_micros);
        let tag = self.tag;
        f.pad(&format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{micro:06}Z-{tag:04x}"))
    }
}

/// A text that is not the name of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of a transaction: they look like 20261121T040500.123456Z-1a2b")]
pub struct NotATransaction(pub String);

impl FromStr for TransactionName {
    type Err = NotATransaction;

    fn from_str(text: &str) -> Result<Self, NotATransaction> {
        let wrong = || NotATransaction(text.to_owned());
        let number = |from: usize, to: usize| -> Result<u64, NotATransaction> {
            let digits =
                text.get(from..to).filter(|d| d.bytes().all(|b| b.is_ascii_digit())).ok_or_else(wrong)?;
            digits.parse().map_err(|_| wrong())
        };
        let utc = Utc {
            year: number(0, 4)?,
            month: number(4, 6)?,
            day: number(6, 8)?,
            hour: number(9, 11)?,
            minute: number(11, 13)?,
            second: number(13, 15)?,
            micro: number(16, 22)?,
        };
        let unix_micros = utc.to_unix_micros().ok_or_else(wrong)?;
        let tag = text.get(24..).and_then(|t| u16::from_str_radix(t, 16).ok()).ok_or_else(wrong)?;
        let name = Self { unix_micros, tag };
        // Writing it again checks all that stands between the numbers.
        if name.to_string() == text { Ok(name) } else { Err(wrong()) }
    }
}

model::as_text! { TransactionName: "the name of a transaction: when it began, and a number" }

/// How a transaction stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Its program is still writing, or was killed. [`crate::Journal::writer`] distinguishes the two.
    Unfinished,
    /// Its changes are in force and shall stay.
    Kept,
    /// Its changes are in force until this time since boot, unless they are confirmed.
    HeldUntil(Nanoseconds),
    /// Its changes were held, and then confirmed.
    Confirmed,
    /// Its changes were undone.
    RolledBack,
    /// Its changes were undone, but some settings could not be put back.
    RollbackIncomplete,
    /// The host has been booted since: its changes are gone, and there is nothing to undo.
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
    progress: Progress,
    lines: u64,
    whole_bytes: u64,
    torn_bytes: u64,
    rebooted: bool,
    verdicts: Verdicts,
}

impl Transaction {
    /// Reads a transaction from its directory.
    pub(crate) fn read(name: TransactionName, directory: &Path, boot_id: &str) -> Result<Self, JournalError> {
        let Transcript { begin, progress, lines, whole_bytes, torn_bytes } = Transcript::read(directory)?;
        let rebooted = begin.boot_id != boot_id;
        let verdicts = Verdicts::read(directory);
        let (directory, begin) = (directory.to_owned(), Arc::new(begin));
        Ok(Self { name, directory, begin, progress, lines, whole_bytes, torn_bytes, rebooted, verdicts })
    }

    /// Its name.
    pub fn name(&self) -> TransactionName {
        self.name
    }

    /// What was asked, by whom, and the whole plan.
    pub fn begin(&self) -> &Begin {
        &self.begin
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        if self.rebooted {
            return Standing::Rebooted;
        }
        match self.progress.phase {
            Phase::Writing | Phase::Undoing => Standing::Unfinished,
            Phase::Kept => Standing::Kept,
            Phase::HeldUntil(deadline) => Standing::HeldUntil(deadline),
            Phase::Confirmed => Standing::Confirmed,
            Phase::Closed(Ending::RolledBack) => Standing::RolledBack,
            Phase::Closed(Ending::Incomplete) => Standing::RollbackIncomplete,
        }
    }

    /// What measurements said of it, the oldest first; at most [`VERDICTS_MAX`](crate::VERDICTS_MAX).
    pub fn judgements(&self) -> &[Judgement] {
        &self.verdicts.known
    }

    /// Why that cannot be read, where there is something.
    pub fn unread_judgements(&self) -> Option<&str> {
        self.verdicts.unread.as_deref()
    }

    /// The time since boot by which it must be confirmed or finished; `None` where nothing is waited for.
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

    /// Whether it should have been confirmed or finished by now, and was not.
    pub fn expired(&self, now: Moment) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now.since_boot)
    }

    /// Why it was undone, if it was.
    pub fn why_undone(&self) -> Option<&Why> {
        self.progress.why.as_ref()
    }

    /// What its undo has come to so far.
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

    /// The changes that may be in force: begun, and not undone.
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

    /// How many bytes its journal has.
    pub(crate) fn bytes(&self) -> u64 {
        self.whole_bytes + self.torn_bytes
    }

    /// Whether its verdicts are those that were read.
    pub(crate) fn has_the_same_verdicts(&self) -> bool {
        self.verdicts.is_as_it_was(&self.directory)
    }

    /// The changes of steps that were never begun, according to the journal.
    pub(crate) fn unrecorded_changes(&self) -> impl Iterator<Item = &Change> {
        self.begin.plan.steps.iter().skip(self.progress.tried).flat_map(model::Step::changes)
    }

    /// Bytes of a last line that was torn by a kill or a loss of power. What it would have recorded did not happen.
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The script that undoes it without netpolicy.
    pub fn undo_script(&self) -> PathBuf {
        self.directory.join(crate::log::UNDO_SCRIPT)
    }

    /// The open end of its journal, its plan, and how far it has come: what it takes to go on with it.
    pub(crate) fn reopen(self) -> Result<(Log, Plan, Progress), JournalError> {
        let log = Log::reopen(&self.directory, self.lines, self.whole_bytes, self.torn_bytes)?;
        Ok((log, self.begin.plan.clone(), self.progress))
    }
}

/// How far a transaction has come. Each record moves it on, or cannot stand where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// How many steps were tried. They are tried in order.
    pub(crate) tried: usize,
    /// How many of them are done: all, or all but the last.
    done: usize,
    /// The fates of the steps that were undone.
    pub(crate) undone: BTreeMap<usize, Vec<Fate>>,
    phase: Phase,
    why: Option<Why>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Writing,
    Kept,
    HeldUntil(Nanoseconds),
    Confirmed,
    Undoing,
    Closed(Ending),
}

impl Progress {
    /// A transaction that has begun, and has done nothing yet.
    pub(crate) fn begun() -> Self {
        Self { tried: 0, done: 0, undone: BTreeMap::new(), phase: Phase::Writing, why: None }
    }

    /// Goes on by one record after the first.
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

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_name_sorts_by_time_and_survives_being_written_and_read() {
        let at = |unix_micros| Moment { unix_micros, since_boot: Nanoseconds::ZERO };
        let first = TransactionName::after(None, at(1_795_233_900_123_456), 0x1a2b);
        assert_eq!(first.to_string(), "20261121T040500.123456Z-1a2b");
        assert_eq!(first.to_string().parse(), Ok(first));
        let set_back = TransactionName::after(Some(first), at(1_000), 0x0001);
        assert_eq!(set_back.to_string(), "20261121T040500.123457Z-0001");
        assert!(set_back > first && set_back.to_string() > first.to_string());
    }

    #[test]
    fn a_text_that_is_no_name_is_refused_before_it_becomes_a_path() {
        for text in [
            "",
            "..",
            "../../etc/passwd",
            "20261121T040500.123456Z-1A2B",
            "20261121T040500.123456Z-1a2b/",
            "20261121t040500.123456Z-1a2b",
            "20261321T040500.123456Z-1a2b",
            "20261121T040500.123456Z-+a2b",
            "20261121T040500.123456Z-ä2b",
            "2026112äT040500.123456Z-1a2b",
        ] {
            assert_eq!(text.parse::<TransactionName>(), Err(NotATransaction(text.to_owned())));
        }
    }
}
