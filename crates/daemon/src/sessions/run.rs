//! One session, from its admission to its last reply.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{PipeReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value};
use session::clock;

use super::child::{SessionEnd, SessionProgram, end_of};
use super::desk::{OpenSession, Refusal, SessionDesk};
use super::hold::SessionHold;
use super::params::SessionCall;
use crate::api::method::VarlinkError;
use crate::bell::{Bell, lock};
use crate::status::{RunningSession, SessionOutcome, Shared};
use crate::{Answer, ApiRequest};

/// How long a session waits for the daemon to stop changing settings. On a large host, a turn of the daemon
/// may take seconds.
const HOLD_WAIT_MAX: Duration = Duration::from_secs(30);

/// How much longer than requested a session may take, because the command first measures a reference and
/// restores the host at the end.
const LATE_MAX: Duration = Duration::from_secs(120);

/// How long a session's process may take to restore the host after SIGTERM. After this time, the process is
/// killed.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// How often to check whether the process has exited. The end of its output is not sufficient, because
/// another process may keep the output open.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The maximum length of a line of output. A longer line is omitted, and the client is notified.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The maximum number of notes that explain a failure if the command wrote no error record.
const LAST_NOTES_MAX: usize = 8;

/// An event that a session sends to its client.
#[derive(Clone, Debug, PartialEq)]
pub enum SessionEvent {
    /// The session has begun, with this number.
    Begun(u64),
    /// A record of the command, which is a line of its `-o jsonl` output.
    Record(Value),
    /// A message for the person who uses the client.
    Note(String),
    /// The session has ended. This is the last event.
    Ended(Result<SessionEnd, VarlinkError>),
}

/// A function that receives the events of a session. It returns false if the client no longer reads them; the
/// session is then cancelled.
pub type SessionSink = Box<dyn FnMut(SessionEvent) -> bool + Send>;

/// Tells a session's thread that the session is cancelled.
#[derive(Debug)]
struct Cancel {
    is_cancelled: AtomicBool,
    bell: Bell,
}

impl Cancel {
    fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.bell.ring();
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }
}

/// A client's handle to its session. Dropping it cancels the session.
#[derive(Debug)]
pub struct SessionHandle(Arc<Cancel>);

impl Drop for SessionHandle {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// All sessions of a daemon.
#[derive(Clone)]
pub struct Sessions(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Notified each time a session has ended.
    ended: Condvar,
    program: SessionProgram,
    shared: Shared,
}

#[derive(Default)]
struct State {
    desk: SessionDesk,
    cancels: BTreeMap<u64, Arc<Cancel>>,
    /// Whether the daemon is shutting down, so that no session may begin.
    is_closed: bool,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sessions").field(&lock(&self.0.state).desk).finish()
    }
}

