//! Runs a memcached in a lab, and measures it both as `watch` does and on the wire.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use apply::{Allow, Journal, TransactionName};
use latency::measure::live::agreement::{estimates_of, percentiles_of};
use latency::measure::live::{AgreementRun, Estimator, Series, Turnarounds};
use linux::bpf::live::{LiveMeter, LiveTarget};
use linux::bpf::wire::{WireCounts, WireMeter};
use linux::bpf::{RunTime, Statistics};
use linux::lab::{Lab, LabOptions, Memcached as Server, MemcachedOptions, SERVER_ADDRESS};
use linux::{Kernel, KernelError, Netns, Signals};
use load::{Edge, Environment};
use model::live::LiveWindow;
use model::{CpuSet, DeliveryMode, Evidence, Nanoseconds, Origin, Pid, SimulatedFrom};
use rustix::process::setpriority_process;
use session::{Fault, clock, cycle};

use super::error::BenchError;
use super::lab_stage::{interruptible, policy};
use super::label;
use super::layout::Layout;
use super::live_args::{Live, LiveLoad};
use crate::Context;

/// The nice value of server and client, so that other work on the machine does not affect the response times.
const NICE: i32 = -10;

/// memcached's own port.
const PORT: u16 = 11211;

/// How much of each second [`Measuring::Sampled`] measures: the daemon's default.
const SAMPLED: Duration = Duration::from_millis(20);

/// How much of a run to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measuring {
    /// Nothing is measured.
    Off,
    /// A part of each second is measured.
    Sampled,
    /// The whole run is measured.
    Attached,
}

impl Measuring {
    /// Returns the index of the column in [`Costs`].
    const fn place(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Sampled => 1,
            Self::Attached => 2,
        }
    }
}

/// A lab that runs one server at a time, with the programs that measure it.
pub(crate) struct LiveStage<'a> {
    context: &'a Context<'a>,
    signals: &'a mut Signals,
    arguments: &'a Live,
    layout: Layout,
    journal: Journal,
    meter: LiveMeter,
    wire: WireMeter,
    /// The clients' turnaround times that were learned under the kernel's default mode, and the load to which
    /// they belong.
    turnarounds: Option<(String, Turnarounds)>,
    lab: Lab,
}

impl<'a> LiveStage<'a> {
    /// Creates the lab and loads the measuring programs.
    pub(crate) fn new(
        context: &'a Context<'a>,
        signals: &'a mut Signals,
        layout: Layout,
        arguments: &'a Live,
    ) -> Result<Self, Fault> {
        let lab = Lab::new(&LabOptions::with_queues(1))?;
        lab.stamp_in_microseconds()?; // before Linux 6.7, estimate T has no figures
        let journal = context.session.journal_in(&lab.scratch())?;
        let meter = LiveMeter::load(&LiveTarget::of(lab.server().id(), vec![PORT]))?;
        let wire = WireMeter::load(PORT, lab.server().id(), lab.client().id())?;
        Ok(Self { context, signals, arguments, layout, journal, meter, wire, turnarounds: None, lab })
    }

    /// Starts a server under a mode.
    fn start(&mut self, mode: DeliveryMode) -> Result<(Server, Option<TransactionName>), BenchError> {
        let options = MemcachedOptions {
            cpus: self.layout.server.clone(),
            connections_max: CONNECTIONS_MAX,
            ..MemcachedOptions::default()
        };
        let server = self.lab.start_memcached(&options).map_err(super::server_fault)?;
        first_in_line(server.process().pid);
        let planned = cycle::plan(&policy(server.process().pid, mode), self.lab.server())?;
        let asked = self.context.session.asked(None);
        let transaction = cycle::keep(planned.plan, &self.journal, &asked, Allow::default())?;
        Ok((server, transaction))
    }

    fn put_back(&self, transaction: Option<TransactionName>) -> Result<(), BenchError> {
        if let Some(transaction) = transaction {
            let undone = self.journal.roll_back(transaction, &mut Kernel::new(), clock::now());
            undone.map_err(Fault::from)?;
        }
        Ok(())
    }

