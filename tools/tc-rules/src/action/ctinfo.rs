//! `ctinfo`: restores packet metadata stored in the mark of the connection.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_ctinfo.h`, `net/sched/act_ctinfo.c`.

use super::control::Control;
use super::instance::Instance;
use crate::number::{self, Base};
use crate::words::{Read, Words, abbreviates};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const ACT: u16 = 3;
const ZONE: u16 = 4;
const DSCP_MASK: u16 = 5;
const DSCP_STATEMASK: u16 = 6;
const CPMARK_MASK: u16 = 7;

/// The bits of a differentiated services code point.
const DSCP_BITS: u32 = 0x3f;

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ctinfo {
    /// The instance and its control action.
    pub instance: Instance,
    /// The bits of the mark that hold the code point; 0 for none.
    pub dscp: u32,
    /// The bits of the mark that must be set for the code point to be valid; 0 for none.
    pub state: u32,
    /// The bits of the mark that are copied to the packet's mark; 0 for none.
    pub cpmark: u32,
    /// The zone of the connection.
    pub zone: u16,
}

impl Ctinfo {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let mask = |word: &str| number::u32(word, Base::Prefix);
        // Reads an optional mask, or returns its default.
        let optional = |words: &mut Words<'_>, otherwise| {
            words.peek().and_then(mask).inspect(|_| words.skip()).unwrap_or(otherwise)
        };
        let (mut dscp, mut state, mut cpmark) = (0, 0, 0);
        if words.peek().is_some_and(|word| abbreviates(word, "dscp")) {
            words.skip();
            dscp = words.read("a contiguous 6-bit mask", |word| {
                mask(word).filter(|mask| *mask == 0 || mask >> mask.trailing_zeros() == DSCP_BITS)
            })?;
            state = optional(words, 0);
            if dscp & state != 0 {
                return Err(words.wrong("the DSCP mask and the state mask must not overlap"));
            }
        }
        if words.peek().is_some_and(|word| abbreviates(word, "cpmark")) {
            words.skip();
            cpmark = optional(words, u32::MAX);
        }
        let zone = words.optional("zone", "a zone: 0 to 65535", |word| number::u16(word, Base::Ten))?;
        let instance = Instance::end(words, Control::PIPE, Base::Ten)?;
        Ok(Self { instance, dscp, state, cpmark, zone: zone.unwrap_or(0) })
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        self.instance.encode(ACT, &[], out);
        out.u16(ZONE, self.zone);
        let masks = [(DSCP_MASK, self.dscp), (DSCP_STATEMASK, self.state), (CPMARK_MASK, self.cpmark)];
        for (number, mask) in masks {
            if mask != 0 {
                out.u32(number, mask);
            }
        }
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let instance = Instance::decode(attrs, ACT)?.0;
        let mask = |number| attrs.find(number)?.map_or(Ok(0), |attr| attr.u32());
        let zone = attrs.find(ZONE)?.map_or(Ok(0), |attr| attr.u16())?;
        let (dscp, state, cpmark) = (mask(DSCP_MASK)?, mask(DSCP_STATEMASK)?, mask(CPMARK_MASK)?);
        Ok(Self { instance, dscp, state, cpmark, zone })
    }

    pub(super) fn words(&self) -> Option<String> {
        let mut words = "ctinfo".to_owned();
        if self.dscp != 0 || self.state != 0 {
            words.push_str(&format!(" dscp {:#x} {:#x}", self.dscp, self.state));
        }
        if self.cpmark != 0 {
            words.push_str(&format!(" cpmark {:#x}", self.cpmark));
        }
        if self.zone != 0 {
            words.push_str(&format!(" zone {}", self.zone));
        }
        Some(words + &self.instance.end_words(Control::PIPE)?)
    }
}
