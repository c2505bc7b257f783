//! `cat`: merges the policy files, and shows the objects that they match on this host.

use std::collections::BTreeMap;

use linux::Processes;
use model::{Host, Target};
use policy_file::{Merged, SectionKind};
use session::{Exit, Fault, services};

use crate::args::Cat;
use crate::render::{MeantBySection, MergedReport};
use cli::Context;

/// Prints the merged files and, with `--resolved`, the objects that they match.
pub(crate) fn run(arguments: &Cat, context: &Context) -> Result<Exit, Fault> {
    let merged = context.policy()?;
    let meant = if arguments.resolved { meant(&merged, context)? } else { BTreeMap::new() };
    context.console.report(&MergedReport::of(&merged, meant))?;
    if merged.sections.is_empty() {
        context.console.say("No policy file requests anything.");
    }
    Ok(Exit::Done)
}

/// Returns the devices and processes that each section currently matches, by the section's index.
fn meant(merged: &Merged, context: &Context) -> Result<BTreeMap<usize, MeantBySection>, Fault> {
    let netns = context.session.netns()?;
    let policy = merged.policy();
    let (resolved, processes) = services::resolve(&policy)?;
    // Observe only the services' processes: it does not matter here which processes receive on a device.
    let processes = match processes {
        Processes::Networking | Processes::NetworkingAnd(_) => {
            let services = (0..policy.intents.len()).flat_map(|at| resolved.pids_of(at));
            Processes::Only(services.collect())
        }
        asked => asked,
    };
    let host = linux::observe(&netns, &processes)?;
    let selection = plan::select(&policy, &host);
    let mut meant = BTreeMap::new();
    // The sections other than `daemon` are the policy's requests, in the same order.
    let sections = merged.sections.iter().enumerate();
    let of_traffic =
        sections.filter(|(_, section)| section.kind != SectionKind::Daemon).map(|(place, _)| place);
    for (place, (at, intent)) in of_traffic.zip(policy.intents.iter().enumerate()) {
        let means = match &intent.target {
            Target::Device(_) | Target::Devices(..) => {
                let devices = selection.meets.get(&at).into_iter().flatten();
                devices.map(|device| device.name.to_string()).collect()
            }
            Target::Service(..) | Target::Task(_) | Target::Epolls(..) => {
                resolved.pids_of(at).into_iter().filter_map(|pid| named(pid, &host)).collect()
            }
        };
        let mut notes: Vec<String> = resolved.notes_of(at).to_vec();
        notes.extend(selection.notes.get(&at).into_iter().flatten().cloned());
        if let Target::Device(name) = &intent.target
            && host.device_named(name).is_none()
        {
            notes.push(format!("there is no device {name}: nothing is set until it exists"));
        }
        let clashes = selection
            .clashes
            .values()
            .filter(|clash| clash.evidence.iter().any(|line| line.ends_with(&intent.origin)));
        notes.extend(clashes.map(|clash| format!("refused: {clash} ({})", clash.evidence.join("; "))));
        meant.insert(place, MeantBySection { means, notes });
    }
    Ok(meant)
}

fn named(pid: model::Pid, host: &Host) -> Option<String> {
    host.process(pid).map(|process| process.id.to_string())
}
