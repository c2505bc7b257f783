//! `explain`: prints why each setting has its value.

use std::collections::BTreeSet;

use linux::Processes;
use model::setting::Facts;
use model::{PolicyName, Setting, Target};
use policy_file::nearest;
use session::explain::explained;
use session::{Exit, Fault, Silent};

use crate::args::Explain;
use crate::render::{FindingKindReport, KnobReport, RecipeReport};
use cli::Context;

/// Prints the reason for every setting in force and every requested one; for a policy, its recipe; for a
/// finding or a setting, its meaning.
pub(crate) fn run(arguments: &Explain, context: &Context) -> Result<Exit, Fault> {
    let asked = arguments.object.as_deref().unwrap_or("");
    match (asked, &arguments.setting) {
        ("setting", Some(name)) => return explain_setting(name, context),
        ("setting", None) => {
            let fault = Fault::new(Exit::Usage, "`explain setting` needs the name of a setting");
            return Err(fault.hint("netpolicy explain setting rx-usecs"));
        }
        (_, Some(name)) => {
            let mistake = format!(
                "`{asked}` accepts no `{name}`: quote the name of an object, or write `setting {name}`"
            );
            return Err(Fault::new(Exit::Usage, mistake));
        }
        (_, None) => {}
    }
    if let Ok(policy) = asked.parse::<PolicyName>() {
        context.console.report(&RecipeReport::of(policy, &*context.session.recipes()?))?;
        return Ok(Exit::Done);
    }
    if let Some(finding) = FindingKindReport::named(asked) {
        context.console.report(&finding)?;
        return Ok(Exit::Done);
    }
    let asked = present_device(asked, context);
    let report = explained(asked, &context.session, &context.console)?;
    let says_nothing = report.is_empty() && report.asked_at().next().is_none();
    if says_nothing && !asked.is_empty() {
        let names = known_names(context);
        if !is_known(asked, &names) {
            return match settings_named(asked).is_empty() {
                false => explain_setting(asked, context),
                true => Err(unknown_name(asked, &names)),
            };
        }
    }
    context.console.report(&report)?;
    report.asked_at().for_each(|line| context.console.say(line));
    say_what_is_proven(asked, context);
    if says_nothing {
        let what = if asked.is_empty() { "anything" } else { asked };
        context.console.say(&format!("netpolicy has not set {what}, and no policy file requests it."));
    }
    Ok(Exit::Done)
}

/// Prints the standing proof of one service, or of all services.
fn say_what_is_proven(asked: &str, context: &Context) {
    let proofs = context.session.proofs().unwrap_or_default();
    let service = asked.strip_prefix("service.").unwrap_or(asked);
    let is_asked = |name: &str| asked.is_empty() || name == format!("service {service}");
    for (name, proof) in proofs.services.iter().filter(|(name, _)| is_asked(name)) {
        context.console.say(&proof.sentence(name));
    }
}

/// Returns the name of a device without the lower device that `ip link` prints after it: `eth0.100@eth0` is
/// `eth0.100`.
fn present_device<'a>(asked: &'a str, context: &Context) -> &'a str {
    match asked.split_once('@') {
        Some((device, lower)) if !device.is_empty() && !lower.contains(' ') && !is_device(asked, context) => {
            device
        }
        _ => asked,
    }
}

/// Whether this namespace has a device with exactly this name. A device name may contain `@`.
fn is_device(name: &str, context: &Context) -> bool {
    let host = context.session.source().and_then(|source| source.observe(&Processes::None));
    host.is_ok_and(|host| host.devices.iter().any(|device| device.id.name.as_str() == name))
}

