//! Finds the values of NAPIs' kernel threads.

use model::{KthreadKnob, KthreadState, RxQueue, Threading};

use crate::index::Index;

pub(super) fn value(thread: &KthreadState, like: &KthreadKnob) -> Option<KthreadKnob> {
    match like {
        KthreadKnob::Affinity(_) => Some(KthreadKnob::Affinity(thread.cpus.clone())),
        KthreadKnob::Scheduling(_) => thread.scheduling.map(KthreadKnob::Scheduling),
        KthreadKnob::UtilClamp(_) => thread.util_clamp.map(KthreadKnob::UtilClamp),
        KthreadKnob::Slice(_) => thread.slice.map(KthreadKnob::Slice),
    }
}

/// Returns the kernel thread of a queue's NAPI; if there is none yet, the state in which the thread would
/// start.
pub(crate) fn thread<'a>(queue: &RxQueue, index: &'a Index<'_>) -> Option<&'a KthreadState> {
    let state = index.rx.get(queue)?;
    let of_napi = index.napi_of(*queue).and_then(|napi| napi.threaded);
    let threading = of_napi.or_else(|| index.devices.get(&queue.device)?.threaded);
    match &state.kthread {
        Some(thread) => Some(thread),
        None if threading == Some(Threading::Off) => index.host.kthread_begins.as_ref(),
        None => None,
    }
}
