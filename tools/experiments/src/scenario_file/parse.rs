//! Text → [`ScenarioFile`]. Total: any text gives a file or its mistakes, and nothing else is read.

use std::collections::BTreeMap;
use std::ops::Range;

use policy_file::{Mistake, Mistakes, nearest};
use sim::scenario::{KEYS, Refused};
use sim::{Costs, Scenario};
use toml::de::{DeTable, DeValue};

/// A parsed scenario file.
#[derive(Clone, Debug, PartialEq)]
pub struct ScenarioFile {
    /// A title for people.
    pub title: String,
    /// The scenario, with the values of the file.
    pub scenario: Scenario,
    /// The measurements that the scenario's parameters are fitted to.
    pub calibration: Option<Calibration>,
    /// Sets of parameters that fit nearly as well, by parameter.
    pub samples: Vec<Costs>,
}

impl ScenarioFile {
    /// Returns whether costs and clients were fitted to rows of the scenario's own host.
    pub fn is_calibrated(&self) -> bool {
        self.calibration.is_some()
    }

    /// Returns the heading of a scenario's output: its title, and a warning if its costs come from another
    /// host.
    pub fn heading(&self) -> String {
        match self.is_calibrated() {
            true => self.title.clone(),
            false => format!("{} (NOT CALIBRATED: costs and clients are not those of this host)", self.title),
        }
    }
}

/// The measurements that a scenario's parameters are fitted to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calibration {
    /// The table of measured rows, in the directory of the scenario file.
    pub measured: String,
    /// The fitted rows; every other row is held out.
    pub rows: Vec<String>,
    /// The fitted parameters.
    pub parameters: Vec<String>,
}

impl Calibration {
    /// The maximum number of fitted rows.
    pub const ROWS_MAX: usize = 14;
}

/// The maximum size of a scenario file, in bytes.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Maximum length of a title, in characters, and of the name of a row or a parameter.
const TITLE_CHARS_MAX: usize = 200;
const WORD_BYTES_MAX: usize = 4096;
/// Maximum number of mistakes kept per file.
const MISTAKES_MAX: usize = 100;
/// The maximum number of parameter sets.
const SAMPLES_MAX: usize = 64;

/// Reads a scenario file.
///
/// # Errors
/// Every mistake of the text, each with its place.
pub fn parse(name: &str, text: &str) -> Result<ScenarioFile, Mistakes> {
    let scenario = Scenario::default();
    let file = ScenarioFile { title: name.to_owned(), scenario, calibration: None, samples: Vec::new() };
    read(name, text, file, &SECTIONS)
}

/// The sections of a scenario file.
const SECTIONS: [&str; 8] =
    ["hardware", "application", "clients", "delivery", "layout", "costs", "calibration", "samples"];

/// The sections that a calibration writes.
const SECTIONS_OF_COSTS: [&str; 3] = ["costs", "calibration", "samples"];

/// Reads a parameter file, as written by a calibration, which replaces the parameters of a scenario.
///
/// # Errors
/// Every mistake of the text, each with its place.
pub fn parse_over(name: &str, text: &str, mut file: ScenarioFile) -> Result<ScenarioFile, Mistakes> {
    file.samples.clear();
    read(name, text, file, &SECTIONS_OF_COSTS)
}

fn read(
    name: &str,
    text: &str,
    file: ScenarioFile,
    sections: &'static [&'static str],
) -> Result<ScenarioFile, Mistakes> {
    let mut reader = Reader { name, text, file, sections, places: BTreeMap::new(), mistakes: Vec::new() };
    if text.len() > FILE_BYTES_MAX {
        reader.wrong(0..0, format!("the file is larger than {FILE_BYTES_MAX} bytes"), None);
        return Err(Mistakes(reader.mistakes));
    }
    let (table, broken) = DeTable::parse_recoverable(text);
    for error in &broken {
        reader.wrong(error.span().unwrap_or(0..0), error.message(), None);
    }
    if broken.is_empty() {
        if table.get_ref().is_empty() {
            let (message, help) = match sections == SECTIONS {
                true => {
                    ("an empty file is not a scenario", Some("any key suffices, such as a title".to_owned()))
                }
                false => ("an empty file has no parameters", None),
            };
            reader.wrong(0..0, message, help);
        }
        reader.file(table.get_ref());
    }
    // Without a fit, the clients' costs were not measured, either.
    if sections == SECTIONS && reader.file.calibration.is_none() {
        for (parameter, least) in Costs::CLIENTS {
            if !reader.places.contains_key(&format!("costs.{parameter}")) {
                reader.file.scenario.costs.set(parameter, *least);
            }
        }
    }
    if reader.mistakes.is_empty()
        && let Err(impossible) = reader.file.scenario.check()
    {
        let keys = std::iter::once(&impossible.key).chain(impossible.beside);
        let at = keys.filter_map(|key| reader.places.get(*key).cloned()).next().unwrap_or(0..0);
        reader.wrong(at, impossible.to_string(), None);
    }
    if reader.mistakes.is_empty() {
        return Ok(reader.file);
    }
    reader.mistakes.sort_by_key(|m| (m.line, m.column));
    Err(Mistakes(reader.mistakes))
}

