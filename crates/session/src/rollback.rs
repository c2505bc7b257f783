//! Reports a rollback that stops halfway.

use apply::{Journal, RollBackError, TransactionName, Undone};

use crate::fault::Fault;

/// The fault of a partial rollback of all daemons' settings, with the transactions that are still in force.
pub fn unfinished(error: RollBackError, undone: &[(TransactionName, Undone)], journal: &Journal) -> Fault {
    let fault = Fault::from(error);
    if undone.is_empty() {
        return fault;
    }
    let in_force = journal.kept_by_daemon().unwrap_or_default();
    fault.part_way(&in_force.iter().map(apply::Transaction::name).collect::<Vec<_>>())
}
