//! Measures one service in windows. Each window adjusts the parameters of the next one.

use std::time::Duration;

use crate::measure::live::Turnarounds;
use linux::bpf::live::{AnswerHook, LiveMeter, LiveTarget};
use linux::process::is_running;
use linux::usage::{Usage, UsageMeter};
use linux::{Errno, KernelError};
use model::ProcessId;
use model::live::LiveWindow;
use session::{Exit, Fault};

use crate::live::target::MeasuredService;

/// The result of one window.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Response times.
    pub window: LiveWindow,
    /// The CPU time that was used; `None` if the service has no process any more, or its processes are
    /// unknown.
    pub usage: Option<Usage>,
}

/// Measures a service: the response times on its ports, and the CPU time of its processes. No program is
/// attached between [`Sampler::end`] and the next [`Sampler::begin`] (except by [`Sampler::stay_attached`]), nor
/// after this is dropped.
#[derive(Debug)]
pub struct Sampler {
    meter: LiveMeter,
    usage: UsageMeter,
    window_len: Duration,
    turnarounds: Turnarounds,
    windows: u32,
    stays_attached: bool,
}

impl Sampler {
    /// The number of windows of which one also measures the time in the network stack.
    const STACK_EVERY: u32 = 16;

    /// Loads the programs for this service, with windows of this length.
    ///
    /// # Errors
    /// Exit 6, with the kernel's error, if the kernel lacks a feature or rejects the programs.
    pub fn load(target: &MeasuredService, window_len: Duration) -> Result<Self, Fault> {
        Self::load_with(target, window_len, LiveMeter::SOCKETS_MAX)
    }

    /// Like [`Sampler::load`], with a maximum number of connections.
    ///
    /// # Errors
    /// As for [`Sampler::load`].
    pub fn load_with(
        target: &MeasuredService,
        window_len: Duration,
        sockets_max: u32,
    ) -> Result<Self, Fault> {
        let ports = LiveTarget { netns: target.netns.id(), ports: target.ports.clone(), sockets_max };
        Self::of_ports(&ports, target.processes.clone(), window_len)
    }

    /// Like [`Sampler::load`], but for these ports and processes.
    ///
    /// # Errors
    /// As for [`Sampler::load`].
    pub fn of_ports(
        ports: &LiveTarget,
        processes: Vec<ProcessId>,
        window_len: Duration,
    ) -> Result<Self, Fault> {
        let meter = LiveMeter::load(ports).map_err(refused)?;
        let usage = UsageMeter::new(ports.netns, processes);
        Ok(Self {
            meter,
            usage,
            window_len,
            turnarounds: Turnarounds::default(),
            windows: 0,
            stays_attached: false,
        })
    }

    /// Returns the time from [`Sampler::begin`] to [`Sampler::end`].
    pub fn takes(&self) -> Duration {
        self.window_len + Duration::from_nanos(LiveMeter::GUARD.0)
    }

    /// Sets the length of windows, from the next window on.
    pub fn set_window_len(&mut self, window_len: Duration) {
        self.window_len = window_len;
    }

    /// Keeps the programs attached between windows ([`LiveMeter::stay_attached`]), or detaches them. While they
    /// stay, no window measures the time in the network stack.
    pub fn stay_attached(&mut self, stays: bool) {
        self.stays_attached = self.meter.stay_attached(stays);
        self.usage.stay_attached(stays);
    }

    /// Returns the number of processes of the service.
    pub fn processes(&self) -> usize {
        self.usage.processes().len()
    }

    /// Sets the processes of the service, from the next window on.
    pub fn set_processes(&mut self, processes: &[ProcessId]) {
        self.usage.set_processes(processes);
    }

    /// Whether all processes of the service are running.
    pub fn all_run(&self) -> bool {
        self.usage.processes().iter().all(is_running)
    }

    /// Whether any process of the service is running.
    pub fn runs(&self) -> bool {
        self.usage.processes().iter().any(is_running)
    }

    /// Whether this kernel, like older ones, records answers only after they were sent.
    pub fn answers_late(&self) -> bool {
        self.meter.hook() == AnswerHook::AfterSend
    }

    /// Abandons the window, if one is open, and detaches all programs until the next window.
    pub fn detach(&mut self) {
        self.meter.detach();
        self.usage.detach();
    }

    /// Begins a window.
    ///
    /// # Errors
    /// If the kernel refuses; no program stays attached then.
    pub fn begin(&mut self) -> Result<(), Fault> {
        if let Some(threaded) = self.usage.find_threads() {
            self.meter.set_polled_by_threads(threaded);
        }
        self.usage.begin();
        let sees_stack = self.windows.is_multiple_of(Self::STACK_EVERY) && !self.stays_attached;
        self.windows = self.windows.wrapping_add(1);
        let begun = if sees_stack { self.meter.begin_with_stack() } else { self.meter.begin() };
        if begun.is_err() {
            self.detach();
        }
        begun.map_err(refused)
    }

    /// Ends the window, and adjusts the parameters of the next one.
    ///
    /// # Errors
    /// If the kernel fails. All programs are detached even then.
    ///
    /// # Panics
    /// If no window has begun.
    pub fn end(&mut self) -> Result<Sample, Fault> {
        let ended = self.close();
        if ended.is_err() {
            self.detach();
        }
        ended
    }

    fn close(&mut self) -> Result<Sample, Fault> {
        let window = self.meter.end();
        let usage = self.usage.end();
        let mut window = window?;
        window.run_delay = usage.as_ref().and_then(|usage| usage.run_delay);
        self.usage.track_napis(window.napis.iter().map(|(napi, _)| *napi), window.counts.threaded > 0);
        if self.turnarounds.learn(&window)
            && let Some(known) = self.turnarounds.known()
        {
            self.meter.set_turnarounds(known)?;
        }
        Ok(Sample { window, usage })
    }
}

/// The hint about the privileges that measuring requires.
const NEEDS: &str = "run netpolicy as root, or with CAP_BPF and CAP_PERFMON";

/// Converts the kernel's refusal of the programs to a fault. If the kernel lacks a feature, retrying does not
/// help, so the exit code differs.
fn refused(error: KernelError) -> Fault {
    if matches!(error.number(), Some(Errno::PERM)) {
        return Fault::new(Exit::Failed, error).hint(NEEDS);
    }
    Fault::new(Exit::Unsupported, error)
}
