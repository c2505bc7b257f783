//! `ct`: sends the packet through connection tracking.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_ct.h`, `net/sched/act_ct.c`.

use super::control::Control;
use super::instance::Instance;
use crate::number::{self, Address, Base};
use crate::small_vec::SmallVec;
use crate::words::{Read, Words, abbreviates, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed, last_of_each};

const PARMS: u16 = 1;
const ACTION: u16 = 3;
const ZONE: u16 = 4;
const MARK: u16 = 5;
const MARK_MASK: u16 = 6;
const LABELS: u16 = 7;
const LABELS_MASK: u16 = 8;
const NAT_IPV4_MIN: u16 = 9;
const NAT_IPV4_MAX: u16 = 10;
const NAT_IPV6_MIN: u16 = 11;
const NAT_IPV6_MAX: u16 = 12;
const NAT_PORT_MIN: u16 = 13;
const NAT_PORT_MAX: u16 = 14;

const COMMIT: u16 = 1;
const FORCE: u16 = 2;
const CLEAR: u16 = 4;
const NAT: u16 = 8;
const NAT_SRC: u16 = 16;
const NAT_DST: u16 = 32;

/// Length of a connection's labels, in bytes.
pub(crate) const LABEL_BYTES: usize = 16;

/// Maximum number of settings of an action.
const FIELDS_MAX: usize = 8;

keywords! {
    /// The keywords of the action.
    enum Word {
        Zone = "zone",
        Nat = "nat",
        Clear = "clear",
        Commit = "commit",
        Force = "force",
        Index = "index",
        Mark = "mark",
        Label = "label",
    }
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ct {
    /// The instance and its control action.
    pub instance: Instance,
    /// The operations, as the kernel's bits `TCA_CT_ACT_*`.
    pub what: u16,
    /// The settings, in the order of the line.
    pub fields: SmallVec<Field, FIELDS_MAX>,
}

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The zone.
    Zone(u16),
    /// The mark and its mask.
    Mark(u32, u32),
    /// The labels and their mask, each with the number of bytes given.
    Labels(([u8; LABEL_BYTES], usize), ([u8; LABEL_BYTES], usize)),
    /// The first and the last address.
    Addresses(Address, Address),
    /// The first and the last port.
    Ports(u16, u16),
}

impl Ct {
    pub(super) fn parse(words: &mut Words<'_>, behind: &[&str]) -> Read<Self> {
        words.skip();
        let mut action = Self {
            instance: Instance { index: 0, control: Control::PIPE },
            what: 0,
            fields: SmallVec::new(),
        };
        while let Some(word) = words.peek().and_then(Word::find) {
            words.skip();
            let field = match word {
                Word::Clear => {
                    action.what |= CLEAR;
                    continue;
                }
                Word::Commit => {
                    action.what |= COMMIT;
                    continue;
                }
                Word::Force => {
                    action.what |= FORCE;
                    continue;
                }
                Word::Index => {
                    action.instance.index = words.read("an index", |word| number::u32(word, Base::Ten))?;
                    continue;
                }
                Word::Zone => {
                    Field::Zone(words.read("a zone: 0 to 65535", |word| number::u16(word, Base::Prefix))?)
                }
                Word::Mark => words.read("MARK[/MASK]", |word| {
                    let (mark, mask) = word.split_once('/').unwrap_or((word, "0xffffffff"));
                    Some(Field::Mark(number::u32(mark, Base::Prefix)?, number::u32(mask, Base::Prefix)?))
                })?,
                Word::Label => words
                    .read("LABEL[/MASK], each an even number of hexadecimal digits, 32 at most", labels)?,
                Word::Nat => {
                    if !action.nat(words)? {
                        return Err(words.wrong("the action has too many options"));
                    }
                    continue;
                }
            };
            if action.fields.push(field).is_err() {
                return Err(words.wrong("the action has too many options"));
            }
        }
        if action.what & CLEAR != 0 && action.what != CLEAR {
            return Err(words.wrong("`clear` stands alone"));
        }
        if action.what == 0
            && action.fields.iter().next().is_none()
            && action.instance.index == 0
            && words.peek().is_some_and(|word| !behind.contains(&word) && !Control::begins(word))
        {
            return Err(words.unknown_here(Word::WORDS));
        }
        let sides = action.what & (NAT_SRC | NAT_DST);
        if sides == NAT_SRC | NAT_DST {
            return Err(words.wrong("`nat` has one side: src or dst"));
        }
        if action.what & COMMIT != 0 && action.what & NAT != 0 && sides == 0 {
            return Err(words.wrong("`commit` with `nat` needs src or dst"));
        }
        if action.what & COMMIT == 0 && sides != 0 {
            return Err(words.wrong("src and dst are only valid with `commit`"));
        }
        action.instance.control = Control::optional(words)?.unwrap_or(Control::PIPE);
        Ok(action)
    }

