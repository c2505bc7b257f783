//! The busy-poll parameters of an epoll instance, and a wait that works on every kernel and with every
//! seccomp filter.
#![expect(
    unsafe_code,
    reason = "the caller defines the meaning of an ioctl, and rustix builds its epoll wait on a system call that may be missing"
)]

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::event::epoll::Event;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

use crate::answer::done;

/// `struct epoll_params` in the kernel's layout.
///
/// Kernel: 6.9, `include/uapi/linux/eventpoll.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawParams {
    /// How long one busy poll lasts, in microseconds.
    pub busy_poll_usecs: u32,
    /// The maximum number of packets per poll.
    pub busy_poll_budget: u16,
    /// Whether interrupts stay masked while polling: 0 or 1.
    pub prefer_busy_poll: u8,
    /// 0 or [`EVENTS_ONLY`]. In kernels without flags, this byte is padding, and any value but 0 fails with
    /// `EINVAL`.
    pub flags: u8,
}

/// The flag with which `epoll_wait` busy-waits for events and polls no NAPI.
///
/// Kernel: `kernel/epoll-event-busy-loop/`, `include/uapi/linux/eventpoll.h` `EPOLL_PARAMS_F_EVENTS_ONLY`.
pub const EVENTS_ONLY: u8 = 1;

const _: () = assert!(size_of::<RawParams>() == 8, "mirrors struct epoll_params");

/// Kernel: 6.9, `include/uapi/linux/eventpoll.h` `EPOLL_IOC_TYPE`.
const EPOLL_IOC_TYPE: u8 = 0x8a;
const EPIOCSPARAMS: Opcode = opcode::write::<RawParams>(EPOLL_IOC_TYPE, 1);
const EPIOCGPARAMS: Opcode = opcode::read::<RawParams>(EPOLL_IOC_TYPE, 2);

/// Reads the parameters. Fails with `ENOTTY` or `EINVAL` if the file is not an epoll, or the kernel is older
/// than 6.9.
pub fn params(epoll: impl AsFd) -> Result<RawParams, Errno> {
    // SAFETY: EPIOCGPARAMS writes one struct epoll_params, which RawParams mirrors; every bit pattern is valid.
    unsafe { ioctl(epoll, Getter::<EPIOCGPARAMS, RawParams>::new()) }
}

/// Writes the parameters.
pub fn set_params(epoll: impl AsFd, params: RawParams) -> Result<(), Errno> {
    // SAFETY: EPIOCSPARAMS reads one struct epoll_params, which RawParams mirrors, and keeps no pointer to it.
    unsafe { ioctl(epoll, Setter::<EPIOCSPARAMS, RawParams>::new(params)) }
}

/// Waits for events with `epoll_wait(2)`, and replaces the content of `events`. The capacity of `events` is
/// the maximum number of events. The timeout is rounded up to whole milliseconds; `None` waits indefinitely.
/// A caller that must wake at an exact time adds a timerfd to the epoll.
///
/// `epoll_pwait2(2)` has nanosecond resolution, but Linux before 5.11 does not have it, and some seccomp
/// filters forbid it. The workspace builds rustix with the feature `linux_5_11`, with which rustix always
/// calls it. Programs that must work without `epoll_pwait2(2)` use this function.
///
/// # Errors
/// The kernel's error; `EINTR` after a signal.
pub fn wait_millis(
    epoll: impl AsFd,
    events: &mut Vec<Event>,
    at_most: Option<Duration>,
) -> Result<(), Errno> {
    let timeout = at_most
        .map_or(-1, |at_most| i32::try_from(at_most.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
    events.clear();
    let room = i32::try_from(events.capacity()).unwrap_or(i32::MAX);
    // SAFETY: `events` has room for this many `struct epoll_event`, which rustix's Event mirrors; the kernel
    // writes no more.
    let ready =
        unsafe { libc::epoll_wait(epoll.as_fd().as_raw_fd(), events.as_mut_ptr().cast(), room, timeout) };
    done(ready.into())?;
    // SAFETY: the kernel has written this many events, starting with the first.
    unsafe { events.set_len(usize::try_from(ready).unwrap_or(0)) };
    Ok(())
}

const _: () = assert!(size_of::<Event>() == size_of::<libc::epoll_event>(), "mirrors struct epoll_event");

#[cfg(test)]
mod test {
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create};
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn a_wait_reports_what_is_ready_up_to_the_room_and_nothing_after_its_time() {
        let epoll = create(CreateFlags::CLOEXEC).expect("an epoll");
        let mut events = Vec::with_capacity(2);
        assert_eq!(wait_millis(&epoll, &mut events, Some(Duration::from_micros(1))), Ok(()));
        assert!(events.is_empty());
        let bells: Vec<_> = (1..=3)
            .map(|number| {
                let bell = eventfd(1, EventfdFlags::CLOEXEC).expect("an eventfd");
                add(&epoll, &bell, EventData::new_u64(number), EventFlags::IN).expect("is added");
                bell
            })
            .collect();
        assert_eq!(wait_millis(&epoll, &mut events, None), Ok(()));
        let numbers: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
        assert_eq!(numbers, [1, 2], "as many events as there is room for");
        drop(bells);
        assert_eq!(wait_millis(&epoll, &mut events, Some(Duration::ZERO)), Ok(()));
        assert!(events.is_empty(), "a closed descriptor is not ready");
        let none = wait_millis(&epoll, &mut Vec::new(), Some(Duration::ZERO));
        assert_eq!(none, Err(Errno::INVAL), "no room for an event");
    }
}
