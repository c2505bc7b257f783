//! The fields that flower matches: keyword, attribute, attribute of the mask, size and syntax of the value.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_FLOWER_KEY_*`.

use crate::number::{self, Base};
use crate::protocol;
use netlink::attr::{AttrBuf, Malformed};

/// Maximum size of a value: an IPv6 address or conntrack labels.
const VALUE_BYTES: usize = 16;

/// Operations of ARP. Kernel: `include/uapi/linux/if_arp.h` `ARPOP_REQUEST`, `ARPOP_REPLY`.
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;

/// The syntax of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An Ethernet address, with an optional prefix length or mask after a slash.
    Mac,
    /// An IPv4 address with an optional prefix length after a slash.
    Ipv4,
    /// An IPv6 address with an optional prefix length after a slash.
    Ipv6,
    /// A port, big-endian, with an optional mask after a slash.
    Port,
    /// A port range. The mask attribute holds the last port.
    PortRange,
    /// A decimal number up to this maximum, without a mask; 32-bit numbers are big-endian.
    Decimal(u32),
    /// An 8-bit number, parsed as decimal if possible and otherwise as hexadecimal, with a hexadecimal mask.
    TosTtl,
    /// A decimal 8-bit number with a mask.
    Masked8,
    /// The transport protocol, by name or as a hexadecimal number.
    IpProto,
    /// The Ethernet protocol, by name or number.
    EthType,
    /// TCP flags: 12 bits, hexadecimal.
    TcpFlags,
    /// A conntrack state.
    CtState,
    /// A 16-bit number in host byte order.
    Host16,
    /// A 32-bit number in host byte order.
    Host32,
    /// Conntrack labels, in hexadecimal.
    Labels,
    /// `request`, `reply` or a number.
    ArpOp,
    /// A tunnel's id, big-endian.
    KeyId,
    /// A PPPoE session's id, big-endian.
    Session,
    /// The protocol within PPP, by name or number.
    PppProto,
    /// `TCA_FLOWER_KEY_FLAGS`, with its own keywords.
    Fragment,
}

impl Form {
    /// Returns a description of a valid value, for error messages.
    pub(super) const fn expected(self) -> &'static str {
        match self {
            Self::Mac => "an Ethernet address, as in 02:00:00:00:00:01 or with /BITS or /MASK",
            Self::Ipv4 | Self::Ipv6 => "an address, as in 192.0.2.0/24 or 2001:db8::/32",
            Self::Port | Self::PortRange => "a port, as in 80, 80/0xfff0 or 80-90",
            Self::Decimal(_) => "a number in the field's range",
            Self::TosTtl => "an 8-bit number, optionally with a hexadecimal mask after a slash",
            Self::Masked8 => "a number from 0 to 255, optionally with a mask after a slash",
            Self::IpProto => "tcp, udp, sctp, icmp, icmpv6 or a hexadecimal number",
            Self::EthType => "an Ethernet protocol",
            Self::TcpFlags => "TCP flags: hexadecimal, at most fff",
            Self::CtState => "states, as in +trk+est-new",
            Self::Host16 | Self::Host32 => "a number, optionally with a mask after a slash",
            Self::Labels => "labels: at most 32 hexadecimal digits, optionally with a mask after a slash",
            Self::ArpOp => "request, reply or 0",
            Self::KeyId => "a tunnel's id",
            Self::Session => "a session's id: 0 to 65535",
            Self::PppProto => "ip, ipv6, mpls_uc, mpls_mc or a 16-bit number",
            Self::Fragment => "[no]frag/[no]firstfrag",
        }
    }
}

/// A field, by its index in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field(u8);

struct Spec {
    keyword: &'static str,
    attr: u16,
    mask: u16,
    bytes: u8,
    form: Form,
}

