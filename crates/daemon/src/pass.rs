//! One pass of a level-triggered reconciliation loop: plans on the observed host, commits the permitted
//! changes, and restores settings that are no longer requested.

use std::collections::{BTreeMap, BTreeSet};

use apply::{Allow, CommitError, CommitFault, Drift, JournalError, Knob, Knobs, TransactionName};
use latency::judge::JudgedService;
use linux::{Cause, Kernel, KernelError};
use model::setting::Disruption;
use model::{Change, Finding, Guard, Nanoseconds, Object, Plan, Setting, Severity, Step, Target};
use session::cycle::NotInForce;
use session::{Exit, Fault};

use crate::daemon::{Daemon, left_to_others, now};
use crate::guard_groups::GuardedService;
use crate::held::{Committed, PutBack};
use crate::look::process_of;
use crate::reconciler::{LeftAlone, Work};
use crate::status::{DaemonPhase, EventKind};
use crate::{goals, guards};

/// The message if transactions could not be compacted into one.
const NOT_COMPACTED: &str = "compacting the journal failed";

/// The maximum number of commits in a pass. A pass may need one commit for queues, one for the queues'
/// settings, and more for changes that occur in the meantime.
const COMMITS_MAX: usize = 8;

/// The maximum number of settings that a finding about other programs lists.
const TAKEN_NAMED_MAX: usize = 16;

/// The hint about changes that the daemon does not make by default.
pub(crate) const DISRUPTIVE: &str = "start the daemon with --disruptive or --allow-irreversible, or set the option in /etc/netpolicy/daemon.toml";

/// When to retry a failed commit.
enum CommitRetry {
    /// Immediately: the host has changed since it was observed, or the next plan will avoid the cause of the
    /// failure.
    Again,
    /// After a delay.
    Later,
}

