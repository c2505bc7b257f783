//! The survey of a batch file: the counts of its commands, rules and mistakes, from reading the whole file.

use std::collections::{BTreeMap, BTreeSet};

use policy_file::{Mistake, Mistakes, nearest};
use session::{Exit, Fault};
use tc_rules::classifier::u32::Part;
use tc_rules::kernel::Devices;
use tc_rules::{Classifier, Command, Filter, Group, Hook, Listings, Verb};

use super::place::place;
use crate::report::{SurveyReport, WrongLine};
use cli::Context;

/// The maximum number of mistakes to keep, for programs.
const MISTAKES_MAX: usize = 1000;

/// The maximum number of mistakes to print, for people; the rest are counted.
const DRAWN_MAX: usize = 20;

/// The counts and properties of a file's commands.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) commands: u64,
    pub(super) rules: u64,
    pub(super) groups: BTreeSet<Group>,
    pub(super) wrong: usize,
    /// The first line that cannot be undone by removing what it adds.
    pub(super) irreversible: Option<u32>,
    /// The first line that removes something.
    pub(super) removes: Option<u32>,
    /// Lines for the installed tc, and the first of them.
    pub(super) for_tc: u64,
    pub(super) first_for_tc: Option<u32>,
    /// Lines that only list rules and are skipped.
    pub(super) listings: Listings,
    /// The number of added bpf rules.
    bpf: u64,
    buckets: Buckets,
    mistakes: Vec<tc_rules::Mistake>,
    last: Option<Group>,
}

impl Survey {
    /// Counts a command.
    pub(super) fn note(&mut self, line: u32, command: &Command) {
        self.commands += 1;
        let adds = matches!(command, Command::Filter(rule) if rule.verb == Verb::Add && rule.classifier.kind().is_some() && !rule.is_chain);
        if !adds {
            self.irreversible.get_or_insert(line);
        }
        if matches!(command, Command::Foreign(_)) {
            self.for_tc += 1;
            self.first_for_tc.get_or_insert(line);
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
            if adds {
                self.bpf += u64::from(rule.classifier.kind() == Some("bpf"));
                self.buckets.note(group, rule);
            }
        }
    }

    /// Notes on the file for the reader of a load's report.
    pub(super) fn notes(&self, devices: &mut Devices<'_>) -> impl Iterator<Item = String> {
        self.left_out().into_iter().chain(self.many_of_bpf()).chain(self.deep(devices))
    }

    /// Describes the longest list of u32 rules with which one packet is compared, and its place, if the list
    /// is long.
    fn deep(&self, devices: &mut Devices<'_>) -> Option<String> {
        let (group, bucket, rules) =
            self.buckets.deepest().filter(|(.., rules)| *rules > BUCKET_RULES_MANY)?;
        let place = place(&group, devices);
        let bucket = match (group.priority, bucket) {
            (0, _) => "without a priority, each in a priority of its own".to_owned(),
            (_, 0) => "in no hash table of the file".to_owned(),
            (_, bucket) => format!("in bucket {:x}:{:x}", bucket >> 20, bucket >> 12 & 0xff),
        };
        Some(format!(
            "{place} gets {rules} rules {bucket}: the kernel compares a packet with them one after the other, and loading takes longer the more there are. A hash table distributes them: `u32 divisor 256`, and rules with `ht 1:N:`."
        ))
    }

    /// Warns that the file's bpf rules must not all be removed at the same time, if there are many.
    fn many_of_bpf(&self) -> Option<String> {
        (self.bpf > BPF_RULES_MANY).then(|| {
            format!(
                "{} rules of bpf: Linux 6.18 can hang until the next boot if more than about 2000 of them are removed at once, for example with their qdisc or their priority. Load them in files of at most {BPF_RULES_MANY}, each with its own priority.",
                self.bpf
            )
        })
    }

    /// Notes that lines were skipped because they only list rules, if there are such lines.
    pub(super) fn left_out(&self) -> Option<String> {
        let Listings { count, first } = self.listings;
        let lines = match count {
            0 => return None,
            1 => format!("Line {first} only lists rules, as `filter show` does: the line is skipped"),
            count => {
                format!(
                    "{count} lines from line {first} on only list rules, as `filter show` does: the lines are skipped"
                )
            }
        };
        Some(format!("{lines}. netpolicy tc dump prints the rules."))
    }

    /// Records a wrong line.
    pub(super) fn mistake(&mut self, mistake: tc_rules::Mistake) {
        self.wrong += 1;
        if self.mistakes.len() < MISTAKES_MAX {
            // A line may be long, so keep the text of the first few only.
            let text = if self.mistakes.len() < DRAWN_MAX { mistake.text } else { String::new() };
            self.mistakes.push(tc_rules::Mistake { text, ..mistake });
        }
    }

