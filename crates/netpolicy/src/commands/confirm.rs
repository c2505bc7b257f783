//! `confirm`: keeps what `try` applied.

use apply::{Standing, TransactionName};
use session::{Exit, Fault, clock};

use crate::args::Confirm;
use cli::Context;

/// Confirms one transaction: the named one, or the newest one on trial.
pub(crate) fn run(arguments: &Confirm, context: &Context) -> Result<Exit, Fault> {
    let journal = context.session.journal()?;
    let name = match arguments.id {
        Some(name) => name,
        None => on_trial(&journal)?,
    };
    journal.confirm(name, clock::now())?;
    context.console.say(&format!("Confirmed {name}: it stays until `netpolicy rollback {name}`."));
    Ok(Exit::Done)
}

fn on_trial(journal: &apply::Journal) -> Result<TransactionName, Fault> {
    let history = journal.history()?;
    let held = history.transactions.iter().rev().find(|t| matches!(t.standing(), Standing::HeldUntil(_)));
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
