//! Determines the capabilities of this kernel and this caller, where possible by trying requests rather than
//! by the kernel's version.

use model::host::{Capabilities, Unread};
use netlink::netdev::NapiSetTakes;
use rustix::event::epoll;
use rustix::thread::{CapabilitySet, capabilities as capability_sets};
use sys::error::KernelError;

use super::sources::{Sources, UnreadExt};

/// The running kernel's type information (BTF), which all of our BPF programs require.
const BTF: &str = "/sys/kernel/btf/vmlinux";

pub(super) fn capabilities(sources: &mut Sources, unread: &mut Vec<Unread>) -> Capabilities {
    let held = capability_sets(None)
        .map(|sets| sets.effective)
        .map_err(|errno| KernelError::errno("capabilities of the calling thread", errno));
    let held = held.map(Some).or_unread(unread).unwrap_or(CapabilitySet::empty());
    let (napi_set, takes) = match &mut sources.netdev {
        // A kernel that has the command but does not report which attributes it accepts is older than either
        // attribute.
        Ok(netdev) if netdev.has_napi_set() => (true, netdev.napi_set_takes().or_unread(unread)),
        Ok(_) | Err(_) => (false, NapiSetTakes::default()),
    };
    let loads_bpf =
        held.contains(CapabilitySet::SYS_ADMIN) || held.contains(CapabilitySet::BPF | CapabilitySet::PERFMON);
    Capabilities {
        napi_set,
        irq_suspend: takes.irq_suspend,
        napi_threaded: takes.threaded,
        napi_threaded_busy: takes.threaded_busy,
        epoll_params: epolls_have_params(),
        epoll_events_only: epolls_wait_for_events_only(),
        ptrace: held.contains(CapabilitySet::SYS_PTRACE) || crate::attach::service().is_some(),
        net_admin: held.contains(CapabilitySet::NET_ADMIN),
        bpf: loads_bpf && std::path::Path::new(BTF).exists(),
        confined_by: sys::lsm::confinement().map(str::to_owned),
    }
}

fn epolls_have_params() -> bool {
    epoll::create(epoll::CreateFlags::CLOEXEC).is_ok_and(|epoll| sys::epoll::params(epoll).is_ok())
}

/// Whether epolls can wait for events only: tries the flag on a new epoll. A kernel that does not know the
/// flag refuses it, and a kernel that accepts the flag reports it afterwards.
fn epolls_wait_for_events_only() -> bool {
    let wanted =
        sys::epoll::RawParams { busy_poll_usecs: 1, flags: sys::epoll::EVENTS_ONLY, ..Default::default() };
    epoll::create(epoll::CreateFlags::CLOEXEC).is_ok_and(|epoll| {
        sys::epoll::set_params(&epoll, wanted).is_ok()
            && sys::epoll::params(&epoll).is_ok_and(|now| now.flags == sys::epoll::EVENTS_ONLY)
    })
}
