//! The report of a comparison: how the interval of each change narrowed, pair by pair.

use std::fmt::Write as _;

use super::Escaped;
use super::chart::{Scale, short};
use super::style::CSS;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;

/// What was known after a pair, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ComparePoint {
    /// How many pairs there were.
    pub pairs: usize,
    /// The change of this pair alone.
    pub own: f64,
    /// The best single value.
    pub estimate: f64,
    /// The interval's lower end; `None` while there is none, likewise below.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
}

/// One change of one candidate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompareChart {
    /// What changed, and of which candidate.
    pub title: String,
    /// What it came to.
    pub words: String,
    /// After each pair.
    pub points: Vec<ComparePoint>,
}

/// The report as HTML: one file that needs no other, and no script.
pub fn html_of_compare(title: &str, place: &str, margin: f64, charts: &[CompareChart]) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{CSS}\n\
         .w{{fill:none;stroke:currentColor;stroke-width:1.6}} .b{{fill:currentColor;opacity:.16}} \
         .o{{fill:currentColor;opacity:.45}} .m{{stroke:currentColor;opacity:.5;stroke-dasharray:4 3}}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n<p class=\"where\">{place}</p>\n",
        title = Escaped(title),
        place = Escaped(place),
    );
    for chart in charts.iter().filter(|chart| !chart.points.is_empty()) {
        draw(&mut page, chart, margin);
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn draw(page: &mut String, chart: &CompareChart, margin: f64) {
    // Single pairs may be anywhere: the picture is of the intervals, once there are some.
    let ends = chart.points.iter().flat_map(|point| [point.low, point.high, Some(point.estimate)]);
    let reach = ends.flatten().map(f64::abs).fold(margin * 2.0, f64::max).min(200.0) * 1.15;
    let y = Scale { low: -reach, high: reach, from: HEIGHT - BOTTOM, to: TOP, logarithmic: false };
    let last = count(chart.points.last().map_or(1, |point| point.pairs)).max(2.0);
    let x = Scale { low: 1.0, high: last, from: LEFT, to: WIDTH - RIGHT, logarithmic: false };
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let title = Escaped(&chart.title);
    let _ = write!(
        page,
        "<figure>\n<figcaption><b>{title}</b>, %, over pairs: {}</figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n",
        Escaped(&chart.words)
    );
    for tick in y.ticks(5.0) {
        let at = y.place(tick);
        let _ = writeln!(
            page,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 7.0,
            at + 4.0,
            short(tick)
        );
    }
    for tick in x.ticks(9.0) {
        let at = x.place(tick);
        let _ = writeln!(
            page,
            "<path class=\"grid\" d=\"M{at:.1} {bottom}v5\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 19.0,
            short(tick)
        );
    }
    for line in [-margin, 0.0, margin] {
        let at = y.place(line);
        let _ = writeln!(page, "<path class=\"m\" d=\"M{LEFT} {at:.1}H{right}\"/>");
    }
    let place = |value: f64| y.place(value.clamp(-reach, reach));
    let known = || chart.points.iter().filter(|point| point.low.is_some() && point.high.is_some());
    let upper = known().map(|point| (x.place(count(point.pairs)), place(point.high.unwrap_or(reach))));
    let lower = known().rev().map(|point| (x.place(count(point.pairs)), place(point.low.unwrap_or(-reach))));
    let band: String = upper.chain(lower).map(|(x, y)| format!("{x:.1} {y:.1} ")).collect();
    if !band.is_empty() {
        let _ = writeln!(page, "<polygon class=\"b\" points=\"{}\"/>", band.trim_end());
    }
    let mut path = String::new();
    for (at, point) in chart.points.iter().enumerate() {
        let (x, step) = (x.place(count(point.pairs)), if at == 0 { 'M' } else { 'L' });
        let _ = write!(path, "{step}{x:.1} {:.1}", place(point.estimate));
        let _ = writeln!(page, "<circle class=\"o\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2\"/>", place(point.own));
    }
    let _ = writeln!(page, "<path class=\"w\" d=\"{path}\"><title>{title}</title></path>");
    page.push_str("</svg>\n</figure>\n");
}

#[expect(clippy::cast_precision_loss, reason = "counts of pairs")]
const fn count(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_comparison_is_drawn_as_an_interval_that_narrows() {
        let point = |pairs: usize, low: Option<f64>, high: Option<f64>| ComparePoint {
            pairs,
            own: -20.0,
            estimate: -10.0,
            low,
            high,
        };
        let points =
            vec![point(1, None, None), point(7, Some(-60.0), Some(40.0)), point(8, Some(-30.0), Some(-2.0))];
        let chart = CompareChart { title: "p50 of <latency>".to_owned(), words: "better".to_owned(), points };
        let page = html_of_compare("<cache>", "here", 5.0, &[chart, CompareChart::default()]);
        assert!(page.contains("<h1>&lt;cache&gt;</h1>") && page.contains("p50 of &lt;latency&gt;"));
        assert_eq!((page.matches("<figure>").count(), page.matches("<circle").count()), (1, 3));
        let band = page.lines().find(|line| line.contains("polygon")).expect("a band");
        assert_eq!(band.matches(' ').count(), 2 + 7, "two ends of two pairs: {band}");
        assert!(!page.contains("<script"));
    }
}
