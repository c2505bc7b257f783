//! Changes that affect services with a guard. A separate thread judges them before they are committed; the
//! daemon makes no other changes during that time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use apply::{Allow, Knob};
use latency::judge::{GuardedTrial, JudgedService, Proposal, TrialOutcome};
use linux::Netns;
use model::{
    DeliveryMode, Episode, Finding, Guarded, Judgement, Nanoseconds, Plan, Policy, ProcessId, Proof, Ruling,
    Setting, Severity,
};
use session::guard_process::Guardian;
use session::{Fault, Session, Silent, clock};

use crate::bell::{Bell, lock};
use crate::event_loop::EventLoop;
use crate::event_sources::GUARDED;
use crate::guard_groups::{GuardGroup, GuardedService, grouped};
use crate::held::knob_of;

/// The rules of the findings about guarded changes.
pub(crate) const REVERTED: &str = "guard-reverted";
pub(crate) const WAITS: &str = "guard-waits";

/// How long to wait before retrying a change that could not be judged.
const AGAIN_AFTER: Nanoseconds = Nanoseconds::from_millis(60_000);

/// How long after a trial's planned end its guard process rolls it back.
const DEADLINE_AFTER: Duration = Duration::from_secs(60);

/// The processes of each service, by the service's name.
pub(crate) type ServiceMembers = BTreeMap<String, BTreeSet<ProcessId>>;

/// The result of a trial, and the proof for which it ran, if any; `None` if there was nothing to change.
type Outcomes = Result<Option<(TrialOutcome, Option<Box<Proof>>)>, Fault>;

/// Why changes are judged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Purpose {
    /// A request of the policy wants the changes.
    Asked,
    /// The changes try a mode for a service that misses its goal.
    Attempt(Attempt),
    /// The changes withdraw a service's policy for its standing proof. They are always rolled back.
    Proof(String, Box<Proof>),
}

/// The result of an episode of a standing proof.
pub(crate) struct Proved {
    /// The target of the service's request.
    pub(crate) target: String,
    /// The proof including the new pairs, or the reason why there are none.
    pub(crate) outcome: Result<Box<Proof>, String>,
}

/// A try of a mode for a service that misses its goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) service: String,
    /// The mode that is tried.
    pub(crate) mode: DeliveryMode,
    /// When the try was recorded, in microseconds since 1970.
    pub(crate) begun: u64,
    /// The metric that must improve, which means decrease.
    pub(crate) what: Guarded,
}

/// The result of a try.
pub(crate) struct Attempted {
    pub(crate) attempt: Attempt,
    /// The ruling, and the verdict of each service, beginning with the service for which the mode was tried.
    /// If there are none: the reason, and whether anything was written.
    pub(crate) outcome: Result<(Ruling, Vec<Judgement>), (String, bool)>,
}

/// The trial that is judging a change.
struct RunningTrial {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    /// Set as soon as the trial may have written something.
    wrote: Arc<AtomicBool>,
    purpose: Purpose,
    judged: Arc<Mutex<Option<Outcomes>>>,
    settings: BTreeMap<Knob, Setting>,
    members: ServiceMembers,
}

/// How to judge changes: by which services, and for how long.
pub(crate) struct Judging {
    pub(crate) policy: Policy,
    pub(crate) netns: Netns,
    pub(crate) watched: Vec<JudgedService>,
    pub(crate) within: Nanoseconds,
    pub(crate) members: ServiceMembers,
    pub(crate) purpose: Purpose,
}

/// The trial in progress and the results of earlier ones.
pub(crate) struct GuardedTrials {
    running: Option<RunningTrial>,
    /// The settings that were judged and may be applied, with the verdicts on them.
    kept: BTreeMap<Knob, (Setting, Vec<Judgement>)>,
    /// The settings that were rolled back, with the processes of the services at that time. They are not
    /// retried for the same processes.
    reverted: BTreeMap<Knob, (Setting, ServiceMembers)>,
    /// When a change that could not be judged may be retried, by the services that it affects.
    not_before: BTreeMap<BTreeSet<String>, Nanoseconds>,
    done: Arc<Bell>,
}

