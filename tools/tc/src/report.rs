//! Reports on rules: a file's contents, the results of a load, differences from the kernel, and speed.

use std::collections::BTreeMap;

use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;
use session::page::{Page, RecordSchema, Report, Style, record, to_json};
use tc_rules::classifier::Offload;
use tc_rules::{Expected, Filter, Lookup, RuleMatch};

use session::count;

/// The maximum number of refusals and differences to print for people; the rest are counted. JSON has all of
/// them.
const SHOWN_MAX: usize = 20;

/// How many extra rules are listed in full.
const EXTRA_LISTED_MAX: usize = 1000;

/// The data of `tc load --dry-run`.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub(crate) struct SurveyReport {
    /// The file.
    pub(crate) file: String,
    /// All commands.
    pub(crate) commands: u64,
    /// The number of rules among them.
    pub(crate) rules: u64,
    /// The number of combinations of hook, chain and priority.
    pub(crate) groups: usize,
    /// The number of lines for the installed tc, which netpolicy does not check beforehand (`--with-tc`).
    pub(crate) for_tc: u64,
    /// The number of wrong lines.
    pub(crate) wrong: usize,
    /// The first of the wrong lines.
    pub(crate) wrong_lines: Vec<WrongLine>,
}

/// A wrong line.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct WrongLine {
    /// The line's number in the file.
    pub(crate) line: u32,
    /// The position of the first wrong byte in the line, from 1.
    pub(crate) column: usize,
    /// The error.
    pub(crate) words: String,
    /// A suggestion.
    pub(crate) help: Option<String>,
}

impl Report for SurveyReport {
    const KIND: &'static str = "tc-survey";

    fn page(&self, page: &mut Page) {
        let Self { file, rules, groups, .. } = self;
        let commands = count(usize::try_from(self.commands).unwrap_or(usize::MAX), "command");
        let priorities = if *groups == 1 { "priority" } else { "priorities" };
        let for_tc = match self.for_tc {
            0 => String::new(),
            lines => format!("; {} passed to the installed tc unchecked", count_of(lines, "line")),
        };
        page.line(format!("{file}: {commands}, {rules} of them rules, in {groups} {priorities}{for_tc}"));
    }
}

/// Formats a number with its noun.
fn count_of(number: u64, what: &str) -> String {
    count(usize::try_from(number).unwrap_or(usize::MAX), what)
}

/// A refusal.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct RefusedLine {
    /// The line's number in the file.
    pub(crate) line: u32,
    /// The errno of the refusal; 0 if the installed tc refused the line.
    pub(crate) errno: i32,
    /// Whether the line was refused for lack of permission, as `errno` implies.
    #[serde(skip)]
    pub(crate) is_denied: bool,
    /// The kernel's message with the name of the errno, or tc's message.
    pub(crate) words: String,
}

/// A message of the installed tc about a line that succeeded.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct TcWarning {
    /// The line's number in the file.
    pub(crate) line: u32,
    /// tc's words.
    pub(crate) words: String,
}

