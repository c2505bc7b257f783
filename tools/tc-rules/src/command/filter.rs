//! A rule or a chain: parsed from words, encoded as a message, decoded from a dump, formatted as words.

use crate::action::{Action, Kind};
use crate::classifier::{self, Classifier};
use crate::lookup::Lookup;
use crate::number;
use crate::protocol;
use crate::words::{Read, Words, abbreviates};
use model::IfIndex;
use netlink::attr::{AttrBuf, Attrs, Malformed};

use super::estimator::Estimator;
use super::head::{Head, PlaceWord};
use super::tcmsg::{
    BLOCK, CHAIN, EGRESS, Group, Hook, INGRESS, KIND, OPTIONS, RATE, Verb, flag, message, tcmsg,
};

/// Size of a `struct tcmsg`.
const HEADER_BYTES: usize = 20;

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The verb.
    pub verb: Verb,
    /// The hook.
    pub hook: Hook,
    /// The Ethernet protocol, host order.
    pub protocol: u16,
    /// The priority.
    pub priority: u16,
    /// The chain, if the line names one.
    pub chain: Option<u32>,
    /// The handle; 0 lets the kernel choose.
    pub handle: u32,
    /// The classifier.
    pub classifier: Classifier,
    /// The actions.
    pub actions: Vec<Action>,
    /// Whether this is a chain rather than a rule.
    pub is_chain: bool,
    /// The rate estimator of the rule's police actions, if the line gives one. A dump does not show it.
    pub estimator: Option<Estimator>,
}

impl Filter {
    /// Returns the group that the rule belongs to.
    pub fn group(&self) -> Group {
        Group { hook: self.hook, chain: self.chain.unwrap_or(0), priority: self.priority }
    }

    /// Parses the options after the head.
    pub(super) fn parse_behind(
        &mut self,
        mut head: Head,
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
    ) -> Read<()> {
        let (mut kind, mut handle) = (None, None);
        while let Some(word) = words.peek() {
            words.skip();
            match PlaceWord::find(word) {
                Some(PlaceWord::Handle) if handle.is_none() => {
                    words.value()?;
                    let mut place = words.clone();
                    place.back();
                    handle = Some(place);
                }
                Some(word) => head.word(word, words, lookup)?,
                None => {
                    kind = Some(word);
                    break;
                }
            }
        }
        let Head { verb, is_chain, hook, protocol, priority, chain, estimator } = head;
        self.actions.clear();
        (self.verb, self.is_chain, self.hook) = (verb, is_chain, hook);
        (self.priority, self.chain, self.handle, self.estimator) = (priority, chain, 0, estimator);
        let every = if matches!(verb, Verb::Add | Verb::Replace) && !(is_chain && verb == Verb::Replace) {
            protocol::ALL
        } else {
            0
        };
        self.protocol = protocol.unwrap_or(if is_chain { 0 } else { every });
        match kind {
            None => self.classifier = Classifier::None,
            Some(kind) if !self.classifier.become_kind(kind) => {
                words.back();
                let mut expected = words.unknown_here(PlaceWord::WORDS);
                if classifier::KINDS.iter().any(|known| abbreviates(kind, known)) || kind.len() > 3 {
                    expected = expected.expecting(BEFORE_AND_KINDS);
                }
                return Err(expected);
            }
            Some(_) => {}
        }
        if let Some(mut place) = handle {
            if kind.is_none() {
                place.skip();
                return Err(place.wrong("a handle must be followed by the kind of the classifier"));
            }
            self.handle = place.read("a handle of this classifier", |word| self.classifier.handle(word))?;
        }
        let has_handle = self.handle != 0;
        let place = (self.protocol, self.hook.parent);
        self.classifier.parse(words, lookup, &mut self.actions, (&mut self.handle, has_handle), place)
    }

    pub(crate) fn encode(&self, sequence: u32, flags: u16, out: &mut AttrBuf) {
        let kind = match (self.is_chain, self.verb) {
            (false, Verb::Delete) => message::DEL_FILTER,
            (false, _) => message::NEW_FILTER,
            (true, Verb::Delete) => message::DEL_CHAIN,
            (true, _) => message::NEW_CHAIN,
        };
        let own = match self.verb {
            Verb::Add => flag::EXCL | flag::CREATE,
            Verb::Replace => flag::CREATE,
            Verb::Change | Verb::Delete => 0,
        };
        out.message(kind, flag::REQUEST | own | flags, sequence, |out| {
            // The lower half of `info` is the protocol, in network byte order.
            let info = u32::from(self.priority) << 16 | u32::from(self.protocol.to_be());
            tcmsg(self.hook, self.handle, info, out);
            if let Some(chain) = self.chain {
                out.u32(CHAIN, chain);
            }
            if let Some(kind) = self.classifier.kind() {
                out.text(KIND, kind);
            }
            self.classifier.encode(OPTIONS, &self.actions, out);
            if let Some(estimator) = self.estimator {
                out.bytes(RATE, &estimator.bytes());
            }
        });
    }

