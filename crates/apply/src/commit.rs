//! Applies a plan as one transaction: all of its changes or none.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use model::host::QueueConflict;
use model::setting::Disruption;
use model::{Change, Pid, Plan, Setting, Step};

use crate::compaction::{Knob, knob};
use crate::held::{HeldPlan, OpenTransaction};
use crate::journal::Journal;
use crate::knobs::Knobs;
use crate::log::JournalError;
use crate::record::{JournalRecord, TransactionOrigin, Why};
use crate::transaction::Standing;
use crate::transaction_name::TransactionName;
use crate::undo::{UndoState, Undone, read};
use crate::unreadable::Unreadable;

/// Applies a plan step by step, and returns it as a [`HeldPlan`] that the caller keeps or rolls back.
///
/// Nothing is written until every old value has been read again and matches the plan, and the journal has the
/// whole plan on disk. Each step is recorded, written, read back and compared; after the last step, all
/// settings are compared again. After any failure, all steps that were begun are undone before this function
/// returns.
///
/// # Errors
/// The failure, and the resulting state of the host.
pub fn commit<'k, K: Knobs>(
    plan: Plan,
    kernel: &'k mut K,
    journal: &Journal,
    asked: &TransactionOrigin,
    allow: Allow,
) -> Result<HeldPlan<'k, K>, CommitError<K::Error>> {
    if plan.is_empty() {
        return Ok(HeldPlan::nothing(kernel));
    }
    allow.check(&plan).map_err(CommitError::untouched)?;
    let lock = journal.lock().map_err(|e| CommitError::untouched(e.into()))?;
    check_that_no_knob_is_claimed(&plan, journal).map_err(CommitError::untouched)?;
    check_that_nothing_drifted(&plan, kernel).map_err(CommitError::untouched)?;
    check_that_no_queue_is_taken(&plan, kernel).map_err(CommitError::untouched)?;
    let object_cookies = kernel.object_cookies(&plan);
    let pending =
        journal.begin(&lock, asked, plan, object_cookies).map_err(|e| CommitError::untouched(e.into()))?;
    // From this point on, even a panic in the host's code leads to an undo, because dropping the held plan
    // rolls it back.
    let mut held = HeldPlan::begun(kernel, lock, pending);
    match held.take_steps() {
        Ok(()) => Ok(held),
        Err(fault) => Err(held.fail(fault)),
    }
}

/// Checks whether a commit of this plan would be refused before it writes anything, because of the options,
/// another transaction's claim, or a queue's holder. Does not compare current values with the plan.
///
/// # Errors
/// The refusal. Nothing was changed.
pub fn refuse_early<K: Knobs>(
    plan: &Plan,
    kernel: &mut K,
    journal: &Journal,
    allow: Allow,
) -> Result<(), CommitError<K::Error>> {
    allow.check(plan).map_err(CommitError::untouched)?;
    check_that_no_knob_is_claimed(plan, journal).map_err(CommitError::untouched)?;
    check_that_no_queue_is_taken(plan, kernel).map_err(CommitError::untouched)
}

impl<K: Knobs> HeldPlan<'_, K> {
    fn take_steps(&mut self) -> Result<(), CommitFault<K::Error>> {
        let Some(pending) = &mut self.pending else { return Ok(()) };
        (0..pending.steps()).try_for_each(|index| take_step(pending, self.kernel, index))?;
        verify_all(pending, self.kernel)
    }

    fn fail(mut self, fault: CommitFault<K::Error>) -> CommitError<K::Error> {
        let Some(mut pending) = self.pending.take() else { return CommitError::untouched(fault) };
        let undone = pending.undo(self.kernel, Why::Failed { cause: fault.to_string() });
        let (transaction, undo_script) = match pending.discard_if_unrecorded(&undone) {
            true => (None, None),
            false => (Some(pending.name()), Some(pending.undo_script())),
        };
        CommitError { fault: Box::new(fault), host: undone.host(), undone, transaction, undo_script }
    }
}

