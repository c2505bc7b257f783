//! The part of the memcached ASCII protocol that the load generator uses: `get` and `set` requests
//! and their replies.
//!
//! Source: memcached, doc/protocol.txt. The parser accepts replies split at any byte and does no
//! I/O.

use std::fmt;

use model::MemcachedWorkload;

/// The server's reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `VALUE … END`: the key's value, of this many bytes.
    Hit(u32),
    /// `END`: there is no such key.
    Miss,
    /// `STORED`.
    Stored,
    /// An answer without a status: all of its bytes have arrived.
    Done,
    /// `ERROR`, `CLIENT_ERROR …`, `SERVER_ERROR …` or `NOT_STORED`; [`Parser::refusal`] has the
    /// text.
    Refused,
}

/// Bytes that are not a reply. The connection is unusable: the start of the next reply is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A line that no server of this protocol sends in this place.
    Line(String),
    /// A line longer than [`Parser::LINE_BYTES_MAX`].
    LineTooLong,
    /// A value that is not followed by the end of a line.
    ValueNotEnded,
    /// A value longer than [`Parser::VALUE_BYTES_MAX`].
    ValueTooLong(u64),
    /// An answer with neither a length nor chunks, which would end only when the connection closes.
    EndlessBody,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "`{line}` is not a valid answer here"),
            Self::LineTooLong => write!(f, "a line is longer than {} bytes", Parser::LINE_BYTES_MAX),
            Self::ValueNotEnded => f.write_str("a value is not followed by the end of its line"),
            Self::EndlessBody => f.write_str("an answer has neither a length nor chunks"),
            Self::ValueTooLong(bytes) => {
                write!(f, "a value of {bytes} bytes is longer than {}", Parser::VALUE_BYTES_MAX)
            }
        }
    }
}

impl std::error::Error for Malformed {}

/// Reads the replies of one connection.
#[derive(Clone, Debug, Default)]
pub struct Parser {
    /// The beginning of a line whose end has not arrived.
    partial: Vec<u8>,
    /// Bytes of a value, including the line end after it, that have not arrived.
    value_left: u64,
    /// The length of the value in the current reply.
    value: Option<u32>,
    refusal: String,
}

impl Parser {
    /// The longest line: much longer than a `VALUE` line with a key of 250 bytes, and long enough
    /// for any error text.
    pub const LINE_BYTES_MAX: usize = 2048;
    /// The longest value: the maximum of memcached's `-I`.
    pub const VALUE_BYTES_MAX: u32 = 1 << 30;

    /// Consumes one reply from the front of `input`. Returns `None` if `input` ends before a reply
    /// is complete; the parser keeps what it has read.
    ///
    /// # Errors
    /// [`Malformed`]; do not use the parser afterwards.
    #[inline]
    pub fn reply(&mut self, input: &mut &[u8]) -> Result<Option<Reply>, Malformed> {
        loop {
            if self.value_left > 0 && !self.skip_value(input)? {
                return Ok(None);
            }
            let Some(end) = memchr::memchr(b'\n', input) else {
                return self.keep(input).map(|()| None);
            };
            let (line, rest) = input.split_at(end + 1);
            *input = rest;
            let reply = if self.partial.is_empty() {
                if line.len() > Self::LINE_BYTES_MAX {
                    return Err(Malformed::LineTooLong);
                }
                self.line(line)?
            } else {
                self.keep(&mut &*line)?;
                let mut whole = std::mem::take(&mut self.partial);
                let reply = self.line(&whole);
                whole.clear();
                self.partial = whole;
                reply?
            };
            if reply.is_some() {
                return Ok(reply);
            }
        }
    }

    /// Returns the error text that the server sent in the last [`Reply::Refused`].
    pub fn refusal(&self) -> &str {
        &self.refusal
    }

