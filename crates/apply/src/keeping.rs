//! A daemon's many small transactions: how one daemon at a time keeps them, and how they are folded into one.
//!
//! A daemon commits whenever something happens, for years. Each of its transactions is as whole as any, so that a kill at
//! any moment leaves nothing that cannot be undone; and as soon as there are more than [`FOLD_MAX`], all of them become
//! one: each knob's changes taken together, from its first value to its last. That one is there, decided, in one
//! rename, and says which transactions it stands for; from then on nobody sees these any more. So the journal of a
//! daemon is bounded by what it holds and not by how long it runs, and a roll back has at most so many steps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use model::setting::Interface;
use model::{Change, Object, Pid, Plan, Step};

use crate::journal::Journal;
use crate::lock::Lock;
use crate::log::{JOURNAL, JournalError, Log};
use crate::record::{Asked, Begin, FORMAT, Record};
use crate::transaction::{Standing, Transaction, TransactionName};
use crate::undo_script::undo_script;

/// How many transactions of a daemon there may be before they are folded into one.
pub const FOLD_MAX: usize = 16;

/// The file that a daemon holds locked for as long as it keeps the journal.
const SIGN: &str = "daemon";

/// What tells a knob from all others.
pub type Knob = (Object, &'static str);

/// A daemon's hold on its journal, and what it knows of it.
#[derive(Debug)]
pub(crate) struct Keeping {
    /// Held for its drop, and by the kernel's grace for a kill.
    _lock: Lock,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Those that will not change any more.
    settled: BTreeSet<TransactionName>,
    /// Those that may, as they were when their journal had as many bytes as they say.
    live: BTreeMap<TransactionName, Transaction>,
    /// Those that must be in force for the daemon's plans to make sense.
    relied_on: BTreeSet<TransactionName>,
}

impl Keeping {
    pub(crate) fn begin(directory: &Path) -> Result<Self, JournalError> {
        let lock = Lock::take(&directory.join(SIGN), 0).map_err(|error| match error {
            JournalError::Busy { holder, .. } => {
                JournalError::Kept { by: holder, directory: directory.to_owned() }
            }
            other => other,
        })?;
        Ok(Self { _lock: lock, known: Mutex::default() })
    }

    /// The daemon that keeps this journal, if one does.
    pub(crate) fn keeper(directory: &Path) -> Option<Pid> {
        Lock::holder(&directory.join(SIGN))
    }

    /// Those of these that may be in force, the oldest first, and those that cannot be read. `read` reads one.
    pub(crate) fn live(
        &self,
        names: Vec<TransactionName>,
        read: impl Fn(TransactionName) -> Result<Transaction, JournalError>,
    ) -> (Vec<Transaction>, Vec<(TransactionName, JournalError)>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut *known;
        known.settled.retain(|name| names.binary_search(name).is_ok());
        known.live.retain(|name, _| names.binary_search(name).is_ok());
        let (mut live, mut unread) = (Vec::new(), Vec::new());
        for name in names {
            if known.settled.contains(&name) {
                continue;
            }
            let fresh = known.live.get(&name).filter(|known| is_as_it_was(known));
            let transaction = match fresh {
                Some(known) => known.clone(),
                None => match read(name) {
                    Ok(transaction) => transaction,
                    Err(error) => {
                        unread.push((name, error));
                        continue;
                    }
                },
            };
            if transaction.standing().is_live() {
                known.live.insert(name, transaction.clone());
                live.push(transaction);
            } else {
                known.live.remove(&name);
                known.settled.insert(name);
            }
        }
        (live, unread)
    }

    /// One that is relied on and is not in force.
    pub(crate) fn missing_among(&self, live: &[Transaction]) -> Option<TransactionName> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let there: BTreeSet<TransactionName> = live.iter().map(Transaction::name).collect();
        known.relied_on.difference(&there).next().copied()
    }
}

/// A journal only grows; a line that was cut short may be replaced by one of the same length.
fn is_as_it_was(known: &Transaction) -> bool {
    let bytes = std::fs::metadata(known.directory().join(JOURNAL)).map(|metadata| metadata.len());
    known.torn_bytes() == 0 && bytes.is_ok_and(|bytes| bytes == known.bytes())
}

impl Journal {
    /// From here on, a commit is refused if one of these is not in force any more.
    pub fn rely_on(&self, names: impl IntoIterator<Item = TransactionName>) {
        if let Some(kept) = self.kept() {
            kept.known.lock().unwrap_or_else(PoisonError::into_inner).relied_on = names.into_iter().collect();
        }
    }

    /// Makes one transaction of a daemon's kept ones, or another of one that has something `gone`. What is `gone` (settings
    /// of processes that have ended) is left out, and so is what is as it was at first. `None` if nothing was folded, or
    /// nothing was left of it.
    ///
    /// What somebody else has changed since is not folded over: only transactions are that are newer than any of
    /// others that share a knob with them.
    ///
    /// # Errors
    /// If another process is writing, or a file cannot be written: all is as before then, or the old ones are there
    /// beside the new one and count no more.
    pub fn fold(
        &self,
        asked: &Asked,
        gone: impl Fn(&Change) -> bool,
    ) -> Result<Option<TransactionName>, JournalError> {
        let lock = self.lock()?;
        self.fold_under(&lock, asked, gone)
    }

