//! What a batch file says, from reading all of it.

use std::collections::BTreeSet;

use rules::{Command, Group, Hook, Verb};

use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::policy_file::{Mistake, Mistakes, nearest};
use crate::render::{SurveyReport, WrongLine};

/// How many mistakes are kept, for programs.
const MISTAKES_MAX: usize = 1000;

/// How many of them are drawn, for people; the others are counted.
const DRAWN_MAX: usize = 20;

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) commands: u64,
    pub(super) rules: u64,
    pub(super) groups: BTreeSet<Group>,
    pub(super) wrong: usize,
    /// The first line that cannot be taken back by removing what it adds.
    pub(super) irreversible: Option<u32>,
    /// The first line that takes something away.
    pub(super) removes: Option<u32>,
    mistakes: Vec<rules::Mistake>,
    last: Option<Group>,
}

impl Survey {
    /// Takes note of a command.
    pub(super) fn note(&mut self, line: u32, command: &Command) {
        self.commands += 1;
        let adds = matches!(command, Command::Filter(rule) if rule.verb == Verb::Add && rule.classifier.kind().is_some() && !rule.is_chain);
        if !adds {
            self.irreversible.get_or_insert(line);
        }
        if command.removes() {
            self.removes.get_or_insert(line);
        }
        if let Some(rule) = command.rule() {
            self.rules += 1;
            let group = rule.group();
            if self.last != Some(group) {
                self.groups.insert(group);
                self.last = Some(group);
            }
        }
    }

    /// Takes note of a line that is wrong.
    pub(super) fn mistake(&mut self, mistake: rules::Mistake) {
        self.wrong += 1;
        if self.mistakes.len() < MISTAKES_MAX {
            self.mistakes.push(mistake);
        }
    }

    /// Adds what a later part of the file says, before which so many lines lie.
    pub(super) fn append(&mut self, later: Self, lines: u32) {
        let shifted = |line: u32| line.saturating_add(lines);
        let Self { commands, rules, groups, wrong, irreversible, removes, mistakes, last: _ } = later;
        self.commands += commands;
        self.rules += rules;
        self.groups.extend(groups);
        self.wrong += wrong;
        self.irreversible = self.irreversible.or(irreversible.map(shifted));
        self.removes = self.removes.or(removes.map(shifted));
        let room = MISTAKES_MAX.saturating_sub(self.mistakes.len());
        let moved = |mistake: rules::Mistake| rules::Mistake { line: shifted(mistake.line), ..mistake };
        self.mistakes.extend(mistakes.into_iter().take(room).map(moved));
    }

    /// The hooks of its rules.
    pub(super) fn hooks(&self) -> BTreeSet<Hook> {
        self.groups.iter().map(|group| group.hook).collect()
    }

    /// The fault of a file of this name with wrong lines.
    pub(super) fn mistaken(&self, file: &str) -> Option<Fault> {
        if self.mistakes.is_empty() {
            return None;
        }
        let drawn: Vec<Mistake> =
            self.mistakes.iter().take(DRAWN_MAX).map(|mistake| drawn(file, mistake)).collect();
        let more = match self.wrong - drawn.len() {
            0 => String::new(),
            more => format!("\n\n… and {more} more"),
        };
        Some(Fault::new(Exit::Usage, format!("{}{more}", Mistakes(drawn))))
    }

    /// The same for a file that is not looked at further; a program is told all of it.
    pub(super) fn refused(&self, file: &str, context: &Context) -> Result<(), Fault> {
        let Some(fault) = self.mistaken(file) else { return Ok(()) };
        if context.console.is_for_programs() {
            context.console.report(&self.report(file))?;
        }
        Err(fault)
    }

    /// What it says, as data.
    pub(super) fn report(&self, file: &str) -> SurveyReport {
        let Self { commands, rules, wrong, .. } = *self;
        let (file, groups) = (file.to_owned(), self.groups.len());
        SurveyReport { file, commands, rules, groups, wrong, wrong_lines: self.wrong_lines() }
    }

    /// The lines that are wrong, as data.
    pub(super) fn wrong_lines(&self) -> Vec<WrongLine> {
        let told = |mistake: &rules::Mistake| WrongLine {
            line: mistake.line,
            column: mistake.column,
            words: mistake.message.clone(),
            help: help(mistake),
        };
        self.mistakes.iter().map(told).collect()
    }
}

/// What would have been right.
fn help(mistake: &rules::Mistake) -> Option<String> {
    match nearest(&mistake.found, mistake.expected.iter().copied()) {
        Some(word) => Some(format!("did you mean `{word}`?")),
        None if mistake.expected.is_empty() => None,
        None => Some(format!("one of: {}", mistake.expected.join(", "))),
    }
}

/// A mistake with its place in the file and the nearest word that would have been right.
fn drawn(file: &str, mistake: &rules::Mistake) -> Mistake {
    let line = usize::try_from(mistake.line).unwrap_or(usize::MAX);
    let start = mistake.column - 1;
    Mistake::of_line(
        file,
        line,
        &mistake.text,
        start..start + mistake.width,
        mistake.message.clone(),
        help(mistake),
    )
}
