//! Options of tunnel headers, matched by the classifier flower and set by the action `tunnel_key`.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_FLOWER_KEY_ENC_OPTS_*` and
//! `include/uapi/linux/tc_act/tc_tunnel_key.h` `TCA_TUNNEL_KEY_ENC_OPTS_*`, whose numbers are the same.

use std::fmt::Write as _;

use crate::number::{self, Base};
use netlink::attr::{Attr, AttrBuf, Malformed};

const GENEVE: u16 = 1;
const VXLAN: u16 = 2;
const ERSPAN: u16 = 3;
const GTP: u16 = 4;

// Within each: `TCA_FLOWER_KEY_ENC_OPT_GENEVE_*`, `_VXLAN_*`, `_ERSPAN_*` and `_GTP_*` of the same header.
const GENEVE_CLASS: u16 = 1;
const GENEVE_TYPE: u16 = 2;
const GENEVE_DATA: u16 = 3;
const VXLAN_GBP: u16 = 1;
const ERSPAN_VERSION: u16 = 1;
const ERSPAN_INDEX: u16 = 2;
const ERSPAN_DIRECTION: u16 = 3;
const ERSPAN_HWID: u16 = 4;
const GTP_PDU_TYPE: u16 = 1;
const GTP_QFI: u16 = 2;

/// The longest data of a Geneve option, in bytes.
const GENEVE_DATA_MAX: usize = 128;

/// The options of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelOptions {
    /// Geneve: any number of options.
    Geneve(Vec<GeneveOption>),
    /// VXLAN group policy: the group.
    Vxlan(u32),
    /// ERSPAN.
    Erspan {
        /// The version, 1 or 2.
        version: Option<u8>,
        /// Version 1: the index.
        index: Option<u32>,
        /// Version 2: the direction.
        direction: Option<u8>,
        /// Version 2: the hardware's id.
        hwid: Option<u8>,
    },
    /// GTP: the PDU type, and the QoS flow identifier.
    Gtp(Option<u8>, Option<u8>),
}

/// A Geneve option.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeneveOption {
    /// The option class.
    pub class: Option<u16>,
    /// The type within the class.
    pub kind: Option<u8>,
    /// The data.
    pub data: Vec<u8>,
}

impl TunnelOptions {
    /// `CLASS:TYPE:DATA[,...]`, all hexadecimal.
    pub fn geneve(word: &str) -> Option<Self> {
        word.split(',').map(GeneveOption::parse).collect::<Option<_>>().map(Self::Geneve)
    }

    /// The mask that covers every bit of Geneve options.
    pub fn geneve_mask(&self) -> Option<Self> {
        let Self::Geneve(options) = self else { return None };
        let full = |option: &GeneveOption| GeneveOption {
            class: Some(u16::MAX),
            kind: Some(u8::MAX),
            data: vec![0xff; option.data.len()],
        };
        Some(Self::Geneve(options.iter().map(full).collect()))
    }

    /// `GBP`.
    pub fn vxlan(word: &str) -> Option<Self> {
        number::u32(word, Base::Prefix).map(Self::Vxlan)
    }

    /// `VERSION:INDEX:DIRECTION:HWID`, where any may be empty.
    pub fn erspan(word: &str) -> Option<Self> {
        let mut parts = word.split(':');
        let mut part = |max: u64| match parts.next() {
            None | Some("") => Some(None),
            Some(part) => number::unsigned(part, Base::Prefix).filter(|number| *number <= max).map(Some),
        };
        let (version, index, direction, hwid) =
            (part(255)?, part(u64::from(u32::MAX))?, part(255)?, part(255)?);
        let byte = |number: Option<u64>| number.and_then(|number| u8::try_from(number).ok());
        parts.next().is_none().then_some(Self::Erspan {
            version: byte(version),
            index: index.and_then(|index| u32::try_from(index).ok()),
            direction: byte(direction),
            hwid: byte(hwid),
        })
    }

    /// `PDU-TYPE:QFI`, hexadecimal.
    pub fn gtp(word: &str) -> Option<Self> {
        let (kind, flow) = word.split_once(':')?;
        let byte =
            |part: &str| if part.is_empty() { Some(None) } else { number::u8(part, Base::Sixteen).map(Some) };
        Some(Self::Gtp(byte(kind)?, byte(flow)?))
    }

