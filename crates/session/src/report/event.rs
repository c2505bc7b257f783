//! Reports an event during a long-running command.

use crate::page::{Page, Report};
use schemars::JsonSchema;
use serde::Serialize;

/// One event of an attachment.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct EventReport {
    /// The type of event: `set`, `child`, `exec` or `exit`.
    event: &'static str,
    /// The object.
    object: String,
    /// Returns the message for people.
    summary: String,
}

impl EventReport {
    /// Creates an event of an object.
    pub fn new(event: &'static str, object: impl ToString, summary: impl Into<String>) -> Self {
        Self { event, object: object.to_string(), summary: summary.into() }
    }

    /// Returns the message for people.
    pub fn summary(&self) -> &str {
        &self.summary
    }
}

impl Report for EventReport {
    const KIND: &'static str = "event";

    fn page(&self, page: &mut Page) {
        page.line(self.summary.replace(char::is_control, "\u{fffd}"));
    }
}
