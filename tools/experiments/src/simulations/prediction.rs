//! Combines several runs of a point into a prediction.

use cli::Console;
use model::OfferedLoad;
use session::{Exit, Fault};
use sim::outcome::Length;
use sim::scenario::SPAN_MAX;
use sim::{Costs, Histogram, Outcome, Scenario};

use super::evidence::evidence;
use super::points::{Job, run_all};
use crate::predicted::{Predicted, Prediction, Range};
use crate::scenario_file::{Metric, ScenarioFile};

/// How each point is simulated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) seeds: u64,
    /// The maximum number of parameter sets in addition to the scenario's own.
    pub(super) samples: usize,
    pub(super) first_seed: u64,
    pub(super) length: Length,
    /// Whether each point is also probed at a higher load.
    pub(super) probe: bool,
}

/// If the means of two seeds differ by at least this ratio, the point has two modes.
pub(super) const BISTABLE_RATIO: f64 = 1.5;
/// The factor by which a probe for the knee increases the load.
const PROBE_LOAD: f64 = 1.12;
/// If the probe increases the mean by at least this ratio, the point is at the knee.
const KNEE_RATIO: f64 = 1.5;

/// The maximum number of runs whose outcomes are in memory at the same time: each takes about 40 KB.
const RUNS_MAX: usize = 4096;

/// Predicts points.
pub(super) fn predict(
    points: &[(String, Scenario)],
    file: &ScenarioFile,
    effort: Effort,
    console: &Console,
) -> Result<Vec<Prediction>, Fault> {
    let samples = &file.samples[..effort.samples.min(file.samples.len())];
    if let Some(words) = unsettled(points, effort.length) {
        console.say(&words);
    }
    let mut predictions = Vec::new();
    for part in points.chunks(points_at_once(samples, effort)) {
        let jobs: Vec<Job> = part.iter().flat_map(|(_, point)| jobs_of(point, samples, effort)).collect();
        let (from, of) = (predictions.len(), points.len());
        let what = match part.len() == of {
            true => "simulating".to_owned(),
            false => format!("simulating, points {} to {} of {of}", from + 1, from + part.len()),
        };
        let outcomes = run_all(&jobs, console, &what)?;
        let mut rest = outcomes.as_slice();
        for (name, scenario) in part {
            let (mine, others) = rest.split_at(jobs_of(scenario, samples, effort).len());
            rest = others;
            if mine.iter().all(|run| run.latency.count() == 0) {
                let window = model::Nanoseconds(effort.length.window);
                let words = format!("{name}: no request was answered within {window}: nothing to predict");
                return Err(Fault::new(Exit::Usage, words).hint("--window sets the measured time"));
            }
            let mut prediction = prediction(name, scenario, samples, effort, mine);
            prediction.calibrated = file.is_calibrated();
            predictions.push(prediction);
        }
    }
    Ok(predictions)
}

/// Returns how many points' runs fit in memory at the same time.
fn points_at_once(samples: &[Costs], effort: Effort) -> usize {
    let each = usize::try_from(effort.seeds).unwrap_or(usize::MAX).saturating_add(samples.len() + 1);
    (RUNS_MAX / each).max(1)
}

/// After this many mean gaps between requests, the start of a connection no longer affects the run.
const SETTLED_GAPS: f64 = 4.0;

/// Warns about points whose connections send hardly anything before the window opens.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
fn unsettled(points: &[(String, Scenario)], length: Length) -> Option<String> {
    let slowest = points.iter().filter_map(|(name, scenario)| match scenario.clients.load {
        OfferedLoad::PerSecond(rate) => Some((name, f64::from(scenario.clients.connections) / rate * 1e3)),
        OfferedLoad::Max => None,
    });
    let (name, gap) = slowest.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let would_do = (SETTLED_GAPS * gap).ceil();
    let (warmup, most) =
        (model::Nanoseconds(length.warmup), (SPAN_MAX.0 - length.window.min(SPAN_MAX.0)) as f64 / 1e6);
    (length.warmup as f64 / 1e6 < SETTLED_GAPS * gap).then(|| {
        let words = format!(
            "{name}: a connection sends every {gap:.1} ms, so its load has not settled after {warmup} of warm-up"
        );
        match would_do <= most {
            true => format!("{words}; --warmup {would_do:.0}ms is enough"),
            false => format!("{words}, nor would it in an hour; use fewer connections"),
        }
    })
}

