//! The errors of response-time estimates against the true response times on the wire, and the cost of
//! measuring.

use latency::measure::live::{AgreementRun, Errors, Estimator, Ordered};
use latency::measure::statistics::{Interval, median, paired_ratio};
use schemars::JsonSchema;
use serde::Serialize;
use session::page::{Cell, Page, Report, Style, Table};

use crate::bench::live_args::LiveLoad;

/// The report of `bench live`: the estimators' errors, overall, by mode and per run.
#[derive(Debug, JsonSchema, Serialize)]
pub struct LiveBenchReport<'a> {
    /// The errors of each estimator, over all runs.
    overall: Vec<Overall>,
    /// The errors in each mode, with open and closed loops separate.
    by_mode: Vec<ByMode>,
    /// The runs.
    trials: &'a [AgreementRun],
}

#[derive(Debug, JsonSchema, Serialize)]
struct Overall {
    estimator: Estimator,
    errors: Errors,
    open: Errors,
    closed: Errors,
    ordered: Ordered,
}

#[derive(Debug, JsonSchema, Serialize)]
struct ByMode {
    mode: String,
    closed: bool,
    residence: Errors,
    uniform: Errors,
    conditional: Errors,
    larger: Errors,
    stamped: Errors,
    /// The median measured on the wire, in nanoseconds.
    wire: [Option<f64>; 3],
}

impl<'a> LiveBenchReport<'a> {
    /// Creates the report of these runs.
    pub(crate) fn of(trials: &'a [AgreementRun]) -> Self {
        let overall = Estimator::ALL.map(|estimator| Overall {
            estimator,
            errors: Errors::of(trials, estimator),
            open: Errors::of(trials.iter().filter(|trial| !trial.closed), estimator),
            closed: Errors::of(trials.iter().filter(|trial| trial.closed), estimator),
            ordered: Ordered::of(trials, estimator),
        });
        let mut modes: Vec<&str> = Vec::new();
        for trial in trials {
            if !modes.contains(&trial.mode.as_str()) {
                modes.push(&trial.mode);
            }
        }
        let mut by_mode = Vec::new();
        for closed in [false, true] {
            for mode in &modes {
                let of_mode: Vec<&AgreementRun> =
                    trials.iter().filter(|trial| trial.mode == *mode && trial.closed == closed).collect();
                if of_mode.is_empty() {
                    continue;
                }
                let errors = |estimator| Errors::of(of_mode.iter().copied(), estimator);
                let wire = [0, 1, 2]
                    .map(|at| median(&of_mode.iter().filter_map(|trial| trial.wire[at]).collect::<Vec<_>>()));
                by_mode.push(ByMode {
                    mode: (*mode).to_owned(),
                    closed,
                    residence: errors(Estimator::Residence),
                    uniform: errors(Estimator::Uniform),
                    conditional: errors(Estimator::Conditional),
                    larger: errors(Estimator::Larger),
                    stamped: errors(Estimator::Stamped),
                    wire,
                });
            }
        }
        Self { overall: overall.into(), by_mode, trials }
    }
}

fn percents(values: [Option<f64>; 3], sign: bool) -> String {
    let one = |value: Option<f64>| match value {
        None => "-".to_owned(),
        Some(value) if sign => format!("{value:+.0}"),
        Some(value) => format!("{value:.1}"),
    };
    values.map(one).join(" / ")
}

