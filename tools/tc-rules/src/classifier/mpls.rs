//! The label stack entries that a flower rule matches.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_FLOWER_KEY_MPLS_OPTS`, `net/sched/cls_flower.c`
//! `fl_set_key_mpls_opts()`.

use super::flower_field::{Field, Match};
use crate::number::{self, Base};
use crate::words::{Read, Words, abbreviates, keywords};
use netlink::attr::{Attr, AttrBuf, Malformed};

/// `TCA_FLOWER_KEY_MPLS_OPTS_LSE`.
const ENTRY: u16 = 1;
/// `TCA_FLOWER_KEY_MPLS_OPT_LSE_*`.
const DEPTH: u16 = 1;
const TTL: u16 = 2;
const BOS: u16 = 3;
const TC: u16 = 4;
const LABEL: u16 = 5;

/// Maximum number of entries in a rule; the kernel examines seven (`FLOW_DIS_MPLS_MAX`).
const ENTRIES_MAX: usize = 255;

keywords! {
    /// The keywords of an entry, in iproute2's order.
    enum Word {
        Depth = "depth",
        Label = "label",
        Tc = "tc",
        Bos = "bos",
        Ttl = "ttl",
    }
}

/// An entry of the stack: attributes and values, in the order of the line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry(Vec<(u16, u32)>);

/// The entries of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelStack(Vec<Entry>);

impl Entry {
    fn value(&self, attr: u16) -> Option<u32> {
        self.0.iter().find(|(number, _)| *number == attr).map(|(_, value)| *value)
    }

    fn parse(words: &mut Words<'_>) -> Read<Self> {
        let mut entry = Self::default();
        while let Some(word) = words.peek().and_then(Word::find) {
            words.skip();
            let (attr, most, what) = match word {
                Word::Depth => (DEPTH, 255, "a depth: 1 to 255"),
                Word::Label => (LABEL, 0xf_ffff, "a label: 0 to 1048575"),
                Word::Tc => (TC, 7, "a traffic class: 0 to 7"),
                Word::Bos => (BOS, 1, "0 or 1"),
                Word::Ttl => (TTL, 255, "a number from 0 to 255"),
            };
            if entry.value(attr).is_some() {
                return Err(words.wrong("the entry already has this option"));
            }
            let least = u32::from(word == Word::Depth);
            let read = |word| number::u32(word, Base::Ten).filter(|value| (least..=most).contains(value));
            entry.0.push((attr, words.read(what, read)?));
        }
        match entry.value(DEPTH) {
            Some(_) => Ok(entry),
            None => Err(words.unknown_here(Word::WORDS)),
        }
    }

    fn decode(attr: &Attr<'_>) -> Result<Self, Malformed> {
        let mut entry = Self::default();
        for attr in attr.nested() {
            let attr = attr?;
            match attr.number {
                LABEL => entry.0.push((LABEL, attr.u32()?)),
                DEPTH | TTL | BOS | TC => entry.0.push((attr.number, u32::from(attr.u8()?))),
                _ => {}
            }
        }
        match entry.value(DEPTH) {
            Some(1..) => Ok(entry),
            _ => Err(Malformed("an entry of the label stack without a depth")),
        }
    }
}

impl LabelStack {
    /// Parses the entries after `mpls`.
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        let mut stack = Self::default();
        while words.peek().is_some_and(|word| abbreviates(word, "lse")) {
            words.skip();
            if stack.0.len() == ENTRIES_MAX {
                return Err(words.wrong("a rule names at most 255 entries of the label stack"));
            }
            stack.0.push(Entry::parse(words)?);
        }
        if stack.0.is_empty() { Err(words.unknown_here(&["lse"])) } else { Ok(stack) }
    }

    pub(super) fn encode(&self, number: u16, out: &mut AttrBuf) {
        out.nested(number, |out| {
            for entry in &self.0 {
                out.nested(ENTRY, |out| {
                    for (attr, value) in &entry.0 {
                        // All values except the label have 8 bits, which the parser has checked.
                        _ = match attr {
                            &LABEL => out.u32(LABEL, *value),
                            attr => out.u8(*attr, u8::try_from(*value).unwrap_or(u8::MAX)),
                        };
                    }
                });
            }
        });
    }

    pub(super) fn decode(attr: &Attr<'_>) -> Result<Self, Malformed> {
        let mut stack = Self::default();
        for entry in attr.nested() {
            if stack.0.len() == ENTRIES_MAX {
                return Err(Malformed("a label stack with too many entries"));
            }
            stack.0.push(Entry::decode(&entry?)?);
        }
        Ok(stack)
    }

    /// Sorts the entries and their attributes.
    pub(super) fn canonical(mut self) -> Self {
        for entry in &mut self.0 {
            entry.0.sort_unstable();
        }
        self.0.sort_by_key(|entry| entry.value(DEPTH));
        self
    }

    /// Returns the equivalent flower fields, because the kernel dumps a single outermost entry as
    /// `mpls_label` and so on.
    ///
    /// Kernel: 6.18, `net/sched/cls_flower.c` `fl_dump_key_mpls()`.
    pub(super) fn as_fields(&self) -> Option<Vec<Match>> {
        let [entry] = &self.0[..] else { return None };
        if entry.value(DEPTH) != Some(1) || entry.0.len() < 2 {
            return None;
        }
        let asked = entry.0.iter().filter(|(attr, _)| *attr != DEPTH);
        let field = |(attr, value): &(u16, u32)| match *attr {
            LABEL => Match::plain(Field::MPLS_LABEL, &value.to_ne_bytes()),
            TTL => Match::plain(Field::MPLS_TTL, &value.to_ne_bytes()[..1]),
            BOS => Match::plain(Field::MPLS_BOS, &value.to_ne_bytes()[..1]),
            _ => Match::plain(Field::MPLS_TC, &value.to_ne_bytes()[..1]),
        };
        Some(asked.map(field).collect())
    }

    pub(super) fn words(&self) -> String {
        let mut words = " mpls".to_owned();
        for entry in &self.0 {
            words.push_str(" lse");
            for (attr, value) in &entry.0 {
                let name = match *attr {
                    DEPTH => "depth",
                    TTL => "ttl",
                    BOS => "bos",
                    TC => "tc",
                    _ => "label",
                };
                words.push_str(&format!(" {name} {value}"));
            }
        }
        words
    }
}
