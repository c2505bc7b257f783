//! A client thread: an epoll, its connections, and the loop that sends due requests and reads
//! answers.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use model::{Nanoseconds, OfferedLoad, Pace, Waiting, Workload};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::clock::Moment;
use crate::schedule::{Schedule, Stream};
use model::Chance;

use super::connection::{ANSWER_TIMEOUT, Broken, Connection, Request};
use super::error::RunError;
use super::requests::Requests;
use super::tally::{Tally, Times};
use super::turn::Turns;
use super::wake::{Lead, Places};

/// Maximum number of events that one wait returns.
const EVENTS_MAX: usize = 256;

/// Maximum size of a read.
const READ_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of reconnects per thread; after that, the server counts as gone.
const RECONNECTS_MAX: u64 = 100;

/// Maximum number of unsent requests counted per connection, when the window closes and when the
/// run ends.
const BACKLOG_COUNTED_MAX: u64 = 65_536;

/// How many times within the timeout of an answer the thread looks for overdue answers.
const EXPIRY_CHECKS: u64 = 10;

/// Random streams: when a connection's requests are due, and what they are.
const DUE_TIMES: u64 = 0x6475_6573;
const REQUESTS: u64 = 0x7265_7173;

/// The state that all client threads share.
#[derive(Debug)]
pub(super) struct Shared<'a> {
    pub(super) server: SocketAddr,
    pub(super) pace: Pace,
    pub(super) load: OfferedLoad,
    pub(super) requests: Requests<'a>,
    pub(super) turns: Turns,
    pub(super) places: Places,
    abandoned: AtomicBool,
}

impl<'a> Shared<'a> {
    pub(super) fn new(server: SocketAddr, workload: &'a Workload, load: OfferedLoad) -> Self {
        let abandoned = AtomicBool::new(false);
        let (pace, requests) = (workload.pace(), Requests::new(workload));
        let (turns, places) = (Turns::default(), Places::default());
        Self { server, pace, load, requests, turns, places, abandoned }
    }

    /// Stops all threads.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}

/// A client thread.
pub(super) struct Worker<'a> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) thread: u32,
    pub(super) epoll: OwnedFd,
    pub(super) connections: Vec<Connection>,
    pub(super) events: Vec<epoll::Event>,
    pub(super) buffer: Box<[u8]>,
    /// How long before a due time the thread wakes; `None` if the thread sleeps until the due time.
    lead: Option<Lead>,
    /// When overdue answers over UDP are given up next; `None` over TCP.
    expires: Option<Moment>,
    lost: u64,
}

