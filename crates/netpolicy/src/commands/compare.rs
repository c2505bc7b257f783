//! `compare`: settings that alternate on a service that runs, judged by its own traffic.

use std::os::fd::OwnedFd;
use std::time::Duration;

use apply::TransactionName;
use experiments::reports::{CompareReport, CompareRoundReport, SwitchCost, progress_words};
use judge::{Candidate, Comparison, Ended, Options, PairRecord, Progress, Round, Shown};
use linux::Signals;
use measure::switchback::Switchback;
use model::Nanoseconds;
use rustix::pipe::{PipeFlags, pipe_with};
use session::{Exit, Fault, HostState, clock, guard_process};

use super::{by_daemon, watch};
use crate::args::{Compare, Output};
use crate::context::Context;

/// How long after the last moment of a comparison its guard stays.
const GUARD_STAYS: Duration = Duration::from_secs(60);

/// Compares, and says what it came to.
pub(crate) fn run(arguments: &Compare, context: &Context) -> Result<Exit, Fault> {
    let mut candidates: Vec<Candidate> = vec![arguments.a.clone()];
    candidates.extend(arguments.b.iter().cloned());
    let span = |span: Nanoseconds| Duration::from_nanos(span.0);
    let options = Options {
        candidates,
        deciding: arguments.metric.clone(),
        margin: arguments.margin / 100.0,
        window: span(arguments.window),
        guard: span(arguments.guard_time),
        most: Duration::from_secs(arguments.max_seconds),
        seed: arguments.seed.unwrap_or_else(|| clock::now().unix_micros),
    };
    let selection = arguments.service.selection();
    let mut comparison =
        Comparison::prepare(options.clone(), &selection, &context.session, &context.console)?;
    by_daemon::refuse_beside_any(&comparison.target().netns, context)?;
    announce(&mut comparison, &options, context);
    let record = arguments.record.as_deref();
    let record = record.map(|path| PairRecord::create(path, comparison.target(), &options));
    let mut listener =
        Listener { context, record: record.transpose()?, unrecorded: None, most: options.most };
    // From here on a signal ends the comparison in order; a kill is the guard's business.
    let mut signals = Signals::catch()?;
    let netns = comparison.target().netns.again()?;
    let namespaces = comparison.alternation().namespaces(&netns)?;
    let stays = u64::try_from((options.most + GUARD_STAYS).as_nanos()).unwrap_or(u64::MAX);
    let deadline = Nanoseconds(clock::now().since_boot.0.saturating_add(stays));
    let (theirs, ours) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|errno| Fault::file("the pipe to the guard", errno.into()))?;
    let mut guard = guard_process::start(&context.session, deadline, &namespaces, Some(&theirs))?;
    let shown = comparison.run(&mut signals, &mut listener);
    context.console.progress("");
    let kept = match &shown {
        Ok(shown) if arguments.keep_winner => keep_winner(&mut comparison, shown, &options, context),
        Ok(_) | Err(_) => Ok(None),
    };
    let _ = guard.kill();
    let _ = guard.wait();
    drop::<OwnedFd>(ours);
    let (shown, kept) = (shown?, kept?);
    let switching = SwitchCost::of(&shown.switches);
    let kept = kept.map(|name| name.to_string());
    let service = comparison.target().name.clone();
    watch::keep(comparison.target(), "compare", None, context);
    let report = CompareReport::of(&service, &shown.switchback, shown.took, shown.ended.words());
    context.console.report(&report.with(switching, shown.findings, kept.clone()))?;
    match kept {
        Some(name) => {
            context
                .console
                .say(&format!("The winner stays in force. `netpolicy rollback {name}` undoes it."));
        }
        None => context.console.say("The host is as it was before."),
    }
    if shown.ended == Ended::Service {
        return Err(Fault::failed(format!("{service} ended while it was measured, and did not come back")));
    }
    match listener.unrecorded {
        Some(fault) => Err(fault.leaving(HostState::Done)),
        None => Ok(Exit::Done),
    }
}

/// Says what is compared, and what each candidate changes.
fn announce(comparison: &mut Comparison<'_>, options: &Options, context: &Context) {
    let ports: Vec<String> = comparison.target().ports.iter().map(ToString::to_string).collect();
    let name = comparison.target().name.clone();
    let name = if name.starts_with("port ") { name } else { format!("{name}, port {}", ports.join(", ")) };
    let mut words = Vec::new();
    for (at, candidate) in options.candidates.iter().enumerate() {
        let changes = comparison.alternation().changes(at).changes().count();
        words.push(format!("{} ({changes} settings)", candidate.name));
    }
    context.console.say(&format!(
        "{name}: {}; at most {} s, Ctrl-C ends it",
        words.join(" against "),
        options.most.as_secs()
    ));
    for (at, candidate) in options.candidates.iter().enumerate().skip(1) {
        if comparison.alternation().are_same(0, at) {
            context.console.say(&format!(
                "{} and {} are the same on this host: this measures the noise.",
                options.candidates[0].name, candidate.name
            ));
        }
    }
}

/// Brings the winner into force for good, if there is one that changes anything.
fn keep_winner(
    comparison: &mut Comparison<'_>,
    shown: &Shown,
    options: &Options,
    context: &Context,
) -> Result<Option<TransactionName>, Fault> {
    match shown.switchback.winner() {
        None => {
            context.console.say("There is no winner to keep.");
            Ok(None)
        }
        Some(winner) => {
            context.console.say(&format!("The winner is {}.", options.candidates[winner].name));
            let kept = comparison.alternation().keep(winner)?;
            if let Some(name) = kept {
                let service = comparison.target().name.clone();
                let verdict = judge::judgement(&shown.switchback, winner, &service, shown.took);
                if let Err(error) = context.session.journal()?.note_judgement(name, &verdict) {
                    context.console.say(&format!("The verdict is not in the journal: {error}"));
                }
            }
            Ok(kept)
        }
    }
}

/// Shows and keeps each round.
struct Listener<'a> {
    context: &'a Context,
    record: Option<PairRecord>,
    /// Why the record ended before the comparison.
    unrecorded: Option<Fault>,
    most: Duration,
}

impl Progress for Listener<'_> {
    fn round(&mut self, round: &Round, so_far: &Switchback, elapsed: Duration) -> Result<(), Fault> {
        let console = &self.context.console;
        if let Some(record) = &mut self.record
            && let Err(fault) = record.add(round, elapsed.as_secs_f64())
        {
            console.say(&format!("The record ends here: {}", fault.cause));
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
