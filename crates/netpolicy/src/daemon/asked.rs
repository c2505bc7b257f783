//! What is asked of the running daemon, and the answers.

use std::collections::VecDeque;

use model::{Intent, Target};

use super::converge::Event;
use super::keeper::{Keeper, now};
use super::status::{Answer, HeldSetting, Phase, Reply, Request};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::fullbusy;

impl Keeper<'_> {
    /// Does what was asked, all of it in this turn. Says whether there was anything.
    pub(super) fn answer_requests(&mut self) -> bool {
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
        let target = intent.target.clone();
        if self.wants.ask(intent, process).map_err(|error| Fault::file("requests.json", error))? {
            self.counters.evictions += 1;
        }
        if self.phase == Phase::Released {
            self.phase = Phase::Managing;
        }
        let answer = self.at_once(&Event::Asked, "it is set");
        let text = target.to_string();
        let why =
            self.requests.iter().find(|request| request.target == text).and_then(|request| {
                request.notes.first().filter(|note| note.starts_with("refused: ")).cloned()
            });
        let Some(why) = why else { return Ok(answer) };
        // What cannot be had is not remembered either.
        self.wants.forget(&target).map_err(|error| Fault::file("requests.json", error))?;
        let _put_back = self.at_once(&Event::Asked, "");
        Err(Fault::new(Exit::Refused, why.trim_start_matches("refused: ").to_owned()))
    }

    fn unset(&mut self, target: &Target) -> Result<Answer, Fault> {
        if !self.wants.forget(target).map_err(|error| Fault::file("requests.json", error))? {
            return Err(Fault::failed(format!("nothing was asked for {target} beside the policy files")));
        }
        Ok(self.at_once(&Event::Asked, "it is unset"))
    }

    /// Does the work of an event now, and gives what changed by it.
    fn at_once(&mut self, event: &Event, summary: &str) -> Answer {
        let before = self.own.clone();
        let at = now();
        self.hear(event, at);
        self.set_for_answer.clear();
        // What is due by itself would come after its delay: whoever asks does not wait for that.
        let mut now = at;
        now.0 = now.0.saturating_add(event.kind().delay().0).saturating_add(super::converge::PAUSE_MAX.0);
        if let Some(work) = self.mind.take_due(now) {
            self.work(work);
        }
        let transactions = self.own.difference(&before).map(ToString::to_string).collect();
        let changes = std::mem::take(&mut self.set_for_answer);
        Answer::Done { summary: summary.to_owned(), changes, transactions }
    }

    fn held_settings(&self) -> Vec<HeldSetting> {
        let held = self.ledger.iter().map(|(knob, change)| {
            let object = change.to().object().to_string();
            let flapping = self.findings.contains_key(&("flapping".to_owned(), object.clone()));
            let left_alone = match (self.mind.is_released(knob), flapping) {
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
    Answer::Done { summary, changes: Vec::new(), transactions: Vec::new() }
}

fn refused(fault: &Fault) -> Answer {
    Answer::Refused { exit: fault.exit.code(), why: fault.cause.to_string(), hint: fault.hint.clone() }
}
