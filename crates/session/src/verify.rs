//! Compares the applied settings with the host.

use apply::{Journal, Knobs, Transaction};
use model::{Change, Setting};

use crate::Fault;
use crate::recording::{Applied, AppliedValue, Recording};
use crate::report::{DriftReport, UnreadCause};

/// A change in force, and its transaction.
#[derive(Clone, Debug)]
pub struct InForce {
    /// The transaction.
    pub transaction: Transaction,
    /// The change.
    pub change: Change,
}

/// The changes in force, one per setting. If several transactions changed a setting, the change of the newest
/// is returned.
///
/// # Errors
/// If the journal cannot be read.
pub fn in_force(journal: &Journal) -> Result<Vec<InForce>, Fault> {
    let mut newest: Vec<InForce> = Vec::new();
    for transaction in journal.history()?.transactions.iter().rev() {
        // If a transaction changes a setting several times, its last change is in force.
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
/// As for [`in_force`].
pub fn compared(journal: &Journal, recording: Option<&Recording>) -> Result<DriftReport, Fault> {
    let in_force = in_force(journal)?;
    let values = match recording {
        Some(recording) => in_force.iter().map(|one| recording.applied_value(one)).collect(),
        None => values(&in_force),
    };
    let mut report = DriftReport::default();
    for (InForce { transaction, change }, value) in in_force.iter().zip(values) {
        match value {
            AppliedValue::Found(found) if found.first() == Some(change.to()) => report.holds(),
            AppliedValue::Found(found) => {
                found.iter().for_each(|found| report.drifted(transaction.name(), change, found));
            }
            // Object and setting have their own columns, so the message need not name them.
            AppliedValue::Unread { cause, why } => {
                report.unreadable(transaction.name(), change, cause, why);
            }
        }
    }
    Ok(report)
}

/// The changes in force, with the values that the kernel reports now, for a recording.
///
/// # Errors
/// As for [`in_force`].
pub fn recorded(journal: &Journal) -> Result<Vec<Applied>, Fault> {
    let in_force = in_force(journal)?;
    let values = values(&in_force);
    let applied = in_force.into_iter().zip(values).map(|(InForce { transaction, change }, value)| Applied {
        transaction: transaction.name(),
        setting: change.to().clone(),
        value,
    });
    Ok(applied.collect())
}

/// Reads the values of these settings from the kernel.
fn values(in_force: &[InForce]) -> Vec<AppliedValue> {
    let mut kernel = linux::Kernel::new();
    let value = |InForce { transaction, change }: &InForce| {
        kernel.recall(&transaction.begin().object_cookies);
        value(change.to(), &mut kernel)
    };
    in_force.iter().map(value).collect()
}

fn value(setting: &Setting, kernel: &mut linux::Kernel) -> AppliedValue {
    match kernel.read(std::slice::from_ref(setting)) {
        Ok(found) => AppliedValue::Found(found),
        Err(error) => {
            let cause = match setting.object().device() {
                _ if !linux::Kernel::is_gone(&error) => UnreadCause::Unreadable,
                Some(device) if kernel.has_device_named_as(device) => UnreadCause::Recreated,
                _ => UnreadCause::Gone,
            };
            AppliedValue::Unread { cause, why: error.cause.to_string() }
        }
    }
}
