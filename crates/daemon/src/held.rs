//! The settings that this and earlier daemons hold in force, in the journal and on the host.

use std::collections::{BTreeMap, BTreeSet};

use apply::{
    Allow, Journal, Knob, Knobs, Ledger, Moment, RollBackError, TransactionName, TransactionOrigin, Undone,
};
use linux::{Kernel, KernelError};
use model::{Change, DeviceId, Host, Object, Plan, Reason, Setting, Step};
use session::cycle::{self, NotInForce};
use session::{Fault, unfinished};

use crate::known::has_ended;

/// The maximum number of transactions in the journal that are no longer in force.
const HISTORY_MAX: usize = 200;

/// The held settings and their journal.
pub(crate) struct HeldSettings {
    journal: Journal,
    kernel: Kernel,
    /// The daemons' transactions that are in force.
    own: BTreeSet<TransactionName>,
    ledger: Ledger,
    /// The transactions whose rollback is incomplete.
    half_undone: BTreeSet<TransactionName>,
    /// The settings that another command owns or is trying, each with the reason.
    taken: BTreeMap<Knob, String>,
    /// Settings that another program has written since the daemon wrote them. They must be removed from the
    /// journal.
    foreign: BTreeSet<Knob>,
    /// The settings that were held although they were no longer wanted at the last tick.
    unwanted: BTreeSet<Knob>,
}

/// Changes in the journal since it was last read.
#[derive(Debug, Default)]
pub(crate) struct JournalChanges {
    /// Whether any change affects the daemon's transactions or the claims of other commands.
    pub(crate) any: bool,
    /// The daemon's transactions that an operator rolled back.
    pub(crate) rolled_back: Vec<TransactionName>,
    /// The settings in the transactions that were rolled back.
    pub(crate) released: BTreeSet<Knob>,
    /// Whether none of the daemon's settings is in force any more, except those that could not be restored.
    pub(crate) all: bool,
}

/// The result of a commit.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    /// The number of repaired settings, which another program or a device reset had changed.
    pub(crate) repairs: usize,
    /// The objects of repaired settings.
    pub(crate) repaired: BTreeSet<Object>,
    /// The number of settings that got their value from before the daemon back, and are no longer held.
    pub(crate) released: u64,
}

/// Which settings are to be restored.
#[derive(Debug, Default)]
pub(crate) struct PutBack {
    /// The steps that restore settings.
    pub(crate) steps: Vec<Step>,
    /// Changes whose settings another program has overwritten, each with the current value. These settings
    /// are not restored.
    pub(crate) foreign: Vec<(Change, Setting)>,
}

