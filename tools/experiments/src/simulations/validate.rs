//! `sim validate`: compares measured and predicted values, row by row.

use session::{Exit, Fault, count};
use sim::Scenario;

use super::prediction::predict;
use super::run::effort;
use super::source::{scenario, standard_input_once, writable};
use crate::Context;
use crate::predicted::{Coverage, Judged, Orderings, Range, SummaryLine, error};
use crate::reports::ValidationReport;
use crate::scenario_file::{MeasuredRow, MeasuredTable, Metric, RowClass};
use crate::sim_args::SimValidate;

/// Two measured response times differ clearly if their ratio exceeds the first value; two CPU shares, if they
/// differ by more percentage points than the second.
const CLEAR_RATIO: f64 = 1.10;
const CLEAR_POINTS: f64 = 3.0;

/// Whether two measured values of a metric differ clearly.
pub(super) fn is_clear(metric: Metric, a: f64, b: f64) -> bool {
    match metric {
        Metric::Cpu => (a - b).abs() > CLEAR_POINTS,
        _ => a.max(b) > CLEAR_RATIO * a.min(b),
    }
}

/// Predicts every row of a scenario's table, and compares the predictions with the measurements.
pub(super) fn run(arguments: &SimValidate, context: &Context<'_>) -> Result<Exit, Fault> {
    let files = [
        ("the scenario", Some(arguments.scenario.as_path())),
        ("--costs", arguments.costs.as_deref()),
        ("--measured", arguments.measured.as_deref()),
    ];
    standard_input_once(&files)?;
    let effort = effort(arguments.effort)?;
    let source = scenario(&arguments.scenario)?.with_costs(arguments.costs.as_deref())?;
    let measured = source.table(arguments.measured.as_deref());
    if let Some(path) = &arguments.html {
        writable("--html", path, &[files[0].1, files[1].1, measured.as_deref()])?;
    }
    let table: MeasuredTable = source.measured(arguments.measured.as_deref(), |_| true)?;
    if table.rows.is_empty() {
        let fault = Fault::new(Exit::Usage, "the table has no rows");
        return Err(if table.notes.is_empty() { fault } else { fault.hint(table.notes.join("\n")) });
    }
    table.notes.iter().for_each(|note| context.console.say(note));
    let fitted = source.file.calibration.as_ref().map(|c| c.rows.clone()).unwrap_or_default();
    let absent: Vec<&str> = fitted
        .iter()
        .map(String::as_str)
        .filter(|name| table.rows.iter().all(|row| row.name != *name))
        .collect();
    if !absent.is_empty() {
        let (absent, rows) = (absent.join(", "), count(absent.len(), "row"));
        context
            .console
            .say(&format!("the table does not have {rows} to which the parameters were fitted: {absent}"));
    }
    let mut points = Vec::new();
    for row in &table.rows {
        let mut scenario = source.file.scenario.clone();
        apply(&mut scenario, row)?;
        points.push((row.name.clone(), scenario));
    }
    let predictions = predict(&points, &source.file, effort, context.console)?;
    let mut judged: Vec<Judged> = table
        .rows
        .into_iter()
        .zip(predictions)
        .map(|(row, prediction)| Judged { fitted: fitted.contains(&row.name), row, prediction })
        .collect();
    widen(&mut judged);
    let report =
        ValidationReport::of(&source.file, summary(&judged), orderings(&judged), coverage(&judged), judged);
    context.console.report(&report)?;
    if let Some(path) = &arguments.html {
        std::fs::write(path, report.html()).map_err(|error| Fault::file(path, error))?;
        context.console.say(&format!("wrote {}", path.display()));
    }
    Ok(Exit::Done)
}

/// Applies the settings of a row.
pub(super) fn apply(scenario: &mut Scenario, row: &MeasuredRow) -> Result<(), Fault> {
    let given = row.settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let set = scenario.set_all(given);
    set.map_err(|(_, refused)| Fault::new(Exit::Usage, format!("{}: {refused}", row.name)))?;
    scenario.check().map_err(|impossible| Fault::new(Exit::Usage, format!("{}: {impossible}", row.name)))
}

