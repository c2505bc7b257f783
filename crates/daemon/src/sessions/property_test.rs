//! Simulates random sessions of several clients, with disconnects, confirmations and kills of the daemon. The
//! host is fake; the journal, transactions, alternation, verdicts and admission are real. `SESSIONS=10000`
//! simulates more sessions.
//!
//! [`Invariant`] lists what is checked after each event. The last tests break each invariant on purpose
//! ([`Sabotage`]), and check that this is reported.
//!
//! The response time of the fake service depends on its settings, without noise, so the test knows which
//! candidates are better. A kill stops the host at a write, with the journal as it is on disk at that moment.
//! Then either the guard process or the next daemon restores the host, but not both, so that neither hides a
//! fault of the other.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use apply::{Allow, AtExit, Expiry, Journal, Knobs, Moment, Standing, Transaction, TransactionName};
use latency::judge::{Aim, Alternation, Tuner, TunerStep};
use latency::measure::switchback::{Figures, Metric, Rule, Switchback};
use linux::KernelError;
use model::{
    Change, DeviceId, EmptyPolls, IfIndex, Label, Nanoseconds, NapiKnob, NetnsId, Pid, Plan, QueueIndex,
    Reason, Ruling, RxQueue, Setting, Step,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process, test_kill_process};
use serde_json::json;
use session::guard_process::restore_left_by;
use session::{Session, clock, cycle, trial};
use tempfile::TempDir;

use super::child::SessionProgram;
use super::desk::{OpenSession, SESSIONS_MAX, SESSIONS_PER_USER_MAX, SessionDesk, SessionKind};
use super::hold::{HeldBack, SessionHold};
use super::params::{SessionCall, TuneParams};
use super::run::{SessionEvent, Sessions};
use crate::held::roll_back_unfinished;
use crate::status::SessionOutcome;
use crate::{Answer, ApiRequest, Shared};

/// The minimum number of sessions to simulate if `SESSIONS` is not set.
const SESSIONS: usize = 500;
const QUEUES: usize = 3;
const CLIENTS: u32 = 3;
const HOUR: u64 = 3_600_000_000_000;
/// The minimum number of pairs for a verdict: fewer pairs with the same sign occur by chance in more than 5
/// of 100 cases.
const PAIRS_LEAST: usize = 5;
/// The number of random event sequences within which each broken invariant must be noticed.
const STORIES_OF_SABOTAGE: usize = 200;

/// The conditions that must be true after each event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Invariant {
    /// Before a write reaches the host, the journal has an entry with the setting's old and new value.
    Journalled,
    /// Settings stay in force only because of a verdict that they are better, a confirmation, the daemon's
    /// policy, or a trial whose deadline has not passed.
    Decided,
    /// At most [`SESSIONS_MAX`] sessions run, at most [`SESSIONS_PER_USER_MAX`] of each user, and at most one
    /// of them changes settings; the daemon changes none during that session.
    Limited,
    /// However a session ends, the host is in the state that the journal records, and nothing is unfinished.
    Restored,
    /// `Cancel`, or a disconnect of the client, ends the session and its process, and nothing is kept.
    Ended,
}

/// A broken invariant.
#[derive(Debug)]
struct Violation(Invariant, String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0, self.1)
    }
}

type Checked = Result<(), Violation>;

/// Returns a violation of the invariant if the condition is false.
fn holds(condition: bool, invariant: Invariant, words: impl FnOnce() -> String) -> Checked {
    if condition { Ok(()) } else { Err(Violation(invariant, words())) }
}

/// A fault that is injected on purpose. Each breaks one invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    /// Settings reach the host before they are in the journal.
    WritesBeforeTheJournal,
    /// The slowest candidate is kept.
    KeepsTheWorst,
    /// A candidate is kept after the first pair of windows.
    KeepsWithoutAVerdict,
    /// No session counts towards the limits.
    AdmitsEverybody,
    /// A dry run counts as a session that changes settings.
    DryRunsOccupy,
    /// A session that ends does not restore the host.
    LeavesItsSettings,
    /// Neither the guard process nor the next daemon restores the host after a kill.
    RestoresNothing,
    /// A session continues after its client has disconnected.
    IgnoresCancel,
    /// The winner is kept although the client has disconnected.
    KeepsAfterCancel,
}

impl Sabotage {
    const ALL: [(Self, Invariant); 9] = [
        (Self::WritesBeforeTheJournal, Invariant::Journalled),
        (Self::KeepsTheWorst, Invariant::Decided),
        (Self::KeepsWithoutAVerdict, Invariant::Decided),
        (Self::AdmitsEverybody, Invariant::Limited),
        (Self::DryRunsOccupy, Invariant::Limited),
        (Self::LeavesItsSettings, Invariant::Restored),
        (Self::RestoresNothing, Invariant::Restored),
        (Self::IgnoresCancel, Invariant::Ended),
        (Self::KeepsAfterCancel, Invariant::Ended),
    ];
}

/// Values for two knobs of each queue; `None` leaves a knob unchanged.
type Values = [Option<u8>; 2 * QUEUES];

fn knob(number: usize, value: u8) -> Setting {
    let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
    let index = u32::try_from(number / 2).expect("a queue");
    let queue = RxQueue { device, index: QueueIndex(index) };
    Setting::Napi(
        queue,
        match number % 2 {
            0 => NapiKnob::DeferHardIrqs(EmptyPolls(u32::from(value))),
            _ => NapiKnob::GroFlushTimeout(Nanoseconds(u64::from(value) * 1_000)),
        },
    )
}

