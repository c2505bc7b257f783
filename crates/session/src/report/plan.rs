//! Reports a plan.

use crate::page::{Cell, Page, RecordSchema, Report, Style, Table, record, to_json};
use model::{Change, Plan, Reason};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

/// A plan as data: one entry per change, in the order of writing.
#[derive(Debug, JsonSchema, Serialize)]
pub struct PlanReport {
    changes: Vec<ChangeLine>,
}

/// One change.
#[derive(Debug, JsonSchema, Serialize)]
pub struct ChangeLine {
    object: String,
    knob: &'static str,
    from: String,
    to: String,
    because: Reason,
}

impl From<&Change> for ChangeLine {
    fn from(change: &Change) -> Self {
        Self {
            object: change.to().object().to_string(),
            knob: change.to().knob(),
            from: change.from().value(),
            to: change.to().value(),
            because: change.because().clone(),
        }
    }
}

impl PlanReport {
    /// Creates the report of this plan.
    pub fn of(plan: &Plan) -> Self {
        Self { changes: plan.changes().map(ChangeLine::from).collect() }
    }
}

impl Report for PlanReport {
    const KIND: &'static str = "plan";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&["OBJECT", "SETTING", "NOW", "", "THEN", "WHY"]);
        let (mut object, mut reasons) = ("", Vec::new());
        for change in &self.changes {
            let again = std::mem::replace(&mut object, &change.object) == change.object;
            table.row([
                Cell::new(if again { "" } else { &change.object }),
                Cell::new(change.knob),
                Cell::new(change.from.as_str()),
                Cell::new("→"),
                Cell::new(change.to.as_str()).style(Style::Strong),
                Cell::new(format!("[{}]", footnote(&mut reasons, &change.because))).style(Style::Faint),
            ]);
        }
        if table.is_empty() {
            return;
        }
        page.table(&table);
        page.gap();
        for (number, reason) in (1..).zip(&reasons) {
            page.line(format!("[{number}] {}", reason.why));
            page.styled(Style::Faint, format!("    {}", reason.source));
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<ChangeLine>("change", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.changes.iter().map(|change| ("change", to_json(change))).collect()
    }
}

/// Returns the footnote number of a reason. Adds the reason if it is new: reasons are long, and many changes
/// share one.
fn footnote<'a>(reasons: &mut Vec<&'a Reason>, reason: &'a Reason) -> usize {
    let known = reasons.iter().position(|known| *known == reason);
    let index = known.unwrap_or_else(|| {
        reasons.push(reason);
        reasons.len() - 1
    });
    index + 1
}
