//! The daemon's status, and the requests that it accepts.
//!
//! One thread keeps the policy, and another serves the API and the metrics: a [`Shared`] is what they have in common. The API and
//! the metrics read [`Shared::status`] while the daemon works. The API submits [`Request`]s; each comes with a function, which the
//! daemon calls with the answer at the end of the turn.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use latency::live::{Cost, Estimator, Measured, Percentiles, Unit};
use model::{Finding, Goal, Intent, Judgement, NetnsId, Ruling, Target};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bell::{Bell, lock};

/// The most requests that wait at the same time; the next one is refused.
pub const REQUESTS_MAX: usize = 256;

/// All that the daemon reports of itself. It grows with what is asked for, never with time.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Status {
    /// Counts the turns in which something of this changed: a client that has seen this number has seen the rest.
    pub generation: u64,
    /// Which daemon it is.
    #[serde(flatten)]
    pub instance: Instance,
    /// What it is doing.
    pub phase: Phase,
    /// The policy files.
    pub policy: PolicyStatus,
    /// How each kind of event is detected.
    pub event_sources: Vec<EventSource>,
    /// What is asked for, in the order of the files, and after them what was asked of the running daemon.
    pub requests: Vec<RequestStatus>,
    /// How many settings are held: in the journal, and to be kept.
    pub settings: u64,
    /// What is wrong, or worth knowing. One that is mended goes away.
    pub findings: Vec<Finding>,
    /// Counts since the daemon started.
    pub counters: Counters,
    /// How long it took from an event to the policy in force, by the kind of the event.
    pub reactions: BTreeMap<Kind, Reaction>,
    /// The CPUs that poll without traffic.
    pub polling: Polling,
    /// What changes came to that were judged on the traffic of services since the daemon started: the newest first, and at most
    /// [`VERDICTS_MAX`].
    pub verdicts: Vec<Judgement>,
}

/// The most verdicts that are reported; the journal has them all.
pub const VERDICTS_MAX: usize = 32;

/// Which daemon it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Instance {
    /// The daemon's process.
    pub pid: u32,
    /// The version of netpolicy.
    pub version: String,
    /// When it started, in microseconds since 1970-01-01 00:00 UTC.
    pub started_unix_micros: u64,
    /// The network namespace that it works in; `None` before it has entered one.
    pub netns: Option<NetnsId>,
}

/// What the daemon is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It has not converged yet.
    #[default]
    Starting,
    /// It keeps the policy true.
    Managing,
    /// It manages nothing, because all was rolled back; a reload begins again.
    Released,
    /// It is about to end.
    Ending,
}

/// The policy files that are in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PolicyStatus {
    /// How many sections ask for something.
    pub sections: usize,
    /// How many requests came by [`Request::Set`].
    pub asked: usize,
    /// How often the files were read.
    pub reads: u64,
    /// The mistakes of the files as they are now, drawn with line and caret. While there are any, the policy that was
    /// read before stays.
    pub mistakes: Option<String>,
}

/// How one kind of event is detected.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct EventSource {
    /// What is detected: `links`, `processes`, `listeners`, `epolls`.
    pub what: String,
    /// How: `netlink`, `BPF on tracepoints`, `scans every 10 s`.
    pub how: String,
    /// The longest delay until it is detected; `None` where the kernel reports it immediately.
    pub within: Option<Duration>,
    /// Why no faster method is available, in the kernel's words.
    pub refused: Vec<String>,
}

/// A request and how it stands.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct RequestStatus {
    /// Whose traffic: `device eth0`, `service memcached`, `task 812`.
    pub target: String,
    /// The policy's word.
    pub policy: String,
    /// The delivery mode that it comes to; empty where it could not be placed.
    pub delivery: String,
    /// Where it was asked: a file and line, or a command.
    pub origin: String,
    /// How much is its own.
    #[serde(flatten)]
    pub extent: RequestExtent,
    /// The share of the packets of its queues, from 0 to 1, that its delivery mode delivers, as counted in the last minutes:
    /// polled by the application, the timer or the kernel thread. `None` for modes that leave delivery to interrupts, and for
    /// requests that are not measured.
    pub engaged: Option<f64>,
    /// Its goal: percentiles of response times, at most.
    pub goal: Goal,
    /// How long its requests took; `None` for what has no goal, and until it was measured.
    pub measured: Option<ResponseTimes>,
    /// What was tried for its goal; `None` where nothing is searched for, and before the first try.
    pub search: Option<SearchStatus>,
    /// What the operator should know of it.
    pub notes: Vec<String>,
}