    /// Reads the arguments of `nat`; returns false if there are too many settings.
    fn nat(&mut self, words: &mut Words<'_>) -> Read<bool> {
        self.what |= NAT;
        match words.peek() {
            Some(word) if abbreviates(word, "src") => self.what |= NAT_SRC,
            Some(word) if abbreviates(word, "dst") => self.what |= NAT_DST,
            _ => return Ok(true),
        }
        words.skip();
        words.read("`addr`", |word| abbreviates(word, "addr").then_some(()))?;
        let addresses = words.read("ADDRESS[-ADDRESS]", |word| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let (first, last) = (number::address(first)?, number::address(last)?);
            (first.v6 == last.v6).then_some(Field::Addresses(first, last))
        })?;
        let mut room = self.fields.push(addresses).is_ok();
        if words.peek().is_some_and(|word| abbreviates(word, "port")) {
            words.skip();
            let ports = words.read("PORT[-PORT]", |word| {
                let (first, last) = word.split_once('-').unwrap_or((word, word));
                Some(Field::Ports(number::u16(first, Base::Ten)?, number::u16(last, Base::Ten)?))
            })?;
            room &= self.fields.push(ports).is_ok();
        }
        Ok(room)
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        for field in self.fields.iter() {
            match field {
                Field::Zone(zone) => _ = out.u16(ZONE, *zone),
                Field::Mark(mark, mask) => _ = out.u32(MARK, *mark).u32(MARK_MASK, *mask),
                Field::Labels((labels, count), (mask, masked)) => {
                    _ = out.bytes(LABELS, &labels[..*count]).bytes(LABELS_MASK, &mask[..*masked]);
                }
                Field::Addresses(first, last) => {
                    let (min, max) =
                        if first.v6 { (NAT_IPV6_MIN, NAT_IPV6_MAX) } else { (NAT_IPV4_MIN, NAT_IPV4_MAX) };
                    out.bytes(min, first.as_bytes()).bytes(max, last.as_bytes());
                }
                Field::Ports(first, last) => _ = out.be16(NAT_PORT_MIN, *first).be16(NAT_PORT_MAX, *last),
            }
        }
        out.u16(ACTION, self.what);
        out.bytes(PARMS, &self.instance.bytes());
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let mut action =
            Self { instance: Instance::decode(attrs, PARMS)?.0, what: 0, fields: SmallVec::new() };
        if let Some(what) = attrs.find(ACTION)? {
            action.what = what.u16()?;
        }
        let mut push =
            |field| action.fields.push(field).map_err(|_| Malformed("an action sets too many fields"));
        if let Some(zone) = attrs.find(ZONE)? {
            push(Field::Zone(zone.u16()?))?;
        }
        if let Some(mark) = attrs.find(MARK)? {
            let mask = attrs.find(MARK_MASK)?.map_or(Ok(u32::MAX), |mask| mask.u32())?;
            if mask != 0 {
                push(Field::Mark(mark.u32()?, mask))?;
            }
        }
        if let Some(labels) = attrs.find(LABELS)? {
            let bytes: [u8; LABEL_BYTES] =
                labels.payload.try_into().map_err(|_| Malformed("labels have the wrong size"))?;
            let mask: [u8; LABEL_BYTES] = match attrs.find(LABELS_MASK)? {
                Some(mask) => mask.payload.try_into().map_err(|_| Malformed("labels have the wrong size"))?,
                None => [0xff; LABEL_BYTES],
            };
            if mask != [0; LABEL_BYTES] {
                push(Field::Labels((bytes, LABEL_BYTES), (mask, LABEL_BYTES)))?;
            }
        }
        for (min, max) in [(NAT_IPV4_MIN, NAT_IPV4_MAX), (NAT_IPV6_MIN, NAT_IPV6_MAX)] {
            if let Some(first) = attrs.find(min)? {
                let last = attrs.find(max)?.unwrap_or(first);
                let address =
                    |payload| Address::from_bytes(payload).ok_or(Malformed("an address has the wrong size"));
                push(Field::Addresses(address(first.payload)?, address(last.payload)?))?;
            }
        }
        if let Some(first) = attrs.find(NAT_PORT_MIN)? {
            let last = attrs.find(NAT_PORT_MAX)?.unwrap_or(first);
            push(Field::Ports(first.be16()?, last.be16()?))?;
        }
        Ok(action)
    }

    /// Sorts the fields, so that the order of the line does not matter.
    pub(super) fn canonical(mut self) -> Self {
        let mut fields: Vec<Field> = self.fields.iter().copied().collect();
        if self.what & CLEAR == 0 && !fields.iter().any(|field| matches!(field, Field::Zone(_))) {
            fields.push(Field::Zone(0)); // the kernel dumps the default zone, too
        }
        let attribute = |field: &Field| match field {
            Field::Zone(_) => (0, false),
            Field::Mark(..) => (1, false),
            Field::Labels(..) => (2, false),
            Field::Addresses(first, _) => (3, first.v6),
            Field::Ports(..) => (4, false),
        };
        fields.sort_by_key(attribute);
        last_of_each(&mut fields, attribute);
        self.fields = SmallVec::new();
        for field in fields {
            // There is room for the same fields as before plus the zone.
            let _ = self.fields.push(field);
        }
        self
    }

    pub(super) fn words(&self) -> Option<String> {
        let mut words = "ct".to_owned();
        for (bit, word) in [(CLEAR, " clear"), (COMMIT, " commit"), (FORCE, " force")] {
            if self.what & bit != 0 {
                words.push_str(word);
            }
        }
        let mut nat = false;
        for field in self.fields.iter() {
            match field {
                Field::Zone(zone) => words.push_str(&format!(" zone {zone}")),
                Field::Mark(mark, mask) => words.push_str(&format!(" mark {mark:#x}/{mask:#x}")),
                Field::Labels((labels, count), (mask, masked)) => {
                    let (labels, mask) =
                        (number::hex_name(&labels[..*count]), number::hex_name(&mask[..*masked]));
                    words.push_str(&format!(" label {labels}/{mask}"));
                }
                Field::Addresses(first, last) => {
                    let side = if self.what & NAT_SRC != 0 { "src" } else { "dst" };
                    words.push_str(&format!(" nat {side} addr {first}-{last}"));
                    nat = true;
                }
                Field::Ports(first, last) if nat => words.push_str(&format!(" port {first}-{last}")),
                Field::Ports(..) => return None,
            }
        }
        if self.what & NAT != 0 && !nat {
            words.push_str(" nat");
        }
        if self.instance.index != 0 {
            words.push_str(&self.instance.index_words());
        }
        // iproute2 accepts `nat`, an address or a port only if another word follows it.
        if self.instance.control != Control::PIPE || self.what & NAT != 0 {
            words.push_str(&format!(" {}", self.instance.control.words()?));
        }
        Some(words)
    }
}

/// `LABEL[/MASK]`, hexadecimal.
fn labels(word: &str) -> Option<Field> {
    let (labels, mask) = word.split_once('/').map_or((word, None), |(labels, mask)| (labels, Some(mask)));
    let mut bytes = [0; LABEL_BYTES];
    let count = number::hex(labels, &mut bytes)?;
    let mut masked = [0xff; LABEL_BYTES];
    let masked_count = mask.map_or(Some(LABEL_BYTES), |mask| number::hex(mask, &mut masked))?;
    Some(Field::Labels((bytes, count), (masked, masked_count)))
}
