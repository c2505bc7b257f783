//! `flower`: matches header fields of the packet.
//!
//! [`super::flower_field`] defines the encoding of fields; this module parses lines and dumps into lists of
//! them.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_FLOWER_*`, `net/sched/cls_flower.c`.

use super::flower_field::{Field, Match};
use super::flower_meaning::{MPLS_ONLY, Meaning, Word};
use super::mpls::LabelStack;
use super::offload::Offload;
use crate::action::Action;
use crate::lookup::Lookup;
use crate::number::{self, Base};
use crate::protocol;
use crate::tunnel_options::TunnelOptions;
use crate::words::{Read, Words};
use netlink::attr::{AttrBuf, Attrs, Malformed, last_of_each};

const CLASSID: u16 = 1;
const INDEV: u16 = 2;
const ACT: u16 = 3;
const ETH_TYPE: u16 = 8;
const FLAGS: u16 = 22;
const ENC_OPTS: u16 = 84;
const ENC_OPTS_MASK: u16 = 85;
const MPLS_OPTS: u16 = 99;

/// The fragment flags: `TCA_FLOWER_KEY_FLAGS_*`.
const IS_FRAGMENT: u32 = 1;
const FRAG_IS_FIRST: u32 = 2;

/// Maximum size of a device name with its terminating zero: `IFNAMSIZ`.
pub(crate) const NAME_BYTES: usize = 16;

/// Maximum number of traffic classes of a qdisc: `TC_QOPT_MAX_QUEUE`.
const TRAFFIC_CLASSES_MAX: u32 = 16;

/// The first minor number of a traffic class: `TC_H_MIN_PRIORITY`.
const MINOR_OF_FIRST_TRAFFIC_CLASS: u32 = 0xffe0;

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A field with its value and mask.
    Match(Match),
    /// The class for the packet.
    Class(u32),
    /// The device that received the packet.
    Indev([u8; NAME_BYTES]),
    /// Options of the outer header, and their mask.
    Options(Box<(TunnelOptions, TunnelOptions)>),
    /// The label stack, entry by entry.
    Labels(Box<LabelStack>),
    /// Marks the position of the rule's actions.
    Actions,
}

/// The classifier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flower {
    /// The parts of the rule, in the order of the line.
    pub parts: Vec<Part>,
    /// Whether the rule is installed in software, in hardware, or both.
    pub offload: Offload,
    /// `TCA_FLOWER_KEY_FLAGS` and its mask: whether the packet is a fragment.
    pub fragment: (u32, u32),
    /// The protocol of the rule, host order.
    pub protocol: u16,
}

