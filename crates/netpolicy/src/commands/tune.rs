//! `tune`: finds the best setting for a running service on its own traffic.

use std::path::Path;
use std::time::{Duration, Instant};

use apply::TransactionName;
use daemon::running_daemon;
use latency::judge::{
    Aim, Candidate, Comparison, Ended, FINALISTS, Offer, Options, Out, Progress, Round, Shown, Stage,
    Standing, halved, neighbours, offers, progress_words, section, standings, windows_least,
};
use latency::live::Selection;
use latency::reports::TuneReport;
use linux::Signals;
use measure::switchback::{Switchback, Unfair};
use model::{Finding, Plan};
use session::{Exit, Fault, HostState, clock, quoted};

use super::{compare, init};
use crate::args::Tune;
use cli::Context;

/// Tunes, and prints the result.
pub(crate) fn run(arguments: &Tune, context: &Context) -> Result<Exit, Fault> {
    let aim = Aim { metric: arguments.goal, limits: arguments.guard };
    let selection = arguments.service.selection();
    let only = arguments.only;
    let offers = offers(&arguments.candidate, only, &selection, &context.session, &context.console)?;
    let mut tuning = Tuning::new(arguments, aim, selection, context)?;
    let mut report = TuneReport::of(&tuning.service, &tuning.aim, &offers);
    if arguments.dry_run {
        return context.console.report(&report).map(|()| Exit::Done);
    }
    if let Some(path) = arguments.write.as_deref().filter(|path| path.exists()) {
        let there = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        return Err(Fault::file(path, there)
            .hint("existing files are not overwritten: remove it first, or name another file"));
    }
    let found = tuning.find(&offers, &mut report);
    context.console.progress("");
    let found = found?;
    let kept = found.kept.first().map(ToString::to_string);
    report.end(
        tuning.began.elapsed().as_secs_f64(),
        found.ended.map(|why| why.words().to_owned()),
        kept,
        found.findings,
    );
    context.console.report(&report)?;
    if let Some(path) = &arguments.write {
        write(path, &report, context)?;
    }
    match found.kept.is_empty() {
        true => context.console.say("The host was restored."),
        false => {
            let undo: Vec<String> =
                found.kept.iter().rev().map(|name| format!("`netpolicy rollback {name}`")).collect();
            context.console.say(&format!("It stays in force. {} undoes it.", undo.join(", then ")));
        }
    }
    match found.ended.and_then(|why| why.fault(&tuning.service)) {
        Some(fault) => Err(fault),
        None => Ok(Exit::Done),
    }
}

/// Writes the winner to a policy file, or says why there is none.
fn write(path: &Path, report: &TuneReport, context: &Context) -> Result<(), Fault> {
    let there = quoted(&path.to_string_lossy());
    let (Some(section), Some(evidence)) = (report.section(), report.evidence()) else {
        let why = match report.evidence() {
            Some(_) => "the winner is a policy file already, or a setting of a device",
            None => "there is no winner",
        };
        context.console.say(&format!("{there} was not written: {why}."));
        return Ok(());
    };
    let text = format!("# Found by `netpolicy tune`, {}: {evidence}.\n{section}", clock::now());
    init::write(path, &text).map_err(|fault| fault.leaving(HostState::Done))?;
    context.console.say(&format!("Wrote {there}. To apply it: netpolicy apply --policy-file {there}"));
    Ok(())
}

/// The result of a tuning.
struct Found {
    /// Why it ended before a verdict, if so.
    ended: Option<Ended>,
    /// The transactions by which the winner stays in force.
    kept: Vec<TransactionName>,
    findings: Vec<Finding>,
}

/// The context of all stages.
struct Tuning<'a> {
    arguments: &'a Tune,
    aim: Aim,
    selection: Selection,
    context: &'a Context,
    service: String,
    ports: Vec<u16>,
    began: Instant,
    /// The seed for the order of candidates; each stage has a different one.
    seed: u64,
}

impl<'a> Tuning<'a> {
    fn new(arguments: &'a Tune, aim: Aim, selection: Selection, context: &'a Context) -> Result<Self, Fault> {
        let target = latency::live::Target::of(&selection, &context.session, &session::Silent)?;
        running_daemon::refuse_beside_any(&context.session, &target.netns)?;
        let seed = arguments.seed.unwrap_or_else(|| clock::now().unix_micros);
        let (service, ports) = (target.name, target.ports);
        Ok(Self { arguments, aim, selection, context, service, ports, began: Instant::now(), seed })
    }

    /// The time of a window and its switch.
    fn turn(&self) -> Duration {
        Duration::from_nanos(self.arguments.window.0 + self.arguments.guard_time.0)
    }

