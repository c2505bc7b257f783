//! `mpls`: pushes, pops and changes MPLS headers.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_mpls.h`, `net/sched/act_mpls.c`.

use super::control::Control;
use super::instance::Instance;
use crate::number::{self, Base};
use crate::protocol;
use crate::words::{Read, Words, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 2;
const PROTO: u16 = 4;
const LABEL: u16 = 5;
const TC: u16 = 6;
const TTL: u16 = 7;
const BOS: u16 = 8;

const POP: u32 = 1;
const PUSH: u32 = 2;
const MODIFY: u32 = 3;
const DEC_TTL: u32 = 4;
const MAC_PUSH: u32 = 5;

/// The operations, by the kernel's number `TCA_MPLS_ACT_*`.
const WHAT: [&str; 6] = ["", "pop", "push", "modify", "dec_ttl", "mac_push"];

/// The highest label.
const LABEL_MAX: u32 = 0xf_ffff;

/// The default TTL of a pushed header, unless the rule or `net.mpls.default_ttl` sets another.
const TTL_DEFAULT: u8 = 255;

keywords! {
    /// The keywords of the action, in iproute2's order.
    enum Word {
        Pop = "pop",
        Push = "push",
        Modify = "modify",
        MacPush = "mac_push",
        DecTtl = "dec_ttl",
        Label = "label",
        Tc = "tc",
        Ttl = "ttl",
        Bos = "bos",
        Protocol = "protocol",
    }
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mpls {
    /// The instance and its control action.
    pub instance: Instance,
    /// The operation, by the kernel's number; 0 in the dump of an action that does nothing.
    pub what: u32,
    /// The protocol of the packet after popping, or of the pushed header.
    pub protocol: Option<u16>,
    /// The header's label.
    pub label: Option<u32>,
    /// The header's traffic class.
    pub class: Option<u8>,
    /// The header's time to live.
    pub ttl: Option<u8>,
    /// Whether the header is the last of its stack.
    pub bottom: Option<u8>,
}

impl Mpls {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let instance = Instance { index: 0, control: Control::PIPE };
        let mut action =
            Self { instance, what: 0, protocol: None, label: None, class: None, ttl: None, bottom: None };
        while let Some(word) = words.peek().and_then(Word::find) {
            words.skip();
            let what = match word {
                Word::Pop => POP,
                Word::Push => PUSH,
                Word::Modify => MODIFY,
                Word::MacPush => MAC_PUSH,
                Word::DecTtl => DEC_TTL,
                Word::Protocol if !matches!(action.what, POP | PUSH | MAC_PUSH) => {
                    return Err(words.wrong("only `push`, `mac_push` and `pop` accept this option"));
                }
                Word::Label | Word::Tc | Word::Ttl | Word::Bos
                    if !matches!(action.what, PUSH | MAC_PUSH | MODIFY) =>
                {
                    return Err(words.wrong("only `push`, `mac_push` and `modify` accept this option"));
                }
                Word::Protocol | Word::Label | Word::Tc | Word::Ttl | Word::Bos => {
                    action.field(word, words)?;
                    continue;
                }
            };
            if action.what != 0 {
                return Err(words.wrong("the operation was already given"));
            }
            action.what = what;
        }
        match action.what {
            0 => return Err(words.unknown_here(Word::WORDS)),
            PUSH if action.label.is_none() => return Err(words.wrong_here("a pushed header needs a label")),
            POP if action.protocol.is_none() => {
                return Err(words.wrong_here("`pop` needs the protocol of the packet after the header"));
            }
            _ => {}
        }
        action.instance = Instance::end(words, Control::PIPE, Base::Ten)?;
        Ok(action)
    }

    fn field(&mut self, word: Word, words: &mut Words<'_>) -> Read<()> {
        let within = |max: u8| move |word: &str| number::u8(word, Base::Prefix).filter(|value| *value <= max);
        match word {
            Word::Label => {
                let label = |word| number::u32(word, Base::Prefix).filter(|label| *label <= LABEL_MAX);
                self.label = Some(words.read("a label: 0 to 1048575", label)?);
            }
            Word::Tc => self.class = Some(words.read("a traffic class: 0 to 7", within(7))?),
            Word::Bos => self.bottom = Some(words.read("0 or 1", within(1))?),
            Word::Ttl => {
                let ttl = |word| number::u8(word, Base::Prefix).filter(|ttl| *ttl != 0);
                self.ttl = Some(words.read("a time to live: 1 to 255", ttl)?);
            }
            _ => {
                let of_mpls = |protocol: &u16| matches!(*protocol, protocol::MPLS_UC | protocol::MPLS_MC);
                self.protocol = Some(if self.what == POP {
                    words
                        .read("a protocol", |word| protocol::parse(word).filter(|protocol| *protocol != 0))?
                } else {
                    words.read("mpls_uc or mpls_mc", |word| protocol::parse(word).filter(of_mpls))?
                });
            }
        }
        Ok(())
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        self.instance.encode(PARMS, &self.what.to_ne_bytes(), out);
        self.label.inspect(|label| _ = out.u32(LABEL, *label));
        self.protocol.inspect(|protocol| _ = out.be16(PROTO, *protocol));
        self.class.inspect(|class| _ = out.u8(TC, *class));
        self.ttl.inspect(|ttl| _ = out.u8(TTL, *ttl));
        self.bottom.inspect(|bottom| _ = out.u8(BOS, *bottom));
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let (instance, parms) = Instance::decode(attrs, PARMS)?;
        let byte = |number| attrs.find(number)?.map(|attr| attr.u8()).transpose();
        let mut action = Self {
            instance,
            what: parms.word_at(20)?,
            protocol: attrs.find(PROTO)?.map(|attr| attr.be16()).transpose()?,
            label: attrs.find(LABEL)?.map(|attr| attr.u32()).transpose()?,
            class: byte(TC)?,
            ttl: byte(TTL)?,
            bottom: byte(BOS)?,
        };
        action.canonicalize();
        Ok(action)
    }

    /// Fills in defaults: a pushed header is unicast with the default TTL, and the kernel dumps a protocol
    /// even for operations without one.
    pub(super) fn canonicalize(&mut self) {
        match self.what {
            PUSH | MAC_PUSH => {
                self.protocol.get_or_insert(protocol::MPLS_UC);
                self.ttl.get_or_insert(TTL_DEFAULT);
            }
            POP => {}
            _ => self.protocol = None,
        }
    }

    pub(super) fn words(&self) -> Option<String> {
        let what = WHAT.get(usize::try_from(self.what).ok()?).filter(|what| !what.is_empty())?;
        let mut words = format!("mpls {what}");
        self.protocol.inspect(|protocol| words.push_str(&format!(" protocol {}", protocol::name(*protocol))));
        self.label.inspect(|label| words.push_str(&format!(" label {label}")));
        for (name, value) in [("tc", self.class), ("ttl", self.ttl), ("bos", self.bottom)] {
            value.inspect(|value| words.push_str(&format!(" {name} {value}")));
        }
        Some(words + &self.instance.end_words(Control::PIPE)?)
    }
}
