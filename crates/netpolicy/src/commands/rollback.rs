//! `rollback`: the values that were there before a transaction.

use apply::{Journal, JournalError, RollBackError};

use crate::args::Rollback;
use crate::clock;
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::{Fault, HostState};
use crate::render::{UndoneReport, count};

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
            if history.transactions.iter().any(|t| t.name() == name && t.begin().kept_by_daemon) {
                return all_of_the_daemons(&journal, context);
            }
            name
        }
    };
    let of_daemon = journal.transaction(name).is_ok_and(|transaction| transaction.begin().kept_by_daemon);
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
    if of_daemon {
        tell_of_daemon(&journal, context, "these settings");
    }
    Ok(Exit::Done)
}

/// How often is looked for more that a daemon has set meanwhile.
const LOOKS_MAX: usize = 64;

/// What a daemon holds is one thing to an operator, however many transactions it took: all of it goes, the newest first.
fn all_of_the_daemons(journal: &Journal, context: &Context) -> Result<Exit, Fault> {
    let mut kernel = linux::Kernel::new();
    let mut rolled_back = 0_usize;
    for _ in 0..LOOKS_MAX {
        let Some(newest) = journal.kept_by_daemon()?.last().map(apply::Transaction::name) else { break };
        let undone = match journal.roll_back(newest, &mut kernel, clock::now()) {
            Ok(undone) => undone,
            // The daemon has made one of several meanwhile.
            Err(
                RollBackError::NothingToUndo { .. }
                | RollBackError::Journal(JournalError::NoSuchTransaction { .. }),
            ) => {
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let told = context.console.report_done(&UndoneReport::of(newest, &undone));
        told.map_err(|fault| fault.leaving(HostState::Restored))?;
        rolled_back += 1;
    }
    context
        .console
        .say(&format!("Rolled back all that the daemon had set: {}.", count(rolled_back, "transaction")));
    tell_of_daemon(journal, context, "everything");
    Ok(Exit::Done)
}

/// A daemon that runs leaves alone what was rolled back.
fn tell_of_daemon(journal: &Journal, context: &Context, what: &str) {
    if let Some(pid) = journal.keeper() {
        context.console.say(&format!(
            "The daemon (pid {pid}) leaves {what} alone until it is asked again: kill -HUP {pid}"
        ));
    }
}