/// Returns the median response time of the service with these settings, as a factor.
fn response(settings: &[Setting]) -> f64 {
    let of = |setting: &Setting| match setting {
        Setting::Napi(_, NapiKnob::DeferHardIrqs(EmptyPolls(1))) => 0.7,
        Setting::Napi(_, NapiKnob::DeferHardIrqs(EmptyPolls(2))) => 1.6,
        Setting::Napi(_, NapiKnob::GroFlushTimeout(Nanoseconds(1_000))) => 1.3,
        Setting::Napi(_, NapiKnob::GroFlushTimeout(Nanoseconds(2_000))) => 0.8,
        _ => 1.0,
    };
    settings.iter().map(of).product()
}

/// The simulated host, which all programs that change it share.
struct Disk {
    settings: Vec<Setting>,
    writes: usize,
    /// The number of the write at which everything is killed, and whether this write still takes effect.
    kill_at: Option<(usize, bool)>,
    is_dead: bool,
    journal: PathBuf,
    boot: String,
    snapshot: PathBuf,
    violation: Option<String>,
}

#[derive(Clone)]
struct FakeHost(Rc<RefCell<Disk>>);

impl Disk {
    fn die(&mut self) {
        self.is_dead = true;
        self.kill_at = None;
        let _none_yet = std::fs::remove_dir_all(&self.snapshot);
        copy(&self.journal, &self.snapshot);
    }

    /// Whether a live transaction on disk records a change between the current value and the value to be
    /// written.
    fn is_journalled(&self, to: &Setting) -> bool {
        let now = self.settings.iter().find(|known| known.same_knob(to));
        let history = Journal::new(&self.journal, &*self.boot).history().expect("the journal");
        let live = history.transactions.iter().filter(|transaction| transaction.standing().is_live());
        let mut changes = live.flat_map(|transaction| transaction.begin().plan.changes());
        changes.any(|change| {
            (change.to() == to && Some(change.from()) == now)
                || (change.from() == to && Some(change.to()) == now)
        })
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).into_iter().flatten().flatten() {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("copied")),
        }
    }
}

fn dead() -> KernelError {
    KernelError::errno("the host", Errno::IO)
}

impl Knobs for FakeHost {
    type Error = KernelError;

    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, KernelError> {
        let disk = self.0.borrow();
        if disk.is_dead {
            return Err(dead());
        }
        let known = |knob: &Setting| disk.settings.iter().find(|s| s.same_knob(knob)).cloned();
        Ok(like.iter().map(|knob| known(knob).expect("a knob")).collect())
    }

    fn write(&mut self, settings: &[Setting]) -> Result<(), KernelError> {
        let mut disk = self.0.borrow_mut();
        if disk.is_dead {
            return Err(dead());
        }
        let this = disk.writes;
        disk.writes += 1;
        let kill = disk.kill_at.filter(|(at, _)| *at <= this);
        if kill.is_some_and(|(_, after)| !after) {
            disk.die();
            return Err(dead());
        }
        for setting in settings {
            if !disk.is_journalled(setting) {
                disk.violation.get_or_insert(format!("{setting} is written without a journal entry"));
            }
            let known = disk.settings.iter_mut().find(|s| s.same_knob(setting)).expect("a knob");
            *known = setting.clone();
        }
        if kill.is_some() {
            disk.die();
            return Err(dead());
        }
        Ok(())
    }

    fn is_gone(_: &KernelError) -> bool {
        false
    }
}

/// A random event of the simulation.
#[derive(Clone, Debug)]
enum Event {
    /// A client begins a session that measures or alternates two candidates.
    Begin { client: u32, kind: SessionKind, dry_run: bool, candidates: [Values; 2] },
    /// A client begins many sessions that measure.
    Crowd { client: u32, sessions: usize },
    /// A client tries a policy, and may confirm it later. The client may disconnect before the reply.
    Try { client: u32, values: Values, leaves: bool },
    /// The session that changes settings begins a window with this candidate.
    Window { candidate: usize },
    /// The session that changes settings ends after this many pairs of windows, or with this ruling of a
    /// guard, and keeps the winner.
    Verdict { pairs: usize, ruling: Ruling },
    /// A client disconnects or cancels its session, possibly while the winner is being kept.
    Leave { pick: usize, pairs: usize },
    /// A client confirms a transaction, the settings of a running session, or the newest trial.
    Confirm { pick: Option<usize>, of_session: bool },
    /// A client rolls a transaction back.
    RollBack { pick: usize },
    /// The deadline of a trial passes.
    Expire { pick: usize },
    /// The daemon's policy changes.
    Policy { values: Values },
    /// After this many writes, everything is killed at the next write, except the guard process if
    /// `guard_survives` is true.
    Kill { writes: usize, after: bool, guard_survives: bool },
}

/// Why a transaction may be in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Because {
    /// A verdict or a confirmation keeps the transaction.
    Kept,
    /// The daemon's policy.
    Policy,
    /// The transaction is on trial until this deadline.
    Trial(Nanoseconds),
}

/// A running session.
struct Running<'a> {
    kind: SessionKind,
    /// `None` if the session changes no settings.
    writer: Option<(Alternation<'a, FakeHost>, SessionHold)>,
    /// The plans of the session's candidates.
    plans: Vec<Plan>,
    in_force: Option<usize>,
    /// The response time with each candidate, as a factor of the response time with the first one.
    truth: Vec<f64>,
}

