//! A service whose traffic judges a change: the windows that were measured, and the verdict from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::live::{MeasuredService, Sampler, ServiceSelection};
use crate::measure::foresight::{Foresight, Sight, sentence};
use crate::measure::live::Unpaired;
use crate::measure::sequential::mean_of_logs;
use crate::measure::switchback::{Figures, Metric, Rule, Switchback};
use crate::measure::tuning::metric_of;
use model::{Guarded, JudgedBy, Judgement, Limits, Ruling};
use schemars::JsonSchema;
use serde::Serialize;
use session::{Exit, Fault, Operator, Session, clock};

use crate::judge::comparison::unpaired;
use crate::judge::judgement::changes_of;

/// A service whose traffic judges a change, with its limits.
#[derive(Clone, Debug)]
pub struct JudgedService {
    /// The service.
    pub selection: ServiceSelection,
    /// The limits on the growth of metrics.
    pub limits: Limits,
    /// The metric that must decrease for the change to be kept. `None` if it is sufficient that no limit is
    /// exceeded.
    pub gain: Option<Guarded>,
}

/// The longest and the shortest window. Adjacent windows resemble each other, so many short pairs distinguish
/// a change from noise sooner than a few long pairs. But a window must have enough requests for its
/// percentiles. docs/decisions/0051 lists the lengths that were tried.
pub(super) const WINDOW_LONGEST: Duration = Duration::from_secs(1);
pub(super) const WINDOW_SHORTEST: Duration = Duration::from_millis(60);

/// The pause after a switch, during which outstanding requests end: its length as a multiple of the time in
/// which nine of ten requests end, and its minimum and maximum.
pub(super) const SETTLES_REQUESTS: f64 = 3.0;
pub(super) const SETTLES_LEAST: Duration = Duration::from_millis(10);
pub(super) const SETTLES_MOST: Duration = Duration::from_millis(100);

/// The minimum length of a window, as a multiple of the pause before it.
pub(super) const WINDOW_SETTLES: u32 = 6;

/// The number of seconds after which requests count as stalled: consecutive windows of this total length have
/// no answer, or have a request that waits throughout.
pub(super) const STALLS_FROM: f64 = 0.95;

/// The age, in nanoseconds, from which an unanswered request counts as waiting for the service. Younger
/// requests are probably being answered.
const WAITS_FROM: f64 = 1e7;

/// The minimum number of pairs before a change is kept. Fewer pairs could not have rejected the change,
/// because a pair at most doubles a stake.
pub(crate) const PAIRS_MIN: usize = 7;

/// The maximum probability of reverting a change whose effect is exactly at its limits. A change without any
/// effect is reverted far less often: by at most one in 1000 guards, even on a machine whose noise is several
/// times the limit (docs/decisions/0051).
const ALPHA: f64 = 0.01;

/// Predictions of what a guard can detect in a service's figures.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct ServiceForesight {
    /// The service.
    pub service: String,
    /// The duration of the guard, in seconds.
    pub seconds: f64,
    /// For each limit, the prediction for a growth by twice the limit.
    pub figures: Vec<Foresight>,
}

impl fmt::Display for ServiceForesight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.service, sentence(&self.figures, self.seconds))
    }
}

/// The indices of the two candidates: the host without and with the change.
pub(super) const UNCHANGED: usize = 0;
pub(super) const CHANGED: usize = 1;

/// Whether a stake that was divided evenly among these bets has grown by 1/α, which rejects one of the
/// hypotheses.
pub(crate) fn is_refused(bets: &[f64]) -> bool {
    mean_of_logs(bets) >= (1.0 / ALPHA).ln()
}

pub(super) fn refused(words: impl Into<String>) -> Fault {
    Fault::new(Exit::Refused, words.into())
}

