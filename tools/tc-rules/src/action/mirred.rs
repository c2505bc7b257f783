//! `mirred`: redirects or mirrors the packet to another device.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_mirred.h`, `net/sched/act_mirred.c`.

use model::IfIndex;

use super::control::Control;
use super::instance::{Instance, index};
use crate::lookup::Lookup;
use crate::words::{Read, Words, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 2;

/// The directions by the kernel's number: `TCA_EGRESS_REDIR`, `TCA_EGRESS_MIRROR`, `TCA_INGRESS_REDIR`,
/// `TCA_INGRESS_MIRROR`.
const DIRECTIONS: [&str; 5] = ["", "egress redirect", "egress mirror", "ingress redirect", "ingress mirror"];

keywords! {
    /// Direction and kind.
    enum Word {
        Egress = "egress",
        Ingress = "ingress",
        Index = "index",
        Mirror = "mirror",
        Redirect = "redirect",
        Dev = "dev",
    }
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirred {
    /// The instance and its control action.
    pub instance: Instance,
    /// The direction and kind, as an index into the kernel's list; 0 for an instance that is only referenced.
    pub direction: u32,
    /// The device; 0 for an instance that is only referenced.
    pub device: IfIndex,
}

impl Mirred {
    /// Whether the target device was deleted; no line creates such an action.
    ///
    /// Kernel: 6.18, `net/sched/act_mirred.c` `mirred_device_event()`; a dump then has index 0.
    pub const fn has_lost_device(&self) -> bool {
        self.direction != 0 && self.device.0 == 0
    }

    pub(super) fn parse(words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<Self> {
        words.skip();
        let mut action =
            Self { instance: Instance { index: 0, control: Control(0) }, direction: 0, device: IfIndex(0) };
        let mut ingress = None;
        let mut named = false;
        loop {
            let Some(word) = words.peek().and_then(Word::find) else {
                return Err(words.unknown_here(Word::WORDS));
            };
            match word {
                Word::Egress | Word::Ingress if ingress.is_none() => {
                    words.skip();
                    ingress = Some(word == Word::Ingress);
                }
                Word::Index if !named => {
                    action.instance.index = index(words)?.unwrap_or(0);
                    named = true;
                    if ingress.is_none() {
                        return Ok(action);
                    }
                }
                Word::Mirror | Word::Redirect if action.direction == 0 && ingress.is_some() => {
                    words.skip();
                    let mirror = word == Word::Mirror;
                    action.direction = 1 + u32::from(mirror) + 2 * u32::from(ingress == Some(true));
                    action.instance.control = if mirror { Control::PIPE } else { Control::STOLEN };
                }
                Word::Dev if action.direction != 0 => {
                    words.skip();
                    action.device =
                        words.read("the name of an existing device", |name| lookup.device(name))?;
                    break;
                }
                _ => return Err(words.unknown_here(Word::WORDS)),
            }
        }
        if action.direction.is_multiple_of(2) {
            action.instance.control = Control::optional(words)?.unwrap_or(Control::PIPE);
        }
        if !named {
            action.instance.index = index(words)?.unwrap_or(0);
        }
        Ok(action)
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        let mut bytes = [0; 28];
        bytes[..20].copy_from_slice(&self.instance.bytes());
        bytes[20..24].copy_from_slice(&self.direction.to_ne_bytes());
        bytes[24..].copy_from_slice(&self.device.0.to_ne_bytes());
        out.bytes(PARMS, &bytes);
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let (instance, parms) = Instance::decode(attrs, PARMS)?;
        Ok(Self { instance, direction: parms.word_at(20)?, device: IfIndex(parms.word_at(24)?) })
    }

    pub(super) fn words(&self, lookup: &mut dyn Lookup) -> Option<String> {
        if self.direction == 0 {
            // A reference to an existing instance has only an index, which may be 0.
            return Some(format!("mirred index {}", self.instance.index));
        }
        let direction = DIRECTIONS.get(usize::try_from(self.direction).ok()?)?;
        if self.has_lost_device() {
            return None;
        }
        let device = lookup.name_of(self.device).unwrap_or_else(|| format!("if{}", self.device.0));
        let mut words = format!("mirred {direction} dev {device}");
        match self.instance.control {
            Control::STOLEN if self.direction % 2 == 1 => {}
            Control::PIPE if self.direction.is_multiple_of(2) => {}
            _ if self.direction % 2 == 1 => return None,
            control => words.push_str(&format!(" {}", control.words()?)),
        }
        words.push_str(&self.instance.index_words());
        Some(words)
    }
}
