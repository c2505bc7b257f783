//! The daemon's status, and the requests that the daemon accepts.
//!
//! One thread keeps the policy in force, and another serves the API and the metrics; they share a [`Shared`].
//! The API and the metrics read [`Shared::status`] while the daemon works. The API submits [`ApiRequest`]s,
//! each with a function that the daemon calls with the answer at the end of an iteration of its loop.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use latency::live::{Cost, Estimator, Measured, Percentiles, Prospect, Unit};
use model::proof::ProofState;
use model::{Effect, Finding, Goal, Intent, Judgement, NetnsId, Ruling, Target};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bell::{Bell, lock};
use crate::sessions::{HoldBack, SessionKind};

/// The maximum number of queued requests. Further requests are refused.
pub const REQUESTS_MAX: usize = 256;

/// The daemon's complete status. Its size depends on the requests, not on how long the daemon has been
/// running.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Status {
    /// The number of turns that changed this status. As long as this number is the same, so is the status.
    pub generation: u64,
    /// The identity of the daemon.
    #[serde(flatten)]
    pub instance: Instance,
    /// The daemon's phase.
    pub phase: DaemonPhase,
    /// The policy files.
    pub policy: PolicyStatus,
    /// How each kind of event is detected.
    pub event_sources: Vec<EventSource>,
    /// The requests: first those of the policy files, in the order of the files, then clients' requests to
    /// the running daemon, and finally those whose policy was rolled back because of its proof.
    pub requests: Vec<RequestStatus>,
    /// The number of settings that the daemon holds in force, as recorded in the journal.
    pub settings: u64,
    /// Problems and notes. A finding disappears when it is resolved.
    pub findings: Vec<Finding>,
    /// Counts since the daemon started.
    pub counters: DaemonCounters,
    /// For each kind of event, the times from an event until the policy was in force again.
    pub reactions: BTreeMap<EventKind, Reaction>,
    /// The CPUs that poll even without traffic.
    pub polling: Polling,
    /// The sessions of the API.
    pub sessions: SessionsStatus,
    /// The latest verdicts on changes that services' traffic has judged since the daemon started: newest
    /// first, at most 32.
    pub verdicts: Vec<Judgement>,
}

/// The sessions of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SessionsStatus {
    /// The running sessions, by number.
    pub running: Vec<RunningSession>,
    /// How many sessions have ended since the daemon started, by outcome.
    pub ended: BTreeMap<SessionOutcome, u64>,
}

/// A running session of the API.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct RunningSession {
    /// The session's number, which `Cancel` needs.
    pub id: u64,
    /// What the session does. While it changes settings, the daemon changes none.
    pub kind: SessionKind,
    /// The client's user and process: `uid 0 (pid 812)`.
    pub client: String,
    /// When the session began, in microseconds since 1970-01-01 00:00 UTC.
    pub since_unix_micros: u64,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionOutcome {
    /// The session's command ended by itself and did not fail.
    Completed,
    /// The session's command failed, or could not be started.
    Failed,
    /// `Cancel` was called, the client disconnected, or the daemon exited.
    Cancelled,
    /// The session exceeded its time limit.
    TimedOut,
}

impl SessionOutcome {
    /// All outcomes.
    pub const ALL: [Self; 4] = [Self::Completed, Self::Failed, Self::Cancelled, Self::TimedOut];
}

/// The maximum number of verdicts in the status. The journal contains all verdicts.
pub const VERDICTS_MAX: usize = 32;

/// The identity of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Instance {
    /// The daemon's process.
    pub pid: u32,
    /// The version of netpolicy.
    pub version: String,
    /// When the daemon started, in microseconds since 1970-01-01 00:00 UTC.
    pub started_unix_micros: u64,
    /// The daemon's network namespace; `None` before the daemon has entered one.
    pub netns: Option<NetnsId>,
}

