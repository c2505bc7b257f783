//! `ife`: carries packet metadata over an Ethernet link.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_ife.h`, `include/uapi/linux/ife.h`, `net/sched/act_ife.c`.

use super::control::Control;
use super::instance::Instance;
use crate::number::{self, Base};
use crate::words::{Read, Words, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 1;
const DMAC: u16 = 3;
const SMAC: u16 = 4;
const TYPE: u16 = 5;
const METALST: u16 = 6;

/// `IFE_ENCODE`.
const ENCODE: u16 = 1;

/// The default protocol of the outer header: `ETH_P_IFE`.
const TYPE_DEFAULT: u16 = 0xed3e;

/// The metadata, in the order in which it is sent: keyword, the kernel's number `IFE_META_*`, and the size of
/// a value in bytes.
const META: [(&str, u16, usize); 3] = [("mark", 1, 4), ("prio", 3, 4), ("tcindex", 5, 2)];

/// The keywords of [`META`].
const META_WORDS: &[&str] = &["mark", "prio", "tcindex"];

keywords! {
    /// The keywords of the action, in iproute2's order.
    enum Word {
        Ife = "ife",
        Decode = "decode",
        Encode = "encode",
        Allow = "allow",
        Use = "use",
        Type = "type",
        Dst = "dst",
        Src = "src",
    }
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ife {
    /// The instance and its control action.
    pub instance: Instance,
    /// Whether packets are encoded; otherwise they are decoded.
    pub encode: bool,
    /// The destination of the outer header.
    pub destination: Option<[u8; 6]>,
    /// The source of the outer header.
    pub source: Option<[u8; 6]>,
    /// The protocol of the outer header.
    pub protocol: Option<u16>,
    /// For each entry of [`META`]: whether the metadata is carried, and a fixed value; 0 for the packet's own
    /// value.
    pub meta: [Option<u32>; META.len()],
}

impl Ife {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let instance = Instance { index: 0, control: Control::PIPE };
        let mut action = Self {
            instance,
            encode: false,
            destination: None,
            source: None,
            protocol: None,
            meta: [None; 3],
        };
        let (mut direction, mut place) = (false, None);
        while let Some(word) = words.peek().and_then(Word::find) {
            if !matches!(word, Word::Ife | Word::Decode | Word::Encode) {
                place.get_or_insert(words.clone());
            }
            words.skip();
            match word {
                Word::Ife => _ = words.peek().ok_or_else(|| words.unknown_here(Word::WORDS))?,
                Word::Decode | Word::Encode => (action.encode, direction) = (word == Word::Encode, true),
                Word::Allow => {
                    let which = Self::which(words)?;
                    action.meta[which].get_or_insert(0);
                }
                Word::Use => {
                    let which = Self::which(words)?;
                    let bytes = META[which].2;
                    let fits = |value: &u32| *value != 0 && (bytes == 4 || *value <= u32::from(u16::MAX));
                    let value = |word| number::u32(word, Base::Prefix).filter(fits);
                    action.meta[which] = Some(words.read("a value of at least 1 that fits", value)?);
                }
                Word::Type => {
                    let protocol = |word| number::u16(word, Base::Prefix);
                    action.protocol = Some(words.read("a protocol's number: 0 to 0xffff", protocol)?);
                }
                Word::Dst => {
                    action.destination = Some(words.read("an Ethernet address", number::whole_mac)?);
                }
                Word::Src => action.source = Some(words.read("an Ethernet address", number::whole_mac)?),
            }
        }
        if let Some(mut place) = place.filter(|_| !action.encode) {
            place.skip();
            return Err(place.wrong("only `encode` accepts this option"));
        }
        action.instance = Instance::end(words, Control::PIPE, Base::Prefix)?;
        if !direction && action.instance.index == 0 {
            return Err(words.unknown_here(Word::WORDS));
        }
        Ok(action)
    }

    /// Reads the next word as the keyword of an entry of [`META`].
    fn which(words: &mut Words<'_>) -> Read<usize> {
        let named = |word| META.iter().position(|(name, ..)| crate::words::abbreviates(word, name));
        words.read("mark, prio or tcindex", named).map_err(|wrong| wrong.expecting(META_WORDS))
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        let [a, b] = (if self.encode { ENCODE } else { 0 }).to_ne_bytes();
        self.instance.encode(PARMS, &[a, b, 0, 0], out);
        if !self.encode {
            return;
        }
        self.destination.inspect(|mac| _ = out.bytes(DMAC, mac));
        self.protocol.inspect(|protocol| _ = out.u16(TYPE, *protocol));
        self.source.inspect(|mac| _ = out.bytes(SMAC, mac));
        out.unmarked(METALST, |out| {
            for ((_, number, bytes), value) in META.iter().zip(self.meta) {
                match value {
                    None => {}
                    Some(0) => _ = out.flag(*number),
                    Some(value) if *bytes == 4 => _ = out.u32(*number, value),
                    // The value fits: it was checked when read, or has the same number of bytes.
                    Some(value) => _ = out.u16(*number, u16::try_from(value).unwrap_or(u16::MAX)),
                }
            }
        });
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let (instance, parms) = Instance::decode(attrs, PARMS)?;
        let [a, b, ..] = parms.word_at(20)?.to_ne_bytes();
        let mac = |number| attrs.find(number)?.map(|attr| attr.mac()).transpose();
        let mut action = Self {
            instance,
            encode: u16::from_ne_bytes([a, b]) & ENCODE != 0,
            destination: mac(DMAC)?,
            source: mac(SMAC)?,
            protocol: attrs.find(TYPE)?.map(|attr| attr.u16()).transpose()?,
            meta: [None; META.len()],
        };
        if let Some(list) = attrs.find(METALST)? {
            for ((_, number, bytes), value) in META.iter().zip(&mut action.meta) {
                let Some(attr) = list.nested().find(*number)? else { continue };
                *value = Some(match attr.payload.len() {
                    0 => 0,
                    _ if *bytes == 4 => attr.u32()?,
                    _ => u32::from(attr.u16()?),
                });
            }
        }
        action.canonicalize();
        Ok(action)
    }

    /// Converts the action to the form that the kernel would dump: decoding has no outer header and carries
    /// all metadata, and a missing address is the zero address.
    pub(super) fn canonicalize(&mut self) {
        if !self.encode {
            (self.destination, self.source, self.protocol, self.meta) =
                (None, None, None, [None; META.len()]);
        }
        self.protocol = self.protocol.filter(|protocol| *protocol != TYPE_DEFAULT);
        for mac in [&mut self.destination, &mut self.source] {
            *mac = mac.filter(|mac| *mac != [0; 6]);
        }
    }

    pub(super) fn words(&self) -> Option<String> {
        let mut words = format!("ife {}", if self.encode { "encode" } else { "decode" });
        for ((name, ..), value) in META.iter().zip(self.meta) {
            match value {
                None => {}
                Some(0) => words.push_str(&format!(" allow {name}")),
                Some(value) => words.push_str(&format!(" use {name} {value}")),
            }
        }
        self.protocol.inspect(|protocol| words.push_str(&format!(" type {protocol:#x}")));
        for (name, mac) in [("dst", &self.destination), ("src", &self.source)] {
            mac.inspect(|mac| words.push_str(&format!(" {name} {}", number::mac_name(mac))));
        }
        Some(words + &self.instance.end_words(Control::PIPE)?)
    }
}
