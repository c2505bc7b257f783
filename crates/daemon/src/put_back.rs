//! Letting go: what nobody asks for any more is put back, and so is everything when the operator says so.

use std::collections::{BTreeMap, BTreeSet};

use apply::{Fate, Knob, Knobs, Ledger};
use linux::Kernel;
use model::{Change, Intent, Object, Policy, Reason, Setting, Step};
use session::{Fault, unfinished};

use crate::daemon::Daemon;
use crate::look::has_ended;
use crate::placing::Placed;
use crate::reconciler::Work;

/// How many settings an answer names that are somebody else's by now.
const NOTES_MAX: usize = 64;

impl Daemon<'_> {
    /// What was set inside processes that have ended, and on devices that were made again, is no longer held, in the
    /// journal neither.
    pub(crate) fn let_go_of_what_has_ended(&mut self) {
        if self.ended().is_empty() {
            return;
        }
        if let Err(fault) = self.fold_now() {
            self.operator.detail(&format!("the journal is not folded: {}", fault.cause));
        }
        // Of transactions that others stand on the journal keeps it.
        for knob in self.ended() {
            self.ledger.forget(&knob);
        }
    }

    /// The knobs that are held and whose object does not come back: of processes that have ended, and of devices under
    /// whose name there is another one. A device that is merely away may come back, from another namespace.
    pub(crate) fn ended(&mut self) -> BTreeSet<Knob> {
        let Self { ledger, host, kernel, .. } = self;
        let mut ended = BTreeSet::new();
        for (knob, change) in ledger.iter() {
            let mut replaced = || {
                let device = knob.0.device().filter(|device| host.device(*device).is_none())?;
                let read = kernel.read(std::slice::from_ref(change.to()));
                let gone = read.is_err_and(|error| Kernel::is_gone(&error));
                (gone && kernel.has_device_named_as(device)).then_some(())
            };
            if has_ended(&knob.0, host) || replaced().is_some() {
                ended.insert(*knob);
            }
        }
        ended
    }

    /// Steps that put back what is held and wanted by nobody: at once if what is wanted changed, else when nobody has
    /// wanted it at two ticks in a row. What a request had that is refused now stays meanwhile.
    pub(crate) fn put_back(&mut self, work: &Work) -> Vec<Step> {
        self.kept_for_refused = 0;
        if self.placed.placement.is_none() {
            return Vec::new();
        }
        let at_once = work.policy || work.asked || work.wishes;
        if !at_once && !work.tick {
            return Vec::new();
        }
        let wanted: BTreeSet<Knob> = self
            .placed
            .desired
            .wanted
            .iter()
            .map(|wanted| (wanted.setting.object(), wanted.setting.knob()))
            .collect();
        let refused = self.placed.refused.keys().filter(|place| **place < self.placed.own);
        let refused: Vec<&Intent> = refused.filter_map(|place| self.policy.intents.get(*place)).collect();
        let kept = kept_for(&refused, &self.previous, &self.ledger);
        let unwanted = self.ledger.iter().map(|(knob, _)| *knob).filter(|knob| !wanted.contains(knob));
        let (kept, unwanted): (BTreeSet<Knob>, BTreeSet<Knob>) =
            unwanted.partition(|knob| kept.contains(knob));
        self.kept_for_refused = kept.len();
        let due: Vec<Knob> = match at_once {
            true => unwanted.iter().copied().collect(),
            false => unwanted.intersection(&self.unwanted).copied().collect(),
        };
        self.unwanted = unwanted;
        let mut steps = Vec::new();
        for knob in due {
            let Some(change) = self.ledger.get(&knob).cloned() else { continue };
            match self.kernel.read(std::slice::from_ref(change.to())) {
                Ok(found) if found.first() == Some(change.to()) => {
                    let because =
                        Reason::new("no request asks for it any more", change.because().source.clone());
                    steps.push(Step::new(vec![Change::new(
                        change.to().clone(),
                        change.from().clone(),
                        because,
                    )]));
                }
                // It is theirs from now on, but for the value before, which is nobody's.
                Ok(found) => {
                    if let Some(found) = found.first().filter(|found| *found != change.from()) {
                        self.tell_of_foreign(&change, found);
                    }
                    self.ledger.forget(&knob);
                    self.foreign.insert(knob);
                }
                Err(error) if Kernel::is_gone(&error) => self.ledger.forget(&knob),
                Err(_) => {}
            }
        }
        steps
    }

    /// Lets go of what is in force as it is wanted, and not as it was written here last: somebody else has set it since,
    /// as drivers set their queues again when a CPU comes back. There is nothing of ours to compare it with or to put
    /// back any more.
    pub(crate) fn let_go_of_what_others_made_right(&mut self) {
        let changed: BTreeSet<Knob> =
            self.placed.plan.changes().map(|change| (change.to().object(), change.to().knob())).collect();
        let right = self.placed.desired.wanted.iter().map(|wanted| &wanted.setting).filter(|wanted| {
            let knob = (wanted.object(), wanted.knob());
            let held = self.ledger.get(&knob);
            held.is_some_and(|held| held.to() != *wanted) && !changed.contains(&knob)
        });
        let right: Vec<Setting> = right.cloned().collect();
        for wanted in right {
            let found = self.kernel.read(std::slice::from_ref(&wanted));
            if found.is_ok_and(|found| found.first() == Some(&wanted)) {
                let knob = (wanted.object(), wanted.knob());
                self.ledger.forget(&knob);
                self.foreign.insert(knob);
            }
        }
    }

    fn tell_of_foreign(&mut self, change: &Change, found: &Setting) {
        let said = left_to_others(change, found);
        self.operator.say(&said);
        if self.notes_for_answer.len() < NOTES_MAX {
            self.notes_for_answer.push(said);
        }
    }

    /// What is somebody else's by now leaves the journal, so that nobody takes it for a change of what the daemon keeps.
    pub(crate) fn let_go_of_what_is_foreign(&mut self) {
        if self.foreign.is_empty() {
            return;
        }
        if let Err(fault) = self.fold_now() {
            self.operator.detail(&format!("the journal is not folded: {}", fault.cause));
        }
        for knob in std::mem::take(&mut self.foreign) {
            self.ledger.forget(&knob);
        }
    }

    /// Puts back all that the daemons have set. Says how many settings were.
    pub(crate) fn roll_back_all(&mut self) -> Result<usize, Fault> {
        self.journal.rely_on([]);
        let asked = self.asked();
        let (undone, failed) = self.journal.roll_back_daemons(&mut self.kernel, &asked);
        self.look_at_journal()?;
        for (change, found) in undone.iter().flat_map(|(_, undone)| undone.left_alone()) {
            self.operator.say(&left_to_others(change, found));
        }
        let put_back = undone.iter().map(|(_, undone)| undone.count(|fate| *fate == Fate::Restored)).sum();
        failed.map_or(Ok(put_back), |error| Err(unfinished(error, &undone, &self.journal)))
    }
}

