//! Finds the values of objects that processes own.

use model::{ProcessKnob, SocketPolling};

use crate::index::Index;

pub(super) fn value(like: &ProcessKnob, index: &Index<'_>) -> Option<ProcessKnob> {
    match like {
        ProcessKnob::Epoll(id, _) => {
            index.epolls.get(id).and_then(|epoll| epoll.params).map(|params| ProcessKnob::Epoll(*id, params))
        }
        ProcessKnob::IoUring(id, _) => index.rings.get(id).map(|ring| ProcessKnob::IoUring(*id, ring.napi)),
        ProcessKnob::Socket(id, wanted) => {
            let polling = index.sockets.get(id)?.polling?;
            // The budget of a socket that does not poll was not read. The commit reads it before it writes
            // the new budget.
            let unread = wanted.busy_poll_budget.filter(|_| !polling.polls()).map(|_| 0);
            let busy_poll_budget = polling.busy_poll_budget.or(unread);
            let asked_for = wanted.busy_poll_budget.and(busy_poll_budget);
            Some(ProcessKnob::Socket(*id, SocketPolling { busy_poll_budget: asked_for, ..polling }))
        }
        ProcessKnob::ThreadAffinity(id, _) => {
            index.threads.get(id).map(|thread| ProcessKnob::ThreadAffinity(*id, thread.affinity.clone()))
        }
        ProcessKnob::Reuseport(id, _) => {
            let group = index.host.listeners.iter().find(|group| group.id == *id);
            group.map(|group| ProcessKnob::Reuseport(*id, group.spread.clone()))
        }
    }
}