/// The daemon's phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DaemonPhase {
    /// The daemon has not put the policy into force for the first time yet.
    #[default]
    Starting,
    /// The daemon keeps the policy in force.
    Managing,
    /// The daemon manages nothing, because everything was rolled back. A reload makes it manage settings
    /// again.
    Released,
    /// The daemon is shutting down.
    Ending,
}

/// The status of the policy files.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PolicyStatus {
    /// The number of sections that contain requests.
    pub sections: usize,
    /// The number of clients' requests, made by [`ApiRequest::Set`].
    pub asked: usize,
    /// How often the policy files were read.
    pub reads: u64,
    /// The mistakes in the current policy files, each with its line and a caret. As long as there are any,
    /// the previous policy stays in force.
    pub mistakes: Option<String>,
}

/// How one kind of event is detected.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct EventSource {
    /// The kind of event: `links`, `processes`, `listeners`, `epolls`.
    pub what: String,
    /// The method of detection: `netlink`, `BPF on tracepoints`, `scans every 10 s`.
    pub how: String,
    /// The maximum delay of detection; `None` if the kernel reports the event immediately.
    pub within: Option<Duration>,
    /// Why no faster method is available, for example the kernel's error.
    pub refused: Vec<String>,
}

/// A request and its status.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct RequestStatus {
    /// The target: `device eth0`, `service memcached`, `task 812`.
    pub target: String,
    /// The policy.
    pub policy: String,
    /// The delivery mode that results from the request; empty if the request could not be placed.
    pub delivery: String,
    /// Where the request was made: a file and line, or a command.
    pub origin: String,
    /// The numbers of the request's objects and settings.
    #[serde(flatten)]
    pub extent: RequestExtent,
    /// The share of packets, from 0 to 1, that the request's delivery mode delivered on its queues in the
    /// last few minutes: polled by the application, the timer or the kernel thread. `None` for modes that
    /// leave delivery to interrupts, and for requests that are not measured.
    pub engaged: Option<f64>,
    /// The goal: upper bounds on percentiles of the response time.
    pub goal: Goal,
    /// The response times; `None` if the service has a policy but no goal, and until the first measurement.
    pub measured: Option<ResponseTimes>,
    /// The search for a mode that meets the goal; `None` if there is no search, and before the first try.
    pub search: Option<SearchStatus>,
    /// The standing proof: the measured effect of the policy. `None` without a holdback, and until the policy
    /// has been in force.
    pub proof: Option<ProofStatus>,
    /// The changes that policies would be expected to make; only for a service that has no policy and is
    /// measured.
    pub expected: Option<Prospect>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

/// The numbers of a request's objects and settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct RequestExtent {
    /// The number of the request's queues.
    pub queues: usize,
    /// The number of the request's processes.
    pub processes: usize,
    /// The number of these processes' epolls and io_urings that have settings.
    pub epolls: usize,
    /// The number of settings that the request wants.
    pub wanted: usize,
    /// The number of these settings that have the wanted value. Such settings are *set*, but not necessarily
    /// *engaged*.
    pub set: usize,
}

/// The standing proof of a policy: the measured effect of the policy on a service.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct ProofStatus {
    /// When the proof began, in microseconds since 1970-01-01 00:00 UTC.
    pub since_unix_micros: u64,
    /// The number of pairs of windows, one with and one without the policy.
    pub pairs: u64,
    /// The share of the time, from 0 to 1, in which the policy was withdrawn.
    pub share_without: f64,
    /// The conclusion from all pairs.
    pub standing: ProofState,
    /// The effect on each quantity, as a share of its value without the policy.
    pub effects: Vec<Effect>,
    /// When the policy was last withdrawn, in microseconds since 1970-01-01 00:00 UTC.
    pub last_unix_micros: Option<u64>,
    /// Why the policy is not withdrawn at the moment, if anything prevents it.
    pub waits: Option<String>,
    /// When the policy was rolled back because it does harm, in microseconds since 1970-01-01 00:00 UTC; it
    /// has not been in force since. `None` if it was not rolled back.
    pub rolled_back_unix_micros: Option<u64>,
}

