//! The output of `sockets list`.

use std::collections::BTreeMap;

use linux::bpf::app_requests::{Enabled, RequestSource, SocketRequest};
use model::{Pid, PolicyName};
use schemars::JsonSchema;
use serde::Serialize;
use session::page::{Page, Report};

use super::count;

/// The enabled cgroups, and the requests of their programs.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct SocketsReport {
    cgroups: Vec<CgroupLine>,
    tasks: Vec<TaskLine>,
    sockets: Vec<SocketsLine>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct CgroupLine {
    id: u64,
    /// The cgroup's path; `None` if the cgroup was removed.
    path: Option<String>,
    /// Whether prctl is enabled as well.
    prctl: bool,
    /// The policies that any user may request.
    allow: Vec<PolicyName>,
    /// The policies that single users may request instead of those in `allow`, by uid.
    allow_user: BTreeMap<u32, Vec<PolicyName>>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct TaskLine {
    pid: Pid,
    policy: String,
}

/// Sockets that have the same request.
#[derive(Debug, JsonSchema, Serialize)]
struct SocketsLine {
    policy: String,
    /// Whether the sockets inherited the request from the process that created them.
    of_task: bool,
    sockets: usize,
}

impl SocketsReport {
    /// Creates the report of the current state.
    pub(crate) fn of(enabled: &[Enabled], tasks: &BTreeMap<Pid, u32>, sockets: &[SocketRequest]) -> Self {
        let mut groups: BTreeMap<(u32, bool), usize> = BTreeMap::new();
        for socket in sockets {
            *groups.entry((socket.number, socket.source == RequestSource::Task)).or_default() += 1;
        }
        Self {
            cgroups: enabled.iter().map(cgroup).collect(),
            tasks: tasks.iter().map(|(&pid, &number)| TaskLine { pid, policy: word(number) }).collect(),
            sockets: groups
                .into_iter()
                .map(|((number, of_task), sockets)| SocketsLine { policy: word(number), of_task, sockets })
                .collect(),
        }
    }

    /// Whether there is nothing to list.
    pub(crate) const fn is_empty(&self) -> bool {
        self.cgroups.is_empty() && self.tasks.is_empty()
    }
}

fn cgroup(enabled: &Enabled) -> CgroupLine {
    let policies = |numbers: u32| -> Vec<PolicyName> {
        PolicyName::ALL.into_iter().filter(|policy| numbers & (1 << policy.number()) != 0).collect()
    };
    let any_user = enabled.choices.iter().find(|choice| choice.uid.is_none());
    let users = enabled.choices.iter().filter_map(|choice| Some((choice.uid?, policies(choice.numbers))));
    CgroupLine {
        id: enabled.id,
        path: enabled.path.as_ref().map(|path| path.display().to_string()),
        prctl: enabled.prctl,
        allow: any_user.map(|choice| policies(choice.numbers)).unwrap_or_default(),
        allow_user: users.collect(),
    }
}

/// Returns the name of the policy with this number, or the number if no policy has it.
fn word(number: u32) -> String {
    PolicyName::from_number(number).map_or_else(|| number.to_string(), |policy| policy.to_string())
}

fn words(policies: &[PolicyName]) -> String {
    match policies {
        [] => "nothing".to_owned(),
        _ => policies.iter().map(PolicyName::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl Report for SocketsReport {
    const KIND: &'static str = "sockets";

    fn page(&self, page: &mut Page) {
        for line in &self.cgroups {
            let removed = format!("cgroup {} (removed: `netpolicy sockets disable --id {0}`)", line.id);
            page.line(line.path.as_ref().map_or(removed, |path| format!("cgroup {path}")));
            page.line(format!("  setsockopt enabled, prctl {}", if line.prctl { "too" } else { "not" }));
            page.line(format!("  any user may request {}", words(&line.allow)));
            for (uid, policies) in &line.allow_user {
                page.line(format!("  user {uid} may request {}", words(policies)));
            }
        }
        for line in &self.tasks {
            page.line(format!("task {} and its future children: {}", line.pid, line.policy));
        }
        for line in &self.sockets {
            let origin =
                if line.of_task { "inherited from their process" } else { "set by the process itself" };
            page.line(format!("{}: {}, {origin}", count(line.sockets, "socket"), line.policy));
        }
    }
}
