//! What became of a change when it was undone.

use model::Setting;
use serde::{Deserialize, Serialize};

/// What became of one change when it was undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fate {
    /// The setting had its old value already.
    AlreadyBack,
    /// It was put back, and reads back so.
    Restored,
    /// Its object is gone, and the setting with it.
    Gone,
    /// Another program has set it since; it was left alone.
    LeftAlone {
        /// The value they gave it.
        found: Setting,
    },
    /// It could not be put back.
    Stuck {
        /// The value it was last seen with, where it was.
        found: Option<Setting>,
        /// Whether an undo may have written it.
        written: bool,
        /// Why, in the kernel's own words.
        cause: String,
    },
}

/// A step to be undone, and what is known of it beyond the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    /// The step's place in the plan.
    pub(crate) step: usize,
    /// Whether it may have been written in part.
    pub(crate) under_way: bool,
    /// The fates of its changes in an earlier undo; empty if there was none.
    pub(crate) earlier: Vec<Fate>,
}