/// The search for a better delivery mode of a service that misses its goal.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SearchStatus {
    /// The delivery mode that is being tried.
    pub trying: Option<String>,
    /// The delivery mode that the search found and that is in force.
    pub found: Option<String>,
    /// The number of tries in the last 24 hours.
    pub tries_today: usize,
    /// The maximum number of tries per day.
    pub tries_a_day: usize,
    /// The modes that were tried, each with its result.
    pub tried: Vec<TriedStatus>,
}

/// A delivery mode that was tried.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct TriedStatus {
    /// The mode.
    pub mode: String,
    /// The mode with which it was compared.
    pub instead_of: String,
    /// The time of the try, in microseconds since 1970-01-01 00:00 UTC.
    pub at_unix_micros: u64,
    /// The ruling on the mode, as text. `None` while the mode is being tried, or if the daemon was stopped
    /// during the try.
    pub ruling: Option<String>,
    /// The measured changes, as text.
    pub measured: Option<String>,
}

/// When and for how long a service's traffic was measured.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct MeasuredWindows {
    /// The time of the last measurement, in microseconds since 1970-01-01 00:00 UTC.
    pub at_unix_micros: u64,
    /// The number of measured windows.
    pub windows: usize,
    /// The total length of the windows, in seconds.
    pub measured_seconds: f64,
    /// The unit of `requests`, `rate` and `cost`: requests if the protocol shows them, otherwise exchanges.
    pub unit: Unit,
    /// The number of requests or exchanges, depending on `unit`, that were answered in the windows.
    pub requests: u64,
    /// The number of requests or exchanges per second.
    pub rate: f64,
}

/// The response times of a service in the last few minutes. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct ResponseTimes {
    /// The measured windows.
    #[serde(flatten)]
    pub windows: MeasuredWindows,
    /// The estimator with which `response` was measured.
    pub estimator: Estimator,
    /// The time from the NIC's ring to the answer.
    pub response: Percentiles,
    /// The time that packets waited in the NIC's ring.
    pub ring: Percentiles,
    /// The time from TCP's receipt of a request until the service reads it.
    pub wakeup: Percentiles,
    /// The time from the service's read of a request until its answer.
    pub service_time: Percentiles,
    /// The median of the connections' smoothed round-trip times, in nanoseconds.
    pub rtt: Option<f64>,
    /// The CPU time per request.
    pub cost: Cost,
    /// The number of requests without an answer at the end of the last window.
    pub waiting: u64,
    /// How long the oldest unanswered request has waited, in nanoseconds.
    pub oldest: Option<u64>,
    /// The rules of all findings about the service, as in `docs/reference/findings.md`. Those that are
    /// problems are also among the daemon's findings.
    pub found: Vec<String>,
}

/// Counts since the daemon started. They never decrease.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct DaemonCounters {
    /// The number of events that were noticed, by kind.
    pub events: BTreeMap<EventKind, u64>,
    /// The number of events that were lost because they arrived faster than the daemon handled them. After a
    /// loss, the daemon observes everything.
    pub lost: u64,
    /// How often the daemon planned, observed and committed.
    #[serde(flatten)]
    pub passes: PassCounters,
    /// Counts of settings.
    #[serde(flatten)]
    pub settings: SettingCounters,
    /// The number of requests and processes that were dropped because a limit was reached.
    pub evictions: u64,
    /// The number of rollbacks by an operator that the daemon noticed.
    pub rollbacks: u64,
    /// Completed requests.
    pub answered: u64,
    /// Refused requests.
    pub refused: u64,
    /// The number of verdicts on guarded changes, by ruling; each service that judges a change gives one.
    pub verdicts: BTreeMap<Ruling, u64>,
    /// The results of trying other modes for services that missed their goal.
    pub searches: SearchCounters,
}

