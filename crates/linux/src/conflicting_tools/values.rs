//! Converts keys of systemd, netplan or NetworkManager to settings of netpolicy.

use std::time::Duration;

use model::host::{Device, Pair};
use model::{
    ChannelKind, CoalesceParam, CpuSet, NicKnob, Offload, PacketSize, RingKind, RxQueueKnob, Setting,
};

/// systemd's keys for offloads, in the order of systemd's table.
const LINK_OFFLOADS: [(&str, Offload); 7] = [
    ("GenericSegmentationOffload", Offload::Gso),
    ("TCPSegmentationOffload", Offload::Tso),
    ("TCP6SegmentationOffload", Offload::Tso6),
    ("GenericReceiveOffload", Offload::Gro),
    ("GenericReceiveOffloadHardware", Offload::GroHw),
    ("LargeReceiveOffload", Offload::Lro),
    ("NTupleFilter", Offload::Ntuple),
];

const TSO: [Offload; 4] = [Offload::Tso, Offload::TsoEcn, Offload::TsoMangleId, Offload::Tso6];

/// Returns the settings that correspond to a line of a `.link` file; none if netpolicy has no such setting,
/// or cannot parse the value.
pub(super) fn of_link(device: &Device, key: &str, value: &str) -> Vec<Setting> {
    let nic = |knob: Option<NicKnob>| knob.map(|knob| Setting::Nic(device.id, knob)).into_iter().collect();
    let channels = |kind| {
        let there = device.channels.map(|channels| channels.of(kind));
        nic(there.and_then(|there| up_to(there, value)).map(|count| NicKnob::Channels(kind, count)))
    };
    let ring = |kind| {
        let there = device.rings.map(|rings| rings.of(kind));
        nic(there.and_then(|there| up_to(there, value)).map(|size| NicKnob::Ring(kind, size)))
    };
    let moderation = |param, value: Option<u32>| nic(value.map(|value| NicKnob::Coalescing(param, value)));
    match key {
        "RxChannels" => channels(ChannelKind::Rx),
        "TxChannels" => channels(ChannelKind::Tx),
        "CombinedChannels" => channels(ChannelKind::Combined),
        "RxBufferSize" => ring(RingKind::Rx),
        "TxBufferSize" => ring(RingKind::Tx),
        "RxCoalesceSec" => moderation(CoalesceParam::RxUsecs, micros(value)),
        "TxCoalesceSec" => moderation(CoalesceParam::TxUsecs, micros(value)),
        "RxMaxCoalescedFrames" => moderation(CoalesceParam::RxMaxFrames, value.parse().ok()),
        "TxMaxCoalescedFrames" => moderation(CoalesceParam::TxMaxFrames, value.parse().ok()),
        "UseAdaptiveRxCoalesce" => moderation(CoalesceParam::AdaptiveRx, switch(value).map(u32::from)),
        "UseAdaptiveTxCoalesce" => moderation(CoalesceParam::AdaptiveTx, switch(value).map(u32::from)),
        "GenericSegmentOffloadMaxBytes" => {
            nic(bytes(value).map(|bytes| NicKnob::PacketSize(PacketSize::Gso, bytes)))
        }
        "ReceivePacketSteeringCPUMask" => cpus(value).map_or_else(Vec::new, |cpus| {
            let queues = device.rx_queues.iter();
            queues.map(|queue| Setting::RxQueue(queue.id, RxQueueKnob::RpsCpus(cpus.clone()))).collect()
        }),
        _ => {
            let offload = LINK_OFFLOADS.iter().find(|(name, _)| *name == key).map(|(_, offload)| *offload);
            nic(offload.and_then(|offload| Some(NicKnob::Offload(offload, switch(value)?))))
        }
    }
}

