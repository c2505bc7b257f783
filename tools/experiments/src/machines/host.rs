//! The server's end of the connection: `bench serve --stdio`, and each client of `bench serve --listen
//! --token`.
//!
//! The host is restored when the client requests it, when the connection ends, when the client is silent for
//! too long, and on a signal. If this process is killed, its guard process restores the host, and the kernel
//! ends the server.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apply::{Allow, Journal, TransactionName};
use latency::live::{MeasuredService, ServiceSelection};
use linux::bpf::delivery::DeliverySampler;
use linux::counters::CounterSource;
use linux::cycles::Cycles;
use linux::lab::{Memcached, MemcachedOptions, ServerHost, ServerProgram};
use linux::machine::{describe, device_with_address};
use linux::process::preload::EpollCounts;
use linux::process::{cpus_of_this_thread, path_of_our};
use linux::work::WorkTime;
use linux::{Kernel, Processes, Signals, WakeLatency};
use load::Edge;
use model::{
    CpuSet, DeliveryMode, Host, IfIndex, IrqNumber, Nanoseconds, NapiId, Pid, Plan, Policy, PolicyName,
    ProcessId, Side, Threading,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use session::guard_process::Guardian;
use session::{Exit, Fault, HostState, clock, cycle, expire, wake};

use super::device::{observe, planned};
use super::line::{Lines, Seal, encode};
use super::message::{
    Applied, Apply, Counted, Failure, Hello, Hogs, Prepare, Reply, Request, SERVICES_MAX, SILENCE_MAX,
    Service, Storage, WITHIN_MAX, Wanted,
};
use super::token::{Challenger, HANDSHAKE_BYTES_MAX, Handshake, Seals, Token, handshake_lines};
use crate::Context;
use crate::bench::configuration::Configuration;
use crate::bench::file_of_our_own;
use crate::bench::tuning::{by_hand, requests};
use crate::bench::{
    AtEdge, Background, BenchError, Meters, RunningBackground, Tuning, WorkqueueInForce, differences,
    in_words, policy, preloaded, server_fault, settings, threads,
};

/// The file in the journal's directory that a bench with another machine locks while it runs.
const LOCK: &str = "bench.lock";

/// How long a client may take to authenticate itself.
const AUTHENTICATES_WITHIN: Duration = Duration::from_secs(10);

/// The maximum number of bytes to read in one call.
const READ_BYTES: usize = 64 << 10;

/// The environment variable with the addresses of an sshd connection: client, client's port, server, server's
/// port.
const SSH_CONNECTION: &str = "SSH_CONNECTION";

/// Serves the client of this connection, and restores the host when the client has disconnected.
pub(crate) fn serve(context: &Context<'_>, mut connection: Connection) -> Result<Exit, Fault> {
    let mut signals = Signals::catch()?;
    let mut end = None;
    let served = serve_on(context, &mut connection, &mut signals, &mut end);
    if let Err(fault) = &served {
        // Ignore failures, because the client may have disconnected.
        let _ = connection.reply(&Reply::Failed(Failure::from(fault)));
    }
    if let Some(end) = end {
        let restored = if served.is_ok() { "This host was restored." } else { "" };
        context.console.say(&format!("{end}. {restored}"));
    }
    served.map(|()| Exit::Done)
}

fn serve_on(
    context: &Context<'_>,
    connection: &mut Connection,
    signals: &mut Signals,
    end: &mut Option<End>,
) -> Result<(), Fault> {
    let usage = |words| Fault::new(Exit::Usage, words);
    let Some(Request::Hello(hello)) = connection.next(signals, end)? else {
        return Err(usage("the first message is not a greeting"));
    };
    connection.reply(&Reply::Hello(Hello::own()))?;
    hello.check("the client")?;
    let prepare = loop {
        match connection.next(signals, end)? {
            Some(Request::Alive) => {}
            Some(Request::Prepare(prepare)) => break prepare,
            Some(_) => return Err(usage("the second message does not prepare a bench")),
            None => return Ok(()),
        }
    };
    (context.refuse_beside_daemon)(context.session)?;
    let mut host = BenchHost::new(context, prepare, connection.local)?;
    let served = host.serve(connection, signals, end);
    // Remove everything, in whatever way the session ended.
    let restored = host.restore();
    context.session.forget_old_transactions(context.console);
    restored?;
    served
}

/// The reasons for the server's end to stop without an error.
enum End {
    Silent,
    Signal(linux::Signal),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Silent => write!(f, "The client was silent for {SILENCE_MAX:?}"),
            Self::Signal(signal) => write!(f, "Stopped by signal {}", signal.number()),
        }
    }
}

