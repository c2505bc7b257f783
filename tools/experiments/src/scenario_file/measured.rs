//! A table of measured rows: tab-separated, with headings.
//!
//! A heading with a dot is a key of the scenario; its value is set before a row is simulated. The other
//! headings are measured metrics. A row's name consists of its keys' values, joined by `@`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use model::OfferedLoad;
use policy_file::{Mistake, Mistakes, nearest};
use sim::Scenario;

use super::nearest_key;

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredTable {
    /// The rows.
    pub rows: Vec<MeasuredRow>,
    /// The omitted rows, with the reasons.
    pub notes: Vec<String>,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRow {
    /// The name: `suspend20@200K`.
    pub name: String,
    /// The keys to set in the scenario.
    pub settings: Vec<(String, String)>,
    /// The part of the load curve that the row belongs to.
    pub class: RowClass,
    /// The measured values.
    pub values: Vec<(Metric, f64)>,
}

impl MeasuredRow {
    /// A measured value.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        self.values.iter().find(|(other, _)| *other == metric).map(|(_, value)| *value)
    }

    /// Adds a measured value, unless it contradicts an existing one: a percentile cannot be below a lower
    /// percentile.
    pub(crate) fn add(&mut self, metric: Metric, value: f64) -> Result<(), String> {
        if let Some(place) = metric.percentile() {
            for &(other, theirs) in &self.values {
                let wrong = match other.percentile() {
                    Some(their_place) if their_place < place => value < theirs,
                    Some(their_place) => their_place > place && value > theirs,
                    None => false,
                };
                if wrong {
                    let (one, two) = (metric.word(), other.word());
                    return Err(format!("{one} cannot be {value} if {two} is {theirs}"));
                }
            }
        }
        self.values.push((metric, value));
        Ok(())
    }
}

/// A row's position on the load curve, as classified by its author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowClass {
    /// The server keeps up.
    Stable,
    /// The server barely keeps up; runs differ from each other.
    Knee,
    /// The server does not keep up.
    Overload,
    /// A closed loop.
    Max,
}

impl RowClass {
    /// All classes, in the order of the load.
    pub const ALL: [Self; 4] = [Self::Stable, Self::Knee, Self::Overload, Self::Max];

    /// The name in a table.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Knee => "knee",
            Self::Overload => "overload",
            Self::Max => "max",
        }
    }
}

/// A metric that can be measured and predicted.
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
    /// 99.99th percentile.
    P9999,
    /// Busy share of the CPUs in percent.
    Cpu,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Self; 9] = [
        Self::Qps,
        Self::Avg,
        Self::P50,
        Self::P90,
        Self::P95,
        Self::P99,
        Self::P999,
        Self::P9999,
        Self::Cpu,
    ];

    /// The name in a table.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Qps => "qps",
            Self::Avg => "avg",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::P999 => "p999",
            Self::P9999 => "p9999",
            Self::Cpu => "cpu",
        }
    }

    /// Returns whether the value is possible: an idle host uses no CPU, but no other metric can be zero.
    pub(crate) fn can_be(self, value: f64) -> bool {
        match self {
            Self::Cpu => (0.0..=100.0).contains(&value),
            Self::Qps
            | Self::Avg
            | Self::P50
            | Self::P90
            | Self::P95
            | Self::P99
            | Self::P999
            | Self::P9999 => (VALUE_MIN..=VALUE_MAX).contains(&value),
        }
    }

    /// Describes those bounds.
    pub(crate) fn bounds(self) -> String {
        match self {
            Self::Cpu => "from 0 to 100 percent".to_owned(),
            _ => format!("from {VALUE_MIN} to 10^{:.0} {}", VALUE_MAX.log10(), self.unit()),
        }
    }

    /// Returns the percentile in ten-thousandths.
    const fn percentile(self) -> Option<u32> {
        match self {
            Self::Qps | Self::Avg | Self::Cpu => None,
            Self::P50 => Some(5_000),
            Self::P90 => Some(9_000),
            Self::P95 => Some(9_500),
            Self::P99 => Some(9_900),
            Self::P999 => Some(9_990),
            Self::P9999 => Some(9_999),
        }
    }

    /// The unit.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Qps => "answers per second",
            Self::Avg | Self::P50 | Self::P90 | Self::P95 | Self::P99 | Self::P999 | Self::P9999 => {
                "microseconds"
            }
            Self::Cpu => "percent of the time of all CPUs",
        }
    }
}

