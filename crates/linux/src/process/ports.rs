//! Finds the ports of a process's sockets.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use model::Pid;
use model::host::SocketState;
use netlink::sock_diag::InetSockets;
use sys::error::{Cause, KernelError};
use sys::netns::Netns;

use super::descriptors::{FdKind, descriptors};
use super::pinned::PinnedProcess;

/// Returns the state and local port of each socket of a process that is in this list; UDP sockets with a peer
/// are omitted.
///
/// # Errors
/// [`sys::Cause::Gone`] if the process has exited; EACCES without permission to inspect it.
fn ports_of(pid: Pid, sockets: &InetSockets) -> Result<Vec<(SocketState, u16)>, KernelError> {
    let wrong = |cause| KernelError { what: format!("the sockets of process {pid}"), cause };
    let process = PinnedProcess::open(pid).map_err(wrong)?;
    let links = descriptors(&process).map_err(wrong)?;
    let held = links.iter().filter_map(|(_, link)| match link {
        FdKind::Socket(inode) => sockets.with_inode(*inode),
        FdKind::Epoll | FdKind::IoUring | FdKind::Dmabuf | FdKind::Other => None,
    });
    let open = held.filter(|socket| socket.state != SocketState::Udp || socket.remote.is_none());
    Ok(open.filter_map(|socket| Some((socket.state, socket.local?.port()))).collect())
}

/// The ports on which processes receive requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListeningPorts {
    /// The ports of the processes' TCP listeners.
    pub tcp: BTreeSet<u16>,
    /// The ports of the processes' UDP sockets that have no peer.
    pub udp: BTreeSet<u16>,
}

/// Returns the ports on which these processes of a namespace receive requests; empty for processes that have
/// exited.
///
/// # Errors
/// If the kernel does not list the sockets, or a process may not be inspected.
pub fn listening(processes: &[Pid], netns: &Netns) -> Result<ListeningPorts, KernelError> {
    let sockets = InetSockets::of(netns)?;
    let mut found = ListeningPorts::default();
    for pid in processes {
        let held = match ports_of(*pid, &sockets) {
            Err(KernelError { cause: Cause::Gone(_), .. }) => continue,
            held => held?,
        };
        for (state, port) in held {
            match state {
                SocketState::TcpListen => drop(found.tcp.insert(port)),
                SocketState::Udp => drop(found.udp.insert(port)),
                SocketState::TcpEstablished | SocketState::TcpOther | SocketState::Other => {}
            }
        }
    }
    Ok(found)
}

/// Returns the number of TCP connections at these ports of a namespace that a process has open.
///
/// # Errors
/// If the kernel does not list the sockets.
pub fn connections(netns: &Netns, ports: &[u16]) -> Result<usize, KernelError> {
    let is_one = |state: SocketState| match state {
        SocketState::TcpEstablished | SocketState::TcpOther => true,
        SocketState::TcpListen | SocketState::Udp | SocketState::Other => false,
    };
    let sockets = InetSockets::of(netns)?;
    let of_ports = |local: Option<SocketAddr>| local.is_some_and(|local| ports.contains(&local.port()));
    Ok(sockets.iter().filter(|socket| is_one(socket.state) && of_ports(socket.local)).count())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_process_that_listens_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let found = listening(&[Pid(std::process::id())], &Netns::own().expect("ours")).expect("listed");
        assert!(found.tcp.contains(&port) && !found.udp.contains(&port), "{found:?}");
    }
}
