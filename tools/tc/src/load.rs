//! `tc load`, like `tc -batch`: pipelines the rules of a file to rtnetlink, and reports the acknowledgement
//! of each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use linux::{Netns, Signals};
use session::{Exit, Fault, HostState};
use tc_rules::Command;
use tc_rules::kernel::{Account, Devices, Encoder, Loader, Options};

use super::atomic::{Guarded, LoadLock, Undo, not_restored, not_taken_back};
use super::by_tc::ByTc;
use super::diff::{expected, match_rules};
use super::file::BatchFile;
use super::progress::Progress;
use super::reading::{Reading, read, survey};
use super::rule_options::{Fitter, LoadNotes, RuleOptions, percpu};
use super::survey::Survey;
use super::swap::{Places, Swap};
use crate::args::TcLoad;
use crate::report::{DiffReport, LoadReport, RefusedLine};
use cli::Context;

/// The number of commands to push between two reads of the clock.
const COMMANDS_PER_LOOK: u64 = 1024;

/// Loads a file.
pub(crate) fn run(arguments: &TcLoad, context: &Context) -> Result<Exit, Fault> {
    let netns = context.session.netns()?;
    let file = BatchFile::named(&arguments.file)?.with_tc(arguments.with_tc);
    let mut devices = Devices::of(&netns);
    let began = Instant::now();
    let rule_options = RuleOptions::of(arguments, &netns);
    if arguments.dry_run {
        let survey = survey(&file, &netns, &mut devices)?;
        survey.notes(&mut devices).for_each(|words| context.console.say(&words));
        return dry_run(&survey, &file, arguments, context);
    }
    let mut load = Load::new(arguments, context, &netns, &file, &rule_options)?;
    // Loads that compare before they add rules run one at a time in a namespace.
    let alone = arguments.atomic || arguments.swap.is_some() || arguments.resume;
    // If wrong lines are skipped, lines can be sent as they are read.
    load.streaming = arguments.keep_going && !alone;
    // If the kernel's rules are not needed first, encode each line as it is read.
    let reading = match arguments.resume || arguments.swap.is_some() {
        _ if load.streaming => Reading::default(),
        true => Reading::of(survey(&file, &netns, &mut devices)?),
        false => read(&file, &netns, &mut devices, &rule_options, |bytes| load.loader.encoder(bytes))?,
    };
    let mut survey = load.take(reading);
    if !arguments.keep_going {
        survey.refused(&file.name(), context)?;
    }
    if let Some(line) = survey.first_for_tc.filter(|_| arguments.resume) {
        let words =
            "--resume cannot determine whether tc has executed this line: move such lines to a separate file";
        return Err(Fault::new(Exit::Refused, format!("{}:{line}: {words}; nothing was sent", file.name())));
    }
    let turn = alone.then(|| LoadLock::take(&netns, context)).transpose()?;
    let swap = match arguments.swap {
        Some(priority) => Some(Swap::prepare(&netns, priority, &file, &survey)?),
        None => None,
    };
    let undo = match &swap {
        Some(swap) => Some(Undo::of_chains(swap)),
        None if arguments.atomic => Some(Undo::prepare(&netns, &file, &survey, &mut devices)?),
        None => None,
    };
    if let Some(swap) = &swap {
        load.places = swap.places();
    }
    let guarded = undo.as_ref().zip(turn.as_ref());
    let guard = guarded.map(|(undo, turn)| Guarded::start(undo, turn, &file)).transpose()?;
    let mut loaded = load.run(&mut survey, &mut devices, began);
    if arguments.keep_going
        && let Some(fault) = survey.mistaken(&file.name())
    {
        context.console.fault(&fault.leaving(HostState::LeftOut));
    }
    survey.notes(&mut devices).for_each(|words| context.console.say(&words));
    let transaction = Transaction { netns: &netns, file: &file, context, undo: undo.as_ref(), guard };
    let failed = failure(&loaded).or_else(|| transaction.switch(swap.as_ref()?, loaded.as_mut().ok()?));
    match undo.is_some().then_some(failed).flatten() {
        Some(failed) => Err(transaction.take_back(failed, loaded, &mut devices)),
        None => transaction.keep(loaded, swap.as_ref(), &survey),
    }
}