/// A service that is being measured for a trial.
pub(super) struct Service {
    pub(super) target: MeasuredService,
    pub(super) sampler: Sampler,
    /// The metrics that the guard names, with their limits.
    pub(super) limits: Vec<(Metric, f64)>,
    /// Other metrics that can be measured, with [their limits](IMPLIED).
    pub(super) implied: Vec<(Metric, f64)>,
    /// The metric that must decrease, if any.
    pub(super) gain: Option<Metric>,
    pub(super) rounds: Switchback,
    /// The figures of the windows before the change.
    pub(super) reference: Vec<Figures>,
    /// For how long no request has been answered: over all windows, and over the windows with the change.
    silence: [Silence; 2],
    /// Why the service has no response times; `None` if it has some.
    pub(super) unpaired: Option<Unpaired>,
    /// Whether the service had connections before the change.
    pub(super) connected: bool,
}

/// The lengths of the most recent windows without an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Silence {
    /// The total length, in seconds, of consecutive windows without an answer.
    unanswered: f64,
    /// The total length, in seconds, of consecutive windows in which a request waited throughout.
    waits: f64,
    /// Whether a request was waiting when these windows began. Unanswered datagrams count only in the window
    /// in which they arrive, and clients may wait for their answers before they send more.
    began_waiting: bool,
}

/// Whether a request was unanswered at the end of a window, and had not only just arrived.
fn waits(figures: &Figures) -> bool {
    figures.oldest.is_some_and(|oldest| oldest >= WAITS_FROM)
}

impl Silence {
    fn add(&mut self, figures: &Figures) {
        self.began_waiting = waits(figures) || (figures.requests == 0 && self.began_waiting);
        self.unanswered = if figures.requests == 0 { self.unanswered + figures.seconds } else { 0.0 };
        self.waits = if figures.one_waits() { self.waits + figures.seconds } else { 0.0 };
    }
}

impl Service {
    pub(super) fn find(
        watched: &JudgedService,
        session: &Session,
        operator: &dyn Operator,
    ) -> Result<Self, Fault> {
        let target =
            MeasuredService::of(&watched.selection, session, operator).map_err(|fault| match fault.exit {
                // Treat this like a service of the policy files that is not running: there is no traffic for
                // a verdict.
                Exit::Failed => Fault { exit: Exit::Refused, ..fault },
                _ => fault,
            })?;
        let sampler = Sampler::load(&target, WINDOW_LONGEST)?;
        let limits: Vec<(Metric, f64)> =
            watched.limits.iter().map(|(guarded, growth)| (metric_of(guarded), growth.share())).collect();
        for finding in &target.findings {
            operator.say(&format!("{}: {}", target.name, finding.summary));
        }
        let gain = watched.gain.map(metric_of);
        let mut deciding: Vec<Metric> = limits.iter().map(|(metric, _)| *metric).collect();
        deciding.extend(gain.filter(|gain| !deciding.contains(gain)));
        // If clients wait for answers, the change affects the request rate, so accept pairs with different
        // rates.
        deciding.push(Metric::Requests);
        let rule = Rule { deciding, margin: 0.0, alpha: Rule::ALPHA };
        let rounds = Switchback::new(vec!["before".to_owned(), "after".to_owned()], rule).robust();
        let silence = [Silence::default(); 2];
        let implied = implied_by(&limits, gain);
        Ok(Self {
            target,
            sampler,
            limits,
            implied,
            gain,
            rounds,
            reference: Vec::new(),
            silence,
            unpaired: None,
            connected: false,
        })
    }

    /// Returns the length of the shortest window that has enough requests for all guarded metrics, at the
    /// lowest request rate so far.
    pub(super) fn window(&self) -> Duration {
        let rate = self.reference.iter().map(Figures::rate).fold(f64::INFINITY, f64::min);
        window_of(self.limits.iter().map(|(metric, _)| *metric).chain(self.gain), rate)
    }

    /// Returns the pause after a switch, which depends on how long requests take.
    pub(super) fn settles(&self) -> Duration {
        let longest = |figures: &Figures| figures.p90.or(figures.p50).unwrap_or(f64::INFINITY);
        let longest = self.reference.iter().map(longest).fold(0.0, f64::max);
        let settles = Duration::try_from_secs_f64(longest / 1e9 * SETTLES_REQUESTS).unwrap_or(SETTLES_MOST);
        settles.clamp(SETTLES_LEAST, SETTLES_MOST)
    }