macro_rules! fields {
    ($($name:ident = $keyword:literal $attr:literal $mask:literal $bytes:literal $form:expr,)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "names of the kernel, whose numbers are the table's indices")]
        enum FieldIndex { $($name,)* }

        impl Field {
            $(#[doc = concat!("`TCA_FLOWER_KEY_", stringify!($name), "`")] pub const $name: Self = Self(FieldIndex::$name as u8);)*
        }

        const FIELDS: &[Spec] = &[$(Spec { keyword: $keyword, attr: $attr, mask: $mask, bytes: $bytes, form: $form },)*];
    };
}

fields! {
    ETH_DST = "dst_mac" 4 5 6 Form::Mac,
    ETH_SRC = "src_mac" 6 7 6 Form::Mac,
    IP_PROTO = "ip_proto" 9 0 1 Form::IpProto,
    IPV4_SRC = "src_ip" 10 11 4 Form::Ipv4,
    IPV4_DST = "dst_ip" 12 13 4 Form::Ipv4,
    IPV6_SRC = "src_ip" 14 15 16 Form::Ipv6,
    IPV6_DST = "dst_ip" 16 17 16 Form::Ipv6,
    TCP_SRC = "src_port" 18 35 2 Form::Port,
    TCP_DST = "dst_port" 19 36 2 Form::Port,
    UDP_SRC = "src_port" 20 37 2 Form::Port,
    UDP_DST = "dst_port" 21 38 2 Form::Port,
    VLAN_ID = "vlan_id" 23 0 2 Form::Decimal(0xfff),
    VLAN_PRIO = "vlan_prio" 24 0 1 Form::Decimal(7),
    VLAN_ETH_TYPE = "vlan_ethtype" 25 0 2 Form::EthType,
    ENC_KEY_ID = "enc_key_id" 26 0 4 Form::KeyId,
    ENC_IPV4_SRC = "enc_src_ip" 27 28 4 Form::Ipv4,
    ENC_IPV4_DST = "enc_dst_ip" 29 30 4 Form::Ipv4,
    ENC_IPV6_SRC = "enc_src_ip" 31 32 16 Form::Ipv6,
    ENC_IPV6_DST = "enc_dst_ip" 33 34 16 Form::Ipv6,
    SCTP_SRC = "src_port" 41 39 2 Form::Port,
    SCTP_DST = "dst_port" 42 40 2 Form::Port,
    ENC_UDP_DST_PORT = "enc_dst_port" 45 0 2 Form::Port,
    FLAGS = "ip_flags" 47 48 4 Form::Fragment,
    ICMPV4_CODE = "code" 49 50 1 Form::Masked8,
    ICMPV4_TYPE = "type" 51 52 1 Form::Masked8,
    ICMPV6_CODE = "code" 53 54 1 Form::Masked8,
    ICMPV6_TYPE = "type" 55 56 1 Form::Masked8,
    ARP_SIP = "arp_sip" 57 58 4 Form::Ipv4,
    ARP_TIP = "arp_tip" 59 60 4 Form::Ipv4,
    ARP_OP = "arp_op" 61 62 1 Form::ArpOp,
    ARP_SHA = "arp_sha" 63 64 6 Form::Mac,
    ARP_THA = "arp_tha" 65 66 6 Form::Mac,
    MPLS_TTL = "mpls_ttl" 67 0 1 Form::Decimal(0xff),
    MPLS_BOS = "mpls_bos" 68 0 1 Form::Decimal(1),
    MPLS_TC = "mpls_tc" 69 0 1 Form::Decimal(7),
    MPLS_LABEL = "mpls_label" 70 0 4 Form::Decimal(0xf_ffff),
    TCP_FLAGS = "tcp_flags" 71 72 2 Form::TcpFlags,
    IP_TOS = "ip_tos" 73 74 1 Form::TosTtl,
    IP_TTL = "ip_ttl" 75 76 1 Form::TosTtl,
    CVLAN_ID = "cvlan_id" 77 0 2 Form::Decimal(0xfff),
    CVLAN_PRIO = "cvlan_prio" 78 0 1 Form::Decimal(7),
    CVLAN_ETH_TYPE = "cvlan_ethtype" 79 0 2 Form::EthType,
    ENC_IP_TOS = "enc_tos" 80 81 1 Form::TosTtl,
    ENC_IP_TTL = "enc_ttl" 82 83 1 Form::TosTtl,
    PORT_SRC_MIN = "src_port" 87 88 2 Form::PortRange,
    PORT_DST_MIN = "dst_port" 89 90 2 Form::PortRange,
    CT_STATE = "ct_state" 91 92 2 Form::CtState,
    CT_ZONE = "ct_zone" 93 94 2 Form::Host16,
    CT_MARK = "ct_mark" 95 96 4 Form::Host32,
    CT_LABELS = "ct_label" 97 98 16 Form::Labels,
    NUM_OF_VLANS = "num_of_vlans" 102 0 1 Form::Decimal(0xff),
    PPPOE_SID = "pppoe_sid" 103 0 2 Form::Session,
    PPP_PROTO = "ppp_proto" 104 0 2 Form::PppProto,
}

