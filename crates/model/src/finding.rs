//! Findings of `doctor`, each with its evidence and the command that fixes it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The state is as expected.
    Ok,
    /// Information; there is nothing to fix.
    Note,
    /// A mechanism works less well than it could.
    Warning,
    /// A requested setting is not in force.
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

/// A problem or fact that `doctor` found.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// The rule's name in kebab case; stable, for scripts.
    pub rule: String,
    /// How much the finding matters.
    pub severity: Severity,
    /// The object of the finding, named as in other commands.
    pub object: String,
    /// One sentence that describes the finding.
    pub summary: String,
    /// The values and counts that show the problem.
    pub evidence: Vec<String>,
    /// The command that fixes the problem, if there is one.
    pub remedy: Option<String>,
}
