//! The server side of `tcp-rr`, `tcp-stream` and `storage`: threads with an epoll each, connections handed to them in
//! turn, and a thread that only accepts.
//!
//! It is an ordinary server that knows nothing of delivery: what is set for it is set from outside, as for any other.
//! The one thing that cannot be set from outside is how long its `epoll_wait` may sleep, and that is an option.

mod exchange;
mod storage;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use model::{ExchangeWorkload, Nanoseconds};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use worker::Worker;

/// Connections that wait to be accepted, at most; the kernel cuts it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// How long the accepting thread sleeps before it looks whether it shall end.
const ACCEPT_TURN: Nanoseconds = Nanoseconds::from_millis(250);

/// How a server is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Threads that serve, each with an epoll. Range 1..=[`Self::THREADS_MAX`].
    pub threads: u32,
    /// How long one `epoll_wait` may sleep; `None` for as long as nothing comes, zero to ask again and again.
    pub wait_at_most: Option<Nanoseconds>,
    /// How many connections in a row each thread is handed before the next one's turn. Range 1..=[`Self::IN_A_ROW_MAX`].
    pub in_a_row: u32,
    /// What it does.
    pub service: Service,
}

impl ServerOptions {
    /// The most threads.
    pub const THREADS_MAX: u32 = 256;
    /// The most connections in a row.
    pub const IN_A_ROW_MAX: u32 = 65_536;
    /// The most connections of a thread; those beyond are closed immediately.
    pub const CONNECTIONS_MAX: usize = 65_536;

    /// Whether a server can be built so: options within their ranges, a file that can be opened.
    ///
    /// # Errors
    /// What [`serve`] would say.
    pub fn check(&self) -> Result<(), ServeError> {
        let within = |option, value, most: u32| {
            let range = || format!("1..={most}");
            let fits = (1..=most).contains(&value);
            if fits { Ok(()) } else { Err(ServeError::Option { option, value, range: range() }) }
        };
        within("threads", self.threads, Self::THREADS_MAX)?;
        within("in-a-row", self.in_a_row, Self::IN_A_ROW_MAX)?;
        match &self.service {
            Service::Exchange { request_bytes, answer_bytes, .. } => {
                within("request-bytes", *request_bytes, ExchangeWorkload::BYTES_MAX)?;
                within("answer-bytes", *answer_bytes, ExchangeWorkload::BYTES_MAX)
            }
            Service::Storage { path, writable } => storage::Store::open(path, *writable).map(drop),
        }
    }
}

/// What a server does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// For so many bytes it sends so many, whatever they are.
    Exchange {
        /// How long a request is. Range 1..=[`ExchangeWorkload::BYTES_MAX`].
        request_bytes: u32,
        /// How long an answer is. Range 1..=[`ExchangeWorkload::BYTES_MAX`].
        answer_bytes: u32,
        /// How long it works for each request, without sleep.
        service_time: Nanoseconds,
    },
    /// It reads and writes a file or a block device, past the page cache (`O_DIRECT`), one operation of a thread at a
    /// time.
    Storage {
        /// Which.
        path: PathBuf,
        /// Whether it may be written.
        writable: bool,
    },
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An option is out of its range.
    #[error("{option} = {value} is out of range: {range}")]
    Option {
        /// Which.
        option: &'static str,
        /// What was asked.
        value: u32,
        /// What is possible.
        range: String,
    },
    /// The address cannot be listened on.
    #[error("listening on {address}: {cause}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// The kernel's words.
        #[source]
        cause: io::Error,
    },
    /// The file cannot be opened past the page cache.
    #[error("opening {} with O_DIRECT: {cause}", .path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// The kernel's words.
        #[source]
        cause: io::Error,
    },
    /// The kernel, or a filter of system calls, lacks `epoll_pwait2`.
    #[error(
        "epoll_pwait2 is missing: the server of the benches needs Linux 5.11, and no filter of system calls that rejects it"
    )]
    NoExactWait,
    /// A thread, an epoll or a wait was refused.
    #[error("{what}: {cause}")]
    Kernel {
        /// What was refused.
        what: &'static str,
        /// The kernel's words.
        #[source]
        cause: io::Error,
    },
}

