//! What to do, and when: events in, work out. No kernel, no clock: the time is an argument.
//!
//! - Events that come together are handled together: a turn begins [`Kind::delay`] after the first event.
//! - After work comes a pause as long as the work was, up to [`PAUSE_MAX`]: a storm of events costs half a CPU at most.
//! - What failed is tried again after [`RETRY_FIRST`], twice that, and so on to [`TICK`], together with what is new.
//! - What has no event is looked at every [`TICK`]; the epolls of a young process, where BPF does not report them, at
//!   [`YOUNG_FIRST`], twice that, and so on to [`YOUNG_EVERY`].
//! - What shows soon by itself and has no event, as the first packet of a UDP server, is looked for every [`SCAN_EVERY`].
//! - An object is repaired [`REPAIRS_MAX`] times in [`REPAIRS_WITHIN`] at most, then it is left alone until some of that
//!   has become older: the other program has its reasons, and a fight over a value serves neither.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use apply::{Knob, Ledger};
use model::{Change, IfIndex, Nanoseconds, Object, Pid, Plan, Step};

use crate::status::Kind;

/// How often the daemon looks at what has no event.
pub const TICK: Nanoseconds = Nanoseconds::from_millis(10_000);
/// The longest pause after work.
pub const PAUSE_MAX: Nanoseconds = Nanoseconds::from_millis(10);
/// How soon failed work is tried again.
pub const RETRY_FIRST: Nanoseconds = Nanoseconds::from_millis(5);
/// How soon after its start a process's epolls are looked for where BPF does not report them.
pub const YOUNG_FIRST: Nanoseconds = Nanoseconds::from_millis(5);
/// How often they are looked for at least, while the process is young.
pub const YOUNG_EVERY: Nanoseconds = Nanoseconds::from_millis(1_000);
/// For how long a process is young.
pub const YOUNG_FOR: Nanoseconds = Nanoseconds::from_millis(10_000);
/// How often the daemon scans for what shows soon and has no event.
pub const SCAN_EVERY: Nanoseconds = Nanoseconds::from_millis(500);
/// How often an object is repaired within [`REPAIRS_WITHIN`].
pub const REPAIRS_MAX: usize = 10;
/// The time in which [`REPAIRS_MAX`] repairs of an object are enough.
pub const REPAIRS_WITHIN: Nanoseconds = Nanoseconds::from_millis(600_000);
/// How many requests of applications are followed immediately within [`APP_REQUESTS_WITHIN`]; further ones wait for the
/// tick.
pub const APP_REQUESTS_MAX: usize = 10;
/// The time in which [`APP_REQUESTS_MAX`] are enough.
pub const APP_REQUESTS_WITHIN: Nanoseconds = TICK;
/// How many objects' repairs are remembered; the longest unrepaired is forgotten first.
pub const REPAIRED_MAX: usize = 65_536;

/// Something that happened, as far as it decides what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A device came, went or changed.
    Link(IfIndex),
    /// A setting of a device's driver changed.
    Ethtool(IfIndex),
    /// Queues of the device with this name came or went.
    Queues(String),
    /// A CPU went on or off line.
    Cpu,
    /// A process is managed from now on, or has a new image: all of it is looked at.
    Exec(Pid),
    /// A managed process has forked, and this is the child.
    Fork(Pid),
    /// A managed process has ended.
    Exit(Pid),
    /// A managed process listens.
    Listener(Pid),
    /// A managed process that had shown by no packet where it receives has a connection.
    Connection(Pid),
    /// A managed process has a new epoll.
    Epoll(Pid),
    /// An application made a request, of this process where that is known.
    AppRequest(Option<Pid>),
    /// The policy files changed, or shall be read again.
    Policy,
    /// A client made a request, and what is wanted changed.
    Asked,
    /// Another process wrote to the journal.
    Journal,
    /// Something was lost: everything is looked at.
    Lost,
}

