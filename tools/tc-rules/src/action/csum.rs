//! `csum`: recomputes checksums.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_csum.h`, `net/sched/act_csum.c`.

use super::control::Control;
use super::instance::{Instance, index};
use crate::words::{Read, Words, abbreviates, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 1;

/// The checksums: `TCA_CSUM_UPDATE_FLAG_*`.
mod update {
    pub(super) const IPV4HDR: u32 = 1;
    pub(super) const ICMP: u32 = 2;
    pub(super) const IGMP: u32 = 4;
    pub(super) const TCP: u32 = 8;
    pub(super) const UDP: u32 = 16;
    pub(super) const UDPLITE: u32 = 32;
    pub(super) const SCTP: u32 = 64;
}

/// tc's keyword for each checksum, by its flag in the kernel.
const NAMES: [(u32, &str); 7] = [
    (update::IPV4HDR, "iph"),
    (update::ICMP, "icmp"),
    (update::IGMP, "igmp"),
    (update::TCP, "tcp"),
    (update::UDP, "udp"),
    (update::UDPLITE, "udplite"),
    (update::SCTP, "sctp"),
];

keywords! {
    /// The keywords of the action.
    enum Word {
        Iph = "iph",
        Ip4h = "ip4h",
        Ipv4h = "ipv4h",
        Icmp = "icmp",
        Igmp = "igmp",
        Tcp = "tcp",
        Udp = "udp",
        Udplite = "udplite",
        Sctp = "sctp",
        And = "and",
        Or = "or",
        Plus = "+",
    }
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Csum {
    /// The instance and its control action.
    pub instance: Instance,
    /// The checksums, one bit each.
    pub update: u32,
}

impl Csum {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let mut updated = 0;
        loop {
            // The action's name may be repeated: `csum iph csum tcp` is a single action.
            if updated != 0 && words.peek().is_some_and(|word| abbreviates(word, "csum")) {
                words.skip();
                if words.peek().is_none() {
                    return Err(words.unknown_here(Word::WORDS));
                }
                continue;
            }
            let Some(word) = words.peek().and_then(Word::find) else { break };
            words.skip();
            updated |= match word {
                Word::Iph | Word::Ip4h | Word::Ipv4h => update::IPV4HDR,
                Word::Icmp => update::ICMP,
                Word::Igmp => update::IGMP,
                Word::Tcp => update::TCP,
                Word::Udp => update::UDP,
                Word::Udplite => update::UDPLITE,
                Word::Sctp => update::SCTP,
                Word::And | Word::Or | Word::Plus => 0,
            };
        }
        if updated == 0 {
            return Err(words.unknown_here(Word::WORDS));
        }
        let control = Control::optional(words)?.unwrap_or(Control::PASS);
        Ok(Self { instance: Instance { index: index(words)?.unwrap_or(0), control }, update: updated })
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        let mut bytes = [0; 24];
        bytes[..20].copy_from_slice(&self.instance.bytes());
        bytes[20..].copy_from_slice(&self.update.to_ne_bytes());
        out.bytes(PARMS, &bytes);
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let (instance, parms) = Instance::decode(attrs, PARMS)?;
        Ok(Self { instance, update: parms.word_at(20)? })
    }

    pub(super) fn words(&self) -> Option<String> {
        let set = NAMES.iter().filter(|(bit, _)| self.update & bit != 0);
        let names: Vec<&str> = set.map(|(_, name)| *name).collect();
        let control = self.instance.control.words()?;
        Some(format!("csum {} {control}{}", names.join(" "), self.instance.index_words()))
    }
}