/// The result of judging a change.
pub(crate) enum TrialResult {
    /// The verdict on a change that the policy requests.
    Asked {
        /// The targets of the affected services.
        services: BTreeSet<String>,
        /// A message for the log.
        said: String,
        /// A finding for the operator if the change was not kept.
        finding: Option<Finding>,
        /// The verdict of each service; empty if the change could not be tried.
        verdicts: Vec<Judgement>,
    },
    /// The result of a try for a service that misses its goal.
    Attempt(Attempted),
    /// The result of an episode of a standing proof.
    Proof(Proved),
}

impl GuardedTrials {
    /// Creates the state without results. The event loop reports new results as [`GUARDED`].
    pub(crate) fn watched_by(event_loop: &EventLoop) -> Result<Self, Fault> {
        let failed =
            |errno| Fault::failed(format!("cannot set up a notification in the daemon's epoll: {errno}"));
        let done = Bell::new().map_err(failed)?;
        event_loop.watch(&done, GUARDED).map_err(failed)?;
        Ok(Self {
            running: None,
            kept: BTreeMap::new(),
            reverted: BTreeMap::new(),
            not_before: BTreeMap::new(),
            done: Arc::new(done),
        })
    }

    /// Whether a change is being judged. Nothing else may be written during that time.
    pub(crate) fn is_under_way(&self) -> bool {
        self.running.is_some()
    }

