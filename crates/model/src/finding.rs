//! What `doctor` says: a finding with its evidence and the command that mends it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing to mend.
    Note,
    /// Something works less well than it could.
    Warning,
    /// Something that was asked for is not in force.
    Problem,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        })
    }
}

/// One thing that `doctor` found.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// The rule that found it, in kebab case; stable, for scripts.
    pub rule: String,
    /// How much it matters.
    pub severity: Severity,
    /// What it is about: an object as the other commands name it.
    pub object: String,
    /// One sentence.
    pub summary: String,
    /// What was read or counted that shows it.
    pub evidence: Vec<String>,
    /// The command that mends it, where there is one.
    pub remedy: Option<String>,
}
