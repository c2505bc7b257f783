//! Why each setting is as it is.

use apply::TransactionName;
use model::{Change, Reason, Setting};
use serde::Serialize;
use serde_json::Value;

use super::report::{Page, Report, to_json};
use super::table::Style;

/// `explain`'s data.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ExplainedReport {
    settings: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    object: String,
    knob: &'static str,
    /// The value that is wanted.
    value: String,
    /// The value before.
    before: String,
    because: Reason,
    /// Whether the value is there.
    in_force: bool,
    /// The transaction that set it; `None` if it is only planned, or was there already.
    transaction: Option<TransactionName>,
    /// The command of that transaction.
    command: Option<String>,
}

impl ExplainedReport {
    /// Adds a change that is in force.
    pub(crate) fn in_force(&mut self, change: &Change, transaction: TransactionName, command: &str) {
        self.add(change, Some(transaction), Some(command.to_owned()));
    }

    /// Adds a change that the policy files ask for and that is not in force.
    pub(crate) fn pending(&mut self, change: &Change) {
        self.add(change, None, None);
    }

    /// Adds a value that is wanted and was there already: nobody had to set it.
    pub(crate) fn already(&mut self, wanted: &Setting, because: &Reason) {
        self.settings.push(Entry {
            object: wanted.object().to_string(),
            knob: wanted.knob(),
            value: wanted.value(),
            before: wanted.value(),
            because: because.clone(),
            in_force: true,
            transaction: None,
            command: None,
        });
    }

    /// Whether there is something about this knob already.
    pub(crate) fn names(&self, setting: &Setting) -> bool {
        let object = setting.object().to_string();
        self.settings.iter().any(|entry| entry.knob == setting.knob() && entry.object == object)
    }

    fn add(&mut self, change: &Change, transaction: Option<TransactionName>, command: Option<String>) {
        self.settings.push(Entry {
            object: change.to().object().to_string(),
            knob: change.to().knob(),
            value: change.to().value(),
            before: change.from().value(),
            because: change.because().clone(),
            in_force: transaction.is_some(),
            transaction,
            command,
        });
    }

    /// Whether there is nothing to explain.
    pub(crate) fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }
}

impl Report for ExplainedReport {
    const KIND: &'static str = "explained";

    fn page(&self, page: &mut Page) {
        let mut object = "";
        for entry in &self.settings {
            if object != entry.object {
                page.gap();
                object = &entry.object;
                page.styled(Style::Strong, object);
            }
            page.line(format!(
                "  {} {} (before: {})",
                entry.knob,
                page.word(Style::Good, &entry.value),
                entry.before
            ));
            page.line(format!("    because {}", entry.because));
            page.line(match (&entry.transaction, &entry.command) {
                (Some(transaction), Some(command)) => format!("    set by {transaction}: {command}"),
                _ if entry.in_force => "    was so already".to_owned(),
                _ => format!(
                    "    {}",
                    page.word(Style::Warning, "not in force yet: `netpolicy apply` sets it")
                ),
            });
        }
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.settings.iter().map(|entry| ("setting", to_json(entry))).collect()
    }
}
