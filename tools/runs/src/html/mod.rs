//! Renders the report of an experiment: a self-contained HTML file without scripts.
//!
//! It shows response times over load (99th percentile and median, logarithmic), CPU use over load, the table,
//! every option and every void run. Colours are distinguishable for colour-blind readers; dash patterns and
//! marker shapes serve black-and-white print. Light or dark mode follows the reader's setting.

mod chart;
mod compare;
mod grid;
mod style;
mod watch;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use model::{Evidence, MeasuredOn, Origin, machine};

use crate::experiment::Results;
use crate::summary::Summary;
use crate::table;
use latency::measure::statistics::Interval;

use chart::{Axis, Chart};
use session::page::drawing::{CSS, Escaped};
use style::{SeriesStyle, styles};

pub use compare::{CompareChart, ComparePoint, html_of_compare};
pub use grid::html_of_grid;
pub use watch::{Mark, POINTS_MAX, WatchPoint, html_of_watch};

/// Renders the report as HTML.
pub fn html_of_results(title: &str, results: &Results) -> String {
    let summaries = Summary::of(results);
    let styles = styles(&results.experiment.labels);
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{css}{hover}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n<p class=\"where\">{place}</p>\n",
        title = Escaped(title),
        css = CSS,
        hover = style::hover(styles.len()),
        place = Escaped(&place(results)),
    );
    for line in machine::in_lines(&results.machines) {
        let _ = writeln!(page, "<p>{}</p>", Escaped(&line));
    }
    legend(&mut page, &styles);
    page.push_str("<div class=\"charts\">\n");
    for chart in charts(&summaries) {
        page.push_str(&chart.svg(&styles));
    }
    how_to_read(&mut page, results);
    page.push_str("</div>\n");
    table(&mut page, &summaries, &styles);
    voids(&mut page, results);
    options(&mut page, results);
    page.push_str("</body>\n</html>\n");
    page
}

fn place(results: &Results) -> String {
    let describe = |run: &Evidence| match &run.origin {
        Origin::Measured(MeasuredOn { host, kernel, machine, server, .. }) => {
            format!("Measured on {host}, Linux {kernel}, {machine}; server: {server}.")
        }
        Origin::Simulated(from) => format!("Simulated, not measured: scenario {}.", from.scenario),
    };
    let places: BTreeSet<String> = results.evidence.iter().map(describe).collect();
    if places.is_empty() {
        "The experiment has no runs.".to_owned()
    } else {
        Vec::from_iter(places).join(" ")
    }
}

fn charts(summaries: &[Summary]) -> Vec<Chart<'_>> {
    let chart =
        |title, unit, axis, y: fn(&Summary) -> Option<Interval>| Chart { title, unit, axis, y, summaries };
    let mut charts = vec![
        chart("99th percentile of response times", "µs", Axis::Logarithmic, |s| s.p99_us),
        chart("Median response time", "µs", Axis::Logarithmic, |s| s.p50_us),
    ];
    if summaries.iter().any(|s| s.cpu_percent.is_some()) {
        charts.push(chart("CPU use of the server's CPUs", "%", Axis::Percent, |s| s.cpu_percent));
    }
    charts
}

fn legend(page: &mut String, styles: &[SeriesStyle]) {
    page.push_str("<ul class=\"legend\">\n");
    for (index, style) in styles.iter().enumerate() {
        let _ = writeln!(
            page,
            "<li class=\"s s{index} {colour}\"><svg width=\"44\" height=\"14\" aria-hidden=\"true\">\
             <path class=\"line\" d=\"M2 7H42\" stroke-dasharray=\"{dash}\"/>{marker}</svg>{label}</li>",
            colour = style.colour,
            dash = style.dash,
            marker = style.marker.svg(22.0, 7.0, false),
            label = Escaped(&style.label),
        );
    }
    page.push_str("</ul>\n");
}

