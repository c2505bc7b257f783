//! Assigns connections to the listeners of their queues, and datagrams to the sockets of their queues, so
//! that each worker of a service gets those of its own queue. An epoll keeps interrupts suspended, and
//! busy-polls the right NAPI, only while all its sockets receive on one NAPI. By default, the kernel selects
//! the worker by a hash. With these settings, the queue on which the first packet arrives determines the
//! worker.

use std::collections::BTreeSet;

use model::host::SharedListeners;
use model::{
    DeviceId, Mechanism, NapiId, Pid, ProcessKnob, Reason, RecipeValue, RxQueue, Setting, Spread, Target,
    Transport, since,
};

use crate::index::Index;
use crate::placement::Placement;
use crate::refusal::Refusal;
use crate::wanted::Collected;

/// Collects the desired settings of a placement's listeners.
pub(crate) fn want(
    placement: &Placement,
    index: &Index<'_>,
    collected: &mut Collected,
) -> Result<(), Refusal> {
    for (at, part) in placement.parts.iter().enumerate() {
        let pids: BTreeSet<Pid> = part.processes.iter().map(|process| process.id.pid).collect();
        let named = placement.recipes.agreed(part.intent.policy, Mechanism::Reuseport, &part.circumstances);
        let Some(entry) = named.entry.filter(|named| named.value == RecipeValue::ByQueue && !pids.is_empty())
        else {
            continue;
        };
        if matches!(part.intent.target, Target::Device(_) | Target::Devices(..) | Target::Epolls(..)) {
            continue;
        }
        let queues = queues(at, placement, index);
        for group in &index.host.listeners {
            match standing(group, &pids, &queues, index) {
                Standing::NotOurs => {}
                Standing::Left(why) => {
                    collected.note(format!("{}: left to the kernel's hash: {why}", group.id))
                }
                Standing::Ours => {
                    let inodes = match group.id.transport {
                        Transport::Tcp => group.listeners.iter().map(|listener| listener.inode).collect(),
                        Transport::Udp => by_first_packet(group, &queues, index),
                    };
                    if group.id.transport == Transport::Udp && group.spread == Spread::Hash {
                        collected.note(format!(
                            "{}: each datagram goes to a socket of its queue: ongoing UDP exchanges with other workers break once",
                            group.id
                        ));
                    }
                    let setting =
                        Setting::Process(ProcessKnob::Reuseport(group.id, Spread::dealt(&queues, &inodes)));
                    let source = format!(
                        "{}: policy {}, {}",
                        part.intent.origin, part.intent.policy, entry.because.source
                    );
                    collected.want(setting, Reason::new(entry.because.why.clone(), source))?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the sockets of a UDP group, each at the position of the queue of its first packet, unless two
/// sockets have the same queue. An unconnected UDP socket keeps the NAPI of its first packet as long as it is
/// open, and busy-polls that NAPI. Kernel: 6.18, `net/ipv4/udp.c` `__udp_queue_rcv_skb()`,
/// `include/net/busy_poll.h` `sk_mark_napi_id_once()`.
fn by_first_packet(group: &SharedListeners, queues: &[RxQueue], index: &Index<'_>) -> Vec<u64> {
    let first_of = |inode: u64| {
        let held = group.listeners.iter().filter(|listener| listener.inode == inode).flat_map(|l| &l.held);
        let of_holder = |pid: &Pid| {
            let process = index.processes.get(pid)?;
            process.sockets.iter().find(|socket| socket.inode == inode)?.napi
        };
        held.filter_map(|(pid, _)| of_holder(pid)).next()
    };
    let mut left: Vec<(u64, Option<NapiId>)> =
        group.listeners.iter().map(|listener| (listener.inode, first_of(listener.inode))).collect();
    let mut placed: Vec<Option<u64>> = queues
        .iter()
        .take(left.len())
        .map(|queue| {
            let napi = index.napi_of(*queue)?.id;
            let at = left.iter().position(|(_, first)| *first == Some(napi))?;
            Some(left.remove(at).0)
        })
        .collect();
    let mut others = left.into_iter().map(|(inode, _)| inode);
    for place in &mut placed {
        *place = place.or_else(|| others.next());
    }
    placed.into_iter().flatten().chain(others).collect()
}

/// What netpolicy does with a group of sockets that share an address.
enum Standing {
    /// Nothing: none of the group's sockets belongs to the request.
    NotOurs,
    /// netpolicy leaves the group unchanged, for this reason.
    Left(String),
    /// netpolicy attaches its program, which selects a socket by queue.
    Ours,
}

fn standing(
    group: &SharedListeners,
    pids: &BTreeSet<Pid>,
    queues: &[RxQueue],
    index: &Index<'_>,
) -> Standing {
    let ours = |held: &[(Pid, model::Fd)]| held.iter().any(|(pid, _)| pids.contains(pid));
    let count = group.listeners.iter().filter(|listener| ours(&listener.held)).count();
    let since = since::REUSEPORT_BY_QUEUE;
    if count == 0 || group.sockets < 2 || group.id.address.ip().is_loopback() {
        return Standing::NotOurs;
    }
    if group.spread == Spread::Foreign {
        // QUIC servers use such a program to keep a connection on its worker when the client's address
        // changes.
        let steers = match group.id.transport {
            Transport::Tcp => "",
            Transport::Udp => " (as QUIC servers steer by connection id)",
        };
        return Standing::Left(format!(
            "another program's BPF program already chooses{steers}, and could not be restored"
        ));
    }
    if index.host.kernel < since {
        return Standing::Left(format!(
            "choosing by queue needs Linux {since}; this is Linux {}",
            index.host.release
        ));
    }
    if usize::try_from(group.sockets).is_ok_and(|sockets| sockets != count) {
        let others = group.sockets.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        return Standing::Left(format!(
            "{others} of its {} sockets do not belong to this request, and would starve",
            group.sockets
        ));
    }
    // The lists of a device need as many places as it has queues or listeners, whichever is more. The total
    // over all devices is limited.
    let devices = queues.chunk_by(|a, b| a.device == b.device);
    let places: usize = devices.map(|queues| queues.len().max(count)).sum();
    if count > Spread::LISTENERS_MAX || queues.len() > Spread::QUEUES_MAX || places > Spread::PLACES_MAX {
        return Standing::Left(format!(
            "{count} listeners and {} queues are too many to distinguish",
            queues.len()
        ));
    }
    if queues.len() < 2 {
        return Standing::NotOurs;
    }
    Standing::Ours
}

/// Returns the queues on which packets of a request arrive. On a divided device, these are the request's own
/// queues. Otherwise, they are all queues of the requested devices, or of those on which the request
/// receives, except queues that other requests own.
fn queues(at: usize, placement: &Placement, index: &Index<'_>) -> Vec<RxQueue> {
    let part = &placement.parts[at];
    let receives_from = part.queues.iter().map(|placed| placed.queue.device);
    let asked = placement.parts.iter().filter_map(|part| match &part.intent.target {
        Target::Device(name) => index.host.device_named(name).map(|device| device.id),
        _ => None,
    });
    let devices: BTreeSet<DeviceId> = receives_from.chain(asked).collect();
    devices.into_iter().flat_map(|device| on_device(device, at, placement, index)).collect()
}

fn on_device(id: DeviceId, at: usize, placement: &Placement, index: &Index<'_>) -> Vec<RxQueue> {
    let Some(&device) = index.devices.get(&id) else { return Vec::new() };
    let with_napi = device.rx_queues.iter().filter(|queue| queue.napi.is_some()).map(|queue| queue.id);
    let Some(division) = placement.divisions.iter().find(|division| division.device == id) else {
        // Without a division, the owner of a queue depends on which packets have arrived, so include all
        // queues.
        return with_napi.collect();
    };
    let own = division
        .shares
        .iter()
        .find(|share| share.parts.contains(&at))
        .map_or(division.rest, |share| share.queues);
    with_napi.filter(|queue| (own.first..=own.last()).contains(&queue.index.0)).collect()
}
