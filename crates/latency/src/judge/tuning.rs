//! The best setting for a service: sequential halving (Karnin, Koren, Somekh: "Almost optimal exploration in
//! multi-armed bandits", ICML 2013).
//!
//! All candidates alternate for a few rounds, then the worse half is dropped, and so on. The best is tried with
//! other timeouts. The measurements that selected it are biased in its favour, so new pairs with the current
//! settings and the runner-up decide.

use std::fmt;
use std::fmt::Write as _;

use measure::switchback::{Metric, Switchback, Word};
use model::{DeliveryMode, Limits, Nanoseconds, NapiKnob, Plan, PolicyName, Setting};
use schemars::JsonSchema;
use serde::Serialize;
use session::{Fault, Operator, Session};

use crate::judge::alternation::on_host;
use crate::judge::candidate::{Candidate, Wanted};
use crate::judge::metric_of;
use crate::live::{Selection, Target};
use apply::Allow;

/// The rounds after which candidates are ranked.
const ROUNDS: usize = 8;

/// The maximum number of variants of the best candidate.
const NEIGHBOURS_MAX: usize = 4;

/// The number of candidates in the proof besides the current settings: the best and the runner-up.
pub const FINALISTS: usize = 2;

/// The goal of a tuning.
#[derive(Clone, Debug)]
pub struct Aim {
    /// The metric to improve.
    pub metric: Metric,
    /// How much other metrics may grow.
    pub limits: Limits,
}

/// A stage of a tuning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The worse half is dropped.
    Halving,
    /// The best candidate with other timeouts.
    Neighbourhood,
    /// New pairs of the current settings, the best and the runner-up.
    Proof,
}

impl Stage {
    /// The most rounds; `None` for as many as the time allows.
    pub const fn rounds(self) -> Option<usize> {
        match self {
            Self::Halving | Self::Neighbourhood => Some(ROUNDS),
            Self::Proof => None,
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Halving => "candidates",
            Self::Neighbourhood => "other timeouts",
            Self::Proof => "proof, in new pairs",
        })
    }
}

/// Why a candidate is not tried, or was dropped.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
pub enum Out {
    /// The planner refuses it on this host.
    Refused {
        /// The planner's message.
        words: String,
    },
    /// It changes nothing, or the same as an earlier candidate.
    Same {
        /// That candidate.
        candidate: String,
    },
    /// The metric to improve became worse.
    Worse,
    /// Another metric grew beyond its limit.
    Limit {
        /// The metric.
        metric: Metric,
        /// The growth, as a share.
        growth: f64,
    },
    /// Others are better.
    Behind,
}

impl fmt::Display for Out {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The other lines are evidence.
            Self::Refused { words } => f.write_str(words.lines().next().unwrap_or_default()),
            Self::Same { candidate } => write!(f, "the same as {candidate}"),
            Self::Worse => f.write_str("worse"),
            Self::Limit { metric, growth } => {
                write!(f, "{metric} {:+.0} %, beyond its limit", growth * 100.0)
            }
            Self::Behind => f.write_str("others are better"),
        }
    }
}

/// A candidate with its changes on this host.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The candidate.
    pub candidate: Candidate,
    /// Its changes, or why it is not tried.
    pub plan: Result<Plan, Out>,
}

/// The candidates for a service that is already running, after those of the operator. The missing modes need a
/// restart of the program.
fn tried(more: &[Candidate]) -> Vec<Candidate> {
    let modes = ["defer20", "defer50", "defer200", "suspend20", "suspend200"].map(str::to_owned);
    let others = [
        DeliveryMode::Interrupt,
        DeliveryMode::NapiBusy,
        DeliveryMode::EventBusy,
        DeliveryMode::Threaded,
        DeliveryMode::ThreadedBusy,
    ];
    let names = PolicyName::optimizing().map(|policy| policy.as_str().to_owned()).chain(modes);
    let names = names.chain(others.map(|mode| mode.to_string()));
    let known = names.filter_map(|name| name.parse().ok());
    let mut all: Vec<Candidate> = Vec::new();
    for candidate in more.iter().cloned().chain(known) {
        if all.iter().all(|other| other.name != candidate.name) {
            all.push(candidate);
        }
    }
    all
}

