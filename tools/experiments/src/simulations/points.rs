//! Runs many simulations on all CPUs and shows the estimated remaining time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cli::Console;
use session::{Exit, Fault};
use sim::outcome::Length;
use sim::{Outcome, Scenario};

/// One simulation.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) scenario: Scenario,
    pub(crate) seed: u64,
    pub(crate) length: Length,
}

/// The interval between progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Runs all jobs; the outcomes are in the order of the jobs, whatever the number of CPUs.
pub(crate) fn run_all(jobs: &[Job], console: &Console, what: &str) -> Result<Vec<Outcome>, Fault> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(jobs.len().max(1));
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let outcomes: Vec<Mutex<Option<Result<Outcome, sim::Impossible>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let worker = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(index) else { break };
                let outcome = sim::run(&job.scenario, job.seed, job.length);
                if let Ok(mut place) = outcomes[index].lock() {
                    *place = Some(outcome);
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        for _ in 0..cpus {
            scope.spawn(worker);
        }
        let mut reported = Instant::now();
        while done.load(Ordering::Relaxed) < jobs.len() && next.load(Ordering::Relaxed) < jobs.len() + cpus {
            std::thread::sleep(Duration::from_millis(20));
            if reported.elapsed() >= PROGRESS_INTERVAL {
                reported = Instant::now();
                console.progress(&progress(what, done.load(Ordering::Relaxed), jobs.len(), began.elapsed()));
            }
        }
    });
    console.progress("");
    outcomes
        .into_iter()
        .map(|place| match place.into_inner() {
            Ok(Some(outcome)) => outcome.map_err(|impossible| Fault::new(Exit::Usage, impossible)),
            Ok(None) | Err(_) => Err(Fault::failed("a simulation did not end")),
        })
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "a share for display")]
fn progress(what: &str, done: usize, all: usize, spent: Duration) -> String {
    if done == 0 {
        return format!("{what}: 0 of {all}");
    }
    let left = spent.as_secs_f64() * (all - done) as f64 / done as f64;
    format!("{what}: {done} of {all}, {left:.0} s left")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_the_jobs_left() {
        assert_eq!(progress("points", 10, 40, Duration::from_secs(5)), "points: 10 of 40, 15 s left");
        assert_eq!(progress("points", 0, 40, Duration::from_secs(5)), "points: 0 of 40");
    }
}
