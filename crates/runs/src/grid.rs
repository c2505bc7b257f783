//! Several experiments side by side, one for each size or number of flows, with the tail of the response times and who
//! polled: the tables of the documents on threaded NAPI and on event busy polling.

use std::fmt::Write as _;

use model::{Evidence, ExchangeWorkload, OfferedLoad, PollCounts, Schema, Workload};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cost::{COST_COLUMNS, COST_TITLE, cost_cells};
use crate::experiment::Results;
use crate::gate::Judged;
use crate::overall::Overall;
use crate::table::number;
use measure::record::Recorder;
use measure::statistics::{Interval, coverage, median_interval, paired_difference, paired_ratio};

/// Experiments under one title. Written and read as JSON.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// The format.
    pub schema: Schema,
    /// What is compared, in a few words.
    pub title: String,
    /// What must be known to read it rightly: how the machine was shared, what ran beside.
    pub notes: Vec<String>,
    /// Configurations that were asked for and could not be measured here.
    pub skipped: Vec<Skipped>,
    /// One experiment for each variant.
    pub variants: Vec<Variant>,
    /// What came of the gates, if there were any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<Judged>,
    /// Variants that are also shown together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overall: Vec<Overall>,
}

/// A configuration without a run.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// Its name.
    pub label: String,
    /// Why.
    pub reason: String,
}

/// One experiment of a grid.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// What sets it apart: `1 B/1 B, 64 flows`.
    pub name: String,
    /// What the first configuration answers in closed loop, per second, where loads are shares of that.
    pub borne: Option<f64>,
    /// What was measured.
    pub results: Results,
}

/// One configuration at one load, over all its rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The configuration.
    pub label: String,
    /// The load.
    pub load: OfferedLoad,
    /// What must be known to read it rightly.
    pub remarks: Vec<String>,
    /// Runs that count.
    pub runs: usize,
    /// Answers per second; of streams, gigabits per second. This and all below: `None` without runs that count.
    pub rate: Option<Interval>,
    /// Response times in microseconds, at [`Row::QUANTILES`].
    pub latency_us: [Option<Interval>; Row::QUANTILES.len()],
    /// How busy the server's CPUs were, in percent; this and all below `None` also where it was not measured.
    pub cpu_percent: Option<Interval>,
    /// Context switches of the host per second.
    pub switches: Option<Interval>,
    /// Polls of the server's NAPIs in softirq, per second.
    pub softirq_polls: Option<Interval>,
    /// Polls after an interrupt, for each answer.
    pub interrupts: Option<Interval>,
    /// Polls by the NAPIs' kernel threads, per second.
    pub kthread_polls: Option<Interval>,
    /// Polls by the application itself, per second.
    pub own_polls: Option<Interval>,
}

impl Row {
    /// The quantiles that are shown.
    pub const QUANTILES: [f64; 6] = [0.5, 0.9, 0.95, 0.99, 0.999, 0.9999];

    fn of(label: &str, load: OfferedLoad, all: &[&Evidence]) -> Self {
        let runs: Vec<&Evidence> = all.iter().copied().filter(|run| run.void.is_none()).collect();
        let over = |of: &dyn Fn(&Evidence) -> Option<f64>| {
            median_interval(&runs.iter().map(|run| of(run)).collect::<Option<Vec<_>>>()?)
        };
        let polls = |kind: fn(&model::NapiDelivered) -> PollCounts| {
            over(&|run: &Evidence| {
                let delivered = run.delivered.as_ref()?;
                let seconds = delivered.interval.as_secs_f64();
                #[expect(clippy::cast_precision_loss, reason = "polls of one run, far below 2^53")]
                let polls = delivered.napis.iter().map(|napi| kind(napi).polls).sum::<u64>() as f64;
                (seconds > 0.0).then(|| polls / seconds)
            })
        };
        let quantiles: Vec<Vec<Option<f64>>> = runs.iter().map(|run| quantiles(run)).collect();
        let latency_us = std::array::from_fn(|at| {
            median_interval(&quantiles.iter().map(|of| of[at]).collect::<Option<Vec<_>>>()?)
        });
        Self {
            label: label.to_owned(),
            load,
            remarks: remarks(&runs, all.len()),
            runs: runs.len(),
            rate: over(&|run| Some(rate(run))),
            latency_us,
            cpu_percent: over(&|run| Some(run.cpu?.busy() * 100.0)),
            switches: over(&|run| Some(run.counters.as_ref()?.context_switches)),
            softirq_polls: polls(|napi| napi.softirq()),
            interrupts: over(&|run| run.interrupts_per_request),
            kthread_polls: polls(|napi| napi.kthread),
            own_polls: polls(|napi| napi.application),
        }
    }
}