/// The candidates for a service, in order. With `only`, the built-in candidates are omitted.
///
/// # Errors
/// If the service cannot be found or measured.
pub fn offers(
    more: &[Candidate],
    only: bool,
    selection: &Selection,
    session: &Session,
    operator: &dyn Operator,
) -> Result<Vec<Offer>, Fault> {
    let target = Target::of(selection, session, operator)?;
    let candidates = if only { more.to_vec() } else { tried(more) };
    let mut offers: Vec<Offer> = Vec::new();
    for candidate in candidates {
        let plan = match on_host(&candidate, &target, session, &session::Silent, Allow::default()) {
            Ok(found) => distinct(found.plan, &offers),
            Err(fault) => Err(Out::Refused { words: fault.cause.to_string() }),
        };
        offers.push(Offer { candidate, plan });
    }
    Ok(offers)
}

/// Returns the plan if it differs from all earlier ones.
fn distinct(plan: Plan, before: &[Offer]) -> Result<Plan, Out> {
    if plan.is_empty() {
        return Err(Out::Same { candidate: Candidate::current().name });
    }
    let to = |plan: &Plan| -> Vec<Setting> { plan.changes().map(|change| change.to().clone()).collect() };
    let same = before.iter().find(|offer| offer.plan.as_ref().is_ok_and(|other| to(other) == to(&plan)));
    match same {
        Some(offer) => Err(Out::Same { candidate: offer.candidate.name.clone() }),
        None => Ok(plan),
    }
}

/// The minimum number of windows of a tuning with this many candidates, with or without other timeouts.
pub fn windows_least(candidates: usize, neighbours: bool, pairs_least: usize) -> usize {
    let mut windows = 0;
    let mut left = candidates;
    if (1..=FINALISTS).contains(&left) {
        windows += ROUNDS * (left + 1);
    }
    while left > FINALISTS {
        windows += ROUNDS * (left + 1);
        left = left.div_ceil(2);
    }
    if neighbours {
        windows += ROUNDS * (NEIGHBOURS_MAX + 2);
    }
    windows + pairs_least * (FINALISTS + 1)
}

/// The rank of a candidate after a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// Its number in the stage, from 1.
    pub candidate: usize,
    /// The improvement of the metric, as a logarithm.
    pub gain: f64,
    /// Why it was dropped.
    pub out: Option<Out>,
}

/// Ranks the candidates of a stage, the best first. A limit is exceeded if the whole interval is beyond it; in
/// the proof, if the estimate is.
pub fn standings(stage: Stage, switchback: &Switchback, aim: &Aim) -> Vec<Standing> {
    let mut all: Vec<Standing> =
        (1..switchback.names().len()).map(|candidate| standing(stage, switchback, candidate, aim)).collect();
    all.sort_by(|one, other| {
        one.out.is_some().cmp(&other.out.is_some()).then(other.gain.total_cmp(&one.gain))
    });
    all
}

fn standing(stage: Stage, switchback: &Switchback, candidate: usize, aim: &Aim) -> Standing {
    let change = switchback.change(candidate, aim.metric);
    let growth = change.change.map_or(0.0, |change| change.estimate.ln_1p());
    let gain = if aim.metric.less_is_better() == Some(false) { growth } else { -growth };
    let beyond = aim.limits.iter().find_map(|(guarded, most)| {
        let metric = metric_of(guarded);
        let known = switchback.change(candidate, metric).change;
        // A limit that the proof did not measure is not proved.
        let Some(known) = known else {
            return (stage == Stage::Proof).then_some(Out::Limit { metric, growth: f64::INFINITY });
        };
        let least = match stage {
            Stage::Proof => known.estimate,
            Stage::Halving | Stage::Neighbourhood => known.low.unwrap_or(f64::NEG_INFINITY),
        };
        (least > most.share()).then_some(Out::Limit { metric, growth: known.estimate })
    });
    let stalls = switchback.change(candidate, Metric::Stalls).word == Word::Worse;
    let out = match () {
        () if change.word == Word::Worse || stalls => Some(Out::Worse),
        () if beyond.is_some() => beyond,
        () if stage == Stage::Proof && change.word != Word::Better => Some(Out::Behind),
        () => None,
    };
    Standing { candidate, gain, out }
}