impl<'a> Worker<'a> {
    /// Establishes all connections of a thread.
    pub(super) fn connect(shared: &'a Shared<'a>, thread: u32) -> Result<Self, RunError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| RunError::Thread {
            thread,
            what: "epoll_create1",
            cause: errno.into(),
        })?;
        let mut connections = Vec::with_capacity(shared.pace.flows_of(thread) as usize);
        for number in 0..shared.pace.flows_of(thread) as usize {
            let chance = Chance::stream(shared.pace.seed, &[REQUESTS, u64::from(thread), number as u64]);
            let datagram_bytes = shared.requests.datagram_bytes();
            let opened = Connection::open(shared.server, &epoll, number, chance, datagram_bytes);
            let server = shared.server;
            connections.push(opened.map_err(|cause| RunError::Connect {
                server,
                thread,
                connection: number,
                cause,
            })?);
        }
        Ok(Self {
            shared,
            thread,
            epoll,
            connections,
            events: Vec::with_capacity(EVENTS_MAX),
            buffer: vec![0; READ_BYTES_MAX].into_boxed_slice(),
            lead: None,
            expires: shared.requests.datagram_bytes().map(|_| Moment::now()),
            lost: 0,
        })
    }

    /// Offers the load until the end of the run. Returns `None` if the run was abandoned.
    pub(super) fn offer(&mut self, times: Times) -> Result<Option<Tally>, RunError> {
        let mut tally = Tally::new(times);
        let offered = match self.shared.load {
            OfferedLoad::PerSecond(rate) => self.open_loop(rate, &mut tally),
            OfferedLoad::Max => self.closed_loop(&mut tally),
        };
        tally.requests.connections_lost = self.lost;
        offered.map(|whole| whole.then_some(tally))
    }

    /// Sends each request when it is due. Returns whether the run was completed.
    fn open_loop(&mut self, rate: f64, tally: &mut Tally) -> Result<bool, RunError> {
        wake_on_time();
        let asks = self.shared.pace.waiting != Waiting::Block && self.shared.places.have_room();
        self.lead = asks.then(Lead::default);
        let times = tally.times;
        let mut schedule = self.schedule(rate);
        let mut waiting_to_send: Vec<usize> = Vec::with_capacity(self.connections.len());
        let mut closed = false;
        let mut now = Moment::now();
        loop {
            let mut next_due = None;
            while let Some(arrival) = schedule.next() {
                let due = times.begin.after(arrival.due);
                if due > now || due >= times.close {
                    next_due = Some(due);
                    break;
                }
                let connection = &mut self.connections[arrival.connection];
                if connection.depth() >= self.shared.pace.depth as usize {
                    connection.suspended = true;
                    schedule.suspend();
                    continue;
                }
                let possible = due.max(connection.room_since);
                let first = connection.unsent() == 0;
                self.shared.requests.request(connection, due, possible);
                if first {
                    waiting_to_send.push(arrival.connection);
                }
                schedule.take();
            }
            let worked = !waiting_to_send.is_empty();
            for &number in &waiting_to_send {
                if let Some(lost) = self.flush(number, tally)? {
                    self.reopen(number, lost, tally, Some(&mut schedule))?;
                }
            }
            waiting_to_send.clear();
            if now >= times.close && !closed {
                closed = true;
                tally.requests.unsent = self.backlog(&schedule, &times, |_| {});
            }
            let exhausted = || {
                next_due.is_none_or(|due| due >= times.close)
                    && self.connections.iter().all(|c| c.depth() == 0)
            };
            if now >= times.stop || (closed && exhausted()) {
                break;
            }
            // Requests due after the window are neither sent nor awaited.
            let edge = if closed { times.stop } else { times.close };
            let until = next_due.filter(|&due| due < times.close).map_or(edge, |due| due.min(edge));
            let Some(after) = self.turn(now, worked, until, tally, Some(&mut schedule))? else {
                return Ok(false);
            };
            now = after;
        }
        self.backlog(&schedule, &times, |due| tally.never_sent(due, now));
        self.give_up_all(tally, now);
        Ok(true)
    }

    /// Sends a request for every answer. Returns whether the run was completed.
    fn closed_loop(&mut self, tally: &mut Tally) -> Result<bool, RunError> {
        let times = tally.times;
        let mut now = Moment::now();
        for number in 0..self.connections.len() {
            self.refill(number, now, tally)?;
        }
        loop {
            let exhausted = || self.connections.iter().all(|c| c.depth() == 0);
            if now >= times.stop || (now >= times.close && exhausted()) {
                break;
            }
            let until = if now < times.close { times.close } else { times.stop };
            let Some(after) = self.turn(now, false, until, tally, None)? else { return Ok(false) };
            now = after;
        }
        self.give_up_all(tally, now);
        Ok(true)
    }

    /// Waits once and reads what has arrived. Returns the time at the end, or `None` if the run was
    /// abandoned.
    #[inline]
    fn turn(
        &mut self,
        before: Moment,
        worked: bool,
        until: Moment,
        tally: &mut Tally,
        mut schedule: Option<&mut Schedule>,
    ) -> Result<Option<Moment>, RunError> {
        if self.shared.is_abandoned() {
            return Ok(None);
        }
        self.expire(before, tally, schedule.as_deref_mut())?;
        let until = self.expires.map_or(until, |expires| expires.min(until));
        match self.shared.pace.waiting {
            Waiting::Spin => {
                self.wait(Nanoseconds::ZERO)?;
            }
            Waiting::Sleep | Waiting::Block => {
                let begin = Moment::now();
                let wait = until.since(begin);
                let sleep = self.lead.map_or(wait, |lead| lead.sleep_of(wait));
                self.wait(sleep)?;
                let end = Moment::now();
                if let Some(lead) = self.lead.as_mut().filter(|_| !sleep.is_zero() && self.events.is_empty())
                {
                    lead.overslept(end.since(begin.after(sleep)));
                }
                let asked_in_vain = sleep.is_zero() && !worked && self.events.is_empty();
                tally.idled(if asked_in_vain { before } else { begin }, end);
            }
        }
        if self.events.is_empty() {
            let now = Moment::now();
            if !worked && self.shared.pace.waiting == Waiting::Spin {
                tally.idled(before, now);
            }
            return Ok(Some(now));
        }
        for index in 0..self.events.len() {
            let number = self.ready(index);
            self.receive(number, tally, schedule.as_deref_mut())?;
        }
        Ok(Some(Moment::now()))
    }

    /// Gives up overdue answers over UDP, from time to time.
    #[inline]
    fn expire(
        &mut self,
        now: Moment,
        tally: &mut Tally,
        mut schedule: Option<&mut Schedule>,
    ) -> Result<(), RunError> {
        if self.expires.is_none_or(|expires| now < expires) {
            return Ok(());
        }
        self.expires = Some(now.after(Nanoseconds(ANSWER_TIMEOUT.0 / EXPIRY_CHECKS)));
        for number in 0..self.connections.len() {
            if self.connections[number].expire(now, tally) {
                self.go_on(number, now, tally, schedule.as_deref_mut())?;
            }
        }
        Ok(())
    }

    /// Reads a connection's answers.
    #[inline]
    fn receive(
        &mut self,
        number: usize,
        tally: &mut Tally,
        schedule: Option<&mut Schedule>,
    ) -> Result<(), RunError> {
        let connection = &mut self.connections[number];
        let received = if self.expires.is_some() {
            connection.receive_datagrams(&mut self.buffer, tally)
        } else {
            connection.receive(&mut self.buffer, |pending, reply, now, words| {
                tally.answered(pending, reply, now, words);
            })
        };
        match received {
            Ok(now) => self.go_on(number, now, tally, schedule),
            Err(Broken::Lost(cause)) => self.reopen(number, cause, tally, schedule),
            Err(broken) => Err(self.fatal(broken)),
        }
    }

    /// Uses the room on a connection: sends the next request in closed loop, or resumes the connection
    /// in the schedule.
    #[inline]
    fn go_on(
        &mut self,
        number: usize,
        now: Moment,
        tally: &mut Tally,
        schedule: Option<&mut Schedule>,
    ) -> Result<(), RunError> {
        match schedule {
            None => self.refill(number, now, tally),
            Some(schedule) => {
                let connection = &mut self.connections[number];
                if connection.suspended && connection.depth() < self.shared.pace.depth as usize {
                    connection.suspended = false;
                    connection.room_since = now;
                    schedule.resume(number);
                }
                if connection.waits_to_write()
                    && let Some(lost) = self.flush(number, tally)?
                {
                    return self.reopen(number, lost, tally, Some(schedule));
                }
                Ok(())
            }
        }
    }

    /// While the window is open, fills a connection up to its depth once half of the depth is free, and
    /// sends. At half the depth, the server still has work while one write sends many requests.
    #[inline]
    fn refill(&mut self, number: usize, now: Moment, tally: &mut Tally) -> Result<(), RunError> {
        let connection = &mut self.connections[number];
        let depth = self.shared.pace.depth as usize;
        if now < tally.times.close && connection.depth() <= depth / 2 {
            while connection.depth() < self.shared.pace.depth as usize {
                self.shared.requests.request(connection, now, now);
            }
        }
        if (connection.unsent() > 0 || connection.waits_to_write())
            && let Some(lost) = self.flush(number, tally)?
        {
            return self.reopen(number, lost, tally, None);
        }
        Ok(())
    }

    /// Sends a connection's unwritten bytes. Returns the error if the connection was lost.
    #[inline]
    fn flush(&mut self, number: usize, tally: &mut Tally) -> Result<Option<io::Error>, RunError> {
        let flushed =
            self.connections[number].flush(&self.epoll, number, |pending, now| tally.sent(pending, now));
        Ok(flushed.err())
    }

    /// Re-establishes a lost connection. Its outstanding requests count as unanswered.
    fn reopen(
        &mut self,
        number: usize,
        cause: io::Error,
        tally: &mut Tally,
        schedule: Option<&mut Schedule>,
    ) -> Result<(), RunError> {
        self.lost += 1;
        if self.lost > RECONNECTS_MAX {
            return Err(self.lost_for_good(cause));
        }
        let now = Moment::now();
        give_up(&self.connections[number], tally, now);
        let opened = self.connections[number].reopen(self.shared.server, &self.epoll, number);
        opened.map_err(|cause| self.lost_for_good(cause))?;
        match schedule {
            None => self.refill(number, Moment::now(), tally),
            Some(schedule) => {
                if std::mem::take(&mut self.connections[number].suspended) {
                    schedule.resume(number);
                }
                Ok(())
            }
        }
    }

    /// Counts all outstanding requests as unanswered.
    fn give_up_all(&self, tally: &mut Tally, now: Moment) {
        for connection in &self.connections {
            give_up(connection, tally, now);
        }
    }

    /// Calls `unsent` for every request that is due before the window closes and was not sent, up
    /// to a limit per connection. Returns their number.
    fn backlog(&self, schedule: &Schedule, times: &Times, mut unsent: impl FnMut(Moment)) -> u64 {
        let mut count = 0;
        for stream in schedule.streams() {
            let mut stream = stream.clone();
            for _ in 0..BACKLOG_COUNTED_MAX {
                let due = times.begin.after(stream.due());
                if due >= times.close {
                    break;
                }
                if due >= times.open {
                    count += 1;
                    unsent(due);
                }
                stream.advance();
            }
        }
        count
    }

    /// Creates the schedule of this thread's share of the load.
    fn schedule(&self, rate: f64) -> Schedule {
        if rate <= 0.0 {
            return Schedule::new(Vec::new());
        }
        let mean_ns = f64::from(self.shared.pace.flows) * 1e9 / rate;
        let stream = |number: usize| {
            let path = [DUE_TIMES, u64::from(self.thread), number as u64];
            Stream::new(self.shared.pace.arrivals, mean_ns, Chance::stream(self.shared.pace.seed, &path))
        };
        Schedule::new((0..self.connections.len()).map(stream).collect())
    }

    /// Waits for ready connections, into `events`.
    #[inline]
    pub(super) fn wait(&mut self, timeout: Nanoseconds) -> Result<(), RunError> {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.0 / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(timeout.0 % 1_000_000_000).unwrap_or(0),
        };
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(Errno::NOSYS) => Err(RunError::NoExactWait { thread: self.thread }),
            Err(errno) => {
                Err(RunError::Thread { thread: self.thread, what: "epoll_pwait2", cause: errno.into() })
            }
        }
    }

    /// The number of the connection that an event belongs to.
    #[inline]
    pub(super) fn ready(&self, event: usize) -> usize {
        let data = self.events[event].data;
        usize::try_from(data.u64()).unwrap_or(usize::MAX)
    }

    /// Turns a connection's failure into an error that ends the run.
    pub(super) fn fatal(&self, broken: Broken) -> RunError {
        let server = self.shared.server;
        match broken {
            Broken::Lost(cause) => self.lost_for_good(cause),
            Broken::Malformed(cause) => RunError::Malformed { server, cause },
            Broken::WrongReply(reply, request) => RunError::WrongReply {
                server,
                reply: format!("{reply:?}"),
                request: match request {
                    None => "no request",
                    Some(Request::Get) => "get",
                    Some(Request::Set(_)) => "set",
                    Some(Request::Exchange { .. }) => "an exchange",
                    Some(Request::Datagram { .. }) => "a datagram",
                    Some(Request::Framed(_)) => "a request of its protocol",
                    Some(Request::Storage { .. }) => "an operation on storage",
                },
            },
        }
    }

    pub(super) fn lost_for_good(&self, cause: io::Error) -> RunError {
        RunError::ServerLost {
            server: self.shared.server,
            thread: self.thread,
            lost: self.lost.max(1),
            cause,
        }
    }
}

