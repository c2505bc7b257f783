//! `skbedit`: sets packet metadata.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_skbedit.h`, `net/sched/act_skbedit.c`.

use super::control::Control;
use super::instance::{Instance, index};
use crate::number::{self, Base};
use crate::words::{Read, Words, abbreviates, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 2;
const PRIORITY: u16 = 3;
const QUEUE_MAPPING: u16 = 4;
const MARK: u16 = 5;
const PTYPE: u16 = 7;
const MASK: u16 = 8;
const FLAGS: u16 = 9;

/// `SKBEDIT_F_INHERITDSFIELD`.
const INHERIT_DSFIELD: u64 = 1 << 5;

/// The packet types in the kernel's order, starting with `PACKET_HOST`.
const PTYPES: [&str; 4] = ["host", "broadcast", "multicast", "otherhost"];

keywords! {
    /// The keywords of the action.
    enum Word {
        QueueMapping = "queue_mapping",
        Priority = "priority",
        Mark = "mark",
        Ptype = "ptype",
        InheritDsfield = "inheritdsfield",
    }
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skbedit {
    /// The instance and its control action.
    pub instance: Instance,
    /// The transmit queue.
    pub queue_mapping: Option<u16>,
    /// `skb->priority`, a class.
    pub priority: Option<u32>,
    /// `skb->mark`.
    pub mark: Option<u32>,
    /// The mask of the mark.
    pub mask: Option<u32>,
    /// The packet type: `PACKET_*`.
    pub ptype: Option<u16>,
    /// Whether the priority is inherited from the DS field.
    pub inherit_dsfield: bool,
}

impl Skbedit {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let mut action = Self {
            instance: Instance { index: 0, control: Control::PIPE },
            queue_mapping: None,
            priority: None,
            mark: None,
            mask: None,
            ptype: None,
            inherit_dsfield: false,
        };
        while let Some(word) = words.peek().and_then(Word::find) {
            words.skip();
            match word {
                Word::QueueMapping => {
                    action.queue_mapping =
                        Some(words.read("a queue: 0 to 65535", |w| number::u16(w, Base::Ten))?);
                }
                Word::Priority => action.priority = Some(words.read("a class", number::class)?),
                Word::Mark => {
                    let (mark, mask) = words.read("MARK[/MASK]", |word| {
                        let (mark, mask) = word.split_once('/').map_or((word, None), |(a, b)| (a, Some(b)));
                        let mask =
                            mask.map(|mask| number::u32(mask, Base::Prefix).ok_or(())).transpose().ok()?;
                        Some((number::u32(mark, Base::Prefix)?, mask))
                    })?;
                    (action.mark, action.mask) = (Some(mark), mask);
                }
                Word::Ptype => {
                    let ptype = words.read("host, broadcast, multicast or otherhost", |word| {
                        PTYPES.iter().position(|name| abbreviates(word, name))
                    })?;
                    action.ptype = u16::try_from(ptype).ok();
                }
                Word::InheritDsfield => action.inherit_dsfield = true,
            }
        }
        action.instance.control = Control::optional(words)?.unwrap_or(Control::PIPE);
        action.instance.index = index(words)?.unwrap_or(0);
        let named = Self { instance: action.instance, ..Self::empty() };
        if action == named && action.instance.index == 0 {
            return Err(words.unknown_here(Word::WORDS));
        }
        Ok(action)
    }

    const fn empty() -> Self {
        Self {
            instance: Instance { index: 0, control: Control::PIPE },
            queue_mapping: None,
            priority: None,
            mark: None,
            mask: None,
            ptype: None,
            inherit_dsfield: false,
        }
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        out.bytes(PARMS, &self.instance.bytes());
        self.queue_mapping.inspect(|queue| _ = out.u16(QUEUE_MAPPING, *queue));
        self.priority.inspect(|priority| _ = out.u32(PRIORITY, *priority));
        self.mark.inspect(|mark| _ = out.u32(MARK, *mark));
        self.mask.inspect(|mask| _ = out.u32(MASK, *mask));
        self.ptype.inspect(|ptype| _ = out.u16(PTYPE, *ptype));
        if self.inherit_dsfield {
            out.u64(FLAGS, INHERIT_DSFIELD);
        }
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let mut action = Self { instance: Instance::decode(attrs, PARMS)?.0, ..Self::empty() };
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                PRIORITY => action.priority = Some(attr.u32()?),
                QUEUE_MAPPING => action.queue_mapping = Some(attr.u16()?),
                MARK => action.mark = Some(attr.u32()?),
                // The kernel dumps a mask of all bits if none is given, because that is its default.
                MASK => action.mask = Some(attr.u32()?).filter(|mask| *mask != u32::MAX),
                PTYPE => action.ptype = Some(attr.u16()?),
                FLAGS => action.inherit_dsfield = attr.u64()? & INHERIT_DSFIELD != 0,
                _ => {}
            }
        }
        Ok(action)
    }

    pub(super) fn canonical(mut self) -> Self {
        self.mask = self.mask.filter(|mask| *mask != u32::MAX);
        self
    }

    pub(super) fn words(&self) -> Option<String> {
        if *self == (Self { instance: self.instance, ..Self::empty() }) && self.instance.index == 0 {
            return None;
        }
        let mut words = "skbedit".to_owned();
        self.queue_mapping.inspect(|queue| words.push_str(&format!(" queue_mapping {queue}")));
        self.priority
            .inspect(|priority| words.push_str(&format!(" priority {}", number::class_name(*priority))));
        if let Some(mark) = self.mark {
            words.push_str(&format!(" mark {mark:#x}"));
            self.mask.inspect(|mask| words.push_str(&format!("/{mask:#x}")));
        }
        if let Some(ptype) = self.ptype {
            words.push_str(&format!(" ptype {}", PTYPES.get(usize::from(ptype))?));
        }
        if self.inherit_dsfield {
            words.push_str(" inheritdsfield");
        }
        if self.instance.control != Control::PIPE {
            words.push_str(&format!(" {}", self.instance.control.words()?));
        }
        words.push_str(&self.instance.index_words());
        Some(words)
    }
}
