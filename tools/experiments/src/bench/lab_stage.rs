//! Runs one cell of the experiment, through the whole cycle: starts the server, observes, plans, commits,
//! measures, restores, and compares the host with its previous state.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use apply::{Allow, Journal, TransactionName};
use linux::bpf::delivery::DeliverySampler;
use linux::counters::CounterSource;
use linux::cycles::Cycles;
use linux::lab::{Lab, LabOptions, Memcached as Server, MemcachedOptions};
use linux::machine::{Machine, seconds_since_1970};
use linux::process::preload::{self, EpollCounts, Library};
use linux::{Kernel, Processes, Signals};
use load::RunError;
use model::{
    Budget, DeliveryMode, Evidence, Host, Intent, IrqKnob, MeasuredOn, MemcachedWorkload, NapiId, NapiKnob,
    Origin, Pid, Policy, PolicyName, ProcessKnob, RxQueueKnob, Setting, Target, TxQueue, TxQueueKnob,
};
use runs::{Cell, Stage};
use session::{Fault, clock, cycle};

use super::args::Memcached;
use super::error::BenchError;
use super::layout::Layout;
use super::watch::{Meters, Watch};
use crate::Context;

/// The longest wait between checks for signals.
const TURN: Duration = Duration::from_millis(50);

/// A lab that runs one server at a time.
pub(crate) struct LabStage<'a> {
    context: &'a Context<'a>,
    signals: &'a mut Signals,
    /// The time after which no further run starts.
    until: Option<Instant>,
    layout: Layout,
    workload: MemcachedWorkload,
    server: MemcachedOptions,
    journal: Journal,
    counters: CounterSource,
    delivery: Option<DeliverySampler>,
    /// Whether the server counts the events of its `epoll_wait` calls.
    counts_epolls: bool,
    cell: Option<Applied>,
    lab: Lab,
}

/// A server with the settings applied to it.
struct Applied {
    /// The server; `None` after an interrupt.
    server: Option<Server>,
    transaction: Option<TransactionName>,
    /// Every setting of the host before the run.
    before: Vec<Setting>,
    /// The server's NAPIs.
    napis: BTreeSet<NapiId>,
    cycles: Option<Cycles>,
    /// The counts of events that the server's `epoll_wait` calls return, if counted.
    epolls: Option<EpollCounts>,
}

impl<'a> LabStage<'a> {
    /// Creates a lab for these runs.
    pub(crate) fn new(
        context: &'a Context<'a>,
        signals: &'a mut Signals,
        layout: Layout,
        workload: MemcachedWorkload,
        (server_threads, queues): (u32, u32),
        arguments: &Memcached,
    ) -> Result<Self, Fault> {
        let until = arguments.time_for_all().map(|time| Instant::now() + time);
        let lab = Lab::new(&LabOptions::with_queues(queues))?;
        let connections = workload.threads.saturating_mul(workload.connections_per_thread);
        let server = MemcachedOptions {
            threads: server_threads,
            // With a single queue, NAPI ids would not distinguish connections.
            napi_ids: (queues > 1 && queues == server_threads).then_some(queues),
            cpus: layout.server.clone(),
            connections_max: connections.saturating_add(SPARE_CONNECTIONS),
            ..MemcachedOptions::default()
        };
        let delivery = delivery_sampler(context, !arguments.uncounted);
        let journal = context.session.journal_in(&lab.scratch())?;
        let counters = CounterSource::open(lab.server())?;
        Ok(Self {
            context,
            signals,
            until,
            layout,
            workload,
            server,
            journal,
            counters,
            delivery,
            counts_epolls: !arguments.uncounted,
            cell: None,
            lab,
        })
    }

    /// Starts a server and, if requested, starts to count the events of its `epoll_wait` calls.
    fn start(&mut self, mode: DeliveryMode) -> Result<(Server, Option<EpollCounts>), BenchError> {
        let mut options = self.server.clone();
        let epolls = preloaded(&mut options, mode, self.counts_epolls, &self.lab.scratch())?;
        Ok((self.lab.start_memcached(&options)?, epolls))
    }

    fn observe(&self, server: &Server) -> Result<Host, BenchError> {
        Ok(linux::observe(self.lab.server(), &Processes::Only(vec![server.process().pid]))?)
    }
}