/// Executes one step: reads the old values again, records the step, writes it, reads it back, compares, and
/// records that it is done.
fn take_step<K: Knobs>(
    pending: &mut OpenTransaction,
    kernel: &mut K,
    step: usize,
) -> Result<(), CommitFault<K::Error>> {
    let of = pending.steps();
    let (from, to) = (pending.step(step).from(), pending.step(step).to());
    let host = |doing| move |cause| CommitFault::Host { step, of, doing, cause };

    let drifts = drifts(&from, read(kernel, &from).map_err(host(HostOperation::Reading))?);
    if !drifts.is_empty() {
        return Err(CommitFault::Drifted(drifts));
    }
    pending.note(JournalRecord::Tried { step })?;
    kernel.write(&to).map_err(host(HostOperation::Writing))?;
    let found = read(kernel, &to).map_err(host(HostOperation::ReadingBack))?;
    if let Some((wrote, found)) = to.into_iter().zip(found).find(|(wrote, found)| wrote != found) {
        let (wrote, found) = (Box::new(wrote), Box::new(found));
        return Err(CommitFault::ReadBack { step, of, wrote, found });
    }
    pending.note(JournalRecord::Done { step })?;
    Ok(())
}

/// Reads every setting again after the last step: a driver may have reset its device during a later step, and
/// lost what an earlier step had set. An object that has disappeared in the meantime is not an error.
fn verify_all<K: Knobs>(pending: &OpenTransaction, kernel: &mut K) -> Result<(), CommitFault<K::Error>> {
    let of = pending.steps();
    for step in 0..of {
        let to = pending.step(step).to();
        let found = match read(kernel, &to) {
            Ok(found) => found,
            Err(error) if K::is_gone(&error) => continue,
            Err(cause) => {
                return Err(CommitFault::Host { step, of, doing: HostOperation::ReadingBack, cause });
            }
        };
        for (wrote, found) in to.into_iter().zip(found) {
            let changed_again = || {
                (step + 1..of)
                    .flat_map(|later| pending.step(later).changes())
                    .any(|c| c.to().same_knob(&wrote))
            };
            if wrote != found && !changed_again() {
                let (wrote, found) = (Box::new(wrote), Box::new(found));
                return Err(CommitFault::ReadBack { step, of, wrote, found });
            }
        }
    }
    Ok(())
}

/// Refuses a plan that changes a knob of another live transaction in one of these states: it awaits
/// confirmation, its program was killed, or another program owns it. Such a transaction must be decided
/// first, because its undo would find a newer value and leave it. Also refuses knobs that an unreadable
/// transaction may have changed.
fn check_that_no_knob_is_claimed<E>(plan: &Plan, journal: &Journal) -> Result<(), CommitFault<E>> {
    let (live, unreadable) = journal.live_and_unreadable()?;
    for transaction in unreadable {
        if let Some(knob) = transaction.touches(plan) {
            let (transaction, knob) = (Box::new(transaction), knob.map(Box::new));
            return Err(CommitFault::Unreadable { transaction, knob });
        }
    }
    if let Some(name) = journal.daemon_lock().and_then(|lock| lock.missing_among(&live)) {
        return Err(CommitFault::RolledBackMeanwhile { name });
    }
    for transaction in live {
        let (name, standing) = (transaction.name(), transaction.standing());
        let owner = journal.owner(&transaction);
        if !is_undecided(standing) && owner.is_none() {
            continue;
        }
        let ours = |theirs: &&Change| plan.changes().any(|c| c.to().same_knob(theirs.to()));
        if let Some(knob) = transaction.live_changes().find(ours).cloned().map(Box::new) {
            return Err(match owner {
                Some(by) => CommitFault::Owned { name, by, knob },
                None => CommitFault::Undecided { name, standing, knob },
            });
        }
    }
    Ok(())
}

