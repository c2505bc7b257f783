//! Compares measurements and predictions side by side.

use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use session::page::{Cell, Page, RecordSchema, Report, Style, Table, plain, record};

use crate::predicted::{Coverage, Judged, Orderings, SummaryLine, error};
use crate::reports::prediction::{flags, interval, rounded};
use crate::scenario_file::{Metric, ScenarioFile};

/// `sim validate`'s data.
#[derive(Debug, JsonSchema, Serialize)]
pub struct ValidationReport {
    title: String,
    calibrated: bool,
    rows: Vec<Row>,
    summary: Vec<SummaryLine>,
    orderings: Orderings,
    held_out: Coverage,
    #[serde(skip)]
    judged: Vec<Judged>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Row {
    name: String,
    calibrated: bool,
    class: &'static str,
    fitted: bool,
    flags: String,
    values: Vec<Compared>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Compared {
    metric: &'static str,
    measured: f64,
    predicted: f64,
    error: f64,
    low: Option<f64>,
    high: Option<f64>,
}

impl ValidationReport {
    /// Creates the report of these rows.
    pub(crate) fn of(
        file: &ScenarioFile,
        summary: Vec<SummaryLine>,
        orderings: Orderings,
        held_out: Coverage,
        judged: Vec<Judged>,
    ) -> Self {
        let rows = judged.iter().map(|judged| Row {
            name: judged.row.name.clone(),
            calibrated: file.is_calibrated(),
            class: judged.row.class.word(),
            fitted: judged.fitted,
            flags: flags(&judged.prediction),
            values: judged
                .row
                .values
                .iter()
                .filter_map(|&(metric, measured)| {
                    let predicted = judged.prediction.of(metric)?;
                    Some(Compared {
                        metric: metric.word(),
                        measured,
                        predicted: predicted.value,
                        error: error(metric, measured, predicted.value),
                        low: predicted.range.map(|range| range.low),
                        high: predicted.range.map(|range| range.high),
                    })
                })
                .collect(),
        });
        Self {
            title: file.heading(),
            calibrated: file.is_calibrated(),
            rows: rows.collect(),
            summary,
            orderings,
            held_out,
            judged,
        }
    }

    /// Renders the report as an HTML page.
    pub(crate) fn html(&self) -> String {
        crate::reports::curves::html(
            &self.title,
            &self.judged,
            &self.table(),
            &self.summary_table(),
            &format!("{} {}", self.ordering_line(), self.coverage_line()),
        )
    }

    fn table(&self) -> String {
        let metrics: Vec<Metric> = Metric::ALL
            .into_iter()
            .filter(|metric| self.judged.iter().any(|judged| judged.row.value(*metric).is_some()))
            .collect();
        let mut headings = vec!["row", ""];
        for metric in &metrics {
            headings.extend([metric.word(), "predicted", "90 % interval", "error"]);
        }
        headings.push("");
        let mut table = Table::new(&headings);
        for judged in &self.judged {
            let mut cells = vec![
                Cell::new(&judged.row.name),
                Cell::new(if judged.fitted { "fitted" } else { "held out" }),
            ];
            for &metric in &metrics {
                let (measured, predicted) = (judged.row.value(metric), judged.prediction.of(metric));
                match (measured, predicted) {
                    (Some(measured), Some(predicted)) => {
                        let off = error(metric, measured, predicted.value);
                        let unit = if metric == Metric::Cpu { "" } else { "%" };
                        cells.push(Cell::number(rounded(metric, measured)));
                        cells.push(Cell::number(rounded(metric, predicted.value)));
                        cells.push(Cell::number(interval(metric, predicted.range)));
                        cells.push(Cell::number(format!("{off:+.1}{unit}")));
                    }
                    _ => cells.extend([Cell::new(""), Cell::new(""), Cell::new(""), Cell::new("")]),
                }
            }
            let class = judged.row.class.word();
            let flags = flags(&judged.prediction);
            cells.push(Cell::new(if flags.is_empty() {
                class.to_owned()
            } else {
                format!("{class}; {flags}")
            }));
            table.row(cells);
        }
        table.text(false)
    }

    fn summary_table(&self) -> String {
        let mut table =
            Table::new(&["class", "", "metric", "rows", "median", "90 %", "worst", "unit", "in interval"]);
        for line in &self.summary {
            table.row([
                Cell::new(line.class),
                Cell::new(if line.fitted { "fitted" } else { "held out" }),
                Cell::new(line.metric),
                Cell::number(line.rows),
                Cell::number(format!("{:.1}", line.median)),
                Cell::number(format!("{:.1}", line.p90)),
                Cell::number(format!("{:.1}", line.worst)),
                Cell::new(line.unit),
                Cell::number(match line.intervals {
                    0 => "-".to_owned(),
                    intervals => format!("{}/{intervals}", line.inside),
                }),
            ]);
        }
        table.text(false)
    }

    #[expect(clippy::cast_precision_loss, reason = "a share for display")]
    fn ordering_line(&self) -> String {
        let Orderings { clear, right } = self.orderings;
        let share = 100.0 * right as f64 / clear.max(1) as f64;
        format!(
            "Of {clear} clearly different pairs of rows, {right} are predicted in the right order ({share:.1} %)."
        )
    }

    #[expect(clippy::cast_precision_loss, reason = "a share for display")]
    fn coverage_line(&self) -> String {
        let Coverage { values, inside } = self.held_out;
        if values == 0 {
            return "No value of a held-out row has an interval.".to_owned();
        }
        let share = 100.0 * inside as f64 / values as f64;
        format!("Of {values} values of held-out rows, {inside} lie in their 90 % interval ({share:.1} %).")
    }
}

impl Report for ValidationReport {
    const KIND: &'static str = "validation";

    fn page(&self, page: &mut Page) {
        page.styled(Style::Strong, plain(&self.title));
        page.line(
            "Measured, predicted, error; response times in microseconds, errors of CPU shares in points.",
        );
        page.gap();
        self.table().lines().for_each(|line| page.line(line));
        page.gap();
        page.styled(Style::Strong, "Size of the errors");
        self.summary_table().lines().for_each(|line| page.line(line));
        page.gap();
        page.line(self.ordering_line());
        page.line(self.coverage_line());
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<Row>("validation-row", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, serde_json::Value)> {
        self.rows.iter().map(|row| ("validation-row", session::page::to_json(row))).collect()
    }
}
