//! `canid`: matches identifiers of CAN frames.
//!
//! Kernel: 6.18, `include/uapi/linux/can.h` `struct can_filter`, `net/sched/em_canid.c`.

use super::token::Args;
use crate::number::{self, Base};
use crate::words::Read;
use netlink::attr::{Attr, AttrBuf, Malformed};

/// Frames with standard (11-bit) and extended (29-bit) identifiers.
const FORMATS: &[&str] = &["sff", "eff"];

/// `CAN_EFF_FLAG`: an extended identifier.
const LONG: u32 = 1 << 31;
/// `CAN_SFF_MASK`.
const SHORT_MASK: u32 = 0x7ff;
/// `CAN_EFF_MASK`.
const LONG_MASK: u32 = 0x1fff_ffff;

/// Maximum number of identifiers per match; the kernel accepts 500, iproute2 6.1 only 400.
const IDS_MAX: usize = 400;

/// The match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canid {
    /// Identifiers with their masks, in the kernel's encoding.
    pub ids: Vec<(u32, u32)>,
}

impl Canid {
    pub(super) fn parse(args: &mut Args<'_>) -> Read<Self> {
        let mut ids = Vec::new();
        loop {
            let (flag, full) = [(0, SHORT_MASK), (LONG, LONG_MASK)][args.one_of(FORMATS)?];
            let read = args.read("an identifier in hexadecimal, as in 123 or 123:7ff", |word| {
                let (id, mask) = word.split_once(':').map_or((word, None), |(id, mask)| (id, Some(mask)));
                // The kernel and iproute2 use only 11 bits of a standard identifier, but accept more.
                let number = |word| number::u32(word, Base::Sixteen).filter(|number| *number <= LONG_MASK);
                Some((number(id)?, mask.map_or(Some(full), number)?))
            })?;
            if ids.len() == IDS_MAX {
                return Err(args.wrong("a match has at most 400 identifiers"));
            }
            ids.push((read.0 | flag, read.1 | LONG));
            if args.peek().is_none() {
                return Ok(Self { ids });
            }
        }
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        for (id, mask) in &self.ids {
            out.raw([id.to_ne_bytes(), mask.to_ne_bytes()].as_flattened());
        }
    }

    pub(super) fn decode(data: &Attr<'_>) -> Result<Self, Malformed> {
        let (words, rest) = data.payload.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(Malformed("a match of identifiers is truncated"));
        }
        let id = |&[a, b, c, d, e, f, g, h]: &[u8; 8]| {
            (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
        };
        Ok(Self { ids: words.iter().map(id).collect() })
    }

    /// Moves extended identifiers to the front, as the kernel does.
    pub(super) fn canonicalize(&mut self) {
        self.ids.sort_by_key(|(id, _)| id & LONG == 0);
    }

    pub(super) fn words(&self) -> Option<String> {
        let mut words = Vec::new();
        for (id, mask) in &self.ids {
            let (format, full) = if id & LONG == 0 { ("sff", SHORT_MASK) } else { ("eff", LONG_MASK) };
            (mask & LONG != 0 && id & !LONG <= LONG_MASK && mask & !LONG <= LONG_MASK).then_some(())?;
            let mask = mask & !LONG;
            let mask = if mask == full { String::new() } else { format!(":{mask:x}") };
            words.push(format!("{format} {:x}{mask}", id & !LONG));
        }
        (!words.is_empty()).then(|| words.join(" "))
    }
}
