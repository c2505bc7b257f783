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
            let newest = history.newest_live().map(apply::Transaction::name);
            // Which transaction is the last is what is not known then.
            if let Some(unreadable) = history.unreadable_after(newest) {
                let fault = Fault::failed(format!(
                    "the last transaction, {}, cannot be read: {unreadable}",
                    unreadable.name
                ));
                return Err(match newest {
                    Some(name) => fault.hint(format!(
                        "undo it by its script first; for the one before it, name that: netpolicy rollback {name}"
                    )),
                    None => fault,
                });
            }
            let Some(name) = newest else {
                context.console.say("Nothing to roll back: no transaction is in force.");
                return Ok(Exit::Done);
            };
            name
        }
    };
    let mut kernel = linux::Kernel::new();
    let undone = journal.roll_back(name, &mut kernel, clock::now())?;
    let told = context.console.report_done(&UndoneReport::of(name, &undone));
    told.map_err(|fault| fault.leaving(HostState::Restored))?;
    if let Some(error) = &undone.unrecorded {
        context
            .console
            .say(&format!("The journal does not have all of this, and may show {name} as in force: {error}"));
    }
    context.console.say(&format!("Rolled back {name}."));
    Ok(Exit::Done)
}
