//! Actions without a rule.

use crate::action::{Action, Kind, bitfield};
use crate::lookup::Lookup;
use crate::number::{self, Base};
use crate::words::{Read, Words, abbreviates};
use netlink::attr::AttrBuf;

use super::tcmsg::{ACT_INDEX, ACT_TAB, KIND, LARGE_DUMP, ROOT_FLAGS, Verb, flag, message};

/// Actions without a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StandaloneActions {
    /// Creates these actions; `replace` allows them to exist.
    Made(Vec<Action>, Verb),
    /// Deletes these actions, by kind and index.
    Removed(Vec<(String, u32)>),
    /// Deletes all unused actions of this kind.
    Flushed(String),
}

impl StandaloneActions {
    pub(super) fn parse(verb: Verb, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<Self> {
        if verb != Verb::Delete {
            let mut actions = Vec::new();
            Action::parse_list(words, lookup, &mut actions)?;
            return Ok(Self::Made(actions, verb));
        }
        let mut removed = Vec::new();
        while let Some(word) = words.peek() {
            words.skip();
            if word == "action" {
                continue;
            }
            if !Kind::NAMES.contains(&word) {
                let wrong = words.wrong(format!("`{word}` is not a kind of action"));
                return Err(wrong.expecting(Kind::NAMES));
            }
            words.read("`index`", |word| abbreviates(word, "index").then_some(()))?;
            removed.push((word.to_owned(), words.read("an index", |word| number::u32(word, Base::Ten))?));
        }
        if removed.is_empty() { Err(words.unknown_here(&["action"])) } else { Ok(Self::Removed(removed)) }
    }

    /// Parses the arguments of `actions flush`: a word that iproute2 ignores, and a kind.
    pub(super) fn parse_flushed(words: &mut Words<'_>) -> Read<Self> {
        words.value()?;
        let known =
            |word: &str| Kind::NAMES.iter().find(|name| **name == word).map(|name| (*name).to_owned());
        let kind = words.read("a kind of action", known).map_err(|wrong| wrong.expecting(Kind::NAMES))?;
        Ok(Self::Flushed(kind))
    }

    pub(crate) fn encode(&self, sequence: u32, flags: u16, out: &mut AttrBuf) {
        let (kind, own) = match self {
            Self::Made(_, Verb::Add) => (message::NEW_ACTION, flag::EXCL | flag::CREATE),
            Self::Made(..) => (message::NEW_ACTION, flag::CREATE | flag::REPLACE),
            Self::Removed(_) => (message::DEL_ACTION, 0),
            Self::Flushed(_) => (message::DEL_ACTION, flag::ROOT),
        };
        out.message(kind, flag::REQUEST | own | flags, sequence, |out| {
            out.raw(&[0; 4]); // struct tcamsg
            match self {
                Self::Made(actions, _) => Action::encode_list(actions, ACT_TAB, out),
                Self::Removed(list) => {
                    out.unmarked(ACT_TAB, |out| {
                        for ((kind, index), place) in list.iter().zip(1..) {
                            out.unmarked(place, |out| {
                                out.text(KIND, kind);
                                if *index != 0 {
                                    out.u32(ACT_INDEX, *index);
                                }
                            });
                        }
                    });
                }
                Self::Flushed(kind) => {
                    out.unmarked(ACT_TAB, |out| _ = out.unmarked(1, |out| _ = out.text(KIND, kind)));
                    out.bytes(ROOT_FLAGS, &bitfield(LARGE_DUMP));
                }
            }
        });
    }
}

/// Returns the index of an action's instance, by which rules can share the instance.
pub(crate) const fn index_of(kind: &Kind) -> u32 {
    kind.instance().index
}
