//! Holds the state of the server's host, station by station in the order of a packet: NIC, NAPI, softirq,
//! GRO, CPU, scheduler, application. The stations' files change it.

use std::collections::VecDeque;

use model::KernelVersion;

use crate::arrivals::{Arrivals, NEVER};
use crate::cpu_mask::CpuMask;
use crate::dim::{Dim, RX_CQE, RX_EQE, TX_EQE};
use crate::ids::{Compact, ConnectionId, CpuId, NapiId, NodeId, QueueId, TaskId, ThreadId};
use crate::index_vec::IndexVec;
use crate::scenario::{Coalescing, Hardware};
use crate::watch::{Class, Poller};

/// Packets per list. Kernel: `net_hotdata.gro_normal_batch`.
pub(super) const GRO_NORMAL_BATCH: u32 = 8;

/// A packet in a ring: a connection's request, or a pure ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet(ConnectionId);

impl Packet {
    /// A pure ACK of any connection.
    pub(crate) const ACK: Self = Self(ConnectionId::new(u32::MAX as usize));

    #[inline]
    pub(crate) const fn request(connection: ConnectionId) -> Self {
        Self(connection)
    }

    /// The connection of the request; `None` for an ACK.
    #[inline]
    pub(crate) fn connection(self) -> Option<ConnectionId> {
        (self != Self::ACK).then_some(self.0)
    }
}

/// One channel of the NIC.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// Requests on their way to this queue.
    pub(super) requests: Arrivals,
    /// ACKs on their way to this queue, by arrival time.
    pub(super) acks: VecDeque<u64>,
    pub(super) next_arrival: u64,
    /// Packets that have arrived and have not been polled yet.
    pub(super) ring: VecDeque<Packet>,
    pub(super) ring_size: usize,
    pub(crate) irq_cpu: CpuId,
    pub(crate) armed: bool,
    pub(super) coalescing: Coalescing,
    pub(super) rx: Option<Dim>,
    pub(super) tx: Option<Dim>,
    /// Packets since the interrupt was armed, and when the interrupt is due unless more arrive.
    pub(super) unseen: u32,
    pub(super) rx_deadline: u64,
    /// The first and the last transmit completion that no poll has processed.
    pub(super) tx_first: u64,
    pub(super) tx_last: u64,
    pub(super) tx_event: u64,
    pub(super) counted: Counted,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) rx_packets: u64,
    pub(super) rx_events: u64,
    pub(super) tx_packets: u64,
    pub(super) tx_events: u64,
}

impl Queue {
    pub(crate) fn new(hardware: &Hardware, irq_cpu: CpuId) -> Self {
        let coalescing = hardware.coalescing;
        let dim = |profiles| coalescing.adaptive.then(|| Dim::new(profiles));
        Self {
            requests: Arrivals::new(),
            acks: VecDeque::new(),
            next_arrival: NEVER,
            ring: VecDeque::new(),
            ring_size: hardware.ring as usize,
            irq_cpu,
            armed: true,
            coalescing,
            rx: dim(if coalescing.rx_cqe { RX_CQE } else { RX_EQE }),
            tx: dim(TX_EQE),
            unseen: 0,
            rx_deadline: NEVER,
            tx_first: NEVER,
            tx_last: 0,
            tx_event: 0,
            counted: Counted::default(),
        }
    }

    /// Adds a request that arrives at this time.
    pub(crate) fn expect_request(&mut self, at: u64, connection: ConnectionId) {
        self.requests.expect(at, connection);
        self.next_arrival = self.next_arrival.min(at);
    }

    /// Adds an ACK that arrives at this time. All ACKs take equally long, so none overtakes another.
    #[inline]
    pub(crate) fn expect_ack(&mut self, at: u64) {
        debug_assert!(self.acks.back().is_none_or(|&last| last <= at), "ACKs come in order");
        self.acks.push_back(at);
        self.next_arrival = self.next_arrival.min(at);
    }

    #[inline]
    pub(super) fn next_ack(&self) -> u64 {
        self.acks.front().copied().unwrap_or(NEVER)
    }

    /// When the next packet arrives.
    #[inline]
    pub(crate) const fn next_arrival(&self) -> u64 {
        self.next_arrival
    }

    /// Whether a poll would find a packet.
    #[inline]
    pub(crate) fn has_packet(&self, now: u64) -> bool {
        !self.ring.is_empty() || self.next_arrival() <= now
    }