fn how_to_read(page: &mut String, results: &Results) {
    let _ = writeln!(
        page,
        "<p class=\"note\">{} Whiskers are the same intervals. Hollow marks: closed loop (MAX), or the server did not \
         keep up with the load, so that response times grow with the length of the run. Marks that would overlap are drawn slightly apart. Hover over a name to see only its lines, over a mark for its numbers.</p>",
        Escaped(table::legend(results.experiment.rounds).trim_end())
    );
}

fn table(page: &mut String, summaries: &[Summary], styles: &[SeriesStyle]) {
    page.push_str("<h2>Table</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>configuration<th>load");
    for column in [
        "qps",
        "avglat",
        "50%lat",
        "95%lat",
        "99%lat",
        table::P999,
        table::P9999,
        table::LATE50,
        table::LATE99,
        "cpu",
        table::CPU_TIME,
        table::CYCLES,
        table::IRQS,
        table::SWITCHES,
        "own",
        table::INTERRUPTS,
        table::BATCH,
        table::EMPTY,
    ] {
        let _ = write!(page, "<th>{column}<small></small>");
    }
    page.push_str("<th></tr></thead>\n");
    for (index, style) in styles.iter().enumerate() {
        page.push_str("<tbody>\n");
        let rows: Vec<&Summary> = summaries.iter().filter(|s| s.label == style.label).collect();
        for (row, summary) in rows.iter().enumerate() {
            page.push_str("<tr>");
            if row == 0 {
                let _ = write!(
                    page,
                    "<th rowspan=\"{}\" class=\"s s{index} {}\"><span>{}</span>",
                    rows.len(),
                    style.colour,
                    Escaped(&style.label)
                );
            }
            let _ = write!(page, "<td>{}", summary.load);
            for number in [
                &summary.throughput,
                &summary.avg_us,
                &summary.p50_us,
                &summary.p95_us,
                &summary.p99_us,
                &summary.p999_us,
                &summary.p9999_us,
                &summary.late_p50_us,
                &summary.late_p99_us,
                &summary.cpu_percent,
                &summary.cpu_us,
                &summary.cycles,
                &summary.irqs,
                &summary.switches,
                &summary.own_percent,
                &summary.interrupts,
                &summary.batch,
                &summary.empty_percent,
            ] {
                let text = table::number(number.as_ref(), summary.runs);
                let (estimate, reach) = text.split_once(' ').unwrap_or((&text, ""));
                let _ = write!(page, "<td>{estimate}<small>{reach}</small>");
            }
            let _ = writeln!(page, "<td class=\"remark\">{}</tr>", Escaped(&summary.remarks().join(", ")));
        }
        page.push_str("</tbody>\n");
    }
    let _ = writeln!(
        page,
        "</table></div>\n<p class=\"note\">{}</p>",
        [
            table::LATE_LEGEND,
            table::CPU_TIME_LEGEND,
            table::CYCLES_LEGEND,
            table::IRQS_LEGEND,
            table::SWITCHES_LEGEND,
            table::OWN_LEGEND,
            table::INTERRUPTS_LEGEND,
            table::BATCH_LEGEND,
            table::EMPTY_LEGEND,
        ]
        .join("<br>")
    );
}

fn voids(page: &mut String, results: &Results) {
    let void: Vec<(&Evidence, &str)> =
        results.evidence.iter().filter_map(|run| Some((run, run.void.as_deref()?))).collect();
    let _ = writeln!(page, "<h2>Void runs</h2>");
    if void.is_empty() {
        let _ = writeln!(page, "<p>None of {} runs.</p>", results.evidence.len());
        return;
    }
    let _ = writeln!(page, "<p>{} of {} runs do not count:</p>\n<ul>", void.len(), results.evidence.len());
    for (run, reason) in void {
        let _ = writeln!(
            page,
            "<li>{} at {}, seed {}: {}</li>",
            Escaped(&run.label),
            run.load,
            run.workload.seed(),
            Escaped(reason)
        );
    }
    page.push_str("</ul>\n");
}

