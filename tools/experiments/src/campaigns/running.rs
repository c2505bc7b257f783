//! What all campaigns share: checks that files can be written, progress messages, and early ends.

use std::io::Write;
use std::path::Path;

use linux::{Processes, observe};
use model::Nanoseconds;
use runs::{Failure, Progress, Results};
use session::{Exit, Fault};

use crate::Context;
use crate::bench::{BenchError, Layout};

pub(super) fn layout(context: &Context<'_>) -> Result<Layout, Fault> {
    let host = observe(&context.session.netns()?, &Processes::None)?;
    Ok(Layout::of(&host.topology.online))
}

/// Where an experiment runs.
#[derive(Clone, Copy)]
pub(super) enum Testbed {
    /// In a lab, or on this host.
    Lab,
    /// On this machine and another.
    Machines,
}

/// Determines how an interrupted or failed experiment ends; `None` if the measurements determine it.
pub(super) fn early(
    context: &Context<'_>,
    results: &Results,
    cell: &str,
    failure: Failure<BenchError>,
    place: Testbed,
) -> Result<Option<Exit>, Fault> {
    let made = format!("{} of {} runs were made", results.evidence.len(), results.experiment.order().len());
    let (cause, unrestored) = match failure {
        Failure::Run(cause) | Failure::Restore(cause) => (cause, None),
        Failure::RunAndRestore { run, restore } => (run, Some(restore)),
    };
    let restored = unrestored.is_none();
    match (unrestored, place) {
        (None, _) => {}
        (Some(restore), Testbed::Lab) => {
            context.console.say(&format!("The lab was not restored before it was removed: {restore}"));
        }
        // Report that the host was not restored: that is more important than why the run failed.
        (Some(BenchError::Failed(restore)), Testbed::Machines) if restore.exit == Exit::NotRestored => {
            context.console.say(&format!("Stopped in {cell}: {made}: {cause}"));
            return Err(restore);
        }
        (Some(restore), Testbed::Machines) => {
            context
                .console
                .say(&format!("The server's machine did not confirm that it was restored: {restore}"));
        }
    }
    match cause {
        BenchError::TimeUp => {
            context.console.say(&format!("The time limit was reached: {made}."));
            Ok(None)
        }
        BenchError::Interrupted(signal) => {
            let left = match place {
                Testbed::Lab => " The lab was removed with its contents.",
                Testbed::Machines if restored => " The server's machine was restored.",
                Testbed::Machines => "",
            };
            context.console.say(&format!("Interrupted in {cell}: {made}.{left}"));
            Ok(Some(Exit::Command(of_signal(signal))))
        }
        BenchError::Failed(fault) => {
            context.console.say(&format!("Stopped in {cell}: {made}."));
            Err(fault)
        }
    }
}

/// Returns the exit code of a command that a signal ended, as shells define it.
pub(super) fn of_signal(signal: linux::Signal) -> u8 {
    u8::try_from(128 + signal.number()).unwrap_or(u8::MAX)
}

pub(super) fn writable(path: &Path) -> Result<(), Fault> {
    let mut file = std::fs::OpenOptions::new();
    let opened = file.append(true).create(true).open(path).and_then(|mut file| file.flush());
    opened.map_err(|error| Fault::file(path, error))
}

/// The progress that was already reported to the operator.
#[derive(Default)]
pub(super) struct ProgressReport {
    tenths: Option<usize>,
}

impl ProgressReport {
    /// On a terminal, shows every run; otherwise prints a line for each tenth of the runs.
    pub(super) fn update(&mut self, context: &Context<'_>, progress: &Progress<'_>) {
        let left = progress.left.map(|left| format!(", {} left", rounded(left))).unwrap_or_default();
        let next = progress.next.map(|cell| format!(": {cell}")).unwrap_or_default();
        let words = format!("run {} of {}{left}{next}", progress.done + 1, progress.total);
        if context.console.has_watcher() {
            context.console.progress(&words);
            return;
        }
        let tenths = progress.done * 10 / progress.total.max(1);
        if progress.next.is_some() && self.tenths != Some(tenths) {
            self.tenths = Some(tenths);
            context.console.say(&words);
        }
    }
}

/// Formats a span for people.
fn rounded(span: Nanoseconds) -> String {
    let seconds = span.0.div_ceil(1_000_000_000);
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, seconds) => format!("{minutes} min {seconds:02} s"),
    }
}
