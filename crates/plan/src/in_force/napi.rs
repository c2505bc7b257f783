//! Finds the values of NAPIs.

use model::host::Device;
use model::{DeviceNapiKnob, NapiKnob, RxQueue};

use crate::index::Index;

pub(super) fn value(queue: &RxQueue, like: &NapiKnob, index: &Index<'_>) -> Option<NapiKnob> {
    let id = (*index.queues.get(queue)?)?;
    index.napis.get(&id)?.napi.knob(like)
}

pub(super) fn of_device(device: &Device, like: &DeviceNapiKnob) -> Option<DeviceNapiKnob> {
    match like {
        DeviceNapiKnob::DeferHardIrqs(_) => device.defer_hard_irqs.map(DeviceNapiKnob::DeferHardIrqs),
        DeviceNapiKnob::GroFlushTimeout(_) => device.gro_flush_timeout.map(DeviceNapiKnob::GroFlushTimeout),
        DeviceNapiKnob::Threaded(_) => device.threaded.map(DeviceNapiKnob::Threaded),
    }
}
