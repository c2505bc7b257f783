//! `apply`: applies the policy files.

use daemon::running_daemon;
use session::{Exit, Fault, cycle, fullbusy, staged};

use super::guarded;
use crate::args::ApplyArgs;
use crate::render::PlanReport;
use cli::Context;

/// Commits the plan, and keeps it in force.
pub(crate) fn run(arguments: &ApplyArgs, context: &Context) -> Result<Exit, Fault> {
    let netns = context.session.netns()?;
    let mut policy = context.whole_policy(&netns)?;
    policy.disruptive = arguments.allow.disruptive;
    policy.inferred = arguments.allow.allow_inferred;
    fullbusy::refuse_from_outside(&policy)?;
    if arguments.dry_run {
        let planned = cycle::plan(&policy, &netns)?;
        context.report(&planned);
        context.console.report(&PlanReport::of(&planned.plan))?;
        if planned.plan.is_empty() {
            planned.as_asked()?;
            return Ok(Exit::Done);
        }
        return Ok(Exit::Pending);
    }
    if !arguments.no_guard && policy.intents.iter().any(|intent| intent.guard.is_some()) {
        let planned = cycle::plan(&policy, &netns)?;
        let guards = latency::judge::guards(&policy, &planned.placement, None);
        for absent in &guards.absent {
            context.console.say(&format!("{absent} is not running: nothing is judged on its traffic."));
        }
        if !guards.watched.is_empty() {
            return guarded::run(&policy, netns, arguments.allow, guards, false, context);
        }
    }
    running_daemon::refuse_beside_another(&context.session, &netns)?;
    let words = staged::OutcomeWords { nothing: None, done: "Applied" };
    staged::keep(&policy, &netns, arguments.allow.into(), &words, &context.session, &context.console)
}
