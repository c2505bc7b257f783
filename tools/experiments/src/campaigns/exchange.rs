//! `bench tcp-rr`, `tcp-stream`, `threaded` and `storage`: configurations against each other, with our own server.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use linux::{Processes, Signals, observe};
use model::{CpuSet, Nanoseconds, OfferedLoad, Schema};
use runs::{Experiment, Gates, Grid, Progress, Results, Skipped, Stage, Stopped, Variant};
use session::{Exit, Fault, HostState};

use super::{ProgressReport, early, of_signal, writable};
use crate::Context;
use crate::bench::exchange_args::{Storage, Threaded};
use crate::bench::{BenchError, Case, Compares, ExchangeStage, Layout, impossible};
use crate::reports::GridReport;

/// The size of one write into a file of our own.
const FILL_BYTES: usize = 1 << 20;

/// The largest file of our own.
const FILE_BYTES_MAX: u64 = 16 << 30;

/// The default directory of the file of our own.
const STORAGE_DIR: &str = "/var/tmp";

/// The largest file of gates.
const GATES_BYTES_MAX: u64 = 64 << 10;

/// Measures, prints the tables, and writes the files.
pub(super) fn run<B: Compares>(bench: &B, context: &Context<'_>) -> Result<Exit, Fault> {
    conduct(bench, context, None)
}

/// The same, with something to read and write.
pub(super) fn run_storage(bench: &Storage, context: &Context<'_>) -> Result<Exit, Fault> {
    let writes = bench.write_ratio > 0.0;
    match &bench.file {
        Some(file) if writes && !bench.overwrite => {
            let why = format!("{} would be overwritten", file.display());
            Err(Fault::new(Exit::Refused, why)
                .hint("say --overwrite if what is in it may be lost, or --write-ratio 0 to read only"))
        }
        Some(file) => conduct(bench, context, Some((file.clone(), writes))),
        None => {
            let file = file_of_our_own(&bench.dir, bench.span.0)?;
            conduct(bench, context, Some((path_of(&file), writes)))
        }
    }
}

/// Kernel threads against softirqs; the whole matrix has storage in it.
pub(super) fn run_threaded(bench: &Threaded, context: &Context<'_>) -> Result<Exit, Fault> {
    if !bench.has_storage() {
        return conduct(bench, context, None);
    }
    let file = file_of_our_own(Path::new(STORAGE_DIR), Threaded::STORAGE_BYTES)?;
    conduct(bench, context, Some((path_of(&file), true)))
}

/// A path to a file without a name, for this process's children.
fn path_of(file: &File) -> PathBuf {
    linux::process::path_of_our(file)
}

/// A file without a name, full of bytes that were written: a read of a hole would be none.
fn file_of_our_own(dir: &Path, bytes: u64) -> Result<File, Fault> {
    if bytes > FILE_BYTES_MAX {
        let why = format!("a file of {bytes} bytes; at most {FILE_BYTES_MAX}");
        return Err(Fault::new(Exit::Usage, why));
    }
    let path = dir.join(format!("netpolicy-bench-{}", std::process::id()));
    let failed = |error| Fault::file(&path, error);
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
    std::fs::remove_file(&path).map_err(failed)?;
    let block = vec![0x5a_u8; FILL_BYTES];
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(FILL_BYTES);
        file.write_all(&block[..length]).map_err(failed)?;
        left -= length as u64;
    }
    file.sync_all().map_err(failed)?;
    Ok(file)
}

