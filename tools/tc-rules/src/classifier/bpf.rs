//! `bpf`: matches packets with a BPF program.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_BPF_*`, `net/sched/cls_bpf.c`.

use super::classes::{canonical_class, encode_classes};
use super::offload::Offload;
use crate::action::Action;
use crate::lookup::Lookup;
use crate::number;
use crate::program::{Numbers, Program, Source};
use crate::words::{Read, Words, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const ACT: u16 = 1;
const CLASSID: u16 = 3;
const FLAGS: u16 = 8;
const FLAGS_GEN: u16 = 9;
const PROGRAM: Numbers = Numbers { instruction_count: 4, instructions: 5, descriptor: 6, name: 7, id: 11 };

/// `TCA_BPF_FLAG_ACT_DIRECT`.
const DIRECT_ACTION: u32 = 1;

keywords! {
    /// The keywords of the classifier.
    enum Word {
        Run = "run",
        Classid = "classid",
        Flowid = "flowid",
        DirectAction = "direct-action",
        Da = "da",
        SkipHw = "skip_hw",
        SkipSw = "skip_sw",
        Action = "action",
    }
}

/// The keywords of the classifier and of programs.
const EXPECTED: &[&str] = &[
    "run",
    "bytecode",
    "object-pinned",
    "classid",
    "flowid",
    "direct-action",
    "skip_hw",
    "skip_sw",
    "action",
];

/// The classifier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bpf {
    /// The program; a pinned program comes with the file descriptor that this process holds.
    pub program: Program,
    /// The classes, each with whether it follows the actions; the last one is effective.
    pub classes: Vec<(u32, bool)>,
    /// Whether the program also returns the control action.
    pub direct_action: bool,
    /// Whether the rule is installed in software, in hardware, or both.
    pub offload: Offload,
}

impl Bpf {
    pub(super) fn parse(
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
        actions: &mut Vec<Action>,
    ) -> Read<Self> {
        let mut rule = Self::default();
        while let Some(word) = words.peek() {
            let Some(word) = Word::find(word) else {
                let source = Source::find(word).filter(|_| !rule.program.is_some());
                let expected = if rule.program.is_some() { Word::WORDS } else { EXPECTED };
                let source = source.ok_or_else(|| words.unknown_here(expected))?;
                words.skip();
                rule.program = Program::parse(source, words, lookup)?;
                continue;
            };
            words.skip();
            match word {
                Word::Run => {}
                Word::Classid | Word::Flowid => {
                    rule.classes.push((words.read("a class", number::class)?, !actions.is_empty()));
                }
                Word::DirectAction | Word::Da => rule.direct_action = true,
                Word::SkipHw => rule.offload.skip_hw(words)?,
                Word::SkipSw => rule.offload.skip_sw(words)?,
                Word::Action if !actions.is_empty() => {
                    return Err(words.wrong("the rule already has actions"));
                }
                Word::Action => Action::parse_list(words, lookup, actions)?,
            }
        }
        if !rule.program.is_some() {
            return Err(words.unknown_here(EXPECTED));
        }
        Ok(rule)
    }

    pub(super) fn encode(&self, actions: &[Action], out: &mut AttrBuf) {
        encode_classes(CLASSID, &self.classes, false, out);
        if !actions.is_empty() {
            Action::encode_list(actions, ACT, out);
        }
        encode_classes(CLASSID, &self.classes, true, out);
        self.program.encode(PROGRAM, out);
        if self.offload.flags() != 0 {
            out.u32(FLAGS_GEN, self.offload.flags());
        }
        if self.direct_action {
            out.u32(FLAGS, DIRECT_ACTION);
        }
    }

    pub(super) fn decode(attrs: Attrs<'_>, actions: &mut Vec<Action>) -> Result<Option<Self>, Malformed> {
        let mut rule = Self::default();
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                CLASSID => rule.classes.push((attr.u32()?, false)),
                FLAGS => rule.direct_action = attr.u32()? & DIRECT_ACTION != 0,
                FLAGS_GEN => rule.offload = Offload::of(attr.u32()?),
                ACT if Action::decode_list(&attr, actions)?.is_none() => return Ok(None),
                _ => rule.program.take(&attr, PROGRAM)?,
            }
        }
        Ok(Some(rule))
    }

    pub(super) fn canonicalize(&mut self) {
        self.classes = canonical_class(&self.classes);
        self.program.canonicalize();
        self.offload = self.offload.canonical();
    }

    pub(super) fn words(&self, words: &mut String, actions: &str) -> Option<()> {
        words.push_str(&format!(" {}", self.program.words()?));
        words.push_str(if self.direct_action { " direct-action" } else { "" });
        words.push_str(&self.offload.words());
        if let Some((class, _)) = self.classes.last() {
            words.push_str(&format!(" classid {}", number::class_name(*class)));
        }
        words.push_str(actions);
        Some(())
    }
}
