//! Compares the applied settings with the host.

use apply::{Journal, Knobs, Transaction};
use model::Change;

use crate::Fault;
use crate::report::{DriftReport, UnreadCause};

/// A change in force, and the transaction that made it.
#[derive(Clone, Debug)]
pub struct InForce {
    /// The transaction.
    pub transaction: Transaction,
    /// The change.
    pub change: Change,
}

/// The changes in force, one per setting: that of the newest transaction, if several changed it.
///
/// # Errors
/// If the journal cannot be read.
pub fn in_force(journal: &Journal) -> Result<Vec<InForce>, Fault> {
    let mut newest: Vec<InForce> = Vec::new();
    for transaction in journal.history()?.transactions.iter().rev() {
        // Within a transaction, too, the last change of a setting is the effective one.
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

/// Compares every setting of every transaction in force with the host.
///
/// # Errors
/// The same as [`in_force`].
pub fn compared(journal: &Journal) -> Result<DriftReport, Fault> {
    Ok(compare(&in_force(journal)?, &mut linux::Kernel::new()))
}

fn compare(in_force: &[InForce], kernel: &mut linux::Kernel) -> DriftReport {
    let mut report = DriftReport::default();
    for InForce { transaction, change } in in_force {
        let name = transaction.name();
        kernel.recall(&transaction.begin().object_cookies);
        match kernel.read(std::slice::from_ref(change.to())) {
            Ok(found) if found.first() == Some(change.to()) => report.holds(),
            Ok(found) => found.iter().for_each(|found| report.drifted(name, change, found)),
            // Object and setting have their own columns.
            Err(error) => {
                let state = match change.to().object().device() {
                    _ if !linux::Kernel::is_gone(&error) => UnreadCause::Unreadable,
                    Some(device) if kernel.has_device_named_as(device) => UnreadCause::Recreated,
                    _ => UnreadCause::Gone,
                };
                report.unreadable(name, change, state, error.cause.to_string());
            }
        }
    }
    report
}