/// How often the daemon planned, observed and committed. The counts never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PassCounters {
    /// Computed plans.
    pub plans: u64,
    /// The number of scans of the whole host.
    pub full_scans: u64,
    /// The number of transactions that were committed.
    pub commits: u64,
    /// The number of transactions that failed and were undone.
    pub failures: u64,
}

/// The results of trying other modes for services that missed their goal. The counts never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SearchCounters {
    /// The number of modes that were better and were kept.
    pub kept: u64,
    /// The number of modes that were rolled back.
    pub rolled_back: u64,
    /// The number of modes that could not be judged, or whose try was interrupted.
    pub not_judged: u64,
}

/// Counts of settings. They never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SettingCounters {
    /// Settings written.
    pub changes: u64,
    /// The number of settings that were written again because another program, or a reset, had changed them.
    pub repairs: u64,
    /// The number of settings that were left alone because they had been repaired too often.
    pub flapping: u64,
    /// The number of settings that were restored because no request wants them any more.
    pub released: u64,
}

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A device appeared, disappeared, was renamed, or changed its state.
    Link,
    /// A driver's settings changed: channels, rings, moderation, features, RSS.
    Ethtool,
    /// A device's queues changed, or its driver was reset.
    Queues,
    /// A CPU went online or offline.
    Cpu,
    /// A process has a new executable.
    Exec,
    /// A managed process has forked.
    Fork,
    /// A managed process has exited.
    Exit,
    /// A socket began to listen.
    Listener,
    /// A managed process whose NAPI is still unknown has a connection.
    Connection,
    /// A managed process has a new epoll.
    Epoll,
    /// An application made a request.
    AppRequest,
    /// A policy file changed, or the daemon was told to read the files again.
    Policy,
    /// A client made a request to the running daemon.
    Asked,
    /// Another process wrote to the journal.
    Journal,
    /// The periodic observation is due.
    Timer,
}

/// The upper bounds of the reaction-time buckets, in microseconds. One further bucket holds longer times.
pub const REACTION_MICROS: [u64; 14] =
    [100, 200, 400, 700, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 200_000, 1_000_000];

/// The times from events until the policy was in force again, for events that required a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Reaction {
    /// The number of reactions.
    pub count: u64,
    /// The total time of the reactions, in microseconds.
    pub sum_micros: u64,
    /// The longest time, in microseconds.
    pub max_micros: u64,
    /// The number of reactions in each bucket. Each reaction counts once, in the first bucket whose upper bound
    /// it does not exceed: 0.1, 0.2, 0.4, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 200 and 1000 ms, and none.
    pub buckets: [u64; REACTION_MICROS.len() + 1],
}

impl Reaction {
    /// Counts a reaction.
    pub fn note(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.count += 1;
        self.sum_micros = self.sum_micros.saturating_add(micros);
        self.max_micros = self.max_micros.max(micros);
        self.buckets[REACTION_MICROS.partition_point(|end| *end < micros)] += 1;
    }
}

/// The CPUs that poll even without traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Polling {
    /// The number of CPUs that poll even without traffic.
    pub used: u32,
    /// The sum of all budgets for polling CPUs.
    pub allowed: u32,
}

/// A request to the running daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiRequest {
    /// Sets the policy of a target until the target is unset. The request replaces an earlier one for the
    /// target, is kept when the daemon exits, and overrides the policy files.
    Set(Box<Intent>),
    /// Withdraws a target's request. Settings that no other request wants are restored.
    Unset(Target),
    /// Reads the policy files again, and manages all settings again that were left alone after a rollback or
    /// too many repairs.
    Reload,
    /// Restores everything that the daemon has set, and manages nothing until the next [`ApiRequest::Reload`].
    RollBack,
    /// Returns every held setting.
    Settings,
    /// Makes the daemon change no settings while a session changes some.
    HoldBack(HoldBack),
}

