//! The daemon's phase, findings, counters, and messages for the operator.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use latency::live::Measured;
use model::host::Unread;
use model::{Change, Finding, Judgement, NetnsId, Pid, Policy};
use session::{Fault, Operator, count};

use crate::change_log::ChangeLog;
use crate::status::{
    AnswerCallback, ApiRequest, DaemonCounters, DaemonPhase, EventKind, EventSource, Instance, PolicyStatus,
    Polling, Reaction, RequestStatus, Shared, VERDICTS_MAX,
};

/// The maximum number of findings that exist at the same time.
const FINDINGS_MAX: usize = 256;

/// The maximum number of findings that are logged per window. Further findings are only counted.
const LOGGED_MAX: u32 = 120;
const FINDINGS_WINDOW: Duration = Duration::from_secs(60);

/// The daemon's phase, findings, counters, and messages for the operator.
pub(crate) struct Telemetry<'a> {
    operator: &'a dyn Operator,
    shared: Shared,
    phase: DaemonPhase,
    policy: PolicyStatus,
    /// The findings, by rule and object.
    findings: BTreeMap<(String, String), Finding>,
    counters: DaemonCounters,
    reactions: BTreeMap<EventKind, Reaction>,
    reload: Option<Reload>,
    /// The latest verdicts, newest first.
    verdicts: VecDeque<Judgement>,
    /// The start of the current window, and the number of findings logged in it.
    logged: (Instant, u32),
    changes: ChangeLog,
}

/// The state when SIGHUP arrived, which is kept until the result of the reload is logged.
struct Reload {
    /// The requests of the policy files when SIGHUP arrived.
    policy: Policy,
    /// The number of settings that had been changed when SIGHUP arrived.
    changes: u64,
}

/// The parts of the status for which other parts of the daemon are responsible.
pub(crate) struct StatusParts {
    /// The number of requests from clients.
    pub(crate) asked: usize,
    /// How each kind of event is detected.
    pub(crate) event_sources: Vec<EventSource>,
    /// The status of each request.
    pub(crate) requests: Vec<RequestStatus>,
    /// The number of held settings.
    pub(crate) settings: usize,
    /// The number of CPUs that poll without traffic, and the maximum.
    pub(crate) polling: Polling,
    /// The measurements of services.
    pub(crate) services: Vec<Measured>,
}

impl<'a> Telemetry<'a> {
    /// Creates the telemetry of a daemon that has not started yet.
    pub(crate) fn new(operator: &'a dyn Operator, shared: Shared) -> Self {
        Self {
            operator,
            shared,
            phase: DaemonPhase::Starting,
            policy: PolicyStatus::default(),
            findings: BTreeMap::new(),
            counters: DaemonCounters::default(),
            reactions: BTreeMap::new(),
            reload: None,
            verdicts: VecDeque::new(),
            logged: (Instant::now(), 0),
            changes: ChangeLog::new(Instant::now()),
        }
    }