impl Journal {
    /// Returns the knobs that a commit would refuse to change, each with the reason: the knob's transaction
    /// is undecided, owned by another program, or unreadable.
    ///
    /// # Errors
    /// As for [`Journal::history`].
    pub fn claims(&self) -> Result<BTreeMap<Knob, String>, JournalError> {
        let (live, unreadable) = self.live_and_unreadable()?;
        let mut claims = BTreeMap::new();
        for transaction in &unreadable {
            let name = transaction.name;
            let why = format!("may have been changed by {name}, which cannot be read");
            claims.extend(transaction.changes().map(|change| (knob(change), why.clone())));
        }
        for transaction in &live {
            let (name, standing) = (transaction.name(), transaction.standing());
            let why = match self.owner(transaction) {
                Some(by) => {
                    format!(
                        "belongs to process {by}, which restores its old value on exit (transaction {name})"
                    )
                }
                None if is_undecided(standing) => {
                    format!("was changed by {name}, which is {standing}: confirm it or roll it back first")
                }
                None => continue,
            };
            claims.extend(transaction.live_changes().map(|change| (knob(change), why.clone())));
        }
        Ok(claims)
    }
}

const fn is_undecided(standing: Standing) -> bool {
    matches!(standing, Standing::Unfinished | Standing::HeldUntil(_))
}

/// Reads the holders of the plan's queues again: a queue may have acquired a holder since the plan was made.
fn check_that_no_queue_is_taken<K: Knobs>(plan: &Plan, kernel: &mut K) -> Result<(), CommitFault<K::Error>> {
    for (step, of) in plan.steps.iter().enumerate() {
        let changes: Vec<&Change> = of.changes().iter().collect();
        match kernel.queue_conflict(&changes) {
            Ok(None) => {}
            Ok(Some(taken)) => return Err(CommitFault::QueueConflict(Box::new(taken))),
            Err(cause) => {
                let (of, doing) = (plan.steps.len(), HostOperation::Reading);
                return Err(CommitFault::Host { step, of, doing, cause });
            }
        }
    }
    Ok(())
}

/// Reads every old value again and compares it with the plan. If the plan changes a knob twice, the second
/// change must start from the value that the first one sets.
fn check_that_nothing_drifted<K: Knobs>(plan: &Plan, kernel: &mut K) -> Result<(), CommitFault<K::Error>> {
    let mut drifted = Vec::new();
    for (index, step) in plan.steps.iter().enumerate() {
        let from = step.from();
        let doing = HostOperation::Reading;
        let mut found = read(kernel, &from).map_err(|cause| CommitFault::Host {
            step: index,
            of: plan.steps.len(),
            doing,
            cause,
        })?;
        for found in &mut found {
            if let Some(earlier) = last_change_before(plan, index, found) {
                *found = earlier;
            }
        }
        drifted.extend(drifts(&from, found));
    }
    if drifted.is_empty() { Ok(()) } else { Err(CommitFault::Drifted(drifted)) }
}

/// Returns the value that the steps before this one give to a knob, or `None` if none of them changes it.
fn last_change_before(plan: &Plan, index: usize, knob: &Setting) -> Option<Setting> {
    let earlier = plan.steps[..index].iter().rev().flat_map(Step::changes);
    earlier.map(Change::to).find(|to| to.same_knob(knob)).cloned()
}

fn drifts(planned: &[Setting], found: Vec<Setting>) -> Vec<Drift> {
    let pairs = planned.iter().zip(found).filter(|(planned, found)| *planned != found);
    pairs.map(|(planned, found)| Drift { planned: planned.clone(), found }).collect()
}

/// Permissions for changes that a commit otherwise refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    /// Whether to change settings whose old value cannot be written back.
    pub irreversible: bool,
    /// Whether to change settings whose write stops a queue or takes the link down.
    pub disruptive: bool,
}

