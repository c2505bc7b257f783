//! How a server is built, why it cannot run, and how connections reach its threads.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use model::Nanoseconds;
use rustix::event::{EventfdFlags, eventfd};

/// The options of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Serving threads, each with an epoll. Range 1..=[`Self::THREADS_MAX`].
    pub threads: u32,
    /// Timeout of an `epoll_wait`; `None` for no timeout, zero for polling.
    pub wait_at_most: Option<Nanoseconds>,
    /// How many consecutive connections a thread gets before the next thread's turn. Range
    /// 1..=[`Self::IN_A_ROW_MAX`].
    pub in_a_row: u32,
    /// The service that the server offers.
    pub service: Service,
}

impl ServerOptions {
    /// Maximum number of threads.
    pub const THREADS_MAX: u32 = 256;
    /// Maximum number of consecutive connections.
    pub const IN_A_ROW_MAX: u32 = 65_536;
    /// Maximum number of connections per thread; further ones are closed immediately.
    pub const CONNECTIONS_MAX: usize = 65_536;
}

/// The service of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// Sends an answer of a fixed size, with arbitrary content, for each request of a fixed size.
    Exchange {
        /// Length of a request. Range 1..=[`model::ExchangeWorkload::BYTES_MAX`].
        request_bytes: u32,
        /// Length of an answer. Range 1..=[`model::ExchangeWorkload::BYTES_MAX`].
        answer_bytes: u32,
        /// How long the server busy-loops for each request.
        service_time: Nanoseconds,
    },
    /// Sends an answer of a fixed size for each request in a UDP datagram, at the port on which the server
    /// listens. TCP connections are closed immediately.
    Datagrams {
        /// Length of a request. Range
        /// [`model::ExchangeWorkload::DATAGRAM_BYTES_MIN`]..=[`model::ExchangeWorkload::DATAGRAM_BYTES_MAX`].
        request_bytes: u32,
        /// Length of an answer, in the same range.
        answer_bytes: u32,
        /// How long the server busy-loops for each request.
        service_time: Nanoseconds,
    },
    /// Reads and writes a file or a block device with `O_DIRECT`, one operation per thread at a
    /// time.
    Storage {
        /// The file or block device.
        path: PathBuf,
        /// Whether the server allows writes.
        writable: bool,
    },
}

/// The error of a server that cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An option is out of its range.
    #[error("{option} = {value} is out of range: {range}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// The requested value.
        value: u32,
        /// The valid range.
        range: String,
    },
    /// Listening on the address failed.
    #[error("listening on {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
    /// Opening the file with `O_DIRECT` failed.
    #[error("opening {} with O_DIRECT: {cause}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
    /// `epoll_pwait2` is missing from the kernel or blocked by a seccomp filter.
    #[error(
        "epoll_pwait2 is missing: the server of the benches needs Linux 5.11, and no system call filter that rejects it"
    )]
    NoExactWait,
    /// A thread or an epoll could not be created, or waiting on the epoll failed.
    #[error("{what}: {cause}")]
    Kernel {
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
}

impl ServeError {
    pub(super) fn kernel(what: &'static str, cause: impl Into<io::Error>) -> Self {
        Self::Kernel { what, cause: cause.into() }
    }
}

/// Connections on their way to a thread, and the eventfd that wakes it.
#[derive(Debug)]
pub(super) struct Inbox {
    sockets: Mutex<Vec<OwnedFd>>,
    pub(super) bell: OwnedFd,
}

impl Inbox {
    pub(super) fn new() -> Result<Self, ServeError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|errno| ServeError::kernel("eventfd", errno))?;
        Ok(Self { sockets: Mutex::default(), bell })
    }

    pub(super) fn put(&self, socket: OwnedFd) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        self.ring();
    }

    pub(super) fn ring(&self) {
        // Fails only if the eventfd is already signalled.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    pub(super) fn take(&self) -> Vec<OwnedFd> {
        // Fails only if the eventfd is not signalled.
        let _ = rustix::io::read(self.bell.as_fd(), &mut [0; 8]);
        std::mem::take(&mut *self.sockets.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
