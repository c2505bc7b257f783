//! `u32`: matches 32 bits of the packet at a time, and hashes into tables of rules.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_U32_*`, `net/sched/cls_u32.c` `u32_change()`.

use super::flower::{NAME_BYTES, device_name};
use super::offload::Offload;
use super::u32_selector::{Selector, TERMINAL};
use crate::action::Action;
use crate::action::police::Police;
use crate::lookup::Lookup;
use crate::number::{self, Base};
use crate::words::{Read, Words, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed, last_of_each};

const CLASSID: u16 = 1;
const HASH: u16 = 2;
const LINK: u16 = 3;
const DIVISOR: u16 = 4;
const SEL: u16 = 5;
const POLICE: u16 = 6;
const ACT: u16 = 7;
const INDEV: u16 = 8;
const MARK: u16 = 10;
const FLAGS: u16 = 11;

/// Maximum number of buckets in a hash table.
const DIVISOR_MAX: u32 = 256;

/// The bits of a handle for the hash table, and those for the rule within a bucket.
const TABLE: u32 = 0xfff0_0000;
const NODE: u32 = 0xfff;

keywords! {
    /// The keywords of the classifier, in iproute2's order.
    enum Word {
        Match = "match",
        Offset = "offset",
        Hashkey = "hashkey",
        Classid = "classid",
        Flowid = "flowid" exact,
        Divisor = "divisor",
        Order = "order",
        Link = "link" exact,
        Ht = "ht" exact,
        Sample = "sample" exact,
        Indev = "indev" exact,
        Action = "action",
        Police = "police",
        SkipHw = "skip_hw" exact,
        SkipSw = "skip_sw" exact,
    }
}

keywords! {
    /// The protocols and units that a selector can name.
    enum Sample {
        U32 = "u32",
        U16 = "u16",
        U8 = "u8",
        Ip = "ip",
        Ip6 = "ip6",
        Udp = "udp",
        Tcp = "tcp",
        Icmp = "icmp",
        Mark = "mark",
        Ether = "ether",
    }
}

/// A part of a rule whose position in the line determines its position in the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The class for the packet.
    Class(u32),
    /// The rule is a hash table with this many buckets.
    Divisor(u32),
    /// Matching continues in this hash table.
    Link(u32),
    /// The device that received the packet.
    Indev([u8; NAME_BYTES]),
    /// The packet's mark and its mask.
    Mark(u32, u32),
    /// A police action.
    Police(Box<Police>),
    /// Marks the position of the rule's actions.
    Actions,
}

/// The classifier.
#[derive(Clone, Debug, Default)]
pub struct U32 {
    /// The parts in the order of the line.
    pub parts: Vec<Part>,
    /// The hash table and bucket that contain the rule; 0 for the root table of its priority.
    pub table: u32,
    /// The number of the root table, which the kernel has assigned and a dump shows.
    pub root: u32,
    /// The selector, if there is one.
    pub selector: Option<Selector>,
    /// Memory to reuse for the next selector.
    spare: Selector,
    /// Whether the rule is installed in software, in hardware, or both.
    pub offload: Offload,
    /// Whether the line has any options after the kind.
    pub options: bool,
}

impl PartialEq for U32 {
    fn eq(&self, other: &Self) -> bool {
        // The comparison ignores the spare memory.
        let all = |rule: &Self| (rule.table, rule.offload, rule.options);
        all(self) == all(other) && self.parts == other.parts && self.selector == other.selector
    }
}

impl Eq for U32 {}

