//! Creates the commands that fix a finding: netpolicy's commands for its own settings, otherwise those of the
//! usual tools.

use model::host::{Device, Pair};
use model::setting::Disruption;
use model::{DeliveryMode, Nanoseconds, ProcessId, RxQueue, Setting, Threading, quoted};

use super::case::{Case, NapiCase, ProcessCase, Sending};
use super::context::{THEN, inside};

/// Returns the mode that fixes a NAPI: the requested one, or else suspension with the NAPI's current short
/// timeout.
pub(super) fn mode_of(napi: &NapiCase<'_>) -> DeliveryMode {
    if let Some(asked) = napi.asked {
        return asked.mode;
    }
    let flush = napi.napi.gro_flush_timeout.filter(|span| !span.is_zero());
    DeliveryMode::Suspend { gro_flush: flush.unwrap_or(Nanoseconds::from_micros(20)) }
}

/// Returns the mode that fixes a process: the requested one, or else suspend20.
pub(super) fn mode_for(process: &ProcessCase<'_>) -> DeliveryMode {
    let suspend20 = DeliveryMode::Suspend { gro_flush: Nanoseconds::from_micros(20) };
    process.asked.map_or(suspend20, |asked| asked.mode)
}

/// Returns a device's name, quoted for a shell because it may contain special characters.
pub(super) fn named(device: &Device) -> String {
    quoted(device.id.name.as_str())
}

/// Returns the command that sets a device's queues.
pub(super) fn set_device(device: &Device, mode: DeliveryMode) -> String {
    format!("netpolicy set device {} {mode}", named(device))
}

/// Returns the mode of a device: the requested one, or else the one that matches the device's values.
pub(super) fn mode_in_force(device: &Device, case: &Case<'_>) -> DeliveryMode {
    let mut own = case.napis.values().filter(|napi| napi.device.id == device.id).peekable();
    let Some(first) = own.peek().map(|napi| napi.napi) else { return DeliveryMode::Interrupt };
    if let Some(asked) = own.find_map(|napi| napi.asked) {
        return asked.mode;
    }
    let set = |span: Option<Nanoseconds>| span.filter(|span| !span.is_zero());
    let defers = first.defer_hard_irqs.is_some_and(|polls| polls.0 > 0);
    match (first.threaded, set(first.gro_flush_timeout).filter(|_| defers)) {
        (Some(Threading::BusyPoll), _) => DeliveryMode::ThreadedBusy,
        (Some(Threading::On), _) => DeliveryMode::Threaded,
        (_, None) => DeliveryMode::Interrupt,
        (_, Some(gro_flush)) if set(first.irq_suspend_timeout).is_some() => {
            DeliveryMode::Suspend { gro_flush }
        }
        (_, Some(gro_flush)) => DeliveryMode::Defer { gro_flush },
    }
}

/// Returns the command that adds a setting to the device's mode.
pub(super) fn set_value(device: &Device, case: &Case<'_>, like: &Setting, value: &str) -> String {
    let disruptive = if like.disruption() == Disruption::None { "" } else { " --disruptive" };
    let mode = mode_in_force(device, case);
    format!("netpolicy set device {} {mode} --setting {value}{disruptive}", named(device))
}

/// Returns the command that sets a process's epolls and queues.
pub(super) fn set_task(process: ProcessId, mode: DeliveryMode) -> String {
    format!("netpolicy set task {} {mode}", process.pid)
}

/// Returns the command that turns off RPS on a queue by writing the queue's file, if another program turned
/// it on.
pub(super) fn rps_off(queue: RxQueue) -> String {
    let file = format!("/sys/class/net/{}/queues/rx-{}/rps_cpus", queue.device, queue.index);
    format!("echo 0 > {}", quoted(&file))
}

/// Returns the commands at both ends of a veth that make its packets arrive on a NAPI; `None` if both ends
/// are known to be correct. Kernel: 6.18, `drivers/net/veth.c` `veth_xmit()` uses the peer's NAPI only for
/// packets that `veth_skb_is_eligible_for_gro()` accepts, and it accepts none while the sending end has TSO
/// on. XDP at the receiving end turns off the sender's TSO.
pub(super) fn veth(receiving: &Device, sending: &Sending<'_>) -> Option<String> {
    let mut commands = Vec::new();
    if !receiving.xdp && receiving.features.gro != Some(true) {
        commands.push(format!("ethtool -K {} gro on", named(receiving)));
    }
    match sending {
        _ if sending.tso() == Some(false) => {}
        Sending::Here(peer) => commands.push(format!("ethtool -K {} tso off", named(peer))),
        Sending::Elsewhere(peer) => {
            commands.push(inside(&peer.netns, &format!("ethtool -K {} tso off", quoted(peer.name.as_str()))));
        }
        Sending::Unknown(_) if receiving.xdp => {}
        Sending::Unknown(number) => {
            commands
                .push(format!("at the other end ({number}), whose device is PEER: ethtool -K PEER tso off"));
        }
    }
    (!commands.is_empty()).then(|| commands.join(THEN))
}

/// Returns the command that gives a device this many receive queues, if the device supports that number and
/// has another.
pub(super) fn channels(device: &Device, queues: usize) -> Option<String> {
    let channels = device.channels?;
    let queues = u32::try_from(queues).ok()?;
    let fits = |pair: Pair| pair.current > 0 && queues <= pair.max && queues != pair.current;
    let kind = if fits(channels.combined) {
        "combined"
    } else if fits(channels.rx) {
        "rx"
    } else {
        return None;
    };
    Some(format!("ethtool -L {} {kind} {queues}", named(device)))
}
