//! NAPIs: netdev netlink for one, a file in sysfs for all of a device.

use model::{DeviceNapiKnob, NapiKnob, RxQueue, Threading};

use super::{Call, Part, Words};

pub(super) fn call(words: &Words, queue: RxQueue, which: &str, knob: &NapiKnob) -> Call {
    let attribute = knob.facts().name;
    Call::in_netns(
        &[Part::Napi],
        words,
        queue.device.netns,
        "napi",
        &format!("{which} {} {attribute}", queue.index),
    )
}

pub(super) fn value(knob: &NapiKnob) -> String {
    match knob {
        NapiKnob::DeferHardIrqs(polls) => polls.0.to_string(),
        NapiKnob::GroFlushTimeout(span) | NapiKnob::IrqSuspendTimeout(span) => span.0.to_string(),
        // Kernel: 6.18, Documentation/netlink/specs/netdev.yaml, `napi-threaded`.
        NapiKnob::Threaded(Threading::Off) => "disabled".to_owned(),
        NapiKnob::Threaded(Threading::On) => "enabled".to_owned(),
        NapiKnob::Threaded(Threading::BusyPoll) => "busy-poll".to_owned(),
    }
}

pub(super) fn value_of_device(knob: &DeviceNapiKnob) -> String {
    match knob {
        DeviceNapiKnob::DeferHardIrqs(polls) => polls.0.to_string(),
        DeviceNapiKnob::GroFlushTimeout(span) => span.0.to_string(),
        // Kernel: 6.18, `net/core/net-sysfs.c` `threaded_show()`.
        DeviceNapiKnob::Threaded(Threading::Off) => "0".to_owned(),
        DeviceNapiKnob::Threaded(Threading::On) => "1".to_owned(),
        DeviceNapiKnob::Threaded(Threading::BusyPoll) => "2".to_owned(),
    }
}
