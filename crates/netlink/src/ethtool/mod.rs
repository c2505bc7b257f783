//! The `ethtool` family: channels, rings, coalescing, features, private flags.
//!
//! One dump per request type covers all devices, except those whose driver does not support the request.
//! Requests about one device are in [`change`].
//!
//! Kernel: 6.18, `include/uapi/linux/ethtool_netlink_generated.h`, `net/ethtool/`.

pub mod change;

use model::since;
use sys::error::KernelError;

use super::attr::{Attr, Attrs, Malformed};
use super::genl::{self, GenlFamily};
use super::socket::{NetlinkProtocol, NetlinkSocket};

/// Requests: `ETHTOOL_MSG_*`.
mod command {
    pub(super) const STRSET_GET: u8 = 1;
    pub(super) const FEATURES_GET: u8 = 11;
    pub(super) const FEATURES_SET: u8 = 12;
    pub(super) const PRIVFLAGS_GET: u8 = 13;
    pub(super) const PRIVFLAGS_SET: u8 = 14;
    pub(super) const RINGS_GET: u8 = 15;
    pub(super) const RINGS_SET: u8 = 16;
    pub(super) const CHANNELS_GET: u8 = 17;
    pub(super) const CHANNELS_SET: u8 = 18;
    pub(super) const COALESCE_GET: u8 = 19;
    pub(super) const COALESCE_SET: u8 = 20;
}

/// The first attribute of every request and reply. It contains the device, and flags for the reply.
const HEADER: u16 = 1;

/// Attributes of the header: `ETHTOOL_A_HEADER_*`.
mod header {
    pub(super) const DEV_INDEX: u16 = 1;
    pub(super) const FLAGS: u16 = 3;
    /// Asks the kernel to send bitsets as words instead of names.
    pub(super) const FLAG_COMPACT_BITSETS: u32 = 1;
    /// Asks the kernel to omit the reply that lists the changes.
    pub(super) const FLAG_OMIT_REPLY: u32 = 2;
}

/// `ETH_SS_FEATURES`: the string set with the names of the features, by bit.
const FEATURE_NAMES: u32 = 4;

/// The maximum number of features. Kernel: 6.18, `include/linux/netdev_features.h` has at most 64; later
/// kernels may have more.
const FEATURES_MAX: u32 = 1024;

/// Attributes of string sets: `ETHTOOL_A_STRSET_*`, `_STRINGSETS_*`, `_STRINGSET_*`, `_STRINGS_*` and
/// `_STRING_*`.
mod strings {
    pub(super) const STRINGSETS: u16 = 2;
    pub(super) const STRINGSET: u16 = 1;
    pub(super) const ID: u16 = 1;
    pub(super) const STRINGS: u16 = 3;
    pub(super) const INDEX: u16 = 1;
    pub(super) const VALUE: u16 = 2;
}

