//! Requests of the `ethtool` family that get or set properties of one device.
//!
//! Kernel: 6.18, `net/ethtool/{channels,rings,coalesce,features,privflags}.c`.

use std::collections::BTreeMap;

use model::{ChannelKind, CoalesceParam, FlagName, IfIndex, Offload, RingKind};
use sys::error::KernelError;

use super::{
    Ethtool, HEADER, RawChannels, RawCoalesce, RawFeatures, RawRings, channels, coalesce, command, header,
    rings,
};
use crate::attr::{AttrBuf, Malformed};
use crate::genl;

/// The attributes `ETHTOOL_A_BITSET_*` and their nested attributes, outermost first.
mod bitset {
    pub(super) const BITS: u16 = 3;
    pub(super) const BIT: u16 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const VALUE: u16 = 3;
}

/// `ETHTOOL_A_FEATURES_WANTED`.
const WANTED: u16 = 3;

/// `ETHTOOL_A_PRIVFLAGS_FLAGS`.
const FLAGS: u16 = 2;

/// The maximum number of private flags of a driver: the kernel reports them as the bits of a `u32` (`struct
/// ethtool_ops`).
const PRIVATE_FLAGS_MAX: usize = 32;

/// The reply to `privflags-get` for a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawPrivateFlags {
    /// The device.
    pub ifindex: u32,
    /// The driver's flags by name, and whether they are set.
    pub flags: BTreeMap<FlagName, bool>,
}

