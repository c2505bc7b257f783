//! Shows several experiments side by side, one per size or number of flows, with tail response times and the
//! number of polls by context: the tables of the documents on threaded NAPI and on event busy polling.

use std::fmt::Write as _;

use model::{FormatName, MachineDescription, machine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cost::{COST_COLUMNS, cost_cells};
use crate::gate::{Gates, Judged};
use crate::overall::Overall;
use crate::table::{LATE50, LATE99, number};
use crate::variant::{Ratios, Row, Variant, ratio};
use latency::measure::statistics::{Interval, coverage};

/// Several experiments under one title. Written and read as JSON.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// The format.
    pub schema: FormatName,
    /// The subject of the comparison, in a few words.
    pub title: String,
    /// Notes that the reader needs: how the machine was shared, what else was running.
    pub notes: Vec<String>,
    /// Requested configurations that could not be measured on this host.
    pub skipped: Vec<Skipped>,
    /// The machines of server and client, if these are different ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<MachineDescription>,
    /// One experiment per variant.
    pub variants: Vec<Variant>,
    /// The results of the gates, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<Judged>,
    /// Groups of variants that are also shown combined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overall: Vec<Overall>,
}

/// A configuration that was requested but not run.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// The name.
    pub label: String,
    /// The reason.
    pub reason: String,
}

const COLUMNS: [&str; 17] = [
    "mode",
    "load",
    "qps",
    "50%",
    "90%",
    "95%",
    "99%",
    "99.9%",
    "99.99%",
    LATE50,
    LATE99,
    "cpu",
    "csw/s",
    "irq/req",
    "softirq/s",
    "kthread/s",
    "own/s",
];

/// The column names of a variant's table.
pub(crate) fn columns(variant: &Variant) -> [&'static str; COLUMNS.len()] {
    let mut columns = COLUMNS;
    if variant.is_stream() {
        columns[2] = "Gbit/s";
    }
    columns
}

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
        number(&row.late_us[0]),
        number(&row.late_us[1]),
        number(&row.cpu_percent),
        number(&row.switches),
        number(&row.interrupts),
        number(&row.softirq_polls),
        number(&row.kthread_polls),
        number(&row.own_polls),
    ]
}

/// The column names of the table that compares configurations by ratios.
pub(crate) const RATIO_COLUMNS: [&str; 11] =
    ["mode", "load", "pairs", "rate", "50%", "90%", "95%", "99%", "99.9%", "99.99%", "cpu points"];

pub(crate) fn ratio_cells(row: &Ratios) -> [String; RATIO_COLUMNS.len()] {
    let [p50, p90, p95, p99, p999, p9999] = row.latency.each_ref().map(ratio);
    let (label, load) = (row.label.clone(), row.load.to_string());
    let points = difference(&row.cpu_points);
    [label, load, row.pairs.to_string(), ratio(&row.rate), p50, p90, p95, p99, p999, p9999, points]
}

/// Formats a difference with its interval: `-4.2 (-6.0 to -2.4)`.
fn difference(interval: &Option<Interval>) -> String {
    match interval {
        None => "-".to_owned(),
        Some(Interval { estimate, low, high }) => format!("{estimate:+.1} ({low:+.1} to {high:+.1})"),
    }
}

/// Explains the numbers.
pub(crate) fn legend(rounds: u32) -> String {
    let what = match rounds {
        0 | 1 => "One run each, from which no interval can be computed.".to_owned(),
        _ => format!(
            "Medians of {rounds} runs, ± the wider side of the interval that holds the true median with {:.0} %.",
            coverage(rounds as usize) * 100.0
        ),
    };
    format!(
        "{what} Response times in us from when each request was due; 50%late, 99%late: how long after that time, or after its connection had room, the client sent the request, in us; cpu: percent of the server's CPUs; csw/s: context switches of the \
         machine; irq/req: polls after an interrupt, or on a veth after a softirq of the sender, for each answer; softirq/s, kthread/s, own/s: polls of the server's NAPIs by softirqs, by their kernel threads, by the \
         server itself. Ratios are over pairs of runs of the same round, with intervals of 95 % (Student's t); so are cpu \
         points, which are differences."
    )
}

impl Grid {
    /// Judges these gates, in their order. Gates for numbers of connections that were not measured are left
    /// out.
    pub fn judge(&self, gates: &Gates) -> Vec<Judged> {
        gates.judge(&self.variants)
    }

    /// Returns the largest number of rounds of the grid's experiments.
    pub(crate) fn rounds(&self) -> u32 {
        self.variants.iter().map(|variant| variant.results.experiment.rounds).max().unwrap_or(0)
    }

    /// Renders the tables as text.
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
                let _ = writeln!(text, "{}", variant.cost_title());
                aligned(&mut text, &COST_COLUMNS, &costs);
            }
            text.push('\n');
        }
        for overall in &self.overall {
            for against in &overall.against {
                let rows = overall.ratios(&self.variants, against);
                let rows: Vec<_> = rows.iter().map(|row| (ratio_cells(row), String::new())).collect();
                if !rows.is_empty() {
                    let _ =
                        writeln!(text, "{}, over all of these variants, relative to {against}", overall.name);
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
        for line in machine::in_lines(&self.machines) {
            let _ = writeln!(text, "{line}");
        }
        let _ = writeln!(text, "{}", legend(self.rounds()));
        text
    }

    /// Joins several grids under the title of the first, to show separate measurements side by side.
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
            all.machines.extend(
                grid.machines.into_iter().filter(|one| !all.machines.contains(one)).collect::<Vec<_>>(),
            );
            all.variants.extend(grid.variants);
            all.gates.extend(grid.gates);
            all.overall.extend(grid.overall);
        }
        all
    }

    /// Returns whether at least one run counts.
    pub fn counts(&self) -> bool {
        self.variants.iter().flat_map(|variant| &variant.results.evidence).any(|run| run.void.is_none())
    }

    /// Returns why the first void run does not count, for each configuration, load and variant.
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

/// Writes rows under their columns: names left-aligned, numbers right-aligned. Leaves out columns without a
/// number.
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
    use crate::experiment::{Experiment, Results};
    use crate::test_evidence;
    use load::record::Recorder;
    use model::{
        CounterRates, CpuUse, Delivered, Evidence, Nanoseconds, NapiDelivered, NapiId, OfferedLoad,
        PollCounts,
    };

    /// Runs in which one answer in a hundred takes ten times as long as the others.
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
        let results = Results::new(experiment, evidence);
        Grid {
            schema: FormatName,
            title: "threaded".to_owned(),
            notes: vec!["2 hogs beside.".to_owned()],
            skipped: vec![Skipped {
                label: "workqueue".to_owned(),
                reason: "in the simulator only".to_owned(),
            }],
            variants: vec![Variant { name: "1 B/1 B, 64 flows".to_owned(), borne: None, results }],
            ..Grid::default()
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
        let runs = &mut grid.variants[0].results.evidence;
        runs.retain(|run| run.label == "softirq");
        assert!(!grid.render().contains("against softirq"), "no pair: no table of ratios");
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
        assert_eq!(rows[0].latency_us[5], None, "a thousand answers do not determine the 99.99th percentile");
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
