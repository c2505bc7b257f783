//! `u32`: compares bits of the packet, like a key of the u32 classifier.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `struct tc_u32_key`, `net/sched/em_u32.c`.

use super::token::{Args, wrapping};
use crate::number::{self, Base};
use crate::words::Read;
use netlink::attr::{Attr, AttrBuf, Malformed};

/// The widths of the value.
const WIDTHS: &[&str] = &["u8", "u16", "u32"];

/// The prefix of an offset from the next header.
const NEXT_HEADER: &str = "nexthdr+";

/// The match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct U32 {
    /// The mask.
    pub mask: u32,
    /// The required value.
    pub value: u32,
    /// Offset in bytes from the network header.
    pub at: i32,
    /// The mask of the next header's offset, which is added to `at`: all bits or none.
    pub next_header: u32,
}

impl U32 {
    pub(super) fn parse(args: &mut Args<'_>) -> Read<Self> {
        let (bits, greatest) = [(8, 0xff), (16, 0xffff), (32, u32::MAX)][args.one_of(WIDTHS)?];
        let fits = |word: &str| wrapping(word).filter(|number| *number <= greatest);
        let mut value = args.read("a value that fits the width", fits)?;
        let mut mask = args.read("a mask that fits the width", fits)?;
        args.one_of(&["at"])?;
        let offset = |word: &str| number::i32(word);
        let mut next_header = 0;
        let mut at = if args.peek().and_then(|token| token.text()) == Some(NEXT_HEADER) {
            // If a blank follows `nexthdr+`, iproute2 6.1 accepts the prefix but ignores it, so refuse it.
            return Err(args.optional().map_or_else(
                || args.missing(),
                |token| token.wrong("the offset must follow immediately, as in nexthdr+4"),
            ));
        } else {
            args.read("an offset, as in 12 or nexthdr+4", |word| match word.strip_prefix(NEXT_HEADER) {
                None => offset(word),
                Some(rest) => {
                    next_header = u32::MAX;
                    number::u32(rest, Base::Prefix)?.try_into().ok()
                }
            })?
        };
        match bits {
            8 => {
                let shift = 24 - (at & 3) * 8;
                (value, mask, at) = (value << shift, mask << shift, at & !3);
            }
            16 => {
                let shift = if at & 3 == 0 { 16 } else { 0 };
                (value, mask, at) = (value << shift, mask << shift, at & !3);
            }
            _ if at % 4 != 0 => return Err(args.wrong("the offset must be a multiple of 4")),
            _ => {}
        }
        Ok(Self { mask, value: value & mask, at, next_header })
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        let (mask, value) = (self.mask.to_be_bytes(), self.value.to_be_bytes());
        out.raw([mask, value, self.at.to_ne_bytes(), self.next_header.to_ne_bytes()].as_flattened());
    }

    pub(super) fn decode(data: &Attr<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            mask: u32::from_be(data.word_at(0)?),
            value: u32::from_be(data.word_at(4)?),
            at: data.word_at(8)?.cast_signed(),
            next_header: data.word_at(12)?,
        })
    }

    pub(super) fn words(&self) -> Option<String> {
        let next = match self.next_header {
            0 => "",
            u32::MAX => NEXT_HEADER,
            _ => return None,
        };
        Some(format!("u32 {:#x} {:#x} at {next}{}", self.value, self.mask, self.at))
    }
}