    /// Skips the bytes of a value and of the line end after it. Returns whether all of them have
    /// arrived.
    #[inline]
    fn skip_value(&mut self, input: &mut &[u8]) -> Result<bool, Malformed> {
        let come = usize::try_from(self.value_left).unwrap_or(usize::MAX).min(input.len());
        let (skipped, rest) = input.split_at(come);
        *input = rest;
        let left_before = self.value_left;
        self.value_left -= come as u64;
        // The last two bytes are the line end; the input may end after either.
        for (expected, from_end) in [(b'\r', 2), (b'\n', 1)] {
            if (self.value_left..left_before).contains(&(from_end - 1)) && left_before >= from_end {
                let position = usize::try_from(left_before - from_end).unwrap_or(usize::MAX);
                if skipped.get(position) != Some(&expected) {
                    return Err(Malformed::ValueNotEnded);
                }
            }
        }
        Ok(self.value_left == 0)
    }

    /// Buffers the beginning of a line.
    fn keep(&mut self, input: &mut &[u8]) -> Result<(), Malformed> {
        if self.partial.len() + input.len() > Self::LINE_BYTES_MAX {
            return Err(Malformed::LineTooLong);
        }
        self.partial.extend_from_slice(input);
        *input = &[];
        Ok(())
    }

    /// Processes a line, including its line end. Returns `None` if the reply continues after it.
    #[inline]
    fn line(&mut self, line: &[u8]) -> Result<Option<Reply>, Malformed> {
        let text = line.strip_suffix(b"\r\n").unwrap_or(line);
        if self.value.is_none()
            && let Some(rest) = text.strip_prefix(b"VALUE ")
        {
            let bytes = value_length(rest).ok_or_else(|| unexpected(text))?;
            let length = u32::try_from(bytes).ok().filter(|&b| b <= Self::VALUE_BYTES_MAX);
            self.value = Some(length.ok_or(Malformed::ValueTooLong(bytes))?);
            self.value_left = bytes + 2;
            return Ok(None);
        }
        match text {
            b"END" => Ok(Some(self.value.take().map_or(Reply::Miss, Reply::Hit))),
            b"STORED" if self.value.is_none() => Ok(Some(Reply::Stored)),
            _ if [&b"ERROR"[..], b"CLIENT_ERROR ", b"SERVER_ERROR ", b"NOT_STORED"]
                .iter()
                .any(|e| text.starts_with(e)) =>
            {
                self.value = None;
                self.refusal = String::from_utf8_lossy(text).into_owned();
                Ok(Some(Reply::Refused))
            }
            _ => Err(unexpected(text)),
        }
    }
}

/// The length in `KEY FLAGS BYTES`.
#[inline]
fn value_length(rest: &[u8]) -> Option<u64> {
    let (key_and_flags, bytes) = rest.split_at(memchr::memrchr(b' ', rest)?);
    let digits = &bytes[1..];
    // Twelve digits are more than any valid value, and too few to overflow.
    let number = !digits.is_empty() && digits.len() <= 12 && digits.iter().all(u8::is_ascii_digit);
    let two_words = memchr::memchr(b' ', key_and_flags).is_some();
    (number && two_words).then(|| digits.iter().fold(0, |n, d| n * 10 + u64::from(d - b'0')))
}

fn unexpected(text: &[u8]) -> Malformed {
    /// Maximum length of the line that an error quotes.
    const QUOTED_BYTES_MAX: usize = 80;
    Malformed::Line(String::from_utf8_lossy(&text[..text.len().min(QUOTED_BYTES_MAX)]).into_owned())
}

/// All keys of a run, each stored as its complete `get` request.
///
/// As in mutilate, key number *n* is *n* in decimal, padded with zeros to the drawn length. The
/// length is drawn from the key's number, so every client thread and every run has the same keys.
#[derive(Clone, Debug)]
pub struct Keys {
    requests: Vec<u8>,
    /// Where each request begins, plus a final end offset.
    begins: Vec<u32>,
}

impl Keys {
    const GET: &'static [u8] = b"get ";
    const LINE_END: &'static [u8] = b"\r\n";

