//! The parts that all drawings share: scales, grid lines, text in HTML, and style.

use std::fmt::{Display, Write as _};

pub use crate::page::html::Escaped;

/// Maps values to coordinates along one axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The value at `from`.
    pub low: f64,
    /// The value at `to`.
    pub high: f64,
    /// The coordinate of `low`.
    pub from: f64,
    /// The coordinate of `high`.
    pub to: f64,
    /// Whether the scale is logarithmic.
    pub logarithmic: bool,
}

impl Scale {
    /// Returns the coordinate of a value. Values outside the range are placed at its ends.
    pub fn place(&self, value: f64) -> f64 {
        let along = |v: f64| if self.logarithmic { v.max(f64::MIN_POSITIVE).ln() } else { v };
        let share = (along(value) - along(self.low)) / (along(self.high) - along(self.low));
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Returns about this many round values within the scale.
    pub fn ticks(&self, about: f64) -> Vec<f64> {
        /// A limit for the loop: more ticks would be due to a bug in the scale, not to the data.
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
pub fn short(value: f64) -> String {
    let (scaled, suffix) = match value {
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "K"),
        v => (v, ""),
    };
    format!("{}{suffix}", (scaled * 100.0).round() / 100.0)
}

/// Draws a horizontal grid line across a chart, with its value on the left.
pub fn line_across(page: &mut String, left: f64, right: f64, at: f64, value: impl Display) {
    let _ = writeln!(
        page,
        "<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
        left - 7.0,
        at + 4.0
    );
}

/// Draws a tick below a chart, with its value under it.
pub fn tick_below(page: &mut String, at: f64, bottom: f64, value: impl Display) {
    let _ = writeln!(
        page,
        "<path class=\"grid\" d=\"M{at:.1} {bottom}v5\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>",
        bottom + 19.0
    );
}

/// The colours. They are Okabe and Ito's palette, which all common types of colour blindness can distinguish,
/// in a darker version for light pages and a lighter one for dark pages.
pub const CSS: &str = "\
:root { color-scheme: light dark; --ink: #1c2024; --soft: #5b6470; --rule: #d9dde2; --page: #ffffff; --card: #f7f8fa;
  --c0: #1c2024; --c1: #0072b2; --c2: #d55e00; --c3: #9c6f00; --c4: #007d5a; --c5: #b0538a; --c6: #2a93cf; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --soft: #9aa4b0; --rule: #3a414a; --page: #14171b; --card: #1b1f24;
    --c0: #e6e9ed; --c1: #56a8e0; --c2: #ff8a3d; --c3: #e6b422; --c4: #2fc295; --c5: #e08fc0; --c6: #8fd0f5; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1180px;
  margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.where, .note, figcaption, .remark { color: var(--soft); }
.where { margin: 0 0 1rem; }
.note { font-size: .85rem; max-width: 75ch; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); }
.s { transition: opacity .1s; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: .5rem 0; margin: 0;
  position: sticky; top: 0; background: var(--page); z-index: 1; }
.legend li { display: flex; align-items: center; gap: .35rem; font-size: .9rem; cursor: default; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 1.2rem; }
figure { margin: 0; padding: .6rem .8rem; background: var(--card); border: 1px solid var(--rule); border-radius: 6px; }
figcaption { font-size: .9rem; }
figcaption b { color: var(--ink); font-weight: 600; }
figure svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--rule); stroke-width: 1; }
.line { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }
.whisker { stroke: var(--c); stroke-width: 1.1; fill: none; }
.mark { fill: var(--c); stroke: var(--c); stroke-width: 1.4; }
.hollow { fill: var(--card); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .12rem .7rem; text-align: right; white-space: nowrap; }
thead th { color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--rule); }
tbody { border-bottom: 1px solid var(--rule); }
tbody th { text-align: left; vertical-align: top; font-weight: 600; }
thead th:first-child { text-align: left; }
tbody th span { border-left: 4px solid var(--c); padding-left: .5rem; }
td small, thead small { color: var(--soft); display: inline-block; min-width: 4.5em; text-align: left; padding-left: .3em; }
td.remark { text-align: left; font-size: .85rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(260px, 1fr)); gap: .1rem 2rem; margin: 0; }
dl div { display: flex; justify-content: space-between; border-bottom: 1px dotted var(--rule); }
dt { color: var(--soft); } dd { margin: 0; }
@media print { .legend { position: static; } figure { break-inside: avoid; } }
";

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
