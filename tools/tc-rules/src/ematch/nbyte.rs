//! `nbyte`: compares bytes at an offset in the packet.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_ematch/tc_em_nbyte.h`, `net/sched/em_nbyte.c`.

use super::layer;
use super::token::{Args, What, string_words};
use crate::number::{self, Base};
use crate::words::Read;
use netlink::attr::{Attr, AttrBuf, Malformed};

/// The words after the bytes.
const WORDS: &[&str] = &["at", "layer"];

/// Maximum number of bytes: their count has 12 bits.
const BYTES_MAX: usize = 0xfff;

/// The match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nbyte {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Offset in bytes from the start of the layer.
    pub at: u16,
    /// The layer, by the kernel's number.
    pub layer: u8,
}

impl Nbyte {
    pub(super) fn parse(args: &mut Args<'_>) -> Read<Self> {
        let bytes = match &args.required(&[])?.what {
            What::String(bytes) => bytes.clone(),
            What::Name(name) => name.clone().into_bytes(),
            _ => Vec::new(),
        };
        if bytes.is_empty() || bytes.len() > BYTES_MAX {
            return Err(args.wrong("1 to 4095 bytes are compared"));
        }
        let (mut at, mut layer) = (None, layer::NETWORK);
        while args.peek().is_some() {
            match WORDS[args.one_of(WORDS)?] {
                "at" => {
                    at = Some(args.read("an offset: 0 to 65535", |word| number::u16(word, Base::Prefix))?);
                }
                _ => layer = layer::parse(args)?,
            }
        }
        Ok(Self { bytes, at: at.ok_or_else(|| args.missing().expecting(WORDS))?, layer })
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        // The count fits into its 12 bits, because there are at most `BYTES_MAX` bytes.
        let count = u16::try_from(self.bytes.len()).unwrap_or(0) | u16::from(self.layer) << 12;
        let mut bytes = [self.at.to_ne_bytes(), count.to_ne_bytes()].concat();
        bytes.extend_from_slice(&self.bytes);
        out.raw(&bytes);
    }

    pub(super) fn decode(data: &Attr<'_>) -> Result<Self, Malformed> {
        let [a, b, c, d] = data.word_at(0)?.to_ne_bytes();
        let count = u16::from_ne_bytes([c, d]);
        let end = 4 + usize::from(count & 0xfff);
        let bytes = data.payload.get(4..end).ok_or(Malformed("a match of bytes is truncated"))?;
        // The layer is in the four bits above the count.
        let layer = d >> 4;
        Ok(Self { bytes: bytes.to_vec(), at: u16::from_ne_bytes([a, b]), layer })
    }

    pub(super) fn words(&self) -> Option<String> {
        let string = string_words(&self.bytes);
        (!self.bytes.is_empty()).then_some(())?;
        Some(format!("{string} at {} layer {}", self.at, layer::name(self.layer)?))
    }
}
