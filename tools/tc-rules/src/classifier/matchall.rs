//! `matchall`: matches every packet.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_MATCHALL_*`, `net/sched/cls_matchall.c`.

use super::classes::{canonical_class, encode_classes};
use super::offload::Offload;
use crate::action::Action;
use crate::lookup::Lookup;
use crate::number;
use crate::words::{Read, Words, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const CLASSID: u16 = 1;
const ACT: u16 = 2;
const FLAGS: u16 = 3;

keywords! {
    /// The keywords of the classifier.
    enum Word {
        Classid = "classid",
        Flowid = "flowid" exact,
        Action = "action",
        SkipHw = "skip_hw" exact,
        SkipSw = "skip_sw" exact,
    }
}

/// The classifier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matchall {
    /// The classes, each with a flag that says whether it follows the actions. The last class is effective.
    pub classes: Vec<(u32, bool)>,
    /// Whether the rule is installed in software, in hardware, or both.
    pub offload: Offload,
    /// Whether the line has any options after the kind.
    pub options: bool,
}

impl Matchall {
    pub(super) fn parse(
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
        actions: &mut Vec<Action>,
    ) -> Read<Self> {
        let mut rule = Self { options: words.peek().is_some(), ..Self::default() };
        while let Some(word) = words.peek() {
            let Some(word) = Word::find(word) else { return Err(words.unknown_here(Word::WORDS)) };
            words.skip();
            match word {
                Word::Classid | Word::Flowid => {
                    rule.classes.push((words.read("a class", number::class)?, !actions.is_empty()));
                }
                Word::Action if !actions.is_empty() => {
                    return Err(words.wrong("the rule already has actions"));
                }
                Word::Action => Action::parse_list(words, lookup, actions)?,
                Word::SkipHw => rule.offload.skip_hw(words)?,
                Word::SkipSw => rule.offload.skip_sw(words)?,
            }
        }
        Ok(rule)
    }

    pub(super) fn encode(&self, actions: &[Action], out: &mut AttrBuf) {
        encode_classes(CLASSID, &self.classes, false, out);
        if !actions.is_empty() {
            Action::encode_list(actions, ACT, out);
        }
        encode_classes(CLASSID, &self.classes, true, out);
        if self.offload.flags() != 0 {
            out.u32(FLAGS, self.offload.flags());
        }
    }

    pub(super) fn decode(attrs: Attrs<'_>, actions: &mut Vec<Action>) -> Result<Option<Self>, Malformed> {
        let mut rule = Self { options: true, ..Self::default() };
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                CLASSID => rule.classes.push((attr.u32()?, false)),
                FLAGS => rule.offload = Offload::of(attr.u32()?),
                ACT if Action::decode_list(&attr, actions)?.is_none() => return Ok(None),
                _ => {}
            }
        }
        Ok(Some(rule))
    }

    pub(super) fn canonical(&self) -> Self {
        Self { classes: canonical_class(&self.classes), offload: self.offload.canonical(), options: true }
    }

    pub(super) fn words(&self, words: &mut String, actions: &str) {
        words.push_str(&self.offload.words());
        if let Some((class, _)) = self.classes.last() {
            words.push_str(&format!(" classid {}", number::class_name(*class)));
        }
        words.push_str(actions);
    }
}
