//! The report of one host.

use std::collections::BTreeMap;

use model::Severity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use session::page::{Page, Report, Style};

/// The output of `report`: the state of one host, for `audit`.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct HostReport {
    /// The host's name, as `uname -n` prints it.
    pub host: String,
    /// The time of the report, in seconds since 1970-01-01 00:00 UTC.
    pub at_unix_seconds: u64,
    /// The version of netpolicy.
    pub version: String,
    /// The kernel's release.
    pub release: String,
    /// The number of devices that have their own receive queues, by driver.
    pub drivers: BTreeMap<String, usize>,
    /// The policy files.
    pub policy: PolicyState,
    /// The number of applied settings that are unchanged.
    pub as_applied: usize,
    /// The applied settings that have changed.
    pub drifted: Vec<Drifted>,
    /// The findings of `doctor`, without notes.
    pub findings: Vec<FindingOnHost>,
    /// Whether a running daemon keeps the policy in force; `None` if that is unknown.
    pub daemon: Option<bool>,
    /// The requests for services. Without a daemon, only the targets of the requests are known.
    pub services: Vec<Service>,
}

/// The state of the policy files and of their plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyState {
    /// The number of requests in the policy files.
    pub requests: usize,
    /// The number of settings that `netpolicy apply` would change.
    pub pending: usize,
    /// Why the policy files are refused; `None` if they are not.
    pub refused: Option<Refused>,
}

/// Why policy files are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct Refused {
    /// The exit code of `netpolicy plan`, which is 6 if this host lacks a mechanism.
    pub code: u8,
    /// The reason.
    pub why: String,
}

/// An applied setting that has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct Drifted {
    /// The object.
    pub object: String,
    /// The setting.
    pub knob: String,
    /// How the setting has changed: `drifted`, `recreated`, `unreadable` or `gone`.
    pub note: String,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct FindingOnHost {
    /// The rule.
    pub rule: String,
    /// The finding's family, as in the table of findings; empty for findings on response times.
    #[serde(default)]
    pub family: String,
    /// The severity.
    pub severity: Severity,
    /// The object.
    #[serde(default)]
    pub object: String,
    /// Describes the finding in a sentence.
    #[serde(default)]
    pub summary: String,
}

/// A request for a service, and its state.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// The target.
    pub target: String,
    /// The policy.
    pub policy: String,
    /// The number of settings that the request wants.
    pub wanted: u64,
    /// The number of these settings that have the wanted value.
    pub set: u64,
    /// The share of packets that the service's delivery mode delivered, from 0 to 1.
    pub engaged: Option<f64>,
    /// The first percentile that is above its goal, such as `p99 2.1ms, goal 1ms`.
    pub missed: Option<String>,
    /// What measurements show about the policy (its standing proof): `helps`, `no-effect`, `reversed`,
    /// `open`; `None` if nothing was measured.
    pub proof: Option<String>,
}

impl Report for HostReport {
    const KIND: &'static str = "report";

    fn page(&self, page: &mut Page) {
        page.styled(
            Style::Strong,
            format!("{}: Linux {}, netpolicy {}", self.host, self.release, self.version),
        );
        let policy = &self.policy;
        page.line(match &policy.refused {
            Some(refused) => format!("policy files are refused: {}", refused.why),
            None => format!("{} request(s), {} change(s) pending", policy.requests, policy.pending),
        });
        page.line(format!("{} setting(s) as applied, {} changed", self.as_applied, self.drifted.len()));
        for finding in &self.findings {
            page.line(format!(
                "{} {}: {} [{}]",
                finding.severity, finding.object, finding.summary, finding.rule
            ));
        }
        for service in &self.services {
            let proof = service.proof.as_deref().unwrap_or("none");
            page.line(format!(
                "{} {}: {} of {} set, proof {proof}",
                service.target, service.policy, service.set, service.wanted
            ));
        }
    }
}
