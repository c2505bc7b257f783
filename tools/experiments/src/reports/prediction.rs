//! The report of a prediction.

use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use session::page::{Cell, Page, RecordSchema, Report, Style, Table, plain, record};

use crate::predicted::{Prediction, Range};
use crate::scenario_file::Metric;

/// `sim run`'s data.
#[derive(Debug, JsonSchema, Serialize)]
pub struct PredictionReport {
    title: String,
    over: String,
    points: Vec<Prediction>,
}

impl PredictionReport {
    /// Creates the report of these points; `over` describes what ranges are computed over.
    pub(crate) fn of(title: &str, over: &str, points: Vec<Prediction>) -> Self {
        Self { title: title.to_owned(), over: over.to_owned(), points }
    }
}

/// Formats a number with its significant digits.
pub(crate) fn rounded(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Qps => format!("{:.1}K", value / 1000.0),
        Metric::Cpu => format!("{value:.1}"),
        _ if value >= 1000.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

/// Formats both ends of a range; a single run has none.
pub(crate) fn interval(metric: Metric, range: Option<Range>) -> String {
    range.map_or_else(
        || "-".to_owned(),
        |Range { low, high }| format!("{}–{}", rounded(metric, low), rounded(metric, high)),
    )
}

/// Returns the caveats of a point, shown before its numbers.
pub(crate) fn flags(point: &Prediction) -> String {
    let mut flags = Vec::new();
    if point.idle_threads > 0 {
        let (threads, verb) = match point.idle_threads {
            1 => ("1 thread".to_owned(), "idles"),
            n => (format!("{n} threads"), "idle"),
        };
        flags.push(format!("{threads} {verb}: layout.by-napi gives each queue one thread"));
    }
    if let Some(growth) = point.backlog_growth {
        flags.push(format!("no steady state: the backlog grows by {growth:.0}/s"));
    }
    if point.bistable {
        flags.push("bistable".to_owned());
    }
    if point.knee {
        flags.push("knee".to_owned());
    }
    if point.drops > 0.0 {
        flags.push(format!("{:.0} packets/s dropped", point.drops));
    }
    flags.join(", ")
}

impl Report for PredictionReport {
    const KIND: &'static str = "prediction";

    fn page(&self, page: &mut Page) {
        page.styled(Style::Strong, plain(&self.title));
        page.line(format!(
            "Simulated. Response times in microseconds; below each value its range over {}.",
            self.over
        ));
        page.gap();
        let mut table =
            Table::new(&["point", "load", "qps", "avg", "p50", "p95", "p99", "p99.9", "p99.99", "cpu %", ""]);
        let shown = [
            Metric::Qps,
            Metric::Avg,
            Metric::P50,
            Metric::P95,
            Metric::P99,
            Metric::P999,
            Metric::P9999,
            Metric::Cpu,
        ];
        for point in &self.points {
            let value = |metric| point.of(metric).map(|p| rounded(metric, p.value)).unwrap_or_default();
            let range = |metric| interval(metric, point.of(metric).and_then(|p| p.range));
            let mut cells = vec![Cell::new(&point.name), Cell::new(&point.load)];
            cells.extend(shown.map(|metric| Cell::number(value(metric))));
            cells.push(Cell::new(flags(point)).style(Style::Warning));
            table.row(cells);
            let mut below = vec![Cell::new(""), Cell::new("")];
            below.extend(shown.map(|metric| Cell::number(range(metric)).style(Style::Faint)));
            below.push(Cell::new(""));
            table.row(below);
        }
        page.table(&table);
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<Prediction>("prediction", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, serde_json::Value)> {
        self.points.iter().map(|point| ("prediction", session::page::to_json(point))).collect()
    }
}
