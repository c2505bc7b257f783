//! The table of knobs (kinds of settings): every fact about a knob is stated once, next to the knob's
//! variant.
//!
//! Readers, writers, order, undo, `explain`, policy files and the reference page read this table. Properties
//! that depend on a knob's *value* (whether it can be restored, whether a step raises or lowers it) are in
//! the same row.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{KernelVersion, Nanoseconds};

/// The facts about a knob that are known without reading or writing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The kernel's spelling.
    pub name: &'static str,
    /// The key that sets this knob in a policy file and in `--setting`; `None` if only a policy or a mode
    /// sets it.
    pub key: Option<&'static str>,
    /// The meaning of the policy-file key, if the knob's value is derived from what the key gives; `None` if
    /// the key gives the value itself.
    pub asks: Option<&'static str>,
    /// The unit of the knob's number.
    pub unit: KnobUnit,
    /// The smallest and the largest number that netpolicy writes, inclusive; `None` if the value is a list or
    /// a word.
    pub range: Option<(u64, u64)>,
    /// The first kernel version with this knob.
    pub since: KernelVersion,
    /// The kernel interface through which the knob is written.
    pub interface: Interface,
    /// The phase of a plan in which the knob is written.
    pub phase: WritePhase,
    /// The phase in which the knob is written if its value falls or its object is removed; for most knobs,
    /// this equals `phase`.
    pub phase_down: WritePhase,
    /// The position of the knob among other knobs of the same object; 1 depends on no other knob. Steps that
    /// raise values are written in ascending order of rank, steps that lower values in descending order.
    pub rank: i8,
    /// How writing the knob disrupts traffic.
    pub disruption: Disruption,
    /// Whether a change of the value can take a queue from its holder, such as an AF_XDP socket.
    pub takes_queues: bool,
    /// Whether writing the knob affects only its NAPI: no thread starts or exits, and no object is created or
    /// removed.
    pub in_napi_only: bool,
    /// Why the knob may have no value on an object that exists.
    pub absent: Absent,
    /// Describes the values that can be read but not written back; `None` if every value can be written.
    pub irreversible: Option<&'static str>,
    /// The documentation in Markdown: meaning, then range, then source (`Kernel:` or `Source:`).
    pub doc: &'static str,
    /// Where the kernel implements this kind of knob, if the knob's own documentation does not say so.
    pub source_of_kind: Option<&'static str>,
}