    /// Checks that there are enough requests for the metrics that the guard names. Any other metric is not
    /// judged if it cannot be measured.
    pub(super) fn can_be_judged(&mut self) -> Result<(), Fault> {
        let name = &self.target.name;
        let windows = self.reference.len();
        let reference = &self.reference;
        self.implied.retain(|(metric, _)| {
            reference.iter().filter(|figures| metric.of(figures).is_some()).count() * 2 > windows
        });
        let limits = self.limits.iter().map(|(metric, _)| *metric);
        let all: BTreeSet<Metric> = limits.chain(self.gain).collect();
        for metric in all {
            let known = self.reference.iter().filter(|figures| metric.of(figures).is_some()).count();
            if known * 2 > windows {
                continue;
            }
            if let Some(why) = self.unpaired {
                return Err(unpaired(name, why));
            }
            let requests: u64 = self.reference.iter().map(|figures| figures.requests).sum();
            let each = requests / u64::try_from(windows.max(1)).unwrap_or(1);
            if requests == 0 {
                return Err(refused(format!(
                    "{name} received no request in {windows} s, so there is no traffic for a verdict"
                ))
                .hint(
                    "wait for traffic, or apply the change without the guard: netpolicy apply --no-guard",
                ));
            }
            let words = match metric {
                Metric::Cpu => format!("the CPU time per request of {name} cannot be measured"),
                _ => format!("{name} receives {each} requests per second, too few for its {metric}"),
            };
            return Err(refused(words)
                .hint("guard p50 or p90, which need 20 and 100 requests per second; p99 needs 1000"));
        }
        Ok(())
    }

    /// Whether requests have stalled for [`STALLS_FROM`] seconds, although they did not stall before the
    /// change.
    pub(super) fn is_stalled(&mut self, figures: &Figures, changed: bool) -> bool {
        let [all, with] = &mut self.silence;
        all.add(figures);
        if changed {
            with.add(figures);
        }
        let before = |is: fn(&Figures) -> bool| self.reference.iter().any(is);
        let (silent, waiting) = (before(|figures| figures.requests == 0), before(Figures::one_waits));
        self.silence.iter().any(|silence| {
            (silence.unanswered >= STALLS_FROM && !silent) || (silence.waits >= STALLS_FROM && !waiting)
        })
    }

    /// Whether a request was waiting when the silence began. False if requests waited in most windows before
    /// the change, as they do for a resolver that queries other servers.
    pub(super) fn began_waiting(&self) -> bool {
        let waited = self.reference.iter().filter(|figures| waits(figures)).count();
        self.silence[0].began_waiting && 2 * waited <= self.reference.len()
    }

    /// Predicts what a guard of this duration can detect, for a growth by twice each limit. `pair` is the
    /// duration of a pair, and `bets` is the number of limits among which the stake is divided.
    pub(super) fn foresight(&self, pair: Duration, within: Duration, bets: usize) -> Vec<Foresight> {
        let limits = self.limits.iter().chain(&self.implied);
        let of = |(metric, limit): &(Metric, f64)| {
            let sight = Sight {
                limit: *limit,
                stake: count(bets) / ALPHA,
                pair_seconds: pair.as_secs_f64(),
                within: within.as_secs_f64(),
                robust: true,
                pairs_min: PAIRS_MIN,
            };
            Foresight::of(&self.reference, *metric, 2.0 * limit, &sight)
        };
        limits.filter_map(of).collect()
    }

