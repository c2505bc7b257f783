//! Planning and committing once, or twice where the first plan makes queues anew: what stands on queues can be planned
//! only when they are there. Each stage is a transaction of its own, and undone by itself, the last one first.

use apply::Allow;
use linux::Netns;
use model::{Plan, Policy};

use crate::context::Context;
use crate::cycle;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::PlanReport;

/// How many stages there are: queues, and what stands on them. A device that makes its queues anew once more, for the
/// same values, did not keep what it was told, and reading back has said so before that.
const STAGES_MAX: usize = 2;

/// What the operator is told.
pub(crate) struct Words<'a> {
    /// Where nothing is to be changed.
    pub(crate) nothing: &'a str,
    /// What was done, in one word.
    pub(crate) done: &'a str,
}

/// Works out what a policy changes, commits it and keeps it.
pub(crate) fn keep(
    policy: &Policy,
    netns: &Netns,
    allow: Allow,
    words: &Words<'_>,
    context: &Context,
) -> Result<Exit, Fault> {
    let mut changes = Plan::default();
    for _ in 0..STAGES_MAX {
        let planned = cycle::plan(policy, netns)?;
        context.tell(&planned);
        let first_stage = planned.desired.first_stage && !planned.plan.is_empty();
        changes.steps.extend(planned.plan.steps.iter().cloned());
        if !first_stage {
            context.console.report_done(&PlanReport::of(&changes))?;
        }
        if changes.is_empty() {
            context.console.say(words.nothing);
            context.tell_of_trials();
        }
        let kept = cycle::keep(planned.plan, &context.journal()?, &context.asked(None), allow)?;
        if let Some(transaction) = kept {
            let done = words.done;
            context
                .console
                .say(&format!("{done} and read back. `netpolicy rollback {transaction}` undoes it."));
        }
        if !first_stage {
            break;
        }
    }
    Ok(Exit::Done)
}