/// Makes memcached preload the libraries that a mode needs, and the one that counts its `epoll_wait` calls.
pub(crate) fn preloaded(
    options: &mut MemcachedOptions,
    mode: DeliveryMode,
    counts_epolls: bool,
    scratch: &Path,
) -> Result<Option<EpollCounts>, BenchError> {
    let libraries = scratch.join("lib");
    // Merge the variables by name, because all libraries share one LD_PRELOAD.
    let mut variables = BTreeMap::new();
    if let Some(cap) = mode.params().epoll_wait_cap {
        // memcached passes a timeout with each call, which only a preloaded library can change.
        let library = preload::install(Library::Cap, &libraries)?;
        variables.extend(preload::environment(&library, cap, None));
    }
    let epolls = match counts_epolls {
        true => {
            let library = preload::install(Library::Count, &libraries)?;
            let counts = EpollCounts::new()?;
            let preloaded = variables.get(preload::PRELOAD_VARIABLE).cloned();
            variables.extend(counts.environment(&library, preloaded.as_deref()));
            Some(counts)
        }
        false => None,
    };
    options.environment.extend(variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())));
    Ok(epolls)
}

/// The number of connections, in addition to the generator's, with which the lab checks whether memcached
/// answers.
pub(crate) const SPARE_CONNECTIONS: u32 = 64;

/// Returns the policy that requests a delivery mode for a server. Full busy polling may use as many CPUs as
/// it needs: the lab shows what that costs.
pub(crate) fn policy(server: Pid, mode: DeliveryMode) -> Policy {
    let budget = Budget { polling_cpus: Some(u32::MAX), ..Budget::default() };
    let target = Target::Task(server);
    let intent =
        Intent { delivery: Some(mode), budget, ..Intent::new(target, PolicyName::None, "netpolicy bench") };
    Policy { intents: vec![intent], ..Policy::default() }
}

impl Stage for LabStage<'_> {
    type Error = BenchError;

    fn apply(&mut self, label: &str) -> Result<(), BenchError> {
        check_time(self.signals, self.until)?;
        let mode: DeliveryMode = label.parse().map_err(|error| Fault::failed(format!("{error}")))?;
        let (server, epolls) = self.start(mode)?;
        let planned = cycle::plan(&policy(server.process().pid, mode), self.lab.server())?;
        let transaction =
            cycle::keep(planned.plan, &self.journal, &self.context.session.asked(None), Allow::default())?;
        self.cell = Some(Applied {
            transaction,
            before: settings(&planned.host),
            napis: planned.host.devices.iter().flat_map(|device| &device.napis).map(|napi| napi.id).collect(),
            // Most virtual machines have no cycle counters; the evidence then omits them.
            cycles: Cycles::of(server.process()).ok(),
            epolls,
            server: Some(server),
        });
        Ok(())
    }

    fn measure(&mut self, cell: Cell<'_>) -> Result<Evidence, BenchError> {
        let Self { signals, layout, workload, counters, delivery, cell: applied, lab, .. } = self;
        let Some(applied) = applied else { return Err(Fault::failed("nothing was applied").into()) };
        let Applied { server, napis, cycles, epolls, .. } = applied;
        let Some((address, version)) =
            server.as_ref().map(|server| (server.address(), server.version().to_owned()))
        else {
            return Err(Fault::failed("the server was stopped").into());
        };
        let workload = MemcachedWorkload { seed: cell.seed, ..workload.clone() };
        let started = seconds_since_1970();
        let meters = Meters {
            cycles: cycles.as_mut(),
            epolls: epolls.as_ref(),
            ..Meters::of(counters, delivery.as_mut())
        };
        let watch = Watch::new(lab.client(), layout, meters);
        // On an interrupt, stop the server, so that the run ends immediately instead of after its full time.
        let run = interruptible(
            signals,
            || load::memcached(address, &workload, cell.load, &watch),
            || drop(server.take()),
        );
        let mut evidence = run?.into_evidence(cell.label, origin(layout, lab, version, started));
        watch.add_to(&mut evidence, napis, false);
        Ok(evidence)
    }

    fn restore(&mut self) -> Result<(), BenchError> {
        let Some(applied) = self.cell.take() else { return Ok(()) };
        if let Some(transaction) = applied.transaction {
            let undone = self.journal.roll_back(transaction, &mut Kernel::new(), clock::now());
            undone.map_err(Fault::from)?;
        }
        let Some(server) = applied.server else { return Ok(()) };
        let after = settings(&self.observe(&server)?);
        let wrong = differences(&applied.before, &after);
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(Fault::failed(format!("left changed: {}", wrong.join(", "))).into())
        }
    }
}

