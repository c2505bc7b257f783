//! Errors that prevent a run. A completed run that does not count is not an error: see `Evidence::void`.

use std::io;
use std::net::SocketAddr;

use model::pace::OutOfRange;
use model::{Nanoseconds, OfferedLoad};

use crate::protocol::Malformed;

/// The error that made a run impossible.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An option is out of its range.
    #[error("workload: {0}")]
    Option(#[from] OutOfRange),
    /// The load cannot be offered.
    #[error("load {0:?} cannot be offered: the rate must be at least 0 and at most {max}", max = OfferedLoad::PER_SECOND_MAX)]
    Load(OfferedLoad),
    /// The caller's preparation of a client thread failed, for example entering its namespace or
    /// pinning it.
    #[error("client thread {thread} could not be prepared: {cause}")]
    ThreadStart {
        /// The thread's number.
        thread: u32,
        /// The caller's error.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A thread or an epoll could not be created, or waiting on the epoll failed.
    #[error("client thread {thread}: {what}: {cause}")]
    Thread {
        /// The thread's number.
        thread: u32,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
    /// `epoll_pwait2` is missing from the kernel or blocked by a seccomp filter: the generator
    /// cannot wake exactly when a request is due.
    #[error(
        "client thread {thread}: epoll_pwait2 is missing: the load generator needs Linux 5.11, and no system call filter that rejects it"
    )]
    NoExactWait {
        /// The thread's number.
        thread: u32,
    },
    /// A client thread panicked: a bug in the generator or in the caller's preparation.
    #[error("client thread {thread} panicked")]
    Panicked {
        /// The thread's number.
        thread: u32,
    },
    /// The server does not accept a connection.
    #[error("server {server}: connection {connection} of client thread {thread}: {cause}")]
    Connect {
        /// The server's address.
        server: SocketAddr,
        /// The thread's number.
        thread: u32,
        /// The connection's number in the thread.
        connection: usize,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
    /// The server refused a key in the load phase.
    #[error("server {server} refused to set key `{key}` before the run: {words}")]
    PreloadRefused {
        /// The server's address.
        server: SocketAddr,
        /// The key.
        key: String,
        /// The server's error text.
        words: String,
    },
    /// The server stopped answering in the load phase.
    #[error("server {server} sent no answer for {after} while keys were set before the run")]
    PreloadStalled {
        /// The server's address.
        server: SocketAddr,
        /// How long the generator waited for an answer.
        after: Nanoseconds,
    },
    /// The server sent bytes that are not a valid answer.
    #[error("server {server} broke the protocol: {cause}")]
    Malformed {
        /// The server's address.
        server: SocketAddr,
        /// The error in the server's bytes.
        #[source]
        cause: Malformed,
    },
    /// A reply that does not match its request.
    #[error("server {server} broke the protocol: it replied {reply} to {request}")]
    WrongReply {
        /// The server's address.
        server: SocketAddr,
        /// The reply.
        reply: String,
        /// Describes the request, or says that there was none.
        request: &'static str,
    },
    /// Connections were lost and could not be re-established, or were lost too often.
    #[error(
        "server {server} is gone: client thread {thread} lost {lost} connections; the error of the last one: {cause}"
    )]
    ServerLost {
        /// The server's address.
        server: SocketAddr,
        /// The thread's number.
        thread: u32,
        /// How many connections the thread lost.
        lost: u64,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
    /// Every client thread was stopped.
    #[error("no client thread produced a measurement of server {server}")]
    NobodyMeasured {
        /// The server's address.
        server: SocketAddr,
    },
}
