//! Classifiers whose options are a list, sent in the order of the line: basic, cgroup, flow, fw and route.
//!
//! A kind is defined by a table of its keywords, with their argument and attribute. This module parses,
//! encodes, decodes and formats such kinds.

use model::IfIndex;

use super::shape::{Gathered, Shape, Takes, Word};
pub use super::shape::{ListedKind, Value};
use super::{basic, cgroup, flow, fw, route};
use crate::action::Action;
use crate::action::police::Police;
use crate::ematch::Tree;
use crate::lookup::Lookup;
use crate::number::{self, Base};
use crate::words::{Read, Words, abbreviates, quoted};
use netlink::attr::{Attr, AttrBuf, Attrs, Malformed, last_of_each};

/// Size of a device name with its terminating zero: `IFNAMSIZ`.
const NAME_BYTES: usize = 16;

impl ListedKind {
    const ALL: [Self; 5] = [Self::Basic, Self::Cgroup, Self::Flow, Self::Fw, Self::Route];

    /// The kind of this name.
    pub(super) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.shape().name == name)
    }

    pub(super) const fn shape(self) -> &'static Shape {
        match self {
            Self::Basic => &basic::SHAPE,
            Self::Cgroup => &cgroup::SHAPE,
            Self::Flow => &flow::SHAPE,
            Self::Fw => &fw::SHAPE,
            Self::Route => &route::SHAPE,
        }
    }
}

/// The classifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The kind.
    pub kind: ListedKind,
    /// The options with the numbers of their attributes, in the order of the line.
    pub options: Vec<(u16, Value)>,
    /// Whether the options attribute is sent.
    pub has_options: bool,
}

impl Listed {
    pub(super) const fn of(kind: ListedKind) -> Self {
        Self { kind, options: Vec::new(), has_options: false }
    }

    /// Parses a handle. The handle of fw may have a mask, which becomes the first option.
    pub(super) fn handle(&mut self, word: &str) -> Option<u32> {
        match (self.kind, word.split_once('/')) {
            (ListedKind::Fw, Some((mark, mask))) => {
                self.options.push((fw::MASK, Value::Number(number::u32(mask, Base::Prefix)?)));
                number::u32(mark, Base::Prefix)
            }
            _ => number::u32(word, Base::Prefix),
        }
    }

    pub(super) fn parse(
        &mut self,
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
        actions: &mut Vec<Action>,
        (handle, has_handle): (&mut u32, bool),
    ) -> Read<()> {
        let shape = self.kind.shape();
        self.has_options = shape.always || words.peek().is_some();
        if words.peek().is_none() {
            // If the line has no options, the mask of the handle is not sent either.
            self.options.clear();
        }
        let mut gathered = Gathered { choice: 0, mask: u32::MAX, xor: 0, keys: (0, 0), order: 0 };
        while let Some(text) = words.peek() {
            let Some(word) = find(shape, text) else { return Err(words.unknown_here(shape.texts)) };
            words.skip();
            if let Some(value) = self.value(word, &mut gathered, words, lookup, actions)? {
                self.options.push((word.number, value));
            }
        }
        match self.kind {
            ListedKind::Flow => flow::complete(&mut self.options, &gathered, words)?,
            ListedKind::Route if self.has_options && !has_handle => {
                *handle = route::handle(&self.options, gathered.order);
            }
            _ => {}
        }
        Ok(())
    }

