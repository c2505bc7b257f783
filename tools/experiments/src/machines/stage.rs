//! One cell of an experiment across machines: the other machine applies and counts, this one offers the load.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use linux::counters::CounterSource;
use linux::machine::{Machine, describe, device_towards, seconds_since_1970};
use linux::process::pin_this_thread;
use linux::work::WorkTime;
use linux::{Netns, Signals};
use load::{Edge, Environment};
use model::{
    ClientSide, Cpu, CpuSet, Evidence, MachineDescription, MeasuredOn, Nanoseconds, NapiId, Origin, Pid,
    Side, Workload,
};
use runs::{Cell, Stage};
use session::Fault;

use super::control::Control;
use super::message::{Applied, Apply, Counted, Prepare, Reply, Request, Service, WITHIN_MAX};
use crate::bench::{AtEdge, BenchError, Meters, SPARE_CONNECTIONS, interruptible};

/// The time that a run takes in addition to warm-up, window and drain: connecting, storing keys.
const SLACK: Nanoseconds = Nanoseconds::from_millis(120_000);

/// This machine as the client, and a connection to the server's machine.
pub(crate) struct MachinesStage<'a> {
    signals: &'a mut Signals,
    /// The time after which no further run starts.
    until: Option<Instant>,
    netns: Netns,
    server: MachineDescription,
    client: MachineDescription,
    /// `None` before it is set.
    workload: Option<Workload>,
    threads: u32,
    /// Whether each client thread has its own server thread.
    partners: bool,
    /// A service to use instead of starting one.
    running: Option<String>,
    counters: CounterSource,
    applied: Option<Applied>,
    control: Control,
}

/// What a bench needs in addition to its workload.
pub(crate) struct Needs {
    /// Threads of the server; one per CPU if `None`.
    pub(crate) threads: Option<u32>,
    /// Whether each client thread has its own server thread.
    pub(crate) partners: bool,
    /// A service of the other machine to use instead of starting one.
    pub(crate) running: Option<String>,
    /// The client's network namespace.
    pub(crate) netns: Netns,
    /// The client's CPUs.
    pub(crate) cpus: CpuSet,
    /// What the other machine prepares.
    pub(crate) prepare: Prepare,
    /// The time after which no further run starts.
    pub(crate) until: Option<Instant>,
}

impl<'a> MachinesStage<'a> {
    /// Prepares both machines.
    pub(crate) fn new(mut control: Control, signals: &'a mut Signals, needs: Needs) -> Result<Self, Fault> {
        let Needs { threads, partners, running, netns, cpus, prepare, until } = needs;
        let (address, server) = match control.request(&Request::Prepare(prepare))? {
            Reply::Prepared { address, machine } => (address, *machine),
            other => return Err(control.unexpected(&other)),
        };
        let device = device_towards(&netns, address)?;
        let device = device.ok_or_else(|| Fault::failed(format!("there is no route to {address}")))?;
        Ok(Self {
            signals,
            until,
            counters: CounterSource::open(&netns)?,
            client: describe(&netns, device, Side::Client, cpus)?,
            netns,
            threads: threads.unwrap_or_else(|| u32::try_from(server.cpus.len()).unwrap_or(1).max(1)),
            partners,
            running,
            server,
            workload: None,
            applied: None,
            control,
        })
    }

    /// The machines, for the report.
    pub(crate) fn machines(&self) -> Vec<MachineDescription> {
        vec![self.server.clone(), self.client.clone()]
    }

    /// The number of the server's CPUs.
    pub(crate) fn server_cpus(&self) -> u32 {
        u32::try_from(self.server.cpus.len()).unwrap_or(u32::MAX)
    }

    /// Sets the workload of all further runs.
    pub(crate) fn set_workload(&mut self, workload: Workload) {
        self.workload = Some(workload);
    }

    /// Checks whether another run may start.
    fn may_go_on(&mut self) -> Result<(), BenchError> {
        match self.signals.take() {
            Some(arrived) => Err(BenchError::Interrupted(arrived.signal)),
            None if self.until.is_some_and(|until| Instant::now() >= until) => Err(BenchError::TimeUp),
            None => Ok(()),
        }
    }

    fn workload(&self) -> Result<&Workload, Fault> {
        self.workload.as_ref().ok_or_else(|| Fault::failed("there is no workload"))
    }

