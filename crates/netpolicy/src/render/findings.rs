//! Formats the findings of `doctor`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use model::{Delivered, Finding, Severity};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;
use session::count;
use session::page::{
    Entry, Page, RecordSchema, Report, SCREEN_COLUMNS, SCREEN_ROWS, Shown, Style, fit, record, rows_of,
    to_json,
};

/// The output of `doctor`.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct FindingsReport<'a> {
    findings: &'a [Finding],
    /// The counts of packet delivery; `None` if only the settings were checked.
    delivered: Option<&'a Delivered>,
    /// The facts that could not be determined on this host.
    not_known: &'a [String],
    /// Whether text output shows everything or only one screen. JSON output is always complete.
    #[serde(skip)]
    all: bool,
}

impl<'a> FindingsReport<'a> {
    /// Creates the report from these findings, with the counts and with the facts that are unknown.
    pub(crate) const fn of(
        findings: &'a [Finding],
        delivered: Option<&'a Delivered>,
        not_known: &'a [String],
        all: bool,
    ) -> Self {
        Self { findings, delivered, not_known, all }
    }
}

/// Counts the findings of this severity that text output shows.
pub(crate) fn count_shown(findings: &[Finding], severity: Severity) -> usize {
    merge(findings).iter().filter(|finding| finding.severity == severity).count()
}

/// Merges findings for text output: the findings of several queues of a device with the same remedy become
/// one that lists the queues. JSON output has each finding.
fn merge(findings: &[Finding]) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    let mut first_of = BTreeMap::new();
    for finding in findings {
        let Some((remedy, (device, queue))) = finding.remedy.as_ref().zip(queue_of(&finding.object)) else {
            merged.push(finding.clone());
            continue;
        };
        let slot = first_of.entry((&finding.rule, finding.severity, remedy, device));
        match slot {
            Slot::Occupied(slot) => {
                let first: &mut Finding = &mut merged[*slot.get()];
                first.object.push_str(&format!(", {queue}"));
                let line = format!("{queue}: {}", finding.summary);
                if finding.summary != first.summary {
                    first.evidence.push(line);
                }
            }
            Slot::Vacant(slot) => {
                slot.insert(merged.len());
                merged.push(finding.clone());
            }
        }
    }
    merged
}

/// Splits the name of an object into device and queue: `eth0 rx-0 (napi 5)` becomes `eth0` and `rx-0 (napi
/// 5)`.
fn queue_of(object: &str) -> Option<(&str, &str)> {
    let at = object.find(" rx-")?;
    Some((&object[..at], &object[at + 1..]))
}

/// Keeps each remedy only in the first finding that it fixes.
fn drop_repeated_remedies(findings: &mut [Finding]) {
    let mut printed: BTreeMap<String, String> = BTreeMap::new();
    for finding in findings {
        let Some(remedy) = &finding.remedy else { continue };
        match printed.get(remedy) {
            Some(rule) => {
                finding.evidence.push(format!("fixed by the command of [{rule}]"));
                finding.remedy = None;
            }
            None => drop(printed.insert(remedy.clone(), finding.rule.clone())),
        }
    }
}

/// The maximum height of a heading, in screen rows. A longer heading is cut, except with `--all`.
const HEAD_ROWS_MAX: usize = 4;

/// Formats a finding as lines without colours.
fn entry(finding: &Finding, all: bool) -> Entry {
    let severity = finding.severity.to_string();
    let (object, summary) = (visible(&finding.object), visible(&finding.summary));
    let mut head = format!("{severity:<7}  {object}: {summary} [{}]", finding.rule);
    if !all && rows_of(&head) > HEAD_ROWS_MAX {
        head = head.chars().take(HEAD_ROWS_MAX * SCREEN_COLUMNS - 1).chain(['…']).collect();
    }
    let details = finding.evidence.iter().map(|line| format!("         · {}", visible(line))).collect();
    let action = finding.remedy.as_ref().map(|remedy| format!("         → {}", visible(remedy)));
    Entry { head, details, action }
}

