//! Explains the value of each setting.

use std::collections::BTreeSet;

use model::{Intent, Object, Target};
use plan::PlacedRequest;

use crate::operator::Operator;
use crate::report::ExplainedReport;
use crate::searches::RolledBackRequest;
use crate::verify::{InForce, in_force};
use crate::{Fault, Session, app_requests, cycle};

/// Returns the reasons for the settings of an object, or of all objects if `asked` is empty.
///
/// # Errors
/// If the policy files have mistakes, or the host or the journal cannot be read.
pub fn explained(asked: &str, session: &Session, operator: &dyn Operator) -> Result<ExplainedReport, Fault> {
    let source = session.source()?;
    let (policy, rolled_back) = session.requested(operator)?;
    let policy = app_requests::joined(policy, &*source, &session.app_requests(), operator)?;
    let planned = match policy.intents.is_empty() {
        true => None,
        false => Some(cycle::plan(&policy, &*source)?),
    };
    let mut report = ExplainedReport::default();
    let mut of_target = BTreeSet::new();
    let of_it = |request: &&RolledBackRequest| asked.is_empty() || is_named(&request.intent.target, asked);
    rolled_back.iter().filter(of_it).for_each(|request| report.asked_for(request.to_string()));
    let parts = || planned.iter().flat_map(|planned| &planned.placement.parts);
    // If a section selects devices by a pattern or a `match`, each device has a separate request.
    let of_section: Vec<&str> = parts()
        .filter(|part| is_named(&part.intent.target, asked))
        .map(|part| part.intent.origin.as_str())
        .collect();
    let is_meant = |part: &&PlacedRequest| {
        let rest = of_section.iter().find_map(|origin| part.intent.origin.strip_prefix(origin));
        is_named(&part.intent.target, asked) || rest.is_some_and(|rest| rest.starts_with(" ("))
    };
    for part in parts().filter(is_meant) {
        let objects = part.all_objects();
        if objects.is_empty() {
            let Intent { target, origin, .. } = &part.intent;
            let words = format!(
                "{target}: {} is requested at {origin}, and sets nothing at present",
                part.delivery.mode
            );
            report.asked_for(words);
        }
        part.notes.iter().for_each(|note| report.asked_for(format!("{}: {note}", part.intent.target)));
        of_target.extend(objects);
    }
    let is_object = |object: &Object| is_within(&object.to_string(), asked) || of_target.contains(object);
    let mut names = source.device_names();
    // The device may have been renamed since the change, so accept its present name, too.
    let mut is_renamed = |object: &Object| {
        let Some(device) = object.device() else { return false };
        let name = names.present_name(device).filter(|name| name != device.name.as_str());
        let rest = object.to_string();
        let rest = rest.strip_prefix(device.name.as_str()).map(str::to_owned);
        name.zip(rest).is_some_and(|(name, rest)| is_within(&format!("{name}{rest}"), asked))
    };
    let is_asked = |change: &model::Change| is_object(&change.to().object());
    for InForce { transaction, change } in in_force(&session.journal()?)? {
        if is_asked(&change) || is_renamed(&change.to().object()) {
            report.in_force(&change, &transaction);
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

/// Returns whether a request's target is the device or service in question, in the spelling of policy files:
/// `memcached`, `service.memcached`.
fn is_named(target: &Target, asked: &str) -> bool {
    let (section, name) = match target {
        Target::Service(name, _) => ("service.", name),
        Target::Device(name) | Target::Devices(name, _) => ("device.", name),
        Target::Task(_) | Target::Epolls(..) => return false,
    };
    asked.strip_prefix(section).unwrap_or(asked) == *name
}

/// Returns whether an object is the one in question or a part of it: `eth0 rx-0` belongs to `eth0`, but not
/// to `eth`.
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
