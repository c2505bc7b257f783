//! Draws measurements: settings as points of two quantities, and an estimate over time. Each figure is drawn
//! for wide and for narrow screens, and the reader's browser shows one of them.

use std::fmt::Write as _;

use crate::page::drawing::{CSS, Escaped, Scale, line_across, short, tick_below};

/// The frame of a figure, in the SVG's own units.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// The CSS class for the width of the screen.
    class: &'static str,
    width: f64,
    height: f64,
    /// The number of labelled values along the horizontal axis.
    ticks: f64,
}

const FRAMES: [Frame; 2] = [
    Frame { class: "broad", width: 900.0, height: 340.0, ticks: 9.0 },
    Frame { class: "narrow", width: 360.0, height: 300.0, ticks: 4.0 },
];

const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 42.0;

/// The typical width and height of a character, in these units.
const CHARACTER: (f64, f64) = (6.7, 14.0);

const STYLE: &str = "\
.front { fill: none; stroke: var(--c1); stroke-width: 1.4; stroke-dasharray: 5 3; }
.setting { fill: var(--soft); } .on-front { fill: var(--c1); }
.current { fill: var(--card); stroke: var(--ink); stroke-width: 2; }
.winner { fill: var(--c4); }
text.name { fill: var(--ink); } text.named { font-weight: 700; }
.band { fill: var(--c1); opacity: .18; } .estimate { fill: none; stroke: var(--c1); stroke-width: 1.8; }
.none { stroke: var(--ink); stroke-dasharray: 4 3; opacity: .6; }
figure { margin: 0 0 1.2rem; } .narrow { display: none !important; }
@media (max-width: 640px) { .broad { display: none !important; } .narrow { display: block !important; } }
";

/// The role of a setting in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A candidate.
    Candidate,
    /// The setting that was in force.
    Current,
    /// The best candidate.
    Winner,
}

/// A setting as a point with two quantities. In both, less is better.
#[derive(Clone, Debug, PartialEq)]
pub struct PlottedSetting {
    /// Its name.
    pub name: String,
    /// The horizontal quantity.
    pub x: f64,
    /// The vertical quantity.
    pub y: f64,
    /// Its role.
    pub role: Role,
}

/// An estimate at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// The time since the beginning, in days.
    pub days: f64,
    /// The estimate, in percent.
    pub estimate: f64,
    /// The lower end of the estimate's interval; `None` if it is unknown.
    pub low: Option<f64>,
    /// The upper end.
    pub high: Option<f64>,
}

/// Creates a self-contained HTML page without scripts, from a title, the conditions of the measurement,
/// sentences and figures.
pub fn html(title: &str, place: &str, sentences: &[String], figures: &[String]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{CSS}{STYLE}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n<p class=\"where\">{place}</p>\n",
        title = Escaped(title),
        place = Escaped(place),
    );
    figures.first().into_iter().for_each(|figure| page.push_str(figure));
    for sentence in sentences {
        let _infallible = writeln!(page, "<p>{}</p>", Escaped(sentence));
    }
    figures.iter().skip(1).for_each(|figure| page.push_str(figure));
    page.push_str("</body>\n</html>\n");
    page
}

/// Returns the Pareto front, from left to right: the settings for which no other setting is better in both
/// quantities.
pub fn front(places: &[PlottedSetting]) -> Vec<&PlottedSetting> {
    let beats = |one: &PlottedSetting, other: &PlottedSetting| {
        one.x <= other.x && one.y <= other.y && (one.x < other.x || one.y < other.y)
    };
    let is_on = |place: &&PlottedSetting| !places.iter().any(|other| beats(other, place));
    let mut front: Vec<&PlottedSetting> = places.iter().filter(is_on).collect();
    front.sort_by(|one, other| one.x.total_cmp(&other.x).then(other.y.total_cmp(&one.y)));
    front
}