    /// Appends the survey of a later part, before which the file has `lines` lines.
    pub(super) fn append(&mut self, later: Self, lines: u32) {
        let shifted = |line: u32| line.saturating_add(lines);
        let Self { commands, rules, groups, wrong, irreversible, removes, mistakes, last: _, .. } = later;
        let Self { for_tc, first_for_tc, buckets, bpf, .. } = later;
        self.listings.append(later.listings, lines);
        self.for_tc += for_tc;
        self.first_for_tc = self.first_for_tc.or(first_for_tc.map(shifted));
        self.buckets.append(buckets);
        self.commands += commands;
        self.bpf += bpf;
        self.rules += rules;
        self.groups.extend(groups);
        self.wrong += wrong;
        self.irreversible = self.irreversible.or(irreversible.map(shifted));
        self.removes = self.removes.or(removes.map(shifted));
        let room = MISTAKES_MAX.saturating_sub(self.mistakes.len());
        let moved = |mistake: tc_rules::Mistake| tc_rules::Mistake { line: shifted(mistake.line), ..mistake };
        self.mistakes.extend(mistakes.into_iter().take(room).map(moved));
    }

    /// The hooks of its rules.
    pub(super) fn hooks(&self) -> BTreeSet<Hook> {
        self.groups.iter().map(|group| group.hook).collect()
    }

    /// Returns the error for the wrong lines of the file with this name, if it has any.
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

    /// Returns an error if the file has wrong lines; for programs, also prints a report that lists them.
    pub(super) fn refused(&self, file: &str, context: &Context) -> Result<(), Fault> {
        let Some(fault) = self.mistaken(file) else { return Ok(()) };
        if context.console.is_for_programs() {
            context.console.report(&self.report(file))?;
        }
        Err(fault)
    }

    /// Returns the survey as the data of `tc load --dry-run`.
    pub(super) fn report(&self, file: &str) -> SurveyReport {
        let Self { commands, rules, wrong, for_tc, .. } = *self;
        let (file, groups) = (file.to_owned(), self.groups.len());
        SurveyReport { file, commands, rules, groups, for_tc, wrong, wrong_lines: self.wrong_lines() }
    }

    /// The lines that are wrong, as data.
    pub(super) fn wrong_lines(&self) -> Vec<WrongLine> {
        let wrong_line = |mistake: &tc_rules::Mistake| WrongLine {
            line: mistake.line,
            column: mistake.column,
            words: mistake.message.clone(),
            help: help(mistake),
        };
        self.mistakes.iter().map(wrong_line).collect()
    }
}

/// The number of u32 rules per bucket above which a warning is printed.
const BUCKET_RULES_MANY: u32 = 1000;

/// The number of bpf rules above which a warning is printed: well below the number that has hung a kernel
/// when all were removed at the same time.
const BPF_RULES_MANY: u64 = 1000;

/// The maximum number of buckets to count: in a file with more buckets, most are short.
const BUCKETS_MAX: usize = 65_536;

/// The number of rules in each u32 bucket.
#[derive(Debug, Default)]
struct Buckets(BTreeMap<(Group, u32), u32>);

impl Buckets {
    fn note(&mut self, group: Group, rule: &Filter) {
        let Classifier::U32(u32) = &rule.classifier else { return };
        if u32.parts.iter().any(|part| matches!(part, Part::Divisor(_))) {
            return; // a table
        }
        let bucket = (group, u32.table & !NODE);
        if let Some(count) = self.0.get_mut(&bucket) {
            *count = count.saturating_add(1);
        } else if self.0.len() < BUCKETS_MAX {
            self.0.insert(bucket, 1);
        }
    }

    fn append(&mut self, later: Self) {
        for (bucket, count) in later.0 {
            if self.0.len() < BUCKETS_MAX || self.0.contains_key(&bucket) {
                let all = self.0.entry(bucket).or_default();
                *all = all.saturating_add(count);
            }
        }
    }

    fn deepest(&self) -> Option<(Group, u32, u32)> {
        let deepest = self.0.iter().max_by_key(|(_, count)| **count)?;
        let ((group, bucket), count) = deepest;
        Some((*group, *bucket, *count))
    }
}

/// The bits of a u32 handle that number a rule within its bucket.
const NODE: u32 = 0xfff;

/// A suggestion.
fn help(mistake: &tc_rules::Mistake) -> Option<String> {
    match nearest(&mistake.found, mistake.expected.iter().copied()) {
        Some(word) => Some(format!("did you mean `{word}`?")),
        None if mistake.is_foreign => Some("--with-tc hands such a line to the installed tc".to_owned()),
        None if mistake.expected.is_empty() => None,
        None => Some(format!("one of: {}", mistake.expected.join(", "))),
    }
}

/// Creates the mistake to print, with its position in the file and the nearest valid word.
fn drawn(file: &str, mistake: &tc_rules::Mistake) -> Mistake {
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
