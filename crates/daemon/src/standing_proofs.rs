//! The standing proofs of services: repeated measurements of whether their policies help. This module keeps
//! the time counted so far, when the next episode without the policy is due, and why an episode is delayed.
//! `daemon/proof.rs` withdraws the policies and handles the results.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use model::proof::ProofState;
use model::{Chance, Finding, Holdback, Intent, Nanoseconds, Policy, Proof, Proofs, Severity};
use session::{clock, quoted};

use crate::request_status;
use crate::status::{ProofStatus, RequestStatus};

/// The rules of the findings about standing proofs.
pub(crate) const REVERSED: &str = "proof-reversed";
pub(crate) const ROLLED_BACK: &str = "proof-rolled-back";
pub(crate) const NO_EFFECT: &str = "proof-no-effect";
pub(crate) const WAITS: &str = "proof-waits";

/// The rules of the daemon's findings about standing proofs, each with its meaning.
pub const PROOF_RULES: &[(&str, &str)] = &[
    (
        REVERSED,
        "The policy worsens a quantity that it is meant to improve, according to the last pairs of the proof.",
    ),
    (ROLLED_BACK, "The daemon has rolled a policy back, because its proof showed that it harms."),
    (
        NO_EFFECT,
        "The policy changes the quantities that it is meant to improve by less than 5 %, according to the last pairs of the proof.",
    ),
    (WAITS, "The policy cannot be withdrawn for the proof at present, for the reason in the evidence."),
];

/// The note in the status of a request whose policy was rolled back.
const HELD_BACK: &str = "not in force: it was rolled back, because its proof showed that it harms";

/// How long an episode is expected to withdraw the policy, in milliseconds: half of the episode, plus the
/// time of the switches.
const WITHOUT_MILLIS: u64 = 11_000;

/// The range, in hundredths, of a random factor that is drawn for each episode. An episode is due when the
/// time that the holdback allows reaches the expected time without the policy, multiplied by this factor. The
/// factor is random because the load might repeat at regular intervals.
const DUE_LEAST: u32 = 100;
const DUE_MOST: u32 = 200;

/// How long to wait before a service is checked again, if an episode could not begin or had no traffic.
const AGAIN_AFTER: Nanoseconds = Nanoseconds::from_millis(300_000);

/// The standing proofs of services, and when to continue them.
pub(crate) struct StandingProofs {
    pub(crate) proofs: Proofs,
    /// Why the proofs of earlier daemons cannot be read. No policy is withdrawn then, because storing the
    /// result would overwrite the file.
    pub(crate) unreadable: Option<String>,
    pub(crate) chance: Chance,
    /// For each service: how much time without the policy the holdback must allow before the next episode, in
    /// milliseconds.
    pub(crate) due: BTreeMap<String, u64>,
    /// When the time for which policies were in force was last counted.
    pub(crate) counted: Option<Nanoseconds>,
    pub(crate) not_before: BTreeMap<String, Nanoseconds>,
    pub(crate) held_up: BTreeMap<String, String>,
}

impl StandingProofs {
    /// Resumes the proofs of earlier daemons.
    pub(crate) fn resumed(read: io::Result<Proofs>) -> Self {
        let (proofs, unreadable) = match read {
            Ok(proofs) => (proofs, None),
            Err(error) => (Proofs::default(), Some(error.to_string())),
        };
        Self {
            proofs,
            unreadable,
            chance: Chance::new(clock::now().unix_micros),
            due: BTreeMap::new(),
            counted: None,
            not_before: BTreeMap::new(),
            held_up: BTreeMap::new(),
        }
    }

    /// Returns the proof of a service. If the request or the delivery mode has changed, starts a new proof.
    pub(crate) fn of(&mut self, name: &str, intent: &Intent, delivery: &str) -> &mut Proof {
        let new = || Proof::of(intent, delivery, clock::now().unix_micros);
        let proof = self.proofs.services.entry(name.to_owned()).or_insert_with(new);
        if !proof.is_of(intent, delivery) {
            *proof = new();
        }
        proof
    }