/// The data of `tc load`: `commands = loaded + refused + not_sent + not_loaded + skipped + wrong`.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub(crate) struct LoadReport {
    /// The file.
    pub(crate) file: String,
    /// The number of all commands, including wrong ones.
    pub(crate) commands: u64,
    /// The number of commands that the kernel accepted.
    pub(crate) loaded: u64,
    /// Commands that the kernel refused.
    pub(crate) refused: Vec<RefusedLine>,
    /// Lines that were not sent, because an earlier one was refused.
    pub(crate) not_sent: Vec<u32>,
    /// Lines to which the kernel's answers were lost, and whose rules a dump does not contain.
    pub(crate) not_loaded: Vec<u32>,
    /// The number of commands whose answers were lost, and whose results come from a dump instead.
    pub(crate) settled_by_dump: usize,
    /// The number of rules that already existed (`--resume`).
    pub(crate) skipped: u64,
    /// The number of wrong lines that were skipped (`--keep-going`).
    pub(crate) wrong: usize,
    /// The first of the wrong lines.
    pub(crate) wrong_lines: Vec<WrongLine>,
    /// Whether a signal stopped the load.
    pub(crate) interrupted: bool,
    /// Whether the whole load was undone (`--atomic`, `--swap`).
    pub(crate) undone: bool,
    /// The chains now in force (`--swap`).
    pub(crate) chains: Vec<u32>,
    /// The number of loaded lines that the installed tc executed (`--with-tc`).
    pub(crate) by_tc: u64,
    /// Messages of the installed tc about lines that succeeded.
    pub(crate) warnings: Vec<TcWarning>,
    /// The number of different actions that were shared (`--share-actions`).
    pub(crate) shared_actions: usize,
    /// The number of rules sent with an identifying cookie (`--cookies`).
    pub(crate) cookies: u64,
    /// By kind, the number of actions that request one counter for all CPUs but get one per CPU. These kinds
    /// ignore the flag, although dumps show it.
    pub(crate) counters_anyway: BTreeMap<&'static str, u64>,
    /// The number of police actions whose burst, at their rate, is too large for the kernel's field.
    pub(crate) bursts_cut: u64,
    /// The duration.
    pub(crate) seconds: f64,
    /// How many commands the kernel accepted per second.
    pub(crate) rate: f64,
}

impl LoadReport {
    /// Whether the kernel has none of the file's rules.
    pub(crate) const fn took_nothing(&self) -> bool {
        self.loaded == 0 && self.settled_by_dump == 0
    }
}

impl Report for LoadReport {
    const KIND: &'static str = "tc-load";

