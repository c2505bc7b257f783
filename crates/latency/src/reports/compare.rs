//! The output of `compare`: one line per round, and a final report.

use std::time::Duration;

use crate::judge::{ComparisonHeader, RecordedComparison, Round, ServiceForesight};
use crate::measure::live::Unit;
use crate::measure::sequential::Bounds;
use crate::measure::switchback::{
    Figures, Limit, Metric, MetricChange, MetricVerdict, Network, NetworkTotals, Switchback, Unfair, Verdict,
};
use model::{Finding, JudgedBy};
use schemars::JsonSchema;
use serde::Serialize;
use session::page::{Cell, Page, Report, Style, Table};

use crate::live::text::span;

use super::watch::found;

/// Explains that the verdict is less certain if candidates do not alternate.
pub const CERTAINTY: &str = "It is applied once, and windows before, with and after it are compared. Without alternation, a change in load looks like an effect of the setting. Intervals are widened by the spread of the windows without the change.";

/// One candidate compared with the first.
#[derive(Debug, JsonSchema, Serialize)]
struct Contrast {
    /// The candidate.
    candidate: String,
    /// The name of the first candidate.
    with: String,
    #[serde(flatten)]
    verdict: Verdict,
    /// Whether clients wait for answers. Their rate then depends on the candidate, which makes rounds void.
    closed_loop: bool,
    /// What changed.
    changes: Vec<MetricChange>,
    /// The limits of `--at-most` that the candidate exceeds, so that it cannot win.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exceeds: Vec<Exceeded>,
}

/// A limit exceeded by a candidate.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
struct Exceeded {
    metric: Metric,
    /// The limit, in nanoseconds.
    most: f64,
    /// The typical value with the candidate, in nanoseconds; `None` if it was not measured.
    value: Option<f64>,
}

/// The number of rounds that are not valid for one reason.
#[derive(Debug, JsonSchema, Serialize)]
struct Voided {
    reason: Unfair,
    rounds: usize,
}

/// The cost of switching.
#[derive(Clone, Copy, Debug, Default, JsonSchema, Serialize)]
pub struct SwitchCost {
    /// The number of switches that wrote something.
    pub switches: usize,
    /// The median duration of a switch, including reading back, in milliseconds.
    pub median_ms: f64,
    /// The longest duration of a switch, in milliseconds.
    pub longest_ms: f64,
}