impl Running<'_> {
    /// Returns the figures of one window of each candidate. The differences between pairs are too small to
    /// decide anything.
    fn figures(&self, candidates: &[usize], pair: usize) -> Vec<Figures> {
        let near = if pair.is_multiple_of(2) { 1.0 } else { 1.01 };
        let window = |candidate: &usize| {
            let p50 = 100e3 * self.truth[*candidate] * near;
            Figures { p50: Some(p50), p99: Some(5.0 * p50), ..Figures::of_requests(1.0, 5_000) }
        };
        candidates.iter().map(window).collect()
    }

    /// Returns the winner, determined as the commands do it.
    fn winner(&self, pairs: usize, ruling: Ruling) -> Option<usize> {
        let names: Vec<String> = (0..self.plans.len()).map(|candidate| candidate.to_string()).collect();
        match self.kind {
            _ if self.plans.is_empty() => None,
            SessionKind::Watch => None,
            SessionKind::Try => ruling.is_kept().then_some(1),
            SessionKind::Compare => {
                let rule = Rule { deciding: vec![Metric::P50], margin: 0.05, alpha: Rule::ALPHA };
                let mut rounds = Switchback::new(names, rule);
                let all: Vec<usize> = (0..self.plans.len()).collect();
                for pair in 0..pairs {
                    let _counts = rounds.add(&self.figures(&all, pair), None);
                }
                rounds.winner_within(&[])
            }
            SessionKind::Tune => {
                let aim = Aim { metric: Metric::P50, limits: "p99=+15%".parse().expect("limits") };
                let mut tuner = Tuner::new(names, aim, 0.05, false, 300);
                for pair in 0..pairs {
                    let TunerStep::Round { candidates, .. } = tuner.step() else { break };
                    let _counts = tuner.add(&self.figures(&candidates, pair), None);
                }
                tuner.end();
                tuner.winner()
            }
        }
    }
}

/// The operation that was in progress when the daemon was killed.
#[derive(Default)]
struct InProgress {
    /// A plan that may be in force as a transaction.
    plan: Option<(Plan, Because)>,
    /// A transaction whose rollback may have begun.
    undo: Option<TransactionName>,
}

struct World<'a> {
    session: &'a Session,
    host: FakeHost,
    base: Vec<Setting>,
    live: BTreeMap<TransactionName, (Plan, Because)>,
    desk: SessionDesk,
    held: HeldBack,
    shared: Shared,
    open: BTreeMap<u64, Running<'a>>,
    progress: InProgress,
    sessions: usize,
    trials: u64,
    guard_survives: bool,
    sabotage: Option<Sabotage>,
}

fn later(deadline: Nanoseconds) -> Moment {
    Moment { since_boot: Nanoseconds(deadline.0 + 1), ..clock::now() }
}

impl<'a> World<'a> {
    fn journal(&self) -> Journal {
        self.session.journal().expect("a journal")
    }

    /// Returns the changes that lead from the current host to these values.
    fn plan(&self, values: &Values) -> Plan {
        let disk = self.host.0.borrow();
        let mut steps = Vec::new();
        for queue in 0..QUEUES {
            let mut changes = Vec::new();
            for number in [2 * queue, 2 * queue + 1] {
                let Some(value) = values[number] else { continue };
                let (from, to) = (disk.settings[number].clone(), knob(number, value));
                if from != to {
                    let because = Reason::new("test", "test");
                    changes.push(Change::new(from, to, because));
                }
            }
            steps.extend(Step::try_from(changes).ok());
        }
        Plan { steps }
    }

    fn writer(&self) -> Option<u64> {
        self.open.iter().find(|(_, running)| running.writer.is_some()).map(|(id, _)| *id)
    }

