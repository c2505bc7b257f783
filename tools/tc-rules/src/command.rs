//! A line of a batch file as a value: the object to add, replace or remove.
//!
//! Kernel: 6.18, `include/uapi/linux/rtnetlink.h` `struct tcmsg`, `RTM_NEWTFILTER` and its like, `TCA_*`.

use crate::action::Kind;
use crate::lookup::Lookup;
use crate::words::{Read, Words, abbreviates, keywords};
use model::IfIndex;
use netlink::attr::AttrBuf;

mod estimator;
mod filter;
mod foreign;
mod head;
mod listing;
mod qdisc;
mod standing;

pub use estimator::Estimator;
pub use filter::Filter;
pub use foreign::Foreign;
pub(crate) use head::Head;
pub use listing::Listings;
pub(crate) use listing::only_lists;
pub use qdisc::Qdisc;
pub use standing::Standing;
pub(crate) use standing::index_of;

/// Message types: `RTM_*`.
pub mod message {
    /// `RTM_NEWQDISC`.
    pub const NEW_QDISC: u16 = 36;
    /// `RTM_DELQDISC`.
    pub const DEL_QDISC: u16 = 37;
    /// `RTM_GETQDISC`.
    pub const GET_QDISC: u16 = 38;
    /// `RTM_NEWTFILTER`.
    pub const NEW_FILTER: u16 = 44;
    /// `RTM_DELTFILTER`.
    pub const DEL_FILTER: u16 = 45;
    /// `RTM_GETTFILTER`.
    pub const GET_FILTER: u16 = 46;
    /// `RTM_NEWACTION`.
    pub const NEW_ACTION: u16 = 48;
    /// `RTM_DELACTION`.
    pub const DEL_ACTION: u16 = 49;
    /// `RTM_NEWCHAIN`.
    pub const NEW_CHAIN: u16 = 100;
    /// `RTM_DELCHAIN`.
    pub const DEL_CHAIN: u16 = 101;
    /// `RTM_GETCHAIN`.
    pub const GET_CHAIN: u16 = 102;
}

/// Request flags: `NLM_F_*`.
mod flag {
    pub(super) const REQUEST: u16 = 0x1;
    pub(super) const REPLACE: u16 = 0x100;
    pub(super) const ROOT: u16 = 0x100;
    pub(super) const EXCL: u16 = 0x200;
    pub(super) const CREATE: u16 = 0x400;
}

pub(crate) const KIND: u16 = 1;
pub(crate) const OPTIONS: u16 = 2;
/// `TCA_RATE`.
const RATE: u16 = 5;
const CHAIN: u16 = 11;
const INGRESS_BLOCK: u16 = 13;
const EGRESS_BLOCK: u16 = 14;

/// `TCA_ACT_TAB`.
pub(crate) const ACT_TAB: u16 = 1;
/// `TCA_ROOT_FLAGS`.
const ROOT_FLAGS: u16 = 2;
/// `TCA_ACT_FLAG_LARGE_DUMP_ON`.
const LARGE_DUMP: u32 = 1;
/// `TCA_ACT_INDEX`.
const ACT_INDEX: u16 = 3;

/// The parent of both hooks of a device: `TC_H_CLSACT`, equal to `TC_H_INGRESS`.
const CLSACT: u32 = 0xffff_fff1;
/// The ingress hook: `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)`.
pub const INGRESS: u32 = 0xffff_fff2;
/// The egress hook: `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)`.
pub const EGRESS: u32 = 0xffff_fff3;
/// The root of a device: `TC_H_ROOT`.
const ROOT: u32 = u32::MAX;

/// The device index that denotes a block: `TCM_IFINDEX_MAGIC_BLOCK`.
const BLOCK: u32 = u32::MAX;

keywords! {
    /// The object types. iproute2 accepts abbreviations of each.
    enum About {
        Qdisc = "qdisc",
        Class = "class",
        Filter = "filter",
        Chain = "chain",
        Actions = "actions",
        Action = "action",
    }
}

keywords! {
    /// The verbs.
    enum VerbWord {
        Add = "add",
        Change = "change",
        Replace = "replace",
        Delete = "delete",
    }
}

/// The verb.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verb {
    /// Create; the object must not exist.
    #[default]
    Add,
    /// Change; the object must exist.
    Change,
    /// Create or replace.
    Replace,
    /// Delete.
    Delete,
}

/// The attachment point of a rule: `struct tcmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hook {
    /// The device; 0 if none is given.
    pub device: IfIndex,
    /// The block, for rules shared by several devices.
    pub block: u32,
    /// The parent: a hook or a class.
    pub parent: u32,
}

impl Default for Hook {
    fn default() -> Self {
        Self { device: IfIndex(0), block: 0, parent: 0 }
    }
}

/// Rules that the kernel keeps together: same hook, chain and priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// Their hook.
    pub hook: Hook,
    /// Their chain.
    pub chain: u32,
    /// Their priority; 0 lets the kernel choose.
    pub priority: u16,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A rule or a chain.
    Filter(Filter),
    /// A queueing discipline.
    Qdisc(Qdisc),
    /// Actions.
    Actions(Standing),
    /// A line for tc, if enabled ([`crate::Batch::with_foreign`]). It has no message.
    Foreign(Foreign),
}