/// Configuration against configuration at one load: ratios over pairs of runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratios {
    /// The configuration.
    pub label: String,
    /// What it is compared with.
    pub against: String,
    /// The load.
    pub load: OfferedLoad,
    /// Pairs of runs that both count.
    pub pairs: usize,
    /// Of what is offered or answered; `None` with fewer than two pairs.
    pub rate: Option<Interval>,
    /// Of response times, at [`Row::QUANTILES`].
    pub latency: [Option<Interval>; Row::QUANTILES.len()],
    /// By how many points the use of the server's CPUs differs, in percent of them.
    pub cpu_points: Option<Interval>,
}

/// The runs of two configurations in one round, both of which count.
pub(crate) fn pairs<'a>(
    results: &'a Results,
    label: &str,
    against: &str,
    load: OfferedLoad,
) -> Vec<(&'a Evidence, &'a Evidence)> {
    let (before, after) = (results.cell(against, load), results.cell(label, load));
    // Runs of one round have the same seed, and no other runs have.
    let partner = |run: &'a Evidence| {
        let seed = run.workload.seed();
        let partner = after.iter().find(|other| other.workload.seed() == seed)?;
        partner.void.is_none().then_some((run, *partner))
    };
    before.into_iter().filter(|run| run.void.is_none()).filter_map(partner).collect()
}

impl Ratios {
    /// Over the runs of an experiment.
    pub(crate) fn of(results: &Results, label: &str, against: &str, load: OfferedLoad) -> Self {
        Self::over([results], label, against, load)
    }

    /// Over the runs of several experiments.
    pub(crate) fn over<'a>(
        results: impl IntoIterator<Item = &'a Results>,
        label: &str,
        against: &str,
        load: OfferedLoad,
    ) -> Self {
        let pairs: Vec<(&Evidence, &Evidence)> =
            results.into_iter().flat_map(|results| pairs(results, label, against, load)).collect();
        let ratio = |of: &dyn Fn(&Evidence) -> Option<f64>| {
            let side = |pick: fn(&(_, _)) -> &Evidence| -> Option<Vec<f64>> {
                pairs.iter().map(|pair| of(pick(pair))).collect()
            };
            paired_ratio(&side(|pair: &(&Evidence, &Evidence)| pair.0)?, &side(|pair| pair.1)?)
        };
        let busy = |run: &Evidence| Some(run.cpu?.busy() * 100.0);
        let cpus: Option<Vec<(f64, f64)>> = pairs.iter().map(|(b, a)| busy(b).zip(busy(a))).collect();
        let (before, after): (Vec<f64>, Vec<f64>) = cpus.unwrap_or_default().into_iter().unzip();
        Self {
            label: label.to_owned(),
            against: against.to_owned(),
            load,
            pairs: pairs.len(),
            rate: ratio(&|run| Some(rate(run))),
            latency: std::array::from_fn(|at| ratio(&|run| quantiles(run)[at])),
            cpu_points: paired_difference(&before, &after),
        }
    }
}

