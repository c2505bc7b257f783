//! The metrics page, which is served over HTTP on a unix socket or a loopback address, and written to a file.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use session::replaced_file::{Durability, replace_file};

use super::connection_stats::ConnectionStats;
use super::log_budget::Whose;
use super::metrics::open_metrics;
use super::office::{OpenError, refused};
use super::text_format::text_format;
use crate::{Interest, Ready, Registrar, Shared, Source, Stay};

/// The maximum size of a request in bytes.
const REQUEST_BYTES_MAX: usize = 8 * 1024;

/// How long a client may take to send its request and read the page.
const PATIENCE: Duration = Duration::from_secs(5);

/// The maximum number of concurrent connections. A further one displaces the oldest one: collectors send
/// their request immediately and read quickly, so idle connections must not keep them out.
const READERS_MAX: usize = 8;

/// The maximum number of connections to accept in one turn of the event loop.
const ACCEPTS_MAX: usize = 64;

/// The file's mode. It is set explicitly because the collector runs as another user, for whom the unit's
/// umask would make the file unreadable.
const FILE_MODE: u32 = 0o644;

/// The minimum interval between two writes of the file.
const FILE_EVERY: Duration = Duration::from_secs(15);

/// A stream that can be read, written and polled.
trait Stream: Read + Write + AsFd {}
impl<T: Read + Write + AsFd> Stream for T {}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Socket {
    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream))
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream))
            }
        }
    }
}

/// A listener that serves the metrics page.
pub(super) struct Pages {
    socket: Socket,
    shared: Shared,
    stats: Rc<ConnectionStats>,
    /// A flag per connection, oldest first; setting it makes the connection close.
    readers: VecDeque<Weak<Cell<bool>>>,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

impl Pages {
    pub(super) fn on_socket(listener: UnixListener, shared: Shared, stats: Rc<ConnectionStats>) -> Self {
        Self { socket: Socket::Unix(listener), shared, stats, readers: VecDeque::new() }
    }

    pub(super) fn on_address(
        address: SocketAddr,
        shared: Shared,
        stats: Rc<ConnectionStats>,
    ) -> Result<Self, OpenError> {
        if !address.ip().is_loopback() {
            return Err(OpenError::NotLoopback(address));
        }
        let listener = TcpListener::bind(address).map_err(refused(address))?;
        listener.set_nonblocking(true).map_err(refused(address))?;
        Ok(Self { socket: Socket::Tcp(listener), shared, stats, readers: VecDeque::new() })
    }
}

impl Pages {
    /// Makes room for a connection, by closing the oldest one if necessary. Returns the new connection's
    /// flag.
    fn place(&mut self) -> Rc<Cell<bool>> {
        self.readers.retain(|reader| reader.strong_count() > 0);
        while self.readers.len() >= READERS_MAX
            && let Some(oldest) = self.readers.pop_front()
        {
            if let Some(must_leave) = oldest.upgrade() {
                must_leave.set(true);
            }
        }
        let place = Rc::new(Cell::new(false));
        self.readers.push_back(Rc::downgrade(&place));
        place
    }
}

impl Source for Pages {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(listener) => listener.as_fd(),
            Socket::Tcp(listener) => listener.as_fd(),
        }
    }

    fn interest(&mut self) -> Interest {
        Interest { read: true, ..Interest::default() }
    }

    fn ready(&mut self, _ready: Ready, registrar: &mut Registrar) -> Stay {
        for _ in 0..ACCEPTS_MAX {
            let Ok(stream) = self.socket.accept() else { break };
            let mut reader = Reader {
                stream,
                request: Vec::new(),
                answer: None,
                taken: 0,
                until: Instant::now() + PATIENCE,
                shared: self.shared.clone(),
                stats: Rc::clone(&self.stats),
                must_leave: Rc::default(),
            };
            // A collector has usually sent its request already: answer it now, before further connections can
            // displace it.
            if reader.go_on().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                reader.must_leave = self.place();
                registrar.admit(Box::new(reader));
            }
        }
        Stay::Stay
    }
}

/// A connection that reads the metrics page.
struct Reader {
    stream: Box<dyn Stream>,
    request: Vec<u8>,
    answer: Option<Vec<u8>>,
    taken: usize,
    until: Instant,
    shared: Shared,
    stats: Rc<ConnectionStats>,
    /// Whether this connection must close to make room for another one.
    must_leave: Rc<Cell<bool>>,
}

