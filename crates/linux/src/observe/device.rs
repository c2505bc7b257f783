//! Observes the devices of a namespace: their queues and NAPIs, and the relations between them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::host::STACK_DEPTH_MAX;
use model::host::{Confidence, Device, DeviceLink, IrqEdge, Napi, NapiEdge, Unread};
use model::{
    DeviceId, EmptyPolls, IfIndex, IrqNumber, Label, Nanoseconds, NapiId, NetnsId, Pid, QueueIndex, Threading,
};

mod ethtool;
mod files;

use ethtool::EthtoolReplies;
pub(super) use ethtool::segments;
pub(crate) use ethtool::{channels, coalesce, requested_offloads, rings};
pub(crate) use files::queues_of;
use files::{from_sysfs, number};
use netlink::link::RawLink;
use netlink::netdev::{QueueType, RawNapi, RawQueue};
use netlink::qdisc::{Disciplines, QdiscDefaults, RawQdisc};
use sys::error::{Cause, KernelError};
use sys::sysfs::SysFs;

use super::holders;
use super::irq::{Interrupts, queue_in_name};
use super::sources::{Sources, UnreadExt};
use crate::ioctl::EthtoolIoctl;
use crate::process::kthread;

/// A device and the interrupts of its bus device, some of which belong to its queues.
#[derive(Clone, Debug)]
pub(super) struct ObservedDevice {
    pub(super) device: Device,
    vectors: BTreeSet<IrqNumber>,
}

/// Observes the devices in the order of their indices, or only the requested device. The NAPIs get only the
/// interrupts that the kernel reports for them; [`name_interrupts`] adds others.
pub(super) fn devices(
    netns: NetnsId,
    sources: &mut Sources,
    only: Option<IfIndex>,
    unread: &mut Vec<Unread>,
) -> Result<Vec<ObservedDevice>, KernelError> {
    let mut devices = linked(netns, sources, unread)?;
    let names: BTreeMap<IfIndex, Label> = devices.iter().map(|d| (d.id.ifindex, d.id.name)).collect();
    devices.retain(|device| only.is_none_or(|only| device.id.ifindex == only));
    if devices.is_empty() {
        return Ok(Vec::new());
    }
    let netdev = NetdevSays::ask(sources, only, unread);
    let labels = names.iter().map(|(index, name)| (index.0, *name)).collect();
    let sockets = sources.xdp_sockets.as_mut().map_err(|error| error.clone());
    let mut held = holders::holders(netns, &netdev.queues, sockets, &labels, unread);
    let ethtool = EthtoolReplies::ask(sources, unread);
    let sysfs = sources.sysfs.as_ref().map_err(Clone::clone);
    let sysfs = sysfs.map(Some).or_unread(unread).filter(|sysfs| shows_these(sysfs, &names, unread));
    let ioctl = sources.ioctl.as_ref().map_err(Clone::clone).map(Some).or_unread(unread);
    let disciplines = match &mut sources.disciplines {
        Ok(disciplines) => disciplines.all().or_unread(unread),
        Err(error) => Err(error.clone()).or_unread(unread),
    };
    let seen = devices.into_iter().map(|mut device| {
        let vectors = sysfs.map(|sysfs| from_sysfs(&mut device, sysfs, unread)).unwrap_or_default();
        netdev.complete(&mut device);
        kthreads(&mut device, unread);
        ethtool.complete(&mut device);
        if let Some(ioctl) = ioctl {
            from_ioctl(&mut device, ioctl, unread);
        }
        if let Ok(socket) = &mut sources.disciplines {
            qdiscs(&mut device, sysfs, socket, &disciplines, unread);
        }
        name_peer(&mut device, &names);
        device.holders = held.remove(&device.id.ifindex.0).unwrap_or_default();
        ObservedDevice { device, vectors }
    });
    Ok(seen.collect())
}

