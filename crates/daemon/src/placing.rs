//! Plans all requests that can be followed, so that a refused request does not affect the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::host::Host;
use model::{Intent, Pid, Plan, Policy, Target};
use plan::{Desired, Placement, Refusal, Resolved, Selection};
use session::cycle;

/// The maximum number of requests that are refused individually. If more would have to be refused, nothing is
/// planned.
const REFUSED_MAX: usize = 64;

/// The plan for a policy on a host, with the followed and the refused requests.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    /// The objects of the followed requests.
    pub(crate) placement: Option<Placement>,
    /// The settings that the followed requests want.
    pub(crate) desired: Desired,
    /// The changes that bring the desired settings into force.
    pub(crate) plan: Plan,
    /// The indices of the followed requests in the policy, in the order of the placement's parts.
    pub(crate) followed: Vec<usize>,
    /// The refused requests, by index in the policy, each with the reason.
    pub(crate) refused: BTreeMap<usize, Refusal>,
    /// The number of the operator's requests, which precede those of applications in the policy.
    pub(crate) own: usize,
}

/// The processes of each request, by index in the policy.
pub(crate) type RequestMembers = BTreeMap<usize, BTreeSet<Pid>>;

/// Plans as many requests of a policy as possible on this host. `selection` has a request for each device.
/// The first `own` requests are the operator's; requests of applications never prevent these from being
/// followed.
pub(crate) fn place(selection: &Selection, own: usize, host: &Host, members: &RequestMembers) -> Placed {
    let policy = &selection.policy;
    let mut refused = selection.clashes.clone();
    let mut followed: Vec<usize> = Vec::new();
    for (index, intent) in policy.intents.iter().enumerate() {
        let there = match &intent.target {
            Target::Device(name) => host.device_named(name).is_some(),
            Target::Task(pid) => host.process(*pid).is_some(),
            _ => true,
        };
        // A request whose target does not exist waits for the target, which is not a problem.
        if there && !refused.contains_key(&index) {
            followed.push(index);
        }
    }
    loop {
        match attempt(selection, &followed, host, members) {
            Ok((placement, desired, plan)) => {
                let placement = Some(placement);
                return Placed { placement, desired, plan, followed, refused, own };
            }
            Err(refusal) => {
                // Find the shortest prefix of the requests that is refused, and refuse the last request in
                // it.
                let fits = |count: &usize| attempt(selection, &followed[..*count], host, members).is_ok();
                let (mut good, mut bad) = (0, followed.len());
                let mut why = refusal;
                while bad - good > 1 {
                    let middle = good.midpoint(bad);
                    if fits(&middle) { good = middle } else { bad = middle }
                }
                if let Err(its_own) = attempt(selection, &followed[..bad], host, members) {
                    why = its_own;
                }
                let (owns, of_apps): (Vec<usize>, Vec<usize>) =
                    followed.iter().partition(|place| **place < own);
                if !of_apps.is_empty() && refused.len() >= REFUSED_MAX {
                    refused.extend(of_apps.into_iter().map(|place| (place, why.clone())));
                    followed = owns;
                    continue;
                }
                let refused_own = refused.keys().filter(|place| **place < own).count();
                if followed.is_empty() || refused_own >= REFUSED_MAX {
                    refused.insert(followed.first().copied().unwrap_or(0), why);
                    return Placed { refused, own, ..Placed::default() };
                }
                refused.insert(followed.remove(bad - 1), why);
            }
        }
    }
}

fn attempt(
    selection: &Selection,
    followed: &[usize],
    host: &Host,
    members: &RequestMembers,
) -> Result<(Placement, Desired, Plan), Refusal> {
    let policy = &selection.policy;
    let mut resolved = Resolved::default();
    let mut intents: Vec<Intent> = Vec::with_capacity(followed.len());
    for index in followed {
        let pids = members.get(index).into_iter().flatten().copied();
        // Exclude processes that have exited.
        let pids = pids.filter(|pid| host.process(*pid).is_some());
        resolved = resolved.with(intents.len(), pids);
        for note in selection.notes.get(index).into_iter().flatten() {
            resolved = resolved.noting(intents.len(), note.clone());
        }
        intents.push(policy.intents[*index].clone());
    }
    let policy = Policy {
        intents,
        recipes: Arc::clone(&policy.recipes),
        disruptive: policy.disruptive,
        inferred: policy.inferred,
    };
    cycle::plan_on(&policy, host, &resolved)
}
