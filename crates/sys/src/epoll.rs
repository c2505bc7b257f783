//! The busy-poll parameters of an epoll file.
#![expect(unsafe_code, reason = "rustix leaves the meaning of an ioctl to its caller")]

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

/// `struct epoll_params`, as the kernel lays it out.
///
/// Kernel: 6.9, `include/uapi/linux/eventpoll.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawParams {
    /// How long one busy poll lasts, in microseconds.
    pub busy_poll_usecs: u32,
    /// The most packets of one poll.
    pub busy_poll_budget: u16,
    /// Whether interrupts stay off while it is polled: 0 or 1.
    pub prefer_busy_poll: u8,
    /// [`EVENTS_ONLY`]; kernels that know no flags call it padding, and refuse all but 0 with `EINVAL`.
    pub flags: u8,
}

/// `epoll_wait` waits busily for events and polls no NAPI.
///
/// Kernel: `kernel/epoll-event-busy-loop/`, `include/uapi/linux/eventpoll.h` `EPOLL_PARAMS_F_EVENTS_ONLY`.
pub const EVENTS_ONLY: u8 = 1;

const _: () = assert!(size_of::<RawParams>() == 8, "mirrors struct epoll_params");

/// Kernel: 6.9, `include/uapi/linux/eventpoll.h` `EPOLL_IOC_TYPE`.
const EPOLL_IOC_TYPE: u8 = 0x8a;
const EPIOCSPARAMS: Opcode = opcode::write::<RawParams>(EPOLL_IOC_TYPE, 1);
const EPIOCGPARAMS: Opcode = opcode::read::<RawParams>(EPOLL_IOC_TYPE, 2);

/// Reads the parameters. A file that is not an epoll, or a kernel before 6.9, answers `ENOTTY` or `EINVAL`.
pub fn params(epoll: impl AsFd) -> Result<RawParams, Errno> {
    // SAFETY: EPIOCGPARAMS writes one struct epoll_params, which RawParams mirrors; every bit pattern is valid.
    unsafe { ioctl(epoll, Getter::<EPIOCGPARAMS, RawParams>::new()) }
}

/// Writes the parameters.
pub fn set_params(epoll: impl AsFd, params: RawParams) -> Result<(), Errno> {
    // SAFETY: EPIOCSPARAMS reads one struct epoll_params, which RawParams mirrors, and keeps no pointer to it.
    unsafe { ioctl(epoll, Setter::<EPIOCSPARAMS, RawParams>::new(params)) }
}
