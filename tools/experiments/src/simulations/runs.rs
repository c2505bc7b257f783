//! Builds table rows from a bench's evidence: each row has the median of the runs of one configuration at one
//! load.

use std::collections::BTreeSet;

use model::{DeliveryMode, Evidence, OfferedLoad, Workload};
use runs::Results;
use session::{Exit, Fault, count};
use sim::Scenario;

use super::prediction::BISTABLE_RATIO;
use super::soundness::unsound;
use crate::scenario_file::{MeasuredRow, MeasuredTable, Metric, ROWS_MAX, RowClass};

/// The minimum number of requests for a usable 99.9th percentile of a run: ten are above it.
const REQUESTS_OF_P999: u64 = 10_000;
/// The minimum number of requests for a usable 99.99th percentile of a run.
const REQUESTS_OF_P9999: u64 = 100_000;

/// Returns the rows of an experiment. For rows that `wanted` rejects, only the name is read.
///
/// Rows are named as in the bench's table: `suspend20@20.6K`. Runs that are void or limited by the load
/// generator do not count. The table's notes list the omitted runs and rows. `file` is the origin of the
/// evidence.
pub(super) fn rows(
    file: &str,
    results: &Results,
    scenario: &Scenario,
    wanted: impl Fn(&str) -> bool,
) -> Result<MeasuredTable, Fault> {
    let mut table = MeasuredTable::default();
    let mut cpus = None;
    let planned = results.experiment.labels.len().saturating_mul(results.experiment.loads.len());
    if planned > ROWS_MAX {
        return Err(Fault::new(
            Exit::Usage,
            format!("{file}: {planned} rows; at most {ROWS_MAX} can be read"),
        ));
    }
    once(file, "configuration", results.experiment.labels.iter().cloned())?;
    once(file, "load", results.experiment.loads.iter().map(ToString::to_string))?;
    let is_planned = |run: &Evidence| {
        results.experiment.labels.contains(&run.label) && results.experiment.loads.contains(&run.load)
    };
    let others = results.evidence.iter().filter(|run| !is_planned(run)).count();
    if others > 0 {
        let (runs, are) = (count(others, "run"), if others == 1 { "is" } else { "are" });
        table
            .notes
            .push(format!("{runs} {are} omitted: the experiment does not list that configuration or load"));
    }
    for label in &results.experiment.labels {
        if label.parse::<DeliveryMode>().is_err() {
            table.notes.push(format!("`{label}` is not a delivery mode: its runs are omitted"));
            continue;
        }
        for &load in results.experiment.loads.iter().filter(|load| **load != OfferedLoad::IDLE) {
            let name = format!("{label}@{load}");
            if !wanted(&name) {
                continue;
            }
            let all = results.cell(label, load);
            let (mut runs, mut limited) = (Vec::new(), 0);
            for run in &all {
                match (&run.void, run.limited_by_generator()) {
                    (Some(_), _) => {}
                    (None, true) => limited += 1,
                    (None, false) => runs.push(*run),
                }
            }
            if all.is_empty() {
                table.notes.push(format!("{name} is omitted: it has no run"));
                continue;
            }
            for (i, run) in (1..).zip(&runs) {
                if let Some(wrong) = unsound(run) {
                    let words = format!("{file}: run {i} of {name} is impossible: {wrong}");
                    return Err(Fault::new(Exit::Usage, words)
                        .hint("a run that does not count has a reason in its `void`"));
                }
            }
            let Some(first) = runs.first() else {
                table.notes.push(format!(
                    "{name} is omitted: of {} runs the load generator limited {limited}, the others are void",
                    all.len()
                ));
                continue;
            };
            let mut settings = vec![
                ("delivery.mode".to_owned(), label.clone()),
                ("clients.load".to_owned(), load.to_string()),
            ];
            offered(&name, first, scenario, &mut settings)?;
            let class = class(&runs);
            let mut values = Vec::new();
            for metric in Metric::ALL {
                if let Some(value) = median(&runs, |run| measured(run, metric, class, scenario)) {
                    values.push((metric, value));
                }
            }
            if let Some(cpu) = first.cpu.filter(|cpu| cpu.cpus != scenario.hardware.cpus) {
                cpus = Some(cpu.cpus);
            }
            table.rows.push(MeasuredRow { name, settings, class, values });
        }
    }
    if let Some(cpus) = cpus {
        table.notes.push(format!(
            "CPU use is omitted: the server had {cpus} of the scenario's {} CPUs",
            scenario.hardware.cpus
        ));
    }
    Ok(table)
}

