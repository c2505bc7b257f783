//! Switches offloads of a device, with the `ethtool` family.
//!
//! Only the lab uses this module, for its own devices. The offloads of an operator's devices are settings:
//! [`model::NicKnob::Offload`].

use model::IfIndex;
use sys::error::KernelError;

use super::Ethtool;

/// An offload, or several that are useful only together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// TCP segmentation by the device: all features named `tx-tcp…-segmentation`.
    Tso,
    /// GRO: the feature `rx-gro`.
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

/// Switches an offload of a device on or off, and verifies the result.
///
/// # Errors
/// The kernel's error; [`sys::Cause::Absent`] if the kernel acknowledged the request but did not apply it.
pub fn switch(device: IfIndex, offload: Offload, on: bool) -> Result<(), KernelError> {
    let what = format!("device {device}: {offload:?} {}", if on { "on" } else { "off" });
    let mut ethtool = Ethtool::open_here()?;
    let names = ethtool.feature_names()?;
    let features: Vec<(u32, &String)> =
        (0..).zip(&names).filter(|(_, name)| offload.includes(name)).collect();
    if features.is_empty() {
        return Err(KernelError::absent(what, "a kernel that knows the feature", None));
    }

    let wanted: Vec<(&str, bool)> = features.iter().map(|(_, name)| (name.as_str(), on)).collect();
    ethtool.set_features(device, &wanted).map_err(|error| KernelError { what: what.clone(), ..error })?;

    // The kernel also acknowledges requests for features that the driver cannot change, so the result is read
    // back.
    let active = ethtool.features()?;
    let active = active.iter().find(|found| found.ifindex == device.0);
    let active = active.ok_or_else(|| KernelError::gone(what.as_str(), "the device no longer exists"))?;
    match features.iter().find(|(bit, _)| active.is_active(*bit) == Some(!on)) {
        None => Ok(()),
        Some((_, name)) => {
            let is = if on { "off" } else { "on" };
            let needs = format!("a driver and other offloads that allow the change: {name} stays {is}");
            Err(KernelError::absent(what, needs, None))
        }
    }
}
