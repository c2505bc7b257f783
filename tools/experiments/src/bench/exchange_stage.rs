//! Runs one cell with netpolicy's own server: starts the server as an ordinary process, applies the
//! configuration from outside, measures, restores, and compares the host with its previous state.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;

use apply::{Allow, Journal, TransactionName};
use linux::bpf::delivery::DeliverySampler;
use linux::counters::CounterSource;
use linux::lab::{Lab, LabOptions, SERVER_ADDRESS, ServerProgram};
use linux::machine::{Machine, seconds_since_1970};
use linux::{Kernel, Netns, Processes, Signals};
use model::{
    Change, CpuSet, DeliveryMode, Evidence, Host, KthreadKnob, MeasuredOn, Nanoseconds, NapiKnob, Origin,
    Plan, ProcessKnob, Reason, Setting, Step, Threading, Waiting, Workload,
};
use runs::{Cell, Stage};
use session::{Fault, clock, cycle};

use super::background::Background;
use super::configuration::{Configuration, KthreadPlacement};
use super::error::BenchError;
use super::exchange_args::Common;
use super::lab_stage::{check_time, delivery_sampler, differences, interruptible, policy, settings};
use super::layout::Layout;
use super::watch::{Meters, Watch};
use super::workqueue::InForce;
use crate::Context;
use cli::OwnFiles;

/// The server's port in the lab, where no other process listens.
const PORT: u16 = 7007;

/// Where server and client run.
enum Network {
    /// In a lab of two namespaces.
    Lab(Box<Lab>),
    /// On this host, over loopback.
    Loopback { netns: Netns, files: OwnFiles },
}

/// Runs one server at a time.
pub(crate) struct ExchangeStage<'a> {
    context: &'a Context<'a>,
    signals: &'a mut Signals,
    layout: Layout,
    kthread_cpus: CpuSet,
    background: Background,
    /// Whether to apply the configuration to the client's threads, too.
    both_sides: bool,
    threads: u32,
    /// Whether each client thread has its own server thread.
    partners: bool,
    storage: Option<(PathBuf, bool)>,
    workload: Workload,
    journal: Journal,
    counters: CounterSource,
    delivery: Option<DeliverySampler>,
    cell: Option<Applied>,
    place: Network,
}

/// A server with the settings applied to it.
struct Applied {
    /// The server; `None` after an interrupt.
    server: Option<ServerProgram>,
    transactions: Vec<TransactionName>,
    workqueue: Option<InForce>,
    /// The host before the run; `None` if it could not be observed.
    before: Option<Host>,
}

impl<'a> ExchangeStage<'a> {
    /// Prepares the host for these runs.
    pub(crate) fn new(
        context: &'a Context<'a>,
        signals: &'a mut Signals,
        layout: Layout,
        common: &Common,
        storage: Option<(PathBuf, bool)>,
        workload: Workload,
    ) -> Result<Self, Fault> {
        let threads =
            common.server_threads.unwrap_or_else(|| u32::try_from(layout.server.len()).unwrap_or(1));
        let place = if common.loopback {
            Network::Loopback { netns: context.session.netns()?, files: OwnFiles::new()? }
        } else {
            let queues = common.queues.unwrap_or(threads.min(LabOptions::QUEUES_MAX));
            Network::Lab(Box::new(Lab::new(&LabOptions::with_queues(queues))?))
        };
        let delivery = delivery_sampler(context, !common.uncounted);
        let or_servers = |cpus: &Option<CpuSet>| cpus.clone().unwrap_or_else(|| layout.server.clone());
        Ok(Self {
            context,
            signals,
            kthread_cpus: or_servers(&common.kthread_cpus),
            background: Background {
                hogs: common.background,
                duty: common.background_duty,
                cpus: or_servers(&common.background_cpus),
            },
            layout,
            both_sides: common.both_sides,
            threads,
            partners: common.partners,
            storage,
            workload,
            journal: context.session.journal_in(&place.files())?,
            counters: CounterSource::open(place.server())?,
            delivery,
            cell: None,
            place,
        })
    }

    /// Sets the workload of all further runs.
    pub(crate) fn set_workload(&mut self, workload: Workload) {
        self.workload = workload;
    }

