//! Formats the output of `rollback`.

use apply::{Fate, TransactionName, Undone, UndoneChange};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;
use session::page::{Cell, Page, RecordSchema, Report, Style, Table, record, to_json};

/// The output of `rollback`.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct UndoneReport {
    transaction: TransactionName,
    settings: Vec<Line>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Line {
    object: String,
    knob: &'static str,
    /// The value that netpolicy had written.
    set: String,
    /// The value before the transaction, as the journal recorded it.
    before: String,
    /// The value that is in force now, if known.
    now: Option<String>,
    fate: &'static str,
    cause: Option<String>,
}

impl UndoneReport {
    /// Creates the report of a transaction's rollback.
    pub(crate) fn of(transaction: TransactionName, undone: &Undone) -> Self {
        Self { transaction, settings: undone.changes.iter().map(Line::of).collect() }
    }
}

impl Line {
    fn of(UndoneChange { change, fate }: &UndoneChange) -> Self {
        let before = change.from().value();
        let (now, word, cause) = match fate {
            Fate::AlreadyBack => (Some(before.clone()), "already back", None),
            Fate::Restored => (Some(before.clone()), "restored", None),
            Fate::Gone => (None, "gone", None),
            Fate::LeftAlone { found } => {
                (Some(found.value()), "left alone", Some("changed by another program".to_owned()))
            }
            Fate::Stuck { found, cause, .. } => {
                (found.as_ref().map(model::Setting::value), "stuck", Some(cause.clone()))
            }
        };
        Self {
            object: change.to().object().to_string(),
            knob: change.to().knob(),
            set: change.to().value(),
            before,
            now,
            fate: word,
            cause,
        }
    }
}

impl Report for UndoneReport {
    const KIND: &'static str = "rollback";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&["OBJECT", "SETTING", "WE SET", "BEFORE", "NOW", "", "NOTE"]);
        for line in &self.settings {
            let style = match line.fate {
                "stuck" => Style::Bad,
                "left alone" => Style::Warning,
                _ => Style::Plain,
            };
            table.row([
                Cell::new(line.object.as_str()),
                Cell::new(line.knob),
                Cell::new(line.set.as_str()),
                Cell::new(line.before.as_str()),
                Cell::optional(line.now.as_ref()),
                Cell::new(line.fate).style(style),
                Cell::new(line.cause.clone().unwrap_or_default()),
            ]);
        }
        if !table.is_empty() {
            page.table(&table);
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<Line>("setting", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.settings.iter().map(|line| ("setting", to_json(line))).collect()
    }
}
