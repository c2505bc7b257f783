//! Why something that was asked for is not planned.

use std::fmt;

/// What kind of refusal it is; the binary gives each its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalKind {
    /// The request contradicts itself or names an impossible value.
    Usage,
    /// This kernel, this device or this version of netpolicy cannot do it.
    Unsupported,
    /// It would cost more than the request's budget allows.
    Safety,
    /// Two requests want different values of one object.
    Conflict,
    /// A device, a process or a value that is needed is not there or could not be read.
    Missing,
}

/// Something that was asked for and is not planned. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {message}")]
pub struct Refusal {
    /// What kind of refusal it is.
    pub kind: RefusalKind,
    /// What it is about: an object, or the place where the request was made.
    pub object: String,
    /// One sentence.
    pub message: String,
    /// What was read that led here.
    pub evidence: Vec<String>,
    /// The nearest plan that works, where there is one.
    pub nearest: Option<String>,
}

impl Refusal {
    /// A refusal without evidence.
    pub(crate) fn new(kind: RefusalKind, object: impl fmt::Display, message: impl Into<String>) -> Self {
        Self {
            kind,
            object: object.to_string(),
            message: message.into(),
            evidence: Vec::new(),
            nearest: None,
        }
    }

    /// The same refusal with one more line of evidence.
    #[must_use]
    pub(crate) fn because(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }

    /// The same refusal with what works instead.
    #[must_use]
    pub(crate) fn nearest(mut self, nearest: impl Into<String>) -> Self {
        self.nearest = Some(nearest.into());
        self
    }
}
