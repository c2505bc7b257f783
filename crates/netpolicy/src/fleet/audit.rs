//! Finds the issues that the reports of many hosts have in common, worst first.

use std::collections::{BTreeMap, BTreeSet};

use model::Severity;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use session::page::html::{Bar, Document, Tone};
use session::page::{Cell, Page, RecordSchema, Report, SCHEMA, Style, Table, record, to_json};

use super::host_report::{FindingOnHost, HostReport};

/// How far another host's clock may be ahead of this host's, in seconds. A report beyond that counts as one
/// from the future.
const CLOCK_SKEW_MAX: u64 = 3600;

/// The maximum number of hosts.
pub const HOSTS_MAX: usize = 200_000;

/// The maximum size of a file that contains reports.
pub const REPORT_BYTES_MAX: u64 = 64 << 20;

/// The maximum number of groups of one issue. The largest groups are kept; the hosts of the others share one
/// last group.
const GROUPS_MAX: usize = 200;

/// The maximum number of details of one issue on one host. A host that has more is also in the last group.
const DETAILS_OF_HOST_MAX: usize = 8;

/// The maximum number of drivers of a host.
const DRIVERS_OF_HOST_MAX: usize = 32;

/// The maximum length of a text from a report, in characters.
const TEXT_MAX: usize = 160;

/// The maximum number of host names in a line of text.
const NAMES_SHOWN: usize = 3;

/// The maximum number of host names in a row of the HTML page.
const NAMES_IN_ROW: usize = 40;

/// The share of packets, from 0 to 1, below which a delivery mode counts as not engaged.
const ENGAGED_MIN: f64 = 0.5;

/// An issue that a host can have. The worst issue comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Issue {
    /// The host is expected and did not report.
    Missing,
    /// The host's report cannot be read.
    Unreadable,
    /// Measurements (a standing proof) show that a policy harms its service.
    Harmful,
    /// `doctor` found a problem.
    Problem,
    /// An applied setting has changed.
    Drift,
    /// The host's policy files are refused.
    Refused,
    /// The host lacks a mechanism that its policy files need.
    Lacking,
    /// Another program writes the same settings.
    Conflict,
    /// A delivery mode is set but delivers few packets.
    NotEngaged,
    /// A service misses its goal.
    MissedGoal,
    /// Policy files are not applied.
    Pending,
    /// The kernel or a driver has a known fault.
    KnownFault,
    /// The report is old.
    Stale,
    /// `doctor` warns.
    Warning,
    /// No measurements (standing proof) show that a service's policy helps.
    NoProof,
}

impl Issue {
    /// All issues, worst first.
    pub const ALL: [Self; 15] = [
        Self::Missing,
        Self::Unreadable,
        Self::Harmful,
        Self::Problem,
        Self::Drift,
        Self::Refused,
        Self::Lacking,
        Self::Conflict,
        Self::NotEngaged,
        Self::MissedGoal,
        Self::Pending,
        Self::KnownFault,
        Self::Stale,
        Self::Warning,
        Self::NoProof,
    ];

    /// Returns the issue's word in reports and for `--gate`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unreadable => "unreadable",
            Self::Harmful => "harmful",
            Self::Problem => "problem",
            Self::Drift => "drift",
            Self::Refused => "refused",
            Self::Lacking => "lacking",
            Self::Conflict => "conflict",
            Self::NotEngaged => "not-engaged",
            Self::MissedGoal => "missed-goal",
            Self::Pending => "pending",
            Self::KnownFault => "known-fault",
            Self::Stale => "stale",
            Self::Warning => "warning",
            Self::NoProof => "no-proof",
        }
    }
}

/// A JSON document that contains a report.
#[derive(Deserialize)]
struct Reported {
    schema: String,
    kind: String,
    data: HostReport,
}

/// The document's header.
#[derive(Deserialize)]
struct Header {
    schema: Option<String>,
    kind: Option<String>,
}

