//! `verify`: is what was applied still in force?

use apply::{Journal, Knobs, Transaction};
use model::Change;
use session::{Exit, Fault};

use crate::context::Context;
use crate::render::{DriftReport, Unread};

/// Reads every setting of every transaction in force, and lists those with another value.
pub(crate) fn run(context: &Context) -> Result<Exit, Fault> {
    let journal = context.session.journal()?;
    let report = compared(&journal)?;
    context.console.report(&report)?;
    let history = journal.history()?;
    for unreadable in history.unreadable.iter().filter(|unreadable| unreadable.may_be_in_force()) {
        context.console.say(&format!("not compared: {unreadable}"));
    }
    if report.is_drift() {
        return Ok(Exit::Pending);
    }
    if history.unreadable.iter().any(apply::Unreadable::may_be_in_force) {
        let what = "the comparison is incomplete: transactions cannot be read".to_owned();
        return Err(Fault::failed(what));
    }
    context.console.say(&match report.held() {
        0 => "Nothing is applied.".to_owned(),
        1 => "No drift: 1 setting is as it was applied.".to_owned(),
        n => format!("No drift: {n} settings are as they were applied."),
    });
    Ok(Exit::Done)
}

/// A change that is in force, and the transaction that made it.
pub(crate) struct InForce {
    pub(crate) transaction: Transaction,
    pub(crate) change: Change,
}

/// The changes in force, one per knob: the newest transaction's, where several changed it.
pub(crate) fn in_force(journal: &Journal) -> Result<Vec<InForce>, Fault> {
    let mut newest: Vec<InForce> = Vec::new();
    for transaction in journal.history()?.transactions.iter().rev() {
        // Within a transaction, too, the last change of a knob is the one that holds.
        let changes: Vec<Change> = transaction.live_changes().cloned().collect();
        for change in changes.into_iter().rev() {
            if !newest.iter().any(|known| known.change.to().same_knob(change.to())) {
                newest.push(InForce { transaction: transaction.clone(), change });
            }
        }
    }
    newest.reverse();
    newest.sort_by_key(|known| known.change.to().object());
    Ok(newest)
}

/// Every setting of every transaction in force, compared with the host.
pub(crate) fn compared(journal: &Journal) -> Result<DriftReport, Fault> {
    Ok(compare(&in_force(journal)?, &mut linux::Kernel::new()))
}

fn compare(in_force: &[InForce], kernel: &mut linux::Kernel) -> DriftReport {
    let mut report = DriftReport::default();
    for InForce { transaction, change } in in_force {
        let name = transaction.name();
        kernel.recall(&transaction.begin().landmarks);
        match kernel.read(std::slice::from_ref(change.to())) {
            Ok(found) if found.first() == Some(change.to()) => report.holds(),
            Ok(found) => found.iter().for_each(|found| report.drifted(name, change, found)),
            // Object and setting have their columns.
            Err(error) => {
                let state = match change.to().object().device() {
                    _ if !linux::Kernel::is_gone(&error) => Unread::Unreadable,
                    Some(device) if kernel.has_device_named_as(device) => Unread::Recreated,
                    _ => Unread::Gone,
                };
                report.unreadable(name, change, state, error.cause.to_string());
            }
        }
    }
    report
}
