//! A scenario: hardware, application, clients, delivery, layout and physical parameters.

mod check;
mod key;
mod parameter;

use model::{Arrivals, DeliveryMode, DeliveryParams, KernelVersion, Nanoseconds, OfferedLoad, Threading};

pub(crate) use check::CPUS_MAX;
pub use check::Impossible;
pub use key::{KEYS, Key, Refused, Takes};
pub use parameter::{Costs, Parameter};

/// Everything that a run depends on, except the seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The machine.
    pub hardware: Hardware,
    /// The server's application.
    pub application: Application,
    /// The clients.
    pub clients: Clients,
    /// How packets are delivered.
    pub delivery: Delivery,
    /// The placement of interrupts and threads.
    pub layout: Layout,
    /// The physical parameters.
    pub costs: Costs,
}

/// The machine and its kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// CPUs that IRQs and threads may use.
    pub cpus: u32,
    /// CPUs that share a last-level cache, with consecutive numbers.
    pub llc_cpus: u32,
    /// Whether CPUs `n` and `n + cpus/2` are hyper-threads of one core.
    pub smt: bool,
    /// CPUs of a NUMA node, with consecutive numbers. Equal to `cpus` on a single node.
    pub node_cpus: u32,
    /// Distance between nodes, where 10 means local, as in the ACPI SLIT table. Scales remote costs. The
    /// default is 20: `REMOTE_DISTANCE`, `include/linux/topology.h`.
    pub node_distance: u32,
    /// RX queues, each with a NAPI.
    pub queues: u32,
    /// Number of descriptors in an RX ring.
    pub ring: u32,
    /// Interrupt moderation.
    pub coalescing: Coalescing,
    /// How many bytes of a message each frame carries; a poll's budget counts frames. If the NIC coalesces
    /// frames (LRO), use the largest message size, so that each message is one frame.
    pub frame_bytes: u32,
    /// Bandwidth of the link in Gb/s.
    pub link_gbps: f64,
    /// The kernel version whose behaviour is modelled where versions differ.
    pub kernel: KernelVersion,
}

/// Interrupt moderation of a NIC.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coalescing {
    /// Whether `net_dim` chooses the values.
    pub adaptive: bool,
    /// Microseconds until the RX interrupt.
    pub rx_usecs: u32,
    /// Packets until the RX interrupt.
    pub rx_frames: u32,
    /// Whether the RX timer restarts at every packet (CQE mode) instead of running from the first (EQE mode).
    pub rx_cqe: bool,
    /// Microseconds between TX interrupts.
    pub tx_usecs: u32,
    /// Whether transmit completions raise interrupts.
    pub tx_irq: bool,
}

/// The server's application.
#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    /// Threads, each with its own epoll.
    pub threads: u32,
    /// Initial maximum number of events per `epoll_wait`.
    pub max_events: u32,
    /// Limit up to which `max_events` doubles whenever a call returns `max_events` events, as in libevent.
    pub max_events_limit: u32,
    /// How the application's threads wait for events.
    pub waits: Waits,
    /// Size of a request in bytes.
    pub request_bytes: u32,
    /// Size of an answer in bytes.
    pub response_bytes: u32,
}

/// The way in which an application's thread waits for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Sleeps in `epoll_wait`.
    Sleep,
    /// Calls `epoll_wait` with timeout 0 in a loop.
    UserSpin,
    /// `epoll_wait` loops only for events, without polling the NAPI, for this many microseconds before it
    /// sleeps.
    /// Source: "Add provision to busyloop for events in ep_poll", linux-kernel 2024-08-28.
    EventSpin(u32),
}

/// All clients together.
#[derive(Clone, Debug, PartialEq)]
pub struct Clients {
    /// Connections, each with one outstanding request.
    pub connections: u32,
    /// Threads of the clients' host, which share the connections evenly and wait in the same way as the
    /// application's threads. With none, there is no such host, and a client's own work takes no time.
    pub threads: u32,
    /// RX queues of the clients' host.
    pub queues: u32,
    /// Requests per second of all connections together, or a closed loop.
    pub load: OfferedLoad,
    /// The distribution of the gaps between a connection's requests.
    pub arrivals: Arrivals,
    /// Whether response times count from the due time rather than from sending.
    pub from_due: bool,
    /// Whether answers are acknowledged by separate packets.
    pub acks: bool,
}

/// How packets are delivered.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// The mode that the values come from.
    pub mode: DeliveryMode,
    /// The values.
    pub params: DeliveryParams,
    /// The context that runs the NAPI poll.
    pub processing: Processing,
}