/// The part of a host's report that the audit keeps.
#[derive(Debug)]
struct Kept {
    file: String,
    at_unix_seconds: u64,
    version: String,
    release: String,
    drivers: Vec<String>,
    issues: BTreeSet<(Issue, String)>,
}

/// Reads reports one after another, and keeps only a summary of each.
#[derive(Debug)]
pub struct Audit {
    now: u64,
    hosts: BTreeMap<String, Kept>,
    duplicates: BTreeMap<String, usize>,
    unreadable: Vec<UnreadableReport>,
    beyond: usize,
}

impl Audit {
    /// Creates an audit without hosts; `now` is the time in seconds since 1970.
    pub const fn new(now: u64) -> Self {
        Self { now, hosts: BTreeMap::new(), duplicates: BTreeMap::new(), unreadable: Vec::new(), beyond: 0 }
    }

    /// Whether a report is from the future.
    const fn is_early(&self, at_unix_seconds: u64) -> bool {
        at_unix_seconds > self.now.saturating_add(CLOCK_SKEW_MAX)
    }

    /// Adds the reports of a file: a document of `netpolicy -o json report`, or several one after another.
    pub fn add(&mut self, file: &str, text: &[u8]) {
        let mut documents = serde_json::Deserializer::from_slice(text).into_iter::<Reported>();
        let (mut any, mut has_others) = (false, false);
        loop {
            let begin = documents.byte_offset();
            match documents.next() {
                None if any => return,
                None => return self.unreadable(file, "the file is empty".to_owned()),
                Some(Ok(document)) => {
                    any = true;
                    if document.schema == SCHEMA && document.kind == HostReport::KIND {
                        self.take(file, document.data);
                    } else if !std::mem::replace(&mut has_others, true) {
                        self.unreadable(file, other_kind(Some(document.schema), Some(document.kind)));
                    }
                }
                Some(Err(error)) => {
                    let rest = text.get(begin..).unwrap_or_default();
                    let header = serde_json::Deserializer::from_slice(rest).into_iter::<Header>().next();
                    let why = match header {
                        Some(Ok(header)) if header.schema.as_deref() != Some(SCHEMA) => {
                            other_kind(header.schema, header.kind)
                        }
                        _ if error.is_eof() => format!("it is truncated: {error}"),
                        _ => error.to_string(),
                    };
                    return self.unreadable(file, why);
                }
            }
        }
    }

    /// Adds a file that could not be read.
    pub fn unreadable(&mut self, file: &str, why: String) {
        self.unreadable.push(UnreadableReport { file: short(file), why: short(&why) });
    }

    fn take(&mut self, file: &str, report: HostReport) {
        let host = short(report.host.trim());
        if host.is_empty() {
            return self.unreadable(file, "it does not name its host".to_owned());
        }
        if let Some(known) = self.hosts.get(&host) {
            *self.duplicates.entry(host.clone()).or_insert(1) += 1;
            // Timestamps of a wrong clock do not show which report is newer, so prefer reports that are not
            // from the future.
            let age = |at| (!self.is_early(at), at);
            if age(known.at_unix_seconds) >= age(report.at_unix_seconds) {
                return;
            }
        } else if self.hosts.len() >= HOSTS_MAX {
            self.beyond += 1;
            return;
        }
        let kept = Kept {
            file: short(file),
            at_unix_seconds: report.at_unix_seconds,
            issues: issues(&report),
            version: short(&report.version),
            release: short(&report.release),
            drivers: report.drivers.keys().take(DRIVERS_OF_HOST_MAX).map(|driver| short(driver)).collect(),
        };
        self.hosts.insert(host, kept);
    }

