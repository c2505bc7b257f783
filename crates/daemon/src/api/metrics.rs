//! Formats the daemon's state as OpenMetrics. Labels are targets of requests and kinds of events, never pids,
//! so the number of requests limits the number of series.
//!
//! OpenMetrics 1.0: `# TYPE`, `# UNIT` and `# HELP` precede the samples of a family; the name of a counter's
//! sample ends in `_total`; units are base units; `# EOF` ends the page.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use latency::live::{Expected, Measured, MeasuredOutcome, Totals};
use model::live::{LiveCounts, LivePolls};
use model::proof::ProofState;
use model::{Nanoseconds, ProofInterval, Ruling};

use super::connection_stats::Tally;
use crate::Status;
use crate::sessions::SessionKind;
use crate::status::{DaemonPhase, REACTION_MICROS, RequestStatus, SessionOutcome};

/// The maximum number of requests with separate samples. The remaining requests are counted together.
const REQUESTS_SHOWN_MAX: usize = 256;

/// The prefixes of targets that do not depend on a process.
const LASTING: [&str; 2] = ["device ", "service "];

/// The rule of the finding that a goal is missed, as in `docs/reference/findings.md`.
const GOAL_MISSED: &str = "live-goal-missed";

/// Renders the page.
pub fn open_metrics(status: &Status, services: &[Measured], tally: Tally) -> String {
    let mut page = Page::default();
    page.family("netpolicy_build", "info", "", "Version of the daemon.");
    page.sample("netpolicy_build_info", &[("version", &status.instance.version)], 1);
    page.family("netpolicy_phase", "stateset", "", "The daemon's phase.");
    for (phase, name) in [
        (DaemonPhase::Starting, "starting"),
        (DaemonPhase::Managing, "managing"),
        (DaemonPhase::Released, "released"),
        (DaemonPhase::Ending, "ending"),
    ] {
        page.sample("netpolicy_phase", &[("netpolicy_phase", name)], u64::from(phase == status.phase));
    }
    page.family("netpolicy_start_time_seconds", "gauge", "seconds", "When the daemon started.");
    let (seconds, micros) =
        (status.instance.started_unix_micros / 1_000_000, status.instance.started_unix_micros % 1_000_000);
    page.sample("netpolicy_start_time_seconds", &[], format_args!("{seconds}.{micros:06}"));
    page.family("netpolicy_settings_held", "gauge", "", "Settings that the daemon holds.");
    page.sample("netpolicy_settings_held", &[], status.settings);
    page.family("netpolicy_policy_mistakes", "gauge", "", "Whether the policy files have mistakes.");
    page.sample("netpolicy_policy_mistakes", &[], u64::from(status.policy.mistakes.is_some()));
    page.family(
        "netpolicy_polling_cpus",
        "gauge",
        "",
        "CPUs that poll without traffic, and their maximum number.",
    );
    page.sample("netpolicy_polling_cpus", &[("which", "used")], status.polling.used);
    page.sample("netpolicy_polling_cpus", &[("which", "allowed")], status.polling.allowed);
    page.requests(status);
    page.findings(status);
    page.counters(status);
    page.reactions(status);
    page.proofs(status);
    page.expected(status);
    page.response_times(status, services);
    page.sessions(status);
    page.api(tally);
    page.text.push_str("# EOF\n");
    page.text
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, unit: &str, help: &str) {
        let _infallible = write!(self.text, "# TYPE {name} {kind}\n# HELP {name} {help}\n");
        if !unit.is_empty() {
            let _infallible = writeln!(self.text, "# UNIT {name} {unit}");
        }
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.text.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let _infallible =
                write!(self.text, "{}{label}=\"{}\"", if index == 0 { "{" } else { "," }, escaped(text));
        }
        let _infallible = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", "", help);
        self.sample(&format!("{name}_total"), &[], value);
    }

    /// Adds a sample per request, except for requests for tasks and their epolls, because their pids would
    /// create a new series for each process.
    fn requests(&mut self, status: &Status) {
        let named = || {
            let lasting = status
                .requests
                .iter()
                .filter(|request| LASTING.iter().any(|kind| request.target.starts_with(kind)));
            lasting.take(REQUESTS_SHOWN_MAX)
        };
        type Gauge = (&'static str, &'static str, fn(&RequestStatus) -> Option<u64>);
        let gauges: [Gauge; 4] = [
            ("netpolicy_knobs_wanted", "Settings that a request wants.", |r| Some(count(r.extent.wanted))),
            ("netpolicy_knobs_set", "Settings of a request that have the requested value.", |r| {
                Some(count(r.extent.set))
            }),
            ("netpolicy_queues", "Queues dedicated to a request.", |r| Some(count(r.extent.queues))),
            ("netpolicy_epolls_set", "Epolls and io_urings with settings.", |r| Some(count(r.extent.epolls))),
        ];
        for (name, help, value) in gauges {
            self.family(name, "gauge", "", help);
            let mut seen: Vec<(&str, &str)> = Vec::new();
            for request in named() {
                let series = (request.target.as_str(), request.origin.as_str());
                if let Some(value) = value(request)
                    && !seen.contains(&series)
                {
                    seen.push(series);
                    let labels = [
                        ("target", series.0),
                        ("policy", request.policy.as_str()),
                        ("delivery", request.delivery.as_str()),
                        ("origin", series.1),
                    ];
                    self.sample(name, &labels, value);
                }
            }
        }
        self.family("netpolicy_requests", "gauge", "", "Requests, by kind of target.");
        for kind in ["device", "service", "task", "epoll"] {
            let number = status.requests.iter().filter(|r| r.target.split(' ').next() == Some(kind)).count();
            self.sample("netpolicy_requests", &[("kind", kind)], number);
        }
    }

    fn findings(&mut self, status: &Status) {
        self.family("netpolicy_findings", "gauge", "", "Findings, by severity.");
        for severity in [model::Severity::Note, model::Severity::Warning, model::Severity::Problem] {
            let number = status.findings.iter().filter(|finding| finding.severity == severity).count();
            self.sample("netpolicy_findings", &[("severity", &severity.to_string())], number);
        }
    }

    fn counters(&mut self, status: &Status) {
        self.family("netpolicy_events", "counter", "", "Detected events, by kind.");
        for (kind, number) in &status.counters.events {
            self.sample("netpolicy_events_total", &[("kind", &word(*kind))], number);
        }
        let counters = &status.counters;
        for (name, help, value) in [
            ("netpolicy_events_lost", "Events lost because their queue was full.", counters.lost),
            ("netpolicy_plans", "Computed plans.", counters.passes.plans),
            ("netpolicy_full_scans", "Scans of the whole host.", counters.passes.full_scans),
            ("netpolicy_commits", "Transactions that were committed.", counters.passes.commits),
            (
                "netpolicy_commit_failures",
                "Transactions that failed and were rolled back.",
                counters.passes.failures,
            ),
            ("netpolicy_changes", "Settings that were written.", counters.settings.changes),
            ("netpolicy_repairs", "Settings repaired after external changes.", counters.settings.repairs),
            (
                "netpolicy_flapping",
                "Settings left to other programs after repeated repairs.",
                counters.settings.flapping,
            ),
            (
                "netpolicy_released",
                "Settings restored because no request wants them any longer.",
                counters.settings.released,
            ),
            ("netpolicy_evictions", "Entries dropped at a limit.", counters.evictions),
            ("netpolicy_rollbacks", "Rollbacks by an operator that the daemon noticed.", counters.rollbacks),
            ("netpolicy_requests_answered", "Requests to the daemon.", counters.answered),
            ("netpolicy_requests_refused", "Requests that were refused.", counters.refused),
        ] {
            self.counter(name, help, value);
        }
        let help = "Modes tried for services whose goal was missed, by result.";
        self.family("netpolicy_searches", "counter", "", help);
        let searches = counters.searches;
        for (outcome, number) in [
            ("kept", searches.kept),
            ("rolled-back", searches.rolled_back),
            ("not-judged", searches.not_judged),
        ] {
            self.sample("netpolicy_searches_total", &[("outcome", outcome)], number);
        }
        let help = "Verdicts on guarded changes, one per service on which they were judged.";
        self.family("netpolicy_verdicts", "counter", "", help);
        for ruling in Ruling::OF_GUARDS {
            let number = counters.verdicts.get(&ruling).copied().unwrap_or(0);
            self.sample("netpolicy_verdicts_total", &[("ruling", &word(ruling))], number);
        }
    }

    fn reactions(&mut self, status: &Status) {
        const NAME: &str = "netpolicy_reaction_seconds";
        self.family(NAME, "histogram", "seconds", "Time from an event until the policy is in force.");
        for (kind, reaction) in &status.reactions {
            let kind = word(*kind);
            let mut sum = 0;
            for (end, number) in REACTION_MICROS.iter().zip(&reaction.buckets) {
                sum += number;
                let end = format!("{}.{:06}", end / 1_000_000, end % 1_000_000);
                self.sample(&format!("{NAME}_bucket"), &[("kind", &kind), ("le", &end)], sum);
            }
            self.sample(&format!("{NAME}_bucket"), &[("kind", &kind), ("le", "+Inf")], reaction.count);
            let (seconds, micros) = (reaction.sum_micros / 1_000_000, reaction.sum_micros % 1_000_000);
            self.sample(&format!("{NAME}_sum"), &[("kind", &kind)], format_args!("{seconds}.{micros:06}"));
            self.sample(&format!("{NAME}_count"), &[("kind", &kind)], reaction.count);
        }
    }

    /// Adds the response times of each measured service. They are sampled: requests between two samples are
    /// not counted.
    fn response_times(&mut self, status: &Status, services: &[Measured]) {
        let measured: Vec<(&str, &Totals)> = services
            .iter()
            .filter_map(|measured| match &measured.outcome {
                MeasuredOutcome::Windows { totals, .. } => Some((measured.name.as_str(), &**totals)),
                MeasuredOutcome::Refused { .. } => None,
            })
            .collect();
        if measured.is_empty() {
            return;
        }
        for (name, help, within, all) in HISTOGRAMS {
            self.family(name, "histogram", "seconds", help);
            for (target, totals) in &measured {
                for edge in response_edges() {
                    let labels = [("target", *target), ("le", &seconds(edge))];
                    self.sample(&format!("{name}_bucket"), &labels, within(totals, edge));
                }
                let (number, sum) = all(totals);
                let labels = [("target", *target), ("le", "+Inf")];
                self.sample(&format!("{name}_bucket"), &labels, number);
                self.sample(&format!("{name}_sum"), &[("target", target)], seconds(sum));
                self.sample(&format!("{name}_count"), &[("target", target)], number);
            }
        }
        self.family(
            "netpolicy_live_requests",
            "counter",
            "",
            "Requests answered during samples; exchanges if the protocol does not show requests.",
        );
        for (target, totals) in &measured {
            self.sample("netpolicy_live_requests_total", &[("target", target)], totals.requests);
        }
        let help = "Answered exchanges of TLS and unknown protocols, whose number of requests is unknown.";
        self.family("netpolicy_live_exchanges", "counter", "", help);
        for (target, totals) in &measured {
            self.sample("netpolicy_live_exchanges_total", &[("target", target)], totals.exchanges);
        }
        self.family("netpolicy_live_windows", "counter", "", "Samples.");
        for (target, totals) in &measured {
            self.sample("netpolicy_live_windows_total", &[("target", target)], totals.windows);
        }
        let name = "netpolicy_live_measured_seconds";
        self.family(name, "counter", "seconds", "Total length of the samples.");
        for (target, totals) in &measured {
            self.sample(&format!("{name}_total"), &[("target", target)], seconds(totals.measured));
        }
        let name = "netpolicy_live_cpu_seconds";
        self.family(name, "counter", "seconds", "CPU time during samples, by consumer.");
        for (target, totals) in &measured {
            for (by, time) in [("service", totals.cpu_service), ("delivery", totals.cpu_delivery)] {
                let labels = [("target", *target), ("by", by)];
                self.sample(&format!("{name}_total"), &labels, seconds(time));
            }
        }
        let polls = "Polls of a service's NAPIs during samples, by poller.";
        self.polls("netpolicy_live_polls", polls, &measured, |totals| totals.polls);
        let packets = "Packets that these polls of a service's NAPIs delivered.";
        self.polls("netpolicy_live_packets", packets, &measured, |totals| totals.packets);
        self.network(&measured);
        self.response_gauges(status);
    }

    /// Adds the TCP counts of services.
    fn network(&mut self, measured: &[(&str, &Totals)]) {
        let name = "netpolicy_live_segments";
        self.family(name, "counter", "", "Segments with data during samples, by direction.");
        for (target, totals) in measured {
            let counts = &totals.counts;
            for (direction, segments) in [("in", counts.segments_in), ("out", counts.segments_out)] {
                let labels = [("target", *target), ("direction", direction)];
                self.sample(&format!("{name}_total"), &labels, segments);
            }
        }
        let families: [(&str, &str, Count); 4] = [
            ("lost_segments", "Sent segments that were lost and retransmitted.", LiveCounts::lost),
            ("out_of_order_segments", "Received segments that arrived out of order.", |counts| {
                counts.out_of_order
            }),
            (
                "zero_windows",
                "Reads during samples that found the service's receive window closed.",
                |counts| counts.zero_windows,
            ),
            ("connections_opened", "New connections during samples.", |counts| counts.opened),
        ];
        for (name, help, of) in families {
            let name = format!("netpolicy_live_{name}");
            self.family(&name, "counter", "", help);
            for (target, totals) in measured {
                self.sample(&format!("{name}_total"), &[("target", target)], of(&totals.counts));
            }
        }
    }

    fn polls(&mut self, name: &str, help: &str, measured: &[(&str, &Totals)], of: fn(&Totals) -> LivePolls) {
        self.family(name, "counter", "", help);
        for (target, totals) in measured {
            let LivePolls { interrupt, timer, application, kthread } = of(totals);
            let by_whom = [
                ("interrupt", interrupt),
                ("timer", timer),
                ("application", application),
                ("kthread", kthread),
            ];
            for (by, number) in by_whom {
                self.sample(&format!("{name}_total"), &[("target", target), ("by", by)], number);
            }
        }
    }

    /// Adds the standing proofs, which measure the effects of policies.
    fn proofs(&mut self, status: &Status) {
        let name = "netpolicy_proof_effect_ratio";
        let help = "The effect of the policy on a quantity according to its standing proof, as a share of the value without the policy; negative means less.";
        self.family(name, "gauge", "ratio", help);
        let proofs = || status.requests.iter().filter_map(|one| Some((one, one.proof.as_ref()?)));
        for (request, proof) in proofs() {
            for effect in &proof.effects {
                let ProofInterval { estimate, low, high } = effect.change;
                for (bound, value) in [("estimate", Some(estimate)), ("low", low), ("high", high)] {
                    let Some(value) = value else { continue };
                    let quantity = effect.quantity.as_str();
                    let labels =
                        [("target", request.target.as_str()), ("quantity", quantity), ("bound", bound)];
                    self.sample(name, &labels, value);
                }
            }
        }
        let name = "netpolicy_proof_standing";
        self.family(
            name,
            "gauge",
            "",
            "The standing proof's conclusion from its last pairs: 1 for one of the values.",
        );
        for (request, proof) in proofs() {
            for standing in ProofState::ALL {
                let labels = [("target", request.target.as_str()), ("standing", standing.as_str())];
                self.sample(name, &labels, u64::from(standing == proof.standing));
            }
        }
        let name = "netpolicy_proof_pairs";
        self.family(
            name,
            "counter",
            "",
            "Pairs of windows with and without the policy in its standing proof.",
        );
        for (request, proof) in proofs() {
            self.sample(&format!("{name}_total"), &[("target", &request.target)], proof.pairs);
        }
        let name = "netpolicy_proof_without_ratio";
        self.family(
            name,
            "gauge",
            "ratio",
            "The share of the time for which the standing proof withdrew the policy.",
        );
        for (request, proof) in proofs() {
            self.sample(name, &[("target", &request.target)], proof.share_without);
        }
    }

    /// Adds the expected effects of policies on services that have no policy.
    fn expected(&mut self, status: &Status) {
        let name = "netpolicy_expected_change_ratio";
        let help = "The expected effect of a policy on a service that has none, from recorded comparisons, as a share; negative means less.";
        self.family(name, "gauge", "ratio", help);
        let prospects = status.requests.iter().filter_map(|one| Some((one, one.expected.as_ref()?)));
        for (request, prospect) in prospects.take(REQUESTS_SHOWN_MAX) {
            for Expected { policy, cpu, p50, .. } in &prospect.expected {
                for (quantity, range) in [("cpu", cpu), ("p50", p50)] {
                    for (bound, value) in
                        [("estimate", range.estimate), ("low", range.low), ("high", range.high)]
                    {
                        let labels = [
                            ("target", request.target.as_str()),
                            ("policy", policy.as_str()),
                            ("quantity", quantity),
                            ("bound", bound),
                        ];
                        self.sample(name, &labels, value);
                    }
                }
            }
        }
    }

    /// Adds gauges of the services' response times in the last few minutes.
    fn response_gauges(&mut self, status: &Status) {
        let requests = || status.requests.iter().filter_map(|one| Some((one, one.measured.as_ref()?)));
        let name = "netpolicy_engaged_ratio";
        let help = "The share of packets that a request's delivery mode delivered in the last minutes.";
        self.family(name, "gauge", "ratio", help);
        for (request, _) in requests() {
            if let Some(engaged) = request.engaged {
                let labels = [("target", request.target.as_str()), ("delivery", request.delivery.as_str())];
                self.sample(name, &labels, engaged);
            }
        }
        let name = "netpolicy_goal_seconds";
        self.family(
            name,
            "gauge",
            "seconds",
            "The goal of a request: the maximum for a quantile of its response times.",
        );
        let mut said = BTreeSet::new();
        for request in status.requests.iter().filter(|request| said.insert(request.target.as_str())) {
            for (quantile, goal) in [("0.5", request.goal.p50), ("0.99", request.goal.p99)] {
                if let Some(goal) = goal {
                    self.sample(name, &[("target", &request.target), ("quantile", quantile)], seconds(goal));
                }
            }
        }
        let name = "netpolicy_goal_missed";
        self.family(name, "gauge", "", "Whether a goal of the service was missed in the last minutes.");
        for (request, measured) in requests() {
            let missed = measured.found.iter().any(|rule| rule == GOAL_MISSED);
            self.sample(name, &[("target", &request.target)], u64::from(missed));
        }
        let name = "netpolicy_live_cpu_per_request_seconds";
        self.family(name, "gauge", "seconds", "CPU time per request in the last minutes, by consumer.");
        for (request, measured) in requests() {
            for (by, cost) in [("service", measured.cost.service), ("delivery", measured.cost.delivery)] {
                if let Some(cost) = cost {
                    let labels = [("target", request.target.as_str()), ("by", by)];
                    self.sample(name, &labels, cost / 1e9);
                }
            }
        }
        let name = "netpolicy_live_rtt_seconds";
        let help = "The median round-trip time of a service's connections in the last minutes.";
        self.family(name, "gauge", "seconds", help);
        for (request, measured) in requests() {
            if let Some(rtt) = measured.rtt {
                self.sample(name, &[("target", &request.target)], rtt / 1e9);
            }
        }
        let name = "netpolicy_live_oldest_request_seconds";
        self.family(name, "gauge", "seconds", "Waiting time of the oldest unanswered request.");
        for (request, measured) in requests() {
            let oldest = Nanoseconds(measured.oldest.unwrap_or(0));
            self.sample(name, &[("target", &request.target)], seconds(oldest));
        }
    }

    fn sessions(&mut self, status: &Status) {
        let name = "netpolicy_sessions";
        self.family(name, "gauge", "", "Running sessions of the API, by kind.");
        for kind in SessionKind::ALL {
            let running = status.sessions.running.iter().filter(|session| session.kind == kind).count();
            self.sample(name, &[("kind", &kind.as_str().to_ascii_lowercase())], running);
        }
        let name = "netpolicy_sessions_ended";
        self.family(name, "counter", "", "Ended sessions of the API, by outcome.");
        for outcome in SessionOutcome::ALL {
            let ended = status.sessions.ended.get(&outcome).copied().unwrap_or(0);
            self.sample(&format!("{name}_total"), &[("outcome", &word(outcome))], ended);
        }
    }

    fn api(&mut self, tally: Tally) {
        for (name, help, value) in [
            ("netpolicy_api_connections", "Accepted connections.", tally.accepted),
            ("netpolicy_api_rejected", "Connections rejected at the limit.", tally.rejected),
            ("netpolicy_api_calls", "Calls of clients.", tally.calls),
            ("netpolicy_api_denied", "Denied calls.", tally.denied),
            (
                "netpolicy_api_dropped",
                "Connections closed: protocol error, timeout or too much data.",
                tally.dropped,
            ),
        ] {
            self.counter(name, help, value);
        }
    }
}

