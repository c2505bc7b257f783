//! `rollback`: the values that were there before a transaction.

use crate::args::Rollback;
use crate::clock;
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::UndoneReport;

/// Rolls one transaction back: the one that is named, or the newest that is in force.
pub(crate) fn run(arguments: &Rollback, context: &Context) -> Result<Exit, Fault> {
    let journal = context.journal()?;
    let name = match arguments.id {
        Some(name) => name,
        None => match journal.history()?.newest_live() {
            Some(transaction) => transaction.name(),
            None => {
                context.console.say("Nothing to roll back: no transaction is in force.");
                return Ok(Exit::Done);
            }
        },
    };
    let mut kernel = linux::Kernel::new();
    let undone = journal.roll_back(name, &mut kernel, clock::now())?;
    context.console.report(&UndoneReport::of(name, &undone))?;
    context.console.say(&format!("Rolled back {name}."));
    Ok(Exit::Done)
}
