//! The lines of a batch file, split as tc does: comments are removed, and a backslash before the newline
//! joins lines.
//!
//! The file streams through one buffer; a line that is not joined is returned in place, without a copy.
//!
//! The rules follow `getcmdline()` in `lib/utils.c` of iproute2 6.1: `#` starts a comment anywhere, even
//! within quotes, and a backslash within a comment is ignored.

use std::io::{self, Read};

/// How many bytes of the file are in memory at a time, unless a line is longer: few enough for the
/// processor's cache.
const CHUNK_BYTES: usize = 64 * 1024;

/// Maximum length of a line. tc is limited only by memory; no reasonable line comes near this.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// A line, including everything joined to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The text without comments.
    pub bytes: &'a [u8],
    /// The number of its first line in the file, from 1.
    pub number: u32,
    /// The offsets in `bytes` at which the joined lines begin.
    pub joints: &'a [usize],
}

impl Line<'_> {
    /// The position of a byte in the file: line and column, both from 1.
    pub fn place(&self, at: usize) -> (u32, usize) {
        let joined = self.joints.partition_point(|joint| *joint <= at);
        let start = joined.checked_sub(1).map_or(0, |last| self.joints[last]);
        (self.number.saturating_add(u32::try_from(joined).unwrap_or(u32::MAX)), at - start + 1)
    }

    /// The line of the file that contains this byte.
    pub fn around(&self, at: usize) -> &[u8] {
        let joined = self.joints.partition_point(|joint| *joint <= at);
        let start = joined.checked_sub(1).map_or(0, |last| self.joints[last]);
        let end = self.joints.get(joined).copied().unwrap_or(self.bytes.len());
        &self.bytes[start..end]
    }
}

/// The lines of a file.
#[derive(Debug)]
pub struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// The part of the buffer that has not been returned.
    start: usize,
    end: usize,
    number: u32,
    joined: Vec<u8>,
    joints: Vec<usize>,
    /// How many bytes of the file have been returned.
    consumed: u64,
    exhausted: bool,
}

impl<R: Read> Lines<R> {
    /// Creates a reader of this input.
    pub fn new(input: R) -> Self {
        Self {
            input,
            buffer: vec![0; CHUNK_BYTES],
            start: 0,
            end: 0,
            number: 0,
            joined: Vec::new(),
            joints: Vec::new(),
            consumed: 0,
            exhausted: false,
        }
    }

    /// How many bytes of the file have been returned.
    pub const fn consumed(&self) -> u64 {
        self.consumed
    }

    /// How many lines of the file have been returned.
    pub const fn count(&self) -> u32 {
        self.number
    }

