//! Letting go: what nobody asks for any more is put back, and so is everything when the operator says so.

use std::collections::BTreeSet;

use apply::{Fate, Knob, Knobs};
use linux::Kernel;
use model::{Change, Reason, Step};

use super::converge::Work;
use super::keeper::Keeper;
use super::look::has_ended;
use crate::fault::Fault;

impl Keeper<'_> {
    /// What was set inside processes that have ended is held by nobody any more, in the journal neither.
    pub(super) fn let_go_of_what_has_ended(&mut self) {
        let ended = |keeper: &Self| -> Vec<Knob> {
            let knobs = keeper.ledger.iter().map(|(knob, _)| *knob);
            knobs.filter(|(object, _)| has_ended(object, &keeper.host)).collect()
        };
        if ended(self).is_empty() {
            return;
        }
        if let Err(fault) = self.fold_now() {
            self.context.console.detail(&format!("the journal is not folded: {}", fault.cause));
        }
        // Of transactions that others stand on the journal keeps it.
        for knob in ended(self) {
            self.ledger.forget(&knob);
        }
    }

    /// Steps that put back what is held and wanted by nobody: at once if what is wanted changed, else when nobody has
    /// wanted it at two ticks in a row. What a request had that is refused now stays meanwhile.
    pub(super) fn put_back(&mut self, work: &Work) -> Vec<Step> {
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
        let unwanted = self.ledger.iter().filter(|(knob, _)| !wanted.contains(knob));
        let (kept, unwanted): (Vec<_>, Vec<_>) =
            unwanted.partition(|(_, change)| self.is_of_refused(&change.because().source));
        let unwanted: BTreeSet<Knob> = unwanted.into_iter().map(|(knob, _)| *knob).collect();
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
                // Somebody else has set it since, or it is gone: it is theirs, or nobody's.
                Ok(_) => self.ledger.forget(&knob),
                Err(error) if Kernel::is_gone(&error) => self.ledger.forget(&knob),
                Err(_) => {}
            }
        }
        steps
    }

    /// Whether a setting was made for a request of the operator that is refused now. What an application asks for and cannot
    /// have is left out, and keeps nothing in force.
    fn is_of_refused(&self, source: &str) -> bool {
        let refused = self.placed.refused.keys().filter(|place| **place < self.placed.own);
        let mut origins = refused.filter_map(|place| Some(&self.policy.intents.get(*place)?.origin));
        origins.any(|origin| is_of(source, origin))
    }

    /// Puts back all that the daemons have set. Says how many settings were.
    pub(super) fn roll_back_all(&mut self) -> Result<usize, Fault> {
        self.journal.rely_on([]);
        let asked = self.asked();
        let (undone, failed) = self.journal.roll_back_daemons(&mut self.kernel, &asked);
        self.read_own()?;
        for (change, found) in undone.iter().flat_map(|(_, undone)| undone.left_alone()) {
            let from = change.from();
            self.context.console.say(&format!(
                "NOT put back, for somebody else has set it since: {} {} is {}, and was {} before",
                from.object(),
                from.knob(),
                found.value(),
                from.value()
            ));
        }
        let put_back = undone.iter().map(|(_, undone)| undone.count(|fate| *fate == Fate::Restored)).sum();
        failed.map_or(Ok(put_back), |error| Err(error.into()))
    }
}

/// Whether a reason's source is a request, or a rule that begins with its name.
fn is_of(source: &str, origin: &str) -> bool {
    source.strip_prefix(origin).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_setting_is_of_the_request_that_its_reason_names_and_of_no_other_line() {
        let origin = "/etc/netpolicy/policy.d/10.toml:2";
        assert!(is_of(origin, origin));
        assert!(is_of(&format!("{origin}: policy bulk → defer200, IRQ-suspension document"), origin));
        assert!(!is_of(&format!("{origin}5: policy bulk"), origin));
        assert!(!is_of("io.netpolicy by uid 0 (pid 12)", origin));
    }
}
