//! Formats the output of `history`.

use std::collections::BTreeMap;

use apply::{History, Journal, Standing, Transaction, TransactionName, Unreadable};
use model::proof::CourseStep;
use model::{Effect, Judgement, Pid, Proof};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;
use session::page::{Cell, Page, RecordSchema, Report, Style, Table, record, to_json};

use session::report::ChangeLine;

/// The output of `history`.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct HistoryReport {
    transactions: Vec<Entry>,
    unreadable: Vec<Damaged>,
    /// What measurements show about the policy of each service (its standing proof).
    proofs: Vec<Proven>,
}

/// What measurements show about the policy of a service (its standing proof).
#[derive(Debug, JsonSchema, Serialize)]
struct Proven {
    service: String,
    since_unix_micros: u64,
    pairs: u64,
    standing: model::proof::ProofState,
    effects: Vec<Effect>,
    /// The effects as they were known after each episode of the proof.
    course: Vec<CourseStep>,
    rolled_back_unix_micros: Option<u64>,
    /// The proof as a sentence, for text output.
    #[serde(skip)]
    sentence: String,
}

impl Proven {
    fn of((service, proof): (&String, &Proof)) -> Self {
        Self {
            service: service.clone(),
            since_unix_micros: proof.since_unix_micros,
            pairs: proof.pairs,
            standing: proof.standing(),
            effects: proof.effects.clone(),
            course: proof.course.clone(),
            rolled_back_unix_micros: proof.rolled_back_unix_micros,
            sentence: proof.sentence(service),
        }
    }
}

/// A transaction whose journal cannot be read.
#[derive(Debug, JsonSchema, Serialize)]
struct Damaged {
    id: TransactionName,
    error: String,
    /// Whether the transaction may be in force.
    in_force: bool,
    undo_script: Option<String>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Entry {
    id: TransactionName,
    at: String,
    unix_micros: u64,
    command: String,
    standing: Standing,
    /// The running program that owns the transaction until the program exits.
    owned_by: Option<Pid>,
    /// Whether the program that should have rolled back the transaction has exited without doing so.
    abandoned: bool,
    kernel: String,
    netpolicy: String,
    changes: Vec<ChangeLine>,
    /// The number of the transaction's changes that are in force.
    in_force: usize,
    undo_script: String,
    /// The measured verdicts on the transaction, oldest first.
    verdicts: Vec<Judgement>,
}

impl HistoryReport {
    /// Creates the report of this history, newest transaction first.
    pub(crate) fn of(history: &History, journal: &Journal, proofs: &BTreeMap<String, Proof>) -> Self {
        let entry = |transaction| Entry::of(transaction, journal);
        Self {
            transactions: history.transactions.iter().rev().map(entry).collect(),
            unreadable: history.unreadable.iter().rev().map(Damaged::of).collect(),
            proofs: proofs.iter().map(Proven::of).collect(),
        }
    }
}

impl Damaged {
    fn of(unreadable: &Unreadable) -> Self {
        Self {
            id: unreadable.name,
            error: unreadable.to_string(),
            in_force: unreadable.may_be_in_force(),
            undo_script: unreadable.undo_script().map(|script| script.display().to_string()),
        }
    }
}

impl Entry {
    /// Returns the state in one or two words; see `docs/reference/exit-codes.md`.
    fn word(&self) -> String {
        match self.standing {
            Standing::Kept if self.owned_by.is_some() => "owned".to_owned(),
            Standing::Kept if self.abandoned => "abandoned".to_owned(),
            standing => standing.to_string(),
        }
    }

    fn style(&self) -> Style {
        match self.standing {
            Standing::Unfinished | Standing::RollbackIncomplete => Style::Bad,
            Standing::HeldUntil(_) => Style::Warning,
            Standing::Kept if self.abandoned => Style::Warning,
            Standing::Kept | Standing::Confirmed => Style::Good,
            Standing::RolledBack | Standing::Rebooted => Style::Faint,
        }
    }

    fn of(transaction: &Transaction, journal: &Journal) -> Self {
        let begin = transaction.begin();
        Self {
            id: transaction.name(),
            at: begin.asked.at.to_string(),
            unix_micros: begin.asked.at.unix_micros,
            command: begin.asked.command.clone(),
            standing: transaction.standing(),
            owned_by: transaction.standing().is_live().then(|| journal.owner(transaction)).flatten(),
            abandoned: journal.is_abandoned(transaction),
            kernel: begin.asked.kernel_release.clone(),
            netpolicy: begin.asked.netpolicy.clone(),
            changes: begin.plan.changes().map(ChangeLine::from).collect(),
            in_force: transaction.live_changes().count(),
            undo_script: transaction.undo_script().display().to_string(),
            verdicts: transaction.judgements().to_vec(),
        }
    }
}

impl Report for HistoryReport {
    const KIND: &'static str = "history";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&["TRANSACTION", "WHEN", "STANDING", "CHANGES", "COMMAND"]);
        for entry in &self.transactions {
            table.row([
                Cell::new(entry.id.to_string()),
                Cell::new(entry.at.as_str()),
                Cell::new(entry.word()).style(entry.style()),
                Cell::number(entry.changes.len()),
                Cell::new(entry.command.as_str()),
            ]);
        }
        for damaged in &self.unreadable {
            let (id, word) = (damaged.id.to_string(), Cell::new("unreadable").style(Style::Bad));
            table.row([Cell::new(id), Cell::new("-"), word, Cell::new("-"), Cell::new("-")]);
        }
        if !table.is_empty() {
            page.table(&table);
        }
        let verdicts =
            self.transactions.iter().flat_map(|entry| entry.verdicts.iter().map(|one| (entry.id, one)));
        for (at, (id, verdict)) in verdicts.enumerate() {
            if at == 0 {
                page.gap();
            }
            page.line(format!("{id}: {verdict}"));
        }
        if !self.proofs.is_empty() {
            page.gap();
        }
        self.proofs.iter().for_each(|proof| page.line(&proof.sentence));
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![
            record::<Entry>("transaction", generator),
            record::<Damaged>("unreadable", generator),
            record::<Proven>("proof", generator),
        ]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        let read = self.transactions.iter().map(|entry| ("transaction", to_json(entry)));
        let damaged = self.unreadable.iter().map(|entry| ("unreadable", to_json(entry)));
        read.chain(damaged).chain(self.proofs.iter().map(|proof| ("proof", to_json(proof)))).collect()
    }
}