impl Field {
    fn spec(self) -> &'static Spec {
        // The index is in bounds, because every `Field` is created from an index of the table.
        &FIELDS[usize::from(self.0)]
    }

    /// Whether the field belongs to the outermost label, which [`super::mpls`] encodes differently.
    pub(super) fn is_outermost_label(self) -> bool {
        matches!(self, Self::MPLS_LABEL | Self::MPLS_TC | Self::MPLS_BOS | Self::MPLS_TTL)
    }

    /// The keyword.
    pub fn keyword(self) -> &'static str {
        self.spec().keyword
    }

    /// Returns the syntax of the field's value.
    pub(super) fn form(self) -> Form {
        self.spec().form
    }

    pub(super) fn attr(self) -> u16 {
        self.spec().attr
    }

    /// Returns the number of the field's mask attribute, if the field can have a mask.
    pub(super) fn mask_attr(self) -> Option<u16> {
        Some(self.spec().mask).filter(|mask| *mask != 0)
    }

    /// Returns the field with this attribute number.
    pub fn of_attr(number: u16) -> Option<Self> {
        let place = FIELDS.iter().position(|spec| spec.attr == number)?;
        u8::try_from(place).ok().map(Self)
    }

    /// Returns the field's rank in the output: fields that determine the meaning of others come first.
    pub(super) fn rank(self) -> u8 {
        match self {
            Self::NUM_OF_VLANS => 0,
            Self::VLAN_ID | Self::VLAN_PRIO => 1,
            Self::VLAN_ETH_TYPE => 2,
            Self::CVLAN_ID | Self::CVLAN_PRIO => 3,
            Self::CVLAN_ETH_TYPE => 4,
            Self::PPPOE_SID => 5,
            Self::PPP_PROTO => 6,
            Self::IP_PROTO => 7,
            _ => 8,
        }
    }

    /// Parses a value of this field.
    pub(super) fn read(self, word: &str) -> Option<Match> {
        let masked = word.split_once('/');
        let (value, mask) = masked.map_or((word, None), |(value, mask)| (value, Some(mask)));
        Some(match self.form() {
            Form::Mac => {
                let address = number::mac(value)?;
                let mask = match mask {
                    None => [0xff; 6],
                    Some(mask) => match number::u32(mask, Base::Ten) {
                        Some(bits) if bits <= 48 => *number::mask(bits).first_chunk()?,
                        Some(_) => return None,
                        None => number::mac(mask)?,
                    },
                };
                Match::of(self, &address, &mask)
            }
            Form::Ipv4 | Form::Ipv6 => {
                let (address, bits) = number::prefix(word)?;
                (address.v6 == (self.form() == Form::Ipv6)).then_some(())?;
                Match::of(self, address.as_bytes(), &number::mask(bits)[..address.length()])
            }
            Form::Port => match mask {
                None => {
                    let port = number::u16(value, Base::Ten)
                        .filter(|port| *port != 0 || self == Self::ENC_UDP_DST_PORT)?;
                    Match::plain(self, &port.to_be_bytes())
                }
                Some(_) if self.mask_attr().is_none() => return None,
                Some(mask) => Match::of(
                    self,
                    &number::u16(value, Base::Prefix)?.to_be_bytes(),
                    &number::u16(mask, Base::Prefix)?.to_be_bytes(),
                ),
            },
            Form::PortRange | Form::Fragment => return None,
            Form::Decimal(max) => {
                let number = number::u32(word, Base::Ten).filter(|number| *number <= max)?;
                Match::plain(self, &number.to_ne_bytes()[..usize::from(self.spec().bytes)])
            }
            Form::KeyId => Match::plain(self, &number::u32(word, Base::Ten)?.to_be_bytes()),
            Form::Session => Match::plain(self, &number::u16(word, Base::Ten)?.to_be_bytes()),
            Form::PppProto => Match::plain(self, &protocol::ppp(word)?.to_be_bytes()),
            Form::TosTtl => {
                let number = number::u8(value, Base::Ten).or_else(|| number::u8(value, Base::Sixteen))?;
                let mask = mask.map_or(Some(0xff), |mask| number::u8(mask, Base::Sixteen))?;
                Match::of(self, &[number], &[mask])
            }
            Form::Masked8 => {
                let mask = mask.map_or(Some(0xff), |mask| number::u8(mask, Base::Ten))?;
                Match::of(self, &[number::u8(value, Base::Ten)?], &[mask])
            }
            Form::ArpOp => {
                let operation = match value {
                    "request" => ARP_REQUEST,
                    "reply" => ARP_REPLY,
                    _ => number::u8(value, Base::Ten).filter(|operation| *operation <= ARP_REPLY)?,
                };
                let mask = mask.map_or(Some(0xff), |mask| number::u8(mask, Base::Ten))?;
                Match::of(self, &[operation], &[mask])
            }
            Form::IpProto => Match::plain(self, &[ip_proto(word)?]),
            Form::EthType => Match::plain(self, &protocol::parse(word)?.to_be_bytes()),
            Form::TcpFlags => {
                let flags = |word: &str| number::u16(word, Base::Sixteen).filter(|flags| *flags <= 0xfff);
                let mask = mask.map_or(Some(0xfff), flags)?;
                Match::of(self, &flags(value)?.to_be_bytes(), &mask.to_be_bytes())
            }
            Form::CtState => {
                let (flags, mask) = ct_state(word)?;
                Match::of(self, &flags.to_ne_bytes(), &mask.to_ne_bytes())
            }
            Form::Host16 => {
                let mask = mask.map_or(Some(u16::MAX), |mask| number::u16(mask, Base::Prefix))?;
                Match::of(self, &number::u16(value, Base::Prefix)?.to_ne_bytes(), &mask.to_ne_bytes())
            }
            Form::Host32 => {
                let mask = mask.map_or(Some(u32::MAX), |mask| number::u32(mask, Base::Prefix))?;
                Match::of(self, &number::u32(value, Base::Prefix)?.to_ne_bytes(), &mask.to_ne_bytes())
            }
            Form::Labels => {
                let (mut labels, mut bits) = ([0; VALUE_BYTES], [0xff; VALUE_BYTES]);
                let count = number::hex(value, &mut labels)?;
                let masked = mask.map_or(Some(VALUE_BYTES), |mask| number::hex(mask, &mut bits))?;
                let mut found = Match::of(self, &labels[..count], &bits[..masked]);
                found.mask_bytes = u8::try_from(masked).ok()?;
                found
            }
        })
    }
}

