//! Runs one cell of the evaluation of policies: starts a server for each kind of workload, applies a policy
//! to device and servers through the whole cycle, runs all workloads at the same time, restores, and compares
//! the host with its previous state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apply::{Allow, Journal, TransactionName};
use cli::OwnFiles;
use linux::bpf::delivery::DeliverySampler;
use linux::counters::CounterSource;
use linux::lab::{Lab, LabOptions, SERVER_ADDRESS, SERVER_DEVICE, ServerProgram};
use linux::machine::{Machine, seconds_since_1970};
use linux::work::{WorkTime, family};
use linux::{Kernel, Processes, Signals, WakeLatency};
use load::{Environment, Run, RunError};
use model::{
    CpuSet, DeliveryMode, Evidence, Host, MeasuredOn, NapiId, Origin, Pid, Plan, PolicyName, ProcessId,
    Recipes, Workload,
};
use runs::{Cell, Stage};
use serde_json::Value;
use session::{Exit, Fault, clock, cycle, wake};

use super::error::BenchError;
use super::foreign::ForeignServer;
use super::lab_stage::{check_time, delivery_sampler, differences, interruptible, settings};
use super::layout::Layout;
use super::policies_args::Policies;
use super::tuning::{Tuning, by_hand, requests};
use super::watch::{Meters, Watch};
use crate::Context;

/// The port of the throughput-first workloads' server.
const THROUGHPUT_PORT: u16 = 7007;

/// The port of the latency-first workloads' server.
const LATENCY_PORT: u16 = 7008;

/// How often at most to look for new processes of a server, until none appear.
const SETTLING_LOOKS_MAX: u32 = 50;
const SETTLING_PAUSE: Duration = Duration::from_millis(20);

/// The maximum number of settings to list per configuration. Of the rest, only the number is given.
const SETTINGS_MAX: usize = 16;

/// Maximum number of differences named for a host that was not fully restored.
const DIFFERENCES_MAX: usize = 8;

/// A lab that runs the servers of one mixture at a time.
pub(crate) struct PoliciesStage<'a> {
    context: &'a Context<'a>,
    signals: &'a mut Signals,
    /// The time after which no further run starts.
    until: Option<Instant>,
    layout: Layout,
    threads: u32,
    recipes: Arc<Recipes>,
    /// The operator's server that replaces the server of the latency-first workloads.
    foreign: Option<ForeignServer>,
    /// The working directory.
    files: Option<OwnFiles>,
    /// Whether the console has already shown why task run time is unavailable.
    explained_no_work: bool,
    /// The workloads to run at the same time: one of each kind, if present.
    throughput_first: Option<Workload>,
    latency_first: Option<Workload>,
    /// The evidence of the latency-first workloads in mixed runs. The evidence of all other workloads is
    /// returned as that of the run.
    beside: Vec<Evidence>,
    /// A description of what each configuration set when it was last applied.
    applied_settings: BTreeMap<String, String>,
    journal: Journal,
    counters: [CounterSource; 2],
    delivery: Option<DeliverySampler>,
    cell: Option<Applied>,
    lab: Lab,
}

/// Servers with the settings applied to them.
struct Applied {
    /// The servers; empty after an interrupt.
    servers: Vec<Server>,
    transaction: Option<TransactionName>,
    /// The host before the runs; `None` if it could not be observed.
    before: Option<Host>,
    /// The policy's limit on the wake-up latency, held while the policy is in force.
    _wake: Option<WakeLatency>,
}

/// A server, and the policy that suits its workloads.
struct Server {
    program: ServerProgram,
    /// The server's process and all descendants.
    processes: Vec<ProcessId>,
    first: PolicyName,
}