impl Report for FindingsReport<'_> {
    const KIND: &'static str = "findings";

    fn page(&self, page: &mut Page) {
        let mut findings = merge(self.findings);
        // Problems come first; among findings of the same severity, those that a command can fix come first.
        findings.sort_by_key(|finding| {
            (
                std::cmp::Reverse(finding.severity),
                finding.severity == Severity::Note && finding.remedy.is_none(),
            )
        });
        drop_repeated_remedies(&mut findings);
        let entries: Vec<Entry> = findings.iter().map(|finding| entry(finding, self.all)).collect();
        let unknown: Vec<String> =
            self.not_known.iter().map(|line| format!("unknown  {}", visible(line))).collect();
        let rows = match self.all {
            true => usize::MAX,
            // Reserve a row for the number of findings that are omitted.
            false => SCREEN_ROWS.saturating_sub(1 + unknown.iter().map(|line| rows_of(line)).sum::<usize>()),
        };
        let shown = fit(&entries, rows);
        for ((entry, finding), shown) in entries.iter().zip(&findings).zip(&shown) {
            let style = match finding.severity {
                Severity::Problem => Style::Bad,
                Severity::Warning => Style::Warning,
                Severity::Note => Style::Plain,
                Severity::Ok => Style::Good,
            };
            let (severity, rest) = entry.head.split_at(SEVERITY_BYTES);
            let (words, rule) = rest.rsplit_once(" [").unwrap_or((rest, ""));
            let rule = if rule.is_empty() {
                String::new()
            } else {
                format!(" {}", page.word(Style::Faint, &format!("[{rule}")))
            };
            page.line(format!("{}{words}{rule}", page.word(style, severity)));
            entry.details.iter().take(shown.details).for_each(|line| page.line(line));
            if let Some(action) = entry.action.as_ref().filter(|_| shown.action) {
                let command = action.trim_start_matches([' ', '→']);
                page.line(format!("         → {}", page.word(Style::Strong, command)));
            }
        }
        for line in &unknown {
            page.line(page.word(Style::Faint, line));
        }
        let cut = |(entry, shown): (&Entry, &Shown)| {
            shown.details < entry.details.len() || (entry.action.is_some() && !shown.action)
        };
        let more = entries.len() - shown.len();
        if more > 0 || entries.iter().zip(&shown).any(cut) {
            let findings =
                if more > 0 { format!("{} and ", count(more, "more finding")) } else { String::new() };
            page.line(page.word(Style::Faint, &format!("… {findings}more evidence: netpolicy doctor --all")));
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<Finding>("finding", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.findings.iter().map(|finding| ("finding", to_json(finding))).collect()
    }
}

/// The length of the severity's column at the beginning of a heading, in bytes.
const SEVERITY_BYTES: usize = 7;

/// Replaces control characters: other users choose the names of processes and devices, which must not control
/// the terminal.
fn visible(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod test {
    use super::*;
    use session::page::Report;

    fn finding(number: usize, severity: Severity) -> Finding {
        Finding {
            rule: "not-engaged".to_owned(),
            severity,
            object: format!("eth0 rx-{number}"),
            summary: "suspension is set but not engaged ".repeat(1 + number % 9),
            evidence: vec!["packets: application 3/s".to_owned(); number % 5],
            remedy: (!number.is_multiple_of(3)).then(|| format!("netpolicy set task {number} suspend20")),
        }
    }

    fn rows(text: &str) -> usize {
        text.lines().map(rows_of).sum()
    }

    #[test]
    fn one_cause_on_several_queues_is_one_finding_and_its_command_is_printed_once() {
        let finding = |rule: &str, object: &str, summary: &str| Finding {
            rule: rule.to_owned(),
            severity: Severity::Warning,
            object: object.to_owned(),
            summary: summary.to_owned(),
            evidence: Vec::new(),
            remedy: Some("netpolicy set device v0 suspend200".to_owned()),
        };
        let findings = [
            finding("timer-before-application", "v0 rx-0 (napi 5)", "its timer expires: 60 % of the packets"),
            finding(
                "timer-before-application",
                "v0 rx-1 (napi 6)",
                "its timer runs out: 64 % of the packets",
            ),
            finding("partly-engaged", "v0 rx-0 (napi 5)", "partly engaged"),
            finding("partly-engaged", "v0 rx-1 (napi 6)", "partly engaged"),
            finding("partly-engaged", "v1 rx-0 (napi 7)", "partly engaged"),
        ];
        let text = FindingsReport::of(&findings, None, &[], true).as_text(false);
        assert_eq!(text.matches("→").count(), 1, "{text}");
        assert!(text.contains("v0 rx-0 (napi 5), rx-1 (napi 6): its timer"), "{text}");
        assert!(text.contains("· rx-1 (napi 6): its timer runs out: 64 %"), "{text}");
        assert!(text.contains("· fixed by the command of [timer-before-application]"), "{text}");
        assert_eq!(count_shown(&findings, Severity::Warning), 3);
        assert_eq!(FindingsReport::of(&findings, None, &[], true).lines().len(), 5, "programs get each");
    }

    #[test]
    fn whatever_is_found_is_at_most_a_screen_and_says_what_is_left_out() {
        let severities = [Severity::Note, Severity::Problem, Severity::Ok, Severity::Warning];
        let unknown = vec!["how long requests take".to_owned(); 4];
        for number in 0..80 {
            let findings: Vec<Finding> =
                (0..number).map(|place| finding(place * 7 % 11, severities[place % 4])).collect();
            let screen = FindingsReport::of(&findings, None, &unknown, false).as_text(false);
            assert!(rows(&screen) <= SCREEN_ROWS, "{} rows of {number} findings:\n{screen}", rows(&screen));
            assert!(number < 2 || screen.starts_with("problem"), "{screen}");
            let all = FindingsReport::of(&findings, None, &unknown, true).as_text(false);
            let is_head = |line: &&str| line.ends_with("[not-engaged]") && !line.contains('·');
            assert_eq!(all.lines().filter(is_head).count(), merge(&findings).len(), "{all}");
            assert_eq!(
                screen.contains("doctor --all"),
                screen.lines().count() < all.lines().count() || screen.contains('…')
            );
        }
    }

    #[test]
    fn of_a_name_that_fills_the_screen_the_beginning_is_shown() {
        let long = Finding { summary: "x".repeat(9_000), ..finding(1, Severity::Problem) };
        let screen = FindingsReport::of(std::slice::from_ref(&long), None, &[], false).as_text(false);
        assert!(
            rows(&screen) <= SCREEN_ROWS && screen.contains("netpolicy set task 1 suspend20"),
            "{screen}"
        );
    }
}
