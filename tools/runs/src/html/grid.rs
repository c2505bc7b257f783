//! Renders the report of a grid: for each variant, a chart of response times over percentiles and two tables.

use std::fmt::Write as _;

use session::page::drawing::{CSS, Escaped, line_across};

use super::style::{self, SeriesStyle, styles};
use super::{legend, options, place, voids};
use crate::cost::{COST_COLUMNS, cost_cells};
use crate::grid::{Grid, RATIO_COLUMNS, cells, columns, ratio_cells};
use crate::variant::{Row, Variant};
use latency::measure::statistics::Interval;
use model::machine;

/// Dimensions in the SVG's own units.
const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;

/// Horizontal offset between the marks of neighbouring configurations.
const DODGE: f64 = 3.0;

/// Renders the report as a self-contained HTML page.
pub fn html_of_grid(grid: &Grid) -> String {
    let mut labels: Vec<String> = Vec::new();
    for label in grid.variants.iter().flat_map(|variant| &variant.results.experiment.labels) {
        if !labels.contains(label) {
            labels.push(label.clone());
        }
    }
    let styles = styles(&labels);
    let place = grid.variants.first().map(|variant| place(&variant.results)).unwrap_or_default();
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{css}{hover}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n<p class=\"where\">{place}</p>\n",
        title = Escaped(&grid.title),
        css = CSS,
        hover = style::hover(styles.len()),
        place = Escaped(&place),
    );
    for note in grid.notes.iter().chain(&machine::in_lines(&grid.machines)) {
        let _ = writeln!(page, "<p>{}</p>", Escaped(note));
    }
    for judged in &grid.gates {
        let _ = writeln!(page, "<p>{}</p>", Escaped(&judged.to_string()));
    }
    for skipped in &grid.skipped {
        let _ = writeln!(page, "<p>Skipped: {}: {}</p>", Escaped(&skipped.label), Escaped(&skipped.reason));
    }
    legend(&mut page, &styles);
    for variant in &grid.variants {
        section(&mut page, variant, &styles);
    }
    for overall in &grid.overall {
        for against in &overall.against {
            let body: Vec<(Vec<String>, String)> = overall
                .ratios(&grid.variants, against)
                .iter()
                .map(|row| (ratio_cells(row).to_vec(), String::new()))
                .collect();
            if !body.is_empty() {
                let title = format!("{}, over all of these variants, relative to {against}", overall.name);
                let _ = writeln!(page, "<h2>{}</h2>\n<div class=\"wide\">", Escaped(&title));
                table(&mut page, &RATIO_COLUMNS, &body);
                page.push_str("</div>\n");
            }
        }
    }
    let _ = writeln!(page, "<p class=\"note\">{}</p>", Escaped(&crate::grid::legend(grid.rounds())));
    for variant in &grid.variants {
        let _ = writeln!(page, "<h2>{}: every run</h2>", Escaped(&variant.name));
        voids(&mut page, &variant.results);
        options(&mut page, &variant.results);
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn section(page: &mut String, variant: &Variant, styles: &[SeriesStyle]) {
    let _ = writeln!(page, "<h2>{}</h2>", Escaped(&variant.name));
    let rows = variant.rows();
    page.push_str("<div class=\"charts\">\n");
    for &load in &variant.results.experiment.loads {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.load == load).collect();
        chart(page, &format!("Response times at {load}"), &rows, styles);
    }
    page.push_str("</div>\n<div class=\"wide\">");
    let body: Vec<(Vec<String>, String)> =
        rows.iter().map(|row| (cells(row).to_vec(), row.remarks.join(", "))).collect();
    table(page, &columns(variant), &body);
    let ratios = variant.ratios();
    if let Some(first) = ratios.first() {
        let _ = writeln!(page, "<p>Against {}:</p>", Escaped(&first.against));
        let body: Vec<(Vec<String>, String)> =
            ratios.iter().map(|row| (ratio_cells(row).to_vec(), String::new())).collect();
        table(page, &RATIO_COLUMNS, &body);
    }
    let costs = variant.costs();
    if !costs.is_empty() {
        let _ = writeln!(page, "<p>{}:</p>", Escaped(variant.cost_title()));
        let body: Vec<(Vec<String>, String)> =
            costs.iter().map(|cost| (cost_cells(cost).to_vec(), String::new())).collect();
        table(page, &COST_COLUMNS, &body);
    }
    page.push_str("</div>\n");
}

fn table(page: &mut String, columns: &[&str], rows: &[(Vec<String>, String)]) {
    page.push_str("<table>\n<thead><tr>");
    for column in columns {
        let _ = write!(page, "<th>{}<small></small>", Escaped(column));
    }
    page.push_str("<th></tr></thead>\n<tbody>\n");
    for (cells, remarks) in rows {
        page.push_str("<tr>");
        for cell in cells {
            let (estimate, reach) = cell.split_once(' ').unwrap_or((cell, ""));
            let _ = write!(page, "<td>{}<small>{}</small>", Escaped(estimate), Escaped(reach));
        }
        let _ = writeln!(page, "<td class=\"remark\">{}</tr>", Escaped(remarks));
    }
    page.push_str("</tbody>\n</table>\n");
}

