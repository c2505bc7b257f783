//! Curves over the load: measured points over predicted lines, as one page of HTML without anything from elsewhere.

use std::fmt::Write;

use crate::commands::sim::Judged;
use crate::scenario_file::Metric;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
const MARGIN: f64 = 44.0;
const COLOURS: [&str; 11] = [
    "#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#117a65", "#7f8c8d", "#a04000", "#2c3e50",
    "#b03a8b", "#5d6d7e",
];

/// A page with curves, table, and summary.
pub(super) fn html(title: &str, judged: &[Judged], table: &str, summary: &str, orderings: &str) -> String {
    let mut page = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>{0}</title>\
         <style>body{{font:14px sans-serif;margin:2em;color:#222}}pre{{font-size:12px;overflow-x:auto}}\
         svg{{margin:0 1em 1em 0}}text{{font-size:11px;fill:#444}}</style><h1>{0}</h1>\
         <p>Lines are predicted, bands their intervals, dots measured; filled dots were fitted, open ones held out.</p>",
        escaped(title)
    );
    let mut lines: Vec<&str> = Vec::new();
    for row in judged {
        if let Some((_, first)) = row.row.settings.first()
            && !lines.contains(&first.as_str())
        {
            lines.push(first);
        }
    }
    for metric in Metric::ALL.into_iter().filter(|m| judged.iter().any(|j| j.row.value(*m).is_some())) {
        let _ = write!(page, "<h2>{}, in {}, by load</h2>", metric.word(), metric.unit());
        for (name, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
            let rows: Vec<&Judged> = judged
                .iter()
                .filter(|j| j.row.settings.first().is_some_and(|(_, value)| value == name))
                .collect();
            page.push_str(&chart(name, colour, metric, &rows));
        }
    }
    let _ = write!(
        page,
        "<h2>Rows</h2><pre>{}</pre><h2>Size of the errors</h2><pre>{}</pre><p>{}</p>",
        escaped(table),
        escaped(summary),
        escaped(orderings)
    );
    page
}

/// One line of the chart's rows, evenly spaced: MAX has no place on a scale of loads.
#[expect(clippy::cast_precision_loss, reason = "a handful of points")]
fn chart(name: &str, colour: &str, metric: Metric, rows: &[&Judged]) -> String {
    let x =
        |i: usize| MARGIN + (WIDTH - 2.0 * MARGIN) * i as f64 / rows.len().saturating_sub(1).max(1) as f64;
    let values = rows.iter().flat_map(|row| {
        let predicted = row.prediction.of(metric);
        let range = predicted.and_then(|p| p.range);
        [row.row.value(metric), predicted.map(|p| p.value), range.map(|r| r.high), range.map(|r| r.low)]
    });
    let (low, high) = values
        .flatten()
        .filter(|v| *v > 0.0)
        .fold((f64::MAX, f64::MIN_POSITIVE), |(l, h), v| (l.min(v), h.max(v)));
    let logarithmic = metric != Metric::Cpu && high > 5.0 * low;
    let scale = |value: f64| {
        let (low, high, value) = match (metric, logarithmic) {
            (Metric::Cpu, _) => (0.0, 100.0, value),
            (_, true) => (low.ln(), high.ln(), value.max(low).ln()),
            (_, false) => (0.0, high, value),
        };
        HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * (value - low) / (high - low).max(1e-9)
    };
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\"><text x=\"{MARGIN}\" y=\"16\">{}</text>",
        escaped(name)
    );
    let points = |pick: &dyn Fn(&Judged) -> Option<f64>| -> Vec<String> {
        let at =
            |(i, row): (usize, &&Judged)| pick(row).map(|value| format!("{:.1},{:.1}", x(i), scale(value)));
        rows.iter().enumerate().filter_map(at).collect()
    };
    let mut band = points(&|row| row.prediction.of(metric)?.range.map(|r| r.high));
    let mut lower = points(&|row| row.prediction.of(metric)?.range.map(|r| r.low));
    lower.reverse();
    band.extend(lower);
    let line = points(&|row| row.prediction.of(metric).map(|p| p.value));
    let _ = write!(
        svg,
        "<polygon points=\"{}\" fill=\"{colour}\" opacity=\"0.15\"/><polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>",
        band.join(" "),
        line.join(" ")
    );
    for (i, row) in rows.iter().enumerate() {
        if let Some(value) = row.row.value(metric) {
            let fill = if row.fitted { colour } else { "white" };
            let _ = write!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{fill}\" stroke=\"{colour}\"><title>{value}</title></circle>",
                x(i),
                scale(value)
            );
        }
        let load: Vec<&str> = row.row.settings.iter().skip(1).map(|(_, value)| value.as_str()).collect();
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x(i),
            HEIGHT - MARGIN + 18.0,
            escaped(&load.join(" "))
        );
    }
    let _ = write!(
        svg,
        "<text x=\"2\" y=\"{:.1}\">{}</text>",
        scale(high),
        super::prediction::rounded(metric, high)
    );
    svg.push_str("</svg>");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
