//! The commands that mend what was found: ours where the setting is ours, the usual tool's where it is not.

use model::host::{Device, Pair};
use model::setting::Disruption;
use model::{DeliveryMode, Nanoseconds, ProcessId, RxQueue, Setting, Threading, quoted};

use super::case::{Case, NapiCase, ProcessCase, Sending};
use super::context::{THEN, inside};

/// The mode that would mend a NAPI: the one asked for, else suspension with the NAPI's own short timeout.
pub(super) fn mode_of(napi: &NapiCase<'_>) -> DeliveryMode {
    if let Some(asked) = napi.asked {
        return asked.mode;
    }
    let flush = napi.napi.gro_flush_timeout.filter(|span| !span.is_zero());
    DeliveryMode::Suspend { gro_flush: flush.unwrap_or(Nanoseconds::from_micros(20)) }
}

/// The same for a process.
pub(super) fn mode_for(process: &ProcessCase<'_>) -> DeliveryMode {
    let suspend20 = DeliveryMode::Suspend { gro_flush: Nanoseconds::from_micros(20) };
    process.asked.map_or(suspend20, |asked| asked.mode)
}

/// A device's name as a command has it: others choose it, and it may have characters that mean something to a shell.
pub(super) fn named(device: &Device) -> String {
    quoted(device.id.name.as_str())
}

/// Sets a device's queues.
pub(super) fn set_device(device: &Device, mode: DeliveryMode) -> String {
    format!("netpolicy set device {} {mode}", named(device))
}

/// The mode that a device has: the one asked for, else the one that its values come to.
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

/// Gives a device one more value beside the mode that it has, as the command line writes it.
pub(super) fn set_value(device: &Device, case: &Case<'_>, like: &Setting, value: &str) -> String {
    let disruptive = if like.disruption() == Disruption::None { "" } else { " --disruptive" };
    let mode = mode_in_force(device, case);
    format!("netpolicy set device {} {mode} --setting {value}{disruptive}", named(device))
}

/// Sets a process's epolls and the queues that it receives from.
pub(super) fn set_task(process: ProcessId, mode: DeliveryMode) -> String {
    format!("netpolicy set task {} {mode}", process.pid)
}

/// Takes receive packet steering off a queue. The file is not ours: it belongs to the program that steers.
pub(super) fn rps_off(queue: RxQueue) -> String {
    let file = format!("/sys/class/net/{}/queues/rx-{}/rps_cpus", queue.device, queue.index);
    format!("echo 0 > {}", quoted(&file))
}

/// Gives a veth's packets to its NAPI, at both ends. Nothing where both are known to be right.
///
/// Kernel: 6.18, `drivers/net/veth.c` `veth_xmit()` uses the peer's NAPI only for packets that
/// `veth_skb_is_eligible_for_gro()` takes, which is none while the sending end segments TCP itself; with XDP at the
/// receiving end it switches the sender's TSO off by itself.
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

/// Gives a device this many receive queues, if it can have them and has another number.
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
