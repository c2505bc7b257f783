//! Measures a service window after window, and summarises the windows.

use std::time::{Duration, Instant};

use crate::measure::live::{Series, Summary, caveats, findings as findings_of};
use linux::Signals;
use model::Finding;
use model::live::LiveWindow;
use session::Fault;

use crate::live::cost::{Cost, Spent};
use crate::live::sampler::{Sample, Sampler};
use crate::live::target::MeasuredService;
use crate::live::thread_names::ThreadNames;

/// The interval between the starts of windows.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// The longest sleep between checks for signals and for the service's exit.
const TURN: Duration = Duration::from_millis(50);

/// Measures a service.
#[derive(Debug)]
pub struct Watcher {
    sampler: Sampler,
    series: Series,
    spent: Spent,
    names: ThreadNames,
}

/// The result of one turn of [`Watcher::turn`].
#[derive(Debug)]
pub enum WatchEvent {
    /// A window.
    Window(Box<MeasuredWindow>),
    /// All processes of the service have exited.
    Ended,
    /// A signal arrived.
    Interrupted,
}

/// One window, prepared for display.
#[derive(Debug)]
pub struct MeasuredWindow {
    /// The summary of this window.
    pub summary: Summary,
    /// The cost of a request in this window.
    pub cost: Cost,
    /// All measurements of the window.
    pub window: LiveWindow,
}

impl Watcher {
    /// Loads the meter.
    ///
    /// # Errors
    /// Exit 6, with the kernel's error, if the kernel lacks a feature or rejects the programs.
    pub fn load(target: &MeasuredService, sample: Duration) -> Result<Self, Fault> {
        let sampler = Sampler::load(target, sample)?;
        let names = ThreadNames::of_processes(&target.processes);
        Ok(Self { sampler, series: Series::new(), spent: Spent::default(), names })
    }

    /// Sets the length of windows, from the next window on.
    pub fn set_window_len(&mut self, window_len: Duration) {
        self.sampler.set_window_len(window_len);
    }

    /// Returns the number of processes of the service.
    pub fn processes(&self) -> usize {
        self.sampler.processes()
    }

    /// See [`Sampler::stay_attached`].
    pub fn stay_attached(&mut self, stays: bool) {
        self.sampler.stay_attached(stays);
    }

    /// Waits until the next window is due, and measures it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn turn(&mut self, due: Instant, signals: &mut Signals) -> Result<WatchEvent, Fault> {
        if let Some(early) = self.wait(due, signals) {
            return Ok(early);
        }
        self.sampler.begin()?;
        let early = self.wait(Instant::now() + self.sampler.takes(), signals);
        let sample = self.sampler.end()?;
        let shown = self.take(sample);
        match early {
            // Keep the window if the service received requests in it before it exited.
            Some(early) if shown.window.counts.arrivals == 0 => Ok(early),
            Some(WatchEvent::Interrupted) => Ok(WatchEvent::Interrupted),
            _ => Ok(WatchEvent::Window(Box::new(shown))),
        }
    }

    /// Adds a window to the series, and returns the summary of this window only.
    fn take(&mut self, sample: Sample) -> MeasuredWindow {
        let Sample { window, usage } = sample;
        self.series.add(&window);
        self.spent.add(&window, usage.as_ref());
        self.names.learn(window.workers.iter().filter_map(|(thread, _)| *thread));
        let mut own = Series::new();
        own.add(&window);
        let cost = Cost::of(&Sample { window: window.clone(), usage });
        MeasuredWindow { summary: Summary::of(&own, Vec::new()), cost, window }
    }

    /// Waits until this moment. Returns early, with the reason, if the service exits or a signal arrives.
    fn wait(&self, until: Instant, signals: &mut Signals) -> Option<WatchEvent> {
        loop {
            if signals.take().is_some() {
                return Some(WatchEvent::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            if !self.sampler.runs() {
                return Some(WatchEvent::Ended);
            }
            std::thread::sleep(left.min(TURN));
        }
    }

    /// Whether all processes of the service are still running.
    pub fn all_run(&self) -> bool {
        self.sampler.all_run()
    }

    /// The summary of all windows.
    pub fn summary(&self, target: &MeasuredService) -> Summary {
        summary(target, &self.series, &self.names, self.sampler.answers_late())
    }

    /// Returns the names of all threads that worked in any window.
    pub const fn thread_names(&self) -> &ThreadNames {
        &self.names
    }

    /// The cost of a request over all windows.
    pub fn cost(&self) -> Cost {
        self.spent.cost()
    }

    /// Returns when the next window is due, after the one that was due at `due`.
    pub fn next(due: Instant) -> Instant {
        // Skip windows that were missed, instead of catching up.
        (due + INTERVAL).max(Instant::now())
    }
}

/// Summarises the windows of a service, with findings about the service and about the validity of the
/// figures.
pub(crate) fn summary(
    target: &MeasuredService,
    series: &Series,
    names: &ThreadNames,
    answers_late: bool,
) -> Summary {
    let mut findings: Vec<Finding> = target.findings.clone();
    let queue =
        |at: usize| series.napis().get(at).map_or_else(String::new, |(napi, _)| target.queue_of(*napi));
    let worker = |at: usize| {
        let pid = series.workers().get(at).and_then(|(pid, _)| *pid);
        pid.map_or_else(|| "all other threads".to_owned(), |pid| names.sentence(pid))
    };
    findings.extend(findings_of(&target.name, series, &target.goal, (&queue, &worker)));
    findings.extend(caveats(&target.name, series, answers_late));
    Summary::of(series, findings)
}