    /// The same, under the lock.
    pub(crate) fn fold_under(
        &self,
        lock: &Lock,
        asked: &Asked,
        gone: impl Fn(&Change) -> bool,
    ) -> Result<Option<TransactionName>, JournalError> {
        let folded = self.foldable()?;
        let any_gone = || folded.iter().flat_map(Transaction::live_changes).any(&gone);
        if folded.len() < 2 && !any_gone() {
            return Ok(None);
        }
        let ledger = Ledger::of(&folded);
        let plan = ledger.plan(gone);
        let replaces: Vec<TransactionName> = folded.iter().map(Transaction::name).collect();
        let newest = self.names()?.last().copied();
        let name = TransactionName::after(newest, asked.at, replaces.last().map_or(0, |last| last.tag()));
        let one = (!plan.is_empty()).then_some(name);
        if one.is_some() {
            let steps = plan.steps.len();
            let landmarks =
                folded.iter().flat_map(|transaction| transaction.begin().landmarks.clone()).collect();
            let begin = Begin {
                format: FORMAT,
                boot_id: self.boot_id().to_owned(),
                asked: asked.clone(),
                attended_by: None,
                left_in_force: false,
                kept_by_daemon: true,
                replaces: replaces.clone(),
                landmarks,
                plan,
            };
            let script = undo_script(name, &begin);
            let each = (0..steps).flat_map(|step| [Record::Tried { step }, Record::Done { step }]);
            let records: Vec<Record> = each.chain([Record::Committed]).collect();
            Log::create_decided(self.directory(), name, Box::new(begin), &script, &records)?;
        }
        // The newest first: what is left after a kill is then undone to what was there before.
        for name in replaces.into_iter().rev() {
            self.remove(lock, name)?;
        }
        Ok(one)
    }

    /// The daemon's transactions that can be one, the oldest first.
    fn foldable(&self) -> Result<Vec<Transaction>, JournalError> {
        let mut foldable = Vec::new();
        let live = self.live()?;
        for (age, ours) in live.iter().enumerate() {
            let kept = ours.begin().kept_by_daemon && ours.standing() == Standing::Kept;
            let shares = |other: &Transaction| {
                let knobs: BTreeSet<Knob> = other.live_changes().map(knob).collect();
                ours.live_changes().any(|change| knobs.contains(&knob(change)))
            };
            let newer_foreign = live[..age].iter().filter(|newer| !newer.begin().kept_by_daemon);
            if !kept || newer_foreign.into_iter().any(shares) {
                break;
            }
            foldable.push(ours.clone());
        }
        foldable.reverse();
        // Somebody else's are only passed over, not folded.
        Ok(foldable)
    }
}

/// The knob of a change.
pub(crate) fn knob(change: &Change) -> Knob {
    (change.to().object(), change.to().knob())
}

/// What a row of transactions comes to: for each knob the value before the first, and the value after the last.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    changes: BTreeMap<Knob, (u64, Change)>,
    next: u64,
}

impl Ledger {
    /// What these come to, the oldest first.
    pub fn of<'t>(transactions: impl IntoIterator<Item = &'t Transaction>) -> Self {
        let mut ledger = Self::default();
        for transaction in transactions {
            transaction.live_changes().for_each(|change| ledger.note(change));
        }
        ledger
    }

    /// Notes one change more.
    pub fn note(&mut self, change: &Change) {
        let knob = knob(change);
        let first = self.changes.get(&knob).map(|(order, first)| (*order, first.from().clone()));
        let (order, from) = first.unwrap_or((self.next, change.from().clone()));
        self.next += 1;
        if from == *change.to() {
            self.changes.remove(&knob);
        } else {
            let whole = Change::new(from, change.to().clone(), change.because().clone());
            self.changes.insert(knob, (order, whole));
        }
    }

    /// What a knob was changed to, and from what at first; `None` if it is not held.
    pub fn get(&self, knob: &Knob) -> Option<&Change> {
        self.changes.get(knob).map(|(_, change)| change)
    }

    /// Lets a knob go.
    pub fn forget(&mut self, knob: &Knob) {
        self.changes.remove(knob);
    }

    /// All that is held, by knob.
    pub fn iter(&self) -> impl Iterator<Item = (&Knob, &Change)> {
        self.changes.iter().map(|(knob, (_, change))| (knob, change))
    }

    /// How many knobs are held.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// All that is held and not gone as one plan, in the order in which the knobs were first changed.
    fn plan(&self, gone: impl Fn(&Change) -> bool) -> Plan {
        let mut in_order: Vec<&(u64, Change)> =
            self.changes.values().filter(|(_, change)| !gone(change)).collect();
        in_order.sort_by_key(|(order, _)| *order);
        let mut places: BTreeMap<(Object, Interface), usize> = BTreeMap::new();
        let mut steps: Vec<Vec<Change>> = Vec::new();
        for (_, change) in in_order {
            let step = (change.to().object(), change.to().interface());
            let place = *places.entry(step).or_insert_with(|| {
                steps.push(Vec::new());
                steps.len() - 1
            });
            steps[place].push(change.clone());
        }
        Plan { steps: steps.into_iter().map(Step::new).collect() }
    }
}