/// Observes the links and routes of all devices: which device is stacked on which, and which devices have the
/// default route.
pub(super) fn linked(
    netns: NetnsId,
    sources: &mut Sources,
    unread: &mut Vec<Unread>,
) -> Result<Vec<Device>, KernelError> {
    let links = sources.links.all(|link| device(netns, &link).map(|device| (device, link.remote)))?;
    let mut devices: Vec<(Device, Option<IpAddr>)> =
        links.into_iter().filter_map(|link| link.map(Some).or_unread(unread)).collect();
    devices.sort_by_key(|(device, _)| device.id.ifindex);
    let routed: BTreeSet<IfIndex> = match &mut sources.routes {
        Ok(routes) => {
            for (device, remote) in &mut devices {
                let Some(remote) = remote.filter(|_| device.link.lower.is_none()) else { continue };
                let towards = routes.device_towards(remote).or_unread(unread);
                device.link.lower = towards.filter(|lower| *lower != device.id.ifindex);
            }
            routes.default_route_devices().or_unread(unread)
        }
        Err(error) => Err(error.clone()).or_unread(unread),
    };
    let mut devices: Vec<Device> = devices.into_iter().map(|(device, _)| device).collect();
    mark_default_route(&mut devices, &routed);
    Ok(devices)
}

/// Whether sysfs shows the devices of this namespace. `/sys` shows the namespace in which it was mounted. So
/// a process that `nsenter --net` moved, and that may not mount sysfs, sees another namespace's devices
/// there.
fn shows_these(sysfs: &SysFs, names: &BTreeMap<IfIndex, Label>, unread: &mut Vec<Unread>) -> bool {
    // Ignore the loopback device: every namespace has one, with the same name and index.
    let mut others = names.iter().filter(|(_, name)| name.as_str() != "lo").peekable();
    if others.peek().is_none() || others.any(|(index, name)| sysfs.device(name.as_str(), *index).is_ok()) {
        return true;
    }
    let why = "sysfs was mounted in another network namespace and shows the devices of that namespace; mounting sysfs for this namespace requires CAP_SYS_ADMIN; queues and interrupts are unknown";
    unread.push(Unread { what: "/sys/class/net".to_owned(), why: why.to_owned() });
    false
}

/// Returns all interrupts that belong to devices.
pub(super) fn vectors(seen: &[ObservedDevice]) -> BTreeSet<IrqNumber> {
    let stated = |seen: &ObservedDevice| {
        seen.device.napis.iter().filter_map(|napi| Some(napi.irq?.irq)).collect::<Vec<_>>()
    };
    seen.iter().flat_map(|seen| seen.vectors.iter().copied().chain(stated(seen))).collect()
}

/// Creates a device from the rt-link message only. A device whose name is not UTF-8 is not observed.
fn device(netns: NetnsId, link: &RawLink<'_>) -> Result<Device, KernelError> {
    let name = std::str::from_utf8(link.name)
        .map_err(|_| KernelError::malformed(format!("device {}", link.ifindex), "its name is not UTF-8"))?;
    let peer = match (link.kind, link.link) {
        (Some("veth" | "netkit"), Some(index)) => Some(match link.link_netnsid {
            Some(id) => format!("if{index} of netnsid {id}"),
            None => format!("if{index}"),
        }),
        _ => None,
    };
    Ok(Device {
        link: joined(link),
        up: link.is_admin_up() && link.has_carrier(),
        mtu: link.mtu,
        xdp: link.xdp_attached != 0,
        peer,
        packet_sizes: link.packet_sizes,
        ..Device::new(
            DeviceId { netns, ifindex: IfIndex(link.ifindex), name: Label::new(name) },
            link.kind.unwrap_or(""),
        )
    })
}

/// Collects the attributes from rt-link that distinguish a device from others, and its link to a lower
/// device.
fn joined(link: &RawLink<'_>) -> DeviceLink {
    let mac = link.mac.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
    // The other end of a veth pair is not a lower device; neither is a device in another namespace.
    let stands = !matches!(link.kind, Some("veth" | "netkit" | "vxcan")) && link.link_netnsid.is_none();
    let lower = link.link.filter(|lower| stands && *lower != link.ifindex && *lower != 0);
    DeviceLink {
        mac: mac.filter(|mac| mac != "00:00:00:00:00:00"),
        lower: lower.map(IfIndex),
        master: link.master.map(IfIndex),
        ..DeviceLink::default()
    }
}

