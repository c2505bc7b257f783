//! Plans: what to change, in which order, and why. A plan can be displayed, inverted and journalled.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::setting::{Object, Setting};

/// The reason for a value: one sentence and its source.
#[derive(Clone, Debug, PartialEq, Eq, schemars::JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// One sentence for the operator.
    pub why: String,
    /// The source of the value: a line of a policy file, a recipe, a document, a command.
    pub source: String,
}

impl Reason {
    /// Creates a reason with its source.
    pub fn new(why: impl Into<String>, source: impl Into<String>) -> Self {
        Self { why: why.into(), source: source.into() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.why, self.source)
    }
}

/// A change of one knob from one value to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "read::Change")]
pub struct Change {
    from: Setting,
    to: Setting,
    because: Reason,
}

impl Change {
    /// Creates a change of one knob.
    ///
    /// # Panics
    /// If the two settings are not of the same knob of the same object: a bug in the planner.
    pub fn new(from: Setting, to: Setting, because: Reason) -> Self {
        assert!(from.same_knob(&to), "a change must stay on its knob: {from} → {to}");
        Self { from, to, because }
    }

    /// Returns the value that was read before the change.
    pub fn from(&self) -> &Setting {
        &self.from
    }

    /// The desired value.
    pub fn to(&self) -> &Setting {
        &self.to
    }

    /// Returns the reason for the desired value.
    pub fn because(&self) -> &Reason {
        &self.because
    }

    /// The inverse change.
    #[must_use]
    pub fn inverse(self) -> Self {
        Self { from: self.to, to: self.from, because: self.because }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {} → {}", self.to.object(), self.to.knob(), self.from.value(), self.to.value())
    }
}

/// The changes that one call to the kernel makes: all of them change the same object, and each changes a
/// different knob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Change>", into = "Vec<Change>")]
pub struct Step {
    changes: Vec<Change>,
}

impl Step {
    /// Creates a step from these changes.
    ///
    /// # Panics
    /// If the list is empty, the changes are of several objects, or a knob is changed twice: a bug in the
    /// planner.
    pub fn new(changes: Vec<Change>) -> Self {
        Self::try_from(changes).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Returns the object that is changed.
    pub fn object(&self) -> Object {
        self.changes[0].to().object()
    }

    /// Returns the changes, in the order of writing.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Returns the values that were read before the changes.
    pub fn from(&self) -> Vec<Setting> {
        self.changes.iter().map(|c| c.from().clone()).collect()
    }

    /// The desired values.
    pub fn to(&self) -> Vec<Setting> {
        self.changes.iter().map(|c| c.to().clone()).collect()
    }

    /// The inverse step.
    #[must_use]
    pub fn inverse(self) -> Self {
        Self { changes: self.changes.into_iter().rev().map(Change::inverse).collect() }
    }
}

impl TryFrom<Vec<Change>> for Step {
    type Error = NotAStep;

    fn try_from(changes: Vec<Change>) -> Result<Self, NotAStep> {
        let first = changes.first().ok_or(NotAStep::Empty)?.to();
        let mut knobs = BTreeSet::new();
        for change in &changes {
            if change.to().object() != first.object() {
                return Err(NotAStep::TwoObjects(first.object(), change.to().object()));
            }
            if !knobs.insert(change.to().identity()) {
                return Err(NotAStep::TwiceOneKnob(change.to().clone()));
            }
        }
        Ok(Self { changes })
    }
}

impl From<Step> for Vec<Change> {
    fn from(step: Step) -> Self {
        step.changes
    }
}

/// Why changes cannot form a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAStep {
    /// The list of changes is empty.
    Empty,
    /// The changes belong to more than one object.
    TwoObjects(Object, Object),
    /// A knob is changed twice.
    TwiceOneKnob(Setting),
}

impl fmt::Display for NotAStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a step changes something"),
            Self::TwoObjects(first, other) => {
                write!(f, "all changes of a step must be of {first}, but one is of {other}")
            }
            Self::TwiceOneKnob(knob) => {
                write!(f, "a step changes {} of {} twice", knob.knob(), knob.object())
            }
        }
    }
}

impl std::error::Error for NotAStep {}

/// Reads a change from a journal without trusting it: a journal may contain anything.
mod read {
    use serde::Deserialize;

