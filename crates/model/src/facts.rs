//! The table of knobs: every fact about a knob stands here once, beside its variant.
//!
//! Readers, writers, order, undo, `explain`, policy files and the reference page ask this table. What a knob's *value*
//! decides (whether it can be put back, whether a step raises or lowers it) stands in the same row.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{KernelVersion, Nanoseconds};

/// What is known about a knob before it is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The kernel's spelling.
    pub name: &'static str,
    /// The key of a policy file, and of `--setting`, that sets it on its own; `None` where only a policy or a mode does.
    pub key: Option<&'static str>,
    /// What the key asks for, where that is not the value of the knob, but what it is worked out from; else `None`.
    pub asks: Option<&'static str>,
    /// What its number counts.
    pub unit: Unit,
    /// The smallest and the largest number that netpolicy writes, both included; of lists and words, `None`.
    pub range: Option<(u64, u64)>,
    /// The first kernel that has it.
    pub since: KernelVersion,
    /// Through which interface of the kernel it is written.
    pub interface: Interface,
    /// When it is written, as part of a plan.
    pub phase: Phase,
    /// When it is written if its value falls, or its object goes; elsewhere the same as `phase`.
    pub phase_down: Phase,
    /// How much it depends on other knobs of the same object: 1 depends on none. Raising goes up, lowering goes down.
    pub rank: i8,
    /// What writing it does to traffic.
    pub disruption: Disruption,
    /// Whether another value can take a queue from who holds it, as an AF_XDP socket does.
    pub takes_queues: bool,
    /// Whether writing it changes nothing beside its NAPI: no thread begins or ends, and no object comes or goes.
    pub in_napi_only: bool,
    /// Why it has no value on an object that exists.
    pub absent: Absent,
    /// Values that can be read and not be written back, in words; `None` where every value can.
    pub irreversible: Option<&'static str>,
    /// The documentation: meaning, then range, then source (`Kernel:` or `Source:`), as Markdown.
    pub doc: &'static str,
    /// Where the kernel implements all knobs of its kind, for those whose documentation does not name a place of their own.
    pub source_of_kind: Option<&'static str>,
}

impl Facts {
    /// A knob that is written through this interface in this phase. Every knob overrides its name, and documents itself.
    pub(crate) const fn at(interface: Interface, phase: Phase) -> Self {
        Self {
            name: "",
            key: None,
            asks: None,
            unit: Unit::Word,
            range: None,
            since: crate::since::ALWAYS,
            interface,
            phase,
            phase_down: phase,
            rank: 1,
            disruption: Disruption::None,
            takes_queues: false,
            in_napi_only: false,
            absent: Absent::Unread,
            irreversible: None,
            doc: "",
            source_of_kind: None,
        }
    }

    /// What it means, in one paragraph.
    pub fn meaning(&self) -> String {
        self.paragraphs().next().unwrap_or_default()
    }

    /// What its key means, in one paragraph.
    pub fn meaning_of_key(&self) -> String {
        self.asks.map_or_else(|| self.meaning(), str::to_owned)
    }

    /// Where it is implemented, and since when, with the word that says by whom: `Kernel: 6.13, …`; `Source: …` where that is
    /// not the kernel. The first version behind `Kernel:` is that of [`Facts::since`].
    pub fn cited(&self) -> Option<String> {
        let own = self.paragraphs().find_map(|text| {
            let at = text.find(KERNEL).or_else(|| text.find(SOURCE))?;
            Some(text[at..].to_owned())
        });
        own.or_else(|| self.source_of_kind.map(|source| format!("{KERNEL}{source}")))
    }

    /// The same without that word.
    pub fn source(&self) -> Option<String> {
        let cited = self.cited()?;
        let source = cited.strip_prefix(KERNEL).or_else(|| cited.strip_prefix(SOURCE))?;
        Some(source.to_owned())
    }

    /// The values that netpolicy writes, with their unit: `0 to 2147483647 polls`, `on or off`; of lists and words, nothing.
    pub fn values(&self) -> String {
        match (self.unit, self.range) {
            (Unit::Switch, _) | (_, None) => self.unit.to_string(),
            (Unit::Word, Some((least, most))) => format!("{least} to {most}"),
            (unit, Some((least, u64::MAX))) => format!("{least} and more, {unit}"),
            (unit, Some((least, most))) => format!("{least} to {most} {unit}"),
        }
    }

