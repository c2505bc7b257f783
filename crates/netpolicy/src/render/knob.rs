//! Formats the documentation of a setting, from its row in the table of knobs.

use model::setting::{Disruption, Facts};
use schemars::JsonSchema;
use serde::Serialize;

use session::page::{Page, Report, Style};

/// The output of `explain setting`: all knobs that have the same name.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct KnobReport {
    knobs: Vec<Knob>,
}

/// A knob. Two kernel interfaces may have a knob with the same name, for example of a NAPI and of a whole
/// device.
#[derive(Debug, JsonSchema, Serialize)]
struct Knob {
    name: &'static str,
    meaning: String,
    /// The values that netpolicy writes, with their unit.
    values: String,
    least: Option<u64>,
    most: Option<u64>,
    unit: String,
    /// The knob's key in policy files.
    key: Option<&'static str>,
    /// The kernel interface through which the knob is written.
    by: String,
    /// The first kernel version that has the knob.
    since: String,
    disruption: Disruption,
    /// The values that can be read but not written back.
    irreversible: Option<&'static str>,
    /// The place in the kernel's source that implements the knob.
    source: Option<String>,
}

impl KnobReport {
    /// Creates the report from rows of the table.
    pub(crate) fn of<'a>(facts: impl IntoIterator<Item = &'a Facts>) -> Self {
        let knob = |facts: &Facts| Knob {
            name: facts.name,
            meaning: facts.meaning(),
            values: facts.values(),
            least: facts.range.map(|(least, _)| least),
            most: facts.range.map(|(_, most)| most),
            unit: facts.unit.to_string(),
            key: facts.key,
            by: facts.interface.to_string(),
            since: facts.since.to_string(),
            disruption: facts.disruption,
            irreversible: facts.irreversible,
            source: facts.source(),
        };
        Self { knobs: facts.into_iter().map(knob).collect() }
    }
}

impl Report for KnobReport {
    const KIND: &'static str = "knobs";

    fn page(&self, page: &mut Page) {
        for knob in &self.knobs {
            page.gap();
            page.styled(Style::Strong, knob.name);
            page.line(format!("  {}", knob.meaning));
            let undo = knob.irreversible.map_or_else(
                || "the old value is written back".to_owned(),
                |values| format!("the old value is written back, except {values}"),
            );
            let lines = [
                ("values", knob.values.clone()),
                ("key", knob.key.unwrap_or("none; set by a policy or a delivery mode").to_owned()),
                ("by", knob.by.clone()),
                ("since", format!("Linux {}", knob.since)),
                ("writing", format!("it {}", knob.disruption)),
                ("undo", undo),
                ("source", knob.source.clone().unwrap_or_default()),
            ];
            for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
                page.line(format!("  {name:<8} {value}"));
            }
        }
    }
}