impl Default for Command {
    fn default() -> Self {
        Self::Filter(Filter::default())
    }
}

impl Command {
    /// Parses a line into this value, reusing its memory.
    ///
    /// # Errors
    /// What tc would reject, or accepts but this crate does not support.
    pub fn parse(&mut self, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<()> {
        self.parse_with_head(words, lookup).map(drop)
    }

    /// The same; also returns the words before the handle and the classifier, and their number.
    pub(crate) fn parse_with_head(
        &mut self,
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
    ) -> Read<Option<(Head, usize)>> {
        let about = words.peek().and_then(About::find).ok_or_else(|| words.unknown_here(About::WORDS))?;
        words.skip();
        let of_actions = matches!(about, About::Actions | About::Action);
        if of_actions && words.peek().is_some_and(|word| abbreviates(word, "flush")) {
            words.skip();
            *self = Self::Actions(Standing::parse_flushed(words)?);
            return at_end(words, None);
        }
        let verb =
            words.peek().and_then(VerbWord::find).ok_or_else(|| words.unknown_here(VerbWord::WORDS))?;
        words.skip();
        let verb = match verb {
            VerbWord::Add => Verb::Add,
            VerbWord::Change => Verb::Change,
            VerbWord::Replace => Verb::Replace,
            VerbWord::Delete => Verb::Delete,
        };
        let mut found = None;
        match about {
            About::Class => {
                words.back();
                words.back();
                return Err(words.wrong_here("lines about classes are left to tc"));
            }
            About::Filter | About::Chain => {
                let head = Head::parse(verb, about == About::Chain, words, lookup)?;
                found = Some((head, words.place()));
                self.parse_behind(head, words, lookup)?;
            }
            About::Qdisc => *self = Self::Qdisc(Qdisc::parse(verb, words, lookup)?),
            About::Actions | About::Action => *self = Self::Actions(Standing::parse(verb, words, lookup)?),
        }
        at_end(words, found)
    }

    /// Parses what follows the head of a rule or chain.
    pub(crate) fn parse_behind(
        &mut self,
        head: Head,
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
    ) -> Read<()> {
        if !matches!(self, Self::Filter(_)) {
            *self = Self::default();
        }
        let Self::Filter(filter) = self else { return Ok(()) };
        filter.parse_behind(head, words, lookup)
    }

    /// Encodes its message, with this sequence number and these flags in addition to its own.
    pub fn encode(&self, sequence: u32, flags: u16, out: &mut AttrBuf) {
        match self {
            Self::Filter(filter) => filter.encode(sequence, flags, out),
            Self::Qdisc(qdisc) => qdisc.encode(sequence, flags, out),
            Self::Actions(standing) => standing.encode(sequence, flags, out),
            Self::Foreign(_) => {}
        }
    }

    /// Whether it deletes an object.
    pub fn removes(&self) -> bool {
        match self {
            Self::Filter(filter) => filter.verb == Verb::Delete,
            Self::Qdisc(qdisc) => qdisc.verb == Verb::Delete,
            Self::Actions(standing) => matches!(standing, Standing::Removed(_) | Standing::Flushed(_)),
            Self::Foreign(foreign) => foreign.removes,
        }
    }

    /// How many of its police actions have a truncated burst ([`Police::is_cut`]).
    ///
    /// [`Police::is_cut`]: crate::action::police::Police::is_cut
    pub fn bursts_cut(&self) -> u64 {
        let (actions, of_rule) = match self {
            Self::Filter(rule) => (&*rule.actions, rule.classifier.police()),
            Self::Actions(Standing::Made(actions, _)) => (&**actions, None),
            Self::Actions(_) | Self::Qdisc(_) | Self::Foreign(_) => return 0,
        };
        let of_actions = actions.iter().filter_map(|action| match &action.kind {
            Kind::Police(police) => Some(police),
            _ => None,
        });
        of_actions.chain(of_rule).map(|police| u64::from(police.is_cut())).sum()
    }

    /// The rule, unless it is a chain or another object.
    pub const fn rule(&self) -> Option<&Filter> {
        match self {
            Self::Filter(filter) if !filter.is_chain => Some(filter),
            Self::Filter(_) | Self::Qdisc(_) | Self::Actions(_) | Self::Foreign(_) => None,
        }
    }

    /// The same as [`Self::rule`].
    pub(crate) const fn rule_mut(&mut self) -> Option<&mut Filter> {
        match self {
            Self::Filter(filter) if !filter.is_chain => Some(filter),
            Self::Filter(_) | Self::Qdisc(_) | Self::Actions(_) | Self::Foreign(_) => None,
        }
    }
}

/// Returns `read` if every word of the line was consumed.
fn at_end<T>(words: &Words<'_>, read: T) -> Read<T> {
    match words.peek() {
        None => Ok(read),
        Some(_) => Err(words.wrong_here("the line should end here")),
    }
}

/// `struct tcmsg`.
fn tcmsg(hook: Hook, handle: u32, info: u32, out: &mut AttrBuf) {
    let (device, parent) = if hook.block == 0 { (hook.device.0, hook.parent) } else { (BLOCK, hook.block) };
    let mut bytes = [0; 20];
    for (word, at) in [device, handle, parent, info].into_iter().zip([4, 8, 12, 16]) {
        bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    out.raw(&bytes);
}