    /// Returns the result. `expected` contains the names of all hosts; reports older than `age_max` seconds
    /// are stale.
    pub fn finish(self, expected: Option<&BTreeSet<String>>, age_max: u64) -> AuditReport {
        let mut groups: BTreeMap<Issue, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        let mut group = |issue: Issue, detail: &str, host: &str| {
            groups.entry(issue).or_default().entry(detail.to_owned()).or_default().insert(host.to_owned());
        };
        let mut clean = 0;
        let [mut versions, mut releases, mut drivers] = [const { BTreeMap::<String, usize>::new() }; 3];
        for (host, kept) in &self.hosts {
            let early = self.is_early(kept.at_unix_seconds);
            let stale = early || self.now.saturating_sub(kept.at_unix_seconds) > age_max;
            if early {
                group(Issue::Stale, "its report is from the future: its clock is wrong", host);
            } else if stale {
                group(Issue::Stale, "its report is older than --max-age", host);
            }
            kept.issues.iter().for_each(|(issue, detail)| group(*issue, detail, host));
            clean += usize::from(kept.issues.is_empty() && !stale);
            *versions.entry(kept.version.clone()).or_default() += 1;
            *releases.entry(kept.release.clone()).or_default() += 1;
            kept.drivers.iter().for_each(|driver| *drivers.entry(driver.clone()).or_default() += 1);
        }
        for unreadable in &self.unreadable {
            // Omit the position of the damage, which differs by file, so that equal reasons form one group.
            let why = unreadable.why.split(" at line ").next().unwrap_or_default();
            group(Issue::Unreadable, why, &unreadable.file);
        }
        let missing: Vec<String> =
            expected.into_iter().flatten().filter(|host| !self.hosts.contains_key(*host)).cloned().collect();
        missing.iter().for_each(|host| group(Issue::Missing, "it did not report", host));
        let unexpected = expected.map_or_else(Vec::new, |expected| {
            self.hosts.keys().filter(|host| !expected.contains(*host)).cloned().collect()
        });
        let mut listed = Vec::new();
        for (issue, mut of_issue) in groups {
            let mut others = of_issue.remove(OTHERS).unwrap_or_default();
            let mut of_issue: Vec<_> = of_issue.into_iter().collect();
            of_issue.sort_by_key(|(_, hosts)| std::cmp::Reverse(hosts.len()));
            for (_, hosts) in of_issue.drain(GROUPS_MAX.min(of_issue.len())..) {
                others.extend(hosts);
            }
            of_issue.extend((!others.is_empty()).then(|| (OTHERS.to_owned(), others)));
            let group =
                |(detail, hosts)| Group { issue, detail, hosts: BTreeSet::into_iter(hosts).collect() };
            listed.extend(of_issue.into_iter().map(group));
        }
        AuditReport {
            coverage: Coverage {
                reported: self.hosts.len(),
                expected: expected.map(BTreeSet::len),
                missing,
                unexpected,
                beyond_limit: self.beyond,
            },
            clean,
            groups: listed,
            duplicates: self
                .duplicates
                .into_iter()
                .map(|(host, reports)| {
                    let file = self.hosts.get(&host).map_or_else(String::new, |kept| kept.file.clone());
                    Duplicate { host, reports, file }
                })
                .collect(),
            unreadable: self.unreadable,
            versions,
            releases,
            drivers,
        }
    }
}

/// The detail of the group for hosts beyond [`GROUPS_MAX`] and [`DETAILS_OF_HOST_MAX`].
const OTHERS: &str = "others";

fn other_kind(schema: Option<String>, kind: Option<String>) -> String {
    match schema.as_deref() {
        Some(SCHEMA) => format!(
            "it is a document of kind `{}`, not what `netpolicy -o json report` prints",
            kind.unwrap_or_default()
        ),
        Some(other) => format!("its schema `{other}` belongs to another version of netpolicy than {SCHEMA}"),
        None => "it is not a document of netpolicy".to_owned(),
    }
}

