//! `history`: the transactions of this host.

use session::{Exit, Fault};

use crate::render::HistoryReport;
use cli::Context;

/// Lists the transactions.
pub(crate) fn run(context: &Context) -> Result<Exit, Fault> {
    let journal = context.session.journal()?;
    let history = journal.history()?;
    context.console.report(&HistoryReport::of(&history, &journal))?;
    if history.transactions.is_empty() && history.unreadable.is_empty() {
        context.console.say("No transaction yet.");
    }
    for transaction in &history.transactions {
        if let Some(why) = transaction.unread_judgements() {
            context.console.say(&format!("{}: its verdicts cannot be read: {why}", transaction.name()));
        }
    }
    for unreadable in &history.unreadable {
        let settled = match unreadable.may_be_in_force() {
            true => "it may be in force",
            false => "it is not in force: its script restored the settings, or the host was rebooted since",
        };
        context.console.say(&format!("{}: {settled}, but cannot be read: {unreadable}", unreadable.name));
    }
    Ok(Exit::Done)
}