/// Defines the numbers of a reply's attributes, the view of the reply, and how it is parsed. The attributes
/// are of the type `u32`, or a `u8` that is a truth value.
macro_rules! reply {
    ($(#[$doc:meta])* $view:ident in $numbers:ident { $($field:ident: $type:tt = $number:literal $name:ident,)* }) => {
        /// The numbers of the attributes.
        mod $numbers {
            $(pub(super) const $name: u16 = $number;)*
        }

        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names of the attributes")]
        pub struct $view {
            pub ifindex: u32,
            $(pub $field: Option<$type>,)*
        }

        impl $view {
            /// Parses a reply.
            ///
            /// # Errors
            /// If an attribute is malformed.
            pub fn parse(object: &[u8]) -> Result<Self, Malformed> {
                let mut raw = Self::default();
                for attr in genl::attrs(object)? {
                    let attr = attr?;
                    match attr.number {
                        HEADER => raw.ifindex = ifindex(attr)?,
                        $($numbers::$name => raw.$field = Some(reply!(@read $type attr)),)*
                        _ => {}
                    }
                }
                Ok(raw)
            }
        }
    };
    (@read u32 $attr:ident) => { $attr.u32()? };
    (@read bool $attr:ident) => { $attr.u8()? != 0 };
}

reply! {
    /// The reply to `channels-get` for a device: `ETHTOOL_A_CHANNELS_*`.
    RawChannels in channels {
        rx_max: u32 = 2 RX_MAX,
        tx_max: u32 = 3 TX_MAX,
        combined_max: u32 = 5 COMBINED_MAX,
        rx_count: u32 = 6 RX_COUNT,
        tx_count: u32 = 7 TX_COUNT,
        combined_count: u32 = 9 COMBINED_COUNT,
    }
}

reply! {
    /// The reply to `rings-get` for a device: `ETHTOOL_A_RINGS_*`.
    RawRings in rings {
        rx_max: u32 = 2 RX_MAX,
        tx_max: u32 = 5 TX_MAX,
        rx: u32 = 6 RX,
        tx: u32 = 9 TX,
    }
}

reply! {
    /// The reply to `coalesce-get` for a device: `ETHTOOL_A_COALESCE_*`.
    RawCoalesce in coalesce {
        rx_usecs: u32 = 2 RX_USECS,
        rx_max_frames: u32 = 3 RX_MAX_FRAMES,
        tx_usecs: u32 = 6 TX_USECS,
        tx_max_frames: u32 = 7 TX_MAX_FRAMES,
        use_adaptive_rx: bool = 11 USE_ADAPTIVE_RX,
        use_adaptive_tx: bool = 12 USE_ADAPTIVE_TX,
        use_cqe_mode_tx: bool = 24 USE_CQE_MODE_TX,
        use_cqe_mode_rx: bool = 25 USE_CQE_MODE_RX,
    }
}

/// The reply to `features-get` for a device: the active and the requested features.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawFeatures {
    /// The device.
    pub ifindex: u32,
    /// The number of features (`ETHTOOL_A_BITSET_SIZE`).
    pub size: u32,
    /// The active features as 32-bit words (`ETHTOOL_A_BITSET_VALUE` of `ETHTOOL_A_FEATURES_ACTIVE`); feature
    /// 0 is the lowest bit of the first word.
    pub active: Vec<u32>,
    /// The requested features, active or not (`ETHTOOL_A_FEATURES_WANTED`), in the same format.
    pub wanted: Vec<u32>,
    /// The features that the driver can change (`ETHTOOL_A_FEATURES_HW`), in the same format.
    pub switchable: Vec<u32>,
}

