//! Measures rounds of windows until there is a verdict.

use std::time::{Duration, Instant};

use crate::live::{Estimator, MeasuredService, ServiceSelection, WatchEvent, Watcher, moderation_differs};
use crate::measure::foresight::{Foresight, Sight};
use crate::measure::live::Unpaired;
use crate::measure::live::series::requests_for;
use crate::measure::switchback::{Figures, Switchback, Unfair};
use apply::{AtExit, JournalError, TransactionName};
use linux::Signals;
use linux::process::PromptThread;
use model::live::LiveWindow;
use model::{Chance, Finding, JudgedBy, Nanoseconds};
use session::{Exit, Fault, HostState, Operator, Session};

use crate::judge::alternation::Alternation;
use crate::judge::candidate::Candidate;
use crate::judge::judgement::judgement;
use crate::judge::lock::ComparisonLock;
use crate::judge::one_shot::OneShot;
use crate::judge::options::ComparisonOptions;
use crate::judge::trial::ServiceForesight;

/// The maximum number of rounds. Further rounds would not change the verdict.
const ROUNDS_MAX: usize = crate::measure::sequential::PAIRS_MAX;

/// The maximum delay of a valid window, or of the switch that precedes it.
pub(crate) const LATE: Duration = Duration::from_millis(500);

/// Between windows of at most this length, the programs stay attached, as in a guard.
const STAYS_ATTACHED_MAX: Duration = Duration::from_millis(250);

/// How long to wait for the restart of a service that has exited, and how often to look for it.
const RESTART_MAX: Duration = Duration::from_secs(20);
const RESTART_EVERY: Duration = Duration::from_millis(250);

/// How long after a restart of the service windows are not valid.
const RESTART_SETTLES: Duration = Duration::from_secs(1);

/// The maximum number of restarts of the service in a comparison. The limit ends the comparison if a
/// candidate makes the service crash.
const RESTARTS_MAX: usize = 8;

/// The number of rounds without enough requests after which a comparison ends, because further rounds would
/// not help.
const SILENT_ROUNDS_MAX: usize = 6;

/// The number of rounds at the beginning after which, if none was valid, clients probably wait for answers.
const CLOSED_LOOP_ROUNDS: usize = 6;

/// Why a comparison ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every deciding metric has a verdict.
    Decided,
    /// The time limit was reached.
    Time,
    /// A signal arrived.
    Interrupted,
    /// The service exited and did not restart.
    Service,
    /// There were too few requests to compare anything.
    Requests,
    /// The service's datagrams are not paired with answers, so it has no response times. Nothing was changed.
    Unpaired(Unpaired),
}

impl Ended {
    /// Returns the reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Decided => "decided",
            Self::Time => "the time limit was reached",
            Self::Interrupted => "interrupted",
            Self::Service => "the service exited and did not restart",
            Self::Requests => "too few requests",
            Self::Unpaired(why) => why.as_str(),
        }
    }

    /// Returns the error if a comparison that ended for this reason has no result, or `None` if it has one.
    pub fn fault(self, service: &str) -> Option<Fault> {
        match self {
            Self::Decided | Self::Time | Self::Interrupted => None,
            Self::Service => {
                Some(Fault::failed(format!("{service} exited during the measurement and did not restart")))
            }
            Self::Requests => {
                let least = requests_for(0.5);
                let words = format!("{service}: too few requests for a comparison: a window needs {least}");
                let hint =
                    "generate traffic, name the right port (--port N), or use longer windows (--window 10s)";
                Some(Fault::new(Exit::Refused, words).hint(hint).leaving(HostState::Restored))
            }
            Self::Unpaired(why) => Some(unpaired(service, why)),
        }
    }
}

/// Creates the error for a service whose datagrams are not paired with answers.
pub(super) fn unpaired(service: &str, why: Unpaired) -> Fault {
    Fault::new(Exit::Refused, format!("{service}: {}, so no setting can be judged by them", why.as_str()))
        .hint("netpolicy watch shows what is known: wake-ups, polls, datagrams for each context switch")
}