impl Variant {
    /// The table's rows: configuration by configuration, each in the order of loads.
    pub fn rows(&self) -> Vec<Row> {
        let experiment = &self.results.experiment;
        let cells = experiment
            .labels
            .iter()
            .flat_map(|label| experiment.loads.iter().map(move |&load| (label, load)));
        cells.map(|(label, load)| Row::of(label, load, &self.results.cell(label, load))).collect()
    }

    /// Every configuration but the first, against the first.
    pub fn ratios(&self) -> Vec<Ratios> {
        let experiment = &self.results.experiment;
        let Some((first, others)) = experiment.labels.split_first() else { return Vec::new() };
        let cells = others.iter().flat_map(|label| experiment.loads.iter().map(move |&load| (label, load)));
        cells.map(|(label, load)| Ratios::of(&self.results, label, first, load)).collect()
    }

    fn is_stream(&self) -> bool {
        self.results.evidence.iter().any(|run| matches!(run.workload, Workload::TcpStream(_)))
    }
}

/// Answers per second; of streams, gigabits per second.
fn rate(run: &Evidence) -> f64 {
    match &run.workload {
        Workload::TcpStream(ExchangeWorkload { request_bytes, answer_bytes, .. }) => {
            run.throughput * f64::from(*request_bytes.max(answer_bytes)) * 8.0 / 1e9
        }
        Workload::Memcached(_) | Workload::TcpRr(_) | Workload::Storage(_) | Workload::Foreign(_) => {
            run.throughput
        }
    }
}

/// Response times in microseconds at [`Row::QUANTILES`]; `None` where the evidence holds no histogram, or so few
/// answers that the quantile is the longest of them.
fn quantiles(run: &Evidence) -> Vec<Option<f64>> {
    let recorder = Recorder::from_distribution(&run.latency).ok();
    let at = |quantile: f64| {
        let recorder = recorder.as_ref()?;
        #[expect(clippy::cast_precision_loss, reason = "answers of one run, far below 2^53")]
        let beyond = recorder.count() as f64 * (1.0 - quantile);
        (beyond >= BEYOND_MIN).then(|| recorder.quantile(quantile).as_secs_f64() * 1e6)
    };
    Row::QUANTILES.iter().map(|&quantile| at(quantile)).collect()
}

/// How many answers must have taken longer than a quantile for it to be shown.
const BEYOND_MIN: f64 = 1.0;

fn remarks(runs: &[&Evidence], all: usize) -> Vec<String> {
    let mut remarks = Vec::new();
    if runs.iter().any(|run| run.saturated()) {
        remarks.push("saturated".to_owned());
    }
    if runs.iter().any(|run| run.limited_by_generator()) {
        remarks.push("generator at its limit".to_owned());
    }
    if runs.len() < all {
        remarks.push(format!("{} of {all} runs void", all - runs.len()));
    }
    remarks
}

const COLUMNS: [&str; 15] = [
    "mode",
    "load",
    "qps",
    "50%",
    "90%",
    "95%",
    "99%",
    "99.9%",
    "99.99%",
    "cpu",
    "csw/s",
    "irq/req",
    "softirq/s",
    "kthread/s",
    "own/s",
];

/// The names of the table's columns for a variant.
pub(crate) fn columns(variant: &Variant) -> [&'static str; COLUMNS.len()] {
    let mut columns = COLUMNS;
    if variant.is_stream() {
        columns[2] = "Gbit/s";
    }
    columns
}

/// A row's cells.
pub(crate) fn cells(row: &Row) -> [String; COLUMNS.len()] {
    let [p50, p90, p95, p99, p999, p9999] =
        row.latency_us.each_ref().map(|value| number(value.as_ref(), row.runs));
    let number = |value: &Option<Interval>| number(value.as_ref(), row.runs);
    [
        row.label.clone(),
        row.load.to_string(),
        number(&row.rate),
        p50,
        p90,
        p95,
        p99,
        p999,
        p9999,
        number(&row.cpu_percent),
        number(&row.switches),
        number(&row.interrupts),
        number(&row.softirq_polls),
        number(&row.kthread_polls),
        number(&row.own_polls),
    ]
}

