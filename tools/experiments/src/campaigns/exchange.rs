//! `bench tcp-rr`, `tcp-stream`, `udp-rr`, `udp-stream`, `threaded` and `storage`: compares configurations
//! with netpolicy's own server.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use linux::process::cpus_of_this_thread;
use linux::{Processes, Signals, observe};
use model::{CpuSet, FormatName, Nanoseconds, OfferedLoad, Workload};
use runs::{Experiment, Gates, Grid, Progress, Results, Skipped, Stage, Stopped, Variant};
use session::{Exit, Fault, HostState};

use super::running::{ProgressReport, Testbed, early, of_signal, writable};
use crate::Context;
use crate::bench::exchange_args::{Common, Storage, Threaded};
use crate::bench::{BenchError, Case, Compares, ExchangeStage, Layout, file_of_our_own, impossible};
use crate::machines::control::Control;
use crate::machines::message as machines;
use crate::machines::stage::{Labels, MachinesStage, Needs};
use crate::reports::GridReport;

/// Default directory of the file that `bench storage` reads and writes.
const STORAGE_DIR: &str = "/var/tmp";

/// The maximum size of a gates file, in bytes.
const GATES_BYTES_MAX: u64 = 64 << 10;

/// Measures, prints the tables, and writes the files.
pub(super) fn run<B: Compares>(bench: &B, context: &Context<'_>) -> Result<Exit, Fault> {
    match bench.common().machines.server {
        Some(_) => across_machines(bench, context, None),
        None => conduct(bench, context, None),
    }
}

/// Measures storage, with a file to read and write.
pub(super) fn run_storage(bench: &Storage, context: &Context<'_>) -> Result<Exit, Fault> {
    let writes = bench.write_ratio > 0.0;
    match &bench.file {
        Some(file) if writes && !bench.overwrite => {
            let why = format!("{} would be overwritten", file.display());
            Err(Fault::new(Exit::Refused, why)
                .hint("add --overwrite if its contents may be lost, or --write-ratio 0 to only read"))
        }
        file if bench.common.machines.server.is_some() => {
            let storage = machines::Storage {
                file: file.clone(),
                directory: bench.dir.clone(),
                bytes: bench.span.0,
                writable: writes,
            };
            across_machines(bench, context, Some(storage))
        }
        Some(file) => conduct(bench, context, Some((file.clone(), writes))),
        None => {
            let file = file_of_our_own(&bench.dir, bench.span.0)?;
            conduct(bench, context, Some((path_of(&file), writes)))
        }
    }
}

/// Compares kernel threads with softirqs. The full matrix includes storage.
pub(super) fn run_threaded(bench: &Threaded, context: &Context<'_>) -> Result<Exit, Fault> {
    if bench.common.machines.server.is_some() {
        let storage = bench.has_storage().then(|| machines::Storage {
            file: None,
            directory: STORAGE_DIR.into(),
            bytes: Threaded::STORAGE_BYTES,
            writable: true,
        });
        return across_machines(bench, context, storage);
    }
    if !bench.has_storage() {
        return conduct(bench, context, None);
    }
    let file = file_of_our_own(Path::new(STORAGE_DIR), Threaded::STORAGE_BYTES)?;
    conduct(bench, context, Some((path_of(&file), true)))
}

/// Returns a path by which this process's children can open an unnamed file.
fn path_of(file: &File) -> PathBuf {
    linux::process::path_of_our(file)
}

/// A stage whose workload can be changed between experiments.
trait Exchanges: Stage<Error = BenchError> {
    /// Sets the workload of all further runs.
    fn set_workload(&mut self, workload: Workload);
}

impl Exchanges for ExchangeStage<'_> {
    fn set_workload(&mut self, workload: Workload) {
        Self::set_workload(self, workload);
    }
}

impl Exchanges for MachinesStage<'_> {
    fn set_workload(&mut self, workload: Workload) {
        Self::set_workload(self, workload);
    }
}

