//! `bench`: measures delivery modes.

mod compared;
mod exchange;
mod judged;
mod live;
mod policies;
mod policies_simulated;
mod run_log;
mod running;
mod selfcheck;
mod serve;
mod watched;

use std::path::Path;
use std::time::Instant;

use linux::Signals;
use linux::process::cpus_of_this_thread;
use model::{DeliveryMode, Evidence, MachineDescription, MemcachedWorkload, OfferedLoad, Workload};
use runs::{Cell, Experiment, Grid, Results, Skipped, Stage, Stopped};
use session::{Exit, Fault};

use self::run_log::{Earlier, RunLog};
use self::running::{ProgressReport, Testbed, early, layout, of_signal, writable};
use crate::Context;
use crate::bench::args::{Application, Bench, FromEvidence, Memcached as MemcachedBench};
use crate::bench::{BenchError, LabStage, PlainStage, impossible, label};
use crate::evidence::{self, Written};
use crate::machines::control::Control;
use crate::machines::message::Prepare;
use crate::machines::stage::{Labels, MachinesStage, Needs};
use crate::reports::{BenchReport, GridReport};
use crate::simulations::orderings;

/// Measures, prints the table, and writes the files.
pub fn run(arguments: &Bench, context: &Context<'_>) -> Result<Exit, Fault> {
    match &arguments.application {
        Application::Memcached(arguments) => memcached(arguments, context),
        Application::Live(arguments) => live::run(arguments, context),
        Application::Judge(arguments) => judged::run(arguments, context),
        Application::TcpRr(arguments) => exchange::run(&**arguments, context),
        Application::TcpStream(arguments) => exchange::run(&**arguments, context),
        Application::UdpRr(arguments) => exchange::run(&**arguments, context),
        Application::UdpStream(arguments) => exchange::run(&**arguments, context),
        Application::Threaded(arguments) => exchange::run_threaded(arguments, context),
        Application::Storage(arguments) => exchange::run_storage(arguments, context),
        Application::Policies(arguments) if arguments.simulated => {
            policies_simulated::run(arguments, context)
        }
        Application::Policies(arguments) => policies::run(arguments, context),
        Application::Selfcheck(arguments) => selfcheck::run(arguments, context),
        Application::Serve(arguments) => serve::run(arguments, context),
        Application::Report(arguments) => from_evidence(arguments, context),
    }
}

fn memcached(arguments: &MemcachedBench, context: &Context<'_>) -> Result<Exit, Fault> {
    // Check before the experiment, not only after it, that the files can be written.
    for path in [&arguments.report, &arguments.json].into_iter().flatten() {
        writable(path)?;
    }
    match arguments.address {
        Some(address) => {
            let layout = layout(context)?;
            let workload = arguments.workload(PlainStage::threads(&layout));
            checked(&workload)?;
            let mut stage =
                PlainStage { address, netns: context.session.netns()?, workload: workload.clone() };
            let labels = vec!["as it is".to_owned()];
            conduct(arguments, context, &mut stage, labels, workload, Vec::new())
        }
        None if arguments.machines.server.is_some() => across_machines(arguments, context),
        None => in_lab(arguments, context),
    }
}

/// Measures memcached on another machine.
fn across_machines(arguments: &MemcachedBench, context: &Context<'_>) -> Result<Exit, Fault> {
    let netns = context.session.netns()?;
    let cpus = cpus_of_this_thread()?;
    let workload = arguments.workload(u32::try_from(cpus.len()).unwrap_or(1));
    checked(&workload)?;
    let mut modes = arguments.modes();
    if arguments.service.is_some() {
        modes.retain(|mode| {
            let needs_start = mode.params().epoll_wait_cap.is_some();
            if needs_start {
                context.console.say(&format!("Skipped: {mode} needs a server that the bench starts."));
            }
            !needs_start
        });
    }
    let labels = modes.into_iter().map(label).collect();
    let until = arguments.time_for_all().map(|time| Instant::now() + time);
    let options = &arguments.machines;
    let prepare = Prepare {
        address: options.server_address,
        port: options.server_port,
        cpus: None,
        counted: !arguments.uncounted,
        kthread_cpus: None,
        background: None,
        storage: None,
    };
    let needs = Needs {
        threads: arguments.server_threads,
        labels: Labels::Configurations,
        both_sides: arguments.both_sides,
        partners: false,
        running: arguments.service.clone(),
        netns,
        cpus,
        prepare,
        until,
    };
    let mut signals = Signals::catch()?;
    let mut stage =
        MachinesStage::new(context, Control::connect(options, &needs.netns)?, &mut signals, needs)?;
    stage.set_workload(Workload::Memcached(workload.clone()));
    let machines = stage.machines();
    conduct(arguments, context, &mut stage, labels, workload, machines)
}

