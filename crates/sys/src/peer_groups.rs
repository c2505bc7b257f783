//! The credentials and groups of the peer of a unix socket.
#![expect(
    unsafe_code,
    reason = "SO_PEERGROUPS has no safe wrapper, and that of SO_PEERCRED cannot hold pid 0"
)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// The maximum number of groups to read. Kernel: 6.18, `include/uapi/linux/limits.h` `NGROUPS_MAX` is 65536,
/// which no real user reaches.
const GROUPS_MAX: usize = 4096;

/// A peer's credentials at the time it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// The pid; 0 if it is not visible in this pid namespace.
    pub pid: u32,
    /// The effective uid.
    pub uid: u32,
    /// The effective gid.
    pub gid: u32,
}

/// Returns the credentials that the peer had when it connected.
///
/// Kernel: `net/core/sock.c` `cred_to_ucred()`, `pid_vnr()`.
///
/// # Errors
/// The kernel's error, if this is not a socket.
pub fn peer_credentials(socket: impl AsFd) -> Result<PeerCredentials, Errno> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: the kernel writes at most `bytes` bytes, the size of `found`; both pointers are to live locals.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut bytes,
        )
    };
    super::answer::done(answer.into())?;
    Ok(PeerCredentials { pid: u32::try_from(found.pid).unwrap_or(0), uid: found.uid, gid: found.gid })
}

/// Returns the supplementary groups that the peer had when it connected.
///
/// Kernel: 4.13, `net/core/sock.c` `sk_getsockopt()`, `SO_PEERGROUPS`.
///
/// # Errors
/// `ERANGE` for more than [`GROUPS_MAX`]; `ENODATA` for a socket without a peer.
pub fn peer_groups(socket: impl AsFd) -> Result<Vec<u32>, Errno> {
    let mut groups = vec![0_u32; GROUPS_MAX];
    let mut bytes = libc::socklen_t::try_from(std::mem::size_of_val(groups.as_slice())).unwrap_or(0);
    // SAFETY: the kernel writes at most `bytes` bytes, the size of `groups`, and stores the actual size in
    // `bytes`; both pointers are to live locals.
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
