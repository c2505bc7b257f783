//! A chart: a quantity over answers per second, with a line per configuration.

use std::fmt::{Display, Write as _};

use model::OfferedLoad;

use crate::summary::Summary;
use measure::statistics::Interval;

use super::escaped::Escaped;
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
    /// In powers of ten.
    Logarithmic,
    /// From 0 to 100.
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

/// Maps values to coordinates along one axis.
pub(super) struct Scale {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) logarithmic: bool,
}

impl Scale {
    pub(super) fn place(&self, value: f64) -> f64 {
        let along = |v: f64| if self.logarithmic { v.max(f64::MIN_POSITIVE).ln() } else { v };
        let share = (along(value) - along(self.low)) / (along(self.high) - along(self.low));
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// About `about` round values within the scale.
    pub(super) fn ticks(&self, about: f64) -> Vec<f64> {
        /// More ticks would be a bug in the scale, not a property of the data.
        const TICKS_MAX: usize = 40;
        if self.logarithmic {
            let decades = (self.high / self.low).log10();
            let steps: &[f64] = if decades > 3.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let first = self.low.log10().floor();
            let values = (0..TICKS_MAX).map(|i| first + f64::from(u32::try_from(i).unwrap_or(0)));
            let values = values.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powf(power)));
            return values.filter(|v| (self.low..=self.high).contains(v)).take(TICKS_MAX).collect();
        }
        let rough = (self.high - self.low) / about;
        let power = 10_f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|s| s * power).into_iter().find(|s| *s >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil();
        (0..TICKS_MAX)
            .map(|i| (first + f64::from(u32::try_from(i).unwrap_or(0))) * step)
            .take_while(|v| *v <= self.high * (1.0 + 1e-9))
            .collect()
    }
}

/// Formats a number for an axis: `200`, `1.5K`, `20K`, `1M`.
pub(super) fn short(value: f64) -> String {
    let (scaled, suffix) = match value {
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "K"),
        v => (v, ""),
    };
    format!("{}{suffix}", (scaled * 100.0).round() / 100.0)
}

/// Draws a horizontal grid line across a chart, with its value on the left.
pub(super) fn line_across(page: &mut String, left: f64, right: f64, at: f64, value: impl Display) {
    let _ = writeln!(
        page,
        "<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
        left - 7.0,
        at + 4.0
    );
}

/// Draws a tick below a chart, with its value under it.
pub(super) fn tick_below(page: &mut String, at: f64, bottom: f64, value: impl Display) {
    let _ = writeln!(
        page,
        "<path class=\"grid\" d=\"M{at:.1} {bottom}v5\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>",
        bottom + 19.0
    );
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

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_logarithmic_scale_gives_every_decade_the_same_room() {
        let scale = Scale { low: 10.0, high: 10_000.0, from: 300.0, to: 0.0, logarithmic: true };
        assert_eq!(
            [10.0, 100.0, 1000.0, 10_000.0].map(|v| scale.place(v).round()),
            [300.0, 200.0, 100.0, 0.0]
        );
        let found: Vec<String> = scale.ticks(5.0).into_iter().map(short).collect();
        assert_eq!(found, ["10", "20", "50", "100", "200", "500", "1000", "2000", "5000", "10K"]);
    }

    #[test]
    fn ticks_are_round_numbers_within_the_scale() {
        let scale = Scale { low: 0.0, high: 104_000.0, from: 0.0, to: 1.0, logarithmic: false };
        let found: Vec<String> = scale.ticks(9.0).into_iter().map(short).collect();
        assert_eq!(found, ["0", "20K", "40K", "60K", "80K", "100K"]);
    }
}