/// Why an all-or-nothing load must be undone: its exit code, and the reason in words.
type Failed = (Exit, &'static str);

/// Returns what failed while the rules were sent, if anything.
fn failure(loaded: &Result<LoadReport, Fault>) -> Option<Failed> {
    match loaded {
        Err(_) => Some((Exit::RolledBack, "the rule could not be loaded")),
        Ok(report) if report.interrupted => Some((Exit::RolledBack, "a signal ended it")),
        Ok(report) if !report.refused.is_empty() || !report.not_loaded.is_empty() => {
            Some((Exit::RolledBack, "a rule was refused"))
        }
        Ok(_) => None,
    }
}

/// Ends a load: the rules are kept or, if the load is all or nothing, undone.
struct Transaction<'a> {
    netns: &'a Netns,
    file: &'a BatchFile,
    context: &'a Context,
    /// The rules and chains to remove if the load fails; `None` unless it is all or nothing.
    undo: Option<&'a Undo>,
    guard: Option<Guarded>,
}

impl Transaction<'_> {
    /// Switches the rule of a swap to the new chain. Returns the failure, if any.
    fn switch(&self, swap: &Swap, report: &mut LoadReport) -> Option<Failed> {
        match swap.switch(self.netns) {
            Err(fault) => {
                self.context.console.say(&fault.cause.to_string());
                Some((Exit::RolledBack, "the rule that leads to the new chain could not be sent"))
            }
            Ok(Some(refused)) => {
                let words = "the rule that leads to the new chain was refused";
                self.context.console.say(&format!("{words}: {}", refused.cause()));
                // `is_unknown` means that the kernel lacks the classifier or the action.
                Some(match refused.refusal.is_unknown() {
                    true => (Exit::Unsupported, "--swap needs the classifier flower and the action gact"),
                    false => (Exit::RolledBack, words),
                })
            }
            Ok(None) => {
                report.chains = swap.chains();
                None
            }
        }
    }

    /// Removes what a failed load added. Returns the load's fault, which says whether the removal succeeded.
    fn take_back(
        self,
        (exit, why): Failed,
        loaded: Result<LoadReport, Fault>,
        devices: &mut Devices<'_>,
    ) -> Fault {
        self.try_take_back((exit, why), loaded, devices).unwrap_or_else(|fault| fault)
    }

    /// Removes what a failed load added; `Err` if something failed in addition.
    fn try_take_back(
        self,
        (exit, why): Failed,
        loaded: Result<LoadReport, Fault>,
        devices: &mut Devices<'_>,
    ) -> Result<Fault, Fault> {
        let Self { netns, file, context, undo, guard } = self;
        let words = format!("{}: {why}, and the load is all or nothing", file.name());
        if let Ok(report) = &loaded
            && report.took_nothing()
        {
            guard.map(Guarded::dismiss).transpose()?;
            context.console.report(report)?;
            return Ok(Fault::failed(words));
        }
        let stuck = match undo.map(|undo| undo.undo(netns, file, devices)).transpose() {
            Ok(stuck) => stuck.unwrap_or_default(),
            Err(fault) if guard.is_some_and(Guarded::takes_back) => {
                return Ok(Fault { exit, ..fault }.leaving(HostState::Restored));
            }
            Err(fault) => return Ok(not_taken_back(fault)),
        };
        let fault = match stuck.is_empty() {
            true => Fault::new(exit, words).leaving(HostState::Restored),
            false => not_restored(words, &stuck),
        };
        let after = |further: Fault| Fault { exit: fault.exit, ..further }.leaving(fault.host.clone());
        guard.map(Guarded::dismiss).transpose().map_err(after)?;
        let mut report = loaded.map_err(after)?;
        report.undone = stuck.is_empty();
        context.console.report(&report).map_err(after)?;
        Ok(fault)
    }

    /// Keeps the loaded rules, removes the chains that a swap replaced, and reports.
    fn keep(
        self,
        loaded: Result<LoadReport, Fault>,
        swap: Option<&Swap>,
        survey: &Survey,
    ) -> Result<Exit, Fault> {
        let console = &self.context.console;
        let after = |fault: Fault| fault.leaving(HostState::Done);
        self.guard.map(Guarded::dismiss).transpose().map_err(after)?;
        for stuck in swap.map(|swap| swap.remove_old(self.netns)).transpose()?.unwrap_or_default() {
            console.say(&format!("the old chain could not be removed: {stuck}"));
        }
        let report = loaded?;
        console.report(&report).map_err(after)?;
        if report.interrupted {
            // Do not suggest --resume if it would refuse the file.
            let rest = match survey.removes.or(survey.first_for_tc) {
                None => ": the same command with --resume loads the rest",
                Some(_) => "",
            };
            console.say(&format!("A signal ended the load; the loaded rules stay{rest}."));
            return Ok(Exit::Failed);
        }
        let whole = report.refused.is_empty() && report.not_loaded.is_empty() && report.wrong == 0;
        Ok(if whole { Exit::Done } else { Exit::Failed })
    }
}