impl Sessions {
    /// Creates the state without any session. `program` is the program that runs sessions.
    pub fn new(program: SessionProgram, shared: Shared) -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), ended: Condvar::new(), program, shared }))
    }

    /// Begins a session of a user on a separate thread.
    ///
    /// # Errors
    /// `Busy` if a limit is reached, `Refused` (7) if another session changes settings.
    pub fn begin(
        &self,
        call: SessionCall,
        uid: u32,
        caller: String,
        mut sink: SessionSink,
    ) -> Result<SessionHandle, VarlinkError> {
        let bell = Bell::new().map_err(|errno| VarlinkError::busy(errno.to_string()))?;
        let cancel = Arc::new(Cancel { is_cancelled: AtomicBool::new(false), bell });
        let id = {
            let mut state = lock(&self.0.state);
            if state.is_closed {
                return Err(VarlinkError::busy("the daemon is shutting down"));
            }
            let id = state.desk.admit(OpenSession {
                kind: call.kind,
                uid,
                changes_settings: call.changes_settings,
            });
            let id = id.map_err(refused)?;
            state.cancels.insert(id, Arc::clone(&cancel));
            id
        };
        let since_unix_micros = clock::now().unix_micros;
        let begun = RunningSession { id, kind: call.kind, client: caller.clone(), since_unix_micros };
        self.0.shared.update(|status| status.sessions.running.push(begun));
        let (sessions, cancelled) = (self.clone(), Arc::clone(&cancel));
        let work = move || {
            // Dropping this value ends the session, even if the thread panics, before the client's next call
            // is handled.
            let mut place = SessionGuard { sessions: &sessions, id, outcome: SessionOutcome::Failed };
            let held = match sink(SessionEvent::Begun(id)) {
                true => sessions.hold_if_needed(id, &call, &caller, &cancelled),
                false => Err(cancelled_early()),
            };
            // The session's time begins when the daemon has stopped changing settings.
            let deadline = Instant::now() + Duration::from_secs(call.seconds) + LATE_MAX;
            let ended = held.and_then(|_hold| sessions.run(&call, &caller, deadline, &cancelled, &mut sink));
            place.outcome = match &ended {
                _ if cancelled.is_cancelled() => SessionOutcome::Cancelled,
                _ if Instant::now() >= deadline => SessionOutcome::TimedOut,
                Ok(_) => SessionOutcome::Completed,
                Err(_) => SessionOutcome::Failed,
            };
            drop(place);
            sink(SessionEvent::Ended(ended));
        };
        let thread = std::thread::Builder::new().name(format!("session {id}"));
        if let Err(error) = thread.spawn(work) {
            self.forget(id, SessionOutcome::Failed);
            return Err(VarlinkError::busy(error.to_string()));
        }
        Ok(SessionHandle(cancel))
    }

    /// Cancels a session. The session restores the host before its last reply.
    ///
    /// # Errors
    /// `Refused` (1) if there is no such session.
    pub fn cancel(&self, id: u64) -> Result<(), VarlinkError> {
        match lock(&self.0.state).cancels.get(&id) {
            Some(cancel) => {
                cancel.cancel();
                Ok(())
            }
            None => Err(VarlinkError::refused(1, format!("no session {id} is running"), None)),
        }
    }

    /// Cancels all sessions, refuses new ones, and waits until the host is restored.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.0.state);
        state.is_closed = true;
        state.cancels.values().for_each(|cancel| cancel.cancel());
        let until = Instant::now() + ENDS_WITHIN + CHECK_EVERY;
        while !state.cancels.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = match self.0.ended.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn forget(&self, id: u64, outcome: SessionOutcome) {
        {
            let mut state = lock(&self.0.state);
            state.desk.end(id);
            state.cancels.remove(&id);
            self.0.ended.notify_all();
        }
        self.0.shared.update(|status| {
            status.sessions.running.retain(|session| session.id != id);
            *status.sessions.ended.entry(outcome).or_insert(0) += 1;
        });
    }

    /// Makes the daemon change no settings if the session changes some.
    fn hold_if_needed(
        &self,
        id: u64,
        call: &SessionCall,
        caller: &str,
        cancel: &Cancel,
    ) -> Result<Option<SessionHold>, VarlinkError> {
        let name = || format!("session {id} ({}, {caller})", call.kind);
        call.changes_settings.then(|| self.hold_back(name(), cancel)).transpose()
    }

    fn run(
        &self,
        call: &SessionCall,
        caller: &str,
        deadline: Instant,
        cancel: &Cancel,
        sink: &mut SessionSink,
    ) -> Result<SessionEnd, VarlinkError> {
        if cancel.is_cancelled() {
            return Err(cancelled_early());
        }
        let origin = format!("io.netpolicy.{} by {caller}", call.kind);
        let (child, output) =
            self.0.program.start(call, &origin).map_err(|fault| {
                VarlinkError::refused(fault.exit.code(), fault.cause.to_string(), fault.hint)
            })?;
        Running { child, output: Some(output), cancel, sink, end: None, notes: Vec::new() }
            .until_end(deadline)
    }

    /// Makes the daemon stop changing settings, and waits until it has stopped.
    fn hold_back(&self, session: String, cancel: &Cancel) -> Result<SessionHold, VarlinkError> {
        let (hold, request) = SessionHold::new(session, self.0.shared.clone());
        let (sender, answer) = sync_channel(1);
        let reply = Box::new(move |answer| drop(sender.try_send(answer)));
        self.0.shared.submit(ApiRequest::HoldBack(request), reply);
        let until = Instant::now() + HOLD_WAIT_MAX;
        loop {
            match answer.recv_timeout(CHECK_EVERY / 10) {
                Ok(Answer::Refused { exit, why, hint }) => {
                    return Err(VarlinkError::refused(exit, why, hint));
                }
                Ok(Answer::Done { .. } | Answer::Settings(_)) => return Ok(hold),
                Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => return Err(cancelled_early()),
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(VarlinkError::busy("the daemon is busy; try again"));
                }
            }
        }
    }
}

