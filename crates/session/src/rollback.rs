//! Rolls back transactions, and reports a rollback that ended halfway.

use apply::{Journal, RollBackError, TransactionName, Undone};
use linux::Kernel;

use crate::clock;
use crate::fault::Fault;

/// Rolls back one transaction.
///
/// # Errors
/// If the transaction is not in force, another program owns it, a newer transaction has changed its settings,
/// or a setting cannot be restored.
pub fn roll_back(name: TransactionName, journal: &Journal) -> Result<Undone, Fault> {
    Ok(journal.roll_back(name, &mut Kernel::new(), clock::now())?)
}

/// Creates the failure of a rollback of all the daemon's settings that ended halfway, with the transactions
/// that are still in force.
pub fn unfinished(error: RollBackError, undone: &[(TransactionName, Undone)], journal: &Journal) -> Fault {
    let fault = Fault::from(error);
    if undone.is_empty() {
        return fault;
    }
    let in_force = journal.kept_by_daemon().unwrap_or_default();
    fault.part_way(&in_force.iter().map(apply::Transaction::name).collect::<Vec<_>>())
}