    fn page(&self, page: &mut Page) {
        if self.refused.iter().any(|refused| refused.is_denied) {
            page.line("Run netpolicy as root, or with CAP_NET_ADMIN in this network namespace.");
        }
        for refused in self.refused.iter().take(SHOWN_MAX) {
            let words = format!("{}:{}: {}", self.file, refused.line, refused.words);
            page.styled(Style::Bad, words);
        }
        if self.refused.len() > SHOWN_MAX {
            page.line(format!(
                "… and {} more refusals; -o json has them all",
                self.refused.len() - SHOWN_MAX
            ));
        }
        for TcWarning { line, words } in self.warnings.iter().take(SHOWN_MAX) {
            page.line(format!("{}:{line}: tc: {words}", self.file));
        }
        if self.warnings.len() > SHOWN_MAX {
            page.line(format!(
                "… and {} more of tc's warnings; -o json has them all",
                self.warnings.len() - SHOWN_MAX
            ));
        }
        let mut words =
            format!("{}: {} loaded in {:.2} s ({:.0}/s)", self.file, self.loaded, self.seconds, self.rate);
        for (count, what) in [
            (self.refused.len(), "refused"),
            (self.not_sent.len(), "not sent"),
            (self.not_loaded.len(), "lost"),
            (self.wrong, "wrong"),
            (usize::try_from(self.skipped).unwrap_or(usize::MAX), "there already"),
        ] {
            if count > 0 {
                words.push_str(&format!(", {count} {what}"));
            }
        }
        if self.by_tc > 0 {
            words.push_str(&format!(", {} of them by the installed tc", self.by_tc));
        }
        if let Some(first) = self.not_sent.first() {
            words.push_str(&format!(" (from line {first})"));
        }
        if self.interrupted {
            words.push_str("; ended by a signal");
        }
        if self.settled_by_dump > 0 {
            words.push_str(&format!("; {} answers were lost and settled by a dump", self.settled_by_dump));
        }
        if self.undone {
            words.push_str("; all rules were removed again");
        }
        for chain in &self.chains {
            words.push_str(&format!("; chain {chain} is in force"));
        }
        page.line(words);
        for (kind, count) in &self.counters_anyway {
            page.line(format!(
                "no_percpu of kind {kind}: {count} actions request it; the kernel ignores it for this kind, although dumps \
                 show it."
            ));
        }
        if self.bursts_cut > 0 {
            page.line(format!(
                "Bursts over 274 s at their rate were sent as 274 s, the maximum of the kernel's format: {}.",
                count(usize::try_from(self.bursts_cut).unwrap_or(usize::MAX), "police action")
            ));
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<RefusedLine>("tc-refused", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        let refusals = self.refused.iter().map(|refused| ("tc-refused", to_json(refused)));
        refusals.chain([(Self::KIND, to_json(self))]).collect()
    }
}

/// The data of `tc diff`.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub(crate) struct DiffReport {
    /// The file.
    pub(crate) file: String,
    /// The number of rules in the kernel that are equal to the file's.
    pub(crate) same: u64,
    /// Lines whose rule the kernel lacks.
    pub(crate) missing: Vec<u32>,
    /// Lines whose handle belongs to a different rule in the kernel.
    pub(crate) different: Vec<u32>,
    /// Lines whose rule exists but is evaluated in another order than in the file, if the kernel chose the
    /// priority.
    pub(crate) misplaced: Vec<u32>,
    /// The number of the kernel's rules in the file's priorities that are not in the file.
    pub(crate) extra: u64,
    /// The first of the extra rules, as lines that would add them.
    pub(crate) extra_rules: Vec<String>,
    /// Lines about qdiscs and classes that were not compared (`--with-tc`).
    pub(crate) not_compared: u64,
    /// The number of rules whose kind netpolicy does not know.
    pub(crate) unknown: u64,
    /// Rules of the file that were recognised by their cookies, without comparing their other attributes.
    pub(crate) by_cookie: u64,
    /// Rules of the file that are in hardware.
    pub(crate) in_hardware: u64,
    /// Rules of the file that are not in hardware, according to the kernel.
    pub(crate) not_in_hardware: u64,
    /// Whether rules kept changing during the comparison: the figures are not a consistent snapshot.
    pub(crate) changing: bool,
    /// The duration.
    pub(crate) seconds: f64,
}

/// Describes a rule that redirects to a removed device and therefore has no batch line: its match, and a
/// note.
fn lost_device(rule: &Filter, lookup: &mut dyn Lookup) -> Option<String> {
    let words = Filter { actions: Vec::new(), ..rule.clone() }.words(lookup)?;
    Some(format!("{words} action mirred to a device that no longer exists"))
}

/// The counts of a [`DiffReport`] so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiffCounts {
    same: u64,
    different: usize,
    extra: u64,
    extra_rules: usize,
    unknown: u64,
    by_cookie: u64,
    in_hardware: u64,
    not_in_hardware: u64,
}

impl DiffReport {
    /// Whether the kernel's rules differ from the file's.
    pub(crate) fn differs(&self) -> bool {
        self.extra > 0
            || [&self.missing, &self.different, &self.misplaced].into_iter().any(|lines| !lines.is_empty())
    }

    /// Counts a dumped rule.
    pub(crate) fn count(&mut self, rule: &Filter, found: RuleMatch, lookup: &mut dyn Lookup) {
        match found {
            RuleMatch::Expected(_) => self.same += 1,
            RuleMatch::Different(line) => self.different.push(line),
            RuleMatch::Extra => {
                self.extra += 1;
                if self.extra_rules.len() < EXTRA_LISTED_MAX {
                    let words = match rule.has_lost_device() {
                        true => lost_device(rule, lookup),
                        false => rule.words(lookup),
                    };
                    self.extra_rules.extend(words);
                }
            }
            RuleMatch::Unasked | RuleMatch::Again => return,
        }
        self.count_offload(rule.classifier.offload());
    }

    /// Counts a rule that was recognised by its cookie.
    pub(crate) fn count_by_cookie(&mut self, offload: Offload, found: RuleMatch) {
        if let RuleMatch::Expected(_) = found {
            self.same += 1;
            self.by_cookie += 1;
            self.count_offload(Some(offload));
        }
    }

