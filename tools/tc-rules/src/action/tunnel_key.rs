//! `tunnel_key`: sets or removes the tunnel metadata of a packet.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_tunnel_key.h`, `net/sched/act_tunnel_key.c`.

use super::control::Control;
use super::instance::{Instance, index};
use crate::number::{self, Address, Base};
use crate::small_vec::SmallVec;
use crate::tunnel_options::TunnelOptions;
use crate::words::{Read, Words, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed, last_of_each};

const PARMS: u16 = 2;
const IPV4_SRC: u16 = 3;
const IPV4_DST: u16 = 4;
const IPV6_SRC: u16 = 5;
const IPV6_DST: u16 = 6;
const KEY_ID: u16 = 7;
const DST_PORT: u16 = 9;
const NO_CSUM: u16 = 10;
const OPTS: u16 = 11;
const TOS: u16 = 12;
const TTL: u16 = 13;

/// `TCA_TUNNEL_KEY_ACT_SET`.
const SET: u32 = 1;
/// `TCA_TUNNEL_KEY_ACT_RELEASE`.
const RELEASE: u32 = 2;

keywords! {
    /// The keywords of the action.
    enum Word {
        Unset = "unset",
        Set = "set",
        SrcIp = "src_ip",
        DstIp = "dst_ip",
        Id = "id",
        DstPort = "dst_port",
        GeneveOpts = "geneve_opts",
        VxlanOpts = "vxlan_opts",
        ErspanOpts = "erspan_opts",
        Tos = "tos",
        Ttl = "ttl",
        Csum = "csum",
        Nocsum = "nocsum",
    }
}

/// Maximum number of settings of an action.
const FIELDS_MAX: usize = 12;

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelKey {
    /// The instance and its control action.
    pub instance: Instance,
    /// `SET`, `RELEASE`, or 0 for an instance that is only referenced.
    pub what: u32,
    /// The settings, in the order of the line.
    pub fields: SmallVec<Field, FIELDS_MAX>,
    /// Whether the outer UDP checksum is omitted.
    pub no_csum: bool,
}

/// A field of a tunnel's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field's index is the keyword of its name")]
pub enum Field {
    SrcIp(Address),
    DstIp(Address),
    Id(u32),
    DstPort(u16),
    Tos(u8),
    Ttl(u8),
    Options(Box<TunnelOptions>),
}