    /// The keys of a workload.
    ///
    /// # Panics
    /// If the number or the length of keys is above the workload's own limits.
    pub fn new(workload: &MemcachedWorkload) -> Self {
        /// Random stream for key sizes; used for nothing else.
        const KEY_SIZES: u64 = 0x6b65_7973;
        let digits_min = (workload.keys - 1).checked_ilog10().unwrap_or(0) as usize + 1;
        let mut requests = Vec::new();
        let mut begins = Vec::with_capacity(workload.keys as usize + 1);
        for key in 0..workload.keys {
            let u = model::Chance::stream(KEY_SIZES, &[u64::from(key)]).unit();
            let length = (workload.key_size.draw(u) as usize).max(digits_min);
            begins.push(
                u32::try_from(requests.len()).expect("KEYS_MAX keys of KEY_BYTES_MAX bytes are below 4 GiB"),
            );
            requests.extend_from_slice(Self::GET);
            requests.extend_from_slice(format!("{key:0length$}").as_bytes());
            requests.extend_from_slice(Self::LINE_END);
        }
        begins.push(
            u32::try_from(requests.len()).expect("KEYS_MAX keys of KEY_BYTES_MAX bytes are below 4 GiB"),
        );
        Self { requests, begins }
    }

    /// The number of keys.
    pub fn count(&self) -> u32 {
        u32::try_from(self.begins.len() - 1).unwrap_or(u32::MAX)
    }

    /// The request for a key's value.
    #[inline]
    pub fn get(&self, key: u32) -> &[u8] {
        &self.requests[self.begins[key as usize] as usize..self.begins[key as usize + 1] as usize]
    }

    /// The key itself.
    #[inline]
    pub fn name(&self, key: u32) -> &[u8] {
        let request = self.get(key);
        &request[Self::GET.len()..request.len() - Self::LINE_END.len()]
    }

