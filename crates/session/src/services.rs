//! Resolves a policy's services to their present processes.

use std::collections::BTreeSet;

use linux::process::{Criteria, find_each};
use linux::{Netns, Processes};
use model::policy::Match;
use model::{Host, Intent, Pid, Policy, Target};
use plan::Resolved;

use crate::fault::Fault;

/// The processes that each request matches, and all processes that must be read to place the policy: every
/// process that receives, if a device is requested, or else only the matched processes.
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn resolve(policy: &Policy) -> Result<(Resolved, Processes), Fault> {
    let (mut resolved, mut asked, mut any_device) = (Resolved::default(), BTreeSet::new(), false);
    let services: Vec<Criteria> = policy.intents.iter().filter_map(criteria).collect();
    let mut of_services = find_each(&services, None)?.into_iter();
    for (index, intent) in policy.intents.iter().enumerate() {
        match &intent.target {
            Target::Device(_) | Target::Devices(..) => any_device = true,
            Target::Task(pid) | Target::Epolls(pid, _) => drop(asked.insert(*pid)),
            Target::Service(..) => {
                let (found, unjudged) = of_services.next().unwrap_or_default();
                // A match by user or cgroup may include this process itself: exclude it.
                let own = std::process::id();
                let found: Vec<Pid> =
                    found.into_iter().map(|process| process.pid).filter(|pid| pid.0 != own).collect();
                asked.extend(&found);
                resolved = resolved.with(index, found);
                if let Some(first) = unjudged.first() {
                    resolved =
                        resolved.unjudged(index, unjudged.len(), format!("{}: {}", first.what, first.why));
                }
            }
        }
    }
    let asked: Vec<Pid> = asked.into_iter().collect();
    let processes = if any_device { Processes::NetworkingAnd(asked) } else { Processes::Only(asked) };
    Ok((resolved, processes))
}

/// Removes the processes that exited before the host was observed. Services may lose processes at any time;
/// only a process that a policy names by its pid must exist.
pub fn without_ended(resolved: Resolved, host: &Host) -> Resolved {
    let unseen = resolved.pids().filter(|pid| host.process(*pid).is_none());
    let ended = ended(unseen);
    resolved.without(&ended)
}

/// The processes that have exited.
fn ended(pids: impl Iterator<Item = Pid>) -> BTreeSet<Pid> {
    let has_ended =
        |pid: &Pid| Netns::of_process(*pid).is_err_and(|error| matches!(error.cause, linux::Cause::Gone(_)));
    pids.filter(has_ended).collect()
}

/// Adds the processes of services in other network namespaces to a host that was observed without them.
pub fn add_elsewhere(host: &mut Host, netns: &Netns, which: &Processes) {
    let (Processes::Only(pids) | Processes::NetworkingAnd(pids)) = which else { return };
    let more = pids.iter().copied().filter(|pid| host.process(*pid).is_none()).collect();
    host.processes.extend(linux::observe::processes(netns, &Processes::Only(more), &mut host.unread));
    host.processes.sort_unstable_by_key(|process| process.id.pid);
}

/// The criteria for a service's processes in any network namespace: observation shows which of them receive
/// through a device of this one.
fn criteria(intent: &Intent) -> Option<Criteria> {
    let Target::Service(_, matching) = &intent.target else { return None };
    let Match { unit, cgroup, exe, pod, container, port, uid } = matching.clone();
    Some(Criteria { exe, cgroup, unit, pod, container, port, uid, netns: None })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_process_that_ended_after_the_search_is_left_out_and_one_that_runs_stays() {
        let mut child = std::process::Command::new("true").spawn().expect("coreutils are there");
        let gone = Pid(child.id());
        child.wait().expect("the process exits without a signal");
        let running = Pid(std::process::id());
        let resolved = Resolved::default().with(0, [gone, running]).with(1, [gone]);
        let left = resolved.clone().without(&ended(resolved.pids()));
        assert_eq!(left.pids_of(0), BTreeSet::from([running]));
        assert_eq!(left.pids_of(1), BTreeSet::new());
    }
}