    fn left(&self) -> Duration {
        Duration::from_secs(self.arguments.seconds).saturating_sub(self.began.elapsed())
    }

    fn options(&self, candidates: &[Candidate], stage: Stage, most: Duration) -> Options {
        let mut all = vec![Candidate::current()];
        all.extend(candidates.iter().cloned());
        Options {
            candidates: all,
            deciding: vec![self.aim.metric],
            limits: Vec::new(),
            margin: self.arguments.margin / 100.0,
            window: Duration::from_nanos(self.arguments.window.0),
            guard: Duration::from_nanos(self.arguments.guard_time.0),
            most,
            rounds: stage.rounds(),
            seed: self.seed,
            disruptive: false,
        }
    }

    /// Refuses a time limit that is too short for a verdict.
    fn refuse_if_too_short(&self, candidates: usize) -> Result<(), Fault> {
        let pairs = self.options(&[], Stage::Proof, Duration::ZERO).rule().pairs_least(FINALISTS);
        let windows = windows_least(candidates, !self.arguments.only, pairs);
        let least = (self.turn() * u32::try_from(windows).unwrap_or(u32::MAX)).as_secs_f64().ceil();
        if least <= self.left().as_secs_f64() {
            self.context.console.say(&format!(
                "{}: {candidates} candidates; {least:.0} to {} s, press Ctrl-C to stop",
                self.service, self.arguments.seconds
            ));
            return Ok(());
        }
        Err(Fault::new(
            Exit::Refused,
            format!(
                "{} s are too short for {candidates} candidates: they need at least {least:.0} s",
                self.arguments.seconds
            ),
        )
        .hint("give it more time (--seconds), or fewer candidates (--candidate X --only)"))
    }

    fn find(&mut self, offers: &[Offer], report: &mut TuneReport) -> Result<Found, Fault> {
        let known: Vec<(Candidate, Plan)> = offers
            .iter()
            .filter_map(|offer| Some((offer.candidate.clone(), offer.plan.as_ref().ok()?.clone())))
            .collect();
        if known.is_empty() {
            return Err(Fault::new(Exit::Refused, format!("{}: no candidate can be tried", self.service))
                .hint("add --dry-run to see why not"));
        }
        self.refuse_if_too_short(known.len())?;
        let mut signals = Signals::catch()?;
        let mut left: Vec<Candidate> = known.iter().map(|(candidate, _)| candidate.clone()).collect();
        loop {
            let shown = self.stage(&left, Stage::Halving, &mut signals)?;
            let stands = standings(Stage::Halving, &shown.switchback, &self.aim);
            // Two candidates both go on.
            let stands = if left.len() > FINALISTS { halved(stands) } else { stands };
            report.add(Stage::Halving, &shown.switchback, &stands);
            left = Self::stay(&left, &stands);
            if Self::breaks_off(shown.ended) || left.is_empty() {
                return Ok(Self::without(shown));
            }
            self.refuse_if_nothing_counts(&shown.switchback)?;
            if left.len() <= FINALISTS {
                break;
            }
        }
        let best = &left[0];
        let plan = known.iter().find(|(candidate, _)| candidate.name == best.name).map(|(_, plan)| plan);
        let others = match plan {
            Some(plan) if !self.arguments.only => self.possible(&neighbours(best, plan))?,
            _ => Vec::new(),
        };
        if !others.is_empty() {
            let mut all = vec![best.clone()];
            all.extend(others);
            let shown = self.stage(&all, Stage::Neighbourhood, &mut signals)?;
            let mut stands = standings(Stage::Neighbourhood, &shown.switchback, &self.aim);
            for behind in stands.iter_mut().skip(1).filter(|stands| stands.out.is_none()) {
                behind.out = Some(Out::Behind);
            }
            report.add(Stage::Neighbourhood, &shown.switchback, &stands);
            if Self::breaks_off(shown.ended) {
                return Ok(Self::without(shown));
            }
            let best = Self::stay(&all, &stands);
            // The previous best is the runner-up of its own variant.
            let before = if best.first().is_some_and(|best| best.name == left[0].name) { 1 } else { 0 };
            left = best.into_iter().chain(left.into_iter().skip(before)).take(FINALISTS).collect();
        }
        self.prove(&left, &mut signals, report)
    }

    /// The candidates that the planner accepts and that differ.
    fn possible(&self, candidates: &[Candidate]) -> Result<Vec<Candidate>, Fault> {
        let offers = offers(candidates, true, &self.selection, &self.context.session, &session::Silent)?;
        Ok(offers.into_iter().filter(|offer| offer.plan.is_ok()).map(|offer| offer.candidate).collect())
    }

