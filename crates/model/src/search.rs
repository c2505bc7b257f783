//! Records the delivery modes that were tried for services that miss their goal, and the results. The records
//! are stored next to the journal, so that the daily limit on tries holds across restarts of the daemon.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::delivery::DeliveryMode;
use crate::guard::{Growth, Guard, Limits};
use crate::ids::ProcessId;
use crate::judgement::{Judgement, Ruling};
use crate::policy::{Intent, Policy};
use crate::recipe::Rung;

/// The searches of all services.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Searches {
    /// The id of the boot to which the process ids belong.
    pub boot: String,
    /// The searches by service, such as `service memcached`.
    pub services: BTreeMap<String, Search>,
}

/// The search for one service.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Search {
    /// The service's request. If the request changes, the search restarts.
    pub intent: Intent,
    /// The service's processes. If all of them have exited, the search restarts.
    pub processes: BTreeSet<ProcessId>,
    /// When the tries of the last day began, in microseconds since 1970. A try is recorded before it begins.
    pub begun: Vec<u64>,
    /// The outcome of each mode that was tried, in order.
    pub tried: Vec<Tried>,
    /// The mode that was found to be better than the one that the policy resolves to.
    pub found: Option<DeliveryMode>,
}

/// A mode that was tried.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Tried {
    /// The mode.
    pub mode: DeliveryMode,
    /// The mode with which `mode` was compared.
    pub instead_of: DeliveryMode,
    /// The time of the try, in microseconds since 1970.
    pub unix_micros: u64,
    /// The outcome; `None` while the try is running, or if the daemon exited during it.
    pub ruling: Option<Ruling>,
    /// The measured effect of the mode on the service.
    pub judgement: Option<Judgement>,
}

impl Searches {
    /// The default maximum number of tries per service and day.
    pub const A_DAY: u32 = 6;

    /// The largest maximum that policy files may set.
    pub const A_DAY_MOST: u32 = 48;

    /// A day, in microseconds.
    pub const DAY_MICROS: u64 = 86_400_000_000;

    /// The maximum number of services whose searches are stored.
    pub const SERVICES_MAX: usize = 256;

    /// Returns the guard for services without one: CPU time per request may grow by a quarter.
    pub fn guard_unasked() -> Guard {
        let limits = Limits { cpu: Growth::thousandths(250), ..Limits::default() };
        Guard { limits, ..Guard::default() }
    }

    /// Sets the delivery mode that the search found on each matching service of a policy, if the service's
    /// request is unchanged and at least one of its processes still runs.
    pub fn give(&self, policy: &mut Policy, is_there: impl Fn(&ProcessId) -> bool) {
        for intent in &mut policy.intents {
            let Some(search) = self.services.get(&intent.target.to_string()) else { continue };
            let Some(mode) = search.found else { continue };
            if search.is_of(intent) && search.processes.iter().any(&is_there) {
                intent.delivery = Some(mode);
                intent.found = Some(search.why_found());
            }
        }
    }
}

impl Search {
    /// Creates a search for a request.
    pub fn of(intent: &Intent, processes: BTreeSet<ProcessId>) -> Self {
        let intent = as_asked(intent);
        Self { intent, processes, begun: Vec::new(), tried: Vec::new(), found: None }
    }

    /// Whether the search is for this request, regardless of the request's origin.
    pub fn is_of(&self, intent: &Intent) -> bool {
        self.intent == as_asked(intent)
    }

    /// Explains in a few words why the mode that was found is in force.
    pub fn why_found(&self) -> String {
        let tried = self.tried.iter().rev().find(|tried| Some(tried.mode) == self.found);
        let judgement = tried.and_then(|tried| tried.judgement.as_ref());
        match (tried, judgement) {
            (Some(tried), Some(judgement)) => {
                format!("a search found it better than {}: {}", tried.instead_of, judgement.of_change())
            }
            _ => "a search found it better".to_owned(),
        }
    }

