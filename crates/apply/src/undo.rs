//! Restores settings, and reports the results.
//!
//! Undo restores recorded values, and keeps values that other programs have set. A setting that has its old
//! value is not written. A setting that has the value that netpolicy wrote is restored. A setting with any
//! other value was changed by another program since, and is left as it is. There are two exceptions. First,
//! the step that was in progress when the transaction stopped may have been partly written, or rounded by the
//! kernel, so its settings are restored whatever their values are. Second, a setting that an earlier undo
//! wrote but could not restore still belongs to netpolicy as long as it has the value from that undo.

use std::fmt;

use model::{Change, Setting, Step};

use crate::fate::{Begun, Fate};
use crate::knobs::Knobs;
use crate::log::JournalError;

/// A change and the result of undoing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoneChange {
    /// The original change.
    pub change: Change,
    /// The result.
    pub fate: Fate,
}

/// The result of an undo: one result per change, in the order of undoing.
#[derive(Debug, Default)]
pub struct Undone {
    /// The changes of each step that was started, and the changes that are in force although the journal does
    /// not record them, each with its result.
    pub changes: Vec<UndoneChange>,
    /// Why the journal does not record the whole undo; `None` if it does. [`Self::changes`] describes the
    /// state of the host in either case.
    pub unrecorded: Option<Box<JournalError>>,
}

/// A setting that could not be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnrestoredSetting {
    /// The change that could not be undone.
    pub change: Change,
    /// The current value, if it can be read.
    pub found: Option<Setting>,
    /// The reason, with the kernel's error.
    pub cause: String,
}

/// The state of the host after a failed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UndoState {
    /// The host is unchanged: nothing was written, or no write took effect.
    Unchanged,
    /// Everything that was written has been undone.
    Restored,
    /// Some settings could not be restored.
    NotRestored(Vec<UnrestoredSetting>),
}

impl Begun {
    /// Whether a setting still belongs to netpolicy although its value is neither the old nor the new one.
    fn claims(&self, change: usize, found: &Setting) -> bool {
        let left_so = |fate: &Fate| match fate {
            // If the setting was written and could not be read afterwards, it may have any value.
            Fate::Stuck { found: then, written: true, .. } => then.as_ref().is_none_or(|then| then == found),
            Fate::Stuck { written: false, .. }
            | Fate::AlreadyBack
            | Fate::Restored
            | Fate::Gone
            | Fate::LeftAlone { .. } => false,
        };
        self.under_way || self.earlier.get(change).is_some_and(left_so)
    }

    /// Returns the result for a change whose setting cannot be read: the result of the earlier undo, with the
    /// new error as the cause.
    fn still_stuck(&self, change: usize, error: &impl fmt::Display) -> Fate {
        let cause = error.to_string();
        match self.earlier.get(change).cloned() {
            Some(Fate::Stuck { found, written, .. }) => Fate::Stuck { found, written, cause },
            Some(Fate::AlreadyBack | Fate::Restored | Fate::Gone | Fate::LeftAlone { .. }) | None => {
                Fate::Stuck { found: None, written: false, cause }
            }
        }
    }
}

fn read_one<K: Knobs>(kernel: &mut K, like: &Setting) -> Result<Setting, K::Error> {
    let mut found = read(kernel, std::slice::from_ref(like))?;
    Ok(found.swap_remove(0))
}

/// Undoes one step: reads the settings, writes those that still belong to netpolicy, and reads them again to
/// verify. Returns the result of each change, in the step's order.
pub(crate) fn undo_step<K: Knobs>(kernel: &mut K, step: &Step, begun: &Begun) -> Vec<Fate> {
    let changes = step.changes();
    let found: Vec<Result<Setting, K::Error>> = match read(kernel, &step.from()) {
        Ok(found) => found.into_iter().map(Ok).collect(),
        Err(error) if K::is_gone(&error) => return vec![Fate::Gone; changes.len()],
        Err(error) if changes.len() == 1 => vec![Err(error)],
        // At least one of the settings cannot be read: read each separately, so that the error affects only
        // that setting.
        Err(_) => changes.iter().map(|change| read_one(kernel, change.from())).collect(),
    };
    let mut ours = Vec::with_capacity(changes.len());
    let mut fates: Vec<Fate> = changes
        .iter()
        .zip(found)
        .enumerate()
        .map(|(index, (change, found))| match found {
            Err(error) if K::is_gone(&error) => Fate::Gone,
            Err(error) => begun.still_stuck(index, &error),
            Ok(found) if found == *change.from() => Fate::AlreadyBack,
            Ok(found) if found == *change.to() || begun.claims(index, &found) => {
                ours.push(index);
                put_back_later(found)
            }
            Ok(found) => Fate::LeftAlone { found },
        })
        .collect();
    ours.retain(|&index| match held(kernel, &changes[index]) {
        None => true,
        Some(cause) => {
            if let Fate::Stuck { cause: of_fate, .. } = &mut fates[index] {
                *of_fate = cause;
            }
            false
        }
    });
    // Restore in reverse order: the setting that was written last comes first.
    ours.reverse();
    if !ours.is_empty() {
        put_back(kernel, changes, &ours, &mut fates);
    }
    fates
}

