//! The state of a TCP socket.
#![expect(unsafe_code, reason = "getsockopt writes through a pointer")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// The state, as sock-diag would tell it: the first byte of `struct tcp_info`.
///
/// Kernel: `net/ipv4/tcp.c` `do_tcp_getsockopt()`, which writes as much of `TCP_INFO` as is asked for; the states are in
/// `include/net/tcp_states.h`.
pub(crate) fn tcp_state(socket: impl AsFd) -> Result<u8, Errno> {
    const BYTES: libc::socklen_t = 1;
    let mut state = 0_u8;
    let mut length = BYTES;
    // SAFETY: the kernel writes at most `length` bytes to `state`, which has as many, and its count to `length`.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut state).cast(),
            &raw mut length,
        )
    };
    super::answer::done(answer.into())?;
    if length == BYTES { Ok(state) } else { Err(Errno::INVAL) }
}
