//! The services of a policy whose response times can be measured.

use linux::Netns;
use linux::process::{Criteria, find, listening};
use model::live::ServicePorts;
use model::policy::Match;
use model::{Goal, Policy, ProcessId, Target as Asked};

/// A service to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListeningService {
    /// The service's name, which is unique.
    pub name: String,
    /// The processes.
    pub processes: Vec<ProcessId>,
    /// The ports on which the service receives requests.
    pub ports: ServicePorts,
    /// The goal.
    pub goal: Goal,
}

impl ListeningService {
    /// Finds the services of a policy that listen in a namespace. The name of each is that of its section.
    /// Processes that cannot be inspected are skipped.
    pub fn of_policy(policy: &Policy, netns: &Netns) -> Vec<Self> {
        let mut subjects: Vec<Self> = Vec::new();
        for intent in &policy.intents {
            let Asked::Service(name, Match { unit, cgroup, exe, pod, container, port, uid }) =
                intent.target.clone()
            else {
                continue;
            };
            let criteria = Criteria { exe, cgroup, unit, pod, container, port, uid, netns: Some(netns.id()) };
            let Ok(mut processes) = find(&criteria, &mut Vec::new()) else { continue };
            processes.retain(|process| process.pid.0 != std::process::id());
            let pids: Vec<_> = processes.iter().map(|process| process.pid).collect();
            let ports = listening(&pids, netns).map_or_else(
                |_| ServicePorts::default(),
                |found| ServicePorts::select(&found.tcp, &found.udp, None),
            );
            if !ports.is_empty() && subjects.iter().all(|known| known.name != name) {
                subjects.push(Self { name, processes, ports, goal: intent.goal });
            }
        }
        subjects
    }
}
