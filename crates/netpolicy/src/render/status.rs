//! The output of `status`.

use daemon::Status;
use latency::live::text::{ago, short};
use latency::live::{Percentiles, Prospect};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use session::count;
use session::page::{Cell, Page, Report, Style, Table, to_json};

/// The output of `status`: the daemon's status document, unchanged.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct StatusReport {
    state: Value,
    #[serde(skip)]
    shown: Shown,
}

/// The daemon's status document.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used: the daemon's document is printed unchanged")]
struct StatusDocument {
    /// False for users who see only the requests for their own processes.
    whole: bool,
    #[serde(flatten)]
    status: Status,
}

/// The fields that are null for users who may not see everything.
const HIDDEN: [&str; 5] = ["policy", "counters", "polling", "netns", "sessions"];

impl JsonSchema for StatusReport {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "StatusReport".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = StatusDocument::json_schema(generator);
        for hidden in HIDDEN {
            let seen = schema.pointer_mut(&format!("/properties/{hidden}")).expect("a field of the status");
            *seen = json!({ "anyOf": [seen.take(), { "type": "null" }] });
        }
        schema
    }
}

/// The fields that the text output shows. Unknown fields of a newer daemon are ignored.
#[derive(Debug, Default, Deserialize)]
struct Shown {
    whole: bool,
    pid: u32,
    version: String,
    phase: String,
    policy: Option<Policy>,
    requests: Vec<Asked>,
    settings: u64,
    findings: Vec<model::Finding>,
    counters: Option<Counters>,
    #[serde(default)]
    sessions: Option<Sessions>,
    #[serde(default)]
    verdicts: Vec<model::Judgement>,
}

#[derive(Debug, Default, Deserialize)]
struct Sessions {
    running: Vec<Running>,
}

