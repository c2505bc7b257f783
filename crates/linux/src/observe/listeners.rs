//! Finds sockets of observed processes that share an address.

use std::collections::{BTreeMap, BTreeSet};

use bpf::reuseport::ListenerScanner;
use model::host::{Process, SharedListeners, SocketState, Unread};
use model::{Host, ListenerGroup, NetnsId, Transport};

use super::sources::UnreadExt;
use crate::attach;
use crate::process::shared_listeners;

/// Finds listeners that share an address, if there may be any. The scanner is loaded on first use.
///
/// A netpolicy process that uses the attach service does not search, because it could not attach a program.
pub(super) fn observe(host: &mut Host, scanner: &mut Option<ListenerScanner>, unread: &mut Vec<Unread>) {
    let shared = shared_addresses(&host.processes, host.netns);
    host.listeners = Vec::new();
    if shared.is_empty() || attach::service().is_some() {
        return;
    }
    if scanner.is_none() {
        *scanner = ListenerScanner::load().map(Some).or_unread(unread);
    }
    let Some(scanner) = scanner else { return };
    let devices: BTreeMap<_, _> =
        host.devices.iter().map(|device| (device.id.ifindex, device.id.name)).collect();
    let found: Vec<SharedListeners> =
        shared_listeners(scanner, |group| shared.contains(group), |ifindex| devices.get(&ifindex).copied())
            .or_unread(unread);
    host.listeners = found;
}

/// Returns the addresses at which more than one socket listens, or receives datagrams.
pub fn shared_addresses(processes: &[Process], netns: NetnsId) -> BTreeSet<ListenerGroup> {
    let mut by_address: BTreeMap<ListenerGroup, u64> = BTreeMap::new();
    let mut shared = BTreeSet::new();
    let here = processes.iter().filter(|process| process.netns.is_none_or(|own| own == netns));
    for socket in here.flat_map(|process| &process.sockets) {
        let transport = match socket.state {
            SocketState::TcpListen => Transport::Tcp,
            SocketState::Udp if socket.remote.is_none() => Transport::Udp,
            _ => continue,
        };
        let Some(address) = socket.local.filter(|address| address.port() != 0) else { continue };
        let group = ListenerGroup { netns, transport, address };
        if *by_address.entry(group).or_insert(socket.inode) != socket.inode {
            shared.insert(group);
        }
    }
    shared
}