/// Returns the style of figures, for a page with its own style.
pub const fn style() -> &'static str {
    STYLE
}

/// Draws settings as named points. Marks the Pareto front, the current setting and the winner. Empty for
/// fewer than two places.
pub fn scatter(x: &str, y: &str, places: &[PlottedSetting]) -> String {
    let places: Vec<PlottedSetting> =
        places.iter().filter(|place| place.x.is_finite() && place.y.is_finite()).cloned().collect();
    if places.len() < 2 {
        return String::new();
    }
    let title = format!("{y} over {x}");
    let mut figure = format!(
        "<figure>\n<figcaption><b>{}</b> over <b>{}</b>: towards the lower left is better. Dashed: settings that no other beats in both. Ring: the current setting. Green diamond: the winner.</figcaption>\n",
        Escaped(y),
        Escaped(x)
    );
    for frame in FRAMES {
        frame.open(&mut figure, &title);
        frame.scatter(&mut figure, &places, (x, y));
        figure.push_str("</svg>\n");
    }
    figure.push_str("</figure>\n");
    figure
}

/// Draws an estimate in percent over time, with its interval as a band. Empty for fewer than two moments.
pub fn course(title: &str, words: &str, moments: &[Moment]) -> String {
    if moments.len() < 2 {
        return String::new();
    }
    let mut figure = format!(
        "<figure>\n<figcaption><b>{}</b>, over days: {}. Band: its 95 % interval. Dashed: no effect.</figcaption>\n",
        Escaped(title),
        Escaped(words)
    );
    for frame in FRAMES {
        frame.open(&mut figure, title);
        frame.course(&mut figure, moments);
        figure.push_str("</svg>\n");
    }
    figure.push_str("</figure>\n");
    figure
}

impl Frame {
    fn open(&self, figure: &mut String, title: &str) {
        let Self { class, width, height, .. } = self;
        let _infallible = writeln!(
            figure,
            "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">",
            Escaped(title)
        );
    }

    const fn right(&self) -> f64 {
        self.width - RIGHT
    }

    const fn bottom(&self) -> f64 {
        self.height - BOTTOM
    }

