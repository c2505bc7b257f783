//! The state of a run, the event loop, and the stations of the receive path, which all modify that state.
//!
//! Stations in the order of a packet: `nic`, `irq`, `softirq`, `napi`, `busy_poll`, `kthread`, `gro`,
//! `socket`, `scheduler`, `balance`, `active_balance`, `housekeeping`, `cpu`, `epoll`, `application`; and the
//! clients: `client`, `client_host`.

mod active_balance;
mod application;
mod balance;
mod busy_poll;
mod client;
mod client_host;
mod cpu;
mod epoll;
mod gro;
mod housekeeping;
mod irq;
mod kthread;
pub(crate) mod napi;
mod nic;
mod scheduler;
mod socket;
pub(crate) mod softirq;

use model::KernelVersion;

use crate::arrivals::NEVER;
use crate::calendar::Calendar;
use crate::chance::{Chance, Draws, Stream};
use crate::cpu_mask::CpuMask;
use crate::histogram::Histogram;
use crate::ids::{ClientQueueId, Compact, ConnectionId, CpuId, NapiId, QueueId, TaskId, ThreadId};
use crate::index_vec::IndexVec;
use crate::math::exp;
use crate::scenario::{Layout, Processing, Scenario, Waits, nanos};
use crate::slots::{Owner, Slots};
use crate::watch::{Class, Watch};
use crate::wire::Link;
use active_balance::Occasion;
use application::Thread;
use balance::Use;
use client::{Clients, Connection, Home};
use client_host::ClientHost;
use cpu::Cpu;
use gro::list_length;
use napi::{Napi, Running};
use nic::{Packet, Queue};
use scheduler::{Standing, State, Task, Topology};

