//! The selector of a u32 rule: 32-bit keys, and the offset of the next header.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `struct tc_u32_sel`, `struct tc_u32_key`, `net/sched/cls_u32.c`.

use crate::number::{self, Base};
use crate::words::{Read, Words, abbreviates};
use netlink::attr::{AttrBuf, Malformed};

/// Bits of `tc_u32_sel.flags`.
pub(super) const TERMINAL: u8 = 1;
const OFFSET: u8 = 2;
const VAROFFSET: u8 = 4;
const EAT: u8 = 8;

/// Maximum number of keys per rule: the kernel counts them in 8 bits, but iproute2 allows only half as many.
const KEYS_MAX: usize = 128;

/// Size of `tc_u32_sel` without its keys, and of a key.
const SEL_BYTES: usize = 16;
const KEY_BYTES: usize = 16;

/// The offset mask that iproute2 6.1 writes for `ip6 icmp_code`, and for no other keyword.
const ICMPV6_CODE: i32 = 1;

/// A key: 32 bits of the packet and their required value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The mask, in network order.
    pub mask: u32,
    /// The value, in network order.
    pub value: u32,
    /// Offset in bytes from the network header.
    pub offset: i32,
    /// The mask of the offset: -1 for an offset from the next header; see also [`ICMPV6_CODE`].
    pub offset_mask: i32,
}

/// The selector of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    pub(super) flags: u8,
    offset_shift: u8,
    offset_mask: u16,
    offset: u16,
    offset_at: i16,
    hash_at: i16,
    hash_mask: u32,
    /// The conditions.
    pub keys: Vec<Key>,
}

impl Key {
    /// Returns the bucket for packets with this value: the masked value, shifted right by the mask's trailing
    /// zeros.
    pub(super) const fn hash(&self) -> u32 {
        let mask = u32::from_be(self.mask);
        let shift = if mask == 0 { 0 } else { mask.trailing_zeros() };
        u32::from_be(self.value & self.mask) >> shift
    }

    /// Formats the key byte by byte, because only `icmp_code`, which matches a byte, produces this offset
    /// mask. Returns `None` if an offset overflows.
    fn icmpv6_code_words(&self, words: &mut String) -> Option<()> {
        let (value, mask) = (self.value.to_ne_bytes(), self.mask.to_ne_bytes());
        for (at, (value, mask)) in (0..).zip(value.into_iter().zip(mask)) {
            if mask != 0 || (self.mask == 0 && at == 0) {
                let offset = self.offset.checked_add(at)?;
                words.push_str(&format!(" match ip6 icmp_code {value:#x} {mask:#x} at {offset}"));
            }
        }
        Some(())
    }
}

impl Selector {
    /// Returns an empty selector that reuses the memory of `other`.
    pub(super) fn emptied(other: Self) -> Self {
        let mut keys = other.keys;
        keys.clear();
        Self { keys, ..Self::default() }
    }

