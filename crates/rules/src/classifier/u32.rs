//! `u32`: matches 32 bits of the packet at a time, and hashes into tables of rules.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_U32_*`, `struct tc_u32_sel`, `net/sched/cls_u32.c`.

use super::flower::{NAME_BYTES, device_name};
use super::offload::Offload;
use crate::action::Action;
use crate::action::police::Police;
use crate::attr::{AttrBuf, Attrs, Malformed};
use crate::lookup::Lookup;
use crate::number::{self, Base};
use crate::words::{Read, Words, abbreviates, keywords};

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

/// Bits of `tc_u32_sel.flags`.
const TERMINAL: u8 = 1;
const OFFSET: u8 = 2;
const VAROFFSET: u8 = 4;
const EAT: u8 = 8;

/// The most keys of a rule: the kernel counts them in 8 bits, iproute2 takes half of that.
const KEYS_MAX: usize = 128;

/// The buckets of a hash table.
const DIVISOR_MAX: u32 = 256;

/// `tc_u32_sel` before its keys, and a key.
const SEL_BYTES: usize = 16;
const KEY_BYTES: usize = 16;

/// The numbers of hash tables that the kernel gives begin here.
const TABLE_OF_THE_KERNEL: u32 = 0x800 << 20;

keywords! {
    /// The words of the classifier, in iproute2's order.
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
    /// What a selector looks at.
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

/// 32 bits and what they must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Which bits, in network order.
    pub mask: u32,
    /// What they must be, in network order.
    pub value: u32,
    /// Where, in bytes from the network header.
    pub offset: i32,
    /// -1 to count from the next header instead.
    pub offset_mask: i32,
}

/// What a rule looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    flags: u8,
    offset_shift: u8,
    offset_mask: u16,
    offset: u16,
    offset_at: i16,
    hash_at: i16,
    hash_mask: u32,
    /// What must be so.
    pub keys: Vec<Key>,
}

/// A part of a rule that is sent where the line has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The class that the packet gets.
    Class(u32),
    /// The rule is a hash table of this many buckets.
    Divisor(u32),
    /// Matching goes on in this table.
    Link(u32),
    /// The device that the packet came from.
    Indev([u8; NAME_BYTES]),
    /// The packet's mark, and which bits of it.
    Mark(u32, u32),
    /// A rate.
    Police(Box<Police>),
    /// The rule's actions stand here.
    Actions,
}

/// The classifier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct U32 {
    /// The parts in the order of the line.
    pub parts: Vec<Part>,
    /// The hash table and bucket that the rule is in; 0 for the first one.
    pub table: u32,
    /// What it looks at, if it looks at anything.
    pub selector: Option<Selector>,
    /// Memory for the next selector.
    spare: Selector,
    /// Where the rule shall be.
    pub offload: Offload,
    /// Whether the line says anything at all behind the kind.
    pub options: bool,
}

