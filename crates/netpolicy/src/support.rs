//! Determines which mechanisms can be used on a host, why others cannot, and which kernel introduced them.
//! The reference page is generated from the same table.

use linux::{KernelError, Netns, Processes};
use model::host::Device;
use model::{Host, KernelVersion, KthreadKnob, KthreadState, Prerequisites, Slice, since};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use session::page::{Cell, Page, RecordSchema, Report, Style, Table, record, to_json};

/// A mechanism and its requirements.
#[derive(Clone, Copy, Debug)]
pub struct MechanismRow {
    /// The mechanism's name. It does not change, so scripts can rely on it.
    pub name: &'static str,
    /// The effect of the mechanism.
    pub meaning: &'static str,
    /// The first kernel release with the mechanism; `None` if no release has it.
    pub since: Option<KernelVersion>,
    /// Further requirements of the mechanism.
    pub needs: &'static [MechanismNeed],
}

/// A requirement of a mechanism.
#[derive(Clone, Copy, Debug)]
pub enum MechanismNeed {
    /// A kernel feature, which can be queried.
    Kernel(&'static str, fn(&Host) -> bool),
    /// A kernel feature that is visible in the state of a kernel thread.
    Thread(&'static str, fn(&KthreadState) -> bool),
    /// A property of the host, or a privilege of the caller.
    Held(&'static str, fn(&Host, &Prerequisites) -> bool),
    /// A device with a driver that supports the mechanism.
    Device(&'static str, fn(&Device) -> bool),
}

impl MechanismNeed {
    /// Returns the requirement as text, for display.
    pub const fn words(&self) -> &'static str {
        match self {
            Self::Kernel(words, _)
            | Self::Thread(words, _)
            | Self::Held(words, _)
            | Self::Device(words, _) => words,
        }
    }
}

const NET_ADMIN: MechanismNeed = MechanismNeed::Held("CAP_NET_ADMIN", |host, _| host.capabilities.net_admin);
const PTRACE: MechanismNeed = MechanismNeed::Held("CAP_SYS_PTRACE", |host, _| host.capabilities.ptrace);
const SYS_ADMIN: MechanismNeed = MechanismNeed::Held("CAP_SYS_ADMIN", |_, has| has.cap_sys_admin);
const BPF: MechanismNeed = MechanismNeed::Held("CAP_BPF", |_, has| has.cap_bpf);
const PERFMON: MechanismNeed = MechanismNeed::Held("CAP_PERFMON", |_, has| has.cap_perfmon);
const BTF: MechanismNeed = MechanismNeed::Held("kernel BTF", |_, has| has.btf);
const NO_RT: MechanismNeed = MechanismNeed::Held("a kernel without PREEMPT_RT", |_, has| !has.preempt_rt);
const NAPIS: MechanismNeed = MechanismNeed::Device("a device with NAPIs", |device| !device.napis.is_empty());

/// All mechanisms, ordered by kind: packet delivery, threads, NIC, measurement, applications.
pub const MECHANISMS: &[MechanismRow] = &[
    MechanismRow {
        name: "defer-device",
        meaning: "interrupts deferred for all queues of a device together",
        since: Some(since::DEVICE_DEFER_HARD_IRQS),
        needs: &[
            NET_ADMIN,
            MechanismNeed::Device("a device with napi_defer_hard_irqs", |device| {
                device.defer_hard_irqs.is_some() && !device.napis.is_empty()
            }),
        ],
    },
    MechanismRow {
        name: "defer-queue",
        meaning: "interrupts deferred for individual queues",
        since: Some(since::NAPI_SET),
        needs: &[MechanismNeed::Kernel("napi-set", |host| host.capabilities.napi_set), NET_ADMIN, NAPIS],
    },
    MechanismRow {
        name: "suspend",
        meaning: "interrupts masked while a running process's epoll_wait finds events",
        since: Some(since::NAPI_SET),
        needs: &[
            MechanismNeed::Kernel("irq-suspend-timeout", |host| host.capabilities.irq_suspend),
            MechanismNeed::Kernel("EPIOCSPARAMS", |host| host.capabilities.epoll_params),
            NET_ADMIN,
            PTRACE,
            NAPIS,
        ],
    },
    MechanismRow {
        name: "epoll-busy-poll",
        meaning: "busy polling in the epolls of a running process",
        since: Some(since::EPOLL_PARAMS),
        needs: &[
            MechanismNeed::Kernel("EPIOCSPARAMS", |host| host.capabilities.epoll_params),
            NET_ADMIN,
            PTRACE,
            NAPIS,
        ],
    },
    MechanismRow {
        name: "eventbusy",
        meaning: "epoll_wait that busy-waits for events, without polling a device",
        since: None,
        needs: &[
            MechanismNeed::Kernel("the patches in kernel/epoll-event-busy-loop", |host| {
                host.capabilities.epoll_events_only
            }),
            PTRACE,
        ],
    },
    MechanismRow {
        name: "threads-device",
        meaning: "kernel threads that poll for all queues of a device together",
        since: Some(since::NAPI_THREADS),
        needs: &[
            NET_ADMIN,
            MechanismNeed::Device("a device with threaded", |device| {
                device.threaded.is_some() && !device.napis.is_empty()
            }),
        ],
    },
    MechanismRow {
        name: "threads-queue",
        meaning: "kernel threads that poll for individual queues",
        since: Some(since::QUEUE_THREADS),
        needs: &[
            MechanismNeed::Kernel("napi-set with threaded", |host| host.capabilities.napi_threaded),
            NET_ADMIN,
            NAPIS,
        ],
    },
    MechanismRow {
        name: "threads-busy",
        meaning: "kernel threads that poll continuously",
        since: Some(since::BUSY_THREADS),
        needs: &[
            MechanismNeed::Kernel("threaded: busy-poll", |host| host.capabilities.napi_threaded_busy),
            NET_ADMIN,
            NAPIS,
        ],
    },
    MechanismRow {
        name: "thread-class",
        meaning: "scheduling class and CPUs of the kernel threads that poll",
        since: Some(since::NAPI_THREADS),
        needs: &[
            MechanismNeed::Thread("sched_getattr", |begins| begins.scheduling.is_some()),
            MechanismNeed::Held("CAP_SYS_NICE", |_, has| has.cap_sys_nice),
        ],
    },
    MechanismRow {
        name: "thread-slice",
        meaning: "how long these threads run before another thread may run on their CPU",
        since: Some(KthreadKnob::Slice(Slice::Default).facts().since),
        needs: &[MechanismNeed::Thread("sched_attr with a slice", |begins| begins.slice.is_some())],
    },
    MechanismRow {
        name: "thread-util-clamp",
        meaning: "the CPU utilisation that the scheduler assumes for these threads",
        since: Some(since::NAPI_THREADS),
        needs: &[MechanismNeed::Thread("CONFIG_UCLAMP_TASK", |begins| begins.util_clamp.is_some())],
    },
    MechanismRow {
        name: "irq-affinity",
        meaning: "interrupts placed on CPUs",
        since: Some(since::IRQ_AFFINITY_LIST),
        needs: &[
            MechanismNeed::Device("a device whose queues' interrupts are known", |device| {
                device.napis.iter().any(|napi| napi.irq.is_some())
            }),
            MechanismNeed::Held("root's files of /proc/irq", |_, has| has.cap_sys_admin),
        ],
    },
    MechanismRow {
        name: "channels",
        meaning: "how many queues a device has",
        since: Some(since::ETHTOOL_NETLINK_SET),
        needs: &[
            NET_ADMIN,
            MechanismNeed::Device("a driver with channels", |device| device.channels.is_some()),
        ],
    },
    MechanismRow {
        name: "rings",
        meaning: "how many descriptors a ring has",
        since: Some(since::ETHTOOL_NETLINK_SET),
        needs: &[
            NET_ADMIN,
            MechanismNeed::Device("a driver with ring sizes", |device| device.rings.is_some()),
        ],
    },
    MechanismRow {
        name: "coalescing",
        meaning: "interrupt moderation of a device",
        since: Some(since::ETHTOOL_NETLINK_SET),
        needs: &[
            NET_ADMIN,
            MechanismNeed::Device("a driver with coalescing", |device| device.coalesce.is_some()),
        ],
    },
    MechanismRow {
        name: "coalescing-queue",
        meaning: "interrupt moderation of individual queues",
        since: Some(since::QUEUE_COALESCING),
        needs: &[
            NET_ADMIN,
            MechanismNeed::Device("a driver with ETHTOOL_PERQUEUE", |device| {
                device.rx_queues.iter().any(|queue| queue.coalesce.is_some())
            }),
        ],
    },
    MechanismRow {
        name: "rss",
        meaning: "the queues over which the receive hash spreads packets",
        since: Some(since::RSS),
        needs: &[
            NET_ADMIN,
            MechanismNeed::Device("a driver with an RSS indirection table", |device| device.rss.is_some()),
        ],
    },
    MechanismRow {
        name: "rss-contexts",
        meaning: "groups of queues with a separate receive hash",
        since: Some(since::RSS_CONTEXTS),
        needs: &[
            NET_ADMIN,
            MechanismNeed::Device("a driver with RSS contexts", |device| device.rss_contexts.is_some()),
        ],
    },
    MechanismRow {
        name: "flow-rules",
        meaning: "flows directed to a queue by the NIC (ntuple rules)",
        since: Some(since::ALWAYS),
        needs: &[
            NET_ADMIN,
            MechanismNeed::Device("a driver with ntuple rules", |device| device.flow_rules.is_some()),
        ],
    },
    MechanismRow {
        name: "big-tcp",
        meaning: "packets above 64 KiB inside the host: BIG TCP",
        since: Some(since::BIG_TCP),
        needs: &[
            NET_ADMIN,
            MechanismNeed::Device("a driver that accepts more than 64 KiB", |device| {
                device.packet_sizes.tso_max_size.is_some_and(|size| size > SMALL_TCP_MAX)
            }),
        ],
    },
    MechanismRow {
        name: "counting",
        meaning: "the context that polls each NAPI: doctor, top, engaged",
        since: Some(since::COUNTING),
        needs: &[BTF, BPF, PERFMON, NO_RT],
    },
    MechanismRow {
        name: "response-times",
        meaning: "how long a service's requests take: watch, compare, goals",
        since: Some(since::RESPONSE_TIMES),
        needs: &[BTF, BPF, PERFMON, NO_RT],
    },
    MechanismRow {
        name: "reuseport",
        meaning: "connections assigned to the worker of their queue",
        since: Some(since::REUSEPORT_BY_QUEUE),
        needs: &[BTF, SYS_ADMIN, PTRACE],
    },
    MechanismRow {
        name: "sockets",
        meaning: "applications that request a policy: SO_NETPOLICY, PR_SET_NETPOLICY",
        since: Some(since::SOCKET_REQUESTS),
        needs: &[
            BTF,
            SYS_ADMIN,
            MechanismNeed::Held("the unified cgroup hierarchy", |_, has| has.cgroup2),
            MechanismNeed::Held("a BPF file system at /sys/fs/bpf", |_, has| has.bpf_fs),
        ],
    },
];

/// The maximum size of a TCP packet without BIG TCP, in bytes. Kernel: `include/linux/netdevice.h`
/// `GSO_LEGACY_MAX_SIZE`.
const SMALL_TCP_MAX: u32 = 65_536;

/// Which mechanisms can be used on a host.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SupportMatrix {
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// The mechanisms.
    pub mechanisms: Vec<Supported>,
}

/// Whether a mechanism can be used on a host.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Supported {
    /// The name.
    pub name: String,
    /// The effect of the mechanism.
    pub meaning: String,
    /// The first kernel release with the mechanism; `None` if no release has it.
    pub since: Option<String>,
    /// Whether this caller can use the mechanism on this host.
    pub usable: bool,
    /// The devices on which the mechanism can be used; empty if it does not depend on a device.
    pub devices: Vec<String>,
    /// The missing requirements.
    pub lacks: Vec<String>,
}

impl SupportMatrix {
    /// Queries the kernel, the drivers of a namespace's devices, and the caller's privileges.
    ///
    /// # Errors
    /// If the namespace cannot be entered or its devices cannot be listed.
    pub fn here(netns: &Netns) -> Result<Self, KernelError> {
        let host = linux::observe(netns, &Processes::None)?;
        Ok(Self::of(&host, &linux::observe::prerequisites()))
    }

