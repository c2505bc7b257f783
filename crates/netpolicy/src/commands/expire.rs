//! Trials whose deadline passed without a confirmation, and whose guard did not live to see it.

use apply::Expiry;

use crate::clock;
use crate::context::Context;
use crate::fault::Fault;

/// Rolls back every trial that has expired, and says so. Every command that reads or changes the host begins with
/// this, so that a trial ends even if its guard was killed.
///
/// # Errors
/// The first trial that could not be rolled back; the others were, all the same.
pub(crate) fn roll_back_expired(context: &Context) -> Result<(), Fault> {
    let journal = context.journal()?;
    // Who may not read the journal has not made it either.
    let Ok(history) = journal.history() else { return Ok(()) };
    let (mut kernel, mut failed) = (linux::Kernel::new(), None);
    for transaction in history.transactions.iter().rev().filter(|t| t.expired(clock::now())) {
        let name = transaction.name();
        match journal.roll_back_if_unconfirmed(name, &mut kernel, clock::now()) {
            Ok(Expiry::RolledBack(undone)) => context
                .console
                .say(&format!("{name} was on trial and was not confirmed in time: rolled back. {undone}")),
            Ok(Expiry::NotYet { .. } | Expiry::Settled(_)) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}
