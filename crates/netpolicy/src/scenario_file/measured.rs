//! A table of measured rows: tab-separated, with a heading.
//!
//! Headings with a dot are keys of the scenario, and their values are set before a row is simulated; the others are what was
//! measured. A row's name is its keys' values, joined by `@`.

use crate::policy_file::{Mistake, Mistakes, nearest};

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredTable {
    /// Its rows.
    pub rows: Vec<MeasuredRow>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRow {
    /// Its name: `suspend20@200K`.
    pub name: String,
    /// What to set in the scenario.
    pub settings: Vec<(String, String)>,
    /// In which part of the load it is.
    pub class: RowClass,
    /// What was measured.
    pub values: Vec<(Metric, f64)>,
}

impl MeasuredRow {
    /// A measured value.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        self.values.iter().find(|(other, _)| *other == metric).map(|(_, value)| *value)
    }
}

/// Where on the load curve a row is, as whoever measured it saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowClass {
    /// The server keeps up.
    Stable,
    /// It hardly does; runs differ from each other.
    Knee,
    /// It does not.
    Overload,
    /// A closed loop.
    Max,
}

impl RowClass {
    /// All, in the order of the load.
    pub const ALL: [Self; 4] = [Self::Stable, Self::Knee, Self::Overload, Self::Max];

    /// Its word in a table.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Knee => "knee",
            Self::Overload => "overload",
            Self::Max => "max",
        }
    }
}

/// What can be measured and predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Answers per second.
    Qps,
    /// Mean response time in microseconds.
    Avg,
    /// Median.
    P50,
    /// 90th percentile.
    P90,
    /// 95th percentile.
    P95,
    /// 99th percentile.
    P99,
    /// 99.9th percentile.
    P999,
    /// Busy share of the CPUs in percent.
    Cpu,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::Qps, Self::Avg, Self::P50, Self::P90, Self::P95, Self::P99, Self::P999, Self::Cpu];

    /// Its word in a table.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Qps => "qps",
            Self::Avg => "avg",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::P999 => "p999",
            Self::Cpu => "cpu",
        }
    }

    /// In what it is measured.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Qps => "answers per second",
            Self::Avg | Self::P50 | Self::P90 | Self::P95 | Self::P99 | Self::P999 => "microseconds",
            Self::Cpu => "percent of all CPUs",
        }
    }
}

/// The most rows of a table.
const ROWS_MAX: usize = 10_000;

/// The largest value that can have been measured.
const VALUE_MAX: f64 = 1e12;
const TABS: &str = "columns are separated by tabs";

enum Column {
    Setting(String),
    Class,
    Value(Metric),
}