    /// Determines which mechanisms can be used on this host.
    pub fn of(host: &Host, has: &Prerequisites) -> Self {
        let mechanisms = MECHANISMS.iter().map(|mechanism| mechanism.on(host, has)).collect();
        Self { release: host.release.clone(), mechanisms }
    }
}

impl MechanismRow {
    fn on(&self, host: &Host, has: &Prerequisites) -> Supported {
        let mut lacks = Vec::new();
        let mut devices: Option<Vec<&Device>> = None;
        for need in self.needs {
            match need {
                MechanismNeed::Kernel(words, has_it) if !has_it(host) => {
                    lacks.push(self.without(words, host))
                }
                MechanismNeed::Thread(words, has_it) => match &host.kthread_begins {
                    Some(begins) if has_it(begins) => {}
                    None if self.since.is_none_or(|since| host.kernel >= since) => {
                        lacks.push(NO_THREAD.to_owned());
                    }
                    _ => lacks.push(self.without(words, host)),
                },
                MechanismNeed::Held(words, has_it) if !has_it(host, has) => lacks.push((*words).to_owned()),
                MechanismNeed::Kernel(..) | MechanismNeed::Held(..) => {}
                MechanismNeed::Device(words, has_it) => {
                    let known = host.devices.iter().filter(|device| device.id.name.as_str() != LOOPBACK);
                    let found: Vec<&Device> = known.filter(|device| has_it(device)).collect();
                    if found.is_empty() {
                        lacks.push((*words).to_owned());
                    }
                    devices = Some(found);
                }
            }
        }
        if let Some(since) = self.since
            && host.kernel < since
            && !lacks.iter().any(|lack| lack.starts_with("Linux "))
        {
            lacks.insert(0, format!("Linux {since}: this is {}", host.kernel));
        }
        lacks.dedup();
        let devices = devices.unwrap_or_default().iter().map(|device| device.id.name.to_string()).collect();
        Supported {
            name: self.name.to_owned(),
            meaning: self.meaning.to_owned(),
            since: self.since.map(|since| since.to_string()),
            usable: lacks.is_empty(),
            devices,
            lacks,
        }
    }