    /// Draws the grid, the values along the axes and the name of the horizontal axis.
    fn grid(&self, figure: &mut String, x: &Scale, y: &Scale, name: &str, value: fn(f64) -> String) {
        for tick in y.ticks(5.0) {
            line_across(figure, LEFT, self.right(), y.place(tick), value(tick));
        }
        for tick in x.ticks(self.ticks) {
            tick_below(figure, x.place(tick), self.bottom(), short(tick));
        }
        let _infallible = writeln!(
            figure,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, self.right()),
            self.height - 6.0,
            Escaped(name)
        );
    }

    fn scatter(&self, figure: &mut String, places: &[PlottedSetting], (name_of_x, name_of_y): (&str, &str)) {
        let most = |of: fn(&PlottedSetting) -> f64| places.iter().map(of).fold(f64::MIN_POSITIVE, f64::max);
        let least = |of: fn(&PlottedSetting) -> f64| places.iter().map(of).fold(f64::INFINITY, f64::min);
        let scale = |of: fn(&PlottedSetting) -> f64, from, to| {
            let (low, high) = (least(of), most(of));
            // Response times can differ by large factors, so the scale may be logarithmic.
            let logarithmic = low > 0.0 && high / low > LOGARITHMIC_FROM;
            let room = ((high - low) * 0.2).max(high * 0.02);
            let (low, high) = match logarithmic {
                true => (low / 1.6, high * 1.6),
                false => ((low - room).max(0.0), high + room),
            };
            Scale { low, high, from, to, logarithmic }
        };
        let x = scale(|place| place.x, LEFT, self.right());
        let y = scale(|place| place.y, self.bottom(), TOP);
        self.grid(figure, &x, &y, name_of_x, short);
        let _infallible =
            writeln!(figure, "<text x=\"4\" y=\"{:.1}\">{}</text>", CHARACTER.1 - 3.0, Escaped(name_of_y));
        let front = front(places);
        let path: Vec<String> =
            front.iter().map(|place| format!("{:.1} {:.1}", x.place(place.x), y.place(place.y))).collect();
        if path.len() > 1 {
            let _infallible = writeln!(figure, "<path class=\"front\" d=\"M{}\"/>", path.join("L"));
        }
        let points: Vec<(f64, f64)> =
            places.iter().map(|place| (x.place(place.x), y.place(place.y))).collect();
        for (place, (at, height)) in places.iter().zip(&points) {
            let is_on_front = front.iter().any(|on| std::ptr::eq(*on, place));
            let _infallible = match place.role {
                Role::Current => {
                    writeln!(figure, "<circle class=\"current\" cx=\"{at:.1}\" cy=\"{height:.1}\" r=\"6\"/>")
                }
                Role::Winner => {
                    writeln!(figure, "<path class=\"winner\" d=\"M{at:.1} {height:.1}m0-8l8 8l-8 8l-8-8z\"/>")
                }
                Role::Candidate => writeln!(
                    figure,
                    "<circle class=\"{}\" cx=\"{at:.1}\" cy=\"{height:.1}\" r=\"4.5\"/>",
                    if is_on_front { "on-front" } else { "setting" }
                ),
            };
        }
        let mut boxes: Vec<Box> = points.iter().map(|(at, height)| Box::around(*at, *height, 8.0)).collect();
        for two in front.windows(2) {
            let ends = [two[0], two[1]].map(|place| (x.place(place.x), y.place(place.y)));
            boxes.extend(along(ends[0], ends[1]).map(|(at, height)| Box::around(at, height, 1.5)));
        }
        for (place, point) in places.iter().zip(&points) {
            self.label(figure, place, *point, &mut boxes);
        }
    }

    /// Writes a name next to its point, where it covers nothing else if there is such a place.
    fn label(
        &self,
        figure: &mut String,
        place: &PlottedSetting,
        (at, height): (f64, f64),
        boxes: &mut Vec<Box>,
    ) {
        let name = match place.role {
            Role::Candidate => place.name.clone(),
            Role::Current if place.name == "current" => place.name.clone(),
            Role::Current => format!("{} (current)", place.name),
            Role::Winner => format!("{} (winner)", place.name),
        };
        let width = CHARACTER.0 * f64::from(u32::try_from(name.chars().count()).unwrap_or(u32::MAX));
        let near = [
            (at - width / 2.0, height - 12.0),
            (at + 12.0, height + 4.0),
            (at - 12.0 - width, height + 4.0),
            (at - width / 2.0, height + 22.0),
            (at + 10.0, height - 14.0),
            (at + 10.0, height + 20.0),
            (at - 10.0 - width, height - 14.0),
            (at - 10.0 - width, height + 20.0),
        ];
        let far = (1..FAR_MAX).flat_map(|row| {
            let row = f64::from(row) * (CHARACTER.1 + 3.0);
            [-row, row].into_iter().flat_map(move |row| {
                [at + 14.0, at - 14.0 - width, at + 60.0, at - 60.0 - width].map(|left| (left, height + row))
            })
        });
        let ways: Vec<(f64, f64)> = near.into_iter().chain(far).collect();
        let fits = |(left, base): &&(f64, f64)| {
            let area = Box::of_text(*left, *base, width);
            area.left >= LEFT
                && area.right <= self.width - 2.0
                && area.top >= 0.0
                && area.bottom <= self.bottom()
                && boxes.iter().all(|other| !other.meets(&area))
        };
        let inside = (at - width / 2.0).clamp(LEFT, (self.width - 2.0 - width).max(LEFT));
        let found = ways.iter().position(|way| fits(&way));
        let (left, base) = found.map_or((inside, height - 12.0), |way| ways[way]);
        if found.is_some_and(|way| way >= near.len()) {
            let end = if left > at { left - 2.0 } else { left + width + 2.0 };
            let _infallible = writeln!(
                figure,
                "<path class=\"grid\" d=\"M{at:.1} {height:.1}L{end:.1} {:.1}\"/>",
                base - 4.0
            );
        }
        boxes.push(Box::of_text(left, base, width));
        let class = if place.role == Role::Candidate { "name" } else { "name named" };
        let _infallible = writeln!(
            figure,
            "<text class=\"{class}\" x=\"{left:.1}\" y=\"{base:.1}\">{}</text>",
            Escaped(&name)
        );
    }

    fn course(&self, figure: &mut String, moments: &[Moment]) {
        // The first intervals are too wide to draw, so let the later ones determine the scale.
        let settled = &moments[moments.len() / 4..];
        let settled = || settled.iter().flat_map(|one| [Some(one.estimate), one.low, one.high]).flatten();
        let reach = |fold: fn(f64, f64) -> f64| settled().chain([0.0]).fold(0.0, fold);
        let (low, high) = (reach(f64::min), reach(f64::max));
        let room = ((high - low) * 0.1).max(1.0);
        let y =
            Scale { low: low - room, high: high + room, from: self.bottom(), to: TOP, logarithmic: false };
        let last = moments.last().map_or(1.0, |one| one.days).max(f64::MIN_POSITIVE);
        let first = moments.first().map_or(0.0, |one| one.days);
        let x = Scale { low: first, high: last, from: LEFT, to: self.right(), logarithmic: false };
        self.grid(figure, &x, &y, "days", |value| format!("{value:+.0} %"));
        let none = y.place(0.0);
        let _infallible = writeln!(figure, "<path class=\"none\" d=\"M{LEFT} {none:.1}H{}\"/>", self.right());
        let known: Vec<(f64, f64, f64)> =
            moments.iter().filter_map(|one| Some((x.place(one.days), one.low?, one.high?))).collect();
        let upper = known.iter().map(|(at, _, high)| (*at, y.place(*high)));
        let lower = known.iter().rev().map(|(at, low, _)| (*at, y.place(*low)));
        let band: Vec<String> = upper.chain(lower).map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        if known.len() > 1 {
            let _infallible = writeln!(figure, "<polygon class=\"band\" points=\"{}\"/>", band.join(" "));
        }
        let line: Vec<String> = moments
            .iter()
            .map(|one| format!("{:.1} {:.1}", x.place(one.days), y.place(one.estimate)))
            .collect();
        let _infallible = writeln!(figure, "<path class=\"estimate\" d=\"M{}\"/>", line.join("L"));
    }
}