/// Marks the devices of the default route, and those below them.
pub(super) fn mark_default_route(devices: &mut [Device], routed: &BTreeSet<IfIndex>) {
    let mut marked = routed.clone();
    for _ in 0..STACK_DEPTH_MAX {
        let below = devices.iter().filter(|device| {
            device.link.master.is_some_and(|master| marked.contains(&master))
                || devices.iter().any(|upper| {
                    upper.link.lower == Some(device.id.ifindex) && marked.contains(&upper.id.ifindex)
                })
        });
        let below: BTreeSet<IfIndex> = below.map(|device| device.id.ifindex).collect();
        if below.is_subset(&marked) {
            break;
        }
        marked.extend(below);
    }
    for device in devices {
        device.link.default_route = marked.contains(&device.id.ifindex);
    }
}

/// Replaces the index of a peer in the same namespace with the peer's name.
fn name_peer(device: &mut Device, names: &BTreeMap<IfIndex, Label>) {
    let Some(peer) = &mut device.peer else { return };
    let index = peer.strip_prefix("if").and_then(|index| index.parse().ok()).map(IfIndex);
    if let Some(name) = index.and_then(|index| names.get(&index)) {
        *peer = name.to_string();
    }
}

/// Reads the attributes that drivers report only by ioctl. Most virtual devices report none of them.
fn from_ioctl(device: &mut Device, ioctl: &EthtoolIoctl, unread: &mut Vec<Unread>) {
    let name = device.id.name.as_str();
    let of_device = |error: KernelError| KernelError { what: format!("{name}: {}", error.what), ..error };
    let rss = ioctl.rss(name).map_err(of_device).or_unread(unread);
    let queues = ioctl.queue_coalesce(name, device.rx_queues.len()).map_err(of_device).or_unread(unread);
    device.rss = rss;
    if device.rss.is_some() {
        device.rss_contexts = ioctl.rss_contexts(name).map_err(of_device).or_unread(unread);
    }
    let contexts = device.rss_contexts.as_deref().unwrap_or_default();
    device.flow_rules = ioctl.flow_rules(name, contexts).map_err(of_device).or_unread(unread);
    for (queue, coalesce) in device.rx_queues.iter_mut().zip(queues.unwrap_or_default()) {
        queue.coalesce = Some(coalesce);
    }
}

/// Reads the qdiscs of a device.
fn qdiscs(
    device: &mut Device,
    sysfs: Option<&SysFs>,
    socket: &mut Disciplines,
    all: &[RawQdisc],
    unread: &mut Vec<Unread>,
) {
    let ifindex = device.id.ifindex;
    let made = all.iter().any(|raw| raw.ifindex == ifindex.0 && raw.handle != 0);
    // This value is needed only if a user may have changed the options of a qdisc.
    let tx_queue_len = sysfs
        .filter(|_| made)
        .and_then(|sysfs| number(sysfs, &format!("class/net/{}/tx_queue_len", device.id.name), unread));
    let defaults = QdiscDefaults {
        mtu: device.mtu,
        tx_queue_len: tx_queue_len.unwrap_or(0),
        tx_queues: device.tx_queues.len(),
    };
    device.qdiscs = socket.of(ifindex, defaults, all).or_unread(unread);
}

/// The replies of the netdev family about all devices.
#[derive(Debug, Default)]
struct NetdevSays {
    queues: Vec<RawQueue>,
    napis: Vec<RawNapi>,
}

impl NetdevSays {
    fn ask(sources: &mut Sources, only: Option<IfIndex>, unread: &mut Vec<Unread>) -> Self {
        match &mut sources.netdev {
            Ok(netdev) => Self {
                queues: netdev.queues(only).or_unread(unread),
                napis: netdev.napis(only).or_unread(unread),
            },
            Err(error) => Err(error.clone()).or_unread(unread),
        }
    }

