//! The figures of a window, the metrics that are compared, and the reasons why windows of a round are not
//! comparable.

use std::fmt;

use model::Nanoseconds;
use model::live::{LiveWaiting, LiveWindow};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::network::{Network, count};
use crate::measure::live::series::{Stretch, requests_for};
use crate::measure::live::{Estimator, Series, Unit};

/// The figures of one window of one candidate. Spans are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// The window's length in seconds.
    pub seconds: f64,
    /// Answered requests, or exchanges if the protocol does not show requests.
    pub requests: u64,
    /// The estimator of the response times.
    pub estimator: Estimator,
    /// The median response time; `None` if there are too few requests.
    pub p50: Option<f64>,
    /// The 90th percentile; `None` if there are too few requests.
    pub p90: Option<f64>,
    /// The 99th percentile; `None` if there are too few requests.
    pub p99: Option<f64>,
    /// CPU time of the service per request; `None` if unknown.
    pub cpu_service: Option<f64>,
    /// CPU time of softirqs and polling kernel threads per request; `None` if unknown.
    pub cpu_delivery: Option<f64>,
    /// CPU time of the measuring programs per request; `None` if unknown, and in records of netpolicy 0.1.
    #[serde(default)]
    pub cpu_measuring: Option<f64>,
    /// The share of requests whose poll began with the interrupt masked, from 0 to 1.
    pub engaged: Option<f64>,
    /// How long the oldest unanswered request had waited at the end of the window, since its last arrival.
    pub oldest: Option<f64>,
    /// The waiting connections; `None` in records of netpolicy 0.1.
    #[serde(default)]
    pub waits: Option<Waits>,
    /// The unit of `requests` and of everything per request; `None` in records of netpolicy 0.1.
    #[serde(default)]
    pub unit: Option<Unit>,
    /// TCP's counts; `None` without data, and in records of netpolicy 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// How long the service's threads were runnable without a CPU, per second of the window: nanoseconds,
    /// summed over the threads. `None` if unknown, and in records of netpolicy 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_delay: Option<f64>,
}

/// The connections of a window, and how many of them waited for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waits {
    /// All connections that had an event or waited.
    pub connections: u64,
    /// Connections that waited for the whole window.
    pub throughout: u64,
    /// Connections that had waited for at least a second.
    pub stalled: u64,
}

impl Waits {
    /// The waiting connections of a window.
    pub fn of(window: &LiveWindow) -> Self {
        let LiveWaiting { throughout, stalled, .. } = window.waiting;
        let waiting = throughout.max(stalled);
        // A connection that waits for the whole window rarely has an event, so add it.
        Self { connections: window.counts.connections + waiting, throughout, stalled }
    }

    /// Whether this many connections are more than half of all. If fewer wait, they may be waiting for
    /// clients to send the rest of a request; if they wait for the service, percentiles show that.
    const fn are_most(&self, waiting: u64) -> bool {
        waiting * 2 > self.connections
    }
}

impl Figures {
    /// The wait from which a request counts as stalled.
    pub const STALLED: Nanoseconds = Nanoseconds::from_millis(1_000);

    /// Creates the figures of a window in which only the requests were counted. Everything else is unknown.
    pub const fn of_requests(seconds: f64, requests: u64) -> Self {
        Self {
            seconds,
            requests,
            estimator: Estimator::Uniform,
            p50: None,
            p90: None,
            p99: None,
            cpu_service: None,
            cpu_delivery: None,
            cpu_measuring: None,
            engaged: None,
            oldest: None,
            waits: None,
            unit: None,
            network: None,
            run_delay: None,
        }
    }

    /// Computes the figures of a window. The arguments are the CPU time per request of the service and of
    /// packet delivery.
    pub fn of(window: &LiveWindow, cpu_service: Option<f64>, cpu_delivery: Option<f64>) -> Self {
        let mut series = Series::new();
        series.add(window);
        let estimator = series.estimator();
        let percentile = |share: f64| {
            let found = series.percentile(Stretch::Response(estimator), share)?;
            Some(found.interval.estimate)
        };
        let counts = window.counts;
        let polled = counts.masked + counts.unmasked;
        Self {
            seconds: window.span.as_secs_f64(),
            requests: counts.requests,
            estimator,
            p50: percentile(0.5),
            p90: percentile(0.9),
            p99: percentile(0.99),
            cpu_service,
            cpu_delivery,
            cpu_measuring: series.weight(),
            engaged: (polled > 0).then(|| count(counts.masked) / count(polled)),
            oldest: window.waiting.oldest.map(|oldest| count(oldest.0)),
            waits: Some(Waits::of(window)),
            unit: (counts.requests > 0).then(|| Unit::of(&counts)),
            network: Network::of(window),
            run_delay: window
                .run_delay
                .filter(|_| window.span > Nanoseconds::ZERO)
                .map(|waited| count(waited.0) / window.span.as_secs_f64()),
        }
    }

