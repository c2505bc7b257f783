//! The result of undoing a change.

use model::Setting;
use serde::{Deserialize, Serialize};

/// The result of undoing one change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fate {
    /// The setting already had its old value before the undo.
    AlreadyBack,
    /// The setting was written, and has its old value again.
    Restored,
    /// The object no longer exists.
    Gone,
    /// Another program has changed the setting since the transaction, so the undo did not change it.
    LeftAlone {
        /// The value that the other program set.
        found: Setting,
    },
    /// The setting could not be restored.
    Stuck {
        /// The last value that was read, if any.
        found: Option<Setting>,
        /// Whether an undo may have written the setting.
        written: bool,
        /// The reason, with the kernel's error.
        cause: String,
    },
}

/// A step that must be undone, with facts about it that are not in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    /// The step's index in the plan.
    pub(crate) step: usize,
    /// Whether the step may have been partly written.
    pub(crate) under_way: bool,
    /// The results of this step's changes in an earlier undo; empty if there was none.
    pub(crate) earlier: Vec<Fate>,
}
