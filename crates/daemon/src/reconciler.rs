//! Turns events into work, and decides when to do the work. Uses neither the kernel nor a clock: the time is
//! an argument.
//!
//! - Events that arrive together are handled together: a turn begins [`EventKind::delay`] after the first
//!   event.
//! - After work, the daemon pauses for as long as the work took, up to [`PAUSE_MAX`]: a storm of events costs
//!   at most half a CPU.
//! - Failed work is retried, together with new work, after [`RETRY_FIRST`], twice that, and so on up to
//!   [`TICK`].
//! - State whose changes cause no events is observed every [`TICK`]. If BPF does not report new epolls, those
//!   of a young process are observed after [`YOUNG_FIRST`], twice that, and so on up to [`YOUNG_EVERY`].
//! - Scans every [`SCAN_EVERY`] look for state that is expected soon but causes no event, such as the first
//!   packet of a UDP server.
//! - An object is repaired at most [`REPAIRS_MAX`] times within [`REPAIRS_WITHIN`]; then it is left alone
//!   until older repairs no longer count. If two programs keep overwriting a value, neither gains.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use apply::{Knob, Ledger};
use model::{Change, IfIndex, Nanoseconds, Object, Pid, Plan, Step};

use crate::status::EventKind;

/// The interval at which state is observed whose changes cause no events.
pub const TICK: Nanoseconds = Nanoseconds::from_millis(10_000);
/// The longest pause after work.
pub const PAUSE_MAX: Nanoseconds = Nanoseconds::from_millis(10);
/// The first delay before failed work is retried.
pub const RETRY_FIRST: Nanoseconds = Nanoseconds::from_millis(5);
/// The first delay before the epolls of a young process are observed, if BPF does not report new epolls.
pub const YOUNG_FIRST: Nanoseconds = Nanoseconds::from_millis(5);
/// The longest interval between observations of a young process's epolls.
pub const YOUNG_EVERY: Nanoseconds = Nanoseconds::from_millis(1_000);
/// How long a process counts as young after an event, and is therefore observed frequently.
pub const YOUNG_FOR: Nanoseconds = Nanoseconds::from_millis(10_000);
/// The interval of scans for state that is expected soon but causes no event.
pub const SCAN_EVERY: Nanoseconds = Nanoseconds::from_millis(500);
/// The maximum number of repairs of an object within [`REPAIRS_WITHIN`].
pub const REPAIRS_MAX: usize = 10;
/// The period to which [`REPAIRS_MAX`] applies.
pub const REPAIRS_WITHIN: Nanoseconds = Nanoseconds::from_millis(600_000);
/// The maximum number of applications' requests that are followed immediately within [`APP_REQUESTS_WITHIN`].
/// Further requests wait for the next tick.
pub const APP_REQUESTS_MAX: usize = 10;
/// The period to which [`APP_REQUESTS_MAX`] applies.
pub const APP_REQUESTS_WITHIN: Nanoseconds = TICK;
/// The maximum number of objects whose repairs are recorded. The least recently repaired object is dropped
/// first.
pub const REPAIRED_MAX: usize = 65_536;

/// An event, with the details that determine the resulting work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// A device appeared, disappeared or changed.
    Link(IfIndex),
    /// A setting of a device's driver changed.
    Ethtool(IfIndex),
    /// Queues of the device with this name appeared or disappeared.
    Queues(String),
    /// A CPU went online or offline.
    Cpu,
    /// A process is to be managed, or executes a new program. The whole process is observed.
    Exec(Pid),
    /// A managed process has forked this child.
    Fork(Pid),
    /// A managed process has exited.
    Exit(Pid),
    /// A managed process has begun to listen.
    Listener(Pid),
    /// A managed process whose NAPI is still unknown has a connection.
    Connection(Pid),
    /// A managed process has a new epoll.
    Epoll(Pid),
    /// An application made a request; the process for which it was made, if known.
    AppRequest(Option<Pid>),
    /// The policy files have changed, or must be read again.
    Policy,
    /// A client's request changed the desired settings.
    Asked,
    /// Another process wrote to the journal.
    Journal,
    /// Events were lost, so everything is observed again.
    Lost,
}

