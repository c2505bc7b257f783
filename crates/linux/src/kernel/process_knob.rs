//! Knobs of what processes own; of what lies inside a foreign process, through the attach service where there is one.

use model::{ProcessKnob, Setting};
use sys::error::KernelError;

use crate::attach;
use crate::process;

pub(super) fn read(like: &ProcessKnob) -> Result<Setting, KernelError> {
    let setting = Setting::Process(like.clone());
    if let Some(service) = attach::service().filter(|_| attach::is_inside_a_process(&setting)) {
        return service.read(&setting);
    }
    Ok(Setting::Process(match like {
        ProcessKnob::Epoll(epoll, _) => ProcessKnob::Epoll(*epoll, process::read_epoll(epoll)?),
        ProcessKnob::IoUring(ring, _) => ProcessKnob::IoUring(*ring, process::read_ring_napi(ring)?),
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
        ProcessKnob::ThreadAffinity(thread, cpus) => process::write_thread_affinity(thread, cpus),
        ProcessKnob::Reuseport(group, spread) => process::write_spread(group, spread),
    }
}