impl Event {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Link(_) => Kind::Link,
            Self::Ethtool(_) => Kind::Ethtool,
            Self::Queues(_) => Kind::Queues,
            Self::Cpu => Kind::Cpu,
            Self::Exec(_) => Kind::Exec,
            Self::Fork(_) => Kind::Fork,
            Self::Exit(_) => Kind::Exit,
            Self::Listener(_) => Kind::Listener,
            Self::Connection(_) => Kind::Connection,
            Self::Epoll(_) => Kind::Epoll,
            Self::AppRequest(_) => Kind::AppRequest,
            Self::Policy => Kind::Policy,
            Self::Asked => Kind::Asked,
            Self::Journal => Kind::Journal,
            Self::Lost => Kind::Timer,
        }
    }
}

impl Kind {
    /// For how long a turn waits for more events.
    pub fn delay(self) -> Nanoseconds {
        match self {
            // A device that changes sends several notices in a row.
            Self::Link | Self::Ethtool | Self::Queues | Self::Cpu => Nanoseconds::from_micros(500),
            // An editor writes a file in several steps.
            Self::Policy => Nanoseconds::from_millis(1),
            Self::Exec | Self::Fork | Self::Exit | Self::Listener | Self::Epoll | Self::AppRequest => {
                Nanoseconds::from_micros(50)
            }
            // It is accepted first, and read for the first time.
            Self::Connection => Nanoseconds::from_millis(1),
            Self::Asked | Self::Journal | Self::Timer => Nanoseconds::ZERO,
        }
    }
}

/// How much of a process is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Its epolls and their parameters.
    Epolls,
    /// All of it.
    Whole,
}

/// What is to be observed again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observe {
    /// Devices, by index.
    pub devices: BTreeSet<IfIndex>,
    /// Devices, by the name that they had.
    pub named: BTreeSet<String>,
    /// Processes.
    pub processes: BTreeMap<Pid, Scope>,
    /// The CPUs.
    pub cpus: bool,
    /// Everything: the rest need not be looked at by itself.
    pub everything: bool,
}

/// What is to be looked at, and what for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Parts of the host.
    pub observe: Observe,
    /// The policy files.
    pub policy: bool,
    /// What applications request.
    pub app_requests: bool,
    /// What is wanted changed, so that what is no longer wanted is put back immediately.
    pub asked: bool,
    /// The journal, for roll backs by others.
    pub journal: bool,
    /// What has no event.
    pub tick: bool,
    /// What shows soon and has no event.
    pub scan: bool,
    /// Whether it contains work that failed before.
    pub again: bool,
    /// The kinds of events that led to this, each with the time at which the first of them happened.
    pub first_events: BTreeMap<Kind, Nanoseconds>,
}

impl Work {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the journal was written to, and nothing else is known to have happened.
    pub fn is_of_the_journal_alone(&self) -> bool {
        self.journal
            && *self == Self { journal: true, first_events: self.first_events.clone(), ..Self::default() }
    }

    /// Whether a scan is due, and nothing is known to have happened.
    pub fn is_a_scan_alone(&self) -> bool {
        self.scan && *self == Self { scan: true, first_events: self.first_events.clone(), ..Self::default() }
    }

    /// Both, each thing once.
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

    fn note(&mut self, kind: Kind, at: Nanoseconds) {
        let first = self.first_events.entry(kind).or_insert(at);
        *first = (*first).min(at);
    }
}

/// A process that is looked at often.
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
    /// It was repaired too often.
    Flapping,
    /// An operator rolled it back.
    RolledBack,
}

/// What is left alone at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressed {
    repaired: BTreeMap<Object, VecDeque<Nanoseconds>>,
    released: BTreeSet<Knob>,
}

/// What may be done of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// The changes that may be made.
    pub plan: Plan,
    /// The objects that these changes repair.
    pub repairs: BTreeSet<Object>,
    /// The changes that are not made, and why.
    pub left_alone: Vec<(Change, LeftAlone)>,
}

/// What is to be done, when, and what is left alone.
#[derive(Clone, Debug, Default)]
pub struct Reconciler {
    work: Work,
    due: Option<Nanoseconds>,
    rest_until: Nanoseconds,
    retry: Option<(Nanoseconds, Nanoseconds, Work)>,
    tick_at: Nanoseconds,
    /// When the next scan is, while there is something to look for.
    scan_at: Option<Nanoseconds>,
    sees_new_epolls: bool,
    young: BTreeMap<Pid, Young>,
    repaired: BTreeMap<Object, VecDeque<Nanoseconds>>,
    released: BTreeSet<Knob>,
    followed_at: VecDeque<Nanoseconds>,
}