    /// Stops the trial in progress. Its changes are rolled back, and count as not judged.
    pub(crate) fn stop(&self) {
        if let Some(running) = &self.running {
            running.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Like [`Self::stop`], but also waits until everything is restored.
    pub(crate) fn finish(&mut self) {
        self.stop();
        if let Some(running) = self.running.take() {
            let _ended = running.thread.join();
        }
    }

    /// Allows all changes to be tried again.
    pub(crate) fn take_up(&mut self) {
        self.reverted.clear();
        self.not_before.clear();
    }

    /// Removes the changes that must be judged first from a plan, and returns the group to judge next: among
    /// the groups that may be tried now, the one that has waited longest. Drops changes that were rolled back
    /// for the same processes.
    pub(crate) fn sift(
        &mut self,
        plan: &mut Plan,
        guarded: &BTreeMap<String, GuardedService>,
        wants: impl Fn(&Setting) -> bool,
        members: &ServiceMembers,
        now: Nanoseconds,
    ) -> Option<GuardGroup> {
        let mut unjudged = Plan::default();
        for step in std::mem::take(&mut plan.steps) {
            let object = step.object();
            let is_guarded = guarded.values().any(|service| service.objects.contains(&object));
            let is_free = |change: &model::Change| {
                let kept = self.kept.get(&knob_of(change.to())).map(|(to, _)| to);
                !is_guarded || !wants(change.to()) || kept == Some(change.to())
            };
            let (may, must): (Vec<_>, Vec<_>) = Vec::from(step).into_iter().partition(is_free);
            plan.steps.extend(model::Step::try_from(may).ok());
            unjudged.steps.extend(model::Step::try_from(must).ok());
        }
        let mut groups = grouped(unjudged, guarded);
        self.not_before.retain(|services, _| groups.iter().any(|group| group.services == *services));
        for group in &groups {
            let members = of_group(group, members);
            for knob in group.changes.changes().map(|change| knob_of(change.to())) {
                if self.reverted.get(&knob).is_some_and(|(_, of)| !are_the_same(of, &members)) {
                    self.reverted.remove(&knob);
                }
            }
        }
        // Drop a group only if all of its changes were rolled back before: together with a new change, they
        // might be judged differently.
        let is_known = |change: &model::Change| {
            self.reverted.get(&knob_of(change.to())).is_some_and(|(to, _)| to == change.to())
        };
        let since = |group: &GuardGroup| self.not_before.get(&group.services).copied().unwrap_or_default();
        groups.retain(|group| !group.changes.changes().all(is_known) && since(group) <= now);
        let next = groups.into_iter().min_by_key(since)?;
        for change in next.changes.changes() {
            self.reverted.remove(&knob_of(change.to()));
        }
        Some(next)
    }

    /// Begins to judge changes.
    ///
    /// # Errors
    /// If the judging thread cannot be created.
    pub(crate) fn judge(&mut self, changes: Plan, judging: Judging, session: Session) -> Result<(), Fault> {
        let Judging { policy, netns, watched, within, members, purpose } = judging;
        let settings = changes.changes().map(|change| (knob_of(change.to()), change.to().clone())).collect();
        let (stop, judged) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let stopped = Arc::clone(&stop);
        let ending = Ending { judged: Arc::clone(&judged), done: Arc::clone(&self.done) };
        let wrote = Arc::new(AtomicBool::new(false));
        let writes = Arc::clone(&wrote);
        let within = Duration::from_nanos(within.0);
        let of_proof = match &purpose {
            Purpose::Proof(_, proof) => Some(proof.clone()),
            Purpose::Asked | Purpose::Attempt(_) => None,
        };
        let work = move || {
            // Dropped last, when the trial has restored everything.
            let ending = ending;
            let mut is_stopped = || stopped.load(Ordering::Relaxed);
            let proposal = Proposal {
                policy: &policy,
                changes: Some(changes),
                netns,
                allow: Allow::default(),
                watched,
                within,
                seed: clock::now().unix_micros,
            };
            let outcome = GuardedTrial::prepare(proposal, &session, &Silent).and_then(|trial| {
                let Some(mut trial) = trial else { return Ok(None) };
                trial.measure_before(&mut is_stopped)?;
                let most = u64::try_from((trial.takes() + DEADLINE_AFTER).as_nanos()).unwrap_or(u64::MAX);
                let deadline = Nanoseconds(clock::now().since_boot.0.saturating_add(most));
                // The guard process restores the host if the daemon is killed during the trial.
                let guard = Guardian::start(&session, deadline, &trial.namespaces()?)?;
                writes.store(true, Ordering::Relaxed);
                let outcome = trial.run(deadline, &mut is_stopped, &mut |_| {})?;
                guard.dismiss();
                let proof = of_proof.map(|proof| with_pairs(proof, &outcome, &session));
                Ok(Some((outcome, proof)))
            });
            *lock(&ending.judged) = Some(outcome);
        };
        let thread = std::thread::Builder::new().name("guard".to_owned()).spawn(work);
        let thread =
            thread.map_err(|error| Fault::failed(format!("cannot start the thread of a guard: {error}")))?;
        self.running = Some(RunningTrial { thread, stop, wrote, purpose, judged, settings, members });
        Ok(())
    }

    /// Returns the result of the trial, if it has ended.
    pub(crate) fn take(&mut self, now: Nanoseconds) -> Option<TrialResult> {
        self.done.silence();
        let judged = lock(&self.running.as_ref()?.judged).take()?;
        let RunningTrial { thread, settings, members, stop, wrote, purpose, .. } = self.running.take()?;
        let _ended = thread.join();
        if let Purpose::Proof(target, _) = purpose {
            let outcome = match judged {
                Ok(Some((_, Some(proof)))) => Ok(proof),
                Ok(_) => Err("it changes nothing".to_owned()),
                Err(fault) => Err(fault.cause.to_string()),
            };
            return Some(TrialResult::Proof(Proved { target, outcome }));
        }
        if let Purpose::Attempt(attempt) = purpose {
            let wrote = wrote.load(Ordering::Relaxed);
            let outcome = match judged {
                Ok(Some((TrialOutcome { ruling, judgements, .. }, _))) => {
                    if ruling.is_kept() {
                        self.keep(settings, &judgements);
                    }
                    Ok((ruling, judgements))
                }
                Ok(None) => Err(("it changes nothing".to_owned(), wrote)),
                Err(fault) => Err((fault.cause.to_string(), wrote)),
            };
            return Some(TrialResult::Attempt(Attempted { attempt, outcome }));
        }
        let of: BTreeSet<String> = members.keys().cloned().collect();
        let services = of.iter().cloned().collect::<Vec<_>>().join(", ");
        let outcome = match judged {
            Ok(Some((outcome, _))) => outcome,
            Ok(None) => return None,
            Err(fault) => {
                // A trial that was stopped may be retried immediately, because the requests may have changed.
                let again_after = if stop.load(Ordering::Relaxed) { Nanoseconds::ZERO } else { AGAIN_AFTER };
                self.not_before.insert(of.clone(), Nanoseconds(now.0.saturating_add(again_after.0)));
                return Some(TrialResult::Asked {
                    services: of,
                    said: format!("{services}: a change waits for its guard: {}", fault.cause),
                    finding: Some(finding(
                        WAITS,
                        Severity::Warning,
                        &services,
                        vec![fault.cause.to_string()],
                    )),
                    verdicts: Vec::new(),
                });
            }
        };
        let mut words: Vec<String> = outcome.judgements.iter().map(ToString::to_string).collect();
        words.extend(outcome.findings.iter().map(|found| found.summary.clone()));
        let said = words.join("; ");
        let verdicts = outcome.judgements.clone();
        if outcome.is_kept() {
            self.keep(settings, &outcome.judgements);
            return Some(TrialResult::Asked { services: of, said, finding: None, verdicts });
        }
        if matches!(outcome.ruling, Ruling::Interrupted | Ruling::NotJudged | Ruling::ClientsLeft) {
            let again = match outcome.ruling {
                Ruling::Interrupted => now,
                _ => Nanoseconds(now.0.saturating_add(AGAIN_AFTER.0)),
            };
            self.not_before.insert(of.clone(), again);
            let finding = Some(finding(WAITS, Severity::Warning, &services, words));
            return Some(TrialResult::Asked { services: of, said, finding, verdicts });
        }
        self.reverted.extend(settings.into_iter().map(|(knob, to)| (knob, (to, members.clone()))));
        let finding = Some(finding(REVERTED, Severity::Problem, &services, words));
        Some(TrialResult::Asked { services: of, said, finding, verdicts })
    }

    /// Records that these settings were judged and may be applied.
    fn keep(&mut self, settings: BTreeMap<Knob, Setting>, judgements: &[Judgement]) {
        self.kept.extend(settings.into_iter().map(|(knob, to)| (knob, (to, judgements.to_vec()))));
    }

    /// Returns the verdicts on these settings, as far as they were judged.
    pub(crate) fn verdicts<'s>(&self, settings: impl IntoIterator<Item = &'s Setting>) -> Vec<Judgement> {
        let mut verdicts: Vec<Judgement> = Vec::new();
        for to in settings {
            let known = self.kept.get(&(to.object(), to.knob())).filter(|(kept, _)| kept == to);
            for verdict in known.into_iter().flat_map(|(_, verdicts)| verdicts) {
                if !verdicts.contains(verdict) {
                    verdicts.push(verdict.clone());
                }
            }
        }
        verdicts
    }
}

impl Drop for GuardedTrials {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Adds the pairs of windows in an episode to a proof. Removes the episode's transactions from the journal,
/// because there would be dozens of them per day.
fn with_pairs(mut proof: Box<Proof>, outcome: &TrialOutcome, session: &Session) -> Box<Proof> {
    if let Some(differences) = outcome.differences.first() {
        // The trial measured the effect of the withdrawal; a proof stores the effect of the policy, which is
        // the opposite.
        let of_policy =
            differences.iter().map(|(quantity, all)| (*quantity, all.iter().map(|it| -it).collect()));
        proof.add(&of_policy.collect());
    }
    let millis = u64::try_from(outcome.changed_for.as_millis()).unwrap_or(u64::MAX);
    proof.without_millis = proof.without_millis.saturating_add(millis);
    proof.last = Some(Episode { unix_micros: clock::now().unix_micros, ruling: outcome.ruling });
    proof.effects = latency::judge::effects(&proof);
    proof.note_effects(clock::now().unix_micros);
    if let Ok(journal) = session.journal() {
        // If this fails, the transaction is removed later, with other old transactions.
        outcome.transactions.iter().for_each(|name| drop(journal.forget(*name)));
    }
    proof
}

/// Returns the processes of the services that a group affects.
pub(crate) fn of_group(group: &GuardGroup, members: &ServiceMembers) -> ServiceMembers {
    group.services.iter().map(|name| (name.clone(), members.get(name).cloned().unwrap_or_default())).collect()
}

/// The end of a trial's thread. Dropping this value wakes the daemon, with a fault if the thread panicked.
struct Ending {
    judged: Arc<Mutex<Option<Outcomes>>>,
    done: Arc<Bell>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let fault =
            || Fault::failed("the guard failed because of a bug in netpolicy; its changes were rolled back");
        lock(&self.judged).get_or_insert_with(|| Err(fault()));
        self.done.ring();
    }
}

/// Whether these are the services for which a change was judged: of each service, at least one process must
/// still be running. Worker processes come and go, and a service that is matched by its executable may have
/// processes in containers that the change did not affect.
fn are_the_same(judged: &ServiceMembers, now: &ServiceMembers) -> bool {
    judged.len() == now.len()
        && judged.iter().all(|(service, then)| {
            now.get(service).is_some_and(|now| then.is_empty() && now.is_empty() || !then.is_disjoint(now))
        })
}

fn finding(rule: &str, severity: Severity, services: &str, evidence: Vec<String>) -> Finding {
    let summary = match rule {
        REVERTED => {
            "a change made its service worse and was reverted; it is retried once the service's policy or all its processes have changed"
        }
        _ => "a change is postponed until it can be judged on the traffic of its services",
    };
    Finding {
        rule: rule.to_owned(),
        severity,
        object: services.to_owned(),
        summary: summary.to_owned(),
        evidence,
        remedy: Some(format!("to try it again now: kill -HUP {}", std::process::id())),
    }
}

#[cfg(test)]
mod test {
    use model::{Label, Pid};

