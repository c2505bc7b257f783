//! The counts of a client thread.

use model::{Nanoseconds, Requests};

use crate::clock::Moment;
use crate::protocol::Reply;
use crate::record::Recorder;

use super::connection::Pending;

/// The phases of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The schedule begins, with the warm-up.
    pub(super) begin: Moment,
    /// The window opens.
    pub(super) open: Moment,
    /// The window closes; no later request is due.
    pub(super) close: Moment,
    /// The run ends, with or without all answers.
    pub(super) stop: Moment,
}

impl Times {
    #[inline]
    fn in_window(&self, moment: Moment) -> bool {
        (self.open..self.close).contains(&moment)
    }
}

/// A thread's counts, of requests due in the window.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) times: Times,
    pub(super) requests: Requests,
    /// Answers that arrived within the window, whenever their request was due.
    pub(super) answers_in_window: u64,
    pub(super) latency: Recorder,
    /// The response time from when each request was sent; only for answered requests.
    pub(super) latency_from_send: Recorder,
    pub(super) lateness: Recorder,
    pub(super) generator_lateness: Recorder,
    /// How long the thread was idle within the window.
    pub(super) idle: Nanoseconds,
    /// The first error text with which the server refused a request.
    pub(super) refusal: Option<String>,
}

impl Tally {
    pub(super) fn new(times: Times) -> Self {
        Self {
            times,
            requests: Requests::default(),
            answers_in_window: 0,
            latency: Recorder::new(),
            latency_from_send: Recorder::new(),
            lateness: Recorder::new(),
            generator_lateness: Recorder::new(),
            idle: Nanoseconds::ZERO,
            refusal: None,
        }
    }

    #[inline]
    pub(super) fn sent(&mut self, pending: &Pending, now: Moment) {
        if self.times.in_window(pending.due) {
            self.requests.due += 1;
            self.requests.sent += 1;
            self.lateness.record(now.since(pending.due));
            self.generator_lateness.record(now.since(pending.possible));
        }
    }

    #[inline]
    pub(super) fn answered(&mut self, pending: &Pending, reply: Reply, now: Moment, refusal: &str) {
        if self.times.in_window(now) {
            self.answers_in_window += 1;
        }
        if self.times.in_window(pending.due) {
            self.latency.record(now.since(pending.due));
            self.latency_from_send.record(now.since(pending.sent));
            self.requests.answered += 1;
            match reply {
                Reply::Hit(_) => self.requests.hits += 1,
                Reply::Miss => self.requests.misses += 1,
                Reply::Stored | Reply::Done => {}
                Reply::Refused => {
                    self.requests.errors += 1;
                    if self.refusal.is_none() {
                        self.refusal = Some(refusal.to_owned());
                    }
                }
            }
        }
    }

    /// Counts a request that was sent but whose answer is no longer awaited: its response time was at least
    /// the time until now.
    pub(super) fn given_up(&mut self, pending: &Pending, now: Moment) {
        if self.times.in_window(pending.due) {
            self.requests.unanswered += 1;
            self.latency.record(now.since(pending.due));
        }
    }

    /// Counts a request that was due but never sent: its response time was at least the time until now.
    pub(super) fn never_sent(&mut self, due: Moment, now: Moment) {
        if self.times.in_window(due) {
            self.requests.due += 1;
            self.latency.record(now.since(due));
        }
    }

    /// Counts idle time.
    #[inline]
    pub(super) fn idled(&mut self, from: Moment, to: Moment) {
        if self.times.in_window(from) {
            self.idle.0 += to.min(self.times.close).since(from).0;
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.answers_in_window += other.answers_in_window;
        self.latency.merge(&other.latency);
        self.latency_from_send.merge(&other.latency_from_send);
        self.lateness.merge(&other.lateness);
        self.generator_lateness.merge(&other.generator_lateness);
        self.idle.0 += other.idle.0;
        if self.refusal.is_none() {
            self.refusal.clone_from(&other.refusal);
        }
    }
}