    /// Adds a key of this many bytes. If there already is a key for the same 32-bit word, merges the bits
    /// into that key.
    fn pack(&mut self, words: &Words<'_>, key: u32, mask: u32, bytes: u32, at: (i32, i32)) -> Read<()> {
        let all = if bytes == 4 { u32::MAX } else { (1 << (8 * bytes)) - 1 };
        if key > all || mask > all {
            return Err(words.wrong(format!("the value and its mask have {} bits here", 8 * bytes)));
        }
        let within = at.0.cast_unsigned() & 3;
        let shift = match (bytes, within) {
            (4, 0) => 0,
            (4, _) => return Err(words.wrong("the offset of 32 bits must be a multiple of 4")),
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
                return Err(words.wrong("this contradicts an earlier match of the same bits on the line"));
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

    /// Parses `at [nexthdr+]OFFSET`, or returns the default offset.
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

    /// Parses `VALUE MASK [at OFFSET]`.
    pub(super) fn number(&mut self, words: &mut Words<'_>, bytes: u32, offset: i32, mask: i32) -> Read<()> {
        let key = words.read("a number", |word| number::u32(word, Base::Prefix))?;
        let bits = words.read("a hexadecimal mask", |word| number::u32(word, Base::Sixteen))?;
        let at = Self::at(words, (offset, mask))?;
        self.pack(words, key, bits, bytes, at)
    }

    pub(super) fn ip(&mut self, words: &mut Words<'_>) -> Read<()> {
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

    pub(super) fn ip6(&mut self, words: &mut Words<'_>) -> Read<()> {
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
                let key = words.read("an 8-bit number", |word| number::u8(word, Base::Prefix))?;
                let bits =
                    words.read("a hexadecimal mask of 8 bits", |word| number::u8(word, Base::Sixteen))?;
                self.pack(words, u32::from(key) << 20, u32::from(bits) << 20, 4, (0, 0))
            }
            "protocol" => self.number(words, 1, 6, 0),
            "flowlabel" => self.number(words, 4, 0, 0),
            "dport" => self.number(words, 2, 42, 0),
            "sport" => self.number(words, 2, 40, 0),
            "icmp_type" => self.number(words, 1, 40, 0),
            "icmp_code" => self.number(words, 1, 41, ICMPV6_CODE),
            _ => {
                words.back();
                Err(words.unknown_here(FIELDS))
            }
        }
    }

    pub(super) fn ether(&mut self, words: &mut Words<'_>) -> Read<()> {
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

    /// Parses the arguments of `offset`, which define the start of the next header.
    pub(super) fn offset(&mut self, words: &mut Words<'_>) -> Read<()> {
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

    /// Parses the arguments of `hashkey`, which define the bits that select the bucket.
    pub(super) fn hashkey(&mut self, words: &mut Words<'_>) -> Read<()> {
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

    /// Copies another selector, reusing the memory of this one.
    pub(super) fn assign(&mut self, other: &Self) {
        let mut keys = std::mem::take(&mut self.keys);
        keys.clone_from(&other.keys);
        *self = Self { keys, ..*other };
    }

    pub(super) fn encode(&self, number: u16, out: &mut AttrBuf) {
        let mut bytes = [0; SEL_BYTES];
        bytes[0] = self.flags;
        bytes[1] = self.offset_shift;
        bytes[2] = u8::try_from(self.keys.len()).unwrap_or(u8::MAX);
        bytes[4..6].copy_from_slice(&self.offset_mask.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[8..10].copy_from_slice(&self.offset_at.to_ne_bytes());
        bytes[10..12].copy_from_slice(&self.hash_at.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.hash_mask.to_be_bytes());
        out.unmarked(number, |out| {
            out.raw(&bytes);
            for key in &self.keys {
                let words =
                    [key.mask, key.value, key.offset.cast_unsigned(), key.offset_mask.cast_unsigned()];
                let mut bytes = [0; KEY_BYTES];
                for (part, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                    *part = word.to_ne_bytes();
                }
                out.raw(&bytes);
            }
        });
    }

    pub(super) fn decode(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let (head, keys) =
            bytes.split_first_chunk::<SEL_BYTES>().ok_or(Malformed("a selector is truncated"))?;
        self.flags = head[0];
        self.offset_shift = head[1];
        self.offset_mask = u16::from_be_bytes([head[4], head[5]]);
        self.offset = u16::from_ne_bytes([head[6], head[7]]);
        self.offset_at = i16::from_ne_bytes([head[8], head[9]]);
        self.hash_at = i16::from_ne_bytes([head[10], head[11]]);
        self.hash_mask = u32::from_be_bytes([head[12], head[13], head[14], head[15]]);
        let (keys, rest) = keys.as_chunks::<KEY_BYTES>();
        if keys.len() != usize::from(head[2]) || keys.len() > KEYS_MAX || !rest.is_empty() {
            return Err(Malformed("the number of keys in a selector is wrong"));
        }
        for key in keys {
            let word = |at: usize| u32::from_ne_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]]);
            let (offset, offset_mask) = (word(8).cast_signed(), word(12).cast_signed());
            self.keys.push(Key { mask: word(0), value: word(4), offset, offset_mask });
        }
        Ok(())
    }

    pub(super) fn words(&self, words: &mut String) -> Option<()> {
        for key in &self.keys {
            let (value, mask) = (u32::from_be(key.value), u32::from_be(key.mask));
            let next = match key.offset_mask {
                0 => "",
                -1 => "nexthdr+",
                ICMPV6_CODE => {
                    key.icmpv6_code_words(words)?;
                    continue;
                }
                _ => return None,
            };
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
        Some(())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_byte_beyond_the_last_offset_has_no_words() {
        let key = |offset| Key { mask: u32::MAX, value: 0, offset, offset_mask: ICMPV6_CODE };
        let words = |offset| {
            let mut words = String::new();
            Selector { keys: vec![key(offset)], ..Selector::default() }.words(&mut words).map(|()| words)
        };
        assert!(words(4).is_some_and(|words| words.ends_with("at 7")));
        assert_eq!(words(i32::MAX), None);
    }
}