impl HostEvent {
    /// The kind of the event.
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Link(_) => EventKind::Link,
            Self::Ethtool(_) => EventKind::Ethtool,
            Self::Queues(_) => EventKind::Queues,
            Self::Cpu => EventKind::Cpu,
            Self::Exec(_) => EventKind::Exec,
            Self::Fork(_) => EventKind::Fork,
            Self::Exit(_) => EventKind::Exit,
            Self::Listener(_) => EventKind::Listener,
            Self::Connection(_) => EventKind::Connection,
            Self::Epoll(_) => EventKind::Epoll,
            Self::AppRequest(_) => EventKind::AppRequest,
            Self::Policy => EventKind::Policy,
            Self::Asked => EventKind::Asked,
            Self::Journal => EventKind::Journal,
            Self::Lost => EventKind::Timer,
        }
    }
}

impl EventKind {
    /// How long the daemon waits for further events before it handles this one.
    pub fn delay(self) -> Nanoseconds {
        match self {
            // A change of a device causes several notifications in quick succession.
            Self::Link | Self::Ethtool | Self::Queues | Self::Cpu => Nanoseconds::from_micros(500),
            // An editor writes a file in several steps.
            Self::Policy => Nanoseconds::from_millis(1),
            Self::Exec | Self::Fork | Self::Exit | Self::Listener | Self::Epoll | Self::AppRequest => {
                Nanoseconds::from_micros(50)
            }
            // The server must first accept the connection and read from it.
            Self::Connection => Nanoseconds::from_millis(1),
            Self::Asked | Self::Journal | Self::Timer => Nanoseconds::ZERO,
        }
    }
}

/// Which part of a process is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The epolls and their parameters.
    Epolls,
    /// The whole process.
    Whole,
}

/// The parts of the host that must be observed again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observe {
    /// Devices, by index.
    pub devices: BTreeSet<IfIndex>,
    /// Devices, by the names that they had when the events occurred.
    pub named: BTreeSet<String>,
    /// Processes, each with the part to observe.
    pub processes: BTreeMap<Pid, Scope>,
    /// The CPUs.
    pub cpus: bool,
    /// Whether to observe everything; the other fields are then irrelevant.
    pub everything: bool,
}

/// The work to do in a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// The parts of the host to observe.
    pub observe: Observe,
    /// Whether to read the policy files.
    pub policy: bool,
    /// Whether to read the requests of applications.
    pub app_requests: bool,
    /// Whether the requests changed, so that unwanted settings are restored immediately.
    pub asked: bool,
    /// Whether to read the journal, to detect rollbacks by other programs.
    pub journal: bool,
    /// Whether to observe the state whose changes cause no events.
    pub tick: bool,
    /// Whether to scan for state that is expected soon but causes no event.
    pub scan: bool,
    /// Whether the work includes work that failed before.
    pub again: bool,
    /// The kinds of events that led to this work, each with the time of the first event.
    pub first_events: BTreeMap<EventKind, Nanoseconds>,
}

impl Work {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a write to the journal is the only reason for this work.
    pub fn is_of_the_journal_alone(&self) -> bool {
        self.journal
            && *self == Self { journal: true, first_events: self.first_events.clone(), ..Self::default() }
    }

    /// Whether a due scan is the only reason for this work.
    pub fn is_a_scan_alone(&self) -> bool {
        self.scan && *self == Self { scan: true, first_events: self.first_events.clone(), ..Self::default() }
    }

    /// Merges other work into this work.
    fn join(&mut self, other: Self) {
        let Observe { devices, named, processes, cpus, everything } = other.observe;
        self.observe.devices.extend(devices);
        self.observe.named.extend(named);
        for (pid, scope) in processes {
            self.process(pid, scope);
        }
        self.observe.cpus |= cpus;
        self.observe.everything |= everything;
        self.policy |= other.policy;
        self.asked |= other.asked;
        self.app_requests |= other.app_requests;
        self.journal |= other.journal;
        self.tick |= other.tick;
        self.scan |= other.scan;
        self.again |= other.again;
        for (kind, at) in other.first_events {
            self.note(kind, at);
        }
    }

    fn process(&mut self, pid: Pid, scope: Scope) {
        let known = self.observe.processes.entry(pid).or_insert(scope);
        *known = (*known).max(scope);
    }

    fn note(&mut self, kind: EventKind, at: Nanoseconds) {
        let first = self.first_events.entry(kind).or_insert(at);
        *first = (*first).min(at);
    }
}

