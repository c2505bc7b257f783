//! `bench policies`: compares every policy with no tuning and with manual tuning, following the NET-policy
//! document.

use linux::{Processes, Signals, observe};
use model::{OfferedLoad, Schema};
use runs::{Experiment, Grid, Overall, Results, Stopped, Variant};
use session::{Exit, Fault};

use super::exchange::{among, offline, possible, publish};
use super::policies_simulated::simulated;
use super::{Place, ProgressReport, early, writable};
use crate::Context;
use crate::bench::{BenchError, Layout, Mixture, Policies, PoliciesStage, Tuning, impossible};
use crate::machines::args::PREFIX;

/// Notes on every table from the lab.
const LAB_NOTES: [&str; 3] = [
    "none is the untuned baseline: device and servers as they come, and the server confined to its half of the CPUs as under all others.",
    "manual is what an operator usually sets: irqbalance off, interrupts 1:1. The lab's veth has no interrupt and no \
     irqbalance, so RPS replaces the interrupt's affinity: queue i is steered to the i-th server CPU, XPS likewise, and only thread i runs \
     there.",
    "mix gives each server the policy of its workloads; a veth has no rules that distinguish their packets, so this may be \
     refused, and then only the device has the policy.",
];

/// Notes on every table of a server of the operator's choice.
const FOREIGN_NOTES: [&str; 2] = [
    "none is the untuned baseline: device and server as they come, and the server confined to its half of the CPUs as under all others.",
    "The client sleeps until an answer arrives or a request is due, like an ordinary one, and is late by its wake-up latency, under \
     every policy alike (--punctual makes it poll instead, at the cost of its CPU).",
];

/// Measures, prints the tables, and writes the files.
pub(super) fn run(arguments: &Policies, context: &Context<'_>) -> Result<Exit, Fault> {
    if arguments.foreign.server.as_deref().is_some_and(|command| command.starts_with(PREFIX)) {
        return Err(Fault::new(
            Exit::Unsupported,
            "bench policies cannot have its server on another machine: its --server is the command of a server",
        ));
    }
    // Check that the files can be written before the experiment rather than after it.
    for path in [&arguments.report, &arguments.json].into_iter().flatten() {
        writable(path)?;
    }
    if arguments.simulated {
        let grid = simulated(arguments, context)?;
        return publish(context, &grid, arguments.json.as_deref(), arguments.report.as_deref(), false);
    }
    let online = observe(&context.session.netns()?, &Processes::None)?.topology.online;
    let halves = Layout::of(&online);
    let layout = Layout {
        server: arguments.server_cpus.clone().unwrap_or(halves.server),
        client: arguments.client_cpus.as_ref().map_or(halves.client, |cpus| cpus.iter().collect()),
    };
    offline(&online, &layout)?;
    if arguments.foreign.server().is_some() {
        return foreign(arguments, context, layout);
    }
    let cpus = u32::try_from(online.len()).unwrap_or(u32::MAX);
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
    grid.notes.push(arguments.scale(cpus));
    grid.notes.extend(LAB_NOTES.map(str::to_owned));
    if layout.is_shared() {
        let note = "Servers and clients share CPUs: they compete for them, and response times include this.";
        grid.notes.push(note.to_owned());
    }
    let mut signals = Signals::catch()?;
    let mut stage = PoliciesStage::new(context, &mut signals, layout, arguments)?;
    stage.set_workloads(arguments.throughput_first(fullest), arguments.latency_first(fullest));
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
            early(context, &results, &cell, failure, Place::Lab).map(|early| early.unwrap_or(exit))
        }
    }
}

/// The same with a server of the operator's choice: one variant per number of connections.
fn foreign(arguments: &Policies, context: &Context<'_>, layout: Layout) -> Result<Exit, Fault> {
    let connections = arguments.foreign.connections();
    let workloads: Vec<_> = connections.iter().filter_map(|flows| arguments.of_foreign(*flows)).collect();
    let Some(server) = arguments.foreign.server() else {
        return Err(Fault::new(Exit::Usage, "no server is named"));
    };
    for workload in &workloads {
        workload.check().map_err(|error| impossible(&error, "--path"))?;
    }
    let mut grid = Grid {
        schema: Schema,
        title: format!("Policies with {}", server.command),
        notes: FOREIGN_NOTES.map(str::to_owned).to_vec(),
        ..Grid::default()
    };
    let mut signals = Signals::catch()?;
    let mut stage = PoliciesStage::new(context, &mut signals, layout, arguments)?;
    stage.set_workloads(None, workloads.first().cloned());
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
        stage.set_workloads(None, Some(workload.clone()));
        let outcome = experiment.run(&mut stage, |progress| {
            reported.update(context, &among(progress, number, workloads.len()));
        });
        let (results, stopped) = match outcome {
            Ok(results) => (results, None),
            Err(stopped) => (stopped.results.clone(), Some(*stopped)),
        };
        let name = format!("{}, {flows} connection(s)", server.protocol);
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
            early(context, &results, &cell, failure, Place::Lab).map(|early| early.unwrap_or(exit))
        }
    }
}

/// The mixture with the most workloads of both kinds: trying it first shows unsupported configurations before
/// the first run.
fn fullest(mixtures: &[Mixture]) -> Option<Mixture> {
    mixtures.iter().copied().max_by_key(|mixture| (mixture.is_mixed(), mixture.at_once()))
}

/// A grid without variants, which defines the groups that are shown together.
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
        overall("Throughput-first workloads alone", false, throughput),
        overall("Latency-first workloads alone", false, latency),
        overall("Throughput-first workloads beside others", true, throughput),
        overall("Latency-first workloads beside others", true, latency),
    ];
    Grid {
        schema: Schema,
        title: title.to_owned(),
        overall: overall.into_iter().filter(|overall| !overall.variants.is_empty()).collect(),
        ..Grid::default()
    }
}

/// Makes one experiment after the other, until one stops. A mixed experiment gives two variants: one per kind
/// of workload.
fn experiments(
    arguments: &Policies,
    context: &Context<'_>,
    stage: &mut PoliciesStage<'_>,
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
        stage.set_workloads(arguments.throughput_first(*mixture), arguments.latency_first(*mixture));
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