    /// Encodes the message that removes only this rule, which must have a handle and a priority.
    pub fn encode_removal(&self, sequence: u32, flags: u16, out: &mut AttrBuf) {
        out.message(message::DEL_FILTER, flag::REQUEST | flags, sequence, |out| {
            let info = u32::from(self.priority) << 16 | u32::from(self.protocol.to_be());
            tcmsg(self.hook, self.handle, info, out);
            if let Some(chain) = self.chain {
                out.u32(CHAIN, chain);
            }
            if let Some(kind) = self.classifier.kind() {
                out.text(KIND, kind);
            }
        });
    }

    /// Decodes the body of a dumped rule into this value. Returns `None` if the object contains no rule, as
    /// when the kernel dumps a priority before its rules, or if the rule's kind is not fully known.
    ///
    /// # Errors
    /// If an attribute is malformed.
    pub fn decode(&mut self, body: &[u8]) -> Result<Option<()>, Malformed> {
        self.decode_body(body, true)
    }

    /// Decodes the body of a message that adds or replaces a rule, which may lack a handle. Returns `None` as
    /// [`Filter::decode`] does.
    pub(crate) fn decode_request(&mut self, body: &[u8]) -> Result<Option<()>, Malformed> {
        self.decode_body(body, false)
    }

    fn decode_body(&mut self, body: &[u8], needs_handle: bool) -> Result<Option<()>, Malformed> {
        let header: &[u8; HEADER_BYTES] =
            body.first_chunk().ok_or(Malformed("a rule's header is truncated"))?;
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let info = word(16);
        let of_block = word(4) == BLOCK;
        self.hook = Hook {
            device: IfIndex(if of_block { 0 } else { word(4) }),
            block: if of_block { word(12) } else { 0 },
            parent: if of_block { 0 } else { word(12) },
        };
        self.handle = word(8);
        self.protocol = u16::from_be(u16::try_from(info & 0xffff).unwrap_or(0));
        self.priority = u16::try_from(info >> 16).unwrap_or(0);
        (self.verb, self.is_chain, self.estimator) = (Verb::Add, false, None);
        self.actions.clear();
        let attrs = Attrs::after(header.len(), body)?;
        self.chain = attrs.find(CHAIN)?.map(|chain| chain.u32()).transpose()?.filter(|chain| *chain != 0);
        let kind = attrs.find(KIND)?.ok_or(Malformed("a rule without a kind"))?;
        let Some(options) = attrs.find(OPTIONS)? else { return Ok(None) };
        if (needs_handle && self.handle == 0) || !self.classifier.become_kind(kind.text()?) {
            return Ok(None);
        }
        self.classifier.decode(&options, self.protocol, &mut self.actions)
    }

    /// Decodes the body of a dumped chain of this hook into this value: its number, and the template that its
    /// rules must match. Returns `None` if the template is not fully known.
    ///
    /// Kernel: 6.18, `net/sched/cls_api.c` `tc_chain_fill_node()`, which names the qdisc instead of its hook.
    ///
    /// # Errors
    /// If an attribute is malformed.
    pub fn decode_chain(&mut self, hook: Hook, body: &[u8]) -> Result<Option<()>, Malformed> {
        let attrs = Attrs::after(HEADER_BYTES, body)?;
        *self = Self { hook, is_chain: true, ..Self::default() };
        self.chain = attrs.find(CHAIN)?.map(|chain| chain.u32()).transpose()?;
        let Some(kind) = attrs.find(KIND)? else { return Ok(Some(())) };
        let Some(options) = attrs.find(OPTIONS)? else { return Ok(None) };
        if !self.classifier.become_kind(kind.text()?) {
            return Ok(None);
        }
        self.protocol = self.classifier.protocol_in(&options)?;
        self.classifier.decode(&options, self.protocol, &mut self.actions)
    }