/// The complete state.
#[derive(Debug)]
pub(crate) struct World<W> {
    pub(crate) now: u64,
    pub(crate) calendar: Calendar,
    pub(crate) chance: Stream,
    pub(crate) slots: Slots,
    pub(crate) topology: Topology,
    pub(crate) standing: Standing,
    pub(crate) kernel: KernelVersion,
    pub(crate) list_length: u32,
    pub(crate) costs: Spans,
    pub(crate) cpus: IndexVec<CpuId, Cpu>,
    /// Input of the balancing between groups.
    pub(crate) uses: IndexVec<CpuId, Use>,
    pub(crate) queues: IndexVec<QueueId, Queue>,
    pub(crate) napis: IndexVec<NapiId, Napi>,
    /// In the order of [`Slots`].
    pub(crate) tasks: IndexVec<TaskId, Task>,
    pub(crate) threads: IndexVec<ThreadId, Thread>,
    pub(crate) fresh_workers: IndexVec<NapiId, bool>,
    /// The CPUs where idle workers of the workqueue last ran; the worker that went idle last is at the end.
    pub(crate) idle_workers: Vec<CpuId>,
    /// Application threads that leave their CPU at the end of their step.
    pub(crate) leaving: IndexVec<ThreadId, Option<Occasion>>,
    pub(crate) clients: Clients,
    pub(crate) client_host: ClientHost,
    pub(crate) processing: Processing,
    pub(crate) waits: Waits,
    pub(crate) defer_hard_irqs: u32,
    pub(crate) gro_flush: u64,
    pub(crate) irq_suspend: u64,
    pub(crate) busy_polls: bool,
    pub(crate) prefer_busy_poll: bool,
    pub(crate) busy_poll_span: u64,
    pub(crate) busy_poll_budget: u32,
    pub(crate) epoll_returns_empty: bool,
    pub(crate) max_events_limit: u32,
    /// Frames per request, in terms of a poll's budget.
    pub(crate) request_frames: u32,
    /// The present factor on remote costs, in thousandths.
    pub(crate) contention_permille: u64,
    /// The present share of answers that clients read late.
    pub(crate) slow_share: f64,
    slow_base: f64,
    slow_load: f64,
    contention: f64,
    tick_busy: u64,
    tick_answered: u64,
    /// Whether response times are recorded.
    pub(crate) recording: bool,
    pub(crate) tally: Tally,
    pub(crate) watch: W,
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

/// Costs in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    pub(crate) client_rtt: u64,
    pub(crate) client_jitter: Varying,
    /// In microseconds, because it is scaled by a draw.
    pub(crate) client_slow: f64,
    pub(crate) client_request: Varying,
    pub(crate) client_slow_spread: f64,
    pub(crate) client_slow_again: f64,
    pub(crate) ack_delay: u64,
    pub(crate) irq: u64,
    pub(crate) timer: u64,
    pub(crate) poll: u64,
    pub(crate) packet: u64,
    before_socket_permille: u64,
    pub(crate) packet_first: u64,
    ack: u64,
    pub(crate) packet_remote: u64,
    in_thread_permille: u64,
    pub(crate) request: Varying,
    pub(crate) request_remote: u64,
    /// Extra work in the application by batch size, and in the softirq by requests since the last answer.
    locality: Vec<u32>,
    cold: Vec<u32>,
    pub(crate) connections_cool: bool,
    pub(crate) preempted: u64,
    pub(crate) preempted_packet: u64,
    pub(crate) epoll: u64,
    pub(crate) epoll_rescan: u64,
    pub(crate) sleep: u64,
    pub(crate) switch_in: u64,
    pub(crate) wake: u64,
    pub(crate) ipi: u64,
    pub(crate) idle_exit: u64,
    pub(crate) busy_poll: u64,
    pub(crate) resume: u64,
    pub(crate) transmit: u64,
    pub(crate) workqueue_wake: u64,
    pub(crate) workqueue_requeue: f64,
    pub(crate) request_copy: u64,
    pub(crate) response_copy: u64,
    /// The same at the clients' host: softirq work for an answer, and copies of a request.
    pub(crate) response_in: u64,
    pub(crate) request_out: u64,
    pub(crate) smt_permille: u64,
    pub(crate) wake_pull: f64,
    pub(crate) remote_llc_permille: u64,
    /// Per millisecond.
    pub(crate) group_moves: f64,
    /// Per millisecond.
    pub(crate) thread_moves: f64,
    /// Per millisecond.
    pub(crate) active_balance: f64,
    /// Per millisecond.
    pub(crate) housekeeping: f64,
    pub(crate) housekeeping_span: u64,
    pub(crate) slice: u64,
}

/// A span with an exponentially distributed part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Varying {
    fixed: u64,
    /// Mean of that part, in microseconds.
    mean: f64,
}

impl Varying {
    #[inline]
    pub(crate) fn drawn(&self, chance: &mut Stream) -> u64 {
        if self.mean > 0.0 { self.fixed + nanos(self.mean * chance.exponential()) } else { self.fixed }
    }
}

/// Bytes of a small packet that cost nothing extra.
const FREE_BYTES: u32 = 1024;
/// Frequent enough to follow the load, rare enough to cost nothing.
const TICK: u64 = 1_000_000;