    /// Updates the search to the current request and processes. The search restarts if the request changed or
    /// all processes were replaced. In the second case, a mode that stalled the service, or during which the
    /// service exited, is still not tried again. Tries of the last day count in both cases.
    pub fn renew(&mut self, intent: &Intent, processes: &BTreeSet<ProcessId>) {
        if !self.is_of(intent) {
            let begun = std::mem::take(&mut self.begun);
            *self = Self { begun, ..Self::of(intent, processes.clone()) };
        } else if !processes.is_empty() && !self.is_served_by(processes) {
            self.processes.clone_from(processes);
            self.tried.retain(|tried| matches!(tried.ruling, Some(Ruling::Stalled | Ruling::ServiceEnded)));
            self.found = None;
        }
    }

    /// Whether one of these processes already belonged to the service. Compares only pids and start times,
    /// because a process may have changed its name since then.
    fn is_served_by(&self, processes: &BTreeSet<ProcessId>) -> bool {
        let same = |one: &ProcessId, other: &ProcessId| one.pid == other.pid && one.started == other.started;
        self.processes.iter().any(|known| processes.iter().any(|process| same(known, process)))
    }

    /// Returns how many tries count at this moment, and when the first of them expires, in microseconds since
    /// 1970. A try recorded in the future, because a clock was set back, counts as begun now.
    pub fn tries_of_the_day(&mut self, now: u64) -> (usize, Option<u64>) {
        self.begun.iter_mut().for_each(|at| *at = (*at).min(now));
        self.begun.retain(|at| now - at < Searches::DAY_MICROS);
        (self.begun.len(), self.begun.iter().min().map(|at| at.saturating_add(Searches::DAY_MICROS)))
    }

    /// Whether a mode need not be tried, because it was rolled back or another mode was found to be better.
    pub fn is_closed(&self, mode: DeliveryMode) -> bool {
        self.tried.iter().any(|tried| match tried.ruling {
            None | Some(Ruling::Interrupted | Ruling::NotJudged | Ruling::ClientsLeft) => false,
            Some(Ruling::Better | Ruling::Kept) => tried.instead_of == mode,
            Some(_) => tried.mode == mode,
        })
    }

    /// Records that a try begins.
    pub fn begin(&mut self, mode: DeliveryMode, instead_of: DeliveryMode, now: u64) {
        self.begun.push(now);
        self.tried.retain(|tried| tried.mode != mode);
        // A ladder has at most this many modes, in addition to the mode that the policy resolves to. If there
        // are more outcomes, the oldest is from an earlier ladder.
        if self.tried.len() > Rung::COUNT_MAX {
            self.tried.remove(0);
        }
        self.tried.push(Tried { mode, instead_of, unix_micros: now, ruling: None, judgement: None });
    }

    /// Records the outcome of a try.
    pub fn end(&mut self, mode: DeliveryMode, ruling: Ruling, judgement: Option<Judgement>) {
        if let Some(tried) = self.tried.iter_mut().rev().find(|tried| tried.mode == mode) {
            tried.ruling = Some(ruling);
            tried.judgement = judgement;
        }
        if ruling.is_kept() {
            self.found = Some(mode);
        }
    }

    /// Removes a try that ended before it wrote anything, because such a try does not count.
    pub fn take_back(&mut self, mode: DeliveryMode, begun: u64) {
        if let Some(at) = self.begun.iter().position(|at| *at == begun) {
            self.begun.remove(at);
        }
        self.tried.retain(|tried| tried.mode != mode || tried.ruling.is_some());
    }

    /// Allows all modes to be tried again, at the operator's request.
    pub fn take_up(&mut self) {
        self.tried.retain(|tried| self.found.is_some_and(|found| tried.mode == found));
    }
}

