//! Collects and interprets the ethtool family's replies about devices.

use std::collections::BTreeMap;

use model::host::{Channels, Coalesce, Device, Features, Pair, Rings, Unread};
use model::{IfIndex, Offload};
use netlink::ethtool::change::RawPrivateFlags;
use netlink::ethtool::{RawChannels, RawCoalesce, RawFeatures, RawRings};
use sys::error::KernelError;

use super::super::sources::{Sources, UnreadExt};

/// The replies of the ethtool family about all devices.
#[derive(Debug, Default)]
pub(super) struct EthtoolReplies {
    channels: Vec<RawChannels>,
    rings: Vec<RawRings>,
    coalesce: Vec<RawCoalesce>,
    features: Vec<RawFeatures>,
    feature_names: Vec<String>,
    private_flags: Vec<RawPrivateFlags>,
}

impl EthtoolReplies {
    pub(super) fn ask(sources: &mut Sources, unread: &mut Vec<Unread>) -> Self {
        match &mut sources.ethtool {
            Ok(ethtool) => Self {
                channels: ethtool.channels().or_unread(unread),
                rings: ethtool.rings().or_unread(unread),
                coalesce: ethtool.coalesce().or_unread(unread),
                features: ethtool.features().or_unread(unread),
                feature_names: ethtool.feature_names().or_unread(unread),
                private_flags: ethtool.private_flags().or_unread(unread),
            },
            Err(error) => Err(error.clone()).or_unread(unread),
        }
    }

    pub(super) fn complete(&self, device: &mut Device) {
        let ifindex = device.id.ifindex.0;
        device.channels = self.channels.iter().find(|raw| raw.ifindex == ifindex).map(channels);
        device.rings = self.rings.iter().find(|raw| raw.ifindex == ifindex).map(rings);
        device.coalesce = self.coalesce.iter().find(|raw| raw.ifindex == ifindex).map(coalesce);
        if let Some(raw) = self.features.iter().find(|raw| raw.ifindex == ifindex) {
            device.features = features(raw, &self.feature_names);
            device.offloads = offloads(raw, &self.feature_names);
            device.offloads_requested = requested_offloads(raw, &self.feature_names);
            device.offloads_requested.retain(|offload, on| device.offloads.get(offload) != Some(on));
        }
        if let Some(raw) = self.private_flags.iter().find(|raw| raw.ifindex == ifindex) {
            device.private_flags.clone_from(&raw.flags);
        }
    }
}

fn pair(current: Option<u32>, max: Option<u32>) -> Pair {
    Pair { current: current.unwrap_or(0), max: max.unwrap_or(0) }
}

pub(crate) fn channels(raw: &RawChannels) -> Channels {
    Channels {
        rx: pair(raw.rx_count, raw.rx_max),
        tx: pair(raw.tx_count, raw.tx_max),
        combined: pair(raw.combined_count, raw.combined_max),
    }
}

pub(crate) fn rings(raw: &RawRings) -> Rings {
    Rings { rx: pair(raw.rx, raw.rx_max), tx: pair(raw.tx, raw.tx_max) }
}

pub(crate) fn coalesce(raw: &RawCoalesce) -> Coalesce {
    Coalesce {
        rx_usecs: raw.rx_usecs,
        rx_max_frames: raw.rx_max_frames,
        tx_usecs: raw.tx_usecs,
        tx_max_frames: raw.tx_max_frames,
        adaptive_rx: raw.use_adaptive_rx,
        adaptive_tx: raw.use_adaptive_tx,
        cqe_mode_rx: raw.use_cqe_mode_rx,
        cqe_mode_tx: raw.use_cqe_mode_tx,
    }
}

/// Whether a device segments TCP itself; `None` if its driver does not report that.
pub(in crate::observe) fn segments(
    ethtool: &mut netlink::Ethtool,
    device: IfIndex,
) -> Result<Option<bool>, KernelError> {
    let names = ethtool.feature_names()?;
    let all = ethtool.features()?;
    Ok(all.iter().find(|raw| raw.ifindex == device.0).and_then(|raw| features(raw, &names).tso))
}

fn features(raw: &RawFeatures, names: &[String]) -> Features {
    let bit_of = |is_it: &dyn Fn(&str) -> bool| {
        let bits = names.iter().zip(0..).filter(|(name, _)| is_it(name));
        bits.filter_map(|(_, bit)| raw.is_active(bit)).reduce(|any, this| any || this)
    };
    Features {
        gro: bit_of(&|name| name == "rx-gro"),
        tso: bit_of(&|name| name.starts_with("tx-tcp") && name.ends_with("-segmentation")),
        gro_hw: bit_of(&|name| name == "rx-gro-hw"),
        ntuple: bit_of(&|name| name == "rx-ntuple-filter"),
        tc_offload: bit_of(&|name| name == "hw-tc-offload"),
    }
}

/// Returns the states of the offloads that the device's driver supports. Offloads that the driver does not
/// support are always off.
fn offloads(raw: &RawFeatures, names: &[String]) -> BTreeMap<Offload, bool> {
    offloads_by(raw, names, |bit| raw.is_active(bit))
}

/// Like [`offloads`], but returns the requested states, which a write changes. The kernel remembers a request
/// while it cannot switch the offload.
pub(crate) fn requested_offloads(raw: &RawFeatures, names: &[String]) -> BTreeMap<Offload, bool> {
    offloads_by(raw, names, |bit| raw.is_requested(bit))
}

fn offloads_by(
    raw: &RawFeatures,
    names: &[String],
    is_on: impl Fn(u32) -> Option<bool>,
) -> BTreeMap<Offload, bool> {
    let bits = (0..).zip(names).filter(|(bit, _)| !raw.is_lacking(*bit));
    bits.filter_map(|(bit, name)| Some((Offload::named(name)?, is_on(bit)?))).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn features_join_all_kinds_of_tcp_segmentation() {
        let names = ["tx-tcp-segmentation", "tx-tcp6-segmentation", "rx-gro", "tx-udp-segmentation"]
            .map(String::from);
        let raw =
            |active| RawFeatures { ifindex: 5, size: 4, active: vec![active], ..RawFeatures::default() };
        assert_eq!(features(&raw(0b0010), &names).tso, Some(true));
        assert_eq!(features(&raw(0b1000), &names).tso, Some(false));
        assert_eq!(features(&raw(0b0100), &names).gro, Some(true));
        assert_eq!(features(&raw(0), &names).gro_hw, None, "a kernel without the feature does not report it");
    }
}
