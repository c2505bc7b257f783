//! Finds the end of an answer of Redis or an HTTP server, and whether the answer is an error. The
//! load generator needs no more.
//!
//! Sources: the Redis serialization protocol, RESP 2; RFC 9112 (HTTP/1.1). The readers accept
//! answers split at any byte, do no I/O, and buffer at most one line.

use crate::protocol::{Malformed, Parser, Reply};

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RESP 2.
    Redis,
    /// HTTP/1.1, answers to `GET`.
    Http,
}

/// Reads the answers of one connection.
#[derive(Clone, Debug)]
pub struct Framing {
    protocol: Protocol,
    /// The beginning of a line whose end has not arrived.
    partial: Vec<u8>,
    state: State,
    refusal: String,
}

/// The next expected part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The first line of an answer.
    First,
    /// Bytes of content to skip; after them, the answer is complete or another chunk
    /// follows.
    Bytes { left: u64, then: Then },
    /// A line of the header of an HTTP answer.
    Header(Body),
    /// The line with the length of a chunk.
    ChunkLength { refused: bool },
    /// The lines after the last chunk.
    Trailer { refused: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Reply(Reply),
    Chunk { refused: bool },
}

/// The framing of an HTTP answer, from the header lines read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Body {
    refused: bool,
    /// Whether the answer has no body, whatever its header says: true for status 1xx, 204 and 304.
    empty: bool,
    length: Option<u64>,
    chunked: bool,
    /// Whether this is an interim response (1xx), which precedes the final one.
    interim: bool,
}

impl Framing {
    /// Creates a reader for a new connection.
    pub fn new(protocol: Protocol) -> Self {
        Self { protocol, partial: Vec::new(), state: State::First, refusal: String::new() }
    }

    /// Returns the error text that the server sent in the last [`Reply::Refused`].
    pub fn refusal(&self) -> &str {
        &self.refusal
    }

    /// Consumes one answer from the front of `input`. Returns `None` if `input` ends before an
    /// answer is complete; the reader keeps what it has read.
    ///
    /// # Errors
    /// [`Malformed`]; do not use the reader afterwards.
    pub fn reply(&mut self, input: &mut &[u8]) -> Result<Option<Reply>, Malformed> {
        loop {
            if let State::Bytes { left, then } = self.state {
                let come = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                *input = &input[come..];
                let left = left - come as u64;
                if left > 0 {
                    self.state = State::Bytes { left, then };
                    return Ok(None);
                }
                match then {
                    Then::Reply(reply) => {
                        self.state = State::First;
                        return Ok(Some(reply));
                    }
                    Then::Chunk { refused } => self.state = State::ChunkLength { refused },
                }
            }
            let Some(end) = memchr::memchr(b'\n', input) else {
                return self.keep(input).map(|()| None);
            };
            let (line, rest) = input.split_at(end + 1);
            *input = rest;
            self.keep(&mut &*line)?;
            let mut whole = std::mem::take(&mut self.partial);
            let text = whole.strip_suffix(b"\n").unwrap_or(&whole);
            let reply = self.line(text.strip_suffix(b"\r").unwrap_or(text));
            whole.clear();
            self.partial = whole;
            if let Some(reply) = reply? {
                self.state = State::First;
                return Ok(Some(reply));
            }
        }
    }

    /// Buffers the beginning of a line.
    fn keep(&mut self, input: &mut &[u8]) -> Result<(), Malformed> {
        if self.partial.len() + input.len() > Parser::LINE_BYTES_MAX {
            return Err(Malformed::LineTooLong);
        }
        self.partial.extend_from_slice(input);
        *input = &[];
        Ok(())
    }

    /// Processes a line, without its line end. Returns `None` if the answer continues after it.
    fn line(&mut self, line: &[u8]) -> Result<Option<Reply>, Malformed> {
        match (self.state, self.protocol) {
            (State::First, Protocol::Redis) => self.first_of_redis(line),
            (State::First, Protocol::Http) => self.status(line).map(|()| None),
            (State::Header(body), _) if line.is_empty() => self.body(body),
            (State::Header(body), _) => {
                self.state = State::Header(header(line, body)?);
                Ok(None)
            }
            (State::ChunkLength { refused }, _) => {
                let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
                let length = number(digits.trim_ascii(), 16).ok_or_else(|| unexpected(line))?;
                self.state = match length {
                    0 => State::Trailer { refused },
                    // The line end after the chunk is counted as part of it.
                    _ => State::Bytes { left: bounded(length)? + 2, then: Then::Chunk { refused } },
                };
                Ok(None)
            }
            (State::Trailer { refused }, _) if line.is_empty() => Ok(Some(done(refused))),
            (State::Trailer { .. }, _) => Ok(None),
            (State::Bytes { .. }, _) => Err(unexpected(line)),
        }
    }