/// Widens the range of every prediction by the model's error on the *fitted* rows of the same class, so that
/// 90 % of those rows lie within it. A class without fitted rows uses the fitted rows of all classes. The
/// errors of held-out rows are never used.
fn widen(judged: &mut [Judged]) {
    for class in RowClass::ALL {
        for metric in Metric::ALL {
            let missed = |judged: &&Judged| {
                let measured = judged.row.value(metric)?;
                let predicted = judged.prediction.of(metric)?.value;
                // Take the larger of both ratios: an estimate that is too low by some factor widens the
                // interval as much as one that is too high by the same factor.
                Some(match metric {
                    Metric::Cpu => error(metric, measured, predicted).abs(),
                    _ => 100.0 * ((measured / predicted).max(predicted / measured) - 1.0),
                })
            };
            let of = |same_class: bool| {
                let fitted = judged.iter().filter(|j| j.fitted && (!same_class || j.row.class == class));
                let mut missed: Vec<f64> = fitted.filter_map(|j| missed(&j)).collect();
                missed.sort_by(f64::total_cmp);
                missed
            };
            let own = of(true);
            let errors = if own.is_empty() { of(false) } else { own };
            let Some(miss) = quantile(&errors, 0.9) else { continue };
            for judged in judged.iter_mut().filter(|j| j.row.class == class) {
                for predicted in judged.prediction.values.iter_mut().filter(|p| p.metric == metric) {
                    let value = predicted.value;
                    let Range { low, high } = predicted.range.unwrap_or(Range { low: value, high: value });
                    predicted.range = Some(match metric {
                        Metric::Cpu => Range { low: (low - miss).max(0.0), high: (high + miss).min(100.0) },
                        _ => Range { low: low / (1.0 + miss / 100.0), high: high * (1.0 + miss / 100.0) },
                    });
                }
            }
        }
    }
}

/// Returns the given quantile of sorted values.
#[expect(clippy::cast_precision_loss, reason = "a few dozen values")]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index into a few dozen values"
)]
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[((sorted.len() as f64 * share).ceil() as usize).saturating_sub(1).min(last)])
}

/// Counts the held-out values that lie within their 90 % interval.
fn coverage(judged: &[Judged]) -> Coverage {
    let mut coverage = Coverage::default();
    for held_out in judged.iter().filter(|judged| !judged.fitted) {
        for &(metric, measured) in &held_out.row.values {
            if let Some(range) = held_out.prediction.of(metric).and_then(|predicted| predicted.range) {
                coverage.values += 1;
                coverage.inside += usize::from(range.holds(measured));
            }
        }
    }
    coverage
}

fn summary(judged: &[Judged]) -> Vec<SummaryLine> {
    let mut lines = Vec::new();
    for class in RowClass::ALL {
        for fitted in [true, false] {
            for metric in Metric::ALL {
                let (mut intervals, mut inside) = (0, 0);
                let mut errors = Vec::new();
                for row in judged.iter().filter(|j| j.row.class == class && j.fitted == fitted) {
                    let (Some(measured), Some(predicted)) =
                        (row.row.value(metric), row.prediction.of(metric))
                    else {
                        continue;
                    };
                    errors.push(error(metric, measured, predicted.value).abs());
                    if let Some(range) = predicted.range {
                        intervals += 1;
                        inside += usize::from(range.holds(measured));
                    }
                }
                errors.sort_by(f64::total_cmp);
                let (Some(median), Some(p90), Some(&worst)) =
                    (quantile(&errors, 0.5), quantile(&errors, 0.9), errors.last())
                else {
                    continue;
                };
                lines.push(SummaryLine {
                    class: class.word(),
                    fitted,
                    metric: metric.word(),
                    unit: if metric == Metric::Cpu { "points" } else { "%" },
                    rows: errors.len(),
                    median,
                    p90,
                    worst,
                    intervals,
                    inside,
                });
            }
        }
    }
    lines
}

/// Counts the pairs of rows that differ only in their first setting and whose measurements clearly differ.
fn orderings(judged: &[Judged]) -> Orderings {
    let mut orderings = Orderings::default();
    let elsewhere = |row: &MeasuredRow| row.settings.get(1..).map(<[_]>::to_vec);
    for (i, one) in judged.iter().enumerate() {
        for other in judged[i + 1..].iter().filter(|other| elsewhere(&other.row) == elsewhere(&one.row)) {
            for metric in [Metric::Avg, Metric::P50, Metric::P99, Metric::Cpu] {
                let (Some(a), Some(b)) = (one.row.value(metric), other.row.value(metric)) else { continue };
                let clear = is_clear(metric, a, b);
                let (Some(p), Some(q)) = (one.prediction.of(metric), other.prediction.of(metric)) else {
                    continue;
                };
                if clear {
                    orderings.clear += 1;
                    orderings.right += usize::from((a < b) == (p.value < q.value));
                }
            }
        }
    }
    orderings
}
