//! `sim run`: predicts a scenario, or a sweep over one.

use std::collections::BTreeMap;

use session::{Exit, Fault, count};
use sim::Scenario;
use sim::outcome::Length;
use sim::scenario::{Refused, SPAN_MAX};

use super::list::listed;
use super::prediction::{Effort, predict};
use super::source::{Source, scenario, standard_input_once};
use crate::Context;
use crate::reports::PredictionReport;
use crate::scenario_file::nearest_key;
use crate::sim_args::{SimEffort, SimRun};

/// Maximum number of points in a sweep.
const POINTS_MAX: usize = 10_000;

/// Runs the prediction.
pub(super) fn run(arguments: &SimRun, context: &Context<'_>) -> Result<Exit, Fault> {
    standard_input_once(&[
        ("the scenario", Some(arguments.scenario.as_path())),
        ("--costs", arguments.costs.as_deref()),
    ])?;
    let effort = effort(arguments.effort)?;
    let source = scenario(&arguments.scenario)?.with_costs(arguments.costs.as_deref())?;
    let points = points(arguments, &source)?;
    for (name, scenario) in &points {
        scenario.check().map_err(|impossible| Fault::new(Exit::Usage, format!("{name}: {impossible}")))?;
    }
    if arguments.check {
        check(&points, effort)?;
        let obey = if points.len() == 1 { "obeys" } else { "obey" };
        context.console.say(&format!("{} {obey} every law", count(points.len(), "point")));
    }
    let predictions = predict(&points, &source.file, effort, context.console)?;
    let over = over(arguments.effort.seeds, source.file.samples.len().min(effort.samples));
    context.console.report(&PredictionReport::of(&source.file.heading(), &over, predictions))?;
    Ok(Exit::Done)
}

/// Returns each point of the sweep with its name, or the scenario with its own name if there is no sweep.
fn points(arguments: &SimRun, source: &Source) -> Result<Vec<(String, Scenario)>, Fault> {
    let (mut given, mut seen) = (Vec::new(), Vec::new());
    for setting in &arguments.set {
        let (key, value) = assignment("--set", setting)?;
        if seen.contains(&key) {
            return Err(Fault::new(Exit::Usage, format!("{key} is set twice")));
        }
        seen.push(key);
        given.push((key, value.to_owned()));
    }
    let mut points = vec![(String::new(), given)];
    for sweep in &arguments.sweep {
        let (key, values) = assignment("--sweep", sweep)?;
        if seen.contains(&key) {
            let fault = Fault::new(Exit::Usage, format!("{key} is swept twice, or both swept and set"));
            return Err(fault.hint(format!("put all values into one: --sweep {key}=A,B")));
        }
        seen.push(key);
        let values =
            listed(values).map_err(|why| Fault::new(Exit::Usage, format!("--sweep {key}: {why}")))?;
        if values.len().saturating_mul(points.len()) > POINTS_MAX {
            return Err(Fault::new(Exit::Usage, format!("the sweep has more than {POINTS_MAX} points")));
        }
        alike(&source.file.scenario, key, &values)?;
        let mut swept = Vec::new();
        for (name, given) in &points {
            for value in &values {
                let mut given = given.clone();
                given.push((key, value.clone()));
                let gap = if name.is_empty() { "" } else { "@" };
                swept.push((format!("{name}{gap}{value}"), given));
            }
        }
        points = swept;
    }
    if arguments.sweep.is_empty() {
        points[0].0.clone_from(&source.name);
    }
    points.into_iter().map(|(name, given)| Ok((name, with(&source.file.scenario, &given)?))).collect()
}

/// Refuses sweep values that are equal even if they are written differently.
fn alike(scenario: &Scenario, key: &str, values: &[String]) -> Result<(), Fault> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for value in values {
        let one = with(scenario, &[(key, value.clone())])?.hash();
        if let Some(other) = seen.insert(one, value) {
            let words = match other == value {
                true => format!("--sweep {key}: `{value}` twice"),
                false => format!("--sweep {key}: `{other}` and `{value}` are the same"),
            };
            return Err(Fault::new(Exit::Usage, words));
        }
    }
    Ok(())
}

/// Applies the settings of the command line to a scenario.
fn with(scenario: &Scenario, given: &[(&str, String)]) -> Result<Scenario, Fault> {
    let mut scenario = scenario.clone();
    let given = || given.iter().map(|(key, value)| (*key, value.as_str()));
    scenario.set_all(given()).map(|()| scenario).map_err(|(place, refused)| {
        let key = given().nth(place).unwrap_or_default().0;
        match &refused {
            Refused::NoKey(_) => {
                let fault = Fault::new(Exit::Usage, refused.to_string());
                match nearest_key(key) {
                    Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
                    None => fault,
                }
            }
            Refused::Value(_) => Fault::new(Exit::Usage, format!("{key}: {refused}")),
        }
    })
}

/// Describes the seeds and parameter sets over which a value's range is computed.
fn over(seeds: u64, samples: usize) -> String {
    let many = |n: u64, one: &str| if n == 1 { format!("one {one}") } else { format!("{n} {one}s") };
    match samples {
        0 => format!("{} at one set of parameters", many(seeds, "seed")),
        _ => format!("{} and {samples} more sets of parameters", many(seeds, "seed")),
    }
}

/// Runs each point once with the simulator's consistency checks.
fn check(points: &[(String, Scenario)], effort: Effort) -> Result<(), Fault> {
    let Effort { first_seed, length, .. } = effort;
    for (name, scenario) in points {
        let (_, checker) = sim::run_watched(scenario, first_seed, length, sim::checker::Checker::new())
            .map_err(|impossible| Fault::new(Exit::Usage, impossible))?;
        checker.verdict(length.warmup + length.window).map_err(|wrong| {
            Fault::failed(format!("{name}, seed {first_seed}: the model violates an invariant: {wrong}"))
        })?;
    }
    Ok(())
}

/// Returns the effort that the command line requests.
pub(super) fn effort(arguments: SimEffort) -> Result<Effort, Fault> {
    if arguments.warmup.0.saturating_add(arguments.window.0) > SPAN_MAX.0 {
        let words = format!("--warmup and --window: at most {SPAN_MAX} can be simulated, both together");
        return Err(Fault::new(Exit::Usage, words));
    }
    Ok(Effort {
        seeds: arguments.seeds,
        samples: arguments.samples,
        first_seed: arguments.seed,
        length: Length { warmup: arguments.warmup.0, window: arguments.window.0 },
        probe: !arguments.no_probe,
    })
}

fn assignment<'a>(option: &str, text: &'a str) -> Result<(&'a str, &'a str), Fault> {
    text.split_once('=').ok_or_else(|| {
        Fault::new(Exit::Usage, format!("{option} {text}: write KEY=VALUE, as in clients.load=400K"))
    })
}