fn in_lab(arguments: &MemcachedBench, context: &Context<'_>) -> Result<Exit, Fault> {
    let layout = layout(context)?;
    if layout.is_shared() {
        context
            .console
            .say("There is only one CPU: server and load generator compete for it, and response times include the waits.");
    }
    let workload = arguments.workload(PlainStage::threads(&layout));
    checked(&workload)?;
    let threads = arguments.server_threads.unwrap_or_else(|| u32::try_from(layout.server.len()).unwrap_or(1));
    let queues = arguments.queues.unwrap_or(threads);
    let labels = arguments.modes().into_iter().map(label).collect();
    let mut signals = Signals::catch()?;
    let sizes = (threads, queues);
    let mut stage = LabStage::new(context, &mut signals, layout, workload.clone(), sizes, arguments)?;
    conduct(arguments, context, &mut stage, labels, workload, Vec::new())
}

fn checked(workload: &model::MemcachedWorkload) -> Result<(), Fault> {
    workload.check().map_err(|error| impossible(&error, "--key-size"))
}

/// Performs every run, or those that an earlier command did not make, and reports the results.
fn conduct<S: Stage<Error = BenchError>>(
    arguments: &MemcachedBench,
    context: &Context<'_>,
    stage: &mut S,
    labels: Vec<String>,
    workload: MemcachedWorkload,
    machines: Vec<MachineDescription>,
) -> Result<Exit, Fault> {
    let place = if machines.is_empty() { Testbed::Lab } else { Testbed::Machines };
    let mut skipped = Vec::new();
    let candidates = labels.into_iter().map(|label| (label, None));
    let labels = match exchange::possible(stage, candidates, &mut skipped)? {
        Ok(labels) => labels,
        Err(exit) => return Ok(exit),
    };
    for Skipped { label, reason } in skipped {
        context.console.say(&format!("Skipped: {label}: {reason}"));
    }
    let earlier = Earlier::read(arguments.json.as_deref(), arguments.resume)?;
    let plan = match earlier {
        Some(earlier) => {
            earlier.check(arguments, &labels, &Workload::Memcached(workload), &machines)?;
            earlier.results
        }
        None => match plan(arguments, context, stage, labels) {
            Ok(plan) => Results { machines, options: arguments.options_of_stage(), ..plan },
            Err(BenchError::Interrupted(signal)) => return Ok(Exit::Command(of_signal(signal))),
            Err(BenchError::Failed(fault)) => return Err(fault),
            Err(error @ BenchError::TimeUp) => return Err(Fault::failed(error.to_string())),
        },
    };
    let mut log = arguments.json.as_deref().map(|json| RunLog::start(json, &plan)).transpose()?;
    let mut reported = ProgressReport::default();
    let keep = |run: &Evidence| match &mut log {
        Some(log) => Ok(log.add(run)?),
        None => Ok(()),
    };
    let made =
        plan.experiment.resume(stage, plan.evidence, keep, |progress| reported.update(context, &progress));
    let (made, stopped) = match made {
        Ok(results) => (results, None),
        Err(stopped) => {
            let Stopped { cell, failure, results } = *stopped;
            (results, Some((cell, failure)))
        }
    };
    let Results { machines, capacity, options, .. } = plan;
    let results = Results { machines, capacity, options, ..made };
    context.console.progress("");
    let exit = publish(arguments, context, &results)?;
    // The evidence file has all runs now, so resuming does not need the log.
    log.map(RunLog::remove).transpose()?;
    match stopped {
        None => Ok(exit),
        Some((cell, failure)) => {
            let ended = early(context, &results, &cell, failure, place);
            if arguments.json.is_some() {
                context.console.say("The same command with --resume makes the remaining runs.");
            }
            ended.map(|early| early.unwrap_or(exit))
        }
    }
}

/// Determines the loads.
fn plan<S: Stage<Error = BenchError>>(
    arguments: &MemcachedBench,
    context: &Context<'_>,
    stage: &mut S,
    labels: Vec<String>,
) -> Result<Results, BenchError> {
    let wanted = arguments.loads();
    let are_shares = wanted.iter().any(|load| load.is_share());
    let capacity = are_shares.then(|| bears(stage, &labels, arguments)).transpose()?;
    if let Some(capacity) = capacity {
        context
            .console
            .say(&format!("In closed loop, this server answers {capacity:.0} requests per second."));
    }
    let loads = arguments.loads_on(capacity.unwrap_or(0.0));
    let experiment = Experiment { labels, loads, rounds: arguments.rounds(), seed: arguments.seed };
    Ok(Results { capacity, ..Results::new(experiment, Vec::new()) })
}

