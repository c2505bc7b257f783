//! A mistake in a policy file, shown with its place.

use std::fmt;
use std::ops::Range;

use model::legible::shortened;

/// A mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The file's name.
    pub file: String,
    /// The line number, starting at 1.
    pub line: usize,
    /// The column in characters, starting at 1.
    pub column: usize,
    /// The mistake, in one sentence.
    pub message: String,
    /// The nearest valid name, or the text to write instead.
    pub help: Option<String>,
    /// The line's text.
    text: String,
    /// The number of characters to underline on that line.
    width: usize,
}

/// The maximum number of characters of a line that are shown.
const DRAWN_CHARS_MAX: usize = 160;

/// The positions at which the lines of a text start. They are computed once, because searching the line of
/// each byte would be slow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineIndex {
    starts: Vec<usize>,
}

impl LineIndex {
    /// Finds the lines of a text.
    pub fn of(text: &str) -> Self {
        let after = text.match_indices('\n').map(|(newline, _)| newline + 1);
        Self { starts: std::iter::once(0).chain(after).collect() }
    }

    /// Returns the number of the line that contains this byte, starting at 1.
    pub fn number(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at)
    }

    /// Creates a mistake at these bytes of the text.
    pub fn mistake(
        &self,
        file: &str,
        text: &str,
        at: Range<usize>,
        message: impl Into<String>,
        help: Option<String>,
    ) -> Mistake {
        let number = self.number(at.start.min(text.len()));
        let start = self.starts.get(number.saturating_sub(1)).copied().unwrap_or(0);
        let end = self.starts.get(number).copied().unwrap_or(text.len());
        let line = text.get(start..end).unwrap_or_default();
        let within = at.start.saturating_sub(start)..at.end.saturating_sub(start);
        Mistake::of_line(file, number, line, within, message, help)
    }
}

/// The maximum number of characters in a message, because a word in a file may be as long as the file.
const MESSAGE_CHARS_MAX: usize = 1000;

impl Mistake {
    /// Creates a mistake at these bytes of a file.
    pub fn new(
        file: &str,
        text: &str,
        at: Range<usize>,
        message: impl Into<String>,
        help: Option<String>,
    ) -> Self {
        let mut start = at.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = text[line_start..].lines().next().unwrap_or("");
        let column = text[line_start..start].chars().count() + 1;
        let inside = line.char_indices().filter(|(i, _)| (start..at.end).contains(&(line_start + i))).count();
        Self {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column,
            message: shortened(&message.into(), MESSAGE_CHARS_MAX).into_owned(),
            help: help.map(|help| shortened(&help, MESSAGE_CHARS_MAX).into_owned()),
            text: line.to_owned(),
            width: inside.max(1),
        }
    }

    /// Creates a mistake at these bytes of a line.
    pub fn of_line(
        file: &str,
        line: usize,
        text: &str,
        at: Range<usize>,
        message: impl Into<String>,
        help: Option<String>,
    ) -> Self {
        Self { line, ..Self::new(file, text, at, message, help) }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gutter = self.line.to_string().len();
        // A long line is cut on the left, so that the underlined text stays visible.
        let skip = self.column.saturating_sub(DRAWN_CHARS_MAX / 2);
        let cut = if skip > 0 { "…" } else { "" };
        let drawn: String = self.text.chars().skip(skip).take(DRAWN_CHARS_MAX).map(visible).collect();
        let indent = self.column - 1 - skip + cut.chars().count();
        let carets = "^".repeat(self.width.min(DRAWN_CHARS_MAX.saturating_sub(indent)).max(1));
        writeln!(f, "{}", self.message)?;
        writeln!(f, "{:gutter$}--> {}:{}:{}", "", self.file, self.line, self.column)?;
        writeln!(f, "{:gutter$} |", "")?;
        writeln!(f, "{} | {cut}{drawn}", self.line)?;
        write!(f, "{:gutter$} | {:indent$}{carets}", "", "")?;
        match &self.help {
            Some(help) => write!(f, " {help}"),
            None => Ok(()),
        }
    }
}

/// Replaces a character that is wider than a column or could control the terminal.
fn visible(c: char) -> char {
    match c {
        '\t' => ' ',
        c if model::is_misleading(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// The mistakes of one file or merge; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

/// The maximum number of mistakes to show. For the others, only their number is printed.
const DRAWN_MAX: usize = 20;

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.0.iter().take(DRAWN_MAX).enumerate() {
            let gap = if i == 0 { "" } else { "\n\n" };
            write!(f, "{gap}{mistake}")?;
        }
        match self.0.len().saturating_sub(DRAWN_MAX) {
            0 => Ok(()),
            more => write!(f, "\n\n… and {more} more"),
        }
    }
}

impl std::error::Error for Mistakes {}