/// A session that counts as running. Dropping this value ends the session.
struct SessionGuard<'a> {
    sessions: &'a Sessions,
    id: u64,
    outcome: SessionOutcome,
}

impl Drop for SessionGuard<'_> {
    fn drop(&mut self) {
        self.sessions.forget(self.id, self.outcome);
    }
}

/// A process that is running a session.
struct Running<'a> {
    child: Child,
    /// The pipe for the process's output; `None` once it is closed.
    output: Option<PipeReader>,
    cancel: &'a Cancel,
    sink: &'a mut SessionSink,
    end: Option<SessionEnd>,
    /// The last messages, which explain a failure if the command wrote no error record.
    notes: Vec<String>,
}

impl Running<'_> {
    /// Forwards the process's output until the process has exited.
    fn until_end(mut self, deadline: Instant) -> Result<SessionEnd, VarlinkError> {
        let mut lines = Lines::default();
        let (mut is_asked, mut kill_at) = (false, None);
        let status = loop {
            let now = Instant::now();
            if !is_asked && (self.cancel.is_cancelled() || now >= deadline) {
                is_asked = true;
                kill_at = Some(now + ENDS_WITHIN);
                self.signal(Signal::TERM);
            }
            if kill_at.is_some_and(|at| now >= at) {
                kill_at = None;
                self.signal(Signal::KILL);
            }
            let next = if is_asked { kill_at } else { Some(deadline) };
            let next = next.map_or(CHECK_EVERY, |at| at.saturating_duration_since(now)).min(CHECK_EVERY);
            // Once the process has been told to exit, do not wait for the bell any more: it stays rung, and
            // would wake this loop continuously.
            self.wait(next, !is_asked);
            if self.read(&mut lines) {
                continue;
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                // The process has exited: read the rest of its output.
                while self.read(&mut lines) {}
                break status;
            }
        };
        self.result(status)
    }

    fn signal(&self, signal: Signal) {
        // The process has not been reaped yet, so its pid cannot have been reused.
        if let Ok(pid) = i32::try_from(self.child.id())
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _already_gone = kill_process(pid, signal);
        }
    }

    /// Waits for output, but not longer than `most`. With `for_cancel`, also waits for a cancellation.
    fn wait(&self, most: Duration, for_cancel: bool) {
        let Ok(most) = Timespec::try_from(most) else { return };
        let mut polled = Vec::new();
        if let Some(output) = &self.output {
            polled.push(PollFd::new(output, PollFlags::IN));
        }
        if for_cancel {
            polled.push(PollFd::new(&self.cancel.bell, PollFlags::IN));
        }
        let _woken = poll(&mut polled, Some(&most));
    }

    /// Reads some output, if any is available. Returns whether there was any.
    fn read(&mut self, lines: &mut Lines) -> bool {
        let Some(output) = &mut self.output else { return false };
        let mut polled = [PollFd::new(&*output, PollFlags::IN)];
        let is_ready = poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
        if !is_ready {
            return false;
        }
        let mut part = [0; 16 * 1024];
        match output.read(&mut part) {
            Ok(0) | Err(_) => {
                self.output = None;
                // The output is closed, so the process will exit soon; `until_end` checks for that.
                std::thread::sleep(Duration::from_millis(1));
                false
            }
            Ok(length) => {
                for line in lines.push(&part[..length]) {
                    self.take(line);
                }
                true
            }
        }
    }

    fn take(&mut self, line: Result<String, usize>) {
        let event = match line {
            Err(bytes) => SessionEvent::Note(format!("a record of {bytes} bytes was left out")),
            Ok(line) => match serde_json::from_str::<Value>(&line) {
                Ok(value @ Value::Object(_)) => match end_of(&value) {
                    Some(end) => {
                        self.end = Some(end);
                        return;
                    }
                    None => SessionEvent::Record(value),
                },
                Ok(_) | Err(_) => {
                    if self.notes.len() == LAST_NOTES_MAX {
                        self.notes.remove(0);
                    }
                    self.notes.push(line.clone());
                    SessionEvent::Note(line)
                }
            },
        };
        if !(self.sink)(event) {
            self.cancel.cancel();
        }
    }

    fn result(self, status: ExitStatus) -> Result<SessionEnd, VarlinkError> {
        match self.end {
            Some(SessionEnd { exit, why: Some(why), hint, .. }) => {
                Err(VarlinkError::refused(exit, why, hint))
            }
            Some(end) => Ok(end),
            None => {
                let exit = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
                let why = match (status.signal(), self.notes.is_empty()) {
                    (Some(signal), _) => format!(
                        "the process of the session was ended by signal {signal}; its guard restores the host"
                    ),
                    (None, false) => self.notes.join("\n"),
                    (None, true) => format!("the process of the session exited with {exit}"),
                };
                Err(VarlinkError::refused(exit.max(1), why, None))
            }
        }
    }
}