/// Measures the capacity of the server under the kernel's default delivery mode, in requests per second.
fn bears<S: Stage<Error = BenchError>>(
    stage: &mut S,
    labels: &[String],
    arguments: &MemcachedBench,
) -> Result<f64, BenchError> {
    let base = label(DeliveryMode::Interrupt);
    let label = if arguments.address.is_some() { labels[0].as_str() } else { base.as_str() };
    stage.apply(label)?;
    let measured = stage.measure(Cell { label, load: OfferedLoad::Max, round: 0, seed: arguments.seed });
    let restored = stage.restore();
    let evidence = measured?;
    restored?;
    match evidence.void {
        None => Ok(evidence.throughput),
        Some(reason) => Err(BenchError::Failed(Fault::failed(format!(
            "the closed-loop run that determines 100 % load is void: {reason}"
        )))),
    }
}

/// Prints the table and writes the files.
fn publish(arguments: &MemcachedBench, context: &Context<'_>, results: &Results) -> Result<Exit, Fault> {
    let counted = results.evidence.iter().any(|run| run.void.is_none());
    context.console.report(&BenchReport { results })?;
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string(results).map_err(Fault::failed)?;
        std::fs::write(path, text).map_err(|error| Fault::file(path, error))?;
        context.console.say(&format!("Evidence: {}", path.display()));
    }
    if let Some(path) = &arguments.report {
        write_report(path, results, context)?;
    }
    if counted {
        return Ok(Exit::Done);
    }
    context.console.say("No run counts.");
    Ok(Exit::Failed)
}

fn write_report(path: &Path, results: &Results, context: &Context<'_>) -> Result<(), Fault> {
    let page = runs::html::html_of_results("memcached under delivery modes", results);
    std::fs::write(path, page).map_err(|error| Fault::file(path, error))?;
    context.console.say(&format!("Report: {}", path.display()));
    Ok(())
}

/// Compares the order of configurations with that of a scenario's measured rows.
fn compare_orderings(
    arguments: &FromEvidence,
    scenario: &Path,
    context: &Context<'_>,
) -> Result<Exit, Fault> {
    let [path] = arguments.evidence.as_slice() else {
        return Err(Fault::new(Exit::Usage, "--orderings needs the evidence of one experiment"));
    };
    let Written::Results(results) = evidence::read(path)? else {
        let why = format!("{}: --orderings needs the evidence of `bench memcached`", path.display());
        return Err(Fault::new(Exit::Usage, why));
    };
    context.console.report(&orderings(&results, scenario)?)?;
    Ok(Exit::Done)
}

/// Prints the tables of earlier experiments and writes their report.
fn from_evidence(arguments: &FromEvidence, context: &Context<'_>) -> Result<Exit, Fault> {
    if let Some(scenario) = &arguments.orderings {
        return compare_orderings(arguments, scenario, context);
    }
    let gates = arguments.gates.as_deref().map(exchange::read_gates).transpose()?;
    let mut grids = Vec::new();
    for path in &arguments.evidence {
        match evidence::read(path)? {
            Written::Grid(grid) => grids.push(*grid),
            Written::Results(results) if arguments.evidence.len() == 1 && gates.is_none() => {
                context.console.report(&BenchReport { results: &results })?;
                if let Some(path) = &arguments.report {
                    write_report(path, &results, context)?;
                }
                return Ok(Exit::Done);
            }
            Written::Watch(recording) if arguments.evidence.len() == 1 && gates.is_none() => {
                return watched::report(&recording, arguments.report.as_deref(), context);
            }
            Written::Compare(recording) if arguments.evidence.len() == 1 && gates.is_none() => {
                return compared::report(&recording, arguments.report.as_deref(), context);
            }
            Written::Compare(_) | Written::Watch(_) => {
                let why = format!(
                    "{}: a record of `watch` or `compare` must be the only file, and has no gates",
                    path.display()
                );
                return Err(Fault::new(Exit::Usage, why));
            }
            Written::Results(_) => {
                let why = format!(
                    "{}: evidence of `bench memcached` must be the only file, and has no gates",
                    path.display()
                );
                return Err(Fault::new(Exit::Usage, why));
            }
        }
    }
    let mut grid = Grid::joined(grids);
    if let Some(gates) = &gates {
        grid.gates = grid.judge(gates);
    }
    context.console.report(&GridReport { grid: &grid })?;
    if let Some(path) = &arguments.report {
        exchange::write_report(path, &grid, context)?;
    }
    Ok(exchange::verdict(context, &grid, gates.is_some()))
}