    /// Whether the holdback already allows another episode of a service, and the episode is not postponed.
    pub(crate) fn is_due(&mut self, name: &str, holdback: Holdback, now: Nanoseconds) -> bool {
        let chance = &mut self.chance;
        let mut hundredths = || u64::from(DUE_LEAST + chance.below(DUE_MOST - DUE_LEAST + 1));
        let due = *self.due.entry(name.to_owned()).or_insert_with(|| WITHOUT_MILLIS * hundredths() / 100);
        self.not_before.get(name).is_none_or(|until| *until <= now)
            && self.proofs.services.get(name).is_some_and(|proof| proof.allows(holdback, due))
    }

    /// Removes the proofs of services without a holdback, and of requests that have changed. If a request no
    /// longer wants its policy rolled back, the policy is in force again and its proof continues. Returns
    /// whether anything changed.
    pub(crate) fn retain(&mut self, wanted: &BTreeMap<String, &Intent>) -> bool {
        let mut changed = false;
        let mut removed = BTreeSet::new();
        self.proofs.services.retain(|name, proof| {
            let Some(intent) = wanted.get(name).filter(|intent| proof.is_of_request(intent)) else {
                removed.insert(name.clone());
                return false;
            };
            if proof.rolled_back_unix_micros.is_some() && !proof.is_rolled_back(intent) {
                proof.rolled_back_unix_micros = None;
                changed = true;
            }
            true
        });
        let stays = |name: &String| wanted.contains_key(name) && !removed.contains(name);
        self.due.retain(|name, _| stays(name));
        self.not_before.retain(|name, _| stays(name));
        self.held_up.retain(|name, _| stays(name));
        changed || !removed.is_empty()
    }

    /// Removes the requests that were rolled back from a policy.
    pub(crate) fn withdraw(&self, policy: &mut Policy) {
        self.proofs.take_rolled_back(policy);
    }

    /// Returns the status of the requests that were rolled back.
    pub(crate) fn rolled_back(&self, mut policy: Policy) -> Vec<RequestStatus> {
        let rolled_back = self.proofs.take_rolled_back(&mut policy);
        rolled_back.iter().map(|intent| request_status::without_place(intent, HELD_BACK.to_owned())).collect()
    }

    /// Puts policies that were rolled back into force again, each with a new proof.
    pub(crate) fn take_up(&mut self) {
        let rolled_back = |proof: &&mut Proof| proof.rolled_back_unix_micros.is_some();
        for proof in self.proofs.services.values_mut().filter(rolled_back) {
            *proof = Proof::of(&proof.intent, &proof.delivery, clock::now().unix_micros);
        }
    }

    /// Postpones the next episode of a service, and records the reason.
    pub(crate) fn holds_up(&mut self, name: &str, why: String) {
        self.held_up.insert(name.to_owned(), why);
        self.not_before
            .insert(name.to_owned(), Nanoseconds(linux::clock::monotonic().0.saturating_add(AGAIN_AFTER.0)));
    }

    /// Adds the standing proofs to the status of the requests.
    pub(crate) fn filled(&self, mut requests: Vec<RequestStatus>) -> Vec<RequestStatus> {
        for request in &mut requests {
            let Some(proof) = self.proofs.services.get(&request.target) else { continue };
            request.proof = Some(ProofStatus {
                since_unix_micros: proof.since_unix_micros,
                pairs: proof.pairs,
                share_without: proof.share_without(),
                standing: proof.standing(),
                effects: proof.effects.clone(),
                last_unix_micros: proof.last.map(|last| last.unix_micros),
                waits: self.held_up.get(&request.target).cloned(),
                rolled_back_unix_micros: proof.rolled_back_unix_micros,
            });
        }
        requests
    }

