//! Messages that are sent at once.

use rules::Command;
use rules::attr::AttrBuf;

use crate::netlink::message::flag;

/// The most bytes of a portion: `netlink_sendmsg()` takes what fits the send buffer, 208 KiB where nobody changed it.
pub const PORTION_BYTES_MAX: usize = 190_000;

/// The most rules of a portion. All of them may be refused, and as many answers fit the receive buffer that every
/// process may have; with more, nothing gets faster.
pub const RULES_MAX: usize = 128;

/// `NLMSG_NOOP`: the kernel does nothing and says so. As all messages before it are handled by then, it is a fence.
const NOOP: u16 = 1;

/// Encoded commands and their lines.
#[derive(Debug, Default)]
pub struct Portion {
    out: AttrBuf,
    lines: Vec<u32>,
    /// How many lines lie before the part of the file that the messages are numbered by.
    before: u32,
}

impl Portion {
    /// An empty one with room for about so many bytes.
    pub fn with_room(bytes: usize) -> Self {
        // Rules differ a little, and the fence comes behind them.
        let out = AttrBuf::with_room(bytes + bytes / 8 + 64);
        Self { out, lines: Vec::with_capacity(RULES_MAX), before: 0 }
    }

    /// Adds a command, with its line as the message's number.
    pub fn push(&mut self, line: u32, command: &Command) {
        command.encode(line, 0, &mut self.out);
        self.lines.push(line);
    }

    /// Adds the removal of a rule, with a line as the message's number.
    pub fn push_removal(&mut self, line: u32, rule: &rules::Filter) {
        rule.encode_removal(line, 0, &mut self.out);
        self.lines.push(line);
    }

    /// Whether it should be sent before more is added to it.
    pub fn is_full(&self) -> bool {
        // The longest message is a few kilobytes.
        self.lines.len() >= RULES_MAX || self.out.as_bytes().len() > PORTION_BYTES_MAX - 32_768
    }

    /// How many bytes its commands have.
    pub fn bytes(&self) -> usize {
        self.out.as_bytes().len()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The lines of its commands, in order.
    pub fn lines(&self) -> &[u32] {
        &self.lines
    }

    /// So many lines lie before the part of a file that its lines were counted in.
    pub fn shift(&mut self, lines: u32) {
        self.before = self.before.saturating_add(lines);
        self.lines.iter_mut().for_each(|line| *line = line.saturating_add(lines));
    }

    /// The line of the message with this number.
    pub(super) const fn line_of(&self, sequence: u32) -> u32 {
        self.before.saturating_add(sequence)
    }

    /// Forgets the commands and keeps the memory.
    pub fn clear(&mut self) {
        self.before = 0;
        self.out.clear();
        self.lines.clear();
    }

    /// Its bytes, with a fence of this number behind them.
    pub(super) fn fenced(&mut self, fence: u32) -> &[u8] {
        self.out.message(NOOP, flag::REQUEST | flag::ACK, fence, |_| {});
        self.out.as_bytes()
    }
}