    fn first_of_redis(&mut self, line: &[u8]) -> Result<Option<Reply>, Malformed> {
        match line.split_first() {
            Some((b'+', _)) => Ok(Some(Reply::Stored)),
            Some((b':', digits)) if number(digits.strip_prefix(b"-").unwrap_or(digits), 10).is_some() => {
                Ok(Some(Reply::Done))
            }
            Some((b'-', words)) => {
                self.refusal = String::from_utf8_lossy(words).into_owned();
                Ok(Some(Reply::Refused))
            }
            Some((b'$', b"-1")) => Ok(Some(Reply::Miss)),
            Some((b'$', digits)) => {
                let length = bounded(number(digits, 10).ok_or_else(|| unexpected(line))?)?;
                let hit = Reply::Hit(u32::try_from(length).unwrap_or(u32::MAX));
                self.state = State::Bytes { left: length + 2, then: Then::Reply(hit) };
                Ok(None)
            }
            _ => Err(unexpected(line)),
        }
    }

    /// Parses the status line: `HTTP/1.1 200 OK`.
    fn status(&mut self, line: &[u8]) -> Result<(), Malformed> {
        let rest = line.strip_prefix(b"HTTP/1.").ok_or_else(|| unexpected(line))?;
        let code = rest.get(2..5).filter(|_| rest.get(1) == Some(&b' '));
        let code = code.and_then(|digits| number(digits, 10)).ok_or_else(|| unexpected(line))?;
        let refused = code >= 400;
        if refused {
            self.refusal = String::from_utf8_lossy(line).into_owned();
        }
        let interim = (100..200).contains(&code);
        let empty = interim || code == 204 || code == 304;
        self.state = State::Header(Body { refused, empty, interim, ..Body::default() });
        Ok(())
    }

    /// Determines what follows the header.
    fn body(&mut self, body: Body) -> Result<Option<Reply>, Malformed> {
        if body.interim {
            self.state = State::First;
            return Ok(None);
        }
        match (body.empty, body.chunked, body.length) {
            (true, ..) | (false, false, Some(0)) => Ok(Some(done(body.refused))),
            (false, true, _) => {
                self.state = State::ChunkLength { refused: body.refused };
                Ok(None)
            }
            (false, false, Some(length)) => {
                self.state = State::Bytes { left: bounded(length)?, then: Then::Reply(done(body.refused)) };
                Ok(None)
            }
            // Without a length or chunks, the body would end only when the connection closes.
            (false, false, None) => Err(Malformed::EndlessBody),
        }
    }
}

/// Updates what is known of the body from a header line.
fn header(line: &[u8], mut body: Body) -> Result<Body, Malformed> {
    let Some(colon) = memchr::memchr(b':', line) else { return Err(unexpected(line)) };
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    if name.eq_ignore_ascii_case(b"content-length") {
        body.length = Some(number(value, 10).ok_or_else(|| unexpected(line))?);
    } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
        body.chunked = value.to_ascii_lowercase().ends_with(b"chunked");
    }
    Ok(body)
}

const fn done(refused: bool) -> Reply {
    if refused { Reply::Refused } else { Reply::Done }
}

/// Checks the length of an answer against its limit.
fn bounded(length: u64) -> Result<u64, Malformed> {
    if length <= u64::from(Parser::VALUE_BYTES_MAX) {
        Ok(length)
    } else {
        Err(Malformed::ValueTooLong(length))
    }
}

/// Parses a number that consists only of digits.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    /// More digits than any valid length has, but too few to overflow.
    const DIGITS_MAX: usize = 12;
    let plain = !digits.is_empty() && digits.len() <= DIGITS_MAX;
    let text = std::str::from_utf8(digits).ok().filter(|text| plain && !text.starts_with('+'))?;
    u64::from_str_radix(text, radix).ok()
}

