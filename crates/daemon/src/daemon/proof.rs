//! Maintains standing proofs: for a service with a `holdback`, the daemon withdraws the policy from time to
//! time, for some pairs of windows, and records the effect.

use std::collections::{BTreeMap, BTreeSet};

use apply::Knob;
use latency::judge::{JudgedService, SERVICES_MAX};
use model::{
    Change, Growth, Holdback, Intent, Limits, Nanoseconds, Plan, Policy, Proof, Proofs, Reason, Step, Target,
};
use session::{Fault, clock};

use super::{Daemon, now};
use crate::goals;
use crate::guards::{Judging, Proved, Purpose, REVERTED, ServiceMembers};
use crate::held::knob_of;
use crate::standing_proofs::{NO_EFFECT, REVERSED, ROLLED_BACK, WAITS};
use crate::status::DaemonPhase;

/// The duration of an episode, in which the policy is withdrawn for half of the time.
const EPISODE: Nanoseconds = Nanoseconds::from_millis(20_000);

impl Daemon<'_> {
    /// Counts for how long policies with a holdback are in force, and begins an episode if one is due.
    pub(crate) fn prove(&mut self) {
        let at = now();
        let since = self.quality.proofs.counted.replace(at);
        if !self.follow_proofs() {
            return;
        }
        let policy = self.policy();
        let passed = since.map_or(0, |since| at.0.saturating_sub(since.0) / 1_000_000);
        let mut due = None;
        for (place, intent) in policy.intents.iter().enumerate() {
            let Some(holdback) = holdback_of(intent) else { continue };
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
            && !self.is_judging()
            && self.telemetry.phase() == DaemonPhase::Managing
        {
            let name = policy.intents[place].target.to_string();
            match self.episode(&policy, place) {
                Ok(()) => drop(self.quality.proofs.held_up.remove(&name)),
                Err(why) => self.quality.proofs.holds_up(&name, why),
            }
        }
        self.report_proofs();
    }

    /// Drops the proofs of requests that have changed. Does nothing until the policy files have been read.
    /// Returns whether any request has a holdback.
    pub(crate) fn follow_proofs(&mut self) -> bool {
        if !self.requests.are_files_known() {
            return false;
        }
        let asked = self.requests.policy();
        let with_holdback = asked.intents.iter().filter(|intent| holdback_of(intent).is_some());
        let wanted: BTreeMap<String, &Intent> =
            with_holdback.map(|intent| (intent.target.to_string(), intent)).collect();
        if self.quality.proofs.retain(&wanted) {
            self.keep_proofs();
        }
        self.report_proofs();
        !wanted.is_empty()
    }

    /// Returns the delivery mode of a service whose settings are all in force; otherwise `None`.
    fn in_force(&self, name: &str) -> Option<String> {
        let request = self.plan.statuses().iter().find(|request| request.target == name)?;
        let extent = request.extent;
        let is_in_force = extent.processes > 0 && extent.wanted > 0 && extent.set == extent.wanted;
        is_in_force.then(|| request.delivery.clone())
    }

    /// Begins an episode of the proof for a request.
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
        if let Some(goals::GoalState::Missed(what)) = self.quality.goals.standings().get(&target) {
            return Err(format!("its goal for {} is missed at the moment", what.as_str()));
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
        let mut watched = vec![JudgedService { selection: selection(name), limits, gain: None }];
        let objects: BTreeSet<_> = changes.changes().map(|change| change.to().object()).collect();
        for (other, service) in self.plan.guarded() {
            if other != target && !service.objects.is_disjoint(&objects) {
                let selection = selection(&service.name);
                watched.push(JudgedService { selection, limits: service.guard.limits, gain: None });
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
        let proof = proof.ok_or("the policy has no proof yet")?;
        let judging = Judging {
            policy: policy.clone(),
            netns,
            watched,
            within: EPISODE,
            members: ServiceMembers::new(),
            purpose: Purpose::Proof(target.clone(), Box::new(proof)),
        };
        self.quality.proofs.due.remove(&target);
        self.quality
            .guards
            .judge(changes, judging, self.session.clone())
            .map_err(|fault| fault.cause.to_string())
    }

    /// Returns the changes that withdraw a service's policy. A setting that only this request wants gets its
    /// value from before the daemon; a setting that another request also wants gets the value that this
    /// request wants.
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
            None if changes.is_empty() => Err("other requests want all of its settings, too".to_owned()),
            None => Ok(changes),
        }
    }

    /// Handles the result of an episode: updates the proof, or notes why the episode failed.
    pub(crate) fn take_proved(&mut self, proved: Proved) {
        let Proved { target, outcome } = proved;
        let proofs = &mut self.quality.proofs;
        // Keep the known proof's `managed_millis`, because the time of the episode is counted later.
        let Some(known) = proofs.proofs.services.get_mut(&target) else { return };
        match outcome {
            Ok(proof) if known.intent == proof.intent && known.delivery == proof.delivery => {
                let before = known.standing();
                let managed_millis = known.managed_millis;
                *known = Proof { managed_millis, ..*proof };
                let standing = known.standing();
                if standing != before {
                    let effects = known.effects_in_words();
                    let said = format!("{target}: its proof: {}: {effects}", standing.as_str());
                    self.telemetry.say(&said);
                }
                self.roll_back_reversed(&target);
                self.keep_proofs();
            }
            Ok(_) => {}
            Err(why) => proofs.holds_up(&target, why),
        }
        self.report_proofs();
    }

    /// Rolls back a policy if its proof shows that it does harm and its request demands a rollback. From the
    /// next pass on, plans ignore the request.
    fn roll_back_reversed(&mut self, target: &str) {
        let asked = self.requests.policy();
        let rolls_back =
            |intent: &&Intent| intent.target.to_string() == target && !intent.on_reversed.is_report();
        let is_asked = asked.intents.iter().any(|intent| rolls_back(&intent));
        let Some(proof) = self.quality.proofs.proofs.services.get_mut(target) else { return };
        if !is_asked || !proof.harms() || proof.rolled_back_unix_micros.is_some() {
            return;
        }
        proof.rolled_back_unix_micros = Some(clock::now().unix_micros);
        self.telemetry
            .say(&format!("{target}: its policy is rolled back, because its proof shows that it harms"));
    }

    /// Stores the proofs for later daemons. Does not create the file while there is no proof.
    pub(crate) fn keep_proofs(&self) {
        let has_any = !self.quality.proofs.proofs.services.is_empty();
        if self.quality.proofs.unreadable.is_none() && (has_any || self.session.proofs_file().exists()) {
            let kept = self.session.keep_proofs(&self.quality.proofs.proofs);
            let kept = kept.map_err(|error| Fault::file(self.session.proofs_file(), error));
            self.telemetry.detail_of("a standing proof is not recorded", kept);
        }
    }

    fn report_proofs(&mut self) {
        let findings = self.quality.proofs.findings();
        for rule in [REVERSED, ROLLED_BACK, NO_EFFECT, WAITS] {
            let of_rule = findings.iter().filter(|finding| finding.rule == rule);
            self.telemetry.mended(rule, &of_rule.map(|finding| finding.object.clone()).collect());
        }
        findings.into_iter().for_each(|finding| self.telemetry.renew(finding));
    }
}

/// Returns the holdback of a request, if the request is for a service.
fn holdback_of(intent: &Intent) -> Option<Holdback> {
    intent.holdback.filter(|_| matches!(intent.target, Target::Service(..)))
}
