//! Compares a candidate that disturbs traffic while it is written. The candidate is applied once, between
//! windows without it.

use std::time::Instant;

use crate::measure::live::Unpaired;
use crate::measure::switchback::{Figures, Switchback, Unfair};
use linux::Signals;
use model::live::LiveWindow;
use session::Fault;

use crate::judge::comparison::{Broken, Comparison, ComparisonProgress, Ended, LATE, Round};
use crate::judge::one_shot::{OneShot, SETTLING};

/// Consecutive windows in which nothing is written.
#[derive(Default)]
struct Stretch {
    windows: Vec<(Figures, LiveWindow, Option<Unfair>)>,
    /// Why the windows ended early, if they did.
    ended: Option<Ended>,
}

/// The indices of the two candidates: the unchanged host, and the change that disturbs traffic.
const WITHOUT: usize = 0;
const WITH: usize = 1;

impl Comparison<'_> {
    /// Measures windows before, with and after the candidate. Pairs each window with the candidate with a
    /// random window without it.
    pub(crate) fn before_with_and_after(
        &mut self,
        once: &mut OneShot<'_>,
        switchback: &mut Switchback,
        signals: &mut Signals,
        progress: &mut dyn ComparisonProgress,
    ) -> Result<Ended, Fault> {
        let began = Instant::now();
        let before = self.stretch("before", WITHOUT, once.windows, signals, progress)?;
        let mut with = Stretch::default();
        let mut after = Stretch::default();
        // If there are no response times, the disturbance would be useless: skip it.
        let unpaired = before.windows.last().and_then(|(_, window, _)| Unpaired::of(&window.counts));
        let mut ended = before.ended.or(unpaired.map(Ended::Unpaired));
        if ended.is_none() {
            self.switches.push(once.commit()?);
            with = self.stretch("with", WITH, once.windows, signals, progress)?;
            // Restore the host before anything else, whatever the result.
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

    /// Waits until outstanding requests are answered, and then measures this many windows without writing
    /// anything.
    fn stretch(
        &mut self,
        name: &str,
        candidate: usize,
        windows: usize,
        signals: &mut Signals,
        progress: &mut dyn ComparisonProgress,
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
                // A restarted process has lost its settings, so the comparison cannot continue.
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
