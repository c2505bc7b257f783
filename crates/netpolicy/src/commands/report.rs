//! `report`: summarises this host for `audit`.

use std::collections::BTreeMap;

use crate::fleet::{Drifted, FindingOnHost, HostReport, PolicyState, Refused, Service};
use ::daemon::api::Client;

use model::{Nanoseconds, Severity, Target};
use serde_json::{Map, Value};
use session::verify::compared;
use session::{Exit, Fault};

use super::doctor::examine;
use crate::args::{Report, Which};
use crate::render::FindingKindReport;
use cli::Context;

/// Prints the report.
pub(crate) fn run(arguments: &Report, context: &Context) -> Result<Exit, Fault> {
    let examined = examine(&(&Which::All).into(), arguments.seconds, context)?;
    let drift = compared(&context.session.journal()?, None)?;
    let status = status(context);
    let mut drivers = BTreeMap::new();
    for device in examined.host.devices.iter().filter(|device| !device.napis.is_empty()) {
        *drivers.entry(device.kind.clone()).or_default() += 1;
    }
    let findings = examined.findings.iter().filter(|finding| finding.severity >= Severity::Warning);
    let report = HostReport {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        at_unix_seconds: linux::machine::seconds_since_1970(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        release: examined.host.release.clone(),
        drivers,
        policy: PolicyState {
            requests: examined.requests,
            pending: examined.pending,
            refused: examined
                .refused
                .as_ref()
                .map(|fault| Refused { code: fault.exit.code(), why: fault.cause.to_string() }),
        },
        as_applied: drift.held(),
        drifted: drift
            .changed()
            .map(|(object, knob, note)| Drifted {
                object: object.to_owned(),
                knob: knob.to_owned(),
                note: note.to_owned(),
            })
            .collect(),
        findings: findings
            .map(|finding| FindingOnHost {
                rule: finding.rule.clone(),
                family: FindingKindReport::named(&finding.rule).map_or("", |kind| kind.family()).to_owned(),
                severity: finding.severity,
                object: finding.object.clone(),
                summary: finding.summary.clone(),
            })
            .collect(),
        daemon: Some(status.is_some()),
        services: status.map_or_else(|| services_of_policy(context), |status| services_of(&status)),
    };
    context.console.report(&report)?;
    Ok(Exit::Done)
}

/// Returns the daemon's status; `None` if no daemon answers.
fn status(context: &Context) -> Option<Value> {
    let socket = context.session.trusted_api_socket().ok()?;
    let mut client = Client::connect(&socket).ok()??;
    client.call("Status", Map::new()).ok()?.get("status").cloned()
}

/// Returns the services in a daemon's status.
fn services_of(status: &Value) -> Vec<Service> {
    let requests = status["requests"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let services = requests.filter(|request| text(&request["target"]).starts_with("service "));
    services
        .map(|request| Service {
            target: text(&request["target"]),
            policy: text(&request["policy"]),
            wanted: request["wanted"].as_u64().unwrap_or_default(),
            set: request["set"].as_u64().unwrap_or_default(),
            engaged: request["engaged"].as_f64(),
            missed: missed(&request["goal"], &request["measured"]["response"]),
            proof: request["proof"]["standing"].as_str().map(str::to_owned),
        })
        .collect()
}

/// Returns the first percentile whose whole confidence interval is above its goal, the rule by which the
/// daemon also judges.
fn missed(goal: &Value, response: &Value) -> Option<String> {
    ["p50", "p99"].into_iter().find_map(|name| {
        let bound = goal[name].as_u64()?;
        let low = response[name]["low"].as_f64()?;
        let value = response[name]["estimate"].as_f64()?;
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "response times"
        )]
        (low > bound as f64)
            .then(|| format!("{name} {}, goal {}", Nanoseconds(value as u64), Nanoseconds(bound)))
    })
}

/// Returns the services of the policy files, for hosts where no daemon knows their state.
fn services_of_policy(context: &Context) -> Vec<Service> {
    let Ok(policy) = context.policy() else { return Vec::new() };
    let intents = policy.policy().intents;
    let services = intents.into_iter().filter_map(|intent| match intent.target {
        Target::Service(name, _) => Some(Service {
            target: format!("service {name}"),
            policy: intent.policy.to_string(),
            ..Service::default()
        }),
        _ => None,
    });
    services.collect()
}