    use super::*;
    use crate::guard_groups::test::{of_queues, service};

    #[test]
    fn a_guard_whose_thread_panics_ends_with_a_fault_and_wakes_the_daemon() {
        let (judged, done) = (Arc::new(Mutex::new(None)), Arc::new(Bell::new().expect("a bell")));
        let ending = Ending { judged: Arc::clone(&judged), done: Arc::clone(&done) };
        let thread = std::thread::spawn(move || {
            let _ending = ending;
            panic!("as a bug would");
        });
        assert!(thread.join().is_err());
        assert!(matches!(&*lock(&judged), Some(Err(_))));
        let rung = rustix::io::read(&*done, &mut [0; 8]);
        assert_eq!(rung, Ok(8));
    }

    #[test]
    fn what_hurt_a_service_is_not_tried_again_because_one_of_its_workers_is_another() {
        let members = |pids: &[u32]| {
            let process = |pid: &u32| ProcessId { pid: Pid(*pid), started: 1, comm: Label::new("cache") };
            ServiceMembers::from([("service cache".to_owned(), pids.iter().map(process).collect())])
        };
        let judged = members(&[7, 8]);
        assert!(are_the_same(&judged, &judged) && are_the_same(&judged, &members(&[7, 9])));
        assert!(!are_the_same(&judged, &members(&[9])), "the service was restarted");
        assert!(!are_the_same(&judged, &members(&[])), "it has ended");
        let mut two = judged.clone();
        two.insert("service store".to_owned(), BTreeSet::new());
        assert!(!are_the_same(&judged, &two) && !are_the_same(&two, &judged), "another policy");
        assert!(are_the_same(&two, &two), "a service that is not running is the same service");
    }