/// Rolls back the unfinished transactions of earlier daemons, and the trials of programs that were killed
/// together with their guard process. Calls `each` with the name of each transaction.
///
/// # Errors
/// If the journal cannot be read or written, or settings could not be restored.
pub(crate) fn roll_back_unfinished<K: Knobs>(
    journal: &Journal,
    kernel: &mut K,
    now: Moment,
    mut each: impl FnMut(TransactionName),
) -> Result<(), Fault> {
    let own = journal.kept_by_daemon()?;
    let half = own.iter().rev().filter(|of| of.standing() == apply::Standing::Unfinished);
    for name in half.map(apply::Transaction::name) {
        journal.roll_back(name, kernel, now)?;
        each(name);
    }
    // These are usually the trials of an earlier daemon.
    let tried = journal.abandoned()?.into_iter().filter(|of| of.deadline().is_some());
    for name in tried.map(|of| of.name()) {
        match journal.roll_back(name, kernel, now) {
            Ok(_) => each(name),
            // The guard process has already rolled the trial back.
            Err(RollBackError::NothingToUndo { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl HeldSettings {
    /// Creates the state for the settings that are held in a journal.
    pub(crate) fn of(journal: Journal) -> Self {
        Self {
            journal,
            kernel: Kernel::new(),
            own: BTreeSet::new(),
            ledger: Ledger::default(),
            half_undone: BTreeSet::new(),
            taken: BTreeMap::new(),
            foreign: BTreeSet::new(),
            unwanted: BTreeSet::new(),
        }
    }

    /// Adopts the settings of earlier daemons that are in force. First rolls back unfinished transactions,
    /// and calls `each` with the name of each.
    ///
    /// # Errors
    /// If the journal cannot be read or written, or settings could not be restored.
    pub(crate) fn adopt(&mut self, now: Moment, mut each: impl FnMut(TransactionName)) -> Result<(), Fault> {
        roll_back_unfinished(&self.journal, &mut self.kernel, now, &mut each)?;
        self.read().map(|_| ())
    }

    /// Reads the held settings from the journal. Returns the transactions that were compacted into others.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub(crate) fn read(&mut self) -> Result<BTreeSet<TransactionName>, Fault> {
        let transactions = self.journal.kept_by_daemon()?;
        self.own = transactions.iter().map(apply::Transaction::name).collect();
        let half = transactions.iter().filter(|transaction| {
            transaction.standing() == apply::Standing::RollbackIncomplete
                && matches!(transaction.why_undone(), Some(apply::Why::Asked { .. }))
        });
        self.half_undone = half.map(apply::Transaction::name).collect();
        self.ledger = Ledger::of(&transactions);
        self.journal.rely_on(self.own.iter().copied());
        Ok(transactions.iter().flat_map(|transaction| transaction.begin().replaces.clone()).collect())
    }

    /// Returns the net effect of the daemons' transactions in force: for each setting, the value before the
    /// first transaction and after the last.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the daemons' transactions that are in force.
    pub(crate) fn transactions(&self) -> &BTreeSet<TransactionName> {
        &self.own
    }

    /// Returns why another command owns this setting or is trying it, or `None` if none does.
    pub(crate) fn taken(&self, knob: &Knob) -> Option<&String> {
        self.taken.get(knob)
    }

    /// Returns the first setting, among those of matching objects, that another command owns or is trying,
    /// with the reason.
    pub(crate) fn first_taken(&self, is_meant: impl Fn(&Object) -> bool) -> Option<(&Knob, &String)> {
        self.taken.iter().find(|((object, _), _)| is_meant(object))
    }

    /// Whether another command owns or is trying any setting.
    pub(crate) fn is_any_taken(&self) -> bool {
        !self.taken.is_empty()
    }

    /// Reads from the journal which settings other commands own or are trying.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub(crate) fn read_claims(&mut self) -> Result<(), Fault> {
        self.taken = self.journal.claims()?;
        Ok(())
    }

    /// Reads the present values of settings.
    ///
    /// # Errors
    /// The kernel's errors.
    pub(crate) fn current(&mut self, settings: &[Setting]) -> Result<Vec<Setting>, KernelError> {
        self.kernel.read(settings)
    }

    /// Returns what has changed in the journal. Settings that an operator rolled back are no longer held,
    /// even if some of them could not be restored.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub(crate) fn news(&mut self) -> Result<JournalChanges, Fault> {
        let taken = self.journal.claims()?;
        let claimed = taken != self.taken;
        self.taken = taken;
        let (before, half_before) = (self.own.clone(), self.half_undone.clone());
        let held = self.ledger.clone();
        let replaced = self.read()?;
        let missing: Vec<_> = before.difference(&self.own).copied().collect();
        let half = self.half_undone.difference(&half_before).copied();
        let rolled_back: Vec<_> =
            missing.into_iter().filter(|name| !replaced.contains(name)).chain(half).collect();
        if rolled_back.is_empty() {
            return Ok(JournalChanges { any: claimed || before != self.own, ..JournalChanges::default() });
        }
        let gone = held.iter().filter(|(knob, _)| self.ledger.get(knob).is_none()).map(|(knob, _)| *knob);
        // Also release settings of older transactions that were not rolled back: applying them again would
        // contradict the operator.
        let plans = rolled_back.iter().filter_map(|name| self.journal.transaction(*name).ok());
        let changes =
            plans.flat_map(|transaction| transaction.begin().plan.changes().cloned().collect::<Vec<_>>());
        let released = gone.chain(changes.map(|change| knob_of(change.to()))).collect();
        let all = self.own.is_subset(&self.half_undone);
        Ok(JournalChanges { any: true, rolled_back, released, all })
    }

    /// Commits a plan and keeps it.
    ///
    /// # Errors
    /// As for [`cycle::commit`].
    pub(crate) fn commit(
        &mut self,
        plan: Plan,
        asked: &TransactionOrigin,
        allow: Allow,
    ) -> Result<Option<TransactionName>, NotInForce> {
        cycle::commit(plan, &mut self.kernel, &self.journal, asked, allow, None)
    }

    /// Records committed changes.
    pub(crate) fn note(&mut self, changes: &[Change], name: Option<TransactionName>) -> Committed {
        let is_repair = |change: &&Change| {
            self.ledger.get(&knob_of(change.to())).is_some_and(|held| held.to() == change.to())
        };
        let repairs: Vec<&Change> = changes.iter().filter(is_repair).collect();
        let repaired = repairs.iter().map(|change| change.to().object()).collect();
        let mut committed = Committed { repairs: repairs.len(), repaired, released: 0 };
        self.own.extend(name);
        self.journal.rely_on(self.own.iter().copied());
        for change in changes {
            let knob = knob_of(change.to());
            self.foreign.remove(&knob);
            let (held, was_held) = (self.ledger.len(), self.ledger.get(&knob).is_some());
            self.ledger.note(change);
            if was_held && self.ledger.len() < held {
                committed.released += 1;
            }
        }
        committed
    }

    /// Returns steps that restore unwanted settings: all of them if `now` is true, otherwise only those that
    /// were also unwanted at the last tick.
    pub(crate) fn put_back(&mut self, unwanted: BTreeSet<Knob>, now: bool) -> PutBack {
        let due: Vec<Knob> = match now {
            true => unwanted.iter().copied().collect(),
            false => unwanted.intersection(&self.unwanted).copied().collect(),
        };
        self.unwanted = unwanted;
        let mut back = PutBack::default();
        for knob in due {
            let Some(change) = self.ledger.get(&knob).cloned() else { continue };
            match self.kernel.read(std::slice::from_ref(change.to())) {
                Ok(found) if found.first() == Some(change.to()) => {
                    let because =
                        Reason::new("no request needs it any longer", change.because().source.clone());
                    let change = Change::new(change.to().clone(), change.from().clone(), because);
                    back.steps.push(Step::new(vec![change]));
                }
                // Another program has changed this setting, possibly to its original value.
                Ok(found) => {
                    if let Some(found) = found.first().filter(|found| *found != change.from()) {
                        back.foreign.push((change, found.clone()));
                    }
                    self.ledger.forget(&knob);
                    self.foreign.insert(knob);
                }
                Err(error) if Kernel::is_gone(&error) => self.ledger.forget(&knob),
                Err(_) => {}
            }
        }
        back
    }

    /// Forgets settings that already have the wanted value, although the daemon last wrote a different one.
    /// Something else has changed them since, such as a driver when a CPU comes online. The daemon no longer
    /// compares or restores them.
    pub(crate) fn forget_repaired_by_others<'s>(
        &mut self,
        wanted: impl Iterator<Item = &'s Setting>,
        changed: &BTreeSet<Knob>,
    ) {
        for wanted in wanted {
            let knob = knob_of(wanted);
            let differs = self.ledger.get(&knob).is_some_and(|held| held.to() != wanted);
            if !differs || changed.contains(&knob) {
                continue;
            }
            let found = self.kernel.read(std::slice::from_ref(wanted));
            if found.is_ok_and(|found| found.first() == Some(wanted)) {
                self.ledger.forget(&knob);
                self.foreign.insert(knob);
            }
        }
    }

    /// Clears the list of settings that other programs have changed, so that none is removed from the
    /// journal. Returns whether there were any.
    pub(crate) fn take_back_foreign(&mut self) -> bool {
        !std::mem::take(&mut self.foreign).is_empty()
    }

    /// Forgets settings of exited processes and of recreated devices, in memory and in the journal.
    ///
    /// # Errors
    /// If the journal cannot be compacted. The settings are forgotten anyway.
    pub(crate) fn forget_ended(&mut self, host: &Host, asked: &TransactionOrigin) -> Result<(), Fault> {
        if self.ended(host).is_empty() {
            return Ok(());
        }
        let folded = self.fold(host, asked);
        // If others depend on a transaction, it is still in the journal, so forget its settings in memory.
        for knob in self.ended(host) {
            self.ledger.forget(&knob);
        }
        folded
    }

    /// Removes the settings that another program has changed from the journal, so that they no longer count
    /// as the daemon's.
    ///
    /// # Errors
    /// As for [`HeldSettings::forget_ended`].
    pub(crate) fn forget_foreign(&mut self, host: &Host, asked: &TransactionOrigin) -> Result<(), Fault> {
        if self.foreign.is_empty() {
            return Ok(());
        }
        let folded = self.fold(host, asked);
        for knob in std::mem::take(&mut self.foreign) {
            self.ledger.forget(&knob);
        }
        folded
    }

    /// Compacts the transactions into one if there are too many.
    ///
    /// # Errors
    /// If the journal cannot be compacted.
    pub(crate) fn fold_if_many(&mut self, host: &Host, asked: &TransactionOrigin) -> Result<(), Fault> {
        if self.own.len() > apply::FOLD_MAX { self.fold(host, asked) } else { Ok(()) }
    }

    fn fold(&mut self, host: &Host, asked: &TransactionOrigin) -> Result<(), Fault> {
        let ended = self.ended(host);
        let foreign = &self.foreign;
        // Compare by ifindex, which a device keeps when it is renamed.
        let there = |device: DeviceId| host.devices.iter().any(|known| known.id.ifindex == device.ifindex);
        let gone = |change: &Change| {
            let object = change.to().object();
            let knob = knob_of(change.to());
            foreign.contains(&knob)
                || ended.contains(&knob)
                || has_ended(&object, host)
                || object.device().is_some_and(|device| !there(device))
        };
        self.journal.rely_on([]);
        let folded = self.journal.fold(asked, gone);
        self.read()?;
        folded?;
        self.journal.forget_all_but(HISTORY_MAX)?;
        Ok(())
    }

    /// Returns the held settings whose object will not return, because it belonged to an exited process, or
    /// to a device whose name another device now has. A missing device may return from another network
    /// namespace.
    fn ended(&mut self, host: &Host) -> BTreeSet<Knob> {
        let Self { ledger, kernel, .. } = self;
        let mut ended = BTreeSet::new();
        for (knob, change) in ledger.iter() {
            let mut replaced = || {
                let device = knob.0.device().filter(|device| host.device(*device).is_none())?;
                let read = kernel.read(std::slice::from_ref(change.to()));
                let gone = read.is_err_and(|error| Kernel::is_gone(&error));
                (gone && kernel.has_device_named_as(device)).then_some(())
            };
            if has_ended(&knob.0, host) || replaced().is_some() {
                ended.insert(*knob);
            }
        }
        ended
    }

    /// Rolls back everything that the daemons have set. Call [`HeldSettings::news`] afterwards.
    pub(crate) fn roll_back_all(
        &mut self,
        asked: &TransactionOrigin,
    ) -> (Vec<(TransactionName, Undone)>, Option<RollBackError>) {
        self.journal.rely_on([]);
        self.journal.roll_back_daemons(&mut self.kernel, asked)
    }

    /// Creates the error for an incomplete rollback, which lists the settings that are still in force.
    pub(crate) fn unfinished(&self, error: RollBackError, undone: &[(TransactionName, Undone)]) -> Fault {
        unfinished(error, undone, &self.journal)
    }
}

/// Returns the key of a setting: its object and its name.
pub(crate) fn knob_of(setting: &Setting) -> Knob {
    (setting.object(), setting.knob())
}
