//! The state of the searches for modes that meet services' goals: earlier tries, the current try, and the
//! reasons why nothing is tried. `daemon/search.rs` begins tries and handles their results.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use model::{
    Finding, Guarded, Host, Intent, Nanoseconds, OnMissed, Policy, ProcessId, Search, Searches, Severity,
    Tried,
};
use session::{clock, quoted};

use crate::goals::GoalState;
use crate::guards::Attempt;
use crate::status::{RequestStatus, SearchStatus, TriedStatus};

/// The rules of the findings about searches.
pub(crate) const FOUND: &str = "search-found";
pub(crate) const EXHAUSTED: &str = "search-exhausted";
pub(crate) const WAITS: &str = "search-waits";

/// The rules of the goal search's findings, each with a description.
pub const SEARCH_RULES: &[(&str, &str)] = &[
    (FOUND, "A mode from the policy's ladder is in force, because it was better for the goal."),
    (
        EXHAUSTED,
        "The goal is missed, and no mode of the ladder is left to try; the evidence has the result of each.",
    ),
    (WAITS, "The goal is missed, and nothing can be tried now, for the reason in the evidence."),
];

/// How long to wait, if nothing could be tried for a service, before it is checked again.
const AGAIN_AFTER: Nanoseconds = Nanoseconds::from_millis(60_000);

/// The searches of services.
pub(crate) struct GoalSearch {
    pub(crate) searches: Searches,
    /// Why the record of earlier tries cannot be read. The daemon then tries nothing, because it could not
    /// enforce the daily limit.
    pub(crate) unreadable: Option<String>,
    /// The maximum number of tries per service and day.
    pub(crate) a_day: usize,
    /// For each service that does not meet its goal: since when, and which percentile currently misses the
    /// goal.
    pub(crate) missed: BTreeMap<String, (Nanoseconds, Option<Guarded>)>,
    /// The try in progress.
    pub(crate) trying: Option<Attempt>,
    /// For each service: the time before which no try begins.
    pub(crate) not_before: BTreeMap<String, Nanoseconds>,
    /// For each service: why no try begins.
    pub(crate) held_up: BTreeMap<String, Finding>,
}

impl GoalSearch {
    /// Resumes the searches of earlier daemons. If the host has rebooted since, ignores the recorded
    /// processes.
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

    /// Allows searches to try all modes again. The daily limit still applies.
    pub(crate) fn take_up(&mut self) {
        self.searches.services.values_mut().for_each(Search::take_up);
        self.not_before.clear();
    }

    /// Adds the modes that searches have found to the services in a policy.
    pub(crate) fn give(&self, policy: &mut Policy, host: &Host) {
        let is_there = |known: &ProcessId| {
            host.process(known.pid).is_some_and(|process| process.id.started == known.started)
        };
        self.searches.give(policy, is_there);
    }

    /// Records the current state of the services' goals.
    pub(crate) fn note(&mut self, standings: &BTreeMap<String, GoalState>, now: Nanoseconds) {
        self.missed.retain(|name, _| standings.get(name).is_some_and(|standing| *standing != GoalState::Met));
        for (name, standing) in standings {
            match (standing, self.missed.get_mut(name)) {
                (GoalState::Missed(what), Some(known)) => known.1 = Some(*what),
                (GoalState::Missed(what), None) => drop(self.missed.insert(name.clone(), (now, Some(*what)))),
                (GoalState::Open, Some(known)) => known.1 = None,
                (GoalState::Open | GoalState::Met, _) => {}
            }
        }
    }

    /// Removes services that no longer have a search. Keeps their tries of the last day.
    pub(crate) fn retain(&mut self, wanted: &BTreeSet<String>, unix_micros: u64) {
        self.held_up.retain(|name, _| wanted.contains(name));
        self.not_before.retain(|name, _| wanted.contains(name));
        self.searches
            .services
            .retain(|name, search| wanted.contains(name) || search.tries_of_the_day(unix_micros).0 > 0);
    }

