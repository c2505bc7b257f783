//! What a command has to say, in three forms.

use serde::Serialize;
use serde_json::{Value, json};

use super::table::{Style, Table};

/// The version of every document and record: fields are added to it, never removed or given another meaning.
pub const SCHEMA: &str = "netpolicy/v1";

/// A command's data.
pub trait Report: Serialize {
    /// What kind of document it is.
    const KIND: &'static str;

    /// For people.
    fn page(&self, page: &mut Page);

    /// For programs that read line by line: kind and data of each record. By default, one record with everything.
    fn lines(&self) -> Vec<(&'static str, Value)> {
        vec![(Self::KIND, to_json(self))]
    }

    /// One JSON document.
    fn document(&self) -> String {
        let document = json!({ "schema": SCHEMA, "kind": Self::KIND, "data": to_json(self) });
        format!("{document:#}\n")
    }

    /// One JSON record per line.
    fn records(&self) -> String {
        let lines = self.lines().into_iter();
        lines
            .map(|(kind, data)| format!("{}\n", json!({ "schema": SCHEMA, "kind": kind, "data": data })))
            .collect()
    }
}

/// A value as JSON.
///
/// # Panics
/// If a map has keys that are no text: that is a fault of the type.
pub fn to_json<T: Serialize + ?Sized>(value: &T) -> Value {
    serde_json::to_value(value).expect("our own types have text as keys")
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
        self.text.push_str(&style.paint(line.as_ref(), self.colour));
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
