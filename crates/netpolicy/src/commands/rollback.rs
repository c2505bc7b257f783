//! `rollback`: the values that were there before a transaction.

use crate::args::Rollback;
use crate::clock;
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::{Fault, HostState};
use crate::render::UndoneReport;

/// Rolls one transaction back: the one that is named, or the newest that is in force.
pub(crate) fn run(arguments: &Rollback, context: &Context) -> Result<Exit, Fault> {
    let journal = context.journal()?;
    let name = match arguments.id {
        Some(name) => name,
        None => {
            let history = journal.history()?;
            match (history.newest_live(), history.unreadable.first()) {
                (Some(transaction), _) => transaction.name(),
                (None, None) => {
                    context.console.say("Nothing to roll back: no transaction is in force.");
                    return Ok(Exit::Done);
                }
                (None, Some(unreadable)) => {
                    return Err(Fault::failed(format!(
                        "no transaction that can be read is in force, but one cannot be read: {unreadable}"
                    )));
                }
            }
        }
    };
    let mut kernel = linux::Kernel::new();
    let undone = journal.roll_back(name, &mut kernel, clock::now())?;
    let told = context.console.report(&UndoneReport::of(name, &undone));
    told.map_err(|fault| fault.leaving(HostState::Restored))?;
    if let Some(error) = &undone.unrecorded {
        context
            .console
            .say(&format!("The journal does not have all of this, and may show {name} as in force: {error}"));
    }
    context.console.say(&format!("Rolled back {name}."));
    Ok(Exit::Done)
}