/// Draws response times on a logarithmic scale at the shown percentiles, with a line per configuration.
fn chart(page: &mut String, title: &str, rows: &[&Row], styles: &[SeriesStyle]) {
    let values = || rows.iter().flat_map(|row| row.latency_us.iter().flatten());
    let low = values().map(|i| i.low).filter(|v| *v > 0.0).reduce(f64::min);
    let high = values().map(|i| i.high).reduce(f64::max);
    let (Some(low), Some(high)) = (low, high) else { return };
    let (low, high) = (low / 1.25, high.max(low * 2.0) * 1.25);
    let y = |value: f64| {
        let share = (value.max(low) / low).ln() / (high / low).ln();
        HEIGHT - BOTTOM - share.clamp(0.0, 1.0) * (HEIGHT - BOTTOM - TOP)
    };
    let x = |at: usize| {
        #[expect(clippy::cast_precision_loss, reason = "six percentiles")]
        let (at, all) = (at as f64, Row::QUANTILES.len() as f64);
        LEFT + (at + 0.5) / all * (WIDTH - RIGHT - LEFT)
    };
    let _ = writeln!(
        page,
        "<figure>\n<figcaption><b>{}</b>, µs, at percentiles</figcaption>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         role=\"img\" aria-label=\"{0}\">",
        Escaped(title)
    );
    let mut power = 10_f64.powf(low.log10().floor());
    while power <= high {
        for step in [1.0, 2.0, 5.0].map(|step| step * power).into_iter().filter(|v| (low..=high).contains(v))
        {
            line_across(page, LEFT, WIDTH - RIGHT, y(step), step);
        }
        power *= 10.0;
    }
    for (at, quantile) in Row::QUANTILES.iter().enumerate() {
        let _ = writeln!(
            page,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} %</text>",
            x(at),
            HEIGHT - BOTTOM + 19.0,
            (quantile * 1e6).round() / 1e4
        );
    }
    for (index, style) in styles.iter().enumerate() {
        let Some(row) = rows.iter().find(|row| row.label == style.label) else { continue };
        #[expect(clippy::cast_precision_loss, reason = "a handful of configurations")]
        let aside = (index as f64 - (styles.len() - 1) as f64 / 2.0) * DODGE;
        series(page, index, style, &row.latency_us, |at| x(at) + aside, y);
    }
    page.push_str("</svg>\n</figure>\n");
}

fn series(
    page: &mut String,
    index: usize,
    style: &SeriesStyle,
    values: &[Option<Interval>],
    x: impl Fn(usize) -> f64,
    y: impl Fn(f64) -> f64,
) {
    let points: Vec<(usize, Interval)> =
        values.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?))).collect();
    let path: Vec<String> =
        points.iter().map(|(at, value)| format!("{:.1} {:.1}", x(*at), y(value.estimate))).collect();
    let _ = writeln!(
        page,
        "<g class=\"s s{index} {}\"><path class=\"line\" d=\"M{}\" stroke-dasharray=\"{}\"/>",
        style.colour,
        path.join("L"),
        style.dash
    );
    for (at, Interval { estimate, low, high }) in points {
        let _ = writeln!(
            page,
            "<g class=\"point\"><title>{label} at {quantile} %: {estimate:.1} µs ({low:.1} to {high:.1})</title>\
             <path class=\"whisker\" d=\"M{x:.1} {y_low:.1}V{y_high:.1}\"/>{mark}</g>",
            label = Escaped(&style.label),
            quantile = (Row::QUANTILES[at] * 1e6).round() / 1e4,
            x = x(at),
            y_low = y(low),
            y_high = y(high),
            mark = style.marker.svg(x(at), y(estimate), false),
        );
    }
    page.push_str("</g>\n");
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::experiment::{Experiment, Results};
    use crate::grid::Skipped;
    use crate::test_evidence;
    use load::record::Recorder;
    use model::{Evidence, FormatName, Nanoseconds, OfferedLoad};

    #[test]
    fn a_report_shows_every_configuration_and_needs_nothing_else() {
        let mut recorder = Recorder::new();
        (1..2000).for_each(|n| recorder.record(Nanoseconds::from_micros(n)));
        let load = OfferedLoad::PerSecond(10_000.0);
        let run = |label: &str| Evidence {
            label: label.to_owned(),
            load,
            latency: recorder.distribution(),
            ..test_evidence()
        };
        let labels = vec!["softirq".to_owned(), "<b>".to_owned()];
        let evidence = labels.iter().flat_map(|label| [run(label), run(label)]).collect();
        let experiment = Experiment { labels, loads: vec![load], rounds: 2, seed: 1 };
        let results = Results::new(experiment, evidence);
        let skipped = vec![Skipped { label: "workqueue".to_owned(), reason: "simulator only".to_owned() }];
        let page = html_of_grid(&Grid {
            schema: FormatName,
            title: "t".to_owned(),
            notes: Vec::new(),
            skipped,
            variants: vec![Variant { name: "1 B".to_owned(), borne: None, results }],
            ..Grid::default()
        });
        assert_eq!(page.matches("<figure").count(), 1);
        // The chart has two configurations at the five percentiles that two thousand answers support.
        assert_eq!(page.matches("class=\"point\"").count(), 10);
        for outside in ["http", "src=", "url(", "@import", "<link", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("&lt;b&gt;") && !page.contains("<td><b>"), "labels are text");
        assert!(page.contains("Skipped: workqueue: simulator only"));
    }
}
