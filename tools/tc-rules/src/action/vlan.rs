//! `vlan`: pushes, pops and changes VLAN tags and Ethernet headers.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_vlan.h`, `net/sched/act_vlan.c`.

use super::control::Control;
use super::instance::{Instance, index};
use crate::number::{self, Base};
use crate::protocol;
use crate::words::{Read, Words, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 2;
const ID: u16 = 3;
const PROTOCOL: u16 = 4;
const PRIORITY: u16 = 6;
const ETH_DST: u16 = 7;
const ETH_SRC: u16 = 8;

/// The operations, by the kernel's number `TCA_VLAN_ACT_*`.
const WHAT: [&str; 6] = ["", "pop", "push", "modify", "pop_eth", "push_eth"];
const POP: u32 = 1;
const PUSH: u32 = 2;
const MODIFY: u32 = 3;
const POP_ETH: u32 = 4;
const PUSH_ETH: u32 = 5;

keywords! {
    /// The keywords of the action.
    enum Word {
        Pop = "pop",
        Push = "push",
        Modify = "modify",
        PopEth = "pop_eth",
        PushEth = "push_eth",
        Id = "id",
        Protocol = "protocol",
        Priority = "priority",
        DstMac = "dst_mac",
        SrcMac = "src_mac",
    }
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// The instance and its control action.
    pub instance: Instance,
    /// The operation, by the kernel's number; 0 for an instance that is only referenced.
    pub what: u32,
    /// The tag's id.
    pub id: Option<u16>,
    /// The tag's protocol.
    pub protocol: Option<u16>,
    /// The tag's priority.
    pub priority: Option<u8>,
    /// The destination of the pushed Ethernet header.
    pub destination: Option<[u8; 6]>,
    /// The source of the pushed Ethernet header.
    pub source: Option<[u8; 6]>,
}

impl Vlan {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let mut action = Self::empty();
        while let Some(word) = words.peek().and_then(Word::find) {
            words.skip();
            let what = match word {
                Word::Pop => POP,
                Word::Push => PUSH,
                Word::Modify => MODIFY,
                Word::PopEth => POP_ETH,
                Word::PushEth => PUSH_ETH,
                Word::Id | Word::Protocol | Word::Priority if !matches!(action.what, PUSH | MODIFY) => {
                    return Err(words.wrong("only `push` and `modify` accept this option"));
                }
                Word::DstMac | Word::SrcMac if action.what != PUSH_ETH => {
                    return Err(words.wrong("only `push_eth` accepts this option"));
                }
                Word::Id => {
                    action.id = Some(words.read("an id of 16 bits", |word| number::u16(word, Base::Prefix))?);
                    continue;
                }
                Word::Protocol => {
                    action.protocol = Some(words.read("802.1Q or 802.1AD", |word| {
                        protocol::parse(word).filter(|p| matches!(*p, protocol::VLAN | protocol::VLAN_AD))
                    })?);
                    continue;
                }
                Word::Priority => {
                    let priority = |word| number::u8(word, Base::Prefix).filter(|priority| *priority < 8);
                    action.priority = Some(words.read("a priority: 0 to 7", priority)?);
                    continue;
                }
                Word::DstMac => {
                    action.destination = Some(words.read("an Ethernet address", number::mac)?);
                    continue;
                }
                Word::SrcMac => {
                    action.source = Some(words.read("an Ethernet address", number::mac)?);
                    continue;
                }
            };
            if action.what != 0 {
                return Err(words.wrong("the operation was already given"));
            }
            action.what = what;
        }
        if matches!(action.what, PUSH | MODIFY) && action.id.is_none() {
            return Err(words.wrong_here("a tag needs an id"));
        }
        if action.what == PUSH_ETH && (action.destination.is_none() || action.source.is_none()) {
            return Err(words.wrong_here("an Ethernet header needs dst_mac and src_mac"));
        }
        action.instance.control = Control::optional(words)?.unwrap_or(Control::PIPE);
        action.instance.index = index(words)?.unwrap_or(0);
        if action.what == 0 && action.instance.index == 0 {
            return Err(words.unknown_here(Word::WORDS));
        }
        Ok(action)
    }

    const fn empty() -> Self {
        Self {
            instance: Instance { index: 0, control: Control::PIPE },
            what: 0,
            id: None,
            protocol: None,
            priority: None,
            destination: None,
            source: None,
        }
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        let mut bytes = [0; 24];
        bytes[..20].copy_from_slice(&self.instance.bytes());
        bytes[20..].copy_from_slice(&self.what.to_ne_bytes());
        out.bytes(PARMS, &bytes);
        self.id.inspect(|id| _ = out.u16(ID, *id));
        self.protocol.inspect(|protocol| _ = out.be16(PROTOCOL, *protocol));
        self.priority.inspect(|priority| _ = out.u8(PRIORITY, *priority));
        self.destination.inspect(|mac| _ = out.bytes(ETH_DST, mac));
        self.source.inspect(|mac| _ = out.bytes(ETH_SRC, mac));
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let (instance, parms) = Instance::decode(attrs, PARMS)?;
        let mut action = Self { instance, what: parms.word_at(20)?, ..Self::empty() };
        for attr in attrs {
            let attr = attr?;
            let mac =
                || attr.payload.try_into().map_err(|_| Malformed("an Ethernet address has the wrong size"));
            match attr.number {
                ID => action.id = Some(attr.u16()?),
                PROTOCOL => action.protocol = Some(attr.be16()?),
                PRIORITY => action.priority = Some(attr.u8()?),
                ETH_DST => action.destination = Some(mac()?),
                ETH_SRC => action.source = Some(mac()?),
                _ => {}
            }
        }
        Ok(action.canonical())
    }

    /// Fills in the defaults that the kernel dumps: 802.1Q and, for a pushed tag, priority 0.
    pub(super) fn canonical(mut self) -> Self {
        if matches!(self.what, PUSH | MODIFY) {
            self.protocol.get_or_insert(protocol::VLAN);
        }
        if self.what == PUSH {
            self.priority.get_or_insert(0);
        }
        self
    }

    pub(super) fn words(&self) -> Option<String> {
        if self.what == 0 && self.instance.index == 0 {
            return None;
        }
        let mut words = format!("vlan {}", WHAT.get(usize::try_from(self.what).ok()?)?).trim_end().to_owned();
        self.protocol.inspect(|protocol| words.push_str(&format!(" protocol {}", protocol::name(*protocol))));
        self.id.inspect(|id| words.push_str(&format!(" id {id}")));
        self.priority.inspect(|priority| words.push_str(&format!(" priority {priority}")));
        self.destination.inspect(|mac| words.push_str(&format!(" dst_mac {}", number::mac_name(mac))));
        self.source.inspect(|mac| words.push_str(&format!(" src_mac {}", number::mac_name(mac))));
        if self.instance.control != Control::PIPE {
            words.push_str(&format!(" {}", self.instance.control.words()?));
        }
        words.push_str(&self.instance.index_words());
        Some(words)
    }
}