/// A running session of the API.
#[derive(Debug, Deserialize)]
struct Running {
    id: u64,
    kind: String,
    client: String,
    since_unix_micros: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Policy {
    sections: u64,
    mistakes: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Counters {
    commits: u64,
    changes: u64,
    repairs: u64,
    failures: u64,
}

#[derive(Debug, Deserialize)]
struct Asked {
    target: String,
    policy: String,
    delivery: String,
    origin: String,
    queues: u64,
    processes: u64,
    wanted: u64,
    set: u64,
    #[serde(default)]
    engaged: Option<f64>,
    #[serde(default)]
    measured: Option<ServiceFigures>,
    #[serde(default)]
    proof: Option<Proven>,
    #[serde(default)]
    expected: Option<Prospect>,
    notes: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct ServiceFigures {
    at_unix_micros: u64,
    rate: f64,
    response: Percentiles,
    ring: Percentiles,
    wakeup: Percentiles,
    service_time: Percentiles,
}

/// A standing proof.
#[derive(Debug, Deserialize)]
struct Proven {
    since_unix_micros: u64,
    pairs: u64,
    share_without: f64,
    effects: Vec<model::Effect>,
    waits: Option<String>,
    #[serde(default)]
    rolled_back_unix_micros: Option<u64>,
}

impl Proven {
    /// Formats the effects that were measured: `cpu -21 % (-24 to -18), p99 +4 % (+1 to +7) with it; 3100
    /// pairs over 6 days, 0.9 % of the time without it`.
    fn words(&self) -> String {
        let now = linux::machine::seconds_since_1970();
        let span = span_of(now.saturating_sub(self.since_unix_micros / 1_000_000));
        let effects =
            self.effects.iter().map(|effect| format!("{} {}", effect.quantity.as_str(), effect.change));
        let effects: Vec<String> = effects.collect();
        let shown = match effects.is_empty() {
            true => "nothing yet".to_owned(),
            false => format!("{} with it", effects.join(", ")),
        };
        let waits = self.waits.as_ref().map_or_else(String::new, |why| format!("; waits: {why}"));
        let pairs = count(usize::try_from(self.pairs).unwrap_or(usize::MAX), "pair");
        format!(
            "{shown}; {pairs} over {span}, {:.1} % of the time without it{waits}",
            self.share_without * 100.0
        )
    }
}

/// Formats a time span in its largest unit, such as `6 days`.
fn span_of(seconds: u64) -> String {
    let (number, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7_200 => (seconds / 60, "minute"),
        7_200..172_800 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    count(usize::try_from(number).unwrap_or(usize::MAX), unit)
}

impl Asked {
    /// Whether all settings of the request are in force.
    fn is_in_force(&self) -> bool {
        let is_rolled_back = self.proof.as_ref().is_some_and(|proof| proof.rolled_back_unix_micros.is_some());
        self.set == self.wanted && !is_rolled_back
    }

    /// Returns the policy's word; a dash if a delivery mode was requested explicitly.
    fn word(&self) -> &str {
        match model::PolicyName::None.as_str() == self.policy && self.delivery != NO_DELIVERY {
            true => "-",
            false => &self.policy,
        }
    }
}

/// The delivery mode to which the policy `none` resolves.
const NO_DELIVERY: &str = "interrupt";

impl StatusReport {
    /// Parses the daemon's answer.
    pub(crate) fn of(said: &Value) -> Result<Self, serde_json::Error> {
        Ok(Self { shown: Shown::deserialize(said)?, state: said.clone() })
    }

    /// Returns one line for each measured service, which says when it was measured, and the result.
    pub(crate) fn last_measured(&self) -> Vec<String> {
        let now = linux::machine::seconds_since_1970();
        let measured = self.shown.requests.iter().filter_map(|one| Some((one, one.measured.as_ref()?)));
        let line = |(request, measured): (&Asked, &ServiceFigures)| {
            let engaged = match request.engaged {
                Some(share) => format!(", {} engaged to {:.0} %", request.delivery, share * 100.0),
                None => String::new(),
            };
            format!(
                "{}: p50 {}, p99 {}{engaged}; measured {} by the daemon",
                request.target,
                short(measured.response.p50),
                short(measured.response.p99),
                ago(now.saturating_sub(measured.at_unix_micros / 1_000_000))
            )
        };
        measured.map(line).collect()
    }

    /// Whether there is a request for this service.
    pub(crate) fn has(&self, service: &str) -> bool {
        let target = format!("service {service}");
        self.shown.requests.iter().any(|request| request.target == target)
    }

    /// Whether all requests are in force, as far as the caller can see.
    pub(crate) fn is_in_order(&self) -> bool {
        let shown = &self.shown;
        shown.requests.iter().all(Asked::is_in_force)
            && shown.policy.as_ref().is_none_or(|policy| policy.mistakes.is_none())
            && shown.findings.iter().all(|finding| finding.severity < model::Severity::Problem)
    }
}

impl Report for StatusReport {
    const KIND: &'static str = "status";

    fn page(&self, page: &mut Page) {
        let Shown { whole, pid, version, phase, policy, requests, settings, findings, counters, .. } =
            &self.shown;
        let Shown { sessions, verdicts, .. } = &self.shown;
        page.line(format!("netpolicy {version}, pid {pid}: {phase}"));
        if !whole {
            page.line("Only requests for your own processes are shown.");
        }
        if let (Some(policy), Some(counters)) = (policy, counters) {
            let many = |number: u64, thing: &str| count(usize::try_from(number).unwrap_or(usize::MAX), thing);
            page.line(format!(
                "{} in the policy files, {} held; {}, {}, {}, {}",
                many(policy.sections, "section"),
                many(*settings, "setting"),
                many(counters.commits, "transaction"),
                many(counters.changes, "change"),
                many(counters.repairs, "repair"),
                many(counters.failures, "failure")
            ));
            if let Some(mistakes) = &policy.mistakes {
                page.styled(Style::Bad, "The policy files have errors; the previous policy stays in force:");
                mistakes.lines().for_each(|line| page.line(line));
            }
        }
        for Running { id, kind, client, since_unix_micros } in sessions.iter().flat_map(|all| &all.running) {
            page.line(format!("Session {id} ({kind}) of {client} began {}.", ago_of(*since_unix_micros)));
        }
        let mut table =
            Table::new(&["TARGET", "POLICY", "DELIVERY", "QUEUES", "PROCESSES", "SET", "ASKED AT"]);
        for request in requests {
            let set = if request.is_in_force() { Style::Good } else { Style::Bad };
            table.row([
                Cell::new(request.target.as_str()),
                Cell::new(request.word()),
                Cell::new(request.delivery.as_str()),
                Cell::new(request.queues.to_string()),
                Cell::new(request.processes.to_string()),
                Cell::new(format!("{}/{}", request.set, request.wanted)).style(set),
                Cell::new(request.origin.as_str()),
            ]);
        }
        if !table.is_empty() {
            page.gap();
            page.table(&table);
        }
        let measured = measured(requests);
        if !measured.is_empty() {
            page.gap();
            page.table(&measured);
        }
        for (request, proof) in requests.iter().filter_map(|one| Some((one, one.proof.as_ref()?))) {
            page.line(format!("{}: its proof: {}", request.target, proof.words()));
        }
        for (request, prospect) in requests.iter().filter_map(|one| Some((one, one.expected.as_ref()?))) {
            prospect.said().iter().for_each(|line| page.line(format!("{}: {line}", request.target)));
        }
        for (request, note) in requests.iter().flat_map(|r| r.notes.iter().map(move |note| (r, note))) {
            page.line(format!("{}: {note}", request.target));
        }
        let mut judged = std::collections::BTreeSet::new();
        let last = verdicts.iter().filter(|verdict| judged.insert(&verdict.service));
        let last: Vec<String> =
            last.map(|verdict| format!("{}: {verdict}", ago_of(verdict.unix_micros))).collect();
        if !last.is_empty() {
            page.gap();
        }
        last.into_iter().for_each(|line| page.line(line));
        if !findings.is_empty() {
            page.gap();
        }
        for finding in findings {
            page.line(format!("{}: {}: {}", finding.severity, finding.object, finding.summary));
            finding.evidence.iter().for_each(|line| page.line(format!("  {line}")));
            if let Some(remedy) = &finding.remedy {
                page.line(format!("  remedy: {remedy}"));
            }
        }
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        vec![("status", to_json(&self.state))]
    }
}

/// Formats how long ago an event was.
fn ago_of(unix_micros: u64) -> String {
    ago(linux::machine::seconds_since_1970().saturating_sub(unix_micros / 1_000_000))
}

/// Lists the response times of services that have a goal, and how far their delivery modes are engaged.
fn measured(requests: &[Asked]) -> Table {
    let now = linux::machine::seconds_since_1970();
    let mut table =
        Table::new(&["MEASURED", "REQ/S", "P50", "P99", "RING", "WAKE-UP", "SERVICE", "ENGAGED", "LAST"]);
    for (request, measured) in requests.iter().filter_map(|one| Some((one, one.measured.as_ref()?))) {
        let engaged = request.engaged.map(|share| format!("{:.0} %", share * 100.0));
        table.row([
            Cell::new(request.target.as_str()),
            Cell::new(format!("{:.0}", measured.rate)),
            Cell::new(short(measured.response.p50)),
            Cell::new(short(measured.response.p99)),
            Cell::new(short(measured.ring.p50)),
            Cell::new(short(measured.wakeup.p50)),
            Cell::new(short(measured.service_time.p50)),
            Cell::optional(engaged),
            Cell::new(ago(now.saturating_sub(measured.at_unix_micros / 1_000_000))),
        ]);
    }
    table
}