impl ServeError {
    pub(self) fn kernel(what: &'static str, cause: impl Into<io::Error>) -> Self {
        Self::Kernel { what, cause: cause.into() }
    }
}

/// Listens on an address, with room for a thousand connections that come at the same time.
///
/// # Errors
/// [`ServeError::Listen`].
pub fn listen_on(address: SocketAddr) -> Result<TcpListener, ServeError> {
    let listen_on = || {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        Ok::<_, Errno>(TcpListener::from(socket))
    };
    listen_on().map_err(|errno| ServeError::Listen { address, cause: errno.into() })
}

/// Serves until `stop` is set.
///
/// # Errors
/// [`ServeError`] if an option is out of range, a file cannot be opened, or the kernel gives no more.
pub fn serve(listener: &TcpListener, options: &ServerOptions, stop: &AtomicBool) -> Result<(), ServeError> {
    options.check()?;
    let inboxes = (0..options.threads).map(|_| Inbox::new()).collect::<Result<Vec<_>, _>>()?;
    let workers = inboxes.iter().map(|inbox| Worker::new(options, inbox)).collect::<Result<Vec<_>, _>>()?;
    thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut begun = Ok(());
        for (number, worker) in workers.into_iter().enumerate() {
            let named = thread::Builder::new().name(format!("serve-{number}"));
            match named.spawn_scoped(scope, move || worker.run(stop)) {
                Ok(handle) => threads.push(handle),
                Err(cause) => {
                    begun = Err(ServeError::kernel("a new thread", cause));
                    break;
                }
            }
        }
        let ended = begun.and_then(|()| accept(listener, &inboxes, options.in_a_row, stop));
        stop.store(true, Ordering::Relaxed);
        inboxes.iter().for_each(Inbox::ring);
        let joined = threads
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.fold(ended, Result::and)
    })
}

/// Accepts connections and hands them to the threads in turn, so many in a row.
fn accept(
    listener: &TcpListener,
    inboxes: &[Inbox],
    in_a_row: u32,
    stop: &AtomicBool,
) -> Result<(), ServeError> {
    let turn = Timespec { tv_sec: 0, tv_nsec: i64::try_from(ACCEPT_TURN.0).unwrap_or(0) };
    let mut next = inboxes.iter().flat_map(|inbox| (0..in_a_row).map(move |_| inbox)).cycle();
    while !stop.load(Ordering::Relaxed) {
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&turn)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(ServeError::kernel("waiting for connections", errno)),
        }
        match listener.accept() {
            Ok((socket, _)) => {
                let prepared = socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true));
                // A connection that is gone already is not served.
                if prepared.is_ok()
                    && let Some(inbox) = next.next()
                {
                    inbox.put(socket.into());
                }
            }
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(ServeError::kernel("accepting a connection", error)),
        }
    }
    Ok(())
}

/// Whether the next connection may be accepted although this one was not. Kernel: accept(2), "Error handling".
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    [ConnectionAborted, ConnectionReset, Interrupted, WouldBlock].contains(&error.kind())
}

/// Connections on the way to a thread, and the bell that wakes it.
#[derive(Debug)]
struct Inbox {
    sockets: Mutex<Vec<OwnedFd>>,
    bell: OwnedFd,
}

impl Inbox {
    fn new() -> Result<Self, ServeError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|errno| ServeError::kernel("eventfd", errno))?;
        Ok(Self { sockets: Mutex::default(), bell })
    }

    fn put(&self, socket: OwnedFd) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        self.ring();
    }

    fn ring(&self) {
        // It fails only when the bell rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<OwnedFd> {
        // It fails only when the bell does not ring.
        let _ = rustix::io::read(self.bell.as_fd(), &mut [0; 8]);
        std::mem::take(&mut *self.sockets.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
