//! What `doctor` found.

use model::{Delivered, Finding, Severity};
use page::{
    Entry, Kind, Page, Report, SCREEN_COLUMNS, SCREEN_ROWS, Shown, Style, fit, record, rows_of, to_json,
};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;
use session::count;

/// `doctor`'s data.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct FindingsReport<'a> {
    findings: &'a [Finding],
    /// What was counted; `None` if the settings alone were judged.
    delivered: Option<&'a Delivered>,
    /// What a look at this host could not tell.
    not_known: &'a [String],
    /// Whether people get all of it; else a screen of it. Programs always get all.
    #[serde(skip)]
    all: bool,
}

impl<'a> FindingsReport<'a> {
    /// These findings, with the counts they rest on and what they cannot say.
    pub(crate) const fn of(
        findings: &'a [Finding],
        delivered: Option<&'a Delivered>,
        not_known: &'a [String],
        all: bool,
    ) -> Self {
        Self { findings, delivered, not_known, all }
    }
}

/// The longest head, in rows of a screen; a finding's words are cut there unless all is asked for.
const HEAD_ROWS_MAX: usize = 4;

/// A finding as lines without style.
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
        let mut findings: Vec<&Finding> = self.findings.iter().collect();
        // What helps most comes first: what is wrong, and of equals what can be mended by a command.
        findings.sort_by_key(|finding| {
            (
                std::cmp::Reverse(finding.severity),
                finding.severity == Severity::Note && finding.remedy.is_none(),
            )
        });
        let entries: Vec<Entry> = findings.iter().map(|finding| entry(finding, self.all)).collect();
        let unknown: Vec<String> =
            self.not_known.iter().map(|line| format!("unknown  {}", visible(line))).collect();
        let rows = match self.all {
            true => usize::MAX,
            // A row is kept for what is left out.
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

    fn records_as(generator: &mut SchemaGenerator) -> Vec<Kind> {
        vec![record::<Finding>("finding", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.findings.iter().map(|finding| ("finding", to_json(finding))).collect()
    }
}

/// The bytes of a severity at the beginning of a head.
const SEVERITY_BYTES: usize = 7;

/// Names of processes and devices are chosen by others, and must not steer the terminal.
fn visible(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod test {
    use super::*;
    use page::Printable;

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
            assert_eq!(all.matches("[not-engaged]").count(), number, "{all}");
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
