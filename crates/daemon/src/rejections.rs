//! Values that the kernel refused. A rejection is kept until the object changes or no request wants the value
//! any more.

use std::collections::{BTreeMap, BTreeSet};

use apply::{Knob, Ledger};
use model::{Change, Object, Setting};
use session::Exit;

/// A value that the kernel refused.
#[derive(Clone, Debug)]
pub(crate) struct Rejected {
    /// The refused value.
    to: Setting,
    /// The exit code that a command returns if it requests this value.
    pub(crate) exit: Exit,
    /// The kernel's error.
    pub(crate) words: String,
}

/// All rejections, by setting.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rejections {
    by_knob: BTreeMap<Knob, Rejected>,
}

impl Rejections {
    /// Records that the kernel refused this value.
    pub(crate) fn note(&mut self, to: &Setting, exit: Exit, words: &str) {
        let rejected = Rejected { to: to.clone(), exit, words: words.to_owned() };
        self.by_knob.insert((to.object(), to.knob()), rejected);
    }

    /// Whether the kernel refused this value.
    pub(crate) fn has(&self, to: &Setting) -> bool {
        self.by_knob.get(&(to.object(), to.knob())).is_some_and(|rejected| rejected.to == *to)
    }

    /// Returns the first rejection for an object for which `is_meant` is true.
    pub(crate) fn first(&self, is_meant: impl Fn(&Object) -> bool) -> Option<&Rejected> {
        self.by_knob.iter().find(|((object, _), _)| is_meant(object)).map(|(_, rejected)| rejected)
    }

    /// Forgets the rejections for the objects for which `changed` is true, because the kernel may now accept
    /// the values.
    pub(crate) fn forgive(&mut self, changed: impl Fn(&Object) -> bool) {
        self.by_knob.retain(|(object, _), _| !changed(object));
    }

    /// Forgets the rejection of any value that no request wants and that would not be restored either.
    pub(crate) fn keep_wanted(&mut self, is_wanted: impl Fn(&Setting) -> bool, ledger: &Ledger) {
        self.by_knob.retain(|knob, rejected| {
            is_wanted(&rejected.to) || ledger.get(knob).map(Change::from) == Some(&rejected.to)
        });
    }

    /// Forgets all rejections.
    pub(crate) fn clear(&mut self) {
        self.by_knob.clear();
    }

    /// Returns the names of the objects that have a rejection.
    pub(crate) fn objects(&self) -> BTreeSet<String> {
        self.by_knob.keys().map(|(object, _)| object.to_string()).collect()
    }
}
