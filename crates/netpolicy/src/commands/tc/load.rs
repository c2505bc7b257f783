//! `tc load`: rules from a file into the kernel, and what became of each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use linux::tc::{Account, Devices, Loader, Options, instances};
use linux::{Errno, Netns};
use rules::{Command, NoPercpu, Sharing, percpu};

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

/// How many bytes of encoded rules wait for the rest of the file to be right; what is beyond them is read twice.
const HELD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Loads a file.
pub(crate) fn run(arguments: &TcLoad, context: &Context) -> Result<Exit, Fault> {
    let netns = context.netns()?;
    let file = BatchFile::named(&arguments.file)?;
    let mut devices = Devices::of(&netns)?;
    let began = Instant::now();
    // Without a look at the kernel's rules first, a line is encoded as it is read.
    let mut load = Load::new(arguments, context, &netns, &file)?;
    let at_once = !(arguments.atomic || arguments.resume || arguments.dry_run);
    let mut survey = file.survey(&mut devices, |line, command, _| match at_once {
        true => load.hold(line, command),
        false => Ok(()),
    })?;
    if let Some(fault) = survey.mistaken() {
        if !arguments.keep_going {
            return Err(fault);
        }
        context.console.fault(&fault.leaving(HostState::Underway));
    }
    if arguments.dry_run {
        let groups = survey.groups.len();
        let Survey { commands, rules, wrong, .. } = survey;
        let report = SurveyReport { file: file.name(), commands, rules, groups, wrong };
        context.console.report(&report)?;
        return Ok(if wrong == 0 { Exit::Done } else { Exit::Usage });
    }
    let undo = match arguments.atomic {
        true => Some(Undo::prepare(&netns, &file, &survey, &mut devices)?),
        false => None,
    };
    let guard = undo.as_ref().map(|undo| Guarded::start(undo, &file, context)).transpose()?;
    let loaded = load.run(&survey, &mut devices, began);
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
    loader: Loader,
    percpu: NoPercpu,
    sharing: Option<Sharing>,
    /// The kinds of actions whose instances were looked at.
    looked_at: BTreeSet<&'static str>,
    /// Actions that ask for one counter for all CPUs, of kinds that do not obey.
    unheard: BTreeMap<&'static str, u64>,
    /// The last line that the loader has.
    held_to: u32,
    /// Whether the loader has every line.
    whole: bool,
}

impl<'a> Load<'a> {
    fn new(
        arguments: &'a TcLoad,
        context: &'a Context,
        netns: &'a Netns,
        file: &'a BatchFile,
    ) -> Result<Self, Fault> {
        let percpu = match arguments.no_percpu {
            None => NoPercpu::AsWritten,
            Some(Percpu::Auto) => NoPercpu::Auto,
            Some(Percpu::Always) => NoPercpu::Always,
            Some(Percpu::Never) => NoPercpu::Never,
        };
        let options = Options {
            workers: usize::from(arguments.workers),
            stop_at_refusal: !arguments.keep_going && !arguments.resume,
            ..Options::default()
        };
        let loader = Loader::open_held(netns, options)?;
        let sharing = arguments.share_actions.then(|| Sharing::from(0));
        let (looked_at, unheard, held_to, whole) = (BTreeSet::new(), BTreeMap::new(), 0, false);
        Ok(Self {
            arguments,
            context,
            netns,
            file,
            loader,
            percpu,
            sharing,
            looked_at,
            unheard,
            held_to,
            whole,
        })
    }

    /// Takes a command to be sent when the whole file is right, as long as there is room.
    fn hold(&mut self, line: u32, command: &mut Command) -> Result<(), Fault> {
        self.whole = self.loader.held_bytes() < HELD_BYTES_MAX && (self.whole || self.held_to == 0);
        if self.whole {
            self.push(line, command)?;
            self.held_to = line;
        }
        Ok(())
    }

