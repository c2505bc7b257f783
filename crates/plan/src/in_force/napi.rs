//! The values of NAPIs.

use model::host::Device;
use model::{DeviceNapiKnob, NapiKnob, RxQueue};

use crate::index::Index;

pub(super) fn value(queue: &RxQueue, like: &NapiKnob, index: &Index<'_>) -> Option<NapiKnob> {
    let id = (*index.queues.get(queue)?)?;
    let napi = index.napis.get(&id)?.napi;
    match like {
        NapiKnob::DeferHardIrqs(_) => napi.defer_hard_irqs.map(NapiKnob::DeferHardIrqs),
        NapiKnob::GroFlushTimeout(_) => napi.gro_flush_timeout.map(NapiKnob::GroFlushTimeout),
        NapiKnob::IrqSuspendTimeout(_) => napi.irq_suspend_timeout.map(NapiKnob::IrqSuspendTimeout),
        NapiKnob::Threaded(_) => napi.threaded.map(NapiKnob::Threaded),
    }
}

pub(super) fn of_device(device: &Device, like: &DeviceNapiKnob) -> Option<DeviceNapiKnob> {
    match like {
        DeviceNapiKnob::DeferHardIrqs(_) => device.defer_hard_irqs.map(DeviceNapiKnob::DeferHardIrqs),
        DeviceNapiKnob::GroFlushTimeout(_) => device.gro_flush_timeout.map(DeviceNapiKnob::GroFlushTimeout),
        DeviceNapiKnob::Threaded(_) => device.threaded.map(DeviceNapiKnob::Threaded),
    }
}
