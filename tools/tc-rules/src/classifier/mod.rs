//! Classifiers, which determine the packets that a rule matches, one file per kind.

mod basic;
pub mod bpf;
mod cgroup;
mod classes;
mod flow;
pub mod flower;
pub mod flower_field;
mod flower_meaning;
mod fw;
pub mod listed;
pub mod matchall;
pub mod mpls;
pub mod offload;
mod route;
mod shape;
pub mod u32;
pub mod u32_selector;

pub use bpf::Bpf;
pub use flower::Flower;
pub use listed::{Listed, ListedKind};
pub use matchall::Matchall;
pub use offload::Offload;
pub use u32::U32;

use crate::action::Action;
use crate::action::police::Police;
use crate::lookup::Lookup;
use crate::number::{self, Base};
use crate::words::{Read, Words};
use netlink::attr::{Attr, AttrBuf, Malformed};

/// The kinds of classifiers, for suggestions after a misspelling.
pub const KINDS: &[&str] = &["flower", "u32", "matchall", "bpf", "basic", "cgroup", "flow", "fw", "route"];

/// The half of a class that identifies its qdisc.
const MAJOR: u32 = 0xffff_0000;

/// The classifier of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each kind's index is that of its name")]
pub enum Classifier {
    /// The line names no classifier: it is about a chain, or removes every rule of a priority.
    #[default]
    None,
    Flower(Flower),
    U32(U32),
    Matchall(Matchall),
    Bpf(Bpf),
    /// Another kind, defined by a table of options.
    Listed(Listed),
}

impl Classifier {
    /// Turns this into a classifier of that kind, reusing the memory; returns whether the kind exists.
    pub fn become_kind(&mut self, kind: &str) -> bool {
        match (kind, &mut *self) {
            ("flower", Self::Flower(rule)) => rule.clear(),
            ("u32", Self::U32(rule)) => rule.clear(),
            ("flower", _) => *self = Self::Flower(Flower::default()),
            ("u32", _) => *self = Self::U32(U32::default()),
            ("matchall", _) => *self = Self::Matchall(Matchall::default()),
            ("bpf", _) => *self = Self::Bpf(Bpf::default()),
            _ => match ListedKind::of(kind) {
                Some(kind) => *self = Self::Listed(Listed::of(kind)),
                None => return false,
            },
        }
        true
    }