    fn members(processes: &[(&str, u32)]) -> ServiceMembers {
        let process = |pid| ProcessId { pid: Pid(pid), started: 1, comm: Label::new("server") };
        processes
            .iter()
            .map(|(name, pid)| (format!("service {name}"), BTreeSet::from([process(*pid)])))
            .collect()
    }

    fn guards() -> GuardedTrials {
        GuardedTrials::watched_by(&EventLoop::new().expect("an epoll")).expect("guards")
    }

    /// Sifts a plan for these queues, and returns the changes to judge next.
    fn sifted(
        guards: &mut GuardedTrials,
        queues: &[u32],
        members: &ServiceMembers,
        now: u64,
    ) -> Option<GuardGroup> {
        let guarded = BTreeMap::from([service("a", &[0, 1]), service("b", &[2])]);
        let mut plan = of_queues(queues);
        let group = guards.sift(&mut plan, &guarded, |_| true, members, Nanoseconds(now));
        assert_eq!(plan, of_queues(&queues.iter().copied().filter(|number| *number > 2).collect::<Vec<_>>()));
        group
    }

    #[test]
    fn a_service_that_waits_for_its_traffic_holds_up_no_other() {
        let (mut guards, members) = (guards(), members(&[("a", 7), ("b", 8)]));
        let first = sifted(&mut guards, &[0, 2, 5], &members, 100).expect("a group");
        assert_eq!(first.changes, of_queues(&[0]));
        guards.not_before.insert(first.services, Nanoseconds(160));
        let second = sifted(&mut guards, &[0, 2, 5], &members, 100).expect("the other");
        assert_eq!(second.changes, of_queues(&[2]));
        guards.not_before.insert(second.services, Nanoseconds(170));
        assert_eq!(sifted(&mut guards, &[0, 2, 5], &members, 150), None, "both wait");
        let again = sifted(&mut guards, &[0, 2, 5], &members, 200).expect("one is due");
        assert_eq!(again.changes, of_queues(&[0]), "the group that has waited longest");
    }