impl Daemon<'_> {
    /// Does the work that is due in this turn.
    pub(crate) fn work(&mut self, work: Work) {
        let begun = now();
        if self.quality.guards.is_under_way() {
            // A change of the requests stops a running trial. The contents of a file may be unchanged if it
            // was only touched, or was written in several steps.
            if work.asked || work.policy && self.files_changed() {
                self.quality.guards.stop();
            }
            return self.reconciler.failed(work, Nanoseconds::ZERO, now());
        }
        if self.held_back.by().is_some() {
            return self.reconciler.failed(work, Nanoseconds::ZERO, now());
        }
        let is_tick = work.tick;
        let may_have_ended = is_tick || !work.observe.devices.is_empty();
        let span = |begun: Nanoseconds| Nanoseconds(now().0.saturating_sub(begun.0));
        let outcome = match self.look(&work) {
            // The event was a write to the journal that does not concern the daemon, or a scan that found
            // nothing.
            Ok(false) => return self.reconciler.done(span(begun), now()),
            Ok(true) => self.converge(&work),
            Err(fault) => Err(fault),
        };
        if work.policy {
            let policy = self.requests.of_files();
            self.telemetry.reloaded(&policy, matches!(outcome, Ok(true)));
        }
        match outcome {
            Ok(true) => {
                self.reconciler.done(span(begun), now());
                self.telemetry.mended("failed", &BTreeSet::new());
            }
            Ok(false) => self.reconciler.failed(work, span(begun), now()),
            Err(fault) => {
                self.telemetry.count(|counters| counters.passes.failures += 1);
                let words = fault.cause.to_string();
                let summary = without_transactions(&words);
                self.telemetry.renew(Finding {
                    rule: "failed".to_owned(),
                    severity: Severity::Problem,
                    object: "daemon".to_owned(),
                    evidence: Vec::from_iter((summary != words).then_some(words)),
                    summary,
                    remedy: fault.hint.clone(),
                });
                self.reconciler.failed(work, span(begun), now());
            }
        }
        self.telemetry.leave(DaemonPhase::Starting, DaemonPhase::Managing);
        self.telemetry.summarize_set();
        if is_tick {
            self.prove();
        }
        let (asked, host) = (self.asked(), self.known.host());
        let folded = self.held.fold_if_many(host, &asked);
        self.telemetry.detail_of(NOT_COMPACTED, folded);
        let folded = self.held.forget_foreign(host, &asked);
        self.telemetry.detail_of(NOT_COMPACTED, folded);
        if may_have_ended {
            let folded = self.held.forget_ended(host, &asked);
            self.telemetry.detail_of(NOT_COMPACTED, folded);
        }
    }

    /// Plans and commits until the host matches the plan. Returns false if some of the work must be retried
    /// later.
    fn converge(&mut self, work: &Work) -> Result<bool, Fault> {
        if self.telemetry.phase() == DaemonPhase::Released {
            self.plan.release_wake();
            // Change nothing, but still report the status of the requests.
            self.place();
            self.report();
            return Ok(true);
        }
        let mut changed = false;
        for _ in 0..COMMITS_MAX {
            let plan = self.planned(work);
            if plan.is_empty() {
                if changed {
                    self.note_reactions(work);
                }
                self.report();
                return Ok(true);
            }
            let again = self.plan.is_first_stage();
            match self.commit(plan)? {
                Ok(()) => {
                    if !again && !changed {
                        // The policy is in force; further passes only verify this.
                        self.note_reactions(work);
                        self.look_at_what_was_set()?;
                        let left = self.planned(work);
                        self.report();
                        if left.is_empty() {
                            return Ok(true);
                        }
                    } else {
                        self.look_at_what_was_set()?;
                    }
                    changed = !again;
                }
                Err(CommitRetry::Again) => {}
                Err(CommitRetry::Later) => {
                    self.report();
                    return Ok(false);
                }
            }
        }
        self.report();
        Ok(false)
    }

    fn note_reactions(&mut self, work: &Work) {
        let in_force = now();
        for (kind, at) in &work.first_events {
            let took = std::time::Duration::from_nanos(in_force.0.saturating_sub(at.0));
            if *kind != EventKind::Timer {
                self.telemetry.reacted(*kind, took);
            }
        }
    }

    /// Plans all requests on the observed host.
    fn place(&mut self) {
        self.telemetry.count(|counters| counters.passes.plans += 1);
        let mut selection = plan::select(&self.policy(), self.known.host());
        let own = selection.policy.intents.len();
        let (policy, left_out) = self.requests.with_apps(selection.policy, self.known.host());
        self.report_app_requests_left_out(&left_out);
        selection.policy = policy;
        let members = self.requests.members(&selection.policy);
        let pids = members.values().flatten().copied();
        let awaited = self.sources.await_packets(plan::without_packets(pids, self.known.host()));
        self.telemetry.detail_of("watching for first connections failed", awaited.map_err(Fault::from));
        let scans = self.sources.scans_for_packets();
        self.reconciler
            .scan_for(scans || !self.sources.sees_processes() && self.requests.any_service(), now());
        let subjects = goals::subjects(&selection.policy.intents, &members, self.known.host());
        let measured = self.quality.goals.follow(subjects, self.known.netns());
        self.telemetry.detail_of("response times cannot be measured", measured);
        self.report_measured();
        self.plan.place(selection, own, self.known.host(), &members);
        self.requests.follow_apps(self.plan.followed_apps());
    }

    /// Returns the changes to make now. If the request in progress is refused, makes none of its changes and
    /// plans the earlier requests instead.
    fn planned(&mut self, work: &Work) -> Plan {
        let plan = self.planned_of_all(work);
        if !self.went_back() {
            return plan;
        }
        if self.held.take_back_foreign() {
            let read = self.held.read().map(|_| ());
            self.telemetry.detail_of("the journal cannot be read", read);
        }
        if self.answers.was_released() && self.held.transactions().is_empty() {
            self.place();
            return Plan::default();
        }
        self.planned_of_all(work)
    }

    fn planned_of_all(&mut self, work: &Work) -> Plan {
        self.place();
        self.take_up_what_is_asked_for();
        self.held.forget_repaired_by_others(self.plan.wanted(), &self.plan.differing());
        if let Some(why) = self.plan.hold_wake() {
            self.telemetry.say(&why);
        }
        let mut plan = self.plan.take_plan();
        plan.steps.extend(self.put_back(work));
        self.without_what_is_not_allowed(&mut plan);
        let judged = self.reconciler.judge(plan, self.held.ledger(), now());
        self.report_left_alone(&judged.left_alone);
        let mut plan = judged.plan;
        self.keep_out(&mut plan);
        self.under_guard(&mut plan);
        plan
    }

    /// Removes from the plan the changes that must be judged first, and begins to judge them.
    fn under_guard(&mut self, plan: &mut Plan) {
        let guarded = self.plan.guarded();
        let is_of_others = |object: &str| object.split(", ").any(|name| !guarded.contains_key(name));
        [guards::REVERTED, guards::WAITS]
            .iter()
            .for_each(|rule| self.telemetry.mended_where(rule, is_of_others));
        if guarded.is_empty() {
            return;
        }
        let policy = self.policy();
        let (host, placed) = (self.known.host(), self.requests.members(&policy));
        let mut members = guards::ServiceMembers::new();
        for (place, pids) in &placed {
            let target =
                policy.intents.get(*place).map(|intent| intent.target.to_string()).unwrap_or_default();
            let of_service = members.entry(target).or_default();
            of_service.extend(pids.iter().filter_map(|pid| Some(host.process(*pid)?.id)));
        }
        let wants = |setting: &Setting| self.plan.wants(setting);
        let Some(group) = self.quality.guards.sift(plan, &guarded, wants, &members, now()) else { return };
        if self.quality.guards.is_under_way() {
            return;
        }
        let services = || group.services.iter().filter_map(|target| guarded.get(target));
        let watched = services().map(|GuardedService { name, guard, .. }| JudgedService {
            selection: goals::selection(name, &policy.intents, &placed, host),
            limits: guard.limits,
            gain: None,
        });
        let watched = watched.collect();
        let within = services().map(|service| service.guard.within).max().unwrap_or(Guard::WITHIN);
        let members = guards::of_group(&group, &members);
        let names: Vec<&str> = group.services.iter().map(String::as_str).collect();
        let changes = group.changes.changes().count();
        self.telemetry
            .say(&format!("{}: {changes} changes are judged on live traffic first", names.join(", ")));
        let begun = self.known.netns().again().map_err(Fault::from).and_then(|netns| {
            let judging =
                guards::Judging { policy, netns, watched, within, members, purpose: guards::Purpose::Asked };
            self.quality.guards.judge(group.changes, judging, self.session.clone())
        });
        self.telemetry.detail_of("a change was not made because it cannot be judged", begun);
    }

    /// Returns steps that restore held settings that are no longer wanted. They are restored immediately if
    /// the requests changed, otherwise if they were unwanted at two consecutive ticks. The settings of a
    /// refused request stay.
    fn put_back(&mut self, work: &Work) -> Vec<Step> {
        let now = work.policy || work.asked || work.app_requests;
        let host = self.known.host();
        // A renamed device is still the same device, but requests for its old name no longer apply to it.
        let is_renamed = |(object, _): &Knob| {
            let Some(id) = object.device() else { return false };
            let device = host.devices.iter().find(|device| device.id == id);
            device.is_some_and(|device| device.id.name != id.name)
        };
        let renamed = self.held.ledger().iter().any(|(knob, _)| is_renamed(knob));
        let unwanted = self.plan.unwanted(self.held.ledger(), now || work.tick || renamed, host);
        let Some(unwanted) = unwanted else { return Vec::new() };
        let now = now || unwanted.iter().any(is_renamed);
        let PutBack { steps, foreign } = self.held.put_back(unwanted, now);
        for (change, found) in &foreign {
            let said = left_to_others(change, found);
            self.telemetry.say(&said);
            self.answers.note(said);
        }
        steps
    }

    /// Makes the daemon manage all settings that a new request wants, even if it left them alone before.
    fn take_up_what_is_asked_for(&mut self) {
        self.rejections.keep_wanted(|setting| self.plan.wants(setting), self.held.ledger());
        let Some(target) = self.answers.take_up() else { return };
        let Some((objects, _)) = self.plan.request(&target) else { return };
        self.rejections.forgive(|object| objects.contains(object));
        self.quality.guards.take_up();
        self.reconciler.take_up_of(&objects);
        // Settings of the device's queues may have been rolled back for other requests that want the same
        // values.
        if let Target::Device(name) = &target {
            self.reconciler
                .take_up_where(|object| object.device().is_some_and(|device| device.name.as_str() == name));
        }
        self.report_rolled_back(&[]);
    }

    /// Removes changes that disturb traffic or cannot be undone, unless the options allow them.
    fn without_what_is_not_allowed(&mut self, plan: &mut Plan) {
        let Allow { disruptive, irreversible } = self.options.allow;
        let allowed = |change: &Change| {
            (disruptive || change.to().disruption() == Disruption::None)
                && (irreversible || change.from().restorable())
        };
        let mut refused: BTreeMap<Object, Vec<String>> = BTreeMap::new();
        let steps = std::mem::take(&mut plan.steps);
        for step in steps {
            let object = step.object();
            let (may, not): (Vec<_>, Vec<_>) = Vec::from(step).into_iter().partition(allowed);
            for change in not {
                refused.entry(object).or_default().push(change.to_string());
            }
            if !may.is_empty() {
                plan.steps.push(Step::new(may));
            }
        }
        self.telemetry.mended("not-allowed", &refused.keys().map(ToString::to_string).collect());
        for (object, changes) in refused {
            self.telemetry.find(Finding {
                rule: "not-allowed".to_owned(),
                severity: Severity::Problem,
                object: object.to_string(),
                summary: "not changed: the change would disturb traffic, or cannot be undone".to_owned(),
                evidence: changes,
                remedy: Some(DISRUPTIVE.to_owned()),
            });
        }
    }

    fn report_left_alone(&mut self, left: &[(Change, LeftAlone)]) {
        let mut flapping: BTreeMap<Object, Vec<String>> = BTreeMap::new();
        for (change, why) in left {
            if *why == LeftAlone::Flapping {
                flapping.entry(change.to().object()).or_default().push(change.to_string());
            }
        }
        self.telemetry.mended("flapping", &flapping.keys().map(ToString::to_string).collect());
        for (object, changes) in flapping {
            if self.telemetry.finding("flapping", &object.to_string()).is_none() {
                let settings = u64::try_from(changes.len()).unwrap_or(0);
                self.telemetry.count(|counters| counters.settings.flapping += settings);
            }
            let minutes = crate::reconciler::REPAIRS_WITHIN.0 / 60_000_000_000;
            self.telemetry.find(Finding {
                rule: "flapping".to_owned(),
                severity: Severity::Problem,
                object: object.to_string(),
                summary: format!(
                    "flapping: left alone after {} repairs within {minutes} minutes",
                    crate::reconciler::REPAIRS_MAX
                ),
                evidence: changes,
                remedy: Some(format!("find the program that sets it, then kill -HUP {}", std::process::id())),
            });
        }
    }

    /// Removes changes that the kernel has refused, and changes of settings that another program owns.
    fn keep_out(&mut self, plan: &mut Plan) {
        let mut taken: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let steps = std::mem::take(&mut plan.steps);
        for step in steps {
            let object = step.object();
            let mut changes = Vec::from(step);
            changes.retain(|change| {
                let knob = (object, change.to().knob());
                let refused = self.rejections.has(change.to());
                let why = self.held.taken(&knob).filter(|_| !refused);
                if let Some(why) = why {
                    taken.entry(why.clone()).or_default().push(format!("{} {}", knob.0, knob.1));
                }
                !refused && why.is_none()
            });
            if !changes.is_empty() {
                plan.steps.push(Step::new(changes));
            }
        }
        self.telemetry.mended("taken", &taken.keys().cloned().collect());
        for (why, knobs) in taken {
            let (settings, more) = (knobs.len(), knobs.len().saturating_sub(TAKEN_NAMED_MAX));
            let more = (more > 0).then(|| format!("and {more} more"));
            self.telemetry.find(Finding {
                rule: "taken".to_owned(),
                severity: Severity::Note,
                summary: format!("{settings} settings are left alone; the reason for each is: {why}"),
                object: why,
                evidence: knobs.into_iter().take(TAKEN_NAMED_MAX).chain(more).collect(),
                remedy: None,
            });
        }
    }

    /// Commits a plan and keeps it.
    fn commit(&mut self, plan: Plan) -> Result<Result<(), CommitRetry>, Fault> {
        let changes: Vec<Change> = plan.changes().cloned().collect();
        let steps: Vec<Vec<Setting>> = plan.steps.iter().map(Step::to).collect();
        let asked = self.asked();
        let allow = self.options.allow;
        let name = match self.held.commit(plan, &asked, allow) {
            Ok(name) => name,
            Err(NotInForce::Keep(error)) => return Err(error.into()),
            Err(NotInForce::Commit(error)) => {
                // If another program owns a setting or has changed it, the transaction was not begun. This is
                // not a failure.
                let begun = u64::from(error.transaction.is_some());
                self.telemetry.count(|counters| counters.passes.failures += begun);
                if matches!(error.host, apply::UndoState::NotRestored(_)) {
                    return Err(error.into());
                }
                return self.trouble(error, &steps).map(Err);
            }
        };
        self.committed(&changes, name)?;
        Ok(Ok(()))
    }

    fn committed(&mut self, changes: &[Change], name: Option<TransactionName>) -> Result<(), Fault> {
        let Committed { repairs, repaired, released } = self.held.note(changes, name);
        if let Some(name) = name {
            let journal = self.session.journal()?;
            for verdict in self.quality.guards.verdicts(changes.iter().map(Change::to)) {
                // The changes stay committed even if recording the verdict fails.
                let noted = journal.note_judgement(name, &verdict).map_err(Fault::from);
                self.telemetry.detail_of("a verdict could not be recorded in the journal", noted);
            }
        }
        self.reconciler.repaired(&repaired, now());
        let number = |number: usize| u64::try_from(number).unwrap_or(0);
        self.telemetry.count(|counters| {
            counters.settings.repairs += number(repairs);
            counters.passes.commits += 1;
            counters.settings.changes += number(changes.len());
            counters.settings.released += released;
        });
        changes.iter().for_each(|change| self.known.take_in(change.to()));
        self.known.note_set(changes.iter().map(|change| change.to().clone()).collect());
        self.answers.set(changes);
        let host = self.known.host();
        self.telemetry.summarize_set();
        self.telemetry.set(changes, |pid| host.process(pid).map(|process| process.uid))
    }

    /// Observes again the settings that the last commit wrote.
    fn look_at_what_was_set(&mut self) -> Result<(), Fault> {
        let set = self.known.take_set();
        let mut by_napi = BTreeSet::new();
        let mut whole = BTreeSet::new();
        for setting in &set {
            match setting.object().device().filter(|_| setting.facts().in_napi_only) {
                Some(id) => drop(by_napi.insert(id.ifindex)),
                None => drop(whole.insert(setting.object())),
            }
        }
        let devices: BTreeSet<_> =
            whole.iter().filter_map(Object::device).map(|device| device.ifindex).collect();
        for index in by_napi.difference(&devices) {
            self.known.napis(*index)?;
        }
        for index in devices {
            self.known.device(index)?;
        }
        let mut processes = BTreeSet::new();
        for object in whole.iter().filter(|object| object.device().is_none()) {
            if process_of(object)
                .is_none_or(|pid| processes.insert((pid, matches!(object, Object::Epoll(_)))))
            {
                self.look_at_object(*object)?;
            }
        }
        Ok(())
    }

    /// Decides how to react to a commit that failed. The host is unchanged.
    fn trouble(
        &mut self,
        error: CommitError<KernelError>,
        steps: &[Vec<Setting>],
    ) -> Result<CommitRetry, Fault> {
        let words = error.fault.to_string();
        let exit = Fault::exit_of(&error.fault);
        match *error.fault {
            CommitFault::Drifted(drifts) => {
                for object in drifts.iter().map(|Drift { found, .. }| found.object()).collect::<BTreeSet<_>>()
                {
                    self.look_at_object(object)?;
                }
                drifts.iter().for_each(|drift| self.known.take_in(&drift.found));
                Ok(CommitRetry::Again)
            }
            CommitFault::RolledBackMeanwhile { .. } => {
                self.look_at_journal()?;
                Ok(CommitRetry::Later)
            }
            CommitFault::Undecided { .. }
            | CommitFault::Owned { .. }
            | CommitFault::Unreadable { knob: Some(_), .. } => {
                self.held.read_claims()?;
                Ok(CommitRetry::Again)
            }
            CommitFault::Host { step, ref cause, .. }
                if Kernel::is_gone(cause) || matches!(cause.cause, Cause::Away(_)) =>
            {
                if let Some(tried) = steps.get(step).and_then(|tried| tried.first()) {
                    self.look_at_object(tried.object())?;
                }
                Ok(CommitRetry::Later)
            }
            CommitFault::Host { step, .. } => {
                self.refused_by_kernel(steps.get(step).into_iter().flatten(), exit, &words);
                Ok(CommitRetry::Again)
            }
            CommitFault::ReadBack { wrote, .. } => {
                self.refused_by_kernel([&*wrote], exit, &words);
                Ok(CommitRetry::Again)
            }
            CommitFault::Journal(JournalError::Busy { .. }) => Ok(CommitRetry::Later),
            CommitFault::Journal(error) => Err(error.into()),
            CommitFault::Unreadable { knob: None, .. }
            | CommitFault::Irreversible(_)
            | CommitFault::QueueConflict(_)
            | CommitFault::Disruptive(_) => Err(Fault::failed(words)),
        }
    }

    /// Rejects these values until their objects change or a new request wants them.
    fn refused_by_kernel<'s>(
        &mut self,
        settings: impl IntoIterator<Item = &'s Setting>,
        exit: Exit,
        words: &str,
    ) {
        for to in settings {
            self.telemetry.find(problem("refused-by-kernel", to.object().to_string(), words));
            self.rejections.note(to, exit, words);
        }
    }

    /// Reports the requests that are refused.
    fn report(&mut self) {
        let refused = self.plan.refused();
        let findings: Vec<Finding> = refused
            .iter()
            .map(|(target, (refusal, is_own))| Finding {
                rule: "request-refused".to_owned(),
                // A refused request of an application is not a problem of the operator's policy.
                severity: if *is_own { Severity::Problem } else { Severity::Note },
                object: target.clone(),
                summary: match refusal.object == *target {
                    true => refusal.message.clone(),
                    false => refusal.to_string(),
                },
                evidence: refusal.evidence.clone(),
                remedy: refusal.nearest.clone(),
            })
            .collect();
        let objects: BTreeSet<String> = findings.iter().map(|finding| finding.object.clone()).collect();
        self.telemetry.mended("request-refused", &objects);
        let rejected = self.rejections.objects();
        self.telemetry.mended("refused-by-kernel", &rejected);
        findings.into_iter().for_each(|finding| self.telemetry.find(finding));
    }
}