/// The daemon's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The request was completed.
    Done {
        /// A one-sentence summary.
        summary: String,
        /// Each changed setting, formatted as in `plan`.
        changes: Vec<String>,
        /// The names of the transactions that the request led to.
        transactions: Vec<String>,
        /// Notes for the operator, each of them a sentence.
        notes: Vec<String>,
        /// Whether some settings are not in force yet. The request is then stored, and is applied when
        /// possible.
        pending: bool,
    },
    /// The request was refused, and nothing was changed.
    Refused {
        /// The exit code that a command returns for this result.
        exit: u8,
        /// The reason.
        why: String,
        /// A hint for the operator.
        hint: Option<String>,
    },
    /// The held settings.
    Settings(Vec<HeldSetting>),
}

/// A setting that the daemon holds in force.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldSetting {
    /// The object's name, as in the output of other commands.
    pub object: String,
    /// The setting.
    pub knob: String,
    /// The previous value.
    pub before: String,
    /// The value that the daemon set.
    pub value: String,
    /// Why the daemon currently leaves the setting alone: `flapping` or `rolled back`; `None` if it does not
    /// leave it alone.
    pub left_alone: Option<String>,
}

/// The function that receives the answer to a request. The daemon's thread calls it.
pub type AnswerCallback = Box<dyn FnOnce(Answer) + Send>;

/// The daemon's status, and its queue of requests.
#[derive(Clone)]
pub struct Shared(Arc<State>);

/// The shared state. A thread that holds one of these locks must neither wait for anything nor acquire
/// another lock.
struct State {
    status: Mutex<Status>,
    services: Mutex<Vec<Measured>>,
    requests: Mutex<VecDeque<(ApiRequest, AnswerCallback)>>,
    /// Wakes the daemon's loop; rung when there is a request.
    requested: Bell,
    /// Wakes the API's loop; rung when the status has changed or a request was answered.
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
    /// Creates the state of a daemon that has not started yet.
    ///
    /// # Errors
    /// The kernel's error if no descriptors are left.
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

    /// Returns the daemon's status. Drop the guard soon: the daemon needs the lock to update the status.
    pub fn status(&self) -> MutexGuard<'_, Status> {
        lock(&self.0.status)
    }

    /// Returns the measurements of each service. Drop the guard soon, as with [`Shared::status`].
    pub fn services(&self) -> MutexGuard<'_, Vec<Measured>> {
        lock(&self.0.services)
    }

    /// Publishes the measurements of services. Called by the daemon.
    pub fn note_services(&self, services: Vec<Measured>) {
        *self.services() = services;
    }

    /// Submits a request. The daemon handles it in its next turn, after all events that are ready, and then
    /// calls `reply` with the answer. If too many requests are queued, `reply` is called immediately with a
    /// refusal.
    pub fn submit(&self, request: ApiRequest, reply: AnswerCallback) {
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
            why: format!("too many requests are waiting (limit {REQUESTS_MAX})"),
            hint: Some("try again in a moment".to_owned()),
        });
    }

    /// Takes the next request. Called by the daemon.
    pub fn next_request(&self) -> Option<(ApiRequest, AnswerCallback)> {
        lock(&self.0.requests).pop_front()
    }

    /// Changes the status, and increments the generation. Called by the daemon and by sessions.
    pub fn update(&self, change: impl FnOnce(&mut Status)) {
        let mut status = self.status();
        change(&mut status);
        status.generation += 1;
        drop(status);
        self.0.changed.ring();
    }

    /// Returns the bell of the daemon's loop, which is rung when there is a request.
    pub(crate) fn requested(&self) -> &Bell {
        &self.0.requested
    }

    /// Returns the bell of the API's loop, which is rung when the status has changed or a request was
    /// answered.
    pub(crate) fn changed(&self) -> &Bell {
        &self.0.changed
    }

    /// Records that the API's thread has ended, so that clients can no longer reach the daemon.
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
                ApiRequest::Reload,
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