impl Spans {
    fn of(scenario: &Scenario) -> Self {
        let costs = &scenario.costs;
        let permille = |factor: f64| nanos(factor);
        let kilobytes = |bytes: u32| f64::from(bytes.saturating_sub(FREE_BYTES)) / 1024.0;
        let varying =
            |mean: f64, spread: f64| Varying { fixed: nanos(mean * (1.0 - spread)), mean: mean * spread };
        Self {
            client_rtt: nanos(costs.client_rtt),
            client_jitter: varying(costs.client_jitter, 1.0),
            client_slow: costs.client_slow,
            client_request: varying(costs.client_request, costs.request_spread),
            client_slow_spread: costs.client_slow_spread,
            client_slow_again: costs.client_slow_again,
            ack_delay: nanos(costs.ack_delay),
            irq: nanos(costs.irq),
            timer: nanos(costs.timer),
            poll: nanos(costs.poll),
            packet: nanos(costs.packet),
            before_socket_permille: permille(costs.before_socket),
            packet_first: nanos(costs.packet_first),
            ack: nanos(costs.ack),
            packet_remote: nanos(costs.packet_remote),
            in_thread_permille: permille(costs.packet_in_thread),
            request: varying(costs.request, costs.request_spread),
            request_remote: nanos(costs.request_remote),
            locality: forgotten(costs.locality, costs.locality_batch),
            cold: forgotten(costs.packet_cold, costs.locality_batch),
            connections_cool: costs.packet_cold > 0.0,
            preempted: nanos(costs.preempted),
            preempted_packet: nanos(costs.preempted_packet),
            epoll: nanos(costs.epoll).max(1),
            epoll_rescan: nanos(costs.epoll_rescan),
            sleep: nanos(costs.sleep),
            switch_in: nanos(costs.switch_in),
            wake: nanos(costs.wake),
            ipi: nanos(costs.ipi),
            idle_exit: nanos(costs.idle_exit),
            busy_poll: nanos(costs.busy_poll).max(1),
            resume: nanos(costs.resume),
            transmit: nanos(costs.transmit),
            workqueue_wake: nanos(costs.workqueue_wake),
            workqueue_requeue: costs.workqueue_requeue,
            request_copy: nanos(costs.copy_in * kilobytes(scenario.application.request_bytes)),
            response_copy: nanos(costs.copy_out * kilobytes(scenario.application.response_bytes)),
            response_in: nanos(costs.copy_in * kilobytes(scenario.application.response_bytes)),
            request_out: nanos(costs.copy_out * kilobytes(scenario.application.request_bytes)),
            smt_permille: permille(costs.smt_slowdown),
            wake_pull: costs.wake_pull,
            remote_llc_permille: permille(costs.remote_llc),
            group_moves: costs.group_moves / 1000.0,
            thread_moves: costs.thread_moves / 1000.0,
            active_balance: costs.active_balance / 1000.0,
            housekeeping: costs.housekeeping / 1000.0,
            housekeeping_span: nanos(costs.housekeeping_span),
            slice: nanos(costs.slice),
        }
    }

    /// The work for a packet until its list is delivered to the sockets: driver, GRO and IP.
    pub(crate) fn before_socket(&self, packet: Packet, running: Running) -> u64 {
        let all = if packet == Packet::ACK { self.ack } else { self.packet };
        self.in_context(all * self.before_socket_permille / 1000, running)
    }

    /// The work for a packet after that, without the part that depends on its connection.
    pub(crate) fn socket_part(&self, packet: Packet) -> u64 {
        let all = if packet == Packet::ACK { self.ack } else { self.packet };
        all - all * self.before_socket_permille / 1000
    }

    /// The cost of packet work in a NAPI's thread, or elsewhere.
    pub(crate) const fn in_context(&self, cost: u64, running: Running) -> u64 {
        if matches!(running, Running::Kthread) { cost * self.in_thread_permille / 1000 } else { cost }
    }

    /// Extra work per request in a batch of this size.
    pub(crate) fn locality_of(&self, batch: u32) -> u64 {
        u64::from(self.locality[(batch as usize).min(FORGOTTEN_AFTER)])
    }

    /// Extra work for a packet of a connection whose thread has answered this many requests since its last
    /// answer.
    #[inline]
    pub(crate) fn cold_after(&self, requests: u32) -> u64 {
        u64::from(self.cold[(requests as usize).min(FORGOTTEN_AFTER)])
    }
}

/// After this many requests, a connection is completely cold.
const FORGOTTEN_AFTER: usize = 4096;

