//! Measures several services, one after another, in the background.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::measure::live::{Series, Summary};
use linux::Netns;
use linux::bpf::live::LiveMeter;
use model::live::LiveWindow;
use session::{Exit, Fault};

use crate::live::cost::Cost;
use crate::live::recent::Recent;
use crate::live::sampler::{Sample, Sampler};
use crate::live::subject::ListeningService;
use crate::live::target::MeasuredService;
use crate::live::thread_names::ThreadNames;
use crate::live::totals::Totals;
use crate::live::watcher::{INTERVAL, summary};

/// The name of the thread; the kernel allows at most 15 bytes.
const THREAD: &str = "netpolicy-live";

/// How long to wait before a service that could not be measured is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The interval at which the queues and settings of the host are read.
const HOST_EVERY: Duration = Duration::from_secs(60);

/// How much of each service is measured, and how often the measurements are summarised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplingPace {
    /// The length of each window.
    pub sample: Duration,
    /// The number of windows after which percentiles are summarised again. Counts are always current.
    pub windows_per_summary: u64,
    /// The minimum time between two windows of a service without a goal; zero to measure a window in each
    /// round.
    pub without_goal: Duration,
}

/// A measured service, with the result.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The name.
    pub name: String,
    /// The result of measuring this service.
    pub outcome: MeasuredOutcome,
}

impl Measured {
    /// Creates the result of a single window, without costs, for callers that display it.
    pub fn of_window(name: &str, window: LiveWindow) -> Self {
        let mut series = Series::new();
        series.add(&window);
        let mut totals = Totals::default();
        totals.add(&Sample { window, usage: None }, &series);
        let summary = Arc::new(Summary::of(&series, Vec::new()));
        let outcome = MeasuredOutcome::Windows {
            unix_micros: 0,
            summary,
            cost: Cost::default(),
            totals: Arc::new(totals),
        };
        Self { name: name.to_owned(), outcome }
    }
}

/// The result of measuring a service.
#[derive(Clone, Debug)]
pub enum MeasuredOutcome {
    /// The service was measured.
    Windows {
        /// When the last window ended, in microseconds since 1970-01-01 00:00 UTC.
        unix_micros: u64,
        /// The summary of the windows of the last few minutes.
        summary: Arc<Summary>,
        /// The cost of a request in the last few minutes.
        cost: Cost,
        /// The total counts since the service was measured for the first time.
        totals: Arc<Totals>,
    },
    /// The service cannot be measured.
    Refused {
        /// The exit code that a command returns in this case.
        exit: Exit,
        /// The reason, with the kernel's error if there is one.
        why: String,
        /// A hint.
        hint: Option<String>,
    },
}

/// Measures services, one after another, on a separate thread, for a part of every second. When this value is
/// dropped, the thread finishes its window and exits; no caller waits for that. However the process ends, no
/// BPF program stays attached.
#[derive(Debug)]
pub struct Rounds {
    desk: Arc<SharedResults>,
}

#[derive(Debug, Default)]
struct SharedResults {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    subjects: Vec<ListeningService>,
    found: Vec<Measured>,
    /// The services whose measurements must be discarded.
    again: BTreeSet<String>,
    ends: bool,
}

impl SharedResults {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this moment. Returns false if the thread must exit.
    fn wait_until(&self, moment: Instant) -> bool {
        let left = moment.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.state(), left, |state| !state.ends);
        !waited.unwrap_or_else(PoisonError::into_inner).0.ends
    }
}

impl Rounds {
    /// The maximum kernel memory that the BPF programs of all services may use, in bytes.
    pub const BYTES_MAX: usize = 64 << 20;

    /// The maximum number of services, even if each needs little memory.
    pub const SERVICES_MAX: usize = 16;

    /// The maximum number of measured connections per service.
    pub const SOCKETS_MAX: u32 = 8_192;

    /// Returns the number of services that can be measured on this machine. The memory per service depends on
    /// the number of CPUs.
    pub fn services_max() -> usize {
        (Self::BYTES_MAX / LiveMeter::memory()).clamp(1, Self::SERVICES_MAX)
    }

