//! The words of a line, and the errors about them.

use std::borrow::Cow;
use std::fmt;

use model::legible::shortened;

use crate::lines::{HIGH, LOW, Line};

/// Maximum number of words per line. iproute2 6.1 accepts 511 (`MAX_ARGS`).
pub const WORDS_MAX: usize = 511;

/// The positions of the words in a line.
#[derive(Clone, Debug)]
pub struct Spans {
    /// The start and end of each word, one after the other.
    turns: [u32; 2 * WORDS_MAX],
    /// The number of positions.
    count: usize,
}

impl Default for Spans {
    fn default() -> Self {
        Self { turns: [0; 2 * WORDS_MAX], count: 0 }
    }
}

impl Spans {
    /// Whether there is no word.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of words.
    const fn len(&self) -> usize {
        self.count / 2
    }

    /// The start and the end of a word.
    #[inline]
    fn get(&self, word: usize) -> Option<(usize, usize)> {
        let at = 2 * word;
        (at < self.count).then(|| (self.turns[at] as usize, self.turns[at + 1] as usize))
    }

    fn push(&mut self, start: u32, end: u32) {
        self.turns[self.count..self.count + 2].copy_from_slice(&[start, end]);
        self.count += 2;
    }
}

/// An error about a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The index of the word; one past the last if a word is missing.
    word: usize,
    /// The invalid bytes within the word, if only a part of the word is invalid.
    part: Option<(usize, usize)>,
    /// The message, in one sentence.
    message: Cow<'static, str>,
    /// The valid words, of which the nearest is suggested.
    expected: &'static [&'static str],
}

/// The result of parsing words.
pub type Read<T> = Result<T, Box<Wrong>>;

impl Wrong {
    /// Creates an error about these bytes of a word.
    #[cold]
    pub(crate) fn within(
        word: usize,
        part: (usize, usize),
        message: impl Into<Cow<'static, str>>,
    ) -> Box<Self> {
        Box::new(Self { word, part: Some(part), message: message.into(), expected: &[] })
    }

    /// Sets the words that would have been valid.
    #[must_use]
    pub fn expecting(mut self: Box<Self>, expected: &'static [&'static str]) -> Box<Self> {
        self.expected = expected;
        self
    }
}

/// An error in a batch file, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The line of the file, from 1.
    pub line: u32,
    /// The first byte on that line, from 1.
    pub column: usize,
    /// The number of invalid bytes.
    pub width: usize,
    /// The message, in one sentence.
    pub message: String,
    /// The invalid word; empty if one is missing.
    pub found: String,
    /// The words that would have been valid.
    pub expected: &'static [&'static str],
    /// The line's text, without its comment.
    pub text: String,
    /// Whether tc may understand the line: it is about a qdisc or a class that rules are not attached to.
    pub is_foreign: bool,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for Mistake {}

/// Splits a line into words at blanks; a word that starts with a quote ends at the next quote of the same
/// kind, as in `makeargs()` in `lib/utils.c` of iproute2 6.1.
///
/// # Errors
/// Invalid UTF-8, an unterminated quote, or more than [`WORDS_MAX`] words.
pub fn split<'a>(line: &Line<'a>, spans: &mut Spans) -> Result<&'a str, Box<Mistake>> {
    if let Some(text) = split_plain(line.bytes, spans) {
        return Ok(text);
    }
    spans.count = 0;
    let bytes = line.bytes;
    let refused = |at: usize, message: &str| Box::new(mistake_at(line, at, at + 1, message.to_owned(), &[]));
    let text =
        std::str::from_utf8(bytes).map_err(|error| refused(error.valid_up_to(), "this is not UTF-8"))?;
    let length = u32::try_from(bytes.len()).map_err(|_| refused(0, "the line is too long"))?;
    let mut at = 0_u32;
    let byte = |at: u32| bytes[at as usize];
    while at < length {
        if is_blank(byte(at)) {
            at += 1;
            continue;
        }
        let quote = byte(at);
        let quoted = matches!(quote, b'\'' | b'"');
        let start = if quoted { at + 1 } else { at };
        at = start;
        while at < length && if quoted { byte(at) != quote } else { !is_blank(byte(at)) } {
            if byte(at) == 0 {
                return Err(refused(at as usize, "a zero byte is not text"));
            }
            at += 1;
        }
        if quoted && at == length {
            return Err(refused(start as usize - 1, "the quote is not closed"));
        }
        if spans.count == spans.turns.len() {
            return Err(refused(start as usize, "the line has more words than tc accepts"));
        }
        spans.push(start, at);
        at += 1;
    }
    Ok(text)
}

