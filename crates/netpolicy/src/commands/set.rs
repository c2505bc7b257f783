//! `set`: gives one device or process a policy, without a file.

use model::{Pid, Policy, Target};

use crate::args::{Set, SetTarget};
use crate::context::Context;
use crate::cycle;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::fullbusy;
use crate::render::PlanReport;

/// Commits what one word asks for, and keeps it.
pub(crate) fn run(arguments: &Set, context: &Context) -> Result<Exit, Fault> {
    let (target, wish, netns) = match &arguments.target {
        SetTarget::Device { name, wish } => (Target::Device(name.clone()), *wish, context.netns()?),
        SetTarget::Task { pid, wish } => {
            linux::process::identify(Pid(*pid))?;
            (Target::Task(Pid(*pid)), *wish, context.netns_of(Pid(*pid))?)
        }
    };
    let intent = wish.intent(target, "netpolicy set", arguments.cost);
    fullbusy::refuse_from_outside(&intent)?;
    let planned = cycle::plan(&Policy { intents: vec![intent] }, &netns)?;
    context.tell(&planned);
    context.console.report(&PlanReport::of(&planned.plan))?;
    if planned.plan.is_empty() {
        context.console.say("Nothing to change: it is so already.");
        context.tell_of_trials();
        return Ok(Exit::Done);
    }
    let kept = cycle::keep(planned.plan, &context.journal()?, &context.asked(None), arguments.allow.into())?;
    if let Some(transaction) = kept {
        context.console.say(&format!("Set and read back. `netpolicy rollback {transaction}` undoes it."));
    }
    Ok(Exit::Done)
}
