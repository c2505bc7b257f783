//! Curves over the load: measured points on predicted lines, as a self-contained HTML page.

use std::fmt::Write;

use model::{Nanoseconds, OfferedLoad};

use crate::predicted::Judged;
use crate::scenario_file::Metric;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
const MARGIN: f64 = 44.0;
/// The horizontal distance between a closed loop and the highest load.
const APART: f64 = 48.0;
/// The distances of the label lines below a chart, and the width of a letter.
const LABELS_BELOW: [f64; 3] = [16.0, 28.0, 40.0];
const LABEL_LINES: usize = LABELS_BELOW.len();
const LETTER: f64 = 6.0;
const COLOURS: [&str; 11] = [
    "#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#117a65", "#7f8c8d", "#a04000", "#2c3e50",
    "#b03a8b", "#5d6d7e",
];

/// Renders a page with curves, table, and summary.
pub(crate) fn html(title: &str, judged: &[Judged], table: &str, summary: &str, orderings: &str) -> String {
    let mut page = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>{0}</title>\
         <style>body{{font:14px sans-serif;margin:2em;color:#222}}pre{{font-size:12px;overflow-x:auto}}\
         svg{{margin:0 1em 1em 0}}text{{font-size:11px;fill:#444}}</style><h1>{0}</h1>\
         <p>Lines are predicted, bands their intervals, dots measured; filled dots were fitted, open ones held out. \
         Loads are to scale; a closed loop (max) is separate.</p>",
        escaped(title)
    );
    let axis = axis(judged);
    let mut lines: Vec<String> = Vec::new();
    for row in judged {
        let line = beside(row, axis);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    for metric in Metric::ALL.into_iter().filter(|m| judged.iter().any(|j| j.row.value(*m).is_some())) {
        let by = axis.map_or("", |axis| axis.key.rsplit('.').next().unwrap_or(axis.key));
        let by = if by.is_empty() { String::new() } else { format!(", by {by}") };
        let _ = write!(page, "<h2>{}, in {}{by}</h2>", metric.word(), metric.unit());
        for (name, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
            let rows: Vec<&Judged> = judged.iter().filter(|row| beside(row, axis) == *name).collect();
            page.push_str(&chart(name, colour, metric, &placed(&rows, axis)));
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

/// The horizontal axis of the charts.
#[derive(Clone, Copy)]
struct Axis<'a> {
    key: &'a str,
    /// Whether the axis's values are numbers, drawn to scale.
    to_scale: bool,
}

const LOAD: &str = "clients.load";

/// Chooses the load or, without one, the second key that rows differ in, preferably numeric.
fn axis(judged: &[Judged]) -> Option<Axis<'_>> {
    let keys = || judged.iter().take(1).flat_map(|row| &row.row.settings).map(|(key, _)| key.as_str());
    let numeric = |key: &&str| judged.iter().all(|row| number(row, key).is_some());
    let found = keys().find(|key| *key == LOAD).or_else(|| keys().skip(1).find(numeric));
    let scaled = found.map(|key| Axis { key, to_scale: true });
    scaled.or_else(|| keys().nth(1).map(|key| Axis { key, to_scale: false }))
}

/// Returns a row's value of a key as a number; `None` for a closed loop.
fn number(row: &Judged, key: &str) -> Option<f64> {
    let text = setting(row, key)?;
    match text.parse::<OfferedLoad>() {
        Ok(OfferedLoad::PerSecond(number)) => Some(number),
        Ok(OfferedLoad::Max) => None,
        Err(_) => text.parse::<Nanoseconds>().ok().map(Nanoseconds::as_secs_f64),
    }
}

fn setting<'a>(row: &'a Judged, key: &str) -> Option<&'a str> {
    row.row.settings.iter().find(|(other, _)| other == key).map(|(_, value)| value.as_str())
}

/// Returns a row's values of all keys but the axis's: the name of the row's chart.
fn beside(row: &Judged, axis: Option<Axis<'_>>) -> String {
    let others = row.row.settings.iter().filter(|(other, _)| axis.is_none_or(|axis| axis.key != other));
    others.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" ")
}

/// A row, its position, and its label.
struct Point<'a> {
    x: f64,
    /// Whether the line passes through the point; a closed loop is drawn separately.
    scaled: bool,
    label: &'a str,
    row: &'a Judged,
}

/// Returns the points of a chart from left to right: numbers to scale, a closed loop at some distance from
/// them, and other values at equal distances.
fn placed<'a>(rows: &[&'a Judged], axis: Option<Axis<'_>>) -> Vec<Point<'a>> {
    let number = |row: &Judged| axis.filter(|axis| axis.to_scale).and_then(|axis| number(row, axis.key));
    let numbers = || rows.iter().filter_map(|row| number(row));
    let (least, most) = (numbers().fold(f64::MAX, f64::min), numbers().fold(0.0, f64::max));
    let (left, right) = (MARGIN, WIDTH - MARGIN);
    let apart = axis.is_some_and(|axis| axis.to_scale) && numbers().count() < rows.len();
    let end = if apart { right - APART } else { right };
    let each =
        (end - left) / f64::from(u32::try_from(rows.len()).unwrap_or(u32::MAX).saturating_sub(1).max(1));
    let mut evenly = left;
    let mut points = Vec::new();
    for row in rows {
        let x = match number(row) {
            Some(number) if most > least => left + (end - left) * (number - least) / (most - least),
            Some(_) => f64::midpoint(left, end),
            None if apart => right,
            None => evenly,
        };
        evenly += each;
        let scaled = !(apart && number(row).is_none());
        points.push(Point {
            x,
            scaled,
            label: axis.and_then(|axis| setting(row, axis.key)).unwrap_or_default(),
            row,
        });
    }
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

/// Draws a chart.
fn chart(name: &str, colour: &str, metric: Metric, points: &[Point<'_>]) -> String {
    let rows = || points.iter().map(|point| point.row);
    let values = rows().flat_map(|row| {
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
    let of = |scaled: bool, pick: &dyn Fn(&Judged) -> Option<f64>| -> Vec<String> {
        let on = points.iter().filter(|point| point.scaled == scaled);
        on.filter_map(|p| pick(p.row).map(|value| format!("{:.1},{:.1}", p.x, scale(value)))).collect()
    };
    let high_end = |row: &Judged| row.prediction.of(metric)?.range.map(|r| r.high);
    let low_end = |row: &Judged| row.prediction.of(metric)?.range.map(|r| r.low);
    let predicted = |row: &Judged| row.prediction.of(metric).map(|p| p.value);
    let mut band = of(true, &high_end);
    band.extend(of(true, &low_end).into_iter().rev());
    let _ = write!(
        svg,
        "<polygon points=\"{}\" fill=\"{colour}\" opacity=\"0.15\"/><polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>",
        band.join(" "),
        of(true, &predicted).join(" ")
    );
    let mut label_ends = [f64::MIN; LABEL_LINES];
    for point in points {
        let (x, row) = (point.x, point.row);
        if !point.scaled {
            // The row's prediction is drawn as a separate short line.
            if let (Some(high), Some(low)) = (high_end(row), low_end(row)) {
                let (top, bottom) = (scale(high), scale(low));
                let _ = write!(
                    svg,
                    "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"12\" height=\"{:.1}\" fill=\"{colour}\" opacity=\"0.15\"/>",
                    x - 6.0,
                    (bottom - top).max(0.0)
                );
            }
            if let Some(y) = predicted(row).map(scale) {
                let _ = write!(
                    svg,
                    "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\"/>",
                    x - 6.0,
                    x + 6.0
                );
            }
        }
        if let Some(value) = row.row.value(metric) {
            let fill = if row.fitted { colour } else { "white" };
            let _ = write!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{fill}\" stroke=\"{colour}\"><title>{value}</title></circle>",
                scale(value)
            );
        }
        // If a label would overlap the previous one, it is moved down a line.
        let half = 0.5 * LETTER * f64::from(u16::try_from(point.label.chars().count()).unwrap_or(u16::MAX));
        let line = (0..LABEL_LINES).find(|line| x - half > label_ends[*line]).unwrap_or(LABEL_LINES - 1);
        label_ends[line] = x + half + LETTER;
        let below = LABELS_BELOW[line];
        let _ = write!(
            svg,
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - MARGIN + below,
            escaped(point.label)
        );
    }
    let _ = write!(
        svg,
        "<text x=\"2\" y=\"{:.1}\">{}</text>",
        scale(high),
        crate::reports::prediction::rounded(metric, high)
    );
    svg.push_str("</svg>");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