/// The maximum distance of a name from its point, in rows.
const FAR_MAX: u32 = 8;

/// Returns points along a line.
fn along(from: (f64, f64), to: (f64, f64)) -> impl Iterator<Item = (f64, f64)> {
    const STEPS: u32 = 48;
    (0..=STEPS).map(move |step| {
        let share = f64::from(step) / f64::from(STEPS);
        (from.0 + share * (to.0 - from.0), from.1 + share * (to.1 - from.1))
    })
}

/// The minimum ratio of the largest to the smallest value for a logarithmic scale.
const LOGARITHMIC_FROM: f64 = 8.0;

/// An area of the figure that is already occupied.
#[derive(Clone, Copy, Debug)]
struct Box {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Box {
    const fn around(at: f64, height: f64, reach: f64) -> Self {
        Self { left: at - reach, right: at + reach, top: height - reach, bottom: height + reach }
    }

    const fn of_text(left: f64, base: f64, width: f64) -> Self {
        Self { left, right: left + width, top: base - CHARACTER.1 + 3.0, bottom: base + 3.0 }
    }

    const fn meets(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn place(name: &str, x: f64, y: f64, role: Role) -> PlottedSetting {
        PlottedSetting { name: name.to_owned(), x, y, role }
    }

    #[test]
    fn the_front_has_what_nothing_beats_in_both_quantities() {
        let places = [
            place("current", 20.0, 400.0, Role::Current),
            place("cpu", 14.0, 900.0, Role::Winner),
            place("worse", 15.0, 950.0, Role::Candidate),
            place("fast", 30.0, 300.0, Role::Candidate),
            place("slow", 30.0, 500.0, Role::Candidate),
        ];
        let names: Vec<&str> = front(&places).into_iter().map(|place| place.name.as_str()).collect();
        assert_eq!(names, ["cpu", "current", "fast"]);
        let same = [place("a", 1.0, 1.0, Role::Candidate), place("b", 1.0, 1.0, Role::Candidate)];
        assert_eq!(front(&same).len(), 2, "equal settings do not dominate each other");
    }

    #[test]
    fn the_current_setting_and_the_winner_are_marked_on_wide_and_narrow_screens() {
        let places =
            [place("current", 20.0, 400.0, Role::Current), place("<cpu>", 14.0, 900.0, Role::Winner)];
        let figure = scatter("CPU time per request, us", "p99, us", &places);
        for (what, number) in [
            ("<svg class=\"broad\"", 1),
            ("<svg class=\"narrow\"", 1),
            ("class=\"current\"", 2),
            ("class=\"winner\"", 2),
            ("&lt;cpu&gt; (winner)", 2),
            ("class=\"front\"", 2),
        ] {
            assert_eq!(figure.matches(what).count(), number, "{what}\n{figure}");
        }
        assert_eq!(scatter("x", "y", &places[..1]), "");
        let odd = [places[0].clone(), place("odd", f64::NAN, 1.0, Role::Candidate)];
        assert_eq!(scatter("x", "y", &odd), "");
    }

    #[test]
    fn names_of_settings_that_are_near_to_each_other_do_not_cover_each_other() {
        let places: Vec<PlottedSetting> = (0..6)
            .map(|at| {
                place(&format!("suspend{at}"), 20.0 + f64::from(at), 400.0 + f64::from(at), Role::Candidate)
            })
            .collect();
        for svg in scatter("x", "y", &places).split("<svg").skip(1) {
            let number = |line: &str, key: &str| -> f64 {
                let value = line.split(&format!("{key}=\"")).nth(1).and_then(|rest| rest.split('"').next());
                value.and_then(|value| value.parse().ok()).expect("a number")
            };
            let boxes: Vec<Box> = svg
                .lines()
                .filter(|line| line.contains("class=\"name\""))
                .map(|line| Box::of_text(number(line, "x"), number(line, "y"), CHARACTER.0 * 8.0))
                .collect();
            assert_eq!(boxes.len(), 6);
            for (at, one) in boxes.iter().enumerate() {
                assert!(boxes[at + 1..].iter().all(|other| !one.meets(other)), "{svg}");
            }
        }
    }

    #[test]
    fn an_estimate_over_time_is_a_line_with_a_band_where_the_interval_is_known() {
        let moment = |days: f64, low, high| Moment { days, estimate: -20.0, low, high };
        let moments =
            [moment(0.0, None, None), moment(1.0, Some(-60.0), None), moment(2.0, Some(-30.0), Some(-10.0))];
        assert!(!course("cpu", "", &moments).contains("polygon"), "a single interval is not drawn as a band");
        let later = moment(3.0, Some(-25.0), Some(-15.0));
        let figure = course("cpu of <cache>", "saves", &[&moments[..], &[later]].concat());
        let band = figure.lines().find(|line| line.contains("polygon")).expect("a band");
        assert_eq!(band.matches(' ').count(), 2 + 7, "two ends of two moments: {band}");
        assert!(figure.contains("cpu of &lt;cache&gt;") && !figure.contains("<script"));
        assert_eq!(course("cpu", "", &moments[..1]), "");
    }
}
