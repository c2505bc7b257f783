//! Splits processes that have separate requests for some of their epolls.

use std::collections::{BTreeMap, BTreeSet};

use model::host::Process;
use model::{Fd, Pid, Policy, Target};

use crate::index::Index;

/// Processes that have separate requests for some of their epolls.
#[derive(Debug, Default)]
pub(crate) struct EpollShares {
    /// The split-off parts, each with its request's index: the process reduced to the requested epolls and
    /// the sockets that they watch.
    pub(crate) shares: Vec<(usize, Process)>,
    /// What remains of each process.
    rests: BTreeMap<Pid, Process>,
}

impl EpollShares {
    /// Splits the processes as a policy requests. Processes and epolls that no longer exist are ignored.
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

    /// Returns a process without its separately requested epolls.
    pub(crate) fn rest<'p>(&'p self, process: &'p Process) -> &'p Process {
        self.rests.get(&process.id.pid).unwrap_or(process)
    }
}

/// Moves epolls, with the sockets that they watch, from a process into a new one.
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
