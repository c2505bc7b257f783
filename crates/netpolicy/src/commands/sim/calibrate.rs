//! `sim calibrate`: fits physical parameters to chosen rows.

use sim::fit::Search;
use sim::outcome::Length;
use sim::{Costs, Outcome, Scenario};

use super::points::{Job, run_all};
use super::prediction::value;
use super::source::scenario;
use super::validate::{apply, error};
use crate::args::SimCalibrate;
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::CalibrationReport;
use crate::scenario_file::{Calibration, MeasuredRow, Metric, RowClass};

/// Points of one generation of the search.
const POPULATION: usize = 16;
/// Points whose loss is within this share of the best count as samples of what the rows leave open.
const NEARLY_AS_GOOD: f64 = 0.10;
/// The most samples that are written.
const SAMPLES_MAX: usize = 16;
/// From this many deviations on, an error counts linearly: no single row rules the fit (Huber).
const HUBER: f64 = 2.0;

/// Fits.
pub(super) fn run(arguments: &SimCalibrate, context: &Context) -> Result<Exit, Fault> {
    let source = scenario(&arguments.scenario)?;
    let named = source.file.calibration.clone().unwrap_or_default();
    let rows = if arguments.rows.is_empty() { named.rows } else { arguments.rows.clone() };
    let parameters =
        if arguments.parameters.is_empty() { named.parameters } else { arguments.parameters.clone() };
    if rows.is_empty() || rows.len() > Calibration::ROWS_MAX {
        let most = Calibration::ROWS_MAX;
        return Err(Fault::new(
            Exit::Usage,
            format!("{} rows were named: 1 to {most} may be fitted", rows.len()),
        ));
    }
    // Rows that are held out are not even read.
    let table = source.measured(arguments.measured.as_deref(), |name| rows.iter().any(|row| row == name))?;
    for row in &rows {
        if !table.rows.iter().any(|read| read.name == *row) {
            return Err(Fault::new(Exit::Usage, format!("there is no measured row `{row}`")));
        }
    }
    let names: Vec<&str> = parameters.iter().map(String::as_str).collect();
    let base = source.file.scenario;
    let mut search = Search::new(&names, &base.costs, POPULATION, arguments.seed)
        .ok_or_else(|| Fault::new(Exit::Usage, format!("not all of {} are parameters", names.join(", "))))?;
    let generations = arguments.evaluations.div_ceil(POPULATION).max(1);
    for generation in 1..=generations {
        let proposed = search.propose();
        let mut jobs = Vec::new();
        for costs in &proposed {
            for row in &table.rows {
                let mut scenario = Scenario { costs: merged(&base.costs, costs, &names), ..base.clone() };
                apply(&mut scenario, row)?;
                // Seeds change, so that no seed's luck is fitted.
                jobs.push(Job {
                    scenario,
                    seed: arguments.seed + generation as u64 % 3,
                    length: length(row),
                });
            }
        }
        let words = format!("generation {generation} of {generations}");
        let outcomes = run_all(&jobs, &context.console, &words)?;
        let losses: Vec<f64> =
            outcomes.chunks(table.rows.len()).map(|chunk| loss(&table.rows, chunk)).collect();
        search.judge(&losses);
        if let Some((best, _)) = search.best() {
            context.console.detail(&format!("{words}: loss {best:.2}"));
        }
    }
    let Some((best, costs)) = search.best() else { return Err(Fault::failed("nothing was evaluated")) };
    let samples: Vec<Costs> =
        search.nearly_as_good(NEARLY_AS_GOOD).into_iter().skip(1).take(SAMPLES_MAX).collect();
    let report = CalibrationReport::of(best, &rows, &search.spread(), &costs, &samples);
    if let Some(path) = &arguments.write {
        std::fs::write(path, report.toml()).map_err(|error| Fault::file(path, error))?;
        context.console.say(&format!("wrote {}: put it in place of [costs] and [samples]", path.display()));
    }
    context.console.report(&report)?;
    Ok(Exit::Done)
}

/// The scenario's parameters, with those that are fitted.
fn merged(base: &Costs, fitted: &Costs, names: &[&str]) -> Costs {
    let mut costs = base.clone();
    for name in names {
        if let Some(value) = fitted.get(name) {
            costs.set(name, value);
        }
    }
    costs
}

/// How long a row is simulated: as long as its state needs to settle.
fn length(row: &MeasuredRow) -> Length {
    let (warmup, window) = match row.class {
        RowClass::Stable => (40, 200),
        RowClass::Knee => (100, 200),
        RowClass::Overload => (150, 200),
        RowClass::Max => (60, 80),
    };
    Length { warmup: warmup * 1_000_000, window: window * 1_000_000 }
}

/// How far predictions are from the rows: a sum over rows and metrics, each in units of what would be a good prediction.
fn loss(rows: &[MeasuredRow], outcomes: &[Outcome]) -> f64 {
    let mut sum = 0.0;
    for (row, outcome) in rows.iter().zip(outcomes) {
        let steady = matches!(row.class, RowClass::Stable | RowClass::Max);
        for &(metric, measured) in &row.values {
            let good = match metric {
                Metric::Qps => 2.0,
                Metric::Cpu => 1.5,
                Metric::Avg | Metric::P50 if steady => 4.0,
                Metric::P90 | Metric::P95 if steady => 8.0,
                Metric::P99 | Metric::P999 if steady => 12.0,
                Metric::Avg | Metric::P50 => 20.0,
                Metric::P90 | Metric::P95 | Metric::P99 | Metric::P999 => 40.0,
            };
            let predicted = value(outcome, metric);
            // A factor too low weighs as much as the same factor too high.
            let missed = match metric {
                Metric::Cpu => error(metric, measured, predicted).abs(),
                _ => 100.0 * sim::elementary::ln(predicted.max(1e-9) / measured.max(1e-9)).abs(),
            };
            let z = missed / good;
            sum += if z < HUBER { 0.5 * z * z } else { HUBER * z - 0.5 * HUBER * HUBER };
        }
    }
    sum
}
