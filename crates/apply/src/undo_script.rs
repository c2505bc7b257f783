//! The way back without netpolicy: a shell script that a tired operator can read.
//!
//! It does what [`crate::undo`] does, with the tools of a common distribution. This is the one file of this room
//! that knows what each knob is.

mod queueing;

use std::collections::BTreeSet;
use std::fmt::Write;

use model::setting::Threading;
use model::{
    Change, ChannelKind, Cpu, CpuSet, DeviceId, EpollId, RingId, RingKind, RxQueue, Setting, ThreadId,
};

use crate::knobs::{Landmarks, device_landmark};
use crate::record::Begin;
use crate::transaction::TransactionName;

/// The script that undoes a transaction. Names of devices and processes, and the command, are quoted: whoever
/// chose them does not get to write lines of a script that root runs.
pub fn undo_script(name: TransactionName, begin: &Begin) -> String {
    let asked = &begin.asked;
    let mut parts = BTreeSet::new();
    let mut body = String::new();
    for step in begin.plan.steps.iter().rev() {
        for change in step.changes().iter().rev() {
            let because = one_line(&change.because().to_string());
            let Call { needs, line } = call(change, &begin.landmarks);
            parts.extend(needs);
            let _infallible = write!(body, "\n# {}: {because}\n{line}\n", one_line(&change.to_string()));
        }
    }
    let parts: Vec<&str> = parts.into_iter().map(Part::text).collect();
    format!(
        "#!/bin/sh\n\
         # Undoes the netpolicy transaction {name}.\n\
         #\n\
         #   begun    {at}\n\
         #   by       {command}\n\
         #   with     netpolicy {netpolicy} on Linux {kernel}\n\
         {HEAD}\n\
         transaction={quoted_name}\n\
         boot={boot}\n\
         {SETUP}\n\
         {parts}\n\
         {CALLED}\n\
         # The last change first.\n\
         {body}\n\
         {END}",
        at = asked.at,
        command = one_line(&asked.command),
        netpolicy = one_line(&asked.netpolicy),
        kernel = one_line(&asked.kernel_release),
        quoted_name = quoted(&name.to_string()),
        boot = quoted(&begin.boot_id),
        parts = parts.join("\n"),
    )
}

/// One line of the script, and the functions that it calls.
struct Call {
    needs: Vec<Part>,
    line: String,
}