impl TunnelKey {
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let mut action = Self {
            instance: Instance { index: 0, control: Control::PIPE },
            what: 0,
            fields: SmallVec::new(),
            no_csum: false,
        };
        let (mut source, mut destination) = (false, false);
        while let Some(word) = words.peek().and_then(Word::find) {
            words.skip();
            let field = match word {
                Word::Unset | Word::Set if action.what != 0 => {
                    return Err(words.wrong("`set` or `unset` was already given"));
                }
                Word::Unset => {
                    action.what = RELEASE;
                    continue;
                }
                Word::Set => {
                    action.what = SET;
                    continue;
                }
                Word::Csum | Word::Nocsum => {
                    action.no_csum = word == Word::Nocsum;
                    continue;
                }
                Word::SrcIp => {
                    source = true;
                    Field::SrcIp(words.read("an address", number::address)?)
                }
                Word::DstIp => {
                    destination = true;
                    Field::DstIp(words.read("an address", number::address)?)
                }
                Word::Id => Field::Id(words.read("a tunnel's id", |word| number::u32(word, Base::Ten))?),
                Word::DstPort => Field::DstPort(words.read("a port", |word| number::u16(word, Base::Ten))?),
                Word::Tos => Field::Tos(words.read("an 8-bit number", byte)?),
                Word::Ttl => Field::Ttl(words.read("an 8-bit number", byte)?),
                Word::GeneveOpts => {
                    Field::Options(Box::new(words.read("CLASS:TYPE:DATA[,...]", |word| {
                        TunnelOptions::geneve(word).filter(|_| has_no_empty_part(word))
                    })?))
                }
                Word::VxlanOpts => Field::Options(Box::new(words.read("a group", TunnelOptions::vxlan)?)),
                Word::ErspanOpts => Field::Options(Box::new(
                    words.read("VERSION:INDEX:DIRECTION:HWID, none of them empty", |word| {
                        TunnelOptions::erspan(word).filter(|_| has_no_empty_part(word))
                    })?,
                )),
            };
            if action.fields.push(field).is_err() {
                return Err(words.wrong("the action has too many options"));
            }
        }
        if action.what == SET && !(source && destination) {
            return Err(words.wrong_here("a tunnel that is set needs src_ip and dst_ip"));
        }
        action.instance.control = Control::optional(words)?.unwrap_or(Control::PIPE);
        action.instance.index = index(words)?.unwrap_or(0);
        if action.what == 0 && action.instance.index == 0 && action.fields.iter().next().is_none() {
            return Err(words.unknown_here(Word::WORDS));
        }
        Ok(action)
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        for field in self.fields.iter() {
            match field {
                Field::SrcIp(ip) => _ = out.bytes(if ip.v6 { IPV6_SRC } else { IPV4_SRC }, ip.as_bytes()),
                Field::DstIp(ip) => _ = out.bytes(if ip.v6 { IPV6_DST } else { IPV4_DST }, ip.as_bytes()),
                Field::Id(id) => _ = out.be32(KEY_ID, *id),
                Field::DstPort(port) => _ = out.be16(DST_PORT, *port),
                Field::Tos(tos) => _ = out.u8(TOS, *tos),
                Field::Ttl(ttl) => _ = out.u8(TTL, *ttl),
                Field::Options(options) => options.encode(OPTS, out),
            }
        }
        out.u8(NO_CSUM, u8::from(self.no_csum));
        let mut bytes = [0; 24];
        bytes[..20].copy_from_slice(&self.instance.bytes());
        bytes[20..].copy_from_slice(&self.what.to_ne_bytes());
        out.bytes(PARMS, &bytes);
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let (instance, parms) = Instance::decode(attrs, PARMS)?;
        let mut action = Self { instance, what: parms.word_at(20)?, fields: SmallVec::new(), no_csum: false };
        for attr in attrs {
            let attr = attr?;
            let ip = || Address::from_bytes(attr.payload).ok_or(Malformed("an address has the wrong size"));
            let field = match attr.number {
                IPV4_SRC | IPV6_SRC => Field::SrcIp(ip()?),
                IPV4_DST | IPV6_DST => Field::DstIp(ip()?),
                KEY_ID => Field::Id(attr.be32()?),
                DST_PORT => Field::DstPort(attr.be16()?),
                TOS => Field::Tos(attr.u8()?),
                TTL => Field::Ttl(attr.u8()?),
                OPTS => match TunnelOptions::decode(&attr)? {
                    Some(options) => Field::Options(Box::new(options)),
                    None => continue,
                },
                NO_CSUM => {
                    action.no_csum = attr.u8()? != 0;
                    continue;
                }
                _ => continue,
            };
            // The kernel dumps zero for fields that were not set.
            if matches!(field, Field::Tos(0) | Field::Ttl(0) | Field::DstPort(0)) {
                continue;
            }
            action
                .fields
                .push(field)
                .map_err(|_| Malformed("a tunnel's metadata has too many attributes"))?;
        }
        if action.what == RELEASE {
            action.fields = SmallVec::new();
            action.no_csum = false;
        }
        Ok(action)
    }

    /// Sorts the fields, so that the order of the line does not matter.
    pub(super) fn canonical(mut self) -> Self {
        let mut fields: Vec<Field> = self.fields.iter().cloned().collect();
        let attribute = |field: &Field| match field {
            Field::SrcIp(ip) => (0, ip.v6),
            Field::DstIp(ip) => (1, ip.v6),
            Field::Id(_) => (2, false),
            Field::DstPort(_) => (3, false),
            Field::Tos(_) => (4, false),
            Field::Ttl(_) => (5, false),
            Field::Options(_) => (6, false),
        };
        fields.sort_by_key(attribute);
        last_of_each(&mut fields, attribute);
        fields.retain(|field| !matches!(field, Field::Tos(0) | Field::Ttl(0) | Field::DstPort(0)));
        for field in &mut fields {
            if let Field::Options(options) = field {
                options.canonicalize();
            }
        }
        self.fields = SmallVec::new();
        for field in fields {
            // There is room for the same fields as before.
            let _ = self.fields.push(field);
        }
        self
    }

    pub(super) fn words(&self) -> Option<String> {
        if self.what == 0 && self.fields.iter().next().is_none() && self.instance.index == 0 {
            return None;
        }
        let mut words = match self.what {
            SET => "tunnel_key set".to_owned(),
            RELEASE => "tunnel_key unset".to_owned(),
            _ => "tunnel_key".to_owned(),
        };
        for field in self.fields.iter() {
            words.push_str(&match field {
                Field::SrcIp(ip) => format!(" src_ip {ip}"),
                Field::DstIp(ip) => format!(" dst_ip {ip}"),
                Field::Id(id) => format!(" id {id}"),
                Field::DstPort(port) => format!(" dst_port {port}"),
                Field::Tos(tos) => format!(" tos {tos}"),
                Field::Ttl(ttl) => format!(" ttl {ttl}"),
                Field::Options(options) => format!(" {} {}", options.keyword(), options.words()),
            });
        }
        if self.no_csum {
            words.push_str(" nocsum");
        }
        if self.instance.control != Control::PIPE {
            words.push_str(&format!(" {}", self.instance.control.words()?));
        }
        words.push_str(&self.instance.index_words());
        Some(words)
    }
}

/// Parses an 8-bit number, decimal or otherwise hexadecimal, as iproute2 reads TOS and TTL.
fn byte(word: &str) -> Option<u8> {
    number::u8(word, Base::Ten).or_else(|| number::u8(word, Base::Sixteen))
}

/// Returns whether all parts before the last colon of an option are non-empty: iproute2 skips empty parts and
/// uses the next part instead.
fn has_no_empty_part(word: &str) -> bool {
    let has_none = |option: &str| option.split(':').all(|part| !part.is_empty());
    word.split(',').all(|option| has_none(option.strip_suffix(':').unwrap_or(option)))
}
