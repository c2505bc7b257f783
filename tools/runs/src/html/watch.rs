//! Renders the report of a watched service: percentiles over time, and where the time is spent.

use std::fmt::Write as _;

use session::page::drawing::{CSS, Escaped, Scale, line_across, short, tick_below};

/// Dimensions in the SVG's own units: the picture scales to the available space.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;

/// Maximum number of points in a chart: readers cannot distinguish more.
pub const POINTS_MAX: usize = 1_000;

/// A point of a chart, which combines consecutive windows. Spans are in microseconds; `None` with too few
/// requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WatchPoint {
    /// When the last of the windows ended, in seconds since the beginning.
    pub at: f64,
    /// Median response time.
    pub p50: Option<f64>,
    /// 90th percentile of the response time.
    pub p90: Option<f64>,
    /// 99th percentile of the response time.
    pub p99: Option<f64>,
    /// Median wait in the NIC's receive ring.
    pub ring: Option<f64>,
    /// Median wake-up latency.
    pub wakeup: Option<f64>,
    /// Median service time.
    pub service: Option<f64>,
}

/// A change of settings: its time, in seconds since the beginning, and the new settings.
pub type Mark = (f64, String);

type Line = (&'static str, &'static str, fn(&WatchPoint) -> Option<f64>);

/// Renders the report as a self-contained HTML page without scripts.
pub fn html_of_watch(title: &str, place: &str, points: &[WatchPoint], marks: &[Mark]) -> String {
    const RESPONSE: [Line; 3] = [
        ("p50", "", |point| point.p50),
        ("p90", "6 3", |point| point.p90),
        ("p99", "2 3", |point| point.p99),
    ];
    const STRETCHES: [Line; 3] = [
        ("wait in the ring", "", |point| point.ring),
        ("wake-up", "6 3", |point| point.wakeup),
        ("service", "2 3", |point| point.service),
    ];
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{CSS}\n\
         .w{{fill:none;stroke:currentColor;stroke-width:1.6}} .m{{stroke:currentColor;opacity:.5;stroke-dasharray:1 2}}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n<p class=\"where\">{place}</p>\n",
        title = Escaped(title),
        place = Escaped(place),
    );
    chart(&mut page, "Response times", &RESPONSE, points, marks);
    chart(&mut page, "Where the time goes, medians", &STRETCHES, points, marks);
    if !marks.is_empty() {
        page.push_str("<h2>Settings</h2>\n<ol>\n");
        for (at, words) in marks {
            let _ = writeln!(page, "<li>{at:.0} s: {}</li>", Escaped(words));
        }
        page.push_str("</ol>\n");
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn chart(page: &mut String, title: &str, lines: &[Line], points: &[WatchPoint], marks: &[Mark]) {
    let values = || points.iter().flat_map(|point| lines.iter().filter_map(|(.., of)| of(point)));
    let positive = || values().filter(|value| *value > 0.0);
    let low = positive().reduce(f64::min).unwrap_or(1.0) / 1.25;
    let high = positive().reduce(f64::max).unwrap_or(10.0) * 1.25;
    let y = Scale { low, high, from: HEIGHT - BOTTOM, to: TOP, logarithmic: true };
    let last = points.iter().map(|point| point.at).reduce(f64::max).unwrap_or(1.0).max(1.0);
    let x = Scale { low: 0.0, high: last, from: LEFT, to: WIDTH - RIGHT, logarithmic: false };
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let _ = write!(
        page,
        "<figure>\n<figcaption><b>{title}</b>, µs, over seconds: {}</figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n",
        lines
            .iter()
            .map(|(name, dash, _)| {
                format!("<svg width=\"34\" height=\"8\"><path class=\"w\" stroke-dasharray=\"{dash}\" d=\"M2 4H32\"/></svg> {name} ")
            })
            .collect::<String>()
    );
    for tick in y.ticks(5.0) {
        line_across(page, LEFT, right, y.place(tick), short(tick));
    }
    for tick in x.ticks(9.0) {
        tick_below(page, x.place(tick), bottom, short(tick));
    }
    for (at, words) in marks {
        let at = x.place(*at);
        let _ = writeln!(
            page,
            "<path class=\"m\" d=\"M{at:.1} {TOP}V{bottom}\"><title>{}</title></path>",
            Escaped(words)
        );
    }
    for (name, dash, of) in lines {
        let mut path = String::new();
        let mut before = false;
        for point in points {
            // Leave a gap in the line where windows have no requests.
            let Some(value) = of(point) else {
                before = false;
                continue;
            };
            let step = if before { 'L' } else { 'M' };
            let _ = write!(path, "{step}{:.1} {:.1}", x.place(point.at), y.place(value.max(low)));
            if !before {
                let _ = write!(path, "h0.1");
            }
            before = true;
        }
        let _ = writeln!(
            page,
            "<path class=\"w\" stroke-dasharray=\"{dash}\" d=\"{path}\"><title>{name}</title></path>"
        );
    }
    page.push_str("</svg>\n</figure>\n");
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_watch_is_drawn_over_time_with_its_gaps_and_its_changes_of_settings() {
        let point = |at: f64, p50: Option<f64>| WatchPoint { at, p50, ..WatchPoint::default() };
        let points =
            [point(1.0, Some(30.0)), point(2.0, None), point(3.0, Some(90.0)), point(4.0, Some(80.0))];
        let page =
            html_of_watch("<cache>", "here", &points, &[(2.5, "gro-flush-timeout 200us & more".to_owned())]);
        assert!(page.contains("<h1>&lt;cache&gt;</h1>") && page.contains("200us &amp; more"));
        let line = page.lines().find(|line| line.contains("<title>p50</title>")).expect("a line");
        assert_eq!((line.matches('M').count(), line.matches('L').count()), (2, 1), "{line}");
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(!page.contains("<script") && !page.contains("url("));
    }

    #[test]
    fn a_watch_without_requests_has_empty_charts() {
        let page = html_of_watch("idle", "", &[WatchPoint::default()], &[]);
        assert_eq!(page.matches("<figure>").count(), 2);
    }
}
