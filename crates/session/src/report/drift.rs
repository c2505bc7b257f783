//! How far the host is from what was applied.

use apply::TransactionName;
use model::{Change, Setting};
use page::{Cell, Kind, Page, Report, Style, Table, record, to_json};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

/// `verify`'s data: one entry per setting that was applied and is not as it was applied.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct DriftReport {
    /// How many settings are as they were applied.
    as_applied: usize,
    drifted: Vec<Line>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Line {
    transaction: TransactionName,
    object: String,
    knob: &'static str,
    applied: String,
    /// The value in force; `None` where it cannot be read.
    found: Option<String>,
    note: &'static str,
    cause: Option<String>,
}

/// Why a setting that was applied cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Its object is gone, and its settings with it.
    Gone,
    /// Its device is gone, and another one has its name now, without the settings.
    Recreated,
    /// The kernel does not report it.
    Unreadable,
}

impl Unread {
    const fn word(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Recreated => "recreated",
            Self::Unreadable => "unreadable",
        }
    }
}

impl DriftReport {
    /// Notes a setting that is as it was applied.
    pub fn holds(&mut self) {
        self.as_applied += 1;
    }

    /// Notes a setting that has another value now.
    pub fn drifted(&mut self, transaction: TransactionName, change: &Change, found: &Setting) {
        self.line(transaction, change, Some(found.value()), "drifted", None);
    }

    /// Notes a setting that cannot be read any more.
    pub fn unreadable(
        &mut self,
        transaction: TransactionName,
        change: &Change,
        state: Unread,
        cause: String,
    ) {
        self.line(transaction, change, None, state.word(), Some(cause));
    }

    fn line(
        &mut self,
        transaction: TransactionName,
        change: &Change,
        found: Option<String>,
        note: &'static str,
        cause: Option<String>,
    ) {
        let (object, knob, applied) =
            (change.to().object().to_string(), change.to().knob(), change.to().value());
        self.drifted.push(Line { transaction, object, knob, applied, found, note, cause });
    }

    /// How many settings are as they were applied.
    pub const fn held(&self) -> usize {
        self.as_applied
    }

    /// Whether something has another value than it was given, or is there without it. What is gone altogether is no drift.
    pub fn is_drift(&self) -> bool {
        self.drifted.iter().any(|line| line.note != Unread::Gone.word())
    }
}

impl Report for DriftReport {
    const KIND: &'static str = "drift";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&["OBJECT", "SETTING", "APPLIED", "FOUND", "", "TRANSACTION", "NOTE"]);
        for line in &self.drifted {
            let style = if line.note == Unread::Gone.word() { Style::Faint } else { Style::Bad };
            table.row([
                Cell::new(line.object.as_str()),
                Cell::new(line.knob),
                Cell::new(line.applied.as_str()),
                Cell::optional(line.found.as_ref()),
                Cell::new(line.note).style(style),
                Cell::new(line.transaction.to_string()),
                Cell::new(line.cause.clone().unwrap_or_default()),
            ]);
        }
        if !table.is_empty() {
            page.table(&table);
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<Kind> {
        vec![record::<Line>("drift", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.drifted.iter().map(|line| ("drift", to_json(line))).collect()
    }
}
