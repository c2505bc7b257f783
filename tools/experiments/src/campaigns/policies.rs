//! `bench policies`: compares every policy with no tuning and with manual tuning, following the NET-policy
//! document.

use std::time::Instant;

use linux::process::cpus_of_this_thread;
use linux::{Processes, Signals, observe};
use model::{Evidence, FormatName, MachineDescription, OfferedLoad, PolicyName, Workload};
use runs::{Experiment, Grid, Overall, Results, Stage, Stopped, Variant};
use session::{Exit, Fault};

use super::exchange::{among, offline, possible, publish};
use super::running::{ProgressReport, Testbed, early, writable};
use crate::Context;
use crate::bench::{BenchError, Layout, Mixture, Policies, PoliciesStage, Tuning, impossible};
use crate::machines::control::Control;
use crate::machines::message::Prepare;
use crate::machines::stage::{Labels, MachinesStage, Needs};

/// Notes on every table from the lab.
const LAB_NOTES: [&str; 3] = [
    "none is the untuned baseline: the device and the servers have their default settings; the servers run on their half of the CPUs, as under every policy.",
    "manual is the usual manual tuning: irqbalance off, interrupts 1:1. The lab's veth has no interrupt and no \
     irqbalance, so RPS replaces the interrupt's affinity: queue i is steered to the i-th server CPU, XPS likewise, and only thread i runs \
     there.",
    "mix gives each server the policy of its workloads; a veth has no rules that distinguish their packets, so this may be refused; then only the device has the policy.",
];

/// Notes on every table from two machines.
const MACHINES_NOTES: [&str; 3] = [
    "none is the untuned baseline: the device and the servers have their default settings.",
    "manual is the usual manual tuning: the interrupt of queue i goes to the i-th server CPU (RPS if a queue has no \
     interrupt), XPS likewise, and only thread i runs there. irqbalance must be off.",
    "mix gives each server the policy of its workloads; if the device has no rules that distinguish their packets, only the \
     device has the policy.",
];

/// Notes on every table of a server of the operator's choice.
const FOREIGN_NOTES: [&str; 2] = [
    "none is the untuned baseline: the device and the server have their default settings; in the lab, the server runs on its half of the CPUs, as under every policy.",
    "The client sleeps until an answer arrives or a request is due, like an ordinary one, and is late by its wake-up latency, under \
     every policy alike (--punctual makes it poll instead, at the cost of its CPU).",
];

/// Measures, prints the tables, and writes the files.
pub(super) fn run(arguments: &Policies, context: &Context<'_>) -> Result<Exit, Fault> {
    // Check before the experiment, not only after it, that the files can be written.
    for path in [&arguments.report, &arguments.json].into_iter().flatten() {
        writable(path)?;
    }
    if arguments.machines.server.is_some() {
        return across_machines(arguments, context);
    }
    let online = observe(&context.session.netns()?, &Processes::None)?.topology.online;
    let halves = Layout::of(&online);
    let layout = Layout {
        server: arguments.server_cpus.clone().unwrap_or(halves.server),
        client: arguments.client_cpus.as_ref().map_or(halves.client, |cpus| cpus.iter().collect()),
    };
    offline(&online, &layout)?;
    let mut notes: Vec<String> = LAB_NOTES.map(str::to_owned).to_vec();
    if layout.is_shared() {
        let note =
            "Servers and clients share CPUs: they compete for them, and response times include the waits.";
        notes.push(note.to_owned());
    }
    let mut signals = Signals::catch()?;
    let stage = PoliciesStage::new(context, &mut signals, layout, arguments)?;
    if let Some(server) = arguments.foreign.server() {
        let grid = titled(format!("Policies with {}", server.command));
        return foreign(arguments, context, stage, grid, Testbed::Lab);
    }
    let cpus = u32::try_from(online.len()).unwrap_or(u32::MAX);
    mixed(arguments, context, stage, (cpus, notes, Vec::new()), Testbed::Lab)
}

/// Measures with the servers on another machine.
fn across_machines(arguments: &Policies, context: &Context<'_>) -> Result<Exit, Fault> {
    let options = &arguments.machines;
    let prepare = Prepare {
        address: options.server_address,
        port: options.server_port.or(arguments.foreign.port),
        cpus: arguments.server_cpus.clone(),
        counted: !arguments.uncounted,
        kthread_cpus: None,
        background: None,
        storage: None,
    };
    let needs = Needs {
        labels: Labels::Tunings,
        both_sides: false,
        threads: arguments.server_threads,
        partners: false,
        running: arguments.foreign.service.clone(),
        netns: context.session.netns()?,
        cpus: arguments.client_cpus.clone().map_or_else(cpus_of_this_thread, Ok)?,
        prepare,
        until: arguments.time_for_all().map(|time| Instant::now() + time),
    };
    let mut signals = Signals::catch()?;
    let stage = MachinesStage::new(context, Control::connect(options, &needs.netns)?, &mut signals, needs)?;
    let (cpus, machines) = (stage.server_cpus(), stage.machines());
    if let (Some(name), Some(server)) = (&arguments.foreign.service, &options.server) {
        let grid = Grid { machines, ..titled(format!("Policies with {name} on {server}")) };
        return foreign(arguments, context, stage, grid, Testbed::Machines);
    }
    let notes = MACHINES_NOTES.map(str::to_owned).to_vec();
    mixed(arguments, context, stage, (cpus, notes, machines), Testbed::Machines)
}