/// A function that returns one of TCP's counters.
type Count = fn(&LiveCounts) -> u64;

/// A function that returns the number of time spans up to a bucket's edge.
type Within = fn(&Totals, Nanoseconds) -> u64;

/// A function that returns the number of time spans, and their sum.
type All = fn(&Totals) -> (u64, Nanoseconds);

/// The histograms of a service: the name, the help text, and the functions that return the values.
const HISTOGRAMS: [(&str, &str, Within, All); 4] = [
    (
        "netpolicy_live_response_seconds",
        "Time from the NIC's ring to the answer, of requests during samples.",
        Totals::responses_within,
        |totals| (totals.responses(), totals.response_sum()),
    ),
    (
        "netpolicy_live_ring_wait_seconds",
        "From the ring of the NIC to TCP.",
        |totals, edge| totals.ring.within(edge),
        |totals| (totals.ring.counts.total(), totals.ring.sum),
    ),
    (
        "netpolicy_live_wakeup_seconds",
        "From TCP to the read.",
        |totals, edge| totals.wakeup.within(edge),
        |totals| (totals.wakeup.counts.total(), totals.wakeup.sum),
    ),
    (
        "netpolicy_live_service_seconds",
        "From the read to the answer.",
        |totals, edge| totals.service.within(edge),
        |totals| (totals.service.counts.total(), totals.service.sum),
    ),
];

