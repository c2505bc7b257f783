//! Measures one service in windows; each window adjusts the parameters of the next.

use std::time::Duration;

use linux::bpf::live::{AnswerHook, LiveMeter, LiveTarget};
use linux::live::{Sample, ServiceWatch};
use linux::{Errno, KernelError};
use measure::live::Turnarounds;
use model::ProcessId;
use session::{Exit, Fault};

use crate::live::target::Target;

/// Measures a service. Nothing is attached between [`Sampler::end`] and the next [`Sampler::begin`], nor
/// after it is dropped.
#[derive(Debug)]
pub struct Sampler {
    watch: ServiceWatch,
    sample: Duration,
    turnarounds: Turnarounds,
}

impl Sampler {
    /// Loads the programs for this service, with windows of this length.
    ///
    /// # Errors
    /// Exit 6 if the kernel lacks a feature or rejects the programs, with its error.
    pub fn load(target: &Target, sample: Duration) -> Result<Self, Fault> {
        Self::load_with(target, sample, LiveMeter::SOCKETS_MAX)
    }

    /// Like [`Sampler::load`], with a maximum number of connections.
    ///
    /// # Errors
    /// The same as [`Sampler::load`].
    pub fn load_with(target: &Target, sample: Duration, sockets_max: u32) -> Result<Self, Fault> {
        let what = LiveTarget { netns: target.netns.id(), ports: target.ports.clone(), sockets_max };
        let watch = ServiceWatch::load(&what, target.processes.clone()).map_err(refused)?;
        Ok(Self { watch, sample, turnarounds: Turnarounds::default() })
    }

    /// The duration from [`Sampler::begin`] to [`Sampler::end`].
    pub fn takes(&self) -> Duration {
        self.sample + Duration::from_nanos(LiveMeter::GUARD.0)
    }

    /// Sets the length of windows, from the next one on.
    pub fn lasts(&mut self, sample: Duration) {
        self.sample = sample;
    }

    /// Sets the processes of the service, from the next window on.
    pub fn is_served_by(&mut self, processes: &[ProcessId]) {
        self.watch.is_served_by(processes);
    }

    /// Whether all processes of the service are running.
    pub fn all_run(&self) -> bool {
        self.watch.all_run()
    }

    /// Whether any process of the service is running.
    pub fn runs(&self) -> bool {
        self.watch.running().next().is_some()
    }

    /// Whether answers are recorded after they were sent, as on older kernels.
    pub fn answers_late(&self) -> bool {
        self.watch.hook() == AnswerHook::AfterSend
    }

    /// Begins a window.
    ///
    /// # Errors
    /// If the kernel refuses; then nothing is attached.
    pub fn begin(&mut self) -> Result<(), Fault> {
        self.watch.begin().map_err(refused)
    }

    /// Ends the window and adjusts the parameters of the next.
    ///
    /// # Errors
    /// If the kernel fails. Everything is detached even then.
    ///
    /// # Panics
    /// If no window has begun.
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

/// The requirements of measuring.
const NEEDS: &str = "run netpolicy as root, or with CAP_BPF and CAP_PERFMON";

/// Converts the kernel's refusal of the programs: it lacks a feature, so retrying does not help.
fn refused(error: KernelError) -> Fault {
    if matches!(error.number(), Some(Errno::PERM)) {
        return Fault::new(Exit::Failed, error).hint(NEEDS);
    }
    Fault::new(Exit::Unsupported, error)
}
