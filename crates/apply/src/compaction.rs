//! Compaction: folds a daemon's many small transactions into one.
//!
//! A daemon may commit at every event, for years. When it has more than [`FOLD_MAX`] transactions, they are
//! folded into one that changes each knob from its first value to its last. A single rename makes the new
//! transaction visible, already decided. It lists the names of the transactions that it replaces, and readers
//! ignore those from then on. So the length of a daemon's journal, and the number of steps of a rollback,
//! depend on the settings in force and not on the daemon's uptime.

use std::collections::{BTreeMap, BTreeSet};

use model::setting::Interface;
use model::{Change, Object, Plan, Step};

use crate::journal::Journal;
use crate::lock::Lock;
use crate::log::{JournalError, JournalFiles};
use crate::record::{Begin, FORMAT, JournalRecord, TransactionOrigin};
use crate::transaction::{Standing, Transaction};
use crate::transaction_name::TransactionName;
use crate::undo_script::undo_script;
use crate::verdicts::Verdicts;

/// The maximum number of a daemon's transactions; beyond it, they are folded into one.
pub const FOLD_MAX: usize = 16;

/// The identity of a knob: its object and its name.
pub type Knob = (Object, &'static str);

impl Journal {
    /// Makes this daemon's later commits fail if any of these transactions is no longer in force.
    pub fn rely_on(&self, names: impl IntoIterator<Item = TransactionName>) {
        if let Some(kept) = self.daemon_lock() {
            kept.rely_on(names);
        }
    }

    /// Folds a daemon's kept transactions into one. Omits changes that are `gone` (settings of processes that
    /// have exited), and knobs that have their first value again. A single transaction is rewritten only if
    /// some of its changes are `gone`. Returns `None` if there was nothing to fold, or if no changes remain.
    ///
    /// A change by another program is a barrier: a transaction is folded only if it is newer than every
    /// foreign transaction that shares a knob with it.
    ///
    /// # Errors
    /// If another process is writing, or a file cannot be written. Then either nothing has changed, or the
    /// old transactions remain next to the one that replaces them, and readers ignore the old ones.
    pub fn fold(
        &self,
        asked: &TransactionOrigin,
        gone: impl Fn(&Change) -> bool,
    ) -> Result<Option<TransactionName>, JournalError> {
        let lock = self.lock()?;
        self.fold_under(&lock, asked, gone)
    }

    /// Like [`Journal::fold`], with the lock already held.
    pub(crate) fn fold_under(
        &self,
        lock: &Lock,
        asked: &TransactionOrigin,
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
        let folded_name = (!plan.is_empty()).then_some(name);
        if folded_name.is_some() {
            let steps = plan.steps.len();
            let object_cookies =
                folded.iter().flat_map(|transaction| transaction.begin().object_cookies.clone()).collect();
            let begin = Begin {
                format: FORMAT,
                boot_id: self.boot_id().to_owned(),
                asked: asked.clone(),
                owned_by: None,
                left_in_force: false,
                kept_by_daemon: true,
                replaces: replaces.clone(),
                object_cookies,
                plan,
            };
            let script = undo_script(name, &begin);
            let each =
                (0..steps).flat_map(|step| [JournalRecord::Tried { step }, JournalRecord::Done { step }]);
            let records: Vec<JournalRecord> = each.chain([JournalRecord::Committed]).collect();
            JournalFiles::create_decided(self.directory(), name, Box::new(begin), &script, &records)?;
            let verdicts: Vec<_> =
                folded.iter().flat_map(|transaction| transaction.judgements().iter().cloned()).collect();
            if !verdicts.is_empty() {
                // Undo does not need the verdicts, so the new transaction is valid even if they cannot be
                // written.
                let _without = Verdicts::write(&self.directory().join(name.to_string()), &verdicts);
            }
        }
        // Remove the newest transaction first: if the removal is interrupted, rolling back the remaining
        // transactions still restores the original values.
        for name in replaces.into_iter().rev() {
            self.remove(lock, name)?;
        }
        Ok(folded_name)
    }

    /// Returns the daemon's transactions that can be folded, oldest first.
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
        // A transaction of another program is skipped, not folded.
        Ok(foldable)
    }
}

/// Returns the knob that a change sets.
pub(crate) fn knob(change: &Change) -> Knob {
    (change.to().object(), change.to().knob())
}

/// The net effect of consecutive transactions: each knob's value before the first transaction and after the
/// last.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    changes: BTreeMap<Knob, (u64, Change)>,
    next: u64,
}

impl Ledger {
    /// Computes the net effect of these transactions, which must be given oldest first.
    pub fn of<'t>(transactions: impl IntoIterator<Item = &'t Transaction>) -> Self {
        let mut ledger = Self::default();
        for transaction in transactions {
            transaction.live_changes().for_each(|change| ledger.note(change));
        }
        ledger
    }

    /// Adds a change.
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

    /// Returns the change of a knob from its first value to its last, or `None` if both are equal.
    pub fn get(&self, knob: &Knob) -> Option<&Change> {
        self.changes.get(knob).map(|(_, change)| change)
    }

    /// Removes a knob.
    pub fn forget(&mut self, knob: &Knob) {
        self.changes.remove(knob);
    }

    /// All changes, by knob.
    pub fn iter(&self) -> impl Iterator<Item = (&Knob, &Change)> {
        self.changes.iter().map(|(knob, (_, change))| (knob, change))
    }

    /// The number of knobs.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Builds one plan from all changes that are not `gone`, in the order in which the knobs were first
    /// changed.
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
