//! A report of a command in three forms: text, one JSON document, and JSON records.

use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

use crate::page::schema::{RecordSchema, record};
use crate::page::table::{Style, Table};

/// The version of the format of all documents and records. Fields may be added, but are never removed and
/// never change their meaning.
pub const SCHEMA: &str = "netpolicy/v1";

/// The output of a command.
pub trait Report: Serialize + JsonSchema {
    /// The kind of the document.
    const KIND: &'static str;

    /// Writes the report as text for people.
    fn page(&self, page: &mut Page);

    /// Returns the records for programs that read line by line: the kind and data of each. By default, a
    /// single record contains everything.
    fn lines(&self) -> Vec<(&'static str, Value)> {
        vec![(Self::KIND, to_json(self))]
    }

    /// Returns the kinds of records that [`Report::lines`] returns, with their schemas.
    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<Self>(Self::KIND, generator)]
    }

    /// Returns the report as text for people, with or without colours.
    fn as_text(&self, colour: bool) -> String {
        let mut page = Page::new(colour);
        self.page(&mut page);
        page.into_text()
    }

    /// Returns the report as one JSON document.
    fn document(&self) -> String {
        let document = Document { schema: SCHEMA, kind: Self::KIND, data: self };
        format!("{}\n", escaped(serde_json::to_string_pretty(&document).expect(TEXT_KEYS)))
    }

    /// Returns the report as JSON records, one per line.
    fn records(&self) -> String {
        let line = |(kind, data)| {
            let document = Document { schema: SCHEMA, kind, data: &data };
            format!("{}\n", escaped(serde_json::to_string(&document).expect(TEXT_KEYS)))
        };
        self.lines().into_iter().map(line).collect()
    }
}

/// The header of every document and record.
#[derive(Serialize)]
struct Document<'a, T: Serialize + ?Sized> {
    schema: &'static str,
    kind: &'static str,
    data: &'a T,
}

/// The reason why netpolicy's own values can always be serialised to JSON.
const TEXT_KEYS: &str = "keys of all our types are strings";

/// Converts a value to JSON.
///
/// # Panics
/// If a map has keys that are not text, which is a bug in the type.
pub fn to_json<T: Serialize + ?Sized>(value: &T) -> Value {
    serde_json::to_value(value).expect(TEXT_KEYS)
}

/// Escapes the characters with which a name could control the terminal or reverse the text around it, because
/// `serde_json` escapes only the control characters below U+0020. Outside of strings, the only misleading
/// character in JSON is the newline.
fn escaped(json: String) -> String {
    let misleads = |c: char| c != '\n' && is_misleading(c);
    if !json.contains(misleads) {
        return json;
    }
    let mut text = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match misleads(c) {
            true => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => text.push(c),
        }
    }
    text
}

/// Builds text for people, line by line.
#[derive(Clone, Debug)]
pub struct Page {
    colour: bool,
    text: String,
}

impl Page {
    /// Creates an empty page.
    pub const fn new(colour: bool) -> Self {
        Self { colour, text: String::new() }
    }

    /// Adds a line.
    pub fn line(&mut self, line: impl AsRef<str>) {
        self.styled(Style::Plain, line);
    }

    /// Adds a line in a style.
    pub fn styled(&mut self, style: Style, line: impl AsRef<str>) {
        self.text.push_str(&style.paint(&legible(line.as_ref(), self.colour), self.colour));
        self.text.push('\n');
    }

    /// Formats a word in a style, for use in a line.
    pub fn word(&self, style: Style, word: &str) -> String {
        style.paint(word, self.colour)
    }

    /// Adds an empty line between two parts.
    pub fn gap(&mut self) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
    }

    /// Adds a table.
    pub fn table(&mut self, table: &Table) {
        self.text.push_str(&table.text(self.colour));
    }

    /// Returns the text of the page.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// Returns whether a character controls the terminal or changes the order in which text is read. This crate
/// does not depend on `model`, so a test of `netpolicy` compares this function with `model::is_misleading`.
pub fn is_misleading(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Replaces characters of a line that control the terminal, except those of netpolicy's own styles.
fn legible(line: &str, colour: bool) -> String {
    let mut text = String::with_capacity(line.len());
    for (at, c) in line.char_indices() {
        let ours = c == '\n' || (c == '\x1b' && colour && Style::begins(&line[at..]));
        text.push(if is_misleading(c) && !ours { '\u{fffd}' } else { c });
    }
    text
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn json_holds_no_character_that_misleads_and_means_the_same() {
        let name = "a\u{202e}d\u{2066}\u{9b}\u{7f}\x1b[2J\n\u{200f}é";
        let json = escaped(serde_json::to_string_pretty(&[name]).expect("text"));
        assert!(json.chars().all(|c| c == '\n' || !is_misleading(c)), "{json:?}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&json).expect("JSON"), [name]);
    }

    #[test]
    fn of_all_control_characters_a_line_keeps_only_our_own_styles() {
        for colour in [false, true] {
            let mut page = Page::new(colour);
            let good = page.word(Style::Good, "good");
            page.line(format!("{good} \x1b[2Jevil\x07"));
            let wiped = "\u{fffd}[2Jevil\u{fffd}\n";
            assert_eq!(page.into_text(), format!("{} {wiped}", Style::Good.paint("good", colour)));
        }
    }
}
