//! `explain`: why each setting is as it is.

use model::PolicyName;

use super::verify::{InForce, in_force};
use crate::args::Explain;
use crate::context::Context;
use crate::cycle;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::{ExplainedReport, RecipeReport};
use crate::wishes;

/// Prints the reason of every setting in force and of every one that the policy files ask for; of a policy, its recipe.
pub(crate) fn run(arguments: &Explain, context: &Context) -> Result<Exit, Fault> {
    let asked = arguments.object.as_deref().unwrap_or("");
    if let Ok(policy) = asked.parse::<PolicyName>() {
        context.console.report(&RecipeReport::of(policy, &*context.recipes()?))?;
        return Ok(Exit::Done);
    }
    let report = explained(asked, context)?;
    context.console.report(&report)?;
    if report.is_empty() {
        let what = if asked.is_empty() { "anything" } else { asked };
        context.console.say(&format!("netpolicy has not set {what}, and no policy file asks for it."));
    }
    Ok(Exit::Done)
}

/// The reasons of the settings of an object; of all, where none is named.
pub(crate) fn explained(asked: &str, context: &Context) -> Result<ExplainedReport, Fault> {
    let is_asked = |change: &model::Change| is_within(&change.to().object().to_string(), asked);
    let mut report = ExplainedReport::default();
    for InForce { transaction, change } in in_force(&context.journal()?)? {
        if is_asked(&change) {
            report.in_force(&change, transaction.name(), &transaction.begin().asked.command);
        }
    }
    let netns = context.netns()?;
    let policy = wishes::joined(context.policy()?.policy(), &netns, context)?;
    if !policy.intents.is_empty() {
        let planned = cycle::plan(&policy, &netns)?;
        planned.plan.changes().filter(|change| is_asked(change)).for_each(|change| report.pending(change));
        for line in planned.desired.explain(&planned.host) {
            let asked = is_within(&line.wanted.object().to_string(), asked);
            if asked && line.in_force.as_ref() == Some(&line.wanted) && !report.names(&line.wanted) {
                report.already(&line.wanted, &line.because);
            }
        }
    }
    Ok(report)
}

/// Whether an object is the one that is asked for, or a part of it: `eth0 rx-0` is within `eth0`, and not within `eth`.
fn is_within(object: &str, asked: &str) -> bool {
    let rest = object.strip_prefix(asked);
    asked.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '[']))
}

#[cfg(test)]
mod test {
    use super::is_within;

    #[test]
    fn a_device_is_asked_for_with_its_queues_and_not_with_its_namesakes() {
        for (object, asked, within) in [
            ("eth0 rx-0", "eth0", true),
            ("eth0 rx-0", "eth0 rx-0", true),
            ("eth0 rx-10", "eth0 rx-1", false),
            ("eth01 rx-0", "eth0", false),
            ("memcached[812] epoll 5", "memcached", true),
            ("memcached[812] epoll 5", "memcached[812]", true),
            ("eth0", "", true),
        ] {
            assert_eq!(is_within(object, asked), within, "{object} {asked}");
        }
    }
}