/// Lists the names that can be explained on this host: devices, services of the policy files, processes.
/// Skips the parts of the host that cannot be read.
fn known_names(context: &Context) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = ["host", "irq"].map(str::to_owned).into();
    let host = context.session.source().and_then(|source| source.observe(&Processes::Networking)).ok();
    if let Some(host) = host {
        names.extend(host.devices.iter().map(|device| device.id.name.to_string()));
        names.extend(host.processes.iter().map(|process| process.id.comm.to_string()));
        names.extend(host.processes.iter().map(|process| process.id.to_string()));
    }
    for intent in context.session.all_requested(&Silent).map(|policy| policy.intents).unwrap_or_default() {
        if let Target::Service(name, _) | Target::Device(name) | Target::Devices(name, _) = intent.target {
            names.insert(name);
        }
    }
    names
}

/// Whether a name is an object of the host or a part of an object: `eth0`, `eth0 rx-0`, `service.cache`,
/// `redis[812] epoll 5`.
fn is_known(asked: &str, names: &BTreeSet<String>) -> bool {
    let asked = asked.strip_prefix("service.").or(asked.strip_prefix("device.")).unwrap_or(asked);
    names.iter().any(|name| {
        let rest = asked.strip_prefix(name.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '[']))
    })
}

/// Returns the error for an unknown name, with the known name that is most similar.
fn unknown_name(asked: &str, names: &BTreeSet<String>) -> Fault {
    let words = format!("no device, service, process, policy, setting or finding here is called `{asked}`");
    let findings: Vec<&str> = FindingKindReport::all().map(|kind| kind.code()).collect();
    let policies = PolicyName::ALL.map(PolicyName::as_str);
    let settings = Setting::table().iter().map(|facts| facts.name).collect::<Vec<_>>();
    let all = names.iter().map(String::as_str).chain(policies).chain(settings).chain(findings);
    let fault = Fault::new(Exit::Usage, words);
    match nearest(asked, all) {
        Some(near) => fault.hint(format!("did you mean `{near}`?")),
        None => fault.hint("netpolicy show lists the devices and processes of this host"),
    }
}

/// Returns the settings with this name or key.
fn settings_named(name: &str) -> Vec<&'static Facts> {
    let is_it = |key: &str| key == name || key.strip_prefix("settings.") == Some(name);
    Setting::table()
        .iter()
        .copied()
        .filter(|facts| facts.name == name || facts.key.is_some_and(is_it))
        .collect()
}

/// Prints the documentation of the settings with this name or key.
fn explain_setting(name: &str, context: &Context) -> Result<Exit, Fault> {
    let found = settings_named(name);
    if found.is_empty() {
        let fault = Fault::new(Exit::Usage, format!("there is no setting `{name}`"));
        let near = nearest(name, Setting::table().iter().map(|facts| facts.name));
        return Err(match near {
            Some(near) => fault.hint(format!("did you mean `{near}`?")),
            None => fault.hint("docs/reference/settings.md lists all of them"),
        });
    }
    context.console.report(&KnobReport::of(found))?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_name_is_known_with_its_parts_and_a_wrong_one_gets_the_nearest_of_all_kinds() {
        let names: BTreeSet<String> = ["eth0", "cache", "redis-server[812]"].map(str::to_owned).into();
        for (asked, known) in [
            ("eth0", true),
            ("eth0 rx-0", true),
            ("service.cache", true),
            ("redis-server[812] epoll 5", true),
            ("eth", false),
            ("eth01", false),
            ("cahce", false),
        ] {
            assert_eq!(is_known(asked, &names), known, "{asked}");
        }
        for (asked, near) in [
            ("cahce", "`cache`"),
            ("rx-usec", "`rx-usecs`"),
            ("latencyy", "`latency`"),
            ("packets-on-no-nap", "`packets-on-no-napi`"),
        ] {
            let hint = unknown_name(asked, &names).hint.expect("a hint");
            assert_eq!(hint, format!("did you mean {near}?"), "{asked}");
        }
    }

    #[test]
    fn a_device_may_be_named_as_ip_link_prints_it() {
        let context = Context::new(cli::Globals::default());
        assert_eq!(present_device("no-such.100@no-such", &context), "no-such.100");
        assert_eq!(present_device("latency", &context), "latency");
    }
}