impl RawPrivateFlags {
    /// Parses a reply with verbose bitsets. Skips names that no plan can contain.
    ///
    /// # Errors
    /// If an attribute is malformed.
    pub fn parse(object: &[u8]) -> Result<Self, Malformed> {
        let mut raw = Self::default();
        for attr in genl::attrs(object)? {
            let attr = attr?;
            match attr.number {
                HEADER => raw.ifindex = super::ifindex(attr)?,
                FLAGS => {
                    let Some(bits) = attr.nested().find(bitset::BITS)? else { continue };
                    for bit in bits.nested().take(PRIVATE_FLAGS_MAX) {
                        let bit = bit?.nested();
                        let name = bit.find(bitset::NAME)?.map(|name| name.text()).transpose()?;
                        let set = bit.find(bitset::VALUE)?.is_some();
                        if let Some(name) = name.and_then(FlagName::new) {
                            raw.flags.insert(name, set);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(raw)
    }
}

impl Ethtool {
    /// Gets the channels of a device.
    ///
    /// # Errors
    /// The kernel's error; EOPNOTSUPP if the driver does not support the request. All requests about one
    /// device return these errors.
    pub fn channels_of(&mut self, device: IfIndex) -> Result<RawChannels, KernelError> {
        self.of(device, "ethtool channels-get", command::CHANNELS_GET, RawChannels::parse)
    }

    /// Gets the rings of a device.
    #[expect(clippy::missing_errors_doc, reason = "documented at `channels_of`")]
    pub fn rings_of(&mut self, device: IfIndex) -> Result<RawRings, KernelError> {
        self.of(device, "ethtool rings-get", command::RINGS_GET, RawRings::parse)
    }

    /// Gets the interrupt moderation of a device.
    #[expect(clippy::missing_errors_doc, reason = "documented at `channels_of`")]
    pub fn coalesce_of(&mut self, device: IfIndex) -> Result<RawCoalesce, KernelError> {
        self.of(device, "ethtool coalesce-get", command::COALESCE_GET, RawCoalesce::parse)
    }

    /// Gets the features of a device.
    #[expect(clippy::missing_errors_doc, reason = "documented at `channels_of`")]
    pub fn features_of(&mut self, device: IfIndex) -> Result<RawFeatures, KernelError> {
        let mut body = self.family.body(command::FEATURES_GET);
        body.nested(HEADER, |h| {
            h.u32(header::DEV_INDEX, device.0).u32(header::FLAGS, header::FLAG_COMPACT_BITSETS);
        });
        self.socket.get("ethtool features-get", self.family.id(), &body, RawFeatures::parse)
    }

    /// Gets the private flags of a device.
    #[expect(clippy::missing_errors_doc, reason = "documented at `channels_of`")]
    pub fn private_flags_of(&mut self, device: IfIndex) -> Result<RawPrivateFlags, KernelError> {
        self.of(device, "ethtool privflags-get", command::PRIVFLAGS_GET, RawPrivateFlags::parse)
    }

    /// Gets the private flags of all devices that have any.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn private_flags(&mut self) -> Result<Vec<RawPrivateFlags>, KernelError> {
        let mut body = self.family.body(command::PRIVFLAGS_GET);
        body.nested(HEADER, |_| {});
        let read = |object: &[u8]| RawPrivateFlags::parse(object).map(Some);
        self.socket.dump("ethtool privflags-get", self.family.id(), &body, read)
    }

    fn of<T>(
        &mut self,
        device: IfIndex,
        what: &str,
        command: u8,
        parse: impl Fn(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, KernelError> {
        let body = self.about(device, command);
        self.socket.get(what, self.family.id(), &body, parse)
    }

    fn about(&self, device: IfIndex, command: u8) -> AttrBuf {
        let mut body = self.family.body(command);
        body.nested(HEADER, |h| {
            h.u32(header::DEV_INDEX, device.0);
        });
        body
    }

    /// Changes a device's numbers of queues in one message.
    ///
    /// # Errors
    /// The kernel's error, with its message. All changes here return it.
    pub fn set_channels(&mut self, device: IfIndex, to: &[(ChannelKind, u32)]) -> Result<(), KernelError> {
        let mut body = self.about(device, command::CHANNELS_SET);
        for &(kind, count) in to {
            body.u32(
                match kind {
                    ChannelKind::Rx => channels::RX_COUNT,
                    ChannelKind::Tx => channels::TX_COUNT,
                    ChannelKind::Combined => channels::COMBINED_COUNT,
                },
                count,
            );
        }
        self.set("ethtool channels-set", &body)
    }

    /// Changes a device's ring sizes in one message.
    #[expect(clippy::missing_errors_doc, reason = "documented at `set_channels`")]
    pub fn set_rings(&mut self, device: IfIndex, to: &[(RingKind, u32)]) -> Result<(), KernelError> {
        let mut body = self.about(device, command::RINGS_SET);
        for &(kind, size) in to {
            body.u32(
                match kind {
                    RingKind::Rx => rings::RX,
                    RingKind::Tx => rings::TX,
                },
                size,
            );
        }
        self.set("ethtool rings-set", &body)
    }

    /// Changes a device's interrupt moderation in one message.
    #[expect(clippy::missing_errors_doc, reason = "documented at `set_channels`")]
    pub fn set_coalesce(&mut self, device: IfIndex, to: &[(CoalesceParam, u32)]) -> Result<(), KernelError> {
        let mut body = self.about(device, command::COALESCE_SET);
        for &(param, value) in to {
            let number = match param {
                CoalesceParam::RxUsecs => coalesce::RX_USECS,
                CoalesceParam::RxMaxFrames => coalesce::RX_MAX_FRAMES,
                CoalesceParam::TxUsecs => coalesce::TX_USECS,
                CoalesceParam::TxMaxFrames => coalesce::TX_MAX_FRAMES,
                CoalesceParam::AdaptiveRx => coalesce::USE_ADAPTIVE_RX,
                CoalesceParam::AdaptiveTx => coalesce::USE_ADAPTIVE_TX,
                CoalesceParam::CqeModeTx => coalesce::USE_CQE_MODE_TX,
                CoalesceParam::CqeModeRx => coalesce::USE_CQE_MODE_RX,
            };
            if param.is_switch() {
                body.u8(number, u8::from(value != 0));
            } else {
                body.u32(number, value);
            }
        }
        self.set("ethtool coalesce-set", &body)
    }

    /// Requests offloads of a device in one message. An offload that the driver or another offload does not
    /// allow now stays requested, and the kernel applies it as soon as it can.
    ///
    /// # Errors
    /// The kernel's error; [`sys::Cause::Absent`] if a feature cannot be changed. After an error, the
    /// requested offloads are the same as before.
    pub fn set_offloads(&mut self, device: IfIndex, to: &[(Offload, bool)]) -> Result<(), KernelError> {
        let names = self.feature_names()?;
        let bit_of =
            |name: &str| (0..).zip(&names).find(|(_, known)| known.as_str() == name).map(|(bit, _)| bit);
        let before = self.features_of(device)?;
        let named: Vec<(&str, bool)> = to.iter().map(|&(offload, on)| (offload.as_str(), on)).collect();
        self.set_features(device, &named)?;
        let after = self.features_of(device)?;
        let is = |name: &str| bit_of(name).and_then(|bit| after.is_requested(bit));
        // The kernel acknowledges requests for features that the driver cannot change, and ignores them.
        let Some((fixed, on)) = named.iter().find(|(name, on)| is(name) == Some(!*on)) else {
            return Ok(());
        };
        let asked_before: Vec<(&str, bool)> = named
            .iter()
            .filter_map(|(name, _)| Some((*name, bit_of(name).and_then(|bit| before.is_requested(bit))?)))
            .collect();
        self.set_features(device, &asked_before)?;
        let (to, is) = if *on { ("on", "off") } else { ("off", "on") };
        let needs = format!("a driver that can switch {fixed} {to}; here it is {is} [fixed]");
        Err(KernelError::absent("ethtool features-set", needs, None))
    }

    /// Requests features by name. Does not detect features that the driver cannot change.
    pub fn set_features(&mut self, device: IfIndex, to: &[(&str, bool)]) -> Result<(), KernelError> {
        let mut body = self.family.body(command::FEATURES_SET);
        body.nested(HEADER, |h| {
            h.u32(header::DEV_INDEX, device.0).u32(header::FLAGS, header::FLAG_OMIT_REPLY);
        });
        body.nested(WANTED, |set| write_bits(set, to));
        self.set("ethtool features-set", &body)
    }

    /// Changes private flags of a device's driver in one message.
    #[expect(clippy::missing_errors_doc, reason = "documented at `set_channels`")]
    pub fn set_private_flags(&mut self, device: IfIndex, to: &[(FlagName, bool)]) -> Result<(), KernelError> {
        let mut body = self.about(device, command::PRIVFLAGS_SET);
        let named: Vec<(&str, bool)> = to.iter().map(|(flag, on)| (flag.as_str(), *on)).collect();
        body.nested(FLAGS, |set| write_bits(set, &named));
        self.set("ethtool privflags-set", &body)
    }

    fn set(&mut self, what: &str, body: &AttrBuf) -> Result<(), KernelError> {
        let done = self.socket.request(what, self.family.id(), 0, body);
        done.map_err(|error| error.needing("CAP_NET_ADMIN in the device's namespace"))
    }
}

/// Writes a bitset by the names of its bits: the named bits change, all others keep their value.
fn write_bits(set: &mut AttrBuf, to: &[(&str, bool)]) {
    set.nested(bitset::BITS, |bits| {
        for (name, on) in to {
            bits.nested(bitset::BIT, |bit| {
                bit.text(bitset::NAME, name);
                if *on {
                    bit.flag(bitset::VALUE);
                }
            });
        }
    });
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_answer_makes_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = RawPrivateFlags::parse(&bytes);
        }
    }

    #[test]
    fn private_flags_are_read_by_name() {
        let mut object = AttrBuf::after(&[0, 1, 0, 0]);
        object.nested(HEADER, |h| {
            h.u32(header::DEV_INDEX, 7);
        });
        object.nested(FLAGS, |set| {
            write_bits(set, &[("rx_striding_rq", true), ("tx_port_ts", false), ("", true)])
        });
        let raw = RawPrivateFlags::parse(object.as_bytes()).expect("well-formed");
        let flags: Vec<(String, bool)> = raw.flags.iter().map(|(f, on)| (f.to_string(), *on)).collect();
        assert_eq!(
            (raw.ifindex, flags),
            (7, vec![("rx_striding_rq".to_owned(), true), ("tx_port_ts".to_owned(), false)])
        );
    }
}
