//! The settings of a NIC and its driver: which request each becomes.

use model::{DeviceId, Interface, QueueIndex, RxQueue, Setting, TxQueue};

use super::inside::Inside;
use super::steer;
use crate::error::KernelError;
use crate::observe::device as observed;
use model::CpuSet;

/// Settings of one object and one interface, as they are.
pub(super) fn read(
    inside: &mut Inside,
    device: DeviceId,
    like: &[Setting],
) -> Result<Vec<Setting>, KernelError> {
    let Some(interface) = like.first().map(Setting::interface) else { return Ok(Vec::new()) };
    let ifindex = device.ifindex;
    match interface {
        Interface::Channels => {
            let channels = observed::channels(&inside.ethtool()?.channels_of(ifindex)?);
            collect(like, |one| match one {
                Setting::Channels(_, kind, _) => {
                    Some(Setting::Channels(device, *kind, channels.of(*kind).current))
                }
                _ => None,
            })
        }
        Interface::Rings => {
            let rings = observed::rings(&inside.ethtool()?.rings_of(ifindex)?);
            collect(like, |one| match one {
                Setting::Ring(_, kind, _) => Some(Setting::Ring(device, *kind, rings.of(*kind).current)),
                _ => None,
            })
        }
        Interface::Coalescing => {
            let coalesce = observed::coalesce(&inside.ethtool()?.coalesce_of(ifindex)?);
            collect(like, |one| match one {
                Setting::Coalescing(_, param, _) => {
                    coalesce.of(*param).map(|value| Setting::Coalescing(device, *param, value))
                }
                _ => None,
            })
        }
        Interface::Offloads => {
            let ethtool = inside.ethtool()?;
            let names = ethtool.feature_names()?;
            let offloads = observed::offloads(&ethtool.features_of(ifindex)?, &names);
            collect(like, |one| match one {
                Setting::Offload(_, offload, _) => {
                    offloads.get(offload).map(|on| Setting::Offload(device, *offload, *on))
                }
                _ => None,
            })
        }
        Interface::PacketSizes => {
            let sizes = inside.links().packet_sizes(ifindex)?;
            collect(like, |one| match one {
                Setting::PacketSize(_, size, _) => {
                    sizes.of(*size).map(|bytes| Setting::PacketSize(device, *size, bytes))
                }
                _ => None,
            })
        }
        Interface::PrivateFlags => {
            let flags = inside.ethtool()?.private_flags_of(ifindex)?.flags;
            collect(like, |one| match one {
                Setting::PrivateFlag(_, flag, _) => {
                    flags.get(flag).map(|on| Setting::PrivateFlag(device, *flag, *on))
                }
                _ => None,
            })
        }
        Interface::Rss => {
            let name = inside.name(device)?;
            let rss = inside.ioctl()?.rss(&name)?;
            collect(like, |one| match (one, &rss) {
                (Setting::RssTable(..), Some(rss)) => Some(Setting::RssTable(device, rss.table.clone())),
                (Setting::RssKey(..), Some(rss)) => Some(Setting::RssKey(device, rss.key.clone())),
                _ => None,
            })
        }
        Interface::RssContexts | Interface::FlowRules | Interface::Qdiscs => {
            steer::read(inside, device, like)
        }
        Interface::QueueCoalescing => {
            let name = inside.name(device)?;
            let Some(Setting::QueueCoalescing(queue, ..)) = like.first() else { return Ok(Vec::new()) };
            let queues = inside.ioctl()?.queue_coalesce(&name, position(queue.index) + 1)?;
            let of_queue = queues.and_then(|mut queues| queues.pop());
            collect(like, |one| match one {
                Setting::QueueCoalescing(queue, param, _) => {
                    let value = of_queue?.of(*param)?;
                    Some(Setting::QueueCoalescing(*queue, *param, value))
                }
                _ => None,
            })
        }
        Interface::Steering => like.iter().map(|one| read_steering(inside, one)).collect(),
        Interface::Napi
        | Interface::DeviceNapis
        | Interface::Sysctl
        | Interface::Epoll
        | Interface::IoUring
        | Interface::IrqAffinity
        | Interface::Irqbalance
        | Interface::ThreadAffinity
        | Interface::Reuseport
        | Interface::Kthread => unreachable!("{interface:?} is no interface of a NIC"),
    }
}

