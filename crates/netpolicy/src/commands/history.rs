//! `history`: the transactions of this host.

use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::HistoryReport;

/// Lists them.
pub(crate) fn run(context: &Context) -> Result<Exit, Fault> {
    let history = context.journal()?.history()?;
    context.console.report(&HistoryReport::of(&history))?;
    if history.transactions.is_empty() {
        context.console.say("No transaction yet.");
    }
    for unreadable in &history.unreadable {
        context.console.say(&format!("unreadable: {unreadable}"));
    }
    Ok(Exit::Done)
}