impl RawFeatures {
    /// Parses a reply with compact bitsets.
    ///
    /// # Errors
    /// If an attribute is malformed.
    pub fn parse(object: &[u8]) -> Result<Self, Malformed> {
        const HW: u16 = 2;
        const WANTED: u16 = 3;
        const ACTIVE: u16 = 4;
        const SIZE: u16 = 2;
        const VALUE: u16 = 4;
        let mut raw = Self::default();
        for attr in genl::attrs(object)? {
            let attr = attr?;
            match attr.number {
                HEADER => raw.ifindex = ifindex(attr)?,
                HW | WANTED | ACTIVE => {
                    if let Some(size) = attr.nested().find(SIZE)? {
                        raw.size = size.u32()?;
                    }
                    if let Some(value) = attr.nested().find(VALUE)? {
                        let (words, rest) = value.payload.as_chunks::<4>();
                        if !rest.is_empty() {
                            return Err(Malformed("a set of bits that is not whole words"));
                        }
                        let words = words.iter().map(|&word| u32::from_ne_bytes(word)).collect();
                        match attr.number {
                            HW => raw.switchable = words,
                            WANTED => raw.wanted = words,
                            _ => raw.active = words,
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(raw)
    }

    /// Whether a feature is on; `None` if there is no such feature.
    pub fn is_active(&self, bit: u32) -> Option<bool> {
        if bit >= self.size {
            return None;
        }
        Some(has(&self.active, bit))
    }

    /// Whether a feature is permanently off because the driver cannot change it (ethtool shows `[fixed]`).
    ///
    /// Kernel: 5.6, `net/core/dev.c` `__netdev_update_features()`, `hw_features`.
    pub fn is_lacking(&self, bit: u32) -> bool {
        !has(&self.active, bit) && !has(&self.wanted, bit) && !has(&self.switchable, bit)
    }

    /// Whether a feature was requested; a write changes this bit. A feature that the driver cannot change
    /// (`[fixed]`) counts as requested if it is on. `None` if there is no such feature.
    ///
    /// Kernel: 5.6, `net/ethtool/features.c` `ethnl_set_features()`, `wanted_features`.
    pub fn is_requested(&self, bit: u32) -> Option<bool> {
        let fixed_on = has(&self.active, bit) && !has(&self.switchable, bit);
        (bit < self.size).then(|| has(&self.wanted, bit) || fixed_on)
    }
}

fn has(words: &[u32], bit: u32) -> bool {
    let word = usize::try_from(bit / 32).ok().and_then(|at| words.get(at)).copied().unwrap_or(0);
    word >> (bit % 32) & 1 == 1
}

fn ifindex(header: Attr<'_>) -> Result<u32, Malformed> {
    match header.nested().find(header::DEV_INDEX)? {
        Some(index) => index.u32(),
        None => Err(Malformed("a reply without a device")),
    }
}

/// Parses the feature names of a `strset-get` reply: indexed by bit, empty for unnamed bits.
fn feature_names(object: &[u8]) -> Result<Vec<String>, Malformed> {
    use strings::{INDEX, STRINGS, STRINGSET, STRINGSETS, VALUE};
    let set =
        genl::attrs(object)?.find(STRINGSETS)?.map_or(Ok(None), |sets| sets.nested().find(STRINGSET))?;
    let strings = set.map_or(Ok(None), |set| set.nested().find(STRINGS))?;
    let mut names = Vec::new();
    for string in strings.map_or(Attrs::default(), |strings| strings.nested()) {
        let string = string?.nested();
        let index = string.find(INDEX)?.ok_or(Malformed("a string without an index"))?.u32()?;
        if index >= FEATURES_MAX {
            return Err(Malformed("more features than netpolicy supports"));
        }
        let index = usize::try_from(index).map_err(|_| Malformed("a string's index is wrong"))?;
        if index >= names.len() {
            names.resize(index + 1, String::new());
        }
        if let Some(value) = string.find(VALUE)? {
            value.text()?.clone_into(&mut names[index]);
        }
    }
    Ok(names)
}

/// A socket for the `ethtool` family in one namespace.
#[derive(Debug)]
pub struct Ethtool {
    socket: NetlinkSocket,
    family: GenlFamily,
}

impl Ethtool {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] on kernels without the `ethtool` family (before 5.6, or without
    /// `CONFIG_ETHTOOL_NETLINK`).
    pub fn open_here() -> Result<Self, KernelError> {
        let mut socket = NetlinkSocket::open_here(NetlinkProtocol::Generic)?;
        let family = GenlFamily::resolve(&mut socket, "ethtool", since::ETHTOOL_NETLINK)?;
        Ok(Self { socket, family })
    }

    /// Dumps the channels of all devices that have any.
    ///
    /// # Errors
    /// The kernel's error. All dumps here return it.
    pub fn channels(&mut self) -> Result<Vec<RawChannels>, KernelError> {
        self.dump("ethtool channels-get", command::CHANNELS_GET, RawChannels::parse)
    }

    /// Dumps the rings of all devices that have any.
    #[expect(clippy::missing_errors_doc, reason = "said at `channels`")]
    pub fn rings(&mut self) -> Result<Vec<RawRings>, KernelError> {
        self.dump("ethtool rings-get", command::RINGS_GET, RawRings::parse)
    }

    /// Dumps the interrupt moderation of all devices that have any.
    #[expect(clippy::missing_errors_doc, reason = "said at `channels`")]
    pub fn coalesce(&mut self) -> Result<Vec<RawCoalesce>, KernelError> {
        self.dump("ethtool coalesce-get", command::COALESCE_GET, RawCoalesce::parse)
    }

    /// Dumps the features of all devices.
    #[expect(clippy::missing_errors_doc, reason = "said at `channels`")]
    pub fn features(&mut self) -> Result<Vec<RawFeatures>, KernelError> {
        self.dump("ethtool features-get", command::FEATURES_GET, RawFeatures::parse)
    }

    /// Gets the names of the features, indexed by bit.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn feature_names(&mut self) -> Result<Vec<String>, KernelError> {
        let mut body = self.family.body(command::STRSET_GET);
        body.nested(HEADER, |_| {});
        body.nested(strings::STRINGSETS, |sets| {
            sets.nested(strings::STRINGSET, |set| {
                set.u32(strings::ID, FEATURE_NAMES);
            });
        });
        self.socket.get("ethtool strset-get", self.family.id(), &body, feature_names)
    }

    fn dump<T>(
        &mut self,
        what: &str,
        command: u8,
        parse: impl Fn(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, KernelError> {
        let mut body = self.family.body(command);
        body.nested(HEADER, |header| {
            header.u32(header::FLAGS, header::FLAG_COMPACT_BITSETS);
        });
        self.socket.dump(what, self.family.id(), &body, |object| parse(object).map(Some))
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::AttrBuf;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_answer_makes_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), bit in any::<u32>()) {
            let _ = (RawChannels::parse(&bytes), RawRings::parse(&bytes), RawCoalesce::parse(&bytes));
            let _ = (RawFeatures::parse(&bytes).map(|f| f.is_active(bit)), feature_names(&bytes));
        }
    }

    fn about(ifindex: u32) -> AttrBuf {
        let mut object = AttrBuf::after(&[0, 1, 0, 0]);
        object.nested(HEADER, |header| {
            header.u32(header::DEV_INDEX, ifindex).text(2, "eth0");
        });
        object
    }

    #[test]
    fn features_are_known_by_bit_and_unknown_beyond_the_last() {
        let mut object = about(2);
        object.nested(4, |bits| {
            bits.u32(2, 40).bytes(4, &[0x00, 0x00, 0x00, 0x80, 0x01, 0, 0, 0]);
        });
        let features = RawFeatures::parse(object.as_bytes()).expect("well-formed");
        let read: Vec<_> = [0, 31, 32, 39, 40].map(|bit| features.is_active(bit)).into();
        assert_eq!(read, [Some(false), Some(true), Some(true), Some(false), None]);
    }

    #[test]
    fn what_is_off_and_cannot_be_switched_on_is_lacking() {
        let mut object = about(2);
        for (set, words) in [(2, 0b0010_u8), (3, 0b0100), (4, 0b1000)] {
            object.nested(set, |bits| {
                bits.u32(2, 5).bytes(4, &[words, 0, 0, 0]);
            });
        }
        let features = RawFeatures::parse(object.as_bytes()).expect("well-formed");
        let lacking: Vec<bool> = (0..4).map(|bit| features.is_lacking(bit)).collect();
        assert_eq!(
            lacking,
            [true, false, false, false],
            "the feature can be changed, is requested and is on"
        );
        let requested: Vec<_> = (0..6).map(|bit| features.is_requested(bit)).collect();
        assert_eq!(requested[..4], [Some(false), Some(false), Some(true), Some(true)]);
        assert_eq!(
            requested[4..],
            [Some(false), None],
            "for a feature that is permanently on, the requested state is the current one"
        );
    }

    #[test]
    fn what_a_driver_does_not_say_stays_unsaid() {
        let mut object = about(7);
        object.u32(9, 2).u32(5, 8);
        let expected = RawChannels {
            ifindex: 7,
            combined_count: Some(2),
            combined_max: Some(8),
            ..RawChannels::default()
        };
        assert_eq!(RawChannels::parse(object.as_bytes()), Ok(expected));
    }
}