fn call(change: &Change, landmarks: &Landmarks) -> Call {
    let what = quoted(&format!("{}: {}", change.to().object(), change.to().knob()));
    let (set, old) = (quoted(&value(change.to())), quoted(&value(change.from())));
    let which = |device: &DeviceId| which(*device, landmarks);
    let napi = |queue: &RxQueue, attribute: &str| {
        let RxQueue { device, index } = queue;
        let (netns, device) = (device.netns, which(device));
        Call {
            needs: vec![Part::Device, Part::Netns, Part::Napi],
            line: format!("in_netns {netns} napi {what} {device} {index} {attribute} {set} {old}"),
        }
    };
    let device = |device: &DeviceId, file: &str| Call {
        needs: vec![Part::File, Part::Device, Part::DeviceFile, Part::Netns],
        line: format!("in_netns {} device_file {what} {} {file} {set} {old}", device.netns, which(device)),
    };
    let mask = |device: &DeviceId, file: &str| Call {
        needs: vec![Part::Device, Part::MaskFile, Part::Netns],
        line: format!("in_netns {} mask_file {what} {} {file} {set} {old}", device.netns, which(device)),
    };
    let kthread = |queue: &RxQueue, kind: &str| {
        let RxQueue { device, index } = queue;
        let (netns, device) = (device.netns, which(device));
        Call {
            needs: vec![Part::Device, Part::Netns, Part::Napi, Part::Kthread],
            line: format!("in_netns {netns} kthread {what} {device} {index} {kind} {set} {old}"),
        }
    };
    match change.to() {
        Setting::KthreadAffinity(queue, _) => kthread(queue, "cpus"),
        Setting::KthreadScheduling(queue, _) => kthread(queue, "class"),
        Setting::KthreadUtilClamp(queue, _) => kthread(queue, "clamp"),
        Setting::DeferHardIrqs(queue, _) => napi(queue, "defer-hard-irqs"),
        Setting::GroFlushTimeout(queue, _) => napi(queue, "gro-flush-timeout"),
        Setting::IrqSuspendTimeout(queue, _) => napi(queue, "irq-suspend-timeout"),
        Setting::Threaded(queue, _) => napi(queue, "threaded"),
        Setting::DeviceDeferHardIrqs(id, _) => device(id, "napi_defer_hard_irqs"),
        Setting::DeviceGroFlushTimeout(id, _) => device(id, "gro_flush_timeout"),
        Setting::DeviceThreaded(id, _) => device(id, "threaded"),
        Setting::Epoll(EpollId { process, fd }, _) => Call {
            needs: vec![Part::Started, Part::Epoll],
            line: format!("epoll {what} {} {} {fd} {set} {old}", process.pid, process.started),
        },
        Setting::IoUringNapi(RingId { process, fd }, _) => Call {
            needs: vec![Part::Started, Part::Ring],
            line: format!("ring {what} {} {} {fd} {set} {old}", process.pid, process.started),
        },
        Setting::Reuseport(..) => Call { needs: vec![], line: format!("stuck {what} {}", quoted(NO_BPF)) },
        Setting::IrqAffinity(irq, _) => Call {
            needs: vec![Part::File],
            line: format!("file {what} /proc/irq/{irq}/smp_affinity_list {set} {old}"),
        },
        Setting::IrqBan(irq, _) => {
            Call { needs: vec![Part::Irqbalance], line: format!("irqbalance_ban {what} {irq} {set} {old}") }
        }
        Setting::ThreadAffinity(ThreadId { process, tid, started, .. }, _) => Call {
            needs: vec![Part::Started, Part::Thread],
            line: format!("thread {what} {} {tid} {started} {set} {old}", process.pid),
        },
        Setting::Sysctl(number, _) => Call {
            needs: vec![Part::File],
            line: format!("file {what} /proc/sys/net/core/{number} {set} {old}"),
        },
        Setting::RpsCpus(queue, _) => mask(&queue.device, &format!("queues/rx-{}/rps_cpus", queue.index)),
        Setting::RpsFlowCount(queue, _) => {
            device(&queue.device, &format!("queues/rx-{}/rps_flow_cnt", queue.index))
        }
        Setting::XpsCpus(queue, _) => mask(&queue.device, &format!("queues/tx-{}/xps_cpus", queue.index)),
        Setting::XpsRxQueues(queue, _) => mask(&queue.device, &format!("queues/tx-{}/xps_rxqs", queue.index)),
        Setting::RssContext(id, queues, _) => Call {
            needs: vec![Part::Device, Part::Netns, Part::Nic, Part::Steer],
            line: format!(
                "in_netns {} rss_context {what} {} {} {} {set} {old}",
                id.netns,
                which(id),
                queues.first,
                queues.count
            ),
        },
        Setting::FlowRule(id, flow, _) => Call {
            needs: vec![Part::Device, Part::Netns, Part::Nic, Part::Steer],
            line: format!(
                "in_netns {} flow_rule {what} {} {} {set} {old}",
                id.netns,
                which(id),
                quoted(&flow.to_string())
            ),
        },
        Setting::Qdiscs(id, _) => {
            disciplines(&format!("{} qdiscs {what} {}", id.netns, which(id)), change, &set, &old)
        }
        Setting::PacketSize(id, size, _) => Call {
            needs: vec![Part::Device, Part::Netns, Part::Nic, Part::PacketSize],
            line: format!("in_netns {} packet_size {what} {} {size} {set} {old}", id.netns, which(id)),
        },
        Setting::Channels(id, ..)
        | Setting::Ring(id, ..)
        | Setting::Coalescing(id, ..)
        | Setting::Offload(id, ..)
        | Setting::PrivateFlag(id, ..)
        | Setting::RssTable(id, _)
        | Setting::RssKey(id, _)
        | Setting::QueueCoalescing(RxQueue { device: id, .. }, ..) => {
            by_ethtool(&format!("{} by_ethtool {what} {}", id.netns, which(id)), change.to(), &set, &old)
        }
    }
}

