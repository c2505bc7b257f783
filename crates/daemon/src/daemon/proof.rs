//! The standing proof: for services with a `holdback`, the daemon withdraws the policy for some pairs of windows
//! now and then, and keeps count of what it gains.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use apply::Knob;
use latency::judge::{SERVICES_MAX, Watched};
use model::proof::Standing;
use model::{
    Chance, Change, Finding, Growth, Holdback, Intent, Limits, Nanoseconds, Plan, Policy, Proof, Proofs,
    Reason, Severity, Step, Target,
};
use session::{Fault, clock, quoted};

use super::{Daemon, now};
use crate::goals;
use crate::guards::{Judging, Members, Proved, Purpose, REVERTED};
use crate::held::knob_of;
use crate::status::{Phase, ProofStatus, RequestStatus};

/// The rules of the findings about proofs.
const REVERSED: &str = "proof-reversed";
const NO_EFFECT: &str = "proof-no-effect";
const WAITS: &str = "proof-waits";

/// The daemon's findings about standing proofs: the rule of each, and its meaning.
pub const PROOF_RULES: &[(&str, &str)] = &[
    (
        REVERSED,
        "With its policy, the service is worse in what the policy is for, by the last pairs of the proof.",
    ),
    (
        NO_EFFECT,
        "The policy changes what it is for by less than 5 %, by the last pairs of the proof; it may be removed.",
    ),
    (WAITS, "The policy cannot be withdrawn for the proof at present, for the reason in the evidence."),
];

/// How long an episode lasts. Half of it is without the policy.
const EPISODE: Nanoseconds = Nanoseconds::from_millis(20_000);

/// How long an episode is expected to withdraw the policy, in milliseconds: half of its time, and switching.
const WITHOUT_MILLIS: u64 = 11_000;

/// An episode begins when the allowed time suffices for this many, chosen anew by chance for each, in
/// hundredths: at regular times, the load might be regular, too.
const DUE_LEAST: u32 = 100;
const DUE_MOST: u32 = 200;

/// The delay before a service is looked at again after an episode could not begin, or had nothing to measure.
const AGAIN_AFTER: Nanoseconds = Nanoseconds::from_millis(300_000);

/// The standing proofs of services.
pub(crate) struct StandingProofs {
    proofs: Proofs,
    /// Why the earlier proofs cannot be read. Nothing is withdrawn then: the daemon would overwrite the file.
    unreadable: Option<String>,
    chance: Chance,
    /// How much time each service must have left for its next episode, in milliseconds.
    due: BTreeMap<String, u64>,
    /// When the time in force was counted last.
    counted: Option<Nanoseconds>,
    not_before: BTreeMap<String, Nanoseconds>,
    held_up: BTreeMap<String, String>,
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

    /// The proof of a service, which starts over if its request or mode is another.
    fn of(&mut self, name: &str, intent: &Intent, delivery: &str) -> &mut Proof {
        let new = || Proof::of(intent, delivery, clock::now().unix_micros);
        let proof = self.proofs.services.entry(name.to_owned()).or_insert_with(new);
        if !proof.is_of(intent, delivery) {
            *proof = new();
        }
        proof
    }

    /// Whether an episode is due for a service.
    fn is_due(&mut self, name: &str, holdback: Holdback, now: Nanoseconds) -> bool {
        let chance = &mut self.chance;
        let mut hundredths = || u64::from(DUE_LEAST + chance.below(DUE_MOST - DUE_LEAST + 1));
        let due = *self.due.entry(name.to_owned()).or_insert_with(|| WITHOUT_MILLIS * hundredths() / 100);
        self.not_before.get(name).is_none_or(|until| *until <= now)
            && self.proofs.services.get(name).is_some_and(|proof| proof.allows(holdback, due))
    }

    /// Removes services without a holdback.
    fn retain(&mut self, wanted: &BTreeSet<String>) {
        self.proofs.services.retain(|name, _| wanted.contains(name));
        self.due.retain(|name, _| wanted.contains(name));
        self.not_before.retain(|name, _| wanted.contains(name));
        self.held_up.retain(|name, _| wanted.contains(name));
    }

    /// Postpones the next episode of a service, and records why.
    fn holds_up(&mut self, name: &str, why: String) {
        self.held_up.insert(name.to_owned(), why);
        self.not_before.insert(name.to_owned(), Nanoseconds(now().0.saturating_add(AGAIN_AFTER.0)));
    }

