//! Knobs of what processes own in force.

use model::ProcessKnob;

use crate::index::Index;

pub(super) fn value(like: &ProcessKnob, index: &Index<'_>) -> Option<ProcessKnob> {
    match like {
        ProcessKnob::Epoll(id, _) => {
            index.epolls.get(id).and_then(|epoll| epoll.params).map(|params| ProcessKnob::Epoll(*id, params))
        }
        ProcessKnob::IoUring(id, _) => index.rings.get(id).map(|ring| ProcessKnob::IoUring(*id, ring.napi)),
        ProcessKnob::ThreadAffinity(id, _) => {
            index.threads.get(id).map(|thread| ProcessKnob::ThreadAffinity(*id, thread.affinity.clone()))
        }
        ProcessKnob::Reuseport(id, _) => {
            let group = index.host.listeners.iter().find(|group| group.id == *id);
            group.map(|group| ProcessKnob::Reuseport(*id, group.spread.clone()))
        }
    }
}
