//! The event loop, and the stations of the receive path. All of them modify the state of a run (`state`, `parts`,
//! `clients`).
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
mod clients;
mod cpu;
mod epoll;
mod gro;
mod housekeeping;
mod irq;
mod kthread;
pub(crate) mod napi;
mod nic;
mod parts;
mod scheduler;
mod socket;
pub(crate) mod softirq;
mod state;

use crate::arrivals::NEVER;
use crate::calendar::Calendar;
use crate::chance::{Chance, Stream};
use crate::cpu_mask::CpuMask;
use crate::ids::{ClientQueueId, Compact, ConnectionId, CpuId, NapiId, QueueId, TaskId, ThreadId};
use crate::index_vec::IndexVec;
use crate::scenario::{Layout, Processing, Scenario, nanos};
use crate::slots::{Owner, Slots};
use crate::watch::{Class, Watch};
use crate::wire::Link;
use clients::{ClientHost, Clients, Connection, Home};
use parts::{Cpu, CpusByState, Napi, Queue, State, Step, Task, Thread, Topology, Use, list_length};
use state::Spans;
pub(crate) use state::{Tally, World};

/// Length of a timer tick: short enough to follow the load, and long enough to cost nothing.
const TICK: u64 = 1_000_000;

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
            standing: CpusByState::default(),
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

    /// Returns the non-idle time of all CPUs so far.
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
        // The rate in this tick; the share that follows from the rate is smoothed exponentially with a time
        // constant of 20 ms.
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

/// Returns the CPU that handles a queue's interrupt.
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

/// Creates the tasks in the order of [`Slots`], each with its allowed CPUs and its initial CPU.
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
