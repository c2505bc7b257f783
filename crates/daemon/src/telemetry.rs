//! What the daemon reports of itself: its phase, findings, counters, and messages for the operator.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use latency::live::Measured;
use model::host::Unread;
use model::{Finding, Judgement, NetnsId, Policy};
use session::{Fault, Operator, count};

use crate::status::{
    Counters, EventSource, Instance, Kind, Phase, PolicyStatus, Polling, Reaction, Reply, Request,
    RequestStatus, Shared, VERDICTS_MAX,
};

/// The most findings that are reported at the same time.
const FINDINGS_MAX: usize = 256;

/// How many findings are logged in a window; the others are counted.
const LOGGED_MAX: u32 = 120;
const FINDINGS_WINDOW: Duration = Duration::from_secs(60);

/// What the daemon reports of itself.
pub(crate) struct Telemetry<'a> {
    operator: &'a dyn Operator,
    shared: Shared,
    phase: Phase,
    policy: PolicyStatus,
    /// What is wrong, by rule and object.
    findings: BTreeMap<(String, String), Finding>,
    counters: Counters,
    reactions: BTreeMap<Kind, Reaction>,
    reload: Option<Reload>,
    /// The last verdicts, the newest first.
    verdicts: VecDeque<Judgement>,
    /// When the window of logged findings began, and how many it has had.
    logged: (Instant, u32),
}

/// The state when SIGHUP came, until the log reports the result.
struct Reload {
    /// What the files said.
    policy: Policy,
    /// How many settings had been changed.
    changes: u64,
}

/// What the other parts of the daemon report.
pub(crate) struct Standing {
    /// How many requests came from clients.
    pub(crate) asked: usize,
    /// How each kind of event is detected.
    pub(crate) event_sources: Vec<EventSource>,
    /// Each request, and how it stands.
    pub(crate) requests: Vec<RequestStatus>,
    /// How many settings are held.
    pub(crate) settings: usize,
    /// The CPUs that poll without traffic.
    pub(crate) polling: Polling,
    /// What was counted of services.
    pub(crate) services: Vec<Measured>,
}

impl<'a> Telemetry<'a> {
    /// A daemon that has not begun yet.
    pub(crate) fn new(operator: &'a dyn Operator, shared: Shared) -> Self {
        Self {
            operator,
            shared,
            phase: Phase::Starting,
            policy: PolicyStatus::default(),
            findings: BTreeMap::new(),
            counters: Counters::default(),
            reactions: BTreeMap::new(),
            reload: None,
            verdicts: VecDeque::new(),
            logged: (Instant::now(), 0),
        }
    }

