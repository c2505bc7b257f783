//! A client's connection. It handles one call after another, and drops a client that is too slow or sends too
//! much.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use linux::peer::{UnixPeer, owner};
use model::{Finding, Pid};
use serde_json::{Map, Value, json};

use super::connection_stats::{CLIENTS_MAX, ConnectionSlot};
use super::job;
use super::log_budget::Whose;
use super::method::{self, DESCRIPTION, INTERFACE, Method, SERVICE, SERVICE_DESCRIPTION, VarlinkError};
use super::office::Office;
use super::wire::{Frames, MESSAGE_BYTES_MAX, VarlinkCall, VarlinkReply, decode_call, encode};
use crate::bell::lock;
use crate::sessions::{SessionCall, SessionEvent, SessionHandle, SessionSink, reply_parameters};
use crate::{Answer, ApiRequest, Interest, Ready, Registrar, Source, Stay};

/// How long a client may take to send a complete message or to read an answer.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How long a connection may be idle. A connection that subscribes to findings may be idle indefinitely.
pub const IDLE_MAX: Duration = Duration::from_secs(60);

/// The maximum number of output bytes that are queued for a client. If more are queued, the client is
/// dropped.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// The maximum number of records of a session, and of notes, in a reply to a call without `more`.
const RECORDS_MAX: usize = 256;

/// The maximum number of calls per connection in [`CALLS_WINDOW`]; further calls wait for the next window.
pub const CALLS_MAX: u32 = 100;
const CALLS_WINDOW: Duration = Duration::from_secs(1);

/// The output of a connection that has not been written yet.
#[derive(Debug, Default)]
struct Outbox {
    bytes: Vec<u8>,
    /// The number of bytes at the start of the buffer that have been written.
    taken: usize,
    /// When the client last read output; only while more output is queued.
    since: Option<Instant>,
    /// Whether a call is in progress.
    pending: bool,
}

impl Outbox {
    fn put(&mut self, reply: &VarlinkReply) {
        self.bytes.extend_from_slice(&encode(reply));
        self.since.get_or_insert_with(Instant::now);
    }

    fn waits(&self) -> bool {
        self.taken < self.bytes.len()
    }

    /// Whether more output waits than a client that reads its replies leaves unread.
    const fn is_full(&self) -> bool {
        self.bytes.len() - self.taken > OUTPUT_BYTES_MAX
    }

    /// Records that this many bytes were written. Frees their memory from time to time: a client that always
    /// reads slowly may receive the records of an hour without ever emptying the queue.
    fn take(&mut self, length: usize) {
        self.taken += length;
        if self.taken >= OUTPUT_BYTES_MAX / 4 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.since = Some(Instant::now());
    }
}

/// A client that subscribes to findings.
#[derive(Debug)]
struct Listening {
    generation: u64,
    sent: Vec<Finding>,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    peer: UnixPeer,
    office: Rc<Office>,
    _place: ConnectionSlot,
    frames: Frames,
    /// When the first byte of a message that is still incomplete arrived.
    begun: Option<Instant>,
    /// The time of the last activity.
    last: Instant,
    /// The queued output. The daemon's thread adds replies to it.
    out: Arc<Mutex<Outbox>>,
    listening: Option<Listening>,
    /// The session that the client began last. Dropping the handle cancels the session.
    session: Option<SessionHandle>,
    /// The start of the current window, and the number of calls in it.
    window: (Instant, u32),
    /// Whether the client has closed its sending side.
    finished: bool,
}

impl Connection {
    pub(super) fn new(stream: UnixStream, peer: UnixPeer, office: Rc<Office>, place: ConnectionSlot) -> Self {
        let now = Instant::now();
        Self {
            stream,
            peer,
            office,
            _place: place,
            frames: Frames::default(),
            begun: None,
            last: now,
            out: Arc::default(),
            listening: None,
            session: None,
            window: (now, 0),
            finished: false,
        }
    }