/// The text being read, and the results so far.
struct Reader<'a> {
    name: &'a str,
    text: &'a str,
    file: ScenarioFile,
    /// The allowed sections.
    sections: &'static [&'static str],
    /// The position of each key.
    places: BTreeMap<String, Range<usize>>,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    /// Returns whether there are so many mistakes that the rest of the file is skipped.
    fn is_full(&self) -> bool {
        self.mistakes.len() >= MISTAKES_MAX
    }

    fn wrong(&mut self, at: Range<usize>, message: impl Into<String>, help: Option<String>) {
        if self.is_full() {
            return;
        }
        self.mistakes.push(Mistake::new(self.name, self.text, at, message, help));
    }

    fn file(&mut self, table: &DeTable<'_>) {
        // A delivery mode sets other values, too; explicit keys override them afterwards.
        let mut late = Vec::new();
        let mut samples = None;
        for (section, value) in table {
            if self.is_full() {
                break;
            }
            let word = section.get_ref().as_ref();
            match (word, value.get_ref()) {
                _ if self.sections != SECTIONS && !self.sections.contains(&word) => {
                    let help = format!("it has {}", self.sections.join(", "));
                    self.wrong(
                        section.span(),
                        format!("`{word}` does not belong in a parameter file"),
                        Some(help),
                    );
                }
                ("title", DeValue::String(title)) if title.trim().is_empty() => {
                    self.wrong(value.span(), "`title` is empty", None);
                }
                ("title", DeValue::String(title)) if title.chars().count() > TITLE_CHARS_MAX => {
                    let message = format!("`title` has more than {TITLE_CHARS_MAX} characters");
                    self.wrong(value.span(), message, None);
                }
                ("title", DeValue::String(title)) => self.file.title = title.to_string(),
                ("calibration", DeValue::Table(keys)) => self.calibration(keys),
                ("samples", DeValue::Table(keys)) => samples = Some(keys),
                (
                    "hardware" | "application" | "clients" | "delivery" | "layout" | "costs",
                    DeValue::Table(keys),
                ) => {
                    for (key, value) in keys {
                        let path = format!("{word}.{}", key.get_ref());
                        self.places.insert(path.clone(), value.span());
                        if path == "delivery.mode" {
                            self.value(&path, key.span(), value.span(), value.get_ref());
                        } else {
                            late.push((path, key.span(), value.span(), value.get_ref()));
                        }
                    }
                }
                ("title", other) => self.takes(value.span(), "title", "a text", other),
                (_, other) if SECTIONS.contains(&word) => {
                    let message = format!("`{word}` is a section, not {}", kind(other));
                    self.wrong(value.span(), message, Some(format!("start it with [{word}]")));
                }
                _ => {
                    let help = nearest(word, SECTIONS).map(|name| format!("did you mean `{name}`?"));
                    let word: String = word.chars().take(NAMED_CHARS_MAX).collect();
                    self.wrong(section.span(), format!("`{word}` is not a section of a scenario"), help);
                }
            }
        }
        for (path, key, at, value) in late {
            if self.is_full() {
                break;
            }
            self.value(&path, key, at, value);
        }
        // Samples differ from the scenario's own parameters only in the fitted ones.
        if let Some(keys) = samples {
            self.samples(keys);
        }
    }

    /// Reports that a key expects another type.
    fn takes(&mut self, at: Range<usize>, key: &str, what: &str, found: &DeValue<'_>) {
        self.wrong(at, format!("`{key}` takes {what}, not {}", kind(found)), None);
    }

    fn value(&mut self, path: &str, key: Range<usize>, at: Range<usize>, value: &DeValue<'_>) {
        let text = match value {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => decimal(number),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(truth) => truth.to_string(),
            // The value of an unknown key does not matter.
            DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) if Scenario::has_key(path) => {
                return self.takes(at, path, "a single value", value);
            }
            DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => String::new(),
        };
        match self.file.scenario.set(path, &text) {
            Ok(()) => {}
            Err(Refused::Value(message)) => self.wrong(at, message, None),
            Err(refused @ Refused::NoKey(_)) => {
                let meant = nearest_key(path);
                self.wrong(key, refused.to_string(), meant.map(|key| format!("did you mean `{key}`?")));
            }
        }
    }

    fn calibration(&mut self, keys: &DeTable<'_>) {
        let mut calibration = self.file.calibration.take().unwrap_or_default();
        for (key, value) in keys {
            if self.is_full() {
                break;
            }
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("measured", DeValue::String(file)) => calibration.measured = file.to_string(),
                ("rows", DeValue::Array(_)) => {
                    calibration.rows = self.words(value.get_ref());
                    if calibration.rows.len() > Calibration::ROWS_MAX {
                        let most = Calibration::ROWS_MAX;
                        self.wrong(value.span(), format!("at most {most} rows may be fitted"), None);
                    }
                }
                ("parameters", DeValue::Array(names)) => {
                    calibration.parameters = self.words(value.get_ref());
                    for name in names {
                        if self.is_full() {
                            break;
                        }
                        let known =
                            |text: &str| Costs::PARAMETERS.iter().any(|parameter| parameter.name == text);
                        if let DeValue::String(text) = name.get_ref()
                            && !known(text)
                        {
                            let help =
                                nearest(text, Costs::PARAMETERS.iter().map(|parameter| parameter.name));
                            let help = help.map(|name| format!("did you mean `{name}`?"));
                            let text: String = text.chars().take(NAMED_CHARS_MAX).collect();
                            self.wrong(name.span(), format!("`{text}` is not a parameter"), help);
                        }
                    }
                }
                ("measured", other) => self.takes(value.span(), "calibration.measured", "a text", other),
                (name @ ("rows" | "parameters"), other) => {
                    self.takes(value.span(), &format!("calibration.{name}"), "a list of texts", other);
                }
                (other, _) => {
                    let help = nearest(other, ["measured", "rows", "parameters"]);
                    let help = help.map(|name| format!("did you mean `{name}`?"));
                    let other: String = other.chars().take(NAMED_CHARS_MAX).collect();
                    self.wrong(key.span(), format!("`{other}` is not a key of [calibration]"), help);
                }
            }
        }
        self.file.calibration = Some(calibration);
    }

    fn words(&mut self, array: &DeValue<'_>) -> Vec<String> {
        let mut words = Vec::new();
        for element in array.as_array().into_iter().flatten() {
            match element.get_ref() {
                DeValue::String(word) if word.len() > WORD_BYTES_MAX => {
                    let message = format!("a name has at most {WORD_BYTES_MAX} bytes");
                    self.wrong(element.span(), message, None);
                }
                DeValue::String(word) => words.push(word.to_string()),
                other => {
                    self.wrong(
                        element.span(),
                        format!("this list must contain strings, not {}", kind(other)),
                        None,
                    );
                }
            }
        }
        words
    }

    fn samples(&mut self, keys: &DeTable<'_>) {
        let mut length = None;
        for (key, value) in keys {
            if self.is_full() {
                break;
            }
            let numbers: Option<Vec<f64>> = value
                .get_ref()
                .as_array()
                .map(|array| array.iter().map(|n| number(n.get_ref())).collect::<Option<_>>())
                .unwrap_or_default();
            let Some(numbers) = numbers.filter(|numbers| numbers.len() <= SAMPLES_MAX) else {
                self.wrong(value.span(), format!("expected a list of at most {SAMPLES_MAX} numbers"), None);
                continue;
            };
            if *length.get_or_insert(numbers.len()) != numbers.len() {
                let message = "each parameter has one number per set, so all lists must have the same length";
                self.wrong(value.span(), message, None);
                continue;
            }
            let name = key.get_ref();
            let path = format!("costs.{name}");
            if !Scenario::has_key(&path) {
                let help = nearest(name, Costs::PARAMETERS.iter().map(|parameter| parameter.name));
                let help = help.map(|name| format!("did you mean `{name}`?"));
                let name: String = name.chars().take(NAMED_CHARS_MAX).collect();
                self.wrong(key.span(), format!("`{name}` is not a parameter"), help);
                continue;
            }
            let mut bounded = self.file.scenario.clone();
            let places = value.get_ref().as_array().into_iter().flatten().map(toml::Spanned::span);
            let beyond = numbers.iter().zip(places).find_map(|(number, place)| {
                bounded.set(&path, &number.to_string()).err().map(|refused| (place, refused.to_string()))
            });
            if let Some((place, message)) = beyond {
                self.wrong(place, message, None);
                continue;
            }
            let base = self.file.scenario.costs.clone();
            if self.file.samples.len() < numbers.len() {
                self.file.samples.resize(numbers.len(), base);
            }
            for (sample, number) in self.file.samples.iter_mut().zip(&numbers) {
                sample.set(name, *number);
            }
        }
    }
}

