//! What a command has to say, in three forms.

use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

use crate::schema::{Kind, record};
use crate::table::{Style, Table};

/// The version of every document and record: fields are added to it, never removed or given another meaning.
pub const SCHEMA: &str = "netpolicy/v1";

/// A command's data.
pub trait Report: Serialize + JsonSchema {
    /// What kind of document it is.
    const KIND: &'static str;

    /// For people.
    fn page(&self, page: &mut Page);

    /// For programs that read line by line: kind and data of each record. By default, one record with everything.
    fn lines(&self) -> Vec<(&'static str, Value)> {
        vec![(Self::KIND, to_json(self))]
    }

    /// The kinds of record that [`Report::lines`] gives, and the schemas of their data.
    fn records_as(generator: &mut SchemaGenerator) -> Vec<Kind> {
        vec![record::<Self>(Self::KIND, generator)]
    }

    /// One JSON document.
    fn document(&self) -> String {
        let document = Document { schema: SCHEMA, kind: Self::KIND, data: self };
        format!("{}\n", serde_json::to_string_pretty(&document).expect(TEXT_KEYS))
    }

    /// One JSON record per line.
    fn records(&self) -> String {
        let line = |(kind, data)| {
            let document = Document { schema: SCHEMA, kind, data: &data };
            format!("{}\n", serde_json::to_string(&document).expect(TEXT_KEYS))
        };
        self.lines().into_iter().map(line).collect()
    }
}

/// A report of any type, as far as printing needs it.
pub trait Printable {
    /// For people, with colours or without.
    fn as_text(&self, colour: bool) -> String;

    /// One JSON document.
    fn as_document(&self) -> String;

    /// One JSON record per line.
    fn as_records(&self) -> String;
}

impl<R: Report> Printable for R {
    fn as_text(&self, colour: bool) -> String {
        let mut page = Page::new(colour);
        self.page(&mut page);
        page.into_text()
    }

    fn as_document(&self) -> String {
        self.document()
    }

    fn as_records(&self) -> String {
        self.records()
    }
}

/// What every document and every record begins with.
#[derive(Serialize)]
struct Document<'a, T: Serialize + ?Sized> {
    schema: &'static str,
    kind: &'static str,
    data: &'a T,
}

/// Why a value of ours cannot fail to become JSON.
const TEXT_KEYS: &str = "our own types have text as keys";

/// A value as JSON.
///
/// # Panics
/// If a map has keys that are no text: that is a fault of the type.
pub fn to_json<T: Serialize + ?Sized>(value: &T) -> Value {
    serde_json::to_value(value).expect(TEXT_KEYS)
}

/// Text for people, as it is put together.
#[derive(Clone, Debug)]
pub struct Page {
    colour: bool,
    text: String,
}

impl Page {
    /// An empty page.
    pub const fn new(colour: bool) -> Self {
        Self { colour, text: String::new() }
    }

    /// A line.
    pub fn line(&mut self, line: impl AsRef<str>) {
        self.styled(Style::Plain, line);
    }

    /// A line in a style.
    pub fn styled(&mut self, style: Style, line: impl AsRef<str>) {
        self.text.push_str(&style.paint(&legible(line.as_ref(), self.colour), self.colour));
        self.text.push('\n');
    }

    /// A word in a style, to be put into a line.
    pub fn word(&self, style: Style, word: &str) -> String {
        style.paint(word, self.colour)
    }

    /// An empty line between two parts.
    pub fn gap(&mut self) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
    }

    /// A table.
    pub fn table(&mut self, table: &Table) {
        self.text.push_str(&table.text(self.colour));
    }

    /// What was written.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// Whether a character steers a terminal, or changes the order in which the text around it is read. This room knows no other: a
/// test of `netpolicy` compares this with `model::is_misleading`.
pub fn is_misleading(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A line in which a name cannot steer the terminal: of all control characters only our own styles are left.
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