impl Flower {
    /// Clears the rule but keeps the memory.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        (self.offload, self.fragment) = (Offload::default(), (0, 0));
    }

    pub(super) fn parse(
        &mut self,
        words: &mut Words<'_>,
        lookup: &mut dyn Lookup,
        actions: &mut Vec<Action>,
        (protocol, parent): (u16, u32),
    ) -> Read<()> {
        self.protocol = protocol;
        let mut meaning = Meaning { eth_type: protocol, vlan_ethtype: 0, vlans: 0, ip_proto: None, parent };
        while let Some(word) = words.peek() {
            let Some(word) = Word::find(word) else { return Err(words.unknown_here(Word::WORDS)) };
            words.skip();
            if word == Word::Action {
                if !actions.is_empty() {
                    return Err(words.wrong("the rule already has actions"));
                }
                Action::parse_list(words, lookup, actions)?;
                self.parts.push(Part::Actions);
                continue;
            }
            self.part(word, words, &mut meaning)?;
        }
        Ok(())
    }

    fn part(&mut self, word: Word, words: &mut Words<'_>, meaning: &mut Meaning) -> Read<()> {
        let field = match word {
            Word::SkipHw => return self.offload.skip_hw(words),
            Word::SkipSw => return self.offload.skip_sw(words),
            Word::Verbose => {
                self.offload.verbose = true;
                return Ok(());
            }
            Word::Classid | Word::Flowid => {
                self.parts.push(Part::Class(words.read("a class", number::class)?));
                return Ok(());
            }
            Word::Mpls => {
                let said = |part: &Part| match part {
                    Part::Labels(_) => true,
                    Part::Match(found) => found.field.is_outermost_label(),
                    Part::Class(_) | Part::Indev(_) | Part::Options(_) | Part::Actions => false,
                };
                if !matches!(meaning.eth_type, protocol::MPLS_UC | protocol::MPLS_MC) {
                    return Err(words.wrong(MPLS_ONLY));
                }
                if self.parts.iter().any(said) {
                    return Err(words.wrong("MPLS labels were already given on this line"));
                }
                self.parts.push(Part::Labels(Box::new(LabelStack::parse(words)?)));
                return Ok(());
            }
            Word::HwTc => {
                let class = words.read("a traffic class: 0 to 15", |word| {
                    number::u32(word, Base::Prefix).filter(|class| *class < TRAFFIC_CLASSES_MAX)
                })?;
                let minor = (class + MINOR_OF_FIRST_TRAFFIC_CLASS) & 0xffff;
                self.parts.push(Part::Class(meaning.parent & 0xffff_0000 | minor));
                return Ok(());
            }
            Word::Indev => {
                let name = words.read("the name of a device", device_name)?;
                self.parts.push(Part::Indev(name));
                return Ok(());
            }
            Word::IpFlags => {
                self.fragment = words.read("[no]frag/[no]firstfrag", |word| fragment(word, self.fragment))?;
                return Ok(());
            }
            Word::GeneveOpts | Word::VxlanOpts | Word::ErspanOpts | Word::GtpOpts => {
                if self.parts.iter().any(|part| matches!(part, Part::Options(_))) {
                    return Err(words.wrong("the line already has tunnel options"));
                }
                let options = words.read("options of a tunnel", |text| options(word, text))?;
                self.parts.push(Part::Options(Box::new(options)));
                return Ok(());
            }
            Word::Action => return Ok(()),
            _ => meaning.field(word, words)?,
        };
        let text = words.value()?;
        let Some(found) = field.read(text).or_else(|| meaning.port_range(word, text)) else {
            return Err(words.wrong(format!("`{text}` is not {}", field.form().expected())));
        };
        let decides = matches!(
            word,
            Word::IpProto | Word::NumOfVlans | Word::VlanEthtype | Word::CvlanEthtype | Word::PppProto
        );
        let otherwise =
            |part: &Part| matches!(part, Part::Match(said) if said.field == found.field && *said != found);
        if decides && self.parts.iter().any(otherwise) {
            return Err(words
                .wrong("this key was given another value earlier on the line, and later keys depend on it"));
        }
        match word {
            Word::IpProto => meaning.ip_proto = Some(found.value[0]),
            Word::NumOfVlans => meaning.vlans = found.value[0],
            Word::VlanEthtype => {
                meaning.vlan_ethtype = found.be16();
                meaning.eth_type = meaning.vlan_ethtype;
            }
            Word::CvlanEthtype => meaning.eth_type = found.be16(),
            Word::PppProto => meaning.eth_type = protocol::ethernet_of_ppp(found.be16()),
            _ => {}
        }
        if found.field.is_outermost_label() && self.parts.iter().any(|part| matches!(part, Part::Labels(_))) {
            return Err(words.wrong("MPLS labels were already given on this line"));
        }
        self.parts.push(Part::Match(found));
        Ok(())
    }

    pub(super) fn encode(&self, actions: &[Action], out: &mut AttrBuf) {
        for part in &self.parts {
            match part {
                Part::Match(field) => field.encode(out),
                Part::Class(class) => _ = out.u32(CLASSID, *class),
                Part::Indev(name) => {
                    let length = name.iter().position(|byte| *byte == 0).map_or(NAME_BYTES, |zero| zero + 1);
                    out.bytes(INDEV, &name[..length]);
                }
                Part::Options(options) => {
                    options.0.encode(ENC_OPTS, out);
                    options.1.encode(ENC_OPTS_MASK, out);
                }
                Part::Labels(stack) => stack.encode(MPLS_OPTS, out),
                Part::Actions => Action::encode_list(actions, ACT, out),
            }
        }
        out.u32(FLAGS, self.offload.flags());
        if self.fragment.1 != 0 {
            Match::of(Field::FLAGS, &self.fragment.0.to_be_bytes(), &self.fragment.1.to_be_bytes())
                .encode(out);
        }
        if self.protocol != protocol::ALL {
            out.be16(ETH_TYPE, self.protocol);
        }
    }

    pub(super) fn decode(
        &mut self,
        attrs: Attrs<'_>,
        protocol: u16,
        actions: &mut Vec<Action>,
    ) -> Result<Option<()>, Malformed> {
        self.clear();
        self.protocol = protocol;
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                CLASSID => self.parts.push(Part::Class(attr.u32()?)),
                INDEV => {
                    let name = std::str::from_utf8(attr.until_zero()).ok().and_then(device_name);
                    self.parts.push(Part::Indev(name.ok_or(Malformed("the name of a device is malformed"))?));
                }
                ACT => {
                    if Action::decode_list(&attr, actions)?.is_none() {
                        return Ok(None);
                    }
                    self.parts.push(Part::Actions);
                }
                FLAGS => self.offload = Offload::of(attr.u32()?),
                MPLS_OPTS => self.parts.push(Part::Labels(Box::new(LabelStack::decode(&attr)?))),
                ENC_OPTS => {
                    let mask = attrs.find(ENC_OPTS_MASK)?;
                    let mask = mask.map(|mask| TunnelOptions::decode(&mask)).transpose()?.flatten();
                    let (Some(options), Some(mask)) = (TunnelOptions::decode(&attr)?, mask) else {
                        return Ok(None);
                    };
                    self.parts.push(Part::Options(Box::new((options, mask))));
                }
                _ => {
                    let Some(field) = Field::of_attr(attr.number) else { continue };
                    let mask = field.mask_attr().map(|mask| attrs.find(mask)).transpose()?.flatten();
                    let found = Match::decode(field, attr.payload, mask.map(|mask| mask.payload))?;
                    if field == Field::FLAGS {
                        self.fragment =
                            (found.be32(), u32::from_be_bytes(*found.mask.first_chunk().unwrap_or(&[0; 4])));
                    } else {
                        self.parts.push(Part::Match(found));
                    }
                }
            }
        }
        Ok(Some(()))
    }

    /// Sorts the parts and applies the masks to all fields.
    pub(super) fn canonicalize(&mut self) {
        if self.parts.iter().any(|part| matches!(part, Part::Labels(_))) {
            let mut parts = Vec::with_capacity(self.parts.len());
            for part in self.parts.drain(..) {
                match part {
                    Part::Labels(stack) => match stack.as_fields() {
                        Some(fields) => parts.extend(fields.into_iter().map(Part::Match)),
                        None => parts.push(Part::Labels(Box::new(stack.canonical()))),
                    },
                    part => parts.push(part),
                }
            }
            self.parts = parts;
        }
        for part in &mut self.parts {
            if let Part::Match(field) = part {
                *field = field.masked();
            }
        }
        let attribute = |part: &Part| match part {
            Part::Match(field) => (0, field.field.attr()),
            Part::Class(_) => (1, 0),
            Part::Indev(_) => (2, 0),
            Part::Options(_) => (3, 0),
            Part::Labels(_) => (4, 0),
            Part::Actions => (5, 0),
        };
        self.parts.sort_by_key(attribute);
        last_of_each(&mut self.parts, attribute);
        self.parts.retain(|part| !matches!(part, Part::Match(field) if field.counts_nothing()));
        for part in &mut self.parts {
            if let Part::Options(options) = part {
                options.0.canonicalize();
                options.1.canonicalize();
            }
        }
        self.fragment.0 &= self.fragment.1;
        self.offload = self.offload.canonical();
    }

    /// Copies another rule, reusing the memory of this one.
    pub(super) fn assign(&mut self, other: &Self) {
        self.parts.clone_from(&other.parts);
        (self.offload, self.fragment, self.protocol) = (other.offload, other.fragment, other.protocol);
    }

    /// Whether the rule matches few packets: it requires a specific address, port or tunnel id.
    pub(super) fn is_narrow(&self) -> bool {
        self.parts.iter().any(|part| match part {
            Part::Match(field) => field.is_narrow(),
            Part::Options(_) | Part::Labels(_) => true,
            Part::Class(_) | Part::Indev(_) | Part::Actions => false,
        })
    }

    pub(super) fn words(&self, words: &mut String, actions: &str) -> Option<()> {
        let mut later = String::new();
        // Fields that determine the meaning of others come first.
        let rank = |part: &&Part| match part {
            Part::Match(field) => field.field.rank(),
            Part::Class(_) | Part::Indev(_) | Part::Options(_) | Part::Labels(_) => 8,
            Part::Actions => 9,
        };
        let mut parts: Vec<&Part> = self.parts.iter().collect();
        parts.sort_by_key(rank);
        let named = |part: &Part| matches!(part, Part::Match(other) if other.field == Field::IP_PROTO);
        let has_protocol = self.parts.iter().any(named);
        for part in parts {
            match part {
                Part::Match(field) => {
                    words.push(' ');
                    words.push_str(&field.words(has_protocol)?);
                }
                Part::Class(class) => later.push_str(&format!(" classid {}", number::class_name(*class))),
                Part::Indev(name) => {
                    let length = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
                    words.push_str(&format!(" indev {}", std::str::from_utf8(&name[..length]).ok()?));
                }
                Part::Options(options) => {
                    let (key, mask) = (options.0.words(), options.1.words());
                    let pairs: Vec<String> = key
                        .split(',')
                        .zip(mask.split(','))
                        .map(|(key, mask)| format!("{key}/{mask}"))
                        .collect();
                    words.push_str(&format!(" {} {}", options.0.keyword(), pairs.join(",")));
                }
                Part::Labels(stack) => words.push_str(&stack.words()),
                Part::Actions => {}
            }
        }
        if self.fragment.1 != 0 {
            let names = [(IS_FRAGMENT, "frag"), (FRAG_IS_FIRST, "firstfrag")]
                .into_iter()
                .filter(|(bit, _)| self.fragment.1 & bit != 0);
            let names: Vec<String> = names
                .map(
                    |(bit, name)| {
                        if self.fragment.0 & bit != 0 { name.to_owned() } else { format!("no{name}") }
                    },
                )
                .collect();
            words.push_str(&format!(" ip_flags {}", names.join("/")));
        }
        words.push_str(&self.offload.words());
        words.push_str(&later);
        words.push_str(actions);
        Some(())
    }
}