/// The connection to the client.
pub(crate) struct Connection {
    from: File,
    to: File,
    lines: Lines,
    /// The seal of sent messages, if the connection has a token.
    seal: Option<Seal>,
    /// When data last arrived.
    heard: Instant,
    /// This machine's address, if it is known.
    local: Option<IpAddr>,
}

impl Connection {
    /// Uses standard input and output, which ssh has connected to the client.
    ///
    /// # Errors
    /// If no descriptors are left.
    pub(crate) fn stdio() -> Result<Self, Fault> {
        let failed = |error| Fault::file("standard input", error);
        let from = rustix::stdio::stdin().try_clone_to_owned().map_err(failed)?;
        let to = rustix::stdio::stdout().try_clone_to_owned().map_err(failed)?;
        let local = address_of_ssh(std::env::var(SSH_CONNECTION).ok().as_deref());
        Ok(Self {
            from: from.into(),
            to: to.into(),
            lines: Lines::default(),
            seal: None,
            heard: Instant::now(),
            local,
        })
    }

    /// Uses a TCP connection that was accepted and passed as standard input. Authenticates the client.
    ///
    /// # Errors
    /// [`Exit::Refused`] if the client has another token.
    pub(crate) fn accepted(token: &Token) -> Result<Self, Fault> {
        let failed = |error| Fault::file("the connection", error);
        let stream = TcpStream::from(rustix::stdio::stdin().try_clone_to_owned().map_err(failed)?);
        // Child processes must not inherit the connection.
        let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
        rustix::stdio::dup2_stdin(&null).map_err(|errno| failed(errno.into()))?;
        rustix::stdio::dup2_stdout(&null).map_err(|errno| failed(errno.into()))?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_write_timeout(Some(SILENCE_MAX)).map_err(failed)?;
        let client = stream.peer_addr().map_err(failed)?;
        let local = stream.local_addr().map_err(failed)?.ip().to_canonical();
        let from = OwnedFd::from(stream.try_clone().map_err(failed)?);
        let mut connection = Self {
            from: from.into(),
            to: OwnedFd::from(stream).into(),
            lines: handshake_lines(),
            seal: None,
            heard: Instant::now(),
            local: Some(local),
        };
        match connection.authenticate(token) {
            Ok(seals) => {
                connection.lines.expect_seal(seals.received);
                connection.seal = Some(seals.sent);
                connection.heard = Instant::now();
                Ok(connection)
            }
            Err(why) => {
                let _ = connection.send(&Handshake::Refused);
                Err(Fault::new(Exit::Refused, format!("the client {client} was refused: {why}")))
            }
        }
    }

    fn authenticate(&mut self, token: &Token) -> Result<Seals, Box<dyn std::error::Error + Send + Sync>> {
        let challenger = Challenger::new().map_err(|fault| fault.cause)?;
        self.send(&challenger.challenge()).map_err(|fault| fault.cause)?;
        let answer = self.shake()?;
        let (welcome, seals) = challenger.check(token, &answer)?;
        self.send(&welcome).map_err(|fault| fault.cause)?;
        Ok(seals)
    }

