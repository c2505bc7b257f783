//! Stores whether a policy helps a service (the standing proof): for a small share of the time, the daemon
//! withdraws the policy in short windows, and compares them with the windows before and after. Proofs are
//! stored next to the journal, so that they outlive the daemon and reboots.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guard::Guarded;
use crate::holdback::Holdback;
use crate::judgement::Ruling;
use crate::policy::{Intent, Policy};
use crate::policy_name::PolicyName;

/// The proofs of all services.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proofs {
    /// The proofs by service, such as `service memcached`.
    pub services: BTreeMap<String, Proof>,
}

impl Proofs {
    /// The maximum number of services with a proof.
    pub const SERVICES_MAX: usize = 16;

    /// Removes from a policy the requests that were rolled back because they do harm, and returns them.
    pub fn take_rolled_back(&self, policy: &mut Policy) -> Vec<Intent> {
        let is_rolled_back = |intent: &Intent| {
            let proof = self.services.get(&intent.target.to_string());
            proof.is_some_and(|proof| proof.is_rolled_back(intent))
        };
        let intents = std::mem::take(&mut policy.intents);
        let (rolled_back, kept) = intents.into_iter().partition(is_rolled_back);
        policy.intents = kept;
        rolled_back
    }
}

/// The proof for one service.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// The service's request. If it changes, the proof starts over.
    pub intent: Intent,
    /// The delivery mode that the request resolved to. If it changes, the proof starts over.
    pub delivery: String,
    /// When the proof began, in microseconds since 1970.
    pub since_unix_micros: u64,
    /// How long the daemon has managed the service since the proof began, in milliseconds. This includes the
    /// episodes in which the daemon withdrew the policy.
    pub managed_millis: u64,
    /// How long the service ran without the policy, in milliseconds.
    pub without_millis: u64,
    /// The number of pairs of windows, including pairs whose differences are no longer kept.
    pub pairs: u64,
    /// The last [`Proof::PAIRS_MAX`] differences of each quantity. A difference is the logarithm of the value
    /// with the policy divided by the value without it.
    pub differences: BTreeMap<Guarded, Vec<f32>>,
    /// The effects that the pairs show.
    pub effects: Vec<Effect>,
    /// The effects after each episode, oldest first; every other entry is dropped when there are more than
    /// [`Proof::COURSE_MAX`].
    #[serde(default)]
    pub course: Vec<CourseStep>,
    /// The last episode; `None` before the first one.
    pub last: Option<Episode>,
    /// When the daemon rolled back the policy because it does harm, in microseconds since 1970.
    #[serde(default)]
    pub rolled_back_unix_micros: Option<u64>,
}

/// The effect on one quantity, as known after an episode.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CourseStep {
    /// The time of the episode's end, in microseconds since 1970.
    pub unix_micros: u64,
    /// The quantity.
    pub quantity: Guarded,
    /// The effect over all pairs up to that time, as a share.
    pub change: ProofInterval,
}

/// An episode: several consecutive pairs of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Episode {
    /// When the episode ended, in microseconds since 1970.
    pub unix_micros: u64,
    /// How the episode ended. [`Ruling::BeyondLimit`] means that the service was so much worse without the
    /// policy that the episode ended early.
    pub ruling: Ruling,
}

/// The effect of a policy on one quantity, as a share of its value without the policy: −0.21 for 21 % less.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effect {
    /// The quantity.
    pub quantity: Guarded,
    /// The estimate over all kept pairs, with an interval that contains the true effect at all times with a
    /// probability of 95 %.
    pub change: ProofInterval,
    /// The estimate over the last 256 pairs, which shows recent changes first.
    pub recent: ProofInterval,
    /// The number of kept pairs.
    pub pairs: usize,
}

/// An estimate with its interval.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProofInterval {
    /// The estimate.
    pub estimate: f64,
    /// The lower end of the interval; `None` while there are too few pairs.
    pub low: Option<f64>,
    /// The upper end of the interval; `None` while there are too few pairs.
    pub high: Option<f64>,
}