/// The type of a value, for messages.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    }
}

/// Maximum number of characters of an unknown name that are quoted.
const NAMED_CHARS_MAX: usize = 80;

fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(number) => number.to_string().parse().ok(),
        DeValue::Integer(number) => decimal(number).parse().ok(),
        _ => None,
    }
}

/// Returns a whole number in decimal digits, whatever its radix in the file.
fn decimal(number: &toml::de::DeInteger<'_>) -> String {
    match i128::from_str_radix(number.as_str(), number.radix()) {
        Ok(whole) => whole.to_string(),
        Err(_) => number.to_string(),
    }
}

/// Returns the key that was probably meant.
pub(crate) fn nearest_key(path: &str) -> Option<String> {
    let costs: Vec<String> =
        Costs::PARAMETERS.iter().map(|parameter| format!("costs.{}", parameter.name)).collect();
    let all = KEYS.iter().map(|key| key.path).chain(costs.iter().map(String::as_str));
    nearest(path, all).map(str::to_owned)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::scenario_file::SHIPPED;

    #[test]
    fn every_shipped_scenario_is_read_and_can_be() {
        for shipped in SHIPPED {
            let file = parse(shipped.name, shipped.scenario).unwrap_or_else(|mistakes| panic!("{mistakes}"));
            assert_eq!(file.scenario.check(), Ok(()), "{}", shipped.name);
        }
    }

    #[test]
    fn the_default_scenario_is_the_shipped_one() {
        let file = parse("irq-suspension", crate::scenario_file::SHIPPED[0].scenario).expect("is read");
        let default = Scenario { costs: file.scenario.costs.clone(), ..Scenario::default() };
        assert_eq!(file.scenario, default);
    }

    #[test]
    fn a_file_of_parameters_changes_nothing_else_and_its_sets_are_within_bounds_too() {
        let scenario = parse("t.toml", "title = \"t\"\n").expect("a scenario");
        let over = |text: &str| parse_over("costs.toml", text, scenario.clone());
        let taken = over("[costs]\npacket = 1.5\n[samples]\npacket = [1.0, 2]\n").expect("parameters");
        assert_eq!((taken.title.as_str(), taken.samples.len()), ("t", 2));
        for (text, words) in [
            (
                "title = \"x\"\n[delivery]\nmode = \"fullbusy\"\n",
                "`delivery` does not belong in a parameter file",
            ),
            ("[samples]\npacket = [1, 200]\n", "`200` is not a number from"),
            ("[samples]\npacket = [1, 2]\nrequest = [1]\n", "all lists must have the same length"),
            ("", "an empty file has no parameters"),
        ] {
            let mistakes = over(text).expect_err(words).to_string();
            assert!(mistakes.contains(words), "{words}\nin\n{mistakes}");
        }
    }

    #[test]
    fn a_whole_number_may_be_written_in_any_radix() {
        let file = parse("t.toml", "[hardware]\nring = 0x1_00\n[costs]\nrequest = 0b11\n").expect("is read");
        assert_eq!((file.scenario.hardware.ring, file.scenario.costs.request), (256, 3.0));
    }

    #[test]
    fn of_very_many_mistakes_some_are_printed() {
        let many = |line: fn(usize) -> String| (0..20_000).map(line).collect::<String>();
        for text in [
            many(|i| format!("[k{i}]\n")),
            format!("[hardware]\n{}", many(|i| format!("k{i} = 1\n"))),
            format!("[samples]\n{}", many(|i| format!("k{i} = [1]\n"))),
            format!("[calibration]\nparameters = [{}]\n", many(|i| format!("\"k{i}\", "))),
            format!("[calibration]\nrows = [{}]\n", many(|i| format!("{i}, "))),
        ] {
            assert_eq!(parse("t.toml", &text).expect_err("unknown").0.len(), MISTAKES_MAX);
        }
    }

    #[test]
    fn mistakes_are_drawn_with_their_place() {
        let text = "[hardware]\nqueues = 0\nllc_cpu = 4\n\n[costs]\nirq = 99.0\n\n[clinets]\nload = 5\n";
        let mistakes = parse("wrong.toml", text).expect_err("wrong").to_string();
        for words in [
            "`0` is not a whole number from 1 to 256\n --> wrong.toml:2:10",
            "did you mean `hardware.llc-cpus`?",
            "`99.0` is not a number from 0.3 to 10 us",
            "did you mean `clients`?",
        ] {
            assert!(mistakes.contains(words), "{words}\nin\n{mistakes}");
        }
    }

    #[test]
    fn a_value_of_another_kind_is_refused_with_what_is_taken_there() {
        for (text, words) in [
            ("title = 1\n", "`title` takes a text, not a whole number\n --> t.toml:1:9"),
            ("title = \" \"\n", "`title` is empty"),
            (&format!("title = \"{}\"\n", "t".repeat(201)), "`title` has more than 200 characters"),
            (&format!("[calibration]\nrows = [\"{}\"]\n", "r".repeat(5000)), "a name has at most 4096 bytes"),
            ("hardware = 3\n", "`hardware` is a section, not a whole number"),
            ("[[layout]]\npinned = true\n", "`layout` is a section, not a list"),
            ("[hardware]\nqueues = [4]\n", "`hardware.queues` takes a single value, not a list"),
            ("[hardware.queues]\na = 1\n", "`hardware.queues` takes a single value, not a section"),
            ("[hardware]\nqueue = [4]\n", "did you mean `hardware.queues`?"),
            ("[calibration]\nmeasured = 3\n", "`calibration.measured` takes a text, not a whole number"),
            ("[calibration]\nrows = \"a\"\n", "`calibration.rows` takes a list of texts, not a text"),
            (
                "[calibration]\nrows = [2.5]\n",
                "this list must contain strings, not a number\n --> t.toml:2:9",
            ),
            ("[calibration]\nrow = []\n", "`row` is not a key of [calibration]"),
            ("[samples]\npaket = [1]\n", "did you mean `packet`?"),
            ("[samples]\npacket = [1, 99]\n", "`99` is not a number from 0.3 to 10 us"),
        ] {
            let mistakes = parse("t.toml", text).expect_err(words).to_string();
            assert!(mistakes.contains(words), "{words}\nin\n{mistakes}");
        }
        let long = "k".repeat(100_000);
        let text =
            format!("[{long}]\n[calibration]\n{long} = 1\n[hardware]\n{long} = 1\nkernel = \"{long}\"\n");
        let mistakes = parse("t.toml", &text).expect_err("unknown").to_string();
        assert!(mistakes.matches("-->").count() == 4 && mistakes.len() < 4000, "{mistakes}");
    }

    #[test]
    fn a_machine_that_cannot_be_is_shown_where_it_is_written() {
        for (text, words) in [
            (
                "[hardware]\ncpus = 4\n",
                "layout.irq-cpus: there is no CPU 4: hardware.cpus = 4\n --> t.toml:2:8",
            ),
            (
                "[delivery]\nmode = \"suspend20\"\ngro-flush-timeout = \"1s\"\n",
                "20ms does not outlast gro-flush-timeout = 1s\n --> t.toml:3:21",
            ),
            (
                "[delivery]\nmode = \"suspend99000\"\n",
                "does not outlast gro-flush-timeout = 99ms\n --> t.toml:2:8",
            ),
        ] {
            let mistakes = parse("t.toml", text).expect_err(words).to_string();
            assert!(mistakes.contains(words), "{words}\nin\n{mistakes}");
        }
        let text = "[application]\nthreads = 12\n[layout]\npinned = true\nthread-cpus = \"0-3\"\n";
        let mistakes = parse("pinned.toml", text).expect_err("wrong").to_string();
        assert!(
            mistakes.contains(
                "12 threads cannot have a CPU each: layout.thread-cpus has 4\n --> pinned.toml:4:10"
            ),
            "{mistakes}"
        );
    }
}