/// The names of the columns of ratios.
pub(crate) const RATIO_COLUMNS: [&str; 11] =
    ["mode", "load", "pairs", "rate", "50%", "90%", "95%", "99%", "99.9%", "99.99%", "cpu points"];

/// A row's cells.
pub(crate) fn ratio_cells(row: &Ratios) -> [String; RATIO_COLUMNS.len()] {
    let [p50, p90, p95, p99, p999, p9999] = row.latency.each_ref().map(ratio);
    let (label, load) = (row.label.clone(), row.load.to_string());
    let points = difference(&row.cpu_points);
    [label, load, row.pairs.to_string(), ratio(&row.rate), p50, p90, p95, p99, p999, p9999, points]
}

/// A difference with its interval: `-4.2 (-6.0 to -2.4)`.
fn difference(interval: &Option<Interval>) -> String {
    match interval {
        None => "-".to_owned(),
        Some(Interval { estimate, low, high }) => format!("{estimate:+.1} ({low:+.1} to {high:+.1})"),
    }
}

/// From this reach on an interval says only that there are too few pairs.
const INTERVAL_REACH_MAX: f64 = 100.0;

/// A ratio with its interval: `0.42 (0.38-0.47)`, or `0.42 (-)` where the interval says nothing.
pub(crate) fn ratio(interval: &Option<Interval>) -> String {
    match interval {
        None => "-".to_owned(),
        Some(Interval { estimate, low, high }) if *high > *low * INTERVAL_REACH_MAX => {
            format!("{estimate:.2} (-)")
        }
        Some(Interval { estimate, low, high }) => format!("{estimate:.2} ({low:.2}-{high:.2})"),
    }
}

/// What the numbers are.
pub(crate) fn legend(rounds: u32) -> String {
    let what = match rounds {
        0 | 1 => "One run each, from which no interval can be computed.".to_owned(),
        _ => format!(
            "Medians of {rounds} runs, ± the wider side of the interval that holds the true median with {:.0} %.",
            coverage(rounds as usize) * 100.0
        ),
    };
    format!(
        "{what} Response times in us from when each request was due; cpu: percent of the server's CPUs; csw/s: context switches of the \
         machine; irq/req: polls after an interrupt, or on a veth after a softirq of the sender, for each answer; softirq/s, kthread/s, own/s: polls of the server's NAPIs by softirqs, by their kernel threads, by the \
         server itself. Ratios are over pairs of runs of the same round, with intervals of 95 % (Student's t); so are cpu \
         points, which are differences."
    )
}

impl Grid {
    /// How many rounds its experiments had at most.
    pub(crate) fn rounds(&self) -> u32 {
        self.variants.iter().map(|variant| variant.results.experiment.rounds).max().unwrap_or(0)
    }

