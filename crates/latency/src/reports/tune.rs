//! The output of `tune`.

use crate::measure::switchback::{Metric, MetricChange, Switchback};
use model::{Finding, Limits};
use schemars::JsonSchema;
use serde::Serialize;
use session::page::{Cell, Page, Report, Style, Table};

use crate::measure::tuning::{Heat, Tuner};

use crate::judge::{Aim, Offer, Out, TunerStage};

use super::watch::found;

/// A candidate, before it is tried.
#[derive(Debug, JsonSchema, Serialize)]
struct Offered {
    /// The candidate.
    candidate: String,
    /// The changes on this host, as `object: setting from → to`.
    changes: Vec<String>,
    /// Why the candidate is not tried; `None` if it is tried.
    out: Option<Out>,
    /// The result of an earlier search for this service.
    #[serde(skip_serializing_if = "Option::is_none")]
    earlier: Option<String>,
}

/// A candidate in a stage.
#[derive(Debug, JsonSchema, Serialize)]
struct Tried {
    /// The candidate.
    candidate: String,
    /// The change of the metric to improve, compared with the current settings.
    change: MetricChange,
    /// Why the candidate was dropped; `None` if it continues.
    out: Option<Out>,
}

/// A stage with its candidates, best first.
#[derive(Debug, JsonSchema, Serialize)]
struct StageReport {
    stage: TunerStage,
    /// The number of valid rounds.
    rounds: usize,
    candidates: Vec<Tried>,
}

/// The best setting.
#[derive(Debug, JsonSchema, Serialize)]
struct Winner {
    /// The candidate.
    candidate: String,
    /// The effect on the service, measured in new pairs.
    changes: Vec<MetricChange>,
    /// The section of a policy file for the setting; `None` if no section of a service can express it.
    section: Option<String>,
}

/// The output of `tune`.
#[derive(Debug, JsonSchema, Serialize)]
pub struct TuneReport {
    service: String,
    /// The metric to improve.
    goal: Metric,
    /// How much other metrics may grow.
    limits: Limits,
    /// The candidates, in order.
    offers: Vec<Offered>,
    stages: Vec<StageReport>,
    /// Returns the best setting; `None` if none was shown to help.
    winner: Option<Winner>,
    /// The transaction that keeps the winner in force; `None` if none does.
    kept: Option<String>,
    /// The duration, in seconds.
    seconds: f64,
    /// The number of measured windows.
    windows: usize,
    /// The number of rounds measured by an earlier, unfinished search.
    resumed: usize,
    /// Why the tuning ended before a verdict; `None` if it reached one.
    ended: Option<String>,
    findings: Vec<Finding>,
}

impl TuneReport {
    /// Creates a report of the candidates.
    pub fn of(service: &str, aim: &Aim, offers: &[Offer]) -> Self {
        let offered = offers.iter().map(|Offer { candidate, plan, earlier }| Offered {
            earlier: earlier.clone(),
            candidate: candidate.name.clone(),
            changes: plan.iter().flat_map(model::Plan::changes).map(ToString::to_string).collect(),
            out: plan.as_ref().err().cloned(),
        });
        Self {
            service: service.to_owned(),
            goal: aim.metric,
            limits: aim.limits,
            offers: offered.collect(),
            stages: Vec::new(),
            winner: None,
            kept: None,
            seconds: 0.0,
            windows: 0,
            resumed: 0,
            ended: None,
            findings: Vec::new(),
        }
    }

    /// Adds the measurements. `resumed` of their rounds are from an unfinished search.
    pub fn take(&mut self, tuner: &Tuner, resumed: usize) {
        self.stages.clear();
        (self.windows, self.resumed) = (tuner.windows(), resumed);
        for heat in tuner.stages() {
            self.add(heat);
        }
    }

    fn add(&mut self, heat: &Heat) {
        let switchback = &heat.switchback;
        let tried = heat.standings(self.goal).into_iter().map(|standing| Tried {
            candidate: switchback.names()[standing.candidate].clone(),
            change: switchback.change(standing.candidate, self.goal),
            out: standing.out,
        });
        let (stage, rounds) = (heat.stage, switchback.rounds());
        self.stages.push(StageReport { stage, rounds, candidates: tried.collect() });
    }

