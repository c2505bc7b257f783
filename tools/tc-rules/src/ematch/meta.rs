//! `meta`: compares packet metadata.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_ematch/tc_em_meta.h`, `net/sched/em_meta.c`.

use super::cmp::OPERATORS;
use super::token::{Args, What, string_words, wrapping};
use crate::number::{self, Base};
use crate::words::Read;
use netlink::attr::{Attr, AttrBuf, Malformed};

const HDR: u16 = 1;
const LVALUE: u16 = 2;
const RVALUE: u16 = 3;

/// `TCF_META_TYPE_VAR`: bytes.
const BYTES: u16 = 0;
/// `TCF_META_TYPE_INT`: a number.
const NUMBER: u16 = 1;

/// The position of the type, above the bits of the identifier.
const TYPE_SHIFT: u32 = 12;
/// `TCF_META_ID_MASK`.
const ID_MASK: u16 = 0x7ff;

/// The metadata, by the kernel's number `TCF_META_ID_*`. The first name of a number is used for output.
const IDS: &[(&str, u16)] = &[
    ("random", 1),
    ("loadavg_1", 2),
    ("loadavg_5", 3),
    ("loadavg_15", 4),
    ("dev", 5),
    ("priority", 6),
    ("protocol", 7),
    ("pkt_type", 8),
    ("pkt_len", 9),
    ("data_len", 10),
    ("mac_len", 11),
    ("nf_mark", 12),
    ("fwmark", 12),
    ("tc_index", 13),
    ("rt_classid", 14),
    ("rt_iif", 15),
    ("vlan", 46),
    ("sk_family", 16),
    ("sk_state", 17),
    ("sk_reuse", 18),
    ("sk_bind_if", 19),
    ("sk_refcnt", 20),
    ("sk_shutdown", 21),
    ("sk_proto", 22),
    ("sk_type", 23),
    ("sk_rcvbuf", 24),
    ("sk_rmem", 25),
    ("sk_wmem", 26),
    ("sk_omem", 27),
    ("sk_wmem_queue", 28),
    ("sk_snd_queue", 30),
    ("sk_rcv_queue", 29),
    ("sk_err_queue", 31),
    ("sk_fwd_alloc", 32),
    ("sk_sndbuf", 33),
];

/// The names, for suggestions after a misspelling.
const NAMES: &[&str] = &{
    let mut names = [""; IDS.len()];
    let mut place = 0;
    while place < names.len() {
        names[place] = IDS[place].0;
        place += 1;
    }
    names
};

/// Metadata whose value is available both as a number and as a name: `dev` and `sk_bind_if`.
const NAMED: [u16; 2] = [5, 19];

/// A side of the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// A number.
    Number(u32),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Metadata of the packet.
    Known {
        /// The kernel's number.
        id: u16,
        /// Whether the value is a number rather than bytes.
        number: bool,
        /// The shift, in bits or bytes.
        shift: u8,
        /// The mask of the number; 0 for all bits.
        mask: u32,
    },
}

/// The match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The left side.
    pub left: Side,
    /// The comparison, by the kernel's number `TCF_EM_OPND_*`.
    pub operator: u8,
    /// The right side.
    pub right: Side,
}

impl Meta {
    pub(super) fn parse(args: &mut Args<'_>) -> Read<Self> {
        let left = Side::parse(args)?;
        let operator = u8::try_from(args.one_of(OPERATORS)?).unwrap_or(u8::MAX);
        let mut right = Side::parse(args)?;
        // If the left side is a string, use the string form of the right side's metadata, which only some
        // metadata has.
        if let (Side::Bytes(_), Side::Known { id, number, .. }) = (&left, &mut right) {
            if !NAMED.contains(id) {
                return Err(args.wrong("only `dev` and `sk_bind_if` compare with a string"));
            }
            *number = false;
        }
        Ok(Self { left, operator, right })
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        let header = [self.left.header(self.operator), self.right.header(0)];
        out.bytes(HDR, header.as_flattened());
        self.left.encode(LVALUE, out);
        self.right.encode(RVALUE, out);
    }

