//! `sim calibrate`: fits physical parameters to chosen rows.

use std::cell::RefCell;
use std::path::Path;

use policy_file::nearest;
use session::{Exit, Fault};
use sim::fit::Fit;
use sim::outcome::Length;
use sim::{Costs, Outcome, Scenario};

use super::list::listed;
use super::points::{Job, run_all};
use super::prediction::value;
use super::source::{Source, scenario, standard_input_once, writable};
use super::validate::apply;
use crate::Context;
use crate::reports::CalibrationReport;
use crate::scenario_file::{Calibration, MeasuredRow, Metric, RowClass};
use crate::sim_args::SimCalibrate;

/// The number of parameter sets to write, drawn from the fit's covariance, and the number of draws from which
/// ranges are computed.
const SAMPLES: usize = 16;
const DRAWS: usize = 200;

/// Runs the fit.
pub(super) fn run(arguments: &SimCalibrate, context: &Context<'_>) -> Result<Exit, Fault> {
    let files = [
        ("the scenario", Some(arguments.scenario.as_path())),
        ("--costs", arguments.costs.as_deref()),
        ("--measured", arguments.measured.as_deref()),
    ];
    standard_input_once(&files)?;
    let source = scenario(&arguments.scenario)?;
    let own = source.file.scenario.costs.clone();
    let source = source.with_costs(arguments.costs.as_deref())?;
    let named = source.file.calibration.clone().unwrap_or_default();
    let mut rows = if arguments.rows.is_empty() { named.rows } else { Vec::new() };
    for list in &arguments.rows {
        rows.extend(listed(list).map_err(|why| Fault::new(Exit::Usage, format!("--rows: {why}")))?);
    }
    let parameters =
        if arguments.parameters.is_empty() { named.parameters } else { arguments.parameters.clone() };
    if rows.is_empty() || rows.len() > Calibration::ROWS_MAX {
        let most = Calibration::ROWS_MAX;
        return Err(Fault::new(
            Exit::Usage,
            format!("{} rows are named: 1 to {most} may be fitted", rows.len()),
        )
        .hint(match names_in(&source, arguments.measured.as_deref()) {
            Some(names) => format!("name them with --rows: the table has {names}"),
            None => "name them with --rows, and their table with --measured, or both in the scenario's \
                     [calibration]"
                .to_owned(),
        }));
    }
    if let Some(twice) = rows.iter().enumerate().find(|(i, row)| rows[..*i].contains(row)) {
        return Err(Fault::new(Exit::Usage, format!("row `{}` was named twice", twice.1)));
    }
    let names: Vec<&str> = parameters.iter().map(String::as_str).collect();
    are_parameters(&names)?;
    if let Some(path) = &arguments.write {
        let measured = source.table(arguments.measured.as_deref());
        writable("--write", path, &[files[0].1, files[1].1, measured.as_deref()])?;
    }
    // Held-out rows are not even read.
    let table = source.measured(arguments.measured.as_deref(), |name| rows.iter().any(|row| row == name))?;
    for row in &rows {
        if !table.rows.iter().any(|read| read.name == *row) {
            let mut fault = Fault::new(Exit::Usage, format!("there is no measured row `{row}`"));
            if let Some(note) = table.notes.iter().find(|note| note.starts_with(row.as_str())) {
                fault = fault.hint(note.clone());
            } else if let Some(names) = names_in(&source, arguments.measured.as_deref()) {
                fault = fault.hint(format!("name others with --rows: the table has {names}"));
            }
            return Err(fault);
        }
    }
    table.notes.iter().for_each(|note| context.console.say(note));
    let base = source.file.scenario;
    // The fit depends on the values given by `--costs`, so those are written, too.
    let given: Vec<(&'static str, f64)> = Costs::PARAMETERS
        .iter()
        .filter(|parameter| !names.contains(&parameter.name))
        .filter_map(|parameter| Some((parameter.name, base.costs.get(parameter.name)?)))
        .filter(|(name, value)| own.get(name) != Some(*value))
        .collect();
    let mut fit = Fit::new(&names, &base.costs, arguments.evaluations, arguments.seed)
        .ok_or_else(|| Fault::failed("a parameter has no value"))?;
    let mut evaluated = 0;
    let mut reported = false;
    loop {
        let proposed = fit.propose();
        if proposed.is_empty() {
            break;
        }
        let mut jobs = Vec::new();
        for trial in &proposed {
            let costs = merged(&base.costs, &trial.costs, &names);
            for row in &table.rows {
                let mut scenario = Scenario { costs: costs.clone(), ..base.clone() };
                apply(&mut scenario, row)?;
                jobs.push(Job { scenario, seed: trial.seed, length: length(row) });
            }
        }
        evaluated += proposed.len();
        let words = format!("{evaluated} of {} evaluations", arguments.evaluations);
        let outcomes = run_all(&jobs, context.console, &words)?;
        let missed: Vec<Vec<f64>> =
            outcomes.chunks(table.rows.len()).map(|runs| residuals(&table.rows, runs)).collect();
        let better = fit.judge(&missed);
        context.console.detail(&format!("{words}: loss {:.2}", fit.best().0));
        if let Some(path) = &arguments.write
            && better
        {
            // Write the best fit so far, in case a long fit is interrupted; a fit that has just begun does
            // not overwrite an earlier one.
            let report = report(&fit, &rows, &names, arguments.seed);
            if let Err(error) = std::fs::write(path, report.toml(&given))
                && !reported
            {
                // Do not abort: hours of work may be in the fit, and its result is printed at the end in any
                // case.
                reported = true;
                context.console.say(&format!("{}: {error}; the fit continues", path.display()));
            }
        }
    }
    let report = report(&fit, &rows, &names, arguments.seed);
    context.console.report(&report)?;
    if let Some(path) = &arguments.write {
        std::fs::write(path, report.toml(&given)).map_err(|error| Fault::file(path, error))?;
        context.console.say(&format!(
            "wrote {}: pass it to --costs, or copy its sections into the scenario",
            path.display()
        ));
    }
    Ok(Exit::Done)
}

/// The maximum number of row names that a hint lists.
const NAMES_MAX: usize = 50;

/// Returns the names of the rows in a table; nothing else is read.
fn names_in(source: &Source, table: Option<&Path>) -> Option<String> {
    let names = RefCell::new(Vec::new());
    let seen = |name: &str| {
        names.borrow_mut().push(name.to_owned());
        false
    };
    source.measured(table, seen).ok()?;
    let mut names = names.into_inner();
    let more = names.len() > NAMES_MAX;
    names.truncate(NAMES_MAX);
    let listed = names.join(", ");
    (!listed.is_empty()).then(|| if more { format!("{listed}, …") } else { listed })
}

/// Checks that all names are parameters and that there is at least one.
fn are_parameters(names: &[&str]) -> Result<(), Fault> {
    let usage = |words: String| Fault::new(Exit::Usage, words);
    if names.iter().all(|name| name.is_empty()) {
        return Err(usage("no parameters were named".to_owned())
            .hint("name them with --parameters, or in the scenario's [calibration]"));
    }
    let known = || Costs::PARAMETERS.iter().map(|parameter| parameter.name);
    for (i, name) in names.iter().enumerate() {
        if !known().any(|known| known == *name) {
            let fault = usage(format!("`{name}` is not a parameter"));
            return Err(match nearest(name, known()) {
                Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
                None => fault.hint(format!("expected {}", known().collect::<Vec<_>>().join(", "))),
            });
        }
        if names[..i].contains(name) {
            return Err(usage(format!("parameter `{name}` was named twice")));
        }
    }
    Ok(())
}

/// Returns the report of the best fit so far, with its uncertainty.
fn report(fit: &Fit, rows: &[String], names: &[&str], seed: u64) -> CalibrationReport {
    let (best, costs) = fit.best();
    CalibrationReport::of(best, rows, names, &costs, &fit.samples(DRAWS, seed), SAMPLES)
}

/// Returns the scenario's parameters, updated with the fitted ones.
fn merged(base: &Costs, fitted: &Costs, names: &[&str]) -> Costs {
    let mut costs = base.clone();
    for name in names {
        if let Some(value) = fitted.get(name) {
            costs.set(name, value);
        }
    }
    costs
}

/// Returns how long to simulate a row: long enough for threads to settle on CPUs and for queues to grow. A
/// closed loop takes as long as the default window of `sim validate`, because its throughput depends on how
/// long threads migrate.
fn length(row: &MeasuredRow) -> Length {
    let (warmup, window) = match row.class {
        RowClass::Stable => (200, 100),
        RowClass::Knee => (300, 150),
        RowClass::Overload => (500, 200),
        RowClass::Max => (300, 400),
    };
    Length { warmup: warmup * 1_000_000, window: window * 1_000_000 }
}

/// Returns the error of a good prediction: in percent, or in percentage points for shares of CPU time.
fn good(class: RowClass, metric: Metric) -> f64 {
    match (class, metric) {
        (RowClass::Stable, Metric::Cpu) => 1.5,
        (_, Metric::Cpu) => 3.0,
        (RowClass::Max, Metric::Qps) => 1.5,
        (_, Metric::Qps) => 2.0,
        (RowClass::Stable | RowClass::Max, Metric::Avg | Metric::P50) => 3.0,
        (RowClass::Stable, Metric::P90 | Metric::P95) => 5.0,
        (RowClass::Stable, Metric::P99 | Metric::P999 | Metric::P9999)
        | (RowClass::Max, Metric::P90 | Metric::P95) => 8.0,
        (RowClass::Max, Metric::P99 | Metric::P999 | Metric::P9999)
        | (RowClass::Overload, Metric::Avg | Metric::P50) => 12.0,
        (RowClass::Knee, Metric::Avg | Metric::P50) | (RowClass::Overload, _) => 25.0,
        (RowClass::Knee, _) => 40.0,
    }
}

/// Returns the error of a run against a row's value, in units of [`good`]. A prediction too low by some
/// factor weighs the same as one too high by that factor.
fn missed(row: &MeasuredRow, metric: Metric, measured: f64, outcome: &Outcome) -> f64 {
    // A short run has no such percentile, so it cannot be compared.
    let Some(predicted) = value(outcome, metric) else { return 0.0 };
    let off = match metric {
        Metric::Cpu => predicted - measured,
        _ => 100.0 * sim::math::ln(predicted.max(1e-9) / measured.max(1e-9)),
    };
    off / good(row.class, metric)
}

/// Returns the errors of one run per row, by row and metric.
fn residuals(rows: &[MeasuredRow], runs: &[Outcome]) -> Vec<f64> {
    let of_row = |(row, run): (&MeasuredRow, &Outcome)| -> Vec<f64> {
        row.values.iter().map(|&(metric, measured)| missed(row, metric, measured, run)).collect()
    };
    rows.iter().zip(runs).flat_map(of_row).collect()
}