    /// Adds the winner with its changes in the proof stage.
    pub fn win(&mut self, switchback: &Switchback, candidate: usize, section: Option<String>) {
        let name = switchback.names()[candidate].clone();
        let changes = switchback.changes(candidate);
        self.winner = Some(Winner { candidate: name, changes, section });
    }

    /// Returns the best setting; `None` if none was shown to help.
    pub fn winner(&self) -> Option<&str> {
        self.winner.as_ref().map(|winner| winner.candidate.as_str())
    }

    /// Returns the section of a policy file for the winner.
    pub fn section(&self) -> Option<&str> {
        self.winner.as_ref()?.section.as_deref()
    }

    /// Describes the winner's effects in one line; `None` without a winner.
    pub fn evidence(&self) -> Option<String> {
        let winner = self.winner.as_ref()?;
        let named = self.limits.iter().map(|(guarded, _)| crate::judge::metric_of(guarded));
        let named = named.filter(|metric| *metric != self.goal);
        let metrics: Vec<Metric> = std::iter::once(self.goal).chain(named).collect();
        let change = |metric: &Metric| winner.changes.iter().find(|change| change.metric == *metric);
        let words = metrics.iter().filter_map(change).map(|change| format!("{} {change}", change.metric));
        let pairs = winner.changes.iter().find(|change| change.metric == self.goal).map_or(0, |of| of.pairs);
        Some(format!("{}, {}", words.collect::<Vec<_>>().join(", "), crate::judge::pairs(pairs)))
    }

    /// Adds how the tuning ended.
    pub fn end(&mut self, seconds: f64, ended: Option<String>, kept: Option<String>, findings: Vec<Finding>) {
        (self.seconds, self.ended, self.kept, self.findings) = (seconds, ended, kept, findings);
    }

    fn answer(&self) -> (Style, String) {
        match (&self.winner, &self.evidence(), &self.ended) {
            (Some(winner), Some(evidence), _) => {
                (Style::Good, format!("{}: {} is best: {evidence}", self.service, winner.candidate))
            }
            (_, _, Some(why)) => (Style::Strong, format!("{}: no verdict: {why}", self.service)),
            _ if self.stages.is_empty() => (Style::Strong, format!("{}: candidates", self.service)),
            _ => (Style::Strong, format!("{}: nothing improves {}", self.service, self.goal)),
        }
    }
}

impl Report for TuneReport {
    const KIND: &'static str = "tune";

    fn page(&self, page: &mut Page) {
        let (style, answer) = self.answer();
        page.styled(style, answer);
        if self.stages.is_empty() {
            let mut table = Table::new(&["CANDIDATE", "SETTINGS", ""]);
            for Offered { candidate, changes, out, earlier } in &self.offers {
                let settings = if out.is_some() { "-".to_owned() } else { changes.len().to_string() };
                let earlier = || earlier.clone().unwrap_or_default();
                let why = out.as_ref().map_or_else(earlier, |out| format!("not tried: {out}"));
                table.row([
                    Cell::new(candidate.clone()),
                    Cell::new(settings),
                    Cell::new(why).style(Style::Faint),
                ]);
            }
            page.table(&table);
        }
        for StageReport { stage, rounds, candidates } in &self.stages {
            page.gap();
            page.line(format!("{stage}: {} of {}", self.goal, crate::judge::pairs(*rounds)));
            let mut table = Table::new(&["CANDIDATE", "CHANGE (95 %)", ""]);
            for Tried { candidate, change, out } in candidates {
                let out = out.as_ref().map_or_else(String::new, ToString::to_string);
                table.row([
                    Cell::new(candidate.clone()),
                    Cell::new(change.to_string()),
                    Cell::new(out).style(Style::Faint),
                ]);
            }
            page.table(&table);
        }
        if let Some(section) = self.section() {
            page.gap();
            section.lines().for_each(|line| page.line(line));
        }
        if self.windows > 0 {
            page.gap();
            let resumed = match self.resumed {
                0 => String::new(),
                resumed => format!(", {resumed} of them by the search that was resumed"),
            };
            page.line(format!("{} windows in {:.0} s{resumed}", self.windows, self.seconds));
        }
        if !self.findings.is_empty() {
            page.gap();
            self.findings.iter().for_each(|finding| found(page, finding));
        }
    }
}