    #[test]
    fn what_was_put_back_comes_again_with_other_processes_or_with_something_else() {
        let (mut guards, then) = (guards(), members(&[("a", 7), ("b", 8)]));
        let group = sifted(&mut guards, &[0], &then, 100).expect("a group");
        let judged_on = of_group(&group, &then);
        let put_back = |guards: &mut GuardedTrials| {
            let changes = of_queues(&[0]);
            let settings = changes.changes().map(|change| change.to().clone());
            guards.reverted.extend(settings.map(|to| (knob_of(&to), (to, judged_on.clone()))));
        };
        put_back(&mut guards);
        assert_eq!(sifted(&mut guards, &[0], &then, 200), None);
        assert_eq!(
            sifted(&mut guards, &[0], &members(&[("a", 7), ("b", 9)]), 200),
            None,
            "the change does not affect service b"
        );
        let other_group = sifted(&mut guards, &[0, 2], &then, 200).expect("that of b");
        assert_eq!(other_group.changes, of_queues(&[2]));
        assert_eq!(
            sifted(&mut guards, &[0, 1], &then, 200).map(|group| group.changes),
            Some(of_queues(&[0, 1]))
        );
        put_back(&mut guards);
        assert_eq!(
            sifted(&mut guards, &[0], &members(&[("a", 9)]), 200).map(|group| group.changes),
            Some(of_queues(&[0]))
        );
    }
}