impl Allow {
    fn check<E>(self, plan: &Plan) -> Result<(), CommitFault<E>> {
        let which =
            |like: fn(&Change) -> bool| -> Vec<_> { plan.changes().filter(|c| like(c)).cloned().collect() };
        let irreversible = which(|c| !c.from().restorable());
        if !self.irreversible && !irreversible.is_empty() {
            return Err(CommitFault::Irreversible(irreversible));
        }
        let disruptive = which(|c| c.to().disruption() != Disruption::None);
        if !self.disruptive && !disruptive.is_empty() {
            return Err(CommitFault::Disruptive(disruptive));
        }
        Ok(())
    }
}

/// A setting whose current value differs from the value that the plan expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The value that the plan expects.
    pub planned: Setting,
    /// The current value.
    pub found: Setting,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { planned, found } = self;
        write!(f, "{}: {} was {}, is {}", planned.object(), planned.knob(), planned.value(), found.value())
    }
}

/// A plan that was not applied, with the reason and the resulting state of the host.
#[derive(Debug)]
pub struct CommitError<E> {
    /// What failed.
    pub fault: Box<CommitFault<E>>,
    /// The state of the host after the failure.
    pub host: UndoState,
    /// The result of the undo, change by change; empty if nothing had been written.
    pub undone: Undone,
    /// The transaction's name, if one was begun.
    pub transaction: Option<TransactionName>,
    /// The script that undoes the transaction without netpolicy, if a transaction was begun.
    pub undo_script: Option<PathBuf>,
}

/// Why a plan was not applied.
#[derive(Debug)]
pub enum CommitFault<E> {
    /// Some changes cannot be undone, and the caller does not allow irreversible changes.
    Irreversible(Vec<Change>),
    /// Some changes disrupt traffic, and the caller does not allow that.
    Disruptive(Vec<Change>),
    /// An earlier transaction that is still undecided has changed one of these knobs.
    Undecided {
        /// The earlier transaction.
        name: TransactionName,
        /// The earlier transaction's standing: unfinished or held.
        standing: Standing,
        /// The earlier transaction's change of the knob.
        knob: Box<Change>,
    },
    /// A running program owns one of these knobs, and restores it when it exits.
    Owned {
        /// The transaction.
        name: TransactionName,
        /// The program.
        by: Pid,
        /// The owned transaction's change of the knob.
        knob: Box<Change>,
    },
    /// A transaction that may be in force is unreadable, and may have changed one of these knobs.
    Unreadable {
        /// The unreadable transaction, and the fault in its journal.
        transaction: Box<Unreadable>,
        /// The change that the transaction may have made to one of the knobs, if its plan is known.
        knob: Option<Box<Change>>,
    },
    /// One of the daemon's earlier transactions was rolled back while the daemon made this plan, so the
    /// daemon must observe the host again.
    RolledBackMeanwhile {
        /// The earlier transaction.
        name: TransactionName,
    },
    /// A change would take a queue from its holder.
    QueueConflict(Box<QueueConflict>),
    /// The host has changed since the plan was made.
    Drifted(Vec<Drift>),
    /// The host returned an error when it was read or written.
    Host {
        /// The step, counted from 0.
        step: usize,
        /// The number of steps in the plan.
        of: usize,
        /// The operation that failed.
        doing: HostOperation,
        /// The host's error.
        cause: E,
    },
    /// The kernel accepted a value, but a different value was read back.
    ReadBack {
        /// The step, counted from 0.
        step: usize,
        /// The number of steps in the plan.
        of: usize,
        /// The value that was written.
        wrote: Box<Setting>,
        /// The value that was read back.
        found: Box<Setting>,
    },
    /// The journal could not be written, or another process holds its lock.
    Journal(JournalError),
}

/// The kind of access to a host that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOperation {
    /// Reading the values before the step.
    Reading,
    /// Writing the step.
    Writing,
    /// Reading the values after the step.
    ReadingBack,
}