    pub(super) fn rx_moderation(&self) -> (u64, u32) {
        let (usecs, frames) = match &self.rx {
            Some(dim) => dim.moderation(),
            None => (self.coalescing.rx_usecs, self.coalescing.rx_frames),
        };
        (u64::from(usecs) * 1000, frames)
    }

    /// Updates the moderation for a packet that arrived while the interrupt was armed.
    #[inline]
    pub(super) fn moderate(&mut self, at: u64) {
        self.unseen = self.unseen.saturating_add(1);
        if self.coalescing.rx_cqe || self.rx_deadline == NEVER {
            self.rx_deadline = at + self.rx_moderation().0;
        }
    }

    /// Returns a time that is not later than the next RX interrupt. The time is the next arrival only if
    /// enough packets may arrive before the interrupt to reach the frame limit.
    pub(super) fn rx_due(&mut self) -> u64 {
        let (span, frames) = self.rx_moderation();
        let due = if self.unseen > 0 { self.rx_deadline } else { self.next_arrival.saturating_add(span) };
        let by_then = self.requests.at_most_by(due) + self.acks.len();
        if self.unseen as usize + by_then < frames as usize { due } else { due.min(self.next_arrival) }
    }

    pub(super) fn tx_due(&self) -> u64 {
        if self.tx_first == NEVER || !self.coalescing.tx_irq {
            return NEVER;
        }
        let usecs = self.tx.as_ref().map_or(self.coalescing.tx_usecs, |dim| dim.moderation().0);
        self.tx_first.max(self.tx_event + u64::from(usecs) * 1000)
    }
}

/// A NAPI; it has the same number as its queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Napi {
    /// `NAPI_STATE_SCHED`: a context owns the NAPI.
    pub(crate) scheduled: bool,
    /// `NAPI_STATE_MISSED`: the NAPI was scheduled again while owned.
    pub(super) missed: bool,
    /// `NAPI_STATE_PREFER_BUSY_POLL`: an application busy-polls the NAPI, or intends to.
    pub(crate) preferred: bool,
    /// `defer_hard_irqs_count`.
    pub(crate) deferrals: u32,
    /// The CPU that set the NAPI's timer.
    pub(crate) timer_cpu: CpuId,
    /// The CPU that busy-polls the NAPI's empty ring, up to the next known arrival.
    pub(crate) spinner: Option<CpuId>,
}

/// A running poll on a CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Poll {
    pub(crate) napi: NapiId,
    pub(crate) work: u32,
    pub(crate) budget: u32,
    pub(crate) running: Running,
}

/// The context in which a poll runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Running {
    /// In softirq context, on top of a task or of idle.
    #[default]
    Softirq,
    /// In ksoftirqd.
    Ksoftirqd,
    /// In the NAPI's thread or a workqueue worker.
    Kthread,
    /// In `napi_busy_loop()`.
    BusyLoop,
    /// In `busy_poll_stop()`.
    BusyStop,
}

impl Running {
    pub(super) const fn poller(self) -> Poller {
        match self {
            Self::Softirq => Poller::Softirq,
            Self::Ksoftirqd | Self::Kthread => Poller::Kthread,
            Self::BusyLoop | Self::BusyStop => Poller::Application,
        }
    }
}

/// Softirq processing on a CPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Softirq {
    /// The context in which the softirq runs; `None` if it does not run.
    pub(super) running: Option<Running>,
    /// When the softirq began.
    pub(super) began: u64,
    /// When this round began.
    pub(super) round_began: u64,
    pub(super) rounds: u32,
    pub(super) packets: u32,
    pub(crate) ksoftirqd_awake: bool,
}

impl Softirq {
    /// Whether the softirq runs outside any thread.
    pub(crate) const fn inline(&self) -> bool {
        matches!(self.running, Some(Running::Softirq))
    }
}

/// Packets between the ring and their sockets. Kernel: `napi_struct.rx_list`.
#[derive(Clone, Debug)]
pub(crate) struct List {
    pub(super) packets: [Packet; GRO_NORMAL_BATCH as usize],
    pub(super) length: u32,
    /// How many packets of the list have been delivered.
    pub(super) handed: u32,
    /// Whether the list is being delivered to the sockets.
    pub(super) goes: bool,
}

impl Default for List {
    /// An empty list.
    fn default() -> Self {
        let packets = [Packet::ACK; GRO_NORMAL_BATCH as usize];
        Self { packets, length: 0, handed: 0, goes: false }
    }
}

