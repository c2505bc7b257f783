//! `SO_NETPOLICY` and `PR_SET_NETPOLICY` as an application calls them.
#![expect(unsafe_code, reason = "setsockopt, getsockopt and prctl take pointers and numbers")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// `include/netpolicy.h`, of the same names.
const SO_NETPOLICY: libc::c_int = 0x4e50;
const PR_SET_NETPOLICY: libc::c_int = 0x4e50_4f4c;
const PR_GET_NETPOLICY: libc::c_int = 0x4e50_4f4d;
const NETPOLICY_IS_SET: libc::c_int = 0x100;

/// Gives a socket a policy, by its number.
///
/// # Errors
/// ENOPROTOOPT where no program answers; EINVAL for a number that is not a policy of a socket; EPERM for one that this user
/// may not choose.
pub fn set_socket(socket: impl AsFd, number: i32) -> Result<(), Errno> {
    set_socket_bytes(socket, &number.to_ne_bytes())
}

/// As [`set_socket`], with whatever bytes instead of an `int`.
///
/// # Errors
/// As [`set_socket`]; EINVAL for too few.
pub fn set_socket_bytes(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(bytes.len()).map_err(|_| Errno::INVAL)?;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `length` bytes from `bytes`, which has as many.
    let answer =
        unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, SO_NETPOLICY, bytes.as_ptr().cast(), length) };
    super::answer::done(answer.into())
}

/// The policy of a socket, by its number.
///
/// # Errors
/// ENOPROTOOPT where no program answers.
pub fn socket(socket: impl AsFd) -> Result<i32, Errno> {
    let mut number: libc::c_int = 0;
    let mut length = libc::socklen_t::try_from(size_of_val(&number)).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel writes at most `length` bytes to `number`, which has as many, and its count to `length`.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETPOLICY,
            (&raw mut number).cast(),
            &raw mut length,
        )
    };
    super::answer::done(answer.into()).map(|()| number)
}

/// Gives the calling process a policy, by its number; children forked from now on inherit it.
///
/// # Errors
/// EINVAL where no program answers, and for a number that is not a policy of a process; EPERM for one that this user may not
/// choose.
pub fn set_task(number: u32) -> Result<(), Errno> {
    prctl(PR_SET_NETPOLICY, number.into()).map(drop)
}

/// The policy of the calling process, by its number.
///
/// # Errors
/// EINVAL where no program answers.
pub fn task() -> Result<i32, Errno> {
    prctl(PR_GET_NETPOLICY, 0).map(|answer| answer & !NETPOLICY_IS_SET)
}

fn prctl(option: libc::c_int, number: libc::c_ulong) -> Result<libc::c_int, Errno> {
    let zero: libc::c_ulong = 0;
    // SAFETY: both options take numbers alone.
    let answer = unsafe { libc::prctl(option, number, zero, zero, zero) };
    super::answer::done(answer.into()).map(|()| answer)
}