    /// A number of the knob, as people and policy files write it: nanoseconds as a span such as `20us`.
    pub fn written(&self, number: u64) -> String {
        if self.unit == Unit::Nanoseconds { Nanoseconds(number).to_string() } else { number.to_string() }
    }

    /// The paragraphs of the documentation, each on one line, without the marks of links.
    fn paragraphs(&self) -> impl Iterator<Item = String> {
        self.doc.split("\n\n").map(one_line)
    }
}

/// What begins the source of a knob in its documentation: the kernel's, and another program's.
const KERNEL: &str = "Kernel: ";
const SOURCE: &str = "Source: ";

/// A paragraph on one line, as people read it: a link such as ``[`NapiKnob::Threaded`]`` is its last name, as the kernel
/// spells such names.
fn one_line(paragraph: &str) -> String {
    let mut text = String::new();
    for word in paragraph.split_whitespace() {
        if !text.is_empty() {
            text.push(' ');
        }
        match word.split_once("[`").and_then(|(before, rest)| Some((before, rest.split_once("`]")?))) {
            Some((before, (link, after))) => {
                text.push_str(before);
                text.push_str(&with_dashes(link.rsplit("::").next().unwrap_or(link)));
                text.push_str(after);
            }
            None => text.push_str(word),
        }
    }
    text
}

/// The name of a variant as the kernel would spell it: `GroFlushTimeout` is `gro-flush-timeout`.
fn with_dashes(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.extend(c.to_lowercase());
    }
    text
}

/// What the number of a knob counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// It has words, or several numbers.
    Word,
    /// On or off.
    Switch,
    /// Polls that found nothing.
    Polls,
    /// Nanoseconds; policy files take spans such as `20us`.
    Nanoseconds,
    /// Microseconds.
    Microseconds,
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
    /// Queues.
    Queues,
    /// Descriptors of a ring.
    Descriptors,
    /// Flows.
    Flows,
    /// A list of CPUs.
    Cpus,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Word => "",
            Self::Switch => "on or off",
            Self::Polls => "polls",
            Self::Nanoseconds => "ns",
            Self::Microseconds => "us",
            Self::Packets => "packets",
            Self::Bytes => "bytes",
            Self::Queues => "queues",
            Self::Descriptors => "descriptors",
            Self::Flows => "flows",
            Self::Cpus => "CPUs",
        })
    }
}

/// When a knob is written, as part of a plan: the smaller first. `plan::order` says why the phases stand like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Numbers of the whole host.
    Host,
    /// Counts of queues.
    Channels,
    /// Sizes of rings.
    Rings,
    /// What the device and its driver do with packets.
    Offloads,
    /// How large the packets are that it makes of others.
    PacketSizes,
    /// When the device interrupts.
    Coalescing,
    /// What packets wait in before they leave.
    Qdiscs,
    /// Which queue a packet goes to.
    Rss,
    /// Contexts of the receive hash, which rules lead to.
    RssContexts,
    /// Rules of the NIC.
    FlowRules,
    /// Contexts that no rule leads to any more.
    RssContextsGo,
    /// Which CPU a packet goes to, and from which CPU it leaves by which queue.
    Steering,
    /// Interrupts that irqbalance shall leave alone: before it sees that they were moved.
    IrqBan,
    /// Interrupts to their CPUs.
    Irq,
    /// Threads to their CPUs.
    Thread,
    /// Connections to the listeners of their queues.
    Reuseport,
    /// Epolls that begin to poll, or poll more.
    EpollRises,
    /// The same for io_urings and single sockets.
    RingRises,
    /// Kernel threads that are about to end.
    KthreadLeaves,
    /// Whole devices, whose values overwrite those of their queues.
    Device,
    /// Queues.
    Queue,
    /// Kernel threads that are there now.
    Kthread,
    /// io_urings and single sockets that poll less.
    RingFalls,
    /// The same for epolls.
    EpollFalls,
}

/// What writing a setting does to traffic while it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disruption {
    /// No packet is delayed or lost.
    None,
    /// A queue stops for the time of a reset.
    QueueReset,
    /// The link goes down.
    LinkDown,
}

