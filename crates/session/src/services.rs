//! Finds the present processes of a policy's services.

use std::collections::BTreeSet;

use linux::{Netns, Processes};
use model::policy::Match;
use model::{Host, Pid, Policy, Target};
use plan::Resolved;

use crate::fault::Fault;
use crate::source::HostSource;

/// Returns the processes that match each request on the running host, and all processes that must be read to
/// place the policy: see [`resolve_on`].
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn resolve(policy: &Policy) -> Result<(Resolved, Processes), Fault> {
    resolve_on(policy, &Netns::own()?)
}

/// Returns the processes that match each request, and all processes that must be read to place the policy: if
/// a device is requested, all processes that use the network as well; otherwise only those that match.
///
/// # Errors
/// If processes cannot be listed.
pub fn resolve_on(policy: &Policy, source: &dyn HostSource) -> Result<(Resolved, Processes), Fault> {
    let (mut resolved, mut asked, mut any_device) = (Resolved::default(), BTreeSet::new(), false);
    let services: Vec<&Match> = matches(policy).collect();
    let mut of_services = source.find(&services)?.into_iter();
    for (index, intent) in policy.intents.iter().enumerate() {
        match &intent.target {
            Target::Device(_) | Target::Devices(..) => any_device = true,
            Target::Task(pid) | Target::Epolls(pid, _) => drop(asked.insert(*pid)),
            Target::Service(..) => {
                let (found, unjudged) = of_services.next().unwrap_or_default();
                let found: Vec<Pid> = found.into_iter().map(|process| process.pid).collect();
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

/// Returns the criteria for the processes of each service of a policy.
pub fn matches(policy: &Policy) -> impl Iterator<Item = &Match> {
    policy.intents.iter().filter_map(|intent| match &intent.target {
        Target::Service(_, matching) => Some(matching),
        _ => None,
    })
}

/// Returns the pids of a host's processes as a set, because a recording can have many.
pub(crate) fn pids(host: &Host) -> BTreeSet<Pid> {
    host.processes.iter().map(|process| process.id.pid).collect()
}

/// Removes the processes that exited before the host was observed. A service may lose processes at any time;
/// only a process that a policy names by its pid must exist.
pub fn without_ended(resolved: Resolved, host: &Host, source: &dyn HostSource) -> Resolved {
    let seen = pids(host);
    let unseen = resolved.pids().filter(|pid| !seen.contains(pid)).collect();
    let ended = source.ended(unseen);
    resolved.without(&ended)
}

/// Adds the processes of services in other network namespaces to an observed host.
pub fn add_elsewhere(host: &mut Host, source: &dyn HostSource, which: &Processes) {
    let (Processes::Only(pids) | Processes::NetworkingAnd(pids)) = which else { return };
    let seen = self::pids(host);
    let more = pids.iter().copied().filter(|pid| !seen.contains(pid)).collect();
    source.add_processes(host, more);
    host.processes.sort_unstable_by_key(|process| process.id.pid);
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
        let netns = Netns::own().expect("this process has one");
        let left = resolved.clone().without(&netns.ended(resolved.pids().collect()));
        assert_eq!(left.pids_of(0), BTreeSet::from([running]));
        assert_eq!(left.pids_of(1), BTreeSet::new());
    }
}