    fn who(&self) -> String {
        format!("uid {} (pid {})", self.peer.uid, self.peer.pid)
    }

    /// Whether the client may see and change everything.
    fn is_trusted(&self) -> bool {
        self.office.trusts(&self.peer)
    }

    /// Returns the log budget to which lines about this client are charged.
    fn whose(&self) -> Whose {
        if self.is_trusted() { Whose::Trusted(self.peer.uid) } else { Whose::User(self.peer.uid) }
    }

    /// Ends the connection, and logs the reason.
    fn drop_for(&self, why: &str) -> Stay {
        self.office.stats.count(|tally| tally.dropped += 1);
        self.office.stats.log(self.whose(), &format!("api: {} was dropped: {why}", self.who()));
        Stay::Leave
    }

    fn takes(&mut self) -> Result<(), &'static str> {
        let mut part = [0; 16 * 1024];
        while self.frames.len() <= MESSAGE_BYTES_MAX {
            match self.stream.read(&mut part) {
                Ok(0) => {
                    self.finished = true;
                    break;
                }
                Ok(length) => {
                    self.frames.push(&part[..length]);
                    self.last = Instant::now();
                    self.begun.get_or_insert(self.last);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err("its connection broke"),
            }
        }
        Ok(())
    }

    fn gives(&mut self) -> Result<(), &'static str> {
        let mut out = lock(&self.out);
        while out.waits() {
            match (&self.stream).write(&out.bytes[out.taken..]) {
                Ok(length) => {
                    out.take(length);
                    self.last = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err("its connection broke"),
            }
        }
        *out = Outbox { pending: out.pending, ..Outbox::default() };
        Ok(())
    }

    /// Handles received calls until none is left, or until a call whose reply is sent later.
    fn serve(&mut self, registrar: &mut Registrar) -> Result<(), String> {
        while !lock(&self.out).pending && self.may_call() {
            let Some(message) = self.frames.next_message().map_err(|bad| bad.to_string())? else { break };
            self.begun = (!self.frames.is_empty()).then(Instant::now);
            let call = decode_call(&message).map_err(|bad| bad.to_string())?;
            self.window.1 += 1;
            self.office.stats.count(|tally| tally.calls += 1);
            self.do_call(&call, registrar);
            if lock(&self.out).is_full() {
                return Err("the client does not read replies".to_owned());
            }
        }
        Ok(())
    }

    /// Whether another call is allowed in this window.
    fn may_call(&mut self) -> bool {
        if self.window.0.elapsed() >= CALLS_WINDOW {
            self.window = (Instant::now(), 0);
        }
        self.window.1 < CALLS_MAX
    }

    fn do_call(&mut self, call: &VarlinkCall, registrar: &mut Registrar) {
        let origin = format!("{INTERFACE} by {}", self.who());
        // Check the permission first: a client without permission must not learn of parameter errors either.
        if !method::is_for_everybody(&call.method) && !self.is_trusted() {
            self.office.stats.count(|tally| tally.denied += 1);
            self.office.stats.log(self.whose(), &format!("api: {} was refused {}", self.who(), call.method));
            return self.answer(call, Err(VarlinkError::service("PermissionDenied", None)));
        }
        let method = match Method::of(call, &origin) {
            Ok(method) => method,
            Err(refusal) => return self.answer(call, Err(refusal)),
        };
        match method {
            Method::GetInfo => self.answer(call, Ok(info())),
            Method::GetInterfaceDescription(interface) => self.answer(call, description(&interface)),
            Method::Status => {
                let state = self.state();
                self.answer(call, Ok(object(json!({ "status": state }))));
            }
            Method::Findings => self.findings(call),
            Method::Settings => self.submit(call, ApiRequest::Settings),
            Method::Set(intent) => self.submit(call, ApiRequest::Set(intent)),
            Method::Unset(target) => self.submit(call, ApiRequest::Unset(target)),
            Method::Rollback => self.submit(call, ApiRequest::RollBack),
            Method::Reload => self.submit(call, ApiRequest::Reload),
            Method::Begin(session) => self.begin(call, *session),
            Method::Cancel(session) => {
                self.log_call(call);
                let cancelled = self.office.sessions.cancel(session);
                self.answer(call, cancelled.map(|()| Map::new()));
            }
            Method::Ask(question) => {
                if question.changes() {
                    self.log_call(call);
                }
                let (office, reply) = (Rc::clone(&self.office), self.later(call));
                let jobs: &Rc<Cell<usize>> = &office.jobs;
                let out = Arc::clone(&self.out);
                if let Err(refusal) = job::start(question, &office.answer_query, jobs, registrar, reply) {
                    lock(&out).pending = false;
                    self.answer(call, Err(refusal));
                }
            }
        }
    }