fn titled(title: String) -> Grid {
    let notes = FOREIGN_NOTES.map(str::to_owned).to_vec();
    Grid { schema: FormatName, title, notes, ..Grid::default() }
}

/// A stage that runs one or two kinds of workloads at a time.
trait Mixes: Stage<Error = BenchError> {
    /// Sets the workloads of all further runs: throughput first, and latency first.
    fn set_mixture(&mut self, throughput_first: Option<Workload>, latency_first: Option<Workload>);
    /// Takes the evidence of the latency-first workloads of mixed runs.
    fn take_beside(&mut self) -> Vec<Evidence>;
    /// Describes what each configuration set when it was last applied.
    fn applied_settings(&self) -> Vec<String>;
}

impl Mixes for PoliciesStage<'_> {
    fn set_mixture(&mut self, throughput_first: Option<Workload>, latency_first: Option<Workload>) {
        self.set_workloads(throughput_first, latency_first);
    }

    fn take_beside(&mut self) -> Vec<Evidence> {
        Self::take_beside(self)
    }

    fn applied_settings(&self) -> Vec<String> {
        Self::applied_settings(self).collect()
    }
}

impl Mixes for MachinesStage<'_> {
    fn set_mixture(&mut self, throughput_first: Option<Workload>, latency_first: Option<Workload>) {
        let of = |first, workload: Option<Workload>| workload.map(|workload| (first, workload));
        let both = [of(PolicyName::Bulk, throughput_first), of(PolicyName::Latency, latency_first)];
        self.set_workloads(both.into_iter().flatten().collect());
    }

    fn take_beside(&mut self) -> Vec<Evidence> {
        Self::take_beside(self)
    }

    fn applied_settings(&self) -> Vec<String> {
        Self::applied_settings(self).collect()
    }
}

/// Measures netpolicy's own servers in all mixtures.
fn mixed<S: Mixes>(
    arguments: &Policies,
    context: &Context<'_>,
    mut stage: S,
    (cpus, notes, machines): (u32, Vec<String>, Vec<MachineDescription>),
    place: Testbed,
) -> Result<Exit, Fault> {
    let mixtures = arguments.mixtures(cpus);
    let Some(fullest) = fullest(&mixtures) else {
        return Err(Fault::new(
            Exit::Usage,
            "there is nothing to measure: a single workload cannot be mixed",
        ));
    };
    for mixture in &mixtures {
        let workloads = [arguments.throughput_first(*mixture), arguments.latency_first(*mixture)];
        for workload in workloads.iter().flatten() {
            workload.check().map_err(|error| impossible(&error, "--size"))?;
        }
    }
    let mut grid = empty(arguments, &mixtures, "Policies against no tuning and tuning by hand");
    grid.machines = machines;
    grid.notes.push(arguments.scale(cpus));
    grid.notes.extend(notes);
    stage.set_mixture(arguments.throughput_first(fullest), arguments.latency_first(fullest));
    let candidates = arguments.tunings().into_iter().map(|tuning| (tuning.to_string(), None));
    let labels = match possible(&mut stage, candidates, &mut grid.skipped)? {
        Ok(labels) => labels,
        Err(exit) => return Ok(exit),
    };
    grid.notes.extend(stage.applied_settings());
    let stopped = experiments(arguments, context, &mut stage, &mixtures, &labels, &mut grid);
    drop(stage);
    context.console.progress("");
    let exit = publish(context, &grid, arguments.json.as_deref(), arguments.report.as_deref(), false)?;
    match stopped {
        None => Ok(exit),
        Some(Stopped { cell, failure, results }) => {
            early(context, &results, &cell, failure, place).map(|early| early.unwrap_or(exit))
        }
    }
}