/// One round.
#[derive(Clone, Debug)]
pub struct Round {
    /// The round's number, counted from 1.
    pub number: usize,
    /// The indices of the candidates, in the order in which they were measured.
    pub order: Vec<usize>,
    /// The windows of the round, one per candidate, in the order of the command line; fewer if the round
    /// ended early.
    pub windows: Vec<(usize, Figures, LiveWindow)>,
    /// Why the round is not valid; `None` if it is.
    pub void: Option<Unfair>,
}

/// Chooses the candidates of each round.
pub trait Chooser {
    /// Returns the candidates of the next round, by index in ascending order, and the length of their
    /// windows. `None` if no further round is needed.
    fn next(&mut self) -> Option<(Vec<usize>, Duration)>;

    /// Adds a round. Returns why the round is not valid, or `None` if it is.
    ///
    /// # Errors
    /// If the round cannot be recorded, which ends the comparison.
    fn add(&mut self, windows: &[Figures], seen: Option<Unfair>) -> Result<Option<Unfair>, Fault>;

    /// Records a round that ended early.
    fn void(&mut self, why: Unfair);

    /// The rounds so far.
    fn rounds(&self) -> &Switchback;

    /// Whether to report, after this many rounds, that clients seem to wait for answers.
    fn is_closed_loop(&self, _rounds: usize) -> bool {
        false
    }
}

/// A chooser that measures all candidates in each round until each of them has a verdict.
struct Together {
    switchback: Switchback,
    window: Duration,
    rounds: usize,
}

impl Chooser for Together {
    fn next(&mut self) -> Option<(Vec<usize>, Duration)> {
        if self.rounds == ROUNDS_MAX || self.switchback.is_decided() {
            return None;
        }
        self.rounds += 1;
        Some(((0..self.switchback.names().len()).collect(), self.window))
    }

    fn add(&mut self, windows: &[Figures], seen: Option<Unfair>) -> Result<Option<Unfair>, Fault> {
        Ok(self.switchback.add(windows, seen))
    }

    fn void(&mut self, why: Unfair) {
        self.switchback.void(why);
    }

    fn rounds(&self) -> &Switchback {
        &self.switchback
    }

    fn is_closed_loop(&self, rounds: usize) -> bool {
        let mut others = 1..self.switchback.names().len();
        rounds >= CLOSED_LOOP_ROUNDS && others.any(|candidate| self.switchback.closed_loop(candidate))
    }
}

/// Receives the progress of a comparison.
pub trait ComparisonProgress {
    /// Called when a round has ended.
    ///
    /// # Errors
    /// If the listener failed, which ends the comparison.
    fn round(&mut self, round: &Round, so_far: &Switchback, elapsed: Duration) -> Result<(), Fault>;

    /// Called when a candidate is in force and its window is about to begin.
    ///
    /// # Errors
    /// As for [`ComparisonProgress::round`].
    fn window_begins(&mut self, _candidate: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// Reports progress during consecutive windows in which nothing is written.
    ///
    /// # Errors
    /// As for [`ComparisonProgress::round`].
    fn stretch(&mut self, _words: &str) -> Result<(), Fault> {
        Ok(())
    }

    /// Called when a candidate's window has ended, after this many seconds.
    ///
    /// # Errors
    /// As for [`ComparisonProgress::round`].
    fn window_ended(&mut self, _candidate: usize, _seconds: f64) -> Result<(), Fault> {
        Ok(())
    }
}

/// The result of a comparison.
#[derive(Debug)]
pub struct ComparisonResult {
    /// The rounds.
    pub switchback: Switchback,
    /// Why it ended.
    pub ended: Ended,
    /// The duration.
    pub took: Duration,
    /// The duration of each switch in which something was written.
    pub switches: Vec<Duration>,
    /// Findings that limit how far the windows are valid.
    pub findings: Vec<Finding>,
    /// Why the journal does not contain the verdicts; `None` if it does.
    pub unnoted: Option<String>,
}

/// A prepared comparison.
pub struct Comparison<'a> {
    pub(crate) options: ComparisonOptions,
    selection: ServiceSelection,
    pub(crate) session: &'a Session,
    operator: &'a dyn Operator,
    target: MeasuredService,
    pub(crate) watcher: Watcher,
    alternation: Alternation<'a>,
    /// The second candidate, if it disturbs traffic; the candidates then do not alternate.
    once: Option<OneShot<'a>>,
    pub(crate) switches: Vec<Duration>,
    /// Whether a signal arrived while [`Comparison::foresight`] was measuring.
    interrupted: bool,
    pub(crate) chance: Chance,
    _lock: ComparisonLock,
}

