//! `cmp`: compares a number in the packet.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_ematch/tc_em_cmp.h`, `net/sched/em_cmp.c`.

use super::layer;
use super::token::Args;
use crate::number::{self, Base};
use crate::words::Read;
use netlink::attr::{Attr, AttrBuf, Malformed};

const WIDTHS: &[&str] = &["u8", "u16", "u32"];

/// The comparisons, by the kernel's number `TCF_EM_OPND_*`.
pub(super) const OPERATORS: &[&str] = &["eq", "gt", "lt"];

/// The words after the width.
const WORDS: &[&str] = &["at", "layer", "mask", "trans", "eq", "gt", "lt"];

/// The match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cmp {
    /// The width of the number, in bytes.
    pub width: u8,
    /// Offset in bytes from the start of the layer.
    pub at: u16,
    /// The layer, by the kernel's number.
    pub layer: u8,
    /// The mask; 0 for all bits.
    pub mask: u32,
    /// Whether the value is in network byte order.
    pub translated: bool,
    /// The comparison, by the kernel's number.
    pub operator: u8,
    /// The value to compare with.
    pub value: u32,
}

impl Cmp {
    pub(super) fn parse(args: &mut Args<'_>) -> Read<Self> {
        let width = [1, 2, 4][args.one_of(WIDTHS)?];
        let (mut at, mut compared) = (None, None);
        let (mut layer, mut mask, mut translated) = (layer::NETWORK, 0, false);
        while args.peek().is_some() {
            match WORDS[args.one_of(WORDS)?] {
                "at" => {
                    at = Some(args.read("an offset: 0 to 65535", |word| number::u16(word, Base::Prefix))?);
                }
                "layer" => layer = layer::parse(args)?,
                "mask" => mask = args.number("a mask of 32 bits")?,
                "trans" => translated = true,
                word => {
                    let operator = (0..).zip(OPERATORS).find(|(_, name)| **name == word);
                    compared =
                        operator.map(|(number, _)| args.number("a 32-bit number").map(|v| (number, v)));
                }
            }
        }
        let at = at.ok_or_else(|| args.missing().expecting(&["at"]))?;
        let (operator, value) = compared.ok_or_else(|| args.missing().expecting(OPERATORS))??;
        Ok(Self { width, at, layer, mask, translated, operator, value })
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        let [a, b] = self.at.to_ne_bytes();
        let translated = u8::from(self.translated) << 4;
        let place = [a, b, self.width | translated, self.layer | self.operator << 4];
        out.raw([self.value.to_ne_bytes(), self.mask.to_ne_bytes(), place].as_flattened());
    }

    pub(super) fn decode(data: &Attr<'_>) -> Result<Self, Malformed> {
        let [a, b, c, d] = data.word_at(8)?.to_ne_bytes();
        Ok(Self {
            width: c & 15,
            at: u16::from_ne_bytes([a, b]),
            layer: d & 15,
            mask: data.word_at(4)?,
            translated: c >> 4 & 1 == 1,
            operator: d >> 4,
            value: data.word_at(0)?,
        })
    }

    pub(super) fn words(&self) -> Option<String> {
        let width = match self.width {
            1 => "u8",
            2 => "u16",
            4 => "u32",
            _ => return None,
        };
        let mut words = format!("{width} at {} layer {}", self.at, layer::name(self.layer)?);
        if self.mask != 0 {
            words.push_str(&format!(" mask {:#x}", self.mask));
        }
        words.push_str(if self.translated { " trans" } else { "" });
        words.push_str(&format!(" {} {}", OPERATORS.get(usize::from(self.operator))?, self.value));
        Some(words)
    }
}