/// Returns the settings that correspond to a line in `[ethtool]`. nm-settings-nmcli(5); NetworkManager
/// `src/libnm-base/nm-ethtool-base.c`.
pub(super) fn of_network_manager(device: &Device, key: &str, value: &str) -> Vec<Setting> {
    let nic = |knob: NicKnob| vec![Setting::Nic(device.id, knob)];
    let number: Option<u32> = value.parse().ok();
    let coalesce = |param| number.map_or_else(Vec::new, |number| nic(NicKnob::Coalescing(param, number)));
    let ring = |kind| number.map_or_else(Vec::new, |number| nic(NicKnob::Ring(kind, number)));
    let channels = |kind| number.map_or_else(Vec::new, |number| nic(NicKnob::Channels(kind, number)));
    match key {
        "ring-rx" => ring(RingKind::Rx),
        "ring-tx" => ring(RingKind::Tx),
        "channels-rx" => channels(ChannelKind::Rx),
        "channels-tx" => channels(ChannelKind::Tx),
        "channels-combined" => channels(ChannelKind::Combined),
        "coalesce-rx-usecs" => coalesce(CoalesceParam::RxUsecs),
        "coalesce-tx-usecs" => coalesce(CoalesceParam::TxUsecs),
        "coalesce-rx-frames" => coalesce(CoalesceParam::RxMaxFrames),
        "coalesce-tx-frames" => coalesce(CoalesceParam::TxMaxFrames),
        "coalesce-adaptive-rx" => coalesce(CoalesceParam::AdaptiveRx),
        "coalesce-adaptive-tx" => coalesce(CoalesceParam::AdaptiveTx),
        _ => {
            let Some((feature, on)) = key.strip_prefix("feature-").zip(switch(value)) else {
                return Vec::new();
            };
            let alias: &[Offload] = match feature {
                "gro" => &[Offload::Gro],
                "gso" => &[Offload::Gso],
                "lro" => &[Offload::Lro],
                "ntuple" => &[Offload::Ntuple],
                "rxhash" => &[Offload::RxHash],
                "tso" => &TSO,
                _ => &[],
            };
            let own = Offload::ALL.iter().find(|offload| offload.as_str() == feature);
            let all = alias.iter().chain(own).map(|offload| NicKnob::Offload(*offload, on));
            all.map(|knob| Setting::Nic(device.id, knob)).collect()
        }
    }
}

/// Parses a number of channels or descriptors and limits it to the device's maximum; `max` selects that
/// maximum.
fn up_to(there: Pair, value: &str) -> Option<u32> {
    let number: u32 = if value == "max" { u32::MAX } else { value.parse().ok()? };
    (there.max > 0 && number > 0).then(|| number.min(there.max))
}

/// Parses a boolean as systemd does in `src/basic/parse-util.c` `parse_boolean()`; NetworkManager writes
/// `true` and `false`.
fn switch(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "yes" | "y" | "true" | "t" | "on" => Some(true),
        "0" | "no" | "n" | "false" | "f" | "off" => Some(false),
        _ => None,
    }
}

/// Parses a span of systemd.time(7) into whole microseconds: `5us`, `1ms 500us`; a number without a unit is
/// in seconds.
fn micros(value: &str) -> Option<u32> {
    let mut rest = value.trim();
    let mut seconds = 0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "us" | "usec" | "µs" | "μs" => 1e-6,
            "ms" | "msec" => 1e-3,
            "" | "s" | "sec" | "second" | "seconds" => 1.0,
            "m" | "min" | "minute" | "minutes" => 60.0,
            _ => return None,
        };
        seconds += number * unit;
        rest = rest[letters..].trim_start();
    }
    Duration::try_from_secs_f64(seconds).ok()?.as_micros().try_into().ok()
}

/// Parses a size with a suffix to base 1024, such as `64K`.
fn bytes(value: &str) -> Option<u32> {
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let unit: u64 = match value[digits..].trim() {
        "" | "B" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => return None,
    };
    let number: u64 = value[..digits].parse().ok()?;
    number.checked_mul(unit)?.try_into().ok()
}

/// Parses `ReceivePacketSteeringCPUMask=`: a list of CPUs; `disable` turns RPS off. systemd decides which
/// CPUs `all` means.
fn cpus(value: &str) -> Option<CpuSet> {
    match value {
        "disable" => Some(CpuSet::new()),
        "all" => None,
        list => list.split_whitespace().collect::<Vec<_>>().join(",").parse().ok(),
    }
}