impl<'a> PoliciesStage<'a> {
    /// Creates a lab for these runs.
    pub(crate) fn new(
        context: &'a Context<'a>,
        signals: &'a mut Signals,
        layout: Layout,
        arguments: &Policies,
    ) -> Result<Self, Fault> {
        let until = arguments.time_for_all().map(|time| Instant::now() + time);
        let cpus = u32::try_from(layout.server.len()).unwrap_or(1);
        let queues = arguments.queues.unwrap_or_else(|| cpus.min(LabOptions::QUEUES_MAX));
        let lab = Lab::new(&LabOptions::with_queues(queues))?;
        let delivery = delivery_sampler(context, !arguments.uncounted);
        Ok(Self {
            context,
            signals,
            until,
            threads: arguments.server_threads.unwrap_or(cpus),
            layout,
            recipes: context.session.recipes()?,
            files: arguments.foreign.server().map(|_| OwnFiles::new()).transpose()?,
            foreign: arguments.foreign.server(),
            explained_no_work: false,
            throughput_first: None,
            latency_first: None,
            beside: Vec::new(),
            applied_settings: BTreeMap::new(),
            journal: context.session.journal_in(&lab.scratch())?,
            counters: [CounterSource::open(lab.server())?, CounterSource::open(lab.server())?],
            delivery,
            cell: None,
            lab,
        })
    }

    /// Sets the workloads of all further runs.
    pub(crate) fn set_workloads(
        &mut self,
        throughput_first: Option<Workload>,
        latency_first: Option<Workload>,
    ) {
        (self.throughput_first, self.latency_first) = (throughput_first, latency_first);
    }

    /// Takes the evidence of the latency-first workloads of the mixed runs since the last call.
    pub(crate) fn take_beside(&mut self) -> Vec<Evidence> {
        std::mem::take(&mut self.beside)
    }

    /// Describes what each configuration set when it was last applied.
    pub(crate) fn applied_settings(&self) -> impl Iterator<Item = String> {
        self.applied_settings.iter().map(|(label, words)| format!("{label}: {words}"))
    }

    /// Starts a server for each kind of workload.
    fn start(&self) -> Result<Vec<Server>, BenchError> {
        let kinds = [
            (&self.throughput_first, THROUGHPUT_PORT, PolicyName::Bulk),
            (&self.latency_first, LATENCY_PORT, PolicyName::Latency),
        ];
        let mut servers = Vec::new();
        if let Some(foreign) = &self.foreign {
            let mut command = foreign.start();
            if let Some(files) = &self.files {
                command.current_dir(&files.directory);
            }
            let program = self.lab.start_program_on(&self.layout.server, command, foreign.port);
            let program = program.map_err(Fault::failed)?;
            let processes = settled(program.process())?;
            return Ok(vec![Server { program, processes, first: PolicyName::Latency }]);
        }
        for (workload, port, first) in kinds {
            let Some(Workload::TcpStream(sizes) | Workload::TcpRr(sizes)) = workload else { continue };
            let program = std::env::current_exe().map_err(|error| Fault::file("/proc/self/exe", error))?;
            let mut command = Command::new(program);
            command.args([
                "bench",
                "serve",
                "--listen",
                &SocketAddr::new(SERVER_ADDRESS.into(), port).to_string(),
            ]);
            command.args(["--threads", &self.threads.to_string(), "--cpus", &self.layout.server.to_string()]);
            command.args(["--size", &format!("{}/{}", sizes.request_bytes, sizes.answer_bytes)]);
            let program = self.lab.start_program(command, port).map_err(Fault::failed)?;
            let processes = vec![program.process()];
            servers.push(Server { program, processes, first });
        }
        Ok(servers)
    }

    fn observe(&self) -> Result<Host, BenchError> {
        let servers = self.cell.iter().flat_map(|applied| &applied.servers);
        let pids = servers.flat_map(|server| &server.processes).map(|process| process.pid).collect();
        Ok(linux::observe(self.lab.server(), &Processes::Only(pids))?)
    }