    fn does(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    fn admit(&mut self, client: u32, kind: SessionKind, dry_run: bool) -> Result<Option<u64>, Violation> {
        let of_client = self.desk.open().values().filter(|open| open.uid == client).count();
        let has_room = self.desk.open().len() < SESSIONS_MAX && of_client < SESSIONS_PER_USER_MAX;
        let is_free = !kind.changes_settings() || dry_run || self.writer().is_none();
        let changes_settings = match self.does(Sabotage::DryRunsOccupy) {
            true => kind.changes_settings(),
            false => changes_settings(kind, dry_run),
        };
        let session = OpenSession { kind, uid: client, changes_settings };
        let admitted = match self.does(Sabotage::AdmitsEverybody) {
            true => SessionDesk::default().admit(session),
            false => self.desk.admit(session),
        };
        holds(admitted.is_ok() == (has_room && is_free), Invariant::Limited, || {
            format!(
                "{kind} of client {client} (dry run: {dry_run}): {admitted:?}, beside {:?}",
                self.desk.open()
            )
        })?;
        self.sessions += usize::from(admitted.is_ok());
        Ok(admitted.ok())
    }

    fn hold(&mut self, id: u64) -> Result<SessionHold, Violation> {
        let by = self.held.by().map(str::to_owned);
        holds(by.is_none(), Invariant::Limited, || format!("the daemon already waits for {by:?}"))?;
        let (hold, request) = SessionHold::new(format!("session {id}"), self.shared.clone());
        self.held.begin(request);
        Ok(hold)
    }

    fn commit(&mut self, plan: Plan, because: Because) -> Option<TransactionName> {
        let until = match because {
            Because::Kept | Because::Policy => None,
            Because::Trial(deadline) => Some(deadline),
        };
        self.progress.plan = Some((plan.clone(), because));
        if self.does(Sabotage::WritesBeforeTheJournal) {
            let settings: Vec<Setting> = plan.changes().map(|change| change.to().clone()).collect();
            let _unjournalled = self.host.write(&settings);
        }
        let (mut journal, asked) = (self.journal(), self.session.asked(until));
        if because == Because::Policy {
            journal = journal.kept_by_this_daemon().expect("its lock");
        }
        let done = cycle::commit(plan.clone(), &mut self.host, &journal, &asked, Allow::default(), until);
        let name = done.ok().flatten()?;
        self.live.insert(name, (plan, because));
        Some(name)
    }

    fn begin(&mut self, client: u32, kind: SessionKind, dry_run: bool, candidates: &[Values; 2]) -> Checked {
        let Some(id) = self.admit(client, kind, dry_run)? else { return Ok(()) };
        let mut running =
            Running { kind, writer: None, plans: Vec::new(), in_force: None, truth: Vec::new() };
        if kind.changes_settings() && !dry_run {
            let hold = self.hold(id)?;
            running.plans = vec![Plan::default(), self.plan(&candidates[0]), self.plan(&candidates[1])];
            if kind == SessionKind::Try {
                running.plans.truncate(2);
            }
            running.truth = self.truth(&running.plans);
            let journal = self.journal().owned_by_session(AtExit::RollBack).expect("its lock");
            let plans = running.plans.clone();
            let alternation =
                Alternation::on(self.host.clone(), plans, self.session, &journal, Duration::from_secs(1));
            running.writer = Some((alternation.expect("an alternation"), hold));
        }
        self.open.insert(id, running);
        Ok(())
    }

    /// Returns the response time with each plan, as a factor of the response time with the first one.
    fn truth(&self, plans: &[Plan]) -> Vec<f64> {
        let disk = self.host.0.borrow();
        let with = |plan: &Plan| {
            let mut settings = disk.settings.clone();
            set(plan, &mut settings);
            response(&settings)
        };
        plans.iter().map(|plan| with(plan) / with(&plans[0])).collect()
    }

    fn window(&mut self, candidate: usize) {
        let Some(id) = self.writer() else { return };
        let Some(running) = self.open.get_mut(&id) else { return };
        let candidate = candidate.min(running.plans.len() - 1);
        let Some((alternation, _)) = &mut running.writer else { return };
        let switched = alternation.switch_to(candidate);
        let is_in_force = switched.is_ok() && !running.plans[candidate].is_empty();
        running.in_force = is_in_force.then_some(candidate);
    }

    /// Ends a session after this many pairs, and keeps the winner, unless the client has disconnected.
    fn end(&mut self, id: u64, pairs: usize, ruling: Ruling, has_left: bool) -> Checked {
        if has_left && self.does(Sabotage::IgnoresCancel) {
            return Ok(());
        }
        let Some(mut running) = self.open.remove(&id) else { return Ok(()) };
        let mut winner = running.winner(pairs, ruling).filter(|_| !has_left);
        let others = || (1..running.plans.len()).filter(|candidate| !running.plans[*candidate].is_empty());
        let by_response = |one: &usize, other: &usize| running.truth[*one].total_cmp(&running.truth[*other]);
        match self.sabotage {
            Some(Sabotage::KeepsTheWorst) if !has_left => winner = others().max_by(by_response),
            Some(Sabotage::KeepsWithoutAVerdict) if !has_left => {
                winner = others().min_by(by_response).filter(|_| pairs > 0)
            }
            Some(Sabotage::KeepsAfterCancel) => winner = running.winner(pairs, ruling),
            _ => {}
        }
        let was_writer = running.writer.is_some();
        if let (Some((alternation, _)), Some(winner)) = (&mut running.writer, winner) {
            let plan = running.plans[winner].clone();
            self.progress.plan = Some((plan.clone(), Because::Kept));
            if let Ok(Some(name)) = alternation.keep(winner) {
                running.in_force = None;
                self.live.insert(name, (plan, Because::Kept));
                holds(!has_left, Invariant::Ended, || format!("{name} was kept after its client had left"))?;
                let (words, kept) = match running.kind {
                    SessionKind::Try => (ruling.to_string(), matches!(ruling, Ruling::Kept | Ruling::Better)),
                    _ => {
                        let truth = running.truth[winner];
                        (
                            format!("{truth} × the response time, {pairs} pairs"),
                            truth < 1.0 && pairs >= PAIRS_LEAST,
                        )
                    }
                };
                holds(kept, Invariant::Decided, || format!("{name} was kept: {words}"))?;
            }
        }
        // Until then, its lock is needed for the next session.
        if running.in_force.is_some()
            && self.does(Sabotage::LeavesItsSettings)
            && let Some((alternation, hold)) = running.writer.take()
        {
            drop(hold);
            std::mem::forget(alternation);
        }
        drop(running);
        self.desk.end(id);
        holds(self.held.by().is_some() == self.writer().is_some(), Invariant::Limited, || {
            "the daemon still waits for a session that has ended".to_owned()
        })?;
        let took = self.held.take_ended();
        holds(took == was_writer, Invariant::Limited, || "the daemon does not notice the end".to_owned())
    }

    fn happens(&mut self, event: &Event) -> Checked {
        self.progress = InProgress::default();
        let nth = |pick: usize| self.live.keys().nth(pick % self.live.len().max(1)).copied();
        match event {
            Event::Begin { client, kind, dry_run, candidates } => {
                self.begin(*client, *kind, *dry_run, candidates)?
            }
            Event::Crowd { client, sessions } => {
                for _ in 0..*sessions {
                    self.begin(*client, SessionKind::Watch, false, &Default::default())?;
                }
            }
            Event::Try { client, values, leaves } => {
                let Some(id) = self.admit(*client, SessionKind::Try, false)? else { return Ok(()) };
                let hold = self.hold(id)?;
                self.trials += 1;
                let deadline = Nanoseconds(clock::now().since_boot.0 + HOUR + self.trials);
                let tried = self.commit(self.plan(values), Because::Trial(deadline));
                if let Some(name) = tried.filter(|_| *leaves) {
                    self.undo(name);
                }
                drop(hold);
                self.desk.end(id);
                assert!(self.held.take_ended());
            }
            Event::Window { candidate } => self.window(*candidate),
            Event::Verdict { pairs, ruling } => {
                if let Some(id) = self.writer() {
                    self.end(id, *pairs, *ruling, false)?;
                }
            }
            Event::Leave { pick, pairs } => {
                let id = self.open.keys().nth(pick % self.open.len().max(1)).copied();
                if let Some(id) = id {
                    self.leave(id, *pairs)?;
                }
            }
            Event::Confirm { pick, of_session } => {
                let candidate = self.candidate().filter(|_| *of_session);
                let named = candidate.or_else(|| pick.and_then(nth));
                if let Ok(name) = trial::confirm(named, &self.journal()) {
                    match self.live.get_mut(&name) {
                        // A kept transaction can be confirmed again, which changes nothing.
                        Some((_, because)) => *because = Because::Kept,
                        // The candidate in force also has a deadline, but belongs to its session and must not
                        // be confirmed.
                        None => {
                            let words = format!("{name} was confirmed, and belongs to a session");
                            return Err(Violation(Invariant::Decided, words));
                        }
                    }
                }
            }
            Event::RollBack { pick } => {
                if let Some(name) = nth(*pick) {
                    self.undo(name);
                }
            }
            Event::Expire { pick } => {
                let Some(name) = nth(*pick) else { return Ok(()) };
                let Some((_, Because::Trial(deadline))) = self.live.get(&name) else { return Ok(()) };
                let now = later(*deadline);
                self.progress.undo = Some(name);
                match self.journal().roll_back_if_unconfirmed(name, &mut self.host, now) {
                    Ok(Expiry::RolledBack(_)) => drop(self.live.remove(&name)),
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => assert!(self.host.0.borrow().is_dead, "{error}"),
                }
            }
            Event::Policy { values } => {
                assert_eq!(self.held.by().is_some(), self.writer().is_some());
                if self.held.by().is_none() {
                    let plan = self.plan(values);
                    self.commit(plan, Because::Policy);
                }
            }
            Event::Kill { writes, after, guard_survives } => {
                self.guard_survives = *guard_survives;
                let mut disk = self.host.0.borrow_mut();
                disk.kill_at = Some((disk.writes + writes, *after));
            }
        }
        Ok(())
    }

    /// Disconnects the client of a session after this many pairs, and checks that the session ends.
    fn leave(&mut self, id: u64, pairs: usize) -> Checked {
        self.end(id, pairs, Ruling::Kept, true)?;
        holds(!self.open.contains_key(&id), Invariant::Ended, || {
            format!("session {id} goes on after its client has left")
        })
    }

    /// Returns the transaction of the candidate in force, if any.
    fn candidate(&self) -> Option<TransactionName> {
        let running = self.open.get(&self.writer()?)?;
        let (alternation, _) = running.writer.as_ref()?;
        alternation.transaction(running.in_force?)
    }

    /// Restarts the daemon after it was killed together with its sessions. The guard process of a session
    /// restores the host; if the guard process was killed, too, the next daemon does.
    fn restart(&mut self) -> Checked {
        // Dropping the sessions runs their error paths, but this affects neither the host nor the journal,
        // which are as they were at the kill.
        self.open.clear();
        self.desk = SessionDesk::default();
        assert_eq!(self.held.by(), None);
        self.held.take_ended();
        {
            let mut disk = self.host.0.borrow_mut();
            std::fs::remove_dir_all(&disk.journal).expect("removed");
            std::fs::rename(&disk.snapshot, &disk.journal).expect("moved back");
            disk.is_dead = false;
        }
        let journal = self.journal();
        let failed = |fault: session::Fault| Violation(Invariant::Restored, fault.cause.to_string());
        let is_owned = |half: &&Transaction| half.begin().owned_by.is_some();
        let daemons = self.journal().kept_by_this_daemon().expect("its lock");
        match (self.does(Sabotage::RestoresNothing), self.guard_survives) {
            (true, _) => {}
            (false, true) => {
                let own = Pid(std::process::id());
                restore_left_by(own, &journal, &mut self.host).map_err(failed)?;
                let left: Vec<TransactionName> =
                    unfinished(&journal).iter().filter(is_owned).map(Transaction::name).collect();
                holds(left.is_empty(), Invariant::Restored, || format!("the guard process left {left:?}"))?;
                roll_back_unfinished(&daemons, &mut self.host, clock::now(), |_| ()).map_err(failed)?;
            }
            (false, false) => {
                roll_back_unfinished(&daemons, &mut self.host, clock::now(), |_| ()).map_err(failed)?;
            }
        }
        drop(daemons);
        let progress = std::mem::take(&mut self.progress);
        for half in unfinished(&journal) {
            let name = half.name();
            match half.begin().asked.deadline.filter(|_| half.begin().owned_by.is_none()) {
                // A trial that was in progress is rolled back at its deadline by its own guard process.
                Some(deadline) => {
                    let ended = journal.roll_back_if_unconfirmed(name, &mut self.host, later(deadline));
                    let is_undone = matches!(ended, Ok(Expiry::RolledBack(_)));
                    holds(is_undone, Invariant::Restored, || format!("{name}, at its deadline: {ended:?}"))?;
                }
                // The rollback in progress was killed: its client requests it again.
                None if progress.undo == Some(name) => {
                    journal.roll_back(name, &mut self.host, clock::now()).expect("rolled back");
                }
                None => {
                    return Err(Violation(
                        Invariant::Restored,
                        format!("{name} is unfinished: nothing restores it"),
                    ));
                }
            }
        }
        let live = live_of(&journal);
        let names: BTreeSet<TransactionName> = live.iter().map(Transaction::name).collect();
        for name in self.live.keys().filter(|name| !names.contains(name)) {
            let was_undone = progress.undo == Some(*name);
            holds(was_undone, Invariant::Restored, || format!("{name} was in force, and was rolled back"))?;
        }
        self.live.retain(|name, _| names.contains(name));
        for transaction in live {
            let (name, plan) = (transaction.name(), transaction.begin().plan.clone());
            if self.live.contains_key(&name) {
                continue;
            }
            // The kill came after the last record of the operation in progress, so its transaction is in
            // force.
            let decided = progress.plan.as_ref().filter(|(decided, _)| *decided == plan);
            let because = decided.map(|(_, because)| *because);
            let because = because.ok_or_else(|| {
                Violation(
                    Invariant::Restored,
                    format!("{name} stays in force after a kill, without a decision"),
                )
            })?;
            self.live.insert(name, (plan, because));
        }
        Ok(())
    }

    fn check(&mut self) -> Checked {
        if self.host.0.borrow().is_dead {
            self.restart()?;
        }
        let disk = self.host.0.borrow();
        holds(disk.violation.is_none(), Invariant::Journalled, || {
            disk.violation.clone().unwrap_or_default()
        })?;
        let mut expected = self.base.clone();
        self.live.values().for_each(|(plan, _)| set(plan, &mut expected));
        let running = self.writer().and_then(|id| self.open.get(&id));
        if let Some((running, at)) = running.and_then(|running| Some((running, running.in_force?))) {
            set(&running.plans[at], &mut expected);
        }
        holds(disk.settings == expected, Invariant::Restored, || {
            format!("the host has {:?}, and the decisions result in {expected:?}", disk.settings)
        })?;
        drop(disk);
        let candidate = self.candidate();
        let live = live_of(&self.journal());
        let names: BTreeSet<TransactionName> = live.iter().map(Transaction::name).collect();
        let known: BTreeSet<TransactionName> = self.live.keys().copied().chain(candidate).collect();
        holds(names == known, Invariant::Restored, || format!("the journal has {names:?}, not {known:?}"))?;
        for transaction in live.iter().filter(|transaction| Some(transaction.name()) != candidate) {
            let (_, because) = self.live[&transaction.name()];
            let standing = transaction.standing();
            let is_decided = match standing {
                Standing::Kept | Standing::Confirmed => matches!(because, Because::Kept | Because::Policy),
                Standing::HeldUntil(deadline) => because == Because::Trial(deadline),
                _ => false,
            };
            holds(is_decided, Invariant::Decided, || {
                format!("{} is {standing}, and was decided as {because:?}", transaction.name())
            })?;
        }
        let writers = self.desk.open().values().filter(|open| open.changes_settings).count();
        let is_limited = writers <= 1
            && self.desk.open().len() <= SESSIONS_MAX
            && self.desk.open().len() == self.open.len()
            && self.held.by().is_some() == self.writer().is_some();
        holds(is_limited, Invariant::Limited, || format!("{:?}", self.desk.open()))
    }

    /// Disconnects all clients, and rolls back all transactions that were kept or are on trial.
    fn finish(&mut self) -> Checked {
        self.host.0.borrow_mut().kill_at = None;
        for id in self.open.keys().copied().collect::<Vec<_>>() {
            self.leave(id, 0)?;
        }
        self.check()?;
        for name in self.live.keys().rev().copied().collect::<Vec<_>>() {
            self.undo(name);
        }
        self.check()?;
        holds(self.host.0.borrow().settings == self.base, Invariant::Restored, || {
            "the host differs after everything was rolled back".to_owned()
        })
    }

    fn undo(&mut self, name: TransactionName) {
        self.progress.undo = Some(name);
        if self.journal().roll_back(name, &mut self.host, clock::now()).is_ok() {
            self.live.remove(&name);
        }
    }
}

/// Returns whether a session changes settings, as the parameters of its call determine it.
fn changes_settings(kind: SessionKind, dry_run: bool) -> bool {
    if kind != SessionKind::Tune {
        return kind.changes_settings();
    }
    let parameters = json!({ "service": { "port": 80 }, "goal": "p50", "dry_run": dry_run });
    let call = serde_json::from_value::<TuneParams>(parameters).expect("parameters").call();
    call.expect("a call").changes_settings
}

/// Applies the changes of a plan to known settings.
fn set(plan: &Plan, settings: &mut [Setting]) {
    for change in plan.changes() {
        let known = settings.iter_mut().find(|s| s.same_knob(change.to())).expect("a knob");
        *known = change.to().clone();
    }
}

fn live_of(journal: &Journal) -> Vec<Transaction> {
    let mut transactions = journal.history().expect("the journal").transactions;
    transactions.retain(|transaction| transaction.standing().is_live());
    transactions
}

fn unfinished(journal: &Journal) -> Vec<Transaction> {
    journal.history().expect("the journal").unfinished().cloned().collect()
}

fn values() -> impl Strategy<Value = Values> {
    proptest::array::uniform6(proptest::option::weighted(0.4, 0_u8..3))
}

fn event() -> impl Strategy<Value = Event> {
    // The kind of a session, and whether it is a dry run.
    let kind = prop_oneof![
        1 => Just((SessionKind::Watch, false)),
        3 => Just((SessionKind::Compare, false)),
        3 => Just((SessionKind::Tune, false)),
        1 => Just((SessionKind::Tune, true)),
        2 => Just((SessionKind::Try, false)),
    ];
    let candidates = [values(), values()];
    let ruling = || proptest::sample::select(&Ruling::OF_GUARDS[..]);
    prop_oneof![
        6 => (0..CLIENTS, kind, candidates)
            .prop_map(|(client, (kind, dry_run), candidates)| Event::Begin { client, kind, dry_run, candidates }),
        1 => (0..CLIENTS, 2_usize..6).prop_map(|(client, sessions)| Event::Crowd { client, sessions }),
        4 => (0..CLIENTS, values(), proptest::bool::weighted(0.3))
            .prop_map(|(client, values, leaves)| Event::Try { client, values, leaves }),
        8 => (0_usize..3).prop_map(|candidate| Event::Window { candidate }),
        4 => (0_usize..60, ruling()).prop_map(|(pairs, ruling)| Event::Verdict { pairs, ruling }),
        3 => (any::<usize>(), 0_usize..60).prop_map(|(pick, pairs)| Event::Leave { pick, pairs }),
        2 => (proptest::option::of(any::<usize>()), any::<bool>())
            .prop_map(|(pick, of_session)| Event::Confirm { pick, of_session }),
        2 => any::<usize>().prop_map(|pick| Event::RollBack { pick }),
        2 => any::<usize>().prop_map(|pick| Event::Expire { pick }),
        2 => values().prop_map(|values| Event::Policy { values }),
        3 => (0_usize..8, any::<bool>(), any::<bool>())
            .prop_map(|(writes, after, guard_survives)| Event::Kill { writes, after, guard_survives }),
    ]
}

fn stories() -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec(event(), 30..60)
}