    /// Returns the findings about standing proofs.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let shown = self.proofs.services.iter().filter_map(|(name, proof)| {
            let service = quoted(name.strip_prefix("service ").unwrap_or(name));
            let evidence = proof.effects.iter().map(|effect| {
                let quantity = effect.quantity.as_str();
                format!("{quantity} recently {}, since the proof began {}", effect.recent, effect.change)
            });
            if proof.rolled_back_unix_micros.is_some() {
                return Some(Finding {
                    rule: ROLLED_BACK.to_owned(),
                    severity: Severity::Warning,
                    object: name.clone(),
                    summary: "its policy was rolled back, because its proof showed that it harms".to_owned(),
                    evidence: evidence.collect(),
                    remedy: Some(format!("kill -HUP {}", std::process::id())),
                });
            }
            let (rule, summary) = match proof.standing() {
                ProofState::Reversed => {
                    (REVERSED, "its policy makes the service worse, according to the last pairs of its proof")
                }
                ProofState::NoEffect => {
                    (NO_EFFECT, "its policy changes the service by less than 5 %, according to the last pairs of its proof")
                }
                ProofState::Helps | ProofState::Open => return None,
            };
            Some(Finding {
                rule: rule.to_owned(),
                severity: Severity::Warning,
                object: name.clone(),
                summary: summary.to_owned(),
                evidence: evidence.collect(),
                remedy: Some(format!(
                    "netpolicy tune {service} finds a better setting; or remove the policy"
                )),
            })
        });
        let waits = self.held_up.iter().map(|(name, why)| Finding {
            rule: WAITS.to_owned(),
            severity: Severity::Note,
            object: name.clone(),
            summary: "its policy is not withdrawn for its proof at the moment".to_owned(),
            evidence: vec![why.clone()],
            remedy: Some("retried automatically".to_owned()),
        });
        shown.chain(waits).collect()
    }
}

#[cfg(test)]
mod test {
    use model::policy::Match;
    use model::{Effect, Guarded, OnReversed, PolicyName, ProofInterval, Target};

    use super::*;

    fn intent() -> Intent {
        let target = Target::Service("cache".to_owned(), Match { port: Some(11_211), ..Match::default() });
        Intent { holdback: "1%".parse().ok(), ..Intent::new(target, PolicyName::Cpu, "a:1") }
    }

    fn proofs() -> StandingProofs {
        StandingProofs::resumed(Ok(Proofs::default()))
    }

    #[test]
    fn an_episode_is_due_once_its_time_is_within_the_share_and_not_at_regular_times() {
        let holdback = intent().holdback.expect("one percent");
        let mut begins = BTreeSet::new();
        for seed in 0..20 {
            let mut proofs = StandingProofs { chance: Chance::new(seed), ..proofs() };
            proofs.of("service cache", &intent(), "defer50").managed_millis = 0;
            let due = (0..4_000_000).step_by(10_000).find(|millis| {
                proofs.of("service cache", &intent(), "defer50").managed_millis = *millis;
                proofs.is_due("service cache", holdback, Nanoseconds(1))
            });
            let due = due.expect("it becomes due");
            assert!((1_100_000..=2_210_000).contains(&due), "{due} ms");
            begins.insert(due);
        }
        assert!(begins.len() > 10, "{begins:?}");
    }

    #[test]
    fn what_held_an_episode_up_is_said_and_delays_the_next() {
        let mut proofs = proofs();
        proofs.of("service cache", &intent(), "defer50").managed_millis = 10_000_000;
        let holdback = intent().holdback.expect("one percent");
        assert!(proofs.is_due("service cache", holdback, Nanoseconds(1)));
        proofs.holds_up("service cache", "too few requests".to_owned());
        assert!(!proofs.is_due("service cache", holdback, linux::clock::monotonic()));
        let findings = proofs.findings();
        assert_eq!(
            (findings[0].rule.as_str(), findings[0].evidence[0].as_str()),
            (WAITS, "too few requests")
        );
        proofs.retain(&BTreeMap::new());
        assert!(proofs.findings().is_empty() && proofs.proofs.services.is_empty());
    }