/// Returns the runs of a point: seeds, parameter sets, and the probe.
fn jobs_of(scenario: &Scenario, samples: &[Costs], effort: Effort) -> Vec<Job> {
    let Effort { seeds, first_seed, length, probe, samples: _ } = effort;
    let job = |scenario: Scenario, seed| Job { scenario, seed, length };
    let mut jobs: Vec<Job> = (0..seeds).map(|i| job(scenario.clone(), first_seed + i)).collect();
    for (i, costs) in (0..).zip(samples) {
        jobs.push(job(Scenario { costs: costs.clone(), ..scenario.clone() }, first_seed + seeds + i));
    }
    if probe && let OfferedLoad::PerSecond(rate) = scenario.clients.load {
        let mut probed = scenario.clone();
        probed.clients.load = OfferedLoad::PerSecond(rate * PROBE_LOAD);
        jobs.push(job(probed, first_seed));
    }
    jobs
}

/// A run with fewer requests has none above its 99.99th percentile.
const REQUESTS_OF_P9999: u64 = 10_000;

/// Returns a run's value of a metric; `None` for a percentile that no request exceeded.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
pub(super) fn value(outcome: &Outcome, metric: Metric) -> Option<f64> {
    let micros = |parts| outcome.latency.quantile(parts) as f64 / 1000.0;
    Some(match metric {
        Metric::Qps => outcome.throughput(),
        Metric::Avg => outcome.latency.mean() / 1000.0,
        Metric::P50 => micros(5_000),
        Metric::P90 => micros(9_000),
        Metric::P95 => micros(9_500),
        Metric::P99 => micros(9_900),
        Metric::P999 => micros(9_990),
        Metric::P9999 if outcome.latency.count() <= REQUESTS_OF_P9999 => return None,
        Metric::P9999 => micros(9_999),
        Metric::Cpu => outcome.busy() * 100.0,
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
#[expect(clippy::cast_possible_truncation, reason = "a handful of seeds")]
fn prediction(
    name: &str,
    scenario: &Scenario,
    samples: &[Costs],
    effort: Effort,
    outcomes: &[Outcome],
) -> Prediction {
    let (runs, probes) = outcomes.split_at((effort.seeds as usize + samples.len()).min(outcomes.len()));
    let seeds = &runs[..(effort.seeds as usize).min(runs.len())];
    let values = Metric::ALL.into_iter().filter_map(|metric| {
        let over = |runs: &[Outcome]| {
            let mut values = runs.iter().map(|run| value(run, metric)).collect::<Option<Vec<f64>>>()?;
            values.sort_by(f64::total_cmp);
            Some(values)
        };
        let (by_seed, all) = (over(seeds)?, over(runs)?);
        let range = match all.as_slice() {
            [low, .., high] => Some(Range { low: *low, high: *high }),
            [] | [_] => None,
        };
        Some(Predicted { metric, value: by_seed.get(by_seed.len() / 2).copied().unwrap_or(0.0), range })
    });
    let means: Vec<f64> = seeds.iter().map(|run| run.latency.mean()).collect();
    let (least, most) = means.iter().fold((f64::MAX, 0.0_f64), |(l, m), &x| (l.min(x), m.max(x)));
    let behind = seeds.iter().filter(|run| run.falls_behind()).count() * 2 > seeds.len();
    let growth = seeds.iter().map(Outcome::backlog_growth).sum::<f64>() / seeds.len().max(1) as f64;
    let knee = !behind
        && probes.iter().any(|probe| probe.falls_behind() || probe.latency.mean() > KNEE_RATIO * least);
    let mut latency = Histogram::new();
    seeds.iter().for_each(|run| latency.merge(&run.latency));
    Prediction {
        name: name.to_owned(),
        load: scenario.clients.load.to_string(),
        calibrated: false,
        idle_threads: scenario.idle_threads(),
        values: values.collect(),
        backlog_growth: behind.then_some(growth),
        bistable: most > BISTABLE_RATIO * least,
        knee,
        drops: seeds.iter().map(|run| run.dropped as f64 * 1e9 / run.window as f64).sum::<f64>()
            / seeds.len().max(1) as f64,
        evidence: evidence(name, scenario, effort.first_seed, &seeds[0]),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn however_many_seeds_there_are_a_bounded_number_of_runs_is_held() {
        for seeds in [1, 5, 1000] {
            let length = Length { warmup: 0, window: 1 };
            let effort = Effort { seeds, samples: 0, first_seed: 1, length, probe: true };
            let samples = vec![Costs::default(); 64];
            let each = jobs_of(&Scenario::default(), &samples, effort).len();
            let points = points_at_once(&samples, effort);
            assert!(points >= 1 && points * each <= RUNS_MAX, "{points} points of {each} runs");
        }
    }
}
