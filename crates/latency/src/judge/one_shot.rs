//! A candidate that a comparison applies once, because it disturbs traffic while it is written.

use std::time::{Duration, Instant};

use crate::live::MeasuredService;
use apply::Allow;
use model::Nanoseconds;
use session::{Exit, Fault, Operator, Session, clock};

use crate::judge::alternation::{Alternation, on_host};
use crate::judge::candidate::CandidateSettings;
use crate::judge::held::HeldChange;
use crate::judge::options::ComparisonOptions;

/// The minimum and maximum number of windows in each of the three series: before, with and after the
/// candidate.
const WINDOWS_MIN: usize = 6;
const WINDOWS_MAX: usize = 30;

/// The number of windows to skip after each switch, while clients reconnect and queues fill.
pub(crate) const SETTLING: usize = 2;

/// How long after the candidate's planned end another netpolicy process rolls it back, in case this program
/// hangs.
const DEADLINE_AFTER: Duration = Duration::from_secs(60);

/// A candidate that is applied once.
pub(crate) struct OneShot<'a> {
    held: HeldChange<'a>,
    /// The number of windows in each of the three series.
    pub(crate) windows: usize,
    deadline: Nanoseconds,
}

impl<'a> OneShot<'a> {
    /// Plans the candidates. Returns `None` if no candidate disturbs traffic, so that all can alternate.
    ///
    /// # Errors
    /// If the planner refuses. Exit 7 if a candidate disturbs traffic and is not the only one to compare, or
    /// if the time is too short.
    pub(crate) fn plan(
        options: &ComparisonOptions,
        target: &MeasuredService,
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
            return Err(refused(
                "only one candidate that disturbs traffic can be compared at a time".to_owned(),
            )
            .hint("give one --b at a time, to compare it with the current host"));
        };
        if *first.wanted() != CandidateSettings::Current {
            return Err(refused(format!(
                "a change that disturbs traffic can only be compared with the current host, not with {}",
                first.name
            ))
            .hint("omit --a; apply its settings first, and roll them back afterwards"));
        }
        let turn = options.window + options.guard;
        let stretches = options.most.as_secs_f64() / turn.as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and at most the seconds of a day"
        )]
        let windows = ((stretches as usize).saturating_sub(1) / 3).saturating_sub(SETTLING).min(WINDOWS_MAX);
        if windows < WINDOWS_MIN {
            return Err(refused(format!(
                "{} s are too short: a change that disturbs traffic needs {WINDOWS_MIN} windows before, with and after it",
                options.most.as_secs()
            ))
            .hint("give it more time: --seconds 60"));
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

    /// Returns the time since boot at which the candidate is rolled back at the latest.
    pub(crate) const fn deadline(&self) -> Nanoseconds {
        self.deadline
    }

    /// Applies the candidate.
    pub(crate) fn commit(&mut self) -> Result<Duration, Fault> {
        let began = Instant::now();
        self.held.commit(self.deadline)?;
        Ok(began.elapsed())
    }

    /// Restores the host.
    pub(crate) fn roll_back(&mut self) -> Result<Duration, Fault> {
        let began = Instant::now();
        self.held.roll_back()?;
        Ok(began.elapsed())
    }

    /// Applies the candidate permanently.
    pub(crate) fn keep(&mut self) -> Result<Vec<apply::TransactionName>, Fault> {
        self.held.forget();
        self.held.commit(self.deadline)?;
        self.held.confirm()
    }

    /// The last transaction.
    pub(crate) fn transaction(&self) -> Option<apply::TransactionName> {
        self.held.transactions().last().copied()
    }
}