impl Reconciler {
    /// Nothing has been looked at yet: everything is due now.
    pub fn begin(now: Nanoseconds, sees_new_epolls: bool) -> Self {
        let mut converge = Self { sees_new_epolls, tick_at: plus(now, TICK), ..Self::default() };
        converge.note(&Event::Policy, now, now);
        converge.note(&Event::Lost, now, now);
        converge.due = Some(now);
        converge
    }

    /// Notes an event that happened at `at` and is noticed at `now`.
    pub fn note(&mut self, event: &Event, at: Nanoseconds, now: Nanoseconds) {
        match event {
            Event::Link(index) | Event::Ethtool(index) => drop(self.work.observe.devices.insert(*index)),
            Event::Queues(name) => drop(self.work.observe.named.insert(name.clone())),
            Event::Cpu => self.work.observe.cpus = true,
            Event::Exec(pid) | Event::Fork(pid) => {
                self.work.process(*pid, Scope::Whole);
                self.watch_young_epolls(*pid, now);
            }
            Event::Exit(pid) => {
                self.young.remove(pid);
                self.work.process(*pid, Scope::Whole);
            }
            Event::Listener(pid) => {
                self.work.process(*pid, Scope::Whole);
                self.watch_young_epolls(*pid, now);
            }
            Event::Connection(pid) => {
                self.work.process(*pid, Scope::Whole);
                // There is no event for the connection being accepted.
                self.watch_young(*pid, Scope::Whole, now);
            }
            Event::Epoll(pid) => self.work.process(*pid, Scope::Epolls),
            Event::AppRequest(pid) => {
                self.work.app_requests = true;
                if let Some(pid) = pid {
                    self.work.process(*pid, Scope::Whole);
                    // There is no event for the requesting socket joining an epoll.
                    self.watch_young(*pid, Scope::Epolls, now);
                }
            }
            Event::Policy => self.work.policy = true,
            Event::Asked => self.work.asked = true,
            Event::Journal => self.work.journal = true,
            Event::Lost => self.work.observe.everything = true,
        }
        self.work.note(event.kind(), at);
        // What happened long ago is not waited for any more.
        let due = plus(at, event.kind().delay()).max(now);
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    /// Looks for the epolls of a young process often, where BPF does not report them.
    fn watch_young_epolls(&mut self, pid: Pid, now: Nanoseconds) {
        if !self.sees_new_epolls {
            self.watch_young(pid, Scope::Epolls, now);
        }
    }

    /// Looks at a young process often, for [`YOUNG_FOR`].
    fn watch_young(&mut self, pid: Pid, scope: Scope, now: Nanoseconds) {
        let next = plus(now, YOUNG_FIRST);
        let young = Young { until: plus(now, YOUNG_FOR), next, pause: YOUNG_FIRST, scope };
        // One that is young already is looked at often as it is, but for what is new about it.
        let known = self.young.entry(pid).or_insert(young);
        known.until = young.until;
        if known.scope < scope {
            *known = young;
        }
    }

    /// When there is something to do next, if no event comes before.
    pub fn next_wake(&self) -> Nanoseconds {
        let due = self.due.map(|due| due.max(self.rest_until));
        let retry = self.retry.as_ref().map(|(at, ..)| *at);
        let young = self.young.values().map(|young| young.next).min();
        [due, retry, young, self.scan_at].into_iter().flatten().fold(self.tick_at, Nanoseconds::min)
    }

    /// What is to be done now, if anything is. The caller reports afterwards how it went: [`Reconciler::done`] or
    /// [`Reconciler::failed`].
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
            work.note(Kind::Timer, now);
        }
        if self.scan_at.is_some_and(|at| at <= now) {
            self.scan_at = Some(plus(now, SCAN_EVERY));
            work.scan = true;
            work.note(Kind::Timer, now);
        }
        for (pid, young) in &mut self.young {
            if young.next <= now {
                work.process(*pid, young.scope);
                work.note(Kind::Timer, now);
                young.pause = Nanoseconds(young.pause.0.saturating_mul(2)).min(YOUNG_EVERY);
                young.next = plus(now, young.pause);
            }
        }
        self.young.retain(|_, young| young.until > now);
        (!work.is_empty()).then_some(work)
    }

    /// The work that was taken is done, and took so long.
    pub fn done(&mut self, took: Nanoseconds, now: Nanoseconds) {
        if self.retry.as_ref().is_some_and(|(.., work)| work.is_empty()) {
            self.retry = None;
        }
        self.rest_until = plus(now, took.min(PAUSE_MAX));
    }

    /// The work that was taken could not be done, and is to be done again.
    pub fn failed(&mut self, work: Work, took: Nanoseconds, now: Nanoseconds) {
        let (pause, mut again) = match self.retry.take() {
            Some((_, pause, again)) => (Nanoseconds(pause.0.saturating_mul(2)).min(TICK), again),
            None => (RETRY_FIRST, Work::default()),
        };
        again.join(Work { tick: false, scan: false, again: true, ..work });
        self.retry = Some((plus(now, pause), pause, again));
        self.rest_until = plus(now, took.min(PAUSE_MAX));
    }

    /// From now on there is something to scan for, or nothing any more.
    pub fn scan_for(&mut self, anything: bool, now: Nanoseconds) {
        self.scan_at = anything.then(|| self.scan_at.unwrap_or(plus(now, SCAN_EVERY)));
    }

    /// Forgets a young process.
    pub fn forget(&mut self, pid: Pid) {
        self.young.remove(&pid);
    }

    /// Which changes of a plan may be made now.
    pub fn judge(&mut self, plan: Plan, ledger: &Ledger, now: Nanoseconds) -> Judged {
        let mut judged = Judged::default();
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

    /// These objects were repaired.
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

    /// What is left alone now, for [`Reconciler::leave_alone_as`] to restore.
    pub fn left_alone(&self) -> Suppressed {
        Suppressed { repaired: self.repaired.clone(), released: self.released.clone() }
    }

    /// Restores what [`Reconciler::left_alone`] returned.
    pub fn leave_alone_as(&mut self, before: Suppressed) {
        let Suppressed { repaired, released } = before;
        (self.repaired, self.released) = (repaired, released);
    }

    /// An operator rolled these back: they are left alone until [`Reconciler::take_up`].
    pub fn release(&mut self, knobs: impl IntoIterator<Item = Knob>) {
        self.released.extend(knobs);
    }

    /// Whether a knob is left alone because it was rolled back.
    pub fn is_released(&self, knob: &Knob) -> bool {
        self.released.contains(knob)
    }

    /// How many knobs are left alone because they were rolled back.
    pub fn released(&self) -> usize {
        self.released.len()
    }

    /// Takes up again what was left alone of these objects: they were requested again.
    pub fn take_up_of(&mut self, objects: &BTreeSet<Object>) {
        self.released.retain(|(object, _)| !objects.contains(object));
        self.repaired.retain(|object, _| !objects.contains(object));
    }

    /// Takes up again what was left alone of objects like these.
    pub fn take_up_where(&mut self, meant: impl Fn(&Object) -> bool) {
        self.released.retain(|(object, _)| !meant(object));
        self.repaired.retain(|object, _| !meant(object));
    }

    /// Whether a request of an application is followed immediately: not if [`APP_REQUESTS_MAX`] were within
    /// [`APP_REQUESTS_WITHIN`]. Then it waits for the tick.
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

    /// Takes up again what was left alone, for whatever reason.
    pub fn take_up(&mut self) {
        self.released.clear();
        self.repaired.clear();
    }
}

/// The time after a span. The clock counts nanoseconds since boot, and does not overflow.
fn plus(at: Nanoseconds, span: Nanoseconds) -> Nanoseconds {
    Nanoseconds(at.0.saturating_add(span.0))
}

/// The time that is left until a moment.
pub fn until(at: Nanoseconds, now: Nanoseconds) -> Duration {
    Duration::from_nanos(at.0.saturating_sub(now.0))
}