fn conduct<B: Compares>(
    bench: &B,
    context: &Context<'_>,
    storage: Option<(PathBuf, bool)>,
) -> Result<Exit, Fault> {
    let common = bench.common();
    // A file that cannot be written is better known before the experiment than after it.
    for path in [&common.report, &common.json].into_iter().flatten() {
        writable(path)?;
    }
    let gates = common.gates.as_deref().map(read_gates).transpose()?;
    let online = observe(&context.session.netns()?, &Processes::None)?.topology.online;
    let halves = Layout::of(&online);
    let layout = Layout {
        server: common.server_cpus.clone().unwrap_or(halves.server),
        client: common.client_cpus.as_ref().map_or(halves.client, |cpus| cpus.iter().collect()),
    };
    offline(&online, &layout)?;
    let count = |cpus: usize| u32::try_from(cpus).unwrap_or(u32::MAX);
    let cases = bench.cases(count(layout.client.len()), count(online.len()));
    for case in &cases {
        case.workload.check().map_err(|error| impossible(&error, B::SIZE))?;
    }
    let Some(first) = cases.first() else {
        return Err(Fault::new(Exit::Usage, "there is nothing to measure"));
    };
    let mut grid = Grid {
        schema: Schema,
        title: B::TITLE.to_owned(),
        notes: notes(common.background, common.background_duty, &layout),
        skipped: Vec::new(),
        variants: Vec::new(),
        gates: Vec::new(),
        overall: Vec::new(),
    };
    let mut signals = Signals::catch()?;
    let mut stage =
        ExchangeStage::new(context, &mut signals, layout, common, storage, first.workload.clone())?;
    let configurations = bench
        .configurations()
        .into_iter()
        .map(|configuration| (configuration.to_string(), configuration.impossible()));
    let labels = match possible(&mut stage, configurations, &mut grid.skipped)? {
        Ok(labels) => labels,
        Err(exit) => return Ok(exit),
    };
    let stopped = experiments(bench, context, &mut stage, &cases, &labels, &mut grid);
    drop(stage);
    context.console.progress("");
    if let Some(gates) = &gates {
        grid.gates = grid.judge(gates);
    }
    let exit = publish(context, &grid, common.json.as_deref(), common.report.as_deref(), gates.is_some())?;
    match stopped {
        None => Ok(exit),
        Some(Stopped { cell, failure, results }) => {
            early(context, &results, &cell, failure).map(|early| early.unwrap_or(exit))
        }
    }
}

pub(super) fn offline(online: &CpuSet, layout: &Layout) -> Result<(), Fault> {
    let cpus = layout.server.iter().chain(layout.client.iter().copied());
    match cpus.into_iter().find(|cpu| !online.contains(*cpu)) {
        Some(cpu) => Err(Fault::new(Exit::Usage, format!("CPU {cpu} is not online; {online} are"))),
        None if layout.server.is_empty() || layout.client.is_empty() => {
            Err(Fault::new(Exit::Usage, "server and client need a CPU each"))
        }
        None => Ok(()),
    }
}

fn notes(background: u32, duty: u32, layout: &Layout) -> Vec<String> {
    let mut notes = Vec::new();
    if layout.is_shared() {
        notes.push(
            "Server and client share CPUs: they take them from each other, and response times are those of both."
                .to_owned(),
        );
    }
    if background > 0 {
        notes.push(format!("Beside the server, {background} thread(s) that want {duty} % of a CPU each."));
    }
    notes
}

/// The candidates that this kernel accepts. Each candidate has the reason why it cannot be measured, if there is one; what the
/// kernel does not accept is skipped with its reason.
///
/// # Errors
/// If one fails that this kernel takes, or there is none. The inner one is how the bench ends that the operator had enough
/// of.
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

/// Whether this kernel does not have a configuration, or a rule of ours is against it, and the host is as it was. Anything
/// else is a failure, and ends the bench.
fn is_refusal(fault: &Fault) -> bool {
    let as_before = matches!(fault.host, HostState::Unchanged | HostState::Restored);
    as_before && matches!(fault.exit, Exit::Unsupported | Exit::Refused)
}

/// One experiment after the other, until one stops.
fn experiments<B: Compares>(
    bench: &B,
    context: &Context<'_>,
    stage: &mut ExchangeStage<'_>,
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
                // There is nothing to take shares of: the run that says why stands for the experiment.
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

/// How far all experiments are, in the one of this number, when all have as many runs.
pub(super) fn among(mut progress: Progress<'_>, number: usize, experiments: usize) -> Progress<'_> {
    let each = progress.left.map(|left| left.0 / (progress.total - progress.done).max(1) as u64);
    progress.done += progress.total * number;
    progress.total *= experiments;
    progress.left = each.map(|each| Nanoseconds(each * (progress.total - progress.done) as u64));
    progress
}

/// What the server bears in closed loop under the first configuration: one run.
fn calibrated(
    stage: &mut ExchangeStage<'_>,
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

/// How a bench ends: well if any run counts and no gate is missed.
pub(super) fn verdict(context: &Context<'_>, grid: &Grid, gated: bool) -> Exit {
    if !grid.counts() {
        context.console.say("No run counts.");
        return Exit::Failed;
    }
    let missed = grid.gates.iter().filter(|judged| judged.met != Some(true)).count();
    match (gated, grid.gates.len(), missed) {
        (false, ..) => Exit::Done,
        (true, 0, _) => {
            context.console.say("No gate is about what was measured.");
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

/// Reads what configurations must reach.
pub(super) fn read_gates(path: &Path) -> Result<Gates, Fault> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(GATES_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| Fault::file(path, error))?;
    text.parse().map_err(|error| Fault::new(Exit::Usage, format!("{}: {error}", path.display())))
}