fn left_to_others(change: &Change, found: &Setting) -> String {
    let from = change.from();
    let (object, knob, now, before) = (from.object(), from.knob(), found.value(), from.value());
    format!(
        "NOT put back, for somebody else has set it since: {object} {knob} is {now}, and was {before} before"
    )
}

/// What each of the operator's requests has, by its target: of those that are followed what they want now, of those that are
/// refused what they had.
pub(crate) fn previous(
    policy: &Policy,
    placed: &Placed,
    mut before: BTreeMap<String, BTreeSet<Knob>>,
) -> BTreeMap<String, BTreeSet<Knob>> {
    let mut had = BTreeMap::new();
    for (place, intent) in policy.intents.iter().enumerate().take(placed.own) {
        let target = intent.target.to_string();
        if placed.followed.contains(&place) {
            let wanted = placed.desired.wanted.iter();
            let its_own = wanted.filter(|wanted| is_of(&wanted.because.source, &intent.origin));
            let knobs = its_own.map(|wanted| (wanted.setting.object(), wanted.setting.knob()));
            had.insert(target, knobs.collect());
        } else if let Some(knobs) = before.remove(&target) {
            had.insert(target, knobs);
        }
    }
    had
}

/// What is held and stays for requests that are refused: what they had, whoever wrote it. Of those whose time of being followed
/// nobody remembers, all of the objects on which they wrote anything: half a mode is none.
fn kept_for(refused: &[&Intent], had: &BTreeMap<String, BTreeSet<Knob>>, ledger: &Ledger) -> BTreeSet<Knob> {
    let mut kept = BTreeSet::new();
    for intent in refused {
        if let Some(knobs) = had.get(&intent.target.to_string()) {
            kept.extend(knobs.iter().copied());
        } else {
            let wrote = |change: &Change| is_of(&change.because().source, &intent.origin);
            let objects: BTreeSet<Object> =
                ledger.iter().filter(|(_, change)| wrote(change)).map(|(knob, _)| knob.0).collect();
            let knobs = ledger.iter().map(|(knob, _)| *knob);
            kept.extend(knobs.filter(|(object, _)| objects.contains(object)));
        }
    }
    kept
}

