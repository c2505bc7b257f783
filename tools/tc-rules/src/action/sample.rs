//! `sample`: copies one packet in N to the listeners of psample.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_sample.h`, `net/sched/act_sample.c`.

use super::control::Control;
use super::instance::Instance;
use crate::number::{self, Base};
use crate::words::{Read, Words, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 2;
const RATE: u16 = 3;
const TRUNC_SIZE: u16 = 4;
const PSAMPLE_GROUP: u16 = 5;

keywords! {
    /// The keywords of the action.
    enum Word {
        Rate = "rate",
        Group = "group",
        Trunc = "trunc",
    }
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The instance and its control action.
    pub instance: Instance,
    /// The rate: one packet in this many.
    pub rate: Option<u32>,
    /// The psample group.
    pub group: Option<u32>,
    /// The maximum number of bytes copied per packet.
    pub truncated: Option<u32>,
}

impl Sample {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let (mut rate, mut group, mut truncated) = (None, None, None);
        while let Some(word) = words.peek().and_then(Word::find) {
            words.skip();
            let (value, what) = match word {
                Word::Rate => (&mut rate, "a rate: one packet in this many"),
                Word::Group => (&mut group, "the number of a group"),
                Word::Trunc => (&mut truncated, "a size in bytes"),
            };
            *value = Some(words.read(what, |word| number::u32(word, Base::Ten))?);
        }
        let action =
            Self { instance: Instance::end(words, Control::PIPE, Base::Ten)?, rate, group, truncated };
        if action.is_incomplete() {
            return Err(words
                .wrong_here("a sample needs a rate and a group, or the index of an existing one")
                .expecting(Word::WORDS));
        }
        Ok(action)
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        self.instance.encode(PARMS, &[], out);
        self.rate.inspect(|rate| _ = out.u32(RATE, *rate));
        self.group.inspect(|group| _ = out.u32(PSAMPLE_GROUP, *group));
        self.truncated.inspect(|bytes| _ = out.u32(TRUNC_SIZE, *bytes));
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let instance = Instance::decode(attrs, PARMS)?.0;
        let value = |number| attrs.find(number)?.map(|attr| attr.u32()).transpose();
        Ok(Self { instance, rate: value(RATE)?, group: value(PSAMPLE_GROUP)?, truncated: value(TRUNC_SIZE)? })
    }

    /// Whether the action lacks parameters that only a reference to an existing instance may omit.
    const fn is_incomplete(&self) -> bool {
        self.instance.index == 0 && (self.rate.is_none() || self.group.is_none())
    }

    pub(super) fn words(&self) -> Option<String> {
        if self.is_incomplete() {
            return None;
        }
        let mut words = "sample".to_owned();
        let values = [("rate", self.rate), ("group", self.group), ("trunc", self.truncated)];
        for (name, value) in values {
            value.inspect(|value| words.push_str(&format!(" {name} {value}")));
        }
        Some(words + &self.instance.end_words(Control::PIPE)?)
    }
}
