//! Kernel threads of NAPIs: the script applies `taskset`, `chrt`, `renice` and `uclampset` to the current
//! thread.

use model::{KthreadKnob, RxQueue};

use super::call::{Call, Part, ShellWords};

pub(super) fn call(words: &ShellWords, queue: RxQueue, which: &str, knob: &KthreadKnob) -> Call {
    let kind = match knob {
        KthreadKnob::Affinity(_) => "cpus",
        KthreadKnob::Scheduling(_) => "class",
        KthreadKnob::UtilClamp(_) => "clamp",
        KthreadKnob::Slice(_) => "slice",
    };
    let of = format!("{which} {} {kind}", queue.index);
    Call::in_netns(&[Part::Napi, Part::Kthread], words, queue.device.netns, "kthread", &of)
}