    /// Refuses to go on if no round counted: the candidates cannot be ranked.
    fn refuse_if_nothing_counts(&self, switchback: &Switchback) -> Result<(), Fault> {
        if switchback.rounds() > 0 {
            return Ok(());
        }
        let usual = switchback.voided().iter().max_by_key(|(_, rounds)| *rounds).map(|(why, _)| *why);
        let why = usual.map_or_else(|| "the time limit was reached".to_owned(), |why| why.to_string());
        let hint = match usual {
            Some(Unfair::Rates) => {
                "clients that wait for answers make the rate depend on the candidate: --goal requests"
            }
            Some(Unfair::Loss) => {
                "netpolicy watch shows the loss, and ss -ti on which connections: repeat it when the network is steadier"
            }
            _ => "repeat it when the host and its traffic are steadier, or use longer windows (--window 5s)",
        };
        let words = format!("{}: no valid round, so candidates cannot be ranked: {why}", self.service);
        Err(Fault::new(Exit::Refused, words).hint(hint).leaving(HostState::Restored))
    }

    /// Compares the finalists with the current settings, and keeps the winner if requested.
    fn prove(
        &mut self,
        finalists: &[Candidate],
        signals: &mut Signals,
        report: &mut TuneReport,
    ) -> Result<Found, Fault> {
        let options = self.options(finalists, Stage::Proof, self.left());
        let mut comparison = self.prepare(&options)?;
        let guard = compare::guardian(&mut comparison, options.most, self.context)?;
        let shown = comparison
            .run(signals, &mut Watcher { context: self.context, stage: Stage::Proof, most: options.most })?;
        let stands = standings(Stage::Proof, &shown.switchback, &self.aim);
        report.add(Stage::Proof, &shown.switchback, &stands);
        let winner = stands.first().filter(|best| best.out.is_none()).map(|best| best.candidate);
        let mut kept = Vec::new();
        if let Some(winner) = winner {
            let port = self.ports.first();
            let file = port.and_then(|port| section(&options.candidates[winner], &self.service, *port));
            report.win(&shown.switchback, winner, file);
            if self.arguments.keep_winner {
                kept = comparison.keep(winner)?;
                let verdict = latency::judge::judgement(&shown.switchback, winner, &self.service, shown.took);
                for name in &kept {
                    if let Err(error) = self.context.session.journal()?.note_judgement(*name, &verdict) {
                        self.context.console.say(&format!("The verdict is not in the journal: {error}"));
                    }
                }
            }
        }
        guard.dismiss();
        let ended = Some(shown.ended).filter(|ended| winner.is_none() && *ended != Ended::Decided);
        Ok(Found { ended, kept, findings: shown.findings })
    }

    fn prepare(&mut self, options: &Options) -> Result<Comparison<'a>, Fault> {
        self.seed = self.seed.wrapping_add(1);
        Comparison::prepare(options.clone(), &self.selection, &self.context.session, &self.context.console)
    }

    fn stage(
        &mut self,
        candidates: &[Candidate],
        stage: Stage,
        signals: &mut Signals,
    ) -> Result<Shown, Fault> {
        let options = self.options(candidates, stage, self.left());
        let mut comparison = self.prepare(&options)?;
        let guard = compare::guardian(&mut comparison, options.most, self.context)?;
        let shown =
            comparison.run(signals, &mut Watcher { context: self.context, stage, most: options.most })?;
        guard.dismiss();
        Ok(shown)
    }

    /// The remaining candidates, the best first.
    fn stay(candidates: &[Candidate], stands: &[Standing]) -> Vec<Candidate> {
        let stay = stands.iter().filter(|stands| stands.out.is_none());
        stay.map(|stands| candidates[stands.candidate - 1].clone()).collect()
    }

    /// Whether no other stage follows.
    const fn breaks_off(ended: Ended) -> bool {
        matches!(ended, Ended::Interrupted | Ended::Service | Ended::Requests)
    }

    fn without(shown: Shown) -> Found {
        let ended = Some(shown.ended).filter(|ended| Self::breaks_off(*ended));
        Found { ended, kept: Vec::new(), findings: shown.findings }
    }
}

/// Shows the progress of a stage.
struct Watcher<'a> {
    context: &'a Context,
    stage: Stage,
    most: Duration,
}

impl Progress for Watcher<'_> {
    fn stretch(&mut self, words: &str) -> Result<(), Fault> {
        self.context.console.progress(words);
        Ok(())
    }

    fn round(&mut self, round: &Round, so_far: &Switchback, elapsed: Duration) -> Result<(), Fault> {
        let console = &self.context.console;
        if let Some(why) = round.void {
            console.detail(&format!("round {} is void: {why}", round.number));
        }
        if console.has_watcher() {
            console.progress(&format!("{}: {}", self.stage, progress_words(so_far, elapsed, self.most)));
        }
        Ok(())
    }
}