    /// Returns, for each limit, the logarithm of a unit stake that was bet against the hypothesis that the
    /// metric has grown by at most its limit.
    pub(super) fn bets(&self, stays: bool) -> impl Iterator<Item = f64> {
        self.limits.iter().chain(&self.implied).map(move |(metric, limit)| {
            let spread = if stays { self.spread(*metric) } else { 0.0 };
            let most = (limit.ln_1p() + spread).exp_m1();
            match self.rounds.rounds() >= PAIRS_MIN && !self.network_differs() {
                true => self.rounds.against_growth(CHANGED, *metric, most),
                false => 0.0,
            }
        })
    }

    /// Whether the loss of packets in the network is different with the change, in either direction. A
    /// difference in response times may then be due to the network.
    pub(super) fn network_differs(&self) -> bool {
        self.rounds.loss(CHANGED).is_apart()
    }

    /// Returns the ruling on the metric that must decrease, from its whole interval: [`Ruling::Better`],
    /// [`Ruling::Worse`] or [`Ruling::CannotTell`]. `None` if no metric must decrease.
    pub(super) fn on_gain(&self) -> Option<Ruling> {
        let interval = self.rounds.change(CHANGED, self.gain?).change.filter(|_| !self.network_differs());
        Some(word_on_gain(interval.and_then(|bounds| bounds.low), interval.and_then(|bounds| bounds.high)))
    }

    /// Returns by how much the highest window before the change exceeds the median window, as a logarithm.
    /// This is the natural variation of windows.
    pub(super) fn spread(&self, metric: Metric) -> f64 {
        let known = self.reference.iter().filter_map(|figures| metric.of(figures));
        let logs: Vec<f64> = known.filter(|value| *value > 0.0).map(f64::ln).collect();
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        crate::measure::statistics::median(&logs).map_or(0.0, |middle| (most - middle).max(0.0))
    }

    /// Returns the differences of the valid pairs, by quantity.
    pub(super) fn differences(&self) -> BTreeMap<Guarded, Vec<f64>> {
        let of = |guarded| (guarded, self.rounds.differences(CHANGED, metric_of(guarded)));
        Guarded::ALL.map(of).into_iter().collect()
    }

    pub(super) fn judgement(&self, ruling: Ruling, by: JudgedBy, took: Duration) -> Judgement {
        let mut changes = changes_of(&self.rounds.changes(CHANGED));
        for change in &mut changes {
            let mut limits = self.limits.iter().chain(&self.implied);
            let limit = limits.find(|(metric, _)| metric.as_str() == change.metric);
            change.limit = limit.map(|(_, limit)| *limit);
            let must_gain = self.gain.is_some_and(|gain| gain.as_str() == change.metric);
            change.decides = limit.is_some() || must_gain;
        }
        changes.sort_by_key(|change| !change.decides);
        Judgement {
            unix_micros: clock::now().unix_micros,
            service: self.target.name.clone(),
            with: "the settings before".to_owned(),
            ruling,
            by,
            pairs: self.rounds.rounds(),
            void: self.rounds.voided().iter().map(|(_, rounds)| rounds).sum(),
            seconds: took.as_secs_f64(),
            changes,
        }
    }
}

/// Returns the ruling from the interval of the change of a metric that should be small: whether the interval
/// is below zero, above zero, or contains zero.
fn word_on_gain(low: Option<f64>, high: Option<f64>) -> Ruling {
    if high.is_some_and(|high| high < 0.0) {
        Ruling::Better
    } else if low.is_some_and(|low| low > 0.0) {
        Ruling::Worse
    } else {
        Ruling::CannotTell
    }
}

/// Returns the length of a guard's windows and of the pause before each, for limits on these metrics at this
/// request rate, provided that requests take at most a few milliseconds.
pub(crate) fn windows_of(metrics: &[Metric], rate: f64) -> (Duration, Duration) {
    let window = window_of(metrics.iter().copied(), rate);
    (window.max(SETTLES_LEAST * WINDOW_SETTLES), SETTLES_LEAST)
}

/// Returns the number of requests that a window should have for a metric. For p90 and p99, this is a fifth
/// more than the percentile needs.
fn requests_in_window(metric: Metric) -> f64 {
    match metric {
        Metric::P90 => 120.0,
        Metric::P99 => 1_200.0,
        _ => 100.0,
    }
}

