//! Distinguishes lines by colour, dash pattern and marker, each of which is sufficient.

use std::fmt::Write as _;

/// The style in which a configuration is drawn.
#[derive(Clone, Debug)]
pub(super) struct SeriesStyle {
    pub(super) label: String,
    /// The CSS class of the line's colour.
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

/// The colours' CSS classes; their values, one set for light and one for dark, are in [`session::page::drawing::CSS`].
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

/// Returns the CSS rules that fade all lines except the one whose name the mouse points at.
pub(super) fn hover(series: usize) -> String {
    let mut css = String::new();
    for index in 0..series {
        let _ = writeln!(css, "body:has(.s{index}:hover) .s:not(.s{index}) {{ opacity: 0.12; }}");
    }
    css
}

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