    /// The next line; `None` at the end of the file.
    ///
    /// # Errors
    /// I/O errors, a line longer than [`LINE_BYTES_MAX`], and a backslash on the last line.
    pub fn next_line(&mut self) -> io::Result<Option<Line<'_>>> {
        let Some((start, end)) = self.physical()? else { return Ok(None) };
        let number = self.number;
        let (start, end, more) = Self::uncommented(&self.buffer, start, end);
        if !more {
            return Ok(Some(Line { bytes: &self.buffer[start..end], number, joints: &[] }));
        }
        self.joined.clear();
        self.joints.clear();
        self.joined.extend_from_slice(&self.buffer[start..end]);
        loop {
            let Some((start, end)) = self.physical()? else {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the line after a backslash is missing",
                ));
            };
            let (start, end, more) = Self::uncommented(&self.buffer, start, end);
            if self.joined.len() + (end - start) > LINE_BYTES_MAX {
                return Err(too_long());
            }
            self.joints.push(self.joined.len());
            self.joined.extend_from_slice(&self.buffer[start..end]);
            if !more {
                return Ok(Some(Line { bytes: &self.joined, number, joints: &self.joints }));
            }
        }
    }

    /// Removes the comment or the backslash; the flag says whether the next line is joined to this one.
    fn uncommented(buffer: &[u8], start: usize, end: usize) -> (usize, usize, bool) {
        let line = &buffer[start..end];
        if let Some(comment) = memchr(b'#', line) {
            return (start, start + comment, false);
        }
        match line {
            [.., b'\\', b'\n'] => (start, end - 2, true),
            [.., b'\n'] => (start, end - 1, false),
            _ => (start, end, false),
        }
    }

    /// Reads the next physical line, including its newline, as a range of the buffer.
    fn physical(&mut self) -> io::Result<Option<(usize, usize)>> {
        let mut searched = self.start;
        loop {
            if let Some(newline) = memchr(b'\n', &self.buffer[searched..self.end]) {
                return Ok(Some(self.hand_out(searched + newline + 1)));
            }
            if self.exhausted {
                return Ok((self.start < self.end).then(|| self.hand_out(self.end)));
            }
            let pending = self.end - self.start;
            if pending > LINE_BYTES_MAX {
                return Err(too_long());
            }
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end, searched) = (0, pending, pending);
            if self.buffer.len() < pending + CHUNK_BYTES / 2 {
                self.buffer.resize(pending + CHUNK_BYTES, 0);
            }
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.exhausted = true,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn hand_out(&mut self, end: usize) -> (usize, usize) {
        let start = self.start;
        self.start = end;
        self.number = self.number.saturating_add(1);
        self.consumed += u64::try_from(end - start).unwrap_or(0);
        (start, end)
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a line of more than {LINE_BYTES_MAX} bytes"))
}

/// How many bytes are searched at a time, so that the compiler vectorises the loop.
const BLOCK_BYTES: usize = 32;

/// The position of the first occurrence of a byte, searched block by block.
fn memchr(wanted: u8, bytes: &[u8]) -> Option<usize> {
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    for (i, block) in blocks.iter().enumerate() {
        // No early exit, so that the loop can be vectorised.
        if block.iter().fold(false, |found, byte| found | (*byte == wanted)) {
            return within(wanted, block).map(|at| i * BLOCK_BYTES + at);
        }
    }
    within(wanted, rest).map(|at| blocks.len() * BLOCK_BYTES + at)
}

/// The position of the first occurrence of a byte in a short slice, searched eight bytes at a time.
fn within(wanted: u8, bytes: &[u8]) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let differing = u64::from_le_bytes(*word) ^ (LOW * u64::from(wanted));
        // In `found`, the lowest zero byte of `differing` sets its high bit; only bytes above it may set
        // theirs incorrectly.
        let found = differing.wrapping_sub(LOW) & !differing & HIGH;
        if found != 0 {
            return Some(i * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    rest.iter().position(|byte| *byte == wanted).map(|at| words.len() * 8 + at)
}

/// The lowest and the highest bit of each of eight bytes.
pub(crate) const LOW: u64 = 0x0101_0101_0101_0101;
pub(crate) const HIGH: u64 = 0x8080_8080_8080_8080;

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    /// Returns the bytes in pieces of this size, so that lines span several reads.
    struct Dribble<'a>(&'a [u8], usize);

    impl Read for Dribble<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn lines(text: &[u8], piece: usize) -> Vec<(u32, String)> {
        let mut lines = Lines::new(Dribble(text, piece));
        let mut found = Vec::new();
        while let Some(line) = lines.next_line().expect("read") {
            found.push((line.number, String::from_utf8_lossy(line.bytes).into_owned()));
        }
        found
    }

    #[test]
    fn comments_are_cut_and_lines_joined_as_tc_does() {
        let text = b"a # b\nc \\\n d\\\ne\n\n# x \\\nlast";
        let expected = [(1, "a "), (2, "c  de"), (5, ""), (6, ""), (7, "last")]
            .map(|(n, t): (u32, &str)| (n, t.to_owned()));
        for piece in [1, 3, 100] {
            assert_eq!(lines(text, piece), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_byte_of_a_joined_line_is_found_in_the_file() {
        let mut lines = Lines::new(&b"\nab \\\ncd \\\nef\n"[..]);
        lines.next_line().expect("read");
        let line = lines.next_line().expect("read").expect("a line");
        assert_eq!((line.place(1), line.place(3), line.place(7)), ((2, 2), (3, 1), (4, 2)));
        assert_eq!(line.around(4), b"cd ");
    }

    #[test]
    fn a_backslash_at_the_end_of_the_file_and_a_line_without_end_are_refused() {
        assert!(Lines::new(&b"a \\\n"[..]).next_line().is_err());
        let long = vec![b'x'; LINE_BYTES_MAX * 2];
        assert!(Lines::new(&long[..]).next_line().is_err());
    }

    proptest! {
        #[test]
        fn how_the_file_is_read_in_pieces_makes_no_difference(
            text in "[a #\\\\\n]{0,60}", piece in 1_usize..20
        ) {
            let mut whole = Lines::new(text.as_bytes());
            let mut pieces = Lines::new(Dribble(text.as_bytes(), piece));
            loop {
                let a = whole.next_line().map(|line| line.map(|l| (l.number, l.bytes.to_vec()))).map_err(|e| e.kind());
                let b = pieces.next_line().map(|line| line.map(|l| (l.number, l.bytes.to_vec()))).map_err(|e| e.kind());
                prop_assert_eq!(&a, &b);
                if !matches!(a, Ok(Some(_))) { break; }
            }
        }

        #[test]
        fn a_byte_is_found_where_it_is_first(bytes in proptest::collection::vec(0_u8..4, 0..100)) {
            prop_assert_eq!(memchr(3, &bytes), bytes.iter().position(|byte| *byte == 3));
        }
    }
}
