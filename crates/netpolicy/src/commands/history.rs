//! `history`: lists the transactions of this host, and what measurements show about the policies of its
//! services (the standing proofs).

use latency::reports::html_of_proofs;
use model::Proofs;
use session::{Exit, Fault};

use super::compare;
use crate::args::HistoryArgs;
use crate::render::HistoryReport;
use cli::Context;

/// Lists the transactions.
pub(crate) fn run(arguments: &HistoryArgs, context: &Context) -> Result<Exit, Fault> {
    let journal = context.session.journal()?;
    let history = journal.history()?;
    let proofs = context.session.proofs().unwrap_or_else(|error| {
        let file = context.session.proofs_file();
        context.console.say(&format!("{}: standing proofs cannot be read: {error}", file.display()));
        Proofs::default()
    });
    let proofs = proofs.services;
    context.console.report(&HistoryReport::of(&history, &journal, &proofs))?;
    if history.transactions.is_empty() && history.unreadable.is_empty() {
        context.console.say("No transaction yet.");
    }
    if let Some(path) = &arguments.report {
        match html_of_proofs(&proofs) {
            Some(page) => compare::draw(path, &page, context)?,
            None => context
                .console
                .say(&format!("{} was not written: no standing proof has two episodes yet.", path.display())),
        }
    }
    for transaction in &history.transactions {
        if let Some(why) = transaction.unread_judgements() {
            context.console.say(&format!("{}: its verdicts cannot be read: {why}", transaction.name()));
        }
    }
    for unreadable in &history.unreadable {
        let settled = match unreadable.may_be_in_force() {
            true => "the transaction may be in force",
            false => {
                "the transaction is not in force: its script restored the settings, or the host was rebooted since"
            }
        };
        context.console.say(&format!("{}: {settled}, but cannot be read: {unreadable}", unreadable.name));
    }
    Ok(Exit::Done)
}
