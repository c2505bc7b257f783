//! A chart: a quantity over answers per second, with a line per configuration.

use std::fmt::Write as _;

use model::OfferedLoad;

use crate::summary::Summary;
use latency::measure::statistics::Interval;

use session::page::drawing::{Escaped, Scale, line_across, short, tick_below};

use super::style::SeriesStyle;

/// Dimensions in the SVG's own units: the picture scales to the available space.
const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;

/// Horizontal offset between the marks of neighbouring configurations at the same load.
const DODGE: f64 = 2.6;

/// The scale of the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// A logarithmic scale, labelled at powers of ten.
    Logarithmic,
    /// A linear scale from 0 to 100.
    Percent,
}

/// The contents of a chart.
pub(super) struct Chart<'a> {
    pub(super) title: &'static str,
    pub(super) unit: &'static str,
    pub(super) axis: Axis,
    pub(super) y: fn(&Summary) -> Option<Interval>,
    pub(super) summaries: &'a [Summary],
}

impl Chart<'_> {
    pub(super) fn svg(&self, styles: &[SeriesStyle]) -> String {
        let (x, y) = self.scales();
        let mut svg = format!(
            "<figure>\n<figcaption><b>{}</b>, {}, over answers per second</figcaption>\n\
             <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\">\n",
            self.title, self.unit
        );
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for tick in y.ticks(5.0) {
            line_across(&mut svg, LEFT, right, y.place(tick), short(tick));
        }
        for tick in x.ticks(9.0) {
            tick_below(&mut svg, x.place(tick), bottom, short(tick));
        }
        let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {bottom}H{right}\"/>");
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">answers/s</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 6.0
        );
        for (index, style) in styles.iter().enumerate() {
            self.series(&mut svg, index, styles.len(), style, &x, &y);
        }
        svg.push_str("</svg>\n</figure>\n");
        svg
    }

    fn scales(&self) -> (Scale, Scale) {
        let over = |of: &dyn Fn(&Summary) -> Option<Interval>,
                    pick: fn(&Interval) -> f64,
                    fold: fn(f64, f64) -> f64| {
            self.summaries.iter().filter_map(of).map(|i| pick(&i)).reduce(fold)
        };
        let x_high = over(&|s| s.throughput, |i| i.high, f64::max).filter(|v| *v > 0.0).unwrap_or(1.0);
        let x = Scale { low: 0.0, high: x_high * 1.04, from: LEFT, to: WIDTH - RIGHT, logarithmic: false };
        let (low, high) = match self.axis {
            Axis::Percent => (0.0, 100.0),
            Axis::Logarithmic => {
                let low = over(&self.y, |i| i.low, f64::min).filter(|v| *v > 0.0).unwrap_or(1.0);
                let high = over(&self.y, |i| i.high, f64::max).filter(|v| *v > low).unwrap_or(low * 10.0);
                (low / 1.25, high * 1.25)
            }
        };
        let logarithmic = self.axis == Axis::Logarithmic;
        (x, Scale { low, high, from: HEIGHT - BOTTOM, to: TOP, logarithmic })
    }

    fn series(&self, svg: &mut String, index: usize, of: usize, style: &SeriesStyle, x: &Scale, y: &Scale) {
        #[expect(clippy::cast_precision_loss, reason = "a handful of configurations")]
        let aside = (index as f64 - (of.saturating_sub(1)) as f64 / 2.0) * DODGE;
        let rows = self.summaries.iter().filter(|s| s.label == style.label);
        let mut points: Vec<(&Summary, Interval, Interval)> =
            rows.filter_map(|s| Some((s, s.throughput?, (self.y)(s)?))).collect();
        points.sort_by(|a, b| a.1.estimate.total_cmp(&b.1.estimate));
        // Closed loop is a different experiment from open loop: draw its point without a line to it.
        let open = points.iter().filter(|(s, ..)| s.load != OfferedLoad::Max);
        let path: Vec<String> = open
            .map(|(_, qps, value)| {
                format!("{:.1} {:.1}", x.place(qps.estimate) + aside, y.place(value.estimate))
            })
            .collect();
        let _ = writeln!(svg, "<g class=\"s s{index} {}\">", style.colour);
        if path.len() > 1 {
            let _ = writeln!(
                svg,
                "<path class=\"line\" d=\"M{}\" stroke-dasharray=\"{}\"/>",
                path.join("L"),
                style.dash
            );
        }
        for (summary, qps, value) in points {
            let (at_x, at_y) = (x.place(qps.estimate) + aside, y.place(value.estimate));
            let (left, right) = (x.place(qps.low) + aside, x.place(qps.high) + aside);
            let (low, high) = (y.place(value.low), y.place(value.high));
            let hollow = summary.load == OfferedLoad::Max || summary.saturated > 0;
            let _ = writeln!(
                svg,
                "<g class=\"point\"><title>{label} at {load}: {title} {estimate:.1} {unit} ({low_v:.1} to {high_v:.1}), \
                 {qps:.0} answers/s{remarks}</title><path class=\"whisker\" d=\"M{at_x:.1} {low:.1}V{high:.1}M{left:.1} \
                 {at_y:.1}H{right:.1}\"/>{mark}</g>",
                label = Escaped(&summary.label),
                load = summary.load,
                title = self.title,
                estimate = value.estimate,
                unit = self.unit,
                low_v = value.low,
                high_v = value.high,
                qps = qps.estimate,
                remarks = summary.remarks().iter().map(|r| format!("; {}", Escaped(r))).collect::<String>(),
                mark = style.marker.svg(at_x, at_y, hollow),
            );
        }
        svg.push_str("</g>\n");
    }
}
