//! Receive and transmit queues: the script uses `ethtool --per-queue`, and files in sysfs.

use model::{DeviceId, RxQueue, RxQueueKnob, TxQueue, TxQueueKnob};

use super::call::{Call, Part, ShellWords};
use super::nic;

pub(super) fn rx(words: &ShellWords, queue: RxQueue, which: &str, knob: &RxQueueKnob) -> Call {
    let file = format!("queues/rx-{}/{}", queue.index, knob.facts().name);
    match knob {
        RxQueueKnob::Coalescing(param, _) => {
            nic::by_ethtool(words, queue.device, which, &format!("queue-{}", queue.index), param.as_str())
        }
        RxQueueKnob::RpsCpus(_) => mask(words, queue.device, which, &file),
        RxQueueKnob::RpsFlowCount(_) => Call::device_file(words, queue.device, which, &file),
    }
}

pub(super) fn tx(words: &ShellWords, queue: TxQueue, which: &str, knob: &TxQueueKnob) -> Call {
    mask(words, queue.device, which, &format!("queues/tx-{}/{}", queue.index, knob.facts().name))
}

fn mask(words: &ShellWords, device: DeviceId, which: &str, file: &str) -> Call {
    Call::in_netns(&[Part::MaskFile], words, device.netns, "mask_file", &format!("{which} {file}"))
}
