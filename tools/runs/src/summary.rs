//! Summarises one configuration at one load over all its rounds, for the table and the report.

use model::{Distribution, Evidence, Nanoseconds, OfferedLoad};

use crate::experiment::Results;
use latency::measure::statistics::{Interval, median_interval};

/// The results of one configuration at one load.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The configuration.
    pub label: String,
    /// The load.
    pub load: OfferedLoad,
    /// Runs that count.
    pub runs: usize,
    /// Runs that were void.
    pub void: usize,
    /// Runs that the experiment has for this cell. An interrupted experiment made fewer.
    pub planned: usize,
    /// Runs that count in which the server did not keep up.
    pub saturated: usize,
    /// Runs that count in which the generator may have been the limit.
    pub limited: usize,
    /// Answers per second. This field and all below are `None` without runs that count.
    pub throughput: Option<Interval>,
    /// The mean response time, in microseconds.
    pub avg_us: Option<Interval>,
    /// The median response time, in microseconds.
    pub p50_us: Option<Interval>,
    /// The 95th percentile, in microseconds.
    pub p95_us: Option<Interval>,
    /// The 99th percentile, in microseconds.
    pub p99_us: Option<Interval>,
    /// The 99.9th percentile, in microseconds; also `None` if no answer of a run exceeded it.
    pub p999_us: Option<Interval>,
    /// The 99.99th percentile, in microseconds; also `None` if no answer of a run exceeded it, and in
    /// evidence of earlier versions.
    pub p9999_us: Option<Interval>,
    /// The median lateness of the generator, in microseconds; also `None` in closed loop and in simulations.
    pub late_p50_us: Option<Interval>,
    /// The 99th percentile of the generator's lateness, in microseconds.
    pub late_p99_us: Option<Interval>,
    /// CPU use of the server's CPUs, in percent; also `None` if not measured.
    pub cpu_percent: Option<Interval>,
    /// CPU time of the server's CPUs per answer, in microseconds; also `None` if not measured.
    pub cpu_us: Option<Interval>,
    /// CPU cycles of the server per answer; also `None` without perf counters.
    pub cycles: Option<Interval>,
    /// Interrupts of the server's machine per second; also `None` if not counted.
    pub irqs: Option<Interval>,
    /// Context switches of the server's machine per second; `None` if they were not counted.
    pub switches: Option<Interval>,
    /// The share of its packets that the server itself polled, in percent; also `None` if not
    /// counted.
    pub own_percent: Option<Interval>,
    /// Interrupts per answer; also `None` if not counted.
    pub interrupts: Option<Interval>,
    /// Events per `epoll_wait` of the server, over the calls that returned any; also `None` if the server's
    /// calls were not counted.
    pub batch: Option<Interval>,
    /// The share of `epoll_wait` calls that returned no event, in percent; also `None` if the server's calls
    /// were not counted.
    pub empty_percent: Option<Interval>,
}

impl Summary {
    /// Summarises all cells of an experiment, configuration by configuration, each in the order of loads.
    pub fn of(results: &Results) -> Vec<Self> {
        let experiment = &results.experiment;
        let cells = experiment
            .labels
            .iter()
            .flat_map(|label| experiment.loads.iter().map(move |&load| (label, load)));
        cells
            .map(|(label, load)| Self::of_runs(label, load, &results.cell(label, load), experiment.rounds))
            .collect()
    }

    fn of_runs(label: &str, load: OfferedLoad, all: &[&Evidence], rounds: u32) -> Self {
        let runs: Vec<&Evidence> = all.iter().copied().filter(|run| run.void.is_none()).collect();
        let over = |of: &dyn Fn(&Evidence) -> f64| {
            median_interval(&runs.iter().map(|run| of(run)).collect::<Vec<_>>())
        };
        // The value is `None` if a run lacks it.
        let counted = |of: &dyn Fn(&Evidence) -> Option<f64>| {
            median_interval(&runs.iter().map(|run| of(run)).collect::<Option<Vec<_>>>()?)
        };
        // An idle server has no response times.
        let timed = |of: &dyn Fn(&Evidence) -> f64| if load == OfferedLoad::IDLE { None } else { over(of) };
        Self {
            label: label.to_owned(),
            load,
            runs: runs.len(),
            void: all.len() - runs.len(),
            planned: rounds as usize,
            saturated: runs.iter().filter(|run| run.saturated()).count(),
            limited: runs.iter().filter(|run| run.limited_by_generator()).count(),
            throughput: over(&|run| run.throughput),
            avg_us: timed(&|run| run.latency.avg / 1e3),
            p50_us: timed(&|run| micros(run.latency.p50)),
            p95_us: timed(&|run| micros(run.latency.p95)),
            p99_us: timed(&|run| micros(run.latency.p99)),
            p999_us: counted(&|run| exceeded(run, 1_000).then(|| micros(run.latency.p999))),
            p9999_us: counted(&|run| run.latency.p9999.filter(|_| exceeded(run, 10_000)).map(micros)),
            late_p50_us: late(&runs, |late| late.p50),
            late_p99_us: late(&runs, |late| late.p99),
            cpu_percent: counted(&|run| Some(run.cpu?.busy() * 100.0)),
            cpu_us: counted(&|run| {
                let cpu = run.cpu.filter(|_| run.throughput > 0.0)?;
                Some(cpu.busy() * f64::from(cpu.cpus) / run.throughput * 1e6)
            }),
            cycles: counted(&|run| run.cycles_per_request),
            irqs: counted(&|run| Some(run.counters.as_ref()?.irqs)),
            switches: counted(&|run| Some(run.counters.as_ref()?.context_switches)),
            own_percent: counted(&|run| Some(run.delivered.as_ref()?.application_share()? * 100.0)),
            interrupts: counted(&|run| run.interrupts_per_request),
            batch: counted(&|run| Some(run.epoll_batch?.avg)),
            empty_percent: counted(&|run| Some(run.epoll_batch?.empty_share()? * 100.0)),
        }
    }

    /// Returns caveats for reading this cell; empty if there are none.
    pub fn remarks(&self) -> Vec<String> {
        remarks(self.saturated > 0, self.limited > 0, self.void, self.runs + self.void, self.planned)
    }
}

/// Returns caveats for reading a cell with this many void, made and planned runs.
pub(crate) fn remarks(
    saturated: bool,
    limited: bool,
    void: usize,
    made: usize,
    planned: usize,
) -> Vec<String> {
    let mut remarks = Vec::new();
    if saturated {
        remarks.push("saturated".to_owned());
    }
    if limited {
        remarks.push("generator at its limit".to_owned());
    }
    if void > 0 {
        remarks.push(format!("{void} of {made} runs void"));
    }
    if made < planned {
        remarks.push(format!("{made} of {planned} runs made"));
    }
    remarks
}

/// Summarises one statistic of the generator's lateness over the runs; `None` if a run cannot be late.
pub(crate) fn late(runs: &[&Evidence], of: fn(&Distribution) -> Nanoseconds) -> Option<Interval> {
    let each = |run: &&Evidence| {
        let late = &run.generator_lateness;
        (run.load != OfferedLoad::Max && late.count > 0).then(|| micros(of(late)))
    };
    median_interval(&runs.iter().map(each).collect::<Option<Vec<f64>>>()?)
}

/// Returns whether at least one answer of the run exceeded the percentile that one in `answers` exceeds.
fn exceeded(run: &Evidence, answers: u64) -> bool {
    run.latency.count >= answers
}

fn micros(span: Nanoseconds) -> f64 {
    span.as_secs_f64() * 1e6
}
