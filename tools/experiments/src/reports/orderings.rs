//! Pairs of configurations: compared in an experiment's runs and in a published table.

use latency::measure::statistics::Interval;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use session::page::{Cell, Page, RecordSchema, Report, Style, Table, record};

/// The data of `bench report --orderings`.
#[derive(Debug, JsonSchema, Serialize)]
pub struct OrderingsReport {
    /// The scenario with the published rows.
    against: String,
    orderings: Vec<Ordering>,
}

/// A metric of two configurations at one load.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub(crate) struct Ordering {
    /// The load of the runs.
    pub(crate) load: String,
    /// One configuration.
    pub(crate) one: String,
    /// The other.
    pub(crate) other: String,
    /// The compared metric.
    pub(crate) metric: &'static str,
    /// The published values.
    pub(crate) published: [f64; 2],
    /// The medians of the runs, with their intervals.
    pub(crate) here: [Interval; 2],
    /// Whether the runs and the published rows have the same order.
    pub(crate) agreement: Agreement,
}

/// Whether two pairs of values have the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Agreement {
    /// Both have the same order.
    Same,
    /// The opposite order.
    Opposite,
    /// The intervals of the runs overlap.
    Undecided,
    /// In the runs, a configuration does not keep up, so that its response times grow with the length of a
    /// run; or the load generator was the bottleneck.
    Saturated,
}

impl Agreement {
    const ALL: [Self; 4] = [Self::Same, Self::Opposite, Self::Undecided, Self::Saturated];

    const fn word(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Opposite => "opposite",
            Self::Undecided => "undecided",
            Self::Saturated => "saturated",
        }
    }
}

impl OrderingsReport {
    pub(crate) const fn new(against: String, orderings: Vec<Ordering>) -> Self {
        Self { against, orderings }
    }

    fn count(&self, agreement: Agreement, metric: Option<&str>) -> usize {
        let is_of = |ordering: &&Ordering| {
            ordering.agreement == agreement && metric.is_none_or(|metric| metric == ordering.metric)
        };
        self.orderings.iter().filter(is_of).count()
    }

    fn summary(&self) -> Table {
        let mut headings = vec!["metric"];
        headings.extend(Agreement::ALL.map(Agreement::word));
        let mut table = Table::new(&headings);
        let mut metrics: Vec<&str> = Vec::new();
        for ordering in &self.orderings {
            if !metrics.contains(&ordering.metric) {
                metrics.push(ordering.metric);
            }
        }
        for (name, metric) in metrics.iter().map(|&metric| (metric, Some(metric))).chain([("all", None)]) {
            let mut cells = vec![Cell::new(name)];
            cells.extend(Agreement::ALL.map(|agreement| Cell::number(self.count(agreement, metric))));
            table.row(cells);
        }
        table
    }
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

impl Report for OrderingsReport {
    const KIND: &'static str = "orderings";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&["load", "metric", "", "published", "here", ""]);
        for ordering in &self.orderings {
            let [a, b] = ordering.published;
            let [c, d] = &ordering.here;
            let is_same = ordering.agreement == Agreement::Same;
            table.row([
                Cell::new(&ordering.load),
                Cell::new(ordering.metric),
                Cell::new(format!("{}, {}", ordering.one, ordering.other)),
                Cell::new(format!("{}, {}", number(a), number(b))),
                Cell::new(format!("{}, {}", number(c.estimate), number(d.estimate))),
                Cell::new(ordering.agreement.word()).style(if is_same {
                    Style::Faint
                } else {
                    Style::Warning
                }),
            ]);
        }
        page.table(&table);
        page.gap();
        page.line(format!(
            "Pairs of configurations that differ clearly in {}: whether they have the same order here.",
            self.against
        ));
        page.table(&self.summary());
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<Ordering>("ordering", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, serde_json::Value)> {
        self.orderings.iter().map(|ordering| ("ordering", session::page::to_json(ordering))).collect()
    }
}