    /// Requests per second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { count(self.requests) / self.seconds } else { 0.0 }
    }

    /// Returns the CPU time per request of the service and of its softirqs and kernel threads.
    pub fn cpu(&self) -> Option<f64> {
        Some(self.cpu_service? + self.cpu_delivery.unwrap_or(0.0))
    }

    /// Whether most connections waited for an answer during nearly the whole window.
    pub fn one_waits(&self) -> bool {
        const NEARLY: f64 = 0.9;
        let least = (self.seconds * 1e9 * NEARLY).min(count(Self::STALLED.0));
        let waits = self.waits.is_none_or(|waits| waits.are_most(waits.throughout));
        waits && self.oldest.is_some_and(|oldest| oldest >= least)
    }

    /// Whether most connections have waited long enough to count as stalled.
    pub fn stalled(&self) -> bool {
        let waits = self.waits.is_none_or(|waits| waits.are_most(waits.stalled));
        waits && self.oldest.is_some_and(|oldest| oldest >= count(Self::STALLED.0))
    }
}

/// A metric of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The median response time.
    P50,
    /// The 90th percentile.
    P90,
    /// The 99th percentile.
    P99,
    /// CPU time per request, of the service and its softirqs.
    Cpu,
    /// CPU time per request of the service only.
    CpuService,
    /// CPU time per request of softirqs and polling kernel threads only.
    CpuDelivery,
    /// CPU time per request of the measuring programs, in whichever task they ran. All of it may be part of
    /// `Cpu`.
    CpuMeasuring,
    /// Requests per second.
    Requests,
    /// The share of requests whose poll began with the interrupt masked. The change is a difference in
    /// percentage points.
    Engaged,
    /// The share of windows with stalled requests. The change is a difference.
    Stalls,
}

impl Metric {
    /// All metrics, in display order.
    pub const ALL: [Self; 10] = [
        Self::P50,
        Self::P90,
        Self::P99,
        Self::Cpu,
        Self::CpuService,
        Self::CpuDelivery,
        Self::CpuMeasuring,
        Self::Requests,
        Self::Engaged,
        Self::Stalls,
    ];

    /// The metric's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::Cpu => "cpu",
            Self::CpuService => "cpu-service",
            Self::CpuDelivery => "cpu-delivery",
            Self::CpuMeasuring => "cpu-measuring",
            Self::Requests => "requests",
            Self::Engaged => "engaged",
            Self::Stalls => "stalls",
        }
    }

    /// Whether less is better; `None` if the metric is neutral.
    pub const fn less_is_better(self) -> Option<bool> {
        match self {
            Self::P50
            | Self::P90
            | Self::P99
            | Self::Cpu
            | Self::CpuService
            | Self::CpuDelivery
            | Self::Stalls => Some(true),
            Self::Requests => Some(false),
            Self::CpuMeasuring | Self::Engaged => None,
        }
    }

    /// Whether the change is a ratio; otherwise it is a difference.
    pub const fn is_ratio(self) -> bool {
        !matches!(self, Self::Engaged | Self::Stalls)
    }

    /// Returns the metric's value in a window.
    pub fn of(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::P50 => figures.p50,
            Self::P90 => figures.p90,
            Self::P99 => figures.p99,
            Self::Cpu => figures.cpu(),
            Self::CpuService => figures.cpu_service,
            Self::CpuDelivery => figures.cpu_delivery,
            Self::CpuMeasuring => figures.cpu_measuring,
            Self::Requests => Some(figures.rate()),
            Self::Engaged => figures.engaged,
            Self::Stalls => Some(f64::from(u8::from(figures.stalled()))),
        }
    }

    /// Returns the difference between two windows, on the scale on which a change is assumed to be constant.
    pub fn difference(self, before: &Figures, after: &Figures) -> Option<f64> {
        let (before, after) = (self.of(before)?, self.of(after)?);
        match self.is_ratio() {
            true => (before > 0.0 && after > 0.0).then(|| (after / before).ln()),
            false => Some(after - before),
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::P50, Self::P90, Self::P99, Self::Cpu, Self::Requests];
        known.into_iter().find(|metric| metric.as_str() == text).ok_or_else(|| {
            format!("`{text}` is not a metric: expected {}", known.map(Self::as_str).join(", "))
        })
    }
}