    /// Parses the argument of a keyword.
    fn value(
        &self,
        word: &Word,
        gathered: &mut Gathered,
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
        actions: &mut Vec<Action>,
    ) -> Read<Option<Value>> {
        let number = |word: &str| number::u32(word, Base::Prefix);
        let bits = |words: &mut Words<'_>| words.read("a 32-bit number", number);
        let value = match word.takes {
            Takes::Class => words.read("a class", number::class)?,
            Takes::Minor => {
                let minor = |word| number::class(word).filter(|class| class & 0xffff != 0);
                words.read("a class with a lower half, as in 1:10 or :10", minor)?
            }
            Takes::Number => bits(words)?,
            Takes::Realm => words.read("a realm: 0 to 255", route::realm)?,
            Takes::Device => words.read("the name of an existing device", |name| lookup.device(name))?.0,
            Takes::Keys => {
                let keys = words.read("a key, or several with commas between", flow::keys);
                gathered.keys = keys.map_err(|wrong| wrong.expecting(flow::KEYS))?;
                gathered.keys.0
            }
            Takes::Addend => {
                let keys = gathered.keys.0;
                words
                    .read("a number, or an address if keys are addresses", |word| flow::addend(word, keys))?
            }
            Takes::Choice(choice) => {
                gathered.choice = choice;
                return Ok(None);
            }
            Takes::And | Takes::Or | Takes::Xor => {
                let bits = bits(words)?;
                let (mask, xor) = match word.takes {
                    Takes::And => (bits, 0),
                    Takes::Or => (!bits, bits),
                    _ => (u32::MAX, bits),
                };
                gathered.xor = xor ^ (gathered.xor & mask);
                gathered.mask &= mask;
                return Ok(None);
            }
            Takes::Order => {
                gathered.order = bits(words)?;
                return Ok(None);
            }
            Takes::DeviceName => {
                let fits =
                    |name: &str| (!name.is_empty() && name.len() < NAME_BYTES).then(|| name.to_owned());
                return words.read("the name of a device", fits).map(Value::Name).map(Some);
            }
            Takes::Matches | Takes::Police | Takes::Actions if self.has(word.number) => {
                return Err(words.wrong("the rule already has this option"));
            }
            Takes::Matches => return Ok(Some(Value::Matches(Box::new(Tree::parse(words)?)))),
            Takes::Police => return Ok(Some(Value::Police(Box::new(Police::parse(words)?)))),
            Takes::Actions => {
                Action::parse_list(words, lookup, actions)?;
                return Ok(Some(Value::Actions));
            }
        };
        Ok(Some(Value::Number(value)))
    }

    /// The police action of the rule itself.
    pub(super) fn police(&self) -> Option<&Police> {
        self.options.iter().find_map(|(_, value)| match value {
            Value::Police(police) => Some(&**police),
            _ => None,
        })
    }

    fn has(&self, number: u16) -> bool {
        self.options.iter().any(|(given, _)| *given == number)
    }

    pub(super) fn encode(&self, actions: &[Action], out: &mut AttrBuf) {
        for (number, value) in &self.options {
            match value {
                Value::Number(value) => _ = out.u32(*number, *value),
                Value::Name(name) => _ = out.text(*number, name),
                Value::Matches(tree) => tree.encode(*number, out),
                Value::Police(police) => _ = out.unmarked(*number, |out| police.encode(out)),
                Value::Actions => Action::encode_list(actions, *number, out),
            }
        }
    }

    /// Decodes a dump; returns `None` if it contains unknown options.
    pub(super) fn decode(
        &mut self,
        attrs: Attrs<'_>,
        actions: &mut Vec<Action>,
    ) -> Result<Option<()>, Malformed> {
        self.has_options = true;
        for attr in attrs {
            let attr = attr?;
            let Some(takes) = self.takes(attr.number) else { continue };
            let Some(value) = Self::decode_value(takes, &attr, actions)? else { return Ok(None) };
            if value == Some(Value::Actions) && self.has(attr.number) {
                return Err(Malformed("a rule has two lists of actions"));
            }
            self.options.extend(value.map(|value| (attr.number, value)));
        }
        Ok(Some(()))
    }

    /// Returns the type of an attribute, if a keyword or the handle can set it.
    fn takes(&self, number: u16) -> Option<Takes> {
        let besides = match self.kind {
            ListedKind::Fw => &[fw::MASK][..],
            ListedKind::Flow => &flow::GATHERED[..],
            ListedKind::Basic | ListedKind::Cgroup | ListedKind::Route => &[],
        };
        if besides.contains(&number) {
            return Some(Takes::Number);
        }
        let word = self.kind.shape().words.iter().find(|word| word.number == number && number != 0);
        word.map(|word| word.takes)
    }