/// The lowest and the highest possible measured value.
const VALUE_MIN: f64 = 0.001;
const VALUE_MAX: f64 = 1e12;

/// The maximum number of rows in a table.
pub(crate) const ROWS_MAX: usize = 10_000;
/// Reading stops after this many mistakes.
const MISTAKES_MAX: usize = 100;
/// The maximum number of characters quoted from a cell.
const QUOTED_CHARS_MAX: usize = 60;

const TABS: &str = "columns are separated by tabs";

enum Column {
    Setting(String),
    Class,
    Value(Metric),
}

/// A cell with its position in the text.
type Placed<'a> = (Range<usize>, &'a str);

/// Reads a table of rows for a scenario; of the rows that `wanted` rejects, only the name is read.
///
/// # Errors
/// The mistakes of the text, each with its place.
pub fn measured(
    name: &str,
    text: &str,
    scenario: &Scenario,
    wanted: impl Fn(&str) -> bool,
) -> Result<MeasuredTable, Mistakes> {
    let mut reader = Reader {
        name,
        text,
        scenario,
        table: MeasuredTable::default(),
        points: BTreeMap::new(),
        mistakes: Vec::new(),
    };
    let mut columns: Option<Vec<Column>> = None;
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let begin = offset;
        offset += line.len();
        let line = line.trim_end_matches(['\n', '\r']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut at = begin;
        let cells = line.split('\t').map(|cell| {
            let range = at..at + cell.len();
            at += cell.len() + 1;
            (range, cell)
        });
        let whole = begin..begin + line.len();
        match &columns {
            Some(columns) => reader.row(columns, whole, &cells.collect::<Vec<_>>(), &wanted),
            None => {
                columns = Some(reader.heading(whole, cells));
                if !reader.mistakes.is_empty() {
                    break;
                }
            }
        }
        if reader.table.rows.len() > ROWS_MAX {
            reader.wrong(begin..begin, format!("more than {ROWS_MAX} rows"), None);
            break;
        }
        if reader.mistakes.len() >= MISTAKES_MAX {
            break;
        }
    }
    if reader.mistakes.is_empty() { Ok(reader.table) } else { Err(Mistakes(reader.mistakes)) }
}

