//! `pedit`: changes bytes of the packet, 32 bits at a time.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_pedit.h`, `net/sched/act_pedit.c` `tcf_pedit_init()`.

use super::control::Control;
use super::instance::{Instance, index};
use crate::number::{self, Address, Base};
use crate::words::{Read, Spans, Words, abbreviates, keywords, split_plain};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 2;
const PARMS_EX: u16 = 4;
const KEYS_EX: u16 = 5;
const KEY_EX: u16 = 6;
const HTYPE: u16 = 1;
const CMD: u16 = 2;

/// `TCA_PEDIT_KEY_EX_CMD_SET`, `TCA_PEDIT_KEY_EX_CMD_ADD`.
const SET: u16 = 0;
const ADD: u16 = 1;

/// Maximum number of changes per action, as in iproute2 (`MAX_OFFS`).
pub const KEYS_MAX: usize = 128;

/// Size of a `struct tc_pedit_key`.
const KEY_BYTES: usize = 24;

/// Size of an Ethernet address.
const MAC_BYTES: usize = 6;

/// Size of `tc_pedit_sel` without its keys.
const HEAD_BYTES: usize = 24;

keywords! {
    /// The operation on a field.
    enum Word {
        Invert = "invert",
        Set = "set",
        Add = "add",
        Decrement = "decrement",
        Preserve = "preserve",
        Clear = "clear",
    }
}

/// The syntax of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Number,
    Ipv4,
    Ipv6,
    Mac,
}

/// A named field: header, name, offset, length, mask of the value, and syntax.
type Field = (&'static str, &'static str, u32, u32, u32, Form);

const FIELDS: &[Field] = &[
    ("ip", "src", 12, 4, u32::MAX, Form::Ipv4),
    ("ip", "dst", 16, 4, u32::MAX, Form::Ipv4),
    ("ip", "tos", 1, 1, 0xff, Form::Number),
    ("ip", "dsfield", 1, 1, 0xff, Form::Number),
    ("ip", "ihl", 0, 1, 0x0f, Form::Number),
    ("ip", "ttl", 8, 1, 0xff, Form::Number),
    ("ip", "protocol", 9, 1, 0xff, Form::Number),
    ("ip", "precedence", 1, 1, 0xff, Form::Number),
    ("ip", "nofrag", 6, 1, 0x3f, Form::Number),
    ("ip", "firstfrag", 6, 1, 0x1f, Form::Number),
    ("ip", "ce", 6, 1, 0x80, Form::Number),
    ("ip", "df", 6, 1, 0x40, Form::Number),
    ("ip", "mf", 6, 1, 0x20, Form::Number),
    // Fields after the IP header: only the plain form addresses them through `ip`.
    ("ip", "dport", 22, 2, 0xffff, Form::Number),
    ("ip", "sport", 20, 2, 0xffff, Form::Number),
    ("ip", "icmp_type", 20, 1, 0xff, Form::Number),
    ("ip", "icmp_code", 20, 1, 0xff, Form::Number),
    ("ip6", "src", 8, 16, u32::MAX, Form::Ipv6),
    ("ip6", "dst", 24, 16, u32::MAX, Form::Ipv6),
    ("ip6", "flow_lbl", 0, 4, 0x0007_ffff, Form::Number),
    ("ip6", "payload_len", 4, 2, 0xffff, Form::Number),
    ("ip6", "nexthdr", 6, 1, 0xff, Form::Number),
    ("ip6", "hoplimit", 7, 1, 0xff, Form::Number),
    ("ip6", "traffic_class", 1, 1, 0xff, Form::Number),
    ("eth", "type", 12, 2, 0xffff, Form::Number),
    ("eth", "dst", 0, 6, u32::MAX, Form::Mac),
    ("eth", "src", 6, 6, u32::MAX, Form::Mac),
    ("tcp", "sport", 0, 2, 0xffff, Form::Number),
    ("tcp", "dport", 2, 2, 0xffff, Form::Number),
    ("tcp", "flags", 13, 1, 0xff, Form::Number),
    ("udp", "sport", 0, 2, 0xffff, Form::Number),
    ("udp", "dport", 2, 2, 0xffff, Form::Number),
];

