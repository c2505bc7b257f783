//! Runs one cell of an experiment across machines: the other machine applies and counts, this machine offers
//! the load.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use linux::counters::CounterSource;
use linux::machine::{Machine, describe, device_towards, seconds_since_1970};
use linux::process::pin_this_thread;
use linux::work::WorkTime;
use linux::{Netns, Processes, Signals};
use load::{Edge, Environment};
use model::{
    Cpu, CpuSet, DeliveryMode, EpollParams, Evidence, MachineDescription, MeasuredOn, Nanoseconds, NapiId,
    Origin, Pid, PolicyName, Side, Waiting, Workload,
};
use runs::{Cell, Stage};
use session::{Fault, HostState};

use super::client_side::ClientSide;
use super::control::Control;
use super::device::observe;
use super::message::{Applied, Apply, Counted, Prepare, Reply, Request, Served, Service, WITHIN_MAX, Wanted};
use crate::Context;
use crate::bench::configuration::Configuration;
use crate::bench::{
    AtEdge, BenchError, Meters, SPARE_CONNECTIONS, all_at_once, check_time, interruptible, set_own_epoll,
};

/// The time that a run takes in addition to warm-up, window and drain, for connecting and storing keys.
const SLACK: Nanoseconds = Nanoseconds::from_millis(120_000);

/// This machine as the client, and a connection to the server's machine.
pub(crate) struct MachinesStage<'a> {
    signals: &'a mut Signals,
    /// The time after which no further run starts.
    until: Option<Instant>,
    netns: Netns,
    server: MachineDescription,
    client: MachineDescription,
    /// The workload of each server, with the policy that suits the workload; empty before they are set.
    workloads: Vec<(PolicyName, Workload)>,
    /// What the labels of cells name.
    labels: Labels,
    /// This machine as the client, if the configuration applies to it, too.
    own: Option<ClientSide<'a>>,
    /// The current parameters of the client threads' epolls.
    own_epolls: Option<EpollParams>,
    /// The evidence of the second workload of each run.
    beside: Vec<Evidence>,
    /// The settings of each tuning when it was last applied.
    applied_settings: BTreeMap<String, String>,
    threads: u32,
    /// Whether each client thread has its own server thread.
    partners: bool,
    /// A service to use instead of starting one.
    running: Option<String>,
    counters: CounterSource,
    applied: Option<Applied>,
    control: Control,
}

/// What the labels of cells name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Labels {
    /// Configurations.
    Configurations,
    /// Tunings of `bench policies`.
    Tunings,
}

/// The parameters of a bench in addition to its workload.
pub(crate) struct Needs {
    /// What the labels of cells name.
    pub(crate) labels: Labels,
    /// Whether the configuration also applies to the client.
    pub(crate) both_sides: bool,
    /// The number of threads of the server; `None` for one per CPU.
    pub(crate) threads: Option<u32>,
    /// Whether each client thread has its own server thread.
    pub(crate) partners: bool,
    /// A service that already runs on the other machine, to use instead of starting one.
    pub(crate) running: Option<String>,
    /// The client's network namespace.
    pub(crate) netns: Netns,
    /// The client's CPUs.
    pub(crate) cpus: CpuSet,
    /// The parameters for preparing the other machine.
    pub(crate) prepare: Prepare,
    /// The time after which no further run starts.
    pub(crate) until: Option<Instant>,
}

