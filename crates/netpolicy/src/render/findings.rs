//! What `doctor` found.

use model::{Delivered, Finding, Severity};
use page::{Kind, Page, Report, Style, record, to_json};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

/// `doctor`'s data.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct FindingsReport<'a> {
    findings: &'a [Finding],
    /// What was counted; `None` if the settings alone were judged.
    delivered: Option<&'a Delivered>,
}

impl<'a> FindingsReport<'a> {
    /// These findings, with the counts they rest on.
    pub(crate) const fn of(findings: &'a [Finding], delivered: Option<&'a Delivered>) -> Self {
        Self { findings, delivered }
    }
}

impl Report for FindingsReport<'_> {
    const KIND: &'static str = "findings";

    fn page(&self, page: &mut Page) {
        let mut findings: Vec<&Finding> = self.findings.iter().collect();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        for finding in findings {
            let style = match finding.severity {
                Severity::Problem => Style::Bad,
                Severity::Warning => Style::Warning,
                Severity::Note => Style::Plain,
                Severity::Ok => Style::Good,
            };
            let severity = page.word(style, &format!("{:<7}", finding.severity.to_string()));
            let rule = page.word(Style::Faint, &format!("[{}]", finding.rule));
            page.line(format!(
                "{severity}  {}: {} {rule}",
                visible(&finding.object),
                visible(&finding.summary)
            ));
            for evidence in &finding.evidence {
                page.line(format!("         · {}", visible(evidence)));
            }
            if let Some(remedy) = &finding.remedy {
                page.line(format!("         → {}", page.word(Style::Strong, &visible(remedy))));
            }
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<Kind> {
        vec![record::<Finding>("finding", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.findings.iter().map(|finding| ("finding", to_json(finding))).collect()
    }
}

/// Names of processes and devices are chosen by others, and must not steer the terminal.
fn visible(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}
