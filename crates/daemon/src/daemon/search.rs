//! Keeps goals: for a service that misses its goal, the daemon tries the modes of its policy's ladder, under
//! guard and one at a time, and keeps the one that the service's own traffic shows to be better.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use latency::judge::{SERVICES_MAX, Watched};
use model::setting::Disruption;
use model::{
    Change, DeliveryMode, Finding, Guarded, Host, Intent, Nanoseconds, OnMissed, Plan, Policy, ProcessId,
    Ruling, Rung, Search, Searches, Severity, Step, Target, Tried,
};
use plan::{Moment, Next};
use session::{Fault, clock, quoted};

use super::{Daemon, now};
use crate::goals::{self, Standing};
use crate::guard_groups::GuardedService;
use crate::guards::{Attempt, Attempted, Judging, Members, Purpose};
use crate::held::knob_of;
use crate::placing::{self, Placed};
use crate::status::{Phase, RequestStatus, SearchStatus, TriedStatus};

/// The rules of the findings about searches.
const FOUND: &str = "search-found";
const EXHAUSTED: &str = "search-exhausted";
const WAITS: &str = "search-waits";

/// The daemon's findings about services whose goal it keeps: the rule of each, and its meaning.
pub const SEARCH_RULES: &[(&str, &str)] = &[
    (
        FOUND,
        "A mode from the policy's ladder is in force, because it was better for the goal on the service's traffic.",
    ),
    (
        EXHAUSTED,
        "The goal is missed, and no mode of the ladder is left to try; the evidence has the result of each.",
    ),
    (
        WAITS,
        "The goal is missed, and nothing can be tried now: today's limit is reached, or for the reason in the evidence.",
    ),
];

/// The delay before a service is checked again after nothing could be tried.
const AGAIN_AFTER: Nanoseconds = Nanoseconds::from_millis(60_000);

/// The searches of services.
pub(crate) struct GoalSearch {
    searches: Searches,
    /// Why the record of earlier tries cannot be read. The daemon then tries nothing, because it could not
    /// enforce the daily limit.
    unreadable: Option<String>,
    /// Maximum number of tries per service and day.
    a_day: usize,
    /// Since when the goal of a service has not been met, and which part of it is missed at present.
    missed: BTreeMap<String, (Nanoseconds, Option<Guarded>)>,
    /// The try in progress.
    trying: Option<Attempt>,
    /// The time before which no try is started.
    not_before: BTreeMap<String, Nanoseconds>,
    /// Why no try is started for a service.
    held_up: BTreeMap<String, Finding>,
}

impl GoalSearch {
    /// Resumes the searches of earlier daemons. Processes of another boot no longer exist.
    pub(crate) fn resumed(read: io::Result<Searches>, boot: &str) -> Self {
        let (mut searches, unreadable) = match read {
            Ok(searches) => (searches, None),
            Err(error) => (Searches::default(), Some(error.to_string())),
        };
        if searches.boot != boot.trim() {
            boot.trim().clone_into(&mut searches.boot);
            searches.services.values_mut().for_each(|search| search.processes.clear());
        }
        Self {
            searches,
            unreadable,
            a_day: usize::try_from(Searches::A_DAY).unwrap_or(0),
            missed: BTreeMap::new(),
            trying: None,
            not_before: BTreeMap::new(),
            held_up: BTreeMap::new(),
        }
    }

    /// Sets the maximum number of tries per service and day.
    pub(crate) fn allow(&mut self, a_day: u32) {
        let a_day = usize::try_from(a_day).unwrap_or(usize::MAX);
        if a_day != self.a_day {
            self.a_day = a_day;
            self.not_before.clear();
        }
    }

    /// Allows everything to be tried again, within the same daily limit.
    pub(crate) fn take_up(&mut self) {
        self.searches.services.values_mut().for_each(Search::take_up);
        self.not_before.clear();
    }

    /// Applies the results of searches to the services of a policy.
    pub(crate) fn give(&self, policy: &mut Policy, host: &Host) {
        let is_there = |known: &ProcessId| {
            host.process(known.pid).is_some_and(|process| process.id.started == known.started)
        };
        self.searches.give(policy, is_there);
    }

    /// Records the state of goals.
    fn note(&mut self, standings: &BTreeMap<String, Standing>, now: Nanoseconds) {
        self.missed.retain(|name, _| standings.get(name).is_some_and(|standing| *standing != Standing::Met));
        for (name, standing) in standings {
            match (standing, self.missed.get_mut(name)) {
                (Standing::Missed(what), Some(known)) => known.1 = Some(*what),
                (Standing::Missed(what), None) => drop(self.missed.insert(name.clone(), (now, Some(*what)))),
                (Standing::Open, Some(known)) => known.1 = None,
                (Standing::Open | Standing::Met, _) => {}
            }
        }
    }