/// Returns the length of a guard's windows for these metrics at this request rate.
fn window_of(metrics: impl Iterator<Item = Metric>, rate: f64) -> Duration {
    let requests = metrics.map(requests_in_window).fold(0.0, f64::max);
    let seconds = Duration::try_from_secs_f64(requests / rate).unwrap_or(WINDOW_LONGEST);
    seconds.clamp(WINDOW_SHORTEST, WINDOW_LONGEST)
}

/// The limits on metrics that a guard does not name. These metrics are guarded as well.
const IMPLIED: [(Guarded, f64); 4] =
    [(Guarded::P50, 0.15), (Guarded::P90, 0.15), (Guarded::P99, 0.15), (Guarded::Cpu, 0.25)];

/// Returns the limits that apply to metrics that the guard does not name. If a metric must decrease, as in a
/// search, there are none: only that metric and the named ones decide.
fn implied_by(limits: &[(Metric, f64)], gain: Option<Metric>) -> Vec<(Metric, f64)> {
    let all = IMPLIED.map(|(guarded, limit)| (metric_of(guarded), limit));
    let not_named = all.into_iter().filter(|(metric, _)| limits.iter().all(|(named, _)| named != metric));
    not_named.filter(|_| gain.is_none()).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a few limits")]
const fn count(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod test {
    use super::*;

    /// In 30 pairs of windows, the median grows 17-fold, the 90th percentile by 29 %, the 99th percentile by
    /// 14 %, and CPU time by 17 %.
    #[test]
    fn a_guard_that_names_one_figure_does_not_give_the_others_away() {
        let figures = |p50: f64, p90: f64, p99: f64, cpu: f64, nth: u32| {
            let near = 1.0 + f64::from(nth % 3) / 200.0;
            Figures {
                p50: Some(p50 * near),
                p90: Some(p90 * near),
                p99: Some(p99 * near),
                cpu_service: Some(cpu * near),
                cpu_delivery: Some(0.0),
                estimator: crate::measure::live::Estimator::Residence,
                ..Figures::of_requests(1.0, 5_000)
            }
        };
        let limits = vec![(Metric::P99, 0.15)];
        let rule = Rule { deciding: vec![Metric::P99, Metric::Requests], margin: 0.0, alpha: Rule::ALPHA };
        let mut rounds = Switchback::new(vec!["before".to_owned(), "after".to_owned()], rule);
        for nth in 0..30 {
            let before = figures(1e5, 1e6, 1e7, 2e4, nth);
            rounds.add(&[before, figures(1.7e6, 1.29e6, 1.14e7, 2.34e4, nth + 1)], None);
        }
        let bets = |limits: &[(Metric, f64)]| -> Vec<f64> {
            limits.iter().map(|(metric, most)| rounds.against_growth(CHANGED, *metric, *most)).collect()
        };
        assert!(!super::is_refused(&bets(&limits)), "the named metric alone is within its limit");
        let implied = implied_by(&limits, None);
        assert_eq!(implied.len(), 3);
        assert!(super::is_refused(&bets(&[limits, implied].concat())));
        assert!(implied_by(&[], Some(Metric::P99)).is_empty());
    }

    #[test]
    fn a_gain_is_shown_by_the_whole_interval_and_nothing_less() {
        for (low, high, word) in [
            (Some(-0.6), Some(-0.1), Ruling::Better),
            (None, Some(-0.1), Ruling::Better),
            (Some(-0.6), Some(0.01), Ruling::CannotTell),
            (Some(-0.6), None, Ruling::CannotTell),
            (Some(-0.01), Some(0.3), Ruling::CannotTell),
            (Some(0.02), Some(0.3), Ruling::Worse),
            (Some(0.02), None, Ruling::Worse),
            (None, None, Ruling::CannotTell),
        ] {
            assert_eq!(word_on_gain(low, high), word, "{low:?} to {high:?}");
        }
    }
}