/// Splits a line of printable ASCII without quotes, in which all blanks are spaces, eight bytes at a time.
/// Returns `None` for any other line.
pub fn split_plain<'a>(bytes: &'a [u8], spans: &mut Spans) -> Option<&'a str> {
    /// Added to an ASCII byte, these set its high bit unless the byte is below a space, or not above one,
    /// respectively.
    const NOT_CONTROL: u64 = LOW * (0x80 - 0x20);
    const NOT_BLANK: u64 = LOW * (0x80 - 0x21);
    let text = std::str::from_utf8(bytes).ok()?;
    u32::try_from(bytes.len()).ok()?;
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut last = [b' '; 8];
    last[..rest.len()].copy_from_slice(rest);
    // The high bit of each byte tells whether the previous byte is part of a word.
    let (mut within, mut base, mut count) = (0, 0, 0);
    for chunk in chunks.iter().chain([&last]) {
        let chunk = u64::from_le_bytes(*chunk);
        // A byte that equals `byte` sets its high bit; the next higher byte may set its own, too.
        let is = |byte: u8| (chunk ^ (LOW * u64::from(byte))).wrapping_sub(LOW);
        let odd = chunk | !chunk.wrapping_add(NOT_CONTROL) | ((is(b'"') | is(b'\'')) & !chunk);
        let word = chunk.wrapping_add(NOT_BLANK) & HIGH;
        // A word starts or ends where this changes.
        let mut turns = word ^ (word << 8 | within);
        within = word >> 56;
        if odd & HIGH != 0 || count + 8 > spans.turns.len() {
            return None;
        }
        while turns != 0 {
            spans.turns[count] = base + turns.trailing_zeros() / 8;
            count += 1;
            turns &= turns - 1;
        }
        base += 8;
    }
    spans.count = count;
    Some(text)
}

/// The keyword that precedes actions.
const ACTION: &str = "action";

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// Maximum number of bytes of an invalid word that are kept. A longer word is not a misspelt keyword.
const FOUND_BYTES_MAX: usize = 256;

/// Maximum number of characters in a message: a word of a file may be as long as a line.
const SAID_CHARS_MAX: usize = 400;

fn mistake_at(
    line: &Line<'_>,
    start: usize,
    end: usize,
    message: String,
    expected: &'static [&'static str],
) -> Mistake {
    let (number, column) = line.place(start);
    let text = String::from_utf8_lossy(line.around(start)).into_owned();
    let found = line.bytes.get(start..end).unwrap_or(&[]);
    let found = String::from_utf8_lossy(&found[..found.len().min(FOUND_BYTES_MAX)]).into_owned();
    let message = match shortened(&message, SAID_CHARS_MAX) {
        Cow::Borrowed(_) => message,
        Cow::Owned(short) => short,
    };
    let width = end.saturating_sub(start).max(1);
    Mistake { line: number, column, width, message, found, expected, text, is_foreign: false }
}

/// The words of a line, consumed one by one.
#[derive(Clone, Debug)]
pub struct Words<'a> {
    text: &'a str,
    spans: &'a Spans,
    at: usize,
    /// Whether the actions at the end of the line were known before it was split; `action` is then its last
    /// word.
    known_actions: bool,
    /// The first word of the actions, if they extend to the end of the line.
    actions: Option<usize>,
}

impl<'a> Words<'a> {
    /// The words of this text.
    pub const fn new(text: &'a str, spans: &'a Spans) -> Self {
        Self { text, spans, at: 0, known_actions: false, actions: None }
    }

    /// The words of this text, followed by `action` and actions that the caller knows.
    pub const fn before_actions(text: &'a str, spans: &'a Spans) -> Self {
        Self { text, spans, at: 0, known_actions: true, actions: None }
    }

    /// Whether the last word was the `action` before the known actions. Returns true only once.
    pub(crate) const fn at_known_actions(&mut self) -> bool {
        let here = self.known_actions && self.at > self.spans.len();
        self.known_actions &= !here;
        here
    }

    /// Whether every word was consumed, including the `action` before known actions.
    pub const fn all_read(&self) -> bool {
        !self.known_actions && self.at >= self.spans.len()
    }

    /// The index of the next word.
    pub const fn place(&self) -> usize {
        self.at
    }