impl Facts {
    /// Returns the default facts of a knob that is written through this interface in this phase. Every knob
    /// overrides the name and adds its documentation.
    pub(crate) const fn at(interface: Interface, phase: WritePhase) -> Self {
        Self {
            name: "",
            key: None,
            asks: None,
            unit: KnobUnit::Word,
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

    /// Returns the meaning of the knob, in one paragraph.
    pub fn meaning(&self) -> String {
        self.paragraphs().next().unwrap_or_default()
    }

    /// Returns the meaning of the knob's key, in one paragraph.
    pub fn meaning_of_key(&self) -> String {
        self.asks.map_or_else(|| self.meaning(), str::to_owned)
    }

    /// Returns where the knob is implemented, and since which version: `Kernel: 6.13, …`, or `Source: …` for
    /// a knob outside the kernel. The first version after `Kernel:` is [`Facts::since`].
    pub fn cited(&self) -> Option<String> {
        let own = self.paragraphs().find_map(|text| {
            let at = text.find(KERNEL).or_else(|| text.find(SOURCE))?;
            Some(text[at..].to_owned())
        });
        own.or_else(|| self.source_of_kind.map(|source| format!("{KERNEL}{source}")))
    }

    /// Returns [`Facts::cited`] without the leading word.
    pub fn source(&self) -> Option<String> {
        let cited = self.cited()?;
        let source = cited.strip_prefix(KERNEL).or_else(|| cited.strip_prefix(SOURCE))?;
        Some(source.to_owned())
    }

    /// Describes the values that netpolicy writes, with their unit, such as `0 to 2147483647 polls` or `on or
    /// off`; empty for lists and words.
    pub fn values(&self) -> String {
        match (self.unit, self.range) {
            (KnobUnit::Switch, _) | (_, None) => self.unit.to_string(),
            (KnobUnit::Word, Some((least, most))) => format!("{least} to {most}"),
            (unit, Some((least, u64::MAX))) => format!("{least} and more, {unit}"),
            (unit, Some((least, most))) => format!("{least} to {most} {unit}"),
        }
    }

    /// Formats a number of the knob as policy files and output show it: nanoseconds as a time span such as
    /// `20us`.
    pub fn written(&self, number: u64) -> String {
        if self.unit == KnobUnit::Nanoseconds { Nanoseconds(number).to_string() } else { number.to_string() }
    }

    /// Returns the paragraphs of the documentation, each on one line, without link markup.
    fn paragraphs(&self) -> impl Iterator<Item = String> {
        self.doc.split("\n\n").map(one_line)
    }
}

/// The prefixes that introduce a knob's source in its documentation: for the kernel, and for another program.
const KERNEL: &str = "Kernel: ";
const SOURCE: &str = "Source: ";

/// Formats a paragraph on one line for display. A link such as ``[`NapiKnob::Threaded`]`` becomes its last
/// name in the kernel's spelling.
fn one_line(paragraph: &str) -> String {
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    without_links(&words.join(" "), |_, name| with_dashes(name))
}

/// Replaces each rustdoc link of a text, such as ``[`NapiKnob::Threaded`]``, by what `shown` returns for its
/// path (`NapiKnob`) and its last name (`Threaded`).
pub fn without_links(mut text: &str, shown: impl Fn(&str, &str) -> String) -> String {
    let mut readable = String::new();
    while let Some((before, (link, after))) =
        text.split_once("[`").and_then(|(before, rest)| Some((before, rest.split_once("`]")?)))
    {
        let (path, name) = link.rsplit_once("::").unwrap_or(("", link));
        readable.push_str(before);
        readable.push_str(&shown(path, name));
        text = after;
    }
    readable + text
}

/// Converts a variant's name to the kernel's spelling: `GroFlushTimeout` becomes `gro-flush-timeout`.
#[must_use]
pub fn with_dashes(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.extend(c.to_lowercase());
    }
    text
}

/// The unit of a knob's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KnobUnit {
    /// No unit: the value is a word, or several numbers.
    Word,
    /// On or off.
    Switch,
    /// Polls that found no packets.
    Polls,
    /// Nanoseconds; policy files accept spans such as `20us`.
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

impl fmt::Display for KnobUnit {
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

/// The phases of a plan, in the order in which knobs are written. `plan::order` explains the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WritePhase {
    /// Host-wide sysctls.
    Host,
    /// Queue counts.
    Channels,
    /// Ring sizes.
    Rings,
    /// Offloads and private flags.
    Offloads,
    /// Maximum sizes of GSO and GRO packets.
    PacketSizes,
    /// Interrupt moderation.
    Coalescing,
    /// Qdiscs.
    Qdiscs,
    /// The RSS table and key.
    Rss,
    /// RSS contexts to which ntuple rules refer.
    RssContexts,
    /// Ntuple rules.
    FlowRules,
    /// RSS contexts to which no rule refers any more.
    RssContextsGo,
    /// RPS, RFS and XPS.
    Steering,
    /// Interrupts that irqbalance must not move: they are banned before irqbalance sees that they were moved.
    IrqBan,
    /// IRQ affinity.
    Irq,
    /// Thread affinity.
    Thread,
    /// Assignment of connections to the listeners of their queues.
    Reuseport,
    /// Epolls that start to poll, or poll more.
    EpollRises,
    /// io_urings and sockets that start to poll, or poll more.
    RingRises,
    /// Settings of kernel threads that are about to end.
    KthreadLeaves,
    /// Device-wide values, which overwrite those of the queues.
    Device,
    /// Queues.
    Queue,
    /// Settings of kernel threads, which exist once their queues are threaded.
    Kthread,
    /// io_urings and sockets that poll less.
    RingFalls,
    /// Epolls that poll less.
    EpollFalls,
}

/// How writing a setting disrupts traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disruption {
    /// No packet is delayed or lost.
    None,
    /// A queue stops while it is reset.
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

/// Why a knob may have no value on an object that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The value could not be read.
    Unread,
    /// The driver does not support the knob.
    Driver,
    /// The driver does not support the feature, named here, to which the knob belongs.
    DriverPart(&'static str),
    /// The kernel is too old for the knob, or does not report it.
    Kernel,
    /// The knob is machine-wide, and only the initial network namespace shows it.
    InitialNetns,
}

/// The kernel interface that writes a setting. Settings of one object with the same interface are written in
/// one call, if the interface allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interface {
    /// netdev netlink `napi-set`.
    Napi,
    /// Files in `/sys/class/net/DEV` that set all NAPIs of a device.
    DeviceNapis,
    /// ethtool netlink `channels-set`.
    Channels,
    /// ethtool netlink `rings-set`.
    Rings,
    /// ethtool netlink `coalesce-set`.
    Coalescing,
    /// ethtool netlink `features-set`.
    Offloads,
    /// rt-link `RTM_NEWLINK`, for maximum packet sizes.
    PacketSizes,
    /// ethtool netlink `privflags-set`.
    PrivateFlags,
    /// The ethtool ioctl for RSS.
    Rss,
    /// The ethtool ioctl for RSS contexts.
    RssContexts,
    /// The ethtool ioctl for ntuple rules.
    FlowRules,
    /// rtnetlink for qdiscs.
    Qdiscs,
    /// The ethtool ioctl for per-queue interrupt moderation.
    QueueCoalescing,
    /// Files in `/sys/class/net/DEV/queues`.
    Steering,
    /// Files in `/proc/sys/net/core`.
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
    /// irqbalance's socket.
    Irqbalance,
    /// `sched_setaffinity`.
    ThreadAffinity,
    /// `sched_setaffinity` and `sched_setattr` on a NAPI's kernel thread.
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
            Self::Rss => "ethtool ioctl, for RSS",
            Self::RssContexts => "ethtool ioctl, for RSS contexts",
            Self::FlowRules => "ethtool ioctl, for ntuple rules",
            Self::Qdiscs => "rtnetlink, for qdiscs",
            Self::QueueCoalescing => "ethtool ioctl, per queue",
            Self::Steering => "files of /sys/class/net/DEV/queues",
            Self::Sysctl => "files of /proc/sys/net/core",
            Self::Epoll => "ioctl EPIOCSPARAMS on an epoll",
            Self::IoUring => "IORING_REGISTER_NAPI on an io_uring",
            Self::Socket => {
                "setsockopt SO_BUSY_POLL, SO_PREFER_BUSY_POLL and SO_BUSY_POLL_BUDGET on a socket"
            }
            Self::Reuseport => "SO_ATTACH_REUSEPORT_EBPF on a listener",
            Self::IrqAffinity => "/proc/irq/N/smp_affinity_list",
            Self::Irqbalance => "irqbalance's socket",
            Self::ThreadAffinity => "sched_setaffinity",
            Self::Kthread => "sched_setaffinity and sched_setattr on a NAPI's kernel thread",
        })
    }
}