/// A young process, which is observed frequently.
#[derive(Clone, Copy, Debug)]
struct Young {
    scope: Scope,
    until: Nanoseconds,
    next: Nanoseconds,
    pause: Nanoseconds,
}

/// Why a change is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftAlone {
    /// The setting was repaired too often.
    Flapping,
    /// An operator rolled the setting back.
    RolledBack,
}

/// The state that decides which settings are left alone: the repairs so far, and the settings that were
/// rolled back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressed {
    repaired: BTreeMap<Object, VecDeque<Nanoseconds>>,
    released: BTreeSet<Knob>,
}

/// A plan, reduced to the changes that may be made now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermittedPlan {
    /// The changes that may be made.
    pub plan: Plan,
    /// The objects that the permitted changes repair.
    pub repairs: BTreeSet<Object>,
    /// The changes that are not made, each with the reason.
    pub left_alone: Vec<(Change, LeftAlone)>,
}

/// The pending work, its schedule, and the settings that are left alone.
#[derive(Clone, Debug, Default)]
pub struct Reconciler {
    work: Work,
    due: Option<Nanoseconds>,
    rest_until: Nanoseconds,
    retry: Option<(Nanoseconds, Nanoseconds, Work)>,
    tick_at: Nanoseconds,
    /// When the next scan is due; `None` if there is nothing to scan for.
    scan_at: Option<Nanoseconds>,
    sees_new_epolls: bool,
    young: BTreeMap<Pid, Young>,
    repaired: BTreeMap<Object, VecDeque<Nanoseconds>>,
    released: BTreeSet<Knob>,
    followed_at: VecDeque<Nanoseconds>,
}

impl Reconciler {
    /// Creates a reconciler for which all work is due now, because nothing has been observed yet.
    pub fn begin(now: Nanoseconds, sees_new_epolls: bool) -> Self {
        let mut converge = Self { sees_new_epolls, tick_at: plus(now, TICK), ..Self::default() };
        converge.note(&HostEvent::Policy, now, now);
        converge.note(&HostEvent::Lost, now, now);
        converge.due = Some(now);
        converge
    }