    /// Performs one run, with estimates and ground truth.
    pub(crate) fn trial(
        &mut self,
        mode: DeliveryMode,
        load: LiveLoad,
        round: u32,
    ) -> Result<AgreementRun, BenchError> {
        let words = load.to_string();
        if self.turnarounds.as_ref().is_none_or(|(learned, _)| *learned != words) {
            // Forget the turnaround times of other clients: those of these clients differ.
            self.turnarounds = Some((words.clone(), Turnarounds::default()));
            self.meter.set_turnarounds(&model::SpanCounts::new())?;
        }
        let (mut server, transaction) = {
            let (server, transaction) = self.start(mode)?;
            (Some(server), transaction)
        };
        let address = server.as_ref().map(Server::address);
        let Some(address) = address else { return Err(Fault::failed("the server was stopped").into()) };
        let workload = self.arguments.workload(load, round);
        self.meter.set_polled_by_threads(matches!(mode, DeliveryMode::Threaded | DeliveryMode::ThreadedBusy));
        let observers = Observers {
            netns: self.lab.client(),
            layout: &self.layout,
            observed: Mutex::new(Observed {
                meter: &mut self.meter,
                wire: &mut self.wire,
                window: None,
                seen: None,
                wrong: None,
            }),
        };
        let attraction = Attraction::new(self.lab.client(), &self.layout);
        let run = interruptible(
            self.signals,
            || attraction.during(|| load::memcached(address, &workload, load.offered, &observers)),
            || drop(server.take()),
        );
        let observed = observers.observed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (window, seen, wrong) = (observed.window, observed.seen, observed.wrong);
        self.put_back(transaction)?;
        let evidence: Evidence = run?.into_evidence(words.clone(), nowhere());
        if let Some(wrong) = wrong {
            return Err(wrong.into());
        }
        let (Some(window), Some(seen)) = (window, seen) else {
            return Err(Fault::failed("the start or end of the window was not observed").into());
        };
        self.learn(mode, &window)?;
        Ok(trial(mode, load, round, &window, &seen, &evidence))
    }

    fn learn(&mut self, mode: DeliveryMode, window: &LiveWindow) -> Result<(), KernelError> {
        let Some((_, turnarounds)) = &mut self.turnarounds else { return Ok(()) };
        if mode == DeliveryMode::Interrupt
            && turnarounds.learn(window)
            && let Some(known) = turnarounds.known()
        {
            self.meter.set_turnarounds(known)?;
        }
        Ok(())
    }

    /// Measures the server's CPU time per request, in nanoseconds. Each run measures in one of the three
    /// ways, in random order.
    pub(crate) fn costs(
        &mut self,
        load: LiveLoad,
        rounds: u32,
        mut on_round: impl FnMut(u32),
    ) -> Result<Costs, BenchError> {
        let (mut server, transaction) = {
            let (server, transaction) = self.start(DeliveryMode::Interrupt)?;
            (Some(server), transaction)
        };
        let Some((address, pid)) = server.as_ref().map(|server| (server.address(), server.process().pid))
        else {
            return Err(Fault::failed("the server was stopped").into());
        };
        let (mut chance, mut found) = (model::Chance::stream(self.arguments.seed, &[]), Vec::new());
        for round in 0..rounds {
            on_round(round);
            let mut order = [Measuring::Off, Measuring::Sampled, Measuring::Attached];
            // Shuffle the order, so that other work on the machine affects all ways of measuring equally.
            for last in (1..order.len()).rev() {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below three")]
                #[expect(clippy::cast_precision_loss, reason = "below three")]
                let with = (chance.unit() * (last + 1) as f64) as usize;
                order.swap(last, with.min(last));
            }
            let mut of_round = [0.0; 3];
            for way in order {
                let workload = self.arguments.workload(load, round);
                let spender = Spender::new(self.lab.client(), &self.layout, pid, way, &mut self.meter);
                let run = interruptible(
                    self.signals,
                    || load::memcached(address, &workload, load.offered, &spender),
                    || drop(server.take()),
                );
                let spent = spender.spent();
                let evidence = run?.into_evidence("", nowhere());
                let answers = evidence.throughput * evidence.window.as_secs_f64();
                of_round[way.place()] = spent? / answers.max(1.0);
            }
            found.push(of_round);
        }
        let profile = self.profile(address, load, pid);
        self.put_back(transaction)?;
        Ok((found, profile?))
    }

