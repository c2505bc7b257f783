//! The processes that match each service request.

use std::collections::{BTreeMap, BTreeSet};

use model::Pid;

/// The processes that match each service request. The caller finds them, because it can inspect units,
/// cgroups and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    pids: BTreeMap<usize, BTreeSet<Pid>>,
    notes: BTreeMap<usize, Vec<String>>,
    /// The number of processes that could not be inspected, and why the first one could not.
    unjudged: BTreeMap<usize, (usize, String)>,
}

impl Resolved {
    /// Adds processes of the request at this index of [`model::Policy::intents`].
    #[must_use]
    pub fn with(mut self, intent: usize, pids: impl IntoIterator<Item = Pid>) -> Self {
        self.pids.entry(intent).or_default().extend(pids);
        self
    }

    /// Removes these processes from all requests.
    #[must_use]
    pub fn without(mut self, ended: &BTreeSet<Pid>) -> Self {
        self.pids.values_mut().for_each(|pids| pids.retain(|pid| !ended.contains(pid)));
        self
    }

    /// Returns the processes of all requests.
    pub fn pids(&self) -> impl Iterator<Item = Pid> {
        self.pids.values().flatten().copied()
    }

    /// Records that this many processes could not be inspected, the first for this reason. Whether they match
    /// the request at this index is unknown.
    #[must_use]
    pub fn unjudged(mut self, intent: usize, processes: usize, first: impl Into<String>) -> Self {
        self.unjudged.insert(intent, (processes, first.into()));
        self
    }

    /// Returns the processes of the request at this index.
    pub fn pids_of(&self, intent: usize) -> BTreeSet<Pid> {
        self.pids.get(&intent).cloned().unwrap_or_default()
    }

    /// The number of processes that could not be inspected for the request at this index, and why the first
    /// one could not.
    pub(crate) fn unjudged_of(&self, intent: usize) -> Option<&(usize, String)> {
        self.unjudged.get(&intent)
    }

    /// Notes for the operator on the request at this index.
    pub fn notes_of(&self, intent: usize) -> &[String] {
        self.notes.get(&intent).map_or(&[], Vec::as_slice)
    }

    /// Adds a note for the operator on the request at this index.
    #[must_use]
    pub fn noting(mut self, intent: usize, note: impl Into<String>) -> Self {
        self.notes.entry(intent).or_default().push(note.into());
        self
    }
}
