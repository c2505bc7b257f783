//! `rollback`: restores the values from before a transaction.

use std::collections::BTreeSet;

use apply::{Journal, RollBackError, Transaction, TransactionName, Undone};
use session::{Exit, Fault, HostState, quoted};

use crate::args::Rollback;
use crate::render::{UndoneReport, count};
use cli::Context;

/// Rolls back one transaction: the named one, or otherwise the newest one in force.
pub(crate) fn run(arguments: &Rollback, context: &Context) -> Result<Exit, Fault> {
    let journal = context.session.journal()?;
    if arguments.script {
        return print_script(&journal, context);
    }
    let names = match arguments.id {
        Some(name) => vec![name],
        None => {
            let history = journal.history()?;
            let newest = history.newest_live().map(apply::Transaction::name);
            // A newer transaction is unreadable, so it is unknown which transaction is the last one.
            if let Some(unreadable) = history.unreadable_after(newest) {
                let fault = Fault::failed(format!(
                    "the last transaction, {}, cannot be read: {unreadable}",
                    unreadable.name
                ));
                return Err(match newest {
                    Some(name) => fault.hint(format!(
                        "run its undo script first; to undo the one before it: netpolicy rollback {name}"
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
            stages(&history.transactions, name)
        }
    };
    names.into_iter().try_for_each(|name| one(name, &journal, context))?;
    Ok(Exit::Done)
}

/// Returns the transactions in force that were made by the same command as the newest one, newest first. An
/// `apply` that recreates queues makes two: one for the queues and one for their settings.
fn stages(all: &[Transaction], newest: TransactionName) -> Vec<TransactionName> {
    let live = all.iter().rev().filter(|transaction| transaction.standing().is_live());
    let mut stages = live.skip_while(|transaction| transaction.name() != newest);
    let Some(last) = stages.next() else { return vec![newest] };
    let is_of_the_same = |transaction: &&Transaction| {
        let (one, other) = (transaction.begin(), last.begin());
        transaction.name().is_of_same_program(newest)
            && one.asked.command == other.asked.command
            && (one.owned_by, other.owned_by) == (None, None)
    };
    std::iter::once(newest).chain(stages.take_while(is_of_the_same).map(Transaction::name)).collect()
}

fn one(name: TransactionName, journal: &Journal, context: &Context) -> Result<(), Fault> {
    let before = journal.transaction(name).ok();
    let of_daemon = before.as_ref().is_some_and(|transaction| transaction.begin().kept_by_daemon);
    let undone = session::roll_back(name, journal)?;
    let printed = context.console.report_done(&UndoneReport::of(name, &undone));
    printed.map_err(|fault| fault.leaving(HostState::Restored))?;
    tell_what_is_unrecorded(name, &undone, context);
    context.console.say(&format!("Rolled back {name}."));
    say_what_it_costs(before.as_ref(), context);
    if of_daemon {
        tell_of_daemon(journal, context, "these settings");
    }
    report_left_alone(std::iter::once(&undone), context);
    Ok(())
}

/// Prints a script that runs the undo script of each transaction in force, newest first. Omits the
/// transactions of a running `attach`, which rolls them back itself.
fn print_script(journal: &Journal, context: &Context) -> Result<Exit, Fault> {
    let history = journal.history()?;
    let mut script = "#!/bin/sh\n\
         # Undoes what netpolicy has set and what is in force, the newest transaction first. It needs no netpolicy.\n\
         # It ends with 0 if everything is as it was or was left alone, and with 5 if something is not.\n\
         failed=0\n"
        .to_owned();
    let owned = |name| history.transactions.iter().find(|t| t.name() == name).and_then(|t| journal.owner(t));
    let live = history.transactions.iter().filter(|t| t.standing().is_live()).map(apply::Transaction::name);
    let unreadable = history.unreadable.iter().filter(|u| u.may_be_in_force()).map(|u| u.name);
    let names: BTreeSet<TransactionName> = live.chain(unreadable).collect();
    for name in names.into_iter().rev() {
        script += &match owned(name) {
            Some(pid) => format!("# {name}: process {pid} rolls it back when it exits\n"),
            None => {
                let undo = journal.directory().join(name.to_string()).join("undo.sh");
                format!("sh {} --by-hand || failed=5\n", quoted(&undo.to_string_lossy()))
            }
        };
    }
    script += "exit \"$failed\"\n";
    context.console.text(&script)?;
    Ok(Exit::Done)
}

/// Rolls back all transactions that a daemon holds, because operators treat them as a unit.
fn all_of_the_daemons(journal: &Journal, context: &Context) -> Result<Exit, Fault> {
    let (undone, failed) = journal.roll_back_daemons(&mut linux::Kernel::new(), &context.session.asked(None));
    for (name, undone) in &undone {
        let printed = context.console.report_done(&UndoneReport::of(*name, undone));
        printed.map_err(|fault| fault.leaving(HostState::Restored))?;
        tell_what_is_unrecorded(*name, undone, context);
    }
    match failed {
        Some(RollBackError::Overlaid { newer, .. }) if !undone.is_empty() => {
            context.console.say(&format!(
                "Rolled back the daemon's settings since {newer}; that transaction of another program stays in force. To undo the earlier settings, too: netpolicy rollback {newer}, then netpolicy rollback."
            ));
            tell_of_daemon(journal, context, "these settings");
            report_left_alone(undone.iter().map(|(_, undone)| undone), context);
            return Ok(Exit::Done);
        }
        Some(error) => return Err(session::unfinished(error, &undone, journal)),
        None => {}
    }
    // Count each setting once: several transactions contain a setting if an earlier rollback could not
    // restore it.
    let changes = undone.iter().flat_map(|(_, undone)| &undone.changes);
    let knobs = changes.map(|undone| (undone.change.from().object(), undone.change.from().knob()));
    let settings = knobs.collect::<BTreeSet<_>>().len();
    context.console.say(&format!("Rolled back all settings of the daemon: {}.", count(settings, "setting")));
    tell_of_daemon(journal, context, "everything");
    report_left_alone(undone.iter().map(|(_, undone)| undone), context);
    Ok(Exit::Done)
}

fn tell_what_is_unrecorded(name: TransactionName, undone: &Undone, context: &Context) {
    if let Some(error) = &undone.unrecorded {
        context.console.say(&format!("The journal is incomplete and may list {name} as in force: {error}"));
    }
}

/// The maximum number of settings that the last line names.
const NAMED_MAX: usize = 8;

/// Names the settings that were not restored because another program has changed them.
fn report_left_alone<'u>(undone: impl Iterator<Item = &'u Undone>, context: &Context) {
    let left: Vec<String> = undone
        .flat_map(Undone::left_alone)
        .map(|(change, found)| {
            let from = change.from();
            let (object, knob) = (from.object(), from.knob());
            format!("{object} {knob} is {}, and was {} before", found.value(), from.value())
        })
        .collect();
    if left.is_empty() {
        return;
    }
    let more = match left.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let named = left[..left.len().min(NAMED_MAX)].join("; ");
    context
        .console
        .say(&format!("NOT restored, because another program has changed it since: {named}{more}."));
}

/// If the transaction was judged, reports the measured difference between the settings before and after it.
fn say_what_it_costs(before: Option<&Transaction>, context: &Context) {
    let judged = before.and_then(|transaction| transaction.judgements().last());
    if let Some(judged) = judged
        && let Some(change) = judged.of_going_back()
    {
        context
            .console
            .say(&format!("According to its verdict on {}, the rollback changes: {change}.", judged.service));
    }
}

/// If a daemon is running, tells the operator that the daemon will not set the rolled back settings again.
fn tell_of_daemon(journal: &Journal, context: &Context, what: &str) {
    if let Some(pid) = journal.daemon() {
        context.console.say(&format!(
            "The daemon (pid {pid}) leaves {what} alone until it is reloaded: kill -HUP {pid}"
        ));
    }
}