fn unexpected(line: &[u8]) -> Malformed {
    /// Maximum length of the line that an error quotes.
    const QUOTED_BYTES_MAX: usize = 80;
    Malformed::Line(String::from_utf8_lossy(&line[..line.len().min(QUOTED_BYTES_MAX)]).into_owned())
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    const REDIS: &[(&[u8], Reply)] = &[
        (b"+OK\r\n", Reply::Stored),
        (b"$-1\r\n", Reply::Miss),
        (b"$0\r\n\r\n", Reply::Hit(0)),
        (b"$12\r\n+OK\r\n$-1\r\nxy\r\n", Reply::Hit(12)),
        (b":-7\r\n", Reply::Done),
        (b"-ERR unknown command\r\n", Reply::Refused),
    ];

    const HTTP: &[(&[u8], Reply)] = &[
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/", Reply::Done),
        (b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", Reply::Done),
        (b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n", Reply::Done),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", Reply::Done),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;a=b\r\n0\r\n\r\r\nA\r\n0123456789\r\n0\r\nX: y\r\n\r\n",
            Reply::Done,
        ),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno", Reply::Refused),
    ];

    fn all(framing: &mut Framing, mut bytes: &[u8], found: &mut Vec<Reply>) -> Result<(), Malformed> {
        while let Some(reply) = framing.reply(&mut bytes)? {
            found.push(reply);
        }
        assert!(bytes.is_empty(), "it returns without an answer only when it has read everything");
        Ok(())
    }

    proptest! {
        #[test]
        fn answers_split_at_every_byte_are_the_same_answers(
            http in any::<bool>(),
            picks in proptest::collection::vec(0..6_usize, 1..6),
        ) {
            let (samples, protocol) = if http { (HTTP, Protocol::Http) } else { (REDIS, Protocol::Redis) };
            let bytes: Vec<u8> = picks.iter().flat_map(|&pick| samples[pick].0.iter().copied()).collect();
            let expected: Vec<Reply> = picks.iter().map(|&pick| samples[pick].1).collect();
            for split in 0..=bytes.len() {
                let (mut framing, mut found) = (Framing::new(protocol), Vec::new());
                all(&mut framing, &bytes[..split], &mut found).expect("well formed");
                all(&mut framing, &bytes[split..], &mut found).expect("well formed");
                prop_assert_eq!(&found, &expected, "split at {}", split);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused_and_never_more_than_a_line_is_kept(
            http in any::<bool>(),
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..30),
        ) {
            let mut framing = Framing::new(if http { Protocol::Http } else { Protocol::Redis });
            let mut found = Vec::new();
            for piece in &pieces {
                if all(&mut framing, piece, &mut found).is_err() {
                    break;
                }
                prop_assert!(framing.partial.len() <= Parser::LINE_BYTES_MAX);
            }
        }
    }

    #[test]
    fn what_is_no_answer_is_refused_with_the_line() {
        let refused = |protocol, bytes: &[u8]| {
            all(&mut Framing::new(protocol), bytes, &mut Vec::new()).expect_err("refused").to_string()
        };
        for (protocol, bytes, expected) in [
            (
                Protocol::Redis,
                &b"HTTP/1.1 400 Bad Request\r\n"[..],
                "`HTTP/1.1 400 Bad Request` is not a valid answer here",
            ),
            (Protocol::Redis, b"$x\r\n", "`$x` is not a valid answer here"),
            (Protocol::Redis, b"$2000000000\r\n", "a value of 2000000000 bytes is longer than 1073741824"),
            (Protocol::Http, b"-ERR\r\n", "`-ERR` is not a valid answer here"),
            (Protocol::Http, b"HTTP/1.1 200 OK\r\nnonsense\r\n", "`nonsense` is not a valid answer here"),
            (
                Protocol::Http,
                b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n",
                "an answer has neither a length nor chunks",
            ),
        ] {
            assert_eq!(refused(protocol, bytes), expected);
        }
    }

    #[test]
    fn a_refusal_keeps_the_servers_words() {
        let mut framing = Framing::new(Protocol::Redis);
        assert_eq!(
            framing.reply(&mut &b"-NOAUTH Authentication required.\r\n"[..]),
            Ok(Some(Reply::Refused))
        );
        assert_eq!(framing.refusal(), "NOAUTH Authentication required.");
        let mut framing = Framing::new(Protocol::Http);
        let bytes = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(framing.reply(&mut &bytes[..]), Ok(Some(Reply::Refused)));
        assert_eq!(framing.refusal(), "HTTP/1.1 404 Not Found");
    }
}
