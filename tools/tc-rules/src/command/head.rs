//! The part of a line before its handle and its classifier, which is mostly the same on many lines.

use crate::lookup::Lookup;
use crate::number::{self, Base};
use crate::protocol;
use crate::words::{Read, Words, keywords};

use super::estimator::Estimator;
use super::tcmsg::{EGRESS, Hook, INGRESS, ROOT, Verb};

keywords! {
    /// The words before the classifier, in iproute2's order.
    pub(super) enum PlaceWord {
        Dev = "dev" exact,
        Block = "block",
        Root = "root" exact,
        Ingress = "ingress" exact,
        Egress = "egress" exact,
        Parent = "parent" exact,
        Handle = "handle" exact,
        Preference = "preference",
        Priority = "priority",
        Protocol = "protocol",
        Chain = "chain",
        Estimator = "estimator",
    }
}

/// The part of a line before its handle and its classifier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(super) verb: Verb,
    pub(super) is_chain: bool,
    pub(super) hook: Hook,
    pub(super) protocol: Option<u16>,
    pub(super) priority: u16,
    pub(super) chain: Option<u32>,
    pub(super) estimator: Option<Estimator>,
}

impl Head {
    pub(super) fn parse(
        verb: Verb,
        is_chain: bool,
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
    ) -> Read<Self> {
        if is_chain && matches!(verb, Verb::Change | Verb::Replace) {
            return Err(words.wrong("a chain is added or deleted"));
        }
        let (hook, protocol, chain, estimator) = (Hook::default(), None, None, None);
        let mut head = Self { verb, is_chain, hook, protocol, priority: 0, chain, estimator };
        while let Some(word) = words.peek().and_then(PlaceWord::find).filter(|w| *w != PlaceWord::Handle) {
            words.skip();
            head.word(word, words, lookup)?;
        }
        Ok(head)
    }

    /// Parses the argument of a word.
    pub(super) fn word(
        &mut self,
        word: PlaceWord,
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
    ) -> Read<()> {
        let hook = match word {
            PlaceWord::Dev if self.hook.device.0 == 0 && self.hook.block == 0 => {
                self.hook.device =
                    words.read("the name of an existing device", |name| lookup.device(name))?;
                return Ok(());
            }
            PlaceWord::Block if self.hook.block == 0 && self.hook.device.0 == 0 => {
                let number = |word| number::u32(word, Base::Prefix).filter(|block| *block != 0);
                self.hook.block = words.read("a block: 1 or more", number)?;
                return Ok(());
            }
            PlaceWord::Dev | PlaceWord::Block => {
                return Err(words.wrong("a device or block was already given on this line"));
            }
            PlaceWord::Protocol if self.protocol.is_none() => {
                let read = words.read("a protocol", protocol::parse);
                self.protocol = Some(read.map_err(|wrong| wrong.expecting(protocol::WORDS))?);
                return Ok(());
            }
            PlaceWord::Preference | PlaceWord::Priority if self.priority == 0 => {
                self.priority =
                    words.read("a priority: 0 to 65535", |word| number::u16(word, Base::Prefix))?;
                return Ok(());
            }
            PlaceWord::Chain if self.chain.is_none() => {
                self.chain = Some(words.read("a chain", |word| number::u32(word, Base::Prefix))?);
                return Ok(());
            }
            PlaceWord::Estimator if self.estimator.is_none() => {
                self.estimator = Some(Estimator::parse(words)?);
                return Ok(());
            }
            PlaceWord::Root => ROOT,
            PlaceWord::Ingress => INGRESS,
            PlaceWord::Egress => EGRESS,
            PlaceWord::Parent => words.read("a class, as in 1:10 or ffff:", number::class)?,
            PlaceWord::Handle
            | PlaceWord::Protocol
            | PlaceWord::Preference
            | PlaceWord::Priority
            | PlaceWord::Chain
            | PlaceWord::Estimator => {
                return Err(words.wrong("the line already has this option"));
            }
        };
        if self.hook.parent != 0 {
            return Err(words.wrong("the line already has a parent"));
        }
        self.hook.parent = hook;
        Ok(())
    }
}
