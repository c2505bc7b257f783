//! Window after window, and what they say together.

use std::time::{Duration, Instant};

use linux::bpf::live::{AnswerHook, LiveMeter};
use linux::live::{Sample, ServiceWatch, Usage};
use linux::{Errno, Signals};
use measure::live::{Series, Summary, Turnarounds, doubts, shows};
use model::Finding;
use model::live::LiveWindow;
use serde::Serialize;

use schemars::JsonSchema;
use session::{Exit, Fault};

use crate::target::Target;

/// How often a window begins.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// The longest sleep before signals and the presence of the service are checked.
const TURN: Duration = Duration::from_millis(50);

/// What a request costs, in nanoseconds of CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Cost {
    /// Of the service's processes; `None` without requests, or without a process that is known.
    pub service: Option<f64>,
    /// Of softirqs on the time of others, and of the kernel threads that poll; `None` where it was not counted.
    pub delivery: Option<f64>,
    /// Context switches for each request.
    pub switches: Option<f64>,
}

/// Measures a service.
#[derive(Debug)]
pub struct Watcher {
    watch: ServiceWatch,
    sample: Duration,
    series: Series,
    turnarounds: Turnarounds,
    spent: Spent,
}

/// What the windows cost that have both a cost and requests.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    requests: u64,
    service: u64,
    switches: u64,
    delivery: u64,
    /// Requests of the windows in which softirqs were counted, too.
    delivered: u64,
}

impl Spent {
    fn add(&mut self, window: &LiveWindow, usage: Option<&Usage>) {
        let Some(usage) = usage else { return };
        self.requests += window.counts.requests;
        self.service += usage.service.0;
        self.switches += usage.switches;
        if let Some(softirq) = usage.softirq {
            self.delivered += window.counts.requests;
            self.delivery += softirq.0 + usage.kthreads.0;
        }
    }

    fn cost(&self) -> Cost {
        let each = |sum: u64, of: u64| (of > 0).then(|| count(sum) / count(of));
        Cost {
            service: each(self.service, self.requests),
            delivery: each(self.delivery, self.delivered),
            switches: each(self.switches, self.requests),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts and spans of one watch, below 2^53")]
const fn count(number: u64) -> f64 {
    number as f64
}

/// What a turn of the watcher came to.
#[derive(Debug)]
pub enum Turn {
    /// A window.
    Window(Box<Shown>),
    /// None of the service's processes runs any more.
    Ended,
    /// A signal came.
    Interrupted,
}

/// One window, as it is shown.
#[derive(Debug)]
pub struct Shown {
    /// What it says by itself.
    pub summary: Summary,
    /// What its requests cost.
    pub cost: Cost,
    /// All that was measured.
    pub window: LiveWindow,
}

impl Watcher {
    /// Loads what measures.
    ///
    /// # Errors
    /// Exit 6 where the kernel has not what it takes, or refuses the programs, with its words.
    pub fn load(target: &Target, sample: Duration) -> Result<Self, Fault> {
        let watch = ServiceWatch::load(
            (target.netns.id(), target.ports.clone()),
            target.processes.clone(),
            target.kthreads(),
        )
        .map_err(refused)?;
        Ok(Self {
            watch,
            sample,
            series: Series::new(),
            turnarounds: Turnarounds::default(),
            spent: Spent::default(),
        })
    }

    /// Waits until the next window is due, and measures it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn turn(&mut self, due: Instant, signals: &mut Signals) -> Result<Turn, Fault> {
        if let Some(early) = self.wait(due, signals) {
            return Ok(early);
        }
        self.watch.begin().map_err(refused)?;
        let guard = Duration::from_nanos(LiveMeter::GUARD.0);
        let early = self.wait(Instant::now() + guard + self.sample, signals);
        let sample = self.watch.end()?;
        let shown = self.take(sample)?;
        match early {
            // What a service did until it ended still counts.
            Some(early) if shown.window.counts.arrivals == 0 => Ok(early),
            Some(Turn::Interrupted) => Ok(Turn::Interrupted),
            _ => Ok(Turn::Window(Box::new(shown))),
        }
    }

    /// Learns from a window, and says what it says by itself.
    fn take(&mut self, sample: Sample) -> Result<Shown, Fault> {
        let Sample { window, usage } = sample;
        self.series.add(&window);
        self.spent.add(&window, usage.as_ref());
        if self.turnarounds.learn(&window)
            && let Some(known) = self.turnarounds.known()
        {
            self.watch.meter().suppose(known)?;
        }
        let usual = measure::live::usual_size(&self.series.spans().bytes);
        self.watch.meter().weigh_by(usual);
        let mut own = Series::new();
        own.add(&window);
        let mut spent = Spent::default();
        spent.add(&window, usage.as_ref());
        Ok(Shown { summary: Summary::of(&own, Vec::new()), cost: spent.cost(), window })
    }

    /// Waits until a moment, unless the service ends or a signal comes.
    fn wait(&self, until: Instant, signals: &mut Signals) -> Option<Turn> {
        loop {
            if signals.take().is_some() {
                return Some(Turn::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            if self.watch.running().next().is_none() {
                return Some(Turn::Ended);
            }
            std::thread::sleep(left.min(TURN));
        }
    }

    /// Whether each process of the service that was found still runs.
    pub fn all_run(&self) -> bool {
        self.watch.all_run()
    }

    /// What all windows say together.
    pub fn summary(&self, target: &Target) -> Summary {
        let mut findings: Vec<Finding> = target.findings.clone();
        let late = self.watch.hook() == AnswerHook::AfterSend;
        let queue = |at: usize| {
            self.series.napis().get(at).map_or_else(String::new, |(napi, _)| target.queue_of(*napi))
        };
        let worker = |at: usize| {
            let pid = self.series.workers().get(at).and_then(|(pid, _)| *pid);
            pid.map_or_else(|| "all other threads".to_owned(), |pid| format!("thread {pid}"))
        };
        findings.extend(shows(&target.name, &self.series, &target.goal, (&queue, &worker)));
        findings.extend(doubts(&target.name, &self.series, late));
        Summary::of(&self.series, findings)
    }

    /// What a request cost in all windows.
    pub fn cost(&self) -> Cost {
        self.spent.cost()
    }

    /// When the window after one that was due then is due.
    pub fn next(due: Instant) -> Instant {
        // What took longer than its turn is not made up for.
        (due + INTERVAL).max(Instant::now())
    }
}

/// What it takes to measure.
const NEEDS: &str = "run netpolicy as root, or with CAP_BPF and CAP_PERFMON";

/// A kernel that refuses the programs has not what they need: that is no failure of the moment.
fn refused(error: linux::KernelError) -> Fault {
    if matches!(error.number(), Some(Errno::PERM)) {
        return Fault::new(Exit::Failed, error).hint(NEEDS);
    }
    Fault::new(Exit::Unsupported, error)
}