impl Reader {
    /// Reads the request and writes the answer, as far as the socket allows without blocking. Returns true
    /// when the connection is done.
    fn go_on(&mut self) -> io::Result<bool> {
        while self.answer.is_none() {
            let mut part = [0; 2048];
            match self.stream.read(&mut part)? {
                0 => return Ok(true),
                length => self.request.extend_from_slice(&part[..length]),
            }
            let whole = self.request.windows(4).any(|end| end == b"\r\n\r\n")
                || self.request.windows(2).any(|end| end == b"\n\n");
            if whole || self.request.len() > REQUEST_BYTES_MAX {
                self.answer = Some(self.answered(whole));
            }
        }
        let answer = self.answer.as_deref().unwrap_or_default();
        while self.taken < answer.len() {
            match self.stream.write(&answer[self.taken..])? {
                0 => return Ok(true),
                length => self.taken += length,
            }
        }
        Ok(true)
    }

    fn answered(&self, whole: bool) -> Vec<u8> {
        let words: Vec<&[u8]> = self.request.split(|byte| byte.is_ascii_whitespace()).take(2).collect();
        let (status, kind, body) = match words.as_slice() {
            _ if !whole => ("431 Request Header Fields Too Large", "text/plain", "too long\n".to_owned()),
            [b"GET", b"/metrics" | b"/"] => {
                let page = open_metrics(&self.shared.status(), &self.shared.services(), self.stats.tally());
                ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", page)
            }
            [b"GET", _] => ("404 Not Found", "text/plain", "only GET /metrics is served\n".to_owned()),
            _ => ("405 Method Not Allowed", "text/plain", "only GET /metrics is served\n".to_owned()),
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        (head + &body).into_bytes()
    }
}

impl Source for Reader {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn interest(&mut self) -> Interest {
        let asked = self.answer.is_some();
        let until = if self.must_leave.get() { Instant::now() } else { self.until };
        Interest { read: !asked, write: asked, until: Some(until) }
    }

    fn ready(&mut self, ready: Ready, _registrar: &mut Registrar) -> Stay {
        // Stay, to send the rest of the answer as fast as the client reads it.
        let late = ready.late || self.must_leave.get();
        match self.go_on() {
            Ok(true) => Stay::Leave,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !late && !ready.hung_up => Stay::Stay,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Stay::Stay,
            Ok(false) | Err(_) => {
                self.stats.count(|tally| tally.dropped += 1);
                Stay::Leave
            }
        }
    }
}

/// A file with the metrics page, which is rewritten when the status has changed.
#[derive(Debug)]
pub(super) struct TextFile {
    path: PathBuf,
    shared: Shared,
    stats: Rc<ConnectionStats>,
    next: Instant,
    written: Option<u64>,
    /// A descriptor that never becomes readable. Each source needs a descriptor.
    silent: OwnedFd,
    _other_end: OwnedFd,
}

impl TextFile {
    pub(super) fn new(path: PathBuf, shared: Shared, stats: Rc<ConnectionStats>) -> Result<Self, OpenError> {
        let (silent, other_end) = io::pipe().map_err(refused(path.display()))?;
        let (silent, _other_end) = (silent.into(), other_end.into());
        let mut file = Self { path, shared, stats, next: Instant::now(), written: None, silent, _other_end };
        file.write().map_err(refused(file.path.display()))?;
        Ok(file)
    }

    /// Replaces the file atomically, so that a collector always sees a complete page.
    fn write(&mut self) -> io::Result<()> {
        self.next = Instant::now() + FILE_EVERY;
        let (generation, page) = {
            let status = self.shared.status();
            if self.written == Some(status.generation) {
                return Ok(());
            }
            (status.generation, open_metrics(&status, &self.shared.services(), self.stats.tally()))
        };
        let page = text_format(&page);
        // The temporary file's name ends in `.new`; collectors read only files whose names end in `.prom`.
        replace_file(&self.path, FILE_MODE, page.as_bytes(), Durability::Unsynced)?;
        self.written = Some(generation);
        Ok(())
    }
}

impl Source for TextFile {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.silent.as_fd()
    }

    fn interest(&mut self) -> Interest {
        Interest { until: Some(self.next), ..Interest::default() }
    }

    fn ready(&mut self, _ready: Ready, _registrar: &mut Registrar) -> Stay {
        if let Err(error) = self.write() {
            self.stats.log(Whose::Daemon, &format!("metrics: {}: {error}", self.path.display()));
        }
        Stay::Stay
    }
}