/// `most (1 - e^(-n / scale))` for every number of requests `n`.
fn forgotten(most: f64, scale: f64) -> Vec<u32> {
    let numbers = 0..=u32::try_from(FORGOTTEN_AFTER).unwrap_or(u32::MAX);
    let of = |n| u32::try_from(nanos(most * (1.0 - exp(-f64::from(n) / scale)))).unwrap_or(u32::MAX);
    numbers.map(of).collect()
}

/// The counts since the window opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) latency: Histogram,
    pub(crate) packets: u64,
    pub(crate) dropped: u64,
    pub(crate) retransmitted: u64,
    pub(crate) irqs: u64,
    pub(crate) timers: u64,
    pub(crate) polls: u64,
    pub(crate) wakeups: u64,
    pub(crate) switches: u64,
    pub(crate) migrations: u64,
    pub(crate) ksoftirqd: u64,
    pub(crate) epoll_waits: u64,
    pub(crate) epoll_events: u64,
    pub(crate) epoll_sleeps: u64,
    pub(crate) epoll_batch_max: u32,
    pub(crate) suspended: u64,
    pub(crate) resumed: u64,
    pub(crate) events: u64,
}

impl<W: Watch> World<W> {
    /// Creates the state of a scenario at time zero. The scenario has already been checked.
    pub(crate) fn new(scenario: &Scenario, seed: u64, watch: W) -> Self {
        let mut chance = Chance::new(seed);
        let (hardware, layout) = (&scenario.hardware, &scenario.layout);
        let (cpus, queues) = (hardware.cpus as usize, hardware.queues as usize);
        let threads = scenario.application.threads as usize;
        let params = scenario.delivery.params;
        let gap = match scenario.clients.load {
            model::OfferedLoad::Max => NEVER,
            model::OfferedLoad::PerSecond(rate) => {
                nanos(f64::from(scenario.clients.connections) * 1e6 / rate)
            }
        };
        let homes = place_connections(scenario, &mut chance);
        let client_host = ClientHost::new(scenario, place_answers(scenario, &mut chance));
        let tasks = place_tasks(scenario, &mut chance);
        let slots = Slots::of(scenario);
        let mut world = Self {
            now: 0,
            calendar: Calendar::new(slots.sources()),
            chance: Stream::new(chance),
            slots,
            topology: Topology::of(hardware),
            standing: Standing::default(),
            kernel: hardware.kernel,
            list_length: list_length(hardware.kernel),
            costs: Spans::of(scenario),
            cpus: IndexVec::from_fn(cpus, |cpu: CpuId| Cpu::new(QueueId::new(cpu.index() % queues))),
            uses: IndexVec::filled(Use::default(), cpus),
            queues: IndexVec::from_fn(queues, |queue| Queue::new(hardware, irq_cpu(layout, queue))),
            napis: IndexVec::filled(Napi::default(), queues),
            threads: IndexVec::from_fn(threads, |thread| new_thread(scenario, thread)),
            tasks,
            fresh_workers: IndexVec::filled(true, queues),
            idle_workers: cpu_ids(&layout.irq_cpus).cycle().take(2 * queues).collect(),
            leaving: IndexVec::filled(None, threads),
            clients: Clients {
                connections: IndexVec::filled(Connection::default(), homes.len()),
                homes,
                one_queue_each: layout.by_napi && queues <= threads,
                gap,
                arrivals: scenario.clients.arrivals,
                from_due: scenario.clients.from_due,
                acks: scenario.clients.acks,
                request_span: Link::new(hardware.link_gbps, scenario.application.request_bytes).pass(0),
                answers: Link::new(hardware.link_gbps, scenario.application.response_bytes),
            },
            client_host,
            processing: scenario.delivery.processing,
            waits: scenario.application.waits,
            defer_hard_irqs: params.defer_hard_irqs.0,
            gro_flush: params.gro_flush_timeout.0,
            irq_suspend: if params.epoll.prefer_busy_poll { params.irq_suspend_timeout.0 } else { 0 },
            busy_polls: params.epoll.busy_poll_usecs > 0
                || params.epoll.prefer_busy_poll && !params.irq_suspend_timeout.is_zero(),
            prefer_busy_poll: params.epoll.prefer_busy_poll,
            busy_poll_span: u64::from(params.epoll.busy_poll_usecs) * 1000,
            busy_poll_budget: u32::from(params.epoll.busy_poll_budget).max(1),
            epoll_returns_empty: params.epoll_wait_cap.is_some(),
            max_events_limit: scenario.application.max_events_limit,
            request_frames: scenario.application.request_bytes.div_ceil(hardware.frame_bytes),
            contention_permille: 1000,
            slow_share: scenario.costs.client_slow_base,
            slow_base: scenario.costs.client_slow_base,
            slow_load: scenario.costs.client_slow_load,
            contention: scenario.costs.contention,
            tick_busy: 0,
            tick_answered: 0,
            recording: false,
            tally: Tally::default(),
            watch,
        };
        world.start();
        world
    }

