//! Determines the circumstances of a request: the kinds of its devices, and how its epolls get their
//! connections.

use std::collections::{BTreeMap, BTreeSet};

use model::host::{Device, Epoll, Process};
use model::{Circumstances, DeviceId, EpollNapis, NapiId, Policy, Target};

use crate::index::Index;
use crate::resolved::Resolved;

/// Returns the circumstances of a device, which apply to everything that receives on it.
pub(crate) fn of_device(device: &Device) -> Circumstances {
    Circumstances {
        driver: device.kind.clone(),
        own_interrupts: device.has_own_interrupts(),
        epoll_napis: None,
    }
}

/// Returns the circumstances of the request at this index of [`Policy::intents`], one for each kind of device
/// on which its packets arrive. If no packet has shown the devices yet, returns the kinds of the requested
/// devices, or else of all devices that are up.
pub(crate) fn of_request(
    at: usize,
    policy: &Policy,
    index: &Index<'_>,
    resolved: &Resolved,
) -> Vec<Circumstances> {
    let Some(intent) = policy.intents.get(at) else { return Vec::new() };
    let pids = match &intent.target {
        Target::Device(name) => {
            return index.host.device_named(name).map(of_device).into_iter().collect();
        }
        // A separate request covers each of these devices.
        Target::Devices(..) => return Vec::new(),
        Target::Service(..) => resolved.pids_of(at),
        Target::Task(pid) | Target::Epolls(pid, _) => BTreeSet::from([*pid]),
    };
    let processes: Vec<&Process> = pids.iter().filter_map(|pid| index.processes.get(pid).copied()).collect();
    let sockets = processes.iter().flat_map(|process| &process.sockets);
    let shown = sockets.filter_map(|socket| Some(index.napis.get(&socket.napi?)?.device.id));
    let mut devices: BTreeSet<DeviceId> = shown.collect();
    if devices.is_empty() {
        let asked = policy.intents.iter().filter_map(|intent| match &intent.target {
            Target::Device(name) => index.host.device_named(name),
            _ => None,
        });
        devices = asked.map(|device| device.id).collect();
    }
    if devices.is_empty() {
        let up = index.host.devices.iter().filter(|device| device.up && !device.napis.is_empty());
        devices = up.filter(|device| device.id.name.as_str() != "lo").map(|device| device.id).collect();
    }
    let asked = |epoll: &&Epoll| match &intent.target {
        Target::Epolls(_, epolls) => epolls.contains(&epoll.id.fd),
        _ => true,
    };
    let mut napis: Option<EpollNapis> = None;
    for process in processes {
        let of_socket: BTreeMap<u64, NapiId> = process
            .sockets
            .iter()
            .filter_map(|socket| Some((socket.inode, socket.napi.filter(|id| index.napis.contains_key(id))?)))
            .collect();
        for epoll in process.epolls.iter().filter(asked) {
            let of_epoll: BTreeSet<NapiId> =
                epoll.members.iter().filter_map(|member| of_socket.get(&member.inode).copied()).collect();
            napis = napis.max(match of_epoll.len() {
                0 => None,
                1 => Some(EpollNapis::One),
                _ => Some(EpollNapis::Several),
            });
        }
    }
    let devices = devices.iter().filter_map(|id| index.devices.get(id).copied());
    let kinds: BTreeSet<Circumstances> =
        devices.map(|device| Circumstances { epoll_napis: napis, ..of_device(device) }).collect();
    kinds.into_iter().collect()
}