    pub(super) fn decode(data: &Attr<'_>) -> Result<Self, Malformed> {
        let attrs = data.nested();
        let header = attrs.find(HDR)?.ok_or(Malformed("a comparison without a header"))?;
        let (left, right) = (header.word_at(0)?.to_ne_bytes(), header.word_at(4)?.to_ne_bytes());
        Ok(Self {
            left: Side::decode(left, attrs.find(LVALUE)?)?,
            operator: left[3],
            right: Side::decode(right, attrs.find(RVALUE)?)?,
        })
    }

    pub(super) fn words(&self) -> Option<String> {
        let operator = OPERATORS.get(usize::from(self.operator))?;
        Some(format!("{} {operator} {}", self.left.words()?, self.right.words()?))
    }
}

impl Side {
    fn parse(args: &mut Args<'_>) -> Read<Self> {
        let token = args.required(NAMES)?;
        let text = match &token.what {
            What::String(bytes) => return Ok(Self::Bytes(bytes.clone())),
            _ => token.text().unwrap_or_default(),
        };
        if let Some(number) = wrapping(text) {
            return Ok(Self::Number(number));
        }
        let known = IDS.iter().find(|(name, _)| *name == text);
        let id = known.ok_or_else(|| token.unknown(NAMES))?.1;
        let (mut shift, mut mask) = (0, 0);
        loop {
            match args.peek().and_then(|token| token.text()) {
                Some("shift") => {
                    args.optional();
                    shift = args.read("a count: 0 to 255", |word| number::u8(word, Base::Prefix))?;
                }
                Some("mask") => {
                    args.optional();
                    mask = args.number("a mask of 32 bits")?;
                }
                _ => return Ok(Self::Known { id, number: true, shift, mask }),
            }
        }
    }

    fn header(&self, operator: u8) -> [u8; 4] {
        let (id, number, shift) = match self {
            Self::Number(_) => (0, true, 0),
            Self::Bytes(_) => (0, false, 0),
            Self::Known { id, number, shift, .. } => (*id, *number, *shift),
        };
        let [a, b] = (id | if number { NUMBER } else { BYTES } << TYPE_SHIFT).to_ne_bytes();
        [a, b, shift, operator]
    }

    fn encode(&self, place: u16, out: &mut AttrBuf) {
        match self {
            Self::Number(number) => _ = out.u32(place, *number),
            Self::Bytes(bytes) => _ = out.bytes(place, bytes),
            Self::Known { number: true, mask, .. } => _ = out.u32(place, *mask),
            Self::Known { .. } => {}
        }
    }

    fn decode([a, b, shift, _]: [u8; 4], value: Option<Attr<'_>>) -> Result<Self, Malformed> {
        let kind = u16::from_ne_bytes([a, b]);
        let (id, number) = (kind & ID_MASK, kind >> TYPE_SHIFT == NUMBER);
        // The value of a number may have the size of the kernel's `long`, so read only its first word.
        let word = value.as_ref().filter(|_| number).map_or(Ok(0), |value| value.word_at(0))?;
        Ok(match (id, number) {
            (0, true) => Self::Number(word),
            (0, false) => Self::Bytes(value.map_or_else(Vec::new, |value| value.payload.to_vec())),
            (id, number) => Self::Known { id, number, shift, mask: word },
        })
    }

    fn words(&self) -> Option<String> {
        Some(match self {
            Self::Number(number) => number.to_string(),
            Self::Bytes(bytes) => string_words(bytes),
            Self::Known { id, shift, mask, .. } => {
                let mut words = IDS.iter().find(|(_, number)| number == id)?.0.to_owned();
                if *shift != 0 {
                    words.push_str(&format!(" shift {shift}"));
                }
                if *mask != 0 {
                    words.push_str(&format!(" mask {mask:#x}"));
                }
                words
            }
        })
    }
}
