//! Finds the exclusive holders of queues and their processes, from `queue-get` and sock-diag of AF_XDP. If
//! the kernel names no process, descriptors of processes are searched.

use std::collections::{BTreeMap, BTreeSet};

use model::host::{Confidence, HolderKind, HolderProcess, QueueHolder, Unread};
use model::{KernelVersion, Label, NetnsId, ProcessId, QueueIndex, since};
use netlink::netdev::{QueueType, RawLease, RawQueue};
use netlink::xdp_diag::{XdpSocket, XdpSockets};
use sys::error::KernelError;

use super::sources::UnreadExt;
use crate::process::{self, FdKind};

/// The first kernel whose `queue-get` reports that an AF_XDP socket is bound to a queue. On earlier kernels
/// only sock-diag reports that. From this version on, sock-diag is used only if needed, because the first
/// request loads a module.
const XSK_SINCE: KernelVersion = since::QUEUE_GET_XSK;

/// Finds the holders of the queues of some devices, by device. `names` contains the devices of this
/// namespace.
pub(crate) fn holders(
    netns: NetnsId,
    queues: &[RawQueue],
    sockets: Result<&mut XdpSockets, KernelError>,
    names: &BTreeMap<u32, Label>,
    unread: &mut Vec<Unread>,
) -> BTreeMap<u32, Vec<QueueHolder>> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let says_xsk = KernelVersion::parse(&release).is_some_and(|kernel| kernel >= XSK_SINCE);
    let cookie = sockets.as_ref().ok().and_then(|sockets| sockets.netns_cookie());
    let bound = if says_xsk && !queues.iter().any(|queue| queue.holders.xsk) {
        Vec::new()
    } else {
        sockets.and_then(XdpSockets::bound).or_unread(unread)
    };
    let mut found = gathered(queues, &bound, names);
    if found.is_empty() {
        return BTreeMap::new();
    }
    let inodes: BTreeSet<u64> = found.values().flatten().flat_map(|held| held.inodes.clone()).collect();
    let by_inode = process::holders_of_each(&inodes).or_unread(unread);
    let mut candidates: BTreeMap<Unnamed, Vec<ProcessId>> = BTreeMap::new();
    for held in found.values_mut().flatten() {
        let pids: BTreeSet<_> =
            held.inodes.iter().filter_map(|inode| by_inode.get(inode)).flatten().copied().collect();
        // A process that has exited in the meantime holds nothing.
        let ids = pids.into_iter().filter_map(|pid| process::identify(pid).ok());
        let stated = |id| HolderProcess { id, confidence: Confidence::Stated };
        held.holder.processes = ids.map(stated).collect();
        let Some(kind) = Unnamed::of(&held.holder).filter(|_| held.holder.processes.is_empty()) else {
            continue;
        };
        let all = candidates.entry(kind).or_insert_with(|| kind.candidates(netns, cookie).or_unread(unread));
        let inferred = |id: &ProcessId| HolderProcess { id: *id, confidence: Confidence::ByOrder };
        held.holder.processes = all.iter().take(CANDIDATES_MAX).map(inferred).collect();
    }
    let device = |held: Vec<Held>| held.into_iter().map(|held| held.holder).collect();
    found.into_iter().map(|(ifindex, held)| (ifindex, device(held))).collect()
}

/// The maximum number of candidate processes for a queue, if the kernel names none.
const CANDIDATES_MAX: usize = 4;

/// A holder whose process the kernel does not name: processes that have a descriptor of this kind are
/// candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unnamed {
    IoUring,
    Dmabuf,
    /// An AF_XDP socket, on kernels without sock-diag of AF_XDP (`CONFIG_XDP_SOCKETS_DIAG`).
    AfXdp,
}

impl Unnamed {
    const fn of(holder: &QueueHolder) -> Option<Self> {
        match holder.kind {
            HolderKind::IoUring { .. } => Some(Self::IoUring),
            HolderKind::Dmabuf { .. } => Some(Self::Dmabuf),
            HolderKind::AfXdp { .. } => Some(Self::AfXdp),
            // The process that holds a leased queue is in the other namespace.
            HolderKind::Lease { .. } => None,
        }
    }

    fn candidates(self, netns: NetnsId, cookie: Option<u64>) -> Result<Vec<ProcessId>, KernelError> {
        match self {
            Self::IoUring => process::holders_of_kind(FdKind::IoUring, netns),
            Self::Dmabuf => process::holders_of_kind(FdKind::Dmabuf, netns),
            Self::AfXdp => process::holders_of_af_xdp(cookie),
        }
    }
}

/// A holder, and the sockets that identify its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    holder: QueueHolder,
    inodes: Vec<u64>,
}

/// The directions in which a queue is held, and the sockets that identify the holder.
#[derive(Clone, Debug, Default)]
struct Sides {
    rx: bool,
    tx: bool,
    inodes: Vec<u64>,
}