/// How much of the host is a request's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct RequestExtent {
    /// How many queues are its own.
    pub queues: usize,
    /// How many processes are its own.
    pub processes: usize,
    /// How many epolls and io_urings of these are set.
    pub epolls: usize,
    /// How many knobs it wants.
    pub wanted: usize,
    /// How many of these have the wanted value. *Set*, not yet *engaged*.
    pub set: usize,
}

/// What was tried for a service whose goal is missed.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SearchStatus {
    /// The delivery mode that is tried at this moment.
    pub trying: Option<String>,
    /// The one that was found, and is in force.
    pub found: Option<String>,
    /// How many tries of the last 24 hours count.
    pub tries_today: usize,
    /// How many are allowed.
    pub tries_a_day: usize,
    /// What became of each mode.
    pub tried: Vec<TriedStatus>,
}

/// A delivery mode that was tried.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct TriedStatus {
    /// The mode.
    pub mode: String,
    /// The one that it was compared with.
    pub instead_of: String,
    /// When, in microseconds since 1970-01-01 00:00 UTC.
    pub at_unix_micros: u64,
    /// What it came to, in words; `None` while it is tried, and where the daemon ended meanwhile.
    pub ruling: Option<String>,
    /// What was measured, in words.
    pub measured: Option<String>,
}

/// When and how much of a service's traffic was measured.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct MeasuredWindows {
    /// When it was measured last, in microseconds since 1970-01-01 00:00 UTC.
    pub at_unix_micros: u64,
    /// How many windows were measured.
    pub windows: usize,
    /// How long they were together, in seconds.
    pub measured_seconds: f64,
    /// What `requests`, `rate` and `cost` count: requests where the protocol shows them, else exchanges.
    pub unit: Unit,
    /// Requests or exchanges that were answered in them, by `unit`.
    pub requests: u64,
    /// The same in a second.
    pub rate: f64,
}

/// How long the requests of a service took in the last minutes. Spans are in nanoseconds.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct ResponseTimes {
    /// In which windows it was measured.
    #[serde(flatten)]
    pub windows: MeasuredWindows,
    /// By what `response` was estimated.
    pub estimator: Estimator,
    /// From the NIC's ring to the answer.
    pub response: Percentiles,
    /// In the ring.
    pub ring: Percentiles,
    /// From TCP to the read.
    pub wakeup: Percentiles,
    /// From the read to the answer.
    pub service_time: Percentiles,
    /// CPU time of a request.
    pub cost: Cost,
    /// Requests without an answer at the end of the last window.
    pub waiting: u64,
    /// How long the oldest of them has waited.
    pub oldest: Option<u64>,
    /// The rules of all that was found, as in `docs/reference/findings.md`; those that are wrong are among the findings, too.
    pub found: Vec<String>,
}

/// Counts since the daemon started. All of them only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Counters {
    /// Events that were noticed, by kind.
    pub events: BTreeMap<Kind, u64>,
    /// Events that were lost because they came faster than they were taken, each followed by a look at everything.
    pub lost: u64,
    /// How often the daemon planned, observed and committed.
    #[serde(flatten)]
    pub passes: PassCounters,
    /// What became of settings.
    #[serde(flatten)]
    pub settings: SettingCounters,
    /// Requests and processes that were dropped at a limit.
    pub evictions: u64,
    /// Rollbacks by an operator that were seen.
    pub rollbacks: u64,
    /// Requests that were done.
    pub answered: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Verdicts on changes under guard, one for each service that they were judged on, by what they came to.
    pub verdicts: BTreeMap<Ruling, u64>,
    /// What became of modes that were tried for services whose goal was missed.
    pub searches: SearchCounters,
}

/// How often the daemon planned, observed and committed. All of it only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PassCounters {
    /// Plans that were made.
    pub plans: u64,
    /// Scans of the whole host.
    pub full_scans: u64,
    /// Transactions that were committed.
    pub commits: u64,
    /// Transactions that failed, and were undone.
    pub failures: u64,
}

/// What became of modes that were tried for services whose goal was missed. All of it only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SearchCounters {
    /// Those that were better, and are kept.
    pub kept: u64,
    /// Those that were put back.
    pub put_back: u64,
    /// Those that could not be judged, or were interrupted.
    pub not_judged: u64,
}