impl<'a> MachinesStage<'a> {
    /// Prepares both machines.
    pub(crate) fn new(
        context: &'a Context<'a>,
        mut control: Control,
        signals: &'a mut Signals,
        needs: Needs,
    ) -> Result<Self, Fault> {
        let Needs { labels, both_sides, threads, partners, running, netns, cpus, prepare, until } = needs;
        let (address, server) = match control.request(&Request::Prepare(prepare))? {
            Reply::Prepared { address, machine } => (address, *machine),
            other => return Err(control.unexpected(&other)),
        };
        let device = device_towards(&netns, address)?;
        let device = device.ok_or_else(|| Fault::failed(format!("there is no route to {address}")))?;
        let client = describe(&netns, device, Side::Client, cpus)?;
        let name = client.device.as_ref().map(|device| device.id.name.as_str().to_owned());
        let own = both_sides
            .then(|| ClientSide::new(context, &netns, device, name.unwrap_or_default()))
            .transpose()?;
        Ok(Self {
            signals,
            until,
            counters: CounterSource::open(&netns)?,
            client,
            own,
            own_epolls: None,
            labels,
            beside: Vec::new(),
            applied_settings: BTreeMap::new(),
            netns,
            threads: threads.unwrap_or_else(|| u32::try_from(server.cpus.len()).unwrap_or(1).max(1)),
            partners,
            running,
            server,
            workloads: Vec::new(),
            applied: None,
            control,
        })
    }

    /// Returns the machines, for the report.
    pub(crate) fn machines(&self) -> Vec<MachineDescription> {
        vec![self.server.clone(), self.client.clone()]
    }

    pub(crate) fn server_cpus(&self) -> u32 {
        u32::try_from(self.server.cpus.len()).unwrap_or(u32::MAX)
    }

    /// Sets the workload of all further runs.
    pub(crate) fn set_workload(&mut self, workload: Workload) {
        self.workloads = vec![(PolicyName::Latency, workload)];
    }

    /// Sets the workloads of all further runs, each with the policy that suits it.
    pub(crate) fn set_workloads(&mut self, workloads: Vec<(PolicyName, Workload)>) {
        self.workloads = workloads;
    }

    /// Takes the evidence of the second workloads since the last call.
    pub(crate) fn take_beside(&mut self) -> Vec<Evidence> {
        std::mem::take(&mut self.beside)
    }

    /// Describes what each tuning set when it was last applied.
    pub(crate) fn applied_settings(&self) -> impl Iterator<Item = String> {
        self.applied_settings.iter().map(|(label, words)| format!("{label}: {words}"))
    }

    fn service(&self, workload: &Workload) -> Result<Service, Fault> {
        if let Some(name) = &self.running {
            return Ok(Service::Running { name: name.clone() });
        }
        let pace = workload.pace();
        let in_a_row = if self.partners { pace.flows.div_ceil(pace.threads.max(1)) } else { 1 };
        Ok(match workload {
            Workload::Memcached(memcached) => {
                let connections = memcached.threads.saturating_mul(memcached.connections_per_thread);
                Service::Memcached { connections: connections.saturating_add(SPARE_CONNECTIONS) }
            }
            Workload::TcpRr(sizes)
            | Workload::TcpStream(sizes)
            | Workload::UdpRr(sizes)
            | Workload::UdpStream(sizes) => Service::Exchange {
                udp: workload.is_udp(),
                request: sizes.request_bytes,
                answer: sizes.answer_bytes,
                in_a_row,
            },
            Workload::Storage(_) => Service::Storage { in_a_row },
            Workload::Foreign(_) => {
                return Err(Fault::failed("this server cannot be started on another machine"));
            }
        })
    }

    /// Describes the failure of a run, after which both machines were restored. A failure to restore them is
    /// reported separately.
    fn explain(&self, fault: Fault) -> Fault {
        let fault =
            if fault.host == HostState::Unchanged { fault.leaving(HostState::Restored) } else { fault };
        let Some(device) = &self.client.device else { return fault };
        match observe(&self.netns, device.id.ifindex, &Processes::None) {
            Ok(host) if host.devices.is_empty() => {
                Fault { cause: format!("{} no longer exists: {}", device.id, fault.cause).into(), ..fault }
            }
            _ => fault,
        }
    }

    /// Returns the mode to set on this machine: the mode that the label names.
    fn own_mode(&self, label: &str) -> Option<DeliveryMode> {
        self.own.as_ref()?;
        match label.parse() {
            Ok(Configuration::Mode(mode)) => Some(mode),
            _ => None,
        }
    }

