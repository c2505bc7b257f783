//! The groups of the process at the other end of a unix socket.
#![expect(unsafe_code, reason = "SO_PEERGROUPS has no safe wrapper")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// How many groups are read. Kernel: 6.18, `include/uapi/linux/limits.h` `NGROUPS_MAX` is 65536, which no real user has.
const GROUPS_MAX: usize = 4096;

/// All groups but the first of the process that connected, as they were then.
///
/// Kernel: 4.13, `net/core/sock.c` `sk_getsockopt()`, `SO_PEERGROUPS`.
///
/// # Errors
/// `ERANGE` for more than [`GROUPS_MAX`]; `ENODATA` for a socket without a peer.
pub fn peer_groups(socket: impl AsFd) -> Result<Vec<u32>, Errno> {
    let mut groups = vec![0_u32; GROUPS_MAX];
    let mut bytes = libc::socklen_t::try_from(std::mem::size_of_val(groups.as_slice())).unwrap_or(0);
    // SAFETY: the kernel writes at most `bytes` bytes, which is the size of `groups`, and says in `bytes` how many; both
    // pointers are to live locals.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    super::answer::done(answer.into())?;
    groups.truncate(bytes as usize / size_of::<u32>());
    Ok(groups)
}
