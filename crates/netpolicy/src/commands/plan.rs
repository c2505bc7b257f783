//! `plan`: prints the changes that the policy files require, with reasons.

use session::{Exit, Fault, cycle, fullbusy};

use crate::render::PlanReport;
use cli::Context;

/// Prints the changes that would make the host match the policy.
pub(crate) fn run(context: &Context) -> Result<Exit, Fault> {
    let source = context.session.source()?;
    let policy = context.whole_policy(&*source)?;
    fullbusy::refuse_from_outside(&policy)?;
    let planned = cycle::plan(&policy, &*source)?;
    context.report(&planned);
    context.console.report(&PlanReport::of(&planned.plan))?;
    if planned.plan.is_empty() {
        context.console.say(&format!("Nothing to change: {}.", planned.as_asked()?));
        return Ok(Exit::Done);
    }
    Ok(Exit::Pending)
}