    fn origin(&self, server: String, started: u64) -> Origin {
        let MachineDescription { host, kernel, cpu_model, cpus, device, .. } = &self.server;
        let device = device.as_ref().map_or("no device", |device| device.id.name.as_str());
        let client = &self.client;
        let machine = format!(
            "{cpu_model}, {device}, server on CPU {cpus}; client {} on CPU {}{}",
            client.host,
            client.cpus,
            if self.own.is_some() { ", to which the configuration is applied, too" } else { "" }
        );
        let (host, kernel) = (host.clone(), kernel.clone());
        Origin::Measured(MeasuredOn { host, kernel, machine, server, started })
    }
}

/// The client's threads, and the counters of both machines.
struct Both<'a, 'r> {
    netns: &'a Netns,
    cpus: &'a [Cpu],
    epolls: Option<EpollParams>,
    /// The counters; `None` for the second workload, because those of the first one cover both.
    read: Option<&'a Mutex<Read<'r>>>,
}

struct Read<'a> {
    control: &'a mut Control,
    meters: Meters<'a>,
    edges: Vec<AtEdge>,
    counted: Option<Counted>,
    /// The reason why the other machine did not count; `None` if it did.
    failed: Option<Fault>,
}

impl Environment for Both<'_, '_> {
    fn on_thread_start(&self, thread: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if !Netns::is_current(self.netns.id()) {
            self.netns.enter()?;
        }
        let turn = (thread as usize).checked_rem(self.cpus.len());
        if let Some(cpu) = turn.and_then(|turn| self.cpus.get(turn)) {
            pin_this_thread(&[*cpu].into_iter().collect())?;
        }
        Ok(())
    }

    fn on_thread_ready(
        &self,
        _thread: u32,
        epoll: BorrowedFd<'_>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.epolls.map_or(Ok(()), |params| set_own_epoll(epoll, params))
    }

    fn at_edge(&self, edge: Edge) {
        let Some(read) = self.read else { return };
        let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = match edge {
            Edge::Opens => read.control.order(&Request::Open),
            Edge::Closes => match read.control.request(&Request::Close) {
                Ok(Reply::Counted(counted)) => {
                    read.counted = Some(*counted);
                    Ok(())
                }
                Ok(other) => Err(read.control.unexpected(&other)),
                Err(fault) => Err(fault),
            },
        };
        if let Err(fault) = asked {
            read.failed.get_or_insert(fault);
        }
        let values = read.meters.read(edge);
        read.edges.push(values);
    }
}