struct Reader<'a> {
    name: &'a str,
    text: &'a str,
    scenario: &'a Scenario,
    table: MeasuredTable,
    /// The names of its rows, by their settings.
    points: BTreeMap<String, String>,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    fn wrong(&mut self, at: Range<usize>, message: String, help: Option<String>) {
        self.mistakes.push(Mistake::new(self.name, self.text, at, message, help));
    }

    fn heading<'a>(&mut self, line: Range<usize>, cells: impl Iterator<Item = Placed<'a>>) -> Vec<Column> {
        let mut columns = Vec::new();
        let mut seen = BTreeSet::new();
        for (range, cell) in cells {
            let quoted = quoted(cell);
            if !seen.insert(cell) {
                self.wrong(range, format!("heading `{quoted}` occurs twice"), None);
            } else if Scenario::has_key(cell) {
                columns.push(Column::Setting(cell.to_owned()));
            } else if cell == "class" {
                columns.push(Column::Class);
            } else if let Some(metric) = Metric::ALL.into_iter().find(|metric| metric.word() == cell) {
                columns.push(Column::Value(metric));
            } else {
                let help = match cell.contains(' ') {
                    true => Some(TABS.to_owned()),
                    false => nearest(cell, Metric::ALL.map(Metric::word).into_iter().chain(["class"]))
                        .map(str::to_owned)
                        .or_else(|| nearest_key(cell))
                        .map(|meant| format!("did you mean `{meant}`?")),
                };
                let message = format!("`{quoted}` is neither a key of a scenario nor a measured quantity");
                self.wrong(range, message, help);
            }
            if self.mistakes.len() >= MISTAKES_MAX {
                break;
            }
        }
        if self.mistakes.is_empty() {
            if !columns.iter().any(|column| matches!(column, Column::Setting(_))) {
                let help = "as in clients.load".to_owned();
                self.wrong(
                    line,
                    "no column is a key of a scenario, so rows have no names".to_owned(),
                    Some(help),
                );
            } else if !columns.iter().any(|column| matches!(column, Column::Value(_))) {
                let help = format!("expected {}", Metric::ALL.map(Metric::word).join(", "));
                self.wrong(line, "no column is a measured quantity".to_owned(), Some(help));
            }
        }
        columns
    }

    fn row(
        &mut self,
        columns: &[Column],
        line: Range<usize>,
        cells: &[Placed<'_>],
        wanted: impl Fn(&str) -> bool,
    ) {
        if cells.len() != columns.len() {
            let message = format!("{} cells under {} headings", cells.len(), columns.len());
            return self.wrong(line, message, (cells.len() == 1).then(|| TABS.to_owned()));
        }
        let of_settings = || {
            columns.iter().zip(cells).filter_map(|(column, cell)| match column {
                Column::Setting(key) => Some((key.as_str(), cell)),
                Column::Class | Column::Value(_) => None,
            })
        };
        let name = of_settings().map(|(_, (_, value))| *value).collect::<Vec<_>>().join("@");
        if !wanted(&name) {
            return;
        }
        if self.points.values().any(|other| *other == name) {
            let message = format!("row `{}` occurs twice", quoted(&name));
            return self.wrong(line, message, None);
        }
        let mut scenario = self.scenario.clone();
        if let Err((place, refused)) = scenario.set_all(of_settings().map(|(key, (_, value))| (key, *value)))
        {
            let at = of_settings().nth(place).map_or(line, |(_, (range, _))| range.clone());
            return self.wrong(at, refused.to_string(), None);
        }
        if let Err(impossible) = scenario.check() {
            return self.wrong(line, impossible.to_string(), None);
        }
        if let Some(other) = self.points.insert(scenario.hash(), name.clone()) {
            let message = format!("row `{}` is the same as `{}`", quoted(&name), quoted(&other));
            return self.wrong(line, message, None);
        }
        let closed = scenario.clients.load == OfferedLoad::Max;
        let mut row = MeasuredRow {
            name,
            settings: of_settings().map(|(key, (_, value))| (key.to_owned(), (*value).to_owned())).collect(),
            class: if closed { RowClass::Max } else { RowClass::Stable },
            values: Vec::new(),
        };
        for (column, (range, cell)) in columns.iter().zip(cells) {
            let stored = match column {
                Column::Setting(_) => Ok(()),
                Column::Class => class(cell, closed).map(|class| row.class = class),
                Column::Value(metric) => number(*metric, cell).and_then(|value| row.add(*metric, value)),
            };
            if let Err(message) = stored {
                self.wrong(range.clone(), message, None);
            }
        }
        self.table.rows.push(row);
    }
}

fn class(cell: &str, closed: bool) -> Result<RowClass, String> {
    let class = RowClass::ALL.into_iter().find(|class| class.word() == cell);
    let class =
        class.ok_or_else(|| format!("`{}` is not one of stable, knee, overload, max", quoted(cell)))?;
    match (class, closed) {
        (RowClass::Max, false) => Err("`max` is a closed loop, and this row has a load".to_owned()),
        (RowClass::Stable | RowClass::Knee | RowClass::Overload, true) => {
            Err(format!("the load of this row is a closed loop, whose class is `max`, not `{cell}`"))
        }
        _ => Ok(class),
    }
}

fn number(metric: Metric, cell: &str) -> Result<f64, String> {
    let value = cell.parse::<f64>().ok().filter(|value| metric.can_be(*value));
    value.ok_or_else(|| {
        format!("`{}` is not a measured number: {} is {}", quoted(cell), metric.word(), metric.bounds())
    })
}