impl U32 {
    /// Clears the rule but keeps the memory.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        if let Some(selector) = self.selector.take() {
            self.spare = selector;
        }
        (self.table, self.root) = (0, 0);
        (self.offload, self.options) = (Offload::default(), false);
    }

    fn empty_selector(&mut self) -> Selector {
        Selector::emptied(std::mem::take(&mut self.spare))
    }

    /// Parses the rule. The keyword `order` may complete `handle`.
    pub(super) fn parse(
        &mut self,
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
        actions: &mut Vec<Action>,
        handle: &mut u32,
        has_handle: bool,
    ) -> Read<()> {
        self.options = words.peek().is_some();
        let mut selector = self.empty_selector();
        let (mut selects, mut sampled) = (false, false);
        while let Some(word) = words.peek() {
            let Some(word) = Word::find(word) else { return Err(words.unknown_here(Word::WORDS)) };
            words.skip();
            match word {
                Word::Match => {
                    self.select(words, &mut selector)?;
                    selects = true;
                }
                Word::Offset => selector.offset(words)?,
                Word::Hashkey => selector.hashkey(words)?,
                Word::Classid | Word::Flowid => {
                    self.parts.push(Part::Class(words.read("a class", number::class)?));
                    selector.flags |= TERMINAL;
                }
                Word::Divisor => self.parts.push(Part::Divisor(divisor(words)?)),
                Word::Order => {
                    let order = words.read("a number", |word| number::u32(word, Base::Prefix))?;
                    let node = *handle & 0xfff;
                    if order != 0 && node != 0 && node != order {
                        return Err(words.wrong("`order` contradicts the handle"));
                    }
                    *handle |= order;
                }
                Word::Link => {
                    let link = words
                        .read("a hash table, as in 1:", |word| handle_of(word).filter(|h| h & 0xfff == 0))?;
                    self.parts.push(Part::Link(link));
                }
                Word::Ht => {
                    let table = words.read("a bucket of a hash table, as in 1:2:", |word| {
                        handle_of(word).filter(|handle| !has_handle || handle & 0xfff == 0)
                    })?;
                    self.table = if sampled {
                        self.table & 0xff000 | table & 0xfff0_0000
                    } else {
                        table & 0xffff_f000
                    };
                }
                Word::Sample => {
                    let mut sample = Selector::default();
                    self.select(words, &mut sample)?;
                    let [key] = sample.keys[..] else {
                        return Err(words.wrong("`sample` takes exactly one key"));
                    };
                    let buckets = match words.peek() {
                        Some("divisor") => {
                            words.skip();
                            divisor(words)?
                        }
                        _ => DIVISOR_MAX,
                    };
                    self.table = ((key.hash() % buckets) << 12) | (self.table & 0xfff0_0000);
                    sampled = true;
                }
                Word::Indev => self.parts.push(Part::Indev(words.read("the name of a device", device_name)?)),
                Word::Action if !actions.is_empty() => {
                    return Err(words.wrong("the rule already has actions"));
                }
                Word::Action => {
                    Action::parse_list(words, lookup, actions)?;
                    self.parts.push(Part::Actions);
                    selector.flags |= TERMINAL;
                }
                Word::Police => {
                    self.parts.push(Part::Police(Box::new(Police::parse(words)?)));
                    selector.flags |= TERMINAL;
                }
                Word::SkipHw => self.offload.skip_hw(words)?,
                Word::SkipSw => self.offload.skip_sw(words)?,
            }
        }
        if selects {
            self.selector = Some(selector)
        } else {
            self.spare = selector
        }
        Ok(())
    }

    /// Parses a selector.
    fn select(&mut self, words: &mut Words<'_>, selector: &mut Selector) -> Read<()> {
        let Some(sample) = words.peek().and_then(Sample::find) else {
            return Err(words.unknown_here(Sample::WORDS));
        };
        words.skip();
        match sample {
            Sample::U32 => selector.number(words, 4, 0, 0),
            Sample::U16 => selector.number(words, 2, 0, 0),
            Sample::U8 => selector.number(words, 1, 0, 0),
            Sample::Ip => selector.ip(words),
            Sample::Ip6 => selector.ip6(words),
            Sample::Udp | Sample::Tcp => {
                let at = words
                    .read("src or dst", |word| {
                        [("src", 0), ("dst", 2)].into_iter().find(|(n, _)| *n == word)
                    })?
                    .1;
                selector.number(words, 2, at, -1)
            }
            Sample::Icmp => {
                let at = words
                    .read("type or code", |word| {
                        [("type", 0), ("code", 1)].into_iter().find(|(n, _)| *n == word)
                    })?
                    .1;
                selector.number(words, 1, at, -1)
            }
            Sample::Ether => selector.ether(words),
            Sample::Mark => {
                let mark = words.read("a mark", |word| number::u32(word, Base::Prefix))?;
                let mask = words.read("a mask", |word| number::u32(word, Base::Prefix))?;
                if mark & mask != mark {
                    return Err(words.wrong("the mark has bits outside the mask"));
                }
                self.parts.push(Part::Mark(mark, mask));
                Ok(())
            }
        }
    }

    pub(super) fn encode(&self, actions: &[Action], out: &mut AttrBuf) {
        for part in &self.parts {
            match part {
                Part::Class(class) => _ = out.u32(CLASSID, *class),
                Part::Divisor(divisor) => _ = out.u32(DIVISOR, *divisor),
                Part::Link(link) => _ = out.u32(LINK, *link),
                Part::Indev(name) => {
                    let length = name.iter().position(|byte| *byte == 0).map_or(NAME_BYTES, |zero| zero + 1);
                    out.bytes(INDEV, &name[..length]);
                }
                Part::Mark(mark, mask) => {
                    let mut bytes = [0; 12]; // value, mask, and a count that only the kernel writes
                    bytes[..4].copy_from_slice(&mark.to_ne_bytes());
                    bytes[4..8].copy_from_slice(&mask.to_ne_bytes());
                    out.bytes(MARK, &bytes);
                }
                Part::Police(police) => _ = out.unmarked(POLICE, |out| police.encode(out)),
                Part::Actions => Action::encode_list(actions, ACT, out),
            }
        }
        if self.table != 0 {
            out.u32(HASH, self.table);
        }
        if let Some(selector) = &self.selector {
            selector.encode(SEL, out);
        }
        if self.offload.flags() != 0 {
            out.u32(FLAGS, self.offload.flags());
        }
    }

    pub(super) fn decode(
        &mut self,
        attrs: Attrs<'_>,
        actions: &mut Vec<Action>,
    ) -> Result<Option<()>, Malformed> {
        self.clear();
        self.options = true;
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                CLASSID => self.parts.push(Part::Class(attr.u32()?)),
                HASH => self.table = attr.u32()?,
                LINK => self.parts.push(Part::Link(attr.u32()?)),
                DIVISOR => self.parts.push(Part::Divisor(attr.u32()?)),
                INDEV => {
                    let name = std::str::from_utf8(attr.until_zero()).ok().and_then(device_name);
                    self.parts.push(Part::Indev(name.ok_or(Malformed("the name of a device is malformed"))?));
                }
                MARK if attr.word_at(4)? != 0 => {
                    self.parts.push(Part::Mark(attr.word_at(0)?, attr.word_at(4)?))
                }
                POLICE => self.parts.push(Part::Police(Box::new(Police::decode(attr.nested())?))),
                ACT => {
                    if Action::decode_list(&attr, actions)?.is_none() {
                        return Ok(None);
                    }
                    self.parts.push(Part::Actions);
                }
                SEL => {
                    let mut selector = self.empty_selector();
                    selector.decode(attr.payload)?;
                    self.selector = Some(selector);
                }
                FLAGS => self.offload = Offload::of(attr.u32()?),
                _ => {}
            }
        }
        Ok(Some(()))
    }

    /// Converts the rule to the form that the kernel would dump: sorts the parts, removes police values that
    /// are not dumped, and sets the table from the canonical handle, if the handle has one.
    pub(super) fn canonicalize(&mut self, handle: u32) {
        for part in &mut self.parts {
            if let Part::Police(police) = part {
                **police = (**police).clone().canonical();
            }
        }
        let attribute = |part: &Part| match part {
            Part::Class(_) => 0,
            Part::Divisor(_) => 1,
            Part::Link(_) => 2,
            Part::Indev(_) => 3,
            Part::Mark(..) => 4,
            Part::Police(_) => 5,
            Part::Actions => 6,
        };
        self.parts.sort_by_key(attribute);
        last_of_each(&mut self.parts, attribute);
        if handle & NODE != 0 {
            self.table = handle & !NODE;
        } else if self.is_in_root(self.table) {
            self.table = 0;
        }
        self.root = 0;
        self.offload = self.offload.canonical();
        self.options = true;
    }

    /// Copies another rule, reusing the memory of this one.
    pub(super) fn assign(&mut self, other: &Self) {
        self.clear();
        self.parts.clone_from(&other.parts);
        if let Some(selector) = &other.selector {
            self.selector.insert(std::mem::take(&mut self.spare)).assign(selector);
        }
        (self.table, self.root) = (other.table, other.root);
        (self.offload, self.options) = (other.offload, other.options);
    }

    /// Returns the canonical form of a handle, for comparisons. It contains the table of the rule, unless
    /// that is the root table of its priority.
    ///
    /// Kernel: 6.18, `net/sched/cls_u32.c` `u32_change()` completes a handle with the table and the bucket.
    pub const fn canonical_handle(&self, handle: u32) -> u32 {
        let whole = match handle {
            1..=NODE => self.table & !NODE | handle,
            _ => handle,
        };
        if self.is_in_root(whole) { whole & NODE } else { whole }
    }

    /// Whether the table or rule with this handle is known to be in the root table of its priority.
    const fn is_in_root(&self, handle: u32) -> bool {
        self.root != 0 && handle & TABLE == self.root
    }

    /// Whether the rule, or the object with this canonical handle, is a hash table with an explicit number,
    /// or is in such a table.
    pub fn is_of_table(&self, handle: u32) -> bool {
        self.creates_table()
            || handle & TABLE != 0
            || (handle == 0 && self.table != 0 && !self.is_in_root(self.table))
    }

    /// Whether the rule creates a hash table.
    pub fn creates_table(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Divisor(_)))
    }

    /// Whether the rule matches few packets: its keys fix at least 24 bits, as an IPv4 /24 does.
    pub(super) fn is_narrow(&self) -> bool {
        let keys = self.selector.iter().flat_map(|selector| &selector.keys);
        keys.map(|key| key.mask.count_ones()).sum::<u32>() >= 24
    }

    pub(super) fn words(&self, words: &mut String, actions: &str) -> Option<()> {
        if self.table != 0 && !self.is_in_root(self.table) {
            words.push_str(&format!(" ht {}", handle_name(self.table)));
        }
        for part in &self.parts {
            match part {
                Part::Divisor(divisor) => words.push_str(&format!(" divisor {divisor}")),
                Part::Link(link) => words.push_str(&format!(" link {}", handle_name(*link))),
                Part::Indev(name) => {
                    let length = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
                    words.push_str(&format!(" indev {}", std::str::from_utf8(&name[..length]).ok()?));
                }
                Part::Mark(mark, mask) => words.push_str(&format!(" match mark {mark:#x} {mask:#x}")),
                Part::Class(_) | Part::Police(_) | Part::Actions => {}
            }
        }
        if let Some(selector) = &self.selector {
            selector.words(words)?;
        }
        words.push_str(&self.offload.words());
        for part in &self.parts {
            match part {
                Part::Class(class) => words.push_str(&format!(" classid {}", number::class_name(*class))),
                Part::Police(police) => words.push_str(&format!(" {}", police.words()?)),
                _ => {}
            }
        }
        words.push_str(actions);
        Some(())
    }
}