/// Simulates these events, and returns the number of sessions.
fn play(events: &[Event], sabotage: Option<Sabotage>) -> Result<usize, Violation> {
    let base = [Path::new("/dev/shm"), Path::new("/tmp")].into_iter().find(|path| path.is_dir());
    let directory =
        TempDir::with_prefix_in("netpolicy-sessions-", base.expect("a place")).expect("a directory");
    let session = Session {
        state_dir: directory.path().join("state"),
        command: "io.netpolicy.Compare by uid 0 (pid 1)".to_owned(),
        ..Session::default()
    };
    std::fs::create_dir(&session.state_dir).expect("a directory");
    let settings: Vec<Setting> = (0..2 * QUEUES).map(|number| knob(number, 0)).collect();
    let disk = Disk {
        settings: settings.clone(),
        writes: 0,
        kill_at: None,
        is_dead: false,
        journal: session.state_dir.join("journal"),
        boot: linux::machine::boot_id().expect("a boot"),
        snapshot: directory.path().join("snapshot"),
        violation: None,
    };
    let mut world = World {
        session: &session,
        host: FakeHost(Rc::new(RefCell::new(disk))),
        base: settings,
        live: BTreeMap::new(),
        desk: SessionDesk::default(),
        held: HeldBack::default(),
        shared: Shared::new().expect("descriptors"),
        open: BTreeMap::new(),
        progress: InProgress::default(),
        sessions: 0,
        trials: 0,
        guard_survives: true,
        sabotage,
    };
    for event in events {
        world.happens(event)?;
        world.check()?;
    }
    world.finish()?;
    Ok(world.sessions)
}

