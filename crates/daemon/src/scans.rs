//! Scans for state that is expected soon but causes no event. If BPF does not report them, they look for new
//! processes and for the first packets of servers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use linux::KernelError;
use linux::process::pids;
use model::{Nanoseconds, Pid};

use crate::reconciler::YOUNG_FOR;

/// The maximum number of new processes that are judged per scan, newest first. The next tick finds the
/// remaining ones.
const NEW_MAX: usize = 64;

/// The maximum number of servers that are inspected per scan. Later scans continue with the rest.
const SERVERS_MAX: usize = 4;

/// What scans look for, and what they have found so far.
#[derive(Debug, Default)]
pub(crate) struct Scans {
    /// The processes that were running at the last scan.
    before: BTreeSet<Pid>,
    /// New processes, with the time until which each counts as new.
    new: BTreeMap<Pid, Nanoseconds>,
    /// The servers that have not received a packet yet, so that their NAPI is unknown.
    servers: BTreeSet<Pid>,
    /// The server that was inspected last.
    last: Option<Pid>,
}

impl Scans {
    /// Records that all running processes are known, so that only later ones count as new.
    ///
    /// # Errors
    /// If `/proc` cannot be listed.
    pub(crate) fn begin(&mut self) -> Result<(), KernelError> {
        self.before = pids()?.into_iter().collect();
        Ok(())
    }

    /// Sets the servers whose first packets the scans look for.
    pub(crate) fn look_at(&mut self, servers: BTreeSet<Pid>) {
        self.servers = servers;
    }

    /// Whether scans look for the first packet of any server.
    pub(crate) fn looks_at_any(&self) -> bool {
        !self.servers.is_empty()
    }

    /// Returns the servers to inspect next.
    pub(crate) fn take_servers(&mut self) -> Vec<Pid> {
        let behind = self.last.unwrap_or(Pid(0));
        let others = self.servers.range(..=behind);
        let turn: Vec<Pid> = self
            .servers
            .range((Excluded(behind), Unbounded))
            .chain(others)
            .take(SERVERS_MAX)
            .copied()
            .collect();
        self.last = turn.last().copied();
        turn
    }

    /// Returns the new processes among the running ones.
    pub(crate) fn take_new(&mut self, running: BTreeSet<Pid>, now: Nanoseconds) -> Vec<Pid> {
        let until = Nanoseconds(now.0.saturating_add(YOUNG_FOR.0));
        self.new.extend(running.difference(&self.before).map(|pid| (*pid, until)));
        self.new.retain(|pid, until| *until > now && running.contains(pid));
        self.before = running;
        let mut new: Vec<(Nanoseconds, Pid)> = self.new.iter().map(|(pid, until)| (*until, *pid)).collect();
        new.sort_unstable_by(|one, other| other.cmp(one));
        new.into_iter().map(|(_, pid)| pid).take(NEW_MAX).collect()
    }

    /// Records that a process has been judged, so that it no longer counts as new.
    pub(crate) fn settled(&mut self, pid: Pid) {
        self.new.remove(&pid);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn pids_of(numbers: impl IntoIterator<Item = u32>) -> BTreeSet<Pid> {
        numbers.into_iter().map(Pid).collect()
    }

    #[test]
    fn a_process_is_new_until_it_is_settled_ends_or_grows_old() {
        let mut scans = Scans { before: pids_of([1, 2]), ..Scans::default() };
        let second = |count: u64| Nanoseconds::from_millis(count * 1000);
        assert_eq!(scans.take_new(pids_of([1, 2, 7, 8]), second(1)), [Pid(8), Pid(7)]);
        scans.settled(Pid(7));
        assert_eq!(scans.take_new(pids_of([1, 2, 7, 8, 3]), second(2)), [Pid(3), Pid(8)], "the newest first");
        assert_eq!(scans.take_new(pids_of([1, 2, 7, 3]), second(3)), [Pid(3)], "8 has ended");
        assert_eq!(scans.take_new(pids_of([1, 2, 7, 3]), second(12)), []);
    }

    #[test]
    fn no_more_new_processes_are_judged_than_the_limit() {
        let mut scans = Scans::default();
        assert_eq!(scans.take_new(pids_of(1..1000), Nanoseconds(1)).len(), NEW_MAX);
    }

    #[test]
    fn each_server_has_its_turn() {
        let mut scans = Scans::default();
        assert!(!scans.looks_at_any() && scans.take_servers().is_empty());
        scans.look_at(pids_of([1, 2, 3, 4, 5, 6]));
        assert_eq!(scans.take_servers(), [Pid(1), Pid(2), Pid(3), Pid(4)]);
        assert_eq!(scans.take_servers(), [Pid(5), Pid(6), Pid(1), Pid(2)]);
        scans.look_at(pids_of([6]));
        assert_eq!(scans.take_servers(), [Pid(6)]);
    }
}