impl Stage for MachinesStage<'_> {
    type Error = BenchError;

    fn apply(&mut self, label: &str) -> Result<(), BenchError> {
        check_time(self.signals, self.until)?;
        let pace = self.workloads.first().map(|(_, workload)| workload.pace());
        let pace = pace.ok_or_else(|| Fault::failed("there is no workload"))?;
        let within = [pace.warmup, pace.window, pace.drain, SLACK].iter().map(|span| span.0).sum::<u64>();
        let within = Nanoseconds(within.min(WITHIN_MAX.0));
        let services = self
            .workloads
            .iter()
            .map(|(first, workload)| Ok(Served { service: self.service(workload)?, first: *first }));
        let name = label.to_owned();
        let apply = Apply {
            wanted: match self.labels {
                Labels::Configurations => Wanted::Configuration(name),
                Labels::Tunings => Wanted::Tuning(name),
            },
            services: services.collect::<Result<_, Fault>>()?,
            threads: self.threads,
            within,
        };
        let mode = self.own_mode(label);
        if let (Some(own), Some(mode)) = (&mut self.own, mode) {
            own.apply(mode, within)?;
        }
        self.own_epolls = mode.map(|mode| mode.params().epoll);
        let applied = match self.control.request(&Request::Apply(apply)) {
            Ok(Reply::Applied(applied)) => Ok(applied),
            Ok(other) => Err(self.control.unexpected(&other)),
            Err(fault) => Err(fault),
        };
        let applied = match (applied, &mut self.own) {
            (Err(fault), Some(own)) => {
                own.restore()?;
                return Err(fault.into());
            }
            (applied, _) => applied?,
        };
        if let Some(settings) = &applied.settings {
            self.applied_settings.insert(label.to_owned(), settings.clone());
        }
        self.applied = Some(applied);
        Ok(())
    }

    fn measure(&mut self, cell: Cell<'_>) -> Result<Evidence, BenchError> {
        let Some(Applied { addresses, server, .. }) = self.applied.clone() else {
            return Err(Fault::failed("nothing was applied").into());
        };
        let spins = self.own.is_some()
            && cell.label.parse().is_ok_and(|of: Configuration| of.wait_at_most() == Some(Nanoseconds::ZERO));
        let workloads = self.workloads.iter().map(|(_, workload)| {
            let mut workload = workload.with_seed(cell.seed);
            if spins {
                workload.set_waiting(Waiting::Spin);
            }
            workload
        });
        let workloads: Vec<Workload> = workloads.collect();
        let started = seconds_since_1970();
        let cpus: Vec<Cpu> = self.client.cpus.iter().collect();
        let napis = self.client.device.iter().flat_map(|device| &device.napis);
        let napis: BTreeSet<NapiId> = napis.map(|napi| napi.id).collect();
        let mut work = WorkTime::of([Pid(std::process::id())], napis.iter().copied()).ok();
        let meters = Meters { work: work.as_mut(), ..Meters::of(&mut self.counters, None) };
        let read = Mutex::new(Read {
            control: &mut self.control,
            meters,
            edges: Vec::with_capacity(2),
            counted: None,
            failed: None,
        });
        let mut offers = Vec::new();
        for (workload, address) in workloads.iter().zip(addresses) {
            let read = offers.is_empty().then_some(&read);
            let both = Both { netns: &self.netns, cpus: &cpus, epolls: self.own_epolls, read };
            offers.push((address, workload, both));
        }
        // On an interrupt, stop the server, so that the run ends immediately instead of after its full time.
        // If the request fails, the run ends with its window.
        let stop = || {
            let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = read.control.order(&Request::Stop);
        };
        let runs = interruptible(self.signals, || all_at_once(&offers, cell), stop);
        drop(offers);
        let Read { edges, counted, failed, .. } = read.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Report a lost connection first: it is the cause of all later failures.
        let runs = match (runs, failed) {
            (Err(interrupted @ BenchError::Interrupted(_)), _) => return Err(interrupted),
            (_, Some(fault)) => return Err(fault.into()),
            (Err(BenchError::Failed(fault)), None) => return Err(self.explain(fault).into()),
            (runs, None) => runs?,
        };
        let own = <[AtEdge; 2]>::try_from(edges).ok();
        let own = own.map(|[before, after]| after.since(&before, &self.client.cpus, &napis));
        let is_mixed = runs.len() > 1;
        let mut evidence = Vec::new();
        for run in runs {
            let mut of_run = run.into_evidence(cell.label, self.origin(server.clone(), started));
            let answers = of_run.throughput * of_run.window.as_secs_f64();
            if let Some(mut counted) = counted.clone() {
                // With two kinds of answers in one run, the CPU time per answer of each kind is unknown.
                if is_mixed {
                    (counted.cost, counted.cycles) = (None, None);
                }
                counted.add_to(&mut of_run);
            }
            if let Some(own) = &own {
                let cost = own.cost.filter(|_| !is_mixed).and_then(|cost| cost.per_answer(answers));
                of_run.client = Some(Box::new(model::ClientSide {
                    host: Machine::this().host,
                    cpu: own.cpu,
                    counters: own.counters.clone(),
                    cpu_per_answer: cost,
                }));
            }
            evidence.push(of_run);
        }
        let mut evidence = evidence.into_iter();
        let first = evidence.next().ok_or_else(|| Fault::failed("no workload ran"))?;
        self.beside.extend(evidence);
        Ok(first)
    }

    fn restore(&mut self) -> Result<(), BenchError> {
        self.applied = None;
        let own = self.own.as_mut().map_or(Ok(()), ClientSide::restore);
        self.control.order(&Request::Restore)?;
        Ok(own?)
    }
}