/// Cuts a text from a report to at most [`TEXT_MAX`] characters.
fn short(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Returns the issues of a host, with at most [`DETAILS_OF_HOST_MAX`] details of each issue.
fn issues(report: &HostReport) -> BTreeSet<(Issue, String)> {
    let mut kept = BTreeSet::new();
    let mut numbers: BTreeMap<Issue, usize> = BTreeMap::new();
    for (issue, detail) in all_issues(report) {
        let number = numbers.entry(issue).or_default();
        *number += 1;
        kept.insert((issue, if *number > DETAILS_OF_HOST_MAX { OTHERS.to_owned() } else { detail }));
    }
    kept
}

fn all_issues(report: &HostReport) -> BTreeSet<(Issue, String)> {
    let mut issues = BTreeSet::new();
    for drifted in report.drifted.iter().filter(|drifted| drifted.note != "gone") {
        issues.insert((Issue::Drift, short(&format!("{}: {}", drifted.knob, drifted.note))));
    }
    match &report.policy.refused {
        Some(refused) => {
            let issue = if refused.code == 6 { Issue::Lacking } else { Issue::Refused };
            // Keep only the first line: further lines name files and devices of the host, so hosts would not
            // form a group.
            issues.insert((issue, short(refused.why.lines().next().unwrap_or_default())))
        }
        None => {
            report.policy.pending > 0
                && issues.insert((Issue::Pending, "netpolicy apply would change settings".to_owned()))
        }
    };
    for finding in &report.findings {
        issues.extend(issue_of(finding));
    }
    for service in &report.services {
        let target = short(&service.target);
        if service.engaged.is_some_and(|share| share < ENGAGED_MIN) {
            issues.insert((Issue::NotEngaged, target.clone()));
        }
        if service.missed.is_some() {
            issues.insert((Issue::MissedGoal, target.clone()));
        }
        match service.proof.as_deref() {
            Some("helps") => {}
            Some("reversed") => {
                issues.insert((Issue::Harmful, short(&format!("{target}: policy {}", service.policy))));
            }
            Some(other) => {
                issues.insert((Issue::NoProof, short(&format!("{target}: proof {other}"))));
            }
            None => {
                issues.insert((Issue::NoProof, format!("{target}: no holdback")));
            }
        }
    }
    issues
}

/// The rule of the finding that has the same content as [`crate::PolicyState::refused`].
const POLICY_REFUSED: &str = "policy-refused";

fn issue_of(finding: &FindingOnHost) -> Option<(Issue, String)> {
    if finding.rule == POLICY_REFUSED {
        return None; // the report itself has the reason
    }
    let issue = match (finding.severity, finding.family.as_str()) {
        (Severity::Ok | Severity::Note, _) => return None,
        (_, "others") => Issue::Conflict,
        (_, "engagement") => Issue::NotEngaged,
        (_, "known") => Issue::KnownFault,
        (Severity::Problem, _) => Issue::Problem,
        (Severity::Warning, _) => Issue::Warning,
    };
    let detail = match issue {
        Issue::KnownFault => short(&finding.summary),
        _ => short(&finding.rule),
    };
    Some((issue, detail))
}

/// The result of an audit.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct AuditReport {
    /// Which hosts reported.
    pub coverage: Coverage,
    /// The number of hosts without any issue.
    pub clean: usize,
    /// The groups, worst issue first; within an issue, the group with the most hosts first.
    pub groups: Vec<Group>,
    /// The hosts with several reports. Of these, the newest report that is not from the future counts.
    pub duplicates: Vec<Duplicate>,
    /// Files that are not reports.
    pub unreadable: Vec<UnreadableReport>,
    /// The number of hosts by version of netpolicy.
    pub versions: BTreeMap<String, usize>,
    /// The number of hosts by kernel release.
    pub releases: BTreeMap<String, usize>,
    /// The number of hosts by driver.
    pub drivers: BTreeMap<String, usize>,
}

/// Which hosts reported.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Coverage {
    /// The number of hosts that reported.
    pub reported: usize,
    /// The number of expected hosts; `None` if that is unknown.
    pub expected: Option<usize>,
    /// The expected hosts that did not report.
    pub missing: Vec<String>,
    /// The hosts that reported although they were not expected.
    pub unexpected: Vec<String>,
    /// The number of hosts that were omitted because there were too many.
    pub beyond_limit: usize,
}

/// The hosts that have the same issue with the same detail.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Group {
    /// The issue.
    pub issue: Issue,
    /// The detail of the issue: the setting, rule, service or reason.
    pub detail: String,
    /// The hosts; for unreadable reports, the files.
    pub hosts: Vec<String>,
}

