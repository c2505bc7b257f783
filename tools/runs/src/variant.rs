//! Computes the rows of one experiment of a grid, and the ratios of its configurations.

use latency::measure::statistics::{Interval, median_interval, paired_difference, paired_ratio};
use load::record::Recorder;
use model::{Evidence, ExchangeWorkload, OfferedLoad, PollCounts, Workload};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::experiment::Results;
use crate::summary::{late, remarks};

/// One experiment of a grid.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// The experiment's unique name, such as `1 B/1 B, 64 flows`.
    pub name: String,
    /// Closed-loop answers per second of the first configuration, if loads are shares of that rate.
    pub borne: Option<f64>,
    /// The results of the experiment.
    pub results: Results,
}

/// The results of one configuration at one load, over all its rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The configuration.
    pub label: String,
    /// The load.
    pub load: OfferedLoad,
    /// Caveats for reading this row.
    pub remarks: Vec<String>,
    /// Runs that count.
    pub runs: usize,
    /// Answers per second; for streams, gigabits per second. This field and all below are `None` without runs
    /// that count.
    pub rate: Option<Interval>,
    /// Response times in microseconds, at [`Row::QUANTILES`].
    pub latency_us: [Option<Interval>; Row::QUANTILES.len()],
    /// The generator's lateness, in microseconds: median and 99th percentile. Also `None` in closed loop and
    /// in simulations.
    pub late_us: [Option<Interval>; 2],
    /// CPU use of the server's CPUs, in percent. This field and all below are also `None` if not measured.
    pub cpu_percent: Option<Interval>,
    /// Context switches of the host per second.
    pub switches: Option<Interval>,
    /// Polls of the server's NAPIs in softirq, per second.
    pub softirq_polls: Option<Interval>,
    /// Polls after an interrupt, per answer.
    pub interrupts: Option<Interval>,
    /// Polls by the NAPIs' kernel threads, per second.
    pub kthread_polls: Option<Interval>,
    /// Polls by the application itself, per second.
    pub own_polls: Option<Interval>,
}

impl Row {
    /// The displayed quantiles.
    pub const QUANTILES: [f64; 6] = [0.5, 0.9, 0.95, 0.99, 0.999, 0.9999];

    fn of(label: &str, load: OfferedLoad, all: &[&Evidence], rounds: u32) -> Self {
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
            remarks: remarks(
                runs.iter().any(|run| run.saturated()),
                runs.iter().any(|run| run.limited_by_generator()),
                all.len() - runs.len(),
                all.len(),
                rounds as usize,
            ),
            runs: runs.len(),
            rate: over(&|run| Some(rate(run))),
            latency_us,
            late_us: [late(&runs, |late| late.p50), late(&runs, |late| late.p99)],
            cpu_percent: over(&|run| Some(run.cpu?.busy() * 100.0)),
            switches: over(&|run| Some(run.counters.as_ref()?.context_switches)),
            softirq_polls: polls(|napi| napi.softirq()),
            interrupts: over(&|run| run.interrupts_per_request),
            kthread_polls: polls(|napi| napi.kthread),
            own_polls: polls(|napi| napi.application),
        }
    }
}

/// Compares one configuration with another at one load, by ratios over pairs of runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratios {
    /// The configuration.
    pub label: String,
    /// The configuration that `label` is compared with.
    pub against: String,
    /// The load.
    pub load: OfferedLoad,
    /// The number of pairs of runs that both count.
    pub pairs: usize,
    /// Ratio of the rates, offered or answered; `None` with fewer than two pairs.
    pub rate: Option<Interval>,
    /// Ratios of response times, at [`Row::QUANTILES`].
    pub latency: [Option<Interval>; Row::QUANTILES.len()],
    /// Difference in CPU use of the server's CPUs, in percentage points.
    pub cpu_points: Option<Interval>,
}

/// Returns the pairs of runs that two configurations made in the same round, if both runs count.
pub(crate) fn pairs<'a>(
    results: &'a Results,
    label: &str,
    against: &str,
    load: OfferedLoad,
) -> Vec<(&'a Evidence, &'a Evidence)> {
    let (before, after) = (results.cell(against, load), results.cell(label, load));
    // Only runs of the same round share a seed.
    let partner = |run: &'a Evidence| {
        let seed = run.workload.seed();
        let partner = after.iter().find(|other| other.workload.seed() == seed && other.void.is_none())?;
        Some((run, *partner))
    };
    before.into_iter().filter(|run| run.void.is_none()).filter_map(partner).collect()
}

impl Ratios {
    /// Computes the ratios over the runs of an experiment.
    pub(crate) fn of(results: &Results, label: &str, against: &str, load: OfferedLoad) -> Self {
        Self::over([results], label, against, load)
    }

    /// Computes the ratios over the runs of several experiments.
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
    /// Returns the rows of the table: configuration by configuration, each in the order of loads.
    pub fn rows(&self) -> Vec<Row> {
        let experiment = &self.results.experiment;
        let cells = experiment
            .labels
            .iter()
            .flat_map(|label| experiment.loads.iter().map(move |&load| (label, load)));
        let row = |(label, load): (&String, _)| {
            Row::of(label, load, &self.results.cell(label, load), experiment.rounds)
        };
        cells.map(row).collect()
    }

    /// Compares every configuration with the first; empty without a pair of runs that count.
    pub fn ratios(&self) -> Vec<Ratios> {
        let experiment = &self.results.experiment;
        let Some((first, others)) = experiment.labels.split_first() else { return Vec::new() };
        let cells = others.iter().flat_map(|label| experiment.loads.iter().map(move |&load| (label, load)));
        let ratios: Vec<_> =
            cells.map(|(label, load)| Ratios::of(&self.results, label, first, load)).collect();
        if ratios.iter().all(|ratios| ratios.pairs == 0) { Vec::new() } else { ratios }
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.results
            .evidence
            .iter()
            .any(|run| matches!(run.workload, Workload::TcpStream(_) | Workload::UdpStream(_)))
    }
}

/// Returns answers per second; for streams, gigabits per second.
fn rate(run: &Evidence) -> f64 {
    match &run.workload {
        Workload::TcpStream(ExchangeWorkload { request_bytes, answer_bytes, .. })
        | Workload::UdpStream(ExchangeWorkload { request_bytes, answer_bytes, .. }) => {
            run.throughput * f64::from(*request_bytes.max(answer_bytes)) * 8.0 / 1e9
        }
        Workload::Memcached(_)
        | Workload::TcpRr(_)
        | Workload::UdpRr(_)
        | Workload::Storage(_)
        | Workload::Foreign(_) => run.throughput,
    }
}

/// Returns the response times in microseconds at [`Row::QUANTILES`]; `None` if the evidence has no histogram,
/// or so few answers that the quantile is the longest of them.
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

/// How many answers must exceed a quantile for it to be shown.
const BEYOND_MIN: f64 = 1.0;

/// An interval that spans at least this factor shows only that there are too few pairs.
const INTERVAL_REACH_MAX: f64 = 100.0;

/// Formats a ratio with its interval: `0.42 (0.38-0.47)`, or `0.42 (-)` if the interval is too wide to be
/// useful.
pub(crate) fn ratio(interval: &Option<Interval>) -> String {
    match interval {
        None => "-".to_owned(),
        Some(Interval { estimate, low, high }) if *high > *low * INTERVAL_REACH_MAX => {
            format!("{estimate:.2} (-)")
        }
        Some(Interval { estimate, low, high }) => format!("{estimate:.2} ({low:.2}-{high:.2})"),
    }
}
