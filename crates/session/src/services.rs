//! From a policy's services to the processes that they are at this moment.

use std::collections::BTreeSet;

use linux::process::{Criteria, find};
use linux::{Netns, Processes};
use model::host::Unread;
use model::policy::Match;
use model::{Pid, Policy, ProcessId, Target};
use plan::Resolved;

use crate::fault::Fault;

/// The processes that each request matches, and all that must be read to place the policy: every process that receives,
/// where a device is requested, or else the matched processes.
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn resolve(policy: &Policy, netns: &Netns) -> Result<(Resolved, Processes), Fault> {
    let (mut resolved, mut asked, mut any_device) = (Resolved::default(), BTreeSet::new(), false);
    for (index, intent) in policy.intents.iter().enumerate() {
        match &intent.target {
            Target::Device(_) | Target::Devices(..) => any_device = true,
            Target::Task(pid) | Target::Epolls(pid, _) => drop(asked.insert(*pid)),
            Target::Service(_, matching) => {
                let Found { here, elsewhere, unjudged } = processes_of(matching, netns)?;
                asked.extend(&here);
                resolved = resolved.with(index, here);
                if let Some(first) = unjudged.first() {
                    resolved =
                        resolved.unjudged(index, unjudged.len(), format!("{}: {}", first.what, first.why));
                }
                for process in elsewhere.iter().take(ELSEWHERE_MAX) {
                    resolved = resolved.noting(index, format!(
                        "{process} is in another network namespace, as a container's processes are, and receives from \
                         other devices: it is left alone (`netpolicy --netns pid:{} …` works there)",
                        process.pid
                    ));
                }
                if let Some(more) = elsewhere.len().checked_sub(ELSEWHERE_MAX).filter(|more| *more > 0) {
                    resolved = resolved.noting(index, format!("and so are {more} more"));
                }
            }
        }
    }
    let processes =
        if any_device { Processes::Networking } else { Processes::Only(asked.into_iter().collect()) };
    Ok((resolved, processes))
}

/// How many processes in other namespaces are named one by one.
const ELSEWHERE_MAX: usize = 3;

/// What a search for a service's processes came to.
struct Found {
    /// Those in this network namespace.
    here: Vec<Pid>,
    /// Those in others, which receive from other devices.
    elsewhere: Vec<ProcessId>,
    /// Those that could not be looked into, as a user without privileges may not look into those of others.
    unjudged: Vec<Unread>,
}

fn processes_of(matching: &Match, netns: &Netns) -> Result<Found, Fault> {
    let Match { unit, cgroup, exe, pod, container, port, uid } = matching.clone();
    let mut unjudged = Vec::new();
    let criteria = Criteria { exe, cgroup, unit, pod, container, port, uid, netns: None };
    let found = find(&criteria, &mut unjudged)?;
    let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
    // A match by user or cgroup may include this process itself: it is not meant.
    for process in found.into_iter().filter(|process| process.pid.0 != std::process::id()) {
        // One that has ended meanwhile is neither here nor elsewhere.
        match Netns::of_process(process.pid) {
            Ok(theirs) if theirs.id() == netns.id() => here.push(process.pid),
            Ok(_) => elsewhere.push(process),
            Err(error) if matches!(error.cause, linux::Cause::Gone(_)) => {}
            Err(error) => unjudged.push(Unread { what: process.to_string(), why: error.cause.to_string() }),
        }
    }
    Ok(Found { here, elsewhere, unjudged })
}