/// Reports what loading a file would do.
fn dry_run(survey: &Survey, file: &BatchFile, arguments: &TcLoad, context: &Context) -> Result<Exit, Fault> {
    if !arguments.keep_going {
        survey.refused(&file.name(), context)?;
    } else if let Some(fault) = survey.mistaken(&file.name()) {
        context.console.fault(&fault);
    }
    context.console.report(&survey.report(&file.name()))?;
    Ok(if survey.wrong == 0 { Exit::Done } else { Exit::Usage })
}

struct Load<'a> {
    arguments: &'a TcLoad,
    context: &'a Context,
    netns: &'a Netns,
    file: &'a BatchFile,
    rule_options: &'a RuleOptions<'a>,
    loader: Loader,
    /// The commands that were encoded while the file was read.
    encoded: Option<Encoder>,
    /// The last encoded line.
    encoded_to: u32,
    /// Whether the whole file is encoded.
    whole: bool,
    /// Notes on the rules, in addition to their results.
    notes: LoadNotes,
    /// Descriptors that encoded rules refer to, which must stay open until they are sent.
    open: Option<Devices<'a>>,
    /// The chains into which rules are put.
    places: Places,
    /// Whether lines are sent as they are first read.
    streaming: bool,
    /// The lines for the installed tc.
    by_tc: ByTc<'a>,
}

impl<'a> Load<'a> {
    fn new(
        arguments: &'a TcLoad,
        context: &'a Context,
        netns: &'a Netns,
        file: &'a BatchFile,
        rule_options: &'a RuleOptions<'a>,
    ) -> Result<Self, Fault> {
        let options = Options {
            workers: usize::from(arguments.workers),
            stop_at_refusal: !arguments.keep_going && !arguments.resume,
            ..Options::default()
        };
        let loader = Loader::open(netns, options)?;
        let (encoded, encoded_to, whole, notes, open) = (None, 0, false, LoadNotes::default(), None);
        let (places, streaming) = (Places::default(), false);
        let by_tc = ByTc::new(netns, arguments.with_tc, arguments.keep_going)?;
        Ok(Self {
            arguments,
            context,
            netns,
            file,
            rule_options,
            loader,
            encoded,
            encoded_to,
            whole,
            notes,
            open,
            places,
            streaming,
            by_tc,
        })
    }

    /// Takes over what was encoded while the file was read, and returns the survey.
    fn take(&mut self, reading: Reading<'a>) -> Survey {
        let Reading { survey, encoded, encoded_to, whole, notes, devices, .. } = reading;
        (self.encoded, self.encoded_to, self.whole) = (encoded, encoded_to, whole);
        (self.notes, self.open) = (notes, devices);
        survey
    }