impl<E> From<JournalError> for CommitFault<E> {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> CommitError<E> {
    fn untouched(fault: CommitFault<E>) -> Self {
        let (host, undone) = (UndoState::Unchanged, Undone::default());
        Self { fault: Box::new(fault), host, undone, transaction: None, undo_script: None }
    }
}

impl<E: fmt::Display> fmt::Display for CommitFault<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Irreversible(changes) => {
                let lines = changes.iter().map(|change| {
                    let what = change.from().facts().irreversible;
                    format!("{change} (cannot be restored: {})", what.unwrap_or("this value"))
                });
                write!(f, "refused: cannot be undone:{}", indented(lines))
            }
            Self::Disruptive(changes) => {
                let changes = changes.iter().map(|c| format!("{c} ({})", c.to().disruption()));
                write!(f, "refused: disturbs traffic:{}", indented(changes))
            }
            Self::Undecided { name, standing, knob } => write!(
                f,
                "refused: {name} is {standing} and has changed {} of {}; confirm it or roll it back first",
                knob.to().knob(),
                knob.to().object()
            ),
            Self::Owned { name, by, knob } => write!(
                f,
                "refused: {} of {} belongs to process {by}, which restores its old value on exit (transaction {name})",
                knob.to().knob(),
                knob.to().object()
            ),
            Self::Unreadable { transaction, knob } => {
                let name = transaction.name;
                write!(f, "refused: {name} may be in force, and may have changed ")?;
                match knob {
                    Some(knob) => write!(f, "{} of {}", knob.to().knob(), knob.to().object())?,
                    None => f.write_str("any setting")?,
                }
                write!(f, ", but cannot be read: {transaction}")
            }
            Self::RolledBackMeanwhile { name } => {
                write!(f, "refused: {name} was rolled back while these changes were planned")
            }
            Self::QueueConflict(taken) => {
                write!(f, "refused: {} {}\n  {taken}", taken.change, taken.how)
            }
            Self::Drifted(drifts) => {
                write!(f, "refused: changed by another program since the plan was made:{}", indented(drifts))
            }
            Self::Host { step, of, doing, cause } => {
                let doing = match doing {
                    HostOperation::Reading => "cannot be read",
                    HostOperation::Writing => "refused",
                    HostOperation::ReadingBack => "cannot be read back",
                };
                write!(f, "step {} of {of} {doing}: {cause}", step + 1)
            }
            Self::ReadBack { step, of, wrote, found } => {
                let (step, value) = (step + 1, found.value());
                write!(f, "step {step} of {of} is not in force: wrote {wrote}, but read back {value}")
            }
            Self::Journal(error) => error.fmt(f),
        }
    }
}

/// Formats each item on its own indented line.
fn indented(items: impl IntoIterator<Item = impl fmt::Display>) -> String {
    items.into_iter().map(|item| format!("\n  {item}")).collect()
}

impl<E: fmt::Display> fmt::Display for CommitError<E> {
    /// Writes the failure, followed by the state of the host.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.fault, self.undone)?;
        match (&self.host, &self.undo_script) {
            (UndoState::NotRestored(_), Some(script)) => {
                write!(f, "\nTo undo the rest by hand: {}", script.display())
            }
            (UndoState::NotRestored(_) | UndoState::Restored | UndoState::Unchanged, _) => Ok(()),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for CommitError<E> {
    /// Returns the error of the host or the journal. The text of this error already includes that error's
    /// text.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.fault {
            CommitFault::Host { cause, .. } => Some(cause),
            CommitFault::Journal(error) => Some(error),
            CommitFault::Unreadable { transaction, .. } => Some(&transaction.error),
            CommitFault::Irreversible(_)
            | CommitFault::Disruptive(_)
            | CommitFault::Undecided { .. }
            | CommitFault::Owned { .. }
            | CommitFault::RolledBackMeanwhile { .. }
            | CommitFault::QueueConflict(_)
            | CommitFault::Drifted(_)
            | CommitFault::ReadBack { .. } => None,
        }
    }
}