    /// Adds the proofs to the status of each request.
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
            });
        }
        requests
    }

    /// What the proofs show that an operator should know.
    fn findings(&self) -> Vec<Finding> {
        let shown = self.proofs.services.iter().filter_map(|(name, proof)| {
            let service = quoted(name.strip_prefix("service ").unwrap_or(name));
            let evidence = proof.effects.iter().map(|effect| {
                let quantity = effect.quantity.as_str();
                format!("{quantity} lately {}, since it began {}", effect.recent, effect.change)
            });
            let (rule, summary) = match proof.standing() {
                Standing::Reversed => (REVERSED, "its policy makes it worse, by the last pairs of its proof"),
                Standing::NoEffect => {
                    (NO_EFFECT, "its policy makes no difference above 5 %, by the last pairs of its proof")
                }
                Standing::Helps | Standing::Open => return None,
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

impl Daemon<'_> {
    /// Counts the time in which policies with a holdback are in force, and begins an episode if one is due.
    pub(crate) fn prove(&mut self) {
        let policy = self.policy();
        let withheld =
            |intent: &Intent| intent.holdback.filter(|_| matches!(intent.target, Target::Service(..)));
        let wanted: BTreeSet<String> = policy
            .intents
            .iter()
            .filter(|intent| withheld(intent).is_some())
            .map(|intent| intent.target.to_string())
            .collect();
        let at = now();
        let since = self.quality.proofs.counted.replace(at);
        self.quality.proofs.retain(&wanted);
        if wanted.is_empty() {
            return self.report_proofs();
        }
        let passed = since.map_or(0, |since| at.0.saturating_sub(since.0) / 1_000_000);
        let mut due = None;
        for (place, intent) in policy.intents.iter().enumerate() {
            let Some(holdback) = withheld(intent) else { continue };
            let name = intent.target.to_string();
            if self.quality.proofs.proofs.services.len() >= Proofs::SERVICES_MAX
                && !self.quality.proofs.proofs.services.contains_key(&name)
            {
                let most = Proofs::SERVICES_MAX;
                self.quality.proofs.holds_up(&name, format!("{most} services have a proof already"));
                continue;
            }
            let Some(delivery) = self.in_force(&name) else { continue };
            self.quality.proofs.of(&name, intent, &delivery).managed_millis += passed;
            if due.is_none() && self.quality.proofs.is_due(&name, holdback, at) {
                due = Some(place);
            }
        }
        if let Some(place) = due
            && !self.quality.guards.is_under_way()
            && self.telemetry.phase() == Phase::Managing
        {
            let name = policy.intents[place].target.to_string();
            match self.episode(&policy, place) {
                Ok(()) => drop(self.quality.proofs.held_up.remove(&name)),
                Err(why) => self.quality.proofs.holds_up(&name, why),
            }
        }
        self.report_proofs();
    }

    /// The delivery mode of a service whose settings are all in force.
    fn in_force(&self, name: &str) -> Option<String> {
        let request = self.plan.statuses().iter().find(|request| request.target == name)?;
        let extent = request.extent;
        let is_in_force = extent.processes > 0 && extent.wanted > 0 && extent.set == extent.wanted;
        is_in_force.then(|| request.delivery.clone())
    }

    /// Begins an episode.
    fn episode(&mut self, policy: &Policy, place: usize) -> Result<(), String> {
        let intent = &policy.intents[place];
        let Target::Service(name, _) = &intent.target else { return Err("not a service".to_owned()) };
        let target = intent.target.to_string();
        if let Some(why) = &self.quality.proofs.unreadable {
            return Err(format!(
                "the earlier proofs cannot be read: {}: {why}; move the file away to start without them",
                self.session.proofs_file().display()
            ));
        }
        if let Some(goals::Standing::Missed(what)) = self.quality.goals.standings().get(&target) {
            return Err(format!("it misses its goal for {} now", what.as_str()));
        }
        let is_of_it = |object: &str| object.split(", ").any(|one| one == target);
        if self.telemetry.first_finding(REVERTED, is_of_it).is_some() {
            return Err("a change was reverted by its guard".to_owned());
        }
        let changes = self.withdrawal(policy, place)?;
        let members = self.requests.members(policy);
        let selection = |name: &str| goals::selection(name, &policy.intents, &members, self.known.host());
        let most = Some(Growth::MOST);
        let limits = Limits { p50: most, cpu: most, ..Limits::default() };
        let mut watched = vec![Watched { selection: selection(name), limits, gain: None }];
        let objects: BTreeSet<_> = changes.changes().map(|change| change.to().object()).collect();
        for (other, service) in self.plan.guarded() {
            if other != target && !service.objects.is_disjoint(&objects) {
                let selection = selection(&service.name);
                watched.push(Watched { selection, limits: service.guard.limits, gain: None });
            }
        }
        if watched.len() > SERVICES_MAX {
            return Err(format!(
                "it would also affect {} guarded services; at most {SERVICES_MAX} can be judged at once",
                watched.len() - 1
            ));
        }
        let netns = self.known.netns().again().map_err(|error| error.to_string())?;
        let proof = self.quality.proofs.proofs.services.get(&target).cloned();
        let proof = proof.ok_or("it has no proof yet")?;
        let judging = Judging {
            policy: policy.clone(),
            netns,
            watched,
            within: EPISODE,
            members: Members::new(),
            purpose: Purpose::Proof(target.clone(), Box::new(proof)),
        };
        self.quality.proofs.due.remove(&target);
        self.quality
            .guards
            .judge(changes, judging, self.session.clone())
            .map_err(|fault| fault.cause.to_string())
    }

    /// The changes that withdraw the policy of a service: what only this request wants gets its value from before
    /// the daemon, and what others want too gets their value.
    fn withdrawal(&self, policy: &Policy, place: usize) -> Result<Plan, String> {
        let as_it_is = self.placed(policy);
        let mut without = policy.clone();
        let intent = without.intents.remove(place);
        let placed = self.placed(&without);
        if placed.desired.first_stage || as_it_is.desired.first_stage {
            return Err("withdrawing it recreates queues".to_owned());
        }
        if !as_it_is.plan.is_empty() {
            return Err("some of its settings are not in force yet".to_owned());
        }
        let wanted: BTreeSet<Knob> =
            placed.desired.wanted.iter().map(|wanted| knob_of(&wanted.setting)).collect();
        let own = as_it_is.desired.wanted.iter().map(|wanted| knob_of(&wanted.setting));
        let own: BTreeSet<Knob> = own.filter(|knob| !wanted.contains(knob)).collect();
        let because = || Reason::new("withdrawn for the standing proof", intent.origin.clone());
        let restored = self.held.ledger().iter().filter(|(knob, _)| own.contains(knob)).map(|(_, change)| {
            Step::new(vec![Change::new(change.to().clone(), change.from().clone(), because())])
        });
        let steps: Vec<Step> = restored.chain(placed.plan.steps).collect();
        let changes = Plan { steps };
        let left_alone = changes.changes().find_map(|change| self.left_alone(change));
        match left_alone {
            Some(why) => Err(why),
            None if changes.is_empty() => Err("nothing of it is set that others do not want, too".to_owned()),
            None => Ok(changes),
        }
    }

    /// Takes the result of an episode.
    pub(crate) fn take_proved(&mut self, proved: Proved) {
        let Proved { target, outcome } = proved;
        let proofs = &mut self.quality.proofs;
        // The time of the episode was not counted meanwhile.
        let Some(known) = proofs.proofs.services.get_mut(&target) else { return };
        match outcome {
            Ok(proof) if known.intent == proof.intent && known.delivery == proof.delivery => {
                let before = known.standing();
                let managed_millis = known.managed_millis;
                *known = Proof { managed_millis, ..*proof };
                let standing = known.standing();
                if standing != before {
                    let words: Vec<String> = known
                        .effects
                        .iter()
                        .map(|effect| format!("{} {}", effect.quantity.as_str(), effect.change))
                        .collect();
                    let said = format!("{target}: its proof: {}: {}", standing.as_str(), words.join(", "));
                    self.telemetry.say(&said);
                }
                self.keep_proofs();
            }
            Ok(_) => {}
            Err(why) => proofs.holds_up(&target, why),
        }
        self.report_proofs();
    }

    /// Stores the proofs for later daemons.
    pub(crate) fn keep_proofs(&self) {
        if self.quality.proofs.unreadable.is_none() && !self.quality.proofs.proofs.services.is_empty() {
            let kept = self.session.keep_proofs(&self.quality.proofs.proofs);
            let kept = kept.map_err(|error| Fault::file(self.session.proofs_file(), error));
            self.telemetry.detail_of("a standing proof is not recorded", kept);
        }
    }

    fn report_proofs(&mut self) {
        let findings = self.quality.proofs.findings();
        for rule in [REVERSED, NO_EFFECT, WAITS] {
            let of_rule = findings.iter().filter(|finding| finding.rule == rule);
            self.telemetry.mended(rule, &of_rule.map(|finding| finding.object.clone()).collect());
        }
        findings.into_iter().for_each(|finding| self.telemetry.renew(finding));
    }
}

#[cfg(test)]
mod test {
    use model::policy::Match;
    use model::{Effect, Guarded, Interval, PolicyName};

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
        assert!(!proofs.is_due("service cache", holdback, now()));
        let findings = proofs.findings();
        assert_eq!(
            (findings[0].rule.as_str(), findings[0].evidence[0].as_str()),
            (WAITS, "too few requests")
        );
        proofs.retain(&BTreeSet::new());
        assert!(proofs.findings().is_empty() && proofs.proofs.services.is_empty());
    }

    #[test]
    fn a_reversed_effect_is_a_finding_and_another_mode_begins_anew() {
        let mut proofs = proofs();
        let worse = Interval { estimate: 0.2, low: Some(0.1), high: Some(0.3) };
        let effect = Effect { quantity: Guarded::Cpu, change: worse, recent: worse, pairs: 300 };
        proofs.of("service cache", &intent(), "defer50").effects = vec![effect];
        let rules = |proofs: &StandingProofs| -> Vec<String> {
            proofs.findings().into_iter().map(|finding| finding.rule).collect()
        };
        assert_eq!(rules(&proofs), [REVERSED]);
        assert!(proofs.findings()[0].evidence[0].contains("+20 %"), "{:?}", proofs.findings());
        let slight = Interval { estimate: 0.01, low: Some(-0.01), high: Some(0.02) };
        proofs.of("service cache", &intent(), "defer50").effects = vec![Effect { recent: slight, ..effect }];
        assert_eq!(rules(&proofs), [NO_EFFECT]);
        proofs.of("service cache", &intent(), "defer200");
        assert_eq!(rules(&proofs), Vec::<String>::new());
    }
}