impl fmt::Display for Disruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "delays no packet",
            Self::QueueReset => "stops the queue for a reset",
            Self::LinkDown => "takes the link down",
        })
    }
}

/// Why a knob has no value on an object that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// It could not be read.
    Unread,
    /// The device's driver does not have the knob.
    Driver,
    /// The device's driver does not have what the knob is a part of, in words.
    DriverPart(&'static str),
    /// The kernel is older than the knob, or did not say it.
    Kernel,
    /// It is of the whole machine, and only the initial network namespace shows it.
    InitialNetns,
}

/// Through which kernel interface a setting is written: the settings of one object that share one are written in
/// one call, where the interface allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interface {
    /// netdev netlink `napi-set`.
    Napi,
    /// Files of `/sys/class/net/DEV` that set all NAPIs of a device.
    DeviceNapis,
    /// ethtool netlink `channels-set`.
    Channels,
    /// ethtool netlink `rings-set`.
    Rings,
    /// ethtool netlink `coalesce-set`.
    Coalescing,
    /// ethtool netlink `features-set`.
    Offloads,
    /// rt-link `RTM_NEWLINK`, for how large packets may be.
    PacketSizes,
    /// ethtool netlink `privflags-set`.
    PrivateFlags,
    /// The ioctl for the receive hash.
    Rss,
    /// The ioctl for contexts of the receive hash.
    RssContexts,
    /// The ioctl for rules of the NIC.
    FlowRules,
    /// rtnetlink for queueing disciplines.
    Qdiscs,
    /// The ioctl for the interrupt moderation of one queue.
    QueueCoalescing,
    /// Files of `/sys/class/net/DEV/queues`.
    Steering,
    /// Files of `/proc/sys/net/core`.
    Sysctl,
    /// `EPIOCSPARAMS` on an epoll.
    Epoll,
    /// `IORING_REGISTER_NAPI` on an io_uring.
    IoUring,
    /// `SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET` on a socket.
    Socket,
    /// `SO_ATTACH_REUSEPORT_EBPF` on a listener.
    Reuseport,
    /// `/proc/irq/N/smp_affinity_list`.
    IrqAffinity,
    /// The socket of irqbalance.
    Irqbalance,
    /// `sched_setaffinity`.
    ThreadAffinity,
    /// `sched_setaffinity` and `sched_setattr` on the kernel thread of a NAPI.
    Kthread,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Napi => "netdev netlink, napi-set",
            Self::DeviceNapis => "files of /sys/class/net/DEV, for all NAPIs of a device",
            Self::Channels => "ethtool netlink, channels-set",
            Self::Rings => "ethtool netlink, rings-set",
            Self::Coalescing => "ethtool netlink, coalesce-set",
            Self::Offloads => "ethtool netlink, features-set",
            Self::PacketSizes => "rtnetlink, RTM_NEWLINK",
            Self::PrivateFlags => "ethtool netlink, privflags-set",
            Self::Rss => "ethtool ioctl, for the receive hash",
            Self::RssContexts => "ethtool ioctl, for contexts of the receive hash",
            Self::FlowRules => "ethtool ioctl, for rules of the NIC",
            Self::Qdiscs => "rtnetlink, for queueing disciplines",
            Self::QueueCoalescing => "ethtool ioctl, for one queue",
            Self::Steering => "files of /sys/class/net/DEV/queues",
            Self::Sysctl => "files of /proc/sys/net/core",
            Self::Epoll => "ioctl EPIOCSPARAMS on an epoll",
            Self::IoUring => "IORING_REGISTER_NAPI on an io_uring",
            Self::Socket => {
                "setsockopt SO_BUSY_POLL, SO_PREFER_BUSY_POLL and SO_BUSY_POLL_BUDGET on a socket"
            }
            Self::Reuseport => "SO_ATTACH_REUSEPORT_EBPF on a listener",
            Self::IrqAffinity => "/proc/irq/N/smp_affinity_list",
            Self::Irqbalance => "the socket of irqbalance",
            Self::ThreadAffinity => "sched_setaffinity",
            Self::Kthread => "sched_setaffinity and sched_setattr on the kernel thread of a NAPI",
        })
    }
}