    /// Starts the servers, and applies the tuning to them and the device. Each step is recorded in the cell
    /// once it is done.
    fn bring_under(&mut self, tuning: Tuning) -> Result<(), BenchError> {
        let servers = self.start()?;
        let asked: Vec<(ProcessId, PolicyName)> = servers
            .iter()
            .flat_map(|server| server.processes.iter().map(|process| (*process, server.first)))
            .collect();
        self.cell = Some(Applied { servers, transaction: None, before: None, _wake: None });
        let before = self.observe()?;
        let (plan, remark) = match tuning {
            Tuning::Manual => {
                let servers: Vec<ProcessId> = asked.iter().map(|(server, _)| *server).collect();
                (by_hand(&before, SERVER_DEVICE, &servers, &self.layout.server), None)
            }
            Tuning::Policy(policy) => self.planned(policy, None, &asked)?,
            Tuning::Delivery(mode) => self.planned(PolicyName::None, Some(mode), &asked)?,
        };
        let mut words = in_words(&plan, remark.as_deref());
        if let Some(applied) = &mut self.cell {
            applied.before = Some(before);
        }
        let transaction =
            cycle::keep(plan, &self.journal, &self.context.session.asked(None), Allow::default())?;
        let wake = match tuning {
            Tuning::Manual | Tuning::Delivery(_) => None,
            Tuning::Policy(policy) => {
                let intent = requests(policy, None, SERVER_DEVICE, &[]).pop();
                intent
                    .map(|intent| wake::hold(None, &intent, self.context.session, self.context.console))
                    .transpose()?
                    .flatten()
            }
        };
        if wake.is_some() {
            words.push_str("; holds cpu_dma_latency");
        }
        if let Some(applied) = &mut self.cell {
            (applied.transaction, applied._wake) = (transaction, wake);
        }
        self.applied_settings.insert(tuning.to_string(), words);
        Ok(())
    }

    /// Plans a policy for the device and both servers. If the device has no rules that distinguish the
    /// servers' packets, the servers cannot have separate policies. The plan then covers only the device, and
    /// says why.
    fn planned(
        &self,
        policy: PolicyName,
        delivery: Option<DeliveryMode>,
        servers: &[(ProcessId, PolicyName)],
    ) -> Result<(Plan, Option<String>), BenchError> {
        let plan_of = |servers: &[(ProcessId, PolicyName)]| {
            let asked = requests(policy, delivery, SERVER_DEVICE, servers);
            let policy = model::Policy {
                intents: asked,
                recipes: Arc::clone(&self.recipes),
                disruptive: false,
                inferred: false,
            };
            cycle::plan(&policy, self.lab.server()).map(|planned| planned.plan)
        };
        match plan_of(servers) {
            Ok(plan) => Ok((plan, None)),
            Err(fault) if policy == PolicyName::Mix && fault.exit == Exit::Refused => {
                let why = format!("only of the device: {}", BenchError::Failed(fault)).replace('\n', ";");
                Ok((plan_of(&[])?, Some(why)))
            }
            Err(fault) => Err(fault.into()),
        }
    }

    /// Counts the run time of the servers, of this process, and of the softirqs that work for them. If that
    /// is not possible, the console shows the reason, but only once.
    fn work(&mut self) -> Option<WorkTime> {
        let applied = self.cell.as_ref()?;
        let servers = applied.servers.iter().flat_map(|server| &server.processes);
        let processes = servers.map(|process| process.pid).chain([Pid(std::process::id())]);
        let devices = applied.before.iter().flat_map(|host| &host.devices);
        let napis = devices.flat_map(|device| &device.napis).map(|napi| napi.id);
        match WorkTime::of(processes, napis) {
            Ok(work) => Some(work),
            Err(error) => {
                if !std::mem::replace(&mut self.explained_no_work, true) {
                    self.context.console.say(&format!("Task run time is unavailable: {error}"));
                }
                None
            }
        }
    }

