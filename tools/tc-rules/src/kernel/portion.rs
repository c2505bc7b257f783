//! Messages, in pieces of one `sendmsg()` each.

use crate::Command;
use netlink::attr::AttrBuf;

/// Maximum size of a piece, in bytes: `netlink_sendmsg()` accepts what fits into the send buffer, 208 KiB by
/// default.
pub const PORTION_BYTES_MAX: usize = 190_000;

/// Maximum number of rules in a piece. Even if all of them are refused, the answers fit into a receive buffer
/// of the default maximum size. More rules per piece are not faster.
pub const RULES_MAX: usize = 128;

/// Size of a portion that is held until a file has been read: a huge page minus the allocator's header. The
/// kernel aligns allocations whose size is a multiple of 2 MiB for huge pages.
///
/// Kernel: 6.13, `mm/mmap.c` `__get_unmapped_area()`.
const HELD_BYTES: usize = (2 << 20) - 4096;

/// Minimum capacity of a held portion, so that a short file needs few.
const HELD_BYTES_MIN: usize = 64 * 1024;

/// Encoded commands and their lines, in pieces of one `sendmsg()` each.
#[derive(Debug, Default)]
pub struct Portion {
    out: AttrBuf,
    lines: Vec<u32>,
    /// The ends of all pieces but the last, in bytes and in lines.
    cuts: Vec<(usize, usize)>,
    /// The size in bytes up to which the portion accepts further pieces.
    room: usize,
    /// The number of lines that precede the part of the file to which the sequence numbers refer.
    before: u32,
}

/// The messages of one `sendmsg()`.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    bytes: &'a [u8],
    lines: &'a [u32],
    before: u32,
}

impl Portion {
    /// Creates an empty portion of one piece, with capacity for about this many bytes.
    pub fn with_room(bytes: usize) -> Self {
        // Reserve a little more, because the size of rules varies slightly.
        let out = AttrBuf::with_room(bytes + bytes / 8 + 64);
        Self { out, lines: Vec::with_capacity(RULES_MAX), ..Self::default() }
    }

    /// Creates an empty portion of many pieces for a part of a file of this length, with room for the whole
    /// part, or for a huge page.
    ///
    /// Touching memory page by page takes longer than encoding into it, and each small buffer of a thread
    /// costs a system call.
    pub fn held(bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // The encoded size is about that of the text.
        let wanted = bytes.saturating_add(bytes / 4).max(HELD_BYTES_MIN);
        let room = if wanted > HELD_BYTES / 2 { HELD_BYTES } else { wanted };
        let mut memory = Vec::with_capacity(room);
        if room == HELD_BYTES {
            sys::memory::prefer_huge_pages(&mut memory);
        }
        Self { out: AttrBuf::on(memory), room, ..Self::default() }
    }

    /// Adds a command, with its line as the sequence number.
    pub fn push(&mut self, line: u32, command: &Command) {
        self.cut();
        command.encode(line, 0, &mut self.out);
        self.lines.push(line);
    }

    /// Adds the removal of a rule, with a line as the sequence number.
    pub fn push_removal(&mut self, line: u32, rule: &crate::Filter) {
        self.cut();
        rule.encode_removal(line, 0, &mut self.out);
        self.lines.push(line);
    }

    /// Starts another piece if the last one is full.
    fn cut(&mut self) {
        if self.last_is_full() {
            self.cuts.push((self.bytes(), self.lines.len()));
        }
    }

    /// The size of the last piece, in bytes and in lines.
    fn last(&self) -> (usize, usize) {
        let (bytes, lines) = self.cuts.last().copied().unwrap_or_default();
        (self.bytes() - bytes, self.lines.len() - lines)
    }

    fn last_is_full(&self) -> bool {
        let (bytes, lines) = self.last();
        // Leave room for another message: the longest has a few kilobytes.
        lines >= RULES_MAX || bytes > PORTION_BYTES_MAX - 32_768
    }

    /// Whether the portion should be sent before more is added.
    pub fn is_full(&self) -> bool {
        // The next piece will be about as long as the last one.
        let (last, _) = self.last();
        self.last_is_full() && self.bytes() + last + last / 8 > self.room
    }

    /// The size of its commands, in bytes.
    pub fn bytes(&self) -> usize {
        self.out.as_bytes().len()
    }

    /// Whether the portion contains no command.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let all = (!self.is_empty()).then(|| (self.bytes(), self.lines.len()));
        let mut begin = (0, 0);
        self.cuts.iter().copied().chain(all).map(move |end| {
            let (bytes, lines) = (&self.out.as_bytes()[begin.0..end.0], &self.lines[begin.1..end.1]);
            begin = end;
            Piece { bytes, lines, before: self.before }
        })
    }

    /// Adds this many lines, which precede the encoded part of the file, to its line numbers.
    pub fn shift(&mut self, lines: u32) {
        self.before = self.before.saturating_add(lines);
        self.lines.iter_mut().for_each(|line| *line = line.saturating_add(lines));
    }

    /// Removes the commands but keeps the memory.
    pub fn clear(&mut self) {
        self.before = 0;
        self.out.clear();
        self.lines.clear();
        self.cuts.clear();
    }
}

impl<'a> Piece<'a> {
    /// The messages.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The lines of its commands, in order.
    pub const fn lines(&self) -> &'a [u32] {
        self.lines
    }

    /// The line of the message with this sequence number.
    pub(super) const fn line_of(&self, sequence: u32) -> u32 {
        self.before.saturating_add(sequence)
    }
}

#[cfg(test)]
mod test {
    use crate::Command;

    use super::*;

    #[test]
    fn a_held_portion_is_sent_in_pieces_that_every_buffer_takes() {
        let command = Command::default();
        let mut held = Portion::held(0);
        let mut line = 0;
        while !held.is_full() {
            line += 1;
            held.push(line, &command);
        }
        assert!(held.bytes() <= HELD_BYTES_MIN, "the requested capacity suffices");
        held.shift(10);
        let pieces: Vec<_> = held.pieces().collect();
        assert!(pieces.len() > 1);
        assert!(pieces.iter().all(|piece| piece.lines().len() <= RULES_MAX));
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes()).copied().collect();
        assert_eq!(bytes, held.out.as_bytes());
        let lines = pieces.iter().flat_map(|piece| piece.lines()).copied();
        assert!(lines.eq(11..=line + 10));
        assert_eq!(pieces[1].line_of(1), 11, "messages are numbered by the lines of their part");

        let mut one = Portion::with_room(0);
        for line in 1..=128 {
            assert!(!one.is_full());
            one.push(line, &command);
        }
        assert!(one.is_full(), "128 rules are one piece");
        assert_eq!(one.pieces().count(), 1);
        assert_eq!(Portion::default().pieces().count(), 0);
    }
}
