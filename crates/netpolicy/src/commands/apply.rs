//! `apply`: makes the host as the policy files say.

use crate::args::Apply;
use crate::context::Context;
use crate::cycle;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::fullbusy;
use crate::render::PlanReport;
use crate::staged;

/// Commits the plan, and keeps it.
pub(crate) fn run(arguments: &Apply, context: &Context) -> Result<Exit, Fault> {
    let netns = context.netns()?;
    let mut policy = context.whole_policy(&netns)?;
    policy.disruptive = arguments.allow.disruptive;
    fullbusy::refuse_from_outside(&policy)?;
    if arguments.dry_run {
        let planned = cycle::plan(&policy, &netns)?;
        context.tell(&planned);
        context.console.report(&PlanReport::of(&planned.plan))?;
        if planned.plan.is_empty() {
            planned.as_asked()?;
            return Ok(Exit::Done);
        }
        return Ok(Exit::Pending);
    }
    let words = staged::Words { nothing: None, done: "Applied" };
    staged::keep(&policy, &netns, arguments.allow.into(), &words, context)
}