fn conduct<B: Compares>(
    bench: &B,
    context: &Context<'_>,
    storage: Option<(PathBuf, bool)>,
) -> Result<Exit, Fault> {
    let common = bench.common();
    let gates = files_of(common)?;
    let online = observe(&context.session.netns()?, &Processes::None)?.topology.online;
    let halves = Layout::of(&online);
    let layout = Layout {
        server: common.server_cpus.clone().unwrap_or(halves.server),
        client: common.client_cpus.as_ref().map_or(halves.client, |cpus| cpus.iter().collect()),
    };
    offline(&online, &layout)?;
    let cases = cases_of(bench, count(layout.client.len()), count(online.len()))?;
    let grid = grid_of::<B>(notes(common.background, common.background_duty, &layout));
    let mut signals = Signals::catch()?;
    let stage =
        ExchangeStage::new(context, &mut signals, layout, common, storage, cases[0].workload.clone())?;
    measure(bench, context, stage, &cases, grid, gates.as_ref(), Testbed::Lab)
}

/// Measures with the server on another machine.
fn across_machines<B: Compares>(
    bench: &B,
    context: &Context<'_>,
    storage: Option<machines::Storage>,
) -> Result<Exit, Fault> {
    let common = bench.common();
    let gates = files_of(common)?;
    let options = &common.machines;
    let prepare = machines::Prepare {
        address: options.server_address,
        port: options.server_port,
        cpus: common.server_cpus.clone(),
        counted: !common.uncounted,
        kthread_cpus: common.kthread_cpus.clone(),
        background: (common.background > 0).then(|| machines::Hogs {
            threads: common.background,
            duty: common.background_duty,
            cpus: common.background_cpus.clone(),
        }),
        storage,
    };
    let needs = Needs {
        threads: common.server_threads,
        labels: Labels::Configurations,
        both_sides: common.both_sides,
        partners: common.partners,
        running: None,
        netns: context.session.netns()?,
        cpus: common.client_cpus.clone().map_or_else(cpus_of_this_thread, Ok)?,
        prepare,
        until: None,
    };
    let client_cpus = count(needs.cpus.len());
    let mut signals = Signals::catch()?;
    let mut stage =
        MachinesStage::new(context, Control::connect(options, &needs.netns)?, &mut signals, needs)?;
    let cases = cases_of(bench, client_cpus, stage.server_cpus())?;
    let mut grid =
        grid_of::<B>(background_note(common.background, common.background_duty).into_iter().collect());
    grid.machines = stage.machines();
    stage.set_workload(cases[0].workload.clone());
    measure(bench, context, stage, &cases, grid, gates.as_ref(), Testbed::Machines)
}

/// Checks that the files can be written before the experiment, not only after it, and reads the gates.
fn files_of(common: &Common) -> Result<Option<Gates>, Fault> {
    for path in [&common.report, &common.json].into_iter().flatten() {
        writable(path)?;
    }
    common.gates.as_deref().map(read_gates).transpose()
}

fn count(cpus: usize) -> u32 {
    u32::try_from(cpus).unwrap_or(u32::MAX)
}

/// Returns the experiments of a bench, which are at least one.
fn cases_of<B: Compares>(bench: &B, client_cpus: u32, cpus: u32) -> Result<Vec<Case>, Fault> {
    let cases = bench.cases(client_cpus, cpus);
    for case in &cases {
        case.workload.check().map_err(|error| impossible(&error, B::SIZE))?;
    }
    if bench.common().partners && cases.iter().any(|case| case.workload.is_udp()) {
        let why = "over UDP the kernel selects a flow's server thread by a hash: --partners does not apply";
        return Err(Fault::new(Exit::Usage, why));
    }
    if cases.is_empty() {
        return Err(Fault::new(Exit::Usage, "no configuration is left to measure"));
    }
    Ok(cases)
}

fn grid_of<B: Compares>(notes: Vec<String>) -> Grid {
    Grid { schema: FormatName, title: B::TITLE.to_owned(), notes, ..Grid::default() }
}

/// Performs all experiments, prints the tables and writes the files.
fn measure<B: Compares, S: Exchanges>(
    bench: &B,
    context: &Context<'_>,
    mut stage: S,
    cases: &[Case],
    mut grid: Grid,
    gates: Option<&Gates>,
    place: Testbed,
) -> Result<Exit, Fault> {
    let common = bench.common();
    let configurations = bench
        .configurations()
        .into_iter()
        .map(|configuration| (configuration.to_string(), configuration.impossible()));
    let labels = match possible(&mut stage, configurations, &mut grid.skipped)? {
        Ok(labels) => labels,
        Err(exit) => return Ok(exit),
    };
    let stopped = experiments(bench, context, &mut stage, cases, &labels, &mut grid);
    drop(stage);
    context.console.progress("");
    if let Some(gates) = gates {
        grid.gates = grid.judge(gates);
    }
    let exit = publish(context, &grid, common.json.as_deref(), common.report.as_deref(), gates.is_some())?;
    match stopped {
        None => Ok(exit),
        Some(Stopped { cell, failure, results }) => {
            early(context, &results, &cell, failure, place).map(|early| early.unwrap_or(exit))
        }
    }
}

