//! `sim run`: predicts a scenario, or a sweep over one.

use sim::Scenario;
use sim::outcome::Length;
use sim::scenario::Refused;

use super::prediction::{Effort, predict};
use super::source::scenario;
use crate::args::{SimEffort, SimRun};
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::PredictionReport;
use crate::scenario_file::nearest_key;

/// The most points of a sweep.
const POINTS_MAX: usize = 10_000;

/// Predicts.
pub(super) fn run(arguments: &SimRun, context: &Context) -> Result<Exit, Fault> {
    let source = scenario(&arguments.scenario)?.with_costs(arguments.costs.as_deref())?;
    let given =
        arguments.set.iter().map(|setting| assignment("--set", setting)).collect::<Result<Vec<_>, _>>()?;
    let mut points = vec![(String::new(), given)];
    let mut seen = Vec::new();
    for sweep in &arguments.sweep {
        let (key, values) = assignment("--sweep", sweep)?;
        if seen.contains(&key) {
            return Err(Fault::new(Exit::Usage, format!("{key} is swept twice"))
                .hint(format!("put all values into one: --sweep {key}=A,B")));
        }
        seen.push(key);
        let listed: Vec<&str> = values.split(',').collect();
        if let Some((_, value)) = listed.iter().enumerate().find(|(i, value)| listed[..*i].contains(value)) {
            return Err(Fault::new(Exit::Usage, format!("--sweep {sweep}: `{value}` twice")));
        }
        let mut swept = Vec::new();
        for (name, given) in &points {
            for value in &listed {
                let mut given = given.clone();
                given.push((key, value));
                let gap = if name.is_empty() { "" } else { "@" };
                swept.push((format!("{name}{gap}{value}"), given));
            }
        }
        points = swept;
        if points.len() > POINTS_MAX {
            return Err(Fault::new(Exit::Usage, format!("the sweep has more than {POINTS_MAX} points")));
        }
    }
    if points.len() == 1 {
        points[0].0.clone_from(&source.name);
    }
    let points = points
        .into_iter()
        .map(|(name, given)| Ok((name, with(&source.file.scenario, &given)?)))
        .collect::<Result<Vec<_>, Fault>>()?;
    for (name, scenario) in &points {
        scenario.check().map_err(|impossible| Fault::new(Exit::Usage, format!("{name}: {impossible}")))?;
    }
    if arguments.check {
        check(&points, arguments.effort)?;
        context.console.say(&format!("{} points obey every law", points.len()));
    }
    let samples: Vec<_> = source.file.samples.iter().take(arguments.effort.samples).cloned().collect();
    let predictions = predict(&points, &samples, effort(arguments.effort), &context.console)?;
    let over = over(arguments.effort.seeds, samples.len());
    context.console.report(&PredictionReport::of(&source.file.title, &over, predictions))?;
    Ok(Exit::Done)
}

/// A scenario with what the command line gives it. As in a file, a delivery mode brings values of its own, and keys beside
/// it change them afterwards.
pub(super) fn with(scenario: &Scenario, given: &[(&str, &str)]) -> Result<Scenario, Fault> {
    let mut scenario = scenario.clone();
    let (modes, others): (Vec<_>, Vec<_>) = given.iter().partition(|(key, _)| *key == "delivery.mode");
    for (key, value) in modes.into_iter().chain(others) {
        set(&mut scenario, key, value)?;
    }
    Ok(scenario)
}

/// What the range of a value is over.
fn over(seeds: u64, samples: usize) -> String {
    let many = |n: u64, one: &str| if n == 1 { format!("one {one}") } else { format!("{n} {one}s") };
    match samples {
        0 => format!("{} at one set of parameters", many(seeds, "seed")),
        _ => format!("{} and {samples} more sets of parameters", many(seeds, "seed")),
    }
}

/// Runs each point once under the checkers.
fn check(points: &[(String, Scenario)], arguments: SimEffort) -> Result<(), Fault> {
    let Effort { first_seed, length, .. } = effort(arguments);
    for (name, scenario) in points {
        let (_, checker) = sim::run_watched(scenario, first_seed, length, sim::checker::Checker::new())
            .map_err(|impossible| Fault::new(Exit::Usage, impossible))?;
        checker.verdict(length.warmup + length.window).map_err(|wrong| {
            Fault::failed(format!("{name}, seed {first_seed}: the model broke its own law: {wrong}"))
        })?;
    }
    Ok(())
}

/// The effort that the command line asks for.
pub(super) fn effort(arguments: SimEffort) -> Effort {
    Effort {
        seeds: arguments.seeds,
        first_seed: arguments.seed,
        length: Length { warmup: arguments.warmup.0, window: arguments.window.0 },
        probe: !arguments.no_probe,
    }
}

fn assignment<'a>(option: &str, text: &'a str) -> Result<(&'a str, &'a str), Fault> {
    text.split_once('=').ok_or_else(|| {
        Fault::new(Exit::Usage, format!("{option} {text}: write KEY=VALUE, as in clients.load=400K"))
    })
}

/// Sets a key, given on the command line.
fn set(scenario: &mut Scenario, key: &str, value: &str) -> Result<(), Fault> {
    scenario.set(key, value).map_err(|refused| match &refused {
        Refused::NoKey(_) => {
            let fault = Fault::new(Exit::Usage, refused.to_string());
            match nearest_key(key) {
                Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
                None => fault,
            }
        }
        Refused::Value(_) => Fault::new(Exit::Usage, format!("{key}={value}: {refused}")),
    })
}
