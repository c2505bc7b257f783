//! Splits a connection into lines: their maximum length, their authentication codes, and errors for bytes
//! that are not a message.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use serde::Serialize;
use serde::de::DeserializeOwned;
use session::Fault;
use sha2::Sha256;

/// The maximum length of a message in bytes. The longest message describes a machine with its interrupts,
/// with some bytes for each interrupt on each CPU.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// The error for bytes that are not a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAMessage {
    /// The line is longer than [`MESSAGE_BYTES_MAX`].
    TooLong,
    /// The line is not a message of this protocol.
    Malformed {
        /// The beginning of the line.
        line: String,
        /// The reason.
        why: String,
    },
    /// The message's authentication code is wrong: see [`Seal`].
    Unsealed,
}

impl fmt::Display for NotAMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "a message is longer than {MESSAGE_BYTES_MAX} bytes"),
            Self::Unsealed => {
                write!(f, "a message was altered in transit, or was not sent by the program with the token")
            }
            Self::Malformed { line, why } => write!(f, "`{line}` is not a message: {why}"),
        }
    }
}

impl std::error::Error for NotAMessage {}

/// How many characters of a line to quote in an error.
const SHOWN_CHARS: usize = 120;

/// Received bytes, to be split into lines.
#[derive(Debug)]
pub struct Lines {
    bytes: Vec<u8>,
    /// How many of the bytes have already been searched for the end of a line.
    searched: usize,
    /// Maximum length of a line.
    bytes_max: usize,
    /// The seal of every line, if the connection has a token.
    seal: Option<Seal>,
}

impl Default for Lines {
    fn default() -> Self {
        Self::of_at_most(MESSAGE_BYTES_MAX)
    }
}

impl Lines {
    /// Creates an empty buffer for lines of at most this length.
    pub(crate) const fn of_at_most(bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), searched: 0, bytes_max, seal: None }
    }

    /// Requires a seal on every further line. A line may then be as long as any message.
    pub fn expect_seal(&mut self, seal: Seal) {
        (self.seal, self.bytes_max) = (Some(seal), MESSAGE_BYTES_MAX + Seal::BYTES);
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next message; `None` until its line is complete.
    ///
    /// # Errors
    /// If the next line is not a message. The connection cannot be used after that.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, NotAMessage> {
        let Some(end) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return if self.searched > self.bytes_max { Err(NotAMessage::TooLong) } else { Ok(None) };
        };
        let end = self.searched + end;
        if end > self.bytes_max {
            return Err(NotAMessage::TooLong);
        }
        let line = match &mut self.seal {
            Some(seal) => seal.open(&self.bytes[..end])?,
            None => &self.bytes[..end],
        };
        let message = serde_json::from_slice(line).map_err(|error| NotAMessage::Malformed {
            line: String::from_utf8_lossy(line).chars().take(SHOWN_CHARS).collect(),
            why: error.to_string(),
        })?;
        self.bytes.drain(..=end);
        self.searched = 0;
        Ok(Some(message))
    }
}

/// Encodes a message as it is sent, including the end of its line.
///
/// # Errors
/// If the message is too long.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, Fault> {
    let mut line = serde_json::to_vec(message).map_err(Fault::failed)?;
    if line.len() > MESSAGE_BYTES_MAX {
        return Err(Fault::failed(NotAMessage::TooLong));
    }
    line.push(b'\n');
    Ok(line)
}

/// The length, in bytes, of a code (HMAC-SHA-256), and of the random numbers.
pub(super) const BYTES: usize = 32;

pub(super) fn keyed(key: &[u8]) -> Hmac<Sha256> {
    <Hmac<Sha256> as KeyInit>::new_from_slice(key)
        .unwrap_or_else(|_| unreachable!("HMAC accepts keys of any length"))
}

/// Protects the messages in one direction, and their order: each line begins with an authentication code.
pub struct Seal {
    pub(super) key: [u8; BYTES],
    /// The number of messages so far.
    pub(super) count: u64,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seal of message {}", self.count)
    }
}

impl Seal {
    /// The length that the seal adds to a line.
    pub(crate) const BYTES: usize = 2 * BYTES + 1;

    pub(super) fn code(&mut self, message: &[u8]) -> Hmac<Sha256> {
        let mut code = keyed(&self.key);
        code.update(&self.count.to_be_bytes());
        code.update(message);
        self.count += 1;
        code
    }

    /// Adds the code to the next line to send.
    pub fn seal(&mut self, line: &[u8]) -> Vec<u8> {
        let message = line.strip_suffix(b"\n").unwrap_or(line);
        let code = self.code(message).finalize().into_bytes();
        [hex(&code).as_bytes(), b" ", line].concat()
    }

    /// Checks and removes the code of the next received line.
    ///
    /// # Errors
    /// If the line was changed, repeated, or sent by another program, or if an earlier line is missing.
    pub fn open<'a>(&mut self, line: &'a [u8]) -> Result<&'a [u8], NotAMessage> {
        let (code, rest) = line.split_at_checked(2 * BYTES).ok_or(NotAMessage::Unsealed)?;
        let message = rest.strip_prefix(b" ").ok_or(NotAMessage::Unsealed)?;
        let code = std::str::from_utf8(code).ok().and_then(unhex).ok_or(NotAMessage::Unsealed)?;
        self.code(message).verify_slice(&code).map_err(|_| NotAMessage::Unsealed)?;
        Ok(message)
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex(text: &str) -> Option<[u8; BYTES]> {
    let digit = |byte: u8| (byte as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let text = text.as_bytes();
    let mut bytes = [0; BYTES];
    if text.len() != 2 * BYTES {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let (high, low) = (digit(pair[0]), digit(pair[1]));
        *byte = high.zip(low).map(|(high, low)| high << 4 | low)?;
    }
    Some(bytes)
}