/// Why a round is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unfair {
    /// The request rates of the candidates differ by more than a tenth.
    Rates,
    /// A process of the service exited or was replaced.
    Restart,
    /// Another transaction changed the host.
    Transaction,
    /// At the end of a window, the settings differed from those of the candidate.
    Drift,
    /// There were too few requests for a median.
    Requests,
    /// The window or the switch took much too long, because the machine stalled.
    Machine,
    /// The candidates' response times were estimated by different methods.
    Estimator,
    /// The network lost more segments in one window than in the other.
    Loss,
}

impl Unfair {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Rates,
        Self::Restart,
        Self::Transaction,
        Self::Drift,
        Self::Requests,
        Self::Machine,
        Self::Estimator,
        Self::Loss,
    ];

    /// Returns the reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Rates => "request rates differed by more than 10 %",
            Self::Restart => "the service was restarted",
            Self::Transaction => "another transaction changed the host",
            Self::Drift => "another program changed the settings",
            Self::Requests => "too few requests",
            Self::Machine => "the machine stalled, or switching took too long",
            Self::Estimator => "response times were estimated by different methods",
            Self::Loss => "the network lost more segments in one window than in another",
        }
    }
}

impl fmt::Display for Unfair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// Rates that differ by more than this factor do not count as equal load.
const RATE_RATIO_MAX: f64 = 1.1;

/// Returns why the windows of a round cannot be compared, as far as their figures show.
pub fn unfair(windows: &[Figures]) -> Option<Unfair> {
    if windows.iter().any(|window| !window.stalled() && window.requests < requests_for(0.5)) {
        return Some(Unfair::Requests);
    }
    let first = windows.first()?.estimator;
    let in_ring = |estimator: Estimator| estimator != Estimator::Residence;
    if windows.iter().any(|window| in_ring(window.estimator) != in_ring(first)) {
        return Some(Unfair::Estimator);
    }
    // Loss also changes request rates, so check for loss first.
    let networks = || windows.iter().filter_map(|window| window.network.as_ref());
    if networks().any(|one| networks().any(|other| one.differs(other))) {
        return Some(Unfair::Loss);
    }
    // Random arrivals differ by chance, so allow three standard errors of the ratio.
    let apart = |one: &Figures, other: &Figures| {
        let by_chance = 3.0 * (1.0 / count(one.requests.max(1)) + 1.0 / count(other.requests.max(1))).sqrt();
        (one.rate().max(1e-9) / other.rate().max(1e-9)).ln().abs() > RATE_RATIO_MAX.ln() + by_chance
    };
    let differ = windows.iter().any(|one| windows.iter().any(|other| apart(one, other)));
    // If requests stall, the low rate is a consequence of the stall.
    (differ && !windows.iter().any(Figures::stalled)).then_some(Unfair::Rates)
}

#[cfg(test)]
mod test {
    use super::*;

    /// A window in which some connections were served, and others had waited for two seconds at its end.
    fn window(working: u64, waiting: u64) -> Figures {
        let mut window = LiveWindow { span: Nanoseconds::from_millis(100), ..LiveWindow::default() };
        (window.counts.connections, window.counts.requests) = (working, 10 * working);
        (window.waiting.stalled, window.waiting.throughout, window.waiting.requests) =
            (waiting, waiting, waiting);
        window.waiting.oldest = (waiting > 0).then_some(Nanoseconds::from_millis(2_000));
        Figures::of(&window, None, None)
    }

    #[test]
    fn clients_that_send_slowly_stall_no_service_and_one_that_hangs_is_stalled() {
        for slow in 0..=20 {
            let figures = window(20, slow);
            assert!(!figures.stalled() && !figures.one_waits(), "{slow} beside 20 that work");
        }
        for hung in [1, 8, 200] {
            let figures = window(0, hung);
            assert!(figures.stalled() && figures.one_waits(), "all {hung} wait");
        }
        assert!(window(9, 20).stalled(), "most wait");
        let of_old_record = Figures { waits: None, ..window(20, 1) };
        assert!(of_old_record.stalled(), "the count is unknown");
    }
}