/// Returns why restoring a change would take a queue from its current holder; `None` if it would not, or if
/// holders cannot be read.
fn held<K: Knobs>(kernel: &mut K, change: &Change) -> Option<String> {
    let back = change.clone().inverse();
    let taken = kernel.queue_conflict(&[&back]).ok().flatten()?;
    Some(format!("{taken}, and {back} {}", taken.how))
}

/// Checks whether a change is in force although the journal does not record it. Either the end of the journal
/// was lost, or another program set the same value. These cases cannot be distinguished, so the value stays
/// and is reported. Returns `None` if the change is not in force, as when the program was killed before it
/// executed that step.
pub(crate) fn in_force_unrecorded<K: Knobs>(kernel: &mut K, change: &Change) -> Option<UndoneChange> {
    let found = read(kernel, std::slice::from_ref(change.to())).ok()?.pop()?;
    (found == *change.to() && found != *change.from()).then(|| UndoneChange {
        change: change.clone(),
        fate: Fate::Stuck { found: Some(found), written: false, cause: UNRECORDED.to_owned() },
    })
}

/// Why an unrecorded change that is in force is not undone.
const UNRECORDED: &str =
    "the journal does not record this write: it was truncated, or another program set this value";

/// The preliminary result for a setting that is to be restored: it counts as stuck until it reads back as
/// restored.
fn put_back_later(found: Setting) -> Fate {
    Fate::Stuck { found: Some(found), written: false, cause: "not written yet".to_owned() }
}

fn put_back<K: Knobs>(kernel: &mut K, changes: &[Change], ours: &[usize], fates: &mut [Fate]) {
    let from =
        |which: &[usize]| -> Vec<Setting> { which.iter().map(|&i| changes[i].from().clone()).collect() };
    let refused = kernel.write(&from(ours)).err();
    look(kernel, changes, ours, refused.as_ref(), fates);
    // If the kernel rejects one setting, the other settings of the step must still be restored.
    if refused.is_some_and(|e| !K::is_gone(&e)) && ours.len() > 1 {
        for &one in ours {
            if matches!(fates[one], Fate::Stuck { .. }) {
                let refused = kernel.write(&from(&[one])).err();
                look(kernel, changes, &[one], refused.as_ref(), fates);
            }
        }
    }
}

/// Reads the settings again after the write, and determines the results from their values, not from the
/// result of the write.
fn look<K: Knobs>(
    kernel: &mut K,
    changes: &[Change],
    which: &[usize],
    refused: Option<&K::Error>,
    fates: &mut [Fate],
) {
    let like: Vec<Setting> = which.iter().map(|&i| changes[i].from().clone()).collect();
    match read(kernel, &like) {
        Ok(found) => {
            for (&i, found) in which.iter().zip(found) {
                fates[i] = if found == *changes[i].from() {
                    Fate::Restored
                } else {
                    let cause = refused.map_or_else(
                        || format!("wrote {} but read back {}", changes[i].from().value(), found.value()),
                        ToString::to_string,
                    );
                    Fate::Stuck { found: Some(found), written: true, cause }
                };
            }
        }
        Err(error) => {
            for &i in which {
                fates[i] = if K::is_gone(&error) {
                    Fate::Gone
                } else {
                    Fate::Stuck { found: None, written: true, cause: error.to_string() }
                };
            }
        }
    }
}

/// Reads settings, and checks that the host returned the same knobs in the same order.
pub(crate) fn read<K: Knobs>(kernel: &mut K, like: &[Setting]) -> Result<Vec<Setting>, K::Error> {
    let found = kernel.read(like)?;
    assert_eq!(found.len(), like.len(), "a host must answer for every requested knob");
    for (asked, answered) in like.iter().zip(&found) {
        assert!(answered.same_knob(asked), "a host answered {answered} instead of {asked}");
    }
    Ok(found)
}

impl Undone {
    /// Whether every setting that belonged to netpolicy has been restored.
    pub fn is_complete(&self) -> bool {
        self.stuck().next().is_none()
    }

