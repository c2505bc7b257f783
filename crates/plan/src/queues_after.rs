//! Predicts how many queues devices have after a plan has recreated the queues. All code that counts queues
//! uses this prediction.

use std::collections::BTreeMap;

use model::host::{Channels, Device};
use model::nic::NicRequest;
use model::{ChannelKind, DeviceId};

/// The devices whose queues a policy recreates, with their future numbers of queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueuesAfter(BTreeMap<DeviceId, After>);

/// The future queues of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct After {
    rx: u32,
    tx: u32,
    /// Whether the device gets its first NAPIs by the change.
    napis: bool,
}

impl QueuesAfter {
    /// Adds a device, with its future numbers of queues.
    pub(crate) fn insert(&mut self, device: DeviceId, (rx, tx): (u32, u32), napis: bool) {
        self.0.insert(device, After { rx, tx, napis });
    }

    /// Returns whether the policy recreates the device's queues.
    pub(crate) fn remakes(&self, device: DeviceId) -> bool {
        self.0.contains_key(&device)
    }

    /// Returns whether a device without NAPIs will get some.
    pub(crate) fn gives_napis(&self, device: DeviceId) -> bool {
        self.0.get(&device).is_some_and(|after| after.napis)
    }

    /// Returns whether any device without NAPIs will get some.
    pub(crate) fn gives_any_napis(&self) -> bool {
        self.0.values().any(|after| after.napis)
    }

    /// Returns the future number of a device's receive queues.
    pub(crate) fn rx(&self, device: &Device) -> u32 {
        let now = u32::try_from(device.rx_queues.len()).unwrap_or(u32::MAX);
        self.0.get(&device.id).map_or(now, |after| after.rx)
    }

    /// Returns the future number of a device's transmit queues.
    pub(crate) fn tx(&self, device: &Device) -> u32 {
        let now = u32::try_from(device.tx_queues.len()).unwrap_or(u32::MAX);
        self.0.get(&device.id).map_or(now, |after| after.tx)
    }

    /// Describes the number of receive queues of a device.
    pub(crate) fn sentence(&self, device: &Device) -> String {
        format!("it {} {}", self.has(device), self.rx(device))
    }

    /// Returns "has" or "will have", as it applies to the device's queues.
    pub(crate) fn has(&self, device: &Device) -> &'static str {
        if self.remakes(device.id) { "will have" } else { "has" }
    }
}

/// Returns the future number of channels of a kind: the number that is set explicitly, or else the current
/// one.
pub(crate) fn channels_after(kind: ChannelKind, requests: &[NicRequest], channels: Channels) -> u32 {
    by_name(kind, requests).unwrap_or(channels.of(kind).current)
}

/// Returns the number of channels of a kind that is set explicitly.
pub(crate) fn by_name(kind: ChannelKind, requests: &[NicRequest]) -> Option<u32> {
    requests.iter().find_map(|request| match request {
        NicRequest::Channels(of, count) if *of == kind => Some(*count),
        _ => None,
    })
}
