//! `verify`: checks whether applied settings are still in force.

use session::verify::compared;
use session::{Exit, Fault};

use cli::Context;

/// Reads the settings of all transactions in force, and lists those that have another value now.
pub(crate) fn run(context: &Context) -> Result<Exit, Fault> {
    let journal = context.session.journal()?;
    let report = compared(&journal, context.session.recording.as_deref())?;
    context.console.report(&report)?;
    let history = journal.history()?;
    for unreadable in history.unreadable.iter().filter(|unreadable| unreadable.may_be_in_force()) {
        context.console.say(&format!("not compared: {unreadable}"));
    }
    if report.is_drift() {
        return Ok(Exit::Pending);
    }
    if history.unreadable.iter().any(apply::Unreadable::may_be_in_force) {
        let what = "the comparison is incomplete: transactions cannot be read".to_owned();
        return Err(Fault::failed(what));
    }
    context.console.say(&match report.held() {
        0 => "No transaction is in force.".to_owned(),
        1 => "No drift: 1 setting is in force as applied.".to_owned(),
        n => format!("No drift: {n} settings are in force as applied."),
    });
    Ok(Exit::Done)
}