impl Report for LiveBenchReport<'_> {
    const KIND: &'static str = "bench-live";

    fn page(&self, page: &mut Page) {
        page.styled(Style::Strong, "median error against the wire, %, p50 / p90 / p99");
        let mut table = Table::new(&["MODE", "LOOP", "WIRE US", "RESIDENCE", "U", "C", "U|C", "T"]);
        for row in &self.by_mode {
            let micros =
                row.wire.map(|wire| wire.map_or_else(|| "-".to_owned(), |ns| format!("{:.0}", ns / 1e3)));
            table.row([
                Cell::new(row.mode.clone()),
                Cell::new(if row.closed { "closed" } else { "open" }),
                Cell::new(micros.join(" / ")),
                Cell::new(percents(row.residence.signed, true)),
                Cell::new(percents(row.uniform.signed, true)),
                Cell::new(percents(row.conditional.signed, true)),
                Cell::new(percents(row.larger.signed, true)),
                Cell::new(percents(row.stamped.signed, true)),
            ]);
        }
        page.table(&table);
        page.gap();
        page.styled(
            Style::Strong,
            "median absolute error, %, p50 / p90 / p99; pairs of modes in the right order",
        );
        let mut table = Table::new(&["ESTIMATOR", "RUNS", "ALL", "OPEN", "CLOSED", "P50", "P90", "P99"]);
        for row in &self.overall {
            let pairs =
                |at: usize| Cell::new(format!("{} of {}", row.ordered.right[at], row.ordered.pairs[at]));
            table.row([
                Cell::new(row.estimator.letter()),
                Cell::number(row.errors.trials),
                Cell::new(percents(row.errors.absolute, false)),
                Cell::new(percents(row.open.absolute, false)),
                Cell::new(percents(row.closed.absolute, false)),
                pairs(0),
                pairs(1),
                pairs(2),
            ]);
        }
        page.table(&table);
        let (answered, counted) = self
            .trials
            .iter()
            .fold((0, 0), |(answered, counted), trial| (answered + trial.answered, counted + trial.counted));
        page.line(format!("{answered} requests were answered on the wire, {counted} were counted"));
    }
}

/// The data of `bench live --cost`.
#[derive(Debug, JsonSchema, Serialize)]
pub struct LiveCostReport {
    load: String,
    rounds: usize,
    /// The server's CPU time per request without measuring, in nanoseconds.
    off: Option<f64>,
    /// The ratio of the CPU time with sampling for 20 ms of each second to that without measuring.
    sampled: Option<Interval>,
    /// The ratio of the CPU time with programs attached all the time to that without measuring.
    attached: Option<Interval>,
    /// The programs.
    profile: Vec<ProgramCost>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct ProgramCost {
    program: String,
    /// Runs per request.
    runs: f64,
    /// Nanoseconds per run, including the cost of reading the clock.
    nanoseconds: f64,
}

impl LiveCostReport {
    /// Creates the report from rounds of three costs: off, sampled, attached.
    pub(crate) fn of(load: LiveLoad, rounds: &[[f64; 3]], profile: Vec<(String, f64, f64)>) -> Self {
        let column = |at: usize| rounds.iter().map(|round| round[at]).collect::<Vec<f64>>();
        Self {
            load: load.to_string(),
            rounds: rounds.len(),
            off: median(&column(0)),
            sampled: paired_ratio(&column(0), &column(1)),
            attached: paired_ratio(&column(0), &column(2)),
            profile: profile
                .into_iter()
                .map(|(program, runs, nanoseconds)| ProgramCost { program, runs, nanoseconds })
                .collect(),
        }
    }
}

impl Report for LiveCostReport {
    const KIND: &'static str = "bench-live-cost";

    fn page(&self, page: &mut Page) {
        let percent = |ratio: Option<Interval>| {
            ratio.map_or_else(
                || "-".to_owned(),
                |found| {
                    let change = |ratio: f64| (ratio - 1.0) * 100.0;
                    format!(
                        "{:+.1} % ({:+.1} to {:+.1})",
                        change(found.estimate),
                        change(found.low),
                        change(found.high)
                    )
                },
            )
        };
        let off = self.off.map_or_else(|| "-".to_owned(), |off| format!("{:.2} us", off / 1e3));
        page.line(format!(
            "CPU time of the server for each request at {}, {} rounds: {off}",
            self.load, self.rounds
        ));
        page.line(format!("measuring 20 ms of each second: {}", percent(self.sampled)));
        page.line(format!("measuring continuously:         {}", percent(self.attached)));
        let mut table = Table::new(&["PROGRAM", "RUNS/REQUEST", "NS/RUN"]);
        for of in &self.profile {
            table.row([
                Cell::new(of.program.clone()),
                Cell::number(format!("{:.2}", of.runs)),
                Cell::number(format!("{:.0}", of.nanoseconds)),
            ]);
        }
        page.gap();
        page.table(&table);
    }
}