/// Truncates a text for quoting.
fn quoted(text: &str) -> String {
    let mut quoted: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    if quoted.len() < text.len() {
        quoted.push('…');
    }
    quoted
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::scenario_file::{SHIPPED, parse};

    #[test]
    fn the_documents_table_has_all_its_rows_and_the_calibration_names_some_of_them() {
        for shipped in SHIPPED.iter().filter(|shipped| !shipped.measured.is_empty()) {
            let file = parse(shipped.name, shipped.scenario).expect("is read");
            let table = measured(shipped.name, shipped.measured, &file.scenario, |_| true)
                .unwrap_or_else(|m| panic!("{m}"));
            let calibration = file.calibration.expect("has one");
            for name in &calibration.rows {
                assert!(table.rows.iter().any(|row| row.name == *name), "{name} of {}", shipped.name);
            }
            assert!(calibration.rows.len() < table.rows.len());
        }
        let table = measured("t", SHIPPED[0].measured, &Scenario::default(), |_| true).expect("is read");
        assert_eq!(table.rows.len(), 66);
    }

    #[test]
    fn rows_that_are_not_wanted_are_not_read() {
        let text = "delivery.mode\tavg\nsuspend20\t57\nfullbusy\tnot even a number\n";
        let table = measured("t.tsv", text, &Scenario::default(), |name| name == "suspend20")
            .expect("the other row is not read");
        assert_eq!(table.rows.len(), 1);
        assert_eq!(table.rows[0].value(Metric::Avg), Some(57.0));
        let mistakes =
            measured("t.tsv", text, &Scenario::default(), |_| true).expect_err("looked at").to_string();
        assert!(mistakes.contains("--> t.tsv:3:10"), "{mistakes}");
    }

    #[test]
    fn a_table_says_nothing_that_cannot_be_and_nothing_twice() {
        let mistakes = |text: &str| {
            let read = measured("t.tsv", text, &Scenario::default(), |_| true);
            read.expect_err(text).to_string()
        };
        let row = |cells: &str| mistakes(&format!("clients.load\tclass\tqps\tp50\tp99\tcpu\n{cells}\n"));
        for (printed, words) in [
            (mistakes("clients.load\tavg\tavg\n"), "heading `avg` occurs twice\n --> t.tsv:1:18"),
            (mistakes("delivery.mod\tavg\n"), "did you mean `delivery.mode`?"),
            (mistakes("avg\n"), "rows have no names"),
            (mistakes("clients.load\tclass\n"), "no column is a measured quantity"),
            (row("20K\tstable\t0\t1\t1\t1"), "`0` is not a measured number: qps is from 0.001 to 10^12"),
            (row("20K\tstable\tnan\t1\t1\t1"), "`nan` is not a measured number"),
            (row("20K\tstable\t1\t1e300\t1\t1"), "`1e300` is not a measured number"),
            (
                row("20K\tstable\t1\t1\t1\t250"),
                "`250` is not a measured number: cpu is from 0 to 100 percent",
            ),
            (row("20K\tstable\t1\t9\t8.5\t0"), "p99 cannot be 8.5 if p50 is 9\n --> t.tsv:2:16"),
            (row("20K\tmax\t1\t1\t1\t1"), "`max` is a closed loop, and this row has a load"),
            (row("max\tstable\t1\t1\t1\t1"), "whose class is `max`, not `stable`"),
            (row("fast\tstable\t1\t1\t1\t1"), "`fast` is not a load"),
            (mistakes("clients.load\tavg\n20K\t50\n20000\t51\n"), "row `20000` is the same as `20K`"),
            (mistakes("clients.load\tavg\n20K\t50\n20K\t51\n"), "row `20K` occurs twice\n --> t.tsv:3:1"),
            (row("20K\tstable\t1"), "3 cells under 6 headings"),
        ] {
            assert!(printed.contains(words), "{words}\nin\n{printed}");
        }
        let impossible = mistakes("hardware.cpus\tavg\n4\t50\n");
        assert!(impossible.contains("there is no CPU 4: hardware.cpus = 4\n --> t.tsv:2:1"), "{impossible}");
    }

    #[test]
    fn without_a_column_for_it_a_closed_loop_is_max_and_everything_else_stable() {
        let text = "clients.load\tavg\n20K\t50\nmax\t50\n";
        let table = measured("t.tsv", text, &Scenario::default(), |_| true).expect("is read");
        assert_eq!([table.rows[0].class, table.rows[1].class], [RowClass::Stable, RowClass::Max]);
    }

    #[test]
    fn something_else_than_a_table_is_neither_echoed_whole_nor_read_to_its_end() {
        for text in ["x".repeat(1 << 17), "a b\t".repeat(1 << 15), "clients.load\tavg\n1\n".repeat(1 << 13)] {
            let mistakes = measured("t.tsv", &text, &Scenario::default(), |_| true).expect_err("no table");
            assert!(
                mistakes.0.len() <= MISTAKES_MAX + 1 && mistakes.to_string().len() < 20_000,
                "{}",
                mistakes.0.len()
            );
        }
    }
}
