//! `bpf`: a pinned BPF program says what matches.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_BPF_*`, `net/sched/cls_bpf.c`.

use super::offload::Offload;
use crate::action::Action;
use crate::attr::{AttrBuf, Attrs, Malformed};
use crate::lookup::{Lookup, Pinned};
use crate::number;
use crate::words::{Read, Words, keywords};

const ACT: u16 = 1;
const CLASSID: u16 = 3;
const FD: u16 = 6;
const NAME: u16 = 7;
const FLAGS: u16 = 8;
const FLAGS_GEN: u16 = 9;
const ID: u16 = 11;

/// `TCA_BPF_FLAG_ACT_DIRECT`.
const DIRECT_ACTION: u32 = 1;

keywords! {
    /// The words of the classifier.
    enum Word {
        Run = "run",
        Classid = "classid",
        Flowid = "flowid",
        DirectAction = "direct-action",
        Da = "da",
        SkipHw = "skip_hw",
        SkipSw = "skip_sw",
        Action = "action",
        ObjectPinned = "object-pinned",
        Pinned = "pinned",
        Fd = "fd",
    }
}

/// The classifier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bpf {
    /// The program, with the descriptor that this process has of it.
    pub program: Option<Pinned>,
    /// The name that the kernel keeps, such as the program's path.
    pub name: String,
    /// The class that packets get, and whether it stands behind the actions.
    pub class: Option<(u32, bool)>,
    /// Whether the program says what becomes of the packet.
    pub direct_action: bool,
    /// Where the rule shall be.
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
            let Some(word) = Word::find(word) else { return Err(words.unknown_here(Word::WORDS)) };
            words.skip();
            match word {
                Word::Run => {}
                Word::Classid | Word::Flowid => {
                    rule.class = Some((words.read("a class", number::class)?, !actions.is_empty()));
                }
                Word::DirectAction | Word::Da => rule.direct_action = true,
                Word::SkipHw => rule.offload.skip_hw(words)?,
                Word::SkipSw => rule.offload.skip_sw(words)?,
                Word::Action if !actions.is_empty() => {
                    return Err(words.wrong("the rule has actions already"));
                }
                Word::Action => Action::parse_list(words, lookup, actions)?,
                Word::ObjectPinned | Word::Pinned | Word::Fd => {
                    if rule.program.is_some() {
                        return Err(words.wrong("the rule has a program already"));
                    }
                    let path = words.value()?;
                    let program = lookup.pinned(path);
                    let Some(program) = program else {
                        return Err(words.wrong(format!("no BPF program is pinned at `{path}`")));
                    };
                    rule.name = format!("{}:[*fsobj]", path.rsplit('/').next().unwrap_or(path));
                    rule.program = Some(program);
                }
            }
        }
        if rule.program.is_none() {
            return Err(words.unknown_here(Word::WORDS));
        }
        Ok(rule)
    }

    pub(super) fn encode(&self, actions: &[Action], out: &mut AttrBuf) {
        let class = |out: &mut AttrBuf, behind| {
            if let Some((class, _)) = self.class.filter(|class| class.1 == behind) {
                out.u32(CLASSID, class);
            }
        };
        class(out, false);
        if !actions.is_empty() {
            Action::encode_list(actions, ACT, out);
        }
        class(out, true);
        if let Some(program) = &self.program {
            out.u32(FD, program.fd);
        }
        if !self.name.is_empty() {
            out.text(NAME, &self.name);
        }
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
                CLASSID => rule.class = Some((attr.u32()?, false)),
                ID => rule.program = Some(Pinned { fd: 0, id: attr.u32()? }),
                NAME => attr.text()?.clone_into(&mut rule.name),
                FLAGS => rule.direct_action = attr.u32()? & DIRECT_ACTION != 0,
                FLAGS_GEN => rule.offload = Offload::of(attr.u32()?),
                ACT if Action::decode_list(&attr, actions)?.is_none() => return Ok(None),
                _ => {}
            }
        }
        Ok(Some(rule))
    }

    pub(super) fn canonical(&self) -> Self {
        let class = self.class.map(|(class, _)| (class, false));
        let program = self.program.as_ref().map(|program| Pinned { fd: 0, id: program.id });
        Self { program, class, offload: self.offload.canonical(), ..self.clone() }
    }
}
