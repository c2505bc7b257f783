//! One instance for all actions that do the same.
//!
//! Rules whose actions are the same then have these in common, and with them the counters: a rule's own counts are no
//! longer separate. In exchange the kernel makes each action once.

use std::collections::BTreeMap;

use crate::action::Action;
use netlink::attr::AttrBuf;

use crate::command::Filter;

/// The most different actions that are shared; what comes beyond them has instances of its own.
pub const SHARED_MAX: usize = 65_536;

/// Which actions there were, and the index that each got.
#[derive(Debug)]
pub struct Sharing {
    known: BTreeMap<Vec<u8>, u32>,
    next: u32,
    scratch: AttrBuf,
}

impl Sharing {
    /// Indices from this one on, which must be free.
    pub const fn from(first: u32) -> Self {
        Self { known: BTreeMap::new(), next: first, scratch: AttrBuf::new() }
    }

    /// From now on, new indices are at least this.
    pub fn not_below(&mut self, first: u32) {
        self.next = self.next.max(first);
    }

    /// Gives the actions of a rule the index of their like. What has an index keeps it.
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

    /// How many different actions there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no action was shared yet.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}