/// A field with its value and mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The field.
    pub field: Field,
    /// The value as on the wire; bytes after the field are zero.
    pub value: [u8; VALUE_BYTES],
    /// The mask, or the last value of a range.
    pub mask: [u8; VALUE_BYTES],
    bytes: u8,
    /// The size of the mask in bytes; 0 if the line gives no mask, so that none is sent.
    mask_bytes: u8,
}

impl Match {
    /// Creates a match of a field with this value and mask.
    pub(super) fn of(field: Field, value: &[u8], mask: &[u8]) -> Self {
        let mut found = Self::plain(field, value);
        found.mask[..mask.len()].copy_from_slice(mask);
        found.mask_bytes = u8::try_from(mask.len()).unwrap_or(0);
        found
    }

    /// Creates a match of a field with this value and no mask.
    pub(super) fn plain(field: Field, value: &[u8]) -> Self {
        let mut bytes = [0; VALUE_BYTES];
        bytes[..value.len()].copy_from_slice(value);
        let count = u8::try_from(value.len()).unwrap_or(0);
        Self { field, value: bytes, mask: [0; VALUE_BYTES], bytes: count, mask_bytes: 0 }
    }

    pub(super) fn be16(&self) -> u16 {
        u16::from_be_bytes([self.value[0], self.value[1]])
    }

