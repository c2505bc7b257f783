//! `compare`: alternates settings on a running service and judges them on its own traffic.

use std::path::Path;
use std::time::Duration;

use apply::TransactionName;
use daemon::running_daemon;
use latency::judge::{
    Candidate, Comparison, ComparisonOptions, ComparisonProgress, ComparisonResult, ForesightReport,
    PairRecord, Round, progress_words,
};
use latency::measure::switchback::Switchback;
use latency::reports::{CERTAINTY, CompareReport, CompareRoundReport, SwitchCost, html_of_comparison};
use linux::Signals;
use model::{JudgedBy, Nanoseconds};
use session::guard_process::Guardian;
use session::{Exit, Fault, HostState, clock};

use super::watch;
use crate::args::{Compare, Output};
use cli::Context;

/// How much longer than the comparison the guard process may run.
const GUARD_STAYS: Duration = Duration::from_secs(60);

/// Compares the candidates, and prints the result.
pub(crate) fn run(arguments: &Compare, context: &Context) -> Result<Exit, Fault> {
    let mut candidates: Vec<Candidate> = vec![arguments.a.clone()];
    candidates.extend(arguments.b.iter().cloned());
    let span = |span: Nanoseconds| Duration::from_nanos(span.0);
    let options = ComparisonOptions {
        candidates,
        deciding: arguments.metric.clone(),
        limits: arguments.at_most.clone(),
        margin: arguments.margin / 100.0,
        window: span(arguments.window),
        guard: span(arguments.guard_time),
        most: Duration::from_secs(arguments.seconds),
        seed: arguments.seed.unwrap_or_else(|| clock::now().unix_micros),
        disruptive: arguments.disruptive,
    };
    let selection = arguments.service.selection();
    let mut comparison =
        Comparison::prepare(options.clone(), None, &selection, &context.session, &context.console)?;
    if !arguments.dry_run {
        running_daemon::refuse_beside_any(&context.session, &comparison.target().netns)?;
    }
    announce(&mut comparison, &options, context);
    if arguments.dry_run {
        let foresight = comparison.foresight(true, &mut Signals::catch()?)?;
        let report = ForesightReport::new(comparison.by(), foresight.into_iter().collect());
        context.console.report(&report)?;
        context.console.say("Nothing was changed (--dry-run).");
        return Ok(Exit::Done);
    }
    let record = arguments.record.as_deref();
    let record = record.map(|path| PairRecord::create(path, comparison.target(), &options, comparison.by()));
    let mut listener =
        Listener { context, record: record.transpose()?, unrecorded: None, most: options.most };
    // From this point on, a signal ends the comparison and restores the host. After SIGKILL, the guard
    // process restores the host.
    let mut signals = Signals::catch()?;
    let foresight = comparison.foresight(false, &mut signals)?;
    if let Some(foresight) = &foresight {
        context.console.say(&foresight.to_string());
    }
    let guard = guardian(&mut comparison, options.most, context)?;
    let shown = comparison.run(&mut signals, &mut listener);
    context.console.progress("");
    if let Ok(ComparisonResult { unnoted: Some(why), .. }) = &shown {
        context.console.say(&format!("The verdict is not in the journal: {why}"));
    }
    let kept = match &shown {
        Ok(shown) if arguments.keep_winner => {
            let winner = shown.switchback.winner_within(&options.limits);
            keep_winner(winner, &mut comparison, shown, &options, context)
        }
        Ok(_) | Err(_) => Ok(Vec::new()),
    };
    // After a failure, the guard process restores the remaining settings.
    if shown.is_ok() && kept.is_ok() {
        guard.dismiss();
    }
    let (shown, kept) = (shown?, kept?);
    let switching = SwitchCost::of(&shown.switches);
    let names: Vec<String> = kept.iter().rev().map(ToString::to_string).collect();
    let kept = names.first().cloned();
    let service = comparison.target().name.clone();
    watch::keep(comparison.target(), "compare", None, context);
    let report = CompareReport::of(&service, &shown.switchback, shown.took, shown.ended.words());
    let report = report.within(&shown.switchback, &options.limits);
    let report = report.with(switching, shown.findings, kept.clone()).foreseen(foresight);
    context.console.report(&report)?;
    if let Some(path) = &arguments.report {
        let winner = shown.switchback.winner_within(&options.limits);
        draw(path, &html_of_comparison(&service, &shown.switchback, winner), context)?;
    }
    match kept {
        Some(_) => {
            let undo: Vec<String> = names.iter().map(|name| format!("`netpolicy rollback {name}`")).collect();
            let undo = undo.join(", then ");
            context.console.say(&format!("The winner stays in force. {undo} undoes it."));
        }
        None => context.console.say("The host was restored."),
    }
    match shown.ended.fault(&service).or(listener.unrecorded.map(|fault| fault.leaving(HostState::Done))) {
        Some(fault) => Err(fault),
        None => Ok(Exit::Done),
    }
}

