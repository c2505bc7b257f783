//! `tc load`: rules from a file into the kernel, and what became of each.

use std::collections::BTreeSet;
use std::time::Instant;

use linux::tc::{Account, Devices, Loader, Options, instances};
use linux::{Errno, Netns};
use rules::{Command, NoPercpu, Sharing};

use super::atomic::{Guarded, Undo};
use super::diff::{strike, wanted};
use super::file::{BatchFile, Survey};
use super::progress::Progress;
use crate::args::{Percpu, TcLoad};
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::{Fault, HostState};
use crate::render::{DiffReport, LoadReport, RefusedLine, SurveyReport};

/// How many commands are pushed between two looks at the clock.
const COMMANDS_PER_LOOK: u64 = 1024;

/// Loads a file.
pub(crate) fn run(arguments: &TcLoad, context: &Context) -> Result<Exit, Fault> {
    let netns = context.netns()?;
    let file = BatchFile::named(&arguments.file)?;
    let mut devices = Devices::of(&netns)?;
    let mut survey = file.survey(&mut devices)?;
    if let Some(fault) = survey.mistaken() {
        if !arguments.keep_going {
            return Err(fault);
        }
        context.console.fault(&fault.leaving(HostState::Unchanged));
    }
    if arguments.dry_run {
        let groups = survey.groups.len();
        let Survey { commands, rules, wrong, .. } = survey;
        let report = SurveyReport { file: file.name(), commands, rules, groups, wrong, no_percpu_unheard: 0 };
        context.console.report(&report)?;
        return Ok(if wrong == 0 { Exit::Done } else { Exit::Usage });
    }
    let undo = match arguments.atomic {
        true => Some(Undo::prepare(&netns, &file, &survey, &mut devices)?),
        false => None,
    };
    let guard = undo.as_ref().map(|undo| Guarded::start(undo, &file, context)).transpose()?;
    let load = Load { arguments, context, netns: &netns, file: &file, survey: &survey };
    let loaded = load.run(&mut devices);
    let refused =
        loaded.as_ref().map_or(true, |report| !report.refused.is_empty() || !report.not_loaded.is_empty());
    if let Some(undo) = undo.filter(|_| refused) {
        let stuck = undo.undo(&netns, &file, &mut devices)?;
        guard.map(Guarded::dismiss).transpose()?;
        let mut report = loaded?;
        report.undone = stuck.is_empty();
        context.console.report(&report)?;
        let words = format!("{}: a rule was refused, and the load is all or nothing", file.name());
        return Err(match stuck.is_empty() {
            true => Fault::new(Exit::RolledBack, words).leaving(HostState::Restored),
            false => {
                let stuck = stuck.iter().map(ToString::to_string).collect();
                Fault::new(Exit::NotRestored, words).leaving(HostState::NotRestored { stuck, undo: None })
            }
        });
    }
    guard.map(Guarded::dismiss).transpose()?;
    let report = loaded?;
    context.console.report(&report)?;
    let whole = report.refused.is_empty() && report.not_loaded.is_empty() && report.wrong == 0;
    Ok(if whole { Exit::Done } else { Exit::Failed })
}

/// One load.
struct Load<'a> {
    arguments: &'a TcLoad,
    context: &'a Context,
    netns: &'a Netns,
    file: &'a BatchFile,
    survey: &'a Survey,
}