/// Drops the worse half.
pub fn halved(mut standings: Vec<Standing>) -> Vec<Standing> {
    let stay = standings.len().div_ceil(2).max(1);
    for (at, standing) in standings.iter_mut().enumerate() {
        if at >= stay && standing.out.is_none() {
            standing.out = Some(Out::Behind);
        }
    }
    standings
}

/// A candidate with half and twice each of its timeouts.
pub fn neighbours(candidate: &Candidate, plan: &Plan) -> Vec<Candidate> {
    if !matches!(candidate.wanted(), Wanted::Settings(Some(_), given) if given.is_empty()) {
        return Vec::new();
    }
    let timeout = |of: fn(&NapiKnob) -> Option<Nanoseconds>| {
        let knobs = plan.changes().filter_map(|change| match change.to() {
            Setting::Napi(_, knob) => of(knob),
            _ => None,
        });
        knobs.max().filter(|timeout| timeout.0 > 0)
    };
    let gro = timeout(|knob| match knob {
        NapiKnob::GroFlushTimeout(timeout) => Some(*timeout),
        _ => None,
    });
    let suspend = timeout(|knob| match knob {
        NapiKnob::IrqSuspendTimeout(timeout) => Some(*timeout),
        _ => None,
    });
    let mut variants = Vec::new();
    for (key, timeout) in [("gro_flush_timeout", gro), ("irq_suspend_timeout", suspend)] {
        let Some(Nanoseconds(timeout)) = timeout else { continue };
        for variant in [timeout / 2, timeout.saturating_mul(2)] {
            variants.push(format!("{},{key}={}", candidate.name, Nanoseconds(variant)));
        }
    }
    variants.iter().take(NEIGHBOURS_MAX).filter_map(|variant| variant.parse().ok()).collect()
}

/// The section of a policy file for a candidate and a service that listens on a port; `None` for candidates that
/// are a file or set a device.
pub fn section(candidate: &Candidate, service: &str, port: u16) -> Option<String> {
    let Wanted::Settings(Some(word), settings) = candidate.wanted() else { return None };
    if settings.iter().any(|(key, _)| !model::keys::OF_DELIVERY.contains(&key.as_str())) {
        return None;
    }
    let name: String =
        service.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    let mut text = format!("[service.{name}]\nmatch = {{ port = {port} }}\n");
    let _ = match word {
        policy_file::Word::Policy(policy) => writeln!(text, "policy = \"{policy}\""),
        policy_file::Word::Delivery(mode) => writeln!(text, "policy = \"none\"\ndelivery = \"{mode}\""),
    };
    for (key, value) in settings {
        let _ = match value.bytes().all(|byte| byte.is_ascii_digit()) {
            true => writeln!(text, "{key} = {value}"),
            false => writeln!(text, "{key} = \"{value}\""),
        };
    }
    Some(text)
}

#[cfg(test)]
mod test {
    use super::*;
    use measure::live::Estimator;
    use measure::switchback::{Figures, Rule};
    use model::{Change, DeviceId, IfIndex, Label, NetnsId, QueueIndex, Reason, RxQueue, Step};

    fn figures(p50: f64, p99: f64) -> Figures {
        Figures {
            seconds: 1.0,
            requests: 5_000,
            estimator: Estimator::Uniform,
            p50: Some(p50),
            p90: Some(p50 * 2.0),
            p99: Some(p99),
            cpu_service: Some(10_000.0),
            cpu_delivery: Some(5_000.0),
            cpu_measuring: None,
            engaged: Some(0.0),
            oldest: None,
            waits: None,
            unit: None,
            network: None,
        }
    }

    fn shown(windows: &[Figures], rounds: usize) -> Switchback {
        let names = (0..windows.len()).map(|at| at.to_string()).collect();
        let rule = Rule { deciding: vec![Metric::P50, Metric::Stalls], margin: 0.05, alpha: Rule::ALPHA };
        let mut switchback = Switchback::new(names, rule);
        for _ in 0..rounds {
            switchback.add(windows, None);
        }
        switchback
    }

