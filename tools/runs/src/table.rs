//! Renders the results as a text table: a block per configuration, a line per load.

use std::fmt::Write as _;

use crate::experiment::Results;
use crate::summary::Summary;
use latency::measure::statistics::{Interval, coverage};
use model::machine;

/// A column: its name and its value.
type Column = (&'static str, fn(&Summary) -> Option<&Interval>);

/// All columns. Columns in [`LEGENDS`] are netpolicy's additions and are shown only if they were counted; the
/// others have the names of the NET-policy document.
const COLUMNS: [Column; 17] = [
    ("qps", |row| row.throughput.as_ref()),
    ("avglat", |row| row.avg_us.as_ref()),
    ("95%lat", |row| row.p95_us.as_ref()),
    ("99%lat", |row| row.p99_us.as_ref()),
    (P999, |row| row.p999_us.as_ref()),
    (P9999, |row| row.p9999_us.as_ref()),
    (LATE50, |row| row.late_p50_us.as_ref()),
    (LATE99, |row| row.late_p99_us.as_ref()),
    ("cpu", |row| row.cpu_percent.as_ref()),
    (CPU_TIME, |row| row.cpu_us.as_ref()),
    (CYCLES, |row| row.cycles.as_ref()),
    (IRQS, |row| row.irqs.as_ref()),
    (SWITCHES, |row| row.switches.as_ref()),
    (OWN, |row| row.own_percent.as_ref()),
    (INTERRUPTS, |row| row.interrupts.as_ref()),
    (BATCH, |row| row.batch.as_ref()),
    (EMPTY, |row| row.empty_percent.as_ref()),
];

/// The median and the 99th percentile of the generator's lateness.
pub(crate) const LATE50: &str = "50%late";
pub(crate) const LATE99: &str = "99%late";
/// The percentiles that the NET-policy document does not have.
pub(crate) const P999: &str = "99.9%lat";
pub(crate) const P9999: &str = "99.99%lat";
/// CPU time of the server's CPUs per answer.
pub(crate) const CPU_TIME: &str = "cpu/req";
/// CPU cycles of the server per answer.
pub(crate) const CYCLES: &str = "cyc/req";
/// Interrupts of the server's machine per second.
pub(crate) const IRQS: &str = "irq/s";
/// Context switches of the server's machine per second.
pub(crate) const SWITCHES: &str = "csw/s";
/// The share of its packets that the server polled itself, which shows whether busy polling is engaged.
const OWN: &str = "own";
/// Interrupts of the server's NAPIs per answer.
pub(crate) const INTERRUPTS: &str = "irq/req";
/// Events per `epoll_wait` of the server.
pub(crate) const BATCH: &str = "batch";
/// The share of `epoll_wait` calls that returned no event.
pub(crate) const EMPTY: &str = "empty";

/// Explanations of the columns that netpolicy adds.
const LEGENDS: [(&str, &str); 12] = [
    (P999, ""),
    (P9999, ""),
    (LATE50, LATE_LEGEND),
    (LATE99, ""),
    (CPU_TIME, CPU_TIME_LEGEND),
    (CYCLES, CYCLES_LEGEND),
    (IRQS, IRQS_LEGEND),
    (SWITCHES, SWITCHES_LEGEND),
    (OWN, OWN_LEGEND),
    (INTERRUPTS, INTERRUPTS_LEGEND),
    (BATCH, BATCH_LEGEND),
    (EMPTY, EMPTY_LEGEND),
];

/// Renders the table of an experiment: response times in microseconds, CPU use in percent.
pub fn render(results: &Results) -> String {
    let summaries = Summary::of(results);
    let is_ours = |name: &str| LEGENDS.iter().any(|(ours, _)| *ours == name);
    let shown = |(name, of): &Column| !is_ours(name) || summaries.iter().any(|row| of(row).is_some());
    let columns: Vec<Column> = COLUMNS.into_iter().filter(shown).collect();
    let names: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut text = String::new();
    for label in &results.experiment.labels {
        let rows: Vec<&Summary> = summaries.iter().filter(|s| s.label == *label).collect();
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| columns.iter().map(|(_, of)| number(of(row), row.runs)).collect())
            .collect();
        let width = |column: usize| {
            cells.iter().chain([&names]).map(|cells| cells[column].chars().count()).max().unwrap_or(0)
        };
        let line = |load: &str, cells: &[String], remarks: &str| {
            let mut line = format!("{load:>6}");
            for (column, cell) in cells.iter().enumerate() {
                let pad = width(column) - cell.chars().count();
                let _ = write!(line, "  {}{cell}", " ".repeat(pad));
            }
            format!("{line}  {remarks}").trim_end().to_owned() + "\n"
        };
        text.push_str(label);
        text.push('\n');
        text.push_str(&line("load", &names, ""));
        for (row, cells) in rows.iter().zip(&cells) {
            text.push_str(&line(&row.load.to_string(), cells, &row.remarks().join(", ")));
        }
        text.push('\n');
    }
    text.push_str(&legend(results.experiment.rounds));
    for (name, legend) in LEGENDS {
        if !legend.is_empty() && columns.iter().any(|(shown, _)| *shown == name) {
            text.push_str(legend);
            text.push('\n');
        }
    }
    for line in machine::in_lines(&results.machines) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Explains [`LATE50`] and [`LATE99`].
pub(crate) const LATE_LEGEND: &str = "50%late, 99%late: how long after its due time, or after its connection had room, the client sent a request, in us. \
     It is part of the response times.";

/// Explains [`CPU_TIME`].
pub(crate) const CPU_TIME_LEGEND: &str =
    "cpu/req: busy time of the server's CPUs for each answer, in us, by /proc/stat.";

/// Explains [`CYCLES`].
pub(crate) const CYCLES_LEGEND: &str = "cyc/req: CPU cycles of the server for each answer, by perf counters.";

/// Explains [`IRQS`].
pub(crate) const IRQS_LEGEND: &str = "irq/s: interrupts of the server's machine per second, timers included.";

/// Explains [`SWITCHES`].
pub(crate) const SWITCHES_LEGEND: &str = "csw/s: context switches of the server's machine per second.";

/// Explains [`OWN`].
pub(crate) const OWN_LEGEND: &str =
    "own: the percentage of its packets that the server polled itself, instead of softirqs.";

/// Explains [`INTERRUPTS`].
pub(crate) const INTERRUPTS_LEGEND: &str = "irq/req: how often the server's NAPIs were polled after an interrupt (on a veth, a \
     softirq of the sender) for each answer.";

/// Explains [`BATCH`].
pub(crate) const BATCH_LEGEND: &str =
    "batch: the average number of events per epoll_wait of the server that returned any.";

/// Explains [`EMPTY`].
pub(crate) const EMPTY_LEGEND: &str = "empty: the percentage of its epoll_waits that returned nothing.";

/// Explains the numbers.
pub(crate) fn legend(rounds: u32) -> String {
    let runs = rounds as usize;
    if runs < 2 {
        return "One run each, response times in us from when each request was due, cpu in percent of the server's \
                CPUs.\nNo interval can be computed from a single run: the error of these numbers is unknown.\n"
            .to_owned();
    }
    format!(
        "Medians of {rounds} runs, response times in us from when each request was due, cpu in percent of the \
         server's CPUs.\n± is the wider side of the interval that contains the true median with {:.0} % (order \
         statistics).\n",
        coverage(runs) * 100.0
    )
}

/// Whether rounding to one decimal place would hide the value.
fn is_small(estimate: f64) -> bool {
    estimate > 0.0 && estimate < 0.095
}

/// Formats an estimate and the half-width of its interval over this many runs, as `ESTIMATE ±HALF-WIDTH`,
/// with as many digits as the estimate's magnitude needs. A single run has no `±`.
pub(crate) fn number(interval: Option<&Interval>, runs: usize) -> String {
    match interval {
        None => "-".to_owned(),
        Some(i) if runs < 2 && is_small(i.estimate) => format!("{:.4}", i.estimate),
        Some(i) if is_small(i.estimate) => format!("{:.4} ±{:.4}", i.estimate, i.half_width()),
        Some(i) if runs < 2 && i.estimate < 9.95 => format!("{:.1}", i.estimate),
        Some(i) if runs < 2 => format!("{:.0}", i.estimate),
        Some(i) if i.estimate < 9.95 => format!("{:.1} ±{:.1}", i.estimate, i.half_width()),
        Some(i) => format!("{:.0} ±{:.0}", i.estimate, i.half_width()),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::experiment::Experiment;
    use crate::test_evidence;
    use model::{CpuUse, Distribution, Evidence, Nanoseconds, OfferedLoad};

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
        Results::new(experiment, evidence)
    }

    #[test]
    fn the_table_reads_as_the_documents() {
        let expected = "\
base
  load       qps    avglat  95%lat  99%lat    cpu  cpu/req
   20K  10000 ±0  8.2 ±0.0  105 ±5  105 ±5  40 ±0    40 ±0  1 of 3 runs void
   MAX  10000 ±0  8.2 ±0.0  105 ±5  105 ±5  40 ±0    40 ±0  1 of 3 runs void

suspend20
  load       qps    avglat   95%lat   99%lat    cpu  cpu/req
   20K  10000 ±0  8.2 ±0.0  110 ±10  110 ±10  40 ±0    40 ±0
   MAX  10000 ±0  8.2 ±0.0  110 ±10  110 ±10  40 ±0    40 ±0

Medians of 3 runs, response times in us from when each request was due, cpu in percent of the server's CPUs.
± is the wider side of the interval that contains the true median with 75 % (order statistics).
cpu/req: busy time of the server's CPUs for each answer, in us, by /proc/stat.
";
        assert_eq!(render(&results()), expected);
    }

    #[test]
    fn cells_of_an_interrupted_experiment_say_how_many_runs_were_made() {
        let mut results = results();
        results.evidence.truncate(5);
        let text = render(&results);
        let remarks = |of: &str| text.lines().filter(|line| line.ends_with(of)).count();
        assert_eq!((remarks("  1 of 3 runs made"), remarks("  2 of 3 runs made")), (3, 1), "{text}");
    }

    #[test]
    fn a_single_run_has_no_interval_and_says_so() {
        let mut results = results();
        results.experiment.rounds = 1;
        results.evidence.truncate(4);
        let expected = "\
base
  load    qps  avglat  95%lat  99%lat  cpu  cpu/req
   20K  10000     8.2     100     100   40       40
   MAX  10000     8.2     100     100   40       40

suspend20
  load    qps  avglat  95%lat  99%lat  cpu  cpu/req
   20K  10000     8.2     100     100   40       40
   MAX  10000     8.2     100     100   40       40

One run each, response times in us from when each request was due, cpu in percent of the server's CPUs.
No interval can be computed from a single run: the error of these numbers is unknown.
cpu/req: busy time of the server's CPUs for each answer, in us, by /proc/stat.
";
        assert_eq!(render(&results), expected);
    }

    #[test]
    fn how_late_the_client_sent_stands_next_to_the_response_times_and_not_in_closed_loop() {
        let mut results = results();
        for run in &mut results.evidence {
            let (p50, p99) = (Nanoseconds::from_micros(18), Nanoseconds::from_micros(60));
            run.generator_lateness = Distribution { count: 1, p50, p99, ..Distribution::default() };
        }
        let text = render(&results);
        assert!(
            text.contains("  load       qps    avglat  95%lat  99%lat  50%late  99%late    cpu  cpu/req\n"),
            "{text}"
        );
        assert!(
            text.contains("   20K  10000 ±0  8.2 ±0.0  105 ±5  105 ±5    18 ±0    60 ±0  40 ±0    40 ±0"),
            "{text}"
        );
        assert!(
            text.contains("   MAX  10000 ±0  8.2 ±0.0  105 ±5  105 ±5        -        -  40 ±0    40 ±0"),
            "{text}"
        );
        assert!(text.contains(&format!("\n{LATE_LEGEND}\n")), "{text}");
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
            run.interrupts_per_request = Some(0.0042);
        }
        let text = render(&results);
        assert!(
            text.contains(
                "  load       qps    avglat   95%lat   99%lat    cpu  cpu/req    own         irq/req\n"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "   20K  10000 ±0  8.2 ±0.0  110 ±10  110 ±10  40 ±0    40 ±0  90 ±0  0.0042 ±0.0000\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("instead of softirqs.\nirq/req: ") && text.ends_with("for each answer.\n"),
            "{text}"
        );
    }

    #[test]
    fn where_the_server_was_counted_the_table_says_how_many_events_a_wait_found() {
        let mut results = results();
        for run in results.evidence.iter_mut().filter(|run| run.label == "base") {
            let found = model::EpollBatch { waits: 90, empty: 10, avg: 2.5, max: 7, sizes: None };
            run.epoll_batch = Some(found);
        }
        let text = render(&results);
        assert!(text.contains("    cpu  cpu/req     batch  empty\n"), "{text}");
        assert!(
            text.contains(
                "   20K  10000 ±0  8.2 ±0.0  105 ±5  105 ±5  40 ±0    40 ±0  2.5 ±0.0  10 ±0  1 of"
            ),
            "{text}"
        );
        assert!(
            text.contains("   20K  10000 ±0  8.2 ±0.0  110 ±10  110 ±10  40 ±0    40 ±0      -      -\n"),
            "{text}"
        );
        assert!(text.contains("that returned any.\nempty: "), "{text}");
    }

    #[test]
    fn what_was_counted_has_columns_and_percentiles_that_enough_answers_exceed() {
        let mut results = results();
        for run in &mut results.evidence {
            run.latency.count = if run.label == "base" { 9_999 } else { 10_000 };
            run.latency.p999 = Nanoseconds::from_micros(700);
            run.latency.p9999 = Some(Nanoseconds::from_micros(900));
            run.cycles_per_request = Some(52_000.0);
            run.counters = Some(model::CounterRates {
                irqs: 27_000.0,
                context_switches: 31_000.0,
                softirqs: std::collections::BTreeMap::new(),
                busy_poll_rx_packets: None,
                napi_polls: None,
            });
        }
        let text = render(&results);
        let columns = "99%lat  99.9%lat  99.99%lat    cpu  cpu/req   cyc/req     irq/s     csw/s\n";
        assert!(text.contains(columns), "{text}");
        assert!(
            text.contains("    700 ±0     900 ±0  40 ±0    40 ±0  52000 ±0  27000 ±0  31000 ±0\n"),
            "{text}"
        );
        let base = "    700 ±0          -  40 ±0    40 ±0  52000 ±0  27000 ±0  31000 ±0  1 of 3 runs void\n";
        assert!(text.contains(base), "9999 answers do not determine the 99.99th percentile: {text}");
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
