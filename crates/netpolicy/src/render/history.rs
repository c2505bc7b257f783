//! The transactions of a host.

use apply::{History, Standing, Transaction, TransactionName};
use serde::Serialize;
use serde_json::Value;

use super::plan::ChangeLine;
use super::report::{Page, Report, to_json};
use super::table::{Cell, Style, Table};

/// `history`'s data.
#[derive(Debug, Serialize)]
pub(crate) struct HistoryReport {
    transactions: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    id: TransactionName,
    at: String,
    unix_micros: u64,
    command: String,
    standing: Standing,
    kernel: String,
    netpolicy: String,
    changes: Vec<ChangeLine>,
    /// How many of the changes are in force.
    in_force: usize,
    undo_script: String,
}

impl HistoryReport {
    /// This history, the newest first.
    pub(crate) fn of(history: &History) -> Self {
        Self { transactions: history.transactions.iter().rev().map(Entry::of).collect() }
    }
}

impl Entry {
    fn of(transaction: &Transaction) -> Self {
        let begin = transaction.begin();
        Self {
            id: transaction.name(),
            at: begin.asked.at.to_string(),
            unix_micros: begin.asked.at.unix_micros,
            command: begin.asked.command.clone(),
            standing: transaction.standing(),
            kernel: begin.asked.kernel_release.clone(),
            netpolicy: begin.asked.netpolicy.clone(),
            changes: begin.plan.changes().map(ChangeLine::from).collect(),
            in_force: transaction.live_changes().count(),
            undo_script: transaction.undo_script().display().to_string(),
        }
    }
}

impl Report for HistoryReport {
    const KIND: &'static str = "history";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&["TRANSACTION", "WHEN", "STANDING", "CHANGES", "COMMAND"]);
        for entry in &self.transactions {
            let style = match entry.standing {
                Standing::Unfinished | Standing::RollbackIncomplete => Style::Bad,
                Standing::HeldUntil(_) => Style::Warning,
                Standing::Kept | Standing::Confirmed => Style::Good,
                Standing::RolledBack | Standing::Rebooted => Style::Faint,
            };
            table.row([
                Cell::new(entry.id.to_string()),
                Cell::new(entry.at.as_str()),
                Cell::new(entry.standing.to_string()).style(style),
                Cell::number(entry.changes.len()),
                Cell::new(entry.command.as_str()),
            ]);
        }
        if !table.is_empty() {
            page.table(&table);
        }
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.transactions.iter().map(|entry| ("transaction", to_json(entry))).collect()
    }
}
