//! The reason why a request is not planned.

use std::fmt;

/// The kind of a refusal, which determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalKind {
    /// The request contradicts itself, or names an impossible value.
    Usage,
    /// The kernel, the device or this version of netpolicy does not support the request.
    Unsupported,
    /// The result would exceed the request's budget.
    Safety,
    /// Two requests want different values for one object.
    Conflict,
    /// A device, a process or a required value does not exist or could not be read.
    Missing,
}

/// The refusal to plan a request. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {message}")]
pub struct Refusal {
    /// The kind, which determines the exit code.
    pub kind: RefusalKind,
    /// What is refused: an object, or the origin of the request.
    pub object: String,
    /// The reason, in one sentence.
    pub message: String,
    /// The facts that led to the refusal.
    pub evidence: Vec<String>,
    /// The nearest plan that works, if there is one.
    pub nearest: Option<String>,
}

impl Refusal {
    /// Creates a refusal without evidence.
    pub(crate) fn new(kind: RefusalKind, object: impl fmt::Display, message: impl Into<String>) -> Self {
        Self {
            kind,
            object: object.to_string(),
            message: message.into(),
            evidence: Vec::new(),
            nearest: None,
        }
    }

    /// Adds a line of evidence.
    #[must_use]
    pub(crate) fn because(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }

    /// Adds an alternative that works.
    #[must_use]
    pub(crate) fn nearest(mut self, nearest: impl Into<String>) -> Self {
        self.nearest = Some(nearest.into());
        self
    }
}