impl ProofInterval {
    /// Whether the quantity is smaller with the policy.
    pub fn is_less(&self) -> bool {
        self.high.is_some_and(|high| high < 0.0)
    }

    /// Whether the quantity is larger with the policy.
    pub fn is_more(&self) -> bool {
        self.low.is_some_and(|low| low > 0.0)
    }

    /// Whether the effect is smaller than this share, in either direction.
    pub fn is_within(&self, margin: f64) -> bool {
        self.low.is_some_and(|low| low > -margin) && self.high.is_some_and(|high| high < margin)
    }
}

/// Formats the effect, such as `-21 % (-24 to -18)`; ends that are not known yet are left out.
impl fmt::Display for ProofInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:+.0}", share * 100.0);
        write!(f, "{} %", percent(self.estimate))?;
        match (self.low, self.high) {
            (Some(low), Some(high)) => write!(f, " ({} to {})", percent(low), percent(high)),
            (Some(low), None) => write!(f, " (at least {})", percent(low)),
            (None, Some(high)) => write!(f, " (at most {})", percent(high)),
            (None, None) => f.write_str(" (not certain yet)"),
        }
    }
}

/// The conclusion that a proof allows at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProofState {
    /// A quantity that the policy is meant to reduce is smaller with the policy.
    Helps,
    /// The effect on every quantity that the policy is meant to reduce is below 5 %.
    NoEffect,
    /// A quantity that the policy is meant to reduce is larger with the policy, and none is smaller.
    Reversed,
    /// The measurements do not suffice for a conclusion.
    Open,
}

impl ProofState {
    /// All conclusions.
    pub const ALL: [Self; 4] = [Self::Helps, Self::NoEffect, Self::Reversed, Self::Open];

    /// The conclusion's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Helps => "helps",
            Self::NoEffect => "no-effect",
            Self::Reversed => "reversed",
            Self::Open => "open",
        }
    }
}

impl Proof {
    /// The maximum number of kept pairs.
    pub const PAIRS_MAX: usize = 2_048;

    /// The maximum number of entries that are kept of the course of the effects.
    pub const COURSE_MAX: usize = 1_024;

    /// The number of pairs that count as recent.
    pub const RECENT_PAIRS: usize = 256;

    /// An effect below this share counts as none.
    pub const MARGIN: f64 = 0.05;

    /// Creates a proof that begins at this time.
    pub fn of(intent: &Intent, delivery: &str, unix_micros: u64) -> Self {
        Self {
            intent: as_asked(intent),
            delivery: delivery.to_owned(),
            since_unix_micros: unix_micros,
            managed_millis: 0,
            without_millis: 0,
            pairs: 0,
            differences: BTreeMap::new(),
            effects: Vec::new(),
            course: Vec::new(),
            last: None,
            rolled_back_unix_micros: None,
        }
    }

    /// Whether this proof belongs to this request with this delivery mode.
    pub fn is_of(&self, intent: &Intent, delivery: &str) -> bool {
        self.is_of_request(intent) && self.delivery == delivery
    }

    /// Adds the differences that an episode measured, oldest first.
    pub fn add(&mut self, differences: &BTreeMap<Guarded, Vec<f64>>) {
        let pairs = differences.values().map(Vec::len).max().unwrap_or(0);
        self.pairs = self.pairs.saturating_add(pairs as u64);
        for (quantity, new) in differences {
            let known = self.differences.entry(*quantity).or_default();
            known.extend(new.iter().copied().filter(|it| it.is_finite()).map(rounded));
            let surplus = known.len().saturating_sub(Self::PAIRS_MAX);
            known.drain(..surplus);
        }
    }

    /// Adds the present effects to the course of the effects. When the course is full, every other entry is
    /// dropped.
    pub fn note_effects(&mut self, unix_micros: u64) {
        if self.course.len() + self.effects.len() > Self::COURSE_MAX {
            let mut moments: Vec<u64> = self.course.iter().map(|step| step.unix_micros).collect();
            moments.dedup();
            let kept: std::collections::BTreeSet<u64> = moments.into_iter().step_by(2).collect();
            self.course.retain(|step| kept.contains(&step.unix_micros));
        }
        let steps = self.effects.iter().map(|Effect { quantity, change, .. }| CourseStep {
            unix_micros,
            quantity: *quantity,
            change: *change,
        });
        self.course.extend(steps);
    }