    /// The tables, as text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for variant in &self.variants {
            let _ = writeln!(text, "{}", variant.name);
            let rows: Vec<_> =
                variant.rows().iter().map(|row| (cells(row), row.remarks.join(", "))).collect();
            aligned(&mut text, &columns(variant), &rows);
            let ratios = variant.ratios();
            if let Some(first) = ratios.first() {
                let _ = writeln!(text, "against {}", first.against);
                let rows: Vec<_> = ratios.iter().map(|row| (ratio_cells(row), String::new())).collect();
                aligned(&mut text, &RATIO_COLUMNS, &rows);
            }
            let costs: Vec<_> =
                variant.costs().iter().map(|cost| (cost_cells(cost), String::new())).collect();
            if !costs.is_empty() {
                let _ = writeln!(text, "{COST_TITLE}");
                aligned(&mut text, &COST_COLUMNS, &costs);
            }
            text.push('\n');
        }
        for overall in &self.overall {
            for against in &overall.against {
                let rows = overall.ratios(&self.variants, against);
                let rows: Vec<_> = rows.iter().map(|row| (ratio_cells(row), String::new())).collect();
                if !rows.is_empty() {
                    let _ = writeln!(text, "{}, over all of them, against {against}", overall.name);
                    aligned(&mut text, &RATIO_COLUMNS, &rows);
                    text.push('\n');
                }
            }
        }
        for judged in &self.gates {
            let _ = writeln!(text, "{judged}");
        }
        for Skipped { label, reason } in &self.skipped {
            let _ = writeln!(text, "skipped: {label}: {reason}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        let _ = writeln!(text, "{}", legend(self.rounds()));
        text
    }

    /// Several grids as one, under the title of the first: what was measured in turn is shown side by side.
    #[must_use]
    pub fn joined(grids: Vec<Self>) -> Self {
        let mut grids = grids.into_iter();
        let mut all = grids.next().unwrap_or_default();
        for grid in grids {
            all.notes
                .extend(grid.notes.into_iter().filter(|note| !all.notes.contains(note)).collect::<Vec<_>>());
            all.skipped.extend(
                grid.skipped.into_iter().filter(|skipped| !all.skipped.contains(skipped)).collect::<Vec<_>>(),
            );
            all.variants.extend(grid.variants);
            all.gates.extend(grid.gates);
            all.overall.extend(grid.overall);
        }
        all
    }

    /// Whether any run counts.
    pub fn counts(&self) -> bool {
        self.variants.iter().flat_map(|variant| &variant.results.evidence).any(|run| run.void.is_none())
    }

    /// Why runs do not count: for each configuration, load and variant the reason of the first.
    pub fn voids(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for Variant { name, results, .. } in &self.variants {
            for label in &results.experiment.labels {
                for &load in &results.experiment.loads {
                    let reason = results.cell(label, load).into_iter().find_map(|run| run.void.as_deref());
                    lines.extend(reason.map(|reason| format!("void: {name}: {label} at {load}: {reason}")));
                }
            }
        }
        lines
    }
}

