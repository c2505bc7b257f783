//! Identifies the process at the other end of a unix socket.

use std::os::fd::AsFd;

use model::Pid;
use sys::error::KernelError;
use sys::peer_groups::{peer_credentials, peer_groups};

use crate::process::ProcessOwner;

/// The process that connected a unix socket, with its attributes at the time of the connection.
///
/// Kernel: `net/unix/af_unix.c` `init_peercred()`; `SO_PEERCRED`, `SO_PEERGROUPS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixPeer {
    /// The peer's pid in netpolicy's pid namespace; 0 if the peer is not in that namespace. The pid may have
    /// been reused since the connection was made.
    pub pid: Pid,
    /// The peer's effective user in our user namespace; the overflow user if the user is not mapped there.
    pub uid: u32,
    /// The peer's groups, the effective one first.
    pub groups: Vec<u32>,
}

impl UnixPeer {
    /// Returns the process that connected this socket.
    ///
    /// # Errors
    /// If the socket is not a connected unix socket.
    pub fn of(socket: impl AsFd) -> Result<Self, KernelError> {
        let failed = |errno| KernelError::errno("peer credentials of a socket", errno);
        let peer = peer_credentials(&socket).map_err(failed)?;
        let mut groups = vec![peer.gid];
        groups.extend(peer_groups(&socket).map_err(failed)?);
        Ok(Self { pid: Pid(peer.pid), uid: peer.uid, groups })
    }

    /// Returns the user to whom a limit is charged. In user namespaces, one user can have as many uids as
    /// `/etc/subuid` allows, so all peers in other user namespaces count as one user. Peers that cannot be
    /// inspected, because they have exited or are in another pid namespace, also count as that user.
    pub fn owner(&self) -> ProcessOwner {
        if self.uid == 0 || is_in_our_user_namespace(self.pid) {
            ProcessOwner::User(self.uid)
        } else {
            ProcessOwner::OfOtherUserNamespaces
        }
    }
}

/// Whether a process is in our user namespace, judged by its uid map. Every user may read that file, but not
/// the link in `/proc/PID/ns`.
///
/// Kernel: `kernel/user_namespace.c` `uid_m_show()`: the uids are shown as the reader's namespace maps them,
/// and those of the reader's own namespace as its parent maps them. Only a process with CAP_SETUID outside a
/// namespace can give the namespace a range that is not from `/etc/subuid`.
fn is_in_our_user_namespace(pid: Pid) -> bool {
    let map = |of: &str| std::fs::read(format!("/proc/{of}/uid_map")).ok();
    let theirs = map(&pid.to_string());
    theirs.is_some() && theirs == map("self")
}

/// Returns the user of a process; `None` if the process is gone.
///
/// Kernel: `fs/proc/base.c` `task_dump_owner()`: the effective user, or root for a process that may not be
/// inspected.
pub fn owner(pid: Pid) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
}

#[cfg(test)]
mod test {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_other_end_of_a_pair_is_this_process_with_its_groups() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        let peer = UnixPeer::of(&ours).expect("a peer");
        assert_eq!(peer.pid.0, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.groups[0], rustix::process::getegid().as_raw());
        let mut all = peer.groups[1..].to_vec();
        all.sort_unstable();
        let mut own: Vec<u32> =
            rustix::process::getgroups().expect("groups").iter().map(|group| group.as_raw()).collect();
        own.sort_unstable();
        assert_eq!(all, own);
        assert_eq!(owner(peer.pid), Some(peer.uid));
        assert_eq!(peer.owner(), ProcessOwner::User(peer.uid));
    }

    #[test]
    fn a_user_who_cannot_be_looked_at_shares_with_others_and_root_does_not() {
        for pid in [0, u32::MAX] {
            let peer = |uid| UnixPeer { pid: Pid(pid), uid, groups: vec![uid] };
            assert_eq!(peer(1000).owner(), ProcessOwner::OfOtherUserNamespaces);
            assert_eq!(peer(0).owner(), ProcessOwner::User(0));
        }
    }
}
