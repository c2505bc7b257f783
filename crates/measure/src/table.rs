//! The document's table: per configuration a block, per load a line, as text.

use std::fmt::Write as _;

use crate::experiment::Results;
use crate::statistics::{Interval, coverage};
use crate::summary::Summary;

/// The columns, as the document names them; the last one is ours.
const COLUMNS: [&str; 6] = ["qps", "avglat", "95%lat", "99%lat", "cpu", OWN];

/// The share of its packets that the server polled for itself: whether busy polling is in force.
const OWN: &str = "own";

/// The table of an experiment, response times in microseconds, CPU use in percent.
pub fn render(results: &Results) -> String {
    let summaries = Summary::of(results);
    let counted = summaries.iter().any(|row| row.own_percent.is_some());
    let columns = if counted { COLUMNS.len() } else { COLUMNS.len() - 1 };
    let mut text = String::new();
    for label in &results.experiment.labels {
        let rows: Vec<&Summary> = summaries.iter().filter(|s| s.label == *label).collect();
        let cells: Vec<[String; 6]> = rows.iter().map(|s| cells(s)).collect();
        let width = |column: usize| {
            cells.iter().map(|c| c[column].chars().count()).chain([COLUMNS[column].len()]).max().unwrap_or(0)
        };
        let line = |load: &str, cells: &[String; 6], remarks: &str| {
            let mut line = format!("{load:>6}");
            for (column, cell) in cells.iter().enumerate().take(columns) {
                let pad = width(column) - cell.chars().count();
                let _ = write!(line, "  {}{cell}", " ".repeat(pad));
            }
            format!("{line}  {remarks}").trim_end().to_owned() + "\n"
        };
        text.push_str(label);
        text.push('\n');
        text.push_str(&line("load", &COLUMNS.map(str::to_owned), ""));
        for (row, cells) in rows.iter().zip(&cells) {
            text.push_str(&line(&row.load.to_string(), cells, &row.remarks().join(", ")));
        }
        text.push('\n');
    }
    text.push_str(&legend(results.experiment.rounds));
    if counted {
        text.push_str(OWN_LEGEND);
        text.push('\n');
    }
    text
}

/// What [`OWN`] means, in a sentence.
pub(crate) const OWN_LEGEND: &str =
    "own: how many percent of its packets the server polled for itself, instead of softirqs.";

/// What the numbers are, in a sentence.
pub(crate) fn legend(rounds: u32) -> String {
    let runs = rounds as usize;
    format!(
        "Medians of {rounds} runs, response times in us from when each request was due, cpu in percent of the \
         server's CPUs.\n± is the wider side of the interval that holds the true median with {:.0} % (order \
         statistics).\n",
        coverage(runs) * 100.0
    )
}

fn cells(row: &Summary) -> [String; 6] {
    [
        number(row.throughput.as_ref()),
        number(row.avg_us.as_ref()),
        number(row.p95_us.as_ref()),
        number(row.p99_us.as_ref()),
        number(row.cpu_percent.as_ref()),
        number(row.own_percent.as_ref()),
    ]
}

/// An estimate and its reach, in as many digits as the estimate's size deserves.
pub(crate) fn number(interval: Option<&Interval>) -> String {
    match interval {
        None => "-".to_owned(),
        Some(i) if i.estimate < 9.95 => format!("{:.1} ±{:.1}", i.estimate, i.half_width()),
        Some(i) => format!("{:.0} ±{:.0}", i.estimate, i.half_width()),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::experiment::Experiment;
    use crate::test_evidence;
    use model::{CpuUse, Distribution, Evidence, Nanoseconds, OfferedLoad, Schema};

    fn results() -> Results {
        let loads = vec![OfferedLoad::PerSecond(20_000.0), OfferedLoad::Max];
        let labels = vec!["base".to_owned(), "suspend20".to_owned()];
        let mut evidence = Vec::new();
        for round in 0..3_u64 {
            for label in &labels {
                for &load in &loads {
                    let us = Nanoseconds::from_micros(100 + round * 10);
                    let latency = Distribution { avg: 8_250.0, p95: us, p99: us, ..Distribution::default() };
                    let cpu = Some(CpuUse { cpus: 1, user: 0.4, idle: 0.6, ..CpuUse::default() });
                    let void = (label == "base" && round == 2).then(|| "the generator was late".to_owned());
                    evidence.push(Evidence {
                        label: label.clone(),
                        load,
                        latency,
                        cpu,
                        void,
                        ..test_evidence()
                    });
                }
            }
        }
        let experiment = Experiment { labels, loads, rounds: 3, seed: 1 };
        Results { schema: Schema, experiment, evidence }
    }

    #[test]
    fn the_table_reads_as_the_documents() {
        let expected = "\
base
  load       qps    avglat  95%lat  99%lat    cpu
   20K  10000 ±0  8.2 ±0.0  105 ±5  105 ±5  40 ±0  1 of 3 runs void
   MAX  10000 ±0  8.2 ±0.0  105 ±5  105 ±5  40 ±0  1 of 3 runs void

suspend20
  load       qps    avglat   95%lat   99%lat    cpu
   20K  10000 ±0  8.2 ±0.0  110 ±10  110 ±10  40 ±0
   MAX  10000 ±0  8.2 ±0.0  110 ±10  110 ±10  40 ±0

Medians of 3 runs, response times in us from when each request was due, cpu in percent of the server's CPUs.
± is the wider side of the interval that holds the true median with 75 % (order statistics).
";
        assert_eq!(render(&results()), expected);
    }

    #[test]
    fn where_polls_were_counted_the_table_says_who_made_them() {
        let mut results = results();
        let packets = |packets| model::PollCounts { polls: 1, packets, empty: 0 };
        let napi = model::NapiDelivered {
            napi: model::NapiId(300),
            device: "eth0".to_owned(),
            interrupt: packets(100),
            timer: packets(0),
            application: packets(900),
            kthread: packets(0),
            by_process: Vec::new(),
            timer_armed: 0,
            timer_expired: 0,
            timer_armed_max: Nanoseconds(0),
            suspended: 0,
        };
        for run in results.evidence.iter_mut().filter(|run| run.label == "suspend20") {
            run.delivered =
                Some(model::Delivered { napis: vec![napi.clone()], ..model::Delivered::default() });
        }
        let text = render(&results);
        assert!(text.contains("  load       qps    avglat   95%lat   99%lat    cpu    own\n"), "{text}");
        assert!(text.contains("   20K  10000 ±0  8.2 ±0.0  110 ±10  110 ±10  40 ±0  90 ±0\n"), "{text}");
        assert!(text.ends_with("instead of softirqs.\n"), "{text}");
    }

    #[test]
    fn a_cell_without_runs_that_count_shows_none() {
        let mut results = results();
        for run in &mut results.evidence {
            run.void = Some("the generator was late".to_owned());
        }
        assert!(
            render(&results).contains("   20K    -       -       -       -    -  3 of 3 runs void\n"),
            "{}",
            render(&results)
        );
    }
}
