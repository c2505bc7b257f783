//! Something that happened while a command stayed.

use page::{Page, Report};
use schemars::JsonSchema;
use serde::Serialize;

/// One event of an attachment.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct EventReport {
    /// What happened: `set`, `child`, `exec`, `exit`.
    event: &'static str,
    /// To what.
    object: String,
    /// The sentence that people read.
    summary: String,
}

impl EventReport {
    /// Something that happened to an object.
    pub fn new(event: &'static str, object: impl ToString, summary: impl Into<String>) -> Self {
        Self { event, object: object.to_string(), summary: summary.into() }
    }

    /// The sentence that people read.
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