impl SwitchCost {
    /// Calculates the cost from the durations of switches.
    pub fn of(switches: &[Duration]) -> Self {
        let millis: Vec<f64> = switches.iter().map(|took| took.as_secs_f64() * 1e3).collect();
        Self {
            switches: millis.len(),
            median_ms: crate::measure::statistics::median(&millis).unwrap_or(0.0),
            longest_ms: millis.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// The output of `compare`.
#[derive(Debug, JsonSchema, Serialize)]
pub struct CompareReport {
    service: String,
    /// The duration, in seconds.
    seconds: f64,
    /// Why the comparison ended.
    ended: String,
    /// The method of measuring.
    by: JudgedBy,
    /// The unit of `requests` and of all figures per request: requests if the protocol shows them, otherwise
    /// exchanges.
    unit: Unit,
    /// The number of valid rounds.
    rounds: usize,
    void: Vec<Voided>,
    /// Relative changes below this share count as no difference.
    margin: f64,
    comparisons: Vec<Contrast>,
    /// The best candidate; `None` if the best one is unknown.
    winner: Option<String>,
    /// The transaction that keeps the winner in force; `None` if none does.
    kept: Option<String>,
    switching: SwitchCost,
    /// TCP's counts with each candidate, in the order of candidates, including void rounds.
    network: Vec<Network>,
    findings: Vec<Finding>,
    /// The prediction of what the comparison can detect, at the noise before it; `None` without a prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    foresight: Option<ServiceForesight>,
}

impl CompareReport {
    /// Creates the report from these rounds.
    pub fn of(service: &str, switchback: &Switchback, took: Duration, ended: &str) -> Self {
        let names = switchback.names();
        let contrast = |candidate: usize| Contrast {
            candidate: names[candidate].clone(),
            with: names[0].clone(),
            verdict: switchback.verdict(candidate),
            closed_loop: switchback.closed_loop(candidate),
            changes: switchback.changes(candidate),
            exceeds: Vec::new(),
        };
        let voided =
            switchback.voided().iter().map(|(reason, rounds)| Voided { reason: *reason, rounds: *rounds });
        Self {
            service: service.to_owned(),
            seconds: took.as_secs_f64(),
            ended: ended.to_owned(),
            by: switchback.by(),
            unit: switchback.unit(),
            rounds: switchback.rounds(),
            void: voided.collect(),
            margin: switchback.rule().margin,
            comparisons: (1..names.len()).map(contrast).collect(),
            winner: switchback.winner().map(|winner| names[winner].clone()),
            kept: None,
            switching: SwitchCost::default(),
            network: switchback.seen().iter().map(NetworkTotals::total).collect(),
            findings: Vec::new(),
            foresight: None,
        }
    }

    /// Adds the prediction made before the comparison.
    #[must_use]
    pub fn foreseen(self, foresight: Option<ServiceForesight>) -> Self {
        Self { foresight, ..self }
    }

    /// Adds facts that records do not contain.
    #[must_use]
    pub fn with(self, switching: SwitchCost, findings: Vec<Finding>, kept: Option<String>) -> Self {
        Self { switching, findings, kept, ..self }
    }

    /// Adds the limits that the winner must not exceed.
    #[must_use]
    pub fn within(mut self, switchback: &Switchback, limits: &[Limit]) -> Self {
        for (contrast, candidate) in self.comparisons.iter_mut().zip(1..) {
            let exceeded = switchback.exceeded(candidate, limits).into_iter();
            contrast.exceeds =
                exceeded.map(|(Limit { metric, most }, value)| Exceeded { metric, most, value }).collect();
        }
        let winner = switchback.winner_within(limits);
        self.winner = winner.map(|winner| switchback.names()[winner].clone());
        self
    }

    /// Creates the report from a record.
    pub fn of_record(recording: &RecordedComparison) -> Self {
        let took = recording.rounds.last().map_or(0.0, |round| round.at);
        let took = Duration::try_from_secs_f64(took).unwrap_or_default();
        let switchback = recording.switchback();
        let ComparisonHeader { service, limits, .. } = &recording.header;
        let findings = switchback.loss_differs(service).into_iter().collect();
        let report = Self::of(service, &switchback, took, "recorded").within(&switchback, limits);
        Self { findings, ..report }
    }
}

/// One round, in JSON-lines output.
#[derive(Debug, JsonSchema, Serialize)]
pub struct CompareRoundReport {
    /// The number of the round, from 1.
    round: usize,
    /// The candidates in the order in which they were measured.
    order: Vec<String>,
    /// The figures of each window, in the order of the command line.
    windows: Vec<Figures>,
    /// Why the round is not valid; `None` if it is valid.
    void: Option<Unfair>,
    /// The time since the start, in seconds.
    seconds: f64,
    /// The interim result for each candidate from the second on.
    so_far: Vec<Verdict>,
}

impl CompareRoundReport {
    /// Creates the line from a round.
    pub fn of(round: &Round, so_far: &Switchback, elapsed: Duration) -> Self {
        let names = so_far.names();
        Self {
            round: round.number,
            order: round.order.iter().map(|candidate| names[*candidate].clone()).collect(),
            windows: round.windows.iter().map(|(_, figures, _)| *figures).collect(),
            void: round.void,
            seconds: elapsed.as_secs_f64(),
            so_far: (1..names.len()).map(|candidate| so_far.verdict(candidate)).collect(),
        }
    }
}

impl Report for CompareRoundReport {
    const KIND: &'static str = "compare-round";

    fn page(&self, page: &mut Page) {
        page.line(format!("round {}", self.round));
    }
}

/// Formats a value of a metric.
fn value(metric: Metric, value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    match metric {
        Metric::P50
        | Metric::P90
        | Metric::P99
        | Metric::Cpu
        | Metric::CpuService
        | Metric::CpuDelivery
        | Metric::CpuMeasuring => span(value),
        Metric::Requests => format!("{value:.0}/s"),
        Metric::Engaged => format!("{:.0} %", value * 100.0),
        Metric::Stalls => format!("{value:.0}"),
    }
}

/// Returns the table heading of a metric.
const fn heading(metric: Metric, unit: Unit) -> &'static str {
    match (metric, unit) {
        (Metric::Cpu, Unit::Exchanges) => return "CPU/exchange",
        (Metric::Requests, Unit::Exchanges) => return "exchanges",
        _ => {}
    }
    match metric {
        Metric::P50 => "p50",
        Metric::P90 => "p90",
        Metric::P99 => "p99",
        Metric::Cpu => "CPU/request",
        Metric::CpuService => "  of the service",
        Metric::CpuDelivery => "  of softirqs",
        Metric::CpuMeasuring => "  of measuring",
        Metric::Requests => "requests",
        Metric::Engaged => "engaged",
        Metric::Stalls => "stalled windows",
    }
}

fn word(change: &MetricChange) -> (String, Style) {
    match change.word {
        MetricVerdict::Better => ("better".to_owned(), Style::Good),
        MetricVerdict::Worse => ("worse".to_owned(), Style::Bad),
        MetricVerdict::NoDifference => ("no difference".to_owned(), Style::Plain),
        MetricVerdict::CannotTell { .. } if change.metric.less_is_better().is_none() => {
            (String::new(), Style::Plain)
        }
        MetricVerdict::CannotTell { more: Some(more) } => {
            let pairs = if more == 1 { "pair" } else { "pairs" };
            (format!("cannot tell, {more} more {pairs}"), Style::Faint)
        }
        MetricVerdict::CannotTell { more: None } => ("cannot tell".to_owned(), Style::Faint),
    }
}

/// Describes decided changes: `saves 18 % CPU`, `costs 12 % of the requests`, `p99 30 % longer`.
fn decided(changes: &[MetricChange], unit: Unit) -> Vec<String> {
    let requests = match unit {
        Unit::Requests => "requests",
        Unit::Exchanges => "exchanges",
    };
    let answers = |change: &MetricChange| {
        let share = change.change?.estimate;
        let percent = format!("{:.0} %", share.abs() * 100.0);
        let better = match change.word {
            MetricVerdict::Better => true,
            MetricVerdict::Worse => false,
            MetricVerdict::NoDifference | MetricVerdict::CannotTell { .. } => return None,
        };
        Some(match (change.metric, better) {
            (Metric::Cpu, true) => format!("saves {percent} CPU"),
            (Metric::Cpu, false) => format!("costs {percent} more CPU"),
            (Metric::Requests, true) => format!("{percent} more {requests}"),
            (Metric::Requests, false) => format!("costs {percent} of the {requests}"),
            (Metric::P50 | Metric::P90 | Metric::P99, true) => {
                format!("{} {percent} shorter", heading(change.metric, unit))
            }
            (Metric::P50 | Metric::P90 | Metric::P99, false) => {
                format!("{} {percent} longer", heading(change.metric, unit))
            }
            (
                Metric::CpuService
                | Metric::CpuDelivery
                | Metric::CpuMeasuring
                | Metric::Engaged
                | Metric::Stalls,
                _,
            ) => return None,
        })
    };
    changes.iter().filter_map(answers).collect()
}

impl Report for CompareReport {
    const KIND: &'static str = "compare";

    fn page(&self, page: &mut Page) {
        for contrast in &self.comparisons {
            page.gap();
            let margin = format!("{:.0} %", self.margin * 100.0);
            let verdict = match contrast.verdict {
                Verdict::NoDifference => format!("no difference above {margin}"),
                verdict => verdict.to_string(),
            };
            let answer = match decided(&contrast.changes, self.unit) {
                known if known.is_empty() => verdict,
                known => match contrast.verdict {
                    Verdict::CannotTell { .. } => {
                        format!("{}; {verdict} by the deciding metrics", known.join(", "))
                    }
                    _ => format!("{verdict}: {}", known.join(", ")),
                },
            };
            page.styled(
                Style::Strong,
                format!("{}: {} compared with {}: {answer}", self.service, contrast.candidate, contrast.with),
            );
            for Exceeded { metric, most, value } in &contrast.exceeds {
                let value = value.map_or_else(|| "not measured".to_owned(), span);
                page.line(format!("{metric} is {value}, above the limit of {}: it cannot win", span(*most)));
            }
            let pairs = crate::judge::pairs(self.rounds);
            page.line(format!("{pairs} in {:.0} s, {}, {}", self.seconds, self.by, self.ended));
            if self.by == JudgedBy::BeforeAfter {
                page.line(CERTAINTY);
            }
            let mut table = Table::new(&["", "BEFORE", "AFTER", "CHANGE (95 %)", "VERDICT"]);
            for change in &contrast.changes {
                if change.pairs == 0 || (change.metric == Metric::Stalls && change.after == Some(0.0)) {
                    continue;
                }
                let (words, style) = word(change);
                let of_stalls = change.metric == Metric::Stalls;
                table.row([
                    Cell::new(heading(change.metric, self.unit)),
                    Cell::new(value(change.metric, change.before)),
                    Cell::new(value(change.metric, change.after)),
                    Cell::new(if of_stalls { "-".to_owned() } else { change.to_string() }),
                    Cell::new(words).style(style),
                ]);
            }
            if !table.is_empty() {
                page.table(&table);
            }
            if contrast.closed_loop {
                page.line(
                    "Clients wait for answers, so their request rate depends on the candidate, which makes pairs void.",
                );
                page.line("Compare the request rate itself: --metric requests");
            }
        }
        if !self.void.is_empty() {
            page.gap();
            for Voided { reason, rounds } in &self.void {
                page.line(format!("void: {rounds}, {reason}"));
            }
        }
        if let SwitchCost { switches: 1.., median_ms, longest_ms, .. } = self.switching {
            page.gap();
            page.line(format!("A switch took {median_ms:.1} ms, at most {longest_ms:.1} ms."));
        }
        if !self.findings.is_empty() {
            page.gap();
            self.findings.iter().for_each(|finding| found(page, finding));
        }
    }
}

/// Returns the interval of a change in percent, for a chart.
pub fn in_percent(bounds: Bounds) -> (f64, Option<f64>, Option<f64>) {
    let percent = |share: f64| share * 100.0;
    (percent(bounds.estimate), bounds.low.map(percent), bounds.high.map(percent))
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::measure::switchback::Rule;

    fn change(metric: Metric, estimate: f64, word: MetricVerdict) -> MetricChange {
        let bounds = Bounds { estimate, low: Some(estimate - 0.02), high: Some(estimate + 0.02) };
        MetricChange {
            metric,
            before: Some(1.0),
            after: Some(1.0 + estimate),
            change: Some(bounds),
            pairs: 40,
            decides: false,
            word,
        }
    }

    #[test]
    fn the_answer_comes_first_also_where_what_decides_is_not_known() {
        let report = CompareReport {
            service: "redis".to_owned(),
            seconds: 90.0,
            ended: "the time is over".to_owned(),
            by: JudgedBy::Switchback,
            unit: Unit::Requests,
            rounds: 40,
            void: Vec::new(),
            margin: 0.05,
            comparisons: vec![Contrast {
                candidate: "cpu".to_owned(),
                with: "current".to_owned(),
                verdict: Verdict::CannotTell { more: None },
                closed_loop: false,
                changes: vec![
                    change(Metric::P50, 0.01, MetricVerdict::CannotTell { more: None }),
                    change(Metric::Cpu, -0.18, MetricVerdict::Better),
                    change(Metric::Requests, -0.12, MetricVerdict::Worse),
                ],
                exceeds: vec![Exceeded { metric: Metric::P99, most: 1e6, value: Some(2.25e6) }],
            }],
            winner: None,
            kept: None,
            switching: SwitchCost::default(),
            network: Vec::new(),
            findings: Vec::new(),
            foresight: None,
        };
        let mut page = Page::new(false);
        report.page(&mut page);
        let text = page.into_text();
        let first = text.lines().find(|line| !line.is_empty()).expect("a line");
        assert_eq!(
            first,
            "redis: cpu compared with current: saves 18 % CPU, costs 12 % of the requests; cannot tell yet by the deciding metrics"
        );
        assert!(text.contains("\np99 is 2250us, above the limit of 1000us: it cannot win\n"), "{text}");
        let longer = [
            change(Metric::P99, 0.3, MetricVerdict::Worse),
            change(Metric::Engaged, 0.5, MetricVerdict::Better),
        ];
        assert_eq!(decided(&longer, Unit::Requests), ["p99 30 % longer"]);
    }

    #[test]
    fn a_record_names_the_limit_that_kept_the_better_candidate_from_winning() {
        let figures = |p50: f64, nth: u32| {
            let p50 = p50 * (1.0 + f64::from(nth % 7) / 1e3);
            Figures {
                p50: Some(p50),
                p90: Some(2.0 * p50),
                p99: Some(2e6),
                cpu_service: Some(1e4),
                cpu_delivery: Some(5e3),
                engaged: Some(0.0),
                ..Figures::of_requests(0.1, 200)
            }
        };
        let rounds = (0..200_u32).map(|nth| crate::judge::RecordedRound {
            at: f64::from(nth),
            order: vec![0, 1],
            figures: vec![figures(2e5, nth), figures(1e5, nth + 3)],
            windows: Vec::new(),
            void: None,
        });
        let header = |limits| ComparisonHeader {
            schema: model::FormatName,
            kind: "compare-record".to_owned(),
            service: "redis".to_owned(),
            ports: vec![6379],
            candidates: vec!["current".to_owned(), "cpu".to_owned()],
            rule: Rule { deciding: vec![Metric::P50], margin: 0.05, alpha: Rule::ALPHA },
            limits,
            by: JudgedBy::Switchback,
            window: 0.1,
            guard: 0.0,
            seed: 1,
            host: String::new(),
            kernel: String::new(),
            started: 0,
        };
        let of = |limits| {
            let recording = RecordedComparison { header: header(limits), rounds: rounds.clone().collect() };
            let report = CompareReport::of_record(&recording);
            (report.winner, report.comparisons[0].exceeds.len())
        };
        assert_eq!(of(Vec::new()), (Some("cpu".to_owned()), 0));
        assert_eq!(of(vec![Limit { metric: Metric::P99, most: 1e6 }]), (None, 1));
    }
}
