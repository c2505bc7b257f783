//! NAPIs: the script uses netdev netlink for a single NAPI, and a file in sysfs for all NAPIs of a device.

use model::{NapiKnob, RxQueue};

use super::call::{Call, Part, ShellWords};

pub(super) fn call(words: &ShellWords, queue: RxQueue, which: &str, knob: &NapiKnob) -> Call {
    let attribute = knob.facts().name;
    Call::in_netns(
        &[Part::Napi],
        words,
        queue.device.netns,
        "napi",
        &format!("{which} {} {attribute}", queue.index),
    )
}