    fn start(&self, configuration: Configuration) -> Result<ServerProgram, BenchError> {
        let address = self.place.free_address()?;
        let program = std::env::current_exe().map_err(|error| Fault::file("/proc/self/exe", error))?;
        let mut command = Command::new(program);
        command.args(["bench", "serve", "--listen", &address.to_string()]);
        command.args(["--threads", &self.threads.to_string(), "--cpus", &self.layout.server.to_string()]);
        match (&self.workload, &self.storage) {
            (
                Workload::TcpRr(sizes)
                | Workload::TcpStream(sizes)
                | Workload::UdpRr(sizes)
                | Workload::UdpStream(sizes),
                _,
            ) => {
                command.args(["--size", &format!("{}/{}", sizes.request_bytes, sizes.answer_bytes)]);
                command.args(self.workload.is_udp().then_some("--udp"));
            }
            (Workload::Storage(_), Some((path, writable))) => {
                command.arg("--storage").arg(path).args(writable.then_some("--writable"));
            }
            (Workload::Storage(_) | Workload::Memcached(_) | Workload::Foreign(_), _) => {
                return Err(Fault::failed("this server does not offer the requested service").into());
            }
        }
        command.args(["--in-a-row", &self.in_a_row().to_string()]);
        if let Some(span) = configuration.wait_at_most() {
            command.args(["--wait-at-most", &format!("{}ns", span.0)]);
        }
        let started = match &self.place {
            Network::Lab(lab) => lab.start_program(command, PORT),
            Network::Loopback { netns, .. } => ServerProgram::start_in(netns, command, address),
        };
        started.map_err(|error| Fault::failed(error).into())
    }

    /// Returns how many consecutive connections a server thread gets. Client threads connect one after the
    /// other. If the number equals that of one client thread's connections, each client thread has its own
    /// server thread.
    fn in_a_row(&self) -> u32 {
        let pace = self.workload.pace();
        if self.partners { pace.flows.div_ceil(pace.threads.max(1)) } else { 1 }
    }

    fn observe(&self) -> Result<Host, BenchError> {
        let server = self.cell.as_ref().and_then(|applied| applied.server.as_ref());
        let processes = server.map_or(Processes::None, |server| Processes::Only(vec![server.process().pid]));
        Ok(linux::observe(self.place.server(), &processes)?)
    }

    /// Starts the server and applies the configuration. Each step is recorded in the cell once it is done.
    fn bring_into(&mut self, configuration: Configuration) -> Result<(), BenchError> {
        let server = self.start(configuration)?;
        let process = server.process();
        self.cell =
            Some(Applied { server: Some(server), transactions: Vec::new(), workqueue: None, before: None });
        let before = self.observe()?;
        if let Some(applied) = &mut self.cell {
            applied.before = Some(before.clone());
        }
        if let (Configuration::Mode(mode), Network::Loopback { .. }) = (configuration, &self.place) {
            return self.commit(epolls(&before, mode)?);
        }
        if let Configuration::Mode(mode) = configuration {
            let planned = cycle::plan(&policy(process.pid, mode), self.place.server())?;
            return self.commit(planned.plan);
        }
        if configuration.threading() == Threading::Off {
            return Ok(());
        }
        if matches!(self.place, Network::Loopback { .. }) {
            return Err(unsupported("loopback has no NAPI that a kernel thread could poll").into());
        }
        if let (Configuration::Workqueue(workqueue), Some(applied)) = (configuration, &mut self.cell) {
            applied.workqueue = Some(InForce::new(workqueue)?);
        }
        self.commit(threads(&before, configuration, &self.kthread_cpus)?)
    }

    fn commit(&mut self, plan: Plan) -> Result<(), BenchError> {
        let asked = self.context.session.asked(None);
        let transaction = cycle::keep(plan, &self.journal, &asked, Allow::default())?;
        if let Some(applied) = &mut self.cell {
            applied.transactions.extend(transaction);
        }
        Ok(())
    }

