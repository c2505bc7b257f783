//! `gact`: applies only a control action.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_gact.h`, `net/sched/act_gact.c`.

use super::control::Control;
use super::instance::{Instance, index};
use crate::number::{self, Base};
use crate::words::{Read, Words, abbreviates};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 2;
const PROB: u16 = 3;

/// The ways to choose packets: `PGACT_NETRAND`, `PGACT_DETERM`.
const NETRAND: u16 = 1;
const DETERM: u16 = 2;

/// Maximum of a share, which is given as one packet in this many.
const PROBABILITY_MAX: u16 = 10_000;

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gact {
    /// The instance and its control action.
    pub instance: Instance,
    /// A second control action, for some of the packets.
    pub random: Option<Random>,
}

/// A control action for a random share of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Random {
    /// `netrand` (1) or `determ` (2).
    pub kind: u16,
    /// The share: one packet in this many.
    pub value: u16,
    /// The control action of the chosen packets.
    pub control: Control,
}

impl Gact {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        if words.peek().is_some_and(|word| abbreviates(word, "gact")) {
            words.skip();
        }
        // An existing instance may be referenced only by its index; the kernel then knows its control action.
        if let Some(index) = index(words)? {
            return Ok(Self { instance: Instance { index, control: Control(0) }, random: None });
        }
        let control = Control::required(words)?;
        let mut random = None;
        if words.peek().is_some_and(|word| abbreviates(word, "random")) {
            words.skip();
            let kind = words.read("a random type: netrand or determ", |word| match word {
                _ if abbreviates(word, "netrand") => Some(NETRAND),
                _ if abbreviates(word, "determ") => Some(DETERM),
                _ => None,
            })?;
            let control = Control::required(words)?;
            let value = words.read("a number from 0 to 10000", |word| {
                number::u16(word, Base::Ten).filter(|value| *value <= PROBABILITY_MAX)
            })?;
            random = Some(Random { kind, value, control });
        }
        let index = index(words)?.unwrap_or(0);
        Ok(Self { instance: Instance { index, control }, random })
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        out.bytes(PARMS, &self.instance.bytes());
        if let Some(random) = self.random {
            let mut bytes = [0; 8];
            bytes[..2].copy_from_slice(&random.kind.to_ne_bytes());
            bytes[2..4].copy_from_slice(&random.value.to_ne_bytes());
            bytes[4..].copy_from_slice(&random.control.0.to_ne_bytes());
            out.bytes(PROB, &bytes);
        }
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let instance = Instance::decode(attrs, PARMS)?.0;
        let random = match attrs.find(PROB)? {
            None => None,
            Some(attr) => {
                let [a, b, c, d] = attr.word_at(0)?.to_ne_bytes();
                let (kind, value) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
                Some(Random { kind, value, control: Control(attr.word_at(4)?) })
            }
        };
        Ok(Self { instance, random: random.filter(|random| random.kind != 0) })
    }

    pub(super) fn words(&self) -> Option<String> {
        let mut words = format!("gact {}", self.instance.control.words()?);
        if let Some(random) = self.random {
            let kind = match random.kind {
                NETRAND => "netrand",
                DETERM => "determ",
                _ => return None,
            };
            words.push_str(&format!(" random {kind} {} {}", random.control.words()?, random.value));
        }
        words.push_str(&self.instance.index_words());
        Some(words)
    }
}
