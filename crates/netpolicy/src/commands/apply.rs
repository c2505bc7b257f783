//! `apply`: makes the host as the policy files say.

use crate::args::Apply;
use crate::context::Context;
use crate::cycle;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::PlanReport;

/// Commits the plan as one transaction, and keeps it.
pub(crate) fn run(arguments: &Apply, context: &Context) -> Result<Exit, Fault> {
    let policy = context.required_policy()?.policy();
    let planned = cycle::plan(&policy, &context.netns()?)?;
    context.tell(&planned);
    context.console.report(&PlanReport::of(&planned.plan))?;
    if planned.plan.is_empty() {
        context.console.say("Nothing to change: the host is as the policy says.");
        context.tell_of_trials();
        return Ok(Exit::Done);
    }
    if arguments.dry_run {
        return Ok(Exit::Pending);
    }
    let kept = cycle::keep(planned.plan, &context.journal()?, &context.asked(None), arguments.allow.into())?;
    if let Some(transaction) = kept {
        context.console.say(&format!("Applied and read back. `netpolicy rollback {transaction}` undoes it."));
    }
    Ok(Exit::Done)
}
