//! `plan`: what the policy files would change, and why.

use crate::context::Context;
use crate::cycle;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::fullbusy;
use crate::render::PlanReport;

/// Prints the difference between the host and what is asked.
pub(crate) fn run(context: &Context) -> Result<Exit, Fault> {
    let netns = context.netns()?;
    let policy = context.whole_policy(&netns)?;
    fullbusy::refuse_from_outside(&policy)?;
    let planned = cycle::plan(&policy, &netns)?;
    context.tell(&planned);
    context.console.report(&PlanReport::of(&planned.plan))?;
    if planned.plan.is_empty() {
        context.console.say(&format!("Nothing to change: {}.", planned.as_asked()?));
        return Ok(Exit::Done);
    }
    Ok(Exit::Pending)
}
