//! `flow`: assigns packets a class by mapping or hashing keys of the packet.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_FLOW_*`, `net/sched/cls_flow.c`.

use super::shape::{Gathered, ListedKind, Shape, Takes, Value, shape};
use crate::number::{self, Base};
use crate::words::{Read, Words, abbreviates};

const MODE: u16 = 2;
const BASECLASS: u16 = 3;
const MASK: u16 = 6;
const XOR: u16 = 7;

/// `FLOW_MODE_MAP`, `FLOW_MODE_HASH`.
const MAP: u32 = 0;
const HASH: u32 = 1;

/// Attributes that are sent last, regardless of the position of their keywords in the line.
pub(super) const GATHERED: [u16; 3] = [MODE, MASK, XOR];

pub(super) const SHAPE: Shape = shape! {
    "flow" always;
    "map" = 0 Takes::Choice(MAP),
    "hash" = 0 Takes::Choice(HASH),
    "keys" = 1 Takes::Keys,
    "and" = 0 Takes::And,
    "or" = 0 Takes::Or,
    "xor" = 0 Takes::Xor,
    "rshift" = 4 Takes::Number,
    "addend" = 5 Takes::Addend,
    "divisor" = 8 Takes::Number,
    "baseclass" = 3 Takes::Minor,
    "perturb" = 12 Takes::Number,
    "police" = 10 Takes::Police,
    "action" = 9 Takes::Actions,
    "match" = 11 Takes::Matches,
};

/// The keys of packets, by the kernel's number `FLOW_KEY_*`.
pub(super) const KEYS: &[&str] = &[
    "src",
    "dst",
    "proto",
    "proto-src",
    "proto-dst",
    "iif",
    "priority",
    "mark",
    "nfct",
    "nfct-src",
    "nfct-dst",
    "nfct-proto-src",
    "nfct-proto-dst",
    "rt-classid",
    "sk-uid",
    "sk-gid",
    "vlan-tag",
    "rxhash",
];

/// The keys for which iproute2 6.1 accepts an address as a number. It combines the key numbers 0, 1, 9 and 10
/// instead of their bits, and thus checks the keys 0, 1 and 3.
const ADDRESS_KEYS: u32 = 1 | 9 | 10;

/// Parses comma-separated keys; returns their bits and their count.
pub(super) fn keys(word: &str) -> Option<(u32, u32)> {
    let (mut bits, mut count) = (0, 0);
    for key in word.split(',') {
        bits |= 1 << KEYS.iter().position(|name| abbreviates(key, name))?;
        count += 1;
    }
    Some((bits, count))
}

/// Formats keys; returns `None` if there are no keys or unknown ones.
pub(super) fn key_words(bits: u32) -> Option<String> {
    let names = KEYS.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
    let names: Vec<&str> = names.map(|(_, name)| *name).collect();
    (bits >> KEYS.len() == 0 && bits != 0).then(|| names.join(","))
}

/// Parses a number or, if the keys include an address, an address, of which it returns the last 32 bits.
pub(super) fn addend(word: &str, keys: u32) -> Option<u32> {
    let (negative, word) = word.strip_prefix('-').map_or((false, word), |rest| (true, rest));
    let address = || {
        let address = number::address(word).filter(|_| keys & ADDRESS_KEYS != 0)?;
        let last = address.as_bytes().last_chunk()?;
        Some(u32::from_be_bytes(*last))
    };
    let number = number::u32(word, Base::Prefix).or_else(address)?;
    Some(if negative { number.wrapping_neg() } else { number })
}

/// Adds the attributes that are sent last, after the line is parsed.
pub(super) fn complete(options: &mut Vec<(u16, Value)>, gathered: &Gathered, words: &Words<'_>) -> Read<()> {
    if gathered.keys.1 > 1 && gathered.choice == MAP {
        return Err(words.wrong_here("several keys need `hash`"));
    }
    options.push((MODE, Value::Number(gathered.choice)));
    if (gathered.mask, gathered.xor) != (u32::MAX, 0) {
        options.push((MASK, Value::Number(gathered.mask)));
        options.push((XOR, Value::Number(gathered.xor)));
    }
    Ok(())
}

/// Formats one of the attributes in `GATHERED`.
pub(super) fn gathered_words(number: u16, value: u32) -> Option<String> {
    Some(match (number, value) {
        (MODE, MAP) => " map".to_owned(),
        (MODE, HASH) => " hash".to_owned(),
        (MASK, mask) => format!(" and {mask:#x}"),
        (XOR, xor) => format!(" xor {xor:#x}"),
        _ => return None,
    })
}

/// Completes the base class as the kernel does on a qdisc with this handle. The default is the qdisc's first
/// class.
pub(super) fn canonicalize(options: &mut Vec<(u16, Value)>, qdisc: u32) {
    let place = options.iter().position(|(number, _)| *number == BASECLASS);
    let given = match place.map(|place| &options[place].1) {
        Some(Value::Number(class)) => *class,
        _ => 1,
    };
    let class = if given >> 16 == 0 { qdisc | given } else { given };
    match place {
        Some(place) => options[place].1 = Value::Number(class),
        None if qdisc != 0 => options.push((BASECLASS, Value::Number(class))),
        None => {}
    }
    options.sort_by_key(|(number, _)| *number);
}

/// Whether the kernel dumps this option even if its value is 0: true for the mode, and for both masks if
/// either is set.
pub(super) fn is_dumped_as_zero(kind: ListedKind, number: u16) -> bool {
    kind == ListedKind::Flow && GATHERED.contains(&number)
}
