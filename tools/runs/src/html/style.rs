//! Distinguishes lines by colour, dash pattern and marker; any one of them is enough.

use std::fmt::Write as _;

/// How a configuration is drawn.
#[derive(Clone, Debug)]
pub(super) struct SeriesStyle {
    pub(super) label: String,
    /// The CSS class of its colour.
    pub(super) colour: &'static str,
    pub(super) dash: &'static str,
    pub(super) marker: Marker,
}

/// A marker's shape.
#[derive(Clone, Copy, Debug)]
pub(super) enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
}

impl Marker {
    /// Draws the marker around a point, optionally hollow.
    pub(super) fn svg(self, x: f64, y: f64, hollow: bool) -> String {
        let class = if hollow { "mark hollow" } else { "mark" };
        let path = match self {
            Self::Circle => {
                return format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.6\"/>");
            }
            Self::Square => "m-3.3-3.3h6.6v6.6h-6.6z",
            Self::Triangle => "m0-4.6l4.3 7.6h-8.6z",
            Self::Diamond => "m0-4.8l4.3 4.8l-4.3 4.8l-4.3-4.8z",
        };
        format!("<path class=\"{class}\" d=\"M{x:.1} {y:.1}{path}\"/>")
    }
}

/// The colours' CSS classes; their values, one set for light and one for dark, are in [`CSS`].
const COLOURS: [&str; 7] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6"];
const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];
const MARKERS: [Marker; 4] = [Marker::Circle, Marker::Square, Marker::Triangle, Marker::Diamond];

/// Assigns a style to each label. Labels that differ only in a trailing number (`defer10`, `defer50`) form a
/// family: they share a colour, and each member has its own dash pattern and marker.
pub(super) fn styles(labels: &[String]) -> Vec<SeriesStyle> {
    let mut families: Vec<(&str, usize)> = Vec::new();
    labels
        .iter()
        .map(|label| {
            let family = label.trim_end_matches(|c: char| c.is_ascii_digit());
            let place = families.iter().position(|(name, _)| *name == family).unwrap_or_else(|| {
                families.push((family, 0));
                families.len() - 1
            });
            let member = families[place].1;
            families[place].1 += 1;
            // Families after the seventh reuse an earlier colour and continue with its dash patterns.
            let variant = member + place / COLOURS.len();
            SeriesStyle {
                label: label.clone(),
                colour: COLOURS[place % COLOURS.len()],
                dash: DASHES[variant % DASHES.len()],
                marker: MARKERS[variant % MARKERS.len()],
            }
        })
        .collect()
}

/// The CSS rules that fade all lines except the one whose name the mouse points at.
pub(super) fn hover(series: usize) -> String {
    let mut css = String::new();
    for index in 0..series {
        let _ = writeln!(css, "body:has(.s{index}:hover) .s:not(.s{index}) {{ opacity: 0.12; }}");
    }
    css
}

/// Colours: Okabe and Ito's palette, which remains distinct with all common types of colour blindness, in a
/// darker set for light pages and a lighter one for dark pages.
pub(super) const CSS: &str = "\
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
    use std::collections::BTreeSet;

    #[test]
    fn the_documents_eleven_configurations_all_look_different() {
        let labels: Vec<String> = model::DeliveryMode::DOCUMENT.iter().map(ToString::to_string).collect();
        let styles = styles(&labels);
        let looks: BTreeSet<(&str, &str)> = styles.iter().map(|s| (s.colour, s.dash)).collect();
        assert_eq!(looks.len(), labels.len());
        let suspend: BTreeSet<&str> =
            styles.iter().filter(|s| s.label.starts_with("suspend")).map(|s| s.colour).collect();
        assert_eq!(suspend.len(), 1, "a family has one colour");
    }
}