impl std::fmt::Debug for Comparison<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Comparison").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Why a round ended early.
pub(crate) enum Broken {
    /// A process of the service exited.
    Restart,
    /// A signal arrived.
    Interrupted,
}

impl<'a> Comparison<'a> {
    /// Finds the service, plans each candidate and loads the meter, without writing anything. `lock` is a
    /// lock that the caller already holds; `None` acquires one for this comparison.
    ///
    /// # Errors
    /// If the service cannot be measured, a candidate cannot alternate, or another comparison is running.
    pub fn prepare(
        options: ComparisonOptions,
        lock: Option<ComparisonLock>,
        selection: &ServiceSelection,
        session: &'a Session,
        operator: &'a dyn Operator,
    ) -> Result<Self, Fault> {
        let names = || options.candidates.iter().skip(1).map(|candidate| &candidate.name);
        if let Some((_, twice)) =
            names().enumerate().find(|(at, name)| names().take(*at).any(|one| one == *name))
        {
            return Err(Fault::new(Exit::Usage, format!("candidate {twice} is given twice")));
        }
        let target = MeasuredService::of(selection, session, operator)?;
        let lock = match lock.filter(|lock| lock.is_of(&target.netns)) {
            Some(lock) => lock,
            None => ComparisonLock::take(session, &target.netns)?,
        };
        let turn = options.window + options.guard;
        let once = match options.disruptive {
            true => OneShot::plan(&options, &target, session, operator)?,
            false => None,
        };
        let (once, alternation) = match once {
            Some((once, plans)) => (Some(once), plans),
            None => {
                let journal = session.journal()?.owned_by_session(AtExit::RollBack)?;
                let candidates = &options.candidates;
                (None, Alternation::plan(candidates, &target, session, operator, &journal, turn)?)
            }
        };
        let watcher = Watcher::load(&target, options.window)?;
        let chance = Chance::new(options.seed);
        Ok(Self {
            options,
            selection: selection.clone(),
            session,
            operator,
            target,
            watcher,
            alternation,
            once,
            switches: Vec::new(),
            interrupted: false,
            chance,
            _lock: lock,
        })
    }

    /// The service.
    pub const fn target(&self) -> &MeasuredService {
        &self.target
    }