/// Returns the minimum number of sessions to simulate.
fn wanted() -> usize {
    std::env::var("SESSIONS").ok().and_then(|number| number.parse().ok()).unwrap_or(SESSIONS)
}

#[test]
fn random_sessions_break_no_invariant() {
    let sessions = std::cell::Cell::new(0);
    while sessions.get() < wanted() {
        let config =
            Config { cases: 1, failure_persistence: None, max_shrink_iters: 500, ..Config::default() };
        let ended = TestRunner::new(config).run(&stories(), |events| match play(&events, None) {
            Ok(more) => {
                sessions.set(sessions.get() + more);
                Ok(())
            }
            Err(violation) => Err(TestCaseError::fail(violation.to_string())),
        });
        ended.unwrap_or_else(|failed| panic!("after {} sessions: {failed}", sessions.get()));
    }
}

#[test]
fn each_broken_invariant_is_reported() {
    for (sabotage, invariant) in Sabotage::ALL {
        let mut runner = TestRunner::deterministic();
        let mut play_one = || {
            let events = stories().new_tree(&mut runner).expect("a story").current();
            play(&events, Some(sabotage)).err()
        };
        let found = (0..STORIES_OF_SABOTAGE).find_map(|_| play_one());
        let Violation(broken, words) = found.unwrap_or_else(|| panic!("{sabotage:?} was not reported"));
        assert_eq!(broken, invariant, "{sabotage:?}: {words}");
    }
}