    use super::{Reason, Setting};

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct Change {
        from: Setting,
        to: Setting,
        because: Reason,
    }

    impl TryFrom<Change> for super::Change {
        type Error = String;

        fn try_from(read: Change) -> Result<Self, String> {
            let Change { from, to, because } = read;
            if from.same_knob(&to) {
                Ok(Self { from, to, because })
            } else {
                Err(format!("a change must stay on its knob: {from} → {to}"))
            }
        }
    }
}

/// Steps in the order of writing. An empty plan means that the host already matches the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Plan {
    /// The steps, in the order of writing.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Whether the plan has no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Iterates over all changes, in the order of writing.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.steps.iter().flat_map(Step::changes)
    }

    /// Returns the inverse plan, in which the last step comes first.
    #[must_use]
    pub fn inverse(self) -> Self {
        Self { steps: self.steps.into_iter().rev().map(Step::inverse).collect() }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::ids::{DeviceId, IfIndex, IrqNumber, Label, NetnsId, QueueIndex, RxQueue};
    use crate::setting::{IrqKnob, NapiKnob};
    use crate::units::{EmptyPolls, Nanoseconds};

    fn queue(index: u32) -> RxQueue {
        let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
        RxQueue { device, index: QueueIndex(index) }
    }

    fn change(index: u32, to: u64) -> Change {
        Change::new(
            Setting::Napi(queue(index), NapiKnob::GroFlushTimeout(Nanoseconds(0))),
            Setting::Napi(queue(index), NapiKnob::GroFlushTimeout(Nanoseconds(to))),
            Reason::new("test", "test"),
        )
    }

    #[test]
    fn a_plan_inverted_twice_is_the_plan() {
        let defer = Change::new(
            Setting::Napi(queue(0), NapiKnob::DeferHardIrqs(EmptyPolls(0))),
            Setting::Napi(queue(0), NapiKnob::DeferHardIrqs(EmptyPolls(100))),
            Reason::new("test", "test"),
        );
        let plan = Plan {
            steps: vec![Step::new(vec![defer, change(0, 20_000)]), Step::new(vec![change(1, 20_000)])],
        };
        let back = plan.clone().inverse();
        assert_eq!(back.steps[0].object(), Object::Queue(queue(1)));
        assert_eq!(
            back.steps[1].changes()[0].to(),
            &Setting::Napi(queue(0), NapiKnob::GroFlushTimeout(Nanoseconds(0)))
        );
        assert_eq!(back.inverse(), plan);
    }

    #[test]
    fn a_change_reads_as_a_sentence() {
        assert_eq!(change(4, 20_000).to_string(), "eth0 rx-4: gro-flush-timeout 0 → 20us");
    }

    #[test]
    fn a_change_that_leaves_its_knob_is_our_bug() {
        let from = Setting::Napi(queue(0), NapiKnob::GroFlushTimeout(Nanoseconds(0)));
        let to = Setting::Irq(IrqNumber(3), IrqKnob::Affinity("0".parse().expect("cpulist")));
        let made = std::panic::catch_unwind(|| Change::new(from, to, Reason::new("test", "test")));
        assert!(made.is_err());
    }

    #[test]
    fn a_step_that_is_none_is_refused_also_when_read() {
        let twice = vec![change(0, 1), change(0, 2)];
        let astray = vec![change(0, 1), change(1, 1)];
        assert!(matches!(Step::try_from(twice.clone()), Err(NotAStep::TwiceOneKnob(_))));
        assert!(matches!(Step::try_from(astray.clone()), Err(NotAStep::TwoObjects(..))));
        for changes in [Vec::new(), twice, astray] {
            let text = serde_json::to_string(&changes).expect("serialises");
            assert!(serde_json::from_str::<Step>(&text).is_err(), "{text}");
        }
        let text = serde_json::to_string(&change(0, 1)).expect("serialises");
        let astray = text.replacen("\"index\":0", "\"index\":1", 1);
        assert!(serde_json::from_str::<Change>(&astray).is_err(), "{astray}");
    }

    #[test]
    fn a_plan_survives_json() {
        let plan = Plan { steps: vec![Step::new(vec![change(0, 20_000)])] };
        let text = serde_json::to_string(&plan).expect("serialises");
        assert_eq!(serde_json::from_str::<Plan>(&text).expect("parses"), plan);
    }
}
