//! A parsed line of a batch file: the object to add, replace or remove.
//!
//! Kernel: 6.18, `include/uapi/linux/rtnetlink.h` `struct tcmsg`, `RTM_NEWTFILTER` and similar messages,
//! `TCA_*`.

use crate::action::Kind;
use crate::lookup::Lookup;
use crate::words::{Read, Words, abbreviates, keywords};
use netlink::attr::AttrBuf;

mod estimator;
mod filter;
mod foreign;
mod head;
mod listing;
mod qdisc;
mod standing;
mod tcmsg;

pub use estimator::Estimator;
pub use filter::Filter;
pub use foreign::Foreign;
pub(crate) use head::Head;
pub use listing::Listings;
pub(crate) use listing::only_lists;
pub use qdisc::Qdisc;
pub use standing::StandaloneActions;
pub(crate) use standing::index_of;
pub(crate) use tcmsg::{ACT_TAB, KIND, OPTIONS};
pub use tcmsg::{EGRESS, Group, Hook, INGRESS, Verb, message};

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
    enum VerbWord {
        Add = "add",
        Change = "change",
        Replace = "replace",
        Delete = "delete",
    }
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A rule or a chain.
    Filter(Filter),
    /// A qdisc.
    Qdisc(Qdisc),
    /// Actions.
    Actions(StandaloneActions),
    /// A line to pass to tc, if enabled ([`crate::Batch::with_foreign`]). Such a command has no message.
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
    /// If tc would reject the line, or if this crate does not support it.
    pub fn parse(&mut self, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<()> {
        self.parse_with_head(words, lookup).map(drop)
    }

    /// Parses a line as [`Self::parse`] does. For a rule or chain, also returns its head, the words before
    /// the handle and the classifier, and the number of these words.
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
            *self = Self::Actions(StandaloneActions::parse_flushed(words)?);
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
                return Err(words.wrong_here("lines about classes are passed to tc"));
            }
            About::Filter | About::Chain => {
                let head = Head::parse(verb, about == About::Chain, words, lookup)?;
                found = Some((head, words.place()));
                self.parse_behind(head, words, lookup)?;
            }
            About::Qdisc => *self = Self::Qdisc(Qdisc::parse(verb, words, lookup)?),
            About::Actions | About::Action => {
                *self = Self::Actions(StandaloneActions::parse(verb, words, lookup)?)
            }
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

    /// Encodes the command's message, with this sequence number and these additional flags.
    pub fn encode(&self, sequence: u32, flags: u16, out: &mut AttrBuf) {
        match self {
            Self::Filter(filter) => filter.encode(sequence, flags, out),
            Self::Qdisc(qdisc) => qdisc.encode(sequence, flags, out),
            Self::Actions(standing) => standing.encode(sequence, flags, out),
            Self::Foreign(_) => {}
        }
    }

    /// Whether the command deletes an object.
    pub fn removes(&self) -> bool {
        match self {
            Self::Filter(filter) => filter.verb == Verb::Delete,
            Self::Qdisc(qdisc) => qdisc.verb == Verb::Delete,
            Self::Actions(standing) => {
                matches!(standing, StandaloneActions::Removed(_) | StandaloneActions::Flushed(_))
            }
            Self::Foreign(foreign) => foreign.removes,
        }
    }

    /// Returns how many police actions of the command have a truncated burst ([`Police::is_cut`]).
    ///
    /// [`Police::is_cut`]: crate::action::police::Police::is_cut
    pub fn bursts_cut(&self) -> u64 {
        let (actions, of_rule) = match self {
            Self::Filter(rule) => (&*rule.actions, rule.classifier.police()),
            Self::Actions(StandaloneActions::Made(actions, _)) => (&**actions, None),
            Self::Actions(_) | Self::Qdisc(_) | Self::Foreign(_) => return 0,
        };
        let of_actions = actions.iter().filter_map(|action| match &action.kind {
            Kind::Police(police) => Some(police),
            _ => None,
        });
        of_actions.chain(of_rule).map(|police| u64::from(police.is_cut())).sum()
    }

    /// Returns the rule, unless the command is about a chain or another object.
    pub const fn rule(&self) -> Option<&Filter> {
        match self {
            Self::Filter(filter) if !filter.is_chain => Some(filter),
            Self::Filter(_) | Self::Qdisc(_) | Self::Actions(_) | Self::Foreign(_) => None,
        }
    }

    /// Returns a mutable reference to the rule, unless the command is about a chain or another object.
    pub(crate) const fn rule_mut(&mut self) -> Option<&mut Filter> {
        match self {
            Self::Filter(filter) if !filter.is_chain => Some(filter),
            Self::Filter(_) | Self::Qdisc(_) | Self::Actions(_) | Self::Foreign(_) => None,
        }
    }
}

/// Returns `read` if every word of the line was consumed, and an error otherwise.
fn at_end<T>(words: &Words<'_>, read: T) -> Read<T> {
    match words.peek() {
        None => Ok(read),
        Some(_) => Err(words.wrong_here("the line should end here")),
    }
}