    pub(super) fn be32(&self) -> u32 {
        u32::from_be_bytes([self.value[0], self.value[1], self.value[2], self.value[3]])
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        let spec = self.field.spec();
        out.bytes(spec.attr, &self.value[..usize::from(self.bytes)]);
        if self.mask_bytes != 0 {
            out.bytes(spec.mask, &self.mask[..usize::from(self.mask_bytes)]);
        }
    }

    pub(super) fn decode(field: Field, value: &[u8], mask: Option<&[u8]>) -> Result<Self, Malformed> {
        let bytes = usize::from(field.spec().bytes);
        let mask = mask.unwrap_or(&[]);
        if value.len() != bytes || !(mask.is_empty() || mask.len() == bytes) {
            return Err(Malformed("the size of a field does not match its type"));
        }
        Ok(if mask.is_empty() { Self::plain(field, value) } else { Self::of(field, value, mask) })
    }

    /// Clears every bit outside the mask, and sets the default mask if none is given.
    pub(super) fn masked(mut self) -> Self {
        if self.field.form() == Form::PortRange {
            return self;
        }
        let bytes = usize::from(self.field.spec().bytes);
        self.bytes = self.field.spec().bytes;
        if self.field.mask_attr().is_some() {
            if self.mask_bytes == 0 {
                self.mask[..bytes].fill(0xff);
            }
            self.mask_bytes = self.bytes;
            for (value, mask) in self.value.iter_mut().zip(self.mask) {
                *value &= mask;
            }
        }
        self
    }

    /// Whether the match has a mask without any bits, so that it matches everything.
    pub(super) fn counts_nothing(&self) -> bool {
        self.mask_bytes != 0 && self.mask == [0; VALUE_BYTES]
    }

    /// Whether the match selects few packets.
    pub(super) fn is_narrow(&self) -> bool {
        let bits: u32 = self.mask.iter().map(|byte| byte.count_ones()).sum();
        match self.field.form() {
            Form::Mac => self.mask_bytes != 0 && bits >= 40,
            Form::Ipv4 => bits >= 24,
            Form::Ipv6 => bits >= 64,
            Form::Port => self.mask_bytes == 0 || bits >= 12,
            Form::KeyId | Form::Session => true,
            _ => false,
        }
    }