    fn put_back(&mut self) -> Result<(), BenchError> {
        let Some(applied) = &mut self.cell else { return Ok(()) };
        if let Some(transaction) = applied.transaction.take() {
            let undone = self.journal.roll_back(transaction, &mut Kernel::new(), clock::now());
            undone.map_err(Fault::from)?;
        }
        let wrong = match &applied.before {
            Some(before) if !applied.servers.is_empty() => {
                let before = before.clone();
                left(&before, &self.observe()?)
            }
            Some(_) | None => Vec::new(),
        };
        self.cell = None;
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(Fault::failed(format!("left changed: {}", wrong.join(", "))).into()),
        }
    }

    fn origin(&self, started: u64, first: PolicyName) -> Origin {
        let Machine { host, kernel, cpu_model } = Machine::this();
        let client: CpuSet = self.layout.client.iter().copied().collect();
        let machine = format!(
            "{cpu_model}, lab with {} queue(s), servers on CPU {}, clients on CPU {client}",
            self.lab.queues(),
            self.layout.server,
        );
        let server = match &self.foreign {
            Some(foreign) => foreign.command.clone(),
            None => format!("netpolicy bench serve for {first}, {} thread(s)", self.threads),
        };
        Origin::Measured(MeasuredOn { host, kernel, machine, server, started })
    }
}

impl Stage for PoliciesStage<'_> {
    type Error = BenchError;

    fn apply(&mut self, label: &str) -> Result<(), BenchError> {
        check_time(self.signals, self.until)?;
        let tuning: Tuning = label.parse().map_err(|error| Fault::failed(format!("{error}")))?;
        let brought = self.bring_under(tuning);
        if brought.is_err() {
            self.put_back()?;
        }
        brought
    }

    fn measure(&mut self, cell: Cell<'_>) -> Result<Evidence, BenchError> {
        let started = seconds_since_1970();
        let origins =
            [PolicyName::Bulk, PolicyName::Latency].map(|first| (first, self.origin(started, first)));
        let mut origins = BTreeMap::from(origins);
        let workloads: Vec<(PolicyName, Workload)> =
            [(PolicyName::Bulk, &self.throughput_first), (PolicyName::Latency, &self.latency_first)]
                .into_iter()
                .filter_map(|(first, workload)| Some((first, workload.as_ref()?.with_seed(cell.seed))))
                .collect();
        let mut work = self.work();
        let mut work = work.as_mut();
        let Self { signals, layout, counters, delivery, cell: applied, lab, .. } = self;
        let Some(Applied { servers, before, .. }) = applied else {
            return Err(Fault::failed("nothing was applied").into());
        };
        let devices = before.iter().flat_map(|host| &host.devices);
        let napis: BTreeSet<NapiId> = devices.flat_map(|device| &device.napis).map(|napi| napi.id).collect();
        let mut addresses = BTreeMap::new();
        for server in servers.iter() {
            addresses.insert(server.first, server.program.address());
        }
        let mut sampler = delivery.as_mut();
        let mut offers = Vec::new();
        for ((first, workload), source) in workloads.iter().zip(counters.iter_mut()) {
            let Some(address) = addresses.get(first) else {
                return Err(Fault::failed("a server was stopped").into());
            };
            let meters = Meters { work: work.take(), ..Meters::of(source, sampler.take()) };
            let watch = Watch::new(lab.client(), layout, meters);
            offers.push((*address, workload, watch));
        }
        // On an interrupt, stop the servers, so that the run ends immediately instead of after its full time.
        let runs = interruptible(signals, || all_at_once(&offers, cell), || servers.clear())?;
        let mut evidence = Vec::new();
        for (((first, _), (.., watch)), run) in workloads.iter().zip(offers).zip(runs) {
            let Some(origin) = origins.remove(first) else { continue };
            let mut of_kind = run.into_evidence(cell.label, origin);
            // With two kinds of answers in one run, the CPU time per answer of each kind is unknown.
            watch.add_to(&mut of_kind, &napis, workloads.len() == 1);
            evidence.push(of_kind);
        }
        let mut evidence = evidence.into_iter();
        let Some(own) = evidence.next() else { return Err(Fault::failed("no workload ran").into()) };
        // Polls are counted per device, so both workloads get the same counts.
        let delivered = own.delivered.clone();
        self.beside.extend(evidence.map(|beside| Evidence { delivered: delivered.clone(), ..beside }));
        Ok(own)
    }

    fn restore(&mut self) -> Result<(), BenchError> {
        self.put_back()
    }
}