/// Returns the bucket edges of response times, from 4 µs to 1.6 s, two per doubling: a subset of the edges
/// that the daemon counts.
fn response_edges() -> impl Iterator<Item = Nanoseconds> {
    (12..=30).flat_map(|power| [Nanoseconds(1 << power), Nanoseconds(3 << (power - 1))])
}

/// Formats a time span in seconds with nine decimals.
fn seconds(span: Nanoseconds) -> String {
    format!("{}.{:09}", span.0 / 1_000_000_000, span.0 % 1_000_000_000)
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Returns the JSON name of a kind of event or of a verdict.
fn word(kind: impl serde::Serialize) -> String {
    serde_json::to_value(kind).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Escapes a label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use model::Goal;
    use model::live::{LivePart, LiveSpans, LiveWindow};

    use super::*;
    use crate::status::{EventKind, Instance, Reaction, RequestExtent, RunningSession};

    fn status() -> Status {
        let request = |target: &str| RequestStatus {
            target: target.to_owned(),
            policy: "latency".to_owned(),
            delivery: "suspend20".to_owned(),
            origin: "a \"file\":3".to_owned(),
            extent: RequestExtent { queues: 2, processes: 1, epolls: 4, wanted: 12, set: 11 },
            engaged: None,
            goal: Goal { p99: Some(Nanoseconds::from_micros(300)), ..Goal::default() },
            measured: None,
            search: None,
            proof: None,
            expected: None,
            notes: Vec::new(),
        };
        let mut status = Status {
            phase: DaemonPhase::Managing,
            instance: Instance {
                version: "0.1.0".to_owned(),
                started_unix_micros: 1_795_233_900_000_050,
                ..Instance::default()
            },
            requests: vec![request("service memcached"), request("task 812")],
            ..Status::default()
        };
        let mut reaction = Reaction::default();
        reaction.note(Duration::from_micros(150));
        reaction.note(Duration::from_secs(2));
        status.reactions.insert(EventKind::Exec, reaction);
        status.counters.events.insert(EventKind::Exec, 7);
        status.counters.searches.rolled_back = 2;
        status.counters.verdicts.insert(Ruling::BeyondLimit, 2);
        let client = "uid 0 (pid 812)".to_owned();
        let tuning = RunningSession { id: 3, kind: SessionKind::Tune, client, since_unix_micros: 1 };
        status.sessions.running.push(tuning);
        status.sessions.ended.insert(SessionOutcome::TimedOut, 1);
        status
    }

    /// Returns a service that has answered two requests, in 10 µs and in 100 µs.
    fn services() -> Vec<Measured> {
        let mut window = LiveWindow { span: Nanoseconds::from_millis(20), ..LiveWindow::default() };
        let mut part = LivePart { requests: 2, ..LivePart::default() };
        for micros in [10, 100] {
            let span = Nanoseconds::from_micros(micros);
            let LiveSpans { uniform, conditional, service, .. } = &mut window.spans;
            [uniform, conditional, service].into_iter().for_each(|spans| spans.add(span));
            part.service.0 += span.0;
        }
        (window.counts.requests, window.counts.answered) = (2, 2);
        window.workers.push((None, part.clone()));
        part.polls.timer = 2;
        window.napis.push((model::NapiId(8193), part));
        vec![Measured::of_window("service memcached", window)]
    }

    #[test]
    fn the_page_is_what_openmetrics_says_a_page_is() {
        let page = open_metrics(&status(), &services(), Tally { denied: 3, ..Tally::default() });
        assert!(page.ends_with("# EOF\n") && page.is_ascii(), "{page}");
        let mut family = String::new();
        let mut families = std::collections::BTreeSet::new();
        for line in page.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap_or_default().to_owned();
                assert!(families.insert(family.clone()), "{family} twice");
                continue;
            }
            if line.starts_with("# ") {
                assert_eq!(line.split(' ').nth(2), Some(family.as_str()), "{line}");
                continue;
            }
            assert!(line.starts_with(&family), "{line} is not of {family}");
            let value = line.rsplit(' ').next().unwrap_or_default();
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
        for line in [
            "netpolicy_knobs_set{target=\"service memcached\",policy=\"latency\",delivery=\"suspend20\",origin=\"a \\\"file\\\":3\"} 11",
            "netpolicy_requests{kind=\"task\"} 1",
            "netpolicy_events_total{kind=\"exec\"} 7",
            "netpolicy_searches_total{outcome=\"rolled-back\"} 2",
            "netpolicy_reaction_seconds_bucket{kind=\"exec\",le=\"0.000200\"} 1",
            "netpolicy_reaction_seconds_bucket{kind=\"exec\",le=\"1.000000\"} 1",
            "netpolicy_reaction_seconds_bucket{kind=\"exec\",le=\"+Inf\"} 2",
            "netpolicy_reaction_seconds_sum{kind=\"exec\"} 2.000150",
            "netpolicy_start_time_seconds 1795233900.000050",
            "netpolicy_api_denied_total 3",
            "netpolicy_sessions{kind=\"tune\"} 1",
            "netpolicy_sessions{kind=\"watch\"} 0",
            "netpolicy_sessions_ended_total{outcome=\"timed-out\"} 1",
            "netpolicy_verdicts_total{ruling=\"beyond-limit\"} 2",
            "netpolicy_verdicts_total{ruling=\"kept\"} 0",
            "netpolicy_live_response_seconds_bucket{target=\"service memcached\",le=\"0.000008192\"} 0",
            "netpolicy_live_response_seconds_bucket{target=\"service memcached\",le=\"0.000012288\"} 1",
            "netpolicy_live_response_seconds_bucket{target=\"service memcached\",le=\"0.000131072\"} 2",
            "netpolicy_live_response_seconds_bucket{target=\"service memcached\",le=\"+Inf\"} 2",
            "netpolicy_live_response_seconds_sum{target=\"service memcached\"} 0.000110000",
            "netpolicy_live_service_seconds_count{target=\"service memcached\"} 2",
            "netpolicy_live_measured_seconds_total{target=\"service memcached\"} 0.020000000",
            "netpolicy_live_polls_total{target=\"service memcached\",by=\"timer\"} 2",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\nin\n{page}");
        }
    }

    #[test]
    fn no_pid_becomes_a_series_and_requests_beyond_the_limit_have_none() {
        let mut status = status();
        let one = status.requests[0].clone();
        status
            .requests
            .extend((0..1000).map(|n| RequestStatus { target: format!("service s{n}"), ..one.clone() }));
        let page = open_metrics(&status, &[], Tally::default());
        assert!(!page.contains("812"), "{page}");
        assert_eq!(page.matches("netpolicy_knobs_set{").count(), REQUESTS_SHOWN_MAX);
        assert!(page.contains("netpolicy_requests{kind=\"service\"} 1001"));
    }
}