/// Writes an HTML page. After a comparison, the host has already been restored, or the winner kept.
pub(super) fn draw(path: &Path, page: &str, context: &Context) -> Result<(), Fault> {
    std::fs::write(path, page).map_err(|error| Fault::file(path, error).leaving(HostState::Done))?;
    context.console.say(&format!("Report: {}", path.display()));
    Ok(())
}

/// Starts the guard process, which restores the host if this process is killed.
pub(crate) fn guardian(
    comparison: &mut Comparison<'_>,
    most: Duration,
    context: &Context,
) -> Result<Guardian, Fault> {
    let netns = comparison.target().netns.again()?;
    let namespaces = comparison.alternation().namespaces(&netns)?;
    let stays = u64::try_from((most + GUARD_STAYS).as_nanos()).unwrap_or(u64::MAX);
    let stays = Nanoseconds(clock::now().since_boot.0.saturating_add(stays));
    let deadline = comparison.deadline().unwrap_or(stays);
    Guardian::start(&context.session, deadline, &namespaces)
}

/// Prints the candidates, and the changes that each of them makes.
fn announce(comparison: &mut Comparison<'_>, options: &ComparisonOptions, context: &Context) {
    let ports = &comparison.target().ports;
    let name = comparison.target().name.clone();
    let name = if name.starts_with("port ") { name } else { format!("{name}, port {ports}") };
    let mut words = Vec::new();
    for (at, candidate) in options.candidates.iter().enumerate() {
        let changes = comparison.alternation().changes(at).changes().count();
        let settings = if changes == 1 { "setting" } else { "settings" };
        words.push(format!("{} ({changes} {settings})", candidate.name));
    }
    context.console.say(&format!(
        "{name}: {}; at most {} s, press Ctrl-C to stop",
        words.join(" against "),
        options.most.as_secs()
    ));
    if comparison.by() == JudgedBy::BeforeAfter {
        context.console.say(&format!(
            "{} disturbs traffic, so it cannot alternate. {CERTAINTY}",
            options.candidates[1].name
        ));
    }
    for (at, candidate) in options.candidates.iter().enumerate().skip(1) {
        if comparison.alternation().are_same(0, at) {
            context.console.say(&format!(
                "{} and {} result in the same settings on this host: this comparison only measures the noise.",
                options.candidates[0].name, candidate.name
            ));
        }
    }
}

/// Applies the winner permanently, if it changes anything.
fn keep_winner(
    winner: Option<usize>,
    comparison: &mut Comparison<'_>,
    shown: &ComparisonResult,
    options: &ComparisonOptions,
    context: &Context,
) -> Result<Vec<TransactionName>, Fault> {
    match winner {
        None => {
            context.console.say("There is no winner to keep.");
            Ok(Vec::new())
        }
        Some(winner) => {
            context.console.say(&format!("The winner is {}.", options.candidates[winner].name));
            let kept = comparison.keep(winner)?;
            let service = comparison.target().name.clone();
            let verdict = latency::judge::judgement(&shown.switchback, winner, &service, shown.took);
            for name in &kept {
                if let Err(error) = context.session.journal()?.note_judgement(*name, &verdict) {
                    context.console.say(&format!("The verdict is not in the journal: {error}"));
                }
            }
            Ok(kept)
        }
    }
}

/// Prints and records each round.
struct Listener<'a> {
    context: &'a Context,
    record: Option<PairRecord>,
    /// Why the record ended before the comparison did; `None` if it did not.
    unrecorded: Option<Fault>,
    most: Duration,
}

impl ComparisonProgress for Listener<'_> {
    fn stretch(&mut self, words: &str) -> Result<(), Fault> {
        self.context.console.progress(words);
        Ok(())
    }

    fn round(&mut self, round: &Round, so_far: &Switchback, elapsed: Duration) -> Result<(), Fault> {
        let console = &self.context.console;
        if let Some(record) = &mut self.record
            && let Err(fault) = record.add(round, elapsed.as_secs_f64())
        {
            console.say(&format!("Recording stopped here: {}", fault.cause));
            (self.record, self.unrecorded) = (None, Some(fault));
        }
        if let Some(why) = round.void {
            console.detail(&format!("round {} is void: {why}", round.number));
        }
        if self.context.globals.output == Output::Jsonl {
            console.report(&CompareRoundReport::of(round, so_far, elapsed))?;
        }
        if console.has_watcher() {
            console.progress(&progress_words(so_far, elapsed, self.most));
        }
        Ok(())
    }
}
