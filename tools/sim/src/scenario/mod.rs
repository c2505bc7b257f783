//! What is simulated: hardware, application, clients, delivery, layout and physical parameters.

mod check;
mod key;
mod parameter;

use model::{Arrivals, DeliveryMode, DeliveryParams, KernelVersion, Nanoseconds, OfferedLoad, Threading};

pub(crate) use check::CPUS_MAX;
pub use check::Impossible;
pub use key::{KEYS, Key, Refused, Takes};
pub use parameter::{Costs, Parameter};

/// Everything that a run depends on, but the seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The machine.
    pub hardware: Hardware,
    /// The server's application.
    pub application: Application,
    /// Who asks.
    pub clients: Clients,
    /// How packets are delivered.
    pub delivery: Delivery,
    /// What runs where.
    pub layout: Layout,
    /// The physical parameters.
    pub costs: Costs,
}

/// The machine and its kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// CPUs that IRQs and threads may use.
    pub cpus: u32,
    /// CPUs that share a last-level cache; neighbours by number.
    pub llc_cpus: u32,
    /// Whether CPUs `n` and `n + cpus/2` are hyper-threads of one core.
    pub smt: bool,
    /// CPUs of a NUMA node; neighbours by number. Equal to `cpus` on one node.
    pub node_cpus: u32,
    /// Distance between nodes, 10 meaning "as within one", as in the ACPI table SLIT. Scales remote costs. 20 by default: `REMOTE_DISTANCE`, `include/linux/topology.h`.
    pub node_distance: u32,
    /// RX queues, each with a NAPI.
    pub queues: u32,
    /// Descriptors of an RX ring.
    pub ring: u32,
    /// Interrupt moderation.
    pub coalescing: Coalescing,
    /// Bytes of a message that one frame carries: a poll's budget counts frames. The most that a message can have, so that
    /// each is one frame, where the NIC puts them together.
    pub frame_bytes: u32,
    /// Bandwidth of the link in Gb/s.
    pub link_gbps: f64,
    /// The kernel whose behaviour is followed where versions differ.
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
    /// Whether transmit completions interrupt at all.
    pub tx_irq: bool,
}

/// The server's application.
#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    /// Threads, each with its own epoll.
    pub threads: u32,
    /// Events that one `epoll_wait` may return at first.
    pub max_events: u32,
    /// Up to this, `max_events` doubles whenever a call returned that many, as libevent does.
    pub max_events_limit: u32,
    /// How it waits.
    pub waits: Waits,
    /// Size of a request in bytes.
    pub request_bytes: u32,
    /// Size of an answer in bytes.
    pub response_bytes: u32,
}

/// How an application's thread waits for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// It sleeps in `epoll_wait`.
    Sleep,
    /// It calls `epoll_wait` with timeout 0 again and again.
    UserSpin,
    /// `epoll_wait` loops for events alone, without polling the NAPI, for this many microseconds before it sleeps.
    /// Source: "Add provision to busyloop for events in ep_poll", linux-kernel 2024-08-28.
    EventSpin(u32),
}

/// The clients, all together.
#[derive(Clone, Debug, PartialEq)]
pub struct Clients {
    /// Connections; each has one request under way.
    pub connections: u32,
    /// Threads of the clients' host, which share the connections evenly and wait as the application's threads do. With
    /// none there is no such host, and a client's own work takes no time.
    pub threads: u32,
    /// RX queues of the clients' host.
    pub queues: u32,
    /// Requests per second of all connections together, or a closed loop.
    pub load: OfferedLoad,
    /// How a connection's gaps are distributed.
    pub arrivals: Arrivals,
    /// Whether response times count from the due time, rather than from the sending.
    pub from_due: bool,
    /// Whether answers are acknowledged by packets of their own.
    pub acks: bool,
}

/// How packets are delivered.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// The mode that the values were taken from.
    pub mode: DeliveryMode,
    /// Its values.
    pub params: DeliveryParams,
    /// Who runs the NAPI poll.
    pub processing: Processing,
}

/// Who runs the NAPI poll after an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processing {
    /// The softirq on the interrupted CPU.
    Softirq,
    /// The NAPI's own kernel thread.
    Kthread,
    /// A worker of an unbound workqueue. Source: Felix Fietkau's patches of 2020, never merged.
    Workqueue,
    /// The NAPI's own kernel thread, which polls without end.
    BusyKthread,
}

/// What runs where.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The CPU of queue `i` is the `i`-th of these, and again from the start.
    pub irq_cpus: Vec<u32>,
    /// The CPUs that threads may use.
    pub thread_cpus: Vec<u32>,
    /// Whether thread `i` may use the `i`-th of them only.
    pub pinned: bool,
    /// Whether connections belong to the thread of their queue, as with `memcached -N`.
    pub by_napi: bool,
    /// Whether connections are spread over queues evenly rather than by a hash.
    pub even_queues: bool,
    /// Whether connections are spread over threads evenly rather than by a hash, as listeners that share a port do
    /// (`SO_REUSEPORT`); of no account with `by_napi`.
    pub even_threads: bool,
}

impl Scenario {
    /// The values of a delivery mode.
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
            // Here only the way in which the application waits differs: only softirqs poll the NAPI.
            self.delivery.params = DeliveryMode::Interrupt.params();
        }
    }

    /// A hash over the whole scenario, in hexadecimal: FNV-1a over its debug text, which names every field.
    pub fn hash(&self) -> String {
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let text = format!("{self:?}");
        let hash = text.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
        format!("{hash:016x}")
    }
}

impl Default for Scenario {
    /// The IRQ-suspension document's machine at 200K requests a second, without any setting.
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

/// Microseconds as whole nanoseconds.
pub(crate) fn nanos(micros: f64) -> u64 {
    let rounded = (micros * 1000.0 + 0.5).clamp(0.0, 1e18);
    // By way of a signed number, which is what machines convert to in one step.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0..=1e18")]
    let nanos = rounded as i64 as u64;
    nanos
}

/// The longest span that a scenario may be asked for, an hour.
pub const SPAN_MAX: Nanoseconds = Nanoseconds(3_600_000_000_000);
