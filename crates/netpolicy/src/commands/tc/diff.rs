//! `tc diff`, `tc load --check`: what the kernel has against what a file wants.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use linux::Netns;
use linux::tc::{Devices, dump};
use linux::{Errno, KernelError};
use rules::{Found, Hook, Wanted};

use super::file::BatchFile;
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::DiffReport;

/// Compares, and says what is missing, different and extra.
pub(crate) fn run(file: &Path, context: &Context) -> Result<Exit, Fault> {
    let began = Instant::now();
    let netns = context.netns()?;
    let file = BatchFile::named(file)?;
    let mut devices = Devices::of(&netns)?;
    let mut wanted = wanted(&file, &mut devices, |_| true)?;
    let mut report = DiffReport { file: file.name(), ..DiffReport::default() };
    for hook in wanted.groups().map(|group| group.hook).collect::<BTreeSet<Hook>>() {
        strike(&netns, hook, &mut wanted, &mut report)?;
    }
    report.missing = wanted.missing();
    report.missing.retain(|line| !report.different.contains(line));
    report.seconds = began.elapsed().as_secs_f64();
    context.console.report(&report)?;
    Ok(if report.differs() { Exit::Pending } else { Exit::Done })
}

/// What a file wants, of the lines that are asked for.
pub(super) fn wanted(
    file: &BatchFile,
    devices: &mut Devices,
    asked: impl Fn(u32) -> bool,
) -> Result<Wanted, Fault> {
    let mut wanted = Wanted::default();
    let mut wrong = None;
    file.each(
        devices,
        |line, command, _| {
            if let Some(rule) = command.rule().filter(|_| asked(line)) {
                wanted.add(rule, line);
            }
            Ok(true)
        },
        |mistake| {
            wrong.get_or_insert_with(|| format!("{}: {mistake}", file.name()));
            Ok(())
        },
    )?;
    match wrong {
        Some(words) => Err(Fault::new(Exit::Usage, words)),
        None => Ok(wanted),
    }
}

/// Strikes off what a hook has. A hook that is not there has nothing.
pub(super) fn strike(
    netns: &Netns,
    hook: Hook,
    wanted: &mut Wanted,
    report: &mut DiffReport,
) -> Result<(), Fault> {
    let dumped = dump::rules(netns, hook, |dumped| match dumped {
        dump::Dumped::Rule(rule) => {
            if rule.classifier.offload().is_some_and(|offload| offload.in_hw == Some(true)) {
                report.in_hardware += 1;
            }
            match wanted.strike(rule) {
                Found::Wanted(_) => report.same += 1,
                Found::Different(line) => report.different.push(line),
                Found::Extra => report.extra += 1,
                Found::Unasked => {}
            }
        }
        dump::Dumped::Unknown => report.unknown += 1,
    });
    match dumped {
        Err(error) if !is_absent(&error) => Err(error.into()),
        _ => Ok(()),
    }
}

fn is_absent(error: &KernelError) -> bool {
    matches!(error.number(), Some(Errno::INVAL | Errno::NODEV | Errno::NOENT))
}
