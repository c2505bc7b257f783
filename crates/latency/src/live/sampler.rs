//! One service, measured window by window; each window teaches what the next one needs.

use std::time::Duration;

use linux::bpf::live::{AnswerHook, LiveMeter, LiveTarget};
use linux::live::{Sample, ServiceWatch};
use linux::{Errno, KernelError};
use measure::live::Turnarounds;
use model::ProcessId;
use session::{Exit, Fault};

use crate::live::target::Target;

/// Measures a service. Nothing is attached between [`Sampler::end`] and the next [`Sampler::begin`], nor after it was dropped.
#[derive(Debug)]
pub struct Sampler {
    watch: ServiceWatch,
    sample: Duration,
    turnarounds: Turnarounds,
}

impl Sampler {
    /// Loads what measures this service, in windows of this length.
    ///
    /// # Errors
    /// Exit 6 where the kernel lacks what it takes, or refuses the programs, with its words.
    pub fn load(target: &Target, sample: Duration) -> Result<Self, Fault> {
        Self::load_with(target, sample, LiveMeter::SOCKETS_MAX)
    }

    /// The same, of at most so many connections.
    ///
    /// # Errors
    /// As [`Sampler::load`].
    pub fn load_with(target: &Target, sample: Duration, sockets_max: u32) -> Result<Self, Fault> {
        let what = LiveTarget { netns: target.netns.id(), ports: target.ports.clone(), sockets_max };
        let watch =
            ServiceWatch::load(&what, target.processes.clone(), target.kthreads()).map_err(refused)?;
        Ok(Self { watch, sample, turnarounds: Turnarounds::default() })
    }

    /// How long a window takes, from [`Sampler::begin`] to [`Sampler::end`].
    pub fn takes(&self) -> Duration {
        self.sample + Duration::from_nanos(LiveMeter::GUARD.0)
    }

    /// From the next window on, windows are of this length.
    pub fn lasts(&mut self, sample: Duration) {
        self.sample = sample;
    }

    /// From the next window on, these processes serve.
    pub fn is_served_by(&mut self, processes: &[ProcessId]) {
        self.watch.is_served_by(processes);
    }

    /// Whether each of them runs.
    pub fn all_run(&self) -> bool {
        self.watch.all_run()
    }

    /// Whether any of the service's processes still runs.
    pub fn runs(&self) -> bool {
        self.watch.running().next().is_some()
    }

    /// Whether answers are noted after they were handed on, as older kernels do.
    pub fn answers_late(&self) -> bool {
        self.watch.hook() == AnswerHook::AfterSend
    }

    /// Begins a window.
    ///
    /// # Errors
    /// The kernel's refusal; nothing is attached then.
    pub fn begin(&mut self) -> Result<(), Fault> {
        self.watch.begin().map_err(refused)
    }

    /// Ends the window and learns from it.
    ///
    /// # Errors
    /// The kernel's. Nothing is attached any more all the same.
    ///
    /// # Panics
    /// If no window was begun, which is a fault of the caller.
    pub fn end(&mut self) -> Result<Sample, Fault> {
        let sample = self.watch.end()?;
        if self.turnarounds.learn(&sample.window)
            && let Some(known) = self.turnarounds.known()
        {
            self.watch.meter().suppose(known)?;
        }
        Ok(sample)
    }
}

/// What it takes to measure.
const NEEDS: &str = "run netpolicy as root, or with CAP_BPF and CAP_PERFMON";

/// A kernel that refuses the programs lacks what they need: that is no failure of the moment.
fn refused(error: KernelError) -> Fault {
    if matches!(error.number(), Some(Errno::PERM)) {
        return Fault::new(Exit::Failed, error).hint(NEEDS);
    }
    Fault::new(Exit::Unsupported, error)
}
