//! Formats text in columns.

use std::fmt::Write;

/// The style of a piece of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// No emphasis.
    #[default]
    Plain,
    /// A heading.
    Strong,
    /// Less important.
    Faint,
    /// As expected.
    Good,
    /// Needs attention.
    Warning,
    /// Wrong.
    Bad,
}

impl Style {
    /// Formats the text in this style, with escape sequences for terminals if `colour` is set.
    pub fn paint(self, text: &str, colour: bool) -> String {
        let code = match self {
            Self::Plain => return text.to_owned(),
            _ if !colour || text.is_empty() => return text.to_owned(),
            Self::Strong => "1",
            Self::Faint => "2",
            Self::Good => "32",
            Self::Warning => "33",
            Self::Bad => "31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Returns whether a text begins with an escape sequence of [`Style::paint`].
    pub fn begins(text: &str) -> bool {
        ["0", "1", "2", "31", "32", "33"].iter().any(|code| {
            text.strip_prefix("\x1b[")
                .and_then(|rest| rest.strip_prefix(code))
                .is_some_and(|rest| rest.starts_with('m'))
        })
    }
}

/// Replaces the characters of a text that control the terminal, including netpolicy's own colours.
pub fn plain(text: &str) -> String {
    text.replace(crate::page::is_misleading, "\u{fffd}")
}

/// A cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    text: String,
    style: Style,
    right: bool,
}

impl Cell {
    /// Creates left-aligned text. Control characters are replaced with a visible one.
    pub fn new(text: impl Into<String>) -> Self {
        let text = plain(&text.into());
        Self { text, style: Style::Plain, right: false }
    }

    /// Creates a right-aligned number.
    pub fn number(number: impl ToString) -> Self {
        Self { text: number.to_string(), style: Style::Plain, right: true }
    }

    /// Creates a value that may be unknown or absent, which is shown as `-`.
    pub fn optional(value: Option<impl ToString>) -> Self {
        Self::new(value.map_or_else(|| "-".to_owned(), |value| value.to_string()))
    }

    /// Sets the style of the cell.
    #[must_use]
    pub const fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// Rows under headings. Each column is as wide as its widest cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Creates a table without rows.
    pub fn new(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    /// Adds a row. Missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let mut row: Vec<Cell> = cells.into_iter().collect();
        row.resize(self.headings.len(), Cell::default());
        self.rows.push(row);
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Formats the table as text. Columns in which every row is empty or `-` are omitted.
    pub fn text(&self, colour: bool) -> String {
        let has_content =
            |column: &usize| self.rows.iter().any(|row| !matches!(row[*column].text.as_str(), "" | "-"));
        let columns: Vec<usize> = (0..self.headings.len()).filter(has_content).collect();
        // The width of each of these columns, and whether its heading is aligned right.
        let columns: Vec<(usize, usize, bool)> =
            columns.into_iter().map(|column| (column, self.width(column), self.is_right(column))).collect();
        let headings = self.headings.iter().map(|heading| Cell::new(*heading).style(Style::Strong)).collect();
        let mut text = String::new();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = String::new();
            let mut owed = 0; // spaces that are written only if another cell follows
            for &(column, width, is_right) in &columns {
                let cell = &row[column];
                let space = width - cell.width();
                let right = cell.right || (std::ptr::eq(row, &raw const headings) && is_right);
                let (before, after) = if right { (space, 0) } else { (0, space) };
                if !cell.text.is_empty() {
                    let _ = write!(line, "{:1$}", "", owed + before);
                    line.push_str(&cell.style.paint(&cell.text, colour));
                    owed = 0;
                } else {
                    owed += before;
                }
                owed += after + GAP;
            }
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    fn is_right(&self, column: usize) -> bool {
        self.rows.iter().any(|row| row[column].right)
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].width());
        cells.chain([self.headings[column].chars().count()]).max().unwrap_or(0)
    }
}

/// The number of spaces between two columns.
const GAP: usize = 2;

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_trailing_spaces() {
        let mut table = Table::new(&["NAME", "EMPTY", "COUNT", "NOTE"]);
        table.row([Cell::new("rx-0"), Cell::new("-"), Cell::number(7), Cell::new("")]);
        table.row([Cell::new("a longer name"), Cell::new(""), Cell::number(12_345), Cell::new("last")]);
        let expected = "\
NAME           COUNT  NOTE
rx-0               7
a longer name  12345  last
";
        assert_eq!(table.text(false), expected);
    }

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        assert_eq!(Cell::new("a\x1b[2Jb\n").text, "a\u{fffd}[2Jb\u{fffd}");
    }
}
