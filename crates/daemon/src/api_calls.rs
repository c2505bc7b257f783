//! What is asked of the running daemon, and the answers.

use std::collections::{BTreeMap, VecDeque};

use apply::Knob;
use model::policy::Match;
use model::{Intent, Object, Target};
use session::{Exit, Fault, fullbusy};

use crate::daemon::{Daemon, Rejected, now};
use crate::reconciler::{Event, Suppressed};
use crate::request_status;
use crate::requests::Asked;
use crate::status::{Answer, HeldSetting, Phase, Reply, Request};

/// What became of a request.
enum Outcome {
    /// All that it wants is in force.
    InForce,
    /// It is remembered, and something of it is not in force yet.
    Later(String),
    /// It cannot be had.
    Refused(Fault),
}

/// A request that is being done, and what is gone back to if it is refused.
#[derive(Debug)]
pub(crate) struct Asking {
    target: Target,
    /// All that was asked before.
    before: Vec<Asked>,
    phase: Phase,
    left_alone: Suppressed,
    rejected: BTreeMap<Knob, Rejected>,
    /// Whether what was left alone of it was taken up.
    taken_up: bool,
    refused: Option<Fault>,
}

impl Asking {
    /// Whose request it is, the first time: what was left alone of it is taken up then.
    pub(crate) fn take_up(&mut self) -> Option<Target> {
        let first = !std::mem::replace(&mut self.taken_up, true);
        first.then(|| self.target.clone())
    }
}

