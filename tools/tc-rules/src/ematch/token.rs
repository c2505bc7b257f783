//! The tokens of an expression, which may start and end anywhere within the words of a line.
//!
//! As in `tc/emp_ematch.l` of iproute2 6.1: words joined by blanks, parentheses, names, and strings with C
//! escapes.

use crate::number::{self, Base};
use crate::words::{Read, Words, Wrong};

/// Maximum number of tokens in the parentheses of a match.
const ARGUMENTS_MAX: usize = 1024;

/// The type of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    And,
    Or,
    Not,
    Open,
    Close,
    /// A name, a number or another word.
    Name(String),
    /// A quoted string.
    String(Vec<u8>),
}

/// The position of a token: the word of the line, and the bytes within it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenSpan {
    word: usize,
    start: usize,
    end: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) what: What,
    place: TokenSpan,
}

impl Token {
    /// The text of a name; `None` for other tokens.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.what {
            What::Name(text) => Some(text),
            _ => None,
        }
    }

    /// Creates an error about this token.
    pub(super) fn wrong(&self, message: impl Into<std::borrow::Cow<'static, str>>) -> Box<Wrong> {
        self.place.wrong(message)
    }

    /// Creates an error that says that the token is unknown, and lists the expected ones.
    pub(super) fn unknown(&self, expected: &'static [&'static str]) -> Box<Wrong> {
        let message = match self.text() {
            Some(text) => format!("`{text}` is not known here"),
            None => "this is not known here".to_owned(),
        };
        self.wrong(message).expecting(expected)
    }
}

impl TokenSpan {
    fn wrong(self, message: impl Into<std::borrow::Cow<'static, str>>) -> Box<Wrong> {
        Wrong::within(self.word, (self.start, self.end), message)
    }
}

/// The tokens of the next words.
#[derive(Clone, Debug)]
pub(super) struct Tokens<'a> {
    words: Words<'a>,
    /// The number of consumed bytes of the next word.
    at: usize,
}

impl<'a> Tokens<'a> {
    pub(super) const fn new(words: Words<'a>) -> Self {
        Self { words, at: 0 }
    }

    /// Returns the words after the expression, which must end at a word boundary.
    pub(super) fn end(mut self) -> Read<Words<'a>> {
        if self.at > 0 {
            match self.rest() {
                Some((word, rest)) if !rest.is_empty() => {
                    let place = TokenSpan { word: self.words.place(), start: self.at, end: word.len() };
                    return Err(place.wrong("the expression should end here"));
                }
                _ => self.words.skip(),
            }
        }
        Ok(self.words)
    }

    /// Returns the next word, and its unconsumed part without leading blanks.
    fn rest(&mut self) -> Option<(&'a str, &'a str)> {
        let word = self.words.peek()?;
        let rest = word.get(self.at..)?;
        let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        self.at += rest.len() - trimmed.len();
        Some((word, trimmed))
    }

    pub(super) fn next(&mut self) -> Read<Token> {
        let (word, rest) = loop {
            match self.rest() {
                None => {
                    return Err(self.words.wrong_here("something is missing at the end of the expression"));
                }
                Some((_, "")) => {
                    self.words.skip();
                    self.at = 0;
                }
                Some(found) => break found,
            }
        };
        let (number, start) = (self.words.place(), self.at);
        let what = match rest.as_bytes()[0] {
            b'(' => {
                self.at += 1;
                What::Open
            }
            b')' => {
                self.at += 1;
                What::Close
            }
            b'"' => {
                self.at += 1;
                What::String(self.string(TokenSpan { word: number, start, end: word.len() })?)
            }
            _ => {
                let length = rest.find([' ', '\t', '\r', '\n', '(', ')']).unwrap_or(rest.len());
                self.at += length;
                match &rest[..length] {
                    name if name.eq_ignore_ascii_case("and") => What::And,
                    name if name.eq_ignore_ascii_case("or") => What::Or,
                    name if name.eq_ignore_ascii_case("not") => What::Not,
                    name => What::Name(name.to_owned()),
                }
            }
        };
        let end = if self.words.place() == number { self.at } else { word.len() };
        Ok(Token { what, place: TokenSpan { word: number, start, end } })
    }

    /// Returns the type of the next token, if there is one, without consuming the token.
    pub(super) fn peek(&self) -> Option<What> {
        Some(self.clone().next().ok()?.what)
    }

    /// Reads a closing parenthesis.
    pub(super) fn close(&mut self) -> Read<Token> {
        let token = self.next()?;
        if token.what == What::Close { Ok(token) } else { Err(token.unknown(&["and", "or", ")"])) }
    }

    /// Reads the parenthesised tokens that come next; also returns the position of the closing parenthesis.
    pub(super) fn arguments(&mut self) -> Read<(Vec<Token>, TokenSpan)> {
        let open = self.next()?;
        if open.what != What::Open {
            return Err(open.wrong("the arguments of a match must be in parentheses"));
        }
        let mut arguments = Vec::new();
        loop {
            let token = self.next()?;
            match token.what {
                What::Close => return Ok((arguments, token.place)),
                What::Name(_) | What::String(_) if arguments.len() < ARGUMENTS_MAX => arguments.push(token),
                What::Name(_) | What::String(_) => {
                    return Err(token.wrong("a match has at most 1024 arguments"));
                }
                _ => return Err(token.wrong("this is not an argument of a match")),
            }
        }
    }

    /// Reads up to the next quote. A string may span several words of the line, which are joined by single
    /// blanks.
    fn string(&mut self, place: TokenSpan) -> Read<Vec<u8>> {
        let mut string = Vec::new();
        while let Some(word) = self.words.peek() {
            while let Some(byte) = word.as_bytes().get(self.at) {
                self.at += 1;
                match byte {
                    b'"' => return Ok(string),
                    b'\\' => string.push(self.escape(word, place)?),
                    byte => string.push(*byte),
                }
            }
            string.push(b' ');
            self.words.skip();
            self.at = 0;
        }
        Err(place.wrong("the string has no closing quote"))
    }

    /// Decodes an escape sequence.
    fn escape(&mut self, word: &str, place: TokenSpan) -> Read<u8> {
        let bytes = word.as_bytes();
        let digits = |from: usize, most: usize, radix: u32| {
            let rest = bytes.iter().skip(from).take(most);
            rest.take_while(|byte| char::from(**byte).is_digit(radix)).count()
        };
        let Some(byte) = bytes.get(self.at) else {
            return Err(place.wrong("the string ends after a backslash"));
        };
        let (skip, count, base) = match byte {
            b'0'..=b'7' => (0, digits(self.at, 3, 8), 8),
            b'x' if digits(self.at + 1, 2, 16) > 0 => (1, digits(self.at + 1, 2, 16), 16),
            _ => {
                self.at += 1;
                return Ok(match byte {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'v' => 0x0b,
                    b'b' => 0x08,
                    b'f' => 0x0c,
                    b'a' => 0x07,
                    byte => *byte,
                });
            }
        };
        let start = self.at + skip;
        self.at = start + count;
        let number = word.get(start..self.at).and_then(|digits| u8::from_str_radix(digits, base).ok());
        number.ok_or_else(|| place.wrong("an escape sequence in the string exceeds a byte"))
    }
}

