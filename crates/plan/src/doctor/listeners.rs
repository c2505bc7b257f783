//! Findings about listeners that share an address: how a connection's listener is chosen, and the effect on
//! busy polling.

use std::collections::BTreeSet;

use model::host::SharedListeners;
use model::{Label, NapiId, Pid, Severity, Spread};

use super::case::Case;
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "listeners-mix-queues",
        doc: "The kernel's hash gives workers that listen on one address connections of several queues.",
        find: mix_queues,
    },
    DoctorRule {
        id: "listeners-chosen-by-another",
        doc: "Another program's BPF program chooses the listener of a connection.",
        find: chosen_by_another,
    },
];

/// A worker with a listener of the group: an epoll that watches a listener, and the NAPIs of its connections.
struct Worker {
    comm: Label,
    pid: Pid,
    napis: BTreeSet<NapiId>,
    /// Whether the worker's epoll prefers busy polling.
    polls: bool,
}

impl Worker {
    /// Formats the worker: `nginx[812] from NAPI 300, 301`.
    fn sentence(&self) -> String {
        let napis: Vec<String> = self.napis.iter().map(ToString::to_string).collect();
        format!("{}[{}] receives from NAPI {}", self.comm, self.pid, napis.join(", "))
    }
}

/// Returns the workers of a group: epolls that watch one of its listeners, each with the NAPIs of its
/// connections.
fn workers(group: &SharedListeners, case: &Case<'_>) -> Vec<Worker> {
    let listeners: BTreeSet<u64> = group.listeners.iter().map(|listener| listener.inode).collect();
    let mut workers = Vec::new();
    for process in &case.host.processes {
        for epoll in &process.epolls {
            let inodes: BTreeSet<u64> = epoll.members.iter().map(|member| member.inode).collect();
            if inodes.is_disjoint(&listeners) {
                continue;
            }
            let watched = process.sockets.iter().filter(|socket| inodes.contains(&socket.inode));
            let napis = watched.filter_map(|socket| socket.napi).collect();
            let polls = epoll.params.is_some_and(|params| params.prefer_busy_poll);
            workers.push(Worker { comm: process.id.comm, pid: process.id.pid, napis, polls });
        }
    }
    workers
}

fn mix_queues(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for group in case.host.listeners.iter().filter(|group| group.spread == Spread::Hash) {
        let workers = workers(group, case);
        let mixing: Vec<&Worker> =
            workers.iter().filter(|worker| worker.polls && worker.napis.len() > 1).collect();
        if workers.len() < 2 || mixing.is_empty() {
            continue;
        }
        let summary = format!(
            "the kernel's hash gives {} of its {} workers connections of several queues, and they busy-poll",
            mixing.len(),
            workers.len()
        );
        let finding = Found::new(Severity::Warning, group.id, summary);
        let finding = mixing
            .iter()
            .take(EVIDENCE_MAX)
            .fold(finding, |finding, worker| finding.evidence(worker.sentence()));
        let remedy = "in a recipe file, under [recipe.POLICY.reuseport]: value = \"by-queue\", as latency has it; then netpolicy apply";
        found.push(finding.remedy(remedy));
    }
    found
}

fn chosen_by_another(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let foreign = case.host.listeners.iter().filter(|group| group.spread == Spread::Foreign);
    let concerned =
        foreign.map(|group| (group, workers(group, case))).filter(|(_, all)| all.iter().any(|w| w.polls));
    concerned
        .map(|(group, workers)| {
            let mixing = workers.iter().filter(|worker| worker.napis.len() > 1);
            let summary = format!(
                "another program's reuseport program chooses among its {} sockets for each connection",
                group.sockets
            );
            let finding = Found::new(Severity::Note, group.id, summary)
                .evidence("the program could not be restored, so connections are not assigned by queue");
            mixing.take(EVIDENCE_MAX).fold(finding, |finding, worker| finding.evidence(worker.sentence()))
        })
        .collect()
}

/// The maximum number of workers to name as evidence.
const EVIDENCE_MAX: usize = 8;
