//! From a policy's services to the processes that they are at this moment.

use std::collections::BTreeSet;

use linux::process::{Criteria, find};
use linux::{Netns, Processes};
use model::policy::Match;
use model::{Pid, Policy, Target};
use plan::Resolved;

use crate::fault::Fault;

/// The processes that each request means, and all that have to be looked into to place the policy: whoever receives
/// on a device that is asked for, or else the processes that are asked for.
///
/// # Errors
/// If `/proc` cannot be listed.
pub(crate) fn resolve(policy: &Policy, netns: &Netns) -> Result<(Resolved, Processes), Fault> {
    let (mut resolved, mut asked, mut any_device) = (Resolved::default(), BTreeSet::new(), false);
    for (index, intent) in policy.intents.iter().enumerate() {
        match &intent.target {
            Target::Device(_) => any_device = true,
            Target::Task(pid) | Target::Epolls(pid, _) => drop(asked.insert(*pid)),
            Target::Service(_, matching) => {
                let pids = processes_of(matching, netns)?;
                asked.extend(&pids);
                resolved = resolved.with(index, pids);
            }
        }
    }
    let processes =
        if any_device { Processes::Networking } else { Processes::Only(asked.into_iter().collect()) };
    Ok((resolved, processes))
}

/// The processes of a service in this network namespace. Those of its name in other namespaces, as in containers,
/// receive from other devices.
fn processes_of(matching: &Match, netns: &Netns) -> Result<Vec<Pid>, Fault> {
    let Match { unit, cgroup, exe, port, uid } = matching.clone();
    // What cannot be judged is no match: `observe` names the processes that could not be looked into.
    let mut unjudged = Vec::new();
    let found = find(&Criteria { exe, cgroup, unit, port, uid }, &mut unjudged)?;
    let here = |pid: &Pid| Netns::of_process(*pid).is_ok_and(|theirs| theirs.id() == netns.id());
    Ok(found.into_iter().map(|process| process.pid).filter(here).collect())
}