/// A device as the script knows it: by its index, and by what no other device has, where that was noted.
fn which(device: DeviceId, landmarks: &Landmarks) -> String {
    match landmarks.get(&device_landmark(device)).and_then(|number| number.parse::<u64>().ok()) {
        Some(number) => format!("{}:{number}", device.ifindex),
        None => device.ifindex.to_string(),
    }
}

/// The boot that a script belongs to, where its text says so.
pub(crate) fn boot_of(script: &str) -> Option<&str> {
    script.lines().find_map(|line| line.strip_prefix("boot='")?.strip_suffix('\''))
}

/// Why the script leaves a program of BPF alone.
const NO_BPF: &str =
    "no shell can tell whose program it is; netpolicy rollback can, and it goes with the last listener";

/// Queueing disciplines, which `tc` writes. `call` is the call up to the device.
fn disciplines(call: &str, change: &Change, set: &str, old: &str) -> Call {
    let commands = match change.from() {
        Setting::Qdiscs(_, before) => queueing::commands(before),
        other => unreachable!("{other} is no queueing discipline"),
    };
    let commands: Vec<String> = commands.iter().map(|command| quoted(command)).collect();
    Call {
        needs: vec![Part::Device, Part::Netns, Part::Nic, Part::Qdisc],
        line: format!("in_netns {call} {set} {old} {}", commands.join(" ")),
    }
}

/// A setting that ethtool writes, as ethtool spells it. `call` is the call up to the device.
fn by_ethtool(call: &str, setting: &Setting, set: &str, old: &str) -> Call {
    let queue_kind;
    let (kind, word) = match setting {
        Setting::Channels(_, ChannelKind::Rx, _) => ("channels", "rx"),
        Setting::Channels(_, ChannelKind::Tx, _) => ("channels", "tx"),
        Setting::Channels(_, ChannelKind::Combined, _) => ("channels", "combined"),
        Setting::Ring(_, RingKind::Rx, _) => ("ring", "rx"),
        Setting::Ring(_, RingKind::Tx, _) => ("ring", "tx"),
        Setting::Coalescing(..) => ("coalesce", setting.knob()),
        Setting::QueueCoalescing(queue, ..) => {
            queue_kind = format!("queue-{}", queue.index);
            (queue_kind.as_str(), setting.knob())
        }
        Setting::Offload(..) => ("offload", setting.knob()),
        Setting::PrivateFlag(_, flag, _) => ("flag", flag.as_str()),
        Setting::RssTable(..) => ("table", setting.knob()),
        Setting::RssKey(..) => ("key", setting.knob()),
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
        | Setting::PacketSize(..)
        | Setting::RssContext(..)
        | Setting::FlowRule(..)
        | Setting::Qdiscs(..)
        | Setting::RpsCpus(..)
        | Setting::RpsFlowCount(..)
        | Setting::XpsCpus(..)
        | Setting::XpsRxQueues(..)
        | Setting::Reuseport(..)
        | Setting::Sysctl(..) => unreachable!("{setting} is not ethtool's"),
    };
    Call {
        needs: vec![Part::Device, Part::Netns, Part::Nic, Part::Ethtool],
        line: format!("in_netns {call} {kind} {} {set} {old}", quoted(word)),
    }
}

