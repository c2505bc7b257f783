//! Reads a device from sysfs: its queues, device-wide settings, and its bus device.

use std::collections::BTreeSet;
use std::str::FromStr;

use model::host::{Device, RxQueueState, TxQueueState, Unread};
use model::{CpuSet, EmptyPolls, IrqNumber, Nanoseconds, NumaNode, QueueIndex, RxQueue, Threading};
use sys::error::KernelError;
use sys::sysfs::SysFs;

use super::super::sources::UnreadExt;

/// Reads queues, device-wide settings and the bus device; returns the bus device's interrupts.
pub(super) fn from_sysfs(
    device: &mut Device,
    sysfs: &SysFs,
    unread: &mut Vec<Unread>,
) -> BTreeSet<IrqNumber> {
    let directory = format!("class/net/{}", device.id.name);
    device.defer_hard_irqs =
        number(sysfs, &format!("{directory}/napi_defer_hard_irqs"), unread).map(EmptyPolls);
    device.gro_flush_timeout =
        number(sysfs, &format!("{directory}/gro_flush_timeout"), unread).map(Nanoseconds);
    device.threaded = number(sysfs, &format!("{directory}/threaded"), unread).and_then(Threading::of_number);
    queues(device, sysfs, &directory, unread);
    // A link without a carrier has no speed: the file then contains -1, or cannot be read.
    let speed = sysfs.read_if_any(&format!("{directory}/speed")).or_unread(unread);
    device.link.speed_mbps = speed.and_then(|speed| speed.parse().ok()).filter(|speed| *speed > 0);
    if !device.kind.is_empty() {
        return BTreeSet::new(); // a virtual device has no bus device
    }
    bus_device(device, sysfs, &directory, unread)
}

fn queues(device: &mut Device, sysfs: &SysFs, directory: &str, unread: &mut Vec<Unread>) {
    let directory = format!("{directory}/queues");
    let names = sysfs.list(&directory).or_unread(unread);
    // Open the directory only once: a device may have hundreds of queues, with four files each.
    let Some(sysfs) = sysfs.below(&directory).or_unread(unread) else { return };
    let sysfs = &sysfs;
    for name in &names {
        let Some((kind, index)) = name.split_once('-') else { continue };
        let Some(index) = index.parse().ok().map(QueueIndex) else { continue };
        match kind {
            "rx" => device.rx_queues.push(RxQueueState {
                id: RxQueue { device: device.id, index },
                napi: None,
                rps_cpus: mask(sysfs, &format!("{name}/rps_cpus"), unread),
                rps_flow_cnt: number(sysfs, &format!("{name}/rps_flow_cnt"), unread),
                coalesce: None,
                kthread: None,
            }),
            "tx" => device.tx_queues.push(TxQueueState {
                index,
                napi: None,
                xps_cpus: mask(sysfs, &format!("{name}/xps_cpus"), unread),
                xps_rxqs: queues_of(&mask(sysfs, &format!("{name}/xps_rxqs"), unread)),
            }),
            _ => {}
        }
    }
    device.rx_queues.sort_by_key(|queue| queue.id.index);
    device.tx_queues.sort_by_key(|queue| queue.index);
}

/// Reads the driver, the NUMA node and the interrupts of a network device's bus device.
fn bus_device(
    device: &mut Device,
    sysfs: &SysFs,
    directory: &str,
    unread: &mut Vec<Unread>,
) -> BTreeSet<IrqNumber> {
    let mut bus = format!("{directory}/device");
    device.kind = sysfs.link_name(&format!("{bus}/driver")).unwrap_or_default();
    // A device on one of these buses is part of another device, to which the NUMA node and the interrupts
    // belong.
    if matches!(sysfs.link_name(&format!("{bus}/subsystem")).as_deref(), Some("virtio" | "auxiliary")) {
        let whole = sysfs.link_path(&bus).and_then(|path| path.rsplit('/').nth(1).map(str::to_owned));
        device.link.pci = whole.filter(|name| is_pci_address(name));
        bus.push_str("/..");
    } else {
        device.link.pci = sysfs.link_name(&bus).filter(|name| is_pci_address(name));
    }
    let node: Option<i32> = number(sysfs, &format!("{bus}/numa_node"), unread);
    device.node = node.and_then(|node| u32::try_from(node).ok()).map(NumaNode); // -1 for none
    let vectors = sysfs.list(&format!("{bus}/msi_irqs")).or_unread(unread);
    vectors.iter().filter_map(|vector| vector.parse().ok()).map(IrqNumber).collect()
}

/// Whether a name is a PCI address such as `0000:3b:00.0`, rather than `virtio0` or the name of a platform
/// device.
fn is_pci_address(name: &str) -> bool {
    let mut parts = name.split([':', '.']);
    let mut hex = |digits: usize| {
        parts.next().is_some_and(|part| part.len() >= digits && part.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    hex(4) && hex(2) && hex(2) && hex(1) && parts.next().is_none()
}

/// Reads a file that contains one number; `None` if the file does not exist.
pub(super) fn number<T: FromStr>(sysfs: &SysFs, path: &str, unread: &mut Vec<Unread>) -> Option<T> {
    let text = sysfs.read_if_any(path).or_unread(unread)?;
    let parsed = text
        .parse()
        .map_err(|_| KernelError::malformed(sysfs.shown(path), format!("`{text}` is not a number")));
    parsed.map(Some).or_unread(unread)
}

/// Reads a file that contains a CPU mask; an empty set if the file does not exist, as on a device without
/// XPS.
fn mask(sysfs: &SysFs, path: &str, unread: &mut Vec<Unread>) -> CpuSet {
    let Some(text) = sysfs.read_if_any(path).or_unread(unread) else { return CpuSet::new() };
    CpuSet::parse_mask(&text)
        .map_err(|not| KernelError::malformed(sysfs.shown(path), not.to_string()))
        .or_unread(unread)
}

/// Converts a mask of queues, which the kernel writes in the format of a CPU mask, to the queues.
pub(crate) fn queues_of(mask: &CpuSet) -> Vec<QueueIndex> {
    mask.iter().map(|bit| QueueIndex(bit.0)).collect()
}