/// Lists every option of the experiment and of the workload, as written in the JSON.
fn options(page: &mut String, results: &Results) {
    page.push_str("<h2>Options</h2>\n<dl>\n");
    let mut option = |name: &str, value: &str| {
        let _ = writeln!(page, "<div><dt>{}<dd>{}</div>", Escaped(name), Escaped(value));
    };
    option("rounds", &results.experiment.rounds.to_string());
    option("seed of the experiment", &results.experiment.seed.to_string());
    let workloads: BTreeSet<String> = results
        .evidence
        .iter()
        .filter_map(|run| serde_json::to_string(&run.workload.with_seed(0)).ok())
        .collect();
    for workload in workloads {
        let Ok(serde_json::Value::Object(kinds)) = serde_json::from_str(&workload) else { continue };
        for (kind, options) in &kinds {
            option("workload", kind);
            for (name, value) in options.as_object().into_iter().flatten().filter(|(name, _)| *name != "seed")
            {
                let shown = match value {
                    serde_json::Value::String(text) => text.clone(),
                    serde_json::Value::Number(ns)
                        if ["warmup", "window", "drain"].contains(&name.as_str()) =>
                    {
                        ns.as_u64().map_or_else(|| ns.to_string(), |ns| model::Nanoseconds(ns).to_string())
                    }
                    other => other.to_string(),
                };
                option(name, &shown);
            }
        }
    }
    page.push_str("</dl>\n");
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::experiment::Experiment;
    use crate::test_evidence;
    use model::{CpuUse, Distribution, Nanoseconds, OfferedLoad};

    fn results() -> Results {
        let loads =
            vec![OfferedLoad::PerSecond(20_000.0), OfferedLoad::PerSecond(40_000.0), OfferedLoad::Max];
        let labels = vec!["base".to_owned(), "<script>alert(1)</script>".to_owned()];
        let mut evidence = Vec::new();
        for (round, label) in (0..3_u64).flat_map(|round| labels.iter().map(move |label| (round, label))) {
            for &load in &loads {
                let throughput = if let OfferedLoad::PerSecond(rate) = load { rate } else { 50_000.0 };
                let span = Nanoseconds::from_micros(100 + round * 10);
                let latency = Distribution { p50: span, p99: span, ..Distribution::default() };
                let cpu = Some(CpuUse { cpus: 1, user: 0.4, idle: 0.6, ..CpuUse::default() });
                evidence.push(Evidence {
                    label: label.clone(),
                    load,
                    latency,
                    cpu,
                    throughput,
                    ..test_evidence()
                });
            }
        }
        let experiment = Experiment { labels, loads, rounds: 3, seed: 1 };
        Results::new(experiment, evidence)
    }

    #[test]
    fn a_report_shows_every_cell_in_every_chart_and_needs_nothing_else() {
        let page = html_of_results("Delivery modes", &results());
        assert_eq!(page.matches("<figure").count(), 3);
        // The report draws two configurations at three loads in three charts.
        assert_eq!(page.matches("class=\"point\"").count(), 18);
        for outside in ["http", "src=", "url(", "@import", "<link", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("&lt;script&gt;alert(1)"), "labels are shown as text, whatever they contain");
        assert!(page.contains("None of 18 runs."));
        assert!(page.contains("<dt>connections_per_thread<dd>4"));
    }

    #[test]
    fn void_runs_are_listed_with_their_reason() {
        let mut results = results();
        results.evidence[0].void = Some("the generator was late".to_owned());
        let page = html_of_results("t", &results);
        assert!(page.contains("<li>base at 20K, seed 1: the generator was late</li>"));
        assert!(page.contains("1 of 3 runs void"));
    }

    #[test]
    fn an_experiment_without_a_run_is_still_a_page() {
        let mut empty = results();
        empty.evidence.clear();
        assert!(html_of_results("t", &empty).contains("The experiment has no runs."));
    }
}
