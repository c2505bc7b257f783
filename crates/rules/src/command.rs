//! One line of a batch file, as a value: what is added, replaced or removed.
//!
//! Kernel: 6.18, `include/uapi/linux/rtnetlink.h` `struct tcmsg`, `RTM_NEWTFILTER` and its like, `TCA_*`.

use model::IfIndex;

use crate::action::{Action, Kind};
use crate::attr::{AttrBuf, Attrs, Malformed};
use crate::batch::Batch;
use crate::classifier::{self, Classifier};
use crate::lookup::Lookup;
use crate::number::{self, Base};
use crate::protocol;
use crate::words::{Read, Words, abbreviates, keywords};

/// The messages' numbers: `RTM_*`.
pub mod message {
    /// `RTM_NEWQDISC`.
    pub const NEW_QDISC: u16 = 36;
    /// `RTM_DELQDISC`.
    pub const DEL_QDISC: u16 = 37;
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
}

/// Bits of a request: `NLM_F_*`.
mod flag {
    pub(super) const REQUEST: u16 = 0x1;
    pub(super) const REPLACE: u16 = 0x100;
    pub(super) const EXCL: u16 = 0x200;
    pub(super) const CREATE: u16 = 0x400;
}

const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const CHAIN: u16 = 11;
const INGRESS_BLOCK: u16 = 13;
const EGRESS_BLOCK: u16 = 14;

/// `TCA_ACT_TAB`.
const ACT_TAB: u16 = 1;
/// `TCA_ACT_INDEX`.
const ACT_INDEX: u16 = 3;

/// The parent of both hooks of a device: `TC_H_CLSACT`, which is `TC_H_INGRESS` too.
const CLSACT: u32 = 0xffff_fff1;
/// The hook where packets come in: `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)`.
pub const INGRESS: u32 = 0xffff_fff2;
/// The hook where packets go out: `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)`.
pub const EGRESS: u32 = 0xffff_fff3;
/// The root of a device: `TC_H_ROOT`.
const ROOT: u32 = u32::MAX;

/// The device that means a block: `TCM_IFINDEX_MAGIC_BLOCK`.
const BLOCK: u32 = u32::MAX;

keywords! {
    /// What a line is about. iproute2 takes the beginning of each.
    enum About {
        Qdisc = "qdisc",
        Filter = "filter",
        Chain = "chain",
        Actions = "actions",
        Action = "action",
    }
}

keywords! {
    /// What is done with it.
    enum VerbWord {
        Add = "add",
        Change = "change",
        Replace = "replace",
        Delete = "delete",
    }
}

keywords! {
    /// The words before the classifier, in iproute2's order.
    enum PlaceWord {
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
    }
}

/// What is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verb {
    /// It must not be there.
    #[default]
    Add,
    /// It must be there.
    Change,
    /// It may be there.
    Replace,
    /// It goes away.
    Delete,
}

/// Where a rule hangs: `struct tcmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hook {
    /// The device; 0 if none is named.
    pub device: IfIndex,
    /// The block, where rules belong to several devices.
    pub block: u32,
    /// The parent: a hook or a class.
    pub parent: u32,
}

impl Default for Hook {
    fn default() -> Self {
        Self { device: IfIndex(0), block: 0, parent: 0 }
    }
}

/// Rules that the kernel keeps together: one hook, one chain, one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// Where they hang.
    pub hook: Hook,
    /// Their chain.
    pub chain: u32,
    /// Their priority; 0 for one that the kernel chooses.
    pub priority: u16,
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// What is done.
    pub verb: Verb,
    /// Where it hangs.
    pub hook: Hook,
    /// The Ethernet protocol, host order.
    pub protocol: u16,
    /// The priority.
    pub priority: u16,
    /// The chain, if the line names one.
    pub chain: Option<u32>,
    /// The handle; 0 for the kernel to choose.
    pub handle: u32,
    /// Which packets it matches.
    pub classifier: Classifier,
    /// What is done with them.
    pub actions: Vec<Action>,
    /// Whether it is a chain and not a rule.
    pub is_chain: bool,
}

/// A queueing discipline that rules hang on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// What is done.
    pub verb: Verb,
    /// The device.
    pub device: IfIndex,
    /// Whether it has a hook for what goes out, too: `clsact` instead of `ingress`.
    pub clsact: bool,
    /// The block of the rules for what comes in.
    pub ingress_block: Option<u32>,
    /// The block of the rules for what goes out.
    pub egress_block: Option<u32>,
}

/// Actions without a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// These are made; with `replace`, they may be there.
    Made(Vec<Action>, Verb),
    /// These go away: kind and index of each.
    Removed(Vec<(String, u32)>),
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
}