    fn run(
        self,
        survey: &mut Survey,
        devices: &mut Devices<'_>,
        began: Instant,
    ) -> Result<LoadReport, Fault> {
        let missing = match self.arguments.resume {
            true => Some(self.missing(survey, devices)?),
            false => None,
        };
        self.send(missing.as_ref(), survey, devices, began).map_err(|fault| fault.leaving(HostState::Unknown))
    }

    /// Sends the whole file or, with `missing`, only these rules and the lines that are not rules.
    fn send(
        mut self,
        missing: Option<&BTreeSet<u32>>,
        survey: &mut Survey,
        devices: &mut Devices<'_>,
        began: Instant,
    ) -> Result<LoadReport, Fault> {
        let mut progress =
            Progress::new(&self.context.console, Some(self.file.length()).filter(|bytes| *bytes > 0));
        // From here on, a signal stops the load, which then prints its report.
        let mut signals = Signals::catch()?;
        let mut interrupted = false;
        if let Some(encoded) = self.encoded.take() {
            self.loader.send(encoded, |loader| {
                progress.at(loader.settled(), 0);
                if signals.take().is_some() {
                    interrupted = true;
                    loader.stop();
                }
            })?;
        }
        let (mut pushed, mut skipped, mut not_rules) = (0_u64, 0_u64, BTreeSet::new());
        let mut cut_short = None;
        let mut fitter = Fitter::new(self.rule_options);
        let (file, loader, encoded_to, places) = (self.file, &mut self.loader, self.encoded_to, &self.places);
        let (streaming, by_tc, mut mistakes) = (self.streaming, &mut self.by_tc, Survey::default());
        if !self.whole {
            let listings = file.each(
                devices,
                |line, command, behind| {
                    if line <= encoded_to {
                        return Ok(true);
                    }
                    if streaming {
                        survey.note(line, command);
                    }
                    if let Command::Foreign(foreign) = command {
                        by_tc.push(line, &foreign.text, loader, &mut signals)?;
                        return Ok(true);
                    }
                    if let Some(missing) = missing {
                        if command.rule().is_none() {
                            not_rules.insert(line);
                        } else if !missing.contains(&line) {
                            skipped += 1;
                            return Ok(true);
                        }
                    }
                    places.put(command);
                    fitter.fit(command)?;
                    loader.push(line, command)?;
                    pushed += 1;
                    if pushed % COMMANDS_PER_LOOK == 0 {
                        progress.at(loader.settled(), behind);
                        if signals.take().is_some() {
                            interrupted = true;
                            loader.stop();
                        }
                        if loader.has_stopped() {
                            cut_short = Some(line);
                            return Ok(false);
                        }
                    }
                    Ok(true)
                },
                |mistake| {
                    if streaming {
                        mistakes.mistake(mistake);
                    }
                    Ok(())
                },
            )?;
            if streaming {
                mistakes.listings = listings;
            }
            interrupted |= by_tc.interrupted;
        }
        survey.append(mistakes, 0);
        let unread = match cut_short {
            Some(last) => self.unread(last, survey, devices)?,
            None => Vec::new(),
        };
        self.notes.append(fitter.notes());
        let account = self.loader.settled_account();
        progress.end();
        let mut account = account?;
        let seconds = began.elapsed().as_secs_f64();
        // A resumed load accepts objects that already exist.
        account.refused.retain(|refused| {
            let there = not_rules.contains(&refused.line) && refused.refusal.is_there_already();
            skipped += u64::from(there);
            !there
        });
        let mut report = self.report(account, seconds, skipped, survey, devices)?;
        report.not_sent.append(&mut self.by_tc.unsent);
        report.not_sent.sort_unstable();
        report.not_sent.extend(unread);
        report.refused.append(&mut self.by_tc.refused);
        report.refused.sort_by_key(|refused| refused.line);
        report.by_tc = self.by_tc.done;
        report.loaded += report.by_tc;
        report.rate = report.loaded as f64 / report.seconds.max(1e-9);
        report.warnings = std::mem::take(&mut self.by_tc.warnings);
        report.interrupted = interrupted;
        (report.counters_anyway, report.cookies) = (self.notes.ignored_flags, self.notes.cookies);
        report.bursts_cut = self.notes.bursts_cut;
        report.shared_actions = self.rule_options.shared_actions();
        Ok(report)
    }