/// A value as the script's tools write and read it.
fn value(setting: &Setting) -> String {
    match setting {
        Setting::DeferHardIrqs(_, polls) | Setting::DeviceDeferHardIrqs(_, polls) => polls.0.to_string(),
        Setting::GroFlushTimeout(_, span)
        | Setting::IrqSuspendTimeout(_, span)
        | Setting::DeviceGroFlushTimeout(_, span) => span.0.to_string(),
        // Kernel: 6.18, Documentation/netlink/specs/netdev.yaml, `napi-threaded`.
        Setting::Threaded(_, Threading::Off) => "disabled".to_owned(),
        Setting::Threaded(_, Threading::On) => "enabled".to_owned(),
        Setting::Threaded(_, Threading::BusyPoll) => "busy-poll".to_owned(),
        // Kernel: 6.18, `net/core/net-sysfs.c` `threaded_show()`.
        Setting::DeviceThreaded(_, Threading::Off) => "0".to_owned(),
        Setting::DeviceThreaded(_, Threading::On) => "1".to_owned(),
        Setting::DeviceThreaded(_, Threading::BusyPoll) => "2".to_owned(),
        Setting::Epoll(_, params) => format!(
            "{}/{}/{}{}",
            params.busy_poll_usecs,
            params.busy_poll_budget,
            u8::from(params.prefer_busy_poll),
            if params.events_only { "/1" } else { "" }
        ),
        Setting::IoUringNapi(_, None) => "off".to_owned(),
        Setting::IoUringNapi(_, Some(napi)) => {
            format!("{}/{}", napi.busy_poll_usecs, u8::from(napi.prefer_busy_poll))
        }
        Setting::IrqAffinity(_, cpus)
        | Setting::ThreadAffinity(_, cpus)
        | Setting::KthreadAffinity(_, cpus) => cpus.to_string(),
        Setting::KthreadScheduling(_, class) => class.to_string(),
        Setting::KthreadUtilClamp(_, clamp) => clamp.to_string(),
        Setting::RpsCpus(_, cpus) | Setting::XpsCpus(_, cpus) => cpus.to_mask(),
        Setting::XpsRxQueues(_, queues) => {
            queues.iter().map(|index| Cpu(index.0)).collect::<CpuSet>().to_mask()
        }
        Setting::RssTable(_, table) => {
            let queues: Vec<String> = table.iter().map(ToString::to_string).collect();
            queues.join(" ")
        }
        Setting::Qdiscs(_, qdiscs) => queueing::kinds(qdiscs),
        Setting::Channels(..)
        | Setting::Ring(..)
        | Setting::Coalescing(..)
        | Setting::QueueCoalescing(..)
        | Setting::Offload(..)
        | Setting::PacketSize(..)
        | Setting::PrivateFlag(..)
        | Setting::RssKey(..)
        | Setting::RssContext(..)
        | Setting::FlowRule(..)
        | Setting::RpsFlowCount(..)
        | Setting::IrqBan(..)
        | Setting::Reuseport(..)
        | Setting::Sysctl(..) => setting.value(),
    }
}

/// A text on one line: a name may have a newline in it, and after a newline a comment is over.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A text as one word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", one_line(text).replace('\'', r"'\''"))
}

/// The functions that a script may need, in the order in which they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    File,
    Device,
    DeviceFile,
    MaskFile,
    Netns,
    Napi,
    Kthread,
    Started,
    Thread,
    Epoll,
    Ring,
    Nic,
    Ethtool,
    PacketSize,
    Irqbalance,
    Steer,
    Qdisc,
}

impl Part {
    fn text(self) -> &'static str {
        match self {
            Self::File => include_str!("undo_script/file.sh"),
            Self::Device => include_str!("undo_script/device.sh"),
            Self::DeviceFile => include_str!("undo_script/device_file.sh"),
            Self::MaskFile => include_str!("undo_script/mask_file.sh"),
            Self::Netns => include_str!("undo_script/netns.sh"),
            Self::Napi => include_str!("undo_script/napi.sh"),
            Self::Kthread => include_str!("undo_script/kthread.sh"),
            Self::Started => include_str!("undo_script/started.sh"),
            Self::Thread => include_str!("undo_script/thread.sh"),
            Self::Epoll => include_str!("undo_script/epoll.sh"),
            Self::Ring => include_str!("undo_script/ring.sh"),
            Self::Nic => include_str!("undo_script/nic.sh"),
            Self::Ethtool => include_str!("undo_script/ethtool.sh"),
            Self::PacketSize => include_str!("undo_script/packet_size.sh"),
            Self::Irqbalance => include_str!("undo_script/irqbalance.sh"),
            Self::Steer => include_str!("undo_script/steer.sh"),
            Self::Qdisc => include_str!("undo_script/qdisc.sh"),
        }
    }
}

const HEAD: &str = include_str!("undo_script/head.sh");
const SETUP: &str = include_str!("undo_script/setup.sh");
const CALLED: &str = include_str!("undo_script/called.sh");
const END: &str = include_str!("undo_script/end.sh");