    /// Updates the search for a request. If the request's goal has changed, restarts the time for which the
    /// goal has been missed.
    pub(crate) fn renew(&mut self, intent: &Intent, processes: &BTreeSet<ProcessId>) {
        let name = intent.target.to_string();
        let Some(search) = self.searches.services.get_mut(&name) else { return };
        if !search.is_of(intent) {
            self.missed.remove(&name);
            self.not_before.remove(&name);
        }
        search.renew(intent, processes);
    }

    /// Postpones tries for a service, and records the reason.
    pub(crate) fn holds_up(&mut self, name: &str, rule: &str, summary: String, evidence: Vec<String>) {
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
        self.not_before
            .insert(name.to_owned(), Nanoseconds(linux::clock::monotonic().0.saturating_add(AGAIN_AFTER.0)));
    }

    /// Returns the findings about searches: their results, and why nothing is tried.
    pub(crate) fn findings(&self, policy: &Policy) -> Vec<Finding> {
        let found = policy.intents.iter().filter_map(|intent| {
            let search = self.searches.services.get(&intent.target.to_string())?;
            let mode = intent.delivery.filter(|_| intent.found.is_some())?;
            Some(Finding {
                rule: FOUND.to_owned(),
                severity: Severity::Note,
                object: intent.target.to_string(),
                summary: format!("{mode} is in force: a search found that it meets the goal better"),
                evidence: search.tried.iter().map(line_of).collect(),
                remedy: Some(format!(
                    "the mode stays until its section or its processes change; to make it permanent, replace on_missed with delivery = \"{mode}\""
                )),
            })
        });
        found.chain(self.held_up.values().cloned()).collect()
    }

    /// Adds the modes that were tried to the status of each request.
    pub(crate) fn filled(&self, mut requests: Vec<RequestStatus>) -> Vec<RequestStatus> {
        let now = clock::steady_unix_micros();
        // Convert recorded times to wall-clock time only now: the clock may have been set since they were
        // recorded.
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

/// Describes a tried mode and its result in one line.
pub(crate) fn line_of(tried: &Tried) -> String {
    let came_to =
        tried.ruling.map_or_else(|| "no verdict: the daemon exited".to_owned(), |it| it.to_string());
    let measured = tried.judgement.as_ref().map(|judgement| format!(": {}", judgement.of_change()));
    format!("{} instead of {}: {came_to}{}", tried.mode, tried.instead_of, measured.unwrap_or_default())
}

#[cfg(test)]
mod test {
    use model::policy::Match;
    use model::{DeliveryMode, Label, Pid, PolicyName, Ruling, Target};

    use super::*;
    use crate::status::RequestExtent;

    const SECOND: u64 = 1_000_000_000;

    fn standings(standing: GoalState) -> BTreeMap<String, GoalState> {
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
            (1, GoalState::Open, None),
            (2, GoalState::Missed(Guarded::P99), Some((2, Some(Guarded::P99)))),
            (3, GoalState::Open, Some((2, None))),
            (4, GoalState::Missed(Guarded::P50), Some((2, Some(Guarded::P50)))),
            (5, GoalState::Met, None),
            (6, GoalState::Missed(Guarded::P99), Some((6, Some(Guarded::P99)))),
        ] {
            search.note(&standings(standing), Nanoseconds(second * SECOND));
            let since = since.map(|(second, what)| (Nanoseconds(second * SECOND), what));
            assert_eq!(missed(&search), since, "{standing:?} at {second} s");
        }
        search.note(&BTreeMap::new(), Nanoseconds(7 * SECOND));
        assert_eq!(missed(&search), None, "the service is no longer measured");
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
            "napibusy instead of interrupt: no verdict: the daemon exited"
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
            expected: None,
            notes: Vec::new(),
        };
        let filled = search.filled(vec![request(OnMissed::Search), request(OnMissed::Report)]);
        let shown = filled[0].search.as_ref().expect("the service has a search");
        assert_eq!((shown.tries_today, shown.tries_a_day, shown.trying.is_none()), (1, 6, true));
        assert_eq!(shown.tried[0].ruling.as_deref(), Some("no verdict"));
        assert_eq!(filled[1].search, None);
    }
}