    /// Writes the request that sets a key to a value.
    #[inline]
    pub fn write_set(&self, key: u32, value: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(b"set ");
        out.extend_from_slice(self.name(key));
        out.extend_from_slice(b" 0 0 ");
        write_decimal(value.len(), out);
        out.extend_from_slice(Self::LINE_END);
        out.extend_from_slice(value);
        out.extend_from_slice(Self::LINE_END);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a remainder by ten is one digit")]
fn write_decimal(mut number: usize, out: &mut Vec<u8>) {
    let begin = out.len();
    loop {
        out.push(b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out[begin..].reverse();
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::test_workload;
    use model::KeySize;
    use proptest::prelude::*;

    fn wire(reply: Reply) -> Vec<u8> {
        match reply {
            Reply::Hit(bytes) => {
                // Values that look like the protocol must not be parsed as such.
                let value: Vec<u8> =
                    b"END\r\nVALUE x\r\n".iter().copied().cycle().take(bytes as usize).collect();
                [format!("VALUE some_key 0 {bytes}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat()
            }
            Reply::Miss => b"END\r\n".to_vec(),
            Reply::Stored | Reply::Done => b"STORED\r\n".to_vec(),
            Reply::Refused => b"SERVER_ERROR out of memory storing object\r\n".to_vec(),
        }
    }

    fn parse_all(parser: &mut Parser, mut bytes: &[u8], replies: &mut Vec<Reply>) -> Result<(), Malformed> {
        while let Some(reply) = parser.reply(&mut bytes)? {
            replies.push(reply);
        }
        assert!(bytes.is_empty(), "the parser returns without a reply only when it has read everything");
        Ok(())
    }

    fn any_reply() -> impl Strategy<Value = Reply> {
        prop_oneof![
            (0_u32..40).prop_map(Reply::Hit),
            Just(Reply::Miss),
            Just(Reply::Stored),
            Just(Reply::Refused)
        ]
    }

    proptest! {
        #[test]
        fn replies_split_at_every_byte_are_the_same_replies(expected in proptest::collection::vec(any_reply(), 1..6)) {
            let bytes: Vec<u8> = expected.iter().copied().flat_map(wire).collect();
            for split in 0..=bytes.len() {
                let (mut parser, mut found) = (Parser::default(), Vec::new());
                parse_all(&mut parser, &bytes[..split], &mut found).expect("well formed");
                parse_all(&mut parser, &bytes[split..], &mut found).expect("well formed");
                prop_assert_eq!(&found, &expected, "split at {}", split);
            }
            let (mut parser, mut found) = (Parser::default(), Vec::new());
            for byte in bytes.chunks(1) {
                parse_all(&mut parser, byte, &mut found).expect("well formed");
            }
            prop_assert_eq!(found, expected, "byte by byte");
        }

        #[test]
        fn any_bytes_are_read_or_refused_and_never_more_than_a_line_is_kept(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..30)
        ) {
            let (mut parser, mut found) = (Parser::default(), Vec::new());
            for piece in &pieces {
                if parse_all(&mut parser, piece, &mut found).is_err() {
                    break;
                }
                prop_assert!(parser.partial.len() <= Parser::LINE_BYTES_MAX);
            }
        }
    }

    #[test]
    fn what_is_no_reply_is_refused_with_the_line() {
        for (bytes, expected) in [
            (&b"HTTP/1.1 400 Bad Request\r\n"[..], "`HTTP/1.1 400 Bad Request` is not a valid answer here"),
            (b"VALUE key 0\r\n", "`VALUE key 0` is not a valid answer here"),
            (b"VALUE key 0 -1\r\n", "`VALUE key 0 -1` is not a valid answer here"),
            (b"VALUE key 0 2000000000\r\n", "a value of 2000000000 bytes is longer than 1073741824"),
            (b"VALUE key 0 2\r\nabcEND\r\n", "a value is not followed by the end of its line"),
            (b"VALUE key 0 2\r\nab\r\nSTORED\r\n", "`STORED` is not a valid answer here"),
        ] {
            let error = parse_all(&mut Parser::default(), bytes, &mut Vec::new()).expect_err(expected);
            assert_eq!(error.to_string(), expected);
        }
        let endless = vec![b'x'; Parser::LINE_BYTES_MAX + 1];
        assert_eq!(parse_all(&mut Parser::default(), &endless, &mut Vec::new()), Err(Malformed::LineTooLong));
    }

    #[test]
    fn a_refusal_keeps_the_servers_words() {
        let mut parser = Parser::default();
        let mut input = &b"SERVER_ERROR object too large for cache\r\nSTORED\r\n"[..];
        assert_eq!(parser.reply(&mut input), Ok(Some(Reply::Refused)));
        assert_eq!(parser.refusal(), "SERVER_ERROR object too large for cache");
        assert_eq!(parser.reply(&mut input), Ok(Some(Reply::Stored)));
    }

    #[test]
    fn requests_are_written_as_the_protocol_wants_them() {
        let keys = Keys::new(&model::MemcachedWorkload {
            keys: 101,
            key_size: KeySize::Fixed(5),
            ..test_workload()
        });
        assert_eq!(keys.get(7), b"get 00007\r\n");
        let mut out = Vec::new();
        keys.write_set(100, b"0123456789", &mut out);
        assert_eq!(out, b"set 00100 0 0 10\r\n0123456789\r\n");
        assert_eq!(keys.count(), 101);
    }

    #[test]
    fn keys_are_distinct_even_when_the_drawn_length_is_too_short_for_their_number() {
        let keys = Keys::new(&model::MemcachedWorkload {
            keys: 1001,
            key_size: KeySize::Fixed(1),
            ..test_workload()
        });
        let names: std::collections::BTreeSet<&[u8]> = (0..1001).map(|k| keys.name(k)).collect();
        assert_eq!(names.len(), 1001);
        assert_eq!(keys.name(1000), b"1000");
    }
}