impl List {
    pub(super) fn next(&mut self) -> Option<Packet> {
        if self.handed == self.length {
            (self.length, self.handed, self.goes) = (0, 0, false);
            return None;
        }
        self.handed += 1;
        Some(self.packets[self.handed as usize - 1])
    }
}

/// Returns how many packets are delivered to their sockets together.
pub(crate) fn list_length(kernel: KernelVersion) -> u32 {
    if (kernel.major, kernel.minor) < (5, 4) { 1 } else { GRO_NORMAL_BATCH }
}

/// The activity of a CPU until its next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// The CPU is idle.
    Idle,
    /// The CPU leaves the idle state.
    IdleExit,
    /// The CPU switches to its task.
    SwitchIn,
    /// The CPU handles an interrupt.
    HardIrq,
    /// Runs a driver's poll: its start, or the part that adds packets to a list.
    Poll,
    /// Delivers packets of the list to their sockets; the field is the last of them.
    Packet(Packet),
    /// Delivers packets to their sockets and wakes the thread of the last one.
    Wake(ThreadId),
    /// Checks an epoll.
    Epoll,
    /// Puts a thread to sleep.
    Sleep,
    /// Processes a request.
    Request,
    /// Busy-polls a NAPI that another task is polling.
    Contend,
    /// Busy-polls an empty ring.
    Spin,
    /// Loops only for events.
    EventSpin,
}

impl Doing {
    /// Returns the class of the activity's time while softirqs run outside threads.
    #[inline]
    pub(super) const fn class_in_softirq(self) -> Class {
        match self {
            Self::Poll | Self::Packet(_) | Self::Wake(_) => Class::Softirq,
            _ => self.class_in_thread(),
        }
    }

    /// Returns the class of the activity's time when no softirq runs outside threads: polls then belong to a
    /// thread.
    #[inline]
    pub(super) const fn class_in_thread(self) -> Class {
        match self {
            Self::Idle | Self::IdleExit => Class::Idle,
            Self::HardIrq => Class::Irq,
            Self::Request => Class::User,
            Self::Poll
            | Self::Packet(_)
            | Self::Wake(_)
            | Self::SwitchIn
            | Self::Epoll
            | Self::Sleep
            | Self::Contend
            | Self::Spin
            | Self::EventSpin => Class::System,
        }
    }

    /// Returns whether an interrupt's softirq may run on top of this activity, that is, whether bottom halves
    /// are enabled.
    pub(super) const fn softirq_may_run(self) -> bool {
        !matches!(self, Self::HardIrq | Self::Poll | Self::Packet(_) | Self::Wake(_))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Cpu {
    pub(crate) doing: Doing,
    /// The class to which the CPU's time currently counts.
    pub(super) class: Class,
    pub(super) since: u64,
    /// If a segment begins with leaving the idle state: when the CPU has left it, and when the interrupt
    /// handling that follows ends.
    pub(super) awake_at: u64,
    pub(super) handled_at: u64,
    /// The time that interrupts took from the running segment.
    pub(super) irq_time: u64,
    /// `rq->curr`; `None` is the idle task.
    pub(crate) task: Option<TaskId>,
    /// The other tasks of the run queue, first in, first out.
    pub(crate) waiting: VecDeque<TaskId>,
    pub(crate) slice_end: u64,
    /// The interrupted activity, and how much of it is left.
    pub(crate) paused: Option<(Doing, u64)>,
    /// The cost of interrupts to handle after leaving the idle state.
    pub(super) irq_cost: u64,
    /// `softnet_data.poll_list`.
    pub(crate) poll_list: VecDeque<NapiId>,
    pub(crate) softirq: Softirq,
    pub(crate) poll: Poll,
    pub(crate) list: List,
    pub(super) spent: [u64; 5],
    /// The queue that transmits the CPU's answers.
    pub(crate) transmit_queue: QueueId,
}

impl Cpu {
    pub(crate) fn new(transmit_queue: QueueId) -> Self {
        Self {
            doing: Doing::Idle,
            class: Class::Idle,
            since: 0,
            awake_at: 0,
            handled_at: 0,
            irq_time: 0,
            task: None,
            waiting: VecDeque::new(),
            slice_end: 0,
            paused: None,
            irq_cost: 0,
            poll_list: VecDeque::new(),
            softirq: Softirq::default(),
            poll: Poll::default(),
            list: List::default(),
            spent: [0; 5],
            transmit_queue,
        }
    }

    /// Starts an activity.
    #[inline]
    pub(super) fn begin(&mut self, doing: Doing, now: u64) {
        self.doing = doing;
        self.class = if self.softirq.inline() { doing.class_in_softirq() } else { doing.class_in_thread() };
        self.since = now;
    }

    /// Accounted time, by class.
    pub(crate) const fn spent(&self) -> &[u64; 5] {
        &self.spent
    }
}

/// The recent utilisation of a CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Use {
    /// The share of the time outside interrupts that tasks used.
    pub(super) tasks: f64,
    /// The share of all time that interrupts used.
    pub(super) interrupts: f64,
    /// The CPU's account at the last update.
    pub(super) seen: [u64; 5],
}

/// A thread of the application or of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// The CPU where it runs or last ran.
    pub(crate) cpu: CpuId,
    pub(crate) state: State,
    /// CPUs that the task may use.
    pub(crate) allowed: CpuMask,
    /// The next step.
    pub(crate) step: Step,
    /// The cost of the interrupt that woke the task, on the CPU where the task runs.
    pub(crate) interrupt: u64,
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Sleeping.
    Sleeping,
    /// About to be put on a run queue.
    Waking,
    /// Waiting for a CPU.
    Queued,
    /// Running on a CPU.
    Running,
}