/// What became of settings. All of it only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SettingCounters {
    /// Settings that were written.
    pub changes: u64,
    /// Settings of these that another program, or a reset, had changed before.
    pub repairs: u64,
    /// Settings that were left alone because they had been repaired too often.
    pub flapping: u64,
    /// Settings that were put back because no request wants them any more.
    pub released: u64,
}

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A device came, went, was renamed, or changed its state.
    Link,
    /// A driver's settings changed: channels, rings, moderation, features, RSS.
    Ethtool,
    /// A device's queues changed, or its driver was reset.
    Queues,
    /// A CPU went on or off line.
    Cpu,
    /// A process has a new image.
    Exec,
    /// A managed process has forked.
    Fork,
    /// A managed process has ended.
    Exit,
    /// A socket listens.
    Listener,
    /// A managed process that had shown by no packet where it receives has a connection.
    Connection,
    /// A managed process has a new epoll.
    Epoll,
    /// An application made a request.
    AppRequest,
    /// A policy file changed, or the daemon was asked to read them again.
    Policy,
    /// A client made a request of the running daemon.
    Asked,
    /// Another process wrote to the journal.
    Journal,
    /// It was time to look again.
    Timer,
}

/// The upper ends of a reaction's buckets, in microseconds; one more bucket has what took longer.
pub const REACTION_MICROS: [u64; 14] =
    [100, 200, 400, 700, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 200_000, 1_000_000];

/// How long it took from the event to the policy in force, for those that needed a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Reaction {
    /// How many there were.
    pub count: u64,
    /// How long all of them took together, in microseconds.
    pub sum_micros: u64,
    /// The longest, in microseconds.
    pub max_micros: u64,
    /// How many took at most as long as the same place of [`REACTION_MICROS`] says, each counted once.
    pub buckets: [u64; REACTION_MICROS.len() + 1],
}

impl Reaction {
    /// Notes one more.
    pub fn note(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.count += 1;
        self.sum_micros = self.sum_micros.saturating_add(micros);
        self.max_micros = self.max_micros.max(micros);
        self.buckets[REACTION_MICROS.partition_point(|end| *end < micros)] += 1;
    }
}

/// The CPUs that may poll without traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Polling {
    /// How many are kept polling by what the host shows of the policy: threads of NAPIs that poll without a pause, and
    /// threads of applications that wait busily.
    pub used: u32,
    /// How many all budgets together allow.
    pub allowed: u32,
}

/// A request to the running daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Give a target a policy until it is unset; it takes the place of what was set for the same target before, and
    /// outlives the daemon. What the policy files say of the same target yields to it.
    Set(Box<Intent>),
    /// Withdraw what was set for a target: settings that nothing else requests are put back.
    Unset(Target),
    /// Read the policy files again, and take back up what was left alone: after a rollback, after flapping.
    Reload,
    /// Put everything back that the daemon has set, and manage nothing until the next [`Request::Reload`].
    RollBack,
    /// Every setting that is held.
    Settings,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It is done.
    Done {
        /// In one sentence.
        summary: String,
        /// Each setting that was changed, as `plan` shows it.
        changes: Vec<String>,
        /// The transactions that it took, by name.
        transactions: Vec<String>,
        /// What the operator should know of it, a sentence each.
        notes: Vec<String>,
        /// Whether something of it is not in force yet: it is remembered, and done when it can be.
        pending: bool,
    },
    /// It was not done, and nothing was changed.
    Refused {
        /// The exit code that a command would end with.
        exit: u8,
        /// Why.
        why: String,
        /// What can be done about it.
        hint: Option<String>,
    },
    /// The settings that are held.
    Settings(Vec<HeldSetting>),
}

/// A setting that the daemon holds.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldSetting {
    /// The object, as the other commands name it.
    pub object: String,
    /// The knob.
    pub knob: String,
    /// The value that was there before.
    pub before: String,
    /// The value that it was given.
    pub value: String,
    /// Why it is not kept at the moment: `flapping`, `rolled back`; `None` while it is kept.
    pub left_alone: Option<String>,
}

/// The function that takes a request's answer. The daemon's thread calls it.
pub type Reply = Box<dyn FnOnce(Answer) + Send>;

/// The daemon's state, and its queue of requests.
#[derive(Clone)]
pub struct Shared(Arc<State>);