    fn start(&mut self) {
        for cpu in self.cpus.ids() {
            self.stand(cpu);
        }
        for thread in self.threads.ids() {
            let cpu = self.tasks[thread.task()].cpu;
            self.enqueue(thread.task(), cpu);
        }
        self.start_clients();
        for napi in self.napis.ids() {
            if self.processing == Processing::BusyKthread {
                self.napis[napi].scheduled = true;
                self.queues[napi.queue()].armed = false;
                let task = self.slots.kthread(napi);
                self.enqueue(task, self.tasks[task].cpu);
            }
            self.await_nic(napi.queue());
        }
        self.calendar.set(self.slots.tick(), TICK);
    }

    /// Runs all events up to this time.
    pub(crate) fn run_until(&mut self, end: u64) {
        while let Some((due, source)) = self.calendar.next() {
            if due > end {
                break;
            }
            self.now = due;
            self.tally.events += 1;
            match self.slots.owner(source) {
                Owner::Cpu(cpu) => self.cpu_event(cpu),
                Owner::Nic(queue) => self.nic_event(queue),
                Owner::Timer(napi) => self.timer_event(napi),
                Owner::Tick => self.tick(),
                Owner::ClientQueue(queue) => self.client_queue_event(queue),
                Owner::ClientThread(thread) => self.client_thread_event(thread),
            }
        }
        self.now = end;
        for cpu in self.cpus.ids() {
            self.account(cpu);
        }
    }

    /// The non-idle time of all CPUs so far.
    pub(crate) fn busy(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.spent().iter().sum::<u64>() - cpu.spent()[Class::Idle as usize]).sum()
    }

    /// Timer tick, at 1 kHz: updates everything that follows the load.
    #[expect(clippy::cast_precision_loss, reason = "counts and times of one millisecond")]
    fn tick(&mut self) {
        self.calendar.set(self.slots.tick(), self.now + TICK);
        let answered = self
            .tally
            .answered
            .saturating_sub(std::mem::replace(&mut self.tick_answered, self.tally.answered));
        // Exponentially smoothed below, with a time constant of 20 ms.
        let rate = answered as f64 * 1e9 / TICK as f64 / 1e6;
        let share = (self.slow_base + self.slow_load * rate).clamp(0.0, 1.0);
        self.slow_share += (share - self.slow_share) * 0.05;
        self.keep_house();
        self.balance();
        if self.contention > 0.0 {
            for cpu in self.cpus.ids() {
                self.account(cpu);
            }
            let busy = self.busy();
            let spent = busy - std::mem::replace(&mut self.tick_busy, busy);
            let share = spent as f64 / (TICK as f64 * self.cpus.len() as f64);
            let factor = nanos(1.0 + self.contention * share * share);
            self.contention_permille = (self.contention_permille * 7 + factor).div_ceil(8);
        }
    }
}

/// Converts CPU numbers of a scenario to ids.
fn cpu_ids(cpus: &[u32]) -> impl Iterator<Item = CpuId> + Clone {
    cpus.iter().map(|&cpu| CpuId::new(cpu as usize))
}