/// Writes settings of one object and one interface, in one call where there is one for all.
pub(super) fn write(inside: &mut Inside, device: DeviceId, settings: &[Setting]) -> Result<(), KernelError> {
    let ifindex = device.ifindex;
    let (mut channels, mut rings, mut coalescing) = (Vec::new(), Vec::new(), Vec::new());
    let (mut offloads, mut flags, mut of_queue) = (Vec::new(), Vec::new(), Vec::new());
    let mut sizes = Vec::new();
    let (mut table, mut key, mut queue) = (None, None, 0);
    for setting in settings {
        match setting {
            Setting::Channels(_, kind, count) => channels.push((*kind, *count)),
            Setting::Ring(_, kind, size) => rings.push((*kind, *size)),
            Setting::Coalescing(_, param, value) => coalescing.push((*param, *value)),
            Setting::Offload(_, offload, on) => offloads.push((*offload, *on)),
            Setting::PacketSize(_, size, bytes) => sizes.push((*size, *bytes)),
            Setting::PrivateFlag(_, flag, on) => flags.push((*flag, *on)),
            Setting::RssTable(_, wanted) => table = Some(wanted.as_slice()),
            Setting::RssKey(_, wanted) => key = Some(wanted.as_slice()),
            Setting::RssContext(..) | Setting::FlowRule(..) | Setting::Qdiscs(..) => {
                steer::write(inside, device, setting)?;
            }
            Setting::QueueCoalescing(of, param, value) => {
                queue = position(of.index);
                of_queue.push((*param, *value));
            }
            Setting::RpsCpus(queue, cpus) => {
                write_file(inside, device, &rx(*queue, "rps_cpus"), &cpus.to_mask())?
            }
            Setting::RpsFlowCount(queue, count) => {
                write_file(inside, device, &rx(*queue, "rps_flow_cnt"), &count.to_string())?;
            }
            Setting::XpsCpus(queue, cpus) => {
                write_file(inside, device, &tx(*queue, "xps_cpus"), &cpus.to_mask())?
            }
            Setting::XpsRxQueues(queue, queues) => {
                let mask: CpuSet = queues.iter().map(|index| model::Cpu(index.0)).collect();
                write_file(inside, device, &tx(*queue, "xps_rxqs"), &mask.to_mask())?;
            }
            Setting::DeferHardIrqs(..)
            | Setting::GroFlushTimeout(..)
            | Setting::IrqSuspendTimeout(..)
            | Setting::Threaded(..)
            | Setting::DeviceDeferHardIrqs(..)
            | Setting::DeviceGroFlushTimeout(..)
            | Setting::DeviceThreaded(..)
            | Setting::Epoll(..)
            | Setting::IoUringNapi(..)
            | Setting::IrqAffinity(..)
            | Setting::IrqBan(..)
            | Setting::ThreadAffinity(..)
            | Setting::KthreadAffinity(..)
            | Setting::KthreadScheduling(..)
            | Setting::KthreadUtilClamp(..)
            | Setting::Reuseport(..)
            | Setting::Sysctl(..) => unreachable!("{setting} is no setting of a NIC"),
        }
    }
    if !channels.is_empty() {
        inside.ethtool()?.set_channels(ifindex, &channels)?;
    }
    if !rings.is_empty() {
        inside.ethtool()?.set_rings(ifindex, &rings)?;
    }
    if !coalescing.is_empty() {
        inside.ethtool()?.set_coalesce(ifindex, &coalescing)?;
    }
    if !offloads.is_empty() {
        inside.ethtool()?.set_offloads(ifindex, &offloads)?;
    }
    if !sizes.is_empty() {
        inside.links().set_packet_sizes(ifindex, &sizes)?;
    }
    if !flags.is_empty() {
        inside.ethtool()?.set_private_flags(ifindex, &flags)?;
    }
    if table.is_some() || key.is_some() {
        let name = inside.name(device)?;
        inside.ioctl()?.set_rss(&name, table, key)?;
    }
    if !of_queue.is_empty() {
        let name = inside.name(device)?;
        inside.ioctl()?.set_queue_coalesce(&name, queue, &of_queue)?;
    }
    Ok(())
}

fn collect(
    like: &[Setting],
    found: impl Fn(&Setting) -> Option<Setting>,
) -> Result<Vec<Setting>, KernelError> {
    like.iter()
        .map(|one| {
            let needs = format!("a driver with {}", one.knob());
            found(one).ok_or_else(|| {
                KernelError::absent(format!("{}: {}", one.object(), one.knob()), needs, Some(one.since()))
            })
        })
        .collect()
}

fn read_steering(inside: &mut Inside, like: &Setting) -> Result<Setting, KernelError> {
    Ok(match like {
        Setting::RpsCpus(queue, _) => {
            Setting::RpsCpus(*queue, read_mask(inside, queue.device, &rx(*queue, "rps_cpus"))?)
        }
        Setting::RpsFlowCount(queue, _) => {
            let file = rx(*queue, "rps_flow_cnt");
            let text = inside.directory(queue.device)?.read(&file)?;
            let count = text.parse();
            let count = count.map_err(|_| KernelError::malformed(file, format!("`{text}` is no number")))?;
            Setting::RpsFlowCount(*queue, count)
        }
        Setting::XpsCpus(queue, _) => {
            Setting::XpsCpus(*queue, read_mask(inside, queue.device, &tx(*queue, "xps_cpus"))?)
        }
        Setting::XpsRxQueues(queue, _) => {
            let mask = read_mask(inside, queue.device, &tx(*queue, "xps_rxqs"))?;
            Setting::XpsRxQueues(*queue, observed::queues_of(&mask))
        }
        other => unreachable!("{other} is no file of a queue"),
    })
}

fn read_mask(inside: &mut Inside, device: DeviceId, file: &str) -> Result<CpuSet, KernelError> {
    let text = inside.directory(device)?.read(file)?;
    CpuSet::parse_mask(&text).map_err(|not| KernelError::malformed(file, not.to_string()))
}

fn write_file(inside: &mut Inside, device: DeviceId, file: &str, text: &str) -> Result<(), KernelError> {
    inside.directory(device)?.write(file, text).map_err(|error| error.needing("CAP_NET_ADMIN"))
}

fn rx(queue: RxQueue, file: &str) -> String {
    format!("queues/rx-{}/{file}", queue.index)
}

fn tx(queue: TxQueue, file: &str) -> String {
    format!("queues/tx-{}/{file}", queue.index)
}

fn position(index: QueueIndex) -> usize {
    usize::try_from(index.0).unwrap_or(usize::MAX - 1)
}