    fn count_offload(&mut self, offload: Option<Offload>) {
        match offload.and_then(|offload| offload.in_hw) {
            Some(true) => self.in_hardware += 1,
            Some(false) => self.not_in_hardware += 1,
            None => {}
        }
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> DiffCounts {
        let Self { same, extra, unknown, by_cookie, in_hardware, not_in_hardware, .. } = *self;
        let (different, extra_rules) = (self.different.len(), self.extra_rules.len());
        DiffCounts { same, different, extra, extra_rules, unknown, by_cookie, in_hardware, not_in_hardware }
    }

    /// Discards everything counted since `before`, which [`Self::counts`] returned.
    pub(crate) fn count_again(&mut self, before: DiffCounts) {
        let DiffCounts { same, different, extra, extra_rules, .. } = before;
        let DiffCounts { unknown, by_cookie, in_hardware, not_in_hardware, .. } = before;
        self.different.truncate(different);
        self.extra_rules.truncate(extra_rules);
        (self.same, self.extra, self.unknown, self.by_cookie) = (same, extra, unknown, by_cookie);
        (self.in_hardware, self.not_in_hardware) = (in_hardware, not_in_hardware);
    }

    /// Adds the lines whose rules are still missing after all dumps.
    pub(crate) fn settle(&mut self, expected: &Expected) {
        self.different.sort_unstable();
        self.missing = expected.missing();
        self.missing.retain(|line| self.different.binary_search(line).is_err());
        self.misplaced = expected.misplaced();
    }
}

impl Report for DiffReport {
    const KIND: &'static str = "tc-diff";

    fn page(&self, page: &mut Page) {
        let lists = [
            (&self.missing, "missing"),
            (&self.different, "different"),
            (&self.misplaced, "is evaluated in another order"),
        ];
        for (lines, what) in lists {
            for line in lines.iter().take(SHOWN_MAX) {
                page.styled(Style::Bad, format!("{}:{line}: {what}", self.file));
            }
            more(page, lines.len(), what);
        }
        for rule in self.extra_rules.iter().take(SHOWN_MAX) {
            page.styled(Style::Bad, format!("extra: {rule}"));
        }
        more(page, usize::try_from(self.extra).unwrap_or(usize::MAX), "extra");
        let Self { file, same, extra, unknown, in_hardware, not_in_hardware, .. } = self;
        let (missing, different) = (self.missing.len(), self.different.len());
        let mut words =
            format!("{file}: {same} the same, {missing} missing, {different} different, {extra} extra");
        if !self.misplaced.is_empty() {
            words.push_str(&format!(", {} in another order", self.misplaced.len()));
        }
        words.push_str(&format!(", {unknown} of unknown kinds; {in_hardware} in hardware"));
        if *not_in_hardware > 0 {
            words.push_str(&format!(", {not_in_hardware} not in hardware"));
        }
        page.line(format!("{words} ({:.2} s)", self.seconds));
        if self.by_cookie > 0 {
            page.line(format!("{} of the same were recognised by their cookies.", self.by_cookie));
        }
        if self.not_compared > 0 {
            let lines = count_of(self.not_compared, "line");
            page.line(format!(
                "{lines} for the installed tc: the qdiscs and classes of these lines were not compared."
            ));
        }
        if self.changing {
            let words =
                "Rules kept changing during the comparison: these figures are not a consistent snapshot.";
            page.styled(Style::Bad, words);
        }
    }
}

/// Reports how many items are not shown to people.
fn more(page: &mut Page, all: usize, what: &str) {
    if all > SHOWN_MAX {
        page.line(format!("… and {} more: {what}", all - SHOWN_MAX));
    }
}

/// The data of `tc dump`.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub(crate) struct DumpReport {
    /// The lines of the batch file, in order.
    pub(crate) lines: Vec<String>,
    /// The number of rules that were skipped because they cannot be expressed as batch lines.
    pub(crate) left_out: usize,
}

impl Report for DumpReport {
    const KIND: &'static str = "tc-dump";

    fn page(&self, page: &mut Page) {
        self.lines.iter().for_each(|line| page.line(line));
    }
}
