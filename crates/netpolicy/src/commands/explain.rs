//! `explain`: why each setting is as it is.

use std::collections::BTreeSet;

use daemon::objects;
use model::setting::Facts;
use model::{Intent, Object, PolicyName, Setting, Target};
use plan::Part;
use policy_file::nearest;
use session::{Exit, Fault, app_requests, cycle};

use super::verify::{InForce, in_force};
use crate::args::Explain;
use crate::context::Context;
use crate::render::{ExplainedReport, KnobReport, RecipeReport};

/// Prints the reason of every setting in force and of every one that the policy files ask for; of a policy, its recipe.
pub(crate) fn run(arguments: &Explain, context: &Context) -> Result<Exit, Fault> {
    let asked = arguments.object.as_deref().unwrap_or("");
    match (asked, &arguments.setting) {
        ("setting", Some(name)) => return known(name, context),
        (_, Some(name)) => {
            let mistake = format!(
                "`{asked}` takes no `{name}`: quote the name of an object, or write `setting {name}`"
            );
            return Err(Fault::new(Exit::Usage, mistake));
        }
        (_, None) => {}
    }
    if let Ok(policy) = asked.parse::<PolicyName>() {
        context.console.report(&RecipeReport::of(policy, &*context.session.recipes()?))?;
        return Ok(Exit::Done);
    }
    let report = explained(asked, context)?;
    context.console.report(&report)?;
    report.asked_at().for_each(|line| context.console.say(line));
    if report.is_empty() && report.asked_at().next().is_none() {
        let what = if asked.is_empty() { "anything" } else { asked };
        context.console.say(&format!("netpolicy has not set {what}, and no policy file asks for it."));
    }
    Ok(Exit::Done)
}

/// What is known about the settings of this name or key.
fn known(name: &str, context: &Context) -> Result<Exit, Fault> {
    let table = Setting::table();
    let is_it = |key: &str| key == name || key.strip_prefix("settings.") == Some(name);
    let found: Vec<&Facts> =
        table.iter().copied().filter(|facts| facts.name == name || facts.key.is_some_and(is_it)).collect();
    if found.is_empty() {
        let fault = Fault::new(Exit::Usage, format!("there is no setting `{name}`"));
        let near = nearest(name, table.iter().map(|facts| facts.name));
        return Err(match near {
            Some(near) => fault.hint(format!("did you mean `{near}`?")),
            None => fault.hint("docs/reference/settings.md lists all of them"),
        });
    }
    context.console.report(&KnobReport::of(found))?;
    Ok(Exit::Done)
}

/// The reasons of the settings of an object; of all, where none is named.
pub(crate) fn explained(asked: &str, context: &Context) -> Result<ExplainedReport, Fault> {
    let netns = context.session.netns()?;
    let policy = app_requests::joined(
        context.policy()?.policy(),
        &netns,
        &context.session.app_requests(),
        &context.console,
    )?;
    let planned = match policy.intents.is_empty() {
        true => None,
        false => Some(cycle::plan(&policy, &netns)?),
    };
    let mut report = ExplainedReport::default();
    let mut of_target = BTreeSet::new();
    let parts = || planned.iter().flat_map(|planned| &planned.placement.parts);
    // Where a section means devices without naming them, each has a request of its own beside it.
    let of_section: Vec<&str> = parts()
        .filter(|part| is_named(&part.intent.target, asked))
        .map(|part| part.intent.origin.as_str())
        .collect();
    let is_meant = |part: &&Part| {
        let rest = of_section.iter().find_map(|origin| part.intent.origin.strip_prefix(origin));
        is_named(&part.intent.target, asked) || rest.is_some_and(|rest| rest.starts_with(" ("))
    };
    for part in parts().filter(is_meant) {
        let objects = objects(part);
        if objects.is_empty() {
            let Intent { target, origin, .. } = &part.intent;
            let words =
                format!("{target}: {} is requested at {origin}, and sets nothing now", part.delivery.mode);
            report.asked_for(words);
        }
        part.notes.iter().for_each(|note| report.asked_for(format!("{}: {note}", part.intent.target)));
        of_target.extend(objects);
    }
    let is_object = |object: &Object| is_within(&object.to_string(), asked) || of_target.contains(object);
    let is_asked = |change: &model::Change| is_object(&change.to().object());
    for InForce { transaction, change } in in_force(&context.session.journal()?)? {
        if is_asked(&change) {
            report.in_force(&change, transaction.name(), &transaction.begin().asked.command);
        }
    }
    if let Some(planned) = planned {
        planned.plan.changes().filter(|change| is_asked(change)).for_each(|change| report.pending(change));
        for line in planned.desired.explain(&planned.host) {
            if is_object(&line.wanted.object())
                && line.in_force.as_ref() == Some(&line.wanted)
                && !report.names(&line.wanted)
            {
                report.already(&line.wanted, &line.because);
            }
        }
    }
    Ok(report)
}

/// Whether this is the device or the service that is asked for, as a policy file names it: `memcached`, `service.memcached`.
fn is_named(target: &Target, asked: &str) -> bool {
    let (section, name) = match target {
        Target::Service(name, _) => ("service.", name),
        Target::Device(name) | Target::Devices(name, _) => ("device.", name),
        Target::Task(_) | Target::Epolls(..) => return false,
    };
    asked.strip_prefix(section).unwrap_or(asked) == *name
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