impl Daemon<'_> {
    /// Does what was asked, all of it in this turn. Says whether there was anything.
    pub(crate) fn answer_requests(&mut self) -> bool {
        let mut waiting: VecDeque<(Request, Reply)> = VecDeque::new();
        while let Some(request) = self.shared.next_request() {
            waiting.push_back(request);
        }
        let any = !waiting.is_empty();
        for (request, reply) in waiting {
            let answer = self.answer(request).unwrap_or_else(|fault| refused(&fault));
            match answer {
                Answer::Refused { .. } => self.counters.refused += 1,
                Answer::Done { .. } | Answer::Settings(_) => self.counters.answered += 1,
            }
            reply(answer);
        }
        any
    }

    fn answer(&mut self, request: Request) -> Result<Answer, Fault> {
        match request {
            Request::Set(intent) => self.set(*intent),
            Request::Unset(target) => self.unset(&target),
            Request::Reload => {
                self.take_up();
                Ok(self.at_once(&Event::Policy, "the policy files are read"))
            }
            Request::RollBack => {
                let settings = self.roll_back_all()?;
                self.phase = Phase::Released;
                let at = now();
                self.hear(&Event::Lost, at);
                Ok(done(format!("{settings} settings are put back, and nothing is managed until a reload")))
            }
            Request::Settings => Ok(Answer::Settings(self.held_settings())),
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
        let process = Self::process_meant(&intent.target)?;
        if matches!(&intent.target, Target::Service(_, matching) if *matching == Match::default()) {
            let why = format!("{} says of no process that it is its own", intent.target);
            return Err(Fault::new(Exit::Usage, why).hint("name a unit, cgroup, exe, port or uid in `match`"));
        }
        let target = intent.target.clone();
        let asking = Asking {
            target: target.clone(),
            before: self.requests.remembered(),
            phase: self.phase,
            left_alone: self.reconciler.left_alone(),
            rejected: self.rejected.clone(),
            taken_up: false,
            refused: None,
        };
        if self.requests.ask(intent, process).map_err(|error| Fault::file("requests.json", error))? {
            self.counters.evictions += 1;
        }
        if self.phase == Phase::Released {
            self.phase = Phase::Managing;
        }
        self.asking = Some(asking);
        let mut answer = self.at_once(&Event::Asked, "it is set");
        if self.went_back() {
            // Not planned since that was known.
            let _put_back = self.at_once(&Event::Asked, "");
        }
        if let Some(Asking { refused: Some(fault), phase, .. }) = self.asking.take() {
            self.phase = phase;
            return Err(fault);
        }
        if let Answer::Done { notes, .. } = &mut answer {
            notes.extend(self.notes_of(&target));
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

    /// Whether the request that is being done turned out to be refused just now. Then it is not remembered either: what was
    /// asked before, and what was left alone of it, is as it was, before anything of that is put back.
    pub(crate) fn went_back(&mut self) -> bool {
        let Some(asking) = self.asking.as_ref().filter(|asking| asking.refused.is_none()) else {
            return false;
        };
        let Outcome::Refused(fault) = self.outcome(&asking.target) else { return false };
        let Some(asking) = &mut self.asking else { return false };
        let before = std::mem::take(&mut asking.before);
        self.rejected = std::mem::take(&mut asking.rejected);
        self.reconciler.leave_alone_as(std::mem::take(&mut asking.left_alone));
        let gone_back = self.requests.go_back_to(before).map_err(|error| Fault::file("requests.json", error));
        asking.refused = Some(gone_back.err().unwrap_or(fault));
        true
    }

    /// Whether nothing was managed before the request that is being done.
    pub(crate) fn was_released(&self) -> bool {
        self.asking.as_ref().is_some_and(|asking| asking.phase == Phase::Released)
    }

    /// What became of the request for a target.
    fn outcome(&self, target: &Target) -> Outcome {
        let policy = &self.policy;
        let place = policy.intents.iter().position(|intent| intent.target == *target);
        if let Some(refusal) = place.and_then(|place| self.placed.refused.get(&place)) {
            return Outcome::Refused(Fault::refused(refusal.clone(), &self.host));
        }
        let Some((objects, request)) = request_status::of(target, policy, &self.placed, &self.statuses)
        else {
            return Outcome::Later(format!("it is noted, and waits until {target} is there"));
        };
        if let (Target::Service(..), 0) = (target, request.processes) {
            return Outcome::Later(format!("it is noted, and waits until a process of {target} runs"));
        }
        if let (Target::Device(_), 0, 0) = (target, request.queues, request.wanted) {
            return Outcome::Later(
                "it is noted, and sets nothing: all queues are left to more specific requests".to_owned(),
            );
        }
        if request.set == request.wanted {
            return Outcome::InForce;
        }
        // What is of a device is also others', who may have been refused it before.
        let own = |object: &Object| {
            objects.contains(object)
                && (matches!(target, Target::Device(_)) || !matches!(object, Object::Device(_)))
        };
        if let Some((_, rejected)) = self.rejected.iter().find(|((object, _), _)| own(object)) {
            return Outcome::Refused(Fault::new(rejected.exit, rejected.words.clone()));
        }
        if let Some(((object, knob), why)) = self.taken.iter().find(|((object, _), _)| own(object)) {
            return Outcome::Refused(Fault::new(Exit::Refused, format!("{object}: {knob} {why}")));
        }
        let findings = |rule: &'static str| {
            let object = |name: &str| objects.iter().any(|object| own(object) && object.to_string() == name);
            let found = self.findings.iter().find(|((of, name), _)| of == rule && object(name));
            found.map(|(_, finding)| finding)
        };
        if let Some(finding) = findings("not-allowed") {
            let lines: String = finding.evidence.iter().map(|line| format!("\n  {line}")).collect();
            let fault = Fault::new(Exit::Refused, format!("{}: {}{lines}", finding.object, finding.summary));
            return Outcome::Refused(match &finding.remedy {
                Some(remedy) => fault.hint(remedy.clone()),
                None => fault,
            });
        }
        let failed = self.findings.get(&("failed".to_owned(), "daemon".to_owned()));
        let why = failed.map_or("`netpolicy status` says when it is", |finding| &finding.summary);
        let (set, wanted) = (request.set, request.wanted);
        Outcome::Later(format!("it is noted, and {set} of {wanted} settings are in force yet: {why}"))
    }

    fn unset(&mut self, target: &Target) -> Result<Answer, Fault> {
        let forgotten = self.requests.forget(target).map_err(|error| Fault::file("requests.json", error))?;
        if !self.takes_back_wish(target)? && !forgotten {
            return Err(Fault::failed(format!("nothing was asked for {target} beside the policy files")));
        }
        let mut answer = self.at_once(&Event::Asked, "it is unset");
        if let (Answer::Done { summary, .. }, 1..) = (&mut answer, self.kept_for_refused) {
            *summary = format!(
                "it is unset; {} settings stay that may be of a request that is refused: netpolicy status",
                self.kept_for_refused
            );
        }
        Ok(answer)
    }

    /// Takes back a wish that `set task` has noted in the kernel where no daemon ran; says whether there was one.
    fn takes_back_wish(&self, target: &Target) -> Result<bool, Fault> {
        let Target::Task(pid) = target else { return Ok(false) };
        let wishes = self.session.wishes();
        let noted = wishes.tasks().is_ok_and(|tasks| tasks.contains_key(pid));
        if noted {
            wishes.set_task(*pid, None)?;
        }
        Ok(noted)
    }

    /// What the operator should know of the request for a target.
    fn notes_of(&self, target: &Target) -> Vec<String> {
        let of = request_status::of(target, &self.policy, &self.placed, &self.statuses);
        let Some((objects, request)) = of else { return Vec::new() };
        let names: Vec<String> = objects.iter().map(|object| format!("{object}:")).collect();
        let own = |note: &&String| names.iter().any(|name| note.starts_with(name));
        let placed = self.placed.desired.notes.iter().filter(own).cloned();
        request.notes.iter().map(|note| format!("{target}: {note}")).chain(placed).collect()
    }

    /// Does the work of an event now, and gives what changed by it.
    fn at_once(&mut self, event: &Event, summary: &str) -> Answer {
        let before = self.own.clone();
        let at = now();
        self.hear(event, at);
        self.set_for_answer.clear();
        self.notes_for_answer.clear();
        // What is due by itself would come after its delay: whoever asks does not wait for that.
        let mut now = at;
        now.0 = now.0.saturating_add(event.kind().delay().0).saturating_add(crate::reconciler::PAUSE_MAX.0);
        if let Some(work) = self.reconciler.take_due(now) {
            self.work(work);
        }
        let transactions = self.own.difference(&before).map(ToString::to_string).collect();
        let changes = std::mem::take(&mut self.set_for_answer);
        let notes = std::mem::take(&mut self.notes_for_answer);
        Answer::Done { summary: summary.to_owned(), changes, transactions, notes, pending: false }
    }

    fn held_settings(&self) -> Vec<HeldSetting> {
        let held = self.ledger.iter().map(|(knob, change)| {
            let object = change.to().object().to_string();
            let flapping = self.findings.contains_key(&("flapping".to_owned(), object.clone()));
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
