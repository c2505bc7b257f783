//! `connmark`: restores a packet's mark from its connection.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_connmark.h`, `net/sched/act_connmark.c`.

use super::control::Control;
use super::instance::Instance;
use crate::number::{self, Base};
use crate::words::{Read, Words};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 1;

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connmark {
    /// The instance and its control action.
    pub instance: Instance,
    /// The zone of the connection.
    pub zone: u16,
}

impl Connmark {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let zone = words.optional("zone", "a zone: 0 to 65535", |word| number::u16(word, Base::Ten))?;
        Ok(Self { instance: Instance::end(words, Control::PIPE, Base::Ten)?, zone: zone.unwrap_or(0) })
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        let [a, b] = self.zone.to_ne_bytes();
        self.instance.encode(PARMS, &[a, b, 0, 0], out);
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let (instance, parms) = Instance::decode(attrs, PARMS)?;
        let [a, b, ..] = parms.word_at(20)?.to_ne_bytes();
        Ok(Self { instance, zone: u16::from_ne_bytes([a, b]) })
    }

    pub(super) fn words(&self) -> Option<String> {
        let zone = if self.zone == 0 { String::new() } else { format!(" zone {}", self.zone) };
        Some(format!("connmark{zone}{}", self.instance.end_words(Control::PIPE)?))
    }
}
