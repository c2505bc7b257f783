//! `SO_NETNS_COOKIE` of a socket.
#![expect(unsafe_code, reason = "getsockopt writes through a pointer")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Kernel: 5.14, `include/uapi/asm-generic/socket.h`, which x86 and arm64 use.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The cookie of the namespace that the socket is in: no other namespace of this boot has it, before or after.
///
/// Kernel: 5.14, `net/core/sock.c` `sk_getsockopt()`; `ENOPROTOOPT` before.
pub(crate) fn netns_cookie(socket: impl AsFd) -> Result<u64, Errno> {
    const BYTES: libc::socklen_t = 8;
    let mut cookie = 0_u64;
    let mut length = BYTES;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, which has as many, and its count to `length`.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &raw mut length,
        )
    };
    super::answer::done(answer.into())?;
    if length == BYTES { Ok(cookie) } else { Err(Errno::INVAL) }
}