    fn submit(&mut self, call: &VarlinkCall, request: ApiRequest) {
        let changes = !matches!(request, ApiRequest::Settings);
        if changes {
            self.log_call(call);
        }
        let reply = self.later(call);
        self.office.shared.submit(request, Box::new(move |answer| reply(said(answer))));
    }

    fn log_call(&self, call: &VarlinkCall) {
        self.office.stats.log(self.whose(), &format!("api: {} calls {}", self.who(), call.method));
    }

    /// Begins a session. Its events are sent as replies to the call; the client's next call is handled when
    /// the session has ended.
    fn begin(&mut self, call: &VarlinkCall, session: SessionCall) {
        self.log_call(call);
        lock(&self.out).pending = true;
        let sink = self.sink(call);
        match self.office.sessions.begin(session, self.peer.uid, self.who(), sink) {
            Ok(handle) => self.session = Some(handle),
            Err(refusal) => {
                lock(&self.out).pending = false;
                self.answer(call, Err(refusal));
            }
        }
    }

    /// Returns a function that sends the events of a session: each immediately if the call has `more`,
    /// otherwise all in one reply.
    fn sink(&self, call: &VarlinkCall) -> SessionSink {
        let (out, shared) = (Arc::clone(&self.out), self.office.shared.clone());
        let (more, oneway) = (call.more, call.oneway);
        let (mut session, mut records, mut notes) = (0, Vec::new(), Vec::new());
        Box::new(move |event| {
            let end = match event {
                SessionEvent::Begun(id) => {
                    session = id;
                    None
                }
                SessionEvent::Record(record) => {
                    records.push(record);
                    None
                }
                SessionEvent::Note(note) => {
                    notes.push(note);
                    None
                }
                SessionEvent::Ended(ended) => Some(ended),
            };
            if !more {
                // A single reply has only the newest records and notes.
                records.drain(..records.len().saturating_sub(RECORDS_MAX));
                notes.drain(..notes.len().saturating_sub(RECORDS_MAX));
            }
            let mut out = lock(&out);
            let continues = end.is_none();
            if continues && (!more || oneway) {
                return true;
            }
            let taken = |list: &mut Vec<_>| std::mem::take(list);
            let notes_now: Vec<String> = std::mem::take(&mut notes);
            let message = match end {
                Some(Err(refusal)) => reply(Err(refusal)),
                Some(Ok(end)) => {
                    reply(Ok(reply_parameters(session, taken(&mut records), notes_now, Some(&end))))
                }
                None => reply(Ok(reply_parameters(session, taken(&mut records), notes_now, None))),
            };
            out.pending = continues;
            if !oneway {
                out.put(&VarlinkReply { continues, ..message });
            }
            let is_read = !out.is_full();
            drop(out);
            shared.changed().ring();
            is_read
        })
    }

    /// Returns a function that sends the delayed reply to a call and then allows the client's next call.
    fn later(&mut self, call: &VarlinkCall) -> Box<dyn FnOnce(job::QueryResult) + Send> {
        lock(&self.out).pending = true;
        let (out, oneway) = (Arc::clone(&self.out), call.oneway);
        Box::new(move |found| {
            let mut out = lock(&out);
            out.pending = false;
            if !oneway {
                out.put(&reply(found));
            }
        })
    }

