//! Formats the output of `cat`: the policy files as one file, with the origin of every value.

use std::collections::BTreeMap;

use policy_file::{Merged, Value};
use schemars::JsonSchema;
use serde::Serialize;
use session::page::{Page, Report, Style};

/// The output of `cat`.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct MergedReport {
    sections: Vec<Section>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Section {
    kind: &'static str,
    name: String,
    /// The section's name, in the syntax of a policy file, such as `device.eth0`.
    #[serde(skip)]
    header: String,
    values: Vec<Line>,
    /// What the section matches on this host; only with `--resolved`.
    #[serde(skip_serializing_if = "Option::is_none")]
    meant: Option<MeantBySection>,
}

/// The objects that a section matches on this host.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct MeantBySection {
    /// The devices or processes that the section matches.
    pub(crate) means: Vec<String>,
    /// Notes for the operator.
    pub(crate) notes: Vec<String>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Line {
    key: &'static str,
    /// The value, in the syntax of a policy file.
    toml: String,
    origin: String,
}

impl MergedReport {
    /// Creates the report. `meant` contains the matches of each section, by the section's index.
    pub(crate) fn of(merged: &Merged, mut meant: BTreeMap<usize, MeantBySection>) -> Self {
        let sections = merged.sections.iter().enumerate().map(|(at, section)| Section {
            meant: meant.remove(&at),
            kind: section.kind.word(),
            name: section.name.clone(),
            header: section.header(),
            values: section.asks.iter().map(line).collect(),
        });
        Self { sections: sections.collect() }
    }
}

fn line((value, origin): &(Value, String)) -> Line {
    Line { key: value.path(), toml: value.toml(), origin: origin.clone() }
}

impl Report for MergedReport {
    const KIND: &'static str = "policy";

    fn page(&self, page: &mut Page) {
        for section in &self.sections {
            page.gap();
            page.styled(Style::Strong, format!("[{}]", section.header));
            let texts: Vec<String> =
                section.values.iter().map(|line| format!("{} = {}", line.key, line.toml)).collect();
            let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
            for (text, line) in texts.iter().zip(&section.values) {
                let origin = page.word(Style::Faint, &format!("# {}", line.origin));
                page.line(format!("{text:width$}  {origin}"));
            }
            let Some(meant) = &section.meant else { continue };
            let means = if meant.means.is_empty() { "nothing".to_owned() } else { meant.means.join(", ") };
            page.line(format!("# here: {means}"));
            meant.notes.iter().for_each(|note| page.line(format!("# {note}")));
        }
    }
}