/// Reads a table; of the rows that `wanted` turns down, nothing but the name is looked at.
///
/// # Errors
/// Every mistake of the text, each with its place.
pub fn measured(name: &str, text: &str, wanted: impl Fn(&str) -> bool) -> Result<MeasuredTable, Mistakes> {
    let mut mistakes = Vec::new();
    let mut columns: Option<Vec<Column>> = None;
    let mut table = MeasuredTable::default();
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let begin = offset;
        offset += line.len();
        let line = line.trim_end_matches(['\n', '\r']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut at = begin;
        let cells: Vec<(std::ops::Range<usize>, &str)> = line
            .split('\t')
            .map(|cell| {
                let range = at..at + cell.len();
                at += cell.len() + 1;
                (range, cell)
            })
            .collect();
        let mut wrong = |range: std::ops::Range<usize>, message: String, help: Option<String>| {
            mistakes.push(Mistake::new(name, text, range, message, help));
        };
        let Some(columns) = &columns else {
            let mut found = Vec::new();
            for (range, cell) in cells {
                if cell.contains('.') && !cell.contains(' ') {
                    found.push(Column::Setting(cell.to_owned()));
                } else if cell == "class" {
                    found.push(Column::Class);
                } else if let Some(metric) = Metric::ALL.into_iter().find(|metric| metric.word() == cell) {
                    found.push(Column::Value(metric));
                } else {
                    let help =
                        nearest(cell, Metric::ALL.map(Metric::word)).map(|n| format!("did you mean `{n}`?"));
                    let help = if cell.contains(' ') { Some(TABS.to_owned()) } else { help };
                    wrong(
                        range,
                        format!("`{cell}` is neither a key of a scenario nor something measured"),
                        help,
                    );
                }
            }
            columns = Some(found);
            continue;
        };
        if cells.len() != columns.len() {
            wrong(
                begin..begin + line.len(),
                format!("{} cells under {} headings", cells.len(), columns.len()),
                (cells.len() == 1).then(|| TABS.to_owned()),
            );
            continue;
        }
        let mut row = MeasuredRow {
            name: String::new(),
            settings: Vec::new(),
            class: RowClass::Stable,
            values: Vec::new(),
        };
        for (column, (_, cell)) in columns.iter().zip(&cells) {
            if let Column::Setting(key) = column {
                row.settings.push((key.clone(), (*cell).to_owned()));
            }
        }
        row.name = row.settings.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join("@");
        if !wanted(&row.name) {
            continue;
        }
        if table.rows.iter().any(|other| other.name == row.name) {
            wrong(begin..begin + line.len(), format!("row `{}` was there before", row.name), None);
        }
        for (column, (range, cell)) in columns.iter().zip(cells) {
            match column {
                Column::Setting(_) => {}
                Column::Class => match RowClass::ALL.into_iter().find(|class| class.word() == cell) {
                    Some(class) => row.class = class,
                    None => wrong(range, format!("`{cell}` is not one of stable, knee, overload, max"), None),
                },
                Column::Value(metric) => match cell.parse::<f64>() {
                    // An idle host uses no CPU; nothing else can have been zero.
                    Ok(value)
                        if value > 0.0 && value <= VALUE_MAX || value == 0.0 && *metric == Metric::Cpu =>
                    {
                        row.values.push((*metric, value));
                    }
                    Ok(_) | Err(_) => wrong(range, format!("`{cell}` is not a measured number"), None),
                },
            }
        }
        table.rows.push(row);
        if table.rows.len() > ROWS_MAX {
            mistakes.push(Mistake::new(name, text, begin..begin, format!("more than {ROWS_MAX} rows"), None));
            break;
        }
    }
    if mistakes.is_empty() { Ok(table) } else { Err(Mistakes(mistakes)) }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::scenario_file::{SHIPPED, parse};

    #[test]
    fn the_documents_table_has_all_its_rows_and_the_calibration_names_some_of_them() {
        for shipped in SHIPPED.iter().filter(|shipped| !shipped.measured.is_empty()) {
            let table = measured(shipped.name, shipped.measured, |_| true).unwrap_or_else(|m| panic!("{m}"));
            let calibration =
                parse(shipped.name, shipped.scenario).expect("is read").calibration.expect("has one");
            for name in &calibration.rows {
                assert!(table.rows.iter().any(|row| row.name == *name), "{name} of {}", shipped.name);
            }
            assert!(calibration.rows.len() < table.rows.len());
        }
        let table = measured("t", SHIPPED[0].measured, |_| true).expect("is read");
        assert_eq!(table.rows.len(), 66);
    }

    #[test]
    fn rows_that_are_not_wanted_are_not_read() {
        let text = "delivery.mode\tavg\nsuspend20\t57\nfullbusy\tnot even a number\n";
        let table =
            measured("t.tsv", text, |name| name == "suspend20").expect("the other row is not looked at");
        assert_eq!(table.rows.len(), 1);
        assert_eq!(table.rows[0].value(Metric::Avg), Some(57.0));
        let mistakes = measured("t.tsv", text, |_| true).expect_err("looked at").to_string();
        assert!(mistakes.contains("--> t.tsv:3:10"), "{mistakes}");
    }
}
