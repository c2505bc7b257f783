//! What the kernel reports of a socket by `getsockopt()`.
#![expect(unsafe_code, reason = "getsockopt writes through a pointer")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Kernel: 4.12, `include/uapi/asm-generic/socket.h`, which x86 and arm64 use.
const SO_INCOMING_NAPI_ID: libc::c_int = 56;

/// Kernel: 5.14, `include/uapi/asm-generic/socket.h`, which x86 and arm64 use.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The NAPI that the socket's last packet came through; 0 for none, which includes the numbers below
/// `MIN_NAPI_ID` that the kernel itself uses for CPUs.
///
/// Kernel: 4.12, `net/core/sock.c` `sk_getsockopt()`.
pub fn incoming_napi_id(socket: impl AsFd) -> Result<u32, Errno> {
    option(socket, libc::SOL_SOCKET, SO_INCOMING_NAPI_ID).map(u32::from_ne_bytes)
}

/// The cookie of the namespace that the socket is in: no other namespace of this boot has it, before or after.
///
/// Kernel: 5.14, `net/core/sock.c` `sk_getsockopt()`; `ENOPROTOOPT` before.
pub fn netns_cookie(socket: impl AsFd) -> Result<u64, Errno> {
    option(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE).map(u64::from_ne_bytes)
}

/// The state of a TCP socket, as sock-diag reports it: the first byte of `struct tcp_info`.
///
/// Kernel: `net/ipv4/tcp.c` `do_tcp_getsockopt()`, which writes as much of `TCP_INFO` as is asked for; the states are in
/// `include/net/tcp_states.h`.
pub fn tcp_state(socket: impl AsFd) -> Result<u8, Errno> {
    option(socket, libc::IPPROTO_TCP, libc::TCP_INFO).map(|[state]| state)
}

/// An option of so many bytes; EINVAL if the kernel has fewer.
fn option<const BYTES: usize>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
) -> Result<[u8; BYTES], Errno> {
    let wanted = libc::socklen_t::try_from(BYTES).map_err(|_| Errno::INVAL)?;
    let (mut value, mut length) = ([0_u8; BYTES], wanted);
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes to `value`, which has as many, and its count to `length`.
    let answer = unsafe { libc::getsockopt(socket, level, name, value.as_mut_ptr().cast(), &raw mut length) };
    super::answer::done(answer.into())?;
    if length == wanted { Ok(value) } else { Err(Errno::INVAL) }
}