    #[expect(clippy::option_option, reason = "unknown and absent are different")]
    fn decode_value(
        takes: Takes,
        attr: &Attr<'_>,
        actions: &mut Vec<Action>,
    ) -> Result<Option<Option<Value>>, Malformed> {
        Ok(Some(Some(match takes {
            Takes::DeviceName => Value::Name(attr.text()?.to_owned()),
            Takes::Matches => match Tree::decode(attr)? {
                None => return Ok(None),
                Some(tree) if tree.nodes.is_empty() => return Ok(Some(None)),
                Some(tree) => Value::Matches(Box::new(tree)),
            },
            Takes::Police => Value::Police(Box::new(Police::decode(attr.nested())?)),
            Takes::Actions => match Action::decode_list(attr, actions)? {
                None => return Ok(None),
                Some(()) => Value::Actions,
            },
            _ => Value::Number(attr.u32()?),
        })))
    }

    /// Converts the rule to the form that the kernel would dump on a qdisc with this handle: only the last
    /// value of each option, and no default values.
    pub(super) fn canonicalize(&mut self, qdisc: u32) {
        self.has_options = true;
        self.options.sort_by_key(|(number, _)| *number);
        last_of_each(&mut self.options, |(number, _)| *number);
        match self.kind {
            ListedKind::Fw => fw::canonicalize(&mut self.options),
            ListedKind::Flow => flow::canonicalize(&mut self.options, qdisc),
            ListedKind::Basic | ListedKind::Cgroup | ListedKind::Route => {}
        }
        let kind = self.kind;
        let takes = |number| Self { kind, options: Vec::new(), has_options: false }.takes(number);
        self.options.retain(|(number, value)| {
            *value != Value::Number(0)
                || !matches!(takes(*number), Some(Takes::Class | Takes::Number | Takes::Addend))
                || flow::is_dumped_as_zero(kind, *number)
        });
        for (_, value) in &mut self.options {
            match value {
                Value::Matches(tree) => tree.canonicalize(),
                Value::Police(police) => **police = (**police).clone().canonical(),
                Value::Number(_) | Value::Name(_) | Value::Actions => {}
            }
        }
    }

    /// Formats a handle; for fw, includes the mask.
    pub(super) fn handle_words(&self, handle: u32) -> Option<String> {
        let mask = self.options.iter().find_map(|(number, value)| match value {
            Value::Number(mask) if self.kind == ListedKind::Fw && *number == fw::MASK => Some(*mask),
            _ => None,
        });
        match mask {
            Some(mask) => Some(format!("{handle:#x}/{mask:#x}")),
            None => (handle != 0).then(|| format!("{handle:#x}")),
        }
    }

    pub(super) fn words(&self, words: &mut String, actions: &str, lookup: &mut dyn Lookup) -> Option<()> {
        // iproute2 6.1 refuses an expression at the end of the line, so put it first.
        let (mut first, mut middle) = (String::new(), String::new());
        for (number, value) in &self.options {
            let word = self.kind.shape().words.iter().find(|word| word.number == *number && *number != 0);
            match value {
                Value::Matches(tree) => first = format!(" match {}", tree.words()?),
                Value::Police(police) => middle.push_str(&format!(" {}", police.words()?)),
                Value::Name(name) => middle.push_str(&format!(" {} {}", word?.text, quoted(name)?)),
                Value::Actions => {}
                Value::Number(value) => match word {
                    // The mask of fw is part of the handle.
                    None if self.kind == ListedKind::Fw => {}
                    None => middle.push_str(&flow::gathered_words(*number, *value)?),
                    Some(word) => {
                        let value = match word.takes {
                            Takes::Class | Takes::Minor => number::class_name(*value),
                            Takes::Keys => flow::key_words(*value)?,
                            Takes::Device => quoted(&lookup.name_of(IfIndex(*value))?)?,
                            _ => value.to_string(),
                        };
                        middle.push_str(&format!(" {} {value}", word.text));
                    }
                },
            }
        }
        if self.kind == ListedKind::Basic && middle.is_empty() && actions.is_empty() && !first.is_empty() {
            middle.push_str(" classid none");
        }
        words.push_str(&first);
        words.push_str(&middle);
        words.push_str(actions);
        Some(())
    }
}

/// Returns the keyword that equals this text, or else the first keyword that the text abbreviates.
fn find(shape: &'static Shape, text: &str) -> Option<&'static Word> {
    let exact = shape.words.iter().find(|word| word.text == text);
    exact.or_else(|| shape.words.iter().find(|word| !word.whole && abbreviates(text, word.text)))
}