    fn complete(&self, device: &mut Device) {
        let ifindex = device.id.ifindex.0;
        device.napis = self.napis.iter().filter(|raw| raw.ifindex == ifindex).map(napi).collect();
        let stated: BTreeMap<(QueueType, QueueIndex), NapiEdge> = self
            .queues
            .iter()
            .filter(|raw| raw.ifindex == ifindex)
            .filter_map(|raw| {
                let edge = NapiEdge { napi: NapiId(raw.napi_id?), confidence: Confidence::Stated };
                Some(((raw.kind?, QueueIndex(raw.id)), edge))
            })
            .collect();
        let ids: Vec<NapiId> = device.napis.iter().map(|napi| napi.id).collect();
        let by_order = napis_by_order(
            device.rx_queues.len(),
            stated.keys().any(|(kind, _)| *kind == QueueType::Rx),
            &ids,
        );
        for (queue, position) in device.rx_queues.iter_mut().zip(0..) {
            let guessed = || {
                by_order?
                    .get::<usize>(position)
                    .map(|&napi| NapiEdge { napi, confidence: Confidence::ByOrder })
            };
            queue.napi = stated.get(&(QueueType::Rx, queue.id.index)).copied().or_else(guessed);
        }
        for queue in &mut device.tx_queues {
            queue.napi = stated.get(&(QueueType::Tx, queue.index)).copied();
        }
    }
}

/// Assigns the NAPIs to a device's receive queues by their order, if its driver reports none. There must be
/// exactly one NAPI per queue. Drivers create NAPIs in the order of the queues, so the ids ascend with the
/// queues.
pub(crate) fn napis_by_order(rx_queues: usize, any_stated: bool, ascending: &[NapiId]) -> Option<&[NapiId]> {
    (!any_stated && rx_queues == ascending.len()).then_some(ascending)
}

/// Rereads the values of a device's NAPIs; returns false, and changes nothing, if its NAPIs are no longer the
/// same.
pub(super) fn napis_again(
    device: &mut Device,
    sources: &mut Sources,
    unread: &mut Vec<Unread>,
) -> Result<bool, KernelError> {
    let netdev = sources.netdev.as_mut().map_err(|error| error.clone())?;
    let raw = netdev.napis(Some(device.id.ifindex))?;
    let same = raw.len() == device.napis.len()
        && raw
            .iter()
            .zip(&device.napis)
            .all(|(raw, napi)| raw.id == napi.id.0 && raw.pid.map(Pid) == napi.kthread);
    if !same {
        return Ok(false);
    }
    for (raw, known) in raw.iter().zip(&mut device.napis) {
        let irq = known.irq;
        *known = Napi { irq, ..napi(raw) };
    }
    if device.rx_queues.iter().any(|queue| queue.kthread.is_some()) {
        kthreads(device, unread);
    }
    Ok(true)
}

/// Reads the kernel threads of the NAPIs; if the kernel does not list the NAPIs, finds the threads by their
/// names and order.
fn kthreads(device: &mut Device, unread: &mut Vec<Unread>) {
    let named = if device.napis.is_empty() && device.threaded.is_some_and(|t| t != Threading::Off) {
        kthread::by_name(device.id.name.as_str()).or_unread(unread)
    } else {
        Vec::new()
    };
    let complete = named.len() == device.rx_queues.len();
    for (position, queue) in device.rx_queues.iter_mut().enumerate() {
        let of_napi =
            queue.napi.and_then(|edge| device.napis.iter().find(|napi| napi.id == edge.napi)?.kthread);
        let by_name = || named.get(position).copied().filter(|_| complete);
        let Some(pid) = of_napi.or_else(by_name) else { continue };
        match kthread::read(pid) {
            // The thread exited in the meantime, so the queue has no thread.
            Err(error) if matches!(error.cause, Cause::Gone(_)) => {}
            state => queue.kthread = state.map(Some).or_unread(unread),
        }
    }
}