    fn aim(limits: &str) -> Aim {
        Aim { metric: Metric::P50, limits: limits.parse().expect("limits") }
    }

    #[test]
    fn the_better_half_stays_and_what_is_worse_or_beyond_a_limit_does_not() {
        let windows = [(100.0, 500.0), (80.0, 500.0), (60.0, 900.0), (70.0, 500.0), (300.0, 500.0)];
        let shown = shown(&windows.map(|(p50, p99)| figures(p50, p99)), 30);
        let left = halved(standings(Stage::Halving, &shown, &aim("p99=+15%")));
        let order: Vec<(usize, bool)> = left.iter().map(|one| (one.candidate, one.out.is_none())).collect();
        assert_eq!(order, [(3, true), (1, true), (2, false), (4, false)]);
        assert!(matches!(left[2].out, Some(Out::Limit { metric: Metric::P99, .. })), "{:?}", left[2]);
        assert_eq!(left[3].out, Some(Out::Worse));
    }

    #[test]
    fn a_proof_needs_a_verdict_and_each_limit_measured() {
        let few = shown(&[figures(100.0, 500.0), figures(80.0, 500.0)], 3);
        let out = |shown: &Switchback| standings(Stage::Proof, shown, &aim("p99=+15%"))[0].out.clone();
        assert_eq!(out(&few), Some(Out::Behind), "three pairs prove nothing");
        let many = shown(&[figures(100.0, 500.0), figures(80.0, 500.0)], 30);
        assert_eq!(out(&many), None);
        let none = Figures { p99: None, ..figures(80.0, 0.0) };
        let unmeasured = shown(&[figures(100.0, 500.0), none], 30);
        assert!(matches!(out(&unmeasured), Some(Out::Limit { metric: Metric::P99, .. })));
    }

    #[test]
    fn of_candidates_of_one_section_the_file_says_what_was_tried() {
        let section = |words: &str, port: u16| {
            section(&words.parse().expect("a candidate"), "redis server", port).expect("a section")
        };
        assert_eq!(
            section("defer50,gro_flush_timeout=25us", 6379),
            "[service.redis_server]\nmatch = { port = 6379 }\npolicy = \"none\"\ndelivery = \"defer50\"\ngro_flush_timeout = \"25us\"\n"
        );
        for text in [section("latency", 80), section("suspend20,defer_hard_irqs=7", 80)] {
            let file = policy_file::parse("tuned.toml", &text).expect("it is a policy file");
            policy_file::merge(&[file]).expect("it is complete");
        }
    }

    #[test]
    fn the_best_candidate_is_tried_with_half_and_twice_its_timeouts() {
        let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
        let queue = RxQueue { device, index: QueueIndex(0) };
        let change = |knob: fn(Nanoseconds) -> NapiKnob, us: u64| {
            let setting = |us| Setting::Napi(queue, knob(Nanoseconds::from_micros(us)));
            Change::new(setting(0), setting(us), Reason::new("test", "test"))
        };
        let changes =
            vec![change(NapiKnob::GroFlushTimeout, 20), change(NapiKnob::IrqSuspendTimeout, 20_000)];
        let plan = Plan { steps: vec![Step::new(changes)] };
        let names = |candidate: &str| -> Vec<String> {
            let all = neighbours(&candidate.parse().expect("a candidate"), &plan);
            all.into_iter().map(|candidate| candidate.name).collect()
        };
        let expected = [
            "suspend20,gro_flush_timeout=10us",
            "suspend20,gro_flush_timeout=40us",
            "suspend20,irq_suspend_timeout=10ms",
            "suspend20,irq_suspend_timeout=40ms",
        ];
        assert_eq!(names("suspend20"), expected);
        assert!(names("suspend20,defer_hard_irqs=7").is_empty(), "the operator chose its values");
        assert!(names("rx-usecs=8").is_empty(), "it has no timeouts");
    }

    #[test]
    fn the_number_of_windows_grows_with_candidates_and_not_with_their_square() {
        assert_eq!(windows_least(2, true, 9), 8 * 3 + 8 * 6 + 9 * 3);
        assert_eq!(windows_least(2, false, 9), 8 * 3 + 9 * 3);
        assert!(windows_least(16, true, 9) < 16 * 9 * 4);
    }
}
