//! What applications ask for by themselves, beside what the operator asks for.

use std::collections::BTreeSet;

use linux::bpf::app_requests::RequestStore;
use linux::{KernelError, Netns, Processes};
use model::host::{AppRequest, Requester, Unread};
use model::{Host, Policy};
use plan::wishes::Joined;

use crate::fault::Fault;
use crate::operator::Operator;
use crate::services;

/// A policy with what applications in this namespace ask for; what of that is left out is told, and so is it if the wishes
/// may not be read.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn joined(
    policy: Policy,
    netns: &Netns,
    store: &RequestStore,
    operator: &dyn Operator,
) -> Result<Policy, Fault> {
    let wishes = match wishes(store) {
        Ok(wishes) if wishes.is_empty() => return Ok(policy),
        Ok(wishes) => wishes,
        Err(error) => {
            operator.say(&format!("What applications ask for is left out of account: {error}"));
            return Ok(policy);
        }
    };
    let (resolved, mut processes) = services::resolve(&policy, netns)?;
    if let Processes::Only(pids) = &mut processes {
        pids.extend(who(&wishes)?);
        pids.sort_unstable();
        pids.dedup();
    }
    let host = linux::observe(netns, &processes)?;
    let Joined { policy, notes } = plan::wishes::join(&policy, &wishes, &host, &resolved);
    notes.iter().for_each(|note| operator.say(note));
    Ok(policy)
}

/// Adds what the processes that were looked at ask for, and their sockets. Where it may not be read, that is said with the
/// rest of what was not.
pub fn told(host: &mut Host, store: &RequestStore) {
    match wishes(store) {
        Ok(wishes) => {
            let held: BTreeSet<u64> = host
                .processes
                .iter()
                .flat_map(|process| &process.sockets)
                .map(|socket| socket.inode)
                .collect();
            let shown = |wish: &AppRequest| match wish.of {
                Requester::Task(pid) => host.process(pid).is_some(),
                Requester::Socket(inode) => held.contains(&inode),
            };
            let wishes = wishes.into_iter().filter(shown).collect();
            host.app_requests = wishes;
        }
        Err(error) => host.unread.push(Unread { what: error.what.clone(), why: error.cause.to_string() }),
    }
}

/// The wishes of all processes and sockets of this host.
fn wishes(store: &RequestStore) -> Result<Vec<AppRequest>, KernelError> {
    let tasks =
        store.tasks()?.into_iter().map(|(pid, number)| AppRequest { of: Requester::Task(pid), number });
    let sockets = store.sockets()?.into_iter();
    let sockets =
        sockets.map(|socket| AppRequest { of: Requester::Socket(socket.inode), number: socket.number });
    Ok(tasks.chain(sockets).collect())
}

/// The processes that ask, or hold a socket that does.
fn who(wishes: &[AppRequest]) -> Result<BTreeSet<model::Pid>, Fault> {
    let mut pids = BTreeSet::new();
    let mut inodes = BTreeSet::new();
    for wish in wishes {
        match wish.of {
            Requester::Task(pid) => drop(pids.insert(pid)),
            Requester::Socket(inode) => drop(inodes.insert(inode)),
        }
    }
    if !inodes.is_empty() {
        pids.extend(linux::process::holders_of_sockets(&inodes)?);
    }
    Ok(pids)
}