/// How a session that has a process ends prematurely.
#[derive(Clone, Copy, Debug)]
enum Leaving {
    Cancels,
    Disconnects,
    StopsReading,
    DaemonExits,
    ProcessIsKilled,
}

/// A script that prints its pid, and then a record every 20 ms.
const PROGRAM: &str = r#"echo "{\"pid\": $$}"; while :; do echo '{"n": 1}'; sleep 0.02; done"#;

/// Begins a session that runs this shell script, ends the session, and checks that nothing of it is left.
fn end_process(script: &str, kind: SessionKind, leaving: Leaving, within: Duration) -> Checked {
    let shared = Shared::new().expect("descriptors");
    let program = SessionProgram {
        program: "/bin/sh".into(),
        words: vec!["-c".into(), script.into(), "sh".into()],
        policy_words: Vec::new(),
        allow_words: Vec::new(),
    };
    let sessions = Sessions::new(program, shared.clone());
    let (sender, events) = channel();
    let reads = Arc::new(AtomicBool::new(true));
    let sink = {
        let reads = Arc::clone(&reads);
        Box::new(move |event| sender.send(event).is_ok() && reads.load(Ordering::Relaxed))
    };
    let changes_settings = kind.changes_settings();
    let call = SessionCall { kind, words: Vec::new(), policy: None, seconds: 60, changes_settings };
    let handle = sessions.begin(call, 0, "a test".to_owned(), sink).expect("room");
    let mut held = HeldBack::default();
    // This thread acts as the daemon until the script is running.
    let pid = loop {
        if let Some((ApiRequest::HoldBack(request), reply)) = shared.next_request() {
            held.begin(request);
            let (changes, transactions, notes) = (Vec::new(), Vec::new(), Vec::new());
            reply(Answer::Done { summary: String::new(), changes, transactions, notes, pending: false });
        }
        match events.recv_timeout(Duration::from_millis(5)) {
            Ok(SessionEvent::Record(record)) => break record["pid"].as_i64().expect("a pid"),
            Ok(SessionEvent::Ended(ended)) => panic!("{ended:?}"),
            Ok(_) | Err(_) => {}
        }
    };
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
    let id = shared.status().sessions.running[0].id;
    let mut handle = Some(handle);
    match leaving {
        Leaving::Cancels => sessions.cancel(id).expect("it runs"),
        Leaving::Disconnects => drop(handle.take()),
        Leaving::StopsReading => reads.store(false, Ordering::Relaxed),
        Leaving::DaemonExits => drop(std::thread::spawn({
            let sessions = sessions.clone();
            move || sessions.close()
        })),
        Leaving::ProcessIsKilled => kill_process(pid, Signal::KILL).expect("it runs"),
    }
    let until = Instant::now() + within;
    let mut has_ended = false;
    while !has_ended && Instant::now() < until {
        let event = events.recv_timeout(Duration::from_millis(5));
        has_ended = matches!(event, Ok(SessionEvent::Ended(_)) | Err(RecvTimeoutError::Disconnected));
    }
    if !has_ended {
        // Leave nothing behind.
        let _already_gone = kill_process(pid, Signal::KILL);
        while !matches!(events.recv(), Ok(SessionEvent::Ended(_)) | Err(_)) {}
    }
    let words = || format!("the process of {kind} runs {within:?} after: {leaving:?}");
    holds(has_ended && test_kill_process(pid).is_err(), Invariant::Ended, words)?;
    let status = shared.status().sessions.clone();
    let outcome = match leaving {
        Leaving::ProcessIsKilled => SessionOutcome::Failed,
        _ => SessionOutcome::Cancelled,
    };
    let is_counted = status.running.is_empty() && status.ended == BTreeMap::from([(outcome, 1)]);
    holds(is_counted, Invariant::Ended, || format!("{leaving:?}: {status:?}"))?;
    holds(held.by().is_none(), Invariant::Limited, || format!("the daemon waits for {:?}", held.by()))
}

#[test]
fn a_session_that_is_left_in_any_way_leaves_no_process() {
    use Leaving::{Cancels, DaemonExits, Disconnects, ProcessIsKilled, StopsReading};
    let ways = [Cancels, Disconnects, StopsReading, DaemonExits, ProcessIsKilled];
    let all = SessionKind::ALL.into_iter().flat_map(|kind| ways.map(|leaving| (kind, leaving)));
    for (kind, leaving) in all.cycle().take((wanted() / 10).max(20)) {
        end_process(PROGRAM, kind, leaving, Duration::from_secs(20))
            .unwrap_or_else(|violation| panic!("{violation}"));
    }
    let stubborn = format!("trap '' TERM; {PROGRAM}");
    let found = end_process(&stubborn, SessionKind::Tune, Cancels, Duration::from_secs(1));
    let Err(Violation(Invariant::Ended, _)) = found else { panic!("{found:?}") };
}
