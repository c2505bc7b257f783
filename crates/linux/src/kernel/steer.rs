//! Contexts of the receive hash, rules for single flows, and queueing disciplines: objects that are made and removed, and
//! whose numbers are looked up at each reading and writing.

use model::{DeviceId, QueueSpan, Setting};

use super::inside::Inside;
use crate::error::KernelError;

/// Settings of one object and one of the three interfaces, as they are.
pub(super) fn read(
    inside: &mut Inside,
    device: DeviceId,
    like: &[Setting],
) -> Result<Vec<Setting>, KernelError> {
    like.iter().map(|one| read_one(inside, device, one)).collect()
}

fn read_one(inside: &mut Inside, device: DeviceId, like: &Setting) -> Result<Setting, KernelError> {
    let lacking = |what: &str| {
        let asked = format!("{}: {}", like.object(), like.knob());
        KernelError::absent(asked, what, Some(like.since()))
    };
    if let Setting::Qdiscs(..) = like {
        let circumstances = inside.circumstances(device)?;
        let disciplines = inside.disciplines()?;
        let all = disciplines.all()?;
        let qdiscs = disciplines.of(device.ifindex, circumstances, &all)?;
        return qdiscs
            .map(|qdiscs| Setting::Qdiscs(device, qdiscs))
            .ok_or_else(|| lacking("a device that is up"));
    }
    let name = inside.name(device)?;
    let ioctl = inside.ioctl()?;
    let contexts = ioctl.rss_contexts(&name)?;
    if let Setting::RssContext(_, queues, _) = like {
        let contexts = contexts.ok_or_else(|| lacking("a driver with contexts of the receive hash"))?;
        let there = contexts.iter().any(|context| context.queues == Some(*queues));
        return Ok(Setting::RssContext(device, *queues, there));
    }
    let Setting::FlowRule(_, flow, _) = like else { unreachable!("{like} is none of the three") };
    let rules = ioctl.flow_rules(&name, &contexts.unwrap_or_default())?;
    let rules = rules.ok_or_else(|| lacking("a driver with rules for single flows"))?;
    let to = rules.iter().find(|rule| rule.flow == Some(*flow)).map(|rule| rule.to);
    Ok(Setting::FlowRule(device, *flow, to))
}

/// Writes one of them; another setting is no business of this file.
pub(super) fn write(inside: &mut Inside, device: DeviceId, setting: &Setting) -> Result<(), KernelError> {
    if let Setting::Qdiscs(_, to) = setting {
        let circumstances = inside.circumstances(device)?;
        return inside.disciplines()?.replace(device.ifindex, circumstances, to);
    }
    let name = inside.name(device)?;
    if let Setting::RssContext(_, queues, there) = setting {
        return write_context(inside, &name, *queues, *there);
    }
    let Setting::FlowRule(_, flow, to) = setting else { unreachable!("{setting} is none of the three") };
    inside.ioctl()?.set_flow_rule(&name, *flow, *to)
}

fn write_context(inside: &mut Inside, name: &str, queues: QueueSpan, there: bool) -> Result<(), KernelError> {
    let ioctl = inside.ioctl()?;
    let contexts = ioctl.rss_contexts(name)?.unwrap_or_default();
    let fitting: Vec<u32> =
        contexts.iter().filter(|context| context.queues == Some(queues)).map(|context| context.id).collect();
    match (there, fitting.as_slice()) {
        (true, []) => ioctl.create_rss_context(name, queues),
        (true, _) | (false, []) => Ok(()),
        (false, [id]) => ioctl.delete_rss_context(name, *id),
        (false, many) => {
            let why = format!("contexts {many:?} have these queues, and which of them is meant is not known");
            Err(KernelError::malformed("ioctl ETHTOOL_SRSSH to remove a context", why))
        }
    }
}
