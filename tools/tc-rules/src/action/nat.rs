//! `nat`: rewrites an IPv4 address without keeping state.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_nat.h`, `net/sched/act_nat.c`.

use super::control::Control;
use super::instance::Instance;
use crate::number::{self, Base};
use crate::words::{Read, Words, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 1;

/// `TCA_NAT_FLAG_EGRESS`.
const EGRESS: u32 = 1;

keywords! {
    /// The address that is rewritten: source or destination.
    enum Direction {
        Egress = "egress",
        Ingress = "ingress",
    }
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nat {
    /// The instance and its control action.
    pub instance: Instance,
    /// The address to match.
    pub old: [u8; 4],
    /// The replacement, in the bits of the mask.
    pub new: [u8; 4],
    /// The bits that are matched and replaced.
    pub mask: [u8; 4],
    /// `EGRESS` for the source, 0 for the destination.
    pub flags: u32,
}

impl Nat {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let direction = words.peek().and_then(Direction::find);
        let flags = match direction.ok_or_else(|| words.unknown_here(Direction::WORDS))? {
            Direction::Egress => EGRESS,
            Direction::Ingress => 0,
        };
        words.skip();
        let ipv4 = |word| {
            let (address, bits) = number::prefix(word).filter(|(address, _)| !address.v6)?;
            Some((*address.bytes.first_chunk()?, bits))
        };
        let (old, bits) = words.read("an IPv4 address with its length, as in 10.0.0.0/8", ipv4)?;
        let new = words.read("an IPv4 address", |word| ipv4(word).filter(|(_, bits)| *bits == 32))?.0;
        // iproute2 6.1 computes the mask of length 0 by a shift of 32, which on most machines does not shift
        // at all: such a rule matches only the address 0.0.0.0.
        let mask = u32::MAX << (32 - if bits == 0 { 32 } else { bits });
        let instance = Instance::end(words, Control::PASS, Base::Ten)?;
        Ok(Self { instance, old, new, mask: mask.to_be_bytes(), flags })
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        let mut bytes = [0; 16];
        let parts = [self.old, self.new, self.mask, self.flags.to_ne_bytes()];
        bytes.copy_from_slice(parts.as_flattened());
        self.instance.encode(PARMS, &bytes, out);
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let (instance, parms) = Instance::decode(attrs, PARMS)?;
        let part = |at| parms.word_at(at).map(u32::to_ne_bytes);
        Ok(Self { instance, old: part(20)?, new: part(24)?, mask: part(28)?, flags: parms.word_at(32)? })
    }

    pub(super) fn words(&self) -> Option<String> {
        let direction = match self.flags {
            0 => "ingress",
            EGRESS => "egress",
            _ => return None,
        };
        let mask = u32::from_be_bytes(self.mask);
        // A mask of length 0 has no tc syntax: see `Nat::parse`.
        if mask == 0 || mask.leading_ones() + mask.trailing_zeros() != 32 {
            return None;
        }
        let (old, new) = (std::net::Ipv4Addr::from(self.old), std::net::Ipv4Addr::from(self.new));
        let end = self.instance.end_words(Control::PASS)?;
        Some(format!("nat {direction} {old}/{} {new}{end}", mask.leading_ones()))
    }
}
