//! `tune`: finds the best setting for a running service on its own traffic.

use std::path::Path;
use std::time::{Duration, Instant};

use apply::TransactionName;
use cli::Context;
use daemon::running_daemon;
use latency::judge::{
    Aim, Candidate, Chooser, Comparison, ComparisonLock, ComparisonOptions, ComparisonProgress, Ended, Offer,
    RESUMES_WITHIN_SECONDS, Round, Setup, TuneRecord, Tuned, TunedRound, Tuner, TunerStage, TunerStep,
    Unfinished, VARIANTS_MAX, is_same_load, metric_of, offers, ordered, progress_words, section, variants,
};
use latency::live::text::ago;
use latency::live::{MeasuredService, ServiceSelection, WatchEvent, Watcher};
use latency::measure::switchback::{Figures, Metric, Switchback, Unfair};
use latency::reports::{TuneReport, html_of_search};
use linux::Signals;
use linux::machine::seconds_since_1970;
use model::{Finding, Limits, Plan};
use session::{Exit, Fault, HostState, clock, quoted};

use super::{compare, init};
use crate::args::Tune;
use crate::tune_args::USUAL_LIMITS;

/// The length of the window that measures the present request rate.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// Searches for the best setting, and prints the result.
pub(crate) fn run(arguments: &Tune, context: &Context) -> Result<Exit, Fault> {
    check_limits(arguments.goal, arguments.guard, context)?;
    let selection = arguments.service.selection();
    let target = MeasuredService::of(&selection, &context.session, &session::Silent)?;
    let mut lock = None;
    if !arguments.dry_run {
        running_daemon::refuse_beside_any(&context.session, &target.netns)?;
        lock = Some(ComparisonLock::take(&context.session, &target.netns)?);
    }
    let mut tuning = Tuning::new(arguments, lock, selection, target, context);
    let offers = tuning.offers()?;
    let mut report = TuneReport::of(&tuning.target.name, &tuning.aim, &offers);
    if arguments.dry_run {
        return context.console.report(&report).map(|()| Exit::Done);
    }
    if let Some(path) = arguments.write.as_deref().filter(|path| path.exists()) {
        let there = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        return Err(Fault::file(path, there)
            .hint("existing files are not overwritten: remove the file first, or name another one"));
    }
    let found = tuning.find(&offers, &mut report);
    context.console.progress("");
    let found = found?;
    let drawn = arguments.report.as_deref().map(|path| {
        let name = &tuning.target.name;
        let page = html_of_search(name, tuning.aim.metric, &found.tuner, report.winner());
        compare::draw(path, &page, context)
    });
    let kept = found.kept.first().map(ToString::to_string);
    report.end(
        tuning.began.elapsed().as_secs_f64(),
        found.ended.map(|why| why.words().to_owned()),
        kept,
        found.findings,
    );
    context.console.report(&report)?;
    drawn.transpose()?;
    if let Some(path) = &arguments.write {
        write(path, &report, context)?;
    }
    match found.kept.is_empty() {
        true => context.console.say("The host was restored."),
        false => {
            let undo: Vec<String> =
                found.kept.iter().rev().map(|name| format!("`netpolicy rollback {name}`")).collect();
            context.console.say(&format!("The winner stays in force. {} undoes it.", undo.join(", then ")));
        }
    }
    match found.ended.and_then(|why| why.fault(&tuning.target.name)) {
        Some(fault) => Err(fault),
        None => Ok(Exit::Done),
    }
}

/// Reports that a limit on the goal has no effect, because the winner must improve the goal. Refuses such a
/// limit if it is the only one: any other metric could then grow without a bound.
fn check_limits(goal: Metric, limits: Limits, context: &Context) -> Result<(), Fault> {
    let of_goal = limits.iter().find(|(guarded, _)| metric_of(*guarded) == goal);
    let Some((_, most)) = of_goal.filter(|_| limits.to_string() != USUAL_LIMITS) else { return Ok(()) };
    if limits.iter().count() == 1 {
        let words =
            format!("--guard {goal}={most} limits only {goal}, which is the goal and must improve anyway");
        let other = if goal == Metric::Cpu { "p99=+15%" } else { "cpu=+25%" };
        return Err(Fault::new(Exit::Refused, words)
            .hint(format!("name the metrics that may grow when {goal} improves, as in --guard {other}")));
    }
    context
        .console
        .say(&format!("{goal} is the goal and must improve: the limit {goal}={most} has no effect."));
    Ok(())
}