/// No thread holds one of these locks while it waits for anything, or while it takes another.
struct State {
    status: Mutex<Status>,
    services: Mutex<Vec<Measured>>,
    requests: Mutex<VecDeque<(Request, Reply)>>,
    /// Rings when there is a request.
    requested: Bell,
    /// Rings when the status has changed, or a request is answered.
    changed: Bell,
    /// Whether the API's thread has ended.
    api_ended: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("status", &*self.status())
            .field("requests", &lock(&self.0.requests).len())
            .finish()
    }
}

impl Shared {
    /// A daemon that has not begun yet.
    ///
    /// # Errors
    /// The kernel's, when there are no descriptors left.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(Arc::new(State {
            status: Mutex::default(),
            services: Mutex::default(),
            requests: Mutex::default(),
            requested: Bell::new()?,
            changed: Bell::new()?,
            api_ended: AtomicBool::new(false),
        })))
    }

    /// The status of the daemon. Drop it soon: the daemon waits to write it.
    pub fn status(&self) -> MutexGuard<'_, Status> {
        lock(&self.0.status)
    }

    /// What was counted of each service that is measured; as [`Shared::status`].
    pub fn services(&self) -> MutexGuard<'_, Vec<Measured>> {
        lock(&self.0.services)
    }

    /// Publishes what was counted of services, for the daemon.
    pub fn note_services(&self, services: Vec<Measured>) {
        *self.services() = services;
    }

    /// Submits a request. The daemon does it in its next turn, after all events that are ready; `reply` is called with the answer
    /// then, or immediately if too many requests wait already.
    pub fn submit(&self, request: Request, reply: Reply) {
        let mut requests = lock(&self.0.requests);
        if requests.len() < REQUESTS_MAX {
            requests.push_back((request, reply));
            drop(requests);
            self.0.requested.ring();
            return;
        }
        drop(requests);
        self.status().counters.evictions += 1;
        reply(Answer::Refused {
            exit: 1,
            why: format!("{REQUESTS_MAX} requests wait already"),
            hint: Some("ask again in a moment".to_owned()),
        });
    }

    /// The next request, for the daemon.
    pub fn next_request(&self) -> Option<(Request, Reply)> {
        lock(&self.0.requests).pop_front()
    }

    /// Changes the status, for the daemon; the generation moves on.
    pub fn update(&self, change: impl FnOnce(&mut Status)) {
        let mut status = self.status();
        change(&mut status);
        status.generation += 1;
        drop(status);
        self.0.changed.ring();
    }

    /// Rings when there is a request: for the daemon's loop.
    pub(crate) fn requested(&self) -> &Bell {
        &self.0.requested
    }

    /// Rings when the status has changed, or a request is answered: for the API's loop.
    pub(crate) fn changed(&self) -> &Bell {
        &self.0.changed
    }

    /// The API's thread has ended, and the daemon cannot be asked any more.
    pub(crate) fn end_api(&self) {
        self.0.api_ended.store(true, Ordering::Release);
        self.0.requested.ring();
    }

    /// Whether the API's thread has ended.
    pub(crate) fn has_api_ended(&self) -> bool {
        self.0.api_ended.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_reaction_is_counted_once_in_the_bucket_that_it_fits_in() {
        let mut reaction = Reaction::default();
        for micros in [100, 101, 1_999, 2_000, 10_000_000] {
            reaction.note(Duration::from_micros(micros));
        }
        assert_eq!((reaction.count, reaction.max_micros), (5, 10_000_000));
        assert_eq!((reaction.buckets[0], reaction.buckets[1], reaction.buckets[6]), (1, 1, 2));
        assert_eq!(reaction.buckets[REACTION_MICROS.len()], 1);
        assert_eq!(reaction.buckets.iter().sum::<u64>(), reaction.count);
    }

    #[test]
    fn requests_beyond_the_limit_are_refused_and_counted() {
        let shared = Shared::new().expect("descriptors");
        let refused = Arc::new(Mutex::new(0));
        for _ in 0..=REQUESTS_MAX {
            let refused = Arc::clone(&refused);
            shared.submit(
                Request::Reload,
                Box::new(move |answer| {
                    if matches!(answer, Answer::Refused { .. }) {
                        *lock(&refused) += 1;
                    }
                }),
            );
        }
        assert_eq!((*lock(&refused), shared.status().counters.evictions), (1, 1));
        assert!(shared.next_request().is_some());
    }
}