    /// Removes services without a search, except for their tries of the last day.
    fn retain(&mut self, wanted: &BTreeSet<String>, unix_micros: u64) {
        self.held_up.retain(|name, _| wanted.contains(name));
        self.not_before.retain(|name, _| wanted.contains(name));
        self.searches
            .services
            .retain(|name, search| wanted.contains(name) || search.tries_of_the_day(unix_micros).0 > 0);
    }

    /// Updates the search for a request. If its goal has changed, it counts as not missed.
    fn renew(&mut self, intent: &Intent, processes: &BTreeSet<ProcessId>) {
        let name = intent.target.to_string();
        let Some(search) = self.searches.services.get_mut(&name) else { return };
        if !search.is_of(intent) {
            self.missed.remove(&name);
            self.not_before.remove(&name);
        }
        search.renew(intent, processes);
    }

    /// Postpones tries for a service, and records the reason.
    fn holds_up(&mut self, name: &str, rule: &str, summary: String, evidence: Vec<String>) {
        let (severity, remedy) = match rule {
            EXHAUSTED => (
                Severity::Warning,
                format!(
                    "relax the goal, or use another policy or your own ladder; netpolicy watch {} shows where the time goes",
                    quoted(name.strip_prefix("service ").unwrap_or(name))
                ),
            ),
            _ => (Severity::Note, "retried automatically".to_owned()),
        };
        let finding = Finding {
            rule: rule.to_owned(),
            severity,
            object: name.to_owned(),
            summary,
            evidence,
            remedy: Some(remedy),
        };
        self.held_up.insert(name.to_owned(), finding);
        self.not_before.insert(name.to_owned(), Nanoseconds(now().0.saturating_add(AGAIN_AFTER.0)));
    }

    /// The findings: what was found for services, and why nothing is tried for others.
    fn findings(&self, policy: &Policy) -> Vec<Finding> {
        let found = policy.intents.iter().filter_map(|intent| {
            let search = self.searches.services.get(&intent.target.to_string())?;
            let mode = intent.delivery.filter(|_| intent.found.is_some())?;
            Some(Finding {
                rule: FOUND.to_owned(),
                severity: Severity::Note,
                object: intent.target.to_string(),
                summary: format!("{mode} is in force for its goal: a search found it better"),
                evidence: search.tried.iter().map(line_of).collect(),
                remedy: Some(format!(
                    "it stays until its section or its processes change; to make it permanent, replace on_missed with delivery = \"{mode}\""
                )),
            })
        });
        found.chain(self.held_up.values().cloned()).collect()
    }

    /// Adds the tried modes to the status of each request.
    pub(crate) fn filled(&self, mut requests: Vec<RequestStatus>) -> Vec<RequestStatus> {
        let now = clock::steady_unix_micros();
        // Relative to the present wall clock, which may have been set since.
        let shown = |at: u64| clock::now().unix_micros.saturating_sub(now.saturating_sub(at));
        for request in &mut requests {
            let trying = self.trying.as_ref().filter(|attempt| attempt.service == request.target);
            let Some(search) = self.searches.services.get(&request.target) else { continue };
            if request.goal.on_missed != OnMissed::Search {
                continue;
            }
            let tried = search.tried.iter().map(|tried| TriedStatus {
                mode: tried.mode.to_string(),
                instead_of: tried.instead_of.to_string(),
                at_unix_micros: shown(tried.unix_micros),
                ruling: tried.ruling.map(|ruling| ruling.to_string()),
                measured: tried.judgement.as_ref().map(model::Judgement::of_change),
            });
            request.search = Some(SearchStatus {
                trying: trying.map(|attempt| attempt.mode.to_string()),
                found: search.found.map(|mode| mode.to_string()),
                tries_today: search.clone().tries_of_the_day(now).0,
                tries_a_day: self.a_day,
                tried: tried.collect(),
            });
        }
        requests
    }
}

/// The result of a mode, in one line.
fn line_of(tried: &Tried) -> String {
    let came_to = tried.ruling.map_or_else(|| "no verdict: the daemon ended".to_owned(), |it| it.to_string());
    let measured = tried.judgement.as_ref().map(|judgement| format!(": {}", judgement.of_change()));
    format!("{} instead of {}: {came_to}{}", tried.mode, tried.instead_of, measured.unwrap_or_default())
}

