//! `cat`: the policy files as one.

use session::{Exit, Fault};

use crate::context::Context;
use crate::render::MergedReport;

/// Prints what all files together ask.
pub(crate) fn run(context: &Context) -> Result<Exit, Fault> {
    let merged = context.policy()?;
    context.console.report(&MergedReport::of(&merged))?;
    if merged.sections.is_empty() {
        context.console.say("No policy file asks for anything.");
    }
    Ok(Exit::Done)
}