/// The CPU that handles a queue's interrupt.
fn irq_cpu(layout: &Layout, queue: QueueId) -> CpuId {
    CpuId::new(layout.irq_cpus[queue.index() % layout.irq_cpus.len()] as usize)
}

/// Assigns each connection to a queue and a thread.
fn place_connections(scenario: &Scenario, chance: &mut Chance) -> IndexVec<ConnectionId, Home> {
    let (queues, threads) = (scenario.hardware.queues, scenario.application.threads);
    (0..scenario.clients.connections)
        .map(|connection| {
            let queue = if scenario.layout.even_queues { connection % queues } else { chance.below(queues) };
            let thread = match (scenario.layout.by_napi, scenario.layout.even_threads) {
                (true, _) => queue % threads,
                (false, true) => connection % threads,
                (false, false) => chance.below(threads),
            };
            Home::new(QueueId::new(queue as usize), ThreadId::new(thread as usize))
        })
        .collect()
}

/// Assigns each connection to a queue of the clients' host, if there is one.
fn place_answers(scenario: &Scenario, chance: &mut Chance) -> IndexVec<ConnectionId, Compact<ClientQueueId>> {
    let clients = &scenario.clients;
    let connections = if clients.threads > 0 { clients.connections } else { 0 };
    (0..connections)
        .map(|connection| match scenario.layout.even_queues {
            true => connection % clients.queues,
            false => chance.below(clients.queues),
        })
        .map(|queue| Compact::new(ClientQueueId::new(queue as usize)))
        .collect()
}

/// Creates the tasks with their allowed CPUs and their initial CPU, in the order of [`Slots`].
fn place_tasks(scenario: &Scenario, chance: &mut Chance) -> IndexVec<TaskId, Task> {
    let layout = &scenario.layout;
    let mut order: Vec<CpuId> = cpu_ids(&layout.thread_cpus).collect();
    if !layout.pinned {
        chance.shuffle(&mut order);
    }
    let task = |cpu: CpuId, allowed: CpuMask, step: Step| Task {
        cpu,
        state: State::Sleeping,
        allowed,
        step,
        interrupt: 0,
    };
    let bound = |cpu: CpuId, step: Step| task(cpu, CpuMask::of(cpu), step);
    let shared: CpuMask = cpu_ids(&layout.thread_cpus).collect();
    let threads =
        order.iter().cycle().take(scenario.application.threads as usize).map(|&cpu| match layout.pinned {
            true => bound(cpu, Step::EpollEnter),
            false => task(cpu, shared, Step::EpollEnter),
        });
    let all = || (0..scenario.hardware.cpus as usize).map(CpuId::new);
    let everywhere: CpuMask = all().collect();
    let kthreads = (0..scenario.hardware.queues as usize)
        .map(QueueId::new)
        .map(|queue| task(irq_cpu(layout, queue), everywhere, Step::Kthread));
    let ksoftirqds = all().map(|cpu| bound(cpu, Step::Ksoftirqd));
    let housekeepers = all().map(|cpu| bound(cpu, Step::Housekeeping));
    threads.chain(kthreads).chain(ksoftirqds).chain(housekeepers).collect()
}

fn new_thread(scenario: &Scenario, thread: ThreadId) -> Thread {
    Thread {
        ready: std::collections::VecDeque::new(),
        batch: std::collections::VecDeque::new(),
        last_batch: 0,
        locality: 0,
        max_events: scenario.application.max_events,
        napi: NapiId::new(thread.index() % scenario.hardware.queues as usize),
        owns_napi: false,
        spin_began: 0,
        polls_on: false,
        answered: 0,
    }
}

impl<W> World<W> {
    /// Adapts the tick to a tally that was reset to zero.
    pub(crate) const fn forget_ticks(&mut self) {
        self.tick_answered = 0;
    }
}