    /// Whether this proof belongs to this request, with any delivery mode.
    pub fn is_of_request(&self, intent: &Intent) -> bool {
        self.intent == as_asked(intent)
    }

    /// Whether the policy of a request is rolled back because it does harm.
    pub fn is_rolled_back(&self, intent: &Intent) -> bool {
        self.rolled_back_unix_micros.is_some()
            && !intent.on_reversed.is_report()
            && self.is_of_request(intent)
    }

    /// Describes the effects: `cpu -21 % (-24 to -18), p99 +4 % (+1 to +7)`.
    pub fn effects_in_words(&self) -> String {
        let effect = |effect: &Effect| format!("{} {}", effect.quantity.as_str(), effect.change);
        self.effects.iter().map(effect).collect::<Vec<String>>().join(", ")
    }

    /// Describes the conclusion in one line: `service cache: its proof: cpu -21 % (-24 to -18) with its
    /// policy, 3100 pairs, helps`.
    pub fn sentence(&self, service: &str) -> String {
        let effects = self.effects_in_words();
        let shown = if effects.is_empty() { "nothing yet".to_owned() } else { effects };
        let rolled_back = if self.rolled_back_unix_micros.is_some() { "; rolled back" } else { "" };
        let (pairs, standing) = (self.pairs, self.standing().as_str());
        format!("{service}: its proof: {shown} with its policy, {pairs} pairs, {standing}{rolled_back}")
    }

    /// Returns the share of the time for which the service ran without the policy.
    pub fn share_without(&self) -> f64 {
        if self.managed_millis == 0 { 0.0 } else { millis(self.without_millis) / millis(self.managed_millis) }
    }

    /// Whether the service stays within the allowed share if an episode withdraws the policy for this long.
    pub fn allows(&self, holdback: Holdback, without_millis: u64) -> bool {
        let used = millis(self.without_millis.saturating_add(without_millis));
        used <= holdback.share() * millis(self.managed_millis)
    }

    /// Whether the policy harms by more than the margin, the condition of `on_reversed = "rollback"`.
    pub fn harms(&self) -> bool {
        let meant = quantities_of(&self.intent);
        let is_worse =
            |effect: &&Effect| meant.contains(&effect.quantity) && effect.recent.low > Some(Self::MARGIN);
        self.standing() == ProofState::Reversed && self.effects.iter().any(|effect| is_worse(&effect))
    }

    /// Returns the present conclusion, from the recent pairs.
    pub fn standing(&self) -> ProofState {
        let meant = quantities_of(&self.intent);
        let recent: Vec<&ProofInterval> = self
            .effects
            .iter()
            .filter(|effect| meant.contains(&effect.quantity))
            .map(|effect| &effect.recent)
            .collect();
        if recent.is_empty() {
            return ProofState::Open;
        }
        if recent.iter().any(|interval| interval.is_less()) {
            return ProofState::Helps;
        }
        if recent.iter().any(|interval| interval.is_more()) {
            return ProofState::Reversed;
        }
        let is_nothing = recent.iter().all(|interval| interval.is_within(Self::MARGIN));
        if is_nothing { ProofState::NoEffect } else { ProofState::Open }
    }
}

/// Returns the quantities that a request is meant to reduce: those of its policy. A delivery mode without a
/// policy may be meant to reduce any quantity.
fn quantities_of(intent: &Intent) -> Vec<Guarded> {
    match intent.policy {
        PolicyName::Latency => vec![Guarded::P50, Guarded::P90, Guarded::P99],
        PolicyName::Cpu | PolicyName::Power | PolicyName::Bulk => vec![Guarded::Cpu],
        PolicyName::Mix | PolicyName::None => Guarded::ALL.to_vec(),
    }
}

/// Reduces a request to the parts that affect its settings.
fn as_asked(intent: &Intent) -> Intent {
    let delivery = intent.delivery.filter(|_| intent.found.is_none());
    Intent {
        delivery,
        found: None,
        goal: crate::policy::Goal::default(),
        guard: None,
        holdback: None,
        on_reversed: crate::policy::OnReversed::default(),
        origin: String::new(),
        ..intent.clone()
    }
}

