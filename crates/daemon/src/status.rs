//! The daemon's status, and the requests that it accepts.
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

/// The maximum number of queued requests; further ones are refused.
pub const REQUESTS_MAX: usize = 256;

/// The daemon's complete status. Its size depends on the requests, not on the running time.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Status {
    /// The number of turns that changed this status: the status is unchanged as long as this number is.
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
    /// The requests: first those of the policy files, in their order, then clients' requests to the running
    /// daemon, and finally those whose policy was rolled back by its proof.
    pub requests: Vec<RequestStatus>,
    /// The number of settings that the daemon holds in force and the journal records.
    pub settings: u64,
    /// Problems and notes. A resolved finding disappears.
    pub findings: Vec<Finding>,
    /// Counts since the daemon started.
    pub counters: DaemonCounters,
    /// The time from an event to the policy in force, by kind of event.
    pub reactions: BTreeMap<EventKind, Reaction>,
    /// The CPUs that poll without traffic.
    pub polling: Polling,
    /// The sessions of the API.
    pub sessions: SessionsStatus,
    /// The latest verdicts since the daemon started on changes that were judged on the traffic of services:
    /// newest first, at most [`VERDICTS_MAX`].
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
    /// Its number, for `Cancel`.
    pub id: u64,
    /// What it does. While it changes settings, the daemon changes none.
    pub kind: SessionKind,
    /// The client: `uid 0 (pid 812)`.
    pub client: String,
    /// When it began, in microseconds since 1970-01-01 00:00 UTC.
    pub since_unix_micros: u64,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionOutcome {
    /// Its command ended by itself and did not fail.
    Completed,
    /// Its command failed, or could not be started.
    Failed,
    /// `Cancel` was called, or the client disconnected, or the daemon exits.
    Cancelled,
    /// It exceeded its time.
    TimedOut,
}

impl SessionOutcome {
    /// All outcomes.
    pub const ALL: [Self; 4] = [Self::Completed, Self::Failed, Self::Cancelled, Self::TimedOut];
}

/// The maximum number of verdicts in the status. The journal has all of them.
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
    /// The network namespace; `None` before it has entered one.
    pub netns: Option<NetnsId>,
}

/// The daemon's phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DaemonPhase {
    /// The daemon has not converged yet.
    #[default]
    Starting,
    /// The daemon keeps the policy in force.
    Managing,
    /// The daemon manages nothing, because everything was rolled back; a reload starts over.
    Released,
    /// The daemon is shutting down.
    Ending,
}

/// The policy files in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PolicyStatus {
    /// The number of sections with requests.
    pub sections: usize,
    /// The number of requests made by [`ApiRequest::Set`].
    pub asked: usize,
    /// The number of times the files were read.
    pub reads: u64,
    /// The mistakes in the current files, with line and caret. As long as there are any, the previous policy
    /// stays in force.
    pub mistakes: Option<String>,
}

/// How one kind of event is detected.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct EventSource {
    /// The kind of event: `links`, `processes`, `listeners`, `epolls`.
    pub what: String,
    /// The method: `netlink`, `BPF on tracepoints`, `scans every 10 s`.
    pub how: String,
    /// The longest delay of detection; `None` if the kernel reports the event immediately.
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
    /// The resulting delivery mode; empty if the request could not be placed.
    pub delivery: String,
    /// The origin of the request: a file and line, or a command.
    pub origin: String,
    /// The size of the request: its objects and settings.
    #[serde(flatten)]
    pub extent: RequestExtent,
    /// The share of the packets of its queues, from 0 to 1, that its delivery mode delivered in the last
    /// minutes: polled by the application, the timer or the kernel thread. `None` for modes that leave
    /// delivery to interrupts, and for requests that are not measured.
    pub engaged: Option<f64>,
    /// The goal: upper bounds on percentiles of response times.
    pub goal: Goal,
    /// The response times; `None` if the service has a policy but no goal, and until it was measured.
    pub measured: Option<ResponseTimes>,
    /// The search for a mode that meets the goal; `None` without a search, and before the first try.
    pub search: Option<SearchStatus>,
    /// The standing proof that the policy helps; `None` without a holdback, and until the policy has been in
    /// force.
    pub proof: Option<ProofStatus>,
    /// What policies may change for the service, if it has no policy and is measured.
    pub expected: Option<Prospect>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

/// The size of a request: its objects and settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct RequestExtent {
    /// The number of its queues.
    pub queues: usize,
    /// The number of its processes.
    pub processes: usize,
    /// The number of epolls and io_urings of these processes that are set.
    pub epolls: usize,
    /// The number of settings that the request wants.
    pub wanted: usize,
    /// How many of these settings have the wanted value. They are *set*, but not necessarily *engaged*.
    pub set: usize,
}