/// Refuses a list with duplicate names, because row names would not be unique.
fn once(file: &str, what: &str, names: impl Iterator<Item = String>) -> Result<(), Fault> {
    let mut seen = BTreeSet::new();
    for name in names {
        if let Some(name) = seen.replace(name) {
            return Err(Fault::new(Exit::Usage, format!("{file}: the experiment lists {what} {name} twice")));
        }
    }
    Ok(())
}

/// Collects the options of a run, other than its load, that differ from the scenario.
fn offered(
    name: &str,
    run: &Evidence,
    scenario: &Scenario,
    settings: &mut Vec<(String, String)>,
) -> Result<(), Fault> {
    let refused = |why: String| Err(Fault::new(Exit::Usage, format!("{name}: {why}")));
    let Workload::Memcached(workload) = &run.workload else {
        return refused("only evidence of `bench memcached` has rows for a scenario".to_owned());
    };
    if workload.depth != 1 {
        let depth = workload.depth;
        return refused(format!("{depth} requests were outstanding on a connection; the model has one"));
    }
    let connections = workload.connections();
    if connections != u64::from(scenario.clients.connections) {
        settings.push(("clients.connections".to_owned(), connections.to_string()));
    }
    if workload.arrivals != scenario.clients.arrivals && run.load != OfferedLoad::Max {
        settings.push(("clients.arrivals".to_owned(), workload.arrivals.to_string()));
    }
    Ok(())
}

/// Returns where on the load curve the runs are: stable, knee, overload or maximum load.
fn class(runs: &[&Evidence]) -> RowClass {
    let averages = || runs.iter().map(|run| run.latency.avg);
    let (least, most) = (averages().fold(f64::MAX, f64::min), averages().fold(0.0, f64::max));
    if runs.iter().all(|run| run.load == OfferedLoad::Max) {
        RowClass::Max
    } else if runs.iter().filter(|run| run.saturated()).count() * 2 > runs.len() {
        RowClass::Overload
    } else if most > BISTABLE_RATIO * least {
        RowClass::Knee
    } else {
        RowClass::Stable
    }
}

/// Returns a run's measured value of a metric.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
fn measured(run: &Evidence, metric: Metric, class: RowClass, scenario: &Scenario) -> Option<f64> {
    let latency = &run.latency;
    let micros = match metric {
        Metric::Qps => return Some(run.throughput),
        Metric::Cpu => {
            return run.cpu.filter(|cpu| cpu.cpus == scenario.hardware.cpus).map(|cpu| 100.0 * cpu.busy());
        }
        // Under overload the backlog grows, so response times would only reflect the length of the
        // measurement.
        _ if class == RowClass::Overload => return None,
        Metric::P999 if latency.count < REQUESTS_OF_P999 => return None,
        Metric::P9999 if latency.count < REQUESTS_OF_P9999 => return None,
        Metric::Avg => latency.avg,
        Metric::P50 => latency.p50.0 as f64,
        Metric::P90 => latency.p90.0 as f64,
        Metric::P95 => latency.p95.0 as f64,
        Metric::P99 => latency.p99.0 as f64,
        Metric::P999 => latency.p999.0 as f64,
        Metric::P9999 => latency.p9999?.0 as f64,
    };
    (micros > 0.0).then_some(micros / 1000.0)
}

/// Returns the median over the runs that have this value.
fn median(runs: &[&Evidence], of: impl Fn(&Evidence) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = runs.iter().filter_map(|run| of(run)).collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(f64::midpoint(values[last / 2], values[values.len() / 2]))
}