    #[test]
    fn a_rolled_back_policy_is_not_planned_until_it_is_taken_up_or_asked_for_differently() {
        let asked = Intent { on_reversed: OnReversed::Rollback, ..intent() };
        let mut proofs = proofs();
        proofs.of("service cache", &asked, "defer50").rolled_back_unix_micros = Some(9);
        let planned = |proofs: &StandingProofs, intent: &Intent| {
            let mut policy = Policy { intents: vec![intent.clone()], ..Policy::default() };
            proofs.withdraw(&mut policy);
            policy.intents.len()
        };
        assert_eq!(planned(&proofs, &asked), 0);
        assert_eq!(planned(&proofs, &Intent { policy: PolicyName::Power, ..asked.clone() }), 1);
        assert_eq!(proofs.findings()[0].rule, ROLLED_BACK);
        let status = proofs.rolled_back(Policy { intents: vec![asked.clone()], ..Policy::default() });
        let status = proofs.filled(status);
        let proof = status[0].proof.as_ref().expect("a proof");
        assert_eq!((proof.rolled_back_unix_micros, status[0].notes[0].as_str()), (Some(9), HELD_BACK));
        let restarted = StandingProofs::resumed(Ok(proofs.proofs.clone()));
        assert_eq!(planned(&restarted, &asked), 0, "also after a restart");
        proofs.take_up();
        assert_eq!(planned(&proofs, &asked), 1);
        assert!(proofs.findings().is_empty());
    }

    #[test]
    fn a_rollback_by_proof_ends_with_the_request_that_wanted_it() {
        let asked = Intent { on_reversed: OnReversed::Rollback, ..intent() };
        let worse = ProofInterval { estimate: 0.2, low: Some(0.1), high: Some(0.3) };
        let effect = Effect { quantity: Guarded::Cpu, change: worse, recent: worse, pairs: 300 };
        let after = |next: Option<&Intent>| {
            let mut proofs = proofs();
            let proof = proofs.of("service cache", &asked, "defer50");
            (proof.rolled_back_unix_micros, proof.effects) = (Some(9), vec![effect]);
            let name = "service cache".to_owned();
            assert!(!proofs.retain(&BTreeMap::from([(name.clone(), &asked)])), "the same request");
            assert_eq!(proofs.findings()[0].rule, ROLLED_BACK);
            assert!(proofs.retain(&next.map(|next| (name, next)).into_iter().collect()));
            assert!(
                !proofs.retain(&next.map(|next| ("service cache".to_owned(), next)).into_iter().collect())
            );
            let mut policy = Policy { intents: vec![asked.clone()], ..Policy::default() };
            proofs.withdraw(&mut policy);
            assert_eq!(policy.intents.len(), 1, "also if the first request returns");
            proofs.findings().into_iter().map(|finding| finding.rule).collect::<Vec<String>>()
        };
        assert_eq!(after(Some(&intent())), [REVERSED], "what the proof shows is reported");
        assert_eq!(after(Some(&Intent { policy: PolicyName::Power, ..asked.clone() })), Vec::<String>::new());
        assert_eq!(after(None), Vec::<String>::new());
    }

    #[test]
    fn a_reversed_effect_is_a_finding_and_another_mode_begins_anew() {
        let mut proofs = proofs();
        let worse = ProofInterval { estimate: 0.2, low: Some(0.1), high: Some(0.3) };
        let effect = Effect { quantity: Guarded::Cpu, change: worse, recent: worse, pairs: 300 };
        proofs.of("service cache", &intent(), "defer50").effects = vec![effect];
        let rules = |proofs: &StandingProofs| -> Vec<String> {
            proofs.findings().into_iter().map(|finding| finding.rule).collect()
        };
        assert_eq!(rules(&proofs), [REVERSED]);
        assert!(proofs.findings()[0].evidence[0].contains("+20 %"), "{:?}", proofs.findings());
        let slight = ProofInterval { estimate: 0.01, low: Some(-0.01), high: Some(0.02) };
        proofs.of("service cache", &intent(), "defer50").effects = vec![Effect { recent: slight, ..effect }];
        assert_eq!(rules(&proofs), [NO_EFFECT]);
        proofs.of("service cache", &intent(), "defer200");
        assert_eq!(rules(&proofs), Vec::<String>::new());
    }
}