/// The standing proof that a policy helps a service.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct ProofStatus {
    /// When the proof began, in microseconds since 1970-01-01 00:00 UTC.
    pub since_unix_micros: u64,
    /// The number of pairs of windows with and without the policy.
    pub pairs: u64,
    /// The share of the time without the policy, from 0 to 1.
    pub share_without: f64,
    /// The conclusion from all pairs.
    pub standing: ProofState,
    /// The effect on each quantity, as a share of its value without the policy.
    pub effects: Vec<Effect>,
    /// When the policy was last withdrawn, in microseconds since 1970-01-01 00:00 UTC.
    pub last_unix_micros: Option<u64>,
    /// Why the policy is not withdrawn at the moment.
    pub waits: Option<String>,
    /// When the policy was rolled back because it harms, in microseconds since 1970-01-01 00:00 UTC. It is
    /// not in force since then. `None` if it was not rolled back.
    pub rolled_back_unix_micros: Option<u64>,
}

/// The search for a service that misses its goal.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SearchStatus {
    /// The delivery mode being tried.
    pub trying: Option<String>,
    /// The mode that was found and is in force.
    pub found: Option<String>,
    /// The number of tries in the last 24 hours.
    pub tries_today: usize,
    /// The maximum number of tries per day.
    pub tries_a_day: usize,
    /// The result of each mode that was tried.
    pub tried: Vec<TriedStatus>,
}

/// A delivery mode that was tried.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct TriedStatus {
    /// The mode.
    pub mode: String,
    /// The mode that it was compared with.
    pub instead_of: String,
    /// The time of the try, in microseconds since 1970-01-01 00:00 UTC.
    pub at_unix_micros: u64,
    /// The result, as text. `None` while the mode is being tried, or if the daemon was stopped during the
    /// try.
    pub ruling: Option<String>,
    /// The measurements, as text.
    pub measured: Option<String>,
}

/// When a service's traffic was measured, and how much of it.
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
    /// Requests or exchanges answered in the windows, depending on `unit`.
    pub requests: u64,
    /// The number of requests or exchanges per second.
    pub rate: f64,
}

/// The response times of a service in the last minutes. Spans are in nanoseconds.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct ResponseTimes {
    /// The measured windows.
    #[serde(flatten)]
    pub windows: MeasuredWindows,
    /// The estimator of `response`.
    pub estimator: Estimator,
    /// The time from the NIC's ring to the answer.
    pub response: Percentiles,
    /// The time that packets waited in the NIC's ring.
    pub ring: Percentiles,
    /// The time from TCP's receiving a request until the service reads it.
    pub wakeup: Percentiles,
    /// The time from the service's read to its answer.
    pub service_time: Percentiles,
    /// The median of the connections' smoothed round-trip times, in nanoseconds.
    pub rtt: Option<f64>,
    /// CPU time per request.
    pub cost: Cost,
    /// Requests without an answer at the end of the last window.
    pub waiting: u64,
    /// How long the oldest unanswered request has waited.
    pub oldest: Option<u64>,
    /// The rules of all findings about the service, as in `docs/reference/findings.md`. Problems are also
    /// among the daemon's findings.
    pub found: Vec<String>,
}

/// Counts since the daemon started. They never decrease.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct DaemonCounters {
    /// Events that were noticed, by kind.
    pub events: BTreeMap<EventKind, u64>,
    /// Events that were lost because they arrived faster than the daemon handled them. The daemon observes
    /// everything after a loss.
    pub lost: u64,
    /// How often the daemon planned, observed and committed.
    #[serde(flatten)]
    pub passes: PassCounters,
    /// Counts of settings.
    #[serde(flatten)]
    pub settings: SettingCounters,
    /// Requests and processes that were dropped at a limit.
    pub evictions: u64,
    /// Rollbacks by an operator that the daemon noticed.
    pub rollbacks: u64,
    /// Completed requests.
    pub answered: u64,
    /// Refused requests.
    pub refused: u64,
    /// Verdicts on changes under guard, one per judging service, by ruling.
    pub verdicts: BTreeMap<Ruling, u64>,
    /// Results of modes that were tried for services that missed their goal.
    pub searches: SearchCounters,
}

/// How often the daemon planned, observed and committed. The counts never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PassCounters {
    /// Computed plans.
    pub plans: u64,
    /// Scans of the whole host.
    pub full_scans: u64,
    /// Transactions that were committed.
    pub commits: u64,
    /// Transactions that failed, and were undone.
    pub failures: u64,
}

/// Results of modes that were tried for services that missed their goal. The counts never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SearchCounters {
    /// Modes that were better and are kept.
    pub kept: u64,
    /// Modes that were rolled back.
    pub rolled_back: u64,
    /// Modes that could not be judged, or were interrupted.
    pub not_judged: u64,
}