/// A host with several reports.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Duplicate {
    /// The host.
    pub host: String,
    /// The number of reports of this host.
    pub reports: usize,
    /// The file with the report that counts.
    pub file: String,
}

/// A file that is not a report.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct UnreadableReport {
    /// The file.
    pub file: String,
    /// Why the file is not a report.
    pub why: String,
}

impl AuditReport {
    /// Whether any host has this issue or a worse one.
    pub fn fails(&self, gate: Issue) -> bool {
        self.coverage.beyond_limit > 0 || self.groups.iter().any(|group| group.issue <= gate)
    }

    /// Counts the hosts with each issue, worst issue first.
    fn by_issue(&self) -> Vec<(Issue, usize)> {
        let mut hosts: BTreeMap<Issue, BTreeSet<&str>> = BTreeMap::new();
        for group in &self.groups {
            hosts.entry(group.issue).or_default().extend(group.hosts.iter().map(String::as_str));
        }
        hosts.into_iter().map(|(issue, hosts)| (issue, hosts.len())).collect()
    }

    /// Describes the coverage in a sentence.
    fn covered(&self) -> String {
        let Coverage { reported, expected, missing, unexpected, beyond_limit } = &self.coverage;
        let mut words = match expected {
            Some(expected) => format!("{} of {expected} expected hosts reported", expected - missing.len()),
            None => format!("{reported} hosts reported"),
        };
        let more = [
            (self.clean, "without any issue"),
            (unexpected.len(), "not expected"),
            (self.duplicates.len(), "with several reports, of which the newest counts"),
            (*beyond_limit, "omitted: too many hosts"),
        ];
        for (count, what) in more.into_iter().filter(|(count, _)| *count > 0) {
            words.push_str(&format!("; {count} {what}"));
        }
        words
    }

    /// Formats the result as an HTML page.
    pub fn html(&self) -> String {
        let mut page = Document::new("netpolicy audit");
        page.paragraph(&format!("{}.", self.covered()));
        let mut issues = vec![Bar { label: "no issue".to_owned(), count: self.clean, tone: Tone::Good }];
        issues.extend(self.by_issue().into_iter().map(|(issue, count)| Bar {
            label: issue.as_str().to_owned(),
            count,
            tone: if issue < Issue::Warning { Tone::Bad } else { Tone::Plain },
        }));
        page.charts(&[
            ("Hosts by issue", issues),
            ("Hosts by kernel", largest(&self.releases)),
            ("Hosts by driver", largest(&self.drivers)),
            ("Hosts by version of netpolicy", largest(&self.versions)),
        ]);
        page.heading("Issues, worst first");
        let row = |group: &Group| {
            vec![
                group.issue.as_str().to_owned(),
                group.hosts.len().to_string(),
                group.detail.clone(),
                names(&group.hosts, NAMES_IN_ROW),
            ]
        };
        let rows: Vec<Vec<String>> = self.groups.iter().map(row).collect();
        page.table(&["Issue", "Hosts", "Detail", "Which"], &rows);
        if !self.coverage.unexpected.is_empty() {
            page.heading("Not expected");
            page.paragraph(&names(&self.coverage.unexpected, NAMES_IN_ROW));
        }
        page.into_text()
    }
}

/// The maximum number of bars in a chart.
const BARS_MAX: usize = 12;

/// Returns the largest counts of a map as bars; the last bar sums up the others.
fn largest(counts: &BTreeMap<String, usize>) -> Vec<Bar> {
    let bar = |label: &str, count| Bar { label: label.to_owned(), count, tone: Tone::Plain };
    let mut sorted: Vec<(&String, usize)> = counts.iter().map(|(label, count)| (label, *count)).collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let rest: usize = sorted.iter().skip(BARS_MAX).map(|(_, count)| count).sum();
    let mut bars: Vec<Bar> = sorted.iter().take(BARS_MAX).map(|(label, count)| bar(label, *count)).collect();
    if rest > 0 {
        bars.push(bar(OTHERS, rest));
    }
    bars
}