impl Daemon<'_> {
    /// The operator's requests, with the search results for services.
    pub(crate) fn policy(&self) -> Policy {
        let mut policy = self.requests.policy();
        self.quality.search.give(&mut policy, self.known.host());
        policy
    }

    /// Checks the goals of services after a measurement, and begins a try for one that is missed.
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
        if !self.quality.guards.is_under_way() && self.telemetry.phase() == Phase::Managing {
            // Only one is tried at a time.
            let places: Vec<usize> =
                (0..policy.intents.len()).filter(|at| searched(&&policy.intents[*at])).collect();
            let _first = places.into_iter().find(|place| self.keep_goal(&policy, *place, begun));
        }
        self.report_searches();
    }

    /// The processes of a request.
    fn processes(&self, members: &placing::Members, place: usize) -> BTreeSet<ProcessId> {
        let pids = members.get(&place).into_iter().flatten();
        pids.filter_map(|pid| Some(self.known.host().process(*pid)?.id)).collect()
    }

    /// Begins a try for a service if one is due. Returns whether it did.
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
        let moment = Moment {
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

    /// Records that a try begins, and begins it.
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
        // A try that is not recorded would not count after a restart.
        if let Err(error) = self.session.keep_searches(&self.quality.search.searches) {
            self.not_attempted(&attempt, format!("the try cannot be recorded: {error}"));
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

    /// A try that did not begin does not count.
    fn not_attempted(&mut self, attempt: &Attempt, why: String) {
        if let Some(search) = self.quality.search.searches.services.get_mut(&attempt.service) {
            search.take_back(attempt.mode, attempt.begun);
        }
        let summary = "nothing can be tried at the moment".to_owned();
        self.quality.search.holds_up(&attempt.service, WAITS, summary, vec![why]);
    }

    /// The services whose traffic judges a candidate: the service itself, which must improve, and the guarded
    /// services that the candidate affects.
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
                "the record of earlier tries cannot be read: {}: {why}; move it away to start without it",
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
        let mut watched = vec![Watched { selection, limits: guard.limits, gain: Some(attempt.what) }];
        let mut within = guard.within;
        for GuardedService { name: other, guard, .. } in others {
            within = within.max(guard.within);
            let selection = found(&other);
            watched.push(Watched { selection, limits: guard.limits, gain: None });
        }
        let netns = self.known.netns().again().map_err(|error| error.to_string())?;
        let members = Members::from([(attempt.service.clone(), search.processes.clone())]);
        Ok(Judging {
            policy: policy.clone(),
            netns,
            watched,
            within,
            members,
            purpose: Purpose::Attempt(attempt),
        })
    }

    /// Places a policy on the observed host.
    pub(super) fn placed(&self, policy: &Policy) -> Placed {
        let mut selection = plan::select(policy, self.known.host());
        let own = selection.policy.intents.len();
        selection.policy = self.requests.with_apps(selection.policy, self.known.host()).0;
        let members = self.requests.members(&selection.policy);
        placing::place(&selection, own, self.known.host(), &members)
    }

    /// The changes of another mode for a service, or why it cannot be tried. Changes that budgets refuse,
    /// that disturb traffic, or that are left to others are not tried.
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
            None if changes.is_empty() => Err("it results in the same settings here".to_owned()),
            None => Ok(changes),
        }
    }

    /// Why a change is not made for a try.
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
                    _ => counters.searches.put_back += 1,
                });
                match ruling {
                    // From now on, it has to prove itself against the goal.
                    Ruling::Better | Ruling::Kept => {
                        self.quality.search.missed.remove(&name);
                        self.quality.goals.begin_again(&name);
                    }
                    Ruling::NotJudged | Ruling::ClientsLeft => {
                        let summary = "a try could not be judged on its traffic".to_owned();
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

    /// Ends "left alone" for modes: everything may be tried.
    pub(crate) fn take_up_searches(&mut self) {
        self.quality.search.take_up();
        self.note_searches();
    }

    /// Stores the results of tries for later daemons. Their beginnings are already stored.
    fn note_searches(&self) {
        if self.quality.search.unreadable.is_none() && !self.quality.search.searches.services.is_empty() {
            let noted = self.session.keep_searches(&self.quality.search.searches);
            let noted = noted.map_err(|error| Fault::file(self.session.searches_file(), error));
            self.telemetry.detail_of("the result of a try is not recorded", noted);
        }
    }

    /// Reports what was found, and why nothing is tried.
    pub(crate) fn report_searches(&mut self) {
        let findings = self.quality.search.findings(&self.policy());
        for rule in [FOUND, EXHAUSTED, WAITS] {
            let of_rule = findings.iter().filter(|finding| finding.rule == rule);
            self.telemetry.mended(rule, &of_rule.map(|finding| finding.object.clone()).collect());
        }
        findings.into_iter().for_each(|finding| self.telemetry.renew(finding));
    }
}

#[cfg(test)]
mod test {
    use model::policy::Match;
    use model::{Label, Pid, PolicyName};

    use super::*;
    use crate::status::RequestExtent;

    const SECOND: u64 = 1_000_000_000;

    fn standings(standing: Standing) -> BTreeMap<String, Standing> {
        BTreeMap::from([("service cache".to_owned(), standing)])
    }

    fn searching() -> GoalSearch {
        GoalSearch::resumed(Ok(Searches::default()), "a boot\n")
    }

    #[test]
    fn a_goal_is_missed_since_it_was_met_last_and_what_is_open_does_not_begin_again() {
        let mut search = searching();
        let missed = |search: &GoalSearch| search.missed.get("service cache").copied();
        for (second, standing, since) in [
            (1, Standing::Open, None),
            (2, Standing::Missed(Guarded::P99), Some((2, Some(Guarded::P99)))),
            (3, Standing::Open, Some((2, None))),
            (4, Standing::Missed(Guarded::P50), Some((2, Some(Guarded::P50)))),
            (5, Standing::Met, None),
            (6, Standing::Missed(Guarded::P99), Some((6, Some(Guarded::P99)))),
        ] {
            search.note(&standings(standing), Nanoseconds(second * SECOND));
            let since = since.map(|(second, what)| (Nanoseconds(second * SECOND), what));
            assert_eq!(missed(&search), since, "{standing:?} at {second} s");
        }
        search.note(&BTreeMap::new(), Nanoseconds(7 * SECOND));
        assert_eq!(missed(&search), None, "it is not measured any more");
    }

    #[test]
    fn another_boot_has_none_of_the_processes_and_all_of_the_tries() {
        let target = Target::Service("cache".to_owned(), Match::default());
        let intent = Intent::new(target, PolicyName::Latency, "a:1");
        let process = ProcessId { pid: Pid(1), started: 1, comm: Label::new("cache") };
        let mut of_cache = Search::of(&intent, BTreeSet::from([process]));
        of_cache.begin(DeliveryMode::NapiBusy, DeliveryMode::Interrupt, 7);
        of_cache.end(DeliveryMode::NapiBusy, Ruling::Better, None);
        let services = BTreeMap::from([("service cache".to_owned(), of_cache)]);
        let searches = Searches { boot: "a boot".to_owned(), services };
        let found = |boot: &str| {
            let mut policy = Policy { intents: vec![intent.clone()], ..Policy::default() };
            let search = GoalSearch::resumed(Ok(searches.clone()), boot);
            search.searches.give(&mut policy, |_| true);
            (policy.intents.remove(0).delivery, search.searches.services["service cache"].begun.clone())
        };
        assert_eq!(found("a boot\n"), (Some(DeliveryMode::NapiBusy), vec![7]));
        assert_eq!(found("another boot\n"), (None, vec![7]));
    }

    #[test]
    fn the_status_has_each_mode_with_its_verdict_for_those_who_search_alone() {
        let target = Target::Service("cache".to_owned(), Match::default());
        let mut of_cache = Search::of(&Intent::new(target, PolicyName::Latency, "a:1"), BTreeSet::new());
        of_cache.begin(DeliveryMode::NapiBusy, DeliveryMode::Interrupt, clock::now().unix_micros);
        assert_eq!(
            line_of(&of_cache.tried[0]),
            "napibusy instead of interrupt: no verdict: the daemon ended"
        );
        of_cache.end(DeliveryMode::NapiBusy, Ruling::CannotTell, None);
        assert_eq!(line_of(&of_cache.tried[0]), "napibusy instead of interrupt: no verdict");
        let mut search = searching();
        search.searches.services.insert("service cache".to_owned(), of_cache);
        let request = |on_missed: OnMissed| RequestStatus {
            target: "service cache".to_owned(),
            policy: "latency".to_owned(),
            delivery: "interrupt".to_owned(),
            origin: "a:1".to_owned(),
            extent: RequestExtent { queues: 1, processes: 1, ..RequestExtent::default() },
            engaged: None,
            goal: model::Goal { on_missed, ..model::Goal::default() },
            measured: None,
            search: None,
            proof: None,
            notes: Vec::new(),
        };
        let filled = search.filled(vec![request(OnMissed::Search), request(OnMissed::Report)]);
        let shown = filled[0].search.as_ref().expect("it is searched for");
        assert_eq!((shown.tries_today, shown.tries_a_day, shown.trying.is_none()), (1, 6, true));
        assert_eq!(shown.tried[0].ruling.as_deref(), Some("no verdict"));
        assert_eq!(filled[1].search, None);
    }
}