    /// Starts the thread, which runs in the caller's network namespace. The thread calls `notify` when there
    /// are new results.
    ///
    /// # Errors
    /// If the kernel cannot create a thread.
    pub fn start(
        netns: Netns,
        pace: SamplingPace,
        notify: impl Fn() + Send + 'static,
    ) -> Result<Self, Fault> {
        let desk = Arc::new(SharedResults::default());
        let of_thread = Arc::clone(&desk);
        std::thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || Worker { netns, pace, services: BTreeMap::new() }.run(&of_thread, &notify))
            .map_err(|error| Fault::failed(format!("cannot start the measuring thread: {error}")))?;
        Ok(Self { desk })
    }

    /// Sets the services to measure from the next round on. If there are more than [`Rounds::services_max`],
    /// only the first ones are measured.
    pub fn measure(&self, subjects: Vec<ListeningService>) {
        self.desk.state().subjects = subjects;
    }

    /// Discards the windows of a service, because its settings have changed. Its percentiles start over, but
    /// its counters continue.
    pub fn begin_again(&self, name: &str) {
        let mut state = self.desk.state();
        state.found.retain(|measured| measured.name != name);
        state.again.insert(name.to_owned());
    }

    /// Returns the results of the services for which a result is known.
    pub fn found(&self) -> Vec<Measured> {
        self.desk.state().found.clone()
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        self.desk.state().ends = true;
        self.desk.changed.notify_all();
    }
}

/// The state of the thread.
struct Worker {
    netns: Netns,
    pace: SamplingPace,
    services: BTreeMap<String, Service>,
}

/// A service that is being measured.
struct Service {
    subject: ListeningService,
    loaded: Option<Loaded>,
    recent: Recent,
    totals: Totals,
    summary: Option<Arc<Summary>>,
    outcome: Option<MeasuredOutcome>,
    /// When to retry the service; `None` for never.
    retry: Option<Instant>,
    /// When the last window of this service began.
    last: Option<Instant>,
}

struct Loaded {
    target: MeasuredService,
    sampler: Sampler,
    names: ThreadNames,
    /// When the queues and settings of the host were last read.
    read: Instant,
}

impl Worker {
    fn run(&mut self, desk: &SharedResults, notify: &(impl Fn() + Send)) {
        loop {
            let next = Instant::now() + INTERVAL;
            self.take(desk.state().subjects.clone());
            self.begin_again(&std::mem::take(&mut desk.state().again));
            let mut is_new = false;
            for service in self.services.values_mut() {
                match service.turn(&self.netns, self.pace, desk) {
                    Ok(measured) => is_new |= measured,
                    Err(fault) => {
                        service.refused(&fault);
                        is_new = true;
                    }
                }
                if desk.state().ends {
                    return;
                }
            }
            let found: Vec<Measured> = self.services.values().filter_map(Service::measured).collect();
            let gone = {
                let mut state = desk.state();
                let gone = state.found.len() != found.len();
                state.found = found;
                gone
            };
            if is_new || gone {
                notify();
            }
            if !desk.wait_until(next) {
                return;
            }
        }
    }

    /// Discards the windows of these services.
    fn begin_again(&mut self, names: &BTreeSet<String>) {
        for (_, service) in self.services.iter_mut().filter(|(name, _)| names.contains(*name)) {
            (service.recent, service.summary, service.outcome) = (Recent::new(), None, None);
        }
    }

    /// Replaces the list of services.
    fn take(&mut self, subjects: Vec<ListeningService>) {
        let mut before = std::mem::take(&mut self.services);
        for subject in subjects.into_iter().take(Rounds::services_max()) {
            let name = subject.name.clone();
            let mut service = before.remove(&name).unwrap_or_else(|| Service::of(subject.clone()));
            service.becomes(subject);
            self.services.insert(name, service);
        }
    }
}

impl Service {
    fn of(subject: ListeningService) -> Self {
        Self {
            subject,
            loaded: None,
            recent: Recent::new(),
            totals: Totals::default(),
            summary: None,
            outcome: None,
            retry: Some(Instant::now()),
            last: None,
        }
    }

    /// Replaces the service's processes and ports. New ports require reloading the programs; new processes do
    /// not.
    fn becomes(&mut self, subject: ListeningService) {
        if subject == self.subject {
            return;
        }
        if subject.ports == self.subject.ports {
            if let Some(loaded) = &mut self.loaded {
                loaded.sampler.set_processes(&subject.processes);
                loaded.target.processes.clone_from(&subject.processes);
                loaded.target.goal = subject.goal;
            }
        } else {
            self.loaded = None;
        }
        // Try again immediately: with other processes, the measurement may succeed.
        if self.retry.is_some() {
            self.retry = Some(Instant::now());
        }
        self.subject = subject;
    }