    /// The lines whose rules the kernel lacks.
    fn missing(&self, survey: &Survey, devices: &mut Devices<'_>) -> Result<BTreeSet<u32>, Fault> {
        if let Some(line) = survey.removes {
            return Err(Fault::new(
                Exit::Refused,
                format!(
                    "{}:{line}: --resume compares the file with the loaded rules and cannot determine whether a removal was sent; no rule was sent",
                    self.file.name()
                ),
            ));
        }
        // Ignore wrong lines: either they have ended the load before, or they are to be skipped.
        let (mut again, percpu) = (Survey::default(), percpu(self.arguments.no_percpu));
        let mut expected = expected(self.file, devices, &mut again, &self.places, percpu, |_| true)?;
        let mut found = DiffReport::default();
        for hook in survey.hooks() {
            match_rules(self.netns, hook, None, devices, &mut expected, &mut found)?;
        }
        if found.changing {
            return Err(Fault::new(
                Exit::Refused,
                "rules changed during the comparison, so the missing ones are unknown; no rule was sent",
            ));
        }
        Ok(expected.missing().into_iter().collect())
    }

    /// Returns the lines after the last one that was read. They were not sent.
    fn unread(&self, last: u32, survey: &mut Survey, devices: &mut Devices<'_>) -> Result<Vec<u32>, Fault> {
        let (mut not_sent, mut mistakes) = (Vec::new(), Survey::default());
        self.file.each(
            devices,
            |line, command, _| {
                if line > last {
                    not_sent.push(line);
                    if self.streaming {
                        survey.note(line, command);
                    }
                }
                Ok(true)
            },
            |mistake| {
                if self.streaming && mistake.line > last {
                    mistakes.mistake(mistake);
                }
                Ok(())
            },
        )?;
        survey.append(mistakes, 0);
        Ok(not_sent)
    }

    /// Creates the report. If the kernel's answer to a command was lost, a dump shows whether its rule
    /// exists.
    fn report(
        &self,
        account: Account,
        seconds: f64,
        skipped: u64,
        survey: &Survey,
        devices: &mut Devices<'_>,
    ) -> Result<LoadReport, Fault> {
        let Account { mut loaded, refused, unknown, unsent } = account;
        let lost: BTreeSet<u32> = unknown.iter().copied().collect();
        let mut not_loaded = Vec::new();
        if !lost.is_empty() {
            let (mut again, percpu) = (Survey::default(), percpu(self.arguments.no_percpu));
            let asked = |line| lost.contains(&line);
            let mut expected = expected(self.file, devices, &mut again, &self.places, percpu, asked)?;
            let mut found = DiffReport::default();
            for hook in survey.hooks() {
                match_rules(self.netns, hook, None, devices, &mut expected, &mut found)?;
            }
            not_loaded = expected.missing();
            loaded += (lost.len() - not_loaded.len()) as u64;
        }
        let refused = refused.iter().map(|refused| {
            let cause = refused.cause();
            RefusedLine {
                line: refused.line,
                errno: refused.number(),
                is_denied: cause.is_denied(),
                words: cause.to_string(),
            }
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
            wrong_lines: survey.wrong_lines(),
            interrupted: false,
            undone: false,
            chains: Vec::new(),
            by_tc: 0,
            warnings: Vec::new(),
            shared_actions: 0,
            cookies: 0,
            counters_anyway: BTreeMap::new(),
            bursts_cut: 0,
            seconds,
            rate: loaded as f64 / seconds.max(1e-9),
        })
    }
}
