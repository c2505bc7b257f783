//! A candidate that disturbs traffic while it is written: it is brought into force once, between windows without it.

use std::time::{Duration, Instant};

use apply::Allow;
use linux::Signals;
use live::Target;
use measure::switchback::{Figures, Switchback, Unfair};
use model::Nanoseconds;
use model::live::LiveWindow;
use session::{Exit, Fault, Operator, Session, clock};

use crate::alternation::{Alternation, on_host};
use crate::candidate::Wanted;
use crate::comparison::{Broken, Comparison, Ended, LATE, Options, Progress, Round};
use crate::held::HeldChange;

/// The fewest and the most windows before, with and after the candidate: as many of each.
const WINDOWS_MIN: usize = 6;
const WINDOWS_MAX: usize = 30;

/// How many windows are left out after each switch: clients connect again, and queues fill.
const SETTLING: usize = 2;

/// How long after its last moment a candidate is put back by another netpolicy, if this program hangs.
const DEADLINE_AFTER: Duration = Duration::from_secs(60);

/// What a comparison brings into force once.
pub(crate) struct OneShot<'a> {
    held: HeldChange<'a>,
    /// How many windows there are of each stretch.
    windows: usize,
    deadline: Nanoseconds,
}

/// A stretch of windows in which nothing is written.
#[derive(Default)]
struct Stretch {
    windows: Vec<(Figures, LiveWindow, Option<Unfair>)>,
    /// Why it broke off.
    ended: Option<Ended>,
}

/// The two candidates: the host as it is, and what disturbs traffic.
const WITHOUT: usize = 0;
const WITH: usize = 1;

impl<'a> OneShot<'a> {
    /// Plans the candidates. `None` if none of them disturbs traffic: then they can alternate.
    ///
    /// # Errors
    /// What the planner refuses; exit 7 where a candidate disturbs traffic and is not the only one, or the time is too short.
    pub(crate) fn plan(
        options: &Options,
        target: &Target,
        session: &'a Session,
        operator: &dyn Operator,
    ) -> Result<Option<(Self, Alternation<'a>)>, Fault> {
        let allow = Allow { disruptive: true, ..Allow::default() };
        let mut planned = Vec::new();
        for candidate in &options.candidates {
            planned.push(on_host(candidate, target, session, operator, allow)?);
        }
        if planned.iter().all(|candidate| candidate.once.is_none()) {
            return Ok(None);
        }
        let refused = |words: String| Fault::new(Exit::Refused, words);
        let [first, _] = options.candidates.as_slice() else {
            return Err(refused("a candidate that disturbs traffic is compared alone".to_owned())
                .hint("give one --b, and compare each of them with the host as it is"));
        };
        if *first.wanted() != Wanted::Current {
            return Err(refused(format!(
                "candidate {}: what disturbs traffic is compared with the host as it is",
                first.name
            ))
            .hint("leave --a out; apply what shall be in force before, and roll it back afterwards"));
        }
        let turn = options.window + options.guard;
        let stretches = options.most.as_secs_f64() / turn.as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most a day in seconds, and positive"
        )]
        let windows = ((stretches as usize).saturating_sub(1) / 3).saturating_sub(SETTLING).min(WINDOWS_MAX);
        if windows < WINDOWS_MIN {
            return Err(refused(format!(
                "{} s are too short: what disturbs traffic takes {WINDOWS_MIN} windows before, with and after it",
                options.most.as_secs()
            ))
            .hint("give it more time: --max-seconds 60"));
        }
        let journal = session.journal()?;
        let (plans, mut once): (Vec<_>, Vec<_>) =
            planned.into_iter().map(|candidate| (candidate.plan, candidate.once)).unzip();
        let Some(proposed) = once.pop().flatten() else { return Ok(None) };
        let held = HeldChange::new(proposed, target.netns.again()?, allow, session);
        let life = u64::try_from((options.most + DEADLINE_AFTER).as_nanos()).unwrap_or(u64::MAX);
        let deadline = Nanoseconds(clock::now().since_boot.0.saturating_add(life));
        Ok(Some((Self { held, windows, deadline }, Alternation::of_plans(plans, session, &journal, turn)?)))
    }

    /// Until when it is in force at most, in time since boot.
    pub(crate) const fn deadline(&self) -> Nanoseconds {
        self.deadline
    }

    /// Brings it into force.
    fn commit(&mut self) -> Result<Duration, Fault> {
        let began = Instant::now();
        self.held.commit(self.deadline)?;
        Ok(began.elapsed())
    }

    /// Puts the host back to what it was.
    pub(crate) fn roll_back(&mut self) -> Result<Duration, Fault> {
        let began = Instant::now();
        self.held.roll_back()?;
        Ok(began.elapsed())
    }

    /// Brings it into force for good.
    pub(crate) fn keep(&mut self) -> Result<Vec<apply::TransactionName>, Fault> {
        self.held.forget();
        self.held.commit(self.deadline)?;
        self.held.confirm()
    }

    /// Its last transaction.
    pub(crate) fn transaction(&self) -> Option<apply::TransactionName> {
        self.held.transactions().last().copied()
    }
}

