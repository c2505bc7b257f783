//! Requests that applications make themselves, in addition to the operator's policy.

use std::collections::BTreeSet;

use linux::Processes;
use linux::bpf::app_requests::RequestStore;
use model::host::{AppRequest, Requester, Unread};
use model::{Host, Policy};
use plan::app_requests::Joined;

use crate::fault::Fault;
use crate::operator::Operator;
use crate::services;
use crate::source::HostSource;

/// Adds the requests of applications in this namespace to a policy. Reports requests that are left out, and a
/// request store that cannot be read.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn joined(
    policy: Policy,
    source: &dyn HostSource,
    store: &RequestStore,
    operator: &dyn Operator,
) -> Result<Policy, Fault> {
    let requests = match source.app_requests(store) {
        Ok(requests) if requests.is_empty() => return Ok(policy),
        Ok(requests) => requests,
        Err(Unread { what, why }) => {
            operator.say(&format!("Ignoring application requests: {what}: {why}"));
            return Ok(policy);
        }
    };
    let (resolved, mut processes) = services::resolve_on(&policy, source)?;
    if let Processes::Only(pids) | Processes::NetworkingAnd(pids) = &mut processes {
        pids.extend(requesters(&requests, source)?);
        pids.sort_unstable();
        pids.dedup();
    }
    let host = source.observe(&processes)?;
    let Joined { policy, notes } = plan::app_requests::join(&policy, &requests, &host, &resolved);
    notes.iter().for_each(|note| operator.say(note));
    Ok(policy)
}

/// Adds to `host` the requests of its processes and their sockets. If the request store cannot be read, adds
/// that to `host.unread`.
pub fn add_to(host: &mut Host, source: &dyn HostSource, store: &RequestStore) {
    match source.app_requests(store) {
        Ok(requests) => {
            let held: BTreeSet<u64> = host
                .processes
                .iter()
                .flat_map(|process| &process.sockets)
                .map(|socket| socket.inode)
                .collect();
            let seen = services::pids(host);
            let shown = |request: &AppRequest| match request.of {
                Requester::Task(pid) => seen.contains(&pid),
                Requester::Socket(inode) => held.contains(&inode),
            };
            host.app_requests = requests.into_iter().filter(shown).collect();
        }
        Err(unread) => host.unread.push(unread),
    }
}

/// Returns the processes that have a request, or that hold a socket with a request.
pub(crate) fn requesters(
    requests: &[AppRequest],
    source: &dyn HostSource,
) -> Result<BTreeSet<model::Pid>, Fault> {
    let mut pids = BTreeSet::new();
    let mut inodes = BTreeSet::new();
    for request in requests {
        match request.of {
            Requester::Task(pid) => drop(pids.insert(pid)),
            Requester::Socket(inode) => drop(inodes.insert(inode)),
        }
    }
    if !inodes.is_empty() {
        pids.extend(source.holders_of_sockets(&inodes)?);
    }
    Ok(pids)
}