    /// Returns the settings that could not be restored.
    pub fn stuck(&self) -> impl Iterator<Item = UnrestoredSetting> + '_ {
        self.changes.iter().filter_map(|UndoneChange { change, fate }| match fate {
            Fate::Stuck { found, cause, .. } => {
                Some(UnrestoredSetting { change: change.clone(), found: found.clone(), cause: cause.clone() })
            }
            Fate::AlreadyBack | Fate::Restored | Fate::Gone | Fate::LeftAlone { .. } => None,
        })
    }

    /// Returns the changes whose settings another program has changed since, with the current values.
    pub fn left_alone(&self) -> impl Iterator<Item = (&Change, &Setting)> + '_ {
        self.changes.iter().filter_map(|UndoneChange { change, fate }| match fate {
            Fate::LeftAlone { found } => Some((change, found)),
            Fate::AlreadyBack | Fate::Restored | Fate::Gone | Fate::Stuck { .. } => None,
        })
    }

    /// Returns the number of changes whose result matches `like`.
    pub fn count(&self, like: impl Fn(&Fate) -> bool) -> usize {
        self.changes.iter().filter(|c| like(&c.fate)).count()
    }

    /// Returns the state of the host after the undo.
    pub fn host(&self) -> UndoState {
        let stuck: Vec<UnrestoredSetting> = self.stuck().collect();
        // Even if steps were begun, the host may be unchanged: the step may have failed before it changed
        // anything.
        if self.changes.iter().all(|change| change.fate == Fate::AlreadyBack) {
            UndoState::Unchanged
        } else if stuck.is_empty() {
            UndoState::Restored
        } else {
            UndoState::NotRestored(stuck)
        }
    }
}

impl fmt::Display for UnrestoredSetting {
    /// Writes one line, such as `eth0 rx-4: gro-flush-timeout should be 0, is 20us: Operation not permitted
    /// (EPERM)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.change.from();
        write!(f, "{}: {} should be {}", from.object(), from.knob(), from.value())?;
        match &self.found {
            Some(found) => write!(f, ", is {}", found.value())?,
            None => f.write_str(", cannot be read")?,
        }
        write!(f, ": {}", self.cause)
    }
}

impl fmt::Display for UndoState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unchanged => f.write_str("Nothing was changed."),
            Self::Restored => f.write_str("The changed settings were restored."),
            Self::NotRestored(stuck) => {
                f.write_str("NOT restored:")?;
                stuck.iter().try_for_each(|s| write!(f, "\n  {s}"))
            }
        }
    }
}

impl fmt::Display for Undone {
    /// Writes the state of the host, then the settings that other programs have changed since.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host().fmt(f)?;
        for (change, found) in self.left_alone() {
            let from = change.from();
            write!(
                f,
                "\nNot restored, because another program has changed it: {}: {} is {} (netpolicy had set {}, and before that it was {})",
                from.object(),
                from.knob(),
                found.value(),
                change.to().value(),
                from.value()
            )?;
        }
        if let Some(error) = &self.unrecorded {
            write!(f, "\nThe journal is incomplete: {error}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use std::io;

    use model::{HostKnob, Reason, Sysctl};

    use super::*;

    const UNREADABLE: Sysctl = Sysctl::NetdevBudget;
    const OTHER: Sysctl = Sysctl::NetdevMaxBacklog;

    /// A host that cannot read one of two settings: every read that includes that setting fails.
    struct HalfReadable(Setting);

    impl Knobs for HalfReadable {
        type Error = io::Error;

        fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, io::Error> {
            match like.iter().find(|like| !like.same_knob(&self.0)) {
                Some(other) => Err(io::Error::other(format!("{}: no answer", other.knob()))),
                None => Ok(like.iter().map(|_| self.0.clone()).collect()),
            }
        }

        fn write(&mut self, settings: &[Setting]) -> Result<(), io::Error> {
            self.0 = settings.last().cloned().unwrap_or_else(|| self.0.clone());
            Ok(())
        }

        fn is_gone(_: &io::Error) -> bool {
            false
        }
    }

    #[test]
    fn an_unreadable_setting_is_reported_alone_and_the_others_of_its_step_are_restored() {
        let change = |sysctl| {
            let because = Reason::new("a test", "test");
            Change::new(
                Setting::Host(HostKnob::Sysctl(sysctl, 1)),
                Setting::Host(HostKnob::Sysctl(sysctl, 2)),
                because,
            )
        };
        let step = Step::new(vec![change(UNREADABLE), change(OTHER)]);
        let mut host = HalfReadable(Setting::Host(HostKnob::Sysctl(OTHER, 2)));
        let begun = Begun { step: 0, under_way: false, earlier: Vec::new() };
        let fates = undo_step(&mut host, &step, &begun);
        assert_eq!(fates[1], Fate::Restored);
        assert_eq!(host.0, Setting::Host(HostKnob::Sysctl(OTHER, 1)));
        let Fate::Stuck { cause, .. } = &fates[0] else { panic!("{:?}", fates[0]) };
        assert_eq!(*cause, format!("{}: no answer", Setting::Host(HostKnob::Sysctl(UNREADABLE, 1)).knob()));
    }
}