    /// Records that the actions starting at this word end with the last one consumed. They are kept only if
    /// that is the end of the line.
    pub(crate) const fn note_actions(&mut self, first: usize) {
        self.actions = if self.at == self.spans.len() { Some(first) } else { None };
    }

    /// The position of the word `action`, if it is not abbreviated and only actions follow it.
    pub fn actions_begin(&self) -> Option<usize> {
        let (start, end) = self.spans.get(self.actions?.checked_sub(1)?)?;
        (&self.text[start..end] == ACTION).then_some(start)
    }

    /// The start of a word.
    pub fn begin_of(&self, word: usize) -> Option<usize> {
        self.spans.get(word).map(|(start, _)| start)
    }

    /// The next word, without consuming it.
    #[inline]
    pub fn peek(&self) -> Option<&'a str> {
        match self.spans.get(self.at) {
            Some((start, end)) => Some(&self.text[start..end]),
            None if self.known_actions && self.at == self.spans.len() => Some(ACTION),
            None => None,
        }
    }

    /// Skips the next word.
    pub const fn skip(&mut self) {
        self.at += 1;
    }

    /// Goes back by one word.
    pub const fn back(&mut self) {
        self.at -= 1;
    }

    /// Consumes and returns the required argument of the last word.
    ///
    /// # Errors
    /// If the line ends before the argument.
    pub fn value(&mut self) -> Read<&'a str> {
        let Some(word) = self.peek() else {
            return Err(self.wrong_here(Cow::Borrowed("the line ends too early")));
        };
        self.at += 1;
        Ok(word)
    }

    /// The required argument of the last word, parsed by `reader`.
    ///
    /// # Errors
    /// If the line ends here, or the reader rejects the word; `what` describes a valid one.
    pub fn read<T>(&mut self, what: &'static str, reader: impl FnOnce(&'a str) -> Option<T>) -> Read<T> {
        let word = self.value()?;
        reader(word).ok_or_else(|| self.wrong(format!("`{word}` is not {what}")))
    }

    /// The number after `keyword`, if that is the next word.
    ///
    /// # Errors
    /// As for [`Words::read`].
    pub fn optional<T>(
        &mut self,
        keyword: &str,
        what: &'static str,
        reader: impl FnOnce(&'a str) -> Option<T>,
    ) -> Read<Option<T>> {
        if self.peek().is_some_and(|word| abbreviates(word, keyword)) {
            self.skip();
            return self.read(what, reader).map(Some);
        }
        Ok(None)
    }

    /// Creates an error about the last consumed word.
    #[cold]
    pub fn wrong(&self, message: impl Into<Cow<'static, str>>) -> Box<Wrong> {
        Box::new(Wrong {
            word: self.at.saturating_sub(1),
            part: None,
            message: message.into(),
            expected: &[],
        })
    }

    /// Creates an error about the next word.
    #[cold]
    pub fn wrong_here(&self, message: impl Into<Cow<'static, str>>) -> Box<Wrong> {
        Box::new(Wrong { word: self.at, part: None, message: message.into(), expected: &[] })
    }

    /// Creates an error that says that the next word is unknown.
    #[cold]
    pub fn unknown_here(&self, expected: &'static [&'static str]) -> Box<Wrong> {
        match self.peek() {
            Some(word) => self.wrong_here(format!("`{word}` is not known here")).expecting(expected),
            None => self.wrong_here("the line ends too early").expecting(expected),
        }
    }

    /// Converts an error to a mistake with its position in the file.
    #[cold]
    pub fn mistake(&self, wrong: Wrong, line: &Line<'_>) -> Mistake {
        let (start, end) = match self.spans.get(wrong.word) {
            Some((start, end)) => {
                let (from, to) = wrong.part.unwrap_or((0, end - start));
                (start + from, start + to)
            }
            None => {
                let end = line.bytes.trim_ascii_end().len();
                (end, end)
            }
        };
        mistake_at(line, start, end, wrong.message.into_owned(), wrong.expected)
    }
}

/// Whether a word is a keyword or an abbreviation of it, as in iproute2's `matches()`.
pub fn abbreviates(word: &str, keyword: &str) -> bool {
    let (word, keyword) = (word.as_bytes(), keyword.as_bytes());
    // Compare the first byte first: this decides most cases without a call.
    word.first() == keyword.first() && keyword.starts_with(word)
}

