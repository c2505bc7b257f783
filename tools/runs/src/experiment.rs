//! Performs comparable runs: every configuration at every load in every round, in a shuffled order.
//!
//! Every round visits every configuration at every load once, in an order that the seed shuffles per round.
//! Changes of the host over time thus affect all configurations alike, and runs of one round form pairs. All
//! runs of a round have the same seed, so they offer the same requests at the same times.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use model::{Evidence, FormatName, MachineDescription, Nanoseconds, OfferedLoad};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use model::Chance;

/// The plan of an experiment.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The configurations, by the caller's names, in display order.
    pub labels: Vec<String>,
    /// The loads, in display order.
    pub loads: Vec<OfferedLoad>,
    /// How often each configuration runs at each load.
    pub rounds: u32,
    /// The seed of the order and of every run.
    pub seed: u64,
}

/// The position of a run in an experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell<'a> {
    /// The configuration.
    pub label: &'a str,
    /// The load.
    pub load: OfferedLoad,
    /// The round, from 0.
    pub round: u32,
    /// The seed of the run, which all runs of a round share.
    pub seed: u64,
}

impl Cell<'_> {
    /// Returns whether a run belongs to this cell: runs of one round share a seed.
    fn is_of(&self, run: &Evidence) -> bool {
        run.label == self.label && run.load == self.load && run.workload.seed() == self.seed
    }
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}, round {}", self.label, self.load, self.round + 1)
    }
}

/// The host of an experiment, provided by the caller: this crate must not know how it is configured.
pub trait Stage {
    /// The error that this trait's methods return.
    type Error: std::error::Error + 'static;

    /// Applies a configuration to the host.
    ///
    /// # Errors
    /// If the configuration could not be applied; the host is then unchanged.
    fn apply(&mut self, label: &str) -> Result<(), Self::Error>;

    /// Performs one run, and labels its evidence with the cell's label and load.
    ///
    /// # Errors
    /// If there is no run to judge. A void run is evidence, not an error.
    fn measure(&mut self, cell: Cell<'_>) -> Result<Evidence, Self::Error>;

    /// Restores the state that the host had before [`apply`](Self::apply).
    ///
    /// # Errors
    /// If the host could not be fully restored.
    fn restore(&mut self) -> Result<(), Self::Error>;
}

/// The progress of an experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'a> {
    /// Completed runs.
    pub done: usize,
    /// The total number of runs.
    pub total: usize,
    /// The next run; `None` after the last.
    pub next: Option<Cell<'a>>,
    /// Elapsed time.
    pub elapsed: Nanoseconds,
    /// Estimated remaining time, from the completed runs; `None` before the first.
    pub left: Option<Nanoseconds>,
}

/// All evidence of an experiment, in chronological order. Written and read as JSON.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// The format.
    pub schema: FormatName,
    /// The plan.
    pub experiment: Experiment,
    /// The runs.
    pub evidence: Vec<Evidence>,
    /// The machines of server and client, if these are different ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<MachineDescription>,
    /// The capacity of the first configuration in requests per second, if loads are shares of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<f64>,
    /// The options of the command that are neither in the plan nor in the workload of the runs, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

impl Results {
    /// The runs of an experiment on this machine.
    pub const fn new(experiment: Experiment, evidence: Vec<Evidence>) -> Self {
        Self {
            schema: FormatName,
            experiment,
            evidence,
            machines: Vec::new(),
            capacity: None,
            options: BTreeMap::new(),
        }
    }

    /// The runs of a configuration at a load, in the order of rounds, including void ones.
    pub fn cell(&self, label: &str, load: OfferedLoad) -> Vec<&Evidence> {
        self.evidence.iter().filter(|run| run.label == label && run.load == load).collect()
    }
}

/// An experiment that ended early.
#[derive(Debug)]
pub struct Stopped<E> {
    /// The run in which the experiment ended.
    pub cell: String,
    /// The reason.
    pub failure: Failure<E>,
    /// The results until the experiment ended.
    pub results: Results,
}

/// The failure, and whether the host was restored.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// The configuration could not be applied, or the run failed. The host was restored.
    Run(E),
    /// The run was made, but the host could not be restored.
    Restore(E),
    /// The run failed, and the host could not be restored.
    RunAndRestore {
        /// The error of the run.
        run: E,
        /// The error of restoring the host.
        restore: E,
    },
}