    fn put_back(&mut self) -> Result<(), BenchError> {
        let Some(applied) = &mut self.cell else { return Ok(()) };
        for transaction in std::mem::take(&mut applied.transactions).into_iter().rev() {
            let undone = self.journal.roll_back(transaction, &mut Kernel::new(), clock::now());
            undone.map_err(Fault::from)?;
        }
        let compared = match &applied.before {
            Some(before) if applied.server.is_some() => Some(settings(before)),
            Some(_) | None => None,
        };
        let wrong = match compared {
            Some(before) => differences(&before, &settings(&self.observe()?)),
            None => Vec::new(),
        };
        self.cell = None;
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(Fault::failed(format!("left changed: {}", wrong.join(", "))).into())
        }
    }

    fn origin(&self, started: u64) -> Origin {
        let Machine { host, kernel, cpu_model } = Machine::this();
        let client: CpuSet = self.layout.client.iter().copied().collect();
        let place = match &self.place {
            Network::Lab(lab) => format!("lab with {} queue(s)", lab.queues()),
            Network::Loopback { .. } => "loopback".to_owned(),
        };
        let beside = match &self.background {
            Background { hogs: 0, .. } => String::new(),
            Background { hogs, duty, cpus } => {
                format!(", with {hogs} background thread(s) of {duty} % on CPU {cpus}")
            }
        };
        let machine = format!(
            "{cpu_model}, {place}, server on CPU {}, client on CPU {client}{}{beside}",
            self.layout.server,
            if self.both_sides { ", to which the configuration is applied, too" } else { "" }
        );
        let dealt = if self.partners { ", each for one client thread" } else { "" };
        let server = format!("netpolicy bench serve, {} thread(s){dealt}", self.threads);
        Origin::Measured(MeasuredOn { host, kernel, machine, server, started })
    }
}

impl Network {
    /// Returns the directory for files such as the journal.
    fn files(&self) -> PathBuf {
        match self {
            Self::Lab(lab) => lab.scratch(),
            Self::Loopback { files, .. } => files.directory.clone(),
        }
    }

    /// The server's namespace.
    fn server(&self) -> &Netns {
        match self {
            Self::Lab(lab) => lab.server(),
            Self::Loopback { netns, .. } => netns,
        }
    }

    /// The client's namespace.
    fn client(&self) -> &Netns {
        match self {
            Self::Lab(lab) => lab.client(),
            Self::Loopback { netns, .. } => netns,
        }
    }

    /// Returns the address of the next server. On this host, its port was free a moment ago.
    fn free_address(&self) -> Result<SocketAddr, Fault> {
        match self {
            Self::Lab(_) => Ok(SocketAddr::new(SERVER_ADDRESS.into(), PORT)),
            Self::Loopback { netns, .. } => {
                let bound = netns.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr())?;
                bound.map_err(|error| Fault::file("a port of loopback", error))
            }
        }
    }
}

fn configuration_of(label: &str) -> Result<Configuration, Fault> {
    label.parse().map_err(|error| Fault::failed(format!("{error}")))
}

fn unsupported(why: &str) -> Fault {
    Fault::new(session::Exit::Unsupported, why.to_owned())
}

/// Plans a mode's parameters for the server's epolls, which are the only settings over loopback.
fn epolls(host: &Host, mode: DeliveryMode) -> Result<Plan, Fault> {
    let because = || Reason::new(format!("the epolls of {mode}"), "netpolicy bench");
    let wanted = mode.params();
    if !wanted.gro_flush_timeout.is_zero() {
        return Err(unsupported("loopback has no NAPI that could be deferred or suspended"));
    }
    let mut steps = Vec::new();
    for epoll in host.processes.iter().flat_map(|process| &process.epolls) {
        let Some(now) = epoll.params else { continue };
        if now != wanted.epoll {
            let (from, to) = (
                Setting::Process(ProcessKnob::Epoll(epoll.id, now)),
                Setting::Process(ProcessKnob::Epoll(epoll.id, wanted.epoll)),
            );
            steps.push(Step::new(vec![Change::new(from, to, because())]));
        }
    }
    Ok(Plan { steps })
}