/// Returns the processes of a server that has just begun to listen, once no new ones appear, because a master
/// process starts its workers only then.
fn settled(server: ProcessId) -> Result<Vec<ProcessId>, BenchError> {
    let mut found = family(server.pid);
    for _ in 0..SETTLING_LOOKS_MAX {
        std::thread::sleep(SETTLING_PAUSE);
        let more = family(server.pid);
        if more == found {
            break;
        }
        found = more;
    }
    let identified: Result<Vec<ProcessId>, _> = found.into_iter().map(linux::process::identify).collect();
    Ok(identified?)
}

/// Runs all workloads at the same time.
pub(crate) fn all_at_once<E: Environment>(
    offers: &[(SocketAddr, &Workload, E)],
    cell: Cell<'_>,
) -> Result<Vec<Run>, RunError> {
    std::thread::scope(|scope| {
        let offer = |(address, workload, watch): &(SocketAddr, &Workload, E)| {
            load::offer(*address, workload, cell.load, watch)
        };
        let running: Vec<_> = offers.iter().map(|one| scope.spawn(move || offer(one))).collect();
        let joined = running
            .into_iter()
            .map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect()
    })
}

/// Describes on one line what a plan sets.
pub(crate) fn in_words(plan: &Plan, remark: Option<&str>) -> String {
    let changes: Vec<String> = plan
        .changes()
        .map(|change| format!("{} {} {}", change.to().object(), change.to().knob(), change.to().value()))
        .collect();
    let mut words = match changes.len() {
        0 => "sets nothing".to_owned(),
        1..=SETTINGS_MAX => format!("sets {}", changes.join(", ")),
        more => format!("sets {}, and {} more", changes[..SETTINGS_MAX].join(", "), more - SETTINGS_MAX),
    };
    if let Some(remark) = remark {
        words = format!("{words}; {remark}");
    }
    words
}

/// Describes what differs: names every setting of servers and NAPIs, and every other difference of the
/// devices.
fn left(before: &Host, after: &Host) -> Vec<String> {
    let mut wrong = differences(&settings(before), &settings(after));
    if wrong.is_empty() && before.devices != after.devices {
        let value = |host: &Host| serde_json::to_value(&host.devices).unwrap_or_default();
        differing("devices", &value(before), &value(after), &mut wrong);
    }
    wrong.truncate(DIFFERENCES_MAX);
    wrong
}

/// Lists the places where two values differ.
fn differing(place: &str, before: &Value, after: &Value, wrong: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(was), Value::Object(is)) if was.keys().eq(is.keys()) => {
            was.iter().zip(is.values()).for_each(|((key, was), is)| {
                differing(&format!("{place}.{key}"), was, is, wrong);
            });
        }
        (Value::Array(was), Value::Array(is)) if was.len() == is.len() => {
            for (index, (was, is)) in was.iter().zip(is).enumerate() {
                differing(&format!("{place}[{index}]"), was, is, wrong);
            }
        }
        (was, is) if was != is => wrong.push(format!("{place} was {was} and is {is}")),
        _ => {}
    }
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_not_put_back_is_named_with_both_values() {
        let mut wrong = Vec::new();
        let before = json!([{ "mtu": 1500, "rx_queues": [{ "rps_cpus": "" }] }]);
        let after = json!([{ "mtu": 1500, "rx_queues": [{ "rps_cpus": "1" }] }]);
        differing("devices", &before, &after, &mut wrong);
        assert_eq!(wrong, ["devices[0].rx_queues[0].rps_cpus was \"\" and is \"1\""]);
        wrong.clear();
        differing("devices", &before, &json!([]), &mut wrong);
        assert_eq!(wrong.len(), 1, "a device that no longer exists counts as one difference");
        wrong.clear();
        differing("devices", &before, &before, &mut wrong);
        assert_eq!(wrong, Vec::<String>::new());
    }
}