/// Writes the winner to a policy file, or reports why there is none.
fn write(path: &Path, report: &TuneReport, context: &Context) -> Result<(), Fault> {
    let there = quoted(&path.to_string_lossy());
    let (Some(section), Some(evidence)) = (report.section(), report.evidence()) else {
        let why = match report.evidence() {
            Some(_) => "the winner already is a policy file, or a setting of a device",
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

/// The result of a search.
struct SearchResult {
    /// Why the tuning ended before a verdict; `None` if it reached one.
    ended: Option<Ended>,
    /// The transactions that keep the winner in force.
    kept: Vec<TransactionName>,
    findings: Vec<Finding>,
    /// The tuner, with everything that was measured.
    tuner: Tuner,
}

/// The context of a search.
struct Tuning<'a> {
    arguments: &'a Tune,
    aim: Aim,
    /// Held for the whole search, which is several comparisons; `None` in a dry run.
    lock: Option<ComparisonLock>,
    selection: ServiceSelection,
    target: MeasuredService,
    context: &'a Context,
    began: Instant,
    /// The time that the resumed search has already spent.
    spent: Duration,
    /// The seed for the order of candidates.
    seed: u64,
    signals: Option<Signals>,
}

impl<'a> Tuning<'a> {
    fn new(
        arguments: &'a Tune,
        lock: Option<ComparisonLock>,
        selection: ServiceSelection,
        target: MeasuredService,
        context: &'a Context,
    ) -> Self {
        let aim = Aim { metric: arguments.goal, limits: arguments.guard };
        let seed = arguments.seed.unwrap_or_else(|| clock::now().unix_micros);
        let (began, spent) = (Instant::now(), Duration::ZERO);
        Self { arguments, aim, lock, selection, target, context, began, spent, seed, signals: None }
    }

    fn window(&self) -> Duration {
        Duration::from_nanos(self.arguments.window.0)
    }

    /// Returns the length of a window plus the pause before it.
    fn turn(&self) -> Duration {
        Duration::from_nanos(self.arguments.window.0 + self.arguments.guard_time.0)
    }

    fn left(&self) -> Duration {
        Duration::from_secs(self.arguments.seconds).saturating_sub(self.spent + self.began.elapsed())
    }

    /// Returns the number of windows that fit into the time limit.
    fn windows(&self) -> usize {
        let windows = u128::from(self.arguments.seconds) * 1_000_000_000 / self.turn().as_nanos().max(1);
        usize::try_from(windows).unwrap_or(usize::MAX)
    }

    fn setup(&self, offers: &[Offer]) -> Setup {
        let of = Setup::of(&self.target, self.aim.metric, self.aim.limits, offers);
        let seconds = |nanoseconds: model::Nanoseconds| Duration::from_nanos(nanoseconds.0).as_secs_f64();
        let window = [seconds(self.arguments.window), seconds(self.arguments.guard_time)];
        Setup { margin: self.arguments.margin, window, seconds: self.arguments.seconds, ..of }
    }

    /// Returns the candidates, in an order based on earlier searches.
    fn offers(&mut self) -> Result<Vec<Offer>, Fault> {
        let session = &self.context.session;
        let offers = offers(&self.arguments.candidate, self.arguments.only, &self.target, session);
        let (setup, now) = (self.setup(&offers), seconds_since_1970());
        let trials: Vec<Tuned> =
            Tuned::all(session).into_iter().filter(|trial| trial.is_of(&setup, now)).collect();
        if trials.is_empty() || self.arguments.afresh {
            return Ok(offers);
        }
        let rate = self.rate()?;
        let same: Vec<&Tuned> = trials.iter().filter(|trial| is_same_load(trial.rate, rate)).collect();
        if same.is_empty() {
            self.context.console.say(&format!(
                "{}: earlier searches are ignored: the request rate was {:.0}/s, and is {rate:.0}/s now",
                self.target.name, trials[0].rate
            ));
        }
        let named: Vec<String> =
            self.arguments.candidate.iter().map(|candidate| candidate.name.clone()).collect();
        Ok(ordered(offers, &same, &named, now))
    }

    fn signals(&mut self) -> Result<Signals, Fault> {
        match self.signals.take() {
            Some(signals) => Ok(signals),
            None => Ok(Signals::catch()?),
        }
    }

    /// Measures the present request rate, per second.
    fn rate(&mut self) -> Result<f64, Fault> {
        let mut signals = self.signals()?;
        let turn = Watcher::load(&self.target, RATE_WINDOW)?.turn(Instant::now(), &mut signals)?;
        self.signals = Some(signals);
        match turn {
            WatchEvent::Window(shown) => Ok(Figures::of(&shown.window, None, None).rate()),
            WatchEvent::Interrupted => Err(Fault::failed("interrupted; nothing was changed")),
            WatchEvent::Ended => Err(Fault::failed(format!("{} ended", self.target.name))),
        }
    }

    fn options(&self, candidates: &[Candidate]) -> ComparisonOptions {
        ComparisonOptions {
            candidates: candidates.to_vec(),
            deciding: vec![self.aim.metric],
            limits: Vec::new(),
            margin: self.arguments.margin / 100.0,
            window: self.window(),
            guard: Duration::from_nanos(self.arguments.guard_time.0),
            most: self.left(),
            seed: self.seed,
            disruptive: false,
        }
    }

    /// Refuses a time limit that does not suffice for a verdict.
    fn refuse_if_too_short(&self, candidates: usize) -> Result<(), Fault> {
        let windows = Tuner::windows_least(candidates, if self.arguments.only { 0 } else { VARIANTS_MAX });
        let least = (self.turn() * u32::try_from(windows).unwrap_or(u32::MAX)).as_secs_f64().ceil();
        if least <= Duration::from_secs(self.arguments.seconds).as_secs_f64() {
            self.context.console.say(&format!(
                "{}: {candidates} candidates; at most {:.0} s, press Ctrl-C to stop",
                self.target.name,
                self.left().as_secs_f64()
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

    /// Returns the rounds of the unfinished search that `--resume` continues; empty without `--resume`.
    fn resumed(&mut self, setup: &Setup) -> Result<Vec<TunedRound>, Fault> {
        const START_OVER: &str = "omit --resume to start over";
        let name = self.target.name.clone();
        let refused = |words: String, hint: &str| Fault::new(Exit::Refused, words).hint(hint.to_owned());
        let unfinished = Unfinished::of(&self.context.session, self.target.netns.id());
        if !self.arguments.resume {
            let fits = |unfinished: &Unfinished| unfinished.setup.difference(setup).is_none();
            let age = |unfinished: &Unfinished| seconds_since_1970().saturating_sub(unfinished.at);
            let unfinished = unfinished.ok().flatten().filter(fits);
            if let Some(unfinished) = unfinished.filter(|one| age(one) < RESUMES_WITHIN_SECONDS) {
                self.context.console.say(&format!(
                    "{name}: starting a new search; use --resume to continue the one interrupted {1}, with its {0} windows",
                    unfinished.windows(),
                    ago(age(&unfinished))
                ));
            }
            return Ok(Vec::new());
        }
        let Some(unfinished) = unfinished? else {
            let words = format!("{name}: there is no unfinished search in this network namespace");
            return Err(refused(words, "omit --resume to begin one"));
        };
        if let Some(why) = unfinished.setup.difference(setup) {
            return Err(refused(format!("{name}: the unfinished search cannot resume: {why}"), START_OVER));
        }
        let age = seconds_since_1970().saturating_sub(unfinished.at);
        if age > RESUMES_WITHIN_SECONDS {
            let words =
                format!("{name}: the unfinished search cannot resume: its last window ended {}", ago(age));
            return Err(refused(words, START_OVER));
        }
        let now = self.rate()?;
        if let Some(then) = unfinished.rate().filter(|then| !is_same_load(*then, now)) {
            let words = format!(
                "{name}: the unfinished search cannot resume: the request rate was {then:.0}/s, and is {now:.0}/s now"
            );
            return Err(refused(words, START_OVER));
        }
        Ok(unfinished.rounds)
    }

    /// Replays the rounds of an unfinished search, up to the first one that differs from what this search
    /// would measure. Returns the replayed rounds.
    fn add_again(
        &self,
        rounds: Vec<TunedRound>,
        tuner: &mut Tuner,
        candidates: &mut Vec<(Candidate, Plan)>,
    ) -> Vec<TunedRound> {
        let mut added = Vec::new();
        for round in rounds {
            if let TunerStep::Variants(best) = tuner.step() {
                self.add_variants(best, tuner, candidates);
            }
            let TunerStep::Round { stage, candidates: wanted, .. } = tuner.step() else { break };
            let names: Vec<&String> = wanted.iter().map(|candidate| &tuner.names()[*candidate]).collect();
            if round.stage != stage || names.iter().copied().ne(&round.candidates) {
                break;
            }
            match (round.figures.len() == wanted.len(), round.void) {
                (true, seen) => drop(tuner.add(&round.figures, seen)),
                (false, Some(why)) => tuner.void(why),
                (false, None) => break,
            }
            added.push(round);
        }
        added
    }

    /// Adds the variants of a candidate that the planner accepts and whose plans differ from the others.
    fn add_variants(&self, best: usize, tuner: &mut Tuner, candidates: &mut Vec<(Candidate, Plan)>) {
        let (candidate, plan) = &candidates[best];
        let devices = &self.target.host.devices;
        let all = variants(candidate, plan, |id| devices.iter().find(|device| device.id == id)?.coalesce);
        let offers = offers(&all, true, &self.target, &self.context.session);
        for offer in &offers {
            if let Err(out) = &offer.plan {
                self.context.console.detail(&format!("{} is not tried: {out}", offer.candidate.name));
            }
        }
        let known = offers.into_iter().filter_map(|offer| Some((offer.candidate, offer.plan.ok()?)));
        let first = candidates.len();
        candidates.extend(known);
        tuner.add_variants(candidates[first..].iter().map(|(candidate, _)| candidate.name.clone()).collect());
    }

    fn find(&mut self, offers: &[Offer], report: &mut TuneReport) -> Result<SearchResult, Fault> {
        let mut candidates = vec![(Candidate::current(), Plan::default())];
        let known = |offer: &Offer| Some((offer.candidate.clone(), offer.plan.as_ref().ok()?.clone()));
        candidates.extend(offers.iter().filter_map(known));
        if candidates.len() == 1 {
            let words = format!("{}: no candidate can be tried", self.target.name);
            return Err(Fault::new(Exit::Refused, words).hint("add --dry-run to see why not"));
        }
        self.refuse_if_too_short(candidates.len() - 1)?;
        let setup = self.setup(offers);
        let rounds = self.resumed(&setup)?;
        let mut signals = self.signals()?;
        let names = candidates.iter().map(|(candidate, _)| candidate.name.clone()).collect();
        let margin = self.arguments.margin / 100.0;
        let mut tuner = Tuner::new(names, self.aim.clone(), margin, !self.arguments.only, self.windows());
        let rounds = self.add_again(rounds, &mut tuner, &mut candidates);
        let resumed = tuner.windows();
        self.spent = self.turn() * u32::try_from(tuner.spent()).unwrap_or(u32::MAX);
        if resumed > 0 {
            let at = rounds.last().map_or(0, |round| seconds_since_1970().saturating_sub(round.at));
            let name = &self.target.name;
            self.context.console.say(&format!(
                "{name}: resumes after {resumed} windows that were measured until {}",
                ago(at)
            ));
        }
        let netns = self.target.netns.id();
        let mut record = TuneRecord::begin(&self.context.session, netns, &setup, &rounds)?;
        let (mut findings, mut kept, mut ended) = (Vec::new(), Vec::new(), Ended::Decided);
        while ended == Ended::Decided && tuner.step() != TunerStep::Done {
            if let TunerStep::Variants(best) = tuner.step() {
                self.add_variants(best, &mut tuner, &mut candidates);
            }
            let mut comparison = self.prepare(&candidates)?;
            let most = self.left();
            let guard = compare::guardian(&mut comparison, most, self.context)?;
            let mut chooser = Search { tuner: &mut tuner, record: &mut record, window: self.window() };
            let mut watcher = Watched { context: self.context, most };
            ended = comparison.choose(&mut chooser, &mut signals, &mut watcher)?;
            if ended == Ended::Time {
                tuner.end();
            }
            findings = comparison.findings(tuner.rounds());
            if let Some(winner) = tuner.winner() {
                kept = self.win(&tuner, winner, (&candidates, &mut comparison), report)?;
            }
            guard.dismiss();
        }
        report.take(&tuner, resumed);
        if tuner.is_stuck() && ended == Ended::Decided {
            record.remove()?;
            return Err(self.nothing_counts(tuner.rounds()));
        }
        match ended {
            Ended::Decided | Ended::Time => {
                if let Some(trial) = Tuned::of(&setup, &tuner) {
                    trial.keep(&self.context.session)?;
                }
                record.remove()?;
            }
            Ended::Unpaired(_) if tuner.windows() == 0 => record.remove()?,
            Ended::Interrupted | Ended::Service | Ended::Requests | Ended::Unpaired(_) => {
                let words = "The measurements are kept for a day: --resume continues with them.";
                self.context.console.say(words);
            }
        }
        let ended = Some(ended).filter(|ended| tuner.winner().is_none() && *ended != Ended::Decided);
        Ok(SearchResult { ended, kept, findings, tuner })
    }

    /// Reports the winner, and keeps it if requested.
    fn win(
        &self,
        tuner: &Tuner,
        winner: usize,
        (candidates, comparison): (&[(Candidate, Plan)], &mut Comparison<'_>),
        report: &mut TuneReport,
    ) -> Result<Vec<TransactionName>, Fault> {
        let Some(in_proof) = tuner.winner_in_proof() else { return Ok(Vec::new()) };
        let port = self.target.ports.all().first().copied();
        let file = port.and_then(|port| section(&candidates[winner].0, &self.target.name, port));
        report.win(tuner.rounds(), in_proof, file);
        if !self.arguments.keep_winner {
            return Ok(Vec::new());
        }
        let kept = comparison.keep(winner)?;
        let took = self.began.elapsed();
        let verdict = latency::judge::judgement(tuner.rounds(), in_proof, &self.target.name, took);
        for name in &kept {
            if let Err(error) = self.context.session.journal()?.note_judgement(*name, &verdict) {
                self.context.console.say(&format!("The verdict is not in the journal: {error}"));
            }
        }
        Ok(kept)
    }

    /// Returns the error for a search in which no round is valid, so that the candidates cannot be ranked.
    fn nothing_counts(&self, switchback: &Switchback) -> Fault {
        let usual = switchback.voided().iter().max_by_key(|(_, rounds)| *rounds).map(|(why, _)| *why);
        let why = usual.map_or_else(|| "the time limit was reached".to_owned(), |why| why.to_string());
        let hint = match usual {
            Some(Unfair::Rates) => {
                "if clients wait for answers, the request rate depends on the candidate: --goal requests"
            }
            Some(Unfair::Loss) => {
                "repeat the search when the network is steadier; netpolicy watch shows the loss, ss -ti the affected connections"
            }
            _ => {
                "repeat the search when the host and its traffic are steadier, or use longer windows (--window 5s)"
            }
        };
        let words = format!("{}: no valid round, so candidates cannot be ranked: {why}", self.target.name);
        Fault::new(Exit::Refused, words).hint(hint).leaving(HostState::Restored)
    }

    fn prepare(&mut self, candidates: &[(Candidate, Plan)]) -> Result<Comparison<'a>, Fault> {
        self.seed = self.seed.wrapping_add(1);
        let candidates: Vec<Candidate> = candidates.iter().map(|(candidate, _)| candidate.clone()).collect();
        let options = self.options(&candidates);
        Comparison::prepare(
            options,
            self.lock.clone(),
            &self.selection,
            &self.context.session,
            &self.context.console,
        )
    }
}

/// Measures the candidates that a search asks for, and records the results.
struct Search<'a> {
    tuner: &'a mut Tuner,
    record: &'a mut TuneRecord,
    window: Duration,
}

impl Search<'_> {
    /// Returns the candidates to measure next, with their names.
    fn asked(&self) -> Option<(TunerStage, u32, Vec<usize>, Vec<String>)> {
        let TunerStep::Round { stage, part, candidates } = self.tuner.step() else { return None };
        let names = candidates.iter().map(|candidate| self.tuner.names()[*candidate].clone()).collect();
        Some((stage, part, candidates, names))
    }
}

impl Chooser for Search<'_> {
    fn next(&mut self) -> Option<(Vec<usize>, Duration)> {
        let (_, part, candidates, _) = self.asked()?;
        Some((candidates, self.window / part))
    }

    fn add(&mut self, windows: &[Figures], seen: Option<Unfair>) -> Result<Option<Unfair>, Fault> {
        let Some((stage, _, _, candidates)) = self.asked() else { return Ok(seen) };
        let void = self.tuner.add(windows, seen);
        let (at, figures) = (seconds_since_1970(), windows.to_vec());
        self.record.add(&TunedRound { at, stage, candidates, figures, void: seen })?;
        Ok(void)
    }

    fn void(&mut self, why: Unfair) {
        self.tuner.void(why);
    }

    fn rounds(&self) -> &Switchback {
        self.tuner.rounds()
    }
}

/// Shows the progress of a search.
struct Watched<'a> {
    context: &'a Context,
    most: Duration,
}

impl ComparisonProgress for Watched<'_> {
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
            console.progress(&progress_words(so_far, elapsed, self.most));
        }
        Ok(())
    }
}