/// The headers by the kernel's number `TCA_PEDIT_KEY_EX_HDR_TYPE_*`; 0 addresses the packet from its network
/// header.
const HEADERS: &[&str] = &["offset", "eth", "ip", "ip6", "tcp", "udp"];

/// A change of 32 bits: they become `(packet & mask) ^ value`, or `value` is added to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// The packet's bits to keep, in network order.
    pub mask: u32,
    /// The value, in network order.
    pub value: u32,
    /// Offset in bytes from the start of the header.
    pub offset: u32,
    /// The offset of the byte that a further offset is read from.
    pub at: u32,
    /// The mask of that byte.
    pub offmask: u32,
    /// The shift of that byte.
    pub shift: u32,
    /// The header, by the kernel's number.
    pub header: u16,
    /// `SET` or `ADD`.
    pub command: u16,
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pedit {
    /// The instance and its control action.
    pub instance: Instance,
    /// Whether the changes name their header (the extended form).
    pub extended: bool,
    /// The changes.
    pub keys: Vec<Key>,
}

impl Pedit {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        let mut action = Self {
            instance: Instance { index: 0, control: Control::PASS },
            extended: false,
            keys: Vec::new(),
        };
        // iproute2 6.1, `tc/m_pedit.c` `parse_pedit()`: the action's name may be repeated before each change.
        words.skip();
        let mut named = true;
        while let Some(word) = words.peek() {
            if named && abbreviates(word, "ex") {
                if !action.keys.is_empty() {
                    return Err(words.wrong_here("`ex` must be before the first `munge`"));
                }
                words.skip();
                action.extended = true;
                named = false;
            } else if abbreviates(word, "pedit") {
                words.skip();
                named = true;
            } else if abbreviates(word, "munge") {
                words.skip();
                action.munge(words)?;
                named = false;
            } else {
                break;
            }
        }
        // A line may reference an existing instance by its index only.
        let names = |word| abbreviates(word, "index") || Control::begins(word);
        if action.keys.is_empty() && !words.peek().is_some_and(names) {
            return Err(words.unknown_here(&["munge", "ex", "index"]));
        }
        action.instance.control = Control::optional(words)?.unwrap_or(Control::PASS);
        action.instance.index = index(words)?.unwrap_or(0);
        Ok(action)
    }

    fn munge(&mut self, words: &mut Words<'_>) -> Read<()> {
        let header = words.value()?;
        if abbreviates(header, "offset") {
            return self.raw(words);
        }
        let Some(number) = HEADERS.iter().position(|name| *name == header).filter(|number| *number > 0)
        else {
            words.back();
            return Err(words.unknown_here(HEADERS));
        };
        if number != 2 && !self.extended {
            return Err(words.wrong("this header needs the extended form: `pedit ex munge ...`"));
        }
        let name = words.value()?;
        // iproute2 checks in this order: `dsfield` and `precedence` may be abbreviated.
        let called = |field: &&Field| {
            field.1 == name || matches!(field.1, "dsfield" | "precedence") && abbreviates(name, field.1)
        };
        let field = FIELDS.iter().filter(|field| field.0 == header).find(called);
        let Some(field) = field.filter(|field| !(self.extended && field.0 == "ip" && field.2 >= 20)) else {
            return Err(words.wrong(format!("`{name}` is not a field of the header {header}")));
        };
        let header = if self.extended { u16::try_from(number).unwrap_or(0) } else { 0 };
        let before = self.keys.len();
        self.change(words, Key { offset: field.2, header, ..Key::default() }, field.3, field.4, field.5)?;
        if field.1 == "traffic_class"
            && let Some(key) = self.keys.get_mut(before)
        {
            // The traffic class starts in the middle of the first byte.
            key.mask = (u32::from_be(key.mask) << 4 | 0xf).to_be();
            key.value = (u32::from_be(key.value) << 4).to_be();
        }
        Ok(())
    }

    /// Parses `offset N u32|u16|u8 [at AT OFFMASK SHIFT]` and the change.
    fn raw(&mut self, words: &mut Words<'_>) -> Read<()> {
        let offset = words.read("an offset", number::i32)?.cast_unsigned();
        let (length, retain) = words.read("u32, u16 or u8", |word| match word {
            _ if abbreviates(word, "u32") => Some((4, u32::MAX)),
            _ if abbreviates(word, "u16") => Some((2, 0xffff)),
            _ if abbreviates(word, "u8") => Some((1, 0xff)),
            _ => None,
        })?;
        let mut key = Key { offset, ..Key::default() };
        if words.peek().is_some_and(|word| abbreviates(word, "at")) {
            words.skip();
            key.at = words.read("an offset", |word| number::u32(word, Base::Prefix))?;
            key.offmask = words.read("a mask", |word| number::u32(word, Base::Sixteen))?;
            key.shift = words.read("a shift", |word| number::u32(word, Base::Prefix))?;
        }
        self.change(words, key, length, retain, Form::Number)
    }

    /// Parses the change of the field of this length at the key's offset.
    fn change(
        &mut self,
        words: &mut Words<'_>,
        mut key: Key,
        length: u32,
        retain: u32,
        form: Form,
    ) -> Read<()> {
        let all = match length {
            1 => 0xff,
            2 => 0xffff,
            _ => u32::MAX,
        };
        let Some(word) = words.peek().and_then(Word::find) else {
            return Err(words.unknown_here(Word::WORDS));
        };
        words.skip();
        let mut retain = retain;
        let mut value = [0; 16];
        let mut number = 0;
        match word {
            Word::Invert if length <= 4 => (number, key.mask) = (all, all),
            // For a longer field, iproute2 does not invert: it sets the first byte and clears all others.
            Word::Invert => value[0] = 0xff,
            Word::Set | Word::Add => {
                if word == Word::Add {
                    key.command = ADD;
                }
                match form {
                    Form::Number => {
                        number = words.read("a number", |word| number::u32(word, Base::Prefix))?
                    }
                    Form::Ipv4 | Form::Ipv6 => {
                        let v6 = form == Form::Ipv6;
                        let (address, _) = words.read("an address", |word| {
                            number::prefix(word).filter(|(address, _)| address.v6 == v6)
                        })?;
                        value = address.bytes;
                    }
                    Form::Mac => {
                        value[..6].copy_from_slice(&words.read("an Ethernet address", number::mac)?);
                    }
                }
            }
            Word::Decrement => {
                if !matches!((key.header, key.offset), (2, 8) | (3, 7)) {
                    return Err(words.wrong("only ttl and hoplimit are decremented"));
                }
                (key.command, number) = (ADD, retain);
            }
            Word::Preserve => retain = 0,
            Word::Clear => {}
        }
        if !self.extended && key.command == ADD {
            return Err(words.wrong("this needs the extended form: `pedit ex munge ...`"));
        }
        if words.peek().is_some_and(|word| abbreviates(word, "retain")) {
            words.skip();
            retain = words.read("a number", |word| number::u32(word, Base::Prefix))?;
        }
        if length > 4 && retain != u32::MAX {
            return Err(words.wrong("`retain` and `preserve` need a field of at most 32 bits"));
        }
        let part = |at: usize| u32::from_be_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
        let half = |at: usize| u32::from(u16::from_be_bytes([value[at], value[at + 1]]));
        let fits = match form {
            Form::Mac if key.offset.is_multiple_of(4) => {
                self.pack(key, part(0), 4, u32::MAX)
                    && self.pack(Key { offset: key.offset + 4, ..key }, half(4), 2, u32::MAX)
            }
            Form::Mac => {
                let second = Key { offset: (key.offset & !3) + 4, ..key };
                self.pack(key, half(0), 2, u32::MAX) && self.pack(second, part(2), 4, u32::MAX)
            }
            Form::Ipv6 => [0, 4, 8, 12].into_iter().all(|at| {
                let offset = key.offset + u32::try_from(at).unwrap_or(0);
                self.pack(Key { offset, ..key }, part(at), 4, u32::MAX)
            }),
            Form::Ipv4 => self.pack(key, if word == Word::Invert { number } else { part(0) }, length, retain),
            Form::Number => self.pack(key, number, length, retain),
        };
        if fits {
            Ok(())
        } else {
            Err(words.wrong("the value is too large, or the field does not lie within 32 bits"))
        }
    }

    /// Adds a change of this many bytes; returns false if the change is invalid.
    fn pack(&mut self, mut key: Key, value: u32, length: u32, retain: u32) -> bool {
        let within = key.offset % 4;
        let all = if length == 4 { u32::MAX } else { (1 << (8 * length)) - 1 };
        if self.keys.len() == KEYS_MAX || value > all || key.mask > all || within + length > 4 {
            return false;
        }
        let stride = 8 * (4 - length - within);
        let outside = !(all << stride);
        key.value = ((value & retain) << stride).to_be();
        key.mask = (((key.mask | !retain) << stride) | outside).to_be();
        key.offset &= !3;
        self.keys.push(key);
        true
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.keys.len() * KEY_BYTES);
        bytes.extend_from_slice(&self.instance.bytes());
        bytes.extend_from_slice(&[u8::try_from(self.keys.len()).unwrap_or(u8::MAX), 0, 0, 0]);
        for key in &self.keys {
            for word in [key.mask, key.value, key.offset, key.at, key.offmask, key.shift] {
                bytes.extend_from_slice(&word.to_ne_bytes());
            }
        }
        out.bytes(if self.extended { PARMS_EX } else { PARMS }, &bytes);
        if self.extended {
            out.nested(KEYS_EX, |out| {
                for key in &self.keys {
                    out.nested(KEY_EX, |out| _ = out.u16(HTYPE, key.header).u16(CMD, key.command));
                }
            });
        }
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let extended = attrs.find(PARMS_EX)?.is_some();
        let (instance, parms) = Instance::decode(attrs, if extended { PARMS_EX } else { PARMS })?;
        let count = usize::try_from(parms.word_at(20)? & 0xff).unwrap_or(0);
        let mut keys = Vec::with_capacity(count.min(KEYS_MAX));
        for at in (0..count).map(|key| HEAD_BYTES + key * KEY_BYTES) {
            keys.push(Key {
                mask: parms.word_at(at)?,
                value: parms.word_at(at + 4)?,
                offset: parms.word_at(at + 8)?,
                at: parms.word_at(at + 12)?,
                offmask: parms.word_at(at + 16)?,
                shift: parms.word_at(at + 20)?,
                header: 0,
                command: SET,
            });
        }
        if let Some(list) = attrs.find(KEYS_EX)? {
            for (attr, key) in list.nested().zip(&mut keys) {
                let attr = attr?;
                key.header = attr.nested().find(HTYPE)?.map_or(Ok(0), |header| header.u16())?;
                key.command = attr.nested().find(CMD)?.map_or(Ok(SET), |command| command.u16())?;
            }
        }
        Ok(Self { instance, extended, keys })
    }

    /// Formats every change as a change of 32 bits, with a field name where tc requires one.
    pub(super) fn words(&self) -> Option<String> {
        let mut words = if self.extended { "pedit ex" } else { "pedit" }.to_owned();
        let mut keys = &self.keys[..];
        while !keys.is_empty() {
            let (munge, count) = self.munge_words(keys)?;
            words.push_str(&munge);
            keys = keys.get(count..)?;
        }
        if self.keys.is_empty() {
            // The action references an existing instance, so no further options are possible.
            let named = self.instance.index != 0 && self.instance.control == Control::PASS;
            return named.then(|| words + &self.instance.index_words());
        }
        words.push_str(&format!(" {}{}", self.instance.control.words()?, self.instance.index_words()));
        Some(words)
    }

    /// Returns the tc syntax of the first key, or of several keys that belong to one field, and the number of
    /// these keys. The result parses to exactly these keys.
    fn munge_words(&self, keys: &[Key]) -> Option<(String, usize)> {
        let key = keys.first()?;
        let (value, mask) = (u32::from_be(key.value), u32::from_be(key.mask));
        let mut spelled = Vec::new();
        let number = |place: &str, value: u32, retain: u32| {
            if key.command == ADD {
                return vec![format!("{place} add {value:#x} retain {retain:#x}")];
            }
            vec![
                format!("{place} set {value:#x} retain {retain:#x}"),
                format!("{place} invert retain {value:#x}"),
            ]
        };
        if key.header == 0 {
            let mut place = format!("offset {} u32", key.offset.cast_signed());
            if (key.at, key.offmask, key.shift) != (0, 0, 0) {
                place.push_str(&format!(" at {} {:x} {}", key.at, key.offmask, key.shift));
            }
            spelled.extend(number(&place, value, !mask));
        }
        let header = HEADERS.get(usize::from(key.header))?;
        for (_, name, offset, length, _, form) in
            FIELDS.iter().filter(|field| field.0 == *header && field.2 & !3 == key.offset)
        {
            let place = format!("{header} {name}");
            let command = if key.command == ADD { "add" } else { "set" };
            let bytes: Vec<u8> = keys.iter().take(4).flat_map(|key| key.value.to_ne_bytes()).collect();
            match form {
                Form::Number if *name == "traffic_class" => {
                    spelled.extend(number(&place, value >> 20 & 0xff, !(mask >> 20) & 0xff))
                }
                Form::Number => {
                    let stride = 8 * (4 - length - offset % 4);
                    let all = if *length == 4 { u32::MAX } else { (1 << (8 * length)) - 1 };
                    spelled.extend(number(&place, value >> stride & all, !(mask >> stride) & all));
                }
                Form::Ipv4 if mask == u32::MAX => spelled.push(format!("{place} invert retain {value:#x}")),
                Form::Ipv4 => {
                    let address = std::net::Ipv4Addr::from(value);
                    spelled.push(format!("{place} {command} {address} retain {:#x}", !mask));
                }
                Form::Ipv6 => {
                    if let Some(address) = Address::from_bytes(&bytes) {
                        spelled.push(format!("{place} {command} {address}"));
                    }
                }
                Form::Mac => {
                    // The address may begin or end in the middle of 32 bits.
                    let from = usize::try_from(offset % 4).ok()?;
                    if let Some(address) = bytes.get(from..from + MAC_BYTES) {
                        spelled.push(format!("{place} {command} {}", number::mac_name(address)));
                    }
                }
            }
        }
        let read = |munge: &String| {
            let read = Self::read_munge(munge, self.extended)?;
            (keys.starts_with(&read)).then(|| (format!(" munge {munge}"), read.len()))
        };
        spelled.iter().filter_map(read).max_by_key(|(_, count)| *count)
    }

    /// Parses the words after `munge` into keys.
    fn read_munge(munge: &str, extended: bool) -> Option<Vec<Key>> {
        let mut spans = Spans::default();
        let text = split_plain(munge.as_bytes(), &mut spans)?;
        let mut words = Words::new(text, &spans);
        let instance = Instance { index: 0, control: Control::PASS };
        let mut action = Self { instance, extended, keys: Vec::new() };
        action.munge(&mut words).ok()?;
        (words.peek().is_none() && !action.keys.is_empty()).then_some(action.keys)
    }
}

#[cfg(test)]
mod test {
    use crate::{Batch, Table};

    #[test]
    fn an_instance_that_is_only_named_has_words_that_name_it() {
        let mut table = Table::of([("d0".to_owned(), model::IfIndex(1))]);
        for (index, has_words) in
            [("pedit index 3", true), ("pedit ex index 3", true), ("pedit index 0", false)]
        {
            let line = format!("filter add dev d0 ingress flower action {index} action drop\n");
            let mut batch = Batch::new(line.as_bytes());
            let (_, command) = batch.next_command(&mut table).expect("read").expect("a line");
            let rule = command.rule().expect("a rule").clone();
            let words = rule.words(&mut table);
            assert_eq!(words.is_some(), has_words, "{words:?}");
            assert_eq!(rule.line(&mut table), words, "every formatted change can be parsed again");
        }
    }
}