    fn answer(&mut self, call: &VarlinkCall, found: job::QueryResult) {
        if !call.oneway {
            lock(&self.out).put(&reply(found));
        }
    }

    fn findings(&mut self, call: &VarlinkCall) {
        let (generation, findings) = {
            let status = self.office.shared.status();
            (status.generation, status.findings.clone())
        };
        let parameters = object(json!({ "findings": findings }));
        lock(&self.out).put(&VarlinkReply { parameters, continues: call.more, error: None });
        if call.more {
            self.listening = Some(Listening { generation, sent: findings });
        }
    }

    /// Sends the findings again if they have changed, provided that the client has read the previous ones.
    fn send_findings(&mut self) {
        let Some(listening) = &mut self.listening else { return };
        let mut out = lock(&self.out);
        if out.waits() {
            return;
        }
        let status = self.office.shared.status();
        if status.generation == listening.generation {
            return;
        }
        listening.generation = status.generation;
        if status.findings != listening.sent {
            listening.sent.clone_from(&status.findings);
            let parameters = object(json!({ "findings": status.findings }));
            out.put(&VarlinkReply { parameters, continues: true, error: None });
        }
    }

    /// Returns the part of the daemon's state that this client may see.
    fn state(&self) -> Value {
        let status = self.office.shared.status();
        let whole = self.is_trusted();
        let mut state = serde_json::to_value(&*status).unwrap_or_default();
        let Some(fields) = state.as_object_mut() else { return state };
        fields.insert("whole".to_owned(), whole.into());
        if !whole {
            let own = |target: &str| process_of(target).is_some_and(|pid| owner(pid) == Some(self.peer.uid));
            let requests: Vec<_> = status.requests.iter().filter(|r| own(&r.target)).collect();
            fields.insert("requests".to_owned(), serde_json::to_value(requests).unwrap_or_default());
            for hidden in ["policy", "counters", "polling", "netns", "sessions"] {
                fields.insert(hidden.to_owned(), Value::Null);
            }
            for hidden in ["findings", "event_sources", "verdicts"] {
                fields.insert(hidden.to_owned(), json!([]));
            }
            fields.insert("reactions".to_owned(), json!({}));
            fields.insert("settings".to_owned(), 0.into());
        }
        state
    }

    /// Returns when the connection will be dropped unless data is transferred before, and the reason.
    fn due(&self) -> Option<(Instant, &'static str)> {
        let out = lock(&self.out);
        if let Some(since) = out.since.filter(|_| out.waits()) {
            return Some((since + PATIENCE, "the client does not read replies"));
        }
        if out.pending {
            return None;
        }
        match self.begun.filter(|_| !self.frames.has_message()) {
            Some(begun) => Some((begun + PATIENCE, "incomplete message")),
            None if self.listening.is_some() => None,
            None => Some((self.last + IDLE_MAX, "idle for 60 s")),
        }
    }
}

impl Source for Connection {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn interest(&mut self) -> Interest {
        self.send_findings();
        let due = self.due().map(|(at, _)| at);
        let out = lock(&self.out);
        let read = !self.finished && self.frames.len() <= MESSAGE_BYTES_MAX;
        // Run again now for calls that arrived together with a delayed call, and in the next window for calls
        // above the rate limit.
        let next = if !out.pending && !out.waits() && (self.frames.has_message() || self.finished) {
            let full = self.window.1 >= CALLS_MAX && self.frames.has_message();
            Some(if full { self.window.0 + CALLS_WINDOW } else { Instant::now() })
        } else {
            None
        };
        Interest { read, write: out.waits(), until: [due, next].into_iter().flatten().min() }
    }

