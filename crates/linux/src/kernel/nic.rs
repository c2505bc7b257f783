//! Knobs of a NIC and its driver: which request each becomes.

use model::{DeviceId, NicKnob, Setting};
use sys::error::KernelError;

use super::netns_handles::NetnsHandles;
use super::{lacking, steer};
use crate::observe::device as observed;

/// Knobs of one object and one interface, as they are: one request for all where there is one.
pub(super) fn read(
    handles: &mut NetnsHandles,
    device: DeviceId,
    like: &[&NicKnob],
) -> Result<Vec<NicKnob>, KernelError> {
    let ifindex = device.ifindex;
    let collect = |found: &dyn Fn(&NicKnob) -> Option<NicKnob>| {
        let one = |one: &&NicKnob| found(one).ok_or_else(|| lacking(&Setting::Nic(device, (*one).clone())));
        like.iter().map(one).collect()
    };
    let Some(first) = like.first() else { return Ok(Vec::new()) };
    match first {
        NicKnob::Channels(..) => {
            let channels = observed::channels(&handles.ethtool()?.channels_of(ifindex)?);
            collect(&|one| {
                let NicKnob::Channels(kind, _) = one else { return None };
                Some(NicKnob::Channels(*kind, channels.of(*kind).current))
            })
        }
        NicKnob::Ring(..) => {
            let rings = observed::rings(&handles.ethtool()?.rings_of(ifindex)?);
            collect(&|one| {
                let NicKnob::Ring(kind, _) = one else { return None };
                Some(NicKnob::Ring(*kind, rings.of(*kind).current))
            })
        }
        NicKnob::Coalescing(..) => {
            let coalesce = observed::coalesce(&handles.ethtool()?.coalesce_of(ifindex)?);
            collect(&|one| {
                let NicKnob::Coalescing(param, _) = one else { return None };
                coalesce.of(*param).map(|value| NicKnob::Coalescing(*param, value))
            })
        }
        NicKnob::Offload(..) => {
            let ethtool = handles.ethtool()?;
            let names = ethtool.feature_names()?;
            let offloads = observed::offloads(&ethtool.features_of(ifindex)?, &names);
            collect(&|one| {
                let NicKnob::Offload(offload, _) = one else { return None };
                offloads.get(offload).map(|on| NicKnob::Offload(*offload, *on))
            })
        }
        NicKnob::PacketSize(..) => {
            let sizes = handles.links().packet_sizes(ifindex)?;
            collect(&|one| {
                let NicKnob::PacketSize(size, _) = one else { return None };
                sizes.of(*size).map(|bytes| NicKnob::PacketSize(*size, bytes))
            })
        }
        NicKnob::PrivateFlag(..) => {
            let flags = handles.ethtool()?.private_flags_of(ifindex)?.flags;
            collect(&|one| {
                let NicKnob::PrivateFlag(flag, _) = one else { return None };
                flags.get(flag).map(|on| NicKnob::PrivateFlag(*flag, *on))
            })
        }
        NicKnob::RssTable(_) | NicKnob::RssKey(_) => {
            let name = handles.name(device)?;
            let rss = handles.ioctl()?.rss(&name)?;
            collect(&|one| match (one, rss.as_ref()?) {
                (NicKnob::RssTable(_), rss) => Some(NicKnob::RssTable(rss.table.clone())),
                (NicKnob::RssKey(_), rss) => Some(NicKnob::RssKey(rss.key.clone())),
                _ => None,
            })
        }
        NicKnob::RssContext(..) | NicKnob::FlowRule(..) | NicKnob::Qdiscs(_) => {
            like.iter().map(|like| steer::read(handles, device, like)).collect()
        }
    }
}

/// Writes knobs of one object and one interface, in one call where there is one for all.
pub(super) fn write(
    handles: &mut NetnsHandles,
    device: DeviceId,
    knobs: &[&NicKnob],
) -> Result<(), KernelError> {
    let ifindex = device.ifindex;
    let (mut channels, mut rings, mut coalescing) = (Vec::new(), Vec::new(), Vec::new());
    let (mut offloads, mut flags, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut table, mut key) = (None, None);
    for knob in knobs {
        match knob {
            NicKnob::Channels(kind, count) => channels.push((*kind, *count)),
            NicKnob::Ring(kind, size) => rings.push((*kind, *size)),
            NicKnob::Coalescing(param, value) => coalescing.push((*param, *value)),
            NicKnob::Offload(offload, on) => offloads.push((*offload, *on)),
            NicKnob::PacketSize(size, bytes) => sizes.push((*size, *bytes)),
            NicKnob::PrivateFlag(flag, on) => flags.push((*flag, *on)),
            NicKnob::RssTable(wanted) => table = Some(wanted.as_slice()),
            NicKnob::RssKey(wanted) => key = Some(wanted.as_slice()),
            NicKnob::RssContext(queues, there) => steer::write_context(handles, device, *queues, *there)?,
            NicKnob::FlowRule(flow, to) => steer::write_rule(handles, device, *flow, *to)?,
            NicKnob::Qdiscs(qdiscs) => steer::write_qdiscs(handles, device, qdiscs)?,
        }
    }
    if !channels.is_empty() {
        handles.ethtool()?.set_channels(ifindex, &channels)?;
    }
    if !rings.is_empty() {
        handles.ethtool()?.set_rings(ifindex, &rings)?;
    }
    if !coalescing.is_empty() {
        handles.ethtool()?.set_coalesce(ifindex, &coalescing)?;
    }
    if !offloads.is_empty() {
        handles.ethtool()?.set_offloads(ifindex, &offloads)?;
    }
    if !sizes.is_empty() {
        handles.links().set_packet_sizes(ifindex, &sizes)?;
    }
    if !flags.is_empty() {
        handles.ethtool()?.set_private_flags(ifindex, &flags)?;
    }
    if table.is_some() || key.is_some() {
        let name = handles.name(device)?;
        handles.ioctl()?.set_rss(&name, table, key)?;
    }
    Ok(())
}
