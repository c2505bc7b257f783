//! `tc diff`, `tc load --check`: what the kernel has against what a file wants.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use linux::Netns;
use linux::tc::{Devices, dump};
use linux::{Errno, KernelError};
use rules::{Command, Hook, NoPercpu, Wanted};

use super::file::BatchFile;
use super::survey::Survey;
use super::swap::Places;
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::DiffReport;

/// Compares, and says what is missing, different and extra.
pub(crate) fn run(
    file: &Path,
    swap: Option<u16>,
    percpu: NoPercpu,
    context: &Context,
) -> Result<Exit, Fault> {
    let began = Instant::now();
    let netns = context.netns()?;
    let file = BatchFile::named(file)?;
    let mut devices = Devices::of(&netns);
    let places = match swap {
        Some(priority) => Places::in_force(&netns, priority, &file, &mut devices)?,
        None => Places::default(),
    };
    let mut survey = Survey::default();
    let mut wanted = wanted(&file, &mut devices, &mut survey, &places, percpu, |_| true)?;
    survey.refused(&file.name(), context)?;
    let mut report = DiffReport { file: file.name(), ..DiffReport::default() };
    for hook in wanted.groups().map(|group| group.hook).collect::<BTreeSet<Hook>>() {
        strike(&netns, hook, &mut devices, &mut wanted, &mut report)?;
    }
    report.settle(&wanted);
    report.seconds = began.elapsed().as_secs_f64();
    context.console.report(&report)?;
    Ok(if report.differs() { Exit::Pending } else { Exit::Done })
}

/// What a file wants, of the lines that are asked for, with the counters that are wanted. Wrong lines want nothing, and are told
/// of in the survey.
pub(super) fn wanted(
    file: &BatchFile,
    devices: &mut Devices<'_>,
    survey: &mut Survey,
    places: &Places,
    percpu: NoPercpu,
    asked: impl Fn(u32) -> bool,
) -> Result<Wanted, Fault> {
    let (mut wanted, mut mistakes) = (Wanted::default(), Survey::default());
    file.each(
        devices,
        |line, command, _| {
            survey.note(line, command);
            places.put(command);
            if let Command::Filter(rule) = command {
                percpu.apply(rule);
            }
            if let Some(rule) = command.rule().filter(|_| asked(line)) {
                wanted.apply(rule, line);
            }
            Ok(true)
        },
        |mistake| {
            mistakes.mistake(mistake);
            Ok(())
        },
    )?;
    survey.append(mistakes, 0);
    Ok(wanted)
}

/// How often a hook is looked at again because its rules changed while they were told.
const LOOKS_MAX: usize = 8;

/// Strikes off what a hook has. A hook that is not there has nothing. Rules that change meanwhile are looked at again, and
/// if they do not stop, the report says so.
pub(super) fn strike(
    netns: &Netns,
    hook: Hook,
    devices: &mut Devices<'_>,
    wanted: &mut Wanted,
    report: &mut DiffReport,
) -> Result<(), Fault> {
    let watch = dump::Watch::open(netns)?;
    wanted.mark();
    let before = report.counts();
    for _ in 0..LOOKS_MAX {
        let dumped = dump::rules(netns, hook, |dumped| match dumped {
            dump::Dumped::Begin => {
                wanted.back_to_mark();
                report.count_again(before);
            }
            dump::Dumped::Rule(rule) => report.count(rule, wanted.strike(rule), devices),
            dump::Dumped::Unknown => report.unknown += 1,
        });
        match dumped {
            Err(error) if !is_absent(&error) => return Err(error.into()),
            _ => {}
        }
        if !watch.has_changed()? {
            return Ok(());
        }
    }
    report.changing = true;
    Ok(())
}

pub(super) fn is_absent(error: &KernelError) -> bool {
    matches!(error.number(), Some(Errno::INVAL | Errno::NODEV | Errno::NOENT))
}
