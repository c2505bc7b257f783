//! The report on the speed of rule loading.

use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;
use session::page::{Cell, Page, RecordSchema, Report, Style, Table, record, to_json};

/// A row of `tc bench`: a criterion and its result.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct BenchRow {
    /// The criterion.
    pub(crate) criterion: String,
    /// The goal.
    pub(crate) goal: String,
    /// The result.
    pub(crate) measured: String,
    /// Whether the result meets the goal; `None` for a result without a goal.
    pub(crate) met: Option<bool>,
}

/// `tc bench`'s data.
#[derive(Debug, JsonSchema, Serialize)]
pub struct RuleBenchReport {
    /// Number of repeats.
    pub(crate) repeats: u32,
    /// Number of rules per load.
    pub(crate) rules: u32,
    /// The kernel.
    pub(crate) kernel: String,
    /// The criteria.
    pub(crate) rows: Vec<BenchRow>,
}

impl Report for RuleBenchReport {
    const KIND: &'static str = "tc-bench";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&["CRITERION", "GOAL", "MEASURED", ""]);
        for row in &self.rows {
            let (mark, style) = match row.met {
                Some(true) => ("met", Style::Good),
                Some(false) => ("NOT met", Style::Bad),
                None => ("", Style::Plain),
            };
            table.row([
                Cell::new(row.criterion.as_str()),
                Cell::new(row.goal.as_str()),
                Cell::new(row.measured.as_str()),
                Cell::new(mark).style(style),
            ]);
        }
        page.line(format!(
            "{} rules per load, medians of {} interleaved repeats, Linux {}",
            self.rules, self.repeats, self.kernel
        ));
        page.table(&table);
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<BenchRow>("tc-bench", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.rows.iter().map(|row| ("tc-bench", to_json(row))).collect()
    }
}