/// Rounds a difference to a hundredth of a percent, which keeps the file small.
#[expect(clippy::cast_possible_truncation, reason = "four digits")]
fn rounded(difference: f64) -> f32 {
    ((difference * 1e4).round() / 1e4) as f32
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds")]
const fn millis(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::policy::{Match, Target};

    fn intent(policy: PolicyName) -> Intent {
        let target = Target::Service("cache".to_owned(), Match { port: Some(11_211), ..Match::default() });
        Intent::new(target, policy, "10-site.toml:2")
    }

    fn interval(low: f64, high: f64) -> ProofInterval {
        ProofInterval { estimate: f64::midpoint(low, high), low: Some(low), high: Some(high) }
    }

    fn shows(policy: PolicyName, recent: &[(Guarded, ProofInterval)]) -> ProofState {
        proof_with(policy, recent).standing()
    }

    fn proof_with(policy: PolicyName, recent: &[(Guarded, ProofInterval)]) -> Proof {
        let mut proof = Proof::of(&intent(policy), "suspend20", 5);
        proof.effects = recent
            .iter()
            .map(|(quantity, recent)| Effect {
                quantity: *quantity,
                change: *recent,
                recent: *recent,
                pairs: 300,
            })
            .collect();
        proof
    }

    #[test]
    fn a_slight_reversal_is_reported_and_only_a_clear_one_harms() {
        let proof = |low| proof_with(PolicyName::Cpu, &[(Guarded::Cpu, interval(low, 0.3))]);
        let shown = |low| (proof(low).standing(), proof(low).harms());
        assert_eq!(shown(0.01), (ProofState::Reversed, false));
        assert_eq!(shown(0.06), (ProofState::Reversed, true));
        let other = proof_with(PolicyName::Cpu, &[(Guarded::P99, interval(0.5, 0.9))]);
        assert!(!other.harms(), "the policy is meant to reduce CPU time");
    }

    #[test]
    fn the_course_of_years_is_bounded_and_keeps_its_ends_in_order() {
        let mut proof = Proof::of(&intent(PolicyName::Cpu), "defer50", 0);
        let change = interval(-0.3, -0.1);
        proof.effects = [Guarded::P50, Guarded::Cpu]
            .map(|quantity| Effect { quantity, change, recent: change, pairs: 300 })
            .to_vec();
        for at in 0..20_000 {
            proof.note_effects(at);
            assert!(proof.course.len() <= Proof::COURSE_MAX);
        }
        let moments: Vec<u64> = proof.course.iter().map(|step| step.unix_micros).collect();
        assert!(moments.is_sorted() && moments.first() == Some(&0) && moments.last() == Some(&19_999));
        assert!(moments.chunks(2).all(|two| two[0] == two[1]), "both quantities of each moment");
    }

    #[test]
    fn a_policy_stays_rolled_back_until_the_request_changes_or_no_longer_wants_it() {
        let asked = Intent { on_reversed: crate::policy::OnReversed::Rollback, ..intent(PolicyName::Cpu) };
        let mut proof = Proof::of(&asked, "defer50", 5);
        assert!(!proof.is_rolled_back(&asked));
        proof.rolled_back_unix_micros = Some(9);
        assert!(proof.is_rolled_back(&asked));
        assert!(!proof.is_rolled_back(&Intent { policy: PolicyName::Power, ..asked.clone() }));
        assert!(!proof.is_rolled_back(&intent(PolicyName::Cpu)));
    }

    #[test]
    fn a_share_is_read_as_it_is_written_and_nothing_else_is_one() {
        for text in ["1%", "0.5%", "10%", "0.1%"] {
            assert_eq!(text.parse::<Holdback>().map(|share| share.to_string()).as_deref(), Ok(text));
        }
        for text in ["1", "0%", "10.1%", "-1%", "0.05%", "%", "1.%", "99999999999%"] {
            let error = text.parse::<Holdback>().expect_err(text);
            assert!(error.contains("write 0.1% to 10%"), "{text}: {error}");
        }
    }

    #[test]
    fn a_policy_is_judged_by_what_it_is_for() {
        let (less, more, nothing) = (interval(-0.3, -0.1), interval(0.1, 0.3), interval(-0.01, 0.02));
        let unknown = interval(-0.2, 0.2);
        for (policy, recent, standing) in [
            (PolicyName::Cpu, vec![(Guarded::Cpu, less), (Guarded::P99, more)], ProofState::Helps),
            (PolicyName::Latency, vec![(Guarded::Cpu, less), (Guarded::P99, more)], ProofState::Reversed),
            (PolicyName::Latency, vec![(Guarded::P50, less), (Guarded::P99, more)], ProofState::Helps),
            (PolicyName::Cpu, vec![(Guarded::Cpu, nothing)], ProofState::NoEffect),
            (PolicyName::Latency, vec![(Guarded::P50, nothing), (Guarded::P99, unknown)], ProofState::Open),
            (PolicyName::Latency, vec![(Guarded::Cpu, less)], ProofState::Open),
            (PolicyName::None, vec![(Guarded::P90, more)], ProofState::Reversed),
        ] {
            assert_eq!(shows(policy, &recent), standing, "{policy} {recent:?}");
        }
    }

    #[test]
    fn the_oldest_pairs_go_first_and_all_are_counted() {
        let mut proof = Proof::of(&intent(PolicyName::Cpu), "defer50", 5);
        let of = |value: f64, pairs| BTreeMap::from([(Guarded::Cpu, vec![value; pairs])]);
        proof.add(&of(0.5, Proof::PAIRS_MAX));
        proof.add(&of(f64::NAN, 1));
        proof.add(&of(-0.123_456, 3));
        let kept = &proof.differences[&Guarded::Cpu];
        assert_eq!((kept.len(), proof.pairs), (Proof::PAIRS_MAX, Proof::PAIRS_MAX as u64 + 4));
        assert_eq!((kept[0], kept[Proof::PAIRS_MAX - 1]), (0.5, -0.1235));
    }

    #[test]
    fn the_time_without_the_policy_stays_within_its_share() {
        let mut proof = Proof::of(&intent(PolicyName::Cpu), "defer50", 5);
        let share: Holdback = "1%".parse().expect("a share");
        assert!(!proof.allows(share, 10_000), "the proof has just begun");
        proof.managed_millis = 1_000_000;
        assert!(proof.allows(share, 10_000) && !proof.allows(share, 10_001));
        proof.without_millis = 5_000;
        assert!(proof.allows(share, 5_000) && !proof.allows(share, 5_001));
        assert!((proof.share_without() - 0.005).abs() < 1e-9);
    }

    #[test]
    fn another_goal_is_the_same_proof_and_another_mode_is_not() {
        let proof = Proof::of(&intent(PolicyName::Latency), "suspend20", 5);
        let mut other = Intent { origin: "20-other.toml:7".to_owned(), ..intent(PolicyName::Latency) };
        other.goal.p99 = Some(crate::units::Nanoseconds::from_micros(9));
        other.holdback = "2%".parse().ok();
        assert!(proof.is_of(&other, "suspend20"));
        assert!(!proof.is_of(&other, "suspend50"));
        assert!(!proof.is_of(&intent(PolicyName::Cpu), "suspend20"));
    }

    #[test]
    fn a_proof_is_read_as_it_was_written() {
        let mut proof = Proof::of(&intent(PolicyName::Cpu), "defer50", 5);
        proof.add(&BTreeMap::from([(Guarded::Cpu, vec![-0.2, 0.1])]));
        proof.last = Some(Episode { unix_micros: 9, ruling: Ruling::Kept });
        let proofs = Proofs { services: BTreeMap::from([("service cache".to_owned(), proof)]) };
        let text = serde_json::to_string(&proofs).expect("plain data");
        assert!(text.contains("[-0.2,0.1]"), "{text}");
        assert_eq!(serde_json::from_str::<Proofs>(&text).expect("as written"), proofs);
    }
}
