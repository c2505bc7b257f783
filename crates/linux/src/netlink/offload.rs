//! Switching offloads of a device, over the `ethtool` family.
//!
//! Only the lab does so, on devices of its own: the offloads of a machine's device are not netpolicy's to change.
//!
//! Kernel: 6.18, `net/ethtool/features.c` `ethnl_set_features()`.

use model::IfIndex;

use super::Ethtool;
use super::genl::Family;
use super::socket::{NetlinkSocket, Protocol};
use crate::error::KernelError;

/// `ETHTOOL_MSG_FEATURES_SET`.
const FEATURES_SET: u8 = 12;

/// Attributes of `features-set`, from the outermost to the innermost.
mod attribute {
    pub(super) const HEADER: u16 = 1;
    pub(super) const HEADER_DEV_INDEX: u16 = 1;
    pub(super) const HEADER_FLAGS: u16 = 3;
    /// The answer need not list what changed.
    pub(super) const FLAG_OMIT_REPLY: u32 = 2;
    pub(super) const WANTED: u16 = 3;
    pub(super) const BITSET_BITS: u16 = 3;
    pub(super) const BITS_BIT: u16 = 1;
    pub(super) const BIT_NAME: u16 = 2;
    pub(super) const BIT_VALUE: u16 = 3;
}

/// An offload, or several that only make sense together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// TCP segmentation by the device: all features named `tx-tcp…-segmentation`.
    Tso,
    /// Joining of received packets: the feature `rx-gro`.
    Gro,
}

impl Offload {
    fn includes(self, feature: &str) -> bool {
        match self {
            Self::Tso => feature.starts_with("tx-tcp") && feature.ends_with("-segmentation"),
            Self::Gro => feature == "rx-gro",
        }
    }
}

/// Switches an offload of a device on or off, and makes sure that it is.
///
/// # Errors
/// The kernel's refusal; [`crate::Cause::Malformed`] if the kernel acknowledged and a feature is not as asked.
pub fn switch(device: IfIndex, offload: Offload, on: bool) -> Result<(), KernelError> {
    let what = format!("device {device}: {offload:?} {}", if on { "on" } else { "off" });
    let mut ethtool = Ethtool::open_here()?;
    let names = ethtool.feature_names()?;
    let features: Vec<(u32, &String)> =
        (0..).zip(&names).filter(|(_, name)| offload.includes(name)).collect();
    if features.is_empty() {
        return Err(KernelError::absent(what, "a kernel that knows the feature", None));
    }

    let mut socket = NetlinkSocket::open_here(Protocol::Generic)?;
    let family = Family::resolve(&mut socket, "ethtool", model::KernelVersion::since(5, 6))?;
    let mut body = family.body(FEATURES_SET);
    body.nested(attribute::HEADER, |header| {
        header.u32(attribute::HEADER_DEV_INDEX, device.0);
        header.u32(attribute::HEADER_FLAGS, attribute::FLAG_OMIT_REPLY);
    });
    body.nested(attribute::WANTED, |wanted| {
        wanted.nested(attribute::BITSET_BITS, |bits| {
            for (_, name) in &features {
                bits.nested(attribute::BITS_BIT, |bit| {
                    bit.text(attribute::BIT_NAME, name);
                    if on {
                        bit.flag(attribute::BIT_VALUE);
                    }
                });
            }
        });
    });
    socket.request(&what, family.id(), 0, &body)?;

    // The kernel acknowledges wishes that the driver does not fulfil, so what counts is what can be read.
    let active = ethtool.features()?;
    let active = active.iter().find(|found| found.ifindex == device.0);
    let active =
        active.ok_or_else(|| KernelError::gone(what.as_str(), "the device is not there any more"))?;
    match features.iter().find(|(bit, _)| active.is_active(*bit) == Some(!on)) {
        None => Ok(()),
        Some((_, name)) => Err(KernelError::malformed(
            what,
            format!("acknowledged, but {name} is {}", if on { "off" } else { "on" }),
        )),
    }
}
