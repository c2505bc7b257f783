//! Trials whose deadline passed without a confirmation, and whose guard did not live to see it.

use apply::Expiry;

use crate::clock;
use crate::context::Context;
use crate::fault::Fault;

/// Rolls back every trial that has expired, and says so. Every command that reads or changes the host begins with
/// this, so that a trial ends even if its guard was killed.
pub(crate) fn roll_back_expired(context: &Context) -> Result<(), Fault> {
    let journal = context.journal()?;
    // Who may not read the journal has not made it either.
    let Ok(history) = journal.history() else { return Ok(()) };
    let mut kernel = linux::Kernel::new();
    for transaction in history.transactions.iter().rev().filter(|t| t.expired(clock::now())) {
        let name = transaction.name();
        match journal.roll_back_if_unconfirmed(name, &mut kernel, clock::now())? {
            Expiry::RolledBack(undone) => {
                context.console.say(&format!(
                    "{name} was on trial and was not confirmed in time: rolled back. {undone}"
                ));
            }
            Expiry::NotYet { .. } | Expiry::Settled(_) => {}
        }
    }
    Ok(())
}