    /// Returns how often each program runs per request, and its run time, in nanoseconds.
    fn profile(
        &mut self,
        address: std::net::SocketAddr,
        load: LiveLoad,
        server: Pid,
    ) -> Result<Vec<(String, f64, f64)>, BenchError> {
        let before = self.meter.run_times()?;
        let statistics = Statistics::enable()?;
        let workload = self.arguments.workload(load, 0);
        let spender =
            Spender::new(self.lab.client(), &self.layout, server, Measuring::Attached, &mut self.meter);
        let run = interruptible(
            self.signals,
            || load::memcached(address, &workload, load.offered, &spender),
            || {},
        );
        spender.spent()?;
        drop(statistics);
        let evidence = run?.into_evidence("", nowhere());
        let answers = evidence.throughput * evidence.window.as_secs_f64();
        let after = self.meter.run_times()?;
        #[expect(clippy::cast_precision_loss, reason = "runs and spans of a second, below 2^53")]
        let of_program = |(before, after): (&RunTime, &RunTime)| {
            let (runs, time) = (after.runs - before.runs, after.time.0 - before.time.0);
            let each = (runs > 0).then(|| time as f64 / runs as f64)?;
            Some((after.program.clone(), runs as f64 / answers.max(1.0), each))
        };
        Ok(before.iter().zip(&after).filter_map(of_program).collect())
    }
}

/// The server's CPU time for each round (off, sampled and attached); and each program's name, runs per
/// request and run time.
pub(crate) type Costs = (Vec<[f64; 3]>, Vec<(String, f64, f64)>);

/// Maximum number of connections, more than any load uses.
const CONNECTIONS_MAX: u32 = 2_048;

/// Raises the priority of a process's threads, or with pid 0 of this thread. Threads that have exited are
/// skipped.
fn first_in_line(pid: Pid) {
    let threads = linux::process::threads_of(pid).into_iter().filter_map(|tid| i32::try_from(tid).ok());
    for tid in threads.filter_map(rustix::process::Pid::from_raw) {
        let _ = setpriority_process(Some(tid), NICE);
    }
}

/// Returns a placeholder, because only the numbers of such a run are kept.
fn nowhere() -> Origin {
    Origin::Simulated(SimulatedFrom {
        scenario: String::new(),
        seed: 0,
        parameters: std::collections::BTreeMap::new(),
    })
}

fn trial(
    mode: DeliveryMode,
    load: LiveLoad,
    round: u32,
    window: &LiveWindow,
    seen: &WireCounts,
    evidence: &Evidence,
) -> AgreementRun {
    let mut series = Series::new();
    series.add(window);
    let latency = &evidence.latency;
    #[expect(clippy::cast_precision_loss, reason = "spans of a run, below 2^53 ns")]
    let client = [latency.p50, latency.p90, latency.p99].map(|span| Some(span.0 as f64));
    AgreementRun {
        mode: label(mode),
        load: load.to_string(),
        closed: load.is_closed(),
        round,
        answered: seen.answered,
        counted: window.counts.requests,
        wire: percentiles_of(&seen.spans),
        client,
        residence: estimates_of(&series, Estimator::Residence),
        uniform: estimates_of(&series, Estimator::Uniform),
        conditional: estimates_of(&series, Estimator::Conditional),
        stamped: estimates_of(&series, Estimator::Stamped),
    }
}

/// The measurements made during a run.
struct Observers<'a> {
    netns: &'a Netns,
    layout: &'a Layout,
    observed: Mutex<Observed<'a>>,
}

struct Observed<'a> {
    meter: &'a mut LiveMeter,
    wire: &'a mut WireMeter,
    window: Option<LiveWindow>,
    seen: Option<WireCounts>,
    wrong: Option<KernelError>,
}

/// Keeps the NAPI's timer on the server's CPU.
///
/// A veth has no interrupt: the sender of a packet polls for it. So the client polls the server's NAPI on the
/// client's CPU, and the timer that this poll arms expires there, too. While its softirq runs, the client
/// sends nothing, whereas a client on a separate host would. An occasional datagram from the server's CPU
/// moves the poll there, and the timer stays there, like that of a NIC whose interrupt is bound to the
/// server's CPU.
struct Attraction<'a> {
    netns: &'a Netns,
    cpu: Option<CpuSet>,
}

impl<'a> Attraction<'a> {
    /// Interval between datagrams.
    const EVERY: Duration = Duration::from_millis(1);

    fn new(netns: &'a Netns, layout: &Layout) -> Self {
        let cpu = (!layout.is_shared()).then(|| layout.server.iter().take(1).collect());
        Self { netns, cpu }
    }

