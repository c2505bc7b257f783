//! `confirm`: keeps the settings that `try` applied.

use session::{Exit, Fault, trial};

use crate::args::Confirm;
use cli::Context;

/// Confirms one transaction: the named one, or otherwise the newest one on trial.
pub(crate) fn run(arguments: &Confirm, context: &Context) -> Result<Exit, Fault> {
    let name = trial::confirm(arguments.id, &context.session.journal()?)?;
    context.console.say(&format!("Confirmed {name}: it stays in force until `netpolicy rollback {name}`."));
    Ok(Exit::Done)
}