/// Splits output into lines. Of a line that is too long, only the length is kept.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    /// The length of the current line, including bytes that were omitted.
    length: usize,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Vec<Result<String, usize>> {
        let mut found = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            self.length += part.len();
            if !part.ends_with(b"\n") {
                continue;
            }
            let (line, length) = (std::mem::take(&mut self.line), std::mem::take(&mut self.length));
            if length > LINE_BYTES_MAX {
                found.push(Err(length));
                continue;
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            if !text.is_empty() {
                found.push(Ok(text.to_owned()));
            }
        }
        found
    }
}

fn refused(refusal: Refusal) -> VarlinkError {
    match refusal {
        Refusal::Full | Refusal::UserFull(_) => VarlinkError::busy(refusal.to_string()),
        Refusal::Occupied { id, .. } => {
            let hint = format!("wait until it ends, or call Cancel with session {id}");
            VarlinkError::refused(7, refusal.to_string(), Some(hint))
        }
    }
}

fn cancelled_early() -> VarlinkError {
    VarlinkError::refused(1, "cancelled; nothing was changed", None)
}

/// Builds the parameters of a reply with these records and notes.
pub(crate) fn reply_parameters(
    session: u64,
    records: Vec<Value>,
    notes: Vec<String>,
    end: Option<&SessionEnd>,
) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("session".to_owned(), session.into());
    fields.insert("records".to_owned(), records.into());
    fields.insert("notes".to_owned(), notes.into());
    if let Some(end) = end {
        fields.insert("exit".to_owned(), end.exit.into());
        fields.insert("transactions".to_owned(), end.transactions.clone().into());
    }
    fields
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn lines_come_out_whole_and_long_ones_by_their_length() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"one\n\ntw"), [Ok("one".to_owned())]);
        assert_eq!(lines.push(b"o\n"), [Ok("two".to_owned())]);
        assert_eq!(lines.push(&vec![b'x'; LINE_BYTES_MAX]), []);
        assert_eq!(lines.push(b"yz\n{}\n"), [Err(LINE_BYTES_MAX + 3), Ok("{}".to_owned())]);
        assert!(lines.line.is_empty());
    }
}
