//! Reads the keyboard: converts the bytes from a terminal to keys, and detects that the terminal is closed.
//!
//! crossterm keeps reading from a terminal that hung up, because it treats a read of 0 bytes as an incomplete
//! key; then neither a signal nor a key ends the program. This reader reports a read of 0 bytes, an error or
//! a hang-up as [`Input::HangUp`], which ends the program.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::state::KeyPress;

/// The maximum number of bytes in one read.
const READ_BYTES: usize = 256;

/// The maximum length of an escape sequence; a longer one is dropped.
const SEQUENCE_BYTES_MAX: usize = 32;

/// How long to wait for the rest of an escape sequence. If nothing follows within this time, the byte was the
/// Escape key.
const SEQUENCE: Duration = Duration::from_millis(50);

/// The byte that begins an escape sequence; the Escape key sends only this byte.
const ESCAPE: u8 = 0x1b;

/// The result of waiting for the keyboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// The keys that were pressed; none after a timeout, after a signal, or if `other` became readable.
    Keys(Vec<KeyPress>),
    /// The terminal is closed.
    HangUp,
}

/// Reads keys from a terminal in raw mode.
#[derive(Debug)]
pub(crate) struct Keyboard {
    terminal: File,
    /// The bytes of an incomplete key, and the time when they arrived.
    begun: Vec<u8>,
    since: Instant,
}

impl Keyboard {
    /// Creates a keyboard for the terminal on standard input.
    ///
    /// # Errors
    /// If the descriptor of standard input cannot be duplicated.
    pub(crate) fn of_standard_input() -> io::Result<Self> {
        Ok(Self::new(File::from(io::stdin().as_fd().try_clone_to_owned()?)))
    }

    fn new(terminal: File) -> Self {
        Self { terminal, begun: Vec::new(), since: Instant::now() }
    }

    /// Waits for keys until the timeout, or until `other` is readable.
    pub(crate) fn wait(&mut self, wait: Duration, other: BorrowedFd<'_>) -> Input {
        let wait = if self.begun.is_empty() { wait } else { wait.min(SEQUENCE) };
        let mut polled =
            [PollFd::new(&self.terminal, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
        let wait = Timespec::try_from(wait).ok();
        if poll(&mut polled, wait.as_ref()).is_err() {
            return Input::Keys(Vec::new()); // interrupted by a signal
        }
        let found = polled[0].revents();
        if found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Input::HangUp;
        }
        if found.contains(PollFlags::IN) {
            let mut bytes = [0; READ_BYTES];
            match self.terminal.read(&mut bytes) {
                Ok(0) => return Input::HangUp,
                Ok(read) => {
                    self.begun.extend_from_slice(&bytes[..read]);
                    self.since = Instant::now();
                }
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(_) => return Input::HangUp,
            }
        }
        let complete = self.since.elapsed() >= SEQUENCE;
        Input::Keys(keys(&mut self.begun, complete))
    }
}

/// Removes the complete keys from `bytes`, and returns them. With `complete`, nothing follows, so all bytes
/// are removed.
fn keys(bytes: &mut Vec<u8>, complete: bool) -> Vec<KeyPress> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let (key, used) = match next(rest) {
            Some(next) => next,
            None if complete || rest.len() > SEQUENCE_BYTES_MAX => {
                let key = if rest == [ESCAPE] { Some(KeyPress::Escape) } else { None };
                (key, rest.len())
            }
            None => break,
        };
        found.extend(key);
        at += used;
    }
    bytes.drain(..at);
    found
}

/// Parses the first key and its length in bytes; `None` if the key may be incomplete. A key that has no
/// function is returned as `(None, length)`.
fn next(bytes: &[u8]) -> Option<(Option<KeyPress>, usize)> {
    const INTERRUPT: u8 = 0x03;
    let first = *bytes.first()?;
    let single = |key| Some((Some(key), 1));
    match first {
        INTERRUPT => single(KeyPress::Interrupt),
        b'\r' | b'\n' => single(KeyPress::Enter),
        0x7f | 0x08 => single(KeyPress::Backspace),
        ESCAPE => sequence(bytes),
        0..=0x1f => Some((None, 1)),
        _ => character(bytes),
    }
}

