//! Reads and writes the settings of a NIC and its driver, each with its kernel request.

use std::collections::BTreeMap;

use model::host::{Channels, Coalesce, PacketSizes, Rings};
use model::nic::Rss;
use model::{DeviceId, FlagName, NicKnob, Offload, Setting};
use sys::error::KernelError;

use super::describe::lacking;
use super::netns_handles::NetnsHandles;
use super::steer;
use crate::observe::device as observed;

/// Reads settings of one device; settings in the same reply share one request.
pub(super) fn read(
    handles: &mut NetnsHandles,
    device: DeviceId,
    like: &[&NicKnob],
) -> Result<Vec<NicKnob>, KernelError> {
    let mut replies = Replies::default();
    let one = |one: &&NicKnob| {
        let found = read_one(handles, &mut replies, device, one)?;
        found.ok_or_else(|| lacking(&Setting::Nic(device, (*one).clone())))
    };
    like.iter().map(one).collect()
}

/// The kernel's replies about a device, shared by all settings that are read together.
#[derive(Default)]
struct Replies {
    channels: Option<Channels>,
    rings: Option<Rings>,
    coalesce: Option<Coalesce>,
    offloads: Option<BTreeMap<Offload, bool>>,
    sizes: Option<PacketSizes>,
    flags: Option<BTreeMap<FlagName, bool>>,
    /// The inner `None` means that the driver has no receive hash.
    rss: Option<Option<Rss>>,
}

/// Reads one setting; `None` if the driver does not support it.
fn read_one(
    handles: &mut NetnsHandles,
    replies: &mut Replies,
    device: DeviceId,
    like: &NicKnob,
) -> Result<Option<NicKnob>, KernelError> {
    let ifindex = device.ifindex;
    Ok(match like {
        NicKnob::Channels(kind, _) => {
            let channels = once(&mut replies.channels, || {
                Ok(observed::channels(&handles.ethtool()?.channels_of(ifindex)?))
            })?;
            Some(NicKnob::Channels(*kind, channels.of(*kind).current))
        }
        NicKnob::Ring(kind, _) => {
            let rings =
                once(&mut replies.rings, || Ok(observed::rings(&handles.ethtool()?.rings_of(ifindex)?)))?;
            Some(NicKnob::Ring(*kind, rings.of(*kind).current))
        }
        NicKnob::Coalescing(param, _) => {
            let coalesce = once(&mut replies.coalesce, || {
                Ok(observed::coalesce(&handles.ethtool()?.coalesce_of(ifindex)?))
            })?;
            coalesce.of(*param).map(|value| NicKnob::Coalescing(*param, value))
        }
        NicKnob::Offload(offload, _) => {
            let offloads = once(&mut replies.offloads, || {
                let ethtool = handles.ethtool()?;
                let names = ethtool.feature_names()?;
                Ok(observed::requested_offloads(&ethtool.features_of(ifindex)?, &names))
            })?;
            offloads.get(offload).map(|on| NicKnob::Offload(*offload, *on))
        }
        NicKnob::PacketSize(size, _) => {
            let sizes = once(&mut replies.sizes, || handles.links().packet_sizes(ifindex))?;
            sizes.of(*size).map(|bytes| NicKnob::PacketSize(*size, bytes))
        }
        NicKnob::PrivateFlag(flag, _) => {
            let flags = once(&mut replies.flags, || Ok(handles.ethtool()?.private_flags_of(ifindex)?.flags))?;
            flags.get(flag).map(|on| NicKnob::PrivateFlag(*flag, *on))
        }
        NicKnob::RssTable(_) => {
            rss(handles, replies, device)?.map(|rss| NicKnob::RssTable(rss.table.clone()))
        }
        NicKnob::RssKey(_) => rss(handles, replies, device)?.map(|rss| NicKnob::RssKey(rss.key.clone())),
        NicKnob::RssContext(queues, _) => {
            Some(NicKnob::RssContext(*queues, steer::context(handles, device, *queues, like)?))
        }
        NicKnob::FlowRule(flow, _) => {
            Some(NicKnob::FlowRule(*flow, steer::rule(handles, device, *flow, like)?))
        }
        NicKnob::Qdiscs(_) => Some(NicKnob::Qdiscs(steer::qdiscs(handles, device, like)?)),
    })
}

/// Returns a reply, and requests it from the kernel at its first use.
fn once<T>(reply: &mut Option<T>, ask: impl FnOnce() -> Result<T, KernelError>) -> Result<&T, KernelError> {
    match reply {
        Some(reply) => Ok(reply),
        None => Ok(reply.insert(ask()?)),
    }
}

fn rss<'a>(
    handles: &mut NetnsHandles,
    replies: &'a mut Replies,
    device: DeviceId,
) -> Result<Option<&'a Rss>, KernelError> {
    let rss = once(&mut replies.rss, || {
        let name = handles.name(device)?;
        handles.ioctl()?.rss(&name)
    })?;
    Ok(rss.as_ref())
}

/// Writes settings of one object that share an interface, in one call if the interface allows that.
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
