//! Runs the daemon's sockets in a separate event loop. The test chooses the answers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use daemon::api::{ApiOptions, QueryHandler, open};
use daemon::sessions::{SessionProgram, Sessions};
use daemon::status::{DaemonPhase, HeldSetting};
use daemon::{Answer, ApiRequest, EventLoop, Shared, Status};
use serde_json::Value;
use tempfile::TempDir;

type Change = Box<dyn FnOnce(&mut Status) + Send>;

/// The daemon's sockets. Dropping this value closes them.
pub(crate) struct Desk {
    pub(crate) socket: PathBuf,
    pub(crate) metrics: PathBuf,
    log: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    changes: Sender<Change>,
    turns: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
    /// The directory of the sockets, which is removed when the loop has ended.
    _directory: TempDir,
}

impl Desk {
    pub(crate) fn new(group: Option<u32>) -> Self {
        let directory = TempDir::with_prefix("netpolicy-desk-").expect("a directory");
        let (socket, metrics) = (directory.path().join("io.netpolicy"), directory.path().join("metrics"));
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let stop: Arc<AtomicBool> = Arc::default();
        let turns: Arc<AtomicU32> = Arc::default();
        let (changes, changed) = channel();
        let thread = {
            let (socket, metrics) = (socket.clone(), metrics.clone());
            let (log, stop, turns) = (Arc::clone(&log), Arc::clone(&stop), Arc::clone(&turns));
            let (ready, is_ready) = channel();
            let thread = std::thread::spawn(move || {
                serve(group, socket, metrics, log, &stop, &turns, &changed, &ready)
            });
            is_ready.recv().expect("the sockets are open");
            thread
        };
        Self { socket, metrics, log, stop, changes, turns, thread: Some(thread), _directory: directory }
    }

    /// Changes the daemon's status.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Status) + Send + 'static) {
        self.changes.send(Box::new(change)).expect("the loop runs");
    }

    /// The log.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().expect("the log").clone()
    }

    /// Returns the number of turns of the event loop so far.
    pub(crate) fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    pub(crate) fn connect(&self) -> Talk {
        Talk::to(&self.socket)
    }
}

#[expect(clippy::too_many_arguments, reason = "the directory of the sockets")]
fn serve(
    group: Option<u32>,
    socket: PathBuf,
    metrics: PathBuf,
    log: Arc<Mutex<Vec<String>>>,
    stop: &AtomicBool,
    turns: &AtomicU32,
    changed: &Receiver<Change>,
    ready: &Sender<()>,
) {
    let answer_query: QueryHandler = Arc::new(|question| {
        std::thread::sleep(Duration::from_millis(300));
        let said = Value::String(format!("{question:?}"));
        Ok([("said".to_owned(), said)].into_iter().collect())
    });
    let shared = Shared::new().expect("descriptors");
    shared.update(|status| {
        status.phase = DaemonPhase::Managing;
        status.instance.version = "0.1.0".to_owned();
    });
    let options = ApiOptions {
        socket,
        group,
        metrics_socket: Some(metrics),
        metrics_file: None,
        metrics_address: None,
        log: Box::new(move |line| log.lock().expect("the log").push(line.to_owned())),
        answer_query,
        sessions: Sessions::new(fake_program(), shared.clone()),
    };
    let mut event_loop = EventLoop::new().expect("an epoll");
    for source in open(&shared, options).expect("sockets") {
        event_loop.admit(source).expect("room");
    }
    ready.send(()).expect("the client waits");
    while !stop.load(Ordering::Relaxed) {
        event_loop.wait(Some(Instant::now() + Duration::from_millis(20))).expect("a turn");
        turns.fetch_add(1, Ordering::Relaxed);
        while let Ok(change) = changed.try_recv() {
            shared.update(change);
        }
        while let Some((request, reply)) = shared.next_request() {
            reply(answered(&request));
        }
    }
}

/// Returns a program that replaces netpolicy in the test; see `session.sh`.
pub(crate) fn fake_program() -> SessionProgram {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/tests/desk/session.sh");
    SessionProgram {
        program: "/bin/sh".into(),
        words: vec![script.into()],
        policy_words: Vec::new(),
        allow_words: Vec::new(),
    }
}

/// Returns a fixed answer to each kind of request, in the daemon's format.
fn answered(request: &ApiRequest) -> Answer {
    match request {
        ApiRequest::Set(intent) => Answer::Done {
            summary: format!("{} is set", intent.target),
            changes: vec![format!("asked by {}", intent.origin)],
            transactions: Vec::new(),
            notes: Vec::new(),
            pending: false,
        },
        ApiRequest::Settings => Answer::Settings(vec![HeldSetting {
            object: "eth0 rx-0".to_owned(),
            knob: "defer-hard-irqs".to_owned(),
            before: "0".to_owned(),
            value: "100".to_owned(),
            left_alone: None,
        }]),
        ApiRequest::Unset(target) => Answer::Refused {
            exit: 2,
            why: format!("{target} was not set"),
            hint: Some("netpolicy status".to_owned()),
        },
        ApiRequest::Reload | ApiRequest::RollBack | ApiRequest::HoldBack(_) => {
            let (changes, transactions, notes) = (Vec::new(), Vec::new(), Vec::new());
            Answer::Done { summary: "done".to_owned(), changes, transactions, notes, pending: false }
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A client that can send arbitrary text.
pub(crate) struct Talk {
    pub(crate) stream: UnixStream,
    rest: Vec<u8>,
}

impl Talk {
    pub(crate) fn to(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        stream.set_write_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        Self { stream, rest: Vec::new() }
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).and_then(|()| self.stream.write_all(&[0])).expect("said");
    }

    /// Receives the next answer, or `None` if the connection was closed.
    pub(crate) fn receive(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == 0) {
                let after = self.rest.split_off(end + 1);
                let message = std::mem::replace(&mut self.rest, after);
                return Some(serde_json::from_slice(&message[..end]).expect("JSON"));
            }
            let mut part = [0; 16 * 1024];
            match self.stream.read(&mut part) {
                Ok(0) => return None,
                Ok(length) => self.rest.extend_from_slice(&part[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn ask(&mut self, text: &str) -> Value {
        self.say(text);
        self.receive().expect("an answer")
    }
}
