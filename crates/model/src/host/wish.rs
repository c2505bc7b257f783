//! What applications ask for by themselves.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::Pid;

/// A process or a socket with a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// Whose.
    pub of: Wisher,
    /// The number of the policy: [`crate::PolicyName::number`].
    pub number: u32,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wisher {
    /// A process, for itself and its children to come.
    Task(Pid),
    /// A socket, by its inode.
    Socket(u64),
}