    /// Formats the match in tc syntax. `has_protocol` says whether the rule names its transport protocol,
    /// which a port range requires.
    pub(super) fn words(&self, has_protocol: bool) -> Option<String> {
        let spec = self.field.spec();
        let (value, mask) = (&self.value[..usize::from(spec.bytes)], &self.mask[..usize::from(spec.bytes)]);
        let whole = self.mask_bytes == 0 || mask.iter().all(|byte| *byte == 0xff);
        let number = |bytes: &[u8]| {
            let mut word = [0; 4];
            word[..bytes.len()].copy_from_slice(bytes);
            u32::from_ne_bytes(word)
        };
        let port = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
        let text = match spec.form {
            Form::Mac if whole => number::mac_name(value),
            Form::Mac => format!("{}/{}", number::mac_name(value), number::mac_name(mask)),
            form if is_address(form) => {
                let address = number::Address::from_bytes(value)?;
                let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
                if self.mask_bytes == 0 {
                    address.to_string()
                } else if number::mask(ones)[..mask.len()] == *mask {
                    format!("{address}/{ones}")
                } else {
                    return None;
                }
            }
            Form::Port if self.mask_bytes == 0 || whole => port(value).to_string(),
            Form::Port => format!("{}/{:#x}", port(value), port(mask)),
            Form::PortRange => {
                has_protocol.then_some(())?;
                format!("{}-{}", port(value), port(mask))
            }
            Form::Decimal(_) => number(value).to_string(),
            Form::KeyId => self.be32().to_string(),
            Form::Session => self.be16().to_string(),
            Form::PppProto => protocol::ppp_name(self.be16()),
            Form::TosTtl => format!("{}/{:#x}", value[0], mask[0]),
            Form::Masked8 | Form::ArpOp if whole => value[0].to_string(),
            Form::Masked8 | Form::ArpOp => format!("{}/{}", value[0], mask[0]),
            Form::IpProto => ip_proto_name(value[0]),
            Form::EthType => protocol::name(self.be16()),
            Form::TcpFlags => format!("{:#x}/{:x}", port(value), port(mask)),
            Form::CtState => {
                ct_state_words(u16::try_from(number(value)).ok()?, u16::try_from(number(mask)).ok()?)
            }
            Form::Host16 | Form::Host32 if whole => number(value).to_string(),
            Form::Host16 | Form::Host32 => format!("{:#x}/{:#x}", number(value), number(mask)),
            Form::Labels => format!("{}/{}", number::hex_name(value), number::hex_name(mask)),
            Form::Ipv4 | Form::Ipv6 | Form::Fragment => return None,
        };
        Some(format!("{} {text}", spec.keyword))
    }
}

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const SCTP: u8 = 132;
pub(super) const ICMP: u8 = 1;
pub(super) const ICMPV6: u8 = 58;

/// The names of the conntrack states, in the order of the kernel's bits `TCA_FLOWER_KEY_CT_FLAGS_*`.
const CT_STATES: [&str; 6] = ["new", "est", "rel", "trk", "inv", "rpl"];

/// Parses `+STATE-STATE...`; returns the bits of the states and their mask.
pub(super) fn ct_state(word: &str) -> Option<(u16, u16)> {
    let (mut flags, mut mask) = (0, 0);
    let mut rest = word;
    while !rest.is_empty() {
        let (plus, name) = match rest.as_bytes()[0] {
            b'+' => (true, &rest[1..]),
            b'-' => (false, &rest[1..]),
            _ => return None,
        };
        let bit = CT_STATES.iter().position(|state| name.starts_with(state))?;
        flags |= u16::from(plus) << bit;
        mask |= 1 << bit;
        rest = &name[CT_STATES[bit].len()..];
    }
    Some((flags, mask))
}

/// Formats such bits.
pub(super) fn ct_state_words(flags: u16, mask: u16) -> String {
    let states = CT_STATES.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
    states.map(|(bit, state)| format!("{}{state}", if flags >> bit & 1 == 1 { '+' } else { '-' })).collect()
}

/// Returns the number of a transport protocol, given by name or in hexadecimal.
pub(super) fn ip_proto(word: &str) -> Option<u8> {
    let names = [("tcp", TCP), ("udp", UDP), ("sctp", SCTP), ("icmp", ICMP), ("icmpv6", ICMPV6)];
    let named = names.iter().find(|(name, _)| !word.is_empty() && name.starts_with(word));
    named.map(|(_, number)| *number).or_else(|| number::u8(word, Base::Sixteen))
}

/// Formats a transport protocol. ICMP has no name in the output, because its names imply an IP version that
/// the rule need not have.
pub(super) fn ip_proto_name(number: u8) -> String {
    match number {
        TCP => "tcp".to_owned(),
        UDP => "udp".to_owned(),
        SCTP => "sctp".to_owned(),
        _ => format!("{number:#x}"),
    }
}

/// Whether the syntax of this form depends on the address family.
pub(super) const fn is_address(form: Form) -> bool {
    matches!(form, Form::Ipv4 | Form::Ipv6)
}
