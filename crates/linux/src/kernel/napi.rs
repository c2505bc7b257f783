//! Reads and writes settings of NAPIs: those of a single NAPI by netdev netlink, those of all NAPIs of a
//! device by sysfs.

use model::{
    DeviceId, DeviceNapiKnob, EmptyPolls, Nanoseconds, NapiId, NapiKnob, RxQueue, Setting, Threading, since,
};
use netlink::netdev::NapiChange;
use sys::error::{Errno, KernelError};

use super::describe::written;
use super::netns_handles::NetnsHandles;
use crate::observe::device::{napi, parse_threading};

/// Reads all settings of one queue, with one request for its NAPI.
pub(super) fn read(
    handles: &mut NetnsHandles,
    queue: RxQueue,
    like: &[&NapiKnob],
) -> Result<Vec<NapiKnob>, KernelError> {
    let napi = napi(&handles.napi_of(queue)?);
    let needs = "a kernel whose `napi-get` reports it";
    let missing = |like: &NapiKnob| KernelError::absent("netdev napi-get", needs, Some(like.facts().since));
    like.iter().map(|like| napi.knob(like).ok_or_else(|| missing(like))).collect()
}

/// Writes all settings of one queue, with one `napi-set`.
pub(super) fn write(
    handles: &mut NetnsHandles,
    queue: RxQueue,
    knobs: &[&NapiKnob],
) -> Result<(), KernelError> {
    let mut change = NapiChange::default();
    knobs.iter().for_each(|knob| change.set(knob));
    let napi = handles.napi_of(queue)?;
    handles.set_napi(NapiId(napi.id), &change).map_err(|refused| {
        let culprit = knobs.iter().copied().find(|knob| refused.knob == Some(knob.facts().name));
        let named: Vec<Setting> = match culprit {
            Some(knob) => vec![Setting::Napi(queue, knob.clone())],
            None => knobs.iter().map(|knob| Setting::Napi(queue, (*knob).clone())).collect(),
        };
        let refused = KernelError { what: written(&named), cause: refused.cause };
        // Before 7.0 the attribute's range ends at "enabled", so the kernel rejects busy polling with ERANGE.
        // Kernel: `Documentation/netlink/specs/netdev.yaml`.
        if let (Some(NapiKnob::Threaded(Threading::BusyPoll)), Some(Errno::RANGE)) =
            (culprit, refused.number())
        {
            let needs = "napi-set with threaded busy-poll";
            return KernelError::absent(refused.what, needs, Some(since::BUSY_THREADS));
        }
        refused.needing("CAP_NET_ADMIN in the initial user namespace")
    })
}

/// Reads the settings of a whole device from its files in sysfs. Each file has the name of its setting.
pub(super) fn read_device(
    handles: &mut NetnsHandles,
    device: DeviceId,
    like: &[&DeviceNapiKnob],
) -> Result<Vec<DeviceNapiKnob>, KernelError> {
    let one = |like: &&DeviceNapiKnob| {
        let file = like.facts().name;
        let text = handles.directory(device)?.read(file)?;
        let found = match like {
            DeviceNapiKnob::DeferHardIrqs(_) => {
                text.parse().ok().map(|polls| DeviceNapiKnob::DeferHardIrqs(EmptyPolls(polls)))
            }
            DeviceNapiKnob::GroFlushTimeout(_) => {
                text.parse().ok().map(|span| DeviceNapiKnob::GroFlushTimeout(Nanoseconds(span)))
            }
            DeviceNapiKnob::Threaded(_) => parse_threading(&text).map(DeviceNapiKnob::Threaded),
        };
        found.ok_or_else(|| KernelError::malformed(file, format!("`{text}`")))
    };
    like.iter().map(one).collect()
}

pub(super) fn write_device(
    handles: &mut NetnsHandles,
    device: DeviceId,
    knobs: &[&DeviceNapiKnob],
) -> Result<(), KernelError> {
    knobs.iter().try_for_each(|knob| {
        let written = handles.directory(device)?.write(knob.facts().name, &knob.for_tools());
        written.map_err(|error| error.needing("CAP_NET_ADMIN"))
    })
}
