//! `SO_NETPOLICY` and `PR_SET_NETPOLICY`, as an application calls them.
#![expect(unsafe_code, reason = "setsockopt, getsockopt and prctl take pointers and numbers")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Constants of `include/netpolicy.h`.
const SO_NETPOLICY: libc::c_int = 0x4e50;
const PR_SET_NETPOLICY: libc::c_int = 0x4e50_4f4c;
const PR_GET_NETPOLICY: libc::c_int = 0x4e50_4f4d;
const NETPOLICY_IS_SET: libc::c_int = 0x100;

/// Sets the policy of a socket, by number.
///
/// # Errors
/// ENOPROTOOPT if no BPF program handles the option; EINVAL if the number is not a policy for sockets; EPERM
/// if this user may not choose it.
pub fn set_socket(socket: impl AsFd, number: i32) -> Result<(), Errno> {
    set_socket_bytes(socket, &number.to_ne_bytes())
}

/// Like [`set_socket`], but passes any bytes instead of an `int`.
///
/// # Errors
/// As for [`set_socket`]; EINVAL if there are too few bytes.
pub fn set_socket_bytes(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(bytes.len()).map_err(|_| Errno::INVAL)?;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `length` bytes from `bytes`, which is that long.
    let answer =
        unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, SO_NETPOLICY, bytes.as_ptr().cast(), length) };
    super::answer::done(answer.into())
}

/// Returns the policy of a socket, by number.
///
/// # Errors
/// ENOPROTOOPT if no BPF program handles the option.
pub fn socket(socket: impl AsFd) -> Result<i32, Errno> {
    let mut number: libc::c_int = 0;
    let mut length = libc::socklen_t::try_from(size_of_val(&number)).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel writes at most `length` bytes to `number`, which is that long, and stores the actual
    // size in `length`.
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

/// Sets the policy of the calling process, by number; children that are forked later inherit it.
///
/// # Errors
/// EINVAL if no BPF program handles the option, or the number is not a policy for processes; EPERM if this
/// user may not choose it.
pub fn set_task(number: u32) -> Result<(), Errno> {
    prctl(PR_SET_NETPOLICY, number.into()).map(drop)
}

/// Returns the policy of the calling process, by number.
///
/// # Errors
/// EINVAL if no BPF program handles the option.
pub fn task() -> Result<i32, Errno> {
    prctl(PR_GET_NETPOLICY, 0).map(|answer| answer & !NETPOLICY_IS_SET)
}

fn prctl(option: libc::c_int, number: libc::c_ulong) -> Result<libc::c_int, Errno> {
    let zero: libc::c_ulong = 0;
    // SAFETY: both options take only numbers.
    let answer = unsafe { libc::prctl(option, number, zero, zero, zero) };
    super::answer::done(answer.into()).map(|()| answer)
}