/// Checks whether another run may start.
pub(crate) fn check_time(signals: &mut Signals, until: Option<Instant>) -> Result<(), BenchError> {
    match signals.take() {
        Some(arrived) => Err(BenchError::Interrupted(arrived.signal)),
        None if until.is_some_and(|until| Instant::now() >= until) => Err(BenchError::TimeUp),
        None => Ok(()),
    }
}

/// The sampler of polls by context, if wanted. The console shows why it is unavailable.
pub(super) fn delivery_sampler(context: &Context<'_>, is_wanted: bool) -> Option<DeliverySampler> {
    let loaded = is_wanted.then(DeliverySampler::load)?;
    loaded.inspect_err(|error| context.console.say(&format!("Poll counts are unavailable: {error}"))).ok()
}

/// Performs a run. A signal ends the run by calling `end`, and becomes its result.
pub(crate) fn interruptible<T: Send>(
    signals: &mut Signals,
    run: impl FnOnce() -> Result<T, RunError> + Send,
    mut end: impl FnMut(),
) -> Result<T, BenchError> {
    std::thread::scope(|scope| {
        let run = scope.spawn(run);
        let mut interrupted = None;
        while !run.is_finished() {
            if let Some(arrived) = signals.take() {
                interrupted = Some(arrived.signal);
                end();
            }
            std::thread::sleep(TURN);
        }
        let run = run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match interrupted {
            Some(signal) => Err(BenchError::Interrupted(signal)),
            None => Ok(run?),
        }
    })
}

fn origin(layout: &Layout, lab: &Lab, server: String, started: u64) -> Origin {
    let Machine { host, kernel, cpu_model } = Machine::this();
    let client: model::CpuSet = layout.client.iter().copied().collect();
    let machine = format!(
        "{cpu_model}, lab with {} queue(s), server on CPU {}, client on CPU {client}",
        lab.queues(),
        layout.server
    );
    Origin::Measured(MeasuredOn { host, kernel, machine, server, started })
}

/// Returns every setting of a host that a plan can change, with its value.
pub(crate) fn settings(host: &Host) -> Vec<Setting> {
    let mut settings = Vec::new();
    for queue in host.devices.iter().flat_map(|device| &device.rx_queues).map(|queue| queue.id) {
        let Some(napi) = host.napi_of(queue) else { continue };
        settings
            .extend(napi.defer_hard_irqs.map(|value| Setting::Napi(queue, NapiKnob::DeferHardIrqs(value))));
        settings.extend(
            napi.gro_flush_timeout.map(|value| Setting::Napi(queue, NapiKnob::GroFlushTimeout(value))),
        );
        settings.extend(
            napi.irq_suspend_timeout.map(|value| Setting::Napi(queue, NapiKnob::IrqSuspendTimeout(value))),
        );
        settings.extend(napi.threaded.map(|value| Setting::Napi(queue, NapiKnob::Threaded(value))));
    }
    for device in &host.devices {
        for queue in &device.rx_queues {
            settings.push(Setting::RxQueue(queue.id, RxQueueKnob::RpsCpus(queue.rps_cpus.clone())));
        }
        for queue in &device.tx_queues {
            let id = TxQueue { device: device.id, index: queue.index };
            settings.push(Setting::TxQueue(id, TxQueueKnob::XpsCpus(queue.xps_cpus.clone())));
        }
        let irqs = device.napis.iter().filter_map(|napi| host.irq(napi.irq?.irq));
        settings.extend(irqs.map(|irq| Setting::Irq(irq.number, IrqKnob::Affinity(irq.affinity.clone()))));
    }
    for process in &host.processes {
        let epolls = process
            .epolls
            .iter()
            .filter_map(|epoll| Some(Setting::Process(ProcessKnob::Epoll(epoll.id, epoll.params?))));
        settings.extend(epolls);
        let threads = process.threads.iter();
        settings.extend(
            threads.map(|thread| {
                Setting::Process(ProcessKnob::ThreadAffinity(thread.id, thread.affinity.clone()))
            }),
        );
    }
    settings
}

/// Describes the settings that differ. Settings of threads that the server has created or ended are ignored.
pub(crate) fn differences(before: &[Setting], after: &[Setting]) -> Vec<String> {
    let changed = |was: &Setting| {
        let is = after.iter().find(|is| is.same_knob(was))?;
        (is != was)
            .then(|| format!("{} {} was {} and is {}", was.object(), was.knob(), was.value(), is.value()))
    };
    before.iter().filter_map(changed).collect()
}
