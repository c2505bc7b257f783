//! The output of `bench judge`, which compares the verdicts of `compare` with the truth that was measured on
//! the wire.

use crate::measure::switchback::{Metric, Switchback, Verdict};
use schemars::JsonSchema;
use serde::Serialize;
use session::page::{Cell, Page, Report, Style, Table};

use crate::judge::replay::Replayed;

/// A verdict of `compare`, and the truth for the same pairs.
#[derive(Debug, JsonSchema, Serialize)]
pub struct JudgedScenario {
    scenario: String,
    /// The verdict of `compare`.
    said: Verdict,
    /// The verdict from the measurements on the wire, for the same pairs; `None` if the wire was not measured,
    /// because the pairs were recorded.
    truth: Option<Verdict>,
    /// The change of the median response time, with its interval: as measured by `compare`, and on the wire.
    p50: [String; 2],
    p90: [String; 2],
    pairs: usize,
    void: usize,
    ended: String,
}

impl JudgedScenario {
    /// Creates the entry from a comparison's measurements and those on the wire.
    pub fn of(scenario: String, said: &Switchback, truth: &Switchback, ended: &str) -> Self {
        let both = |metric| [said, truth].map(|one| one.change(1, metric).to_string());
        Self {
            scenario,
            said: said.verdict(1),
            truth: (truth.rounds() > 0).then(|| truth.verdict(1)),
            p50: both(Metric::P50),
            p90: both(Metric::P90),
            pairs: said.rounds(),
            void: said.voided().iter().map(|(_, rounds)| rounds).sum(),
            ended: ended.to_owned(),
        }
    }

    /// Whether the two verdicts are opposite. A verdict of "cannot tell" contradicts none.
    fn contradicts(&self) -> bool {
        !matches!(self.said, Verdict::CannotTell { .. })
            && self.known_truth().is_some_and(|truth| self.said != truth)
    }

    /// Whether both verdicts are the same, and the truth is known.
    fn agrees(&self) -> bool {
        self.known_truth().is_some_and(|truth| self.said == truth)
    }

    fn known_truth(&self) -> Option<Verdict> {
        self.truth.filter(|truth| !matches!(truth, Verdict::CannotTell { .. }))
    }
}

/// The data of `bench judge`.
#[derive(Debug, JsonSchema, Serialize)]
pub struct JudgeBenchReport {
    scenarios: Vec<JudgedScenario>,
    /// The results of one-minute guards with limits of 15 % on p50, p90 and CPU.
    replayed: Vec<Replayed>,
}

impl JudgeBenchReport {
    /// Creates the report.
    pub const fn of(scenarios: Vec<JudgedScenario>, replayed: Vec<Replayed>) -> Self {
        Self { scenarios, replayed }
    }

    /// Whether no verdict of `compare` contradicts the truth on the wire.
    pub fn agrees(&self) -> bool {
        !self.scenarios.iter().any(JudgedScenario::contradicts)
    }
}

impl Report for JudgeBenchReport {
    const KIND: &'static str = "bench-judge";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&["SCENARIO", "SAID", "TRUTH", "P50 SAID", "P50 TRUTH", "PAIRS", "VOID"]);
        for one in &self.scenarios {
            let style = if one.contradicts() { Style::Bad } else { Style::Plain };
            table.row([
                Cell::new(one.scenario.as_str()),
                Cell::new(one.said.as_str()).style(style),
                Cell::new(one.truth.map_or("", |truth| truth.as_str())),
                Cell::new(one.p50[0].as_str()),
                Cell::new(one.p50[1].as_str()),
                Cell::number(one.pairs),
                Cell::number(one.void),
            ]);
        }
        page.table(&table);
        if self.scenarios.iter().any(|one| one.truth.is_some()) {
            let known = self.scenarios.iter().filter_map(JudgedScenario::known_truth).count();
            let agrees = self.scenarios.iter().filter(|one| one.agrees()).count();
            page.line(format!(
                "the verdict matches the wire's in {agrees} of {known} cases that the wire can decide"
            ));
        }
        if self.replayed.is_empty() {
            return;
        }
        page.gap();
        let mut table =
            Table::new(&["REGRESSION", "GUARDS", "RESTORED", "WITHIN 30 S", "HALF WITHIN", "95 % WITHIN"]);
        for one in &self.replayed {
            let seconds = |at: Option<f64>| at.map_or_else(|| "-".to_owned(), |at| format!("{at:.0} s"));
            table.row([
                Cell::new(format!("{:+.0} %", one.regression * 100.0)),
                Cell::new(one.trials.to_string()),
                Cell::number(one.reverted),
                Cell::number(one.within_30_seconds),
                Cell::new(seconds(one.median_seconds)),
                Cell::new(seconds(one.p95_seconds)),
            ]);
        }
        page.table(&table);
    }
}