/// Measures a server of the operator's choice, with one variant for each number of connections.
fn foreign<S: Mixes>(
    arguments: &Policies,
    context: &Context<'_>,
    mut stage: S,
    mut grid: Grid,
    place: Testbed,
) -> Result<Exit, Fault> {
    let connections = arguments.foreign.connections();
    let workloads: Vec<_> = connections.iter().filter_map(|flows| arguments.of_foreign(*flows)).collect();
    let Some(protocol) = arguments.foreign.protocol else {
        return Err(Fault::new(Exit::Usage, "the protocol is missing"));
    };
    for workload in &workloads {
        workload.check().map_err(|error| impossible(&error, "--path"))?;
    }
    stage.set_mixture(None, workloads.first().cloned());
    let candidates = arguments.tunings().into_iter().map(|tuning| (tuning.to_string(), None));
    let labels = match possible(&mut stage, candidates, &mut grid.skipped)? {
        Ok(labels) => labels,
        Err(exit) => return Ok(exit),
    };
    let experiment = Experiment {
        labels,
        loads: arguments.foreign.loads(),
        rounds: arguments.rounds(),
        seed: arguments.seed,
    };
    let (mut reported, mut ended) = (ProgressReport::default(), None);
    for (number, (workload, flows)) in workloads.iter().zip(&connections).enumerate() {
        stage.set_mixture(None, Some(workload.clone()));
        let outcome = experiment.run(&mut stage, |progress| {
            reported.update(context, &among(progress, number, workloads.len()));
        });
        let (results, stopped) = match outcome {
            Ok(results) => (results, None),
            Err(stopped) => (stopped.results.clone(), Some(*stopped)),
        };
        let name = format!("{protocol}, {flows} connection(s)");
        grid.variants.push(Variant { name, borne: None, results });
        if stopped.is_some() {
            ended = stopped;
            break;
        }
    }
    grid.notes.extend(stage.applied_settings());
    drop(stage);
    context.console.progress("");
    let exit = publish(context, &grid, arguments.json.as_deref(), arguments.report.as_deref(), false)?;
    match ended {
        None => Ok(exit),
        Some(Stopped { cell, failure, results }) => {
            early(context, &results, &cell, failure, place).map(|early| early.unwrap_or(exit))
        }
    }
}

/// Returns the mixture with the most workloads of both kinds. Trying it first shows unsupported
/// configurations before the first run.
fn fullest(mixtures: &[Mixture]) -> Option<Mixture> {
    mixtures.iter().copied().max_by_key(|mixture| (mixture.is_mixed(), mixture.at_once()))
}

/// Returns a grid without variants, which defines the groups to show together.
pub(super) fn empty(arguments: &Policies, mixtures: &[Mixture], title: &str) -> Grid {
    let against: Vec<String> = {
        let tunings = arguments.tunings();
        let references = Tuning::REFERENCES.into_iter().filter(|reference| tunings.contains(reference));
        references.map(|reference| reference.to_string()).collect()
    };
    let overall = |name: &str, mixed: bool, of: fn(Mixture) -> (u32, String)| {
        let mine = mixtures.iter().filter(|mixture| mixture.is_mixed() == mixed).map(|mixture| of(*mixture));
        let variants = mine.filter(|(workloads, _)| *workloads > 0).map(|(_, name)| name).collect();
        Overall { name: name.to_owned(), variants, against: against.clone() }
    };
    let throughput: fn(Mixture) -> (u32, String) = |mixture| (mixture.throughput, mixture.of_throughput());
    let latency: fn(Mixture) -> (u32, String) = |mixture| (mixture.latency, mixture.of_latency());
    let overall = vec![
        overall("Throughput-first workloads only", false, throughput),
        overall("Latency-first workloads only", false, latency),
        overall("Throughput-first workloads with others", true, throughput),
        overall("Latency-first workloads with others", true, latency),
    ];
    Grid {
        schema: FormatName,
        title: title.to_owned(),
        overall: overall.into_iter().filter(|overall| !overall.variants.is_empty()).collect(),
        ..Grid::default()
    }
}

/// Runs the experiments one after another. If one is interrupted, the others are not run. A mixed experiment
/// gives two variants: one for each kind of workload.
fn experiments<S: Mixes>(
    arguments: &Policies,
    context: &Context<'_>,
    stage: &mut S,
    mixtures: &[Mixture],
    labels: &[String],
    grid: &mut Grid,
) -> Option<Stopped<BenchError>> {
    let experiment = Experiment {
        labels: labels.to_vec(),
        loads: vec![OfferedLoad::Max],
        rounds: arguments.rounds(),
        seed: arguments.seed,
    };
    let mut reported = ProgressReport::default();
    for (number, mixture) in mixtures.iter().enumerate() {
        stage.set_mixture(arguments.throughput_first(*mixture), arguments.latency_first(*mixture));
        let outcome = experiment.run(stage, |progress| {
            reported.update(context, &among(progress, number, mixtures.len()));
        });
        let (own, stopped) = match outcome {
            Ok(results) => (results, None),
            Err(stopped) => (stopped.results.clone(), Some(*stopped)),
        };
        let beside = Results { evidence: stage.take_beside(), ..own.clone() };
        let variant = |name, results| Variant { name, borne: None, results };
        if mixture.throughput > 0 {
            grid.variants.push(variant(mixture.of_throughput(), own));
            if mixture.is_mixed() {
                grid.variants.push(variant(mixture.of_latency(), beside));
            }
        } else {
            grid.variants.push(variant(mixture.of_latency(), own));
        }
        if stopped.is_some() {
            return stopped;
        }
    }
    None
}
