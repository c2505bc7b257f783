//! Compares pairs of configurations: which one has the lower value, in this experiment and in a published
//! table.

use std::collections::BTreeMap;
use std::path::Path;

use latency::measure::statistics::Interval;
use model::{DeliveryMode, OfferedLoad};
use runs::Results;
use runs::summary::Summary;
use session::{Exit, Fault};

use super::source::scenario;
use super::validate::is_clear;
use crate::reports::orderings::{Agreement, Ordering, OrderingsReport};
use crate::scenario_file::{MeasuredRow, Metric, RowClass};

const COMPARED: [Metric; 5] = [Metric::Qps, Metric::Avg, Metric::P95, Metric::P99, Metric::Cpu];

/// Compares an experiment with the measured rows of a scenario: each pair of configurations whose rows differ
/// clearly, at each load. Loads correspond in ascending order; MAX is the last.
pub(crate) fn orderings(results: &Results, against: &Path) -> Result<OrderingsReport, Fault> {
    let source = scenario(against)?;
    let table = source.measured(None, |_| true)?;
    let wrong = |words: String| Fault::new(Exit::Usage, format!("{}: {words}", source.name));
    let mut theirs: BTreeMap<(String, String), &MeasuredRow> = BTreeMap::new();
    let mut their_loads: Vec<OfferedLoad> = Vec::new();
    for row in &table.rows {
        let [(mode_key, mode), (load_key, load)] = row.settings.as_slice() else {
            return Err(wrong("a row must have two settings, a delivery mode and a load".to_owned()));
        };
        let (Ok(mode), Ok(load)) = (mode.parse::<DeliveryMode>(), load.parse::<OfferedLoad>()) else {
            return Err(wrong(format!("its rows have {mode_key} and {load_key} instead of modes and loads")));
        };
        theirs.insert((mode.to_string(), load.to_string()), row);
        if !their_loads.contains(&load) {
            their_loads.push(load);
        }
    }
    let mut our_loads = results.experiment.loads.clone();
    for loads in [&mut their_loads, &mut our_loads] {
        loads.sort_by(|one, other| rate(*one).total_cmp(&rate(*other)));
    }
    if their_loads.len() != our_loads.len() {
        let (theirs, ours) = (their_loads.len(), our_loads.len());
        return Err(wrong(format!("it has {theirs} loads, the evidence {ours}: they do not correspond")));
    }
    let ours = Summary::of(results);
    let mut pairs = Vec::new();
    for (&our_load, &their_load) in our_loads.iter().zip(&their_loads) {
        let rows: Vec<(&Summary, &MeasuredRow)> = ours
            .iter()
            .filter(|row| row.load == our_load && row.runs > 0)
            .filter_map(|row| {
                let mode: DeliveryMode = row.label.parse().ok()?;
                Some((row, *theirs.get(&(mode.to_string(), their_load.to_string()))?))
            })
            .collect();
        for (i, one) in rows.iter().enumerate() {
            for other in &rows[i + 1..] {
                pairs.extend(COMPARED.iter().filter_map(|&metric| compare(metric, one, other)));
            }
        }
    }
    Ok(OrderingsReport::new(source.name, pairs))
}

fn rate(load: OfferedLoad) -> f64 {
    match load {
        OfferedLoad::PerSecond(rate) => rate,
        OfferedLoad::Max => f64::INFINITY,
    }
}

/// Compares a metric of two configurations; returns `None` if the published rows do not differ clearly, or
/// lack the metric.
fn compare(
    metric: Metric,
    (one, one_row): &(&Summary, &MeasuredRow),
    (other, other_row): &(&Summary, &MeasuredRow),
) -> Option<Ordering> {
    let is_behind = |row: &MeasuredRow| row.class == RowClass::Overload;
    // While a backlog grows, response times reflect the length of the measurement.
    let is_time = !matches!(metric, Metric::Qps | Metric::Cpu);
    if is_time && (is_behind(one_row) || is_behind(other_row)) {
        return None;
    }
    let published = [one_row.value(metric)?, other_row.value(metric)?];
    if !is_clear(metric, published[0], published[1]) {
        return None;
    }
    let (a, b) = (value(one, metric)?, value(other, metric)?);
    let is_limited = |row: &Summary| row.limited > 0 || (is_time && row.saturated > 0);
    let agreement = if is_limited(one) || is_limited(other) {
        Agreement::Saturated
    } else if a.low <= b.high && b.low <= a.high {
        Agreement::Undecided
    } else if (a.estimate < b.estimate) == (published[0] < published[1]) {
        Agreement::Same
    } else {
        Agreement::Opposite
    };
    Some(Ordering {
        load: one.load.to_string(),
        one: one.label.clone(),
        other: other.label.clone(),
        metric: metric.word(),
        published,
        here: [a, b],
        agreement,
    })
}

fn value(row: &Summary, metric: Metric) -> Option<Interval> {
    match metric {
        Metric::Qps => row.throughput,
        Metric::Avg => row.avg_us,
        Metric::P50 => row.p50_us,
        Metric::P95 => row.p95_us,
        Metric::P99 => row.p99_us,
        Metric::P999 => row.p999_us,
        Metric::P9999 => row.p9999_us,
        Metric::Cpu => row.cpu_percent,
        Metric::P90 => None,
    }
}