    /// Returns the alternation of the candidates on this host.
    pub const fn alternation(&mut self) -> &mut Alternation<'a> {
        &mut self.alternation
    }

    /// Returns the method by which the candidates are compared.
    pub const fn by(&self) -> JudgedBy {
        match self.once {
            Some(_) => JudgedBy::BeforeAfter,
            None => JudgedBy::Switchback,
        }
    }

    /// Returns the time since boot at which a candidate that is applied once is rolled back at the latest, or
    /// `None` if candidates alternate.
    pub fn deadline(&self) -> Option<Nanoseconds> {
        self.once.as_ref().map(OneShot::deadline)
    }

    /// Applies a candidate permanently, in one or more transactions. Needs no transaction if there is nothing
    /// to write.
    ///
    /// # Errors
    /// If a setting cannot be written or read back. The error describes the state of the host.
    pub fn keep(&mut self, candidate: usize) -> Result<Vec<TransactionName>, Fault> {
        match &mut self.once {
            // Candidate 0 is the unchanged host.
            Some(_) if candidate == 0 => Ok(Vec::new()),
            Some(once) => once.keep(),
            None => Ok(self.alternation.keep(candidate)?.into_iter().collect()),
        }
    }

    /// The number of windows from which [`Comparison::foresight`] predicts, and the number by which their
    /// length is divided if they would delay the comparison too much.
    const FORESIGHT_WINDOWS: u32 = 10;
    const FORESIGHT_SHORTER: u32 = 5;

    /// Measures windows of the unchanged host, and predicts from their noise how soon a change by twice the
    /// margin can be detected. With `whole`, the windows are as long as those of the comparison. Otherwise
    /// they are shorter, so that they take at most a tenth of its time; shorter windows are noisier, so the
    /// change may be detected sooner than predicted. Returns no prediction if the candidates do not
    /// alternate, or if there are too few windows or requests. With `whole`, the first windows are measured
    /// even then, because no comparison follows that would refuse the service. Writes nothing.
    ///
    /// # Errors
    /// If the meter fails, or the service's datagrams are not paired with answers. After a signal, there is no
    /// prediction, and the comparison ends immediately.
    pub fn foresight(
        &mut self,
        whole: bool,
        signals: &mut Signals,
    ) -> Result<Option<ServiceForesight>, Fault> {
        let shorter = if whole { 1 } else { Self::FORESIGHT_SHORTER };
        let (window, guard) = (self.options.window / shorter, self.options.guard);
        let takes = self.options.window + guard + (window + guard) * Self::FORESIGHT_WINDOWS;
        let most = self.options.most / if whole { 1 } else { 10 };
        let predicts = self.by() == JudgedBy::Switchback && takes <= most;
        if !predicts && !whole {
            return Ok(None);
        }
        let windows = if predicts { Self::FORESIGHT_WINDOWS } else { 0 };
        let known = self.unchanged_windows(windows, window, signals);
        self.watcher.set_window_len(self.options.window);
        let known = match known? {
            Ok(known) => known,
            Err(broken) => {
                self.interrupted |= matches!(broken, Broken::Interrupted);
                return Ok(None);
            }
        };
        let turn = self.options.window + self.options.guard;
        let arms = u32::try_from(self.options.candidates.len()).unwrap_or(u32::MAX);
        let rule = self.options.rule();
        let sight = Sight {
            limit: 0.0,
            stake: rule.stake(self.options.candidates.len() - 1),
            pair_seconds: (turn * arms).as_secs_f64(),
            within: self.options.most.as_secs_f64(),
            robust: false,
            pairs_min: rule.pairs_least(self.options.candidates.len() - 1),
        };
        let growth = 2.0 * rule.margin;
        let figures =
            rule.deciding.iter().filter_map(|metric| Foresight::of(&known, *metric, growth, &sight));
        let figures: Vec<Foresight> = figures.collect();
        let seconds = self.options.most.as_secs_f64();
        let service = self.target.name.clone();
        Ok((!figures.is_empty()).then_some(ServiceForesight { service, seconds, figures }))
    }

    /// Measures the first windows of the unchanged host, and after them this many of this length.
    ///
    /// # Errors
    /// As for [`Comparison::foresight`].
    fn unchanged_windows(
        &mut self,
        windows: u32,
        window: Duration,
        signals: &mut Signals,
    ) -> Result<Result<Vec<Figures>, Broken>, Fault> {
        match self.first_windows(signals)? {
            Ok(Some(why)) => return Err(unpaired(&self.target.name, why)),
            Ok(None) => {}
            Err(broken) => return Ok(Err(broken)),
        }
        self.watcher.set_window_len(window);
        let mut known = Vec::new();
        for _ in 0..windows {
            match self.window(signals)? {
                Ok((figures, _)) => known.push(figures),
                Err(broken) => return Ok(Err(broken)),
            }
        }
        Ok(Ok(known))
    }

    /// Measures the first windows of the unchanged host, which show which NAPIs are polled, and when clients
    /// reconnect. Returns why the service has no response times, if it has none. The windows are as long
    /// as those of the comparison, because shorter ones may have too few requests to tell.
    fn first_windows(&mut self, signals: &mut Signals) -> Result<Result<Option<Unpaired>, Broken>, Fault> {
        self.watcher.set_window_len(self.options.window);
        let mut why = None;
        // Measure twice, because the meter may begin to pair datagrams only in the second window.
        for _ in 0..2 {
            why = match self.window(signals)? {
                Ok((_, window)) => Unpaired::of(&window.counts),
                Err(broken) => return Ok(Err(broken)),
            };
            if why.is_none() {
                break;
            }
        }
        Ok(Ok(why))
    }

    /// Measures until every deciding metric has a verdict, the time limit is reached or a signal arrives.
    /// Then restores the host.
    ///
    /// # Errors
    /// If a setting cannot be written or restored. The error describes the state of the host.
    pub fn run(
        &mut self,
        signals: &mut Signals,
        progress: &mut dyn ComparisonProgress,
    ) -> Result<ComparisonResult, Fault> {
        let began = Instant::now();
        let names = self.options.candidates.iter().map(|candidate| candidate.name.clone()).collect();
        let mut switchback = Switchback::judged_by(names, self.options.rule(), self.by());
        let ended = match self.once.take() {
            Some(mut once) => {
                let ended = self.before_with_and_after(&mut once, &mut switchback, signals, progress);
                // Restore the host before anything else, whatever the result.
                let restored = once.roll_back();
                self.once = Some(once);
                restored?;
                ended
            }
            None => {
                self.say_if_too_short();
                let window = self.options.window;
                let mut together = Together { switchback, window, rounds: 0 };
                let ended = self.rounds(&mut together, began, signals, progress);
                self.watcher.stay_attached(false);
                self.alternation.restore()?;
                switchback = together.switchback;
                ended.map(|ended| match ended {
                    Ended::Decided if !switchback.is_decided() => Ended::Time,
                    ended => ended,
                })
            }
        };
        let ended = ended?;
        let took = began.elapsed();
        let findings = self.findings(&switchback);
        let unnoted = self.note(&switchback, took).err().map(|error| error.to_string());
        Ok(ComparisonResult {
            ended,
            took,
            unnoted,
            switches: std::mem::take(&mut self.switches),
            findings,
            switchback,
        })
    }

    /// Measures the candidates that `chooser` chooses, until no further round is needed, the time limit is
    /// reached or a signal arrives. Then restores the host. Returns why the comparison ended.
    ///
    /// # Errors
    /// As for [`Comparison::run`], or if the chooser fails.
    pub fn choose(
        &mut self,
        chooser: &mut dyn Chooser,
        signals: &mut Signals,
        progress: &mut dyn ComparisonProgress,
    ) -> Result<Ended, Fault> {
        let began = Instant::now();
        let ended = self.rounds(chooser, began, signals, progress);
        self.watcher.stay_attached(false);
        self.alternation.restore()?;
        let ended = ended?;
        if let Err(error) = self.note(chooser.rounds(), began.elapsed()) {
            self.operator.say(&format!("The verdicts are not in the journal: {error}"));
        }
        Ok(ended)
    }

    /// Returns findings that limit how far the windows and these rounds are valid.
    pub fn findings(&self, switchback: &Switchback) -> Vec<Finding> {
        let mut summary = self.watcher.summary(&self.target);
        if summary.estimator != Estimator::Stamped {
            summary.findings.extend(self.moderation_differs());
        }
        summary.findings.extend(switchback.loss_differs(&self.target.name));
        summary.findings
    }

    /// Returns a finding if the candidates differ in the NIC's interrupt moderation, because no window shows
    /// the delay that it causes.
    fn moderation_differs(&self) -> Option<Finding> {
        let all = 0..self.options.candidates.len();
        moderation_differs(&self.target.name, all.map(|candidate| self.alternation.changes(candidate)))
    }

    /// Records the verdict on each candidate in the journal, with the candidate's last transaction, which was
    /// rolled back.
    fn note(&self, switchback: &Switchback, took: Duration) -> Result<(), JournalError> {
        let of_once = self.once.as_ref().and_then(OneShot::transaction);
        for (candidate, Candidate { name, .. }) in self.options.candidates.iter().enumerate() {
            let measured = switchback.names().iter().position(|known| known == name);
            let Some(measured) = measured.filter(|_| switchback.rounds() > 0) else { continue };
            let known = self.alternation.transaction(candidate).or(of_once.filter(|_| candidate > 0));
            let Some(name) = known else { continue };
            let verdict = judgement(switchback, measured, &self.target.name, took);
            self.alternation.journal().note_judgement(name, &verdict)?;
        }
        Ok(())
    }

    fn rounds(
        &mut self,
        chooser: &mut dyn Chooser,
        began: Instant,
        signals: &mut Signals,
        progress: &mut dyn ComparisonProgress,
    ) -> Result<Ended, Fault> {
        if self.interrupted {
            return Ok(Ended::Interrupted);
        }
        match self.first_windows(signals)? {
            Ok(Some(why)) => return Ok(Ended::Unpaired(why)),
            Err(Broken::Interrupted) => return Ok(Ended::Interrupted),
            Ok(None) | Err(Broken::Restart) => {}
        }
        let (mut restarts, mut said_closed, mut number) = (0, false, 0);
        while let Some((mut order, window)) = chooser.next() {
            number += 1;
            let turn = window + self.options.guard;
            if began.elapsed() + turn * u32::try_from(order.len()).unwrap_or(u32::MAX) > self.options.most {
                return Ok(Ended::Time);
            }
            self.watcher.set_window_len(window);
            self.watcher.stay_attached(window <= STAYS_ATTACHED_MAX);
            self.chance.shuffle(&mut order);
            let mut round = Round { number, order: order.clone(), windows: Vec::new(), void: None };
            let mut broken = None;
            for candidate in order {
                match self.turn(candidate, &mut round, signals, progress)? {
                    None => {}
                    Some(why) => {
                        broken = Some(why);
                        break;
                    }
                }
            }
            match broken {
                None => {
                    round.windows.sort_by_key(|(candidate, ..)| *candidate);
                    let figures: Vec<Figures> =
                        round.windows.iter().map(|(_, figures, _)| *figures).collect();
                    round.void = chooser.add(&figures, round.void)?;
                }
                Some(Broken::Interrupted) => return Ok(Ended::Interrupted),
                Some(Broken::Restart) => {
                    round.void = Some(Unfair::Restart);
                    chooser.void(Unfair::Restart);
                }
            }
            progress.round(&round, chooser.rounds(), began.elapsed())?;
            if matches!(broken, Some(Broken::Restart)) {
                restarts += 1;
                if restarts > RESTARTS_MAX {
                    return Ok(Ended::Service);
                }
                match self.find_again(signals)? {
                    None => {}
                    Some(ended) => return Ok(ended),
                }
            }
            if chooser.rounds().rounds() > 0 {
                continue;
            }
            // Do not end the comparison because of short windows: they may have too few requests where longer
            // ones would have enough.
            if window == self.options.window && chooser.rounds().is_silent(SILENT_ROUNDS_MAX) {
                return Ok(Ended::Requests);
            }
            if !said_closed && chooser.is_closed_loop(number) {
                said_closed = true;
                progress.stretch("")?;
                self.operator.say("No valid round so far: clients wait for answers, so their rate depends on the candidate. Press Ctrl-C and compare the rate: --metric requests");
            }
        }
        Ok(Ended::Decided)
    }

    /// Warns if the time limit is too short for any verdict.
    fn say_if_too_short(&self) {
        let arms = self.options.candidates.len();
        let turn = self.options.window + self.options.guard;
        let round_takes = turn * u32::try_from(arms).unwrap_or(u32::MAX);
        let least = self.options.rule().pairs_least(arms.saturating_sub(1));
        let takes = turn + round_takes * u32::try_from(least).unwrap_or(u32::MAX);
        if takes > self.options.most {
            self.operator.say(&format!(
                "{} s are too short for a verdict, which needs at least {least} rounds of {:.0} s in total (--seconds).",
                self.options.most.as_secs(),
                takes.as_secs_f64().ceil()
            ));
        }
    }

    /// Measures one candidate's window in a round.
    fn turn(
        &mut self,
        candidate: usize,
        round: &mut Round,
        signals: &mut Signals,
        progress: &mut dyn ComparisonProgress,
    ) -> Result<Option<Broken>, Fault> {
        // On a busy host, this thread would otherwise wait for a CPU for half of the time.
        let _prompt = PromptThread::begin(self.watcher.processes());
        let began = Instant::now();
        let switched = match self.alternation.switch_to(candidate) {
            Ok(switched) => switched,
            // The process has exited, and its epolls have disappeared with it.
            Err(_) if !self.watcher.all_run() => return Ok(Some(Broken::Restart)),
            Err(fault) => return Err(fault),
        };
        if switched.written > 0 {
            self.switches.push(switched.took);
        }
        progress.window_begins(candidate)?;
        let windows_began = Instant::now();
        let measured = self.window(signals)?;
        progress.window_ended(candidate, windows_began.elapsed().as_secs_f64())?;
        let (figures, window) = match measured {
            Ok(measured) => measured,
            Err(broken) => return Ok(Some(broken)),
        };
        if !self.watcher.all_run() {
            return Ok(Some(Broken::Restart));
        }
        let disturbed = self.alternation.disturbed(candidate)?;
        let longest = switched.took + self.options.guard + self.options.window + LATE;
        let late = (began.elapsed() > longest || switched.took > LATE).then_some(Unfair::Machine);
        round.void = round.void.or(disturbed).or(late);
        round.windows.push((candidate, figures, window));
        Ok(None)
    }

    /// Measures one window, after the pause that precedes it.
    pub(crate) fn window(
        &mut self,
        signals: &mut Signals,
    ) -> Result<Result<(Figures, LiveWindow), Broken>, Fault> {
        match self.watcher.turn(Instant::now() + self.options.guard, signals)? {
            WatchEvent::Window(shown) => {
                let figures = Figures::of(&shown.window, shown.cost.service, shown.cost.delivery);
                Ok(Ok((figures, shown.window)))
            }
            WatchEvent::Ended => Ok(Err(Broken::Restart)),
            WatchEvent::Interrupted => Ok(Err(Broken::Interrupted)),
        }
    }

    /// Waits until the service has restarted, and plans each candidate for its new processes and sockets.
    fn find_again(&mut self, signals: &mut Signals) -> Result<Option<Ended>, Fault> {
        self.watcher.stay_attached(false);
        self.alternation.restore()?;
        let until = Instant::now() + RESTART_MAX;
        while Instant::now() < until {
            if signals.take().is_some() {
                return Ok(Some(Ended::Interrupted));
            }
            std::thread::sleep(RESTART_EVERY);
            let Ok(target) = MeasuredService::of(&self.selection, self.session, self.operator) else {
                continue;
            };
            // Clients need time to reconnect, and the service needs time to create its epolls.
            std::thread::sleep(RESTART_SETTLES);
            let turn = self.options.window + self.options.guard;
            let candidates = &self.options.candidates;
            let journal = self.alternation.journal().clone();
            let Ok(alternation) =
                Alternation::plan(candidates, &target, self.session, self.operator, &journal, turn)
            else {
                continue;
            };
            self.watcher = Watcher::load(&target, self.options.window)?;
            self.target = target;
            self.alternation = alternation;
            if let Err(Broken::Interrupted) = self.window(signals)?.map(drop) {
                return Ok(Some(Ended::Interrupted));
            }
            return Ok(None);
        }
        Ok(Some(Ended::Service))
    }
}
