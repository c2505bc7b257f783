//! Knobs of what processes own; of what lies inside a foreign process, through the attach service where there is one.

use model::{ProcessKnob, Setting, SocketId, SocketPolling};
use sys::error::KernelError;

use crate::attach;
use crate::process;

pub(super) fn read(like: &ProcessKnob) -> Result<Setting, KernelError> {
    let setting = Setting::Process(like.clone());
    if let ProcessKnob::Socket(socket, like) = like {
        let polling = match attach::service() {
            Some(service) => service.read(&without_budget(*socket, *like))?,
            None => Setting::Process(ProcessKnob::Socket(*socket, process::read_socket(socket)?)),
        };
        return with_budget(polling, like.busy_poll_budget.is_some());
    }
    if let Some(service) = attach::service().filter(|_| attach::is_inside_a_process(&setting)) {
        return service.read(&setting);
    }
    Ok(Setting::Process(match like {
        ProcessKnob::Epoll(epoll, _) => ProcessKnob::Epoll(*epoll, process::read_epoll(epoll)?),
        ProcessKnob::IoUring(ring, _) => ProcessKnob::IoUring(*ring, process::read_ring_napi(ring)?),
        ProcessKnob::Socket(socket, _) => ProcessKnob::Socket(*socket, process::read_socket(socket)?),
        ProcessKnob::ThreadAffinity(thread, _) => {
            ProcessKnob::ThreadAffinity(*thread, process::read_thread_affinity(thread)?)
        }
        ProcessKnob::Reuseport(group, like) => {
            ProcessKnob::Reuseport(*group, process::read_spread(group, like)?)
        }
    }))
}

pub(super) fn write(knob: &ProcessKnob) -> Result<(), KernelError> {
    let setting = Setting::Process(knob.clone());
    if let Some(service) = attach::service().filter(|_| attach::is_inside_a_process(&setting)) {
        return service.write(&setting);
    }
    match knob {
        ProcessKnob::Epoll(epoll, params) => process::write_epoll(epoll, *params),
        ProcessKnob::IoUring(ring, napi) => process::write_ring_napi(ring, *napi),
        ProcessKnob::Socket(socket, polling) => process::write_socket(socket, *polling),
        ProcessKnob::ThreadAffinity(thread, cpus) => process::write_thread_affinity(thread, cpus),
        ProcessKnob::Reuseport(group, spread) => process::write_spread(group, spread),
    }
}

/// What the attach service is asked for: it reads no budgets, for it holds no right to BPF.
fn without_budget(socket: SocketId, polling: SocketPolling) -> Setting {
    Setting::Process(ProcessKnob::Socket(socket, SocketPolling { busy_poll_budget: None, ..polling }))
}

/// A socket's setting with its budget, which this process reads itself, where that is asked for.
fn with_budget(read: Setting, asked_for: bool) -> Result<Setting, KernelError> {
    match read {
        Setting::Process(ProcessKnob::Socket(socket, polling)) if asked_for => {
            let busy_poll_budget = Some(process::read_socket_budget(&socket)?);
            Ok(Setting::Process(ProcessKnob::Socket(socket, SocketPolling { busy_poll_budget, ..polling })))
        }
        read => Ok(read),
    }
}