    /// Describes the missing requirement if the kernel lacks a feature.
    fn without(&self, words: &str, host: &Host) -> String {
        match self.since {
            Some(since) if host.kernel < since => format!("Linux {since}: this is {}", host.kernel),
            _ => format!("{words}, which this kernel lacks"),
        }
    }

    /// Returns the requirements in addition to a recent kernel, for display.
    pub fn needed(&self) -> Vec<&'static str> {
        let beside = self.needs.iter().filter(|need| match need {
            // List a build option even for a recent kernel, because a kernel of any version may be built
            // without the feature.
            MechanismNeed::Kernel(words, _) | MechanismNeed::Thread(words, _) => {
                self.since.is_none() || words.starts_with("CONFIG_")
            }
            MechanismNeed::Held(..) | MechanismNeed::Device(..) => true,
        });
        beside.map(MechanismNeed::words).collect()
    }
}

/// The requirement that is missing if no kernel thread could be read: netpolicy reads from kernel threads
/// whether the kernel has these features.
const NO_THREAD: &str = "readable kernel threads: a container's PID namespace shows none";

/// The loopback device, to which no mechanism applies.
const LOOPBACK: &str = "lo";

/// The maximum number of devices that a row names.
const DEVICES_NAMED_MAX: usize = 3;

impl Report for SupportMatrix {
    const KIND: &'static str = "support-matrix";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&["MECHANISM", "HERE", "SINCE", "USABLE ON, OR MISSING", "PURPOSE"]);
        for row in &self.mechanisms {
            let (word, style) = if row.usable { ("yes", Style::Good) } else { ("no", Style::Warning) };
            let shown = row.devices.iter().take(DEVICES_NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
            let detail = match (row.usable, row.devices.len().saturating_sub(DEVICES_NAMED_MAX)) {
                (false, _) => row.lacks.join(", "),
                (true, 0) => shown,
                (true, more) => format!("{shown} and {more} more"),
            };
            table.row([
                Cell::new(row.name.as_str()),
                Cell::new(word).style(style),
                Cell::new(row.since.as_deref().unwrap_or("-")),
                Cell::new(detail),
                Cell::new(row.meaning.as_str()).style(Style::Faint),
            ]);
        }
        page.table(&table);
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<Supported>("mechanism", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, serde_json::Value)> {
        self.mechanisms.iter().map(|mechanism| ("mechanism", to_json(mechanism))).collect()
    }
}