impl U32 {
    /// Forgets the rule and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        if let Some(selector) = self.selector.take() {
            self.spare = selector;
        }
        (self.table, self.offload, self.options) = (0, Offload::default(), false);
    }

    fn empty_selector(&mut self) -> Selector {
        let mut keys = std::mem::take(&mut self.spare).keys;
        keys.clear();
        Selector { keys, ..Selector::default() }
    }

    /// Reads the rule; `handle` may be completed by `order`.
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
                    return Err(words.wrong("the rule has actions already"));
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

    /// Reads a selector.
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
                    return Err(words.wrong("the mark has bits that the mask has not"));
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
            selector.encode(out);
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

    /// The same as the kernel would tell it: parts in one order, and no table that the kernel named.
    pub(super) fn canonical(&self) -> Self {
        let mut rule = self.clone();
        rule.spare = Selector::default();
        rule.parts.sort_by_key(|part| match part {
            Part::Class(_) => 0,
            Part::Divisor(_) => 1,
            Part::Link(_) => 2,
            Part::Indev(_) => 3,
            Part::Mark(..) => 4,
            Part::Police(_) => 5,
            Part::Actions => 6,
        });
        if rule.table >= TABLE_OF_THE_KERNEL {
            rule.table = 0;
        }
        rule.offload = rule.offload.canonical();
        rule.options = true;
        rule
    }

    /// A handle as it is compared: without a table that the kernel named.
    pub(super) const fn canonical_handle(handle: u32) -> u32 {
        if handle >= TABLE_OF_THE_KERNEL { handle & 0xfff } else { handle }
    }

    /// Whether the rule creates a hash table.
    pub fn creates_table(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Divisor(_)))
    }

    /// Whether the rule picks out few packets: as many bits must be certain as a network of 24 bits has.
    pub(super) fn is_narrow(&self) -> bool {
        let keys = self.selector.iter().flat_map(|selector| &selector.keys);
        keys.map(|key| key.mask.count_ones()).sum::<u32>() >= 24
    }

    pub(super) fn words(&self, words: &mut String, actions: &str) -> Option<()> {
        if self.table != 0 && self.table < TABLE_OF_THE_KERNEL {
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
            selector.words(words);
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

impl Key {
    /// The bucket that a packet with this value falls into: the value from its mask's lowest bit.
    const fn hash(&self) -> u32 {
        let mask = u32::from_be(self.mask);
        let shift = if mask == 0 { 0 } else { mask.trailing_zeros() };
        u32::from_be(self.value & self.mask) >> shift
    }
}

impl Selector {
    /// Adds a key of this many bytes; 32 bits that are looked at already get the further bits.
    fn pack(&mut self, words: &Words<'_>, key: u32, mask: u32, bytes: u32, at: (i32, i32)) -> Read<()> {
        let all = if bytes == 4 { u32::MAX } else { (1 << (8 * bytes)) - 1 };
        if key > all || mask > all {
            return Err(words.wrong(format!("the value and its mask have {} bits here", 8 * bytes)));
        }
        let within = at.0.cast_unsigned() & 3;
        let shift = match (bytes, within) {
            (4, 0) => 0,
            (4, _) => return Err(words.wrong("32 bits begin at a multiple of 4 bytes")),
            (2, 0) => 16,
            (2, _) => 0,
            (_, within) => 8 * (3 - within),
        };
        let (offset, offset_mask) = (at.0 & !3, at.1);
        let (value, mask) = (((key & mask) << shift).to_be(), (mask << shift).to_be());
        if let Some(known) =
            self.keys.iter_mut().find(|known| known.offset == offset && known.offset_mask == offset_mask)
        {
            if (value ^ known.value) & mask & known.mask != 0 {
                return Err(words.wrong("this contradicts what the line says of the same bits before"));
            }
            known.value |= value;
            known.mask |= mask;
            return Ok(());
        }
        if self.keys.len() == KEYS_MAX {
            return Err(words.wrong("a rule has at most 128 keys"));
        }
        self.keys.push(Key { mask, value, offset, offset_mask });
        Ok(())
    }

    /// `at [nexthdr+]OFFSET`, if that comes next, else where the value is by itself.
    fn at(words: &mut Words<'_>, (offset, mask): (i32, i32)) -> Read<(i32, i32)> {
        if words.peek() != Some("at") {
            return Ok((offset, mask));
        }
        words.skip();
        let word = words.value()?;
        let (word, mask) = match word.strip_prefix("nexthdr+") {
            Some("") => (words.value()?, -1),
            Some(rest) => (rest, -1),
            None if abbreviates(word, "nexthdr+") => (words.value()?, -1),
            None => (word, mask),
        };
        match number::i32(word) {
            Some(offset) => Ok((offset, mask)),
            None => Err(words.wrong(format!("`{word}` is not an offset"))),
        }
    }

    /// `VALUE MASK [at OFFSET]`.
    fn number(&mut self, words: &mut Words<'_>, bytes: u32, offset: i32, mask: i32) -> Read<()> {
        let key = words.read("a number", |word| number::u32(word, Base::Prefix))?;
        let bits = words.read("a hexadecimal mask", |word| number::u32(word, Base::Sixteen))?;
        let at = Self::at(words, (offset, mask))?;
        self.pack(words, key, bits, bytes, at)
    }

    fn ip(&mut self, words: &mut Words<'_>) -> Read<()> {
        const FIELDS: &[&str] = &[
            "src",
            "dst",
            "tos",
            "dsfield",
            "precedence",
            "ihl",
            "protocol",
            "nofrag",
            "firstfrag",
            "df",
            "mf",
            "dport",
            "sport",
            "icmp_type",
            "icmp_code",
        ];
        match words.value()? {
            field @ ("src" | "dst") => {
                let (address, bits) =
                    words.read("an IPv4 address", |w| number::prefix(w).filter(|(a, _)| !a.v6))?;
                let at = Self::at(words, (if field == "src" { 12 } else { 16 }, 0))?;
                let part = |bytes: &[u8; 16]| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                self.pack(words, part(&address.bytes), part(&number::mask(bits)), 4, at)
            }
            "tos" => self.number(words, 1, 1, 0),
            "ihl" => self.number(words, 1, 0, 0),
            "protocol" => self.number(words, 1, 9, 0),
            "nofrag" => self.pack(words, 0, 0x3fff, 2, (6, 0)),
            "firstfrag" => self.pack(words, 0x2000, 0x3fff, 2, (6, 0)),
            "df" => self.pack(words, 0x4000, 0x4000, 2, (6, 0)),
            "mf" => self.pack(words, 0x2000, 0x2000, 2, (6, 0)),
            "dport" => self.number(words, 2, 22, 0),
            "sport" => self.number(words, 2, 20, 0),
            "icmp_type" => self.number(words, 1, 20, 0),
            "icmp_code" => self.number(words, 1, 21, 0),
            word if abbreviates(word, "dsfield") || abbreviates(word, "precedence") => {
                self.number(words, 1, 1, 0)
            }
            _ => {
                words.back();
                Err(words.unknown_here(FIELDS))
            }
        }
    }

    fn ip6(&mut self, words: &mut Words<'_>) -> Read<()> {
        const FIELDS: &[&str] =
            &["src", "dst", "priority", "protocol", "flowlabel", "dport", "sport", "icmp_type", "icmp_code"];
        match words.value()? {
            field @ ("src" | "dst") => {
                let (address, bits) =
                    words.read("an IPv6 address", |w| number::prefix(w).filter(|(a, _)| a.v6))?;
                let (offset, mask) = Self::at(words, (if field == "src" { 8 } else { 24 }, 0))?;
                let (values, masks) = (address.bytes.as_chunks::<4>().0, number::mask(bits));
                for ((value, bits), further) in values.iter().zip(masks.as_chunks::<4>().0).zip([0, 4, 8, 12])
                {
                    let (value, bits) = (u32::from_be_bytes(*value), u32::from_be_bytes(*bits));
                    if bits != 0 {
                        self.pack(words, value, bits, 4, (offset.saturating_add(further), mask))?;
                    }
                }
                Ok(())
            }
            "priority" => {
                let key = words.read("a number of 8 bits", |word| number::u8(word, Base::Prefix))?;
                let bits =
                    words.read("a hexadecimal mask of 8 bits", |word| number::u8(word, Base::Sixteen))?;
                self.pack(words, u32::from(key) << 20, u32::from(bits) << 20, 4, (0, 0))
            }
            "protocol" => self.number(words, 1, 6, 0),
            "flowlabel" => self.number(words, 4, 0, 0),
            "dport" => self.number(words, 2, 42, 0),
            "sport" => self.number(words, 2, 40, 0),
            "icmp_type" => self.number(words, 1, 40, 0),
            "icmp_code" => self.number(words, 1, 41, 1),
            _ => {
                words.back();
                Err(words.unknown_here(FIELDS))
            }
        }
    }

    fn ether(&mut self, words: &mut Words<'_>) -> Read<()> {
        let offset = words.read("src or dst", |word| match word {
            "src" => Some(-8),
            "dst" => Some(-14),
            _ => None,
        })?;
        let address = words.read("an Ethernet address", |word| {
            number::mac(word).filter(|_| word.matches(':').count() == 5)
        })?;
        let (offset, mask) = Self::at(words, (offset, 0))?;
        for (byte, further) in address.into_iter().zip(0..) {
            self.pack(words, u32::from(byte), 0xff, 1, (offset.saturating_add(further), mask))?;
        }
        Ok(())
    }

    /// What follows `offset`: where the next header begins.
    fn offset(&mut self, words: &mut Words<'_>) -> Read<()> {
        while let Some(word) = words.peek() {
            if abbreviates(word, "plus") {
                words.skip();
                self.offset = words.read("an offset", |w| number::i32(w)?.try_into().ok())?;
                self.flags |= OFFSET;
            } else if abbreviates(word, "at") {
                words.skip();
                self.offset_at = words.read("an even offset", |w| {
                    number::i32(w)?.try_into().ok().filter(|at: &i16| at % 2 == 0)
                })?;
                self.flags |= VAROFFSET;
            } else if abbreviates(word, "mask") {
                words.skip();
                self.offset_mask = words.read("a hexadecimal mask", |w| number::u16(w, Base::Sixteen))?;
                self.flags |= VAROFFSET;
            } else if abbreviates(word, "shift") {
                words.skip();
                self.offset_shift = words.read("a shift", |w| number::u8(w, Base::Prefix))?;
                self.flags |= VAROFFSET;
            } else if abbreviates(word, "eat") {
                words.skip();
                self.flags |= EAT;
            } else {
                break;
            }
        }
        Ok(())
    }

    /// What follows `hashkey`: which bits choose the bucket.
    fn hashkey(&mut self, words: &mut Words<'_>) -> Read<()> {
        while let Some(word) = words.peek() {
            if abbreviates(word, "mask") {
                words.skip();
                self.hash_mask = words.read("a hexadecimal mask", |w| number::u32(w, Base::Sixteen))?;
            } else if abbreviates(word, "at") {
                words.skip();
                self.hash_at = words.read("a multiple of 4", |w| {
                    number::i32(w)?.try_into().ok().filter(|at: &i16| at % 4 == 0)
                })?;
            } else {
                break;
            }
        }
        Ok(())
    }

    fn encode(&self, out: &mut AttrBuf) {
        let mut bytes = [0; SEL_BYTES + KEYS_MAX * KEY_BYTES];
        bytes[0] = self.flags;
        bytes[1] = self.offset_shift;
        bytes[2] = u8::try_from(self.keys.len()).unwrap_or(u8::MAX);
        bytes[4..6].copy_from_slice(&self.offset_mask.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[8..10].copy_from_slice(&self.offset_at.to_ne_bytes());
        bytes[10..12].copy_from_slice(&self.hash_at.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.hash_mask.to_be_bytes());
        let mut end = SEL_BYTES;
        for key in &self.keys {
            for word in [key.mask, key.value, key.offset.cast_unsigned(), key.offset_mask.cast_unsigned()] {
                bytes[end..end + 4].copy_from_slice(&word.to_ne_bytes());
                end += 4;
            }
        }
        out.bytes(SEL, &bytes[..end]);
    }

    fn decode(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let (head, keys) =
            bytes.split_first_chunk::<SEL_BYTES>().ok_or(Malformed("a selector is cut short"))?;
        self.flags = head[0];
        self.offset_shift = head[1];
        self.offset_mask = u16::from_be_bytes([head[4], head[5]]);
        self.offset = u16::from_ne_bytes([head[6], head[7]]);
        self.offset_at = i16::from_ne_bytes([head[8], head[9]]);
        self.hash_at = i16::from_ne_bytes([head[10], head[11]]);
        self.hash_mask = u32::from_be_bytes([head[12], head[13], head[14], head[15]]);
        let (keys, rest) = keys.as_chunks::<KEY_BYTES>();
        if keys.len() != usize::from(head[2]) || keys.len() > KEYS_MAX || !rest.is_empty() {
            return Err(Malformed("a selector has other keys than it says"));
        }
        for key in keys {
            let word = |at: usize| u32::from_ne_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]]);
            let (offset, offset_mask) = (word(8).cast_signed(), word(12).cast_signed());
            self.keys.push(Key { mask: word(0), value: word(4), offset, offset_mask });
        }
        Ok(())
    }

    fn words(&self, words: &mut String) {
        for key in &self.keys {
            let (value, mask) = (u32::from_be(key.value), u32::from_be(key.mask));
            let next = if key.offset_mask == 0 { "" } else { "nexthdr+" };
            words.push_str(&format!(" match u32 {value:#x} {mask:#x} at {next}{}", key.offset));
        }
        if self.flags & (OFFSET | VAROFFSET | EAT) != 0 {
            words.push_str(" offset");
            if self.flags & OFFSET != 0 {
                words.push_str(&format!(" plus {}", self.offset));
            }
            if self.flags & VAROFFSET != 0 {
                words.push_str(&format!(
                    " at {} mask {:x} shift {}",
                    self.offset_at, self.offset_mask, self.offset_shift
                ));
            }
            if self.flags & EAT != 0 {
                words.push_str(" eat");
            }
        }
        if self.hash_mask != 0 || self.hash_at != 0 {
            words.push_str(&format!(" hashkey mask {:#x} at {}", self.hash_mask, self.hash_at));
        }
    }
}

fn divisor(words: &mut Words<'_>) -> Read<u32> {
    words.read("a power of two up to 256", |word| {
        number::u32(word, Base::Prefix).filter(|divisor| divisor.is_power_of_two() && *divisor <= DIVISOR_MAX)
    })
}

/// `TABLE:BUCKET:NODE` in hexadecimal, where any may be missing; or `0x` and the whole number.
pub(super) fn handle_of(word: &str) -> Option<u32> {
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

/// The words for a handle.
pub(super) fn handle_name(handle: u32) -> String {
    let part = |number: u32| if number == 0 { String::new() } else { format!("{number:x}") };
    format!("{}:{}:{}", part(handle >> 20), part(handle >> 12 & 0xff), part(handle & 0xfff))
}
