//! `simple`: writes a text to the kernel's log.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_defact.h`, `net/sched/act_simple.c`.

use super::control::Control;
use super::instance::Instance;
use crate::number::Base;
use crate::words::{Read, Words, abbreviates, quoted};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 2;
const DATA: u16 = 3;

/// Size of a text with its terminating zero: `SIMP_MAX_DATA`.
const TEXT_BYTES_MAX: usize = 32;

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Simple {
    /// The instance and its control action.
    pub instance: Instance,
    /// The text.
    pub text: Option<Vec<u8>>,
}

impl Simple {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let mut text = None;
        // iproute2 reads `s` as an abbreviation of `simple`.
        while words.peek().is_some_and(|word| word != "s" && abbreviates(word, "sdata")) {
            words.skip();
            text = Some(words.read("a text of at most 31 bytes", |word| {
                (word.len() < TEXT_BYTES_MAX).then(|| word.as_bytes().to_vec())
            })?);
        }
        let instance = Instance::end(words, Control::PIPE, Base::Ten)?;
        if text.is_none() && instance.index == 0 {
            return Err(words.unknown_here(&["sdata", "index"]));
        }
        Ok(Self { instance, text })
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        self.instance.encode(PARMS, &[], out);
        if let Some(text) = &self.text {
            // iproute2 6.1 always sends 32 bytes and fills them from its own memory. We fill them with zeros.
            let mut bytes = [0; TEXT_BYTES_MAX];
            for (byte, from) in bytes.iter_mut().zip(text) {
                *byte = *from;
            }
            out.bytes(DATA, &bytes);
        }
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let instance = Instance::decode(attrs, PARMS)?.0;
        let text = attrs.find(DATA)?.map(|attr| attr.until_zero().to_vec());
        if text.as_ref().is_some_and(|text| text.len() >= TEXT_BYTES_MAX) {
            return Err(Malformed("a text is too long"));
        }
        Ok(Self { instance, text })
    }

    pub(super) fn words(&self) -> Option<String> {
        if self.text.is_none() && self.instance.index == 0 {
            return None;
        }
        let mut words = "simple".to_owned();
        if let Some(text) = &self.text {
            words.push_str(&format!(" sdata {}", quoted(std::str::from_utf8(text).ok()?)?));
        }
        Some(words + &self.instance.end_words(Control::PIPE)?)
    }
}
