//! Shares one instance between all identical actions.
//!
//! Rules with identical actions then also share the counters, so that packets are no longer counted per rule.
//! In return, the kernel creates each action only once.

use std::collections::BTreeMap;

use crate::action::Action;
use netlink::attr::AttrBuf;

use crate::command::Filter;

/// Maximum number of distinct actions that are shared; further ones get separate instances.
pub const SHARED_MAX: usize = 65_536;

/// The known actions and their indices.
#[derive(Debug)]
pub struct Sharing {
    known: BTreeMap<Vec<u8>, u32>,
    next: u32,
    scratch: AttrBuf,
}

impl Sharing {
    /// Assigns indices starting at `first`. These must be unused.
    pub const fn from(first: u32) -> Self {
        Self { known: BTreeMap::new(), next: first, scratch: AttrBuf::new() }
    }

    /// Assigns only indices of at least `first` from now on.
    pub fn not_below(&mut self, first: u32) {
        self.next = self.next.max(first);
    }

    /// Assigns each of the rule's actions the index of identical actions. An explicit index is kept.
    pub fn apply(&mut self, rule: &mut Filter) {
        for action in &mut rule.actions {
            if crate::command::index_of(&action.kind) == 0
                && let Some(index) = self.index(action)
            {
                action.kind.instance_mut().index = index;
            }
        }
    }

    fn index(&mut self, action: &Action) -> Option<u32> {
        self.scratch.clear();
        action.encode(1, &mut self.scratch);
        if let Some(index) = self.known.get(self.scratch.as_bytes()) {
            return Some(*index);
        }
        if self.known.len() == SHARED_MAX {
            return None;
        }
        let index = self.next;
        self.next = self.next.checked_add(1)?;
        self.known.insert(self.scratch.as_bytes().to_vec(), index);
        Some(index)
    }

    /// The number of distinct actions.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no action has been shared.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}
