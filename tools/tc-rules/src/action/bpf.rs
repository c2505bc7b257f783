//! `bpf`: a BPF program decides how the packet is processed.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_bpf.h`, `net/sched/act_bpf.c`.

use super::control::Control;
use super::instance::Instance;
use crate::lookup::Lookup;
use crate::number::Base;
use crate::program::{Numbers, Program, Source};
use crate::words::{Read, Words, abbreviates};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 2;
const PROGRAM: Numbers = Numbers { instruction_count: 3, instructions: 4, descriptor: 5, name: 6, id: 9 };

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bpf {
    /// The instance, and the control action if the program does not choose one.
    pub instance: Instance,
    /// The program; absent for an instance that is only referenced.
    pub program: Program,
}

impl Bpf {
    pub(super) fn parse(words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<Self> {
        words.skip();
        let run = words.peek().is_some_and(|word| abbreviates(word, "run"));
        if run {
            words.skip();
        }
        let mut program = Program::None;
        if run || !words.peek().is_some_and(|word| abbreviates(word, "index")) {
            let source = words.peek().and_then(Source::find);
            let source = source.ok_or_else(|| words.unknown_here(Source::WORDS))?;
            words.skip();
            program = Program::parse(source, words, lookup)?;
        }
        Ok(Self { instance: Instance::end(words, Control::PIPE, Base::Ten)?, program })
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        self.program.encode(PROGRAM, out);
        self.instance.encode(PARMS, &[], out);
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let mut action = Self { instance: Instance::decode(attrs, PARMS)?.0, program: Program::None };
        for attr in attrs {
            action.program.take(&attr?, PROGRAM)?;
        }
        Ok(action)
    }

    pub(super) fn words(&self, _: &mut dyn Lookup) -> Option<String> {
        let program = if self.program.is_some() { self.program.words()? + " " } else { String::new() };
        let words = format!("bpf {program}{}", self.instance.end_words(Control::PIPE)?.trim_start());
        (words.len() > "bpf ".len()).then(|| words.trim_end().to_owned())
    }
}