/// Parses an escape sequence of ECMA-48: `ESC [` with parameters and a last byte of `@` to `~`, or `ESC O`
/// with one byte.
fn sequence(bytes: &[u8]) -> Option<(Option<KeyPress>, usize)> {
    match bytes.get(1)? {
        b'[' => {
            let last = bytes[2..].iter().position(|byte| (b'@'..=b'~').contains(byte))?;
            let key = match (&bytes[2..2 + last], bytes[2 + last]) {
                (_, b'A') => Some(KeyPress::Up),
                (_, b'B') => Some(KeyPress::Down),
                (b"5", b'~') => Some(KeyPress::PageUp),
                (b"6", b'~') => Some(KeyPress::PageDown),
                _ => None,
            };
            Some((key, last + 3))
        }
        b'O' => {
            let key = match bytes.get(2)? {
                b'A' => Some(KeyPress::Up),
                b'B' => Some(KeyPress::Down),
                b'M' => Some(KeyPress::Enter),
                _ => None,
            };
            Some((key, 3))
        }
        // This is the Escape key, directly followed by another key.
        _ => Some((Some(KeyPress::Escape), 1)),
    }
}

fn character(bytes: &[u8]) -> Option<(Option<KeyPress>, usize)> {
    let length = match bytes[0] {
        0..=0x7f => 1,
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => return Some((None, 1)),
    };
    let whole = bytes.get(..length)?;
    match std::str::from_utf8(whole) {
        Ok(text) => Some((text.chars().next().map(KeyPress::Char), length)),
        Err(_) => Some((None, 1)),
    }
}

#[cfg(test)]
mod test {
    use rustix::pipe::pipe;

    use super::*;

    fn all(bytes: &[u8]) -> Vec<KeyPress> {
        let mut bytes = bytes.to_vec();
        let found = keys(&mut bytes, true);
        assert!(bytes.is_empty(), "{bytes:?} is left");
        found
    }

    #[test]
    fn keys_are_decoded_and_unknown_sequences_are_skipped() {
        use KeyPress::{Backspace, Char, Down, Enter, Escape, Interrupt, PageDown, PageUp, Up};
        assert_eq!(all("s/eß€\r".as_bytes()), [Char('s'), Char('/'), Char('e'), Char('ß'), Char('€'), Enter]);
        assert_eq!(all(b"\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[1;5A"), [Up, Down, PageUp, PageDown, Up]);
        assert_eq!(all(b"\x1b[15~\x01\x7f\x03"), [Backspace, Interrupt]);
        assert_eq!(all(b"\x1b"), [Escape]);
        assert_eq!(all(b"\x1bq"), [Escape, Char('q')]);
        assert_eq!(all(b"\xff\xc3q"), [Char('q')]);
    }

    #[test]
    fn a_key_that_arrives_in_two_parts_is_one() {
        let mut bytes = b"\x1b[".to_vec();
        assert_eq!(keys(&mut bytes, false), []);
        bytes.push(b'A');
        assert_eq!((keys(&mut bytes, false), bytes.len()), (vec![KeyPress::Up], 0));
    }

    #[test]
    fn a_sequence_without_an_end_is_dropped() {
        let mut bytes = [b"\x1b[".as_slice(), &[b'1'; 1_000]].concat();
        assert_eq!((keys(&mut bytes, false), bytes.len()), (vec![], 0));
    }

    #[test]
    fn the_end_of_the_input_is_a_hang_up() {
        let ((reader, writer), (quiet, _held)) = (pipe().expect("a pipe"), pipe().expect("a pipe"));
        let mut keyboard = Keyboard::new(File::from(reader));
        rustix::io::write(&writer, b"q").expect("written");
        let wait = Duration::from_secs(10);
        assert_eq!(keyboard.wait(wait, quiet.as_fd()), Input::Keys(vec![KeyPress::Char('q')]));
        drop(writer);
        assert_eq!(keyboard.wait(wait, quiet.as_fd()), Input::HangUp);
    }
}