impl Default for Command {
    fn default() -> Self {
        Self::Filter(Filter::default())
    }
}

impl Command {
    /// Reads a line into this value, whose memory is used again.
    ///
    /// # Errors
    /// What tc would not take, or takes and we do not know.
    pub fn parse(&mut self, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<()> {
        self.parse_with_head(words, lookup).map(drop)
    }

    /// The same; gives the words before the handle and the classifier, and how many there are.
    pub(crate) fn parse_with_head(
        &mut self,
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
    ) -> Read<Option<(Head, usize)>> {
        let about = words.peek().and_then(About::find).ok_or_else(|| words.unknown_here(About::WORDS))?;
        words.skip();
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
            About::Filter | About::Chain => {
                let head = Head::parse(verb, about == About::Chain, words, lookup)?;
                found = Some((head, words.place()));
                self.parse_behind(head, words, lookup)?;
            }
            About::Qdisc => *self = Self::Qdisc(Qdisc::parse(verb, words, lookup)?),
            About::Actions | About::Action => *self = Self::Actions(Standing::parse(verb, words, lookup)?),
        }
        match words.peek() {
            None => Ok(found),
            Some(_) => Err(words.wrong_here("the line should end here")),
        }
    }

    /// Reads what follows the head of a rule or chain.
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

    /// Writes the message for it, with this number and these flags beside its own.
    pub fn encode(&self, sequence: u32, flags: u16, out: &mut AttrBuf) {
        match self {
            Self::Filter(filter) => filter.encode(sequence, flags, out),
            Self::Qdisc(qdisc) => qdisc.encode(sequence, flags, out),
            Self::Actions(standing) => standing.encode(sequence, flags, out),
        }
    }

    /// Whether it takes something away.
    pub fn removes(&self) -> bool {
        match self {
            Self::Filter(filter) => filter.verb == Verb::Delete,
            Self::Qdisc(qdisc) => qdisc.verb == Verb::Delete,
            Self::Actions(standing) => matches!(standing, Standing::Removed(_)),
        }
    }

    /// The rule, if it is one and not a chain.
    pub const fn rule(&self) -> Option<&Filter> {
        match self {
            Self::Filter(filter) if !filter.is_chain => Some(filter),
            Self::Filter(_) | Self::Qdisc(_) | Self::Actions(_) => None,
        }
    }
}

/// What a line says of a rule before its handle and its classifier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    verb: Verb,
    is_chain: bool,
    hook: Hook,
    protocol: Option<u16>,
    priority: u16,
    chain: Option<u32>,
}

