//! Socket options that rustix lacks, among them the busy-poll parameters of a socket.
#![expect(unsafe_code, reason = "getsockopt and setsockopt work through a pointer")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Kernel: 4.12, `include/uapi/asm-generic/socket.h`, used by x86 and arm64.
const SO_INCOMING_NAPI_ID: libc::c_int = 56;

/// Kernel: 5.14, `include/uapi/asm-generic/socket.h`, used by x86 and arm64.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Kernel: 5.11, `include/uapi/asm-generic/socket.h`, used by x86 and arm64.
const SO_BUSY_POLL: libc::c_int = 46;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;

/// Returns how long a receive call on the socket polls before it sleeps, in microseconds.
///
/// Kernel: 3.11, `net/core/sock.c` `sk_getsockopt()`; `ENOPROTOOPT` without `CONFIG_NET_RX_BUSY_POLL`.
pub fn busy_poll(socket: impl AsFd) -> Result<u32, Errno> {
    option(socket, libc::SOL_SOCKET, SO_BUSY_POLL).map(u32::from_ne_bytes)
}

/// Returns whether interrupts stay masked while the socket is polled.
///
/// Kernel: 5.11, `net/core/sock.c` `sk_getsockopt()`; `ENOPROTOOPT` before.
pub fn prefer_busy_poll(socket: impl AsFd) -> Result<bool, Errno> {
    option(socket, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL).map(|value| i32::from_ne_bytes(value) != 0)
}

/// Sets how long a receive call polls. EINVAL beyond [`i32::MAX`].
///
/// Kernel: 6.18, `net/core/sock.c` `sk_setsockopt()`.
pub fn set_busy_poll(socket: impl AsFd, usecs: u32) -> Result<(), Errno> {
    set(socket, SO_BUSY_POLL, i32::try_from(usecs).map_err(|_| Errno::INVAL)?)
}

/// Sets whether interrupts stay masked while the socket is polled. EPERM without CAP_NET_ADMIN.
///
/// Kernel: 5.11, `net/core/sock.c` `sk_setsockopt()`.
pub fn set_prefer_busy_poll(socket: impl AsFd, prefer: bool) -> Result<(), Errno> {
    set(socket, SO_PREFER_BUSY_POLL, i32::from(prefer))
}

/// Sets the maximum number of packets per poll. Raising the number needs CAP_NET_ADMIN (EPERM). The kernel
/// does not report the number.
///
/// Kernel: 5.11, `net/core/sock.c` `sk_setsockopt()`.
pub fn set_busy_poll_budget(socket: impl AsFd, packets: u16) -> Result<(), Errno> {
    set(socket, SO_BUSY_POLL_BUDGET, i32::from(packets))
}

fn set(socket: impl AsFd, name: libc::c_int, value: libc::c_int) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(size_of_val(&value)).map_err(|_| Errno::INVAL)?;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `length` bytes from `value`, which is that long.
    let answer =
        unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, name, (&raw const value).cast(), length) };
    super::answer::done(answer.into())
}

/// Returns the id of the NAPI that received the socket's last packet; 0 if there is none. For values below
/// `MIN_NAPI_ID`, which the kernel uses for CPUs, returns 0.
///
/// Kernel: 4.12, `net/core/sock.c` `sk_getsockopt()`.
pub fn incoming_napi_id(socket: impl AsFd) -> Result<u32, Errno> {
    option(socket, libc::SOL_SOCKET, SO_INCOMING_NAPI_ID).map(u32::from_ne_bytes)
}

/// Returns the cookie of the socket's namespace, which is unique until the next boot.
///
/// Kernel: 5.14, `net/core/sock.c` `sk_getsockopt()`; `ENOPROTOOPT` before.
pub fn netns_cookie(socket: impl AsFd) -> Result<u64, Errno> {
    option(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE).map(u64::from_ne_bytes)
}

/// Returns the state of a TCP socket: the first byte of `struct tcp_info`. The values are those of sock-diag.
///
/// Kernel: `net/ipv4/tcp.c` `do_tcp_getsockopt()`, which writes only as much of `TCP_INFO` as is requested;
/// the states are in `include/net/tcp_states.h`.
pub fn tcp_state(socket: impl AsFd) -> Result<u8, Errno> {
    option(socket, libc::IPPROTO_TCP, libc::TCP_INFO).map(|[state]| state)
}

/// Reads an option of exactly `BYTES` bytes; EINVAL if the kernel returns fewer.
fn option<const BYTES: usize>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
) -> Result<[u8; BYTES], Errno> {
    let wanted = libc::socklen_t::try_from(BYTES).map_err(|_| Errno::INVAL)?;
    let (mut value, mut length) = ([0_u8; BYTES], wanted);
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes to `value`, which is that long, and stores the actual
    // size in `length`.
    let answer = unsafe { libc::getsockopt(socket, level, name, value.as_mut_ptr().cast(), &raw mut length) };
    super::answer::done(answer.into())?;
    if length == wanted { Ok(value) } else { Err(Errno::INVAL) }
}
