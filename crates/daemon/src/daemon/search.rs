//! Keeps goals by online tuning. If a service misses its goal, the daemon tries the modes on its policy's
//! ladder in order, each as a guarded switchback experiment. The daemon keeps a mode if the service's own
//! traffic shows that the mode is better.

use std::collections::BTreeSet;

use latency::judge::{JudgedService, SERVICES_MAX};
use model::setting::Disruption;
use model::{
    Change, DeliveryMode, Intent, Nanoseconds, OnMissed, Plan, Policy, ProcessId, Ruling, Rung, Search,
    Searches, Step, Target,
};
use plan::{Next, SearchInputs};
use session::{Fault, clock};

use super::{Daemon, now};
use crate::goal_search::{EXHAUSTED, FOUND, WAITS, line_of};
use crate::goals;
use crate::guard_groups::GuardedService;
use crate::guards::{Attempt, Attempted, Judging, Purpose, ServiceMembers};
use crate::held::knob_of;
use crate::placing::{self, Placed};
use crate::status::DaemonPhase;

impl Daemon<'_> {
    /// Returns the operator's requests, with the modes that searches have found for services.
    pub(crate) fn policy(&self) -> Policy {
        let mut policy = self.requests.policy();
        self.quality.proofs.withdraw(&mut policy);
        self.quality.search.give(&mut policy, self.known.host());
        policy
    }

    /// Checks the goals of services after a measurement. If a service misses its goal, begins a try for it,
    /// but only for one service at a time.
    pub(crate) fn keep_goals(&mut self) {
        let begun = now();
        self.quality.search.note(&self.quality.goals.standings(), begun);
        let policy = self.policy();
        let searched = |intent: &&Intent| {
            intent.goal.on_missed == OnMissed::Search && matches!(intent.target, Target::Service(..))
        };
        let wanted = policy.intents.iter().filter(searched).map(|intent| intent.target.to_string()).collect();
        self.quality.search.retain(&wanted, clock::steady_unix_micros());
        let members = self.requests.members(&policy);
        for (place, intent) in policy.intents.iter().enumerate().filter(|(_, intent)| searched(intent)) {
            self.quality.search.renew(intent, &self.processes(&members, place));
        }
        if !self.is_judging() && self.telemetry.phase() == DaemonPhase::Managing {
            // Only one try may run at a time.
            let places: Vec<usize> =
                (0..policy.intents.len()).filter(|at| searched(&&policy.intents[*at])).collect();
            let _first = places.into_iter().find(|place| self.keep_goal(&policy, *place, begun));
        }
        self.report_searches();
    }

    /// Returns the processes that belong to a request.
    fn processes(&self, members: &placing::RequestMembers, place: usize) -> BTreeSet<ProcessId> {
        let pids = members.get(&place).into_iter().flatten();
        pids.filter_map(|pid| Some(self.known.host().process(*pid)?.id)).collect()
    }

    /// Begins a try for a service if one is due. Returns whether a try was begun.
    fn keep_goal(&mut self, policy: &Policy, place: usize, now: Nanoseconds) -> bool {
        let intent = &policy.intents[place];
        let name = intent.target.to_string();
        let Some((since, Some(what))) = self.quality.search.missed.get(&name).copied() else {
            self.quality.search.held_up.remove(&name);
            return false;
        };
        if self.quality.search.not_before.get(&name).is_some_and(|until| now < *until) {
            return false;
        }
        let processes = self.processes(&self.requests.members(policy), place);
        let Some(part) = self.plan.part(&intent.target).filter(|_| !processes.is_empty()) else {
            return false;
        };
        let (in_force, circumstances) = (part.delivery.mode, part.circumstances.clone());
        let known = self.quality.search.searches.services.get(&name).cloned();
        let mut search = known.unwrap_or_else(|| Search::of(intent, processes));
        let moment = SearchInputs {
            unix_micros: clock::steady_unix_micros(),
            missed: Some(Nanoseconds(now.0.saturating_sub(since.0))),
            patience: intent.goal.missed_for.unwrap_or(model::Goal::FOR),
            a_day: self.quality.search.a_day,
        };
        let mut as_it_is = None;
        let next =
            plan::next_try(&mut search, policy.recipes.ladder(intent.policy), in_force, moment, |rung| {
                if !rung.is_for(&circumstances) {
                    return Err(format!("it is for {}", rung.when));
                }
                let base = as_it_is.get_or_insert_with(|| self.placed(policy));
                self.candidate(policy, place, rung.mode, base)
            });
        let tried: Vec<String> = search.tried.iter().map(line_of).collect();
        match next {
            Next::NotDue => {}
            Next::Exhausted(refused) => {
                let refused = refused.into_iter().map(|(mode, why)| format!("{mode} is not tried: {why}"));
                let summary = "its goal is missed, and no mode of its policy's ladder is left to try";
                let evidence = tried.into_iter().chain(refused).collect();
                self.quality.search.holds_up(&name, EXHAUSTED, summary.to_owned(), evidence);
            }
            Next::EnoughToday(_) => {
                let most = self.quality.search.a_day;
                let summary = format!("its goal is missed, and today's limit of {most} tries is reached");
                self.quality.search.holds_up(&name, WAITS, summary, tried);
            }
            Next::Try(rung, changes) => {
                let attempt = Attempt { service: name, mode: rung.mode, begun: moment.unix_micros, what };
                return self.attempt(policy, place, search, (rung, in_force, since), attempt, changes);
            }
        }
        false
    }

    /// Records that a try begins, and then begins it.
    fn attempt(
        &mut self,
        policy: &Policy,
        place: usize,
        mut search: Search,
        (rung, in_force, since): (&Rung, DeliveryMode, Nanoseconds),
        attempt: Attempt,
        changes: Plan,
    ) -> bool {
        let (name, intent) = (attempt.service.clone(), &policy.intents[place]);
        let judging = match self.judging(policy, place, &search, &changes, attempt.clone()) {
            Ok(judging) => judging,
            Err(why) => {
                self.quality.search.holds_up(
                    &name,
                    WAITS,
                    "nothing can be tried at the moment".to_owned(),
                    vec![why],
                );
                return false;
            }
        };
        search.begin(rung.mode, in_force, attempt.begun);
        let (tries, _) = search.tries_of_the_day(attempt.begun);
        self.quality.search.searches.services.insert(name.clone(), search);
        // Without a record, the attempt would not count against the daily limit after a restart.
        if let Err(error) = self.session.keep_searches(&self.quality.search.searches) {
            self.not_attempted(&attempt, format!("the attempt cannot be recorded: {error}"));
            return false;
        }
        if let Err(fault) = self.quality.guards.judge(changes, judging, self.session.clone()) {
            self.not_attempted(&attempt, fault.cause.to_string());
            return false;
        }
        self.quality.search.held_up.remove(&name);
        self.telemetry.say(&format!(
            "{name}: the goal of {} has been missed for {:.0} s: {} is tried in place of {in_force}, {tries} of {} tries a day (policy {}: {})",
            attempt.what.as_str(),
            Nanoseconds(now().0.saturating_sub(since.0)).as_secs_f64(),
            rung.mode,
            self.quality.search.a_day,
            intent.policy,
            rung.because
        ));
        self.quality.search.trying = Some(attempt);
        true
    }

    /// Removes the record of a try that did not begin, so that it does not count against the limit.
    fn not_attempted(&mut self, attempt: &Attempt, why: String) {
        if let Some(search) = self.quality.search.searches.services.get_mut(&attempt.service) {
            search.take_back(attempt.mode, attempt.begun);
        }
        let summary = "nothing can be tried at the moment".to_owned();
        self.quality.search.holds_up(&attempt.service, WAITS, summary, vec![why]);
    }

    /// Returns the services whose traffic judges a candidate: the service itself, which must improve, and the
    /// guarded services that the candidate affects.
    fn judging(
        &self,
        policy: &Policy,
        place: usize,
        search: &Search,
        changes: &Plan,
        attempt: Attempt,
    ) -> Result<Judging, String> {
        let intent = &policy.intents[place];
        let Target::Service(name, _) = &intent.target else { return Err("not a service".to_owned()) };
        if let Some(why) = &self.quality.search.unreadable {
            return Err(format!(
                "the record of earlier tries cannot be read: {}: {why}; move the file away to start without it",
                self.session.searches_file().display()
            ));
        }
        let known = &self.quality.search.searches.services;
        if known.len() >= Searches::SERVICES_MAX && !known.contains_key(&attempt.service) {
            return Err(format!("{} services were searched for today", Searches::SERVICES_MAX));
        }
        let guard = intent.guard.unwrap_or_else(Searches::guard_unasked);
        let objects: BTreeSet<_> = changes.changes().map(|change| change.to().object()).collect();
        let is_changed = |target: &str, service: &GuardedService| {
            *target != attempt.service && !service.objects.is_disjoint(&objects)
        };
        let guarded = self.plan.guarded().into_iter();
        let others: Vec<GuardedService> = guarded
            .filter(|(target, service)| is_changed(target, service))
            .map(|(_, service)| service)
            .collect();
        if others.len() >= SERVICES_MAX {
            return Err(format!(
                "it would also affect {} guarded services; at most {SERVICES_MAX} can be judged at once",
                others.len()
            ));
        }
        let members = self.requests.members(policy);
        let found = |name: &str| goals::selection(name, &policy.intents, &members, self.known.host());
        let selection = found(name);
        let mut watched = vec![JudgedService { selection, limits: guard.limits, gain: Some(attempt.what) }];
        let mut within = guard.within;
        for GuardedService { name: other, guard, .. } in others {
            within = within.max(guard.within);
            let selection = found(&other);
            watched.push(JudgedService { selection, limits: guard.limits, gain: None });
        }
        let netns = self.known.netns().again().map_err(|error| error.to_string())?;
        let members = ServiceMembers::from([(attempt.service.clone(), search.processes.clone())]);
        Ok(Judging {
            policy: policy.clone(),
            netns,
            watched,
            within,
            members,
            purpose: Purpose::Attempt(attempt),
        })
    }

    /// Plans a policy on the observed host.
    pub(super) fn placed(&self, policy: &Policy) -> Placed {
        let mut selection = plan::select(policy, self.known.host());
        let own = selection.policy.intents.len();
        selection.policy = self.requests.with_apps(selection.policy, self.known.host()).0;
        let members = self.requests.members(&selection.policy);
        placing::place(&selection, own, self.known.host(), &members)
    }

    /// Returns the changes that switch a service to another mode. The error states why the mode cannot be
    /// tried: a budget refuses its changes, they disturb traffic, or their settings are left alone.
    fn candidate(
        &self,
        policy: &Policy,
        place: usize,
        mode: DeliveryMode,
        as_it_is: &Placed,
    ) -> Result<Plan, String> {
        let mut policy = policy.clone();
        policy.intents[place].delivery = Some(mode);
        policy.intents[place].found = None;
        let placed = self.placed(&policy);
        let is_new = |at: &&usize| !as_it_is.refused.contains_key(at);
        if let Some(at) = placed.refused.keys().find(is_new) {
            let refusal = &placed.refused[at];
            return Err(match refusal.evidence.first() {
                Some(evidence) => format!("{refusal} ({evidence})"),
                None => refusal.to_string(),
            });
        }
        if placed.desired.first_stage && !as_it_is.desired.first_stage {
            return Err("it recreates queues".to_owned());
        }
        let differs_anyway = |change: &Change| as_it_is.plan.changes().any(|other| other.to() == change.to());
        let mut changes = Plan::default();
        for step in placed.plan.steps {
            let own =
                Vec::from(step).into_iter().filter(|change| !differs_anyway(change)).collect::<Vec<_>>();
            changes.steps.extend(Step::try_from(own).ok());
        }
        let left_alone = changes.changes().find_map(|change| self.left_alone(change));
        match left_alone {
            Some(why) => Err(why),
            None if changes.is_empty() => {
                Err("the mode results in the same settings on this host".to_owned())
            }
            None => Ok(changes),
        }
    }

    /// Returns why a change cannot be made for a try, or `None` if it can.
    pub(super) fn left_alone(&self, change: &Change) -> Option<String> {
        let (to, knob) = (change.to(), knob_of(change.to()));
        if to.disruption() != Disruption::None {
            return Some(format!("{change} would disturb traffic"));
        }
        if !change.from().restorable() {
            return Some(format!("{change} cannot be restored"));
        }
        if self.reconciler.is_released(&knob) {
            return Some(format!("{} {} was rolled back, and is left alone", knob.0, knob.1));
        }
        if self.rejections.has(to) {
            return Some(format!("the kernel refuses {change}"));
        }
        self.held.taken(&knob).map(|why| format!("{} {} {why}", knob.0, knob.1))
    }

    /// Handles the result of a try.
    pub(crate) fn take_attempted(&mut self, attempted: Attempted) {
        let Attempted { attempt, outcome } = attempted;
        let Attempt { service: name, mode, begun, .. } = attempt.clone();
        self.quality.search.trying = None;
        let said = match outcome {
            Ok((ruling, judgements)) => {
                self.telemetry.judged(&judgements);
                let judgement = judgements.into_iter().next();
                let words = judgement.as_ref().map(|judgement| format!(": {}", judgement.of_change()));
                if let Some(search) = self.quality.search.searches.services.get_mut(&name) {
                    search.end(mode, ruling, judgement);
                }
                self.telemetry.count(|counters| match ruling {
                    Ruling::Better | Ruling::Kept => counters.searches.kept += 1,
                    Ruling::NotJudged | Ruling::ClientsLeft | Ruling::Interrupted => {
                        counters.searches.not_judged += 1
                    }
                    _ => counters.searches.rolled_back += 1,
                });
                match ruling {
                    // The service's goal is measured again from the beginning, under the new mode.
                    Ruling::Better | Ruling::Kept => {
                        self.quality.search.missed.remove(&name);
                        self.quality.goals.begin_again(&name);
                    }
                    Ruling::NotJudged | Ruling::ClientsLeft => {
                        let summary =
                            "the search tried a mode, but the traffic of the service did not allow a verdict"
                                .to_owned();
                        self.quality.search.holds_up(
                            &name,
                            WAITS,
                            summary,
                            words.clone().into_iter().collect(),
                        );
                    }
                    _ => {}
                }
                let then = if ruling == Ruling::Better { "it is kept" } else { "it is reverted" };
                format!("{name}: {mode}: {ruling}{}; {then}", words.unwrap_or_default())
            }
            Err((why, wrote)) => {
                self.telemetry.count(|counters| counters.searches.not_judged += 1);
                if !wrote && let Some(search) = self.quality.search.searches.services.get_mut(&name) {
                    search.take_back(mode, begun);
                }
                let summary = "nothing can be tried at the moment".to_owned();
                self.quality.search.holds_up(&name, WAITS, summary, vec![why.clone()]);
                format!("{name}: {mode} is not tried: {why}")
            }
        };
        self.telemetry.say(&said);
        self.note_searches();
        self.report_searches();
    }

    /// Allows searches to try all modes again.
    pub(crate) fn take_up_searches(&mut self) {
        self.quality.search.take_up();
        self.note_searches();
    }

    /// Stores the results of tries for later daemons. The beginning of each try has already been stored.
    fn note_searches(&self) {
        if self.quality.search.unreadable.is_none() && !self.quality.search.searches.services.is_empty() {
            let noted = self.session.keep_searches(&self.quality.search.searches);
            let noted = noted.map_err(|error| Fault::file(self.session.searches_file(), error));
            self.telemetry.detail_of("the result of a try could not be recorded", noted);
        }
    }

    /// Reports the results of searches, and why nothing is tried at present.
    pub(crate) fn report_searches(&mut self) {
        let findings = self.quality.search.findings(&self.policy());
        for rule in [FOUND, EXHAUSTED, WAITS] {
            let of_rule = findings.iter().filter(|finding| finding.rule == rule);
            self.telemetry.mended(rule, &of_rule.map(|finding| finding.object.clone()).collect());
        }
        findings.into_iter().for_each(|finding| self.telemetry.renew(finding));
    }
}