/// Counts the outstanding requests of a connection: those without an answer and those not sent.
fn give_up(connection: &Connection, tally: &mut Tally, now: Moment) {
    for (pending, sent) in connection.pending() {
        if sent {
            tally.given_up(pending, now);
        } else {
            tally.never_sent(pending.due, now);
        }
    }
}

/// Sets the thread's timer slack to 1 ns, so that its timers fire on time. With the default slack
/// they may be 50 us late, a large share of a response time at a low rate. A longer slack is the
/// operator's choice, and stays.
///
/// Kernel: `kernel/fork.c` (the first process's 50 us), prctl(2) `PR_SET_TIMERSLACK`, `fs/select.c`
/// `select_estimate_accuracy()`: the remaining slack is a thousandth of the wait.
fn wake_on_time() {
    /// The default slack of a thread, in nanoseconds.
    const DEFAULT: u64 = 50_000;
    if rustix::thread::current_timer_slack().is_ok_and(|slack| slack <= DEFAULT) {
        // If this fails, the generator is late, and its lateness is counted.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

#[cfg(test)]
mod test {
    use std::net::TcpListener;

    use super::*;

    /// A busy machine may lengthen a single wait. Only a call that rounds up makes all of many waits long.
    #[test]
    fn a_wait_of_300_microseconds_is_not_rounded_to_a_millisecond() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
        let workload = Workload::Memcached(crate::test_workload());
        let shared =
            Shared::new(server.local_addr().expect("bound"), &workload, OfferedLoad::PerSecond(1_000.0));
        let mut worker = Worker::connect(&shared, 0).expect("connects");
        let wait = Nanoseconds::from_micros(300);
        let mut shortest = Nanoseconds::from_millis(1_000);
        for _ in 0..500 {
            let begin = Moment::now();
            worker.wait(wait).expect("waits");
            shortest = shortest.min(Moment::now().since(begin));
        }
        assert!((wait..Nanoseconds::from_micros(900)).contains(&shortest), "{shortest}");
    }
}