/// Formats a text as one word of a line, with quotes if needed; `None` if that is not possible.
pub(crate) fn quoted(text: &str) -> Option<String> {
    if text.contains(['\n', '\0']) {
        return None;
    }
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.,:/+@%=".contains(&byte));
    match text {
        _ if plain && !text.is_empty() => Some(text.to_owned()),
        _ if !text.contains('\'') => Some(format!("'{text}'")),
        _ if !text.contains('"') => Some(format!("\"{text}\"")),
        _ => None,
    }
}

/// Declares a set of keywords as an enum. A word is the keyword itself, or else the first one that it
/// abbreviates, in the order of iproute2 6.1's checks; those marked `exact` cannot be abbreviated.
#[macro_export]
macro_rules! keywords {
    ($(#[$meta:meta])* $visibility:vis enum $name:ident { $($variant:ident = $text:literal $($exact:ident)?,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $name { $(#[doc = concat!("`", $text, "`")] $variant,)* }

        impl $name {
            /// All keywords.
            $visibility const WORDS: &'static [&'static str] = &[$($text,)*];

            /// Finds the keyword of a word.
            $visibility fn find(word: &str) -> Option<Self> {
                match word {
                    $($text => Some(Self::$variant),)*
                    _ => Self::abbreviated(word),
                }
            }

            #[cold]
            fn abbreviated(word: &str) -> Option<Self> {
                $(if !$crate::keywords!(@exact $($exact)?) && $crate::words::abbreviates(word, $text) {
                    return Some(Self::$variant);
                })*
                None
            }
        }
    };
    (@exact exact) => { true };
    (@exact) => { false };
}
pub use keywords;

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<String> {
        let line = Line { bytes: text.as_bytes(), number: 7, joints: &[] };
        let mut spans = Spans::default();
        let text = split(&line, &mut spans).expect("words");
        let mut words = Words::new(text, &spans);
        std::iter::from_fn(|| words.value().ok().map(str::to_owned)).collect()
    }

    #[test]
    fn quotes_hold_blanks_together_only_where_a_word_begins() {
        assert_eq!(
            words("  a 'b c'\t\"d\"e f'g h'\r"),
            ["a", "b c", "d", "e"]
                .map(str::to_owned)
                .into_iter()
                .chain(["f'g".into(), "h'".into()])
                .collect::<Vec<_>>()
        );
        assert_eq!(words("''  x"), ["", "x"]);
    }

    proptest! {
        #[test]
        fn a_plain_line_has_the_same_words_read_in_pieces_and_byte_by_byte(text in "[ab'\" \t\u{7f}é]{0,40}") {
            let mut spans = Spans::default();
            let plain = split_plain(text.as_bytes(), &mut spans);
            // The fast path must leave other blanks, quotes and non-ASCII text to the slow path.
            prop_assert_eq!(plain.is_none(), !text.is_ascii() || text.contains(['\t', '\'', '"']));
            if plain.is_some() {
                let places = (0..).map_while(|word| spans.get(word));
                let found: Vec<&str> = places.map(|(start, end)| &text[start..end]).collect();
                let wanted: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
                prop_assert_eq!(found, wanted);
            }
        }
    }

    #[test]
    fn a_line_has_as_many_words_as_tc_takes_and_no_more() {
        for blank in [" ", "\t"] {
            let line = |count| vec!["w"; count].join(blank);
            assert_eq!(words(&line(WORDS_MAX)).len(), WORDS_MAX);
            let line = line(WORDS_MAX + 1);
            let line = Line { bytes: line.as_bytes(), number: 1, joints: &[] };
            assert!(split(&line, &mut Spans::default()).is_err());
        }
    }

    #[test]
    fn of_a_word_as_long_as_a_line_the_message_has_both_ends() {
        let text = format!("filter add dev {}", "ä".repeat(300_000));
        let mut batch = crate::Batch::new(text.as_bytes());
        let Err(crate::ReadError::Mistake(mistake)) = batch.next_command(&mut crate::Table::default()) else {
            panic!("wrong")
        };
        assert_eq!(mistake.message.chars().count(), SAID_CHARS_MAX);
        assert!(mistake.message.ends_with("` is not the name of an existing device"), "{mistake}");
        assert!(mistake.found.len() <= 3 * FOUND_BYTES_MAX);
    }

    #[test]
    fn what_is_no_text_is_pointed_at() {
        for (bytes, column) in [(&b"a \xff"[..], 3), (b"ab 'c", 4), (b"a\0", 2)] {
            let line = Line { bytes, number: 7, joints: &[] };
            let mistake = split(&line, &mut Spans::default()).expect_err("refused");
            assert_eq!((mistake.line, mistake.column), (7, column), "{mistake}");
        }
    }
}