    /// Takes a command, with its counters and its instances as the operator wants them.
    fn push(&mut self, line: u32, command: &mut Command) -> Result<(), Fault> {
        if let Command::Filter(rule) = command {
            if self.percpu.apply(rule) > 0 {
                for action in
                    rule.actions.iter().filter(|action| action.no_percpu && !percpu::obeys(&action.kind))
                {
                    *self.unheard.entry(action.kind.name()).or_default() += 1;
                }
            }
            if let Some(sharing) = &mut self.sharing {
                for action in &rule.actions {
                    let kind = action.kind.name();
                    if self.looked_at.insert(kind) {
                        sharing.not_below(instances::first_free(self.netns, [kind])?);
                    }
                }
                sharing.apply(rule);
            }
        }
        Ok(self.loader.push(line, command)?)
    }

    fn run(mut self, survey: &Survey, devices: &mut Devices, began: Instant) -> Result<LoadReport, Fault> {
        let missing = match self.arguments.resume {
            true => Some(self.missing(survey, devices)?),
            false => None,
        };
        let mut progress = Progress::new(&self.context.console, self.file.length());
        self.loader.release(|loader| progress.at(loader.settled(), 0))?;
        let (mut pushed, mut skipped, mut not_rules) = (0_u64, 0_u64, BTreeSet::new());
        let mut cut_short = None;
        let (file, held_to) = (self.file, self.held_to);
        if !self.whole {
            file.each(
                devices,
                |line, command, behind| {
                    if line <= held_to {
                        return Ok(true);
                    }
                    if let Some(missing) = &missing {
                        if command.rule().is_none() {
                            not_rules.insert(line);
                        } else if !missing.contains(&line) {
                            skipped += 1;
                            return Ok(true);
                        }
                    }
                    self.push(line, command)?;
                    pushed += 1;
                    if pushed % COMMANDS_PER_LOOK == 0 {
                        progress.at(self.loader.settled(), behind);
                        if self.loader.has_stopped() {
                            cut_short = Some(line);
                            return Ok(false);
                        }
                    }
                    Ok(true)
                },
                |_| Ok(()),
            )?;
        }
        let account = self.loader.settled_account();
        progress.end();
        let mut account = account?;
        let seconds = began.elapsed().as_secs_f64();
        // What a resumed load finds there already is as it should be.
        account.refused.retain(|refused| {
            let there = not_rules.contains(&refused.line) && refused.refusal.errno == Errno::EXIST;
            skipped += u64::from(there);
            !there
        });
        let mut report = self.report(account, seconds, skipped, survey, devices)?;
        if let Some(last) = cut_short {
            self.unread(last, &mut report, devices)?;
        }
        report.counters_anyway = self.unheard;
        report.shared_actions = self.sharing.map_or(0, |sharing| sharing.len());
        Ok(report)
    }

    /// The lines that the kernel does not have.
    fn missing(&self, survey: &Survey, devices: &mut Devices) -> Result<BTreeSet<u32>, Fault> {
        if let Some(line) = survey.removes {
            return Err(Fault::new(
                Exit::Refused,
                format!(
                    "{}:{line}: --resume compares what a file leaves behind, and cannot tell whether a line that removes \
                     something was sent; nothing was sent now",
                    self.file.name()
                ),
            ));
        }
        let mut wanted = wanted(self.file, devices, |_| true)?;
        let mut found = DiffReport::default();
        for hook in survey.hooks() {
            strike(self.netns, hook, &mut wanted, &mut found)?;
        }
        if found.changing {
            return Err(Fault::new(
                Exit::Refused,
                "rules change while they are compared, so what is missing cannot be told; nothing was sent",
            ));
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
        survey: &Survey,
        devices: &mut Devices,
    ) -> Result<LoadReport, Fault> {
        let Account { mut loaded, refused, unknown, unsent } = account;
        let lost: BTreeSet<u32> = unknown.iter().copied().collect();
        let mut not_loaded = Vec::new();
        if !lost.is_empty() {
            let mut wanted = wanted(self.file, devices, |line| lost.contains(&line))?;
            let mut found = DiffReport::default();
            for hook in survey.hooks() {
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
            commands: survey.commands + survey.wrong as u64,
            loaded,
            refused: refused.collect(),
            not_sent: unsent,
            not_loaded,
            settled_by_dump: lost.len(),
            skipped,
            wrong: survey.wrong,
            undone: false,
            shared_actions: 0,
            counters_anyway: BTreeMap::new(),
            seconds,
            rate: loaded as f64 / seconds.max(1e-9),
        })
    }
}