    /// The operator that messages go to.
    pub(crate) fn operator(&self) -> &'a dyn Operator {
        self.operator
    }

    /// Says something to the operator.
    pub(crate) fn say(&self, sentence: &str) {
        self.operator.say(sentence);
    }

    /// Logs, at the verbose level, that something failed and that the daemon goes on.
    pub(crate) fn detail_of(&self, what: &str, outcome: Result<(), Fault>) {
        if let Err(fault) = outcome {
            self.operator.detail(&format!("{what}: {}", fault.cause));
        }
    }

    /// Logs, at the verbose level, what could not be read.
    pub(crate) fn unread(&self, unread: Vec<Unread>) {
        for unread in unread {
            self.operator.detail(&format!("not read: {}: {}", unread.what, unread.why));
        }
    }

    /// Where, since when and as which version it runs.
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

    /// What the daemon is doing.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// From now on it is doing this.
    pub(crate) fn enter(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// Changes the phase if it is `from`.
    pub(crate) fn leave(&mut self, from: Phase, to: Phase) {
        if self.phase == from {
            self.phase = to;
        }
    }

    /// Whether no client can ask anything any more.
    pub(crate) fn has_api_ended(&self) -> bool {
        self.shared.has_api_ended()
    }

    /// From now on, new requests are announced again.
    pub(crate) fn heard_requests(&self) {
        self.shared.requested().silence();
    }

    /// The next request of others.
    pub(crate) fn next_request(&self) -> Option<(Request, Reply)> {
        self.shared.next_request()
    }

    /// Counts what happened.
    pub(crate) fn count(&mut self, count: impl FnOnce(&mut Counters)) {
        count(&mut self.counters);
    }

    /// Notes how long it took from an event of this kind to the policy in force.
    pub(crate) fn reacted(&mut self, kind: Kind, took: Duration) {
        self.reactions.entry(kind).or_default().note(took);
    }

    /// What a change came to that was judged on the traffic of services.
    pub(crate) fn judged(&mut self, verdicts: &[Judgement]) {
        for verdict in verdicts {
            *self.counters.verdicts.entry(verdict.ruling).or_default() += 1;
            self.verdicts.push_front(verdict.clone());
        }
        self.verdicts.truncate(VERDICTS_MAX);
    }

    /// The policy files were read: how many sections ask for something, or their mistakes.
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

    /// SIGHUP came when the files said this.
    pub(crate) fn reload(&mut self, policy: Policy) {
        let changes = self.counters.settings.changes;
        self.reload.get_or_insert(Reload { policy, changes });
    }

    /// Logs what became of a SIGHUP, if one came: the files say this now, and it is in force or not yet.
    pub(crate) fn reloaded(&mut self, policy: &Policy, in_force: bool) {
        let Some(before) = self.reload.take() else { return };
        let sections = count(self.policy.sections, "section");
        let files = match &self.policy.mistakes {
            Some(_) => "they have mistakes; the policy stays as it was".to_owned(),
            None if before.policy == *policy => format!("{sections}, as before"),
            None => format!("{sections}, not as before"),
        };
        let changes = self.counters.settings.changes.saturating_sub(before.changes);
        let changes = count(usize::try_from(changes).unwrap_or(usize::MAX), "setting");
        let rest = if in_force { "" } else { "; not all is in force yet: netpolicy status" };
        self.say(&format!(
            "SIGHUP: policy files and recipes were read again: {files}. {changes} changed{rest}."
        ));
    }

    /// Notes a finding, in place of what was found of the same before. A new one is logged.
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

    /// Whether another finding is logged now: objects that a process makes again and again are found anew each time.
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

    /// Notes a finding that says the same as before with new figures: it is logged once, until it is mended.
    pub(crate) fn renew(&mut self, finding: Finding) {
        match self.findings.get_mut(&(finding.rule.clone(), finding.object.clone())) {
            Some(known) if known.summary == finding.summary => *known = finding,
            _ => self.find(finding),
        }
    }

    /// What was found by a rule is mended, but for these objects.
    pub(crate) fn mended(&mut self, rule: &str, but: &BTreeSet<String>) {
        self.findings.retain(|(found, object), _| found != rule || but.contains(object));
    }

    /// What was found by a rule of objects like these is mended.
    pub(crate) fn mended_where(&mut self, rule: &str, is_meant: impl Fn(&str) -> bool) {
        self.findings.retain(|(found, object), _| found != rule || !is_meant(object));
    }

    /// What a rule found of an object.
    pub(crate) fn finding(&self, rule: &str, object: &str) -> Option<&Finding> {
        self.findings.get(&(rule.to_owned(), object.to_owned()))
    }

    /// The first finding of a rule on an object like this.
    pub(crate) fn first_finding(&self, rule: &str, is_meant: impl Fn(&str) -> bool) -> Option<&Finding> {
        let found = self.findings.iter().find(|((of, object), _)| of == rule && is_meant(object));
        found.map(|(_, finding)| finding)
    }

    /// Publishes the status.
    pub(crate) fn publish(&self, standing: Standing) {
        let Standing { asked, event_sources, requests, settings, polling, services } = standing;
        self.shared.note_services(services);
        self.shared.update(|status| {
            status.phase = self.phase;
            status.policy.clone_from(&self.policy);
            status.policy.asked = asked;
            status.event_sources = event_sources;
            status.requests = requests;
            status.settings = u64::try_from(settings).unwrap_or(u64::MAX);
            status.findings = self.findings.values().cloned().collect();
            // The queue of requests counts what it turns away by itself.
            let evictions = status.counters.evictions.max(self.counters.evictions);
            status.counters.clone_from(&self.counters);
            status.counters.evictions = evictions;
            status.reactions.clone_from(&self.reactions);
            status.polling = polling;
            status.verdicts = self.verdicts.iter().cloned().collect();
        });
    }
}
