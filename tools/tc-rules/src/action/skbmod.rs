//! `skbmod`: changes the Ethernet header of a packet, or sets the ECN CE codepoint.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_skbmod.h`, `net/sched/act_skbmod.c`.

use super::control::Control;
use super::instance::Instance;
use crate::number::{self, Base};
use crate::words::{Read, Words, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 2;
const DMAC: u16 = 3;
const SMAC: u16 = 4;
const ETYPE: u16 = 5;

/// `SKBMOD_F_*`.
mod flag {
    pub(super) const DMAC: u64 = 1;
    pub(super) const SMAC: u64 = 2;
    pub(super) const ETYPE: u64 = 4;
    pub(super) const SWAPMAC: u64 = 8;
    pub(super) const ECN: u64 = 16;
}

keywords! {
    /// The keywords of the action, in iproute2's order.
    enum Word {
        Skbmod = "skbmod",
        Swap = "swap",
        Mac = "mac",
        Set = "set",
        Etype = "etype",
        Dmac = "dmac",
        Smac = "smac",
        Ecn = "ecn",
    }
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skbmod {
    /// The instance and its control action.
    pub instance: Instance,
    /// The new destination.
    pub destination: Option<[u8; 6]>,
    /// The new source.
    pub source: Option<[u8; 6]>,
    /// The new protocol.
    pub protocol: Option<u16>,
    /// Whether source and destination are swapped.
    pub swap: bool,
    /// Whether the packet is marked as having experienced congestion.
    pub ecn: bool,
}

impl Skbmod {
    const fn of(instance: Instance) -> Self {
        Self { instance, destination: None, source: None, protocol: None, swap: false, ecn: false }
    }

    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let mut action = Self::of(Instance { index: 0, control: Control::PIPE });
        while let Some(word) = words.peek().and_then(Word::find) {
            words.skip();
            match word {
                // These keywords have no effect by themselves, but another keyword must follow.
                Word::Skbmod | Word::Swap | Word::Set => {
                    words.peek().ok_or_else(|| words.unknown_here(Word::WORDS))?;
                }
                Word::Mac => action.swap = true,
                Word::Ecn => action.ecn = true,
                Word::Etype => {
                    let protocol = |word| number::u16(word, Base::Prefix);
                    action.protocol = Some(words.read("a protocol's number: 0 to 0xffff", protocol)?);
                }
                Word::Dmac => {
                    action.destination = Some(words.read("an Ethernet address", number::whole_mac)?);
                }
                Word::Smac => action.source = Some(words.read("an Ethernet address", number::whole_mac)?),
            }
        }
        action.instance = Instance::end(words, Control::PIPE, Base::Prefix)?;
        if action == Self::of(action.instance) && action.instance.index == 0 {
            return Err(words.unknown_here(Word::WORDS));
        }
        Ok(action)
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        let flags = [
            (self.destination.is_some(), flag::DMAC),
            (self.source.is_some(), flag::SMAC),
            (self.protocol.is_some(), flag::ETYPE),
            (self.swap, flag::SWAPMAC),
            (self.ecn, flag::ECN),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit);
        // The 64-bit flags are aligned to 8 bytes.
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&flags.to_ne_bytes());
        self.instance.encode(PARMS, &bytes, out);
        self.destination.inspect(|mac| _ = out.bytes(DMAC, mac));
        self.protocol.filter(|protocol| *protocol != 0).inspect(|protocol| _ = out.u16(ETYPE, *protocol));
        self.source.inspect(|mac| _ = out.bytes(SMAC, mac));
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let (instance, parms) = Instance::decode(attrs, PARMS)?;
        let flags = u64::from(parms.word_at(24)?);
        let mac = |number| attrs.find(number)?.map(|attr| attr.mac()).transpose();
        let mut action = Self {
            instance,
            destination: mac(DMAC)?,
            source: mac(SMAC)?,
            protocol: attrs.find(ETYPE)?.map(|attr| attr.u16()).transpose()?,
            swap: flags & flag::SWAPMAC != 0,
            ecn: flags & flag::ECN != 0,
        };
        action.canonicalize();
        Ok(action)
    }

    /// Converts the action to the form that the kernel stores: `ecn` and `mac` exclude everything else, and
    /// there is no protocol 0.
    pub(super) fn canonicalize(&mut self) {
        if self.ecn {
            *self = Self { ecn: true, ..Self::of(self.instance) };
        } else if self.swap {
            *self = Self { swap: true, ..Self::of(self.instance) };
        }
        self.protocol = self.protocol.filter(|protocol| *protocol != 0);
    }

    pub(super) fn words(&self) -> Option<String> {
        if self.instance.index == 0 && *self == Self::of(self.instance) {
            return None;
        }
        let mut words = "skbmod".to_owned();
        self.protocol.inspect(|protocol| words.push_str(&format!(" set etype {protocol:#x}")));
        for (name, mac) in [("dmac", &self.destination), ("smac", &self.source)] {
            mac.inspect(|mac| words.push_str(&format!(" set {name} {}", number::mac_name(mac))));
        }
        for (set, word) in [(self.swap, " swap mac"), (self.ecn, " ecn")] {
            words.push_str(if set { word } else { "" });
        }
        Some(words + &self.instance.end_words(Control::PIPE)?)
    }
}