impl Comparison<'_> {
    /// Windows before, with and after the candidate. Each with it is paired with one without it, by chance with one of those before or after.
    pub(crate) fn before_with_and_after(
        &mut self,
        once: &mut OneShot<'_>,
        switchback: &mut Switchback,
        signals: &mut Signals,
        progress: &mut dyn Progress,
    ) -> Result<Ended, Fault> {
        let began = Instant::now();
        let before = self.stretch("before", WITHOUT, once.windows, signals, progress)?;
        let mut with = Stretch::default();
        let mut after = Stretch::default();
        let mut ended = before.ended;
        if ended.is_none() {
            self.switches.push(once.commit()?);
            with = self.stretch("with", WITH, once.windows, signals, progress)?;
            // Whatever was seen, the host comes first.
            self.switches.push(once.roll_back()?);
            ended = with.ended;
        }
        if ended.is_none() {
            after = self.stretch("after", WITHOUT, once.windows, signals, progress)?;
            ended = after.ended;
        }
        for (at, (figures, window, late)) in with.windows.into_iter().enumerate() {
            let is_after = self.chance.below(2) == 1;
            let (earlier, later) = (before.windows.get(at), after.windows.get(at));
            let Some((unchanged, of_unchanged, void)) = (if is_after { later } else { earlier }).or(earlier)
            else {
                continue;
            };
            let order = if is_after && later.is_some() { vec![WITH, WITHOUT] } else { vec![WITHOUT, WITH] };
            let void = switchback.add(&[*unchanged, figures], void.or(late));
            let windows = vec![(WITHOUT, *unchanged, of_unchanged.clone()), (WITH, figures, window)];
            progress.round(&Round { number: at + 1, order, windows, void }, switchback, began.elapsed())?;
        }
        Ok(ended.unwrap_or(if switchback.is_decided() { Ended::Decided } else { Ended::Time }))
    }

    /// So many windows while nothing is written, once what was under way has ended.
    fn stretch(
        &mut self,
        name: &str,
        candidate: usize,
        windows: usize,
        signals: &mut Signals,
        progress: &mut dyn Progress,
    ) -> Result<Stretch, Fault> {
        let mut stretch = Stretch::default();
        let mut newest = self.session.journal()?.newest()?;
        for number in 0..SETTLING + windows {
            let began = Instant::now();
            progress.window_begins(candidate)?;
            let measured = self.window(signals)?;
            progress.window_ended(candidate, began.elapsed().as_secs_f64())?;
            let (figures, window) = match measured {
                Ok(measured) if self.watcher.all_run() => measured,
                Err(Broken::Interrupted) => {
                    stretch.ended = Some(Ended::Interrupted);
                    break;
                }
                // What it takes with it cannot be compared.
                Ok(_) | Err(Broken::Restart) => {
                    stretch.ended = Some(Ended::Service);
                    break;
                }
            };
            let found = self.session.journal()?.newest()?;
            let disturbed = (found > newest).then_some(Unfair::Transaction);
            newest = found;
            let late = began.elapsed() > self.options.guard + self.options.window + LATE;
            if let Some(at) = (number + 1).checked_sub(SETTLING).filter(|at| *at > 0) {
                stretch.windows.push((figures, window, disturbed.or(late.then_some(Unfair::Machine))));
                progress.stretch(&format!("{name} the change: {at} of {windows} windows"))?;
            }
        }
        Ok(stretch)
    }
}