    /// Measures a window if one is due. Returns whether a window was measured.
    fn turn(&mut self, netns: &Netns, pace: SamplingPace, desk: &SharedResults) -> Result<bool, Fault> {
        let is_early = self.last.is_some_and(|last| last.elapsed() < pace.without_goal);
        if !self.subject.goal.is_set() && is_early {
            return Ok(false);
        }
        let is_due = self.retry.is_some_and(|retry| retry <= Instant::now());
        if self.loaded.is_none() && (!is_due || self.subject.ports.is_empty()) {
            return Ok(false);
        }
        let loaded = match &mut self.loaded {
            Some(loaded) => loaded,
            None => {
                let ListeningService { name, processes, ports, goal } = self.subject.clone();
                let (target, _) = MeasuredService::at_ports(name, netns.again()?, processes, goal, ports)?;
                let sampler = Sampler::load_with(&target, pace.sample, Rounds::SOCKETS_MAX)?;
                let names = ThreadNames::of_processes(&target.processes);
                self.loaded.insert(Loaded { target, sampler, names, read: Instant::now() })
            }
        };
        if !loaded.sampler.runs() {
            return Ok(false);
        }
        if loaded.read.elapsed() >= HOST_EVERY {
            loaded.read = Instant::now();
            loaded.target.read_host()?;
        }
        self.last = Some(Instant::now());
        loaded.sampler.begin()?;
        let goes_on = desk.wait_until(Instant::now() + loaded.sampler.takes());
        let sample = loaded.sampler.end()?;
        if !goes_on {
            return Ok(false);
        }
        loaded.names.learn(sample.window.workers.iter().filter_map(|(thread, _)| *thread));
        self.recent.add(&sample, linux::clock::monotonic());
        self.totals.add(&sample, self.recent.series());
        let is_due = (self.totals.windows - 1).is_multiple_of(pace.windows_per_summary.max(1));
        let summary = match &self.summary {
            Some(summary) if !is_due => Arc::clone(summary),
            _ => {
                let answers_late = loaded.sampler.answers_late();
                Arc::new(summary(&loaded.target, self.recent.series(), &loaded.names, answers_late))
            }
        };
        self.summary = Some(Arc::clone(&summary));
        self.outcome = Some(MeasuredOutcome::Windows {
            unix_micros: linux::clock::since_1970().0 / 1_000,
            summary,
            cost: self.recent.cost(),
            totals: Arc::new(self.totals.clone()),
        });
        Ok(true)
    }

    fn refused(&mut self, fault: &Fault) {
        self.loaded = None;
        self.retry = (fault.exit != Exit::Unsupported).then(|| Instant::now() + RETRY_AFTER);
        self.outcome = Some(MeasuredOutcome::Refused {
            exit: fault.exit,
            why: fault.cause.to_string(),
            hint: fault.hint.clone(),
        });
    }

    fn measured(&self) -> Option<Measured> {
        Some(Measured { name: self.subject.name.clone(), outcome: self.outcome.clone()? })
    }
}

#[cfg(test)]
mod test {
    use model::Goal;

    use super::*;

    #[test]
    fn what_was_measured_with_other_settings_does_not_count_and_what_was_of_other_services_does() {
        let service = |name: &str| {
            let (name, processes, ports) = (name.to_owned(), Vec::new(), vec![11_211].into());
            let mut service =
                Service::of(ListeningService { name: name.clone(), processes, ports, goal: Goal::default() });
            let outcome = Measured::of_window(&name, LiveWindow::default()).outcome;
            (service.outcome, service.retry) = (Some(outcome), None);
            (name, service)
        };
        let sample = Duration::from_millis(20);
        let pace = SamplingPace { sample, windows_per_summary: 1, without_goal: Duration::ZERO };
        let netns = Netns::own().expect("a namespace");
        let services = ["cache", "store"].map(service).into_iter().collect();
        let mut worker = Worker { netns, pace, services };
        worker.begin_again(&BTreeSet::from(["cache".to_owned()]));
        let known: Vec<String> =
            worker.services.values().filter_map(Service::measured).map(|of| of.name).collect();
        assert_eq!(known, ["store"]);
    }
}