/// Replaces the names of transactions in a failure message, so that equal failures have equal messages.
fn without_transactions(words: &str) -> String {
    const STANDS_FOR_ONE: &str = "TRANSACTION";
    let mut text = String::new();
    let mut rest = words;
    while let Some(first) = rest.chars().next() {
        let is_name = |name: &&str| name.parse::<TransactionName>().is_ok();
        rest = match rest.get(..NAME_BYTES).filter(is_name) {
            Some(name) => {
                text.push_str(STANDS_FOR_ONE);
                &rest[name.len()..]
            }
            None => {
                text.push(first);
                &rest[first.len_utf8()..]
            }
        };
    }
    text
}

/// The length of a transaction's name, such as `20261122T030000.000000Z-0c01`.
const NAME_BYTES: usize = 28;

fn problem(rule: &str, object: String, summary: &str) -> Finding {
    Finding {
        rule: rule.to_owned(),
        severity: Severity::Problem,
        object,
        summary: summary.to_owned(),
        evidence: Vec::new(),
        remedy: None,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_failure_that_names_another_transaction_is_the_same() {
        let words = |name: &str| {
            format!("cannot create /state/journal/.new-{name}/begin: No space left on device (os error 28)")
        };
        let one = without_transactions(&words("20261122T030000.000000Z-0c01"));
        assert_eq!(one, words("TRANSACTION"));
        assert_eq!(one, without_transactions(&words("20261122T030107.123456Z-ffff")));
        for other in ["", "µs: eth0 rx-0", "20261122T030000.000000Z", "a.b-c/…"] {
            assert_eq!(without_transactions(other), other);
        }
    }
}