/// Counts of settings. They never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SettingCounters {
    /// Settings written.
    pub changes: u64,
    /// Written settings that another program, or a reset, had changed before.
    pub repairs: u64,
    /// Settings left alone because they had been repaired too often.
    pub flapping: u64,
    /// Settings restored because no request wants them any more.
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

/// The upper bounds of the reaction-time buckets, in microseconds. A last bucket holds longer times.
pub const REACTION_MICROS: [u64; 14] =
    [100, 200, 400, 700, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 200_000, 1_000_000];

/// The time from an event to the policy in force, for events that required a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Reaction {
    /// The number of reactions.
    pub count: u64,
    /// The total time of the reactions, in microseconds.
    pub sum_micros: u64,
    /// The longest time, in microseconds.
    pub max_micros: u64,
    /// The number of reactions in each bucket. Each reaction counts once, in the first bucket whose bound in
    /// [`REACTION_MICROS`] is not exceeded.
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

/// The CPUs that may poll without traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Polling {
    /// The number of CPUs that poll without traffic.
    pub used: u32,
    /// The sum of all budgets.
    pub allowed: u32,
}

/// A request to the running daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiRequest {
    /// Sets the policy of a target until it is unset. The request replaces an earlier one for the target,
    /// outlives the daemon, and overrides the policy files.
    Set(Box<Intent>),
    /// Withdraws a target's request: settings that no other request wants are restored.
    Unset(Target),
    /// Reads the policy files again, and manages all settings again that were left alone after a rollback or
    /// after too many repairs.
    Reload,
    /// Restores everything that the daemon has set, and manages nothing until the next [`ApiRequest::Reload`].
    RollBack,
    /// Reports every held setting.
    Settings,
    /// Asks the daemon to change no settings while a session does.
    HoldBack(HoldBack),
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The request was completed.
    Done {
        /// A one-sentence summary.
        summary: String,
        /// Each changed setting, formatted as in `plan`.
        changes: Vec<String>,
        /// The names of the transactions that the request caused.
        transactions: Vec<String>,
        /// Notes for the operator, a sentence each.
        notes: Vec<String>,
        /// Whether some settings are not in force yet: the request is stored, and is applied when possible.
        pending: bool,
    },
    /// The request was refused, and nothing was changed.
    Refused {
        /// The exit code of a command with this result.
        exit: u8,
        /// The reason.
        why: String,
        /// A hint for the operator.
        hint: Option<String>,
    },
    /// The held settings.
    Settings(Vec<HeldSetting>),
}

/// A setting that the daemon holds.
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
    /// Why the daemon currently leaves the setting alone: `flapping`, `rolled back`; `None` if it does not.
    pub left_alone: Option<String>,
}

/// The function that receives a request's answer. The daemon's thread calls it.
pub type AnswerCallback = Box<dyn FnOnce(Answer) + Send>;

/// The daemon's status, and its queue of requests.
#[derive(Clone)]
pub struct Shared(Arc<State>);

/// The shared state. A thread that holds one of its locks neither waits for anything nor takes another lock.
struct State {
    status: Mutex<Status>,
    services: Mutex<Vec<Measured>>,
    requests: Mutex<VecDeque<(ApiRequest, AnswerCallback)>>,
    /// Rung when there is a request.
    requested: Bell,
    /// Rung when the status has changed or a request was answered.
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

    /// The daemon's status. Drop the guard soon: the daemon needs the lock to update the status.
    pub fn status(&self) -> MutexGuard<'_, Status> {
        lock(&self.0.status)
    }

    /// The counts of each measured service. Drop the guard soon, as with [`Shared::status`].
    pub fn services(&self) -> MutexGuard<'_, Vec<Measured>> {
        lock(&self.0.services)
    }

    /// Publishes the counts of services. The daemon calls this.
    pub fn note_services(&self, services: Vec<Measured>) {
        *self.services() = services;
    }

    /// Submits a request. The daemon handles it in its next turn, after all events that are ready, and then
    /// calls `reply` with the answer. If too many requests are queued, `reply` is called immediately.
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

    /// Takes the next request. The daemon calls this.
    pub fn next_request(&self) -> Option<(ApiRequest, AnswerCallback)> {
        lock(&self.0.requests).pop_front()
    }

    /// Changes the status, and increments the generation. The daemon calls this.
    pub fn update(&self, change: impl FnOnce(&mut Status)) {
        let mut status = self.status();
        change(&mut status);
        status.generation += 1;
        drop(status);
        self.0.changed.ring();
    }

    /// The bell for the daemon's loop: rung when there is a request.
    pub(crate) fn requested(&self) -> &Bell {
        &self.0.requested
    }

    /// The bell for the API's loop: rung when the status has changed or a request was answered.
    pub(crate) fn changed(&self) -> &Bell {
        &self.0.changed
    }

    /// Records that the API's thread has ended: clients can no longer reach the daemon.
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