pub(crate) fn napi(raw: &RawNapi) -> Napi {
    Napi {
        id: NapiId(raw.id),
        defer_hard_irqs: raw.defer_hard_irqs.map(EmptyPolls),
        gro_flush_timeout: raw.gro_flush_timeout.map(Nanoseconds),
        irq_suspend_timeout: raw.irq_suspend_timeout.map(Nanoseconds),
        threaded: raw.threaded.and_then(Threading::of_number),
        kthread: raw.pid.map(Pid),
        irq: raw.irq.map(|irq| IrqEdge { irq: IrqNumber(irq), confidence: Confidence::Stated }),
    }
}

/// Uses the names of interrupts for NAPIs whose interrupt the kernel does not report: each NAPI gets an
/// interrupt if exactly one is named after its queue.
pub(super) fn name_interrupts(seen: &mut [ObservedDevice], interrupts: &Interrupts) {
    for ObservedDevice { device, vectors } in seen {
        let mut named: BTreeMap<(QueueType, QueueIndex), Vec<IrqNumber>> = BTreeMap::new();
        for &irq in vectors.iter() {
            let name = interrupts.name(irq).unwrap_or("");
            if let Some(queue) = queue_in_name(name, device.id.name.as_str()) {
                named.entry(queue).or_default().push(irq);
            }
        }
        let rx = device.rx_queues.iter().filter_map(|q| Some((q.napi?.napi, (QueueType::Rx, q.id.index))));
        let tx = device.tx_queues.iter().filter_map(|q| Some((q.napi?.napi, (QueueType::Tx, q.index))));
        let serves: Vec<_> = rx.chain(tx).collect();
        for napi in device.napis.iter_mut().filter(|napi| napi.irq.is_none()) {
            let queues = serves.iter().filter(|(id, _)| *id == napi.id).map(|(_, queue)| queue);
            napi.irq = queues
                .filter_map(|queue| match named.get(queue)?.as_slice() {
                    [irq] => Some(IrqEdge { irq: *irq, confidence: Confidence::ByName }),
                    _ => None,
                })
                .next();
        }
    }
}

/// Parses the device-wide threading setting from its sysfs file.
pub(crate) fn parse_threading(text: &str) -> Option<Threading> {
    text.parse().ok().and_then(Threading::of_number)
}

#[cfg(test)]
mod test {
    use model::host::{RxQueueState, TxQueueState};
    use model::{CpuSet, RxQueue};
    use netlink::netdev::RawHolders;

    use super::*;