impl<E: fmt::Display> fmt::Display for Stopped<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the experiment stopped in {}: ", self.cell)?;
        match &self.failure {
            Failure::Run(run) => write!(f, "{run}"),
            Failure::Restore(restore) => write!(f, "the host was not restored: {restore}"),
            Failure::RunAndRestore { run, restore } => {
                write!(f, "{run}; and the host was not restored: {restore}")
            }
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Stopped<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.failure {
            Failure::Run(cause) | Failure::Restore(cause) | Failure::RunAndRestore { run: cause, .. } => {
                cause.source()
            }
        }
    }
}

impl Experiment {
    /// Returns every run of the experiment, in the order in which they are made.
    pub fn order(&self) -> Vec<Cell<'_>> {
        let mut order = Vec::new();
        for round in 0..self.rounds {
            let mut chance = Chance::stream(self.seed, &[u64::from(round)]);
            let seed = chance.bits();
            let cells =
                self.labels.iter().flat_map(|label| self.loads.iter().map(move |&load| (label, load)));
            let mut cells: Vec<_> = cells.map(|(label, load)| Cell { label, load, round, seed }).collect();
            chance.shuffle(&mut cells);
            order.append(&mut cells);
        }
        order
    }

    /// Performs every run. The host is restored after each, even a failed one.
    ///
    /// # Errors
    /// [`Stopped`] at the first run that fails.
    pub fn run<S: Stage>(
        &self,
        stage: &mut S,
        progress: impl FnMut(Progress<'_>),
    ) -> Result<Results, Box<Stopped<S::Error>>> {
        self.resume(stage, Vec::new(), |_| Ok(()), progress)
    }

    /// Performs the runs that are missing or void in `made`. Passes each to `keep` as soon as the host is
    /// restored.
    ///
    /// # Errors
    /// [`Stopped`] at the first run that fails or cannot be kept.
    pub fn resume<S: Stage>(
        &self,
        stage: &mut S,
        made: Vec<Evidence>,
        mut keep: impl FnMut(&Evidence) -> Result<(), S::Error>,
        mut progress: impl FnMut(Progress<'_>),
    ) -> Result<Results, Box<Stopped<S::Error>>> {
        let mut order = self.order();
        order.retain(|cell| !made.iter().any(|run| run.void.is_none() && cell.is_of(run)));
        let begin = Instant::now();
        let mut results = Results::new(self.clone(), made);
        let mut report = |done: usize| {
            let elapsed = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let each = elapsed.checked_div(done as u64);
            let left = each.map(|each| Nanoseconds(each.saturating_mul((order.len() - done) as u64)));
            let next = order.get(done).copied();
            progress(Progress { done, total: order.len(), next, elapsed: Nanoseconds(elapsed), left });
        };
        for (done, &cell) in order.iter().enumerate() {
            report(done);
            let stopped = |failure, results| Box::new(Stopped { cell: cell.to_string(), failure, results });
            if let Err(cause) = stage.apply(cell.label) {
                return Err(stopped(Failure::Run(cause), results));
            }
            let measured = stage.measure(cell);
            let restored = stage.restore();
            match (measured, restored) {
                (Ok(evidence), Ok(())) => {
                    let kept = keep(&evidence);
                    results.evidence.push(evidence);
                    if let Err(cause) = kept {
                        return Err(stopped(Failure::Run(cause), results));
                    }
                }
                (Ok(evidence), Err(cause)) => {
                    results.evidence.push(evidence);
                    return Err(stopped(Failure::Restore(cause), results));
                }
                (Err(run), Ok(())) => return Err(stopped(Failure::Run(run), results)),
                (Err(run), Err(restore)) => {
                    return Err(stopped(Failure::RunAndRestore { run, restore }, results));
                }
            }
        }
        report(order.len());
        Ok(results)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::test_evidence;
    use std::collections::BTreeSet;

    fn experiment() -> Experiment {
        Experiment {
            labels: ["base", "defer20", "suspend20"].map(str::to_owned).to_vec(),
            loads: vec![OfferedLoad::PerSecond(10_000.0), OfferedLoad::Max],
            rounds: 4,
            seed: 7,
        }
    }

    /// A host that records the calls.
    #[derive(Default)]
    struct Noted {
        applied: Option<String>,
        runs: usize,
        fails_in: Option<usize>,
        never_restores: bool,
    }

    #[derive(Debug, PartialEq, thiserror::Error)]
    #[error("the server is gone")]
    struct Gone;

    impl Stage for Noted {
        type Error = Gone;

        fn apply(&mut self, label: &str) -> Result<(), Gone> {
            assert_eq!(self.applied, None, "restored before the next run");
            self.applied = Some(label.to_owned());
            Ok(())
        }

        fn measure(&mut self, cell: Cell<'_>) -> Result<Evidence, Gone> {
            assert_eq!(self.applied.as_deref(), Some(cell.label));
            self.runs += 1;
            if self.fails_in == Some(self.runs) {
                return Err(Gone);
            }
            let base = test_evidence();
            let workload = base.workload.with_seed(cell.seed);
            Ok(Evidence { label: cell.label.to_owned(), load: cell.load, workload, ..base })
        }

        fn restore(&mut self) -> Result<(), Gone> {
            if self.never_restores {
                return Err(Gone);
            }
            self.applied = None;
            Ok(())
        }
    }

    #[test]
    fn every_round_visits_every_cell_once_in_an_order_of_its_own() {
        let experiment = experiment();
        let order = experiment.order();
        assert_eq!(order.len(), 24);
        let mut orders = BTreeSet::new();
        for (round, cells) in (0..).zip(order.chunks(6)) {
            let names: Vec<String> = cells.iter().map(|c| format!("{} {}", c.label, c.load)).collect();
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 6, "round {round}");
            assert!(cells.iter().all(|c| c.round == round && c.seed == cells[0].seed));
            orders.insert(names);
        }
        assert!(orders.len() > 1, "rounds are shuffled differently");
        assert_eq!(order, experiment.order(), "and the seed reproduces the order");
    }

    #[test]
    fn a_whole_experiment_has_every_cell_and_tells_how_long_it_takes() {
        let (mut stage, mut reported) = (Noted::default(), Vec::new());
        let results =
            experiment().run(&mut stage, |p| reported.push((p.done, p.next.is_some(), p.left.is_some())));
        let results = results.expect("nothing fails");
        assert_eq!(results.evidence.len(), 24);
        assert_eq!(results.cell("defer20", OfferedLoad::Max).len(), 4);
        assert_eq!(reported.first(), Some(&(0, true, false)));
        assert_eq!(reported.last(), Some(&(24, false, true)));
        let text = serde_json::to_string(&results).expect("serialises");
        assert_eq!(serde_json::from_str::<Results>(&text).expect("parses"), results);
    }

    #[test]
    fn a_run_that_fails_leaves_the_host_restored_and_the_results_so_far() {
        let mut stage = Noted { fails_in: Some(3), ..Noted::default() };
        let stopped = experiment().run(&mut stage, |_| {}).expect_err("the third run fails");
        assert_eq!(stage.applied, None);
        assert_eq!(stopped.results.evidence.len(), 2);
        assert!(stopped.to_string().ends_with("round 1: the server is gone"), "{stopped}");
    }

    #[test]
    fn a_resumed_experiment_makes_the_runs_that_are_missing_or_void() {
        let mut stage = Noted { fails_in: Some(9), ..Noted::default() };
        let stopped = experiment().run(&mut stage, |_| {}).expect_err("the ninth run fails");
        let mut made = stopped.results.evidence;
        made[2].void = Some("the generator was late".to_owned());
        let (mut stage, mut kept) = (Noted::default(), 0);
        let keep = |_: &Evidence| {
            kept += 1;
            Ok(())
        };
        let results = experiment().resume(&mut stage, made, keep, |_| {}).expect("nothing fails");
        assert_eq!((stage.runs, kept, results.evidence.len()), (17, 17, 25));
        for cell in experiment().order() {
            let counts = results.evidence.iter().filter(|run| cell.is_of(run) && run.void.is_none());
            assert_eq!(counts.count(), 1, "{cell}");
        }
    }

    #[test]
    fn a_run_that_cannot_be_kept_ends_the_experiment() {
        let stopped = experiment()
            .resume(&mut Noted::default(), Vec::new(), |_| Err(Gone), |_| {})
            .expect_err("the first run cannot be kept");
        assert_eq!((stopped.failure, stopped.results.evidence.len()), (Failure::Run(Gone), 1));
    }

    #[test]
    fn a_host_that_was_not_restored_ends_the_experiment_and_is_named() {
        let mut stage = Noted { never_restores: true, ..Noted::default() };
        let stopped = experiment().run(&mut stage, |_| {}).expect_err("nothing restores");
        assert_eq!((stopped.failure, stopped.results.evidence.len()), (Failure::Restore(Gone), 1));
        let mut stage = Noted { never_restores: true, fails_in: Some(1), ..Noted::default() };
        let stopped = experiment().run(&mut stage, |_| {}).expect_err("nothing restores");
        assert_eq!(stopped.failure, Failure::RunAndRestore { run: Gone, restore: Gone });
    }
}