/// Plans threaded polling for the NAPIs of a host, with the place and the class of the threads. `cpus` are
/// the CPUs for [`KthreadPlacement::Pinned`].
pub(crate) fn threads(host: &Host, wanted: Configuration, cpus: &CpuSet) -> Result<Plan, Fault> {
    let because = || Reason::new("kernel threads poll", "netpolicy bench");
    let threading = wanted.threading();
    let cpus: Vec<_> = cpus.iter().collect();
    let mut pinned = cpus.iter().copied().cycle();
    let mut steps = Vec::new();
    for state in host.devices.iter().flat_map(|device| &device.rx_queues) {
        let queue = state.id;
        let Some(now) = host.napi_of(queue).and_then(|napi| napi.threaded) else { continue };
        let mut change = |from, to| {
            if from != to {
                steps.push(Step::new(vec![Change::new(from, to, because())]));
            }
        };
        let threaded = |value| Setting::Napi(queue, NapiKnob::Threaded(value));
        change(threaded(now), threaded(threading));
        let Configuration::Threaded { place, real_time } = wanted else { continue };
        let cpu = match place {
            KthreadPlacement::Anywhere => None,
            KthreadPlacement::Pinned => pinned.next(),
            KthreadPlacement::On(cpu) => Some(cpu),
        };
        // A NAPI without a thread will get one that starts as all threads do.
        let thread = state.kthread.as_ref().or(host.kthread_begins.as_ref());
        let unread = || unsupported("the scheduling of kernel threads could not be read");
        let knob = |knob| Setting::Kthread(queue, knob);
        if let Some(cpu) = cpu {
            let now = thread.ok_or_else(unread)?.cpus.clone();
            let to = [cpu].into_iter().collect();
            change(knob(KthreadKnob::Affinity(now)), knob(KthreadKnob::Affinity(to)));
        }
        if real_time {
            let now = thread.and_then(|thread| thread.scheduling).ok_or_else(unread)?;
            let class = |class| knob(KthreadKnob::Scheduling(class));
            change(class(now), class(Configuration::REAL_TIME));
        }
    }
    if steps.is_empty() {
        let bare = host.devices.iter().find(|device| device.napis.is_empty());
        return Err(match bare {
            Some(device) => {
                unsupported(&format!("{} has no NAPI to configure: {}", device.id, plan::why_no_napi(device)))
            }
            None => unsupported("needs napi-set with threaded, Linux 6.17"),
        });
    }
    Ok(Plan { steps })
}

impl Stage for ExchangeStage<'_> {
    type Error = BenchError;

    fn apply(&mut self, label: &str) -> Result<(), BenchError> {
        check_time(self.signals, None)?;
        let configuration = configuration_of(label)?;
        let brought = self.bring_into(configuration);
        if brought.is_err() {
            self.put_back()?;
        }
        brought
    }

    fn measure(&mut self, cell: Cell<'_>) -> Result<Evidence, BenchError> {
        let started = seconds_since_1970();
        let origin = self.origin(started);
        let configuration = configuration_of(cell.label)?;
        let mut workload = self.workload.with_seed(cell.seed);
        if self.both_sides && configuration.wait_at_most() == Some(Nanoseconds::ZERO) {
            workload.set_waiting(Waiting::Spin);
        }
        let client_epolls = match configuration {
            Configuration::Mode(mode) if self.both_sides => Some(mode.params().epoll),
            _ => None,
        };
        let Self { signals, layout, counters, delivery, cell: applied, place, background, .. } = self;
        let Some(Applied { server, before, .. }) = applied else {
            return Err(Fault::failed("nothing was applied").into());
        };
        let Some(address) = server.as_ref().map(ServerProgram::address) else {
            return Err(Fault::failed("the server was stopped").into());
        };
        let devices = before.iter().flat_map(|host| &host.devices);
        let napis = devices.flat_map(|device| &device.napis).map(|napi| napi.id).collect();
        let meters = Meters::of(counters, delivery.as_mut());
        let watch = Watch::new(place.client(), layout, meters).with_client_epolls(client_epolls);
        let beside = background.start().map_err(|error| Fault::file("a background thread", error))?;
        // On an interrupt, stop the server, so that the run ends immediately instead of after its full time.
        let run = interruptible(
            signals,
            || load::offer(address, &workload, cell.load, &watch),
            || drop(server.take()),
        );
        drop(beside);
        let mut evidence = run?.into_evidence(cell.label, origin);
        watch.add_to(&mut evidence, &napis, false);
        Ok(evidence)
    }

    fn restore(&mut self) -> Result<(), BenchError> {
        self.put_back()
    }
}