    /// Returns the operator to whom messages are sent.
    pub(crate) fn operator(&self) -> &'a dyn Operator {
        self.operator
    }

    /// Sends a message to the operator.
    pub(crate) fn say(&self, sentence: &str) {
        self.operator.say(sentence);
    }

    /// If an operation failed, logs that at the verbose level. The daemon continues.
    pub(crate) fn detail_of(&self, what: &str, outcome: Result<(), Fault>) {
        if let Err(fault) = outcome {
            self.operator.detail(&format!("{what}: {}", fault.cause));
        }
    }

    /// Logs, at the verbose level, which parts of the host could not be read.
    pub(crate) fn unread(&self, unread: Vec<Unread>) {
        for unread in unread {
            self.operator.detail(&format!("not read: {}: {}", unread.what, unread.why));
        }
    }

    /// Records the daemon's namespace, start time and version.
    pub(crate) fn started(&self, netns: NetnsId, unix_micros: u64) {
        self.shared.update(|status| {
            status.instance = Instance {
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                started_unix_micros: unix_micros,
                netns: Some(netns),
            };
        });
    }

    /// The present phase.
    pub(crate) fn phase(&self) -> DaemonPhase {
        self.phase
    }

    /// Sets the phase.
    pub(crate) fn enter(&mut self, phase: DaemonPhase) {
        self.phase = phase;
    }

    /// Sets the phase to `to` if the current phase is `from`.
    pub(crate) fn leave(&mut self, from: DaemonPhase, to: DaemonPhase) {
        if self.phase == from {
            self.phase = to;
        }
    }

    /// Whether clients can no longer reach the daemon.
    pub(crate) fn has_api_ended(&self) -> bool {
        self.shared.has_api_ended()
    }

    /// Resets the bell for requests, so that new requests ring it again.
    pub(crate) fn heard_requests(&self) {
        self.shared.requested().silence();
    }

    /// Takes the next request.
    pub(crate) fn next_request(&self) -> Option<(ApiRequest, AnswerCallback)> {
        self.shared.next_request()
    }

    /// Updates the counters.
    pub(crate) fn count(&mut self, count: impl FnOnce(&mut DaemonCounters)) {
        count(&mut self.counters);
    }

    /// Records how long after an event of this kind the policy was in force again.
    pub(crate) fn reacted(&mut self, kind: EventKind, took: Duration) {
        self.reactions.entry(kind).or_default().note(took);
    }

    /// Logs the settings that a commit wrote. `user` returns the user of a process.
    pub(crate) fn set(&mut self, changes: &[Change], user: impl Fn(Pid) -> Option<u32>) -> Result<(), Fault> {
        for line in self.changes.fold(changes, user) {
            self.operator.event("set", line.object, line.words)?;
        }
        Ok(())
    }

    /// Logs how many settings had no line in the last minute.
    pub(crate) fn summarize_set(&mut self) {
        for words in self.changes.summarize(Instant::now()) {
            self.operator.say(&words);
        }
    }

    /// Records the verdicts on a change that was judged on the traffic of services.
    pub(crate) fn judged(&mut self, verdicts: &[Judgement]) {
        for verdict in verdicts {
            *self.counters.verdicts.entry(verdict.ruling).or_default() += 1;
            self.verdicts.push_front(verdict.clone());
        }
        self.verdicts.truncate(VERDICTS_MAX);
    }

    /// Records that the policy files were read, with the number of sections that contain requests, or with
    /// the mistakes.
    pub(crate) fn policy_read(&mut self, read: Result<usize, String>) {
        self.policy.reads += 1;
        match read {
            Ok(sections) => {
                self.policy.sections = sections;
                self.policy.mistakes = None;
            }
            Err(mistakes) => self.policy.mistakes = Some(mistakes),
        }
    }

    /// Records that SIGHUP arrived, with the requests of the policy files at that time.
    pub(crate) fn reload(&mut self, policy: Policy) {
        let changes = self.counters.settings.changes;
        self.reload.get_or_insert(Reload { policy, changes });
    }

    /// If SIGHUP has arrived, logs the result. `policy` contains the current requests of the files, and
    /// `in_force` tells whether they are in force.
    pub(crate) fn reloaded(&mut self, policy: &Policy, in_force: bool) {
        let Some(before) = self.reload.take() else { return };
        let sections = count(self.policy.sections, "section");
        let files = match &self.policy.mistakes {
            Some(_) => "they have errors; the previous policy stays in force".to_owned(),
            None if before.policy == *policy => format!("{sections}, as before"),
            None => format!("{sections}, changed"),
        };
        let changes = self.counters.settings.changes.saturating_sub(before.changes);
        let changes = count(usize::try_from(changes).unwrap_or(usize::MAX), "setting");
        let rest = if in_force { "" } else { "; not everything is in force yet: netpolicy status" };
        self.say(&format!(
            "SIGHUP: policy files and recipes were reloaded: {files}. {changes} changed{rest}."
        ));
    }

    /// Adds a finding, which replaces an earlier one with the same rule and object. Logs it if it is new.
    pub(crate) fn find(&mut self, finding: Finding) {
        let key = (finding.rule.clone(), finding.object.clone());
        if self.findings.get(&key) == Some(&finding) {
            return;
        }
        if !self.findings.contains_key(&key) && self.findings.len() >= FINDINGS_MAX {
            return;
        }
        if self.may_log(Instant::now()) {
            self.operator.say(&format!("{}: {}: {}", finding.severity, finding.object, finding.summary));
            for line in &finding.evidence {
                self.operator.say(&format!("  {line}"));
            }
        }
        self.findings.insert(key, finding);
    }

    /// Whether another finding may be logged now. The limit is needed because a process can recreate objects
    /// again and again, each of which causes a new finding.
    fn may_log(&mut self, now: Instant) -> bool {
        let (begun, logged) = &mut self.logged;
        if now.duration_since(*begun) > FINDINGS_WINDOW {
            if *logged > LOGGED_MAX {
                let more = *logged - LOGGED_MAX;
                self.operator.say(&format!("{more} more findings were not logged: netpolicy status"));
            }
            (*begun, *logged) = (now, 0);
        }
        *logged = logged.saturating_add(1);
        *logged <= LOGGED_MAX
    }

    /// Updates a finding. If only its figures differ from those of the earlier one, it is not logged again
    /// until it has been resolved.
    pub(crate) fn renew(&mut self, finding: Finding) {
        match self.findings.get_mut(&(finding.rule.clone(), finding.object.clone())) {
            Some(known) if known.summary == finding.summary => *known = finding,
            _ => self.find(finding),
        }
    }

    /// Resolves the findings of a rule, except those for the objects in `but`.
    pub(crate) fn mended(&mut self, rule: &str, but: &BTreeSet<String>) {
        self.findings.retain(|(found, object), _| found != rule || but.contains(object));
    }

    /// Resolves the findings of a rule for the objects for which `is_meant` is true.
    pub(crate) fn mended_where(&mut self, rule: &str, is_meant: impl Fn(&str) -> bool) {
        self.findings.retain(|(found, object), _| found != rule || !is_meant(object));
    }

    /// Returns the finding of a rule for an object.
    pub(crate) fn finding(&self, rule: &str, object: &str) -> Option<&Finding> {
        self.findings.get(&(rule.to_owned(), object.to_owned()))
    }

    /// Returns the first finding of a rule for an object for which `is_meant` is true.
    pub(crate) fn first_finding(&self, rule: &str, is_meant: impl Fn(&str) -> bool) -> Option<&Finding> {
        let found = self.findings.iter().find(|((of, object), _)| of == rule && is_meant(object));
        found.map(|(_, finding)| finding)
    }

    /// Publishes the status.
    pub(crate) fn publish(&self, standing: StatusParts) {
        let StatusParts { asked, event_sources, requests, settings, polling, services } = standing;
        self.shared.note_services(services);
        self.shared.update(|status| {
            status.phase = self.phase;
            status.policy.clone_from(&self.policy);
            status.policy.asked = asked;
            status.event_sources = event_sources;
            status.requests = requests;
            status.settings = u64::try_from(settings).unwrap_or(u64::MAX);
            status.findings = self.findings.values().cloned().collect();
            // Keep the larger count: the queue of requests counts the requests that it drops in the status
            // itself.
            let evictions = status.counters.evictions.max(self.counters.evictions);
            status.counters.clone_from(&self.counters);
            status.counters.evictions = evictions;
            status.reactions.clone_from(&self.reactions);
            status.polling = polling;
            status.verdicts = self.verdicts.iter().cloned().collect();
        });
    }
}