/// Groups the holders by device, and within a device by queue and kind.
fn gathered(
    queues: &[RawQueue],
    sockets: &[XdpSocket],
    names: &BTreeMap<u32, Label>,
) -> BTreeMap<u32, Vec<Held>> {
    let mut found: BTreeMap<(u32, u32, HolderKind), Sides> = BTreeMap::new();
    let mut bound: BTreeMap<(u32, u32), (Option<bool>, Vec<u64>)> = BTreeMap::new();
    for socket in sockets {
        let entry = bound.entry((socket.ifindex, socket.queue)).or_default();
        entry.0 = entry.0.or(socket.zero_copy);
        entry.1.push(socket.inode);
    }
    let has = |ifindex, queue, kind| {
        queues.iter().any(|raw| raw.ifindex == ifindex && raw.id == queue && raw.kind == Some(kind))
    };
    for (&(ifindex, queue), (zero_copy, inodes)) in &bound {
        // The kernel lists no queue of a device that is down, but the socket still holds the receive queue.
        let tx = has(ifindex, queue, QueueType::Tx);
        let rx = has(ifindex, queue, QueueType::Rx) || !tx;
        let kind = HolderKind::AfXdp { zero_copy: *zero_copy };
        found.insert((ifindex, queue, kind), Sides { rx, tx, inodes: inodes.clone() });
    }
    for raw in queues {
        let (rx, tx) = (raw.kind == Some(QueueType::Rx), raw.kind == Some(QueueType::Tx));
        let mut kinds = Vec::new();
        if raw.holders.xsk && !bound.contains_key(&(raw.ifindex, raw.id)) {
            kinds.push(HolderKind::AfXdp { zero_copy: None });
        }
        kinds.extend(raw.holders.dmabuf.map(|id| HolderKind::Dmabuf { id }));
        kinds.extend(raw.holders.io_uring.map(|rx_buf_len| HolderKind::IoUring { rx_buf_len }));
        kinds.extend(raw.holders.lease.map(|lease| HolderKind::Lease { to: leased_to(lease, names) }));
        for kind in kinds {
            let entry = found.entry((raw.ifindex, raw.id, kind)).or_default();
            entry.rx |= rx;
            entry.tx |= tx;
        }
    }
    let mut by_device: BTreeMap<u32, Vec<Held>> = BTreeMap::new();
    for ((ifindex, queue, kind), Sides { rx, tx, inodes }) in found {
        let holder = QueueHolder { queue: QueueIndex(queue), rx, tx, kind, processes: Vec::new() };
        by_device.entry(ifindex).or_default().push(Held { holder, inodes });
    }
    by_device
}

/// Formats the target of a lease: `nk0 rx-1`, or `if7 rx-1 of netnsid 0`.
fn leased_to(lease: RawLease, names: &BTreeMap<u32, Label>) -> String {
    match (lease.netns_id, names.get(&lease.ifindex)) {
        (Some(netns), _) => format!("if{} rx-{} of netnsid {netns}", lease.ifindex, lease.queue),
        (None, Some(name)) => format!("{name} rx-{}", lease.queue),
        (None, None) => format!("if{} rx-{}", lease.ifindex, lease.queue),
    }
}

#[cfg(test)]
mod test {
    use netlink::netdev::RawHolders;

    use super::*;

    fn queue(kind: QueueType, id: u32, holders: RawHolders) -> RawQueue {
        RawQueue { ifindex: 3, id, kind: Some(kind), napi_id: None, holders }
    }

    fn shown(queues: &[RawQueue], sockets: &[XdpSocket]) -> Vec<String> {
        let names = BTreeMap::from([(9, Label::new("nk0"))]);
        let found = gathered(queues, sockets, &names);
        let held = found.values().flatten();
        held.map(|held| format!("{} {} {:?}", held.holder.queues(), held.holder.kind, held.inodes)).collect()
    }

    #[test]
    fn a_socket_holds_both_queues_of_its_number_and_is_named_once() {
        let xsk = RawHolders { xsk: true, ..RawHolders::default() };
        let queues = [QueueType::Rx, QueueType::Tx].map(|kind| queue(kind, 1, xsk));
        let socket = |inode| XdpSocket { inode, ifindex: 3, queue: 1, zero_copy: None };
        let first = XdpSocket { zero_copy: Some(false), ..socket(77) };
        assert_eq!(shown(&queues, &[first, socket(78)]), ["rx-1 and tx-1 AF_XDP, copying [77, 78]"]);
        assert_eq!(shown(&queues, &[]), ["rx-1 and tx-1 AF_XDP []"], "sock-diag may be missing");
        let before = [queue(QueueType::Rx, 1, RawHolders::default())];
        assert_eq!(
            shown(&before, &[first]),
            ["rx-1 AF_XDP, copying [77]"],
            "a kernel that does not report it"
        );
    }

    #[test]
    fn a_leased_queue_with_a_provider_has_two_holders() {
        let lease = RawLease { ifindex: 9, queue: 1, netns_id: None };
        let holders = RawHolders { io_uring: Some(Some(4096)), lease: Some(lease), ..RawHolders::default() };
        let found = shown(&[queue(QueueType::Rx, 2, holders)], &[]);
        assert_eq!(found, ["rx-2 lease to nk0 rx-1 []", "rx-2 io_uring zero-copy []"]);
        let away = RawLease { netns_id: Some(4), ..lease };
        let holders = RawHolders { lease: Some(away), dmabuf: Some(7), ..RawHolders::default() };
        let found = shown(&[queue(QueueType::Rx, 2, holders)], &[]);
        assert_eq!(found, ["rx-2 lease to if9 rx-1 of netnsid 4 []", "rx-2 dmabuf binding 7 []"]);
    }
}
