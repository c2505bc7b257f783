//! Compares the applied settings with the host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apply::{Journal, Knobs, Transaction, TransactionName};
use model::{Change, Setting};

use crate::Fault;
use crate::recording::{Applied, AppliedValue, Recording};
use crate::report::{DriftReport, UnreadCause};

/// A change in force, and its transaction.
#[derive(Clone, Debug)]
pub struct InForce {
    /// The transaction.
    pub transaction: Arc<Transaction>,
    /// The change.
    pub change: Change,
}

/// Returns the changes in force, one per setting. If several transactions changed a setting, returns the
/// newest change.
///
/// # Errors
/// If the journal cannot be read.
pub fn in_force(journal: &Journal) -> Result<Vec<InForce>, Fault> {
    let mut newest: Vec<InForce> = Vec::new();
    let mut known = BTreeSet::new();
    for transaction in journal.history()?.transactions.into_iter().rev().map(Arc::new) {
        // If a transaction changed a setting several times, its last change is the effective one.
        let changes: Vec<Change> = transaction.live_changes().cloned().collect();
        for change in changes.into_iter().rev() {
            if known.insert(change.to().identity()) {
                newest.push(InForce { transaction: Arc::clone(&transaction), change });
            }
        }
    }
    newest.reverse();
    newest.sort_by_key(|one| one.change.to().object());
    Ok(newest)
}

/// Compares every setting of every transaction in force with the host.
///
/// # Errors
/// As for [`in_force`].
pub fn compared(journal: &Journal, recording: Option<&Recording>) -> Result<DriftReport, Fault> {
    let in_force = in_force(journal)?;
    let values = match recording {
        Some(recording) => recorded_values(&in_force, &recording.applied),
        None => values(&in_force),
    };
    let mut report = DriftReport::default();
    for (InForce { transaction, change }, value) in in_force.iter().zip(values) {
        match value {
            AppliedValue::Found(found) if found.first() == Some(change.to()) => report.holds(),
            AppliedValue::Found(found) => {
                found.iter().for_each(|found| report.drifted(transaction.name(), change, found));
            }
            // The report has columns for the object and the setting, so the message need not name them.
            AppliedValue::Unread { cause, why } => {
                report.unreadable(transaction.name(), change, cause, why);
            }
        }
    }
    Ok(report)
}

/// Returns the changes in force, with the values that the kernel reports now, for a recording.
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

/// Returns the recorded values of these settings.
fn recorded_values(in_force: &[InForce], applied: &[Applied]) -> Vec<AppliedValue> {
    let mut values: BTreeMap<_, Vec<&Applied>> = BTreeMap::new();
    for one in applied {
        values.entry((one.transaction, one.setting.identity())).or_default().push(one);
    }
    let value = |InForce { transaction, change }: &InForce| {
        let key: (TransactionName, _) = (transaction.name(), change.to().identity());
        let found = values.get(&key).into_iter().flatten().find(|one| one.setting == *change.to());
        let unread = || AppliedValue::Unread {
            cause: UnreadCause::Unreadable,
            why: "the recording has no value of it".to_owned(),
        };
        found.map_or_else(unread, |one| one.value.clone())
    };
    in_force.iter().map(value).collect()
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