/// The context that runs the NAPI poll after an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processing {
    /// The softirq on the interrupted CPU.
    Softirq,
    /// The NAPI's own kernel thread.
    Kthread,
    /// A worker of an unbound workqueue. Source: Felix Fietkau's patches of 2020, never merged.
    Workqueue,
    /// The NAPI's own kernel thread, busy polling.
    BusyKthread,
}

/// The placement of interrupts and threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The CPUs of queues, assigned round robin: queue `i` uses the `i`-th of these.
    pub irq_cpus: Vec<u32>,
    /// The CPUs on which threads may run.
    pub thread_cpus: Vec<u32>,
    /// Whether thread `i` is pinned to the `i`-th CPU of `thread_cpus`.
    pub pinned: bool,
    /// Whether connections belong to the thread of their queue, as with `memcached -N`.
    pub by_napi: bool,
    /// Whether connections are spread over queues evenly rather than by a hash.
    pub even_queues: bool,
    /// Whether connections are spread over threads evenly. Otherwise a hash spreads them, as over listeners
    /// that share a port (`SO_REUSEPORT`). Ignored with `by_napi`.
    pub even_threads: bool,
}

impl Scenario {
    /// Sets the values of a delivery mode.
    pub fn deliver(&mut self, mode: DeliveryMode) {
        let spun = DeliveryMode::EPOLL_DOCUMENT.contains(&self.delivery.mode);
        self.application.waits = match mode {
            DeliveryMode::UserBusy => Waits::UserSpin,
            DeliveryMode::EventBusy => Waits::EventSpin(mode.params().epoll.busy_poll_usecs),
            _ if spun => Waits::Sleep,
            _ => self.application.waits,
        };
        let threaded = self.delivery.mode.threading() != Threading::Off;
        self.delivery.processing = match mode.threading() {
            Threading::On => Processing::Kthread,
            Threading::BusyPoll => Processing::BusyKthread,
            Threading::Off if threaded => Processing::Softirq,
            Threading::Off => self.delivery.processing,
        };
        self.delivery.mode = mode;
        self.delivery.params = mode.params();
        if DeliveryMode::EPOLL_DOCUMENT.contains(&mode) {
            // These modes differ only in how the application waits: only softirqs poll the NAPI.
            self.delivery.params = DeliveryMode::Interrupt.params();
        }
    }

    /// Returns a hash over the whole scenario, in hexadecimal: FNV-1a over its debug text, which names every
    /// field.
    pub fn hash(&self) -> String {
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let text = format!("{self:?}");
        let hash = text.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
        format!("{hash:016x}")
    }
}

impl Default for Scenario {
    /// The machine of the IRQ-suspension document at 200K requests per second, with default settings.
    fn default() -> Self {
        let cpus: Vec<u32> = (0..8).collect();
        Self {
            hardware: Hardware {
                cpus: 8,
                llc_cpus: 4,
                smt: false,
                node_cpus: 8,
                node_distance: 20,
                queues: 8,
                ring: 8192,
                coalescing: Coalescing {
                    adaptive: true,
                    rx_usecs: 8,
                    rx_frames: 128,
                    rx_cqe: true,
                    tx_usecs: 8,
                    tx_irq: true,
                },
                frame_bytes: 16_777_216,
                link_gbps: 100.0,
                kernel: KernelVersion { major: 6, minor: 11, patch: 0 },
            },
            application: Application {
                threads: 8,
                max_events: 32,
                max_events_limit: 4096,
                waits: Waits::Sleep,
                request_bytes: 64,
                response_bytes: 64,
            },
            clients: Clients {
                connections: 4480,
                threads: 0,
                queues: 8,
                load: OfferedLoad::PerSecond(200_000.0),
                arrivals: Arrivals::FbIa,
                from_due: false,
                acks: true,
            },
            delivery: Delivery {
                mode: DeliveryMode::Interrupt,
                params: DeliveryMode::Interrupt.params(),
                processing: Processing::Softirq,
            },
            layout: Layout {
                irq_cpus: cpus.clone(),
                thread_cpus: cpus,
                pinned: false,
                by_napi: true,
                even_queues: false,
                even_threads: true,
            },
            costs: Costs::default(),
        }
    }
}

/// Converts microseconds to whole nanoseconds.
pub(crate) fn nanos(micros: f64) -> u64 {
    let rounded = (micros * 1000.0 + 0.5).clamp(0.0, 1e18);
    // Convert through a signed integer, which CPUs do in one instruction.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0..=1e18")]
    let nanos = rounded as i64 as u64;
    nanos
}

/// The longest span of a scenario: an hour.
pub const SPAN_MAX: Nanoseconds = Nanoseconds(3_600_000_000_000);