    /// The kind's name.
    pub const fn kind(&self) -> Option<&'static str> {
        match self {
            Self::Listed(rule) => Some(rule.kind.shape().name),
            Self::None => None,
            Self::Flower(_) => Some("flower"),
            Self::U32(_) => Some("u32"),
            Self::Matchall(_) => Some("matchall"),
            Self::Bpf(_) => Some("bpf"),
        }
    }

    /// Parses a handle in the syntax of this kind.
    pub fn handle(&mut self, word: &str) -> Option<u32> {
        match self {
            Self::Listed(rule) => rule.handle(word),
            Self::U32(_) => u32::handle_of(word),
            Self::None | Self::Flower(_) | Self::Matchall(_) | Self::Bpf(_) => {
                number::u32(word, Base::Prefix)
            }
        }
    }

    /// Formats a handle in the syntax of this kind.
    pub fn handle_words(&self, handle: u32) -> Option<String> {
        match self {
            Self::Listed(rule) => rule.handle_words(handle),
            Self::U32(rule) => {
                let handle = rule.canonical_handle(handle);
                (handle != 0).then(|| u32::handle_name(handle))
            }
            Self::None | Self::Flower(_) | Self::Matchall(_) | Self::Bpf(_) => {
                (handle != 0).then(|| format!("{handle:#x}"))
            }
        }
    }

    /// The canonical form of a handle, for comparisons.
    pub const fn canonical_handle(&self, handle: u32) -> u32 {
        match self {
            Self::U32(rule) => rule.canonical_handle(handle),
            Self::None | Self::Flower(_) | Self::Matchall(_) | Self::Bpf(_) | Self::Listed(_) => handle,
        }
    }

    /// Parses the options after the kind, which may complete `handle`. `place` is the protocol and the
    /// parent.
    pub fn parse(
        &mut self,
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
        actions: &mut Vec<Action>,
        (handle, has_handle): (&mut u32, bool),
        place: (u16, u32),
    ) -> Read<()> {
        match self {
            Self::None => Ok(()),
            Self::Flower(rule) => rule.parse(words, lookup, actions, place),
            Self::U32(rule) => rule.parse(words, lookup, actions, handle, has_handle),
            Self::Listed(rule) => rule.parse(words, lookup, actions, (handle, has_handle)),
            Self::Matchall(rule) => {
                *rule = Matchall::parse(words, lookup, actions)?;
                Ok(())
            }
            Self::Bpf(rule) => {
                if words.peek().is_some() {
                    *rule = Bpf::parse(words, lookup, actions)?;
                }
                Ok(())
            }
        }
    }

    /// Encodes `TCA_OPTIONS`, which most kinds omit if nothing follows the kind in the line.
    pub fn encode(&self, number: u16, actions: &[Action], out: &mut AttrBuf) {
        match self {
            Self::None => {}
            Self::Flower(rule) => _ = out.unmarked(number, |out| rule.encode(actions, out)),
            Self::U32(rule) if rule.options => _ = out.unmarked(number, |out| rule.encode(actions, out)),
            Self::Matchall(rule) if rule.options => _ = out.unmarked(number, |out| rule.encode(actions, out)),
            Self::Bpf(rule) if rule.program.is_some() => {
                _ = out.unmarked(number, |out| rule.encode(actions, out))
            }
            Self::Listed(rule) if rule.has_options => {
                _ = out.unmarked(number, |out| rule.encode(actions, out));
            }
            Self::U32(_) | Self::Matchall(_) | Self::Bpf(_) | Self::Listed(_) => {}
        }
    }

    /// Decodes `TCA_OPTIONS` of a dump; returns `None` if it contains unknown options.
    pub fn decode(
        &mut self,
        options: &Attr<'_>,
        protocol: u16,
        actions: &mut Vec<Action>,
    ) -> Result<Option<()>, Malformed> {
        let attrs = options.nested();
        Ok(match self {
            Self::None => None,
            Self::Flower(rule) => rule.decode(attrs, protocol, actions)?,
            Self::U32(rule) => rule.decode(attrs, actions)?,
            Self::Matchall(rule) => Matchall::decode(attrs, actions)?.map(|decoded| *rule = decoded),
            Self::Bpf(rule) => Bpf::decode(attrs, actions)?.map(|decoded| *rule = decoded),
            Self::Listed(rule) => rule.decode(attrs, actions)?,
        })
    }

    /// Returns the protocol in the options of a chain's template, or 0 if there is none.
    pub fn protocol_in(&self, options: &Attr<'_>) -> Result<u16, Malformed> {
        match self {
            Self::Flower(_) => flower::protocol_in(options.nested()),
            _ => Ok(0),
        }
    }

    /// Converts the classifier to the form that the kernel would dump, given the canonical handle and the
    /// parent.
    pub fn canonicalize(&mut self, handle: u32, parent: u32) {
        match self {
            Self::None => {}
            Self::Flower(rule) => rule.canonicalize(),
            Self::U32(rule) => rule.canonicalize(handle),
            Self::Matchall(rule) => *rule = rule.canonical(),
            Self::Bpf(rule) => rule.canonicalize(),
            Self::Listed(rule) => rule.canonicalize(parent & MAJOR),
        }
    }

    /// Copies another classifier, reusing the memory of this one.
    pub fn assign(&mut self, other: &Self) {
        match (self, other) {
            (Self::Flower(rule), Self::Flower(other)) => rule.assign(other),
            (Self::U32(rule), Self::U32(other)) => rule.assign(other),
            (rule, other) => *rule = other.clone(),
        }
    }

    /// Returns the offload flags and state, if the kind has them.
    pub const fn offload(&self) -> Option<Offload> {
        match self {
            Self::None | Self::Listed(_) => None,
            Self::Flower(rule) => Some(rule.offload),
            Self::U32(rule) => Some(rule.offload),
            Self::Matchall(rule) => Some(rule.offload),
            Self::Bpf(rule) => Some(rule.offload),
        }
    }

    /// The police action of the rule itself, as opposed to those in its action list.
    pub fn police(&self) -> Option<&Police> {
        match self {
            Self::U32(rule) => rule.parts.iter().find_map(|part| match part {
                u32::Part::Police(police) => Some(&**police),
                _ => None,
            }),
            Self::Listed(rule) => rule.police(),
            _ => None,
        }
    }

    /// Whether the rule matches few packets, so that its counters are rarely updated.
    pub fn is_narrow(&self) -> bool {
        match self {
            Self::None | Self::Matchall(_) | Self::Bpf(_) | Self::Listed(_) => false,
            Self::Flower(rule) => rule.is_narrow(),
            Self::U32(rule) => rule.is_narrow(),
        }
    }

    /// Whether adding such a rule holds rtnl.
    ///
    /// Kernel: 6.18, only `net/sched/cls_flower.c` has `TCF_PROTO_OPS_DOIT_UNLOCKED`.
    pub const fn holds_rtnl(&self) -> bool {
        !matches!(self, Self::Flower(_))
    }

    /// Appends the tc syntax after the kind to `words`; returns `None` if tc has no syntax for the rule.
    pub fn words(&self, words: &mut String, actions: &str, lookup: &mut dyn Lookup) -> Option<()> {
        match self {
            Self::Listed(rule) => rule.words(words, actions, lookup),
            Self::None => None,
            Self::Bpf(rule) => rule.words(words, actions),
            Self::Flower(rule) => rule.words(words, actions),
            Self::U32(rule) => rule.words(words, actions),
            Self::Matchall(rule) => {
                rule.words(words, actions);
                Some(())
            }
        }
    }
}
