//! Kernel threads of NAPIs: `taskset`, `chrt`, `renice` and `uclampset` on the thread that there is.

use model::{KthreadKnob, RxQueue, Slice};

use super::{Call, Part, Words};

pub(super) fn call(words: &Words, queue: RxQueue, which: &str, knob: &KthreadKnob) -> Call {
    let kind = match knob {
        KthreadKnob::Affinity(_) => "cpus",
        KthreadKnob::Scheduling(_) => "class",
        KthreadKnob::UtilClamp(_) => "clamp",
        KthreadKnob::Slice(_) => "slice",
    };
    let of = format!("{which} {} {kind}", queue.index);
    Call::in_netns(&[Part::Napi, Part::Kthread], words, queue.device.netns, "kthread", &of)
}

pub(super) fn value(knob: &KthreadKnob) -> String {
    match knob {
        KthreadKnob::Slice(Slice::Own(span)) => span.0.to_string(),
        KthreadKnob::Affinity(_)
        | KthreadKnob::Scheduling(_)
        | KthreadKnob::UtilClamp(_)
        | KthreadKnob::Slice(Slice::Default) => knob.value(),
    }
}
