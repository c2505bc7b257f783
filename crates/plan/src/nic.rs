//! Plans the settings of a device that a request names in addition to a delivery mode: queues, rings,
//! moderation, offloads, steering.

mod steering;

use model::host::{Device, RxQueueState};
use model::nic::NicRequest;
use model::{
    ChannelKind, CpuSet, DeliveryMode, HostKnob, NicKnob, Offload, PacketSize, Reason, RingKind, RxQueue,
    RxQueueKnob, Setting, Threading, TxQueue, TxQueueKnob,
};

use crate::holders::HELD;
use crate::in_force;
use crate::index::Index;
use crate::placement::PlacedRequest;
use crate::queues_after::{QueuesAfter, channels_after};
use crate::refusal::{Refusal, RefusalKind};
use crate::selection;
use crate::wanted::Collected;

/// Returns whether a request that is not in force yet recreates the device's queues. The settings of the new
/// queues can only be planned once these queues exist.
pub(crate) fn remakes_queues(
    part: &PlacedRequest,
    device: &Device,
    index: &Index<'_>,
    after: &QueuesAfter,
) -> Result<bool, Refusal> {
    for request in &part.intent.nic {
        for setting in settings(request, part, device, index, after)? {
            if remakes(&setting, device) && in_force::value(&setting, index)? != setting {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns whether a setting recreates the device's queues or NAPIs. On a veth, GRO creates and destroys the
/// NAPIs.
///
/// Kernel: 6.18, `drivers/net/veth.c` `veth_set_features()`.
pub(crate) fn remakes(setting: &Setting, device: &Device) -> bool {
    let napis_of_veth =
        device.kind == "veth" && matches!(setting, Setting::Nic(_, NicKnob::Offload(Offload::Gro, _)));
    // While the qdisc is replaced, the queues stop, but they keep their settings.
    let stays = matches!(setting, Setting::Nic(_, NicKnob::Qdiscs(..)));
    napis_of_veth || !stays && setting.disruption() != model::setting::Disruption::None
}

/// Collects the desired device settings of the part's request. With `remaking`, collects only those that
/// recreate queues.
pub(crate) fn want(
    part: &PlacedRequest,
    device: &Device,
    index: &Index<'_>,
    after: &QueuesAfter,
    remaking: bool,
    collected: &mut Collected,
) -> Result<(), Refusal> {
    for request in &part.intent.nic {
        for setting in settings(request, part, device, index, after)? {
            if remaking && !remakes(&setting, device) {
                continue;
            }
            let why = format!("`{}` is set explicitly", request.key().trim_start_matches("settings."));
            collected.want(setting, Reason::new(why, part.intent.origin.clone()))?;
        }
    }
    Ok(())
}

/// Returns the settings of a request on a device.
fn settings(
    request: &NicRequest,
    part: &PlacedRequest,
    device: &Device,
    index: &Index<'_>,
    after: &QueuesAfter,
) -> Result<Vec<Setting>, Refusal> {
    let id = device.id;
    let rx = || device.rx_queues.iter().map(|queue| queue.id);
    Ok(match request {
        NicRequest::Channels(kind, count) => {
            check_channels(*kind, *count, part, device)?;
            check_that_nothing_is_lost(part, device, index)?;
            vec![Setting::Nic(id, NicKnob::Channels(*kind, *count))]
        }
        NicRequest::Ring(kind, size) => {
            check_ring(*kind, *size, part, device)?;
            vec![Setting::Nic(id, NicKnob::Ring(*kind, *size))]
        }
        NicRequest::Coalescing(param, value) => vec![Setting::Nic(id, NicKnob::Coalescing(*param, *value))],
        NicRequest::Offload(Offload::Gro, false)
            if device.kind == "veth" && !device.xdp && part.delivery.mode != DeliveryMode::Interrupt =>
        {
            let message =
                format!("rx-gro = false removes a veth's NAPIs, and {} is set on NAPIs", part.delivery.mode);
            return Err(Refusal::new(RefusalKind::Usage, device.id, message)
                .because(format!("requested at {}", part.intent.origin))
                .nearest("delivery = \"interrupt\", or without rx-gro"));
        }
        NicRequest::Offload(Offload::Gro, false) if device.kind == "veth" && !device.xdp => {
            check_that_no_napi_is_lost(part, device, index)?;
            vec![Setting::Nic(id, NicKnob::Offload(Offload::Gro, false))]
        }
        NicRequest::Offload(offload, on) => vec![Setting::Nic(id, NicKnob::Offload(*offload, *on))],
        NicRequest::PacketSize(size, bytes) => {
            check_packet_size(*size, *bytes, part, device)?;
            vec![Setting::Nic(id, NicKnob::PacketSize(*size, *bytes))]
        }
        NicRequest::PrivateFlags(flags) => {
            flags.iter().map(|(flag, on)| Setting::Nic(id, NicKnob::PrivateFlag(*flag, *on))).collect()
        }
        NicRequest::RssQueues(queues) => {
            vec![Setting::Nic(id, NicKnob::RssTable(even_table(*queues, part, device, after)?))]
        }
        NicRequest::RssContexts(spans) => steering::contexts(spans, part, device, after)?,
        NicRequest::FlowRules(rules) => steering::rules(rules, part, device, after)?,
        NicRequest::Qdisc(kind) => vec![Setting::Nic(id, NicKnob::Qdiscs(steering::qdiscs(*kind, device)))],
        NicRequest::RpsCpus(cpus) if !cpus.is_subset(&index.host.topology.online) => {
            let none = cpus.difference(&index.host.topology.online);
            return Err(Refusal::new(
                RefusalKind::Usage,
                device.id,
                format!("rps_cpus names CPUs that are not online: {none}"),
            )
            .because(format!("requested at {}", part.intent.origin))
            .nearest(format!("CPUs of {}", index.host.topology.online)));
        }
        NicRequest::RpsCpus(cpus) => {
            rx().map(|queue| Setting::RxQueue(queue, RxQueueKnob::RpsCpus(cpus.clone()))).collect()
        }
        NicRequest::RpsFlowCount(count) => {
            let count = flows_as_rounded(*count);
            rx().map(|queue: RxQueue| Setting::RxQueue(queue, RxQueueKnob::RpsFlowCount(count))).collect()
        }
        NicRequest::Xps(true) if selection::lacks_queues_for(request, &part.intent.nic, device) => {
            let message = "it has one transmit queue, and `xps` needs several".to_owned();
            return Err(Refusal::new(RefusalKind::Unsupported, device.id, message)
                .because(format!("requested at {}", part.intent.origin))
                .nearest("remove `xps`, or raise `tx-channels` if the driver supports more queues"));
        }
        // A device with one transmit queue has no XPS setting to revoke.
        NicRequest::Xps(false) if device.tx_queues.len() == 1 => Vec::new(),
        NicRequest::Xps(spread) => xps(*spread, device, &index.host.topology.online),
        NicRequest::Sysctl(sysctl, value) => vec![Setting::Host(HostKnob::Sysctl(*sysctl, *value))],
    })
}

/// Rounds a number of flows as the kernel does, so that reading the setting back gives the desired value.
/// Kernel: 6.18, `net/core/net-sysfs.c` `store_rps_dev_flow_table_cnt()`.
pub(crate) fn flows_as_rounded(count: u32) -> u32 {
    count.checked_next_power_of_two().filter(|_| count > 0).unwrap_or(count)
}

/// Returns the XPS settings. If `spread`, CPU i sends on queue i modulo the number of queues, as with
/// drivers' defaults; otherwise any CPU sends on any queue. Example: 6.18,
/// `drivers/net/ethernet/intel/i40e/i40e_main.c` `i40e_config_xps_tx_ring()`.
pub(crate) fn xps(spread: bool, device: &Device, online: &CpuSet) -> Vec<Setting> {
    let queues = device.tx_queues.len().max(1);
    let of_queue = |position: usize| {
        let own = online.iter().enumerate().filter(|(at, _)| spread && at % queues == position);
        own.map(|(_, cpu)| cpu).collect::<CpuSet>()
    };
    (0..)
        .zip(&device.tx_queues)
        .map(|(position, queue)| {
            Setting::TxQueue(
                TxQueue { device: device.id, index: queue.index },
                TxQueueKnob::XpsCpus(of_queue(position)),
            )
        })
        .collect()
}

/// Returns the even RSS table: entry i selects queue i modulo the number of queues. Kernel:
/// `include/linux/ethtool.h` `ethtool_rxfh_indir_default()`.
fn even_table(
    queues: u32,
    part: &PlacedRequest,
    device: &Device,
    after: &QueuesAfter,
) -> Result<Vec<u32>, Refusal> {
    let refuse = |kind, message: String| {
        Refusal::new(kind, device.id, message).because(format!("requested at {}", part.intent.origin))
    };
    let Some(rss) = &device.rss else {
        let message = "its driver does not spread packets by a table".to_owned();
        return Err(refuse(RefusalKind::Unsupported, message));
    };
    let there = after.rx(device);
    if queues == 0 || queues > there {
        let message =
            format!("packets cannot be spread over {queues} receive queues: {}", after.sentence(device));
        return Err(refuse(RefusalKind::Usage, message).nearest(format!("rss-queues = {there}")));
    }
    let ordinary = device.ordinary_rx_queues(there);
    if queues > ordinary {
        let message = format!("packets cannot be spread over {queues} receive queues: rx-{ordinary} is held");
        let held = device.holders.iter().filter(|holder| holder.kind.is_provider());
        let refusal = held.fold(refuse(RefusalKind::Safety, message), |refusal, holder| {
            refusal.because(format!("{} {}: held by {}", device.id, holder.queues(), holder.sentence()))
        });
        let nearest = if ordinary == 0 { HELD.to_owned() } else { format!("rss-queues = {ordinary}") };
        return Err(refusal.nearest(nearest));
    }
    Ok((0..queues).cycle().take(rss.table.len()).collect())
}

fn check_channels(
    kind: ChannelKind,
    count: u32,
    part: &PlacedRequest,
    device: &Device,
) -> Result<(), Refusal> {
    let Some(channels) = device.channels else { return Ok(()) };
    let separate = [ChannelKind::Rx, ChannelKind::Tx].map(|kind| (kind, channels.of(kind)));
    check_max(kind.as_str(), count, channels.of(kind).max, part, device).map_err(|refusal| {
        // A driver without combined channels counts receive and transmit queues separately, so propose these
        // two settings.
        if kind != ChannelKind::Combined || channels.of(kind).max > 0 || separate[0].1.max == 0 {
            return refusal;
        }
        let has = separate.into_iter().filter(|(_, channels)| channels.max > 0);
        let nearest = has.map(|(kind, channels)| format!("{} = {}", kind.as_str(), count.min(channels.max)));
        refusal
            .because("its driver has receive and transmit channels that are set separately")
            .nearest(nearest.collect::<Vec<_>>().join(", "))
    })?;
    let after = |other| channels_after(other, &part.intent.nic, channels);
    let combined = after(ChannelKind::Combined);
    for other in [ChannelKind::Rx, ChannelKind::Tx] {
        if after(other) + combined == 0 {
            let message = format!("it would be left without {other}, which the kernel rejects");
            return Err(Refusal::new(RefusalKind::Usage, device.id, message)
                .because(format!("requested at {}", part.intent.origin)));
        }
    }
    Ok(())
}

/// Refuses to remove queues whose values would be lost and could not be restored.
fn check_that_nothing_is_lost(
    part: &PlacedRequest,
    device: &Device,
    index: &Index<'_>,
) -> Result<(), Refusal> {
    let Some(channels) = device.channels else { return Ok(()) };
    let after = |kind| channels_after(kind, &part.intent.nic, channels);
    let left = after(ChannelKind::Rx) + after(ChannelKind::Combined);
    lost(left, device, index).map_or(Ok(()), |lost| Err(losing(lost, part, device)))
}

/// Refuses to turn off the GRO of a veth while its NAPIs have values that would be lost.
fn check_that_no_napi_is_lost(
    part: &PlacedRequest,
    device: &Device,
    index: &Index<'_>,
) -> Result<(), Refusal> {
    let mut queues = device.rx_queues.iter();
    let lost = queues.find_map(|queue| Some((queue.id, vec![values_of_napi(queue, device, index)?])));
    lost.map_or(Ok(()), |lost| Err(losing(lost, part, device)))
}

fn losing((queue, values): (RxQueue, Vec<String>), part: &PlacedRequest, device: &Device) -> Refusal {
    let message =
        format!("it would be removed together with {}, which nothing could restore", values.join(", "));
    Refusal::new(RefusalKind::Safety, queue, message)
        .because(format!("requested at {}", part.intent.origin))
        .nearest(format!(
            "first netpolicy set device {} interrupt --setting rps_cpus=none --setting rps_flow_cnt=0, which is a change that can be undone",
            device.id
        ))
}

/// Returns whether reducing the channels of a kind to this number would lose a queue's values.
pub(crate) fn loses_values(kind: ChannelKind, count: u32, device: &Device, index: &Index<'_>) -> bool {
    let Some(channels) = device.channels else { return false };
    let after = |of: ChannelKind| if of == kind { count } else { channels.of(of).current };
    lost(after(ChannelKind::Rx) + after(ChannelKind::Combined), device, index).is_some()
}

/// Returns the first queue with values that would be lost if only `left` queues remain, and these values.
fn lost(left: u32, device: &Device, index: &Index<'_>) -> Option<(RxQueue, Vec<String>)> {
    device.rx_queues.iter().filter(|queue| queue.id.index.0 >= left).find_map(|queue| {
        // A recreated queue starts with the default mask, so that mask is not lost.
        let steered = !queue.rps_cpus.is_empty() && queue.rps_cpus != index.host.rps_default_mask;
        let values = [
            steered.then(|| format!("rps_cpus {}", queue.rps_cpus)),
            queue.rps_flow_cnt.filter(|flows| *flows > 0).map(|flows| format!("rps_flow_cnt {flows}")),
            values_of_napi(queue, device, index),
        ];
        let values: Vec<String> = values.into_iter().flatten().collect();
        (!values.is_empty()).then_some((queue.id, values))
    })
}

/// Describes the values of a queue's NAPI that would be lost, for the refusal.
fn values_of_napi(queue: &RxQueueState, device: &Device, index: &Index<'_>) -> Option<String> {
    let napi = index.napi_of(queue.id)?;
    let spans = [napi.gro_flush_timeout, napi.irq_suspend_timeout];
    let defers = napi.defer_hard_irqs.is_some_and(|polls| polls.0 > 0)
        || spans.into_iter().flatten().any(|span| !span.is_zero());
    let threaded = |threading: Option<Threading>| threading.is_some_and(|now| now != Threading::Off);
    // A threaded device creates new NAPIs as threaded, so only a NAPI that is threaded on its own would lose
    // its setting.
    let own_thread = threaded(napi.threaded) && !threaded(device.threaded);
    (defers || own_thread).then(|| "settings of its NAPI".to_owned())
}

fn check_ring(kind: RingKind, size: u32, part: &PlacedRequest, device: &Device) -> Result<(), Refusal> {
    match device.rings {
        Some(rings) => check_max(kind.as_str(), size, rings.of(kind).max, part, device),
        None => Ok(()),
    }
}

/// Checks that packets are not larger than the driver accepts.
fn check_packet_size(
    size: PacketSize,
    bytes: u32,
    part: &PlacedRequest,
    device: &Device,
) -> Result<(), Refusal> {
    let sent = matches!(size, PacketSize::Gso | PacketSize::GsoIpv4);
    match device.packet_sizes.tso_max_size.filter(|_| sent) {
        Some(max) => check_max(size.as_str(), bytes, max, part, device),
        None => Ok(()),
    }
}

fn check_max(
    word: &str,
    wanted: u32,
    max: u32,
    part: &PlacedRequest,
    device: &Device,
) -> Result<(), Refusal> {
    if wanted <= max {
        return Ok(());
    }
    if max == 0 {
        let message = format!("its driver has no {word}");
        return Err(Refusal::new(RefusalKind::Unsupported, device.id, message)
            .because(format!("requested at {}", part.intent.origin)));
    }
    let message = format!("{word} {wanted} exceeds its driver's maximum of {max}");
    Err(Refusal::new(RefusalKind::Usage, device.id, message)
        .because(format!("requested at {}", part.intent.origin))
        .nearest(format!("{word} = {max}")))
}
