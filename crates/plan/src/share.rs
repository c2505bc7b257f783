//! A process divided: some of its epolls have a request of their own.

use std::collections::{BTreeMap, BTreeSet};

use model::host::Process;
use model::{Fd, Pid, Policy, Target};

use crate::index::Index;

/// The processes of which some epolls are asked for by themselves.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Each share, as a process with those epolls and what they watch alone, and the request that it belongs to.
    pub(crate) shares: Vec<(usize, Process)>,
    /// What is left of each.
    rests: BTreeMap<Pid, Process>,
}

impl Shares {
    /// The shares that a policy asks for. A process or an epoll that is not there any more has none.
    pub(crate) fn of(policy: &Policy, index: &Index<'_>) -> Self {
        let mut shares = Self::default();
        for (part, intent) in policy.intents.iter().enumerate() {
            let Target::Epolls(pid, epolls) = &intent.target else { continue };
            let Some(&whole) = index.processes.get(pid) else { continue };
            let rest = shares.rests.entry(*pid).or_insert_with(|| whole.clone());
            let share = taken(rest, epolls);
            if !share.epolls.is_empty() {
                shares.shares.push((part, share));
            }
        }
        shares
    }

    /// A process without what is asked for by itself.
    pub(crate) fn rest<'p>(&'p self, process: &'p Process) -> &'p Process {
        self.rests.get(&process.id.pid).unwrap_or(process)
    }
}

/// Takes epolls out of a process, and the sockets that they watch.
fn taken(process: &mut Process, epolls: &[Fd]) -> Process {
    let (taken, left) = process.epolls.drain(..).partition(|epoll| epolls.contains(&epoll.id.fd));
    process.epolls = left;
    let mut share = Process { epolls: taken, threads: Vec::new(), rings: Vec::new(), ..process.clone() };
    let watched: BTreeSet<u64> =
        share.epolls.iter().flat_map(|epoll| &epoll.members).map(|member| member.inode).collect();
    let (of_share, left) = process.sockets.drain(..).partition(|socket| watched.contains(&socket.inode));
    share.sockets = of_share;
    process.sockets = left;
    share
}