/// CPU topology: cores, SMT siblings, cache groups and NUMA nodes.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub(super) places: IndexVec<CpuId, CpuLocation>,
    pub(super) llc_cpus: usize,
    pub(crate) smt: bool,
    pub(super) node_distance: u64,
}

/// A CPU's position in the topology.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuLocation {
    /// The CPUs that share its last-level cache.
    pub(super) llc: CpuMask,
    pub(super) node: NodeId,
}

impl Topology {
    pub(crate) fn of(hardware: &Hardware) -> Self {
        let cpus = hardware.cpus as usize;
        let (llc, node) = (hardware.llc_cpus as usize, hardware.node_cpus as usize);
        let place = |cpu: CpuId| {
            let first = cpu.index() / llc * llc;
            let group = first..(first + llc).min(cpus);
            CpuLocation { llc: group.map(CpuId::new).collect(), node: NodeId::new(cpu.index() / node) }
        };
        Self {
            places: IndexVec::from_fn(cpus, place),
            llc_cpus: llc,
            smt: hardware.smt,
            node_distance: u64::from(hardware.node_distance),
        }
    }
}

/// Sets of CPUs by their present state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpusByState {
    /// CPUs that run no task and have none waiting.
    pub(super) idle: CpuMask,
    /// CPUs with waiting tasks.
    pub(super) queued: CpuMask,
}

/// A reason for a running thread to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// The thread shares its CPU with a waiting kernel task.
    Crowded,
    /// Interrupts take the time of the thread's CPU.
    Interrupted,
    /// The thread's group of CPUs runs more tasks than another.
    Uneven,
}

/// A thread with its epoll.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    /// The epoll's ready list.
    pub(crate) ready: VecDeque<Ready>,
    /// Unprocessed events of the last `epoll_wait`.
    pub(crate) batch: VecDeque<Ready>,
    pub(crate) last_batch: u64,
    /// Extra work per request of this batch.
    pub(crate) locality: u64,
    pub(crate) max_events: u32,
    /// The NAPI that the thread's epoll polls: that of the last connection with events.
    pub(crate) napi: NapiId,
    pub(crate) owns_napi: bool,
    pub(crate) spin_began: u64,
    /// Whether the thread interrupted busy polling only to let other tasks run.
    pub(crate) polls_on: bool,
    /// Number of answered requests; wraps.
    pub(crate) answered: u32,
}

/// A connection with a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) connection: ConnectionId,
    /// The CPU that handled the request's packet.
    pub(crate) handled_on: Compact<CpuId>,
    /// Start of the request's response time. Looked up early, so that the connection is in the cache when it
    /// is answered.
    pub(crate) from: u64,
}

/// A task's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Call `epoll_wait`.
    EpollEnter,
    /// Return from `epoll_wait`.
    EpollTake,
    /// Process the next request.
    NextRequest,
    /// Continue after busy polling.
    BusyPollDone,
    /// Go to sleep in `epoll_wait`.
    Sleep,
    /// Poll in a NAPI's thread.
    Kthread,
    /// Poll in ksoftirqd.
    Ksoftirqd,
    /// Short housekeeping work for the kernel.
    Housekeeping,
}