/// Returns the protocol in these options, or 0 if there is none.
pub(super) fn protocol_in(attrs: Attrs<'_>) -> Result<u16, Malformed> {
    attrs.find(ETH_TYPE)?.map_or(Ok(0), |protocol| protocol.be16())
}

/// Returns the device name, padded with zeros; `None` if it is not a valid name or too long.
pub(crate) fn device_name(name: &str) -> Option<[u8; NAME_BYTES]> {
    let mut bytes = [0; NAME_BYTES];
    bytes[..NAME_BYTES - 1].get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    let legal = name.bytes().all(|byte| byte != b'/' && byte != 0 && !byte.is_ascii_whitespace());
    (legal && !name.is_empty()).then_some(bytes)
}

/// Parses `[no]frag` and `[no]firstfrag`, separated by slashes, and adds them to the flags and their mask in
/// `before`.
fn fragment(word: &str, mut before: (u32, u32)) -> Option<(u32, u32)> {
    for name in word.split('/').filter(|name| !name.is_empty()) {
        let (name, no) = name.strip_prefix("no").map_or((name, false), |name| (name, true));
        let bit = match name {
            "frag" => IS_FRAGMENT,
            "firstfrag" => FRAG_IS_FIRST,
            _ => return None,
        };
        before = (if no { before.0 & !bit } else { before.0 | bit }, before.1 | bit);
    }
    Some(before)
}

