//! `SO_INCOMING_NAPI_ID` of a socket.
#![expect(unsafe_code, reason = "getsockopt writes through a pointer")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Kernel: 4.12, `include/uapi/asm-generic/socket.h`, which x86 and arm64 use.
const SO_INCOMING_NAPI_ID: libc::c_int = 56;

/// The NAPI that the socket's last packet came through; 0 for none, which includes the numbers below
/// `MIN_NAPI_ID` that the kernel itself uses for CPUs.
///
/// Kernel: 4.12, `net/core/sock.c` `sk_getsockopt()`.
pub(crate) fn incoming_napi_id(socket: impl AsFd) -> Result<u32, Errno> {
    const BYTES: libc::socklen_t = 4;
    let mut id = 0_u32;
    let mut length = BYTES;
    // SAFETY: the kernel writes at most `length` bytes to `id`, which has as many, and its count to `length`.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_INCOMING_NAPI_ID,
            std::ptr::from_mut(&mut id).cast(),
            &raw mut length,
        )
    };
    super::answer::done(answer.into())?;
    if length == BYTES { Ok(id) } else { Err(Errno::INVAL) }
}
