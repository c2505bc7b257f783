//! The ports of a process's sockets.

use model::Pid;
use model::host::SocketState;
use netlink::sock_diag::InetSockets;
use sys::error::KernelError;

use super::descriptors::{Link, descriptors};
use super::pinned::Pinned;

/// The state and the local port of each socket of a process that is in this list; of UDP, only those without
/// a peer.
///
/// # Errors
/// [`sys::Cause::Gone`] if it has exited; EACCES without permission to inspect it.
pub(crate) fn ports_of(pid: Pid, sockets: &InetSockets) -> Result<Vec<(SocketState, u16)>, KernelError> {
    let wrong = |cause| KernelError { what: format!("the sockets of process {pid}"), cause };
    let process = Pinned::open(pid).map_err(wrong)?;
    let links = descriptors(&process).map_err(wrong)?;
    let held = links.iter().filter_map(|(_, link)| match link {
        Link::Socket(inode) => sockets.with_inode(*inode),
        Link::Epoll | Link::IoUring | Link::Dmabuf | Link::Other => None,
    });
    let open = held.filter(|socket| socket.state != SocketState::Udp || socket.remote.is_none());
    Ok(open.filter_map(|socket| Some((socket.state, socket.local?.port()))).collect())
}
