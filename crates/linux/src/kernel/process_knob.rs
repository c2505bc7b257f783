//! Settings of objects that processes own. Objects of other users' processes are set through the attach
//! service if there is one, otherwise through workers.

use model::{ProcessKnob, Setting};
use sys::error::KernelError;

use crate::attach;
use crate::process;

pub(super) fn read(like: &ProcessKnob) -> Result<Setting, KernelError> {
    let setting = Setting::Process(like.clone());
    if let Some(service) = attach::inspector().filter(|_| attach::is_inside_a_process(&setting)) {
        return with_budget(service.read(&without_budget(setting))?, like);
    }
    let found = match like {
        ProcessKnob::Epoll(epoll, _) => ProcessKnob::Epoll(*epoll, process::read_epoll(epoll)?),
        ProcessKnob::IoUring(ring, _) => ProcessKnob::IoUring(*ring, process::read_ring_napi(ring)?),
        ProcessKnob::Socket(socket, _) => ProcessKnob::Socket(*socket, process::read_socket(socket)?),
        ProcessKnob::ThreadAffinity(thread, _) => {
            ProcessKnob::ThreadAffinity(*thread, process::read_thread_affinity(thread)?)
        }
        ProcessKnob::Reuseport(group, like) => {
            ProcessKnob::Reuseport(*group, process::read_spread(group, like)?)
        }
    };
    with_budget(Setting::Process(found), like)
}

pub(super) fn write(knob: &ProcessKnob) -> Result<(), KernelError> {
    let setting = Setting::Process(knob.clone());
    if let Some(service) = attach::inspector().filter(|_| attach::is_inside_a_process(&setting)) {
        return service.write(&setting);
    }
    // Setting options of a socket may wait for locks that the socket's owner holds, so a worker does it. If
    // there is an attach service, this process writes directly, because the service may not use BPF.
    if let (ProcessKnob::Reuseport(..), None, Some(workers)) = (knob, attach::service(), attach::inspector())
    {
        return workers.write(&setting);
    }
    match knob {
        ProcessKnob::Epoll(epoll, params) => process::write_epoll(epoll, *params),
        ProcessKnob::IoUring(ring, napi) => process::write_ring_napi(ring, *napi),
        ProcessKnob::Socket(socket, polling) => process::write_socket(socket, *polling),
        ProcessKnob::ThreadAffinity(thread, cpus) => process::write_thread_affinity(thread, cpus),
        ProcessKnob::Reuseport(group, spread) => process::write_spread(group, spread),
    }
}

/// Removes the budget from a request to the attach service: reading the budget requires BPF, which the
/// service may not use.
fn without_budget(mut asked: Setting) -> Setting {
    if let Setting::Process(ProcessKnob::Socket(_, polling)) = &mut asked {
        polling.busy_poll_budget = None;
    }
    asked
}

/// Completes the value that was read: if the budget was requested, this process reads it itself.
fn with_budget(mut read: Setting, asked_for: &ProcessKnob) -> Result<Setting, KernelError> {
    if let Setting::Process(ProcessKnob::Socket(socket, polling)) = &mut read
        && matches!(asked_for, ProcessKnob::Socket(_, like) if like.busy_poll_budget.is_some())
    {
        polling.busy_poll_budget = Some(process::read_socket_budget(socket)?);
    }
    Ok(read)
}