    /// Waits for the next message of the handshake. A slow client is disconnected, even if it keeps sending
    /// small pieces of a message.
    fn shake(&mut self) -> Result<Handshake, Box<dyn std::error::Error + Send + Sync>> {
        let mut buffer = [0; HANDSHAKE_BYTES_MAX];
        loop {
            if let Some(message) = self.lines.next_message()? {
                return Ok(message);
            }
            let left = Timespec::try_from(AUTHENTICATES_WITHIN.saturating_sub(self.heard.elapsed()))?;
            let mut polled = [PollFd::new(&self.from, PollFlags::IN)];
            match poll(&mut polled, Some(&left)) {
                Ok(0) => return Err(format!("no message within {AUTHENTICATES_WITHIN:?}").into()),
                Err(errno) if errno.kind() != std::io::ErrorKind::Interrupted => return Err(errno.into()),
                Ok(_) | Err(_) => {}
            }
            match rustix::io::read(&self.from, &mut buffer[..]) {
                Ok(0) => return Err("it closed the connection".into()),
                Ok(length) => self.lines.push(&buffer[..length]),
                Err(errno) if errno.kind() == std::io::ErrorKind::Interrupted => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Returns the next request, or `None` when there are no more. `end` gets the reason, if there is one.
    fn next(&mut self, signals: &mut Signals, end: &mut Option<End>) -> Result<Option<Request>, Fault> {
        let mut buffer = vec![0; READ_BYTES];
        let failed = |errno: rustix::io::Errno| Fault::file("the connection", errno.into());
        loop {
            if let Some(request) =
                self.lines.next_message().map_err(|error| Fault::new(Exit::Usage, error))?
            {
                return Ok(Some(request));
            }
            let left = Timespec::try_from(SILENCE_MAX.saturating_sub(self.heard.elapsed()));
            let left = left.map_err(|_| Fault::failed("invalid time"))?;
            let mut polled = [
                PollFd::new(&self.from, PollFlags::IN),
                PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            ];
            match poll(&mut polled, Some(&left)) {
                Ok(0) => {
                    *end = Some(End::Silent);
                    return Ok(None);
                }
                Ok(_) => {}
                Err(errno) if errno.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(errno) => return Err(failed(errno)),
            }
            let readable = !polled[0].revents().is_empty();
            if let Some(arrived) = signals.take() {
                *end = Some(End::Signal(arrived.signal));
                return Ok(None);
            }
            if readable {
                match rustix::io::read(&self.from, &mut buffer[..]) {
                    // If a client was killed before it read all replies, the kernel resets the connection.
                    Ok(0) | Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                    Ok(length) => {
                        self.heard = Instant::now();
                        self.lines.push(&buffer[..length]);
                    }
                    Err(errno) if errno.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(errno) => return Err(failed(errno)),
                }
            }
        }
    }

    fn reply(&mut self, reply: &Reply) -> Result<(), Fault> {
        self.send(reply)
    }

    fn send(&mut self, message: &impl serde::Serialize) -> Result<(), Fault> {
        let line = encode(message)?;
        let line = match &mut self.seal {
            Some(seal) => seal.seal(&line),
            None => line,
        };
        self.to.write_all(&line).map_err(|error| Fault::file("the connection", error))
    }
}

/// This machine as the server of a bench.
struct BenchHost<'a> {
    context: &'a Context<'a>,
    servers: ServerHost,
    address: IpAddr,
    port: Option<u16>,
    device: IfIndex,
    cpus: CpuSet,
    kthread_cpus: CpuSet,
    counted: bool,
    background: Option<Background>,
    storage: Option<(PathBuf, bool)>,
    journal: Journal,
    counters: CounterSource,
    delivery: Option<DeliverySampler>,
    cell: Option<Cell>,
    /// The temporary file of the bench on storage, which exists only as long as this descriptor is open.
    _file: Option<File>,
    /// The lock that lets only one client at a time use this machine.
    _lock: File,
}

/// A server with a configuration in force.
struct Cell {
    /// The servers; empty once they were stopped.
    servers: Vec<Server>,
    transactions: Vec<TransactionName>,
    /// The machine's state before the run; `None` if it could not be observed.
    before: Option<Host>,
    guard: Option<Guardian>,
    deadline: Nanoseconds,
    napis: BTreeSet<NapiId>,
    /// The queues' interrupts.
    irqs: BTreeSet<IrqNumber>,
    cycles: Option<Cycles>,
    epolls: Option<EpollCounts>,
    work: Option<WorkTime>,
    /// The counters when the window opened.
    opened: Option<AtEdge>,
    /// The other work on the machine during the window.
    background: Option<RunningBackground>,
    /// The policy's limit on the wake-up latency.
    _wake: Option<WakeLatency>,
    /// Makes a workqueue poll for as long as the cell exists.
    workqueue: Option<WorkqueueInForce>,
}

enum Server {
    Memcached(Memcached),
    Program(ServerProgram),
    /// A service that already runs on the machine, and keeps running.
    Running(Vec<ProcessId>),
}

impl Server {
    fn processes(&self) -> Vec<ProcessId> {
        match self {
            Self::Memcached(memcached) => vec![memcached.process()],
            Self::Program(program) => vec![program.process()],
            Self::Running(processes) => processes.clone(),
        }
    }
}

/// The configuration that a client requests.
enum Aim {
    Configuration(Configuration),
    Tuning(Tuning),
}

impl Aim {
    fn parse(wanted: &Wanted) -> Result<Self, Fault> {
        let usage = |words: String| Fault::new(Exit::Usage, words);
        match wanted {
            Wanted::Configuration(name) => {
                name.parse().map(Self::Configuration).map_err(|error| usage(format!("{error}")))
            }
            Wanted::Tuning(name) => name.parse().map(Self::Tuning).map_err(|error| usage(format!("{error}"))),
        }
    }

    /// Returns the configuration with which servers are started.
    const fn configuration(&self) -> Configuration {
        match self {
            Self::Configuration(configuration) => *configuration,
            Self::Tuning(_) => Configuration::Softirq,
        }
    }
}

impl<'a> BenchHost<'a> {
    /// Prepares for a bench, and restores settings that an earlier bench may have left in force.
    fn new(context: &'a Context<'a>, prepare: Prepare, local: Option<IpAddr>) -> Result<Self, Fault> {
        let netns = context.session.netns()?;
        expire::roll_back_expired(context.session, context.console, expire::Who::Guard)?;
        let journal = context.session.journal()?;
        let lock = locked(&context.session.state_dir)?;
        let address = prepare.address.or(local).ok_or_else(|| {
            let words = "the server's address is unknown: ssh did not set SSH_CONNECTION";
            Fault::new(Exit::Usage, words).hint("name the address with --server-address")
        })?;
        let device = device_with_address(&netns, address)?.ok_or_else(|| {
            Fault::new(Exit::Usage, format!("no device here has the address {address}"))
                .hint("name an address of this machine with --server-address")
        })?;
        let delivery = match prepare.counted.then(DeliverySampler::load) {
            None => None,
            Some(Ok(sampler)) => Some(sampler),
            Some(Err(error)) => {
                context.console.say(&format!("Poll counts are unavailable: {error}"));
                None
            }
        };
        let cpus = prepare.cpus.map_or_else(cpus_of_this_thread, Ok)?;
        let background = prepare.background.map(|Hogs { threads, duty, cpus: own }| Background {
            hogs: threads,
            duty,
            cpus: own.unwrap_or_else(|| cpus.clone()),
        });
        let (storage, file) = opened(prepare.storage)?;
        Ok(Self {
            context,
            address,
            port: prepare.port,
            device,
            kthread_cpus: prepare.kthread_cpus.unwrap_or_else(|| cpus.clone()),
            cpus,
            counted: prepare.counted,
            background,
            storage,
            journal,
            counters: CounterSource::open(&netns)?,
            servers: ServerHost::new(netns)?,
            delivery,
            cell: None,
            _file: file,
            _lock: lock,
        })
    }

    /// Answers requests until the client disconnects.
    fn serve(
        &mut self,
        connection: &mut Connection,
        signals: &mut Signals,
        end: &mut Option<End>,
    ) -> Result<(), Fault> {
        let machine = describe(self.servers.netns(), self.device, Side::Server, self.cpus.clone())?;
        connection.reply(&Reply::Prepared { address: self.address, machine: Box::new(machine) })?;
        while let Some(request) = connection.next(signals, end)? {
            let done = match request {
                Request::Alive => continue,
                Request::Apply(apply) => self.apply(&apply),
                Request::Open => self.open(),
                Request::Close => self.close(),
                Request::Stop => {
                    if let Some(cell) = &mut self.cell {
                        cell.servers.clear();
                    }
                    Ok(Reply::Done)
                }
                Request::Restore => self.restore().map(|()| Reply::Done),
                Request::Hello(_) | Request::Prepare(_) => {
                    return Err(Fault::new(Exit::Usage, "the bench is already prepared"));
                }
            };
            connection.reply(&done.unwrap_or_else(|fault| Reply::Failed(Failure::from(&fault))))?;
        }
        Ok(())
    }

    fn apply(&mut self, apply: &Apply) -> Result<Reply, Fault> {
        if self.cell.is_some() {
            return Err(Fault::new(Exit::Usage, "another configuration is in force"));
        }
        match self.bring_into(apply) {
            Ok(applied) => Ok(Reply::Applied(applied)),
            Err(error) => {
                let wrote = self.cell.as_ref().is_some_and(|cell| !cell.transactions.is_empty());
                self.restore()?;
                let fault = fault_of(error);
                Err(if wrote { fault.leaving(HostState::Restored) } else { fault })
            }
        }
    }

    /// Starts the servers and applies the requested configuration. Each step is recorded in the cell once it
    /// is done.
    fn bring_into(&mut self, apply: &Apply) -> Result<Applied, BenchError> {
        let wanted = Aim::parse(&apply.wanted)?;
        let configuration = wanted.configuration();
        if let Some(why) = configuration.impossible() {
            return Err(Fault::new(Exit::Unsupported, why).into());
        }
        if !(1..=SERVICES_MAX).contains(&apply.services.len()) {
            let why = format!("{} servers; 1 to {SERVICES_MAX} can be started", apply.services.len());
            return Err(Fault::new(Exit::Usage, why).into());
        }
        let within = apply.within.0.min(WITHIN_MAX.0);
        let (mut servers, mut addresses, mut names, mut counted) = (Vec::new(), Vec::new(), Vec::new(), None);
        for (index, served) in (0..).zip(&apply.services) {
            let (server, address, name, epolls) = self.start(apply, &served.service, index, configuration)?;
            servers.push((server, served.first));
            addresses.push(address);
            if !names.contains(&name) {
                names.push(name);
            }
            counted = counted.or(epolls);
        }
        let processes: Vec<(ProcessId, PolicyName)> = servers
            .iter()
            .flat_map(|(server, first)| server.processes().into_iter().map(|process| (process, *first)))
            .collect();
        let ids: Vec<ProcessId> = processes.iter().map(|(process, _)| *process).collect();
        let cell = self.cell.insert(Cell {
            servers: servers.into_iter().map(|(server, _)| server).collect(),
            transactions: Vec::new(),
            before: None,
            guard: None,
            // The deadline must be unique, to the nanosecond, because the guard process identifies its
            // transactions by the deadline.
            deadline: Nanoseconds(clock::now().since_boot.0.saturating_add(within)),
            napis: BTreeSet::new(),
            irqs: BTreeSet::new(),
            // Most virtual machines have no cycle counters; the evidence then omits them.
            cycles: match ids.as_slice() {
                [process] => Cycles::of(*process).ok(),
                _ => None,
            },
            epolls: counted,
            work: None,
            opened: None,
            background: None,
            _wake: None,
            workqueue: None,
        });
        let namespaces = [self.servers.netns().again()?];
        cell.guard = Some(Guardian::start(self.context.session, cell.deadline, &namespaces)?);
        let before = self.observe()?;
        let napis: BTreeSet<NapiId> =
            before.devices.iter().flat_map(|device| &device.napis).map(|napi| napi.id).collect();
        if let Some(cell) = &mut self.cell {
            let pids = ids.iter().map(|process| process.pid);
            cell.work = WorkTime::of(pids, napis.iter().copied()).ok();
            let own = before.devices.iter().flat_map(|device| &device.napis);
            cell.irqs = own.filter_map(|napi| Some(napi.irq?.irq)).collect();
            (cell.before, cell.napis) = (Some(before.clone()), napis);
        }
        let mut settings = None;
        match wanted {
            Aim::Configuration(Configuration::Mode(mode)) => {
                let intents = ids.iter().flat_map(|process| policy(process.pid, mode).intents);
                let policy = Policy { intents: intents.collect(), ..Policy::default() };
                self.commit(planned(self.servers.netns(), self.device, &policy)?)?;
            }
            Aim::Configuration(other) if other.threading() == Threading::Off => {}
            Aim::Configuration(other) => {
                if let (Configuration::Workqueue(workqueue), Some(cell)) = (other, &mut self.cell) {
                    cell.workqueue = Some(WorkqueueInForce::new(workqueue)?);
                }
                self.commit(threads(&before, other, &self.kthread_cpus)?)?;
            }
            Aim::Tuning(tuning) => settings = Some(self.tune(tuning, &before, &processes)?),
        }
        Ok(Applied { addresses, server: names.join("; "), settings })
    }

    /// Applies a tuning of `bench policies`, and describes its settings.
    fn tune(
        &mut self,
        tuning: Tuning,
        before: &Host,
        servers: &[(ProcessId, PolicyName)],
    ) -> Result<String, BenchError> {
        let device = before.devices.iter().find(|device| device.id.ifindex == self.device);
        let device = device.map(|device| device.id.name.as_str().to_owned());
        let device = device.ok_or_else(|| Fault::failed("the device no longer exists"))?;
        let (plan, remark) = match tuning {
            Tuning::Manual => {
                let processes: Vec<ProcessId> = servers.iter().map(|(process, _)| *process).collect();
                (by_hand(before, &device, &processes, &self.cpus), None)
            }
            Tuning::Policy(policy) => self.planned_tuning(policy, None, &device, servers)?,
            Tuning::Delivery(mode) => self.planned_tuning(PolicyName::None, Some(mode), &device, servers)?,
        };
        let mut words = in_words(&plan, remark.as_deref());
        self.commit(plan)?;
        if let Tuning::Policy(policy) = tuning
            && let Some(intent) = requests(policy, None, &device, &[]).pop()
            && let Some(wake) = wake::hold(None, &intent, self.context.session, self.context.console)?
        {
            words.push_str("; holds cpu_dma_latency");
            if let Some(cell) = &mut self.cell {
                cell._wake = Some(wake);
            }
        }
        Ok(words)
    }

    /// Plans a policy for the device and the servers, or only for the device if the device cannot distinguish
    /// the servers' packets.
    fn planned_tuning(
        &self,
        policy: PolicyName,
        delivery: Option<DeliveryMode>,
        device: &str,
        servers: &[(ProcessId, PolicyName)],
    ) -> Result<(Plan, Option<String>), Fault> {
        let recipes = self.context.session.recipes()?;
        let plan_of = |servers: &[(ProcessId, PolicyName)]| {
            let intents = requests(policy, delivery, device, servers);
            let policy =
                Policy { intents, recipes: Arc::clone(&recipes), disruptive: false, inferred: false };
            planned(self.servers.netns(), self.device, &policy)
        };
        match plan_of(servers) {
            Err(fault) if policy == PolicyName::Mix && fault.exit == Exit::Refused => {
                let why = format!("only of the device: {}", BenchError::Failed(fault)).replace('\n', ";");
                Ok((plan_of(&[])?, Some(why)))
            }
            plan => Ok((plan?, None)),
        }
    }

    /// Starts a server. Returns its address, its name, and the counter of its epolls' events.
    fn start(
        &self,
        apply: &Apply,
        service: &Service,
        index: u16,
        configuration: Configuration,
    ) -> Result<(Server, SocketAddr, String, Option<EpollCounts>), BenchError> {
        if let Service::Running { name } = service {
            let (server, address) = self.running(name, configuration)?;
            return Ok((server, address, format!("{name} (was already running)"), None));
        }
        let port = self.port.map(|port| port.saturating_add(index));
        let address = SocketAddr::new(self.address, port.map_or_else(|| self.free_port(), Ok)?);
        if let Service::Memcached { connections } = *service {
            let mode = match configuration {
                Configuration::Mode(mode) => mode,
                _ => DeliveryMode::Interrupt,
            };
            let mut options = MemcachedOptions {
                threads: apply.threads,
                cpus: self.cpus.clone(),
                connections_max: connections,
                ..MemcachedOptions::default()
            };
            let epolls = preloaded(&mut options, mode, self.counted, &self.servers.scratch())?;
            let memcached = self.servers.start_memcached(address, &options).map_err(server_fault)?;
            let name = format!("{}, {} thread(s)", memcached.version(), apply.threads);
            return Ok((Server::Memcached(memcached), address, name, epolls));
        }
        let program = std::env::current_exe().map_err(|error| Fault::file("/proc/self/exe", error))?;
        let mut command = Command::new(program);
        command.args(["bench", "serve", "--listen", &address.to_string()]);
        command.args(["--threads", &apply.threads.to_string(), "--cpus", &self.cpus.to_string()]);
        let in_a_row = match (service, &self.storage) {
            (Service::Exchange { udp, request, answer, in_a_row }, _) => {
                command.args(["--size", &format!("{request}/{answer}")]).args(udp.then_some("--udp"));
                in_a_row
            }
            (Service::Storage { in_a_row }, Some((path, writable))) => {
                command.arg("--storage").arg(path).args(writable.then_some("--writable"));
                in_a_row
            }
            (Service::Storage { .. } | Service::Memcached { .. } | Service::Running { .. }, _) => {
                return Err(Fault::new(Exit::Usage, "no file for storage was prepared").into());
            }
        };
        command.args(["--in-a-row", &in_a_row.to_string()]);
        if let Some(span) = configuration.wait_at_most() {
            command.args(["--wait-at-most", &format!("{}ns", span.0)]);
        }
        let started = self.servers.start_program(&self.cpus, command, address).map_err(Fault::failed)?;
        let name = format!("netpolicy bench serve, {} thread(s)", apply.threads);
        Ok((Server::Program(started), address, name, None))
    }

    /// Finds a service that is already running on this machine, and its address.
    fn running(&self, name: &str, configuration: Configuration) -> Result<(Server, SocketAddr), Fault> {
        if configuration.wait_at_most().is_some() {
            let why = format!("{configuration} needs a library that is preloaded when the server starts");
            return Err(Fault::new(Exit::Unsupported, why));
        }
        let found =
            MeasuredService::of(&ServiceSelection::named(name), self.context.session, self.context.console)?;
        let port = match (self.port, found.ports.tcp.as_slice()) {
            (Some(port), ports) if ports.contains(&port) => port,
            (None, [port]) => *port,
            (_, ports) => {
                let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
                return Err(Fault::new(Exit::Usage, format!("{name} listens on {}", ports.join(", ")))
                    .hint("name one of these ports with --server-port"));
            }
        };
        Ok((Server::Running(found.processes), SocketAddr::new(self.address, port)))
    }

    /// Returns a port that was free a moment ago.
    fn free_port(&self) -> Result<u16, Fault> {
        let address = self.address;
        let bound = self.servers.netns().run(|| TcpListener::bind((address, 0))?.local_addr())?;
        bound.map(|bound| bound.port()).map_err(|error| Fault::file(address.to_string(), error))
    }

    /// Observes the servers, and the device on which they receive.
    fn observe(&self) -> Result<Host, BenchError> {
        let servers = self.cell.iter().flat_map(|cell| &cell.servers);
        let pids: Vec<Pid> = servers.flat_map(Server::processes).map(|process| process.pid).collect();
        let processes = if pids.is_empty() { Processes::None } else { Processes::Only(pids) };
        Ok(observe(self.servers.netns(), self.device, &processes)?)
    }

    fn commit(&mut self, plan: Plan) -> Result<(), Fault> {
        let Some(cell) = &mut self.cell else { return Ok(()) };
        let asked = self.context.session.asked(Some(cell.deadline));
        let committed = cycle::hold(plan, &self.journal, &asked, Allow::default(), cell.deadline)?;
        cell.transactions.extend(committed);
        Ok(())
    }

    fn open(&mut self) -> Result<Reply, Fault> {
        let Some(cell) = &mut self.cell else { return Err(nothing_applied()) };
        if let Some(background) = &self.background {
            let started = background.start();
            cell.background = Some(started.map_err(|error| Fault::file("a background thread", error))?);
        }
        cell.opened = Some(read(Edge::Opens, cell, &mut self.counters, self.delivery.as_mut()));
        Ok(Reply::Done)
    }

    fn close(&mut self) -> Result<Reply, Fault> {
        let Some(cell) = &mut self.cell else { return Err(nothing_applied()) };
        let Some(before) = cell.opened.take() else { return Err(Fault::failed("no window is open")) };
        let after = read(Edge::Closes, cell, &mut self.counters, self.delivery.as_mut());
        cell.background = None;
        let counted: Counted = after.since(&before, &self.cpus, &cell.napis);
        Ok(Reply::Counted(Box::new(counted)))
    }

    /// Restores the settings that the cell changed, and compares this machine with its earlier state.
    fn restore(&mut self) -> Result<(), Fault> {
        let Some(cell) = &mut self.cell else { return Ok(()) };
        cell.background = None;
        while let Some(transaction) = cell.transactions.last() {
            let undone = self.journal.roll_back(*transaction, &mut Kernel::new(), clock::now());
            match undone {
                // `NothingToUndo`: the guard process has already rolled it back.
                Ok(_) | Err(apply::RollBackError::NothingToUndo { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            cell.transactions.pop();
        }
        let before = cell.before.take();
        let now = before.as_ref().map(|_| self.observe()).transpose().map_err(fault_of)?;
        if let Some(guard) = self.cell.take().and_then(|cell| cell.guard) {
            guard.dismiss();
        }
        let (Some(before), Some(now)) = (before, now) else { return Ok(()) };
        let own = |host: &Host| host.devices.iter().find(|device| device.id.ifindex == self.device).cloned();
        if let (Some(device), None) = (own(&before), own(&now)) {
            let words = format!("{} no longer exists; its settings went with it", device.id);
            return Err(Fault::failed(words).leaving(HostState::Restored));
        }
        let wrong = differences(&settings(&before), &settings(&now));
        if wrong.is_empty() {
            return Ok(());
        }
        let stuck = HostState::NotRestored { stuck: wrong.clone(), undo: None };
        let words = format!("left changed: {}", wrong.join(", "));
        Err(Fault::new(Exit::NotRestored, words).leaving(stuck))
    }
}

fn read(
    edge: Edge,
    cell: &mut Cell,
    counters: &mut CounterSource,
    delivery: Option<&mut DeliverySampler>,
) -> AtEdge {
    let mut meters = Meters {
        cycles: cell.cycles.as_mut(),
        epolls: cell.epolls.as_ref(),
        work: cell.work.as_mut(),
        irqs: (!cell.irqs.is_empty()).then_some(&cell.irqs),
        ..Meters::of(counters, delivery)
    };
    meters.read(edge)
}

fn nothing_applied() -> Fault {
    Fault::new(Exit::Usage, "no configuration is in force")
}

fn fault_of(error: BenchError) -> Fault {
    match error {
        BenchError::Failed(fault) => fault,
        other @ (BenchError::Interrupted(_) | BenchError::TimeUp) => Fault::failed(other.to_string()),
    }
}

/// Lets one client at a time use this machine.
fn locked(state_dir: &std::path::Path) -> Result<File, Fault> {
    std::fs::create_dir_all(state_dir).map_err(|error| Fault::file(state_dir, error))?;
    let path = state_dir.join(LOCK);
    let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = opened.map_err(|error| Fault::file(&path, error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(Fault::new(Exit::Refused, "another client is using this machine"))
        }
        Err(errno) => Err(Fault::file(path, errno.into())),
    }
}

fn address_of_ssh(connection: Option<&str>) -> Option<IpAddr> {
    connection.and_then(|words| words.split(' ').nth(2)?.parse().ok())
}

/// The file of the bench on storage: its path and whether the bench writes to it, and the open file if it is
/// temporary.
type OpenedStorage = (Option<(PathBuf, bool)>, Option<File>);

fn opened(storage: Option<Storage>) -> Result<OpenedStorage, Fault> {
    let Some(Storage { file, directory, bytes, writable }) = storage else { return Ok((None, None)) };
    match file {
        Some(path) => Ok((Some((path, writable)), None)),
        None => {
            let file = file_of_our_own(&directory, bytes)?;
            Ok((Some((path_of_our(&file), writable)), Some(file)))
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_address_of_the_server_is_the_one_that_ssh_connected_to() {
        assert_eq!(address_of_ssh(Some("192.0.2.2 50512 192.0.2.1 22")), Some(IpAddr::from([192, 0, 2, 1])));
        assert_eq!(address_of_ssh(Some("192.0.2.2 50512")), None);
        assert_eq!(address_of_ssh(None), None);
    }
}
