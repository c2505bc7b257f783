//! Classifiers: which packets a rule matches, one file for each kind.

pub mod bpf;
pub mod flower;
pub mod flower_field;
mod flower_meaning;
pub mod matchall;
pub mod mpls;
pub mod offload;
pub mod u32;
pub mod u32_selector;

pub use bpf::Bpf;
pub use flower::Flower;
pub use matchall::Matchall;
pub use offload::Offload;
pub use u32::U32;

use crate::action::Action;
use crate::attr::{Attr, AttrBuf, Malformed};
use crate::lookup::Lookup;
use crate::number::{self, Base};
use crate::words::{Read, Words};

/// The kinds, for those who misspell one.
pub(crate) const KINDS: &[&str] = &["flower", "u32", "matchall", "bpf"];

/// Which packets a rule matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the kind of its name")]
pub enum Classifier {
    /// The line names none: a chain, or the removal of every rule of a priority.
    #[default]
    None,
    Flower(Flower),
    U32(U32),
    Matchall(Matchall),
    Bpf(Bpf),
}

impl Classifier {
    /// Makes this a classifier of that kind, with the memory that it has; whether there is that kind.
    pub(crate) fn become_kind(&mut self, kind: &str) -> bool {
        match (kind, &mut *self) {
            ("flower", Self::Flower(rule)) => rule.clear(),
            ("u32", Self::U32(rule)) => rule.clear(),
            ("flower", _) => *self = Self::Flower(Flower::default()),
            ("u32", _) => *self = Self::U32(U32::default()),
            ("matchall", _) => *self = Self::Matchall(Matchall::default()),
            ("bpf", _) => *self = Self::Bpf(Bpf::default()),
            _ => return false,
        }
        true
    }

    /// The kind's name.
    pub const fn kind(&self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Flower(_) => Some("flower"),
            Self::U32(_) => Some("u32"),
            Self::Matchall(_) => Some("matchall"),
            Self::Bpf(_) => Some("bpf"),
        }
    }

    /// Reads a handle as this kind writes it.
    pub(crate) fn handle(&self, word: &str) -> Option<u32> {
        match self {
            Self::U32(_) => u32::handle_of(word),
            Self::None | Self::Flower(_) | Self::Matchall(_) | Self::Bpf(_) => {
                number::u32(word, Base::Prefix)
            }
        }
    }

    /// The words for a handle of this kind.
    pub(crate) fn handle_words(&self, handle: u32) -> Option<String> {
        match self {
            Self::U32(rule) => {
                let handle = rule.canonical_handle(handle);
                (handle != 0).then(|| u32::handle_name(handle))
            }
            Self::None | Self::Flower(_) | Self::Matchall(_) | Self::Bpf(_) => {
                (handle != 0).then(|| format!("{handle:#x}"))
            }
        }
    }

    /// A handle as it is compared.
    pub(crate) const fn canonical_handle(&self, handle: u32) -> u32 {
        match self {
            Self::U32(rule) => rule.canonical_handle(handle),
            Self::None | Self::Flower(_) | Self::Matchall(_) | Self::Bpf(_) => handle,
        }
    }

    /// Reads what follows the kind. `handle` is there to be completed; `place` is protocol and parent.
    pub(crate) fn parse(
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

    /// Writes `TCA_OPTIONS`, unless the line has nothing behind the kind.
    pub(crate) fn encode(&self, number: u16, actions: &[Action], out: &mut AttrBuf) {
        match self {
            Self::None => {}
            Self::Flower(rule) => _ = out.unmarked(number, |out| rule.encode(actions, out)),
            Self::U32(rule) if rule.options => _ = out.unmarked(number, |out| rule.encode(actions, out)),
            Self::Matchall(rule) if rule.options => _ = out.unmarked(number, |out| rule.encode(actions, out)),
            Self::Bpf(rule) if rule.program.is_some() => {
                _ = out.unmarked(number, |out| rule.encode(actions, out))
            }
            Self::U32(_) | Self::Matchall(_) | Self::Bpf(_) => {}
        }
    }

    /// Reads `TCA_OPTIONS` of a dump; `None` for what we do not know all of.
    pub(crate) fn decode(
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
        })
    }

    /// Becomes what the kernel would tell of it, which has this canonical handle.
    pub(crate) fn canonicalize(&mut self, handle: u32) {
        match self {
            Self::None => {}
            Self::Flower(rule) => rule.canonicalize(),
            Self::U32(rule) => rule.canonicalize(handle),
            Self::Matchall(rule) => *rule = rule.canonical(),
            Self::Bpf(rule) => *rule = rule.canonical(),
        }
    }

    /// Becomes another one, with the memory that this one has.
    pub(crate) fn assign(&mut self, other: &Self) {
        match (self, other) {
            (Self::Flower(rule), Self::Flower(other)) => rule.assign(other),
            (Self::U32(rule), Self::U32(other)) => rule.assign(other),
            (rule, other) => *rule = other.clone(),
        }
    }

    /// Where the rule is, or shall be.
    pub const fn offload(&self) -> Option<Offload> {
        match self {
            Self::None => None,
            Self::Flower(rule) => Some(rule.offload),
            Self::U32(rule) => Some(rule.offload),
            Self::Matchall(rule) => Some(rule.offload),
            Self::Bpf(rule) => Some(rule.offload),
        }
    }

    /// Whether the rule picks out few packets, so that its counters are seldom touched.
    pub fn is_narrow(&self) -> bool {
        match self {
            Self::None | Self::Matchall(_) | Self::Bpf(_) => false,
            Self::Flower(rule) => rule.is_narrow(),
            Self::U32(rule) => rule.is_narrow(),
        }
    }

    /// Whether adding such a rule holds the lock of all network configuration (rtnl).
    ///
    /// Kernel: 6.18, `net/sched/cls_flower.c` alone has `TCF_PROTO_OPS_DOIT_UNLOCKED`.
    pub const fn holds_rtnl(&self) -> bool {
        !matches!(self, Self::Flower(_))
    }

    /// The words behind the kind; `None` for what has none.
    pub(crate) fn words(&self, words: &mut String, actions: &str) -> Option<()> {
        match self {
            Self::None | Self::Bpf(_) => None,
            Self::Flower(rule) => rule.words(words, actions),
            Self::U32(rule) => rule.words(words, actions),
            Self::Matchall(rule) => {
                rule.words(words, actions);
                Some(())
            }
        }
    }
}
