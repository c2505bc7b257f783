//! Reads and writes RSS contexts, ntuple rules, and qdiscs: objects that are created and removed, and whose
//! numbers are looked up at each read and write.

use model::{DeviceId, FlowMatch, NicKnob, Qdiscs, QueueSpan, SteerTo};
use sys::error::KernelError;

use super::netns_handles::NetnsHandles;

/// Reads the qdiscs of a device; if the device is down and has none, the error names the setting `like`.
pub(super) fn qdiscs(
    handles: &mut NetnsHandles,
    device: DeviceId,
    like: &NicKnob,
) -> Result<Qdiscs, KernelError> {
    let defaults = handles.defaults(device)?;
    let disciplines = handles.disciplines()?;
    let all = disciplines.all()?;
    let qdiscs = disciplines.of(device.ifindex, defaults, &all)?;
    qdiscs.ok_or_else(|| lacking(device, like, "a device that is up"))
}

/// Whether the device has an RSS context over these queues.
pub(super) fn context(
    handles: &mut NetnsHandles,
    device: DeviceId,
    queues: QueueSpan,
    like: &NicKnob,
) -> Result<bool, KernelError> {
    let name = handles.name(device)?;
    let contexts = handles.ioctl()?.rss_contexts(&name)?;
    let contexts = contexts.ok_or_else(|| lacking(device, like, "a driver with RSS contexts"))?;
    Ok(contexts.iter().any(|context| context.queues == Some(queues)))
}

/// Returns where the rule for a flow leads; `None` if there is no such rule.
pub(super) fn rule(
    handles: &mut NetnsHandles,
    device: DeviceId,
    flow: FlowMatch,
    like: &NicKnob,
) -> Result<Option<SteerTo>, KernelError> {
    let name = handles.name(device)?;
    let ioctl = handles.ioctl()?;
    let contexts = ioctl.rss_contexts(&name)?.unwrap_or_default();
    let rules = ioctl.flow_rules(&name, &contexts)?;
    let rules = rules.ok_or_else(|| lacking(device, like, "a driver with ntuple rules"))?;
    Ok(rules.iter().find(|rule| rule.flow == Some(flow)).map(|rule| rule.to))
}

fn lacking(device: DeviceId, like: &NicKnob, what: &str) -> KernelError {
    let asked = format!("{}: {}", like.object(device), like.facts().name);
    KernelError::absent(asked, what, Some(like.facts().since))
}

pub(super) fn write_qdiscs(
    handles: &mut NetnsHandles,
    device: DeviceId,
    to: &Qdiscs,
) -> Result<(), KernelError> {
    let defaults = handles.defaults(device)?;
    handles.disciplines()?.replace(device.ifindex, defaults, to)
}

pub(super) fn write_rule(
    handles: &mut NetnsHandles,
    device: DeviceId,
    flow: FlowMatch,
    to: Option<SteerTo>,
) -> Result<(), KernelError> {
    let name = handles.name(device)?;
    handles.ioctl()?.set_flow_rule(&name, flow, to)
}

pub(super) fn write_context(
    handles: &mut NetnsHandles,
    device: DeviceId,
    queues: QueueSpan,
    there: bool,
) -> Result<(), KernelError> {
    let name = handles.name(device)?;
    let name = name.as_str();
    let ioctl = handles.ioctl()?;
    let contexts = ioctl.rss_contexts(name)?.unwrap_or_default();
    let fitting: Vec<u32> =
        contexts.iter().filter(|context| context.queues == Some(queues)).map(|context| context.id).collect();
    match (there, fitting.as_slice()) {
        (true, []) => ioctl.create_rss_context(name, queues),
        (true, _) | (false, []) => Ok(()),
        (false, [id]) => ioctl.delete_rss_context(name, *id),
        (false, many) => {
            let why = format!("several contexts have these queues: {many:?}");
            Err(KernelError::malformed("ioctl ETHTOOL_SRSSH to remove a context", why))
        }
    }
}