    fn ready(&mut self, ready: Ready, registrar: &mut Registrar) -> Stay {
        if ready.read
            && !self.finished
            && let Err(why) = self.takes()
        {
            return self.drop_for(why);
        }
        // Write output before handling calls: a client that does not read must not fill the queue.
        if let Err(why) = self.gives() {
            return self.drop_for(why);
        }
        if !lock(&self.out).waits()
            && let Err(why) = self.serve(registrar)
        {
            return self.drop_for(&why);
        }
        if let Err(why) = self.gives() {
            return self.drop_for(why);
        }
        if self.due().is_some_and(|(at, _)| at <= Instant::now()) {
            let (_, why) = self.due().unwrap_or((self.last, ""));
            return self.drop_for(why);
        }
        let out = lock(&self.out);
        let done = !out.pending && !out.waits() && !self.frames.has_message();
        if (self.finished && done) || ready.hung_up { Stay::Leave } else { Stay::Stay }
    }
}

fn reply(found: job::QueryResult) -> VarlinkReply {
    match found {
        Ok(parameters) => VarlinkReply { parameters, ..VarlinkReply::default() },
        Err(VarlinkError { error, parameters }) => {
            VarlinkReply { error: Some(error), parameters, continues: false }
        }
    }
}

/// Returns the process to which a target belongs: the target is a task, or some epolls of a task.
fn process_of(target: &str) -> Option<Pid> {
    let task = match target.strip_prefix("epoll ") {
        Some(epolls) => epolls.rsplit_once(" of ")?.1,
        None => target,
    };
    task.strip_prefix("task ")?.parse().ok().map(Pid)
}

/// Sends a rejected client the error that the connection limit is reached.
pub(super) fn reject(mut stream: &UnixStream) {
    let words = format!("connection limit reached: {CLIENTS_MAX}, and fewer of one user");
    // The socket's buffer is empty, so the message fits. An error means that the client has disconnected.
    let _ = stream.write_all(&encode(&reply(Err(VarlinkError::busy(words)))));
}

fn said(answer: Answer) -> job::QueryResult {
    match answer {
        Answer::Done { summary, changes, transactions, notes, pending } => Ok(object(json!({
            "summary": summary,
            "changes": changes,
            "transactions": transactions,
            "notes": notes,
            "pending": pending,
        }))),
        Answer::Settings(settings) => Ok(object(json!({ "settings": settings }))),
        Answer::Refused { exit, why, hint } => Err(VarlinkError::refused(exit, why, hint)),
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn info() -> Map<String, Value> {
    object(json!({
        "vendor": "netpolicy",
        "product": "netpolicy",
        "version": env!("CARGO_PKG_VERSION"),
        "url": "",
        "interfaces": [SERVICE, INTERFACE],
    }))
}

fn description(interface: &str) -> job::QueryResult {
    let text = match interface {
        INTERFACE => DESCRIPTION,
        SERVICE => SERVICE_DESCRIPTION,
        _ => return Err(VarlinkError::service("InterfaceNotFound", Some(("interface", interface)))),
    };
    Ok(object(json!({ "description": text })))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_a_slow_client_has_read_is_forgotten_before_it_has_read_all() {
        let mut out = Outbox::default();
        let record = reply(Ok(object(json!({ "record": "x".repeat(10_000) }))));
        let mut written = 0;
        for _ in 0..10_000 {
            out.put(&record);
            let length = (out.bytes.len() - out.taken).saturating_sub(1);
            out.take(length);
            written += length;
            assert!(out.waits() && out.bytes.len() <= OUTPUT_BYTES_MAX, "{} bytes", out.bytes.len());
        }
        assert_eq!(written + 1, 10_000 * encode(&record).len());
    }

    #[test]
    fn only_output_that_waits_counts_against_the_limit() {
        let mut out = Outbox { bytes: vec![0; OUTPUT_BYTES_MAX], ..Outbox::default() };
        out.take(OUTPUT_BYTES_MAX / 8);
        out.bytes.extend_from_slice(&[0; OUTPUT_BYTES_MAX / 8]);
        assert!(!out.is_full(), "{} bytes wait", out.bytes.len() - out.taken);
        out.bytes.push(0);
        assert!(out.is_full());
    }
}