    /// Sends datagrams while `body` runs.
    fn during<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // If sending the datagrams fails, the run proceeds without them.
            scope.spawn(|| self.attract(&done).ok());
            let result = body();
            done.store(true, Ordering::Relaxed);
            result
        })
    }

    fn attract(&self, done: &AtomicBool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        /// The port of the discard service; no process listens there.
        const DISCARD: u16 = 9;
        let Some(cpu) = &self.cpu else { return Ok(()) };
        self.netns.enter()?;
        linux::process::pin_this_thread(cpu)?;
        setpriority_process(None, NICE)?;
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        while !done.load(Ordering::Relaxed) {
            // Because no process listens, the kernel reports ECONNREFUSED from time to time.
            let _ = socket.send_to(b"x", (SERVER_ADDRESS, DISCARD));
            std::thread::sleep(Self::EVERY);
        }
        Ok(())
    }
}

/// Moves the calling client thread into its namespace and onto its CPU.
fn place(
    netns: &Netns,
    layout: &Layout,
    thread: u32,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    netns.enter()?;
    if let Some(cpus) = layout.client_cpus(thread) {
        linux::process::pin_this_thread(&cpus)?;
    }
    setpriority_process(None, NICE)?;
    Ok(())
}

impl Environment for Observers<'_> {
    fn on_thread_start(&self, thread: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        place(self.netns, self.layout, thread)
    }

    fn at_edge(&self, edge: Edge) {
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        let observed = &mut *observed;
        let done = match edge {
            // The meter and the wire must see the same requests, and none that arrived while programs were
            // being attached or detached.
            Edge::Opens => observed.wire.begin_closed().and_then(|()| {
                observed.meter.begin_with_stack()?;
                observed.wire.opens_at(observed.meter.opened().unwrap_or_default())
            }),
            Edge::Closes => observed.wire.closes().and_then(|()| observed.meter.end()).and_then(|window| {
                observed.window = Some(window);
                observed.seen = Some(observed.wire.end()?);
                Ok(())
            }),
        };
        if let Err(error) = done {
            observed.wrong.get_or_insert(error);
        }
    }
}

/// Reads how much CPU time the server uses during a run, with or without measuring.
struct Spender<'a> {
    netns: &'a Netns,
    layout: &'a Layout,
    server: Pid,
    way: Measuring,
    state: Mutex<Spending<'a>>,
}

struct Spending<'a> {
    meter: &'a mut LiveMeter,
    edges: Vec<Nanoseconds>,
    wrong: Option<KernelError>,
}

impl<'a> Spender<'a> {
    fn new(
        netns: &'a Netns,
        layout: &'a Layout,
        server: Pid,
        way: Measuring,
        meter: &'a mut LiveMeter,
    ) -> Self {
        let state = Spending { meter, edges: Vec::with_capacity(2), wrong: None };
        Self { netns, layout, server, way, state: Mutex::new(state) }
    }

    /// Returns the server's CPU time between the edges of the window, in nanoseconds.
    fn spent(self) -> Result<f64, BenchError> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(wrong) = state.wrong {
            return Err(wrong.into());
        }
        let [before, after] = state.edges[..] else {
            return Err(Fault::failed("the start or end of the window was not observed").into());
        };
        #[expect(clippy::cast_precision_loss, reason = "run time of seconds, below 2^53 ns")]
        Ok(after.0.saturating_sub(before.0) as f64)
    }
}

impl Environment for Spender<'_> {
    fn on_thread_start(&self, thread: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        place(self.netns, self.layout, thread)
    }

    fn at_edge(&self, edge: Edge) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        if edge == Edge::Opens && self.way != Measuring::Off {
            state.wrong = state.meter.begin().err();
        }
        let now = linux::work::run_time(&[self.server]);
        state.edges.extend(now);
        match (edge, self.way) {
            (Edge::Closes, Measuring::Attached) => state.wrong = state.meter.end().err(),
            (Edge::Opens, Measuring::Sampled) => {
                std::thread::sleep(SAMPLED);
                state.wrong = state.meter.end().err();
            }
            (Edge::Opens | Edge::Closes, _) => {}
        }
    }
}

/// Formats the progress message of a long bench.
pub(crate) fn pace(done: usize, all: usize, since: Instant) -> String {
    let each = since.elapsed().as_secs_f64() / f64::from(u32::try_from(done.max(1)).unwrap_or(1));
    let left = each * f64::from(u32::try_from(all - done).unwrap_or(0));
    format!("run {} of {all}, {left:.0} s left", done + 1)
}