/// Returns a request without its origin and without the search's results for it.
fn as_asked(intent: &Intent) -> Intent {
    let delivery = intent.delivery.filter(|_| intent.found.is_none());
    Intent { delivery, found: None, origin: String::new(), ..intent.clone() }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::ids::{Label, Pid};
    use crate::policy::{Match, Target};
    use crate::policy_name::PolicyName;
    use crate::units::Nanoseconds;

    fn intent() -> Intent {
        let target = Target::Service("cache".to_owned(), Match { port: Some(11_211), ..Match::default() });
        Intent::new(target, PolicyName::Latency, "10-site.toml:2")
    }

    fn processes(pids: &[u32]) -> BTreeSet<ProcessId> {
        let process = |pid: &u32| ProcessId { pid: Pid(*pid), started: 7, comm: Label::new("memcached") };
        pids.iter().map(process).collect()
    }

    const SUSPEND: DeliveryMode = DeliveryMode::Suspend { gro_flush: Nanoseconds::from_micros(50) };

    #[test]
    fn what_was_found_holds_until_the_request_or_all_processes_are_others() {
        let mut searches = Searches::default();
        let mut search = Search::of(&intent(), processes(&[1, 2]));
        search.begin(SUSPEND, DeliveryMode::Interrupt, 5);
        search.end(SUSPEND, Ruling::Better, None);
        searches.services.insert("service cache".to_owned(), search.clone());
        let delivery = |intent: Intent, is_there: fn(&ProcessId) -> bool| {
            let mut policy = Policy { intents: vec![intent], ..Policy::default() };
            searches.give(&mut policy, is_there);
            policy.intents.remove(0).delivery
        };
        let moved = Intent { origin: "20-other.toml:9".to_owned(), ..intent() };
        assert_eq!(delivery(moved, |process| process.pid == Pid(2)), Some(SUSPEND));
        assert_eq!(delivery(intent(), |_| false), None, "it was restarted");
        let mut other = intent();
        other.goal.p99 = Some(Nanoseconds::from_micros(9));
        assert_eq!(delivery(other, |_| true), None);
        search.renew(&intent(), &processes(&[2, 3]));
        assert_eq!(search.found, Some(SUSPEND), "one of its workers is new");
        search.renew(&intent(), &processes(&[]));
        assert_eq!(search.found, Some(SUSPEND), "the service is not running at the moment");
        search.renew(&intent(), &processes(&[8]));
        assert_eq!((search.found, search.tried.len(), search.begun.len()), (None, 0, 1), "a restart");
    }

    #[test]
    fn what_ended_or_stalled_a_service_is_not_tried_after_its_restart_either() {
        let mut search = Search::of(&intent(), processes(&[1]));
        search.begin(SUSPEND, DeliveryMode::Interrupt, 5);
        search.end(SUSPEND, Ruling::ServiceEnded, None);
        search.begin(DeliveryMode::NapiBusy, DeliveryMode::Interrupt, 6);
        search.end(DeliveryMode::NapiBusy, Ruling::CannotTell, None);
        search.renew(&intent(), &processes(&[2]));
        assert!(search.is_closed(SUSPEND) && !search.is_closed(DeliveryMode::NapiBusy));
        let other = Intent { policy: PolicyName::Cpu, ..intent() };
        search.renew(&other, &processes(&[2]));
        assert!(!search.is_closed(SUSPEND), "a changed request starts a new search");
        assert_eq!(search.begun, [5, 6], "the tries count nevertheless");
    }

    #[test]
    fn a_clock_that_is_set_back_gives_no_try_and_takes_none_for_longer_than_a_day() {
        let mut search = Search::of(&intent(), processes(&[1]));
        let noon = 1_795_233_900_000_000;
        search.begin(SUSPEND, DeliveryMode::Interrupt, noon);
        let back = noon - 9 * Searches::DAY_MICROS;
        assert_eq!(search.tries_of_the_day(back), (1, Some(back + Searches::DAY_MICROS)));
        assert_eq!(search.tries_of_the_day(back + Searches::DAY_MICROS), (0, None));
    }

    #[test]
    fn a_search_is_read_as_it_was_written() {
        let mut search = Search::of(&intent(), processes(&[1]));
        search.begin(SUSPEND, DeliveryMode::Interrupt, 5);
        let mut searches = Searches { boot: "b".to_owned(), ..Searches::default() };
        searches.services.insert("service cache".to_owned(), search);
        let text = serde_json::to_string(&searches).expect("plain data");
        assert_eq!(serde_json::from_str::<Searches>(&text).expect("as written"), searches);
    }
}