    /// Sets the number of the u32 root table of this dumped rule's priority (`800:` as a number, 0 if
    /// unknown). Rules that name no table are in the root table.
    pub fn set_root(&mut self, table: u32) {
        if let Classifier::U32(rule) = &mut self.classifier {
            rule.root = table;
        }
    }

    /// Whether this is a u32 rule known to be in the root table of its priority.
    pub fn is_in_root(&self) -> bool {
        matches!(&self.classifier, Classifier::U32(rule) if rule.root != 0 && self.handle >> 20 == rule.root >> 20)
    }

    /// Returns this rule in the form that the kernel would dump, so that equivalent rules are equal.
    #[must_use]
    pub fn canonical(&self) -> Self {
        let mut rule = self.clone();
        rule.canonicalize();
        rule
    }

    /// Converts the filter to the form that the kernel would dump.
    pub(crate) fn canonicalize(&mut self) {
        (self.verb, self.estimator) = (Verb::Add, None);
        self.chain = self.chain.filter(|chain| *chain != 0);
        self.handle = self.classifier.canonical_handle(self.handle);
        self.classifier.canonicalize(self.handle, self.hook.parent);
        self.actions.iter_mut().for_each(Action::canonicalize);
        // Actions have the offload flags of their rule: the kernel reports them for each action, and refuses
        // different ones. Kernel: 6.18, net/sched/act_api.c tcf_action_init().
        let (skip_hw, skip_sw) =
            self.classifier.offload().map_or((false, false), |offload| (offload.skip_hw, offload.skip_sw));
        for action in &mut self.actions {
            action.skip_hw |= skip_hw;
            action.skip_sw |= skip_sw;
        }
    }

    /// Copies another rule, reusing the memory of this one.
    pub(crate) fn assign(&mut self, other: &Self) {
        self.classifier.assign(&other.classifier);
        self.actions.clone_from(&other.actions);
        (self.verb, self.hook, self.protocol) = (other.verb, other.hook, other.protocol);
        (self.priority, self.chain, self.handle) = (other.priority, other.chain, other.handle);
        (self.is_chain, self.estimator) = (other.is_chain, other.estimator);
    }

    /// Whether one of the rule's actions targets a device that was deleted.
    pub fn has_lost_device(&self) -> bool {
        let lost = |action: &Action| matches!(&action.kind, Kind::Mirred(mirred) if mirred.has_lost_device());
        self.actions.iter().any(lost)
    }

    /// Formats the rule or chain as a line; returns `None` if tc has no syntax for it.
    pub fn words(&self, lookup: &mut dyn Lookup) -> Option<String> {
        let mut line = if self.is_chain { "chain add" } else { "filter add" }.to_owned();
        if self.hook.block != 0 {
            line.push_str(&format!(" block {}", self.hook.block));
        } else if self.hook.device.0 != 0 {
            let device = self.hook.device;
            let name = lookup.name_of(device).unwrap_or_else(|| format!("if{}", device.0));
            line.push_str(&format!(" dev {name}"));
        }
        match self.hook.parent {
            0 => {}
            INGRESS => line.push_str(" ingress"),
            EGRESS => line.push_str(" egress"),
            parent => line.push_str(&format!(" parent {}", number::class_name(parent))),
        }
        if !self.is_chain || self.protocol != 0 {
            line.push_str(&format!(" protocol {}", protocol::name(self.protocol)));
        }
        if self.priority != 0 {
            line.push_str(&format!(" prio {}", self.priority));
        }
        if let Some(chain) = self.chain {
            line.push_str(&format!(" chain {chain}"));
        }
        if let Some(handle) = self.classifier.handle_words(self.handle) {
            line.push_str(&format!(" handle {handle}"));
        }
        let Some(kind) = self.classifier.kind() else { return self.is_chain.then_some(line) };
        line.push_str(&format!(" {kind}"));
        let mut actions = String::new();
        for action in &self.actions {
            actions.push_str(&format!(" action {}", action.words(lookup)?));
        }
        self.classifier.words(&mut line, &actions, lookup)?;
        Some(line)
    }
}

/// The words that are allowed before the classifier, and the classifiers: suggestions for a word that is
/// neither.
const BEFORE_AND_KINDS: &[&str] = &[
    "dev",
    "block",
    "root",
    "ingress",
    "egress",
    "parent",
    "handle",
    "preference",
    "priority",
    "protocol",
    "chain",
    "estimator",
    "flower",
    "u32",
    "matchall",
    "bpf",
    "basic",
    "cgroup",
    "flow",
    "fw",
    "route",
];