    /// Records an event that occurred at `at` and was noticed at `now`.
    pub fn note(&mut self, event: &HostEvent, at: Nanoseconds, now: Nanoseconds) {
        match event {
            HostEvent::Link(index) | HostEvent::Ethtool(index) => {
                self.work.observe.devices.insert(*index);
            }
            HostEvent::Queues(name) => drop(self.work.observe.named.insert(name.clone())),
            HostEvent::Cpu => self.work.observe.cpus = true,
            HostEvent::Exec(pid) | HostEvent::Fork(pid) => {
                self.work.process(*pid, Scope::Whole);
                self.watch_young_epolls(*pid, now);
            }
            HostEvent::Exit(pid) => {
                self.young.remove(pid);
                self.work.process(*pid, Scope::Whole);
            }
            HostEvent::Listener(pid) => {
                self.work.process(*pid, Scope::Whole);
                self.watch_young_epolls(*pid, now);
            }
            HostEvent::Connection(pid) => {
                self.work.process(*pid, Scope::Whole);
                // No event reports when the connection is accepted, so observe the process frequently.
                self.watch_young(*pid, Scope::Whole, now);
            }
            HostEvent::Epoll(pid) => self.work.process(*pid, Scope::Epolls),
            HostEvent::AppRequest(pid) => {
                self.work.app_requests = true;
                if let Some(pid) = pid {
                    self.work.process(*pid, Scope::Whole);
                    // No event reports when the requesting socket is connected or added to an epoll.
                    self.watch_young(*pid, Scope::Whole, now);
                }
            }
            HostEvent::Policy => self.work.policy = true,
            HostEvent::Asked => self.work.asked = true,
            HostEvent::Journal => self.work.journal = true,
            HostEvent::Lost => self.work.observe.everything = true,
        }
        self.work.note(event.kind(), at);
        // If the event was noticed late, do not delay it further.
        let due = plus(at, event.kind().delay()).max(now);
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    /// Observes the epolls of a young process frequently, unless BPF reports new epolls.
    fn watch_young_epolls(&mut self, pid: Pid, now: Nanoseconds) {
        if !self.sees_new_epolls {
            self.watch_young(pid, Scope::Epolls, now);
        }
    }

    /// Observes a process frequently as a young one, for [`YOUNG_FOR`].
    fn watch_young(&mut self, pid: Pid, scope: Scope, now: Nanoseconds) {
        let next = plus(now, YOUNG_FIRST);
        let young = Young { until: plus(now, YOUNG_FOR), next, pause: YOUNG_FIRST, scope };
        // A process that is already young keeps its schedule, unless the scope grows.
        let known = self.young.entry(pid).or_insert(young);
        known.until = young.until;
        if known.scope < scope {
            *known = young;
        }
    }

    /// Returns when work is due next if no event arrives before.
    pub fn next_wake(&self) -> Nanoseconds {
        let due = self.due.map(|due| due.max(self.rest_until));
        let retry = self.retry.as_ref().map(|(at, ..)| *at);
        let young = self.young.values().map(|young| young.next).min();
        [due, retry, young, self.scan_at].into_iter().flatten().fold(self.tick_at, Nanoseconds::min)
    }

    /// Returns the work that is due now, if any. The caller then reports the result with [`Reconciler::done`]
    /// or [`Reconciler::failed`].
    pub fn take_due(&mut self, now: Nanoseconds) -> Option<Work> {
        let mut work = Work::default();
        if self.due.is_some_and(|due| due.max(self.rest_until) <= now) {
            self.due = None;
            work = std::mem::take(&mut self.work);
        }
        if let Some((at, ..)) = &self.retry
            && *at <= now
            && let Some((.., again)) = &mut self.retry
        {
            work.join(std::mem::take(again));
        }
        if self.tick_at <= now {
            self.tick_at = plus(now, TICK);
            work.tick = true;
            work.note(EventKind::Timer, now);
        }
        if self.scan_at.is_some_and(|at| at <= now) {
            self.scan_at = Some(plus(now, SCAN_EVERY));
            work.scan = true;
            work.note(EventKind::Timer, now);
        }
        for (pid, young) in &mut self.young {
            if young.next <= now {
                work.process(*pid, young.scope);
                work.note(EventKind::Timer, now);
                young.pause = Nanoseconds(young.pause.0.saturating_mul(2)).min(YOUNG_EVERY);
                young.next = plus(now, young.pause);
            }
        }
        self.young.retain(|_, young| young.until > now);
        (!work.is_empty()).then_some(work)
    }

    /// Records that the work succeeded, and how long it took.
    pub fn done(&mut self, took: Nanoseconds, now: Nanoseconds) {
        if self.retry.as_ref().is_some_and(|(.., work)| work.is_empty()) {
            self.retry = None;
        }
        self.rest_until = plus(now, took.min(PAUSE_MAX));
    }

    /// Records that the work failed and must be retried.
    pub fn failed(&mut self, work: Work, took: Nanoseconds, now: Nanoseconds) {
        let (pause, mut again) = match self.retry.take() {
            Some((_, pause, again)) => (Nanoseconds(pause.0.saturating_mul(2)).min(TICK), again),
            None => (RETRY_FIRST, Work::default()),
        };
        again.join(Work { tick: false, scan: false, again: true, ..work });
        self.retry = Some((plus(now, pause), pause, again));
        self.rest_until = plus(now, took.min(PAUSE_MAX));
    }

    /// Starts periodic scans if `anything` is true, otherwise stops them.
    pub fn scan_for(&mut self, anything: bool, now: Nanoseconds) {
        self.scan_at = anything.then(|| self.scan_at.unwrap_or(plus(now, SCAN_EVERY)));
    }

    /// Stops the frequent observation of a young process.
    pub fn forget(&mut self, pid: Pid) {
        self.young.remove(&pid);
    }

    /// Decides which changes of a plan may be made now.
    pub fn judge(&mut self, plan: Plan, ledger: &Ledger, now: Nanoseconds) -> PermittedPlan {
        let mut judged = PermittedPlan::default();
        for step in plan.steps {
            let object = step.object();
            let is_flapping = self.is_flapping(&object, now);
            let mut may = Vec::new();
            for change in Vec::from(step) {
                let knob: Knob = (object, change.to().knob());
                let is_repair = ledger.get(&knob).is_some_and(|held| held.to() == change.to());
                if self.released.contains(&knob) {
                    judged.left_alone.push((change, LeftAlone::RolledBack));
                } else if is_repair && is_flapping {
                    judged.left_alone.push((change, LeftAlone::Flapping));
                } else {
                    if is_repair {
                        judged.repairs.insert(object);
                    }
                    may.push(change);
                }
            }
            if !may.is_empty() {
                judged.plan.steps.push(Step::new(may));
            }
        }
        judged
    }

    /// Records that these objects were repaired.
    pub fn repaired(&mut self, objects: &BTreeSet<Object>, now: Nanoseconds) {
        for object in objects {
            self.repaired.entry(*object).or_default().push_back(now);
        }
        while self.repaired.len() > REPAIRED_MAX {
            let oldest = self.repaired.iter().min_by_key(|(_, times)| times.back().copied());
            let Some(oldest) = oldest.map(|(object, _)| *object) else { return };
            self.repaired.remove(&oldest);
        }
    }

    /// Whether an object was repaired [`REPAIRS_MAX`] times within [`REPAIRS_WITHIN`].
    fn is_flapping(&mut self, object: &Object, now: Nanoseconds) -> bool {
        let Some(times) = self.repaired.get_mut(object) else { return false };
        while times.front().is_some_and(|first| plus(*first, REPAIRS_WITHIN) <= now) {
            times.pop_front();
        }
        if times.is_empty() {
            self.repaired.remove(object);
            return false;
        }
        times.len() >= REPAIRS_MAX
    }

    /// Returns the state of the settings that are left alone, so that [`Reconciler::leave_alone_as`] can
    /// restore it.
    pub fn left_alone(&self) -> Suppressed {
        Suppressed { repaired: self.repaired.clone(), released: self.released.clone() }
    }

    /// Restores the state that [`Reconciler::left_alone`] returned.
    pub fn leave_alone_as(&mut self, before: Suppressed) {
        let Suppressed { repaired, released } = before;
        (self.repaired, self.released) = (repaired, released);
    }

    /// Records that an operator rolled these settings back: they are left alone until
    /// [`Reconciler::take_up`].
    pub fn release(&mut self, knobs: impl IntoIterator<Item = Knob>) {
        self.released.extend(knobs);
    }

    /// Whether a setting is left alone because it was rolled back.
    pub fn is_released(&self, knob: &Knob) -> bool {
        self.released.contains(knob)
    }

    /// Returns the number of settings that are left alone because they were rolled back.
    pub fn released(&self) -> usize {
        self.released.len()
    }

    /// Manages all settings of these objects again, because a request wants them.
    pub fn take_up_of(&mut self, objects: &BTreeSet<Object>) {
        self.released.retain(|(object, _)| !objects.contains(object));
        self.repaired.retain(|object, _| !objects.contains(object));
    }

    /// Manages all settings of the objects for which `meant` is true again.
    pub fn take_up_where(&mut self, meant: impl Fn(&Object) -> bool) {
        self.released.retain(|(object, _)| !meant(object));
        self.repaired.retain(|object, _| !meant(object));
    }

    /// Whether a request of an application may be followed immediately. If [`APP_REQUESTS_MAX`] requests were
    /// followed within [`APP_REQUESTS_WITHIN`], the request waits for the tick.
    pub fn admit_app_requests(&mut self, now: Nanoseconds) -> bool {
        while self.followed_at.front().is_some_and(|first| plus(*first, APP_REQUESTS_WITHIN) <= now) {
            self.followed_at.pop_front();
        }
        let admitted = self.followed_at.len() < APP_REQUESTS_MAX;
        if admitted {
            self.followed_at.push_back(now);
        }
        admitted
    }

    /// Manages all settings again, whatever the reason for which they were left alone.
    pub fn take_up(&mut self) {
        self.released.clear();
        self.repaired.clear();
    }
}

/// Adds a time span to a time. The clock counts nanoseconds since boot, so the sum does not overflow.
fn plus(at: Nanoseconds, span: Nanoseconds) -> Nanoseconds {
    Nanoseconds(at.0.saturating_add(span.0))
}

/// Returns the time that remains until `at`.
pub fn until(at: Nanoseconds, now: Nanoseconds) -> Duration {
    Duration::from_nanos(at.0.saturating_sub(now.0))
}