    fn service(&self) -> Result<Service, Fault> {
        if let Some(name) = &self.running {
            return Ok(Service::Running { name: name.clone() });
        }
        let workload = self.workload()?;
        let pace = workload.pace();
        let in_a_row = if self.partners { pace.flows.div_ceil(pace.threads.max(1)) } else { 1 };
        Ok(match workload {
            Workload::Memcached(memcached) => {
                let connections = memcached.threads.saturating_mul(memcached.connections_per_thread);
                Service::Memcached { connections: connections.saturating_add(SPARE_CONNECTIONS) }
            }
            Workload::TcpRr(sizes) | Workload::TcpStream(sizes) => {
                Service::Exchange { request: sizes.request_bytes, answer: sizes.answer_bytes, in_a_row }
            }
            Workload::Storage(_) => Service::Storage { in_a_row },
            Workload::Foreign(_) => {
                return Err(Fault::failed("this server is not started on another machine"));
            }
        })
    }

    fn origin(&self, server: String, started: u64) -> Origin {
        let MachineDescription { host, kernel, cpu_model, cpus, device, .. } = &self.server;
        let device = device.as_ref().map_or("no device", |device| device.id.name.as_str());
        let client = &self.client;
        let machine = format!(
            "{cpu_model}, {device}, server on CPU {cpus}; client {} on CPU {}",
            client.host, client.cpus
        );
        let (host, kernel) = (host.clone(), kernel.clone());
        Origin::Measured(MeasuredOn { host, kernel, machine, server, started })
    }
}

/// The client's threads, and the counters of both machines.
struct Both<'a> {
    netns: &'a Netns,
    cpus: &'a [Cpu],
    read: Mutex<Read<'a>>,
}

struct Read<'a> {
    control: &'a mut Control,
    meters: Meters<'a>,
    edges: Vec<AtEdge>,
    counted: Option<Counted>,
    /// Why the other machine did not count.
    failed: Option<Fault>,
}

impl Environment for Both<'_> {
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

    fn at_edge(&self, edge: Edge) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.may_go_on()?;
        let pace = self.workload()?.pace();
        let within = [pace.warmup, pace.window, pace.drain, SLACK].iter().map(|span| span.0).sum::<u64>();
        let apply = Apply {
            configuration: label.to_owned(),
            service: self.service()?,
            threads: self.threads,
            within: Nanoseconds(within.min(WITHIN_MAX.0)),
        };
        match self.control.request(&Request::Apply(apply))? {
            Reply::Applied(applied) => {
                self.applied = Some(applied);
                Ok(())
            }
            other => Err(self.control.unexpected(&other).into()),
        }
    }

    fn measure(&mut self, cell: Cell<'_>) -> Result<Evidence, BenchError> {
        let Some(Applied { address, server }) = self.applied.clone() else {
            return Err(Fault::failed("nothing was applied").into());
        };
        let workload = self.workload()?.with_seed(cell.seed);
        let origin = self.origin(server, seconds_since_1970());
        let cpus: Vec<Cpu> = self.client.cpus.iter().collect();
        let napis = self.client.device.iter().flat_map(|device| &device.napis);
        let napis: BTreeSet<NapiId> = napis.map(|napi| napi.id).collect();
        let mut work = WorkTime::of([Pid(std::process::id())], napis.iter().copied()).ok();
        let meters = Meters { work: work.as_mut(), ..Meters::of(&mut self.counters, None) };
        let read = Read {
            control: &mut self.control,
            meters,
            edges: Vec::with_capacity(2),
            counted: None,
            failed: None,
        };
        let both = Both { netns: &self.netns, cpus: &cpus, read: Mutex::new(read) };
        // Without a server, the run ends immediately instead of after its full time. If that cannot be
        // requested, the run ends with its window.
        let stop = || {
            let mut read = both.read.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = read.control.order(&Request::Stop);
        };
        let run = interruptible(self.signals, || load::offer(address, &workload, cell.load, &both), stop);
        let Read { edges, counted, failed, .. } =
            both.read.into_inner().unwrap_or_else(PoisonError::into_inner);
        // A lost connection is the reason for whatever failed after it.
        let run = match (run, failed) {
            (Err(interrupted @ BenchError::Interrupted(_)), _) => return Err(interrupted),
            (_, Some(fault)) => return Err(fault.into()),
            (run, None) => run?,
        };
        let mut evidence = run.into_evidence(cell.label, origin);
        if let Some(counted) = counted {
            counted.add_to(&mut evidence);
        }
        if let Ok([before, after]) = <[AtEdge; 2]>::try_from(edges) {
            let counted = after.since(&before, &self.client.cpus, &napis);
            let answers = evidence.throughput * evidence.window.as_secs_f64();
            evidence.client = Some(Box::new(ClientSide {
                host: Machine::this().host,
                cpu: counted.cpu,
                counters: counted.counters,
                cpu_per_answer: counted.cost.and_then(|cost| cost.per_answer(answers)),
            }));
        }
        Ok(evidence)
    }

    fn restore(&mut self) -> Result<(), BenchError> {
        self.applied = None;
        Ok(self.control.order(&Request::Restore)?)
    }
}