/// Parses `OPTIONS[/MASK]` for the kind of tunnel that the keyword names.
fn options(word: Word, text: &str) -> Option<(TunnelOptions, TunnelOptions)> {
    if word == Word::GeneveOpts {
        // Each of several options may have its own mask.
        let (mut keys, mut masks) = (Vec::new(), Vec::new());
        for option in text.split(',') {
            let (key, mask) = option.split_once('/').map_or((option, None), |(key, mask)| (key, Some(mask)));
            let key = TunnelOptions::geneve(key)?;
            let mask = mask.map_or_else(|| key.geneve_mask(), TunnelOptions::geneve)?;
            let (TunnelOptions::Geneve(key), TunnelOptions::Geneve(mask)) = (key, mask) else { return None };
            keys.extend(key);
            masks.extend(mask);
        }
        return Some((TunnelOptions::Geneve(keys), TunnelOptions::Geneve(masks)));
    }
    let (key, mask) = text.split_once('/').map_or((text, None), |(key, mask)| (key, Some(mask)));
    Some(match word {
        Word::VxlanOpts => (TunnelOptions::vxlan(key)?, TunnelOptions::vxlan(mask.unwrap_or("0xffffffff"))?),
        Word::ErspanOpts => {
            // Without a mask, iproute2 uses the given version as the version's mask.
            let version = key.split(':').next()?;
            let full = format!("{version}:0xffffffff:0xff:0xff");
            (TunnelOptions::erspan(key)?, TunnelOptions::erspan(mask.unwrap_or(&full))?)
        }
        _ => (TunnelOptions::gtp(key)?, TunnelOptions::gtp(mask.unwrap_or("ff:ff"))?),
    })
}