    /// The options' keyword.
    pub const fn keyword(&self) -> &'static str {
        match self {
            Self::Geneve(_) => "geneve_opts",
            Self::Vxlan(_) => "vxlan_opts",
            Self::Erspan { .. } => "erspan_opts",
            Self::Gtp(..) => "gtp_opts",
        }
    }

    /// Encodes the options as the attribute with this number. The nested flag is set where iproute2 6.1 sets
    /// it.
    pub fn encode(&self, number: u16, out: &mut AttrBuf) {
        match self {
            Self::Geneve(options) => {
                out.unmarked(number, |out| {
                    for option in options {
                        out.unmarked(GENEVE, |out| option.encode(out));
                    }
                });
            }
            Self::Vxlan(group) => {
                out.nested(number, |out| {
                    out.nested(VXLAN, |out| {
                        out.u32(VXLAN_GBP, *group);
                    });
                });
            }
            Self::Erspan { version, index, direction, hwid } => {
                out.nested(number, |out| {
                    out.nested(ERSPAN, |out| {
                        version.inspect(|version| _ = out.u8(ERSPAN_VERSION, *version));
                        index.inspect(|index| _ = out.bytes(ERSPAN_INDEX, &index.to_be_bytes()));
                        direction.inspect(|direction| _ = out.u8(ERSPAN_DIRECTION, *direction));
                        hwid.inspect(|hwid| _ = out.u8(ERSPAN_HWID, *hwid));
                    });
                });
            }
            Self::Gtp(kind, flow) => {
                out.nested(number, |out| {
                    out.nested(GTP, |out| {
                        kind.inspect(|kind| _ = out.u8(GTP_PDU_TYPE, *kind));
                        flow.inspect(|flow| _ = out.u8(GTP_QFI, *flow));
                    });
                });
            }
        }
    }

    /// Decodes options; returns `None` for options of an unknown tunnel.
    ///
    /// # Errors
    /// If an attribute is malformed.
    pub fn decode(attr: &Attr<'_>) -> Result<Option<Self>, Malformed> {
        let mut geneve = Vec::new();
        for attr in attr.nested() {
            let attr = attr?;
            match attr.number {
                GENEVE => geneve.push(GeneveOption::decode(&attr)?),
                VXLAN => {
                    return attr
                        .nested()
                        .find(VXLAN_GBP)?
                        .map(|group| group.u32().map(Self::Vxlan))
                        .transpose();
                }
                ERSPAN => {
                    let part = |number| attr.nested().find(number)?.map(|part| part.u8()).transpose();
                    let index = attr.nested().find(ERSPAN_INDEX)?.map(|index| index.be32()).transpose()?;
                    let (version, direction, hwid) =
                        (part(ERSPAN_VERSION)?, part(ERSPAN_DIRECTION)?, part(ERSPAN_HWID)?);
                    return Ok(Some(Self::Erspan { version, index, direction, hwid }));
                }
                GTP => {
                    let part = |number| attr.nested().find(number)?.map(|part| part.u8()).transpose();
                    return Ok(Some(Self::Gtp(part(GTP_PDU_TYPE)?, part(GTP_QFI)?)));
                }
                _ => return Ok(None),
            }
        }
        Ok((!geneve.is_empty()).then_some(Self::Geneve(geneve)))
    }

    /// Converts the options to the form that the kernel would dump: for ERSPAN, exactly the fields of its
    /// version.
    ///
    /// Kernel: 6.18, `net/sched/cls_flower.c` `fl_dump_key_erspan_opt()`.
    pub fn canonicalize(&mut self) {
        if let Self::Erspan { version, index, direction, hwid } = self {
            match version {
                Some(1) => (*index, *direction, *hwid) = (Some(index.unwrap_or(0)), None, None),
                Some(2) => {
                    (*index, *direction, *hwid) =
                        (None, Some(direction.unwrap_or(0)), Some(hwid.unwrap_or(0)));
                }
                // The kernel accepts and dumps no other version. A missing field is 0, as in the tc syntax of
                // the options.
                _ => {
                    *version = Some(version.unwrap_or(0));
                    *index = Some(index.unwrap_or(0));
                    (*direction, *hwid) = (Some(direction.unwrap_or(0)), Some(hwid.unwrap_or(0)));
                }
            }
        }
    }

    /// The options' tc syntax, without the keyword. A field that an ERSPAN version lacks is written as 0 instead of
    /// empty, because iproute2 skips an empty field and uses the next one for it.
    pub fn words(&self) -> String {
        let hex = |part: &Option<u8>| part.map(|part| format!("{part:x}")).unwrap_or_default();
        let decimal = |part: &Option<u8>| part.unwrap_or(0);
        match self {
            Self::Geneve(options) => {
                let options: Vec<String> = options.iter().map(GeneveOption::words).collect();
                options.join(",")
            }
            Self::Vxlan(group) => format!("{group:#x}"),
            Self::Erspan { version, index, direction, hwid } => {
                let index = index.unwrap_or(0);
                format!("{}:{index}:{}:{}", decimal(version), decimal(direction), decimal(hwid))
            }
            Self::Gtp(kind, flow) => format!("{}:{}", hex(kind), hex(flow)),
        }
    }
}

impl GeneveOption {
    fn parse(word: &str) -> Option<Self> {
        let mut parts = word.split(':');
        let mut option = Self::default();
        match parts.next()? {
            "" => {}
            class => option.class = Some(number::u16(class, Base::Sixteen)?),
        }
        match parts.next()? {
            "" => {}
            kind => option.kind = Some(number::u8(kind, Base::Sixteen)?),
        }
        let mut data = [0; GENEVE_DATA_MAX];
        let count = number::hex(parts.next()?, &mut data)?;
        option.data = data[..count].to_vec();
        parts.next().is_none().then_some(option)
    }

    fn encode(&self, out: &mut AttrBuf) {
        self.class.inspect(|class| _ = out.bytes(GENEVE_CLASS, &class.to_be_bytes()));
        self.kind.inspect(|kind| _ = out.u8(GENEVE_TYPE, *kind));
        if !self.data.is_empty() {
            out.bytes(GENEVE_DATA, &self.data);
        }
    }

    fn decode(attr: &Attr<'_>) -> Result<Self, Malformed> {
        let mut option = Self::default();
        for attr in attr.nested() {
            let attr = attr?;
            match attr.number {
                GENEVE_CLASS => option.class = Some(attr.be16()?),
                GENEVE_TYPE => option.kind = Some(attr.u8()?),
                GENEVE_DATA if attr.payload.len() <= GENEVE_DATA_MAX => option.data = attr.payload.to_vec(),
                GENEVE_DATA => {
                    return Err(Malformed("a Geneve option has more data than its header can express"));
                }
                _ => {}
            }
        }
        Ok(option)
    }

    fn words(&self) -> String {
        let mut words = String::new();
        self.class.inspect(|class| _ = write!(words, "{class:04x}"));
        words.push(':');
        self.kind.inspect(|kind| _ = write!(words, "{kind:02x}"));
        words.push(':');
        words.push_str(&number::hex_name(&self.data));
        words
    }
}
