//! Plays random sessions of several clients, with disconnects, confirmations and kills of the daemon, on a
//! fake host with the real journal, transactions, alternation and admission. `SESSIONS=10000` plays more
//! sessions.
//!
//! Results of measurements (the winner of a comparison, a verdict) are random. The test commits, keeps and
//! restores with the functions that the commands use. A kill stops the host at a write and keeps the journal
//! as it is on disk at that moment; recovery uses the code of the guard process and of the next daemon.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use apply::{Allow, AtExit, Expiry, Journal, Knobs, Moment, Standing, Transaction, TransactionName};
use latency::judge::Alternation;
use linux::KernelError;
use model::{
    Change, DeviceId, EmptyPolls, IfIndex, Label, Nanoseconds, NapiKnob, NetnsId, Pid, Plan, QueueIndex,
    Reason, RxQueue, Setting, Step,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::io::Errno;
use session::expire::{Who, roll_back_expired_by};
use session::guard_process::restore_left_by;
use session::{Session, Silent, clock, cycle, trial};
use tempfile::TempDir;

use super::desk::{OpenSession, SESSIONS_MAX, SESSIONS_PER_USER_MAX, SessionDesk, SessionKind};
use super::hold::{HeldBack, SessionHold};
use crate::Shared;

/// The minimum number of sessions to simulate if `SESSIONS` is not set.
const SESSIONS: usize = 500;
/// The maximum number of random sequences of events: more than the sessions need.
const STORIES_MAX: u32 = 10_000;
const QUEUES: usize = 3;
const CLIENTS: u32 = 3;
const HOUR: u64 = 3_600_000_000_000;

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

/// The host, shared by all programs that change it.
struct Disk {
    settings: Vec<Setting>,
    writes: usize,
    /// The number of the write at which everything is killed, and whether it still takes effect.
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

    /// Whether a live transaction on disk records a change between the current value and the one to be
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

/// An event in a story.
#[derive(Clone, Debug)]
enum Event {
    /// A client begins a session that measures or alternates two candidates.
    Begin { client: u32, kind: SessionKind, candidates: [Values; 2] },
    /// A client tries a policy and may confirm it later. It may leave before the reply.
    Try { client: u32, values: Values, leaves: bool },
    /// The session that changes settings begins a window with a candidate.
    Window { candidate: usize },
    /// That session ends with a verdict, perhaps with a winner to keep.
    Verdict { winner: Option<usize> },
    /// A client leaves or cancels its session.
    Leave { pick: usize },
    /// A client confirms a transaction, or the newest trial.
    Confirm { pick: Option<usize> },
    /// A client rolls a transaction back.
    RollBack { pick: usize },
    /// The deadline of a trial passes.
    Expire { pick: usize },
    /// The daemon's policy changes.
    Policy { values: Values },
    /// Everything is killed after this many writes; `after` is whether the last one takes effect.
    Kill { writes: usize, after: bool },
}

/// Why a transaction may be in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Because {
    /// A verdict, a confirmation, or the policy.
    Kept,
    /// It is on trial until this deadline.
    Trial(Nanoseconds),
}

/// A running session.
struct Running<'a> {
    /// The alternation and the claim on the daemon; `None` if the session changes no settings.
    writer: Option<(Alternation<'a, FakeHost>, SessionHold)>,
    /// The plans of the session's candidates.
    plans: Vec<Plan>,
    in_force: Option<usize>,
}

/// What was in progress when the daemon was killed.
#[derive(Default)]
struct InProgress {
    /// A plan that may become a transaction in force.
    plan: Option<(Plan, Because)>,
    /// A transaction that may be rolled back.
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
}

fn later(deadline: Nanoseconds) -> Moment {
    Moment { since_boot: Nanoseconds(deadline.0 + 1), ..clock::now() }
}

impl<'a> World<'a> {
    fn journal(&self) -> Journal {
        self.session.journal().expect("a journal")
    }

    /// Plans the changes from the current host to these values.
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

    fn admit(&mut self, client: u32, kind: SessionKind) -> Option<u64> {
        let of_client = self.desk.open().values().filter(|open| open.uid == client).count();
        let has_room = self.desk.open().len() < SESSIONS_MAX && of_client < SESSIONS_PER_USER_MAX;
        let is_free = !kind.changes_settings() || self.writer().is_none();
        let admitted = self.desk.admit(OpenSession { kind, uid: client });
        assert_eq!(admitted.is_ok(), has_room && is_free, "{admitted:?}");
        self.sessions += usize::from(admitted.is_ok());
        admitted.ok()
    }

    fn hold(&mut self, id: u64) -> SessionHold {
        assert_eq!(self.held.by(), None);
        let (hold, request) = SessionHold::new(format!("session {id}"), self.shared.clone());
        self.held.begin(request);
        hold
    }

    fn commit(&mut self, plan: Plan, because: Because) -> Option<TransactionName> {
        let until = match because {
            Because::Kept => None,
            Because::Trial(deadline) => Some(deadline),
        };
        self.progress.plan = Some((plan.clone(), because));
        let (journal, asked) = (self.journal(), self.session.asked(until));
        let done = cycle::commit(plan.clone(), &mut self.host, &journal, &asked, Allow::default(), until);
        let name = done.ok().flatten()?;
        self.live.insert(name, (plan, because));
        Some(name)
    }

    fn begin(&mut self, client: u32, kind: SessionKind, candidates: &[Values; 2]) {
        let Some(id) = self.admit(client, kind) else { return };
        let mut running = Running { writer: None, plans: Vec::new(), in_force: None };
        if kind.changes_settings() {
            let hold = self.hold(id);
            running.plans = vec![Plan::default(), self.plan(&candidates[0]), self.plan(&candidates[1])];
            let journal = self.journal().owned_by_session(AtExit::RollBack).expect("its lock");
            let plans = running.plans.clone();
            let alternation =
                Alternation::on(self.host.clone(), plans, self.session, &journal, Duration::from_secs(1));
            running.writer = Some((alternation.expect("an alternation"), hold));
        }
        self.open.insert(id, running);
    }

    fn window(&mut self, candidate: usize) {
        let Some(id) = self.writer() else { return };
        let Some(running) = self.open.get_mut(&id) else { return };
        let Some((alternation, _)) = &mut running.writer else { return };
        let switched = alternation.switch_to(candidate);
        let is_in_force = switched.is_ok() && !running.plans[candidate].is_empty();
        running.in_force = is_in_force.then_some(candidate);
    }

    fn end(&mut self, id: u64, winner: Option<usize>) {
        let Some(mut running) = self.open.remove(&id) else { return };
        if let (Some((alternation, _)), Some(winner)) = (&mut running.writer, winner) {
            let plan = running.plans[winner].clone();
            self.progress.plan = Some((plan.clone(), Because::Kept));
            if let Ok(Some(name)) = alternation.keep(winner) {
                self.live.insert(name, (plan, Because::Kept));
            }
        }
        let was_writer = running.writer.is_some();
        drop(running);
        self.desk.end(id);
        assert_eq!(self.held.by().is_some(), self.writer().is_some(), "the daemon is free again");
        assert_eq!(self.held.take_ended(), was_writer);
    }

    fn happens(&mut self, event: &Event) {
        self.progress = InProgress::default();
        let nth = |pick: usize| self.live.keys().nth(pick % self.live.len().max(1)).copied();
        match event {
            Event::Begin { client, kind, candidates } => self.begin(*client, *kind, candidates),
            Event::Try { client, values, leaves } => {
                let Some(id) = self.admit(*client, SessionKind::Try) else { return };
                let hold = self.hold(id);
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
            Event::Verdict { winner } => {
                if let Some(id) = self.writer() {
                    self.end(id, *winner);
                }
            }
            Event::Leave { pick } => {
                let id = self.open.keys().nth(pick % self.open.len().max(1)).copied();
                if let Some(id) = id {
                    self.leave(id);
                }
            }
            Event::Confirm { pick } => {
                let named = pick.and_then(nth);
                if let Ok(name) = trial::confirm(named, &self.journal()) {
                    match self.live.get_mut(&name) {
                        // Confirming a kept transaction again changes nothing.
                        Some((_, because)) => *because = Because::Kept,
                        // The candidate in force also has a deadline, but belongs to its session and cannot
                        // be confirmed.
                        None => panic!("{name} was confirmed, and is not on trial"),
                    }
                }
            }
            Event::RollBack { pick } => {
                if let Some(name) = nth(*pick) {
                    self.undo(name);
                }
            }
            Event::Expire { pick } => {
                let Some(name) = nth(*pick) else { return };
                let Some((_, Because::Trial(deadline))) = self.live.get(&name) else { return };
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
                    self.commit(plan, Because::Kept);
                }
            }
            Event::Kill { writes, after } => {
                let mut disk = self.host.0.borrow_mut();
                disk.kill_at = Some((disk.writes + writes, *after));
            }
        }
    }

    /// The client of a session leaves, and the host is restored.
    fn leave(&mut self, id: u64) {
        self.end(id, None);
    }

    fn undo(&mut self, name: TransactionName) {
        self.progress.undo = Some(name);
        if self.journal().roll_back(name, &mut self.host, clock::now()).is_ok() {
            self.live.remove(&name);
        }
    }

    /// Recovers from a kill of the daemon and its sessions: guard processes and the next daemon restore the
    /// host.
    fn restart(&mut self) {
        // Dropping the sessions runs their error paths, but these affect neither the host nor the saved
        // journal.
        self.open.clear();
        self.desk = SessionDesk::default();
        assert_eq!(self.held.by(), None);
        self.held.take_ended();
        {
            let mut disk = self.host.0.borrow_mut();
            std::fs::remove_dir_all(&disk.journal).expect("removed");
            std::fs::rename(&disk.snapshot, &disk.journal).expect("put back");
            disk.is_dead = false;
        }
        let journal = self.journal();
        restore_left_by(Pid(std::process::id()), &journal, &mut self.host).expect("restored by the guard");
        roll_back_expired_by(&mut self.host, self.session, &Silent, Who::Guard).expect("nothing is left");
        let progress = std::mem::take(&mut self.progress);
        let history = journal.history().expect("the journal");
        for half in history.unfinished() {
            let is_trial = half.begin().asked.deadline.is_some();
            let is_known = progress.undo == Some(half.name())
                || progress.plan.as_ref().is_some_and(|(plan, _)| *plan == half.begin().plan);
            assert!(is_known, "{} is unfinished, and nothing was in progress", half.name());
            match half.begin().asked.deadline {
                // The trial's guard process rolls back at the deadline.
                Some(deadline) if is_trial && progress.undo.is_none() => {
                    let now = later(deadline);
                    let ended = journal.roll_back_if_unconfirmed(half.name(), &mut self.host, now);
                    assert!(matches!(ended, Ok(Expiry::RolledBack(_))), "{ended:?}");
                }
                // The next daemon rolls back, or the client that requested the rollback.
                _ => drop(journal.roll_back(half.name(), &mut self.host, clock::now()).expect("restored")),
            }
        }
        let live = live_of(&journal);
        let names: BTreeSet<TransactionName> = live.iter().map(Transaction::name).collect();
        self.live.retain(|name, _| {
            let is_live = names.contains(name);
            assert!(is_live || progress.undo == Some(*name), "{name} was lost");
            is_live
        });
        for transaction in live {
            let plan = transaction.begin().plan.clone();
            let name = transaction.name();
            let asked = progress.plan.as_ref().filter(|(asked, _)| *asked == plan);
            self.live.entry(name).or_insert_with(|| {
                let (_, because) = asked.unwrap_or_else(|| panic!("{name} is in force without a decision"));
                (plan, *because)
            });
        }
    }

    fn check(&mut self) {
        if self.host.0.borrow().is_dead {
            self.restart();
        }
        let disk = self.host.0.borrow();
        assert_eq!(disk.violation, None);
        let mut expected = self.base.clone();
        let mut set = |plan: &Plan| {
            for change in plan.changes() {
                let known = expected.iter_mut().find(|s| s.same_knob(change.to())).expect("a knob");
                *known = change.to().clone();
            }
        };
        self.live.values().for_each(|(plan, _)| set(plan));
        let writer = self.writer().and_then(|id| self.open.get(&id));
        let candidate = writer.and_then(|running| {
            let (at, (alternation, _)) = (running.in_force?, running.writer.as_ref()?);
            set(&running.plans[at]);
            alternation.transaction(at)
        });
        assert_eq!(disk.settings, expected, "the host is as it was, except for what is kept");
        drop(disk);
        let live = live_of(&self.journal());
        let names: BTreeSet<TransactionName> = live.iter().map(Transaction::name).collect();
        let known: BTreeSet<TransactionName> = self.live.keys().copied().chain(candidate).collect();
        assert_eq!(names, known, "nothing is in force without a decision");
        for transaction in live.iter().filter(|transaction| Some(transaction.name()) != candidate) {
            let (_, because) = &self.live[&transaction.name()];
            match transaction.standing() {
                Standing::Kept | Standing::Confirmed => assert_eq!(*because, Because::Kept),
                Standing::HeldUntil(deadline) => assert_eq!(*because, Because::Trial(deadline)),
                other => panic!("{}: {other}", transaction.name()),
            }
        }
        assert_eq!(self.held.by().is_some(), self.writer().is_some());
        let writers = self.desk.open().values().filter(|open| open.kind.changes_settings()).count();
        assert!(writers <= 1 && self.desk.open().len() <= SESSIONS_MAX);
        assert_eq!(self.desk.open().len(), self.open.len());
    }

    /// Ends the story: all clients leave, all trials expire, and kept transactions are rolled back.
    fn finish(&mut self) {
        self.host.0.borrow_mut().kill_at = None;
        for id in self.open.keys().copied().collect::<Vec<_>>() {
            self.leave(id);
        }
        self.check();
        for name in self.live.keys().rev().copied().collect::<Vec<_>>() {
            self.undo(name);
        }
        self.check();
        assert_eq!(self.host.0.borrow().settings, self.base);
    }
}

fn live_of(journal: &Journal) -> Vec<Transaction> {
    let mut transactions = journal.history().expect("the journal").transactions;
    transactions.retain(|transaction| transaction.standing().is_live());
    transactions
}

fn values() -> impl Strategy<Value = Values> {
    proptest::array::uniform6(proptest::option::weighted(0.4, 0_u8..3))
}

fn event() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![
        1 => Just(SessionKind::Watch),
        3 => Just(SessionKind::Compare),
        3 => Just(SessionKind::Tune),
    ];
    let candidates = [values(), values()];
    prop_oneof![
        6 => (0..CLIENTS, kind, candidates)
            .prop_map(|(client, kind, candidates)| Event::Begin { client, kind, candidates }),
        4 => (0..CLIENTS, values(), proptest::bool::weighted(0.3))
            .prop_map(|(client, values, leaves)| Event::Try { client, values, leaves }),
        8 => (0_usize..3).prop_map(|candidate| Event::Window { candidate }),
        4 => proptest::option::of(0_usize..3).prop_map(|winner| Event::Verdict { winner }),
        3 => any::<usize>().prop_map(|pick| Event::Leave { pick }),
        2 => proptest::option::of(any::<usize>()).prop_map(|pick| Event::Confirm { pick }),
        2 => any::<usize>().prop_map(|pick| Event::RollBack { pick }),
        2 => any::<usize>().prop_map(|pick| Event::Expire { pick }),
        2 => values().prop_map(|values| Event::Policy { values }),
        3 => (0_usize..8, any::<bool>()).prop_map(|(writes, after)| Event::Kill { writes, after }),
    ]
}

/// Plays a story. Returns the number of its sessions.
fn play(events: &[Event]) -> usize {
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
    };
    for event in events {
        world.happens(event);
        world.check();
    }
    world.finish();
    world.sessions
}

#[test]
fn sessions_write_nothing_unjournalled_and_keep_nothing_undecided() {
    let wanted = std::env::var("SESSIONS").ok().and_then(|number| number.parse().ok()).unwrap_or(SESSIONS);
    let sessions = std::cell::Cell::new(0);
    let config = Config { cases: STORIES_MAX, failure_persistence: None, ..Config::default() };
    let stories = proptest::collection::vec(event(), 30..60);
    let ended = TestRunner::new(config).run(&stories, |events| {
        if sessions.get() < wanted {
            sessions.set(sessions.get() + play(&events));
        }
        Ok(())
    });
    ended.unwrap_or_else(|failed| panic!("after {} sessions: {failed}", sessions.get()));
    assert!(sessions.get() >= wanted, "{} sessions", sessions.get());
}
