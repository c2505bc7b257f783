//! Converts requests of applications to intents of the policy. The request of a process becomes an intent for
//! the process. The requests of sockets become intents for the epolls that watch the sockets, because an
//! epoll has one set of busy-poll parameters. These intents take precedence over requests for services and
//! devices, but not over the operator's request for the process. Requests that cannot be met are dropped and
//! reported; they do not prevent other requests from being placed.

use std::collections::{BTreeMap, BTreeSet};

use model::host::{AppRequest, Process, Requester};
use model::{Fd, Host, Intent, Pid, Policy, PolicyName, Target};

use crate::place::place;
use crate::refusal::Refusal;
use crate::resolved::Resolved;

/// The maximum number of requests to try one by one, if they cannot all be placed together.
const TRIED_MAX: usize = 64;

/// A policy and the application requests that can be met together with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Joined {
    /// The policy, followed by the application requests.
    pub policy: Policy,
    /// The dropped requests, with reasons.
    pub notes: Vec<String>,
}

/// Adds the requests of applications to a policy. Returns a refused policy unchanged: the caller's own
/// placement reports the refusal.
pub fn join(policy: &Policy, requested: &[AppRequest], host: &Host, resolved: &Resolved) -> Joined {
    let (requests, notes) = requests(policy, requested, host);
    let mut joined = Joined { policy: policy.clone(), notes };
    let together = |more: &[Intent], base: &Policy| {
        let mut all = base.clone();
        all.intents.extend_from_slice(more);
        all
    };
    let all = together(&requests, policy);
    if place(&all, host, resolved).is_ok() {
        return Joined { policy: all, ..joined };
    }
    if place(policy, host, resolved).is_err() {
        return joined;
    }
    let untried = requests.len().saturating_sub(TRIED_MAX);
    for request in requests.into_iter().take(TRIED_MAX) {
        let with = together(std::slice::from_ref(&request), &joined.policy);
        match place(&with, host, resolved) {
            Ok(_) => joined.policy = with,
            Err(refusal) => joined.notes.push(left_out(&request, &refusal)),
        }
    }
    if untried > 0 {
        joined.notes.push(format!("{untried} more application requests were not tried, because some of the earlier ones cannot be met"));
    }
    joined
}

fn left_out(request: &Intent, refusal: &Refusal) -> String {
    format!(
        "{}: its request for {} ({}) is ignored: {refusal}",
        request.target, request.policy, request.origin
    )
}

/// Returns the requests of applications as intents, whether or not they can be met, and notes on invalid
/// requests.
pub fn requests(policy: &Policy, requested: &[AppRequest], host: &Host) -> (Vec<Intent>, Vec<String>) {
    let mut notes = Vec::new();
    let mut tasks: BTreeMap<Pid, PolicyName> = BTreeMap::new();
    let mut sockets: BTreeMap<u64, PolicyName> = BTreeMap::new();
    for asked in requested {
        // Only another program writes a number that belongs to no policy, so ignore the request.
        let Some(policy) = PolicyName::from_number(asked.number) else { continue };
        match asked.of {
            Requester::Task(pid) => drop(tasks.insert(pid, policy)),
            Requester::Socket(inode) => drop(sockets.insert(inode, policy)),
        }
    }
    let named: BTreeSet<Pid> = policy
        .intents
        .iter()
        .filter_map(|intent| if let Target::Task(pid) = intent.target { Some(pid) } else { None })
        .collect();
    let here = |process: &&Process| {
        process.netns.is_none_or(|netns| netns == host.netns) && !named.contains(&process.id.pid)
    };
    let mut requests = Vec::new();
    for process in host.processes.iter().filter(here) {
        let own = tasks.get(&process.id.pid).copied();
        if let Some(policy) = own {
            requests.push(request(Target::Task(process.id.pid), policy, ITS_OWN));
        }
        for (policy, epolls) in epolls_by_policy(process, &sockets, &mut notes) {
            // Sockets that request the policy of their whole process need no separate request.
            if Some(policy) != own {
                requests.push(request(
                    Target::Epolls(process.id.pid, epolls),
                    policy,
                    "SO_NETPOLICY of the sockets that they watch",
                ));
            }
        }
    }
    (requests, notes)
}

/// Returns the epolls whose sockets have a request, by requested policy.
fn epolls_by_policy(
    process: &Process,
    sockets: &BTreeMap<u64, PolicyName>,
    notes: &mut Vec<String>,
) -> BTreeMap<PolicyName, Vec<Fd>> {
    let mut found: BTreeMap<PolicyName, Vec<Fd>> = BTreeMap::new();
    for epoll in &process.epolls {
        let asked: BTreeSet<PolicyName> =
            epoll.members.iter().filter_map(|member| sockets.get(&member.inode).copied()).collect();
        let mut asked = asked.into_iter();
        match (asked.next(), asked.next()) {
            (None, _) => {}
            (Some(policy), None) => found.entry(policy).or_default().push(epoll.id.fd),
            (Some(one), Some(other)) => notes.push(format!(
                "{} watches sockets that request {one} and {other}, but an epoll has one set of busy-poll parameters: the requests of its sockets are ignored",
                epoll.id
            )),
        }
    }
    let watched =
        |inode| process.epolls.iter().any(|epoll| epoll.members.iter().any(|member| member.inode == inode));
    let unwatched =
        process.sockets.iter().filter(|s| sockets.contains_key(&s.inode) && !watched(s.inode)).count();
    if unwatched > 0 && found.is_empty() {
        notes.push(format!(
            "{unwatched} socket(s) of {} have a request but are in no epoll: nothing is set for them",
            process.id
        ));
    }
    found
}

fn request(target: Target, policy: PolicyName, source: &str) -> Intent {
    let origin = format!("{target}: {source}");
    Intent::new(target, policy, origin)
}

/// The origin of an intent that a process requested for itself.
const ITS_OWN: &str = "its own request";

/// Returns whether a request was made by an application, and not by the operator.
pub(crate) fn is_of_application(intent: &Intent) -> bool {
    match &intent.target {
        Target::Epolls(..) => true,
        Target::Task(_) => intent.origin == format!("{}: {ITS_OWN}", intent.target),
        Target::Device(_) | Target::Devices(..) | Target::Service(..) => false,
    }
}