/// The arguments of a match, read one by one.
#[derive(Debug)]
pub(super) struct Args<'t> {
    tokens: std::slice::Iter<'t, Token>,
    last: Option<&'t Token>,
    end: TokenSpan,
}

impl<'t> Args<'t> {
    pub(super) fn new(tokens: &'t [Token], end: TokenSpan) -> Self {
        Self { tokens: tokens.iter(), last: None, end }
    }

    /// Returns and consumes the next argument, if there is one.
    pub(super) fn optional(&mut self) -> Option<&'t Token> {
        let token = self.tokens.next()?;
        self.last = Some(token);
        Some(token)
    }

    /// Returns the next argument without consuming it.
    pub(super) fn peek(&self) -> Option<&'t Token> {
        self.tokens.as_slice().first()
    }

    /// Returns the next argument, or an error that lists the `expected` ones.
    pub(super) fn required(&mut self, expected: &'static [&'static str]) -> Read<&'t Token> {
        self.optional().ok_or_else(|| self.missing().expecting(expected))
    }

    /// Reads the next argument, which must be one of the `expected` ones, and returns its index in that list.
    pub(super) fn one_of(&mut self, expected: &'static [&'static str]) -> Read<usize> {
        let token = self.required(expected)?;
        let place = expected.iter().position(|name| token.text() == Some(name));
        place.ok_or_else(|| token.unknown(expected))
    }

    /// Parses the next argument with this reader; `what` describes a valid one.
    pub(super) fn read<T>(&mut self, what: &str, reader: impl FnOnce(&'t str) -> Option<T>) -> Read<T> {
        let token = self.required(&[])?;
        let text = token.text().ok_or_else(|| token.wrong(format!("a string is not {what}")))?;
        reader(text).ok_or_else(|| token.wrong(format!("`{text}` is not {what}")))
    }

    /// Reads a 32-bit number; a negative number wraps.
    pub(super) fn number(&mut self, what: &str) -> Read<u32> {
        self.read(what, wrapping)
    }

    /// Creates an error that says that an argument is missing.
    pub(super) fn missing(&self) -> Box<Wrong> {
        self.end.wrong("an argument of the match is missing")
    }

    /// Creates an error about the argument that was read last.
    pub(super) fn wrong(&self, message: &'static str) -> Box<Wrong> {
        self.last.map_or_else(|| self.missing(), |token| token.wrong(message))
    }

    /// Checks that there are no more arguments.
    pub(super) fn at_end(&mut self) -> Read<()> {
        match self.tokens.next() {
            None => Ok(()),
            Some(token) => Err(token.wrong("the match should end here")),
        }
    }
}

/// Parses a 32-bit number; a negative number wraps.
pub(super) fn wrapping(word: &str) -> Option<u32> {
    number::u32(word, Base::Prefix).or_else(|| number::i32(word).map(i32::cast_unsigned))
}

/// Formats a string with quotes and escapes.
pub(super) fn string_words(string: &[u8]) -> String {
    let mut words = "\"".to_owned();
    for byte in string {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => words.push(char::from(*byte)),
            byte => words.push_str(&format!("\\x{byte:02x}")),
        }
    }
    words.push('"');
    words
}