    fn link(kind: Option<&'static str>, link: Option<u32>, link_netnsid: Option<i32>) -> RawLink<'static> {
        let raw = RawLink { ifindex: 5, flags: 1, name: b"veth0", mtu: 1500, ..RawLink::default() };
        RawLink { kind, link, link_netnsid, ..raw }
    }

    /// Returns a device with queues but without NAPIs.
    fn with_queues(count: u32) -> Device {
        let mut device = device(NetnsId(1), &link(Some("veth"), None, None)).expect("a name");
        let id = device.id;
        device.rx_queues = (0..count)
            .map(|index| RxQueueState {
                id: RxQueue { device: id, index: QueueIndex(index) },
                napi: None,
                rps_cpus: CpuSet::new(),
                rps_flow_cnt: None,
                coalesce: None,
                kthread: None,
            })
            .collect();
        device.tx_queues = (0..count)
            .map(|index| TxQueueState {
                index: QueueIndex(index),
                napi: None,
                xps_cpus: CpuSet::new(),
                xps_rxqs: Vec::new(),
            })
            .collect();
        device
    }

    fn raw_napi(id: u32) -> RawNapi {
        RawNapi { ifindex: 5, id, ..RawNapi::default() }
    }

    fn raw_queue(kind: QueueType, id: u32, napi_id: Option<u32>) -> RawQueue {
        RawQueue { ifindex: 5, id, kind: Some(kind), napi_id, holders: RawHolders::default() }
    }

    fn edges(device: &Device) -> Vec<Option<(u32, Confidence)>> {
        device.rx_queues.iter().map(|q| q.napi.map(|e| (e.napi.0, e.confidence))).collect()
    }

    #[test]
    fn queues_that_state_no_napi_take_them_by_order_when_the_counts_agree() {
        let mut device = with_queues(2);
        let queues = vec![raw_queue(QueueType::Rx, 0, None), raw_queue(QueueType::Rx, 1, None)];
        NetdevSays { queues: queues.clone(), napis: vec![raw_napi(328), raw_napi(329)] }
            .complete(&mut device);
        assert_eq!(edges(&device), [Some((328, Confidence::ByOrder)), Some((329, Confidence::ByOrder))]);
        NetdevSays { queues, napis: vec![raw_napi(328)] }.complete(&mut device);
        assert_eq!(edges(&device), [None, None], "one NAPI for two queues is ambiguous");
    }

    #[test]
    fn what_the_kernel_states_is_not_guessed_over() {
        let mut device = with_queues(2);
        let queues = vec![raw_queue(QueueType::Rx, 0, Some(400)), raw_queue(QueueType::Tx, 1, Some(401))];
        NetdevSays { queues, napis: vec![raw_napi(400), raw_napi(401)] }.complete(&mut device);
        assert_eq!(edges(&device), [Some((400, Confidence::Stated)), None]);
        assert_eq!(device.tx_queues[1].napi.map(|e| e.napi), Some(NapiId(401)));
    }

    #[test]
    fn another_devices_napis_are_not_taken() {
        let mut device = with_queues(1);
        let other = RawNapi { ifindex: 6, ..raw_napi(330) };
        NetdevSays { queues: Vec::new(), napis: vec![other] }.complete(&mut device);
        assert_eq!((device.napis.len(), edges(&device)), (0, vec![None]));
    }

    #[test]
    fn an_interrupt_named_after_a_queue_is_its_napis_unless_two_are() {
        let text = "  CPU0\n 38: 5 MSI 1-edge virtio2-input.0\n 39: 5 MSI 2-edge virtio2-input.1\n \
                    40: 5 MSI 3-edge other-rx-1\n";
        let mut device = with_queues(2);
        NetdevSays { queues: Vec::new(), napis: vec![raw_napi(328), raw_napi(329)] }.complete(&mut device);
        let vectors = [38, 39, 40].map(IrqNumber).into_iter().collect();
        let mut seen = [ObservedDevice { device, vectors }];
        name_interrupts(&mut seen, &Interrupts::parse(text));
        let irqs: Vec<_> = seen[0].device.napis.iter().map(|n| n.irq).collect();
        assert_eq!(irqs, [Some(IrqEdge { irq: IrqNumber(38), confidence: Confidence::ByName }), None]);
    }

    #[test]
    fn a_peer_is_named_here_and_numbered_elsewhere() {
        let names = [(IfIndex(7), Label::new("veth1"))].into_iter().collect();
        let peer = |raw: &RawLink<'_>| {
            let mut device = device(NetnsId(1), raw).expect("a name");
            name_peer(&mut device, &names);
            device.peer
        };
        assert_eq!(peer(&link(Some("veth"), Some(7), None)).as_deref(), Some("veth1"));
        assert_eq!(peer(&link(Some("veth"), Some(7), Some(0))).as_deref(), Some("if7 of netnsid 0"));
        assert_eq!(peer(&link(Some("vlan"), Some(7), None)), None, "the device below is not a peer");
    }

    #[test]
    fn a_device_whose_name_is_not_text_is_reported_and_does_not_hide_the_others() {
        let raw = RawLink { name: b"eth\xff", ..link(None, None, None) };
        let error = device(NetnsId(1), &raw).expect_err("not UTF-8");
        assert_eq!(error.what, "device 5");
    }
}