/// Lists the first names, and says how many more there are.
fn names(hosts: &[String], shown: usize) -> String {
    let more = hosts.len().saturating_sub(shown);
    let mut words = hosts.iter().take(shown).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more > 0 {
        words.push_str(&format!(" and {more} more"));
    }
    words
}

impl Report for AuditReport {
    const KIND: &'static str = "audit";

    fn page(&self, page: &mut Page) {
        page.line(format!("{}.", self.covered()));
        if self.groups.is_empty() {
            return;
        }
        page.gap();
        let mut table = Table::new(&["ISSUE", "HOSTS", "DETAIL", "WHICH"]);
        for group in &self.groups {
            let style = if group.issue < Issue::Warning { Style::Bad } else { Style::Warning };
            table.row([
                Cell::new(group.issue.as_str()).style(style),
                Cell::number(group.hosts.len()),
                Cell::new(group.detail.as_str()),
                Cell::new(names(&group.hosts, NAMES_SHOWN)),
            ]);
        }
        page.table(&table);
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.groups.iter().map(|group| ("group", to_json(group))).collect()
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<Group>("group", generator)]
    }
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::*;

    /// Returns the report of a host without issues, after changing these values in it.
    fn report(host: &str, change: &Value) -> Vec<u8> {
        let mut document = json!({
            "schema": SCHEMA, "kind": "report",
            "data": { "host": host, "at_unix_seconds": 1_000, "version": "0.1.0", "release": "6.18.44",
                "drivers": { "ice": 2 }, "as_applied": 8, "daemon": true },
        });
        if let (Some(data), Some(change)) = (document["data"].as_object_mut(), change.as_object()) {
            data.extend(change.clone());
        }
        document.to_string().into_bytes()
    }

    fn audited(reports: &[Vec<u8>], expected: Option<&[&str]>) -> AuditReport {
        let mut audit = Audit::new(2_000);
        for (at, text) in reports.iter().enumerate() {
            audit.add(&format!("{at}.json"), text);
        }
        let expected = expected.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        audit.finish(expected.as_ref(), 86_400)
    }

    fn service(change: Value) -> Value {
        let mut service = json!({ "target": "service memcached", "policy": "latency", "proof": "helps" });
        if let (Some(to), Some(change)) = (service.as_object_mut(), change.as_object()) {
            to.extend(change.clone());
        }
        json!({ "services": [service] })
    }

    fn finding(family: &str, severity: &str) -> Value {
        json!({ "findings": [{ "rule": "a-rule", "family": family, "severity": severity, "summary": "it is bad" }] })
    }

    #[test]
    fn each_issue_of_a_host_is_found_and_a_host_in_order_has_none() {
        let drift = |note| json!({ "drifted": [{ "object": "eth0 rx-0", "knob": "gro-flush-timeout", "note": note }] });
        for (change, issue, detail) in [
            (drift("drifted"), Issue::Drift, "gro-flush-timeout: drifted"),
            (drift("recreated"), Issue::Drift, "gro-flush-timeout: recreated"),
            (
                json!({ "policy": { "refused": { "code": 6, "why": "needs 6.13" } } }),
                Issue::Lacking,
                "needs 6.13",
            ),
            (json!({ "policy": { "refused": { "code": 2, "why": "a typo" } } }), Issue::Refused, "a typo"),
            (json!({ "policy": { "pending": 3 } }), Issue::Pending, "netpolicy apply would change settings"),
            (finding("others", "warning"), Issue::Conflict, "a-rule"),
            (finding("engagement", "problem"), Issue::NotEngaged, "a-rule"),
            (finding("known", "warning"), Issue::KnownFault, "it is bad"),
            (finding("device", "problem"), Issue::Problem, "a-rule"),
            (finding("device", "warning"), Issue::Warning, "a-rule"),
            (service(json!({ "engaged": 0.49 })), Issue::NotEngaged, "service memcached"),
            (service(json!({ "missed": "p99 2ms, goal 1ms" })), Issue::MissedGoal, "service memcached"),
            (service(json!({ "proof": "reversed" })), Issue::Harmful, "service memcached: policy latency"),
            (service(json!({ "proof": null })), Issue::NoProof, "service memcached: no holdback"),
            (service(json!({ "proof": "open" })), Issue::NoProof, "service memcached: proof open"),
            (json!({ "at_unix_seconds": 0 }), Issue::Stale, "its report is older than --max-age"),
            (
                json!({ "at_unix_seconds": 90_002 }),
                Issue::Stale,
                "its report is from the future: its clock is wrong",
            ),
        ] {
            let mut audit = Audit::new(86_401);
            audit.add("a.json", &report("a", &change));
            let found = audit.finish(None, 86_400);
            let groups: Vec<_> = found
                .groups
                .iter()
                .map(|group| (group.issue, group.detail.as_str(), group.hosts.len()))
                .collect();
            assert_eq!(groups, [(issue, detail, 1)], "{change}");
            assert_eq!(found.clean, 0, "{change}");
        }
        for change in [
            json!({}),
            drift("gone"),
            finding("device", "note"),
            finding("engagement", "ok"),
            service(json!({ "engaged": 0.5 })),
        ] {
            let found = audited(&[report("a", &change)], None);
            assert_eq!((found.groups, found.clean), (Vec::new(), 1), "{change}");
        }
    }

    #[test]
    fn the_worst_issue_comes_first_and_of_one_issue_the_one_of_most_hosts() {
        let mut reports = vec![report("w", &finding("device", "warning"))];
        let drifted = |knob: &str| json!({ "drifted": [{ "knob": knob, "note": "drifted" }] });
        reports.extend((0..2).map(|at| report(&format!("a{at}"), &drifted("affinity"))));
        reports.extend((0..5).map(|at| report(&format!("r{at}"), &drifted("rx-usecs"))));
        reports.push(report("h", &service(json!({ "proof": "reversed" }))));
        let found = audited(&reports, Some(&["w", "a0", "gone"]));
        let groups: Vec<_> = found.groups.iter().map(|group| (group.issue, group.hosts.len())).collect();
        assert_eq!(
            groups,
            [
                (Issue::Missing, 1),
                (Issue::Harmful, 1),
                (Issue::Drift, 5),
                (Issue::Drift, 2),
                (Issue::Warning, 1)
            ]
        );
        assert_eq!(found.coverage.missing, ["gone"]);
        assert_eq!(found.coverage.unexpected.len(), 7);
        assert!(found.covered().starts_with("2 of 3 expected hosts reported"), "{}", found.covered());
        assert!(Issue::ALL.is_sorted(), "the issues are listed in the order of the gate");
    }

    #[test]
    fn the_gate_fails_for_its_issue_and_worse_ones_only() {
        let drift = json!({ "drifted": [{ "knob": "rx-usecs", "note": "drifted" }] });
        let found = audited(&[report("a", &drift)], None);
        for issue in Issue::ALL {
            assert_eq!(found.fails(issue), issue >= Issue::Drift, "{issue:?}");
        }
        assert!(!audited(&[report("a", &json!({}))], None).fails(Issue::NoProof));
    }

    #[test]
    fn of_several_reports_of_a_host_the_newest_counts_in_any_order() {
        let old = report("a", &json!({ "at_unix_seconds": 500, "policy": { "pending": 1 } }));
        let new = report("a", &json!({}));
        for (reports, file) in [([old.clone(), new.clone()], "1.json"), ([new.clone(), old], "0.json")] {
            let found = audited(&reports, None);
            assert_eq!((found.clean, found.coverage.reported), (1, 1));
            let (host, file) = ("a".to_owned(), file.to_owned());
            assert_eq!(found.duplicates, [Duplicate { host, reports: 2, file }]);
        }
        let of_future = report("a", &json!({ "at_unix_seconds": 90_000, "policy": { "pending": 1 } }));
        for reports in [[of_future.clone(), new.clone()], [new, of_future]] {
            assert_eq!(audited(&reports, None).clean, 1, "a report from the future counts only alone");
        }
    }

    #[test]
    fn a_report_with_many_details_leaves_groups_for_the_others_and_is_counted() {
        let drifted = |knobs: &[String]| {
            let knobs = knobs.iter().map(|knob| json!({ "knob": knob, "note": "drifted" }));
            json!({ "drifted": knobs.collect::<Vec<Value>>() })
        };
        let many: Vec<String> = (0..1_000).map(|at| format!("a{at:04}")).collect();
        let mut reports: Vec<Vec<u8>> =
            (0..100).map(|at| report(&format!("hostile{at}"), &drifted(&many[at..]))).collect();
        reports.extend((0..2).map(|at| report(&format!("z{at}"), &drifted(&["z-knob".to_owned()]))));
        let found = audited(&reports, None);
        let of = |detail: &str| found.groups.iter().find(|group| group.detail == detail);
        assert_eq!(of("z-knob: drifted").map(|group| group.hosts.len()), Some(2));
        assert_eq!(of(OTHERS).map(|group| group.hosts.len()), Some(100));
        assert!(found.groups.len() <= GROUPS_MAX + 1, "{}", found.groups.len());
        let one = audited(&reports[..1], None);
        assert_eq!((one.groups.len(), one.by_issue()), (DETAILS_OF_HOST_MAX + 1, vec![(Issue::Drift, 1)]));
    }

    #[test]
    fn what_is_not_a_report_is_named_and_does_not_stop_the_others() {
        let good = report("good", &json!({}));
        let cut = good[..good.len() - 20].to_vec();
        let several = [good.as_slice(), b"\n", &report("second", &json!({})), &cut].concat();
        for (text, why) in [
            (cut.clone(), "it is truncated"),
            (Vec::new(), "the file is empty"),
            (b"ELF\x7f\x00\xff".to_vec(), "expected value"),
            (b"{}".to_vec(), "it is not a document of netpolicy"),
            (
                br#"{"schema":"netpolicy/v2","kind":"report","data":{"host":["x"]}}"#.to_vec(),
                "another version",
            ),
            (br#"{"schema":"netpolicy/v1","kind":"drift","data":{}}"#.to_vec(), "kind `drift`"),
            (report(" ", &json!({})), "does not name its host"),
            (br#"{"schema":"netpolicy/v1","kind":"report","data":{"host":7}}"#.to_vec(), "invalid type"),
            (b"[".repeat(100_000), "invalid type"),
        ] {
            let found = audited(&[text, good.clone()], None);
            assert_eq!(found.coverage.reported, 1, "{why}");
            assert_eq!(found.unreadable.len(), 1, "{why}");
            assert!(found.unreadable[0].why.contains(why), "{why}: {:?}", found.unreadable);
            assert!(found.fails(Issue::Unreadable), "{why}");
        }
        let found = audited(&[several], None);
        assert_eq!(
            (found.coverage.reported, found.unreadable.len()),
            (2, 1),
            "reports before the truncated one count"
        );
    }

    #[test]
    fn a_hostile_report_controls_neither_terminal_nor_page_and_stays_small() {
        let hostile = "<script>alert(1)</script>\u{1b}]0;owned\u{7}\u{202e}";
        let long = "x".repeat(1 << 14);
        let reports: Vec<Vec<u8>> = (0..500)
            .map(|at| {
                report(
                    &format!("{hostile}{at}"),
                    &json!({ "release": hostile, "version": long,
                        "policy": { "refused": { "code": 2, "why": format!("{at} {hostile}") } } }),
                )
            })
            .collect();
        let found = audited(&reports, None);
        assert_eq!(found.groups.len(), GROUPS_MAX + 1);
        for text in [found.html(), found.as_text(true), found.document(), found.records()] {
            assert!(!text.contains("\u{1b}]") && !text.contains('\u{202e}') && !text.contains('\u{7}'));
            assert!(text.len() < 1 << 20, "{}", text.len());
        }
        assert!(!found.html().contains("<script"));
    }
}
