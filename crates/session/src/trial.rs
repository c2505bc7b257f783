//! Confirms a transaction that is on trial.

use apply::{Journal, Standing, Transaction, TransactionName};

use crate::clock;
use crate::exit::Exit;
use crate::fault::Fault;

/// Confirms a transaction on trial: the named one, or else the newest. Returns its name.
///
/// # Errors
/// If no transaction is on trial, its deadline has passed, or the named one belongs to a comparison, which
/// its verdict decides.
pub fn confirm(name: Option<TransactionName>, journal: &Journal) -> Result<TransactionName, Fault> {
    let name = match name {
        Some(name) => name,
        None => on_trial(journal)?,
    };
    let transaction = journal.transaction(name)?;
    if let Some(program) = transaction.begin().owned_by.filter(|_| transaction.deadline().is_some()) {
        return Err(Fault::new(
            Exit::Refused,
            format!("{name} is not on trial: process {program} measures with it, and rolls it back"),
        )
        .hint("`compare` and `tune` keep the best settings with --keep-winner"));
    }
    journal.confirm(name, clock::now())?;
    Ok(name)
}

fn on_trial(journal: &Journal) -> Result<TransactionName, Fault> {
    let history = journal.history()?;
    // The candidate of a running comparison has a deadline, but is not on trial.
    let is_on_trial =
        |t: &&Transaction| matches!(t.standing(), Standing::HeldUntil(_)) && t.begin().owned_by.is_none();
    let held = history.transactions.iter().rev().find(is_on_trial);
    match (held, history.transactions.last()) {
        (Some(transaction), _) => Ok(transaction.name()),
        (None, Some(newest)) => Err(Fault::failed(format!(
            "nothing to confirm: no transaction is on trial; the newest, {}, is {}",
            newest.name(),
            newest.standing()
        ))),
        (None, None) => Err(Fault::failed("nothing to confirm: there is no transaction yet")),
    }
}
