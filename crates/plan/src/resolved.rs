//! Which processes each service request means.

use std::collections::{BTreeMap, BTreeSet};

use model::Pid;

/// The processes that each service request means, found by the caller, who can look at units, cgroups and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    pids: BTreeMap<usize, BTreeSet<Pid>>,
    notes: BTreeMap<usize, Vec<String>>,
    /// How many processes could not be judged, and why the first one could not.
    unjudged: BTreeMap<usize, (usize, String)>,
}

impl Resolved {
    /// The request at this index of [`model::Policy::intents`] means these processes, and those given before.
    #[must_use]
    pub fn with(mut self, intent: usize, pids: impl IntoIterator<Item = Pid>) -> Self {
        self.pids.entry(intent).or_default().extend(pids);
        self
    }

    /// The same without these processes, whichever request means them.
    #[must_use]
    pub fn without(mut self, ended: &BTreeSet<Pid>) -> Self {
        self.pids.values_mut().for_each(|pids| pids.retain(|pid| !ended.contains(pid)));
        self
    }

    /// Every process that a request means.
    pub fn pids(&self) -> impl Iterator<Item = Pid> {
        self.pids.values().flatten().copied()
    }

    /// So many processes could not be inspected, the first for this reason: whether the request at this index means
    /// them is not known.
    #[must_use]
    pub fn unjudged(mut self, intent: usize, processes: usize, first: impl Into<String>) -> Self {
        self.unjudged.insert(intent, (processes, first.into()));
        self
    }

    /// The processes that the request at this index means.
    pub fn pids_of(&self, intent: usize) -> BTreeSet<Pid> {
        self.pids.get(&intent).cloned().unwrap_or_default()
    }

    /// How many processes could not be judged for the request at this index, and why the first one could not.
    pub(crate) fn unjudged_of(&self, intent: usize) -> Option<&(usize, String)> {
        self.unjudged.get(&intent)
    }

    /// What the operator should know about what the request at this index means.
    pub fn notes_of(&self, intent: usize) -> &[String] {
        self.notes.get(&intent).map_or(&[], Vec::as_slice)
    }

    /// The operator should know this about what the request at this index means.
    #[must_use]
    pub fn noting(mut self, intent: usize, note: impl Into<String>) -> Self {
        self.notes.entry(intent).or_default().push(note.into());
        self
    }
}
