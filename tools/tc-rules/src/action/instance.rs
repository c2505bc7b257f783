//! The common parts of all kinds of actions: the instance, its index, and the words that can follow.

use netlink::attr::{Attr, AttrBuf, Attrs, Malformed};

use super::control::Control;
use crate::number::{self, Base};
use crate::words::{Read, Words};

/// The common beginning of the parameters of every kind: `tc_gen`.
const GENERIC_BYTES: usize = 20;

/// The instance of an action within its kind, and its control action: `tc_gen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The index; 0 lets the kernel choose.
    pub index: u32,
    /// The control action.
    pub control: Control,
}

impl Instance {
    /// Returns the bytes of `tc_gen`: index, capabilities, action, and two counts that only the kernel sets.
    pub(super) fn bytes(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&self.index.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.control.0.to_ne_bytes());
        bytes
    }

    /// Decodes the instance from the attribute with this number, and also returns that attribute. An index
    /// that the kernel chose, and that no other rule uses, is returned as 0.
    pub(super) fn decode(attrs: Attrs<'_>, parms: u16) -> Result<(Self, Attr<'_>), Malformed> {
        let parms = attrs.find(parms)?.ok_or(Malformed("an action without parameters"))?;
        let shared = parms.word_at(16)? > 1;
        let index = if shared { parms.word_at(0)? } else { 0 };
        Ok((Self { index, control: Control(parms.word_at(8)?) }, parms))
    }

    pub(super) fn index_words(self) -> String {
        if self.index == 0 { String::new() } else { format!(" index {}", self.index) }
    }

    /// Parses the common end of most actions: the control action, or `otherwise`, and an index in this base.
    pub(super) fn end(words: &mut Words<'_>, otherwise: Control, base: Base) -> Read<Self> {
        let control = Control::optional(words)?.unwrap_or(otherwise);
        let index = words.optional("index", "an index", |word| number::u32(word, base))?;
        Ok(Self { index: index.unwrap_or(0), control })
    }

    /// Formats what [`Instance::end`] parses.
    pub(super) fn end_words(self, otherwise: Control) -> Option<String> {
        let mut words = String::new();
        if self.control != otherwise {
            words.push_str(&format!(" {}", self.control.words()?));
        }
        words.push_str(&self.index_words());
        Some(words)
    }

    /// Encodes the attribute with this number: a structure that starts with `tc_gen`, followed by these
    /// bytes.
    pub(super) fn encode(self, parms: u16, behind: &[u8], out: &mut AttrBuf) {
        let mut bytes = Vec::with_capacity(GENERIC_BYTES + behind.len());
        bytes.extend_from_slice(&self.bytes());
        bytes.extend_from_slice(behind);
        out.bytes(parms, &bytes);
    }
}

/// Parses `index N`, if it comes next.
pub(super) fn index(words: &mut Words<'_>) -> Read<Option<u32>> {
    words.optional("index", "an index", |word| number::u32(word, Base::Ten))
}
