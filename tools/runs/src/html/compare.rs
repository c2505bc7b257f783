//! Renders the report of a comparison: how the interval of each change narrows from pair to pair.

use std::cmp::Ordering;
use std::fmt::Write as _;

use session::page::drawing::{CSS, Escaped, Scale, line_across, tick_below};
use session::page::picture::{PlottedSetting, scatter, style};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;

/// The state of the comparison after a number of pairs, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ComparePoint {
    /// Number of pairs so far.
    pub pairs: usize,
    /// The change in only the last of these pairs.
    pub own: f64,
    /// The point estimate.
    pub estimate: f64,
    /// The lower end of the interval; `None` while there is no interval.
    pub low: Option<f64>,
    /// The upper end of the interval; `None` while there is no interval.
    pub high: Option<f64>,
}

/// A chart that shows how one candidate changes one quantity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompareChart {
    /// Names the quantity and the candidate.
    pub title: String,
    /// The result of the comparison, as text.
    pub words: String,
    /// The state after each pair.
    pub points: Vec<ComparePoint>,
}

/// Renders the report as a self-contained HTML page without scripts. It begins with
/// the 99th percentile over CPU time per request; `verdicts` are the sentences after it.
pub fn html_of_compare(
    title: &str,
    place: &str,
    verdicts: &[String],
    places: &[PlottedSetting],
    margin: f64,
    charts: &[CompareChart],
) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{CSS}\n{style}\
         .w{{fill:none;stroke:currentColor;stroke-width:1.6}} .b{{fill:currentColor;opacity:.16}} \
         .o{{fill:currentColor;opacity:.45}} .p{{fill:currentColor}} .m{{stroke:currentColor;opacity:.5;stroke-dasharray:4 3}}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n<p class=\"where\">{place}</p>\n",
        title = Escaped(title),
        place = Escaped(place),
        style = style(),
    );
    page.push_str(&scatter("CPU time per request, µs", "99th percentile, µs", places));
    for verdict in verdicts {
        let _ = writeln!(page, "<p>{}</p>", Escaped(verdict));
    }
    let _ = writeln!(
        page,
        "<p class=\"note\">Line: the point estimate after each pair. Band: the interval that contains the true change in 95 of 100 \
         comparisons, however often one looks. Dots: single pairs. Dashed: no change, and the margin of ±{margin} %. The scale is \
         logarithmic: +100 % is twice as much, −50 % half. Values outside the frame are drawn at its edge.</p>"
    );
    for chart in charts.iter().filter(|chart| !chart.points.is_empty()) {
        draw(&mut page, chart, margin);
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn draw(page: &mut String, chart: &CompareChart, margin: f64) {
    let reach = reach(chart, margin);
    let y = Scale { low: -reach, high: reach, from: HEIGHT - BOTTOM, to: TOP, logarithmic: false };
    let last = count(chart.points.last().map_or(1, |point| point.pairs)).max(2.0);
    let x = Scale { low: 1.0, high: last, from: LEFT, to: WIDTH - RIGHT, logarithmic: false };
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let title = Escaped(&chart.title);
    let _ = write!(
        page,
        "<figure>\n<figcaption><b>{title}</b>, over pairs: {}</figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n",
        Escaped(&chart.words)
    );
    for tick in ticks(reach) {
        line_across(page, LEFT, right, y.place(factor(tick)), percent(tick));
    }
    for tick in x.ticks(9.0) {
        tick_below(page, x.place(tick), bottom, tick.round());
    }
    for line in [-margin, 0.0, margin] {
        let at = y.place(factor(line));
        let _ = writeln!(page, "<path class=\"m\" d=\"M{LEFT} {at:.1}H{right}\"/>");
    }
    let place = |value: f64| y.place(factor(value).clamp(-reach, reach));
    let known = || chart.points.iter().filter(|point| point.low.is_some() && point.high.is_some());
    let upper =
        known().map(|point| (x.place(count(point.pairs)), place(point.high.unwrap_or(f64::INFINITY))));
    let lower = known().rev().map(|point| (x.place(count(point.pairs)), place(point.low.unwrap_or(-100.0))));
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

/// Converts a change in percent to the logarithm of its factor, so that doubling and halving are equally far
/// from no change.
fn factor(percent: f64) -> f64 {
    (percent / 100.0).max(-1.0).ln_1p()
}

/// Computes how far the scale extends on both sides: over all point estimates and the last interval. Single
/// pairs and the first intervals may lie outside.
fn reach(chart: &CompareChart, margin: f64) -> f64 {
    /// The logarithm of the largest factor that the axis shows: a hundred thousand.
    const REACH_MAX: f64 = 11.6;
    let last = chart.points.last().into_iter().flat_map(|point| [point.low, point.high]);
    let ends = chart.points.iter().map(|point| point.estimate).chain(last.flatten());
    let least = factor(margin * 2.0);
    ends.map(|end| factor(end).abs()).filter(|end| end.is_finite()).fold(least, f64::max).min(REACH_MAX)
        * 1.15
}

/// Returns the changes to label on the scale, in percent, in ascending order.
fn ticks(reach: f64) -> Vec<f64> {
    /// Factors to label, from fine to coarse; those outside the frame are left out.
    const NAMED: [&[f64]; 4] =
        [&[1.02, 1.05, 1.1], &[1.1, 1.2, 1.5, 2.0], &[1.5, 2.0, 5.0, 10.0], &[10.0, 100.0, 1e3, 1e4, 1e5]];
    let step = NAMED.into_iter().find(|factors| factors.last().is_some_and(|last| reach <= last.ln() * 1.2));
    let factors = step.unwrap_or(NAMED[3]).iter().copied().filter(|factor| factor.ln() <= reach);
    let less = factors.clone().rev().map(|factor| (1.0 / factor - 1.0) * 100.0);
    less.chain([0.0]).chain(factors.map(|factor| (factor - 1.0) * 100.0)).collect()
}

/// Formats a change for an axis: `+900 %`, `−99.9 %`.
fn percent(value: f64) -> String {
    let size = (value.abs() * 1000.0).round() / 1000.0;
    match value.partial_cmp(&0.0) {
        Some(Ordering::Less) => format!("−{size} %"),
        Some(Ordering::Greater) => format!("+{size} %"),
        Some(Ordering::Equal) | None => "0".to_owned(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of pairs")]
const fn count(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod test {
    use session::page::picture::Role;

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
        let page = html_of_compare(
            "<cache>",
            "here",
            &["latency: <better>".to_owned()],
            &[],
            5.0,
            &[chart, CompareChart::default()],
        );
        assert!(page.contains("<p>latency: &lt;better&gt;</p>"));
        assert!(page.contains("<h1>&lt;cache&gt;</h1>") && page.contains("p50 of &lt;latency&gt;"));
        assert_eq!((page.matches("<figure>").count(), page.matches("<circle").count()), (1, 3));
        let band = page.lines().find(|line| line.contains("polygon")).expect("a band");
        assert_eq!(band.matches(' ').count(), 2 + 7, "two ends of the intervals of two pairs: {band}");
        assert!(!page.contains("<script"));
    }

    #[test]
    fn the_settings_are_points_of_one_picture_which_comes_first() {
        let place = |name: &str, x, y, role| PlottedSetting { name: name.to_owned(), x, y, role };
        let places =
            [place("current", 20.0, 400.0, Role::Current), place("<cpu>", 10.0, 800.0, Role::Winner)];
        let page = html_of_compare("cache", "here", &["a verdict".to_owned()], &places, 5.0, &[]);
        let at = |what: &str| page.find(what).expect(what);
        assert!(at("<figure>") < at("a verdict") && page.contains("&lt;cpu&gt; (winner)"), "{page}");
        assert!(!html_of_compare("cache", "here", &[], &places[..1], 5.0, &[]).contains("<figure>"));
    }

    #[test]
    fn a_change_of_many_times_is_within_the_frame_and_no_scale_names_less_than_nothing() {
        let point = |pairs, estimate| ComparePoint {
            pairs,
            own: estimate,
            estimate,
            low: Some(estimate / 2.0),
            high: Some(estimate * 2.0),
        };
        let points: Vec<ComparePoint> = (7..10).map(|pairs| point(pairs, 3_800.0)).collect();
        let chart = CompareChart { points, ..CompareChart::default() };
        let page = html_of_compare("cache", "here", &[], &[], 5.0, &[chart]);
        let line = page.lines().find(|line| line.contains("class=\"w\"")).expect("a line");
        assert!(!line.contains(&format!(" {TOP:.1}")), "not at the edge: {line}");
        assert!(page.contains(">+900 %<") && page.contains(">−90 %<"), "{page}");
        for reach in [0.05, 0.2, 0.7, 1.5, 3.0, 8.0, 13.0] {
            let named = ticks(reach);
            assert!((3..=11).contains(&named.len()), "{reach}: {named:?}");
            assert!(
                named.is_sorted() && named.iter().all(|tick| factor(*tick).abs() <= reach * 1.001),
                "{named:?}"
            );
        }
        assert_eq!([-99.9, -90.0, -99.0, 900.0].map(percent), ["−99.9 %", "−90 %", "−99 %", "+900 %"]);
    }
}