pub(super) fn offline(online: &CpuSet, layout: &Layout) -> Result<(), Fault> {
    let cpus = layout.server.iter().chain(layout.client.iter().copied());
    match cpus.into_iter().find(|cpu| !online.contains(*cpu)) {
        Some(cpu) => Err(Fault::new(Exit::Usage, format!("CPU {cpu} is not online; {online} are"))),
        None if layout.server.is_empty() || layout.client.is_empty() => {
            Err(Fault::new(Exit::Usage, "server and client need one CPU each"))
        }
        None => Ok(()),
    }
}

fn notes(background: u32, duty: u32, layout: &Layout) -> Vec<String> {
    let mut notes = Vec::new();
    if layout.is_shared() {
        notes.push(
            "Server and client share CPUs: they compete for them, and response times include the waits."
                .to_owned(),
        );
    }
    notes.extend(background_note(background, duty));
    notes
}

fn background_note(background: u32, duty: u32) -> Option<String> {
    (background > 0)
        .then(|| format!("In addition to the server, {background} thread(s) use {duty} % of a CPU each."))
}

/// Returns the candidates that this kernel supports. A candidate that cannot be measured, as the caller says
/// or the kernel reports, is skipped with the reason.
///
/// # Errors
/// If a candidate that the kernel supports fails, or if no candidate remains. The inner error is an interrupt
/// by the operator.
pub(super) fn possible<S: Stage<Error = BenchError>>(
    stage: &mut S,
    candidates: impl IntoIterator<Item = (String, Option<&'static str>)>,
    skipped: &mut Vec<Skipped>,
) -> Result<Result<Vec<String>, Exit>, Fault> {
    let labels = match tried(stage, candidates, skipped) {
        Ok(labels) => labels,
        Err(BenchError::Interrupted(signal)) => return Ok(Err(Exit::Command(of_signal(signal)))),
        Err(BenchError::Failed(fault)) => return Err(fault),
        Err(error @ BenchError::TimeUp) => return Err(Fault::failed(error.to_string())),
    };
    if labels.is_empty() {
        let words: Vec<String> = skipped.iter().map(|s| format!("{}: {}", s.label, s.reason)).collect();
        return Err(Fault::new(Exit::Unsupported, words.join("; ")));
    }
    Ok(Ok(labels))
}

fn tried<S: Stage<Error = BenchError>>(
    stage: &mut S,
    candidates: impl IntoIterator<Item = (String, Option<&'static str>)>,
    skipped: &mut Vec<Skipped>,
) -> Result<Vec<String>, BenchError> {
    let mut labels = Vec::new();
    for (label, impossible) in candidates {
        if labels.contains(&label) {
            continue;
        }
        let refused = match impossible {
            Some(reason) => Some(reason.to_owned()),
            None => match stage.apply(&label) {
                Ok(()) => {
                    stage.restore()?;
                    None
                }
                Err(BenchError::Failed(fault)) if is_refusal(&fault) => {
                    Some(BenchError::Failed(fault).to_string())
                }
                Err(error) => return Err(error),
            },
        };
        match refused {
            Some(reason) => skipped.push(Skipped { label, reason }),
            None => labels.push(label),
        }
    }
    Ok(labels)
}

/// Returns whether the fault means that the kernel lacks a configuration, or that one of netpolicy's rules
/// forbids it, and that the host is unchanged. Any other fault is a failure and ends the bench.
fn is_refusal(fault: &Fault) -> bool {
    let as_before = matches!(fault.host, HostState::Unchanged | HostState::Restored);
    as_before && matches!(fault.exit, Exit::Unsupported | Exit::Refused)
}

/// Runs the experiments one after another, until one stops.
fn experiments<B: Compares, S: Exchanges>(
    bench: &B,
    context: &Context<'_>,
    stage: &mut S,
    cases: &[Case],
    labels: &[String],
    grid: &mut Grid,
) -> Option<Stopped<BenchError>> {
    let mut reported = ProgressReport::default();
    for (number, case) in cases.iter().enumerate() {
        stage.set_workload(case.workload.clone());
        let mut experiment = Experiment {
            labels: labels.to_vec(),
            loads: Vec::new(),
            rounds: bench.common().repeats,
            seed: bench.common().seed,
        };
        let wanted = bench.loads();
        let calibration = wanted.iter().any(|load| load.is_share()).then(|| calibrated(stage, &experiment));
        let borne = match calibration {
            None => None,
            Some(Err(stopped)) => return Some(*stopped),
            Some(Ok(results)) => match results.evidence.first() {
                Some(run) if run.void.is_none() => Some(run.throughput),
                // Without a rate, loads cannot be shares of it. The void run, with its reason, then
                // represents the experiment.
                _ => {
                    grid.variants.push(Variant { name: case.name.clone(), borne: None, results });
                    continue;
                }
            },
        };
        for load in wanted.iter().map(|load| load.on(borne.unwrap_or(0.0))) {
            if !experiment.loads.contains(&load) {
                experiment.loads.push(load);
            }
        }
        let outcome = experiment.run(stage, |progress| {
            reported.update(context, &among(progress, number, cases.len()));
        });
        let variant = |results| Variant { name: case.name.clone(), borne, results };
        match outcome {
            Ok(results) => grid.variants.push(variant(results)),
            Err(stopped) => {
                grid.variants.push(variant(stopped.results.clone()));
                return Some(*stopped);
            }
        }
    }
    None
}

/// Returns the progress over all experiments, during experiment `number`, assuming that all have the same
/// number of runs.
pub(super) fn among(mut progress: Progress<'_>, number: usize, experiments: usize) -> Progress<'_> {
    let each = progress.left.map(|left| left.0 / (progress.total - progress.done).max(1) as u64);
    progress.done += progress.total * number;
    progress.total *= experiments;
    progress.left = each.map(|each| Nanoseconds(each * (progress.total - progress.done) as u64));
    progress
}

/// Measures the closed-loop capacity of the server under the first configuration, in one run.
fn calibrated<S: Exchanges>(
    stage: &mut S,
    experiment: &Experiment,
) -> Result<Results, Box<Stopped<BenchError>>> {
    let labels = experiment.labels.iter().take(1).cloned().collect();
    let once = Experiment { labels, loads: vec![OfferedLoad::Max], rounds: 1, ..experiment.clone() };
    once.run(stage, |_| {})
}

/// Prints the tables and writes the files.
pub(super) fn publish(
    context: &Context<'_>,
    grid: &Grid,
    json: Option<&Path>,
    report: Option<&Path>,
    gated: bool,
) -> Result<Exit, Fault> {
    context.console.report(&GridReport { grid })?;
    if let Some(path) = json {
        let text = serde_json::to_string(grid).map_err(Fault::failed)?;
        std::fs::write(path, text).map_err(|error| Fault::file(path, error))?;
        context.console.say(&format!("Evidence: {}", path.display()));
    }
    if let Some(path) = report {
        write_report(path, grid, context)?;
    }
    Ok(verdict(context, grid, gated))
}

pub(super) fn write_report(path: &Path, grid: &Grid, context: &Context<'_>) -> Result<(), Fault> {
    std::fs::write(path, runs::html::html_of_grid(grid)).map_err(|error| Fault::file(path, error))?;
    context.console.say(&format!("Report: {}", path.display()));
    Ok(())
}

/// Returns the exit code of a bench: success if any run counts and no gate is missed.
pub(super) fn verdict(context: &Context<'_>, grid: &Grid, gated: bool) -> Exit {
    if !grid.counts() {
        context.console.say("No run counts.");
        return Exit::Failed;
    }
    let missed = grid.gates.iter().filter(|judged| judged.met != Some(true)).count();
    match (gated, grid.gates.len(), missed) {
        (false, ..) => Exit::Done,
        (true, 0, _) => {
            context.console.say("No gate matches a measured configuration.");
            Exit::Failed
        }
        (true, all, 0) => {
            context.console.say(&format!("All {all} gates are met."));
            Exit::Done
        }
        (true, all, missed) => {
            context.console.say(&format!("{missed} of {all} gates are not met."));
            Exit::Failed
        }
    }
}

/// Reads the file of gates.
pub(super) fn read_gates(path: &Path) -> Result<Gates, Fault> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(GATES_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| Fault::file(path, error))?;
    text.parse().map_err(|error| Fault::new(Exit::Usage, format!("{}: {error}", path.display())))
}