impl Head {
    fn parse(verb: Verb, is_chain: bool, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<Self> {
        if is_chain && matches!(verb, Verb::Change | Verb::Replace) {
            return Err(words.wrong("a chain is added or deleted"));
        }
        let mut head =
            Self { verb, is_chain, hook: Hook::default(), protocol: None, priority: 0, chain: None };
        while let Some(word) = words.peek().and_then(PlaceWord::find).filter(|w| *w != PlaceWord::Handle) {
            words.skip();
            head.word(word, words, lookup)?;
        }
        Ok(head)
    }

    /// Reads what belongs to a word.
    fn word(&mut self, word: PlaceWord, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<()> {
        let hook = match word {
            PlaceWord::Dev if self.hook.device.0 == 0 && self.hook.block == 0 => {
                self.hook.device =
                    words.read("the name of a device that is there", |name| lookup.device(name))?;
                return Ok(());
            }
            PlaceWord::Block if self.hook.block == 0 && self.hook.device.0 == 0 => {
                let number = |word| number::u32(word, Base::Prefix).filter(|block| *block != 0);
                self.hook.block = words.read("a block: 1 or more", number)?;
                return Ok(());
            }
            PlaceWord::Dev | PlaceWord::Block => {
                return Err(words.wrong("the line names a device or block already"));
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
            PlaceWord::Root => ROOT,
            PlaceWord::Ingress => INGRESS,
            PlaceWord::Egress => EGRESS,
            PlaceWord::Parent => words.read("a class, as in 1:10 or ffff:", number::class)?,
            PlaceWord::Handle
            | PlaceWord::Protocol
            | PlaceWord::Preference
            | PlaceWord::Priority
            | PlaceWord::Chain => {
                return Err(words.wrong("the line says this already"));
            }
        };
        if self.hook.parent != 0 {
            return Err(words.wrong("the line names a parent already"));
        }
        self.hook.parent = hook;
        Ok(())
    }
}

impl Filter {
    /// Where it belongs.
    pub fn group(&self) -> Group {
        Group { hook: self.hook, chain: self.chain.unwrap_or(0), priority: self.priority }
    }

    /// Reads what follows the head.
    fn parse_behind(&mut self, mut head: Head, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<()> {
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
        let Head { verb, is_chain, hook, protocol, priority, chain } = head;
        self.actions.clear();
        (self.verb, self.is_chain, self.hook) = (verb, is_chain, hook);
        (self.priority, self.chain, self.handle) = (priority, chain, 0);
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
                return Err(place.wrong("a handle needs the kind of the classifier behind it"));
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
            // The protocol lies in the lower half as on the wire.
            let info = u32::from(self.priority) << 16 | u32::from(self.protocol.to_be());
            tcmsg(self.hook, self.handle, info, out);
            if let Some(chain) = self.chain {
                out.u32(CHAIN, chain);
            }
            if let Some(kind) = self.classifier.kind() {
                out.text(KIND, kind);
            }
            self.classifier.encode(OPTIONS, &self.actions, out);
        });
    }

    /// Writes the message that removes this rule, and it alone: it must have a handle and a priority.
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

    /// Reads the body of a dumped rule into this value; `None` for what has no rule in it (the kernel tells of a
    /// priority before its rules), or a kind that we do not know all of.
    ///
    /// # Errors
    /// If an attribute is malformed.
    pub fn decode(&mut self, body: &[u8]) -> Result<Option<()>, Malformed> {
        let header: &[u8; 20] = body.first_chunk().ok_or(Malformed("a rule's header is cut short"))?;
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
        (self.verb, self.is_chain) = (Verb::Add, false);
        self.actions.clear();
        let attrs = Attrs::after(header.len(), body)?;
        self.chain = attrs.find(CHAIN)?.map(|chain| chain.u32()).transpose()?.filter(|chain| *chain != 0);
        let kind = attrs.find(KIND)?.ok_or(Malformed("a rule without a kind"))?;
        let Some(options) = attrs.find(OPTIONS)? else { return Ok(None) };
        if self.handle == 0 || !self.classifier.become_kind(kind.text()?) {
            return Ok(None);
        }
        self.classifier.decode(&options, self.protocol, &mut self.actions)
    }

    /// The same as the kernel would tell it: rules that do the same are equal then.
    #[must_use]
    pub fn canonical(&self) -> Self {
        let mut rule = self.clone();
        rule.canonicalize();
        rule
    }

    /// Becomes what the kernel would tell of it.
    pub(crate) fn canonicalize(&mut self) {
        self.verb = Verb::Add;
        self.chain = self.chain.filter(|chain| *chain != 0);
        self.handle = self.classifier.canonical_handle(self.handle);
        self.classifier.canonicalize();
        self.actions.iter_mut().for_each(Action::canonicalize);
        // A rule's actions are where the rule is: the kernel says so of each, and refuses what differs.
        // Kernel: 6.18, net/sched/act_api.c tcf_action_init().
        let (skip_hw, skip_sw) =
            self.classifier.offload().map_or((false, false), |offload| (offload.skip_hw, offload.skip_sw));
        for action in &mut self.actions {
            action.skip_hw |= skip_hw;
            action.skip_sw |= skip_sw;
        }
    }

    /// Becomes another rule, with the memory that this one has.
    pub(crate) fn assign(&mut self, other: &Self) {
        self.classifier.assign(&other.classifier);
        self.actions.clone_from(&other.actions);
        (self.verb, self.hook, self.protocol) = (other.verb, other.hook, other.protocol);
        (self.priority, self.chain, self.handle) = (other.priority, other.chain, other.handle);
        self.is_chain = other.is_chain;
    }

    /// The line for it; `None` for what tc has no words for.
    pub fn words(&self, lookup: &mut dyn Lookup) -> Option<String> {
        let mut line = "filter add".to_owned();
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
        line.push_str(&format!(" protocol {}", protocol::name(self.protocol)));
        if self.priority != 0 {
            line.push_str(&format!(" prio {}", self.priority));
        }
        if let Some(chain) = self.chain {
            line.push_str(&format!(" chain {chain}"));
        }
        if let Some(handle) = self.classifier.handle_words(self.handle) {
            line.push_str(&format!(" handle {handle}"));
        }
        line.push_str(&format!(" {}", self.classifier.kind()?));
        let mut actions = String::new();
        for action in &self.actions {
            actions.push_str(&format!(" action {}", action.words(lookup)?));
        }
        self.classifier.words(&mut line, &actions)?;
        Some(line)
    }
}

impl Filter {
    /// The line for it, as [`Filter::words`] has it, if reading that line gives this very rule: what is printed to be
    /// loaded again never means something else.
    pub fn line(&self, lookup: &mut dyn Lookup) -> Option<String> {
        let line = self.words(lookup)?;
        let mut batch = Batch::new(line.as_bytes());
        let same = match batch.next_command(lookup) {
            Ok(Some((_, command))) => command.rule().is_some_and(|rule| rule.canonical() == self.canonical()),
            Ok(None) | Err(_) => false,
        };
        same.then_some(line)
    }
}

/// The words before the classifier, and the classifiers: what a word may be that is neither.
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
    "flower",
    "u32",
    "matchall",
    "bpf",
];

/// `struct tcmsg`.
fn tcmsg(hook: Hook, handle: u32, info: u32, out: &mut AttrBuf) {
    let (device, parent) = if hook.block == 0 { (hook.device.0, hook.parent) } else { (BLOCK, hook.block) };
    let mut bytes = [0; 20];
    for (word, at) in [device, handle, parent, info].into_iter().zip([4, 8, 12, 16]) {
        bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    out.raw(&bytes);
}

impl Qdisc {
    fn parse(verb: Verb, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<Self> {
        let mut qdisc =
            Self { verb, device: IfIndex(0), clsact: false, ingress_block: None, egress_block: None };
        let mut named = false;
        let block = |word| number::u32(word, Base::Prefix).filter(|block| *block != 0);
        while let Some(word) = words.peek() {
            words.skip();
            match word {
                "dev" => {
                    qdisc.device =
                        words.read("the name of a device that is there", |name| lookup.device(name))?;
                }
                "clsact" | "ingress" if !named => (qdisc.clsact, named) = (word == "clsact", true),
                "handle" => {
                    words.read("ffff:", |word| (number::class(word) == Some(0xffff_0000)).then_some(()))?;
                }
                _ if abbreviates(word, "ingress_block") => {
                    qdisc.ingress_block = Some(words.read("a block: 1 or more", block)?);
                }
                _ if abbreviates(word, "egress_block") => {
                    qdisc.egress_block = Some(words.read("a block: 1 or more", block)?);
                }
                _ => {
                    words.back();
                    return Err(words.unknown_here(&[
                        "dev",
                        "ingress",
                        "clsact",
                        "handle",
                        "ingress_block",
                        "egress_block",
                    ]));
                }
            }
        }
        if !named {
            return Err(words.unknown_here(&["ingress", "clsact"]));
        }
        Ok(qdisc)
    }

    fn encode(&self, sequence: u32, flags: u16, out: &mut AttrBuf) {
        let (kind, own) = match self.verb {
            Verb::Add => (message::NEW_QDISC, flag::EXCL | flag::CREATE),
            Verb::Change => (message::NEW_QDISC, 0),
            Verb::Replace => (message::NEW_QDISC, flag::CREATE | flag::REPLACE),
            Verb::Delete => (message::DEL_QDISC, 0),
        };
        out.message(kind, flag::REQUEST | own | flags, sequence, |out| {
            let hook = Hook { device: self.device, block: 0, parent: CLSACT };
            tcmsg(hook, 0xffff_0000, 0, out);
            out.text(KIND, if self.clsact { "clsact" } else { "ingress" });
            self.ingress_block.inspect(|block| _ = out.u32(INGRESS_BLOCK, *block));
            self.egress_block.inspect(|block| _ = out.u32(EGRESS_BLOCK, *block));
        });
    }
}

impl Standing {
    fn parse(verb: Verb, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<Self> {
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
            let known = ["gact", "mirred", "tunnel_key", "skbedit", "vlan", "pedit", "police", "ct", "csum"];
            if !known.contains(&word) {
                return Err(words.wrong(format!("`{word}` is not a kind of action")));
            }
            words.read("`index`", |word| abbreviates(word, "index").then_some(()))?;
            removed.push((word.to_owned(), words.read("an index", |word| number::u32(word, Base::Ten))?));
        }
        if removed.is_empty() { Err(words.unknown_here(&["action"])) } else { Ok(Self::Removed(removed)) }
    }

    fn encode(&self, sequence: u32, flags: u16, out: &mut AttrBuf) {
        let (kind, own) = match self {
            Self::Made(_, Verb::Add) => (message::NEW_ACTION, flag::EXCL | flag::CREATE),
            Self::Made(..) => (message::NEW_ACTION, flag::CREATE | flag::REPLACE),
            Self::Removed(_) => (message::DEL_ACTION, 0),
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
            }
        });
    }
}

/// The number of an instance, by which rules share it.
pub(crate) const fn index_of(kind: &Kind) -> u32 {
    kind.instance().index
}