/// Whether a reason's source is a request, or a rule that begins with its name.
fn is_of(source: &str, origin: &str) -> bool {
    source.strip_prefix(origin).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

#[cfg(test)]
mod test {
    use model::{
        DeviceId, EmptyPolls, IfIndex, Label, Nanoseconds, NapiKnob, NetnsId, PolicyName, QueueIndex,
        RxQueue, Target,
    };

    use super::*;

    #[test]
    fn a_setting_is_of_the_request_that_its_reason_names_and_of_no_other_line() {
        let origin = "/etc/netpolicy/policy.d/10.toml:2";
        assert!(is_of(origin, origin));
        assert!(is_of(&format!("{origin}: policy bulk → defer200, IRQ-suspension document"), origin));
        assert!(!is_of(&format!("{origin}5: policy bulk"), origin));
        assert!(!is_of("io.netpolicy by uid 0 (pid 12)", origin));
    }

    #[test]
    fn a_request_that_becomes_refused_keeps_what_it_had_also_where_an_earlier_one_wrote_it() {
        let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
        let queue = |number| RxQueue { device, index: QueueIndex(number) };
        let change = |to: Setting, from: Setting, source: &str| {
            Change::new(from, to, Reason::new("asked", source.to_owned()))
        };
        let defers = |number, source| {
            let queue = queue(number);
            change(
                Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(100))),
                Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(0))),
                source,
            )
        };
        let flushes = |number, source| {
            let (queue, span) = (queue(number), Nanoseconds::from_micros);
            change(
                Setting::Napi(queue, NapiKnob::GroFlushTimeout(span(50))),
                Setting::Napi(queue, NapiKnob::GroFlushTimeout(span(0))),
                source,
            )
        };
        // The first request's mode and the second's have the same deferral, which was not written again.
        let mut ledger = Ledger::default();
        let changes = [defers(0, "a:1"), flushes(0, "a:2"), defers(1, "a:1"), flushes(1, "a:1")];
        changes.iter().for_each(|change| ledger.note(change));
        let knobs = |changes: &[Change]| -> BTreeSet<Knob> {
            changes.iter().map(|change| (change.to().object(), change.to().knob())).collect()
        };
        let refused = Intent::new(Target::Device("eth0".to_owned()), PolicyName::None, "a:2");
        let mut had = BTreeMap::from([("device eth0".to_owned(), knobs(&changes))]);
        assert_eq!(kept_for(&[&refused], &had, &ledger), knobs(&changes), "whoever wrote it");
        assert_eq!(kept_for(&[], &had, &ledger), BTreeSet::new(), "nobody asks for it any more");
        had.clear();
        assert_eq!(
            kept_for(&[&refused], &had, &ledger),
            knobs(&changes[..2]),
            "after a restart: no half a mode"
        );
    }
}
