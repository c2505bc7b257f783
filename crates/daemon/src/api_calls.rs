//! Handles the requests of API clients to the running daemon.

use std::collections::VecDeque;

use model::policy::Match;
use model::{Intent, Object, ProcessId, Target};
use session::{Exit, Fault, fullbusy};

use crate::answers::Before;
use crate::daemon::{Daemon, now};
use crate::reconciler::HostEvent;
use crate::status::{Answer, AnswerCallback, ApiRequest, DaemonPhase, HeldSetting};

/// The result of a client's request.
enum Outcome {
    /// All settings of the request are in force.
    InForce,
    /// The request is stored, but some of its settings are not in force yet, for this reason.
    Later(String),
    /// The request is refused.
    Refused(Fault),
}

impl Daemon<'_> {
    /// Handles all waiting requests. Returns whether there were any.
    pub(crate) fn answer_requests(&mut self) -> bool {
        self.telemetry.heard_requests();
        let mut waiting: VecDeque<(ApiRequest, AnswerCallback)> = VecDeque::new();
        while let Some(request) = self.telemetry.next_request() {
            waiting.push_back(request);
        }
        let any = !waiting.is_empty();
        for (request, reply) in waiting {
            let answer = self.answer(request).unwrap_or_else(|fault| refused(&fault));
            match answer {
                Answer::Refused { .. } => self.telemetry.count(|counters| counters.refused += 1),
                Answer::Done { .. } | Answer::Settings(_) => {
                    self.telemetry.count(|counters| counters.answered += 1);
                }
            }
            reply(answer);
        }
        any
    }

    fn answer(&mut self, request: ApiRequest) -> Result<Answer, Fault> {
        match request {
            ApiRequest::Set(intent) => self.set(*intent),
            ApiRequest::Unset(target) => self.unset(&target),
            ApiRequest::Reload => {
                self.take_up();
                Ok(self.answer_now(&HostEvent::Policy, "the policy files were read again"))
            }
            ApiRequest::HoldBack(request) => {
                if self.quality.guards.is_under_way() {
                    return Err(Fault::new(
                        Exit::Refused,
                        "the daemon is judging a change of its own at present",
                    )
                    .hint("try again when it has the verdict: netpolicy status"));
                }
                self.held_back.begin(request);
                Ok(done("no setting is changed until the session ends".to_owned()))
            }
            ApiRequest::RollBack => {
                if let Some(session) = self.held_back.by() {
                    let words = format!("{session} changes settings at present");
                    return Err(Fault::new(Exit::Refused, words)
                        .hint("call Cancel with the number of that session first"));
                }
                let settings = self.roll_back_all()?;
                self.telemetry.enter(DaemonPhase::Released);
                let at = now();
                self.note(&HostEvent::Lost, at);
                Ok(done(format!("{settings} settings were restored, and nothing is managed until a reload")))
            }
            ApiRequest::Settings => Ok(Answer::Settings(self.held_settings())),
        }
    }

    fn set(&mut self, intent: Intent) -> Result<Answer, Fault> {
        fullbusy::refuse_from_outside(&model::Policy {
            intents: vec![intent.clone()],
            ..model::Policy::default()
        })?;
        if let Target::Task(pid) = intent.target
            && pid.0 == std::process::id()
        {
            return Err(Fault::new(Exit::Usage, format!("process {pid} is the daemon itself")));
        }
        let process = process_meant(&intent.target)?;
        if matches!(&intent.target, Target::Service(_, matching) if *matching == Match::default()) {
            let why = format!("{}: `match` selects no process", intent.target);
            return Err(Fault::new(Exit::Usage, why).hint("`match` needs a unit, cgroup, exe, port or uid"));
        }
        let target = intent.target.clone();
        let before = Before {
            asked: self.requests.remembered(),
            suppressed: self.reconciler.left_alone(),
            rejections: self.rejections.clone(),
        };
        if self.requests.ask(intent, process).map_err(|error| Fault::file("requests.json", error))? {
            self.telemetry.count(|counters| counters.evictions += 1);
        }
        self.answers.begin(target.clone(), before, self.telemetry.phase());
        self.telemetry.leave(DaemonPhase::Released, DaemonPhase::Managing);
        let mut answer = self.answer_now(&HostEvent::Asked, "it is set");
        if self.went_back() {
            // Plan again, now that the earlier requests are restored.
            let _put_back = self.answer_now(&HostEvent::Asked, "");
        }
        if let Some((fault, phase)) = self.answers.end() {
            self.telemetry.enter(phase);
            return Err(fault);
        }
        if let Answer::Done { notes, .. } = &mut answer {
            notes.extend(self.plan.notes(&target));
        }
        match self.outcome(&target) {
            Outcome::Later(why) => Ok(match answer {
                Answer::Done { changes, transactions, notes, .. } => {
                    Answer::Done { summary: why, changes, transactions, notes, pending: true }
                }
                other => other,
            }),
            Outcome::InForce => Ok(answer),
            Outcome::Refused(fault) => Err(fault),
        }
    }

    /// If the request in progress is refused, drops it and restores the earlier requests and exceptions,
    /// before any of their settings is rolled back. Returns whether the request was dropped.
    pub(crate) fn went_back(&mut self) -> bool {
        let Some(target) = self.answers.pending() else { return false };
        let Outcome::Refused(fault) = self.outcome(&target) else { return false };
        let Some(Before { asked, suppressed, rejections }) = self.answers.go_back() else { return false };
        self.rejections = rejections;
        self.reconciler.leave_alone_as(suppressed);
        let gone_back = self.requests.go_back_to(asked).map_err(|error| Fault::file("requests.json", error));
        self.answers.refuse(gone_back.err().unwrap_or(fault));
        true
    }

    /// Determines the result of the request for a target.
    fn outcome(&self, target: &Target) -> Outcome {
        if let Some(session) = self.held_back.by() {
            return Outcome::Later(format!("stored; waiting until {session} ends"));
        }
        if let Some(refusal) = self.plan.refusal(target) {
            return Outcome::Refused(Fault::refused(refusal.clone(), self.known.host()));
        }
        let Some((objects, request)) = self.plan.request(target) else {
            return Outcome::Later(format!("stored; waiting until {target} exists"));
        };
        if let (Target::Service(..), 0) = (target, request.extent.processes) {
            return Outcome::Later(format!("stored; waiting until a process of {target} runs"));
        }
        if let (Target::Device(_), 0, 0) = (target, request.extent.queues, request.extent.wanted) {
            return Outcome::Later("stored; more specific requests set all of its queues".to_owned());
        }
        if request.extent.set == request.extent.wanted {
            return Outcome::InForce;
        }
        // The device's own settings may also belong to other requests that were refused before, so consider
        // these settings only for a request for the device.
        let own = |object: &Object| {
            objects.contains(object)
                && (matches!(target, Target::Device(_)) || !matches!(object, Object::Device(_)))
        };
        if let Some(rejected) = self.rejections.first(own) {
            return Outcome::Refused(Fault::new(rejected.exit, rejected.words.clone()));
        }
        if let Some(((object, knob), why)) = self.held.first_taken(own) {
            return Outcome::Refused(Fault::new(Exit::Refused, format!("{object}: {knob} {why}")));
        }
        let named = |name: &str| objects.iter().any(|object| own(object) && object.to_string() == name);
        if let Some(finding) = self.telemetry.first_finding("not-allowed", named) {
            let lines: String = finding.evidence.iter().map(|line| format!("\n  {line}")).collect();
            let fault = Fault::new(Exit::Refused, format!("{}: {}{lines}", finding.object, finding.summary));
            return Outcome::Refused(match &finding.remedy {
                Some(remedy) => fault.hint(remedy.clone()),
                None => fault,
            });
        }
        let failed = self.telemetry.finding("failed", "daemon");
        let why = failed
            .map_or("`netpolicy status` shows when the request is in force", |finding| &finding.summary);
        let (set, wanted) = (request.extent.set, request.extent.wanted);
        Outcome::Later(format!("stored; {set} of {wanted} settings are in force so far: {why}"))
    }

    fn unset(&mut self, target: &Target) -> Result<Answer, Fault> {
        let forgotten = self.requests.forget(target).map_err(|error| Fault::file("requests.json", error))?;
        if !self.takes_back_request(target)? && !forgotten {
            return Err(Fault::failed(format!("no request for {target} besides the policy files")));
        }
        let mut answer = self.answer_now(&HostEvent::Asked, "the request is withdrawn");
        if let (Answer::Done { summary, .. }, kept @ 1..) = (&mut answer, self.plan.kept_for_refused()) {
            *summary = format!(
                "the request is withdrawn; {kept} settings stay because they may belong to a refused request: netpolicy status"
            );
        }
        Ok(answer)
    }

    /// Withdraws a request that `set task` stored in the kernel while no daemon was running. Returns whether
    /// there was such a request.
    fn takes_back_request(&self, target: &Target) -> Result<bool, Fault> {
        let Target::Task(pid) = target else { return Ok(false) };
        let requests = self.session.app_requests();
        let noted = requests.tasks().is_ok_and(|tasks| tasks.contains_key(pid));
        if noted {
            requests.set_task(*pid, None)?;
        }
        Ok(noted)
    }

    /// Handles an event without its usual delay, and returns the changes as an answer.
    fn answer_now(&mut self, event: &HostEvent, summary: &str) -> Answer {
        let before = self.held.transactions().clone();
        let at = now();
        self.note(event, at);
        self.answers.clear();
        // The client must not wait for the event's delay: take all work that is due by the end of the delay.
        let mut now = at;
        now.0 = now.0.saturating_add(event.kind().delay().0).saturating_add(crate::reconciler::PAUSE_MAX.0);
        if let Some(work) = self.reconciler.take_due(now) {
            self.work(work);
        }
        let transactions = self.held.transactions().difference(&before).map(ToString::to_string).collect();
        self.answers.done(summary, transactions)
    }

    fn held_settings(&self) -> Vec<HeldSetting> {
        let held = self.held.ledger().iter().map(|(knob, change)| {
            let object = change.to().object().to_string();
            let flapping = self.telemetry.finding("flapping", &object).is_some();
            let left_alone = match (self.reconciler.is_released(knob), flapping) {
                (true, _) => Some("rolled back".to_owned()),
                (false, true) => Some("flapping".to_owned()),
                (false, false) => None,
            };
            HeldSetting {
                object,
                knob: change.to().knob().to_owned(),
                before: change.from().value(),
                value: change.to().value(),
                left_alone,
            }
        });
        held.collect()
    }
}

fn done(summary: String) -> Answer {
    Answer::Done { summary, changes: Vec::new(), transactions: Vec::new(), notes: Vec::new(), pending: false }
}

fn refused(fault: &Fault) -> Answer {
    Answer::Refused { exit: fault.exit.code(), why: fault.cause.to_string(), hint: fault.hint.clone() }
}

/// Returns the process that now has the pid of a request for a task, or `None` for any other request.
fn process_meant(target: &Target) -> Result<Option<ProcessId>, Fault> {
    match target {
        Target::Task(pid) => Ok(Some(linux::process::identify(*pid)?)),
        _ => Ok(None),
    }
}