/// Writes rows under their columns, names to the left, numbers to the right; columns without a number are left out.
fn aligned<const N: usize>(text: &mut String, columns: &[&str; N], rows: &[([String; N], String)]) {
    let shown: Vec<bool> =
        (0..N).map(|at| at < 2 || rows.iter().any(|(cells, _)| cells[at] != "-")).collect();
    let width = |at: usize| {
        let cells = rows.iter().map(|(cells, _)| cells[at].chars().count());
        cells.chain([columns[at].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut line = |cells: &[&str], remarks: &str| {
        let mut line = String::from(" ");
        for (at, cell) in cells.iter().enumerate().filter(|(at, _)| shown[*at]) {
            let pad = " ".repeat(widths[at] - cell.chars().count());
            let _ = if at == 0 { write!(line, " {cell}{pad}") } else { write!(line, "  {pad}{cell}") };
        }
        let _ = writeln!(text, "{}", format!("{line}  {remarks}").trim_end());
    };
    line(columns, "");
    for (cells, remarks) in rows {
        line(&cells.each_ref().map(String::as_str), remarks);
    }
}

#[cfg(test)]
pub(crate) mod test {
    use super::*;
    use crate::experiment::Experiment;
    use crate::test_evidence;
    use model::{CounterRates, CpuUse, Delivered, Nanoseconds, NapiDelivered, NapiId};

    /// Runs whose longest answer in a hundred takes ten times the others'.
    fn run(label: &str, seed: u64, micros: u64, kthread: u64) -> Evidence {
        let mut recorder = Recorder::new();
        for answer in 0..1000 {
            let factor = if answer % 100 == 99 { 10 } else { 1 };
            recorder.record(Nanoseconds::from_micros(micros * factor));
        }
        let counts = |polls| PollCounts { polls, packets: polls, empty: 0 };
        let napi = NapiDelivered {
            napi: NapiId(8200),
            device: "veth-server".to_owned(),
            interrupt: counts(500 - kthread),
            timer: PollCounts::default(),
            application: PollCounts::default(),
            kthread: counts(kthread),
            by_process: Vec::new(),
            timer_armed: 0,
            timer_expired: 0,
            timer_armed_max: Nanoseconds::ZERO,
            suspended: 0,
        };
        let evidence = test_evidence();
        Evidence {
            label: label.to_owned(),
            workload: evidence.workload.with_seed(seed),
            latency: recorder.distribution(),
            cpu: Some(CpuUse { cpus: 1, user: 0.25, idle: 0.75, ..CpuUse::default() }),
            counters: Some(CounterRates { context_switches: 1234.0, ..CounterRates::default() }),
            delivered: Some(Delivered {
                interval: Nanoseconds::from_millis(500),
                napis: vec![napi],
                ..Delivered::default()
            }),
            ..evidence
        }
    }

    pub(crate) fn grid() -> Grid {
        let mut evidence = Vec::new();
        for seed in 0..6 {
            evidence.push(run("softirq", seed, 100 + seed, 0));
            evidence.push(run("threaded", seed, (100 + seed) * 2, 500));
        }
        let experiment = Experiment {
            labels: vec!["softirq".to_owned(), "threaded".to_owned()],
            loads: vec![OfferedLoad::PerSecond(10_000.0)],
            rounds: 6,
            seed: 1,
        };
        let results = Results { schema: Schema, experiment, evidence };
        Grid {
            schema: Schema,
            title: "threaded".to_owned(),
            notes: vec!["2 hogs beside.".to_owned()],
            skipped: vec![Skipped {
                label: "workqueue".to_owned(),
                reason: "in the simulator only".to_owned(),
            }],
            variants: vec![Variant { name: "1 B/1 B, 64 flows".to_owned(), borne: None, results }],
            gates: Vec::new(),
            overall: Vec::new(),
        }
    }

    #[test]
    fn the_table_is_the_documents_with_intervals_and_who_polled() {
        insta::assert_snapshot!(grid().render());
    }

    #[test]
    fn ratios_are_over_pairs_of_the_same_round_that_both_count() {
        let mut grid = grid();
        grid.variants[0].results.evidence[3].void = Some("the generator was late".to_owned());
        let ratios = &grid.variants[0].ratios()[0];
        assert_eq!(ratios.pairs, 5);
        let p50 = ratios.latency[0].expect("five pairs");
        assert!((p50.estimate - 2.0).abs() < 0.01, "{p50:?}");
        assert_eq!(grid.voids(), ["void: 1 B/1 B, 64 flows: threaded at 10K: the generator was late"]);
        assert_eq!(grid.variants[0].rows()[1].remarks, ["1 of 6 runs void"]);
    }

    #[test]
    fn an_interval_that_says_nothing_is_not_shown() {
        let interval = |low, high| Some(Interval { estimate: 21.53, low, high });
        assert_eq!(ratio(&interval(0.0001, 30_325_865_838.0)), "21.53 (-)");
        assert_eq!(ratio(&interval(10.0, 40.0)), "21.53 (10.00-40.00)");
        assert_eq!(ratio(&None), "-");
    }

    #[test]
    fn a_quantile_that_no_answer_exceeds_is_not_shown() {
        let rows = grid().variants[0].rows();
        assert!(rows[0].latency_us[4].is_some(), "one answer in a thousand");
        assert_eq!(rows[0].latency_us[5], None, "a thousand answers say nothing of the ten thousandth");
    }

    #[test]
    fn grids_of_several_files_stand_side_by_side() {
        let joined = Grid::joined(vec![grid(), grid()]);
        assert_eq!((joined.variants.len(), joined.notes.len(), joined.skipped.len()), (2, 1, 1));
        assert_eq!(joined.title, "threaded");
    }

    #[test]
    fn a_grid_survives_json() {
        let text = serde_json::to_string(&grid()).expect("serialises");
        assert_eq!(serde_json::from_str::<Grid>(&text).expect("parses"), grid());
    }
}