impl Load<'_> {
    fn run(&self, devices: &mut Devices) -> Result<LoadReport, Fault> {
        let percpu = match self.arguments.no_percpu {
            None => NoPercpu::AsWritten,
            Some(Percpu::Auto) => NoPercpu::Auto,
            Some(Percpu::Always) => NoPercpu::Always,
            Some(Percpu::Never) => NoPercpu::Never,
        };
        let mut sharing = match self.arguments.share_actions {
            true => {
                Some(Sharing::from(instances::first_free(self.netns, self.survey.kinds.iter().copied())?))
            }
            false => None,
        };
        let missing = match self.arguments.resume {
            true => Some(self.missing(devices)?),
            false => None,
        };
        let options = Options {
            workers: usize::from(self.arguments.workers),
            stop_at_refusal: !self.arguments.keep_going && !self.arguments.resume,
            ..Options::default()
        };
        let began = Instant::now();
        let mut loader = Loader::open(self.netns, options)?;
        let mut progress = Progress::new(&self.context.console, self.file.length());
        let (mut pushed, mut skipped, mut unheard, mut not_rules) = (0_u64, 0_u64, 0, BTreeSet::new());
        let mut cut_short = None;
        self.file.each(
            devices,
            |line, command, behind| {
                match command {
                    Command::Filter(rule) if !rule.is_chain => {
                        if missing.as_ref().is_some_and(|missing| !missing.contains(&line)) {
                            skipped += 1;
                            return Ok(true);
                        }
                        unheard += percpu.apply(rule);
                        if let Some(sharing) = &mut sharing {
                            sharing.apply(rule);
                        }
                    }
                    Command::Filter(_) | Command::Qdisc(_) | Command::Actions(_) => {
                        if missing.is_some() {
                            not_rules.insert(line);
                        }
                    }
                }
                loader.push(line, command)?;
                pushed += 1;
                if pushed % COMMANDS_PER_LOOK == 0 {
                    progress.at(loader.settled(), behind);
                    if loader.has_stopped() {
                        cut_short = Some(line);
                        return Ok(false);
                    }
                }
                Ok(true)
            },
            |_| Ok(()),
        )?;
        let account = loader.finish();
        progress.end();
        let mut account = account?;
        let seconds = began.elapsed().as_secs_f64();
        // What a resumed load finds there already is as it should be.
        account.refused.retain(|refused| {
            let there = not_rules.contains(&refused.line) && refused.refusal.errno == Errno::EXIST;
            skipped += u64::from(there);
            !there
        });
        if unheard > 0 {
            self.context.console.say(&format!(
                "{unheard} actions ask for no_percpu and are of a kind that does not obey, whatever a dump says of them."
            ));
        }
        let mut report = self.report(account, seconds, skipped, devices)?;
        if let Some(last) = cut_short {
            self.unread(last, &mut report, devices)?;
        }
        report.shared_actions = sharing.map_or(0, |sharing| sharing.len());
        Ok(report)
    }

    /// The lines that the kernel does not have.
    fn missing(&self, devices: &mut Devices) -> Result<BTreeSet<u32>, Fault> {
        let mut wanted = wanted(self.file, devices, |_| true)?;
        let mut found = DiffReport::default();
        for hook in self.survey.hooks() {
            strike(self.netns, hook, &mut wanted, &mut found)?;
        }
        Ok(wanted.missing().into_iter().collect())
    }

    /// Adds the lines behind the last one that was read to those that were not sent.
    fn unread(&self, last: u32, report: &mut LoadReport, devices: &mut Devices) -> Result<(), Fault> {
        let not_sent = &mut report.not_sent;
        self.file.each(
            devices,
            |line, _, _| {
                if line > last {
                    not_sent.push(line);
                }
                Ok(true)
            },
            |_| Ok(()),
        )
    }

    /// The account, with every lost answer settled by a dump.
    fn report(
        &self,
        account: Account,
        seconds: f64,
        skipped: u64,
        devices: &mut Devices,
    ) -> Result<LoadReport, Fault> {
        let Account { mut loaded, refused, unknown, unsent } = account;
        let lost: BTreeSet<u32> = unknown.iter().copied().collect();
        let mut not_loaded = Vec::new();
        if !lost.is_empty() {
            let mut wanted = wanted(self.file, devices, |line| lost.contains(&line))?;
            let mut found = DiffReport::default();
            for hook in self.survey.hooks() {
                strike(self.netns, hook, &mut wanted, &mut found)?;
            }
            not_loaded = wanted.missing();
            loaded += (lost.len() - not_loaded.len()) as u64;
        }
        let refused = refused.iter().map(|refused| RefusedLine {
            line: refused.line,
            errno: refused.refusal.errno.raw_os_error(),
            words: refused.cause().to_string(),
        });
        Ok(LoadReport {
            file: self.file.name(),
            commands: self.survey.commands + self.survey.wrong as u64,
            loaded,
            refused: refused.collect(),
            not_sent: unsent,
            not_loaded,
            settled_by_dump: lost.len(),
            skipped,
            wrong: self.survey.wrong,
            undone: false,
            shared_actions: 0,
            seconds,
            rate: loaded as f64 / seconds.max(1e-9),
        })
    }
}