fn divisor(words: &mut Words<'_>) -> Read<u32> {
    words.read("a power of two up to 256", |word| {
        number::u32(word, Base::Prefix).filter(|divisor| divisor.is_power_of_two() && *divisor <= DIVISOR_MAX)
    })
}

/// Parses `TABLE:BUCKET:NODE` in hexadecimal, where any part may be missing, or `0x` and the whole number.
pub(super) fn handle_of(word: &str) -> Option<u32> {
    plain_handle(word).or_else(|| any_handle(word))
}

/// Parses the common form of a handle: all parts, with up to three digits each.
fn plain_handle(word: &str) -> Option<u32> {
    let (mut parts, mut part, mut digits) = ([0_u32; 3], 0, 0);
    for byte in word.as_bytes() {
        match number::digit(*byte) {
            digit @ 0..16 if digits < 3 => {
                parts[part] = parts[part] << 4 | u32::from(digit);
                digits += 1;
            }
            _ if *byte == b':' && part < 2 => (part, digits) = (part + 1, 0),
            _ => return None,
        }
    }
    let [table, bucket, node] = parts;
    (part > 0 && bucket < 0x100).then_some(table << 20 | bucket << 12 | node)
}

fn any_handle(word: &str) -> Option<u32> {
    if !word.contains(':') {
        return word.starts_with("0x").then(|| number::u32(word, Base::Sixteen)).flatten();
    }
    let mut parts = word.split(':');
    let mut part = |limit: u64| match parts.next() {
        None | Some("") => Some(0),
        Some(part) => {
            u32::try_from(number::unsigned(part, Base::Sixteen).filter(|number| *number < limit)?).ok()
        }
    };
    let (table, bucket, node) = (part(0x1000)?, part(0x100)?, part(0x1000)?);
    parts.next().is_none().then_some(table << 20 | bucket << 12 | node)
}

/// Formats a handle.
pub(super) fn handle_name(handle: u32) -> String {
    let part = |number: u32| if number == 0 { String::new() } else { format!("{number:x}") };
    format!("{}:{}:{}", part(handle >> 20), part(handle >> 12 & 0xff), part(handle & 0xfff))
}
